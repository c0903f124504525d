"""Optimizers that wrap ours: training, callbacks and refusals."""

import hosts
import numpy as np
import pytest
from cases import keras2_has_no, quick_first
from hosts import accum, keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    WINDOWS,
    assert_same_training,
    compiled,
    dense_model,
    fit,
    train,
)

has_several = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


# -- one optimizer around several of ours: callbacks reach all of them, or raise an error ----------


def several(by_function=False, **more):
    """Adam for the last layer and SGD for the rest, all ours or all stock."""
    make = hosts.ours if more else hosts.stock
    default = make("SGD", learning_rate=2**-3, **more)
    last = make("Adam", learning_rate=2**-5, **more)
    if by_function:
        return keras.optimizers.MultiOptimizer(lambda v: last if "out/" in v.path else default)
    mapped = keras.optimizers.OptimizerMap(default, {"model/out/.*": last, "out/.*": last})
    return keras.optimizers.MultiOptimizer(mapped)


@has_several
def test_equals_big_batch():
    ours, stock = train(several(accum_iters=LENGTH), MICRO), train(several(), BIG)
    # MultiOptimizer has a counter of its own, of micro-batches.
    for trained in (ours, stock):
        trained.slots.pop("iteration")
    assert_same_training(ours, stock)


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
@pytest.mark.parametrize("name", ["AccumulationMonitor", "MicroBatchWeights", "PythonGate"])
def test_callbacks_for_one_optimizer_refuse_several(name):
    arguments = {"batch_size": MICRO} if name == "AccumulationMonitor" else {}
    model = compiled(dense_model(), several(accum_iters=LENGTH))
    with pytest.raises(TypeError, match=f"{name} needs.*one optimizer.*MultiOptimizer"):
        fit(model, MICRO, callbacks=[getattr(accum, name)(**arguments)])


# -- optimizers that call a part of an update of ours ----------------------------------------------


def legacy_wrapper():
    class Wrapper(getattr(keras.optimizers, "legacy", keras.optimizers).Optimizer):
        """Like Lookahead and MovingAverage of tensorflow-addons."""

        def __init__(self, inner):
            super().__init__("Wrapper")
            self.inner = inner

        def apply_gradients(self, *args, **kwargs):
            self.inner._iterations = self.iterations
            return super().apply_gradients(*args, **kwargs)

        def _create_slots(self, var_list):
            self.inner._create_slots(var_list)

        def _create_hypers(self):
            self.inner._create_hypers()

        def _prepare(self, var_list):
            return self.inner._prepare(var_list)

        def _resource_apply_dense(self, grad, var):
            return self.inner._resource_apply_dense(grad, var)

        def _resource_apply_sparse(self, grad, var, indices):
            return self.inner._resource_apply_sparse(grad, var, indices)

    return Wrapper


def wrapper():
    class Wrapper(keras.optimizers.Optimizer):
        def __init__(self, inner):
            super().__init__(*[0.5] * hosts.IS_KERAS3, name="Wrapper")
            if not hosts.IS_KERAS3:
                self._learning_rate = self._build_learning_rate(0.5)
            self.inner = inner

        def build(self, variables):
            super().build(variables)
            self.inner.build(variables)

        def update_step(self, gradient, variable, *rate):
            self.inner.update_step(gradient, variable, *rate)

    return Wrapper


def our_adam(**arguments):
    return hosts.ours("Adam", **arguments)


def stock_adam(**arguments):
    return hosts.stock("Adam", **arguments)


WRAPPERS = {"update_step": (wrapper, our_adam, stock_adam)}
if hosts.IS_LEGACY:
    WRAPPERS = {"legacy": (legacy_wrapper, our_adam, stock_adam)}


def steps(optimizer, gradients=([1.0, -2.0], [0.5, 0.25], [-1.0, 4.0])):
    w = hosts.variable([1.0, 2.0], "w")
    for gradient in gradients:
        hosts.apply(optimizer, [np.array(gradient, hosts.FLOATX)], [w])
    return hosts.array(w)


@keras2_has_no("parts of an update")
@quick_first("make, ours, stock", WRAPPERS)
def test_a_part_of_an_update_is_refused_by_name(make, ours, stock):
    Wrapper = make()
    for more in ({"accum_iters": 2}, {"skip_nonfinite": True}):
        with pytest.raises(RuntimeError, match="of AdamAccumulate is called from outside.*Adam"):
            steps(Wrapper(ours(**more)))
    assert np.ptp([steps(Wrapper(ours(accum_iters=1))), steps(Wrapper(stock()))], 0).max() == 0
