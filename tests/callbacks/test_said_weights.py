"""The weights given to `weigh`: which values are allowed, and which micro-batch gets them."""

import hosts
import numpy as np
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import assert_equal, compiled, data, dense_model, fit, train, weights

pytestmark = quick_once

skip_file_on_keras2("reduction='weighted'")

every_gate = pytest.mark.usefixtures("every_gate")
MICRO, LENGTH = 3, 2
BAD = [-1.0, np.nan, np.inf]


def weighted(name="SGD", **arguments):
    arguments = {"learning_rate": 2**-3, "accum_iters": LENGTH, **arguments}
    return hosts.ours(name, reduction="weighted", **arguments)


def tensor(value):
    return hosts.native(hosts.variable(value, "weight"))


@pytest.mark.parametrize("accum_iters", [1, LENGTH])
@pytest.mark.parametrize("weight", [*BAD, -1])
def test_a_number_that_can_not_be_a_weight_is_refused(weight, accum_iters):
    with pytest.raises(ValueError, match=f"`weight` must be .* Received: weight={weight}"):
        weighted(accum_iters=accum_iters).weigh(weight)


@pytest.mark.skipif(
    hosts.IS_NEW_STYLE, reason="stock SGD of the newer style keeps a NaN, with momentum 0 as well"
)
@every_gate
@pytest.mark.parametrize("weight", BAD)
def test_a_tensor_that_can_not_be_a_weight_makes_the_update_nan(weight):
    """Like a NaN in the loss, it shows in its own update, and in no other."""
    optimizer, w = weighted(), hosts.variable([1.0, 2.0], "w")
    for said in (1.0, weight):
        optimizer.weigh(tensor(said))
        hosts.apply(optimizer, [np.ones(2, hosts.FLOATX)], [w])
    assert np.isnan(hosts.array(w)).all()
    hosts.assign(w, [1.0, 2.0])
    for said in (1.0, 3.0):
        optimizer.weigh(tensor(said))
        hosts.apply(optimizer, [np.full(2, said, hosts.FLOATX)], [w])
    np.testing.assert_allclose(hosts.array(w), np.array([1, 2]) - 2**-3 * 10 / 4, rtol=1e-6)


def test_a_python_number_is_not_rounded():
    """A weight such as 0.1 has the precision of the gradients, not that of float32."""
    found = []
    weighted = {"accum_iters": 2, "reduction": "weighted"}
    for cls, arguments in ((hosts.ours, weighted), (hosts.stock, {})):
        w = hosts.variable([1.0, 2.0], "w")
        optimizer = cls("SGD", learning_rate=0.5, **arguments)
        hosts.build_on(optimizer, [w])
        gradients = [np.array(g, hosts.FLOATX) for g in ([0.3, -2.0], [1.7, 0.9])]
        if arguments:
            for weight, gradient in zip([0.1, 0.7], gradients):
                optimizer.weigh(weight)
                hosts.apply(optimizer, [gradient], [w])
        else:
            average = np.average(gradients, axis=0, weights=[0.1, 0.7])
            hosts.apply(optimizer, [average], [w])
        found.append(hosts.array(w))
    np.testing.assert_allclose(*found, **hosts.TOLERANCE)


@every_gate
@pytest.mark.parametrize("weight", BAD)
def test_skip_nonfinite_drops_such_a_micro_batch(weight):
    optimizer, w = weighted(skip_nonfinite=True), hosts.variable([1.0, 2.0], "w")
    for said in (1.0, weight, 3.0):
        optimizer.weigh(tensor(said))
        hosts.apply(optimizer, [np.full(2, 1.0 if said == weight else said, hosts.FLOATX)], [w])
    assert optimizer.completed_updates == 1
    np.testing.assert_allclose(hosts.array(w), np.array([1, 2]) - 2**-3 * 10 / 4, rtol=1e-6)


class Evaluate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        x, y = data()
        self.model.evaluate(x[:2], y[:2], verbose=0)


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("validation", ["validation_data", "callback before", "callback after"])
def test_a_validation_leaves_no_weight(eagerly, validation):
    """Validation batches have two samples, and micro-batches of the training three."""
    asked = []

    def weight(x, y, y_pred, sample_weight):
        asked.append(int(x.shape[0]) if eagerly else None)
        return 1.0

    optimizer = weighted()
    model = compiled(dense_model(), optimizer, run_eagerly=eagerly)
    weighing, more = [hosts.accum.MicroBatchWeights(weight)], {}
    if validation == "validation_data":
        more["validation_data"] = tuple(array[:2] for array in data())
    elif validation == "callback before":
        weighing.insert(0, Evaluate())
    else:
        weighing.append(Evaluate())
    fit(model, MICRO, [a[:6] for a in data()], callbacks=weighing, **more)
    if validation == "validation_data" and eagerly:
        assert asked == [3] * 6, "a validation batch was weighed"
    assert not optimizer._accumulation.said.is_waiting("weigh")
    if eagerly:
        with pytest.raises(ValueError, match="needs the weight of each micro-batch"):
            model.train_on_batch(*(array[:3] for array in data()))


def test_an_interrupted_validation():
    """The next training gives its own weights, and uses none that is left over."""

    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    arrays = [array[:12] for array in data()]
    model = compiled(dense_model(), weighted(), run_eagerly=True)
    weighing = hosts.accum.MicroBatchWeights()
    start = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        fit(model, MICRO, arrays, callbacks=[weighing, Stop()], validation_data=arrays)
    model.set_weights(start)
    fit(model, MICRO, arrays, callbacks=[weighing])
    expected = train(hosts.stock("SGD", learning_rate=2**-3), MICRO * LENGTH, arrays=arrays)
    assert_equal(weights(model), expected.weights)


@every_gate
@pytest.mark.parametrize("eagerly", [True, False])
def test_a_weight_that_depends_on_the_prediction(eagerly):
    """The weight equals the number of samples, computed through the prediction."""

    def weight(x, y, y_pred, sample_weight):
        ops = keras.ops if hosts.IS_KERAS3 else hosts.tf
        shape = ops.shape(y_pred)[0]
        finite = ops.isfinite(y_pred) if hosts.IS_KERAS3 else ops.math.is_finite(y_pred)
        one = ops.cast(finite[0, 0], y_pred.dtype) + 0 * y_pred[0, 0]
        return one * ops.cast(shape, y_pred.dtype)

    arrays = [array[:9] for array in data()]
    actual = train(
        weighted(accum_iters=3),
        4,
        arrays=arrays,
        compile={"run_eagerly": eagerly},
        callbacks=[hosts.accum.MicroBatchWeights(weight)],
    )
    expected = train(hosts.stock("SGD", learning_rate=2**-3), 9, arrays=arrays)
    assert_equal(actual.weights, expected.weights)


# -- weights that are said outside of a traced function ------------------------------------------

WEIGHTS = [1.0, 3.0, 2.0, 2.0, 5.0, 1.0]
# The weight of the open window after each micro-batch, in windows of three.
WINDOW_WEIGHTS = [1.0, 4.0, 0.0, 2.0, 7.0, 0.0]


def said_before(optimizer, step):
    """The window's weight after each micro-batch, if each weight is said before the step."""
    found = []
    for weight in WEIGHTS:
        optimizer.weigh(weight)
        step()
        found.append(float(optimizer.get_state()["window_weight"]))
    return found


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("style", ["", "W"])
def test_a_weight_is_right_in_train_on_batch_or_refused(eagerly, style):
    """A traced step would have the first weight as a constant."""
    if style and not hosts.IS_TF_KERAS:
        pytest.skip("only tf_keras has a second style of optimizers")
    optimizer = weighted(f"Adam{style}", accum_iters=3) if style else weighted(accum_iters=3)
    model = compiled(dense_model(), optimizer, run_eagerly=eagerly)
    optimizer.build(model.trainable_variables)
    start, batch = model.get_weights(), [array[:MICRO] for array in data()]
    if eagerly or hosts.IS_TORCH:  # PyTorch runs a step eagerly
        assert said_before(optimizer, lambda: model.train_on_batch(*batch)) == WINDOW_WEIGHTS
        return
    optimizer.weigh(2.0)
    with pytest.raises(ValueError, match="`weigh` was called outside.*Received: weight=2.0"):
        model.train_on_batch(*batch)
    assert optimizer.window_position == 0
    for now, before in zip(model.get_weights(), start):
        np.testing.assert_array_equal(now, before)


@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch runs a step eagerly")
@pytest.mark.parametrize("is_said_inside", [True, False])
def test_a_weight_in_a_traced_function_of_ones_own(is_said_inside):
    optimizer, w = weighted(accum_iters=3), hosts.variable([1.0, 2.0], "w")
    optimizer.build([w])
    gradient = np.ones(2, hosts.FLOATX)

    def step(weight):
        if is_said_inside:
            optimizer.weigh(weight)
        hosts.apply(optimizer, [gradient], [w])

    if hosts.IS_TENSORFLOW:
        run = hosts.tf.function(step)
    else:
        import jax

        @jax.jit
        def stateless(weight, state, weights):
            if is_said_inside:
                optimizer.weigh(weight)
            return optimizer.stateless_apply(state, [gradient], weights)

        def run(weight):
            new, state = stateless(weight, [v.value for v in optimizer.variables], [w.value])
            for variable, value in zip([w, *optimizer.variables], [*new, *state]):
                variable.assign(value)

    found = []
    for weight in WEIGHTS:
        if is_said_inside:
            run(tensor(weight))
        else:
            optimizer.weigh(weight)
            with pytest.raises(ValueError, match="`weigh` was called outside of the traced"):
                run(tensor(weight))
        found.append(float(optimizer.get_state()["window_weight"]))
    assert found == (WINDOW_WEIGHTS if is_said_inside else [0.0] * len(WEIGHTS))
