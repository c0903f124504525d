"""`accumulating` for the legacy optimizer classes of Keras 2 on TensorFlow 2."""

import copy
import inspect
import pickle

import hosts
import numpy as np
import pytest
from cases import LATE, quick_first, thorough
from graphs import conditionals, operations
from hosts import accum, keras
from training import LENGTH, assert_equal, assert_moved, compiled, dense_model, go_on, state

if not hosts.IS_LEGACY:
    pytest.skip("about legacy optimizers, which only tf_keras has", allow_module_level=True)

tf = hosts.tf
legacy = getattr(keras.optimizers, "legacy", keras.optimizers)
UPDATES = 3
SHAPES = {"w": (3, 2), "b": (3, 2)}  # equal shapes: only the order tells the variables apart


class Drift(legacy.Optimizer):
    """A user's optimizer: two slots, a scalar, and the number of the update in its formula."""

    def __init__(self, learning_rate=2**-5, pull=0.5, name="Drift", **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("pull", pull)
        self._product = None

    def _create_slots(self, var_list):
        if self._product is None:
            self._product = self.add_weight(
                "product", shape=[], dtype=var_list[0].dtype.base_dtype, initializer="ones"
            )
            self._weights.append(self._product)
        for variable in var_list:  # slots in turn for each variable; Keras's own add slot by slot
            self.add_slot(variable, "trace", "ones")
            self.add_slot(variable, "peak")

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        update = tf.cast(self.iterations + 1, var_dtype)
        product = self._product.assign(self._product * (0.5 + 0.25 / update))
        apply_state[(var_device, var_dtype)].update(product=tf.identity(product), update=update)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        trace, peak = self.get_slot(var, "trace"), self.get_slot(var, "peak")
        new_trace = trace.assign(self._get_hyper("pull", grad.dtype) * trace + grad)
        new_peak = peak.assign(tf.maximum(peak, tf.abs(grad)))
        moved = state["lr_t"] * new_trace / ((1 - state["product"]) * (new_peak + 0.5))
        return var.assign_sub(moved / tf.sqrt(state["update"]), read_value=False)

    def get_config(self):
        own = {name: self._serialize_hyperparameter(name) for name in ("learning_rate", "pull")}
        return {**super().get_config(), **own}


DriftAccumulate = accum.accumulating(Drift)


def gradients(seed=0):
    random = np.random.default_rng(seed)
    return [
        [random.uniform(0.5, 1, shape) * sign for shape, sign in zip(SHAPES.values(), (1, -1))]
        for _ in range(UPDATES * LENGTH)
    ]


def variables(**arguments):
    random = np.random.default_rng(1)
    return [hosts.variable(random.normal(size=s), n, **arguments) for n, s in SHAPES.items()]


def values(optimizer, vs):
    """Weights, slots and scalars, by names that the stock optimizer has as well."""
    found = {v.name: v for v in vs}
    found.update(hosts.slots(optimizer, vs))
    found["product"] = optimizer._product
    return {name: hosts.array(v) for name, v in found.items()}


def stock_values(**arguments):
    """The stock optimizer's values after updates with the average of each window."""
    vs, given, optimizer = variables(**arguments), gradients(), Drift()
    for start in range(0, len(given), LENGTH):
        window = given[start : start + LENGTH]
        hosts.apply(optimizer, [np.mean(g, axis=0) for g in zip(*window)], vs)
    return values(optimizer, vs)


def stepper(optimizer, vs, **arguments):
    function = tf.function(
        lambda gs: (optimizer.apply_gradients(list(zip(gs, vs))), None)[1], **arguments
    )
    return lambda given: function([tf.constant(g) for g in given])


GATES = {"select": {}, "conditional": {"gate": "conditional"}, "late": LATE}


@quick_first("gate", GATES)
def test_it_equals_the_big_batch(gate):
    """Weights and all state are equal; inside a window they stay the same to the bit."""
    vs, ours = variables(), DriftAccumulate(accum_iters=LENGTH, **gate)
    start, before = values_of(vs), None
    step = stepper(ours, vs)
    for number, given in enumerate(gradients()):
        step(given)
        found = {n: v for n, v in values(ours, vs).items() if hosts.ACCUMULATOR not in n}
        if number % LENGTH not in (0, LENGTH - 1):
            assert_equal(found, before, rtol=0, atol=0)
        before = found
    assert_equal(values(ours, vs), stock_values())
    assert_moved(start, values_of(vs))
    assert ours.completed_updates == UPDATES


def values_of(vs):
    return {v.name: hosts.array(v) for v in vs}


def test_no_conditional_in_its_graph():
    vs, ours = variables(), DriftAccumulate(accum_iters=LENGTH)
    ours.build(vs)
    specs = [tf.TensorSpec(shape, hosts.FLOATX) for shape in SHAPES.values()]
    found = operations(lambda gs: (ours.apply_gradients(list(zip(gs, vs))), None)[1], specs)
    assert conditionals(found) == 0


@thorough
@pytest.mark.parametrize("name", ["Nadam", "Adadelta", "Adagrad", "Adamax", "Ftrl", "AMSGrad"])
def test_with_xla(name):
    vs, expected = variables(), variables()
    ours, stock = hosts.ours(name, accum_iters=LENGTH), hosts.stock(name)
    step = stepper(ours, vs, jit_compile=True)
    given = gradients()[: 2 * LENGTH]
    for number, one in enumerate(given):
        step(one)
        if number % LENGTH == LENGTH - 1:
            window = given[number + 1 - LENGTH : number + 1]
            hosts.apply(stock, [np.mean(g, axis=0) for g in zip(*window)], expected)
    assert_equal(values_of(vs), values_of(expected), rtol=0, atol=1e-9)


# -- state and files -------------------------------------------------------------------------------


def half_way(accum_iters=LENGTH):
    vs, ours = variables(), DriftAccumulate(accum_iters=accum_iters)
    for given in gradients()[: LENGTH + 1]:
        hosts.apply(ours, given, vs)
    return ours, vs


def goes_on(ours, vs):
    for given in gradients()[LENGTH + 1 :]:
        hosts.apply(ours, given, vs)
    assert_equal(values(ours, vs), stock_values())


def test_the_names_in_its_state():
    state = half_way()[0].get_state()
    rule = {name: array.shape for name, array in state.items() if name.startswith("Drift.")}
    shapes = {f"Drift.{s}.{i}": (3, 2) for s in ("trace", "peak") for i in range(2)}
    assert rule == {"Drift.product": (), **shapes}


def moved(read, write):
    def move(old, vs):
        new = DriftAccumulate(accum_iters=LENGTH)
        new.build(vs)
        getattr(new, write)(getattr(old, read)())
        return new

    return move


WAYS = {
    "set_state": moved("get_state", "set_state"),
    "set_weights": moved("get_weights", "set_weights"),
    "copy": lambda old, vs: copy.deepcopy(old),
    "pickle": lambda old, vs: pickle.loads(pickle.dumps(old)),
}


@thorough
@pytest.mark.parametrize("way", WAYS)
def test_another_optimizer_continues_in_the_window(way):
    old, vs = half_way()
    goes_on(WAYS[way](old, vs), vs)


@thorough
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("ending", ["keras", "h5", "checkpoint"])
def test_files_continue_in_the_window(ending, tmp_path):
    def model():
        return compiled(dense_model(), DriftAccumulate(2**-6, accum_iters=LENGTH))

    straight, stopped = go_on(model(), 0), go_on(model(), 0, LENGTH + 1)
    path = str(tmp_path / f"model.{ending}")
    if ending == "checkpoint":
        tf.train.Checkpoint(model=stopped).write(path)
        loaded = model()
        tf.train.Checkpoint(model=loaded).read(path)
    elif ending == "keras" and not hasattr(keras.Model, "get_compile_config"):
        pytest.skip("this tf.keras is older than the .keras format")
    else:
        stopped.save(path)
        loaded = keras.models.load_model(path)
    go_on(loaded, LENGTH + 1)
    assert_equal(state(loaded), state(straight), rtol=0, atol=0)


@thorough
def test_from_stock_and_back():
    vs, stock = variables(), Drift(pull=0.25)
    for given in gradients()[:2]:
        hosts.apply(stock, given, vs)
    ours = DriftAccumulate.from_optimizer(stock, accum_iters=LENGTH)
    assert ours.get_config()["pull"] == 0.25
    ours.build(vs)
    back = ours.to_stock()
    assert type(back) is Drift
    assert_equal(values(back, vs), values(stock, vs), rtol=0, atol=0)
    ours = DriftAccumulate(accum_iters=LENGTH)
    ours.build(vs)
    ours.set_weights(stock.get_weights())  # in another order than those of Keras's own classes
    assert_equal(values(ours, vs), values(stock, vs), rtol=0, atol=0)


@thorough
def test_nadam_keeps_the_decay_of_its_momentum():
    """Nadam's config has it under a name that Nadam's constructor ignores."""
    stock = legacy.Nadam(schedule_decay=0.25)
    ours = accum.NadamAccumulate.from_optimizer(stock, accum_iters=2)
    ours.build(variables())
    for optimizer in (ours, pickle.loads(pickle.dumps(ours)), ours.to_stock()):
        assert optimizer._initial_decay == 0.25
    assert type(ours).from_config(stock.get_config())._initial_decay == 0.25


# -- the class -------------------------------------------------------------------------------------


def test_the_class():
    assert accum.accumulating(Drift) is DriftAccumulate
    assert accum.accumulating(legacy.Adam) is accum.AdamAccumulate
    assert DriftAccumulate.__name__ == "DriftAccumulate"
    found = list(inspect.signature(DriftAccumulate).parameters)
    assert found[:3] == ["learning_rate", "pull", "name"] and "accum_iters" in found
    assert issubclass(DriftAccumulate, Drift)
    ours = DriftAccumulate(0.5, 0.125, accum_iters=3, clipnorm=1.0)
    config = ours.get_config()
    assert (config["learning_rate"], config["pull"], config["accum_iters"]) == (0.5, 0.125, 3)
    same = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(same) is DriftAccumulate and same.get_config() == config


class OnEachMicroBatch(Drift):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)


class WithOurMember(Drift):
    def completed_updates(self):
        return 0


class WithOurArgument(Drift):
    def __init__(self, reduction="none", **kwargs):
        super().__init__(**kwargs)


WRONG_CLASSES = {
    "instance": (Drift(), "must be a subclass of .*from_optimizer"),
    "ours": (accum.AdamAccumulate, "doesn't accumulate"),
    "wrapper": (keras.mixed_precision.LossScaleOptimizer, "inner optimizer, and wrap the result"),
    "no optimizer": (keras.layers.Dense, "must be a subclass of"),
    "no class": ("adam", "must be a subclass of"),
    "method": (OnEachMicroBatch, "overrides apply_gradients, which run on every micro-batch"),
    "member": (WithOurMember, "completed_updates"),
    "argument": (WithOurArgument, "reduction"),
}


@pytest.mark.parametrize("name", WRONG_CLASSES)
def test_refused_classes(name):
    cls, message = WRONG_CLASSES[name]
    with pytest.raises(TypeError, match=message):
        accum.accumulating(cls)


class WithList(Drift):
    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        self.counts = [self.add_weight("count", shape=[]) for _ in var_list]


class WithSmallSlot(Drift):
    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        for variable in var_list:
            self.add_slot(variable, "norm", shape=[3])


ADDED = {WithList: ["counts_0", "counts_1"], WithSmallSlot: ["norm.1"]}


@thorough
@pytest.mark.parametrize("cls", ADDED, ids=lambda cls: cls.__name__)
def test_state_of_any_shape(cls):
    """A list of scalars, and a slot that isn't of its variable's shape are kept."""
    vs, ours = variables(), accum.accumulating(cls)(accum_iters=2)
    for given in gradients()[:3]:
        hosts.apply(ours, given, vs)
    state = ours.get_state()
    more = {f"{cls.__name__}.{name}" for name in (*ADDED[cls], "trace.0", "product")}
    assert more <= set(state)
    again = pickle.loads(pickle.dumps(ours))
    again.build(vs)
    assert_equal(again.get_state(), state, rtol=0, atol=0)
