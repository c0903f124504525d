"""`accumulating` for classes of users, whose variables are kept where Keras's own have none."""

import copy
import inspect
import pickle

import hosts
import numpy as np
import pytest
import steps
import training
from cases import quick_first, skip_file_on_keras2, thorough
from formats import STOP, assert_same
from hosts import accum, keras
from steps import (
    assert_branches,
    assert_windows_equal_big_batches,
    gradients,
    prepared,
    stepper,
    take_steps,
    variables,
)
from training import LENGTH, assert_equal

skip_file_on_keras2("`accumulating`")

if hosts.BACKEND == "jax":
    import jax
ops = keras.ops if hosts.IS_KERAS3 else None
tf = hosts.tf if hosts.IS_TENSORFLOW else None
Optimizer = hosts.optimizers.Optimizer
registered = keras.utils.register_keras_serializable("tests")


class OfKeras3(Optimizer):
    """A slot, a scalar, a rate that depends on `iterations`, and three ways to write."""

    def __init__(self, learning_rate=2**-4, fade=0.5, name=None, **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.fade = fade

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self._traces = self.add_optimizer_variables(variables, "trace")
            self._total = self.add_variable((), name="total")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self._total.assign_add(1.0)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        trace = self._traces[self._get_variable_index(variable)]
        rate = ops.cast(learning_rate, variable.dtype)
        rate = rate / ops.cast(self.iterations + 1, variable.dtype)
        self.assign(trace, self.fade * trace + ops.cast(gradient, variable.dtype))
        variable.assign_sub(rate * trace * ops.cast(self._total, variable.dtype))

    def get_config(self):
        return {**super().get_config(), "fade": self.fade}


class Scattered(Optimizer):
    """Slots in dictionaries and lists, a vector for all, tensors as attributes, no constructor."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            is_torch, half = hosts.IS_TORCH, np.float32(0.5)
            self.last, self.half = None, half if is_torch else ops.convert_to_tensor(half)
            self.kept = {"trace": {v.path: self._slot(v) for v in variables}}
            self.pairs = [[self._slot(v), self._slot(v)] for v in variables]
            self.history = self.add_variable((5,), name="history")

    def _slot(self, variable):
        value = ops.zeros(variable.shape, variable.dtype)
        return keras.Variable(value, trainable=False)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        trace, (one, other) = list(self.kept["trace"].values())[index], self.pairs[index]
        self.last = ops.sum(gradient)
        trace.assign(ops.cast(gradient, trace.dtype) + 0.5 * trace)
        one.assign(ops.convert_to_tensor(trace) + ops.cast(self.half, one.dtype) * one)
        other.assign(ops.convert_to_tensor(one))
        newest = ops.reshape(ops.cast(self.last, self.history.dtype), (1,))
        older = ops.convert_to_tensor(self.history)[1:]
        self.assign(self.history, ops.concatenate([older, newest]))
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * other)


class Drift(Optimizer):
    """Three slots, one of another shape, scalars, and the number of the update in its formula."""

    def __init__(self, learning_rate=2**-5, fade=0.5, name="Drift", **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("fade", fade)
        self.product, self.counts = None, []

    def _create_slots(self, var_list):
        if self.product is None:
            arguments = {"shape": [], "dtype": tf.as_dtype(hosts.FLOATX), "initializer": "ones"}
            self.product = self.add_weight("product", **arguments)
            self.counts = [self.add_weight(f"count{i}", **arguments) for i in range(2)]
            self._weights += [self.product, *self.counts]
        for variable in var_list:  # slots in turn for each variable; Keras's own add slot by slot
            self.add_slot(variable, "trace", "ones")
            self.add_slot(variable, "peak")
            self.add_slot(variable, "norm", shape=[3])

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        update = tf.cast(self.iterations + 1, var_dtype)
        product = self.product.assign(self.product * (0.5 + 0.25 / update))
        for count in self.counts:
            count.assign_add(update)
        apply_state[(var_device, var_dtype)].update(product=tf.identity(product), update=update)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        trace, peak, norm = (self.get_slot(var, name) for name in ("trace", "peak", "norm"))
        new_trace = trace.assign(self._get_hyper("fade", grad.dtype) * trace + grad)
        new_peak = peak.assign(tf.maximum(peak, tf.abs(grad)))
        moved = state["lr_t"] * new_trace / ((1 - state["product"]) * (new_peak + 0.5))
        with tf.control_dependencies([norm.assign_add(tf.ones([3], grad.dtype))]):
            return var.assign_sub(moved / tf.sqrt(state["update"]), read_value=False)

    def get_config(self):
        own = {name: self._serialize_hyperparameter(name) for name in ("learning_rate", "fade")}
        return {**super().get_config(), **own}


class Signed(Optimizer):
    """A slot, a scalar, a use of `iterations`, and methods of a whole step that are its own."""

    def __init__(self, learning_rate=2**-5, fade=0.5, name="Signed", weight_decay=0.25, **kwargs):
        super().__init__(name, weight_decay=weight_decay, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.fade = fade

    def build(self, var_list):
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self.memories = [self.add_variable_from_reference(v, "memory") for v in var_list]
        self.steps = self.add_variable((), initializer="ones", name="steps")

    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)

    def _apply_weight_decay(self, variables):
        super()._apply_weight_decay(variables)
        super()._apply_weight_decay(variables)

    def update_step(self, gradient, variable):
        memory = self.memories[self._index_dict[self._var_key(variable)]]
        self.steps.assign_add(tf.cast(self.iterations + 1, self.steps.dtype))
        memory.assign(memory / 2 + gradient)
        rate = self.learning_rate / tf.cast(self.iterations + 1, variable.dtype) ** self.fade
        variable.assign_sub(rate * tf.sign(memory) * tf.sqrt(self.steps))

    def get_config(self):
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate, "fade": self.fade}


# For each class what its rule keeps once for all variables, and for each variable.
if hosts.IS_KERAS3:
    NAMES = {OfKeras3: (["total"], ["trace"]), Scattered: None}
elif hosts.IS_LEGACY:
    NAMES = {Drift: (["product", "counts_0", "counts_1"], ["trace", "peak", "norm"])}
else:
    NAMES = {Signed: (["steps"], ["memories"])}
for cls in NAMES:
    registered(cls)
First = next(iter(NAMES))
FirstAccumulate = accum.accumulating(First)

OTHER = "select" if hosts.IS_TENSORFLOW else "conditional"
GATES = {"auto": {}, OTHER: {"gate": OTHER}}


@quick_first("gate", GATES)
@pytest.mark.parametrize("cls", NAMES)
def test_it_equals_the_big_batch(cls, gate):
    """So do all that it keeps; its graph has one conditional, or none with select."""
    made, mine, theirs = accum.accumulating(cls), variables(), variables()
    ours = prepared(made(learning_rate=2**-4, accum_iters=LENGTH, **gate), mine)
    stock = prepared(cls(learning_rate=2**-4), theirs)
    assert_windows_equal_big_batches(ours, stock, mine, theirs)
    assert_branches(ours, mine, is_of_user=True)
    back = stock
    for tolerance in ({}, {"rtol": 0, "atol": 0}):
        again = made.from_optimizer(back, accum_iters=LENGTH)
        hosts.build_on(again, theirs)
        assert_equal(again.get_state(), ours.get_state(), **tolerance)
        ours, back = again, again.to_stock()
        assert type(back) is cls


class Own:
    """An override of each Keras, which writes or computes past what this package overrides."""

    def update_step(self, gradient, variable, learning_rate):
        if hosts.IS_KERAS3:
            variable.assign(0.75 * variable - 0.25 * ops.cast(gradient, variable.dtype))

    def _prepare_local(self, device, dtype, apply_state):
        super()._prepare_local(device, dtype, apply_state)
        apply_state[device, dtype]["lr_t"] *= 2


if hosts.IS_LEGACY:
    del Own.update_step


@pytest.mark.skipif(hosts.IS_NEW_STYLE or hosts.IS_TORCH, reason="has no such method")
@pytest.mark.parametrize("how", ["auto", "select", "eagerly", "jit_compile"])
def test_a_subclass_of_ours_with_an_override(how):
    mine, theirs = variables(), variables()
    ours = type("Mine", (Own, accum.SGDAccumulate), {})
    ours = ours(2**-4, accum_iters=LENGTH, gate="select" if how == "select" else "auto")
    stock = type("Theirs", (Own, type(hosts.stock("SGD"))), {})(2**-4)
    how_made = {"jit_compile": True} if tf else {}
    step = {
        "eagerly": lambda grads, is_last: hosts.apply(ours, grads, mine),
        "jit_compile": stepper(prepared(ours, mine), mine, **how_made),
    }.get(how)
    prepared(stock, theirs)
    assert_windows_equal_big_batches(ours, stock, mine, theirs, step=step)
    if step is None:
        assert_branches(ours, mine, is_of_user=True)


def at(cls, stop, **arguments):
    """An optimizer after some micro-batches, and its variables."""
    arguments = {"learning_rate": 2**-4, "accum_iters": LENGTH, **arguments}
    ws = variables()
    return take_steps(accum.accumulating(cls)(**arguments), ws, 0, stop), ws


@pytest.mark.parametrize("cls", [cls for cls in NAMES if NAMES[cls]])
def test_the_names_in_its_state(cls):
    (scalars, slots), state = NAMES[cls], at(cls, 1)[0].get_state()
    found = {name for name in state if name.startswith(cls.__name__)}
    names = [*scalars, *(f"{slot}.{i}" for slot in slots for i in range(3))]
    assert found == {f"{cls.__name__}.{name}" for name in names}


def by_list(old, new, ws):
    hosts.build_on(new, ws)
    new.set_weights([hosts.array(v) for v in hosts.listed(old)])
    return new


def by_store(old, new, ws):
    store = {}
    old.save_own_variables(store)
    new.load_own_variables(store)
    return new


def by_state(old, new, ws):
    new.set_state(old.get_state())
    return new


FORMS = {"store": by_store, "state": by_state, "list": by_list}
FORMS["pickle"] = lambda old, new, ws: pickle.loads(pickle.dumps(old))
FORMS["copy"] = lambda old, new, ws: copy.deepcopy(old)


@quick_first("form", FORMS)
@pytest.mark.parametrize("cls", NAMES)
def test_another_optimizer_continues_in_the_window(cls, form):
    old, ws = at(cls, STOP)
    others = steps.copies_of(ws)
    new = form(old, type(old).from_config(old.get_config()), others)
    assert type(new) is type(old)
    take_steps(old, ws, STOP)
    take_steps(new, others, STOP)
    for w, value in zip(others, ws):
        np.testing.assert_array_equal(hosts.array(w), hosts.array(value))
    assert_same(new.get_state(), old.get_state())


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="elsewhere a list has the order of Keras's classes")
def test_a_list_in_the_order_of_the_class():
    """Of equal shapes, so that only the order tells the slots apart."""
    stock, vs = Drift(), [hosts.variable(np.ones(3), name) for name in "ab"]
    hosts.apply(stock, [np.full(3, 0.5), np.full(3, -0.25)], vs)
    ours = by_list(stock, FirstAccumulate(accum_iters=LENGTH), vs)
    assert_same(hosts.slots(ours.to_stock(), vs), hosts.slots(stock, vs))


# -- what only Keras 3 has ---------------------------------------------------------------------

on_keras3 = pytest.mark.skipif(not hosts.IS_KERAS3, reason="about classes of Keras 3")


def trace(optimizer, grads, ws):
    """Trace a step, in which Python doesn't know the switch."""
    if hosts.IS_TENSORFLOW:
        hosts.tf.function(lambda: hosts.apply(optimizer, grads, ws))()
    else:
        state = [v.value for v in optimizer.variables], grads, [v.value for v in ws]
        jax.jit(optimizer.stateless_apply)(*state)


@on_keras3
def test_an_argument_with_a_name_of_tf_keras():
    """It stays in a config, which Keras 3's own Adam would refuse."""

    class Adaptive(keras.optimizers.SGD):
        def __init__(self, learning_rate=0.1, adaptive_epsilon=True, **keywords):
            super().__init__(learning_rate, **keywords)
            self.adaptive_epsilon = adaptive_epsilon

        def get_config(self):
            return {**super().get_config(), "adaptive_epsilon": self.adaptive_epsilon}

    cls = accum.accumulating(Adaptive)
    config = cls(adaptive_epsilon=False, accum_iters=2).get_config()
    assert not cls.from_config(config).adaptive_epsilon
    given = {**hosts.ours("Adam", accum_iters=2).get_config(), "adaptive_epsilon": False}
    assert accum.AdamAccumulate.from_config(given).accum_iters == 2


@on_keras3
@pytest.mark.filterwarnings("ignore:(keras_accum. )?Gradients do not exist")
def test_a_missing_gradient_where_nothing_tells_whose_a_slot_is():
    """Its slots stay as they are. Where Python doesn't know the switch, it's refused by name."""
    (ours, mine), stock, theirs = at(Scattered, 0, gate="select"), Scattered(2**-4), variables()
    stock.build(theirs)

    def apply(optimizer, grads, ws, missing):
        grads = [None if i == missing else ops.convert_to_tensor(g) for i, g in enumerate(grads)]
        optimizer.apply(grads, ws)

    for missing, micro_batches in zip((None, 1, None), gradients()):
        for grads in micro_batches:
            if not hosts.IS_TORCH and missing is not None:
                present = [None if i == missing else g for i, g in enumerate(grads)]
                with pytest.raises(TypeError, match="of Scattered may belong to any weight"):
                    trace(ours, present, mine)
            apply(ours, grads, mine, missing)
        apply(stock, [np.mean(grads, axis=0) for grads in zip(*micro_batches)], theirs, missing)
    again = type(ours).from_optimizer(stock, accum_iters=LENGTH)
    assert_equal(ours.get_state(), again.get_state())
    for one, other in zip(mine, theirs):
        np.testing.assert_allclose(hosts.array(one), hosts.array(other), **hosts.TOLERANCE)


@pytest.mark.filterwarnings("ignore:(keras_accum. )?Gradients do not exist")
@pytest.mark.skipif(hosts.IS_LEGACY or hosts.IS_TORCH, reason="elsewhere it isn't in the norm")
def test_a_variable_without_a_gradient_is_refused_where_it_could_be_in_the_norm():
    class Shifted(type(hosts.stock("SGD"))):
        def apply(self, grads, trainable_variables=None):
            super().apply([g + 1 for g in grads], trainable_variables)

        def apply_gradients(self, pairs, **kwargs):
            if hosts.IS_KERAS3:  # where it calls `apply`
                return super().apply_gradients(pairs)
            return super().apply_gradients([(g + 1, v) for g, v in pairs], **kwargs)

    ws = [hosts.variable([1.0, -2.0], name) for name in "ab"]
    ours = accum.accumulating(Shifted)(accum_iters=2, global_clipnorm=1.0)
    ours.build(ws)
    with pytest.raises(TypeError, match="Shifted could change its zero.*global_clipnorm=1.0"):
        trace(ours, [np.array([0.5, -0.75], hosts.FLOATX), None], ws)
    # Where Python knows the switch, the norm is that of the variables in the update.
    stock = Shifted(**{"learning_rate": 0.01, "global_clipnorm": 1.0})
    theirs = [hosts.variable([1.0, -2.0], name) for name in "ab"]
    stock.build(theirs)
    ours = accum.accumulating(Shifted)(0.01, accum_iters=2, global_clipnorm=1.0)
    ours.build(ws)
    g, h = (np.array(values, hosts.FLOATX) for values in ([0.5, -0.75], [3.0, 1.0]))
    for micro_batches in [(g, None), (h, None)], [(h, g), (g, None)]:
        for grads in micro_batches:
            present = [x for x in grads if x is not None]
            hosts.apply(ours, present, ws[: len(present)])
        average = [(g + h) / 2] + [x / 2 for x in micro_batches[0][1:] if x is not None]
        hosts.apply(stock, average, theirs[: len(average)])
        for one, other in zip(ws, theirs):
            np.testing.assert_allclose(hosts.array(one), hosts.array(other), **hosts.TOLERANCE)


class OfOurNames(OfKeras3):
    """Slots that Keras has for its own averages and sums, and a method of `apply`."""

    filtered = 0

    def build(self, variables):
        if not self.built:
            super().build(variables)
            names = ["average", "gradient_accumulator"]
            self.first, self.second = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        for slot in (self.first[index], self.second[index]):
            self.assign_add(slot, ops.cast(gradient, variable.dtype) + 1)
        super().update_step(gradient, variable, learning_rate)

    def _filter_empty_gradients(self, grads, variables):
        self.filtered += 1
        return super()._filter_empty_gradients(grads, variables)


@on_keras3
def test_slots_with_names_of_keras():
    """They stay as they are without a gradient in the window, and are in the state."""
    (ours, mine), stock, theirs = at(OfOurNames, 0), OfOurNames(2**-4), variables()
    hosts.build_on(stock, theirs)
    step = stepper(ours, mine[1:]) if tf else lambda grads: hosts.apply(ours, grads, mine[1:])
    for micro_batches in gradients():
        for grads in micro_batches:
            step(grads[1:])
        averages = [np.mean(grads, axis=0) for grads in zip(*micro_batches)]
        hosts.apply(stock, averages[1:], theirs[1:])
    again = type(ours).from_optimizer(stock, accum_iters=LENGTH)
    assert_equal(ours.get_state(), again.get_state())
    assert {"OfOurNames.average.0", "OfOurNames.gradient_accumulator.2"} <= ours.get_state().keys()
    if hosts.IS_TORCH:  # elsewhere it's called where a program is traced
        assert ours.filtered == stock.filtered


@on_keras3
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="elsewhere such writes can be held back")
def test_what_keras_does_not_track_is_held_by_a_branch():
    class Lookahead(Optimizer):
        def build(self, variables):
            if not self.built:
                super().build(variables)
                self.inner = keras.optimizers.Adam(2**-4)
                self.inner.build(variables)

        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            self.inner.apply(grads, trainable_variables)

    made = accum.accumulating(Lookahead)
    mine, theirs = variables(), variables()
    ours = prepared(made(learning_rate=1.0, accum_iters=LENGTH), mine)
    assert_windows_equal_big_batches(ours, prepared(Lookahead(1.0), theirs), mine, theirs)
    assert_branches(ours, mine, is_of_user=True)


# -- what only tf_keras has --------------------------------------------------------------------


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="about the config of Keras's legacy Nadam")
@thorough
def test_nadam_keeps_the_decay_of_its_momentum():
    """Nadam's config has it under a name that Nadam's constructor ignores."""
    stock = hosts.stock("Nadam", schedule_decay=0.25)
    ours = accum.NadamAccumulate.from_optimizer(stock, accum_iters=2)
    ours.build(variables())
    for optimizer in (ours, pickle.loads(pickle.dumps(ours)), ours.to_stock()):
        assert optimizer._initial_decay == 0.25
    assert type(ours).from_config(stock.get_config())._initial_decay == 0.25


# -- the class ---------------------------------------------------------------------------------


def test_the_class():
    """It has a signature, a config and a name, and is made once."""
    assert accum.accumulating(First) is FirstAccumulate
    assert issubclass(FirstAccumulate, First) and FirstAccumulate.__module__ == First.__module__
    assert FirstAccumulate.__name__ == f"{First.__name__}Accumulate"
    parameters = list(inspect.signature(FirstAccumulate).parameters)
    assert parameters[:3] == ["learning_rate", "fade", "name"]
    assert {"accum_iters", "gate", "clipnorm"} <= set(parameters)
    ours = FirstAccumulate(0.5, 0.125, accum_iters=3, clipnorm=1.0)
    config = ours.get_config()
    given = {"learning_rate": 0.5, "fade": 0.125, "accum_iters": 3, "clipnorm": 1.0}
    assert {name: config[name] for name in given} == given
    same = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(same) is FirstAccumulate and same.get_config() == config


@on_keras3
@pytest.mark.parametrize("name", [n for n in hosts.OPTIMIZERS if hasattr(keras.optimizers, n)])
def test_every_stock_optimizer_has_a_name(name):
    found = getattr(accum, f"{name}Accumulate")
    assert found is accum.accumulating(getattr(keras.optimizers, name))
    assert type(pickle.loads(pickle.dumps(found(accum_iters=2)))) is found
    assert keras.saving.get_registered_name(found) == f"keras_accum>{name}Accumulate"


def subclass(parent=First, **members):
    return type("Other", (parent,), members)


WRONG = {
    "an instance": (First(), "^Give the class, .*from_optimizer.* Received"),
    "ours": (FirstAccumulate, "doesn't accumulate"),
    "a wrapper": (type(hosts.loss_scaled(First(), 8.0)), "inner optimizer, and wrap the result"),
    "no optimizer": (
        dict,
        "^`optimizer_class` must be a class of Keras's optimizers, or a subclass",
    ),
    "no class": ("adam", r"^Write `AdamAccumulate\(accum_iters=5\)`"),
    "a member": (subclass(completed_updates=0), "Other has .*completed_updates"),
    "an argument": (subclass(__init__=lambda self, reduction: None), "Other has .*reduction"),
    "a file": (subclass(load_own_variables=None), "Other .* load_own_variables"),
}
if hosts.IS_NEW_STYLE:
    message = "`NadamAccumulate`, which is Keras's legacy Nadam"
    WRONG["Nadam"] = (keras.optimizers.Nadam, message)
    WRONG["a subclass of Nadam"] = (subclass(keras.optimizers.Nadam), message)


@pytest.mark.parametrize("name", WRONG)
def test_refused_classes(name):
    given, message = WRONG[name]
    with pytest.raises(TypeError, match=message):
        accum.accumulating(given)


def names_two_alike(self, variables):
    self.scale, self._scale = (self.add_variable((), name="scale") for _ in range(2))


def names_a_slot_as_we_do(self, variables):
    self.add_optimizer_variables(variables, "window_accumulator")


IN_BUILD = {
    "two variables.* Other.scale: `scale` and `_scale`": names_two_alike,
    "a slot `window_accumulator`, .* Rename": names_a_slot_as_we_do,
}


@on_keras3
@pytest.mark.parametrize("message", IN_BUILD)
def test_what_build_may_not_do(message):
    def build(self, variables):
        if not self.built:
            First.build(self, variables)
            IN_BUILD[message](self, variables)

    with pytest.raises((AttributeError, ValueError), match=message):
        accum.accumulating(subclass(build=build))(accum_iters=2).build(variables())


def reads_older_lists(self, weights):
    """As in tensorflow-addons: without the slots of AMSGrad."""
    super(type(self), self).set_weights(weights[: len(weights) - 2])


def test_a_class_that_reads_older_lists():
    """It's accepted. Our lists need no such method; an error for an older list names it."""
    parent = type(hosts.stock("Adam"))
    made, ws = accum.accumulating(subclass(parent, set_weights=reads_older_lists)), variables()
    ours = prepared(made(accum_iters=LENGTH), ws)
    arrays = [hosts.array(v) for v in hosts.listed(ours)]
    ours.set_weights(arrays)
    with pytest.raises(accum.StateError, match="doesn't call `Other.set_weights`, which might"):
        ours.set_weights([*arrays, *(np.zeros((9, hosts.array(w).size)) for w in ws)])


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="elsewhere a class has no method for these")
@pytest.mark.parametrize("name", ["_resource_apply_sparse", "_resource_apply_dense"])
def test_a_lazy_optimizer(name):
    """Dense gradients are right. A sparse one raises an error if only that has its own rule."""
    members = {"_resource_apply_sparse": lambda *arguments, **keywords: tf.no_op()}
    if name == "_resource_apply_dense":
        dense = type(hosts.stock("Adam"))._resource_apply_dense
        members[name] = lambda self, *arguments, **keywords: dense(self, *arguments, **keywords)
    stock = subclass(type(hosts.stock("Adam")), **members)
    mine, theirs = variables(), variables()
    ours = prepared(accum.accumulating(stock)(2**-4, accum_iters=LENGTH), mine)
    assert_windows_equal_big_batches(ours, prepared(stock(2**-4), theirs), mine, theirs)
    sparse = tf.IndexedSlices(tf.ones((1, 3), mine[0].dtype), [1], (4, 3))
    step = lambda: ours.apply_gradients([(sparse, mine[0])])  # noqa: E731
    if name == "_resource_apply_dense":
        step()
        assert ours.window_position == 1
    else:
        with pytest.raises(TypeError, match="Other overrides `_resource_apply_sparse`.* kernel"):
            step()
        assert ours.window_position == 0


def centralized(self, grads_and_vars, name=None, **arguments):
    """Not linear, so calling it once per micro-batch would show."""
    reduce = keras.ops.mean if hosts.IS_KERAS3 else tf.reduce_mean
    pairs = [(g - reduce(g) + reduce(g) ** 2, v) for g, v in grads_and_vars]
    return super(type(self)._own, self).apply_gradients(pairs, **arguments)


def clipping(self, grads_and_vars, name=None, **arguments):
    """As AdamWeightDecay of the official models: it clips what Keras hasn't summed yet."""
    pairs = list(grads_and_vars)
    if arguments in ({}, {"experimental_aggregate_gradients": True}):
        gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        pairs = list(zip(gradients, [v for _, v in pairs]))
    return super(type(self)._own, self).apply_gradients(pairs, **arguments)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3 has no such argument")
@pytest.mark.parametrize("given", [{}, {"experimental_aggregate_gradients": False}])
def test_an_update_of_ones_own_gets_the_arguments_given(given):
    stock = subclass(type(hosts.stock("SGD")), apply_gradients=clipping)
    stock._own = stock
    (mine,), (theirs,) = ([hosts.variable([1.0, -2.0], "w")] for _ in range(2))
    ours, reference = accum.accumulating(stock)(2**-4, accum_iters=2), stock(2**-4)
    for gradient in ([3.0, -1.0], [1.0, 5.0], [0.5, 0.25], [2.0, 2.0]):
        ours.apply_gradients([(tf.constant(gradient, hosts.FLOATX), mine)], **given)
    for average in ([2.0, 2.0], [1.25, 1.125]):
        reference.apply_gradients([(tf.constant(average, hosts.FLOATX), theirs)], **given)
    np.testing.assert_allclose(hosts.array(mine), hosts.array(theirs), **hosts.TOLERANCE)


def clipped_per_sample(loss, variables, tape):
    """The mean of each sample's gradient, clipped to a norm of 0.1, as in tensorflow-privacy."""
    jacobian = tape.jacobian(loss, variables)
    norms = tf.sqrt(sum(tf.reduce_sum(j**2, list(range(1, len(j.shape)))) for j in jacobian))
    factors = tf.minimum(1, tf.cast(0.1, norms.dtype) / norms)
    return [(tf.tensordot(factors, j, 1) / len(norms), v) for j, v in zip(jacobian, variables)]


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3 computes gradients in its train step")
def test_gradients_of_ones_own():
    """The loss doesn't tell what they are divided by: "mean" or a weight is the big batch."""
    method = "compute_gradients" if hosts.IS_NEW_STYLE else "_compute_gradients"
    stock = type(hosts.stock("SGD"))

    def compute(self, loss, var_list, *more, tape=None, **arguments):
        return clipped_per_sample(loss, var_list, more[0] if more else tape)

    def trained(optimizer, batch_size, **more):
        loss = keras.losses.MeanSquaredError(reduction="none")
        model = training.compiled(training.dense_model(), optimizer, loss, run_eagerly=True)
        training.fit(model, batch_size, epochs=1, **more)
        return training.weights(model)

    private = subclass(stock, **{method: compute})
    of_ours = subclass(type(hosts.ours("SGD")), **{method: compute})
    for cls in (accum.accumulating(private), of_ours):
        for reduction in ("auto", "weighted"):
            with pytest.raises(ValueError, match="computes gradients by itself.*reduction='mean'"):
                trained(cls(0.5, accum_iters=2, reduction=reduction), 2)
        ours = cls(0.5, accum_iters=training.LENGTH, reduction="mean")
        assert_equal(trained(ours, training.MICRO), trained(private(0.5), training.BIG))
    weighing = accum.MicroBatchWeights(lambda x, y, y_pred, sample_weight: len(x))
    ours, arrays = cls(0.5, accum_iters=3), [array[:8] for array in training.data()]
    actual = trained(ours, 3, arrays=arrays, callbacks=[weighing])
    assert_equal(actual, trained(private(0.5), 8, arrays=arrays))


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="elsewhere test_methods.py has it")
@pytest.mark.parametrize("gate", ["auto", "select"])
def test_a_whole_update_of_ones_own(gate):
    stock = subclass(type(hosts.stock("Adam")), apply_gradients=centralized)
    stock._own = stock
    mine, theirs = variables(), variables()
    ours = prepared(accum.accumulating(stock)(2**-4, accum_iters=LENGTH, gate=gate), mine)
    assert_windows_equal_big_batches(ours, prepared(stock(2**-4), theirs), mine, theirs)
    wrapper = subclass(Optimizer, apply_gradients=centralized)
    with pytest.raises(TypeError, match="Other overrides `apply_gradients`, which may wrap"):
        accum.accumulating(wrapper)
