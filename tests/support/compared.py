"""Models for `compare_with_big_batch`, each with the verdict that is right.

`benchmarks/verdicts.py` compares them too, with many seeds and on other releases.
"""

from collections import namedtuple

import hosts
import numpy as np
from cases import skip_file_on_keras2
from hosts import keras

skip_file_on_keras2("compare_with_big_batch")

import zoo  # noqa: E402
from training import contrastive  # noqa: E402
from zoo import mean, mean_square, total  # noqa: E402

layers, accum = keras.layers, hosts.accum
math = keras.ops if hosts.IS_KERAS3 else hosts.tf

SIZE, LENGTH = 4, 3
SAMPLES = SIZE * LENGTH
LABELS = np.array([0, 1, -1, -1] + [0, 1, 1, 0] * 2)  # -1 is ignored
IS_FIRST = np.arange(SAMPLES)[:, None] < SIZE
TOKENS = np.array([[1, 2, 0, 0], [1, 1, 1, 0], [2, 2, 1, 1], [1, 0, 0, 0]] * LENGTH)
UNEVEN = np.where((np.arange(SAMPLES) // SIZE == 1)[:, None], 2, TOKENS)

# -- samples, each of a function that draws normal numbers of a shape ------------------------------


def drawing(seed):
    random = np.random.default_rng(seed)
    return lambda *shape: random.normal(size=shape).astype("float32")


def pair(draw):
    return draw(SAMPLES, 3), draw(SAMPLES, 2)


def weighted(draw):
    return (*pair(draw), np.abs(draw(SAMPLES)))


def short(draw):
    return [array[:-2] for array in pair(draw)]


def without_targets(draw):
    return pair(draw)[:1]


def samples(*shape, targets=(2,)):
    return lambda draw: (draw(SAMPLES, *shape), draw(SAMPLES, *targets))


def tokens(ids=UNEVEN):
    return lambda draw: (ids, draw(SAMPLES, 4, 1))


def of_two_inputs(draw):
    return {"a": draw(SAMPLES, 3), "b": draw(SAMPLES, 3)}, [draw(SAMPLES, 2)] * 2


def classes(draw):
    return draw(SAMPLES, 3), LABELS


def prices(draw):
    return draw(SAMPLES, 3), {"price": np.abs(draw(SAMPLES, 1)) * 4e5, "label": LABELS}


def scores(draw):
    return draw(SAMPLES, 3), {"price": np.abs(draw(SAMPLES, 1)) * 4e5, "label": draw(SAMPLES, 2)}


def large_first(by):
    """The targets of the first micro-batch are so many times larger."""

    def data(draw):
        x, y = pair(draw)
        return x, np.where(IS_FIRST, y * by, y)

    return data


def one_has_all(draw):
    x, y = pair(draw)
    return x, np.where(IS_FIRST, y, 0)


def some_labels(draw):
    x, y = pair(draw)
    return x, np.where(LABELS[:, None] < 0, 0, y)


# -- models ----------------------------------------------------------------------------------------


def network(*between, **arguments):
    first = layers.Dense(4, activation="tanh", **arguments)
    return hosts.sequential((3,), [first, *between, layers.Dense(2, **arguments)])


def dense(**arguments):
    return hosts.sequential((3,), [layers.Dense(2, **arguments)])


def embedding(rows=3, steps=4, **arguments):
    return hosts.sequential((steps,), [layers.Embedding(rows, 2, **arguments), layers.Dense(1)])


def attention():
    x = keras.Input((4, 3))
    return keras.Model(x, layers.Dense(1)(layers.MultiHeadAttention(2, 2)(x, x)))


def transformer():
    x = keras.Input((6, 8))
    normal = layers.LayerNormalization()(x)
    y = layers.Add()([x, layers.MultiHeadAttention(2, 4)(normal, normal)])
    hidden = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(y))
    y = layers.Add()([y, layers.Dense(8)(hidden)])
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(y)))


def two_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    return keras.Model({"a": a, "b": b}, [layers.Dense(2)(a), layers.Dense(2)(b)])


def two_heads(draws=False):
    """With trunks of their own: the gradients of one are 1e5 times those of the other.

    draws: the small one adds random numbers.
    """
    x, heads = keras.Input((3,)), {}
    for name, units in (("price", 1), ("label", 2)):
        y = layers.Dense(4, activation="tanh")(x)
        y = Draws()(y) if draws and name == "label" else y
        heads[name] = layers.Dense(units, name=name)(y)
    return keras.Model(x, heads)


def small_branch(normalization):
    """As in a layer scale: the gradients of a branch are small."""
    x = keras.Input((3,))
    trunk = layers.Dense(4, activation="tanh")(x)
    branch = normalization()(layers.Dense(4)(trunk))
    return keras.Model(x, layers.Dense(2)(layers.Add()([trunk, layers.Rescaling(1e-6)(branch)])))


def deep(activation, depth, width=16):
    found = [layers.Dense(width, activation=activation) for _ in range(depth)]
    return hosts.sequential((3,), [*found, layers.Dense(2)])


def recurrent(kind, scale=1.0):
    model = hosts.sequential((40, 3), [getattr(layers, kind)(8), layers.Dense(2)])
    model.set_weights([weight * scale for weight in model.get_weights()])
    return model


def convolutions(policy):
    found = layers.Conv2D(4, 3, activation="relu", dtype=policy), layers.MaxPooling2D(2)
    last = layers.Flatten(), layers.Dense(2, dtype=policy)
    return hosts.sequential((6, 6, 2), [*found, *last])


def long_sums():
    return hosts.sequential((64, 64, 3), [layers.Conv2D(4, 3, padding="same")])


def near_optimum(away):
    """Least squares: the gradient is zero but for how far the weights are away."""

    def prepare(model, x, y):
        design = np.concatenate([x.astype("float64"), np.ones((SAMPLES, 1))], 1)
        found = np.linalg.lstsq(design, y.astype("float64"), rcond=None)[0]
        found += away * np.random.default_rng(0).normal(size=found.shape)
        model.set_weights([found[:3], found[3]])

    return prepare


class OfBatch(layers.Layer):
    """Its output depends on other samples, and it keeps nothing."""

    def call(self, x):
        return x - mean(x, 0)


class Draws(layers.Layer):
    """Draws random numbers by itself."""

    def __init__(self):
        super().__init__(name="draws")
        self.seed = keras.random.SeedGenerator(0) if hosts.IS_KERAS3 else None

    def call(self, x):
        if hosts.IS_KERAS3:
            return x + keras.random.normal((4,), seed=self.seed)
        return x + hosts.tf.random.normal((4,))


class OwnStep(keras.Model):
    """Closes windows by itself, and weights its micro-batches."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def train_step(self, *arguments):
        self.optimizer.close_window(False)
        self.optimizer.weigh(SIZE)
        return super().train_step(*arguments)


class ChangesGradients(OwnStep):
    """Gives the optimizer a function of the gradients. Not on JAX, whose steps are others."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def train_step(self, batch):
        (x, y, *_), variables = batch, self.trainable_variables
        find_loss = lambda: mean_square(self(x), y)  # noqa: E731
        loss, (gradients,) = zoo.take_gradients(self, find_loss, variables)
        self.optimizer.apply_gradients(list(zip(self.change(gradients), variables)))
        return {"loss": loss}


def norm(gradients):
    return sum(total(gradient**2) for gradient in gradients) ** 0.5


def clip(to):
    def change(gradients):
        scale = math.minimum(1.0, to / norm(gradients))
        return [gradient * scale for gradient in gradients]

    return lambda: ChangesGradients(change)


def without_negative(gradients):
    return [math.maximum(gradient, 0.0) for gradient in gradients]


# -- losses ----------------------------------------------------------------------------------------


def root(y_true, y_pred):
    """As Dice with its default axis, this compares samples."""
    return mean_square(y_true, y_pred) ** 0.5


def with_root(share):
    """A part of this size compares samples."""
    return lambda y_true, y_pred: mean_square(y_true, y_pred) + share * root(y_true, y_pred)


def neighbours(y_true, y_pred):
    """Compare each second sample with the one before."""
    return mean(1 + total((y_pred[0::2] - y_pred[1::2]) ** 2, -1))


def of_next(y_true, y_pred):
    """Compare each sample with the next one."""
    return mean(1 + total((y_pred[1:] - y_pred[:-1]) ** 2, -1))


def of_labelled(y_true, y_pred):
    """Divided by the number of labels."""
    has = math.cast(y_true != 0, "float32")
    return total(has * (y_true - y_pred) ** 2) / math.maximum(total(has), 1.0)


def weighted_outputs(y_true, y_pred):
    squares = (y_true - y_pred) ** 2
    return 1e11 * squares[:, 0] + squares[:, 1]


class Running(keras.losses.Loss):
    """Divided by a running scale, a variable in the loss."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False) if hosts.IS_KERAS3 else math.Variable(1.0)

    def call(self, y_true, y_pred):
        self.scale.assign(0.9 * self.scale + 0.1 * mean(y_true**2))
        return mean((y_true - y_pred) ** 2, -1) / self.scale


def ignore_class():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def sums():
    return keras.losses.MeanSquaredError(reduction="sum")


def by_weights():
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


# -- rows ------------------------------------------------------------------------------------------

VERDICTS = EQUAL, DIFFERS, UNDECIDED = "equal", "differs", "undecided"
ROUNDS = EQUAL, UNDECIDED  # rounding may be as large as the gradient
MEAN, SUM, STOCK, OWN = {"reduction": "mean"}, {"reduction": "sum"}, {"accum_iters": 1}, None
EVERYTHING = {"skip_nonfinite": True, "skip_norm": 1e9, "gate": "select"}
BY_ONE = {"options": {"accum_iters": SAMPLES}, "size": 1}

# What is printed.
ALL = "Compared: the gradients of one window of 12 samples, 4 of 4 variables"
BY_DEFAULT = r"It is equal \(\S+\) with reduction='auto'\."
IN_SLICES = r"It is equal \(\S+\) with MicroBatches\(4\)"
# Elsewhere no remedy makes it equal, and the warning of `fit` says why.
BY_BATCH = IN_SLICES if hosts.IS_KERAS3 else "it returns one number.*On Keras 3, `MicroBatches"
CHANGED = "None of these.*global_clipnorm` or `window_transforms` instead"
IN_FLOAT32 = "Computed in float32"
MOVED = "Layers keep values from one call to the next.*: keeps"
NO_REMEDY = "None of these makes it equal: reduction='mean'; reduction='sum'"
NORMALIZED = "Layers keep values from one call to the next.*: batch_norm"
OFF = r"were off \(rate 0\)"
RANDOM = "the model draws random numbers"


def slices(**arguments):
    callbacks = [lambda: accum.MicroBatches(SIZE, **arguments)]
    return {"options": STOCK, "callbacks": callbacks, "size": SAMPLES}


FIELDS = "right model data loss options callbacks size optimizer prepare on_jax text compile"
Row = namedtuple("Row", FIELDS)


def row(
    right,
    model=network,
    data=pair,
    loss=lambda: "mse",
    options=None,
    callbacks=(),
    size=SIZE,
    optimizer="SGD",
    prepare=None,
    on_jax=True,
    text="",
    **compile,
):
    """Return the verdicts that are right, functions that make the model, its samples and its loss,
    options of the optimizer, functions that make callbacks, the size of micro-batches, the name of
    the optimizer, a function of the model and its samples or None, True if JAX runs it, a text in
    what is printed, and arguments of `compile`."""
    right = (right,) if isinstance(right, str) else right
    options = {"learning_rate": 0.01, "accum_iters": LENGTH, **(options or {})}
    found = right, model, data, loss, options, callbacks, size, optimizer, prepare, on_jax, text
    return Row(*found, compile)


ROWS = {
    "plain": row(EQUAL, text=ALL),
    "Adam, clipped": row(EQUAL, optimizer="Adam", options={"global_clipnorm": 0.1}),
    "RMSprop": row(EQUAL, optimizer="RMSprop"),
    "layer normalization": row(EQUAL, lambda: network(layers.LayerNormalization())),
    "relu, L2": row(EQUAL, lambda: network(layers.ReLU(), kernel_regularizer="l2")),
    "frozen batch normalization": row(
        *(EQUAL, lambda: network(layers.BatchNormalization(trainable=False))),
    ),
    "a frozen layer": row(EQUAL, lambda: network(layers.Dense(4, trainable=False))),
    "embedding": row(EQUAL, embedding, tokens()),
    "attention": row(
        *(EQUAL, attention, samples(4, 3, targets=(4, 1))),
        text=r"zero in theory\): \S*key/bias\.",
    ),
    "a transformer's block": row(EQUAL, transformer, samples(6, 8)),
    "two inputs": row(EQUAL, two_inputs, of_two_inputs),
    "sample weights": row(EQUAL, data=weighted),
    "all options": row(EQUAL, options=EVERYTHING, metrics=["mae"]),
    "a schedule of lengths": row(
        EQUAL, options={"accum_iters": accum.AccumulationSchedule({0: 1, 9: 3})}
    ),
    "windows of its own": row(EQUAL, options={"accum_iters": OWN}),
    "its own train step": row(
        *(EQUAL, OwnStep), options={"accum_iters": OWN, "reduction": "weighted"}, on_jax=False
    ),
    "no targets": row(EQUAL, lambda: network(zoo.Adds()), without_targets, lambda: None),
    "mixed_float16": row(EQUAL, lambda: network(dtype="mixed_float16"), text=IN_FLOAT32),
    "mixed_bfloat16": row(EQUAL, lambda: network(dtype="mixed_bfloat16"), text=IN_FLOAT32),
    "float16": row(EQUAL, lambda: network(dtype="float16")),
    "short": row(EQUAL, data=short),
    "short, its own step": row(EQUAL, lambda: zoo.network(cls=zoo.OwnStep), short),
    "short, its own loss": row(EQUAL, lambda: zoo.network(cls=zoo.OwnWords), short, lambda: None),
    "a sum of sums": row(EQUAL, loss=sums, options=SUM),
    "a mask": row(EQUAL, lambda: embedding(mask_zero=True), tokens()),
    "a mask, the mean": row(*(DIFFERS, lambda: embedding(mask_zero=True), tokens()), options=MEAN),
    "masks of one size, the mean": row(
        *(EQUAL, lambda: embedding(mask_zero=True), tokens(TOKENS)), options=MEAN
    ),
    "batch normalization": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), text=NORMALIZED
    ),
    "short, the mean": row(DIFFERS, data=short, options=MEAN, text=BY_DEFAULT),
    "an ignored class": row(EQUAL, data=classes, loss=ignore_class),
    "an ignored class, the mean": row(
        DIFFERS, data=classes, loss=ignore_class, options=MEAN, text=BY_DEFAULT
    ),
    "a sum": row(DIFFERS, options=SUM, text=BY_DEFAULT),
    "the mean of sums": row(DIFFERS, loss=sums, options=MEAN, text=BY_DEFAULT),
    "dropped": row(
        *(DIFFERS, network, large_first(1e4)),
        options={"skip_norm": 200.0},
        text="with skip_norm=None",
    ),
    "a layer that compares samples": row(DIFFERS, lambda: network(OfBatch()), text=NO_REMEDY),
    "an added sum": row(DIFFERS, lambda: network(zoo.Adds(total)), text=NO_REMEDY),
    "dropout": row(EQUAL, lambda: network(layers.Dropout(0.5)), text=OFF),
    "noise": row(EQUAL, lambda: network(layers.GaussianNoise(0.5)), text=OFF),
    "a loss that compares samples": row(DIFFERS, loss=lambda: root, text=BY_BATCH),
    "a small head with a mask": row(
        *(DIFFERS, two_heads, prices, lambda: {"price": "mse", "label": ignore_class()}),
        text="most in [^ ]*(label|dense).*divided by",
    ),
    "a small head that compares samples": row(
        *(DIFFERS, two_heads, scores, lambda: {"price": "mse", "label": root}),
    ),
    "a light head": row(
        *(DIFFERS, two_heads, prices, lambda: {"price": "mse", "label": ignore_class()}),
        text="divided by",
        loss_weights={"price": 1.0, "label": 1e-3},
    ),
    "two heads": row(EQUAL, two_heads, scores, text="8 of 8 variables"),
    "a small branch, batch normalization": row(
        DIFFERS, lambda: small_branch(layers.BatchNormalization), text=NORMALIZED
    ),
    "a small branch, layer normalization": row(
        EQUAL, lambda: small_branch(layers.LayerNormalization)
    ),
    "convolutions, mixed_float16": row(
        *(EQUAL, lambda: convolutions("mixed_float16"), samples(6, 6, 2)), text=IN_FLOAT32
    ),
    "long sums": row(EQUAL, long_sums, samples(64, 64, 3, targets=(64, 64, 4))),
    "neighbouring rows": row(EQUAL, loss=lambda: neighbours),
    "neighbouring rows, apart": row(
        DIFFERS, loss=lambda: of_next, options={"accum_iters": 4}, size=3
    ),
    "labels in one micro-batch": row(
        DIFFERS, data=one_has_all, loss=lambda: of_labelled, text=BY_BATCH
    ),
    "unequally many labels": row(DIFFERS, data=some_labels, loss=lambda: of_labelled),
    "outputs 1e11 times as large": row(EQUAL, dense, loss=lambda: weighted_outputs),
    "a running scale in a loss": row(DIFFERS, loss=Running, on_jax=False),
    "draws by itself": row(UNDECIDED, lambda: network(Draws()), text=RANDOM),
    "draws and drops": row(UNDECIDED, lambda: network(Draws(), layers.Dropout(0.5)), text=OFF),
    "a small head that draws": row(UNDECIDED, lambda: two_heads(draws=True), scores, text=RANDOM),
    "clipped by its own step": row(DIFFERS, clip(0.01), on_jax=False, text=CHANGED),
    "changed by its own step": row(
        *(DIFFERS, lambda: ChangesGradients(without_negative)), on_jax=False, text=CHANGED
    ),
    # Rounding is large.
    "an LSTM, weights times 4": row(ROUNDS, lambda: recurrent("LSTM", 4.0), samples(40, 3)),
    "a SimpleRNN by ones": row(ROUNDS, lambda: recurrent("SimpleRNN"), samples(40, 3), **BY_ONE),
    "ten layers by ones": row(ROUNDS, lambda: deep("tanh", 10), **BY_ONE),
    "at its optimum": row(ROUNDS, dense, prepare=near_optimum(0)),
}
if hasattr(layers, "SpectralNormalization"):
    ROWS["spectral normalization"] = row(
        *(DIFFERS, lambda: network(layers.SpectralNormalization(layers.Dense(4), name="keeps"))),
        text=MOVED,
    )
if hosts.IS_KERAS3:
    ROWS.update(
        {
            "divided by weights": row(EQUAL, data=weighted, loss=by_weights),
            "a contrastive loss": row(DIFFERS, loss=lambda: contrastive),
            "sums beside a penalty": row(
                *(DIFFERS, lambda: network(kernel_regularizer="l2")), loss=sums, text=IN_SLICES
            ),
            "slices": row(EQUAL, **slices()),
            "slices, the batch's loss": row(EQUAL, loss=lambda: root, **slices(loss="batch")),
            "slices, batch normalization": row(
                *(DIFFERS, lambda: network(layers.BatchNormalization())),
                text=NORMALIZED,
                **slices(),
            ),
        }
    )


def make(row, seed, **compile):
    """Return a row's compiled model, its samples, and further arguments of the comparison."""
    data, model = row.data(drawing(seed)), row.model()
    if row.prepare is not None:
        row.prepare(model, *data)
    optimizer = hosts.ours(row.optimizer, **row.options)
    model.compile(optimizer, row.loss(), **{**compile, **row.compile})
    callbacks = [make_one() for make_one in row.callbacks]
    return model, data, {"batch_size": row.size, "callbacks": callbacks}
