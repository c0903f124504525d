"""Models for `compare_with_big_batch`, each with the verdict that is right and a text."""

import hosts
import numpy as np
from cases import skip_file_on_keras2
from hosts import keras

skip_file_on_keras2("compare_with_big_batch")

SIZE, LENGTH = 4, 3
layers, accum = keras.layers, hosts.accum
if hosts.IS_KERAS3:
    math = keras.ops
    mean, total, top = math.mean, math.sum, math.maximum
else:
    math = hosts.tf
    mean, total, top = math.reduce_mean, math.reduce_sum, math.maximum


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


SAMPLES = SIZE * LENGTH
X, Y, WEIGHTS = draw(SAMPLES, 3), draw(SAMPLES, 2), np.abs(draw(SAMPLES))
PAIR, SHORT = (X, Y), (X[:-2], Y[:-2])
LARGE = np.concatenate([Y[:SIZE] * 100, Y[SIZE:]])
TOKENS = np.array([[1, 2, 0, 0], [1, 1, 1, 0], [2, 2, 1, 1], [1, 0, 0, 0]] * LENGTH)
EVEN = TOKENS.copy()  # micro-batches have equally many tokens
TOKENS[SIZE : 2 * SIZE] = 2  # so that micro-batches differ
STEPS = TOKENS, draw(SAMPLES, 4, 1)
LABELS = np.array([0, 1, -1, -1] + [0, 1, 1, 0] * 2)
CLASSES = X, LABELS
PRICES = X, {"price": np.abs(Y[:, :1]) * 4e5, "label": LABELS}
SCORES = X, {"price": PRICES[1]["price"], "label": Y}
ONE_HAS_ALL = X, np.where(np.arange(SAMPLES)[:, None] < SIZE, Y, 0)
IMAGES = draw(SAMPLES, 6, 6, 2), Y
LARGE_IMAGES = draw(SAMPLES, 64, 64, 3), draw(SAMPLES, 64, 64, 4)
LONG = draw(SAMPLES, 80, 3), Y


def ours(optimizer="SGD", **options):
    return hosts.ours(optimizer, **{"learning_rate": 0.01, "accum_iters": LENGTH, **options})


def network(*between, **arguments):
    first = layers.Dense(4, activation="tanh", **arguments)
    return hosts.sequential((3,), [first, *between, layers.Dense(2, **arguments)])


def tokens(**arguments):
    return hosts.sequential((4,), [layers.Embedding(3, 2, **arguments), layers.Dense(1)])


def attention():
    x = keras.Input((4, 3))
    return keras.Model(x, layers.Dense(1)(layers.MultiHeadAttention(2, 2)(x, x)))


def dense(**arguments):
    return hosts.sequential((3,), [layers.Dense(2, **arguments)])


def of_added():
    return hosts.sequential((3,), [layers.Dense(4, activation="tanh"), layers.Dense(2), AddMean()])


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


def as_in_layer_scale():
    """A branch whose gradients are small."""
    x = keras.Input((3,))
    trunk = layers.Dense(4, activation="tanh")(x)
    branch = layers.BatchNormalization()(layers.Dense(4)(trunk))
    return keras.Model(x, layers.Dense(2)(layers.Add()([trunk, layers.Rescaling(1e-6)(branch)])))


def at_its_optimum():
    model = hosts.sequential((3,), [layers.Dense(2)])
    design = np.concatenate([X.astype("float64"), np.ones((SAMPLES, 1))], 1)
    found = np.linalg.lstsq(design, Y.astype("float64"), rcond=None)[0]
    model.set_weights([found[:3], found[3]])
    return model


def deep():
    return hosts.sequential((3,), [layers.Dense(16, activation="tanh") for _ in range(10)])


def long_sums():
    return hosts.sequential((64, 64, 3), [layers.Conv2D(4, 3, padding="same")])


def recurrent(kind, scale):
    def model():
        first = layers.Input((80, 3)) if hosts.IS_KERAS3 else keras.Input((80, 3))
        built = keras.Sequential([first, getattr(layers, kind)(8), layers.Dense(2)])
        built.set_weights([weight * scale for weight in built.get_weights()])
        return built

    return model


def convolutions(policy):
    def model():
        found = [layers.Conv2D(4, 3, activation="relu", dtype=policy), layers.Flatten()]
        return hosts.sequential((6, 6, 2), [*found, layers.Dense(2, dtype=policy)])

    return model


class OfBatch(layers.Layer):
    """Its output depends on other samples, and it keeps nothing."""

    def call(self, x):
        return x - mean(x, 0)


class AddSum(layers.Layer):
    def call(self, x):
        self.add_loss(total(x**2))
        return x


class AddMean(layers.Layer):
    def call(self, x):
        self.add_loss(mean(x**2))
        return x


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


class StockStep(OwnStep):
    """A train step of one's own, as Keras's."""

    def train_step(self, *arguments):
        return keras.Model.train_step(self, *arguments)


class OwnLoss(OwnStep):
    """Its own `compute_loss`, which Keras can't say the divisor of, in Keras's train step."""

    train_step = keras.Model.train_step

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        return mean((y - y_pred) ** 2)


class ChangesGradients(OwnStep):
    """Gives the optimizer a function of the gradients."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def train_step(self, *arguments):
        (x, y), *_ = arguments
        variables = self.trainable_variables
        if hosts.IS_TORCH:
            self.zero_grad()
            loss = mean((self(x) - y) ** 2)
            loss.backward()
            gradients = [variable.value.grad for variable in variables]
        else:
            with hosts.tf.GradientTape() as tape:
                loss = mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(self.change(gradients), variables))
        return {"loss": loss}


def clip(gradients):
    norm = sum(total(gradient**2) for gradient in gradients) ** 0.5
    return [gradient * 0.25 / norm for gradient in gradients]


def without_negative(gradients):
    return [top(gradient, gradient * 0) for gradient in gradients]


def weighted_outputs(y_true, y_pred):
    squares = (y_true - y_pred) ** 2
    return 1e11 * squares[:, 0] + squares[:, 1]


def root(y_true, y_pred):
    """As Dice with its default axis, this compares samples."""
    return mean((y_true - y_pred) ** 2) ** 0.5


def root_in_part(y_true, y_pred):
    """The window differs by 8e-6 if the weights are 1."""
    return mean((y_true - y_pred) ** 2) + 5e-5 * root(y_true, y_pred)


def neighbours(y_true, y_pred):
    """Compare each second sample with the one before."""
    return mean(top(0.0, 1 + total((y_pred[0::2] - y_pred[1::2]) ** 2, -1)))


def of_next(y_true, y_pred):
    """Compare each sample with the next one."""
    return mean(top(0.0, 1 + total((y_pred[1:] - y_pred[:-1]) ** 2, -1)))


def of_labelled(y_true, y_pred):
    """Divided by the number of labels."""
    has = math.cast(y_true != 0, "float32")
    return total(has * (y_true - y_pred) ** 2) / top(total(has), 1.0)


def of_some(y_true, y_pred):
    """The same, NaN without a label."""
    has = math.cast(y_true != 0, "float32")
    return total(has * (y_true - y_pred) ** 2) / total(has)


class Running(keras.losses.Loss):
    """Divided by a running scale, a variable in the loss."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False) if hosts.IS_KERAS3 else math.Variable(1.0)

    def call(self, y_true, y_pred):
        self.scale.assign(0.9 * self.scale + 0.1 * mean(y_true**2))
        return mean((y_true - y_pred) ** 2, -1) / self.scale


def mixed(policy):
    def model():
        return network(dtype=policy)

    return model


def ignore_class():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def ignoring():
    return {"loss": ignore_class()}


def sums():
    return {"loss": keras.losses.MeanSquaredError(reduction="sum")}


NORMALIZED = "Layers keep values from one call to the next.*: batch_norm"
BY_DEFAULT = r"It is equal \(\S+\) with reduction='auto'\."
IN_SLICES = r"It is equal \(\S+\) with MicroBatches\(4\)"
NO_REMEDY = "None of these makes it equal: reduction='mean'; reduction='sum'"
# Elsewhere no remedy makes it equal, and the warning of `fit` says why.
BY_BATCH = IN_SLICES if hosts.IS_KERAS3 else "it returns one number.*On Keras 3, `MicroBatches"
MOVED = "Layers keep values from one call to the next.*: keeps"
RANDOM = "the model draws random numbers"
IN_FLOAT32 = "Computed in float32"
OFF = r"were off \(rate 0\)"
ALL = "Compared: the gradients of one window of 12 samples, 4 of 4 variables"
EVERYTHING = {"skip_nonfinite": True, "skip_norm": 1e9, "gate": "select"}
IN_HALVES = {"accum_iters": accum.AccumulationSchedule({0: 1, 9: 3})}
NEVER_DIFFERS = "equal", "undecided"


def row(
    verdict,
    text,
    model=network,
    data=PAIR,
    options=None,
    more=dict,
    callbacks=list,
    size=SIZE,
    **compile,
):
    """Return the verdict, or verdicts that are right; a text in what is printed, the model, its
    data, options of the optimizer, losses, callbacks, the size of micro-batches, and arguments of
    `compile`."""
    verdicts = (verdict,) if isinstance(verdict, str) else verdict
    return verdicts, text, model, data, options or {}, more, callbacks, size, compile


MEAN = {"reduction": "mean"}
ONE = {"options": {"accum_iters": SAMPLES}, "size": 1}  # micro-batches of one sample
ROWS = {
    "plain": row("equal", ALL),
    "layer normalization": row("equal", "", lambda: network(layers.LayerNormalization())),
    "relu, L2, constraint": row(
        *("equal", "", lambda: network(layers.ReLU(), kernel_regularizer="l2")),
    ),
    "frozen batch normalization": row(
        *("equal", "", lambda: network(layers.BatchNormalization(trainable=False))),
    ),
    "embedding": row("equal", "", tokens, STEPS),
    "attention": row(
        *("equal", r"zero in theory\): \S*key/bias\.", attention),
        (draw(SAMPLES, 4, 3), draw(SAMPLES, 4, 1)),
    ),
    "two inputs": row("equal", "", two_inputs, ({"a": X, "b": X}, [Y, Y])),
    "sample weights": row("equal", "", data=(X, Y, WEIGHTS)),
    "all options": row("equal", "", options=EVERYTHING, metrics=["mae"]),
    "a schedule of lengths": row("equal", "", options=IN_HALVES),
    "windows of its own": row("equal", "", options={"accum_iters": None}),
    "its own train step": row(
        *("equal", "", OwnStep, PAIR, {"accum_iters": None, "reduction": "weighted"})
    ),
    "no targets": row("equal", "", of_added, (X,), more=lambda: {"loss": None}),
    "float16": row("equal", IN_FLOAT32, mixed("mixed_float16")),
    "bfloat16": row("equal", IN_FLOAT32, mixed("mixed_bfloat16")),
    "float16 alone": row("equal", "", mixed("float16")),
    "short": row("equal", "", data=SHORT),
    "a sum of sums": row("equal", "", options={"reduction": "sum"}, more=sums),
    "our callbacks": row("equal", "", callbacks=lambda: [accum.ApplyPartialWindow()]),
    "batch normalization": row("differs", NORMALIZED, lambda: network(layers.BatchNormalization())),
    "a mask": row("equal", "", lambda: tokens(mask_zero=True), STEPS),
    "short, the mean": row("differs", BY_DEFAULT, data=SHORT, options=MEAN),
    "an ignored class": row("differs", BY_DEFAULT, data=CLASSES, more=ignoring, options=MEAN),
    "a sum": row("differs", BY_DEFAULT, options={"reduction": "sum"}),
    "the mean of sums": row("differs", BY_DEFAULT, more=sums, options=MEAN),
    "dropped": row("differs", "with skip_norm=None", data=(X, LARGE), options={"skip_norm": 50.0}),
    "a layer that compares samples": row("differs", NO_REMEDY, lambda: network(OfBatch())),
    "an added sum": row("differs", NO_REMEDY, lambda: network(AddSum())),
    "dropout": row("equal", OFF, lambda: network(layers.Dropout(0.5))),
    "noise": row("equal", OFF, lambda: network(layers.GaussianNoise(0.5))),
    "a loss that compares samples": row("differs", BY_BATCH, more=lambda: {"loss": root}),
}
# An adversary's, each of which had a wrong verdict or a wrong advice.
ROWS.update(
    {
        "a small head with a mask": row(
            *("differs", "most in [^ ]*(label|dense).*divided by", two_heads, PRICES),
            more=lambda: {"loss": {"price": "mse", "label": ignore_class()}},
        ),
        "a small head that compares samples": row(
            *("differs", "", two_heads, SCORES),
            more=lambda: {"loss": {"price": "mse", "label": root}},
        ),
        "a light head": row(
            *("differs", "divided by", two_heads, PRICES),
            more=lambda: {"loss": {"price": "mse", "label": ignore_class()}},
            loss_weights={"price": 1.0, "label": 1e-3},
        ),
        "a small branch": row("differs", NORMALIZED, as_in_layer_scale),
        "two heads": row(
            *("equal", "8 of 8 variables", two_heads, SCORES), more=lambda: {"loss": "mse"}
        ),
        "masks of one size": row(
            *("equal", "", lambda: tokens(mask_zero=True), (EVEN, STEPS[1]), MEAN)
        ),
        "large LSTM": row(NEVER_DIFFERS, "", recurrent("LSTM", 4.0), LONG, run_eagerly=False),
        "recurrent, one by one": row(
            NEVER_DIFFERS, "", recurrent("SimpleRNN", 1.0), LONG, **ONE, run_eagerly=False
        ),
        "ten layers, one by one": row(
            NEVER_DIFFERS, "", deep, (X, draw(SAMPLES, 16)), **ONE, run_eagerly=False
        ),
        "bfloat16 convolutions": row(
            *("equal", IN_FLOAT32, convolutions("mixed_bfloat16"), IMAGES)
        ),
        "float16 convolutions": row(*("equal", IN_FLOAT32, convolutions("mixed_float16"), IMAGES)),
        "long sums": row("equal", "", long_sums, LARGE_IMAGES),
        "neighbouring rows, apart": row(
            *("differs", "", network, PAIR, {"accum_iters": 4}),
            more=lambda: {"loss": of_next},
            size=3,
        ),
        "neighbouring rows": row("equal", "", more=lambda: {"loss": neighbours}),
        "at its optimum": row("undecided", "Rounding is large", at_its_optimum),
        "draws by itself": row("undecided", RANDOM, lambda: network(Draws())),
        "a part of a loss that compares samples": row(
            *("differs", "", lambda: dense(kernel_initializer="ones")),
            more=lambda: {"loss": root_in_part},
        ),
        "draws and drops": row(
            *("undecided", OFF, lambda: network(Draws(), layers.Dropout(0.5))),
        ),
        "short, its own step": row("equal", "", StockStep, SHORT),
        "labels in one micro-batch": row(
            *("differs", BY_BATCH, network, ONE_HAS_ALL), more=lambda: {"loss": of_labelled}
        ),
        "small elements that are equal": row(
            "equal", "", dense, more=lambda: {"loss": weighted_outputs}
        ),
        "short, its own loss": row("equal", "", OwnLoss, SHORT, more=lambda: {"loss": None}),
        "short, added losses alone": row(
            *("equal", "", of_added, SHORT[:1]), more=lambda: {"loss": None}
        ),
        "parts without labels": row(
            *("differs", BY_BATCH, network, (X, np.where(LABELS[:, None] < 0, 0, Y))),
            more=lambda: {"loss": of_some},
        ),
        "a running scale in a loss": row("differs", "", more=lambda: {"loss": Running()}),
    }
)
if hosts.BACKEND != "jax":
    CHANGED = "None of these.*global_clipnorm` or `window_transforms` instead"
    ROWS["clipped by its own step"] = row("differs", CHANGED, lambda: ChangesGradients(clip))
    ROWS["changed by its own step"] = row(
        "differs", CHANGED, lambda: ChangesGradients(without_negative)
    )
if hasattr(layers, "SpectralNormalization"):
    ROWS["a layer that keeps something"] = row(
        *("differs", MOVED),
        lambda: network(layers.SpectralNormalization(layers.Dense(4), name="keeps")),
    )
if hosts.IS_KERAS3:

    def by_weights():
        return {"loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")}

    def slices(**arguments):
        return {"callbacks": lambda: [accum.MicroBatches(SIZE, **arguments)], "size": SAMPLES}

    STOCK = {"accum_iters": 1}
    ROWS.update(
        {
            "divided by weights": row("equal", "", data=(X, Y, WEIGHTS), more=by_weights),
            "a sum beside a penalty": row(
                "differs", IN_SLICES, lambda: network(kernel_regularizer="l2"), more=sums
            ),
            "a small head that draws": row(
                *("undecided", RANDOM, small_head_draws, SCORES), more=lambda: {"loss": "mse"}
            ),
            "slices": row("equal", "", options=STOCK, **slices()),
            "slices, the batch's loss": row(
                *("equal", "", network, PAIR, STOCK, lambda: {"loss": root}),
                **slices(loss="batch"),
            ),
            "batch normalization in slices": row(
                *("differs", NORMALIZED, lambda: network(layers.BatchNormalization())),
                *(PAIR, STOCK),
                **slices(),
            ),
        }
    )
