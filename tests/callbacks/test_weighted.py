"""`reduction="weighted"`: unequal micro-batches count as the parts of the big batch that they are.

Examples are masked sequences and a short last batch, where the mean of means differs from the mean.
"""

import hosts
import numpy as np
import pytest
from cases import (
    LATE,
    on_adam,
    on_adam_and_amsgrad,
    on_each_rule,
    quick_first,
    quick_once,
    skip_file_on_keras2,
)
from hosts import keras
from training import (
    Trained,
    assert_equal,
    assert_moved,
    assert_same_training,
    compiled,
    data,
    dense_model,
    fit,
    initialize,
    linear_variables,
    slots,
    train,
    values,
    weights,
)

pytestmark = quick_once

skip_file_on_keras2("reduction='weighted'")

every_gate = pytest.mark.usefixtures("every_gate")
layers = keras.layers

SAMPLES, STEPS, MICRO, LENGTH = 11, 5, 3, 4  # the last micro-batch of a window is short


def sequences():
    """Sequences of different lengths; the first micro-batches have many masked steps."""
    random = np.random.default_rng(3)
    x = random.uniform(0.5, 1.5, (SAMPLES, STEPS, 3)).astype(hosts.FLOATX)
    y = random.uniform(1, 2, (SAMPLES, STEPS, 2)).astype(hosts.FLOATX)
    for i, end in enumerate([1, 1, 2, 1, 3, 2, 4, 5, 4, 5, 5]):
        x[i, end:] = 0
        y[i, end:] = 100  # masked, so that no loss may contain it
    return x, y


def masked_model():
    dense = [layers.Dense(4, activation="tanh", name="hidden"), layers.Dense(2, name="out")]
    return hosts.sequential((STEPS, 3), [layers.Masking(), *dense])


def weighted(case, **arguments):
    arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **arguments}
    return hosts.ours(case.name, **arguments)


def big(case, **arguments):
    return train(hosts.stock(case.name, **case.arguments), SAMPLES, **arguments)


def micro(case, weight=None, **arguments):
    callbacks = [hosts.accum.MicroBatchWeights(weight)]
    return train(weighted(case), MICRO, callbacks=callbacks, **arguments)


@every_gate
@on_adam_and_amsgrad
def test_masked_sequences(case):
    arrays = sequences()
    expected = big(case, build=masked_model, arrays=arrays)
    assert_same_training(micro(case, build=masked_model, arrays=arrays), expected)


@on_adam
def test_without_weights_the_training_differs(case):
    arrays, optimizer = sequences(), hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    expected = big(case, build=masked_model, arrays=arrays)
    actual = train(optimizer, MICRO, build=masked_model, arrays=arrays)
    assert max(np.abs(w - actual.weights[n]).max() for n, w in expected.weights.items()) > 1e-4


@on_adam
def test_a_short_last_batch(case):
    arrays = [array[:SAMPLES] for array in data()]
    assert_same_training(micro(case, arrays=arrays), big(case, arrays=arrays))


def sample_weights(shape):
    return np.random.default_rng(4).uniform(0.2, 3, shape).astype(hosts.FLOATX)


@on_adam
@quick_first("build", [masked_model, dense_model])
def test_sample_weights(case, build):
    arrays = sequences() if build is masked_model else [array[:SAMPLES] for array in data()]
    more = {"sample_weight": sample_weights(arrays[1].shape[:-1])}
    if hosts.IS_KERAS3:
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        more["compile"] = {"loss": loss}
    expected = big(case, build=build, arrays=arrays, **more)
    assert_same_training(micro(case, build=build, arrays=arrays, **more), expected)


@on_adam
def test_sample_weights_that_the_loss_does_not_divide_by(case):
    arrays = sequences()
    more = {"build": masked_model, "sample_weight": sample_weights((SAMPLES, STEPS))}
    expected = big(case, arrays=arrays, **more)
    assert_same_training(micro(case, arrays=arrays, **more), expected)


@on_adam
def test_a_weight_by_a_function_of_the_user(case):
    def not_zero(x, y, y_pred, sample_weight):
        seen = keras.ops.any(x != 0, -1) if hosts.IS_KERAS3 else hosts.tf.reduce_any(x != 0, -1)
        return keras.ops.sum(seen) if hosts.IS_KERAS3 else hosts.tf.math.count_nonzero(seen)

    arrays = sequences()
    expected = big(case, build=masked_model, arrays=arrays)
    assert_same_training(micro(case, not_zero, build=masked_model, arrays=arrays), expected)


@on_adam
def test_several_outputs(case):
    def build():
        x = keras.Input((3,))
        return keras.Model(x, [layers.Dense(2, name="one")(x), layers.Dense(2, name="two")(x)])

    x, y = (array[:SAMPLES] for array in data())

    def run(optimizer, batch_size, callbacks=()):
        model = compiled(build(), optimizer, ["mse", "mse"])
        start = weights(model)
        settings = {"epochs": 3, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x, [y, 1 - y], batch_size=batch_size, **settings)
        return Trained(start, weights(model), slots(model))

    expected = run(hosts.stock(case.name, **case.arguments), SAMPLES)
    callbacks = [hosts.accum.MicroBatchWeights()]
    assert_same_training(run(weighted(case), MICRO, callbacks), expected)


# -- custom loops -------------------------------------------------------------------------

WEIGHTS = [1.0, 4.0, 0.0, 3.0]


def gradients():
    """One list per micro-batch, with a gradient per variable.

    Weight 0 means a mean over nothing: NaN.
    """
    random = np.random.default_rng(5)
    shapes = [v.shape for v in linear_variables()]
    grads = [[random.uniform(1, 2, s).astype(hosts.FLOATX) for s in shapes] for _ in WEIGHTS]
    grads[2] = [g * np.nan for g in grads[2]]
    return grads


def taken(optimizer, micro_batches):
    """The values after these pairs (gradients, weight). With None, no weight is given."""
    variables = linear_variables()
    for grads, weight in micro_batches:
        if weight is not None:
            optimizer.weigh(weight)
        hosts.apply(optimizer, grads, variables)
    return values(optimizer, variables)


def mean(micro_batches):
    grads, by = zip(*[(grads, weight) for grads, weight in micro_batches if weight])
    return [sum(w * g for w, g in zip(by, column)) / sum(by) for column in zip(*grads)]


@every_gate
@on_each_rule
def test_weights_of_a_train_step(case):
    window = list(zip(gradients(), WEIGHTS))
    actual = taken(weighted(case), window * 2)
    expected = taken(hosts.stock(case.name, **case.arguments), [(mean(window), None)] * 2)
    assert_equal(actual, expected)


@every_gate
@on_adam
def test_skip_nonfinite(case):
    bad = [g * np.nan for g in gradients()[0]]
    window = list(zip(gradients(), WEIGHTS))
    actual = taken(weighted(case, skip_nonfinite=True), [(bad, 7.0), *window])
    expected = taken(hosts.stock(case.name, **case.arguments), [(mean(window), None)])
    assert_equal(actual, expected)


@on_adam
def test_a_window_of_weight_0_moves_nothing(case):
    optimizer, variables = weighted(case), linear_variables()
    before = [hosts.array(v) for v in variables]
    for grads in gradients():
        optimizer.weigh(0.0)
        hosts.apply(optimizer, grads, variables)
    assert optimizer.completed_updates == 1
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(hosts.array(variable), value)


def test_half_precision_does_not_overflow():
    # The rate is a normal float16 number. Not all processors keep smaller ones.
    optimizer = hosts.ours("SGD", learning_rate=2**-14, accum_iters=2, reduction="weighted")
    variable = hosts.variable(np.zeros(2), "w", dtype="float16")
    for _ in range(2):
        optimizer.weigh(1000.0)
        hosts.apply(optimizer, [np.full(2, 2.0**12, "float16")], [variable])
    np.testing.assert_array_equal(hosts.array(variable), np.full(2, -(2.0**-2)))


@on_adam
def test_state_in_a_window(case):
    window = list(zip(gradients(), WEIGHTS))
    expected = taken(weighted(case), window * 2)
    optimizer, variables = weighted(case), linear_variables()
    for i, (grads, weight) in enumerate(window * 2):
        if i == 5:
            state, optimizer = optimizer.get_state(), weighted(case)
            assert state["window_weight"] == WEIGHTS[0]
            optimizer.set_state(state)
        optimizer.weigh(weight)
        hosts.apply(optimizer, grads, variables)
    assert_equal(values(optimizer, variables), expected, rtol=0, atol=0)


@on_adam
def test_state_of_another_reduction(case):
    """With no window open the states are the same. In an open window the sums differ."""
    variables = linear_variables()
    mean_of, weighted_of = hosts.ours(case.name, accum_iters=2, **case.arguments), weighted(case)
    hosts.apply(mean_of, gradients()[0], variables)
    weighted_of.build(variables)
    with pytest.raises(hosts.accum.StateError, match="Missing: window_weight"):
        weighted_of.set_state(mean_of.get_state())
    hosts.apply(mean_of, gradients()[0], variables)
    weighted_of.set_state(mean_of.get_state())
    assert weighted_of.completed_updates == 1
    mean_of.set_state(weighted_of.get_state())
    weighted_of.weigh(1.0)
    hosts.apply(weighted_of, gradients()[0], variables)
    with pytest.raises(hosts.accum.StateError, match="Not known here: window_weight"):
        mean_of.set_state(weighted_of.get_state())


# -- with other features -----------------------------------------------------------------------


def test_at_accum_iters_1_it_is_the_stock_optimizer():
    arrays = [array[:SAMPLES] for array in data()]
    optimizer = hosts.ours("Adam", accum_iters=1, reduction="weighted")
    actual = train(optimizer, MICRO, arrays=arrays, callbacks=[hosts.accum.MicroBatchWeights()])
    assert_equal(actual.slots, train(hosts.stock("Adam"), MICRO, arrays=arrays).slots)
    assert not any("window" in name for name in optimizer.get_state())


@on_adam
def test_loss_scale(case):
    arrays = sequences()
    expected = big(case, build=masked_model, arrays=arrays)
    optimizer = hosts.loss_scaled(weighted(case), 2.0**4)
    model = compiled(masked_model(), optimizer)
    fit(model, MICRO, arrays, callbacks=[hosts.accum.MicroBatchWeights()])
    assert_equal(weights(model), expected.weights)


@pytest.mark.skipif(hosts.IS_TORCH, reason="PythonGate does nothing on PyTorch")
@on_adam
def test_python_gate(case):
    arrays = sequences()
    expected = big(case, build=masked_model, arrays=arrays)
    for both in (
        [hosts.accum.MicroBatchWeights(), hosts.accum.PythonGate()],
        [hosts.accum.PythonGate(), hosts.accum.MicroBatchWeights()],
    ):
        actual = train(weighted(case), MICRO, masked_model, arrays=arrays, callbacks=both)
        assert_same_training(actual, expected)


def test_traced_once_for_all_calls_of_fit():
    traced = []

    def count(x, y, y_pred, sample_weight):
        traced.append(y_pred)
        return 1.0

    optimizer = hosts.ours("SGD", accum_iters=2, reduction="weighted")
    model = compiled(dense_model(), optimizer)
    weighing = hosts.accum.MicroBatchWeights(count)
    fit(model, MICRO, [a[:6] for a in data()], epochs=1, callbacks=[weighing])
    first = len(traced)
    fit(model, MICRO, [a[:6] for a in data()], epochs=2, callbacks=[weighing])
    assert len(traced) == first + (4 if hosts.IS_TORCH else 0)  # PyTorch doesn't trace
    assert "compute_loss" not in vars(model)


@on_adam
def test_an_interrupted_training_leaves_no_weights(case):
    """The next training uses its own weights; then the model gets back what it had before."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    def own(*args, **kwargs):
        return type(model).compute_loss(model, *args, **kwargs)

    arrays = sequences()
    model = compiled(masked_model(), weighted(case))
    vars(model)["compute_loss"] = own
    hosts.build(model)
    start = {**weights(model)}, model.optimizer.get_state()
    with pytest.raises(KeyboardInterrupt):
        wrong = hosts.accum.MicroBatchWeights(lambda *_: 1.0)
        fit(model, MICRO, arrays, callbacks=[wrong, Stop()])
    model.set_weights(list(start[0].values()))
    model.optimizer.set_state(start[1])
    fit(model, MICRO, arrays, callbacks=[hosts.accum.MicroBatchWeights()])
    assert vars(model)["compute_loss"] is own
    expected = big(case, build=masked_model, arrays=arrays)
    assert_moved(expected.start, weights(model))
    assert_equal(weights(model), expected.weights)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@quick_first("how", ["scaled late", "", "scaled", "late"])
@on_adam
def test_replicas_with_unlike_shares(strategy, case, how):
    """Two replicas get different numbers of masked steps."""
    if how == "scaled late" and not hosts.IS_KERAS3:
        pytest.skip("Keras 2's LossScaleOptimizer is refused with all_reduce='per_window'")
    # Each replica gets two of a micro-batch's four samples: steps 1 + 1 and 2 + 1, and so on.
    arrays = [array[:8] for array in sequences()]
    expected = train(hosts.stock(case.name, **case.arguments), 8, masked_model, arrays=arrays)
    with strategy.scope():
        late = LATE if "late" in how else {}
        optimizer = weighted(case, accum_iters=2, **late)
        if "scaled" in how:
            optimizer = hosts.loss_scaled(optimizer, 2.0**4)
        model = compiled(masked_model(), optimizer, run_eagerly=False)
    fit(model, 4, arrays, callbacks=[hosts.accum.MicroBatchWeights()])
    assert_moved(expected.start, weights(model))
    assert_equal(weights(model), expected.weights)


# -- refusals ------------------------------------------------------------------------------------


def test_a_train_step_without_a_weight_is_refused():
    optimizer = hosts.ours("Adam", accum_iters=2, reduction="weighted")
    with pytest.raises(ValueError, match=r"weight of each micro-batch.*MicroBatchWeights\(\)"):
        fit(compiled(dense_model(), optimizer, run_eagerly=True), MICRO)


def test_a_weight_is_for_one_micro_batch():
    optimizer = hosts.ours("SGD", accum_iters=2, reduction="weighted")
    with pytest.raises(ValueError, match="weight of each micro-batch"):
        taken(optimizer, [(gradients()[0], 1.0), (gradients()[1], None)])


def test_weights_are_refused_for_another_reduction():
    optimizer = hosts.ours("Adam", accum_iters=2)
    with pytest.raises(ValueError, match="reduction='weighted'.*Received: reduction='mean'"):
        optimizer.weigh(1.0)
    weighing = [hosts.accum.MicroBatchWeights()]
    with pytest.raises(ValueError, match="reduction='weighted'.*Received: reduction='mean'"):
        fit(compiled(dense_model(), optimizer), MICRO, callbacks=weighing)


def test_arguments_of_the_callback():
    with pytest.raises(TypeError, match="`weight` must be None or a function.*weight=3"):
        hosts.accum.MicroBatchWeights(3)
    model = compiled(dense_model(), hosts.stock("Adam"))
    with pytest.raises(TypeError, match="an optimizer of keras_accum"):
        fit(model, MICRO, callbacks=[hosts.accum.MicroBatchWeights()])


LOSSES = {
    "a sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "two kinds": lambda: ["mse", keras.losses.MeanSquaredError(reduction="sum")],
    "none": lambda: None,
    "an ignored class": lambda: keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_implies_no_weight_is_refused(loss):
    model = initialize(dense_model())
    model.compile(hosts.ours("Adam", accum_iters=2, reduction="weighted"), loss())
    callback = hosts.accum.MicroBatchWeights()
    callback.set_model(model)
    with pytest.raises(ValueError, match="can't tell what the model's loss is divided by"):
        callback.on_train_begin()


def test_several_masked_outputs_are_refused():
    x = keras.Input((STEPS, 3))
    masked = layers.Masking()(x)
    model = keras.Model(x, [layers.Dense(2)(masked), layers.Dense(2)(masked)])
    optimizer = hosts.ours("Adam", accum_iters=2, reduction="weighted")
    model.compile(optimizer, ["mse", "mse"], run_eagerly=True)
    x, y = sequences()
    with pytest.raises(ValueError, match="several masked outputs"):
        model.fit(x, [y, y], verbose=0, callbacks=[hosts.accum.MicroBatchWeights()])
