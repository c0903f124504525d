"""How often is the verdict of a comparison right? `python benchmarks/verdicts.py 30`.

Compares models that are equal to the big batch or differ from it by construction, each with the
seeds 0 to n - 1 for its samples and weights, and prints how often each verdict was given.
`--rows mask` keeps the rows with this text in their names. KERAS_BACKEND chooses the backend, by
default PyTorch, and PYTHONPATH the release.
"""

import argparse
import contextlib
import io
import os
import warnings
from collections import Counter

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers, ops

import keras_accum as accum

BACKEND = keras.backend.backend()
SIZE, LENGTH = 4, 3
SAMPLES = SIZE * LENGTH
LABELS = np.array([0, 1, -1, -1] + [0, 1, 1, 0] * 2)  # -1 is ignored
IS_FIRST = np.arange(SAMPLES)[:, None] < SIZE
TOKENS = np.array([[1, 2, 0, 0], [1, 1, 1, 0], [2, 2, 1, 1], [1, 0, 0, 0]] * LENGTH)
UNEVEN = np.where((np.arange(SAMPLES) // SIZE == 1)[:, None], 2, TOKENS)

# -- samples, each of a function that draws normal numbers of a shape ------------------------------


def pair(draw):
    return draw(SAMPLES, 3), draw(SAMPLES, 2)


def weighted(draw):
    return (*pair(draw), np.abs(draw(SAMPLES)))


def short(draw):
    return [array[:-2] for array in pair(draw)]


def samples(*shape, targets=(2,)):
    return lambda draw: (draw(SAMPLES, *shape), draw(SAMPLES, *targets))


def tokens(ids):
    return lambda draw: (ids, draw(SAMPLES, 4, 1))


def rare(draw):
    """Most ids are small, and most rows of the embedding don't occur."""
    ids = np.minimum(np.exp(np.abs(draw(SAMPLES, 8)) * 1.5), 99).astype(int)
    ids[:, 0] = 1
    ids[SIZE:, 5:] = 0
    return ids, draw(SAMPLES, 8, 1)


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


def centered(draw):
    """Targets with a mean of 0: the bias has a gradient of 0 if other weights are 0."""
    x, y = draw(SAMPLES, 3), draw(SAMPLES, 2) * 1e4
    return x, y - y.mean(0)


def one_has_all(draw):
    x, y = pair(draw)
    return x, np.where(IS_FIRST, y, 0)


def some_labels(draw):
    x, y = pair(draw)
    return x, np.where(LABELS[:, None] < 0, 0, y)


def alike(by):
    """Micro-batches with the same samples, but for this part of them."""

    def data(draw):
        x, y = (np.concatenate([draw(SIZE, width)] * LENGTH) for width in (3, 2))
        return x + draw(SAMPLES, 3) * np.float32(by), y

    return data


# -- models ----------------------------------------------------------------------------------------


def chain(shape, *found):
    return keras.Sequential([keras.Input(shape), *found])


def network(*between, **arguments):
    first = layers.Dense(4, activation="tanh", **arguments)
    return chain((3,), first, *between, layers.Dense(2, **arguments))


def dense(**arguments):
    return chain((3,), layers.Dense(2, **arguments))


def embedding(rows=3, steps=4, **arguments):
    return chain((steps,), layers.Embedding(rows, 2, **arguments), layers.Dense(1))


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


def two_heads():
    """With trunks of their own: the gradients of one are 1e5 times those of the other."""
    x, heads = keras.Input((3,)), {}
    for name, units in (("price", 1), ("label", 2)):
        heads[name] = layers.Dense(units, name=name)(layers.Dense(4, activation="tanh")(x))
    return keras.Model(x, heads)


def small_head_draws():
    x = keras.Input((3,))
    price = layers.Dense(1, name="price")(layers.Dense(4, activation="tanh")(x))
    drawn = Draws()(layers.Dense(4, activation="tanh")(x))
    return keras.Model(x, {"price": price, "label": layers.Dense(2, name="label")(drawn)})


def small_branch(normalization):
    """As in a layer scale: the gradients of a branch are small."""
    x = keras.Input((3,))
    trunk = layers.Dense(4, activation="tanh")(x)
    branch = normalization()(layers.Dense(4)(trunk))
    return keras.Model(x, layers.Dense(2)(layers.Add()([trunk, layers.Rescaling(1e-6)(branch)])))


def bias_before_normalization():
    """Each channel is normalized over its steps, so the bias before has no effect."""
    found = layers.Dense(4), layers.GroupNormalization(-1), layers.ReLU()
    return chain((6, 3), *found, layers.GlobalAveragePooling1D(), layers.Dense(2))


def deep(activation, depth, width=16):
    found = [layers.Dense(width, activation=activation) for _ in range(depth)]
    return chain((3,), *found, layers.Dense(2))


def recurrent(kind, scale=1.0):
    model = chain((40, 3), getattr(layers, kind)(8), layers.Dense(2))
    model.set_weights([weight * scale for weight in model.get_weights()])
    return model


def convolutions(policy):
    found = layers.Conv2D(4, 3, activation="relu", dtype=policy), layers.MaxPooling2D(2)
    return chain((6, 6, 2), *found, layers.Flatten(), layers.Dense(2, dtype=policy))


def near_optimum(away):
    """Least squares: the gradient is zero but for how far the weights are away."""

    def prepare(model, x, y):
        design = np.concatenate([x.astype("float64"), np.ones((SAMPLES, 1))], 1)
        found = np.linalg.lstsq(design, y.astype("float64"), rcond=None)[0]
        found += away * np.random.default_rng(0).normal(size=found.shape)
        model.set_weights([found[:3], found[3]])

    return prepare


def train(model, x, y):
    model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
    model.fit(x, y, batch_size=SAMPLES, epochs=100, verbose=0)


class OfBatch(layers.Layer):
    """Its output depends on other samples."""

    def call(self, x):
        return x - ops.mean(x, 0)


class Adds(layers.Layer):
    """Adds a loss: the squares' mean, or their sum."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def call(self, x):
        self.add_loss(self.reduce(x**2))
        return x


class Draws(layers.Layer):
    """Draws random numbers by itself."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(0)

    def call(self, x):
        return x + keras.random.normal((4,), seed=self.seed)


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


class StockStep(OwnStep):
    """A train step of one's own, as Keras's."""

    def train_step(self, *arguments):
        return keras.Model.train_step(self, *arguments)


class OwnLoss(OwnStep):
    """Its own `compute_loss` in Keras's train step."""

    train_step = keras.Model.train_step

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        return ops.mean((y - y_pred) ** 2)


class ChangesGradients(OwnStep):
    """Gives the optimizer a function of the gradients. Not on JAX, whose steps are others."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def train_step(self, *arguments):
        (x, y), *_ = arguments
        variables = self.trainable_variables
        if BACKEND == "torch":
            self.zero_grad()
            loss = ops.mean((self(x) - y) ** 2)
            loss.backward()
            gradients = [variable.value.grad for variable in variables]
        else:
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = ops.mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(self.change(gradients), variables))
        return {"loss": loss}


def norm(gradients):
    return sum(ops.sum(gradient**2) for gradient in gradients) ** 0.5


def clip(to):
    def change(gradients):
        scale = ops.minimum(1.0, to / norm(gradients))
        return [gradient * scale for gradient in gradients]

    return lambda: ChangesGradients(change)


def clip_softly(by):
    """Each gradient becomes smaller by up to this part, the more the larger it is."""

    def change(gradients):
        scale = 1 - by * norm(gradients) / (1 + norm(gradients))
        return [gradient * scale for gradient in gradients]

    return lambda: ChangesGradients(change)


def without_negative(gradients):
    return [ops.maximum(gradient, 0.0) for gradient in gradients]


# -- losses ----------------------------------------------------------------------------------------


def square(y_true, y_pred):
    return ops.mean((y_true - y_pred) ** 2)


def times(factor):
    return lambda y_true, y_pred: factor * (y_true - y_pred) ** 2


def root(y_true, y_pred):
    """As Dice with its default axis, this compares samples."""
    return square(y_true, y_pred) ** 0.5


def with_root(share):
    """A part of this size compares samples."""
    return lambda y_true, y_pred: square(y_true, y_pred) + share * root(y_true, y_pred)


def contrastive(y_true, y_pred):
    """Each sample's own target, among those of its batch."""
    scores = ops.matmul(y_pred, ops.transpose(y_true))
    return ops.mean(ops.logsumexp(scores, -1) - ops.diagonal(scores))


def neighbours(y_true, y_pred):
    """Compare each second sample with the one before."""
    return ops.mean(1 + ops.sum((y_pred[0::2] - y_pred[1::2]) ** 2, -1))


def of_next(y_true, y_pred):
    """Compare each sample with the next one."""
    return ops.mean(1 + ops.sum((y_pred[1:] - y_pred[:-1]) ** 2, -1))


def of_labelled(y_true, y_pred):
    """Divided by the number of labels."""
    has = ops.cast(y_true != 0, "float32")
    return ops.sum(has * (y_true - y_pred) ** 2) / ops.maximum(ops.sum(has), 1.0)


def weighted_outputs(y_true, y_pred):
    squares = (y_true - y_pred) ** 2
    return 1e11 * squares[:, 0] + squares[:, 1]


def beside_large(y_true, y_pred):
    """The second output's loss compares samples; the first's gradients are 1e11 times as large."""
    squares = (y_true - y_pred) ** 2
    return 1e11 * ops.mean(squares[:, 0]) + ops.mean(squares[:, 1]) ** 0.5


class Running(keras.losses.Loss):
    """Divided by a running scale, a variable in the loss."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False)

    def call(self, y_true, y_pred):
        self.scale.assign(0.9 * self.scale + 0.1 * ops.mean(y_true**2))
        return ops.mean((y_true - y_pred) ** 2, -1) / self.scale


def ignore_class():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def sums():
    return keras.losses.MeanSquaredError(reduction="sum")


def by_weights():
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


# -- rows ------------------------------------------------------------------------------------------

VERDICTS = EQUAL, DIFFERS, UNDECIDED = "equal", "differs", "undecided"
MEAN, SUM, STOCK, OWN = {"reduction": "mean"}, {"reduction": "sum"}, {"accum_iters": 1}, None
EVERYTHING = {"skip_nonfinite": True, "skip_norm": 1e9, "gate": "select"}
BY_ONE = {"options": {"accum_iters": SAMPLES}, "size": 1}


def slices(**arguments):
    callbacks = [lambda: accum.MicroBatches(SIZE, **arguments)]
    return {"options": STOCK, "callbacks": callbacks, "size": SAMPLES}


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
    **compile,
):
    """Return the verdicts that are right, functions that make the model, its samples and its loss,
    options of the optimizer, functions that make callbacks, the size of micro-batches, the name of
    the optimizer, a function of the model and its samples or None, True if JAX runs it, and
    arguments of `compile`."""
    right = (right,) if isinstance(right, str) else right
    options = {"learning_rate": 0.01, "accum_iters": LENGTH, **(options or {})}
    found = right, model, data, loss, options, callbacks, size, optimizer, prepare, on_jax
    return (*found, compile)


# Rounding may be as large as the gradient.
ROUNDS = EQUAL, UNDECIDED
ROWS = {
    "plain": row(EQUAL),
    "Adam, clipped": row(EQUAL, optimizer="Adam", options={"global_clipnorm": 0.1}),
    "RMSprop": row(EQUAL, optimizer="RMSprop"),
    "layer normalization": row(EQUAL, lambda: network(layers.LayerNormalization())),
    "relu, L2": row(EQUAL, lambda: network(layers.ReLU(), kernel_regularizer="l2")),
    "frozen batch normalization": row(
        *(EQUAL, lambda: network(layers.BatchNormalization(trainable=False))),
    ),
    "a frozen layer": row(EQUAL, lambda: network(layers.Dense(4, trainable=False))),
    "embedding": row(EQUAL, embedding, tokens(UNEVEN)),
    "attention": row(EQUAL, attention, samples(4, 3, targets=(4, 1))),
    "a transformer's block": row(EQUAL, transformer, samples(6, 8)),
    "two inputs": row(
        *(EQUAL, two_inputs),
        lambda draw: ({"a": draw(SAMPLES, 3), "b": draw(SAMPLES, 3)}, [draw(SAMPLES, 2)] * 2),
    ),
    "sample weights": row(EQUAL, data=weighted),
    "divided by weights": row(EQUAL, data=weighted, loss=by_weights),
    "all options": row(EQUAL, options=EVERYTHING, metrics=["mae"]),
    "a schedule of lengths": row(
        EQUAL, options={"accum_iters": accum.AccumulationSchedule({0: 1, 9: 3})}
    ),
    "windows of its own": row(EQUAL, options={"accum_iters": OWN}),
    "its own train step": row(
        *(EQUAL, OwnStep), options={"accum_iters": OWN, "reduction": "weighted"}, on_jax=False
    ),
    "no targets": row(
        *(EQUAL, lambda: network(Adds(ops.mean)), lambda draw: pair(draw)[:1], lambda: None)
    ),
    "mixed_float16": row(EQUAL, lambda: network(dtype="mixed_float16")),
    "mixed_bfloat16": row(EQUAL, lambda: network(dtype="mixed_bfloat16")),
    "float16": row(EQUAL, lambda: network(dtype="float16")),
    "short": row(EQUAL, data=short),
    "short, its own step": row(EQUAL, StockStep, short),
    "short, its own loss": row(EQUAL, OwnLoss, short, lambda: None),
    "a sum of sums": row(EQUAL, loss=sums, options=SUM),
    "a mask": row(EQUAL, lambda: embedding(mask_zero=True), tokens(UNEVEN)),
    "a mask, the mean": row(
        *(DIFFERS, lambda: embedding(mask_zero=True), tokens(UNEVEN)), options=MEAN
    ),
    "masks of one size, the mean": row(
        *(EQUAL, lambda: embedding(mask_zero=True), tokens(TOKENS)), options=MEAN
    ),
    "batch normalization": row(DIFFERS, lambda: network(layers.BatchNormalization())),
    "short, the mean": row(DIFFERS, data=short, options=MEAN),
    "an ignored class": row(EQUAL, data=classes, loss=ignore_class),
    "an ignored class, the mean": row(DIFFERS, data=classes, loss=ignore_class, options=MEAN),
    "a sum": row(DIFFERS, options=SUM),
    "the mean of sums": row(DIFFERS, loss=sums, options=MEAN),
    "dropped": row(DIFFERS, data=large_first(1e4), options={"skip_norm": 200.0}),
    "a layer that compares samples": row(DIFFERS, lambda: network(OfBatch())),
    "an added sum": row(DIFFERS, lambda: network(Adds(ops.sum))),
    "dropout": row(EQUAL, lambda: network(layers.Dropout(0.5))),
    "noise": row(EQUAL, lambda: network(layers.GaussianNoise(0.5))),
    "a loss that compares samples": row(DIFFERS, loss=lambda: root),
    "a contrastive loss": row(DIFFERS, loss=lambda: contrastive),
    "a small head with a mask": row(
        *(DIFFERS, two_heads, prices, lambda: {"price": "mse", "label": ignore_class()}),
    ),
    "a small head that compares samples": row(
        *(DIFFERS, two_heads, scores, lambda: {"price": "mse", "label": root}),
    ),
    "a light head": row(
        *(DIFFERS, two_heads, prices, lambda: {"price": "mse", "label": ignore_class()}),
        loss_weights={"price": 1.0, "label": 1e-3},
    ),
    "two heads": row(EQUAL, two_heads, scores),
    "a small branch, batch normalization": row(
        DIFFERS, lambda: small_branch(layers.BatchNormalization)
    ),
    "a small branch, layer normalization": row(
        EQUAL, lambda: small_branch(layers.LayerNormalization)
    ),
    "convolutions, mixed_float16": row(
        EQUAL, lambda: convolutions("mixed_float16"), samples(6, 6, 2)
    ),
    "long sums": row(
        *(EQUAL, lambda: chain((64, 64, 3), layers.Conv2D(4, 3, padding="same"))),
        samples(64, 64, 3, targets=(64, 64, 4)),
    ),
    "neighbouring rows": row(EQUAL, loss=lambda: neighbours),
    "neighbouring rows, apart": row(
        DIFFERS, loss=lambda: of_next, options={"accum_iters": 4}, size=3
    ),
    "labels in one micro-batch": row(DIFFERS, data=one_has_all, loss=lambda: of_labelled),
    "unequally many labels": row(DIFFERS, data=some_labels, loss=lambda: of_labelled),
    "outputs 1e11 times as large": row(EQUAL, dense, loss=lambda: weighted_outputs),
    "a running scale in a loss": row(DIFFERS, loss=Running, on_jax=False),
    "spectral normalization": row(
        DIFFERS, lambda: network(layers.SpectralNormalization(layers.Dense(4)))
    ),
    "draws by itself": row(UNDECIDED, lambda: network(Draws())),
    "draws and drops": row(UNDECIDED, lambda: network(Draws(), layers.Dropout(0.5))),
    "a small head that draws": row(UNDECIDED, small_head_draws, scores),
    "clipped by its own step": row(DIFFERS, clip(0.01), on_jax=False),
    "changed by its own step": row(
        DIFFERS, lambda: ChangesGradients(without_negative), on_jax=False
    ),
    "slices": row(EQUAL, **slices()),
    "slices, the batch's loss": row(EQUAL, loss=lambda: root, **slices(loss="batch")),
    "slices, batch normalization": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), **slices()
    ),
    "sums beside a penalty": row(DIFFERS, lambda: network(kernel_regularizer="l2"), loss=sums),
    # Rounding is large.
    "an LSTM, weights times 4": row(ROUNDS, lambda: recurrent("LSTM", 4.0), samples(40, 3)),
    "a SimpleRNN by ones": row(ROUNDS, lambda: recurrent("SimpleRNN"), samples(40, 3), **BY_ONE),
    "ten layers by ones": row(ROUNDS, lambda: deep("tanh", 10), **BY_ONE),
    "at its optimum": row(ROUNDS, dense, prepare=near_optimum(0)),
    # Rounding is larger than elsewhere, and the gradient larger still.
    "a GRU": row(EQUAL, lambda: recurrent("GRU"), samples(40, 3)),
    "ten relu layers": row(EQUAL, lambda: deep("relu", 10, 32)),
    "a trained network": row(EQUAL, prepare=train),
    "close to its optimum, 1e-2": row(EQUAL, dense, prepare=near_optimum(1e-2)),
    "a loss times 1e-4": row(EQUAL, loss=lambda: times(1e-4)),
    "a loss times 1e-12": row(EQUAL, loss=lambda: times(1e-12)),
    "a bias before a normalization": row(EQUAL, bias_before_normalization, samples(6, 3)),
    "a bias whose gradients cancel": row(
        *(EQUAL, lambda: dense(kernel_initializer="zeros"), centered)
    ),
    "rare rows": row(EQUAL, lambda: embedding(100, 8), rare),
    "rare rows, a mask": row(EQUAL, lambda: embedding(100, 8, mask_zero=True), rare),
    "targets 1e4 times as large in one micro-batch": row(EQUAL, data=large_first(1e4)),
    # The window differs by little.
    "rare rows, a mask, the mean": row(
        *(DIFFERS, lambda: embedding(100, 8, mask_zero=True), rare), options=MEAN
    ),
    "batch normalization, batches that differ by 1e-2": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), alike(1e-2)
    ),
    "batch normalization, batches that differ by 1e-3": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), alike(1e-3)
    ),
    "a part of 1e-2 compares samples": row(DIFFERS, loss=lambda: with_root(1e-2)),
    "a part of 1e-3 compares samples": row(DIFFERS, loss=lambda: with_root(1e-3)),
    "a part of 1e-4 compares samples": row(DIFFERS, loss=lambda: with_root(1e-4)),
    "clipped in one micro-batch": row(DIFFERS, clip(100.0), large_first(1e4), on_jax=False),
    "clipped softly, by 1e-2": row(DIFFERS, clip_softly(1e-2), on_jax=False),
    "clipped softly, by 1e-3": row(DIFFERS, clip_softly(1e-3), on_jax=False),
    # Not counted: the comparison judges a variable as a whole.
    "elements 1e11 times smaller compare samples": row(VERDICTS, dense, loss=lambda: beside_large),
}


def compare(name, seed):
    """Return the Comparison of a row."""
    _, build, data, loss, options, callbacks, size, optimizer, prepare, _, more = ROWS[name]
    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    found = data(lambda *shape: random.normal(size=shape).astype("float32"))
    model = build()
    if prepare is not None:
        prepare(model, *found)
    cls = getattr(accum, f"{optimizer}Accumulate")
    model.compile(cls(**options), loss(), jit_compile=BACKEND == "jax", **more)
    callbacks = [make() for make in callbacks]
    with contextlib.redirect_stdout(io.StringIO()):  # MicroBatches says how it computes the loss
        return accum.compare_with_big_batch(model, *found, batch_size=size, callbacks=callbacks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int, help="how many, from 0 on")
    parser.add_argument("--rows", default="", help="a text in the names of rows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"keras_accum {accum.__version__}, keras {keras.__version__}, {BACKEND}\n")
    print("| model | right | equal | differs | undecided | distance |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    false, due = Counter(), 0
    for name, (right, *_, on_jax, _) in ROWS.items():
        if given.rows not in name or (BACKEND == "jax" and not on_jax):
            continue
        keras.backend.clear_session()
        found = [compare(name, seed) for seed in range(given.seeds)]
        verdicts = Counter(each.verdict for each in found)
        false.update({v: count for v, count in verdicts.items() if v not in right})
        due += len(found)
        distances = [each.window for each in found]
        cells = " or ".join(right), *(verdicts[v] for v in VERDICTS)
        ends = f"{min(distances):.0e} to {max(distances):.0e}"
        print(f"| {name} | {' | '.join(map(str, cells))} | {ends} |", flush=True)
    counts = ", ".join(f'"{verdict}" {false[verdict]}' for verdict in VERDICTS)
    print(f"\nFalse, of {due}: {counts}.")


if __name__ == "__main__":
    main()
