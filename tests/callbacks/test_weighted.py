"""What weighs micro-batches beside the table in test_right_by_default.py.

The logged losses, a function of the user, losses that leave out samples, loops, and windows that
are interrupted.
"""

import contextlib
import functools
import warnings

import hosts
import numpy as np
import pytest
import training
import zoo
from cases import (
    Case,
    on_adam,
    quick_first,
    quick_once,
    skip_file_on_keras2,
)
from hosts import keras
from training import assert_equal, assert_same_training, compiled, fit, train, values, weights
from zoo import STEPS, heads, network, padded

pytestmark = quick_once

skip_file_on_keras2("reduction='weighted'")

every_gate = pytest.mark.usefixtures("every_gate")
layers = keras.layers

SAMPLES, MICRO, LENGTH = 11, 3, 4  # the last micro-batch of a window is short


def masked_model():
    dense = [layers.Dense(4, activation="tanh", name="hidden"), layers.Dense(2, name="out")]
    return hosts.sequential((STEPS, 3), [layers.Masking(), *dense])


def short():
    return [array[:SAMPLES] for array in training.data()]


def weighted(case, **arguments):
    arguments = {"accum_iters": LENGTH, **case.arguments, **arguments}
    return hosts.ours(case.name, **arguments)


def not_zero(x, y, y_pred, sample_weight):
    seen = keras.ops.any(x != 0, -1) if hosts.IS_KERAS3 else hosts.tf.reduce_any(x != 0, -1)
    return keras.ops.sum(seen) if hosts.IS_KERAS3 else hosts.tf.math.count_nonzero(seen)


def both(case, build, arrays, weight=None, **arguments):
    """A training in micro-batches, and that of the stock optimizer on all samples at once.

    In both, an epoch is a window, and `fit` logs the same losses.
    """
    callbacks = [] if weight is None else [hosts.accum.MicroBatchWeights(weight)]
    logs, settings = [keras.callbacks.History() for _ in range(2)], {"arrays": arrays, **arguments}
    actual = train(weighted(case), MICRO, build, callbacks=[*callbacks, logs[0]], **settings)
    big = hosts.stock(case.name, **case.arguments)
    expected = train(big, SAMPLES, build, callbacks=[logs[1]], **settings)
    losses, others = ({k: np.array(v) for k, v in each.history.items()} for each in logs)
    assert_equal(losses, others)
    return actual, expected


def classes(ignored, is_masked=False):
    """Return a function for sequences with classes, of which this share has the class 0."""

    def arrays():
        x, _ = padded() if is_masked else (padded()[0] + 0.5, None)
        random = np.random.default_rng(6)
        y = random.integers(1, 3, x.shape[:-1])
        y[random.uniform(size=y.shape) < ignored] = 0
        y[:MICRO] = 0  # a whole micro-batch is ignored
        return x, y.astype("int32")

    return arrays


def classifier(is_masked=False, penalty=None):
    def build():
        penalties = {"kernel_regularizer": penalty, "bias_regularizer": penalty}
        hidden = layers.Dense(4, activation="tanh", name="hidden", **penalties)
        out = layers.Dense(3, activation="softmax", name="out", **penalties)
        return hosts.sequential((STEPS, 3), [*[layers.Masking()] * is_masked, hidden, out])

    return build


def crossentropy(**arguments):
    return lambda: keras.losses.SparseCategoricalCrossentropy(**arguments)


def samples_of(x, y, y_pred, sample_weight):
    """The function in the docstring of MicroBatchWeights."""
    return (keras.ops if hosts.IS_KERAS3 else keras.backend).shape(x)[0]


# The model, its data, what sample weights do, a user's function, and a loss.
IGNORE = crossentropy(ignore_class=0)
ROWS = {
    "masks and sample weights": (masked_model, padded, "divide", None, None),
    "a short last batch": (training.dense_model, short, None, None, None),
    "a function of the user": (masked_model, padded, None, not_zero, None),
    "a mask of the loss": (training.dense_model, short, None, None, zoo.OwnMask),
    "ignored, masks": (classifier(True), classes(0.5, True), None, None, IGNORE),
}
if hosts.IS_KERAS3:
    by_weights = crossentropy(ignore_class=0, reduction="mean_with_sample_weight")
    ROWS |= {
        "all ignored": (classifier(penalty="l2"), classes(1), None, None, IGNORE),
        "ignored and weights": (classifier(True), classes(0.5, True), "as is", None, by_weights),
        "negative and small": (training.dense_model, short, "negative", None, None),
    }


@on_adam
@quick_first("build, arrays, sample_weights, weight, loss", ROWS)
def test_logged_losses_are_those_of_all_samples(case, build, arrays, sample_weights, weight, loss):
    arrays, more = arrays(), {}
    if sample_weights:
        shape = arrays[1].shape[:-1] if loss is None else arrays[1].shape
        values = np.random.default_rng(4).uniform(0.2, 3, shape).astype(hosts.FLOATX)
        more["sample_weight"] = values
    if sample_weights == "negative":
        # The micro-batches' sums are -0.75, 3e-31 and positive.
        values[: 2 * MICRO] = [-1, 0.5, -0.25, 1e-31, 1e-31, 1e-31]
    if sample_weights in ("divide", "negative") and hosts.IS_KERAS3:
        loss = functools.partial(keras.losses.MeanSquaredError, reduction="mean_with_sample_weight")
    if loss is not None:
        more["compile"] = {"loss": loss()}
    assert_same_training(*both(case, build, arrays, weight, **more))


@on_adam
@pytest.mark.parametrize("container", [list, tuple])
def test_a_container_of_one_array(container, case):
    """Keras gives the loss the container, of targets and of sample weights."""
    reduction = {"reduction": "mean_with_sample_weight"} if hosts.IS_KERAS3 else {}
    more = {"compile": {"loss": keras.losses.MeanSquaredError(**reduction)}}
    x, y = short()
    more["sample_weight"] = container([np.linspace(0.2, 3, len(x)).astype(hosts.FLOATX)])
    assert_same_training(*both(case, training.dense_model, (x, container([y])), **more))


@on_adam
def test_several_outputs(case):
    mse = keras.losses.MeanSquaredError
    losses = [mse(), "mse", mse(reduction="mean") if hosts.IS_KERAS3 else mse()]  # one kind of mean

    def build():
        return heads("one", "two", "three")

    x, y = short()
    arrays = x, [y, 1 - y, 2 - y]
    assert_same_training(*both(case, build, arrays, compile={"loss": losses}))


@on_adam
def test_several_outputs_with_one_mask(case):
    def build():
        return zoo.masked_heads("one", "two")

    x, y = padded()
    assert_same_training(*both(case, build, (x, [y, 1 - y]), compile={"loss": ["mse", "mse"]}))


def test_the_logs_of_outputs_with_different_divisors():
    """Each is that of all samples; the whole is Keras's own mean, as the gradient is."""
    x, y = np.random.default_rng(0).normal(size=(11, 3)), np.arange(11) % 3
    ignored = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    losses = {"one": ignored, "two": keras.losses.MeanSquaredError()}
    found = []
    for optimizer, size in (
        *((hosts.ours("SGD", learning_rate=0.0, accum_iters=4), MICRO),),
        *((hosts.stock("SGD", learning_rate=0.0), n) for n in (MICRO, 11)),
    ):
        inputs = keras.Input((3,))
        outputs = [layers.Dense(3, name=name)(inputs) for name in ("one", "two")]
        model = compiled(keras.Model(inputs, outputs), optimizer, losses)
        training.initialize(model)
        says = pytest.warns(hosts.accum.AccumulationWarning, match="divided by different numbers")
        with says if not found else contextlib.nullcontext():
            history = model.fit(x, [y, 2 * x + y[:, None]], size, shuffle=False, verbose=0).history
        found.append({name: values[0] for name, values in history.items()})
    ours, small, big = found
    for name in ("one_loss", "two_loss"):
        np.testing.assert_allclose(ours[name], big[name], rtol=1e-5)
    assert abs(small["one_loss"] - big["one_loss"]) > 1e-3
    np.testing.assert_allclose(ours["loss"], small["loss"], rtol=1e-5)


@pytest.mark.skipif(hosts.BACKEND == "jax", reason="its wrapper traces the update, and `fit` warns")
def test_a_step_without_an_update_leaves_no_weight():
    """The wrapper skips its infinite gradient, and the next micro-batch has its own weight."""
    x, y = (array[:12].copy() for array in training.data())
    x[:6] = np.inf
    found = []
    for optimizer, parts in (
        (hosts.ours("SGD", accum_iters=2), [(0, 6), (6, 8), (8, 12)]),
        (hosts.stock("SGD"), [(0, 6), (6, 12)]),
    ):
        model = training.dense_model()
        compiled(model, hosts.loss_scaled(optimizer, 1.0), run_eagerly=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*The loss scale fell")
            data = ((x[start:stop], y[start:stop]) for start, stop in parts)
            model.fit(data, steps_per_epoch=len(parts), verbose=0, shuffle=False)
        found.append(weights(model))
    assert_equal(*found)


@on_adam
@pytest.mark.parametrize(
    "compile", [{"loss": [None, "mse"]}, {"loss": ["mse", "mse"], "loss_weights": [0, 2.0]}]
)
def test_an_output_that_is_not_in_the_loss_has_no_weight(case, compile):
    """Here the first output, as an attention map, or one that is only logged."""

    def build():
        x = keras.Input((STEPS, 3))
        steps = layers.Dense(2, name="steps")(layers.Masking()(x))
        last = layers.Dense(2, name="last")(layers.GlobalAveragePooling1D()(steps))
        return keras.Model(x, [steps, last])

    x, y = padded()
    arrays = x, [y, y[:, 0]]
    assert_same_training(*both(case, build, arrays, compile=compile))


@on_adam
def test_a_model_trained_by_losses_of_layers_alone(case):
    """It needs a function, which may return a tensor: there is no other loss."""

    def build():
        return hosts.sequential((3,), [*training.dense_model().layers, zoo.Adds()])

    compile_with = {"loss": None, "run_eagerly": False}
    assert_same_training(*both(case, build, short(), samples_of, compile=compile_with))


# -- losses that leave out samples: in a graph, only the graph knows how many -------------------

MISSING = 100.0


def with_missing_labels(outputs=1):
    x, y = short()
    ys = [y.copy() + i for i in range(outputs)]
    for labels, left_out in zip(ys, ([0, 1, 7], [5, 6, 9])):
        labels[left_out] = MISSING
    return x, ys if outputs > 1 else ys[0]


def pick(arrays, are_present):
    if hosts.IS_TENSORFLOW:
        return [hosts.tf.boolean_mask(array, are_present) for array in arrays]
    return [array[are_present] for array in arrays]


def of_present(y_true, y_pred):
    """Leaves missing labels out, and so divides by the number of others."""
    y_true, y_pred = pick([y_true, y_pred], y_true[:, 0] < MISSING)
    ops = keras.ops if hosts.IS_KERAS3 else keras.backend
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


class OfSubset(keras.Model):
    """Adds a mean over all samples to a loss of those with a label."""

    adds = True

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        loss = super().compute_loss(x, *pick([y, y_pred], y[:, 0] < MISSING))
        ops = keras.ops if hosts.IS_KERAS3 else keras.backend
        return loss + ops.mean(ops.abs(y_pred)) if self.adds else loss


class OfSubsetAlone(OfSubset):
    adds = False


def present(x, y, y_pred, sample_weight):
    ops = keras.ops if hosts.IS_KERAS3 else hosts.tf
    return zoo.total(ops.cast(y[:, 0] < MISSING, "float32"))


def two_heads():
    return heads("one", "two")


tensorflow_only = pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow")


@tensorflow_only
def test_divisors_that_do_not_differ_in_a_graph():
    """Two heads that leave out the same samples, with a short last batch: nothing is said."""
    x, (y, _) = with_missing_labels(2)
    settings = {"loss": [of_present] * 2, "run_eagerly": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", hosts.accum.AccumulationWarning)
        both(Case("Adam", {}), two_heads, (x, [y, y]), compile=settings)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="about steps in which Python knows the values")
def test_a_loss_that_leaves_out_samples_says_so():
    """Or is refused: another function than Keras's may compare samples, or leave them out."""
    for reduction in "auto", "weighted":
        optimizer = hosts.ours("Adam", accum_iters=LENGTH, reduction=reduction)
        model = compiled(network(), optimizer, of_present)
        said = "can't read what the loss 'of_present' is divided by"
        strict = pytest.raises(ValueError, match=said)
        with strict if reduction == "weighted" else pytest.warns(match=said):
            fit(model, MICRO, with_missing_labels())


@tensorflow_only
@quick_first("xla", [False, True])
@on_adam
def test_one_loss_that_leaves_out_samples_in_a_graph(case, xla):
    """Its values are counted where XLA doesn't know their number either."""
    compile_with = {"loss": of_present, "jit_compile": xla, "run_eagerly": False}
    assert_same_training(*both(case, network, with_missing_labels(), compile=compile_with))


@pytest.mark.skipif(hosts.BACKEND == "jax", reason="JAX needs to know shapes")
def test_a_compute_loss_of_a_subset():
    """A mean over other samples beside it is refused. For one divisor, a function is the remedy."""
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, reduction="weighted")
    model = compiled(network(cls=OfSubset), optimizer, run_eagerly=True)
    with pytest.raises(ValueError, match="own `compute_loss`.*MicroBatchWeights.weight"):
        fit(model, MICRO, with_missing_labels())
    found = []
    ours = hosts.ours("Adam", accum_iters=LENGTH, reduction="weighted")
    for each, size in (ours, MICRO), (hosts.stock("Adam"), SAMPLES):
        model = compiled(network(cls=OfSubsetAlone), each, run_eagerly=True)
        used = [hosts.accum.MicroBatchWeights(present)] if size == MICRO else []
        fit(model, size, with_missing_labels(), callbacks=used)
        found.append(weights(model))
    assert_equal(*found)


@tensorflow_only
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="tf_keras has no MicroBatches")
def test_the_remedy_for_divisors_that_differ():
    found = []
    for callbacks in [hosts.accum.MicroBatches(MICRO, loss="batch")], []:
        model = compiled(two_heads(), hosts.stock("Adam"), [of_present] * 2, run_eagerly=False)
        fit(model, SAMPLES, with_missing_labels(2), callbacks=callbacks)
        found.append(weights(model))
    assert_equal(*found)


# -- custom loops -------------------------------------------------------------------------

WEIGHTS = [1.0, 4.0, 0.0, 3.0]


def gradients():
    """One list per micro-batch, with a gradient per variable. A mean over nothing is NaN."""
    random = np.random.default_rng(5)
    shapes = [v.shape for v in training.linear_variables()]
    grads = [[random.uniform(1, 2, s).astype(hosts.FLOATX) for s in shapes] for _ in WEIGHTS]
    grads[2] = [g * np.nan for g in grads[2]]
    return grads


def taken(optimizer, micro_batches):
    """The values after these pairs (gradients, weight). With None, no weight is given."""
    variables = training.linear_variables()
    for grads, weight in micro_batches:
        if weight is not None:
            optimizer.weigh(weight)
        hosts.apply(optimizer, grads, variables)
    return values(optimizer, variables)


@every_gate
@on_adam
def test_a_micro_batch_of_weight_0_does_not_count(case):
    """A window of such micro-batches moves nothing."""
    counted = [(grads, weight) for grads, weight in zip(gradients(), WEIGHTS) if weight]
    columns, by = zip(*(grads for grads, _ in counted)), [weight for _, weight in counted]
    mean = [np.average(column, axis=0, weights=by) for column in columns]
    expected = taken(hosts.stock(case.name, **case.arguments), [(mean, None)] * 2)
    assert_equal(taken(weighted(case), list(zip(gradients(), WEIGHTS)) * 2), expected)
    unmoved = taken(weighted(case), [(grads, 0.0) for grads in gradients()])
    assert_equal(unmoved, training.START, rtol=0, atol=0)


def test_half_precision_does_not_overflow():
    # The rate is a normal float16 number. Not all processors keep smaller ones.
    optimizer = hosts.ours("SGD", learning_rate=2**-14, accum_iters=2, reduction="weighted")
    variable = hosts.variable(np.zeros(2), "w", dtype="float16")
    for _ in range(2):
        optimizer.weigh(1000.0)
        hosts.apply(optimizer, [np.full(2, 2.0**12, "float16")], [variable])
    np.testing.assert_array_equal(hosts.array(variable), np.full(2, -(2.0**-2)))


def test_state_of_another_reduction():
    """With no window open the states are the same. An open one has weights or has none."""
    w, error = hosts.variable([1.0], "w"), hosts.accum.StateError
    mean_of, weighted_of = (
        hosts.ours("SGD", accum_iters=2, reduction=reduction) for reduction in ("mean", "weighted")
    )
    weighted_of.build([w])
    hosts.apply(mean_of, [np.ones(1, hosts.FLOATX)], [w])
    weighted_of.set_state(mean_of.get_state())
    assert weighted_of.get_state()["window_weight"] == 1  # for each micro-batch
    hosts.apply(mean_of, [np.ones(1, hosts.FLOATX)], [w])
    weighted_of.set_state(mean_of.get_state())
    mean_of.set_state(weighted_of.get_state())
    weighted_of.weigh(3.0)
    hosts.apply(weighted_of, [np.ones(1, hosts.FLOATX)], [w])
    with pytest.raises(error, match="Its open window has weights"):
        mean_of.set_state(weighted_of.get_state())


# -- with other features -----------------------------------------------------------------------


def test_at_accum_iters_1_it_is_the_stock_optimizer():
    optimizer = hosts.ours("Adam", accum_iters=1, reduction="weighted")
    actual = train(optimizer, MICRO, arrays=short())
    assert_equal(actual.slots, train(hosts.stock("Adam"), MICRO, arrays=short()).slots)
    assert not any("window" in name for name in optimizer.get_state())


@on_adam
def test_loss_scale(case):
    big, arrays = hosts.stock(case.name, **case.arguments), padded()
    expected = train(big, SAMPLES, masked_model, arrays=arrays)
    model = compiled(masked_model(), hosts.loss_scaled(weighted(case), 2.0**4))
    fit(model, MICRO, arrays)
    assert_equal(weights(model), expected.weights)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@on_adam
def test_scaled_replicas_with_unlike_shares(strategy, case):
    """Two replicas get different numbers of masked steps."""
    # Each replica gets two of a micro-batch's four samples: steps 1 + 1 and 2 + 1, and so on.
    arrays = [array[:8] for array in padded()]
    expected = train(hosts.stock(case.name, **case.arguments), 8, masked_model, arrays=arrays)
    with strategy.scope():
        optimizer = hosts.loss_scaled(weighted(case, accum_iters=2), 2.0**4)
        model = compiled(masked_model(), optimizer, run_eagerly=False)
    fit(model, 4, arrays)
    training.assert_moved(expected.start, weights(model))
    assert_equal(weights(model), expected.weights)


# -- nothing is left -----------------------------------------------------------------------------


class Save(keras.callbacks.Callback):
    """Saves the state inside of an epoch's last window, or ends the training there."""

    def __init__(self, how):
        super().__init__()
        self.how, self.state = how, None

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and self.state is None:
            self.state = self.model.get_weights(), self.model.optimizer.get_state()
            if self.how == "interrupted":
                raise KeyboardInterrupt
            if self.how == "evaluated":
                self.model.evaluate(*padded(), batch_size=1, verbose=0)


@pytest.mark.filterwarnings("ignore:keras_accum. No window of this training was whole")
@pytest.mark.parametrize("how", ["saved", "interrupted", "evaluated"])
def test_inside_a_window(how):
    """A training continues from there as the big batch's; an evaluation isn't in it."""
    arrays, stock = padded(), hosts.stock("Adam", learning_rate=2**-5)
    expected = train(stock, SAMPLES, masked_model, arrays=arrays, epochs=1).weights

    def make():
        optimizer = hosts.ours("Adam", learning_rate=2**-5, accum_iters=9, reduction="weighted")
        return compiled(masked_model(), optimizer)

    model, save = make(), Save(how)
    with pytest.raises(KeyboardInterrupt) if how == "interrupted" else contextlib.nullcontext():
        fit(model, MICRO, arrays, epochs=1, callbacks=[save])
    assert "compute_loss" not in vars(model)
    assert all(isinstance(loss, keras.losses.Loss) for loss in hosts.list_losses(model))
    if how == "evaluated":
        assert_equal(weights(model), expected)
        return
    model = make()
    hosts.build(model)
    model.set_weights(save.state[0])
    model.optimizer.set_state(save.state[1])
    assert model.optimizer.window_position == 3
    fit(model, MICRO, [array[3 * MICRO :] for array in arrays], epochs=1)
    assert_equal(weights(model), expected)


@pytest.mark.quick_by("torch", "jax", "tf_keras")
@pytest.mark.parametrize("version", [3, 2])
def test_a_loaded_window_whose_weight_is_its_position(version):
    """Its two micro-batches have a sample each. Up to format 2, they may lack weights."""
    model, later = (compiled(training.dense_model(), make_sgd(3)) for _ in range(2))
    (x, y), stock = short(), compiled(training.dense_model(), hosts.stock("SGD"))
    for row in 0, 1:
        model.train_on_batch(x[row : row + 1], y[row : row + 1])
    state = model.optimizer.get_state()
    assert state["window_weight"] == 2 and state["state_format"] == 3
    hosts.build(later)
    later.optimizer.set_state({**state, "state_format": np.asarray(version)})
    fit(later, 9, [array[2:] for array in (x, y)], epochs=1)
    counts = [1, 1] if version == 3 else [9, 9]
    stock.fit(x, y, SAMPLES, sample_weight=scaled_to_mean([*counts, *[1] * 9]), verbose=0)
    assert later.optimizer.completed_updates == 1
    assert_equal(weights(later), weights(stock))


def make_sgd(accum_iters):
    return hosts.ours("SGD", accum_iters=accum_iters)


def scaled_to_mean(counts):
    """Return weights by which a mean over samples is the one weighed by these counts."""
    return np.array(counts, hosts.FLOATX) * len(counts) / sum(counts)


def test_nothing_is_left_after_a_training():
    """Nothing in the model's loss, so a loop must call `weigh`."""
    model = compiled(training.dense_model(), hosts.ours("SGD", accum_iters=2, reduction="weighted"))
    fit(model, MICRO, short(), epochs=1)
    assert all("call" not in vars(loss) for loss in hosts.list_losses(model))
    variables = model.trainable_variables
    with pytest.raises(ValueError, match="Elsewhere, call `optimizer.weigh"):
        hosts.apply(
            model.optimizer, [np.zeros(v.shape, hosts.FLOATX) for v in variables], variables
        )
    assert model.optimizer.window_position == 0


# -- refusals ------------------------------------------------------------------------------------


def test_weights_are_refused_for_another_reduction():
    optimizer = hosts.ours("Adam", accum_iters=2, reduction="mean")
    with pytest.raises(ValueError, match="without `reduction`.*Received: reduction='mean'"):
        optimizer.weigh(1.0)
    weighing = [hosts.accum.MicroBatchWeights(samples_of)]
    with pytest.raises(ValueError, match="without `reduction`. Received: reduction='mean'"):
        fit(compiled(training.dense_model(), optimizer), MICRO, callbacks=weighing)
    for arguments in ((), (3,)):
        with pytest.raises(TypeError, match="`weight` must be a function.*leave the callback out"):
            hosts.accum.MicroBatchWeights(*arguments)


def test_a_keras_without_its_list_of_losses(monkeypatch):
    """The error names the private member; "mean" does without it."""
    host = hosts.accum.ApplyPartialWindow.host
    model = compiled(training.dense_model(), hosts.stock("SGD"))
    container, _, replace = host.find_losses(model)
    monkeypatch.setattr(type(host), "find_losses", lambda *_: (container, "_renamed", replace))
    for reduction in "mean", "auto", "weighted":
        optimizer = hosts.ours("SGD", accum_iters=2, reduction=reduction)
        model = compiled(training.dense_model(), optimizer, run_eagerly=True)
        raises = pytest.raises(ImportError, match="has no `_renamed` in")
        with contextlib.nullcontext() if reduction == "mean" else raises:
            fit(model, MICRO, short(), epochs=1)
