"""Optimizers that wrap ours: a LossScaleOptimizer, a MultiOptimizer, and what is refused."""

import contextlib

import hosts
import numpy as np
import pytest
import training
from cases import quick_once_on_keras3, skip_file_on_keras2
from hosts import accum, keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    WINDOWS,
    compiled,
    dense_model,
    fit,
    inner,
    our_warnings,
    train,
)

pytestmark = quick_once_on_keras3

skip_file_on_keras2("optimizers that wrap others")

Multi = getattr(keras.optimizers, "MultiOptimizer", None)
has_several = pytest.mark.skipif(not Multi, reason="this Keras has no MultiOptimizer")

# -- a LossScaleOptimizer, which `compile` may add by itself ---------------------------------------


def set_policy(policy):
    setting = keras.mixed_precision
    setting.set_dtype_policy(policy) if hosts.IS_KERAS3 else setting.set_global_policy(policy)


def trained_in_mixed_precision(accum_iters):
    """A model whose optimizer `compile` has wrapped, after 5 micro-batches. `same_start` resets."""
    hosts.set_floatx("float32")
    set_policy("mixed_float16")
    arguments = {"accum_iters": accum_iters, "reduction": "mean"}
    optimizer = hosts.ours("Adam", learning_rate=2**-5, **arguments)
    model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    assert inner(model.optimizer) is optimizer is not model.optimizer
    return train_five(model)


def train_five(model, **settings):
    arrays = [array[: 5 * MICRO].astype("float32") for array in training.data()]
    fit(model, MICRO, arrays, epochs=1, **settings)
    return model


def test_the_inner_optimizer_has_the_window():
    """And says once, in a training, that `accum_iters` has no effect on the wrapper."""
    model = trained_in_mixed_precision(accum_iters=2)
    optimizer = inner(model.optimizer)
    assert (optimizer.completed_updates, optimizer.window_position) == (2, 1)
    model.optimizer.accum_iters = 7
    with pytest.warns(UserWarning, match=r"`accum_iters` has no effect .*inner_optimizer\.accum"):
        train_five(model, callbacks=[accum.ApplyPartialWindow()])
    assert (optimizer.completed_updates, optimizer.window_position) == (5, 0)
    optimizer.accum_iters = 3
    train_five(model)
    assert (optimizer.completed_updates, optimizer.window_position) == (6, 2)
    optimizer.apply_partial_window()
    assert (optimizer.completed_updates, optimizer.window_position) == (7, 0)
    assert not hasattr(model.optimizer, "completed_updates")


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about files of Keras 3's LossScaleOptimizer")
@pytest.mark.parametrize("accum_iters", [LENGTH, 1])
def test_loaded_where_the_policy_is_not_set(tmp_path, accum_iters):
    """The whole state is loaded. A warning says that the loss scale isn't used."""
    model = trained_in_mixed_precision(accum_iters)
    model.save(tmp_path / "model.keras")
    set_policy("float32")
    with pytest.warns(UserWarning, match="loss scale"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert inner(loaded.optimizer) is loaded.optimizer
    expected = inner(model.optimizer).get_state()
    assert expected["completed_updates"] == 5 // accum_iters
    found = {**loaded.optimizer.get_state(), "weight_names": expected["weight_names"]}
    training.assert_equal(found, expected, rtol=0, atol=0)
    train_five(loaded)


# -- one optimizer around several of ours: callbacks reach all of them, or raise an error ----------


def several(by_function=False, **more):
    """Adam for the last layer and SGD for the rest, all ours or all stock."""
    make = hosts.ours if more else hosts.stock
    default = make("SGD", learning_rate=2**-3, **more)
    last = make("Adam", learning_rate=2**-5, **more)
    if by_function:
        return Multi(lambda v: last if "out/" in v.path else default)
    mapped = keras.optimizers.OptimizerMap(default, {"model/out/.*": last, "out/.*": last})
    return Multi(mapped)


@has_several
def test_several_equal_the_big_batch():
    ours, stock = train(several(accum_iters=LENGTH), MICRO), train(several(), BIG)
    for trained in (ours, stock):
        trained.slots.pop("iteration")  # MultiOptimizer's own counter, of micro-batches
    training.assert_same_training(ours, stock)


@has_several
def test_each_of_several_has_the_weights():
    """Without a callback: a short batch, and windows that end with the epoch."""
    arrays = [array[:-1] for array in training.data()]
    ours = train(several(accum_iters=LENGTH, reduction="weighted"), MICRO, arrays=arrays)
    training.assert_equal(ours.weights, train(several(), BIG, arrays=arrays).weights)


class ByLayer(keras.optimizers.Optimizer if hosts.IS_KERAS3 else object):
    """A user's own wrapper: another optimizer for the last layer."""

    def __init__(self, first, last):
        super().__init__(learning_rate=0.0)
        self.parts = {False: first, True: last}

    def _split(self, variables):
        return {key: [v for v in variables if ("out/" in v.path) == key] for key in self.parts}

    def build(self, variables):
        if not self.built:
            super().build(variables)
            for key, own in self._split(variables).items():
                self.parts[key].build(own)

    def apply(self, grads, trainable_variables=None):
        self.build(trainable_variables)
        gradients = {v.path: g for g, v in zip(grads, trainable_variables)}
        for key, own in self._split(trainable_variables).items():
            self.parts[key].apply([gradients[v.path] for v in own], own)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="on other backends a step passes on the state")
def test_a_wrapper_of_the_users_gets_weights():
    """`fit` finds the optimizers in it, so a short batch counts by its samples."""
    arrays = [array[:-1] for array in training.data()]

    def wrapped(make, **more):
        first = make("SGD", learning_rate=2**-3, **more)
        return ByLayer(first, make("Adam", learning_rate=2**-5, **more))

    model = compiled(dense_model(), wrapped(hosts.ours, accum_iters=LENGTH))
    reference = compiled(dense_model(), wrapped(hosts.stock))
    for each, size in (model, MICRO), (reference, BIG):
        fit(each, size, arrays)
    training.assert_equal(training.weights(model), training.weights(reference))


class Averaging(hosts.optimizers.Optimizer):
    """Averages the weights in each call, as ExponentialMovingAverage of the official models."""

    def __init__(self, optimizer, **arguments):
        super().__init__(**({"learning_rate": 0.0} if hosts.IS_KERAS3 else {"name": "averaging"}))
        self.wrapped, self.averages = optimizer, None

    def _average(self, variables):
        if self.averages is None:
            add = self.add_slot if hosts.IS_LEGACY else self.add_variable_from_reference
            with hosts.tf.init_scope() if hosts.IS_TENSORFLOW else contextlib.nullcontext():
                self.averages = [add(variable, "average") for variable in variables]
        for average, variable in zip(self.averages, variables):
            average.assign(0.9 * hosts.native(average) + 0.1 * hosts.native(variable))

    def build(self, variables):
        self.wrapped.build(variables)

    def apply(self, grads, trainable_variables=None):
        self.wrapped.apply(grads, trainable_variables)
        self._average(trainable_variables)

    def apply_gradients(self, grads_and_vars, **arguments):
        pairs = list(grads_and_vars)
        self.wrapped.apply_gradients(pairs)
        self._average([variable for _, variable in pairs])

    def get_config(self):
        return {}


@pytest.mark.skipif(hosts.BACKEND == "jax", reason="there, a step passes on the state")
@pytest.mark.parametrize("acts", [True, False])
def test_a_wrapper_that_acts_in_each_micro_batch(acts, monkeypatch):
    """It is said once, and nothing of a wrapper that only calls ours."""
    if not acts:
        monkeypatch.setattr(Averaging, "_average", lambda self, variables: None)
    model = compiled(dense_model(), Averaging(hosts.ours("SGD", accum_iters=LENGTH)))
    with our_warnings() as texts:
        for _ in range(2):
            fit(model, MICRO, epochs=1)
    said = "Averaging wraps SGDAccumulate and keeps values of its own"
    assert sum(said in text for text in texts) == acts


@has_several
@pytest.mark.parametrize("by_function", [False, True])
def test_partial_windows_of_all_are_closed(by_function):
    length = 5  # doesn't divide the micro-batches of an epoch
    model = compiled(dense_model(), several(by_function, accum_iters=length))
    fit(model, MICRO, epochs=2, callbacks=[accum.ApplyPartialWindow()])
    for optimizer in model.optimizer.optimizers:
        assert optimizer.window_position == 0
        assert optimizer.completed_updates == 2 * -(-WINDOWS * LENGTH // length)


@has_several
def test_callbacks_for_one_optimizer_refuse_several():
    model = compiled(dense_model(), several(accum_iters=LENGTH))
    with pytest.raises(TypeError, match="Monitor needs.*one optimizer.*has several"):
        fit(model, MICRO, callbacks=[accum.AccumulationMonitor()])


@has_several
@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_a_file_of_one_optimizer_does_not_fit_several(tmp_path):
    model, path = compiled(dense_model(), hosts.ours("Adam", accum_iters=2)), tmp_path / "m.keras"
    fit(model, MICRO, epochs=1).model.save(path)
    model = compiled(dense_model(), several(accum_iters=2))
    model.optimizer.build(model.trainable_variables)
    with pytest.warns(UserWarning, match="MultiOptimizer it was saved in, or take it out"):
        model.load_weights(path)


# -- optimizers that call a part of an update of ours ----------------------------------------------


def called_from_outside(optimizer):
    """Return the weights after updates that Lookahead of tensorflow-addons, say, makes in parts."""
    w = hosts.variable([1.0, 2.0], "w")
    hosts.build_on(optimizer, [w])
    part = optimizer._resource_apply_dense if hosts.IS_LEGACY else optimizer.update_step
    convert = keras.ops.convert_to_tensor if hosts.IS_KERAS3 else hosts.tf.constant
    for gradient in ([1.0, -2.0], [0.5, 0.25], [-1.0, 4.0]):
        part(convert(np.array(gradient, hosts.FLOATX)), w, *[0.5] * hosts.IS_KERAS3)
    return hosts.array(w)


@pytest.mark.parametrize("more", [{"accum_iters": 2}, {"skip_nonfinite": True}])
def test_a_part_of_an_update_is_refused_by_name(more):
    with pytest.raises(RuntimeError, match="of AdamAccumulate was called from outside.*Adam"):
        called_from_outside(hosts.ours("Adam", **more))
    found = [called_from_outside(make("Adam")) for make in (hosts.ours, hosts.stock)]
    np.testing.assert_array_equal(*found)
    assert (found[0] != [1.0, 2.0]).all()
