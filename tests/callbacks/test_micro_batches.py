"""`MicroBatches`: a train step in slices equals plain `fit` of the stock optimizer at its batch."""

import contextlib
import gc
import re
import weakref

import hosts
import numpy as np
import pytest
import zoo
from cases import once_by_torch, quick_first, quick_once, thorough
from hosts import keras
from memory import ask, is_out_of_memory
from replicas import counting
from training import assert_equal, embedding_model, initialize
from zoo import network

if not hosts.IS_KERAS3:
    pytest.skip("MicroBatches is for Keras 3", allow_module_level=True)

# Keras 3.16's recurrent layers drop the masks of sequences, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'r' .* was passed an input with a mask")

layers, ops = keras.layers, keras.ops
MicroBatches = hosts.accum.MicroBatches

SAMPLES, BATCH, SIZE, STEPS = 19, 7, 3, 5  # the last batch is short, and so are last slices
HALF = {"rtol": 2e-2, "atol": 2e-3}
WITHOUT_XLA = {"jit_compile": False} if hosts.IS_TENSORFLOW else {}
WITH_XLA = {"jit_compile": True} if hosts.IS_TENSORFLOW else {}
WEIGHTED_MEAN = "mean_with_sample_weight"


def uniform(*shape):
    return np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape).astype(hosts.FLOATX)


X, Y, WEIGHTS = uniform(SAMPLES, 3) - 1, uniform(SAMPLES, 2), uniform(SAMPLES)
WORDS = np.random.default_rng(0).integers(0, 6, (SAMPLES, STEPS))
CLASSES = WORDS[:, 0] % 2
SEQUENCES, STEP_WEIGHTS = uniform(SAMPLES, STEPS, 3), uniform(SAMPLES, STEPS)
for i, sequence in enumerate(SEQUENCES):  # the first slices have many masked steps
    sequence[1 + i % 3 if i % BATCH < SIZE else STEPS :] = 0
TARGETS = uniform(SAMPLES, STEPS, 2)

# -- models and losses -----------------------------------------------------------------------------


ACTIVITY = "l2" if zoo.activity_is_a_mean() else None


@keras.saving.register_keras_serializable("tests")
class MeanSquare(layers.Layer):
    """Adds a loss that is a mean over samples, and one that doesn't depend on samples."""

    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        self.add_loss(ops.cast(0.5, x.dtype))
        return x


def with_penalties():
    return network(MeanSquare(), kernel_regularizer="l2", activity_regularizer=ACTIVITY)


def convolving():
    """Convolutions of all kinds, one of them computed again for its gradient, and one in a loop."""
    x = layers.Input((3,))
    y = layers.Reshape((8, 8, 1))(layers.Dense(64, "tanh")(x))
    with keras.RematScope(mode="full"):
        y = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(y)
    y = layers.Conv2D(4, 2, groups=2, dilation_rate=2)(y)
    y = layers.Conv2DTranspose(3, 3, strides=2)(layers.DepthwiseConv2D(2)(y))
    y = layers.Conv1D(2, 3, padding="causal")(layers.Reshape((9, 3))(y))
    y = layers.Conv3D(2, (1, 2, 2))(layers.Reshape((1, 3, 3, 2))(y))
    y = layers.ConvLSTM1D(2, 2)(layers.Reshape((2, 2, 2))(y))
    return keras.Model(x, layers.Dense(2, name="out")(layers.Flatten()(y)))


def classifier():
    norm = layers.BatchNormalization(trainable=False)
    return keras.Sequential([layers.Input((3,)), norm, layers.Dense(3, "softmax", name="out")])


def masked():
    """Three outputs, two of them with a mask."""
    inputs = layers.Input((STEPS, 3))
    penalty = {"activity_regularizer": ACTIVITY}
    hidden = layers.Dense(4, "tanh", name="h", **penalty)(layers.Masking()(inputs))
    recurrent = layers.SimpleRNN(3, return_sequences=True, name="r")(hidden)
    flat = layers.Flatten()(inputs)
    outputs = [layers.Dense(2, name=n)(t) for n, t in zip("abc", [hidden, recurrent, flat])]
    return keras.Model(inputs, outputs)


def classified():
    """A network whose second output has no gradient: the number of the largest output."""
    x = keras.Input((3,))
    out = layers.Dense(2, name="out")(layers.Dense(4, activation="tanh")(x))
    return keras.Model(x, {"out": out, "class": keras.ops.argmax(out, axis=-1)})


def nested():
    """Inputs and outputs in dictionaries."""
    inputs = {n: layers.Input((w,), name=n) for n, w in (("left", 3), ("right", 2))}
    both = layers.Concatenate()([inputs["left"], inputs["right"]])
    hidden = layers.Dense(4, "tanh", name="hidden")(both)
    return keras.Model(inputs, {n: layers.Dense(2, name=n)(hidden) for n in ("one", "two")})


class Subclassed(keras.Model):
    """Only the first call makes its variables."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, "tanh", name="hidden"), layers.Dense(2, name="out")

    def call(self, x):
        return self.out(self.hidden(x))


def mse(reduction):
    return keras.losses.MeanSquaredError(reduction=reduction)


def contrastive(y_true, y_pred):
    """Each sample's output is told from the other samples' outputs."""
    y_true, y_pred = [v / ops.norm(v, axis=-1, keepdims=True) for v in (y_true, y_pred)]
    logits = 3 * ops.matmul(y_pred, ops.transpose(y_true))
    return ops.logsumexp(logits, axis=-1) - ops.diagonal(logits)


def correlation(y_true, y_pred):
    y_true, y_pred = [v - ops.mean(v, axis=0) for v in (y_true, y_pred)]
    return -ops.sum(y_true * y_pred) / ops.sqrt(ops.sum(ops.square(y_pred)) + 0.1)


def noisy(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1) + np.random.uniform()


def of_known(y_true, y_pred):
    """A mean over labels that aren't missing."""
    known = ops.cast(y_true != -1, y_pred.dtype)
    return ops.sum(known * ops.square(y_true - y_pred)) / ops.sum(known)


class Dice(keras.metrics.Metric):
    """The average of each batch's coefficient, which is another number in slices."""

    def __init__(self, name="dice", **kwargs):
        super().__init__(name=name, **kwargs)
        self.sums = [self.add_weight(shape=(), initializer="zeros", name=n) for n in "ab"]

    def measure(self, y_true, y_pred):
        both = [ops.sum(y_true * y_pred), ops.sum(y_true + y_pred)]
        return [both[0] / both[1], 1.0]

    def update_state(self, y_true, y_pred, sample_weight=None):
        for total, value in zip(self.sums, self.measure(y_true, y_pred)):
            total.assign_add(value)

    def result(self):
        return 2 * self.sums[0] / self.sums[1]


class DiceOfAll(Dice):
    """The coefficient of all samples."""

    def measure(self, y_true, y_pred):
        return [ops.sum(y_true * y_pred), ops.sum(y_true + y_pred)]


class InPython(keras.metrics.Metric):
    """Keeps its values in a list, as metrics of scikit-learn would."""

    def __init__(self, name="in_python", **kwargs):
        super().__init__(name=name, **kwargs)
        self.found = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.found += list(hosts.array(ops.mean(ops.square(y_true - y_pred), axis=-1)))

    def result(self):
        return float(np.mean(self.found)) if self.found else 0.0

    def reset_state(self):
        self.found = []


class Weights(layers.Layer):
    """Has weights for a loss to read; its call doesn't."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(2,), initializer="ones", name="scale")
        self.centers = self.add_weight(shape=(3, 3), initializer="ones", name="centers")
        self.built = True

    def call(self, x):
        return x


def reading(kind=keras.Model):
    """A network with weights for its loss, penalties and an embedding."""
    inputs = layers.Input((STEPS,), dtype="int32")
    penalty = {"kernel_regularizer": "l2", "activity_regularizer": ACTIVITY}
    words = layers.Embedding(6, 3, name="words")(inputs)
    hidden = layers.Dense(3, "tanh", name="h", **penalty)(layers.Flatten()(words))
    return kind(inputs, layers.Dense(2, name="out")(Weights(name="weights")(MeanSquare()(hidden))))


class Reads:
    """Losses of the network that `build` has made last, by weights of its layers."""

    def build(self):
        self.model = initialize(reading())
        return self.model

    def __call__(self, name):
        return self.model.get_layer(name)

    def scale(self, y_true, y_pred):
        """A scalar, with a scale as in CLIP."""
        return ops.mean(ops.square(y_true * self("weights").scale - y_pred))

    def several(self, y_true, y_pred):
        """Rows of a table that only the loss has, of the embedding and of a kernel; vectors."""
        kernel, bias = self("h").trainable_weights
        tables = self("weights").centers, self("words").embeddings, kernel
        classes = ops.cast(y_true[:, 0] * 2, "int32")
        rows = sum(ops.take(table, classes, axis=0) for table in tables)
        error = y_pred * self("weights").scale - rows[:, :2]
        return ops.mean(ops.square(error)) + ops.mean(ops.abs(bias))


class CallsSuper(keras.Model):
    def compute_loss(self, x, y, y_pred, sample_weight, training):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        factor = ops.mean(ops.cast(x, y_pred.dtype)) if training else 0
        return loss + factor * ops.mean(y_pred)


class LeavesOutPenalties(keras.Model):
    """As from a Keras that didn't have the argument `training`."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return ops.logsumexp(ops.abs(y - y_pred))


class ReadsWeights(keras.Model):
    """Counts the first penalty a third, and leaves out the others."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scale = self.get_layer("weights").scale
        return ops.mean(ops.square(y * scale - y_pred)) + self.losses[0] / 3


# -- rows: build, (x, y), arguments of `fit`, arguments of `compile` or a function that makes them -

WEIGHTED = {"sample_weight": WEIGHTS}
SHORT = X[: BATCH + SIZE - 1], Y[: BATCH + SIZE - 1]
NESTED = {"left": X, "right": Y}, {"one": Y, "two": Y[::-1]}
OF_MASKED = SEQUENCES, [TARGETS, TARGETS, Y]

CASES = {
    "plain": (
        network, (X, Y), {}, lambda: {"metrics": ["mae", keras.metrics.RootMeanSquaredError()]},
    ),
    "sample weights": (
        network, (X, Y), WEIGHTED, {"metrics": ["mae"], "weighted_metrics": ["mse"]},
    ),
    "class weights": (
        classifier,
        (X, CLASSES),
        {"class_weight": {0: 0.3, 1: 2.0}},
        {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
    ),
    "sum": (network, (X, Y), WEIGHTED, lambda: {"loss": mse("sum")}),
    "masked sums": (
        masked, OF_MASKED, {}, lambda: {"loss": [mse("sum"), mse("sum"), "mse"]},
    ),
    "penalties": (with_penalties, (X, Y), {}, {}),
    "nested": (nested, NESTED, {}, {"loss": {"one": "mse", "two": "mae"}}),
    "subclassed": (Subclassed, (X, Y), {}, {"metrics": ["mae"]}),
    "a batch in one slice": (network, (X[:SIZE], Y[:SIZE]), {}, {}),
    "a last batch in a part of a slice": (network, SHORT, {}, WITH_XLA),
    "eagerly": (network, (X, Y), {}, {"run_eagerly": True}),
    "metrics of all samples": (
        network, (X, Y), {}, lambda: {"metrics": [DiceOfAll()]},
    ),
    "two steps in one call": (network, (X, Y), {}, {"steps_per_execution": 2}),
}  # fmt: skip
if hosts.IS_TORCH and not hosts.IS_KERAS_3_16:  # Keras refuses several steps
    del CASES["two steps in one call"]

if hosts.BACKEND == "jax":
    CASES["convolutions"] = convolving, (X, Y), {}, {}

if hosts.IS_TORCH:  # where all steps are eager
    CASES["a metric in Python"] = network, (X, Y), {}, lambda: {"metrics": [InPython()]}

# What slices can't have, and the whole batch can.
DIVIDED = {
    "masks": (
        masked, OF_MASKED, {}, {"loss": ["mse", "mae", correlation], "metrics": [["mae"]] * 3},
    ),
    "masks and weights": (
        masked,
        OF_MASKED,
        {"sample_weight": [STEP_WEIGHTS, STEP_WEIGHTS[::-1], WEIGHTS]},
        lambda: {"loss": ["mse", mse(WEIGHTED_MEAN), "mae"], "loss_weights": [1, 2, 0.5]},
    ),
    "ignored class": (
        classifier,
        (X, WORDS[:, 0] % 3),
        {},
        lambda: {"loss": keras.losses.SparseCategoricalCrossentropy(ignore_class=2)},
    ),
    "weighted mean": (network, (X, Y), WEIGHTED, lambda: {"loss": mse(WEIGHTED_MEAN)}),
    "one mask": (
        lambda: zoo.masked_heads("one", "two"), (SEQUENCES, [TARGETS, 2 * TARGETS]), {},
        {"loss": ["mse", "mae"]},
    ),
}  # fmt: skip
COUPLED = {
    "contrastive": (
        with_penalties, (X, Y), WEIGHTED, {"loss": contrastive, "metrics": ["mae", correlation]},
    ),
    "missing labels": (network, (X, np.where(Y > 1.2, -1, Y)), {}, {"loss": of_known}),
    "circle": (network, (X, CLASSES), {}, lambda: {"loss": keras.losses.Circle(gamma=8.0)}),
    "nested losses": (nested, NESTED, {}, {"loss": {"one": contrastive, "two": correlation}}),
    "a short last batch": (network, SHORT, {}, {"loss": contrastive, **WITH_XLA}),
    "frozen normalization": (lambda: normalized(False), (X, Y), {}, {"loss": contrastive}),
    "integer outputs": (classified, (X, {"out": Y}), {}, {"loss": {"out": contrastive}}),
}  # fmt: skip

# What MicroBatches gives slices by default, as Keras gives batches.
OF_BATCHES = {
    "metrics of a batch": (network, (X, Y), {}, lambda: {"metrics": [Dice()]}),
}  # fmt: skip

OF_WORDS = WORDS, Y
READS = Reads()
READING = {
    "a weight in the loss": (READS.build, OF_WORDS, {}, {"loss": READS.scale}),
    "several weights in the loss": (READS.build, OF_WORDS, {}, {"loss": READS.several}),
    "compute_loss with super": (
        lambda: reading(CallsSuper), OF_WORDS, WEIGHTED, {"loss": contrastive, "metrics": ["mae"]},
    ),
    "compute_loss without penalties": (
        lambda: reading(LeavesOutPenalties), OF_WORDS, {}, {"loss": None, "metrics": ["mae"]},
    ),
    "compute_loss with a weight": (lambda: reading(ReadsWeights), OF_WORDS, {}, {"loss": None}),
    "compute_loss with XLA": (lambda: reading(ReadsWeights), OF_WORDS, {}, WITH_XLA),
}  # fmt: skip

QUICK = ["masks and weights", "contrastive", "integer outputs", "sample weights", "penalties"]
QUICK += ["compute_loss with a weight"]
# What a traced loop does in its own way. PyTorch, which compiles nothing, has all rows.
TRACED = ["a last batch in a part of a slice", "two steps in one call", "masked sums"]
TRACED += ["ignored class", "one mask", "a short last batch", *QUICK]
TRACED += ["eagerly"] * hosts.IS_TENSORFLOW
TRACED += [*READING, "convolutions"]
if not hosts.IS_TORCH:  # each row takes seconds to compile
    QUICK = ["contrastive", "sample weights", "compute_loss with a weight"]


def each_of(table):
    """Parametrize a test by the names of a table. Only those in `QUICK` are in the second tier."""
    here = [name for name in table if hosts.IS_TORCH or name in TRACED]
    marks = {name: () if name in QUICK else thorough for name in here}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


def stock_adam():
    return hosts.stock("Adam", learning_rate=0.01)


def sgd():  # Adam would enlarge the rounding of a bias that has no gradient
    return hosts.stock("SGD", learning_rate=0.03, momentum=0.5)


def train(case, callbacks=(), optimizer=None, batch_size=BATCH, epochs=2):
    """Return a model, and the weights, slots and history of its training."""
    build, (x, y), in_fit, in_compile = case
    hosts.set_random_seed()
    model, given = build(), in_compile() if callable(in_compile) else in_compile
    arguments = {"loss": "mse", **WITHOUT_XLA, **given}
    model.compile(optimizer or stock_adam(), **arguments)
    history = model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks), **in_fit,
    )  # fmt: skip
    found = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    slots = hosts.slots(optimizer, model.trainable_weights)
    found.update({f"slot {i}": hosts.array(v) for i, v in enumerate(slots.values())})
    found.update({f"history {k}": np.array(v) for k, v in history.history.items()})
    return model, found


def assert_same(case, optimizer=stock_adam, loss="auto", found=None, **arguments):
    """Train as a whole and in slices. Return the model that was trained in slices."""
    _, expected = train(case, [], optimizer(), **arguments)
    callback = MicroBatches(SIZE, loss=loss)
    model, actual = train(case, [callback], optimizer(), **arguments)
    assert actual.keys() == expected.keys()
    assert_equal(actual, expected)
    assert callback.loss == (found or loss)
    return model


# -- equal to the whole batch ----------------------------------------------------------------------


@each_of(CASES)
def test_equals_the_whole_batch(name):
    assert_same(CASES[name])


@once_by_torch
def test_slices_differ_by_one_sample():
    """PyTorch's convolutions may fail on one sample."""

    class Notes(layers.Layer):
        def call(self, x, training=False):
            if training:  # not when Keras builds the model
                seen.append(hosts.array(x))
            return x

    for rows, size, expected in (13, 4, (4, 3, 3, 3)), (12, 4, (4, 4, 4)), (5, 2, (2, 2, 1)):
        seen, inputs = [], layers.Input((3,))
        model = keras.Model(inputs, layers.Dense(2)(Notes()(inputs)))
        model.compile(sgd(), "mse")
        settings = {"shuffle": False, "verbose": 0, "callbacks": [MicroBatches(size)]}
        model.fit(X[:rows], Y[:rows], rows, **settings)
        assert tuple(map(len, seen)) == expected
        np.testing.assert_array_equal(np.concatenate(seen), X[:rows])


# What slices can be weighed for, in one pass.
IN_ONE_PASS = ["ignored class", "weighted mean", "one mask"]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@each_of({**COUPLED, **DIVIDED, **READING})
def test_the_way_is_chosen(name, capsys):
    """By itself, and said once."""
    found = "auto" if name in IN_ONE_PASS else "batch"
    assert_same({**COUPLED, **DIVIDED, **READING}[name], sgd, found=found)
    said = capsys.readouterr().out
    assert said.count("in a second forward pass") == (found == "batch")


@once_by_torch
def test_where_two_passes_cannot_be_used():
    """With batch normalization: a user's loss counts by samples, and Circle is refused."""
    case = normalized, (X, Y), {}, {"loss": scalar}
    says = "so slices count by their samples.*batch normalization that trains"
    with pytest.warns(match="Layers keep values"), pytest.warns(match=says):
        _, actual = train(case, [MicroBatches(SIZE)])
    with pytest.warns(match="Layers keep values"):
        _, expected = train((normalized, (X, Y), {}, {}), [MicroBatches(SIZE, "sample")])
    assert_equal(actual, expected)
    with pytest.raises(ValueError, match="can't be used with batch normalization that trains"):
        train((normalized, *COUPLED["circle"][1:]), [MicroBatches(SIZE)])


@thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@each_of({**COUPLED, **DIVIDED, **READING, **OF_BATCHES})
def test_any_loss_of_the_whole_batch(name):
    """Also one that reads weights of the model, and a model's own `compute_loss`."""
    case = {**COUPLED, **DIVIDED, **READING, **OF_BATCHES}[name]
    assert_same(case, sgd, "batch")
    if name == "contrastive":  # no average of slices has this gradient
        (_, expected), (_, sliced) = train(case, (), sgd()), train(case, (), sgd(), SIZE)
        assert np.abs(sliced["weight 0"] - expected["weight 0"]).max() > 1e-3


@quick_once
@quick_first("loss, in_compile", [("sample", {}), ("batch", WITH_XLA)])
def test_an_embedding(loss, in_compile):
    """Rows are repeated in a slice, and missing in others. The last row is in no slice."""

    def build():
        return initialize(embedding_model(layers.Embedding))

    assert_same((build, (WORDS % 5, Y), {}, in_compile), loss=loss)


def two_towers():
    """Two models whose layers have the same names, so that their variables have the same paths."""
    inputs = layers.Input((3,))
    return keras.Model(inputs, layers.Add()([network()(inputs) for _ in range(2)]))


@pytest.mark.skipif(not hosts.IS_TORCH, reason="about gradients that are kept")
def test_variables_of_the_same_path():
    """One batch: Keras on PyTorch doesn't forget all gradients of such variables after a batch."""
    model = assert_same((two_towers, (X, Y), {}, {}), sgd, batch_size=SAMPLES, epochs=1)
    assert len({v.path for v in model.variables}) < len(model.variables)


def scheduled():
    rates = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    averaged = {"use_ema": True, "ema_overwrite_frequency": 2}
    return hosts.stock("Adam", learning_rate=rates, **averaged)


def clipped():
    return hosts.stock("SGD", learning_rate=0.1, momentum=0.9, global_clipnorm=0.1)


def accumulating_adam(accum_iters=1):
    return hosts.ours("Adam", learning_rate=0.01, accum_iters=accum_iters)


class Tenth(keras.optimizers.SGD):
    """Overrides a method that Keras's train step calls on TensorFlow alone."""

    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(0.1 * g, v) for g, v in grads_and_vars])


def tenth():
    return Tenth(0.1)


@quick_once
@quick_first("optimizer", [tenth, scheduled, clipped, accumulating_adam])
def test_optimizers(optimizer):
    model = assert_same(CASES["plain"], optimizer)
    assert int(model.optimizer.iterations) == 2 * -(-SAMPLES // BATCH)


@thorough
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(dtype):
    """The loss of each slice is scaled; the scale moves as in plain `fit`."""

    def build():
        model = network(dtype=keras.DTypePolicy(dtype))
        model.dtype_policy = keras.DTypePolicy(dtype)
        return model

    def optimizer():
        found, scales = hosts.stock("SGD", learning_rate=0.05), dtype == "mixed_float16"
        return hosts.loss_scaled(found, 64, dynamic_growth_steps=2) if scales else found

    plain, _ = train((build, (X, Y), {}, {}), (), optimizer())
    model, _ = train((build, (X, Y), {}, {}), [MicroBatches(SIZE)], optimizer())
    assert_equal(*[dict(enumerate(found.get_weights())) for found in (model, plain)], **HALF)
    if dtype == "mixed_float16":
        scales = [float(found.optimizer.dynamic_scale) for found in (model, plain)]
        assert scales[0] == scales[1] > 64


@thorough
def test_a_loss_scale_acts_on_the_loss_of_the_batch():
    for case in COUPLED["contrastive"], READING["several weights in the loss"]:
        assert_same(case, lambda: hosts.loss_scaled(sgd(), 64), "batch")


@thorough
def test_sums_of_half_precision_do_not_stall():
    """The gradient is 1: in bfloat16, a sum of 512 parts of it would end at a half."""

    def build():
        out = layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="bfloat16")
        return keras.Sequential([layers.Input((1,)), out])

    ones = np.ones((512, 1), hosts.FLOATX)
    case = build, (ones, ones), {}, {"loss": lambda y_true, y_pred: ops.sum(y_pred, -1)}
    rate = hosts.stock("SGD", learning_rate=1.0)
    model, _ = train(case, [MicroBatches(1)], rate, batch_size=512, epochs=1)
    assert float(model.get_weights()[0][0, 0]) == -1


@thorough
def test_compiled_again():
    """The callback that trained the model with one loss trains it with another loss."""
    found = []
    for callbacks in [], [MicroBatches(SIZE)]:
        model, _ = train(CASES["sample weights"], callbacks, epochs=1)
        model.compile(hosts.stock("SGD", learning_rate=0.1), mse("sum"))
        model.fit(X, Y, BATCH, sample_weight=WEIGHTS, shuffle=False, verbose=0, callbacks=callbacks)
        found.append(dict(enumerate(model.get_weights())))
    assert_equal(*found)


@quick_once
@pytest.mark.filterwarnings("ignore:keras_accum")
@pytest.mark.parametrize(
    "first", [pytest.param("counted by samples", marks=thorough), "in two passes"]
)
def test_what_was_learnt_of_a_loss_ends_with_its_compile(first):
    """The next loss of the same model is weighed, and needs no second pass."""
    found = []
    for is_used in True, False:
        callback, model = MicroBatches(SIZE), initialize(normalized(first == "counted by samples"))

        def fit(loss, callback, model=model):
            model.compile(hosts.stock("SGD", learning_rate=0.1), loss, **WITHOUT_XLA)
            arguments = {"sample_weight": WEIGHTS, "shuffle": False, "verbose": 0}
            model.fit(X, Y, BATCH, callbacks=[callback], **arguments)

        fit(scalar if first == "counted by samples" else contrastive, callback)
        assert callback.loss == ("auto" if first == "counted by samples" else "batch")
        model.get_layer("norm").trainable = True
        fit(mse(WEIGHTED_MEAN), callback if is_used else MicroBatches(SIZE))
        assert not is_used or callback.loss == "auto"
        found.append(dict(enumerate(model.get_weights())))
    assert_equal(*found)


@thorough
@pytest.mark.once_by("jax")
def test_sample_weights_come_and_go():
    """What slices are divided by belongs to a batch with these arrays, not to the last trace."""
    found = []
    for callbacks in [], [MicroBatches(SIZE)]:
        model = initialize(network())
        model.compile(hosts.stock("SGD", learning_rate=0.1), mse(WEIGHTED_MEAN), **WITHOUT_XLA)
        arguments = {"shuffle": False, "verbose": 0, "callbacks": callbacks}
        losses = [
            model.fit(X, Y, BATCH, sample_weight=each, **arguments).history["loss"]
            for each in (None, WEIGHTS, None, WEIGHTS)
        ]
        found.append({"losses": np.array(losses), **dict(enumerate(model.get_weights()))})
    assert_equal(*found)


@thorough
@pytest.mark.once_by("jax")
def test_a_model_can_be_freed():
    """No cache of JAX keeps it after its training in slices."""
    for loss in "auto", "batch":
        model = weakref.ref(train(CASES["plain"], [MicroBatches(SIZE, loss)], epochs=1)[0])
        keras.backend.clear_session()
        gc.collect()
        assert model() is None


# -- layers see slices -----------------------------------------------------------------------------


@thorough
def test_batch_normalization_moves_with_each_slice():
    def build():
        return network(layers.BatchNormalization(momentum=0.5, name="norm"))

    frozen = hosts.stock("SGD", learning_rate=0.0)
    case = build, (X[: 2 * SIZE], Y[: 2 * SIZE]), {}, {}
    with pytest.warns(UserWarning, match="Layers keep values.*: norm"):
        model, _ = train(case, [MicroBatches(SIZE)], frozen, epochs=1)
    hosts.set_random_seed()
    other = build()
    for start in 0, SIZE:
        other(X[start : start + SIZE], training=True)
    assert_equal(*[dict(enumerate(m.get_weights())) for m in (model, other)])


def with_dropout(kernel):
    dense = layers.Dense(1, use_bias=False, kernel_initializer=kernel, name="out")
    return keras.Sequential([layers.Input((64,)), layers.Dropout(0.5, seed=1), dense])


@thorough
def test_dropout_draws_for_each_slice():
    """The gradient of a kernel counts how many of its input's samples are kept."""
    ones, count = np.ones((4 * SIZE, 64), hosts.FLOATX), 4
    loss = {"loss": lambda y_true, y_pred: ops.sum(y_pred, -1)}
    case = (lambda: with_dropout("zeros")), (ones, ones[:, :1]), {}, loss
    half = hosts.stock("SGD", learning_rate=0.5)  # a kept input is twice as large
    model, _ = train(case, [MicroBatches(SIZE)], half, batch_size=count * SIZE, epochs=1)
    kept = np.round(-model.get_weights()[0] * count * SIZE)
    assert 0 < kept.mean() < count * SIZE
    assert (kept % count).any()  # with equal draws, each slice would keep the same number


class Drawing(layers.Layer):
    """Drops inputs by numbers that a function draws in a shape."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x, training=False):
        return x * ops.cast(self.draw(ops.shape(x)) > 0.5, x.dtype) if training else x


def by_framework(shape):
    return hosts.tf.random.uniform(shape)


def by_a_generator(shape):
    return hosts.tf.random.get_global_generator().uniform(shape)


OWN_GENERATOR = np.random.default_rng(0)


def by_own_generator(shape):
    return OWN_GENERATOR.uniform(size=shape)


def gradient_by_loss(layer, **in_compile):
    """Return gradient * w / 2 loss of weights w, which is 1 for a loss of degree 2."""
    dense = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    ones = np.ones((BATCH, 64), hosts.FLOATX)
    arguments = {"loss": lambda y_true, y_pred: ops.mean(y_pred**2), **in_compile}
    case = lambda: keras.Sequential([layers.Input((64,)), layer, dense]), (ones, ones[:, :1]), {}
    slices, rate = MicroBatches(SIZE, loss="batch"), hosts.stock("SGD", learning_rate=2**-10)
    model, found = train((*case, arguments), [slices], rate, epochs=1)
    product = np.sum(1 - model.get_weights()[0]) * 2**10
    return product / (2 * found["history loss"][0])


EAGER = {"run_eagerly": True}
# The layer, and arguments of `compile`.
DRAWS = {
    "a layer of Keras": (lambda: layers.Dropout(0.5, seed=1), {}),
    "NumPy": (lambda: Drawing(lambda shape: np.random.uniform(size=shape)), EAGER),
}
if hosts.BACKEND != "jax":  # where Keras refuses draws without a seed
    DRAWS["no seed"] = lambda: Drawing(keras.random.uniform), {}
if hosts.IS_TENSORFLOW:
    DRAWS["no seed, by XLA"] = DRAWS["no seed"][0], WITH_XLA
    DRAWS["no seed, eagerly"] = DRAWS["no seed"][0], EAGER
    DRAWS["dropout"] = lambda: layers.Lambda(lambda x: keras.random.dropout(x, 0.5)), {}


@quick_first("name", ["no seed"] * ("no seed" in DRAWS) + [n for n in DRAWS if n != "no seed"])
def test_both_passes_draw_the_same(name):
    """By each generator that can be put back."""
    layer, in_compile = DRAWS[name]
    np.testing.assert_allclose(gradient_by_loss(layer(), **in_compile), 1, rtol=1e-3)


NOT_REPEATED = {}
if hosts.IS_TENSORFLOW:
    NOT_REPEATED["RandomUniform"] = by_framework, {}
    NOT_REPEATED["RandomUniform.* draws"] = by_framework, WITH_XLA
    NOT_REPEATED["RngReadAndSkip"] = by_a_generator, {}
    NOT_REPEATED["outputs differ"] = by_framework, EAGER
if hosts.IS_TORCH:
    NOT_REPEATED["outputs differ"] = by_own_generator, {}


@pytest.mark.parametrize("text", NOT_REPEATED)
def test_draws_that_cannot_be_repeated_are_refused(text):
    """The error names the operation, and the line that works."""
    draw, in_compile = NOT_REPEATED[text]
    if draw is by_a_generator:
        draw((1,))  # a graph can't make the generator
    with pytest.raises(ValueError, match=f"{text}.*self.seeds = keras.random.SeedGenerator"):
        gradient_by_loss(Drawing(draw), **in_compile)


# -- refused ---------------------------------------------------------------------------------------


def scalar(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


class CallsModel(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred - self(x)))


class Keeps(layers.Layer):
    """Keeps a tensor for a loss, as layers for conditional random fields do."""

    def call(self, x):
        self.kept = ops.square(x)
        return x


class ReadsKept(keras.Model):
    """Its loss has no shape by which a slice would be noticed."""

    def compute_loss(self, *arguments, **keywords):
        return ops.mean(self.get_layer("keeps").kept)


def stateful():
    inputs = layers.Input((3,), batch_size=BATCH)
    recurrent = layers.SimpleRNN(2, stateful=True, name="state")(layers.Reshape((1, 3))(inputs))
    return keras.Model(inputs, recurrent)


def normalized(trainable=True):
    return network(layers.BatchNormalization(name="norm", trainable=trainable))


class Scale(layers.Layer):
    """A weight that all samples share, as an output."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return 2 * self.scale


def scaled():
    inputs = layers.Input((3,))
    outputs = {"out": layers.Dense(2)(inputs), "scale": Scale(name="scale")(inputs)}
    return keras.Model(inputs, outputs)


@keras.saving.register_keras_serializable("tests")
def adding():
    return network(zoo.Adds(lambda squares: ops.sum(squares, -1)))


def adding_up(cls):
    """An optimizer that adds up batches by Keras's own means, in a MultiOptimizer if there is."""
    optimizer = cls(0.01, gradient_accumulation_steps=2)
    several = getattr(keras.optimizers, "MultiOptimizer", None)
    return optimizer if several is None else several(lambda variable: optimizer)


# Arguments of the callback, a case, and the optimizer.
PLAIN = network, (X, Y), {}, {}
OF_BATCH = {"loss": "batch"}
REFUSED = {
    "the stateful layer state": ({}, (stateful, (X, Y), {}, {})),
    "its own `train_step`": ({}, (lambda: network(cls=zoo.OwnStep), (X, Y), {}, {})),
    "its own `compute_loss`": ({}, (lambda: network(cls=zoo.OwnLoss), (X, Y), {}, {})),
    "what the loss 'scalar' is divided by": ({}, (network, (X, Y), {}, {"loss": scalar})),
    "the metric 'scalar' has values of": ({}, (network, (X, Y), {}, {"metrics": [scalar]})),
    "what the loss 'mean_squared_error' is divided by": (
        {}, (network, (X, Y), {}, lambda: {"loss": mse("none")}),
    ),
    "the loss 'circle' isn't a mean.* compares": ({}, COUPLED["circle"]),
    "batch normalization that trains.*'norm'": (OF_BATCH, (normalized, (X, Y), {}, {})),
    "that calls the model": (OF_BATCH, (lambda: network(cls=CallsModel), (X, Y), {}, {})),
    "reads `kept`, which the layer 'keeps'": (
        OF_BATCH, (lambda: network(Keeps(name="keeps"), cls=ReadsKept), (X, Y), {}, {}),
    ),
    "is compiled with a loss": (OF_BATCH, (with_penalties, (X, Y), {}, {"loss": None})),
    "several values given to `add_loss`": ({}, (adding, (X, Y), {}, {})),
    "of several values given to `add_loss`": (OF_BATCH, (adding, (X, Y), {}, {})),
    "an output of shape": (OF_BATCH, (scaled, (X, {"out": Y}), {}, {"loss": {"out": "mse"}})),
    "AdamAccumulate, which adds up batches.* Leave": ({}, PLAIN, lambda: accumulating_adam(2)),
    "SGD, which adds up batches.* or compile": ({}, PLAIN, lambda: adding_up(keras.optimizers.SGD)),
    '"auto" and steps_per_execution=2': ({"size": "auto"}, CASES.get("two steps in one call")),
}  # fmt: skip


# The same checks run on all backends, so PyTorch has all rows.
TRACES = "stateful|steps_per|shape|calls|kept"
HERE = [name for name in REFUSED if hosts.IS_TORCH or re.search(TRACES, name)]


@quick_first("message", [name for name in HERE if REFUSED[name][1]])
def test_refused_at_the_start(message):
    """Models, losses and metrics that slices would change."""
    arguments, case, *optimizer = REFUSED[message]
    with pytest.raises(ValueError, match=f"MicroBatches.*{message}"):
        callback = MicroBatches(**{"size": SIZE, "loss": "sample", **arguments})
        train(case, [callback], (optimizer or [sgd])[0]())


@thorough
def test_a_loss_that_draws_is_taken():
    """What it draws has no gradient, so the training is that of the mean squared error."""
    _, expected = train((network, SHORT, {}, {}), epochs=1)
    drawn = {"loss": noisy}
    _, actual = train((network, SHORT, {}, drawn), [MicroBatches(SIZE)], epochs=1)
    assert actual.pop("history loss") > expected.pop("history loss")
    assert_equal(actual, expected)


@thorough
@once_by_torch
@each_of(DIVIDED)
def test_what_one_pass_refuses(name):
    """By name, with the remedy that the rows above have, before anything changes."""
    if name in IN_ONE_PASS:
        assert_same(DIVIDED[name], sgd, loss="sample")
        return
    build, (x, y), in_fit, _ = DIVIDED[name]
    model, _ = train(DIVIDED[name], epochs=1)
    model.compile(stock_adam(), model.loss, **WITHOUT_XLA)
    before = model.get_weights()
    says = "what the loss 'correlation' is|not all terms of the loss are divided by the same"
    with pytest.raises(ValueError, match=rf"({says}).* Leave `loss` out"):
        callbacks = [MicroBatches(SIZE, loss="sample")]
        model.fit(x, y, BATCH, verbose=0, callbacks=callbacks, **in_fit)
    assert_equal(*[dict(enumerate(w)) for w in (model.get_weights(), before)], rtol=0, atol=0)


@pytest.mark.parametrize(
    "arguments, error",
    [((0,), ValueError), ((2.5,), TypeError), ((True,), TypeError), ((2, "mse"), ValueError)],
)
def test_arguments(arguments, error):
    with pytest.raises(error, match="`loss` must be" if arguments[1:] else "`size` must be"):
        MicroBatches(*arguments)
    size = MicroBatches(np.float32(4)).size  # as R and JSON send it
    assert (size, type(size)) == (4, int)


@pytest.mark.skipif(hosts.BACKEND != "torch", reason="the other backends take ModelParallel")
def test_split_weights_are_refused_on_pytorch(monkeypatch):
    class Split(keras.distribution.ModelParallel):
        """PyTorch may have no devices to split over."""

        def __init__(self):
            pass

        __repr__ = object.__repr__

    monkeypatch.setattr(keras.distribution, "distribution", Split)
    with pytest.raises(ValueError, match="`DataParallel`, or leave the callback out"):
        train((network, (X, Y), {}, {}), [MicroBatches(SIZE)], epochs=1)


def test_arrays_of_different_lengths_are_refused():
    model, data = network(), (pair for pair in [(X[:4], Y[:6])])
    if hosts.IS_TENSORFLOW:  # whose graph knows no shapes of a generator
        data = hosts.tf.data.Dataset.from_tensors((X[:4], Y[:6]))
    model.compile("sgd", "mse")
    model.train_on_batch(X[:4], Y[:4])  # Keras builds the loss with the first batch
    with pytest.raises(ValueError, match="the first dimension of all arrays"):
        model.fit(data, shuffle=False, verbose=0, callbacks=[MicroBatches(SIZE)])


@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras on PyTorch makes dense arrays")
def test_sparse_arrays_are_refused():
    model = keras.Sequential([layers.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    if hosts.IS_TENSORFLOW:
        sparse = hosts.tf.sparse.from_dense(X)
    else:
        from jax.experimental.sparse import BCOO

        sparse = BCOO.fromdense(X)
    with pytest.raises(ValueError, match="MicroBatches can slice dense arrays only.*type (Spa|BC)"):
        model.fit(sparse, Y, BATCH, verbose=0, callbacks=[MicroBatches(SIZE)], shuffle=False)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="elsewhere Python knows the numbers")
@pytest.mark.parametrize("in_compile", [WITH_XLA, WITHOUT_XLA])
def test_arrays_of_different_lengths_in_a_graph(in_compile):
    """A generator's batches have unknown lengths."""
    inputs = layers.Input((3,)), layers.Input((2,))
    model = keras.Model(inputs, layers.Dense(2)(inputs[0]) + ops.sum(inputs[1]))
    model.compile("sgd", "mse", **in_compile)

    def batches(count):
        yield from [((X[:BATCH], Y[:count]), Y[:BATCH])] * 2

    settings = {"steps_per_epoch": 2, "shuffle": False, "verbose": 0}
    model.fit(batches(BATCH), callbacks=[MicroBatches(SIZE)], **settings)
    error = ValueError, hosts.tf.errors.InvalidArgumentError  # Keras 3.16 knows the numbers
    for count in 1, BATCH + 2:
        with pytest.raises(error, match="MicroBatches.slices.samples"):
            model.fit(batches(count), callbacks=[MicroBatches(SIZE)], **settings)


@once_by_torch
@thorough
def test_the_model_gets_back_its_train_function():
    """After a training that was broken off, the model trains by whole batches."""
    model, _ = train(CASES["plain"])
    own, names = model.train_function, set(vars(model))
    callback = MicroBatches(SIZE)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, BATCH, verbose=0, callbacks=[callback, zoo.Interrupt()])
    assert model.train_function is own and set(vars(model)) == names
    model.fit(X, Y, BATCH, verbose=0, callbacks=[callback])
    assert model.train_function is own


# -- "auto" ----------------------------------------------------------------------------------------


def ask_unless(fits, x, count):
    """Return x, after asking for more memory than there is if `fits(rows, count)` is false."""
    if not hosts.IS_TENSORFLOW:
        return ask(x, not fits(x.shape[0], count))
    tf, arguments = hosts.tf, [ops.shape(x)[0], hosts.tf.cast(count, "int32")]
    return ask(x, tf.numpy_function(lambda *a: np.bool_(not fits(*a)), arguments, tf.bool))


class Small(layers.Layer):
    """A layer that needs memory, and counts its calls."""

    def __init__(self, fits, **kwargs):
        super().__init__(**kwargs)
        self.fits = fits

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.built = True

    def call(self, x, training=False):
        if training:  # not when Keras builds the model
            x = ask_unless(self.fits, x, 1 if hosts.BACKEND == "jax" else self.count)
            self.count.assign(self.count + 1)
        return x


@thorough
@pytest.mark.parametrize("loss", ["sample", pytest.param("batch", marks=pytest.mark.weekly)])
def test_auto_finds_a_size(loss, capsys):
    """Slices of 7, of 4, and then of 2; the second slice of 4 fails when one is in the sums."""

    def fits(rows, count):  # JAX's program doesn't depend on the count
        return rows <= 2 or rows <= 4 and count == 0

    case = (lambda: network(Small(fits, name="small"))), *CASES["sample weights"][1:]

    def train_on(callback):
        with pytest.warns(UserWarning, match="Layers keep values.*: small"):
            return train(case, [callback])

    callback = MicroBatches("auto", loss=loss)
    assert callback.size is None
    model, actual = train_on(callback)
    assert callback.size == 2
    assert capsys.readouterr().out.count("slices of 2 samples") == 1
    _, expected = train_on(MicroBatches(2, loss=loss))
    assert actual.keys() == expected.keys()
    assert_equal(actual, expected)
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert callback.size == 2 and not capsys.readouterr().out


class Raises(keras.constraints.Constraint):
    def __call__(self, w):
        return ask(ops.convert_to_tensor(w), True)


@thorough
@quick_first("in_the_update", [True, False])
def test_auto_gives_up(in_the_update):
    """One sample doesn't fit, or an update was made in part: only JAX knows that it wasn't."""

    def build():
        if not in_the_update:
            return network(Small(lambda rows, count: False, name="small"))
        return network(kernel_constraint=Raises())

    callback = MicroBatches("auto")
    undone = not in_the_update or hosts.BACKEND == "jax"
    with pytest.raises(Exception) as raised:
        train((build, (X, Y), {}, {}), [callback], batch_size=2)
    assert is_out_of_memory(raised.value) == undone
    assert ("had begun to update the weights" in str(raised.value)) != undone
    assert callback.size == (1 if undone else None)


# -- several devices, and memory -------------------------------------------------------------------


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="strategies are TensorFlow's")
def test_mirrored_strategy_reduces_once():
    """Also if the last batch has unequal shares, which count equally, as in stock `fit`."""
    strategy, executed = counting()
    with strategy.scope():
        cases = (16, "sum", "sample"), (16, "weighted mean", "batch"), (15, "sum", "sample")
        for count, name, loss in cases:
            in_fit = {"sample_weight": WEIGHTS[:count]}
            build = with_penalties if loss == "batch" else network
            case = build, (X[:count], Y[:count]), in_fit, {**CASES, **DIVIDED}[name][3]
            (_, plain), before = train(case, batch_size=8), int(executed)
            _, actual = train(case, [MicroBatches(SIZE, loss=loss)], batch_size=8)
            assert int(executed) - before == before > 0
            executed.assign(0)
            assert_equal(actual, plain)


on_jax = pytest.mark.skipif(hosts.BACKEND != "jax", reason="distributions are JAX's")


@thorough
@on_jax
@quick_first("size, loss", [(2, "batch"), (SIZE, "sample"), (2, "sample")])
def test_data_parallel(size, loss, request):
    """Equal to the whole batch on one device."""
    case = network, *(COUPLED["contrastive"] if loss == "batch" else CASES["plain"])[1:]
    case = case[0], (X[:12], Y[:12]), {}, case[3]
    _, expected = train(case, (), sgd(), batch_size=8)
    request.getfixturevalue("two_devices")
    _, actual = train(case, [MicroBatches(size, loss=loss)], sgd(), batch_size=8)
    assert_equal(actual, expected)


@thorough
@pytest.mark.skipif(hosts.IS_TORCH, reason="needs two processes")
def test_auto_in_several_places_is_refused(monkeypatch):
    """In replicas or processes: if one fails alone, the others wait for it."""
    message, scope = '"auto".* several replicas or processes.*Received: 2', contextlib.nullcontext()
    if hosts.IS_TENSORFLOW:
        scope = counting()[0].scope()
    else:
        monkeypatch.setattr("jax.process_count", lambda: 2)
    with scope, pytest.raises(ValueError, match=message):
        train(CASES["plain"], [MicroBatches("auto")], batch_size=2)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about XLA on TensorFlow")
def test_slow_convolutions_are_refused():
    model = keras.Sequential([layers.Input((4, 4, 1)), layers.Conv2D(1, 3, name="conv")])
    model.compile("sgd", "mse", jit_compile=True)
    x, y = np.ones((4, 4, 4, 1)), np.ones((4, 2, 2, 1))
    with pytest.raises(ValueError, match="the convolution conv .*jit_compile=False"):
        model.fit(x, y, verbose=0, callbacks=[MicroBatches(2)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, y, verbose=0, callbacks=[MicroBatches(2)])
