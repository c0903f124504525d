"""`accumulating` on Keras 3: its arguments, its result, and an optimizer that isn't Keras's."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import hosts
import numpy as np
import pytest
from cases import thorough
from hosts import accum, keras
from training import LENGTH, assert_equal, compiled, dense_model, go_on

if hosts.BACKEND == "jax":
    import jax
if not hosts.IS_KERAS3:
    pytest.skip("about `accumulating` on Keras 3; Keras 2 has other files", allow_module_level=True)

from steps import (
    assert_windows_equal_big_batches,
    gradients,
    stepper,
    variables,
)


@keras.saving.register_keras_serializable("tests")
class Noted(keras.optimizers.Optimizer):
    """Gradient descent with a slot, a scalar, and a learning rate that depends on `iterations`.

    It writes in three ways: by the optimizer's `assign`, by a Keras variable's and, on TensorFlow,
    by the native variable's own.
    """

    def __init__(self, learning_rate=0.1, fade=0.5, name="noted", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.fade = fade

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._traces = self.add_optimizer_variables(variables, "trace")
        self._total = self.add_variable((), name="total")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self._total.assign_add(1.0)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        ops = keras.ops
        trace = self._traces[self._get_variable_index(variable)]
        rate = ops.cast(learning_rate, variable.dtype)
        rate = rate / ops.cast(self.iterations + 1, variable.dtype)
        self.assign(trace, self.fade * trace + ops.cast(gradient, variable.dtype))
        variable.assign_sub(rate * trace * ops.cast(self._total, variable.dtype))

    def kept(self):
        return [*self._traces, self._total]

    def get_config(self):
        return {**super().get_config(), "fade": self.fade}


NotedAccumulate = accum.accumulating(Noted)


# -- what other people's optimizers keep, and where -----------------------------------------------

ops = keras.ops


class Momentum(keras.optimizers.Optimizer):
    """Momentum, with slots that each subclass keeps in another place."""

    def __init__(self, learning_rate=2**-4, name=None, **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.keep(variables)

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slot_of(self._get_variable_index(variable))
        slot.assign(ops.cast(gradient, slot.dtype) + 0.5 * slot)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * slot)

    def kept(self):
        return [self.slot_of(index) for index in range(len(self._trainable_variables))]


def slot_for(variable):
    return keras.Variable(ops.zeros(variable.shape, variable.dtype), trainable=False)


class InTrackedDictionaries(Momentum):
    def keep(self, variables):
        self.slots = {"trace": {v.path: slot_for(v) for v in variables}}

    def slot_of(self, index):
        return list(self.slots["trace"].values())[index]


class InLists(Momentum):
    """The second slot holds a copy of the first one, so that two slots have the same shape."""

    def keep(self, variables):
        self.slots = [[slot_for(v), slot_for(v)] for v in variables]

    def slot_of(self, index):
        return self.slots[index][0]

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        slot, other = self.slots[self._get_variable_index(variable)]
        other.assign(ops.convert_to_tensor(slot))

    def kept(self):
        return [slot for slots in self.slots for slot in slots]


class WithAVector(Momentum):
    """The last five sums of gradients are kept once for all variables."""

    def keep(self, variables):
        self.slots = list(map(slot_for, variables))
        self.history = self.add_variable((5,), name="history")

    def slot_of(self, index):
        return self.slots[index]

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        newest = ops.reshape(ops.cast(ops.sum(gradient), self.history.dtype), (1,))
        older = ops.convert_to_tensor(self.history)[1:]
        self.assign(self.history, ops.concatenate([older, newest]))

    def kept(self):
        return [*self.slots, self.history]


PLACES = [InTrackedDictionaries, InLists, WithAVector]
PLACES = {cls.__name__: keras.saving.register_keras_serializable("tests")(cls) for cls in PLACES}
PLACES["Noted"] = Noted
every_place = pytest.mark.parametrize(
    "place",
    [pytest.param(name, marks=thorough if name.startswith("In") else ()) for name in PLACES],
)


def accumulating_in(place, **arguments):
    return accum.accumulating(PLACES[place])(accum_iters=LENGTH, **arguments)


def values_of(optimizer, variables):
    return {i: hosts.array(v) for i, v in enumerate([*variables, *optimizer.kept()])}


@pytest.mark.parametrize("gate", ["select", pytest.param("conditional", marks=thorough)])
@every_place
def test_what_is_kept_elsewhere_equals_its_big_batch(place, gate):
    mine, theirs = variables(), variables()
    ours, stock = accumulating_in(place, gate=gate), PLACES[place]()
    hosts.build_on(ours, mine)
    hosts.build_on(stock, theirs)
    step = stepper(ours, mine)
    for micro_batches in gradients():
        before = values_of(ours, mine)
        for grads in micro_batches[:-1]:
            step(grads)
            assert_equal(values_of(ours, mine), before, rtol=0, atol=0)
        step(micro_batches[-1])
        # Not traced, because Keras on JAX loses what it doesn't track.
        hosts.apply(stock, [np.mean(grads, axis=0) for grads in zip(*micro_batches)], theirs)
        assert_equal(values_of(ours, mine), values_of(stock, theirs))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_what_is_kept_elsewhere_without_a_gradient():
    """A variable without a gradient in the second window: its slots stay as they are.

    TensorFlow must know which slots these are, and no list with an item for each weight has them.
    """
    mine, theirs = variables(), variables()
    ours, stock = accumulating_in("InLists"), InLists()
    hosts.build_on(ours, mine)
    hosts.build_on(stock, theirs)
    for missing, micro_batches in zip((None, 1, None), gradients()):

        def present(grads, missing=missing):
            return [None if i == missing else ops.convert_to_tensor(g) for i, g in enumerate(grads)]

        for grads in micro_batches:
            if hosts.IS_TENSORFLOW and missing is not None:
                with pytest.raises(TypeError, match="to which weights of InLists these belong"):
                    ours.apply(present(grads), mine)
                return
            ours.apply(present(grads), mine)
        stock.apply(present([np.mean(grads, axis=0) for grads in zip(*micro_batches)]), theirs)
        assert_equal(values_of(ours, mine), values_of(stock, theirs))


def store_of(optimizer):
    store, again = {}, type(optimizer).from_config(optimizer.get_config())
    optimizer.save_own_variables(store)
    again.load_own_variables(store)
    return again


def state_of(optimizer):
    again = type(optimizer).from_config(optimizer.get_config())
    again.set_state(optimizer.get_state())
    return again


COPIES = {
    "state": state_of,
    "store": store_of,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "copy": copy.deepcopy,
}


@pytest.mark.parametrize(
    "form", [n if n == "store" else pytest.param(n, marks=thorough) for n in COPIES]
)
@every_place
def test_what_is_kept_elsewhere_is_copied(place, form):
    micro_batches = [grads for window in gradients() for grads in window]
    mine, optimizer = variables(), accumulating_in(place)
    for grads in micro_batches[: LENGTH + 2]:
        hosts.apply(optimizer, grads, mine)
    others = variables()
    for v, value in zip(others, mine):
        hosts.assign(v, hosts.array(value))
    again = COPIES[form](optimizer)
    for grads in micro_batches[LENGTH + 2 :]:
        hosts.apply(optimizer, grads, mine)
        hosts.apply(again, grads, others)
    assert_equal(values_of(again, others), values_of(optimizer, mine), rtol=0, atol=0)
    assert_equal(again.get_state(), optimizer.get_state(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("end", [".keras", ".h5", ".weights.h5"])
@every_place
def test_what_is_kept_elsewhere_is_in_files(place, end, tmp_path):
    def model():
        return compiled(dense_model(), accumulating_in(place), hosts.mean_squared_error())

    saved, path = go_on(model(), 0, LENGTH + 2), tmp_path / f"model{end}"
    if end == ".weights.h5":
        saved.save_weights(path)
        again = model()
        again.optimizer.build(again.trainable_variables)
        again.load_weights(path)
    else:
        saved.save(path)
        again = keras.models.load_model(path)
    assert again.optimizer.window_position == 2
    for each in (saved, again):
        go_on(each, LENGTH + 2, 3 * LENGTH)
    assert_equal(dict(enumerate(again.get_weights())), dict(enumerate(saved.get_weights())))
    assert_equal(again.optimizer.get_state(), saved.optimizer.get_state())


@every_place
def test_from_and_to_what_is_kept_elsewhere(place):
    theirs, stock = variables(), PLACES[place]()
    for micro_batches in gradients()[:2]:
        hosts.apply(stock, micro_batches[0], theirs)
    ours = accum.accumulating(PLACES[place]).from_optimizer(stock, accum_iters=LENGTH)
    assert_equal(values_of(ours, theirs), values_of(stock, theirs), rtol=0, atol=0)
    again = ours.to_stock()
    assert type(again) is PLACES[place]
    assert_equal(values_of(again, theirs), values_of(stock, theirs), rtol=0, atol=0)


# -- what Keras doesn't track -------------------------------------------------------------------


class InAnObject(Momentum):
    def keep(self, variables):
        self.memory = SimpleNamespace(slots=list(map(slot_for, variables)))

    def slot_of(self, index):
        return self.memory.slots[index]


class Lookahead(keras.optimizers.Optimizer):
    """An optimizer inside the optimizer, whose variables Keras doesn't track."""

    def __init__(self, inner=None, learning_rate=1.0, name=None, **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        self.inner = inner or keras.optimizers.Adam(2**-4)

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.inner.build(variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.inner.apply(grads, trainable_variables)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="elsewhere such writes can be held back")
@pytest.mark.parametrize("cls, name", [(InAnObject, "variable"), (Lookahead, "momentum")])
def test_what_keras_does_not_track_is_refused(cls, name):
    optimizer = accum.accumulating(cls)(accum_iters=2)
    with pytest.raises(TypeError, match=f"{cls.__name__} can't accumulate: .*track.*{name}"):
        optimizer.build(variables())
    accum.accumulating(cls)(accum_iters=1).build(variables())


def test_constants_may_be_tensors():
    class WithAConstant(InLists):
        def keep(self, variables):
            super().keep(variables)
            self.half = (
                np.float32(0.5) if hosts.IS_TORCH else ops.convert_to_tensor(0.5, hosts.FLOATX)
            )
            self.last = None

        def update_step(self, gradient, variable, learning_rate):
            self.last = ops.sum(gradient) * self.half
            super().update_step(gradient, variable, learning_rate)

    mine, optimizer = variables(), accum.accumulating(WithAConstant)(accum_iters=2)
    for grads in gradients()[0]:
        hosts.apply(optimizer, grads, mine)
    assert optimizer.completed_updates == 2


class WritingInACond(InLists):
    def update_step(self, gradient, variable, learning_rate):
        slot = self.slot_of(self._get_variable_index(variable))

        def halve():
            slot.assign(0.5 * slot)

        ops.cond(ops.sum(gradient) > 0, halve, lambda: None)
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="about values of JAX's traces")
def test_a_value_that_leaves_a_conditional():
    cls, mine = accum.accumulating(WritingInACond), variables()
    optimizer = cls(accum_iters=2, gate="conditional")
    with pytest.raises(TypeError, match="InACond can't run with gate='conditional'") as error:
        for grads in gradients()[0]:
            hosts.apply(optimizer, grads, mine)
    assert "gate='select'" in str(error.value)
    assert isinstance(error.value.__cause__, jax.errors.UnexpectedTracerError)


def test_signature():
    parameters = list(inspect.signature(NotedAccumulate).parameters)
    assert parameters[:3] == ["learning_rate", "fade", "name"]
    assert {"accum_iters", "gate", "clipnorm", "use_ema"} <= set(parameters)
    assert NotedAccumulate(0.5, 0.75, clipnorm=1.0, accum_iters=2).get_config()["clipnorm"] == 1.0


class SignMomentum(keras.optimizers.Optimizer):
    """It has no constructor. On TensorFlow, its parent passes on `*args` and `**kwargs`."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.traces = self.add_optimizer_variables(variables, "trace")

    def update_step(self, gradient, variable, learning_rate):
        trace = self.traces[self._get_variable_index(variable)]
        self.assign(trace, 0.5 * trace + gradient)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * ops.sign(ops.convert_to_tensor(trace)))


class Passing(SignMomentum):
    def __init__(self, fade=0.5, *args, more=1, **kwargs):
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("cls", "first"),
    [
        (SignMomentum, ["learning_rate", "weight_decay"]),
        (Passing, ["fade", "more", "learning_rate"]),
    ],
)
def test_a_constructor_that_passes_on_its_arguments(cls, first):
    made = accum.accumulating(cls)
    assert list(inspect.signature(made).parameters)[: len(first)] == first
    ours, stock = made(learning_rate=2**-4, accum_iters=LENGTH), cls(learning_rate=2**-4)
    mine, theirs = variables(), variables()
    hosts.build_on(ours, mine)
    hosts.build_on(stock, theirs)
    assert_windows_equal_big_batches(ours, stock, mine, theirs)
    assert made(learning_rate=0.5, clipnorm=1.0).get_config()["clipnorm"] == 1.0
    with pytest.raises(ValueError, match="not recognized.*Did you mean `learning_rate`"):
        made(learning_rates=0.5)
    if cls is SignMomentum:  # its parent's arguments, by position, too
        assert made(2**-4, 0.5, accum_iters=2).get_config()["weight_decay"] == 0.5


def test_the_same_class_again():
    assert accum.accumulating(Noted) is NotedAccumulate
    assert accum.accumulating(keras.optimizers.Lion) is accum.LionAccumulate
    assert NotedAccumulate.__module__ == Noted.__module__


@pytest.mark.parametrize("name", [n for n in hosts.OPTIMIZERS if hasattr(keras.optimizers, n)])
def test_every_stock_optimizer_has_a_name(name):
    found = getattr(accum, f"{name}Accumulate")
    assert found is accum.accumulating(getattr(keras.optimizers, name))
    optimizer = found(accum_iters=2)
    assert type(pickle.loads(pickle.dumps(optimizer))) is found
    assert keras.saving.get_registered_name(found) == f"keras_accum>{name}Accumulate"


@pytest.mark.parametrize(
    "given",
    [keras.optimizers.Adam(), keras.optimizers.LossScaleOptimizer, accum.AdamAccumulate, dict],
)
def test_what_it_refuses(given):
    with pytest.raises(TypeError, match="must be a subclass of .*from_optimizer.* Received"):
        accum.accumulating(given)


def test_names_that_are_taken():
    class Gated(Noted):
        def __init__(self, gate=1):
            super().__init__()

    class Received(Noted):
        def completed_updates(self):
            pass

    class Windowed(Noted):
        def build(self, variables):
            super().build(variables)
            self._accumulation = 3

    with pytest.raises(AttributeError, match="_accumulation"):
        accum.accumulating(Windowed)(accum_iters=2).build(variables())
    with pytest.raises(TypeError, match="Gated takes arguments.*gate"):
        accum.accumulating(Gated)
    with pytest.raises(TypeError, match="Received has members.*completed_updates"):
        accum.accumulating(Received)


def test_old_names_in_a_config():
    config = {**accum.AdamAccumulate(accum_iters=2).get_config(), "gate": "arithmetic"}
    again = accum.AdamAccumulate.from_config({**config, "all_reduce": "micro_batch"})
    assert (again.gate, again.all_reduce) == ("select", "per_micro_batch")
    with pytest.raises(ImportError, match="AdamZAccumulate"):
        exec("from keras_accum.keras3 import AdamZAccumulate", {})
