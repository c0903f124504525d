"""The weights given to `weigh`: which values are allowed, and which micro-batch gets them."""

import hosts
import numpy as np
import pytest
import steps
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import assert_equal, compiled, data, dense_model, fit, train

pytestmark = quick_once

skip_file_on_keras2("reduction='weighted'")

every_gate = pytest.mark.usefixtures("every_gate")
MICRO, LENGTH = 3, 2
BAD = [-np.inf, np.nan, np.inf]


def weighted(name="SGD", **arguments):
    arguments = {"learning_rate": 2**-3, "accum_iters": LENGTH, **arguments}
    return hosts.ours(name, reduction="weighted", **arguments)


def tensor(value):
    return hosts.native(hosts.variable(value, "weight"))


@pytest.mark.parametrize("weight", BAD)
def test_a_number_that_can_not_be_a_weight_is_refused(weight):
    for accum_iters in 1, LENGTH:
        with pytest.raises(ValueError, match=f"`weight` must be .* Received: weight={weight}"):
            weighted(accum_iters=accum_iters).weigh(weight)


def said(optimizer, w, pairs):
    """Take micro-batches of these gradients and weights."""
    for gradient, weight in pairs:
        optimizer.weigh(tensor(weight))
        hosts.apply(optimizer, [np.full(2, gradient, hosts.FLOATX)], [w])


@every_gate
@pytest.mark.parametrize("weight", BAD)
def test_a_tensor_that_can_not_be_a_weight(weight):
    """Like a NaN in the loss, it shows in its own update alone, or is dropped."""
    after, start = np.array([1, 2]) - 2**-3 * 10 / 4, [1.0, 2.0]
    if not hosts.IS_NEW_STYLE:  # whose stock SGD keeps a NaN, with momentum 0 as well
        optimizer, w = weighted(), hosts.variable(start, "w")
        said(optimizer, w, [(1.0, 1.0), (1.0, weight)])
        assert not np.isfinite(hosts.array(w)).any()
        hosts.assign(w, start)
        said(optimizer, w, [(1.0, 1.0), (3.0, 3.0)])
        np.testing.assert_allclose(hosts.array(w), after, rtol=1e-6)
    optimizer, w = weighted(skip_nonfinite=True), hosts.variable(start, "w")
    said(optimizer, w, [(1.0, 1.0), (1.0, weight), (3.0, 3.0)])
    assert optimizer.completed_updates == 1
    np.testing.assert_allclose(hosts.array(w), after, rtol=1e-6)


def test_a_python_number_is_not_rounded():
    """A weight such as 0.1 has the precision of the gradients, not that of float32."""
    found, gradients = [], [np.array(g, hosts.FLOATX) for g in ([0.3, -2.0], [1.7, 0.9])]
    average = np.average(gradients, axis=0, weights=[0.1, 0.7])
    for optimizer, pairs in (
        (weighted(), zip(gradients, [0.1, 0.7])),
        (hosts.stock("SGD", learning_rate=2**-3), [(average, None)]),
    ):
        w = hosts.variable([1.0, 2.0], "w")
        hosts.build_on(optimizer, [w])
        for gradient, weight in pairs:
            if weight:
                optimizer.weigh(weight)
            hosts.apply(optimizer, [gradient], [w])
        found.append(hosts.array(w))
    np.testing.assert_allclose(*found, **hosts.TOLERANCE)


class Evaluate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(*TWO, verbose=0)


TWO, SIX = ([array[:samples] for array in data()] for samples in (2, 6))


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("validation", ["validation_data", "callback before", "callback after"])
def test_a_validation_leaves_no_weight(eagerly, validation):
    """Validation batches have two samples, and micro-batches of the training three."""
    asked = []

    def weight(x, y, y_pred, sample_weight):
        asked.append(int(x.shape[0]) if eagerly else None)
        return 1.0

    model = compiled(dense_model(), weighted(), run_eagerly=eagerly)
    weighing = hosts.accum.MicroBatchWeights(weight)
    used, more = {
        "validation_data": ([weighing], {"validation_data": TWO}),
        "callback before": ([Evaluate(), weighing], {}),
        "callback after": ([weighing, Evaluate()], {}),
    }[validation]
    fit(model, MICRO, SIX, callbacks=used, **more)
    if validation == "validation_data" and eagerly:
        assert asked == [3] * 6, "a validation batch was weighed"
    variables = model.trainable_variables
    zeros = [np.zeros(variable.shape, hosts.FLOATX) for variable in variables]
    with pytest.raises(ValueError, match="needs the weight of each micro-batch"):
        hosts.apply(model.optimizer, zeros, variables)


@every_gate
@pytest.mark.parametrize("eagerly", [True, False])
def test_a_weight_that_depends_on_the_prediction(eagerly):
    """The weight equals the number of samples, computed through the prediction."""

    def weight(x, y, y_pred, sample_weight):
        ops = keras.ops if hosts.IS_KERAS3 else hosts.tf
        finite = ops.isfinite(y_pred) if hosts.IS_KERAS3 else ops.math.is_finite(y_pred)
        one = ops.cast(finite[0, 0], y_pred.dtype) + 0 * y_pred[0, 0]
        return one * ops.cast(ops.shape(y_pred)[0], y_pred.dtype)

    arrays = [array[:9] for array in data()]
    used, how = [hosts.accum.MicroBatchWeights(weight)], {"run_eagerly": eagerly}
    actual = train(weighted(accum_iters=3), 4, arrays=arrays, compile=how, callbacks=used)
    expected = train(hosts.stock("SGD", learning_rate=2**-3), 9, arrays=arrays)
    assert_equal(actual.weights, expected.weights)


WEIGHTS = [1.0, 3.0, 2.0, 2.0, 5.0, 1.0]
# The weight of the open window after each micro-batch, in windows of three.
WINDOW_WEIGHTS = [1.0, 4.0, 0.0, 2.0, 7.0, 0.0]


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_weight_is_right_in_train_on_batch_or_refused(eagerly):
    """A traced step would have the first weight as a constant."""
    optimizer = weighted(accum_iters=3)
    model = compiled(dense_model(), optimizer, run_eagerly=eagerly)
    optimizer.build(model.trainable_variables)
    start, batch, found = model.get_weights(), [array[:MICRO] for array in data()], []
    for weight in WEIGHTS:
        optimizer.weigh(weight)
        if eagerly or hosts.IS_TORCH:  # PyTorch runs a step eagerly
            model.train_on_batch(*batch)
            found.append(float(optimizer.get_state()["window_weight"]))
        else:
            with pytest.raises(ValueError, match="`weigh` was called outside.*Received: weigh."):
                model.train_on_batch(*batch)
    assert found in ([], WINDOW_WEIGHTS)
    if not found:
        assert_equal(dict(enumerate(model.get_weights())), dict(enumerate(start)), rtol=0, atol=0)


@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch runs a step eagerly")
def test_a_weight_in_a_traced_function_of_ones_own():
    optimizer, ws = steps.made(weighted(accum_iters=3))
    (gradients,), *_ = steps.gradients([1])
    run, found = steps.stepper(optimizer, ws, say=optimizer.weigh), []
    for weight in WEIGHTS:
        run(gradients, weight)
        found.append(float(optimizer.get_state()["window_weight"]))
    assert found == WINDOW_WEIGHTS
    run = steps.stepper(optimizer, ws)
    for weight in WEIGHTS[:2]:
        optimizer.weigh(weight)
        with pytest.raises(ValueError, match="`weigh` was called outside of the traced"):
            run(gradients)
    assert optimizer.window_position == 0
