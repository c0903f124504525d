"""`compare_with_big_batch`: its verdict, that nothing has moved afterwards, and what it refuses."""

import random
import re

import hosts
import numpy as np
import pytest
from cases import once_by_torch, skip_file_on_keras2, thorough
from hosts import keras

skip_file_on_keras2("compare_with_big_batch")
pytestmark = pytest.mark.usefixtures("float32")

SIZE, LENGTH = 4, 3
layers, accum = keras.layers, hosts.accum
math = keras.ops if hosts.IS_KERAS3 else hosts.tf
mean = math.mean if hosts.IS_KERAS3 else hosts.tf.reduce_mean
total = math.sum if hosts.IS_KERAS3 else hosts.tf.reduce_sum


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


SAMPLES = SIZE * LENGTH
X, Y, WEIGHTS = draw(SAMPLES, 3), draw(SAMPLES, 2), np.abs(draw(SAMPLES))
PAIR, SHORT = (X, Y), (X[:-2], Y[:-2])
LARGE = np.concatenate([Y[:SIZE] * 100, Y[SIZE:]])
TOKENS = np.array([[1, 2, 0, 0], [1, 1, 1, 0], [2, 2, 1, 1], [1, 0, 0, 0]] * LENGTH)
TOKENS[SIZE : 2 * SIZE] = 2  # so that micro-batches differ
STEPS = TOKENS, draw(SAMPLES, 4, 1)
CLASSES = X, np.array([0, 1, -1, -1] + [0, 1, 1, 0] * 2)


def ours(**options):
    return hosts.ours("SGD", **{"learning_rate": 0.01, "accum_iters": LENGTH, **options})


def network(*between, **arguments):
    first = layers.Dense(4, activation="tanh", **arguments)
    return hosts.sequential((3,), [first, *between, layers.Dense(2)])


def tokens(**arguments):
    return hosts.sequential((4,), [layers.Embedding(3, 2, **arguments), layers.Dense(1)])


def attention():
    x = keras.Input((4, 3))
    return keras.Model(x, layers.Dense(1)(layers.MultiHeadAttention(2, 2)(x, x)))


def two_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    return keras.Model({"a": a, "b": b}, [layers.Dense(2)(a), layers.Dense(2)(b)])


class OfBatch(layers.Layer):
    """Its output depends on other samples, and it keeps nothing."""

    def call(self, x):
        return x - mean(x, 0)


class AddSum(layers.Layer):
    def call(self, x):
        self.add_loss(total(x**2))
        return x


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


def root(y_true, y_pred):
    """As Dice with its default axis, this compares samples."""
    return mean((y_true - y_pred) ** 2) ** 0.5


def mixed(policy):
    def model():
        return network(dtype=policy)

    return model


def ignoring():
    ignored = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    return {"loss": ignored}


def sums():
    return {"loss": keras.losses.MeanSquaredError(reduction="sum")}


NORMALIZED = r"Batch normalization trains in batch_norm"
WEIGHTED = r"It is equal \(\S+\) with reduction='weighted'"
SUMMED = r"It is equal \(\S+\) with reduction='sum'"
OF_BATCH = r"It is equal \(\S+\) with MicroBatches\(4, loss='batch'\)"
NO_REMEDY = "No option of this package makes it equal"
MOVED = "Layers keep values from one call to the next.*: keeps"
RANDOM = "the model draws random numbers"
HALF = "In half precision"
EVERYTHING = {"skip_nonfinite": True, "skip_norm": 1e9, "gate": "select"}
IN_HALVES = {"accum_iters": accum.AccumulationSchedule({0: 1, 9: 3})}


def row(verdict, text, model=network, data=PAIR, options=None, more=None, callbacks=(), **compile):
    return verdict, text, model, data, options or {}, more or dict, callbacks, compile


# The verdict, a text in what is printed, the model, its data, options of the optimizer, the loss,
# callbacks, and arguments of `compile`.
ROWS = {
    "plain": row("equal", ""),
    "layer normalization": row("equal", "", lambda: network(layers.LayerNormalization())),
    "relu, L2, constraint": row(
        *("equal", "", lambda: network(layers.ReLU(), kernel_regularizer="l2")),
    ),
    "frozen batch normalization": row(
        *("equal", "", lambda: network(layers.BatchNormalization(trainable=False))),
    ),
    "embedding": row("equal", "", tokens, STEPS),
    "attention": row("equal", "", attention, (draw(SAMPLES, 4, 3), draw(SAMPLES, 4, 1))),
    "two inputs": row("equal", "", two_inputs, ({"a": X, "b": X}, [Y, Y])),
    "sample weights": row("equal", "", data=(X, Y, WEIGHTS)),
    "all options": row("equal", "", options=EVERYTHING, metrics=["mae"]),
    "a schedule of lengths": row("equal", "", options=IN_HALVES),
    "windows of its own": row("equal", "", options={"accum_iters": None}),
    "its own train step": row(
        *("equal", "", OwnStep, PAIR, {"accum_iters": None, "reduction": "weighted"})
    ),
    "float16": row("equal", HALF, mixed("mixed_float16")),
    "bfloat16": row("equal", HALF, mixed("mixed_bfloat16")),
    "short, weighted": row("equal", "", data=SHORT, options={"reduction": "weighted"}),
    "a sum of sums": row("equal", "", options={"reduction": "sum"}, more=sums),
    "our callbacks": row(
        *("equal", "", network, PAIR, {}, None),
        callbacks=lambda: [accum.ApplyPartialWindow(), accum.AccumulationMonitor()],
    ),
    "batch normalization": row("differs", NORMALIZED, lambda: network(layers.BatchNormalization())),
    "short": row("differs", WEIGHTED, data=SHORT),
    "a mask": row("differs", WEIGHTED, lambda: tokens(mask_zero=True), STEPS),
    "an ignored class": row("differs", WEIGHTED, data=CLASSES, more=ignoring),
    "a sum": row("differs", "with reduction='mean'", options={"reduction": "sum"}),
    "the mean of sums": row("differs", SUMMED, more=sums),
    "dropped": row("differs", "without `skip_norm`", data=(X, LARGE), options={"skip_norm": 50.0}),
    "a layer that compares samples": row("differs", NO_REMEDY, lambda: network(OfBatch())),
    "an added sum": row("differs", NO_REMEDY, lambda: network(AddSum())),
    "dropout": row("undecided", RANDOM, lambda: network(layers.Dropout(0.5))),
    "noise": row("undecided", RANDOM, lambda: network(layers.GaussianNoise(0.5))),
    "a loss that compares samples": row(
        "differs", OF_BATCH if hosts.IS_KERAS3 else NO_REMEDY, more=lambda: {"loss": root}
    ),
}
if hasattr(layers, "SpectralNormalization"):
    ROWS["a layer that keeps something"] = row(
        *("differs", MOVED),
        lambda: network(layers.SpectralNormalization(layers.Dense(4), name="keeps")),
    )
if hosts.IS_KERAS3:

    def by_weights():
        return {"loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")}

    def slices(size=SIZE, **arguments):
        return {"callbacks": lambda: [accum.MicroBatches(size, **arguments)]}

    STOCK = {"accum_iters": 1}
    ROWS |= {
        "divided by weights": row("differs", WEIGHTED, data=(X, Y, WEIGHTS), more=by_weights),
        "slices": row("equal", "", options=STOCK, **slices()),
        "slices of a window": row("equal", "", **slices(2)),
        "slices, the batch's loss": row(
            *("equal", "", network, PAIR, STOCK, lambda: {"loss": root}), **slices(loss="batch")
        ),
        "batch normalization in slices": row(
            *("differs", NORMALIZED, lambda: network(layers.BatchNormalization()), PAIR, STOCK),
            **slices(),
        ),
    }


def compare(model, data=PAIR, batch_size=SIZE, **arguments):
    return accum.compare_with_big_batch(model, *data, batch_size=batch_size, **arguments)


def compare_row(name):
    _, _, build, data, options, more, callbacks, compile = ROWS[name]
    callbacks = callbacks() if callbacks else []
    # With slices, `fit` has whole batches.
    size = SAMPLES if options == {"accum_iters": 1} else SIZE
    arguments = {"loss": "mse", "run_eagerly": True, **more(), **compile}
    model = build()
    model.compile(ours(**options), **arguments)
    return compare(model, data, size, callbacks=callbacks)


# The kinds run everywhere. On JAX, where compiling is slow, the last ones are left to the others.
KINDS = "plain", "batch normalization", "short", "dropout"
NOT_ON_JAX = (
    *("two inputs", "sample weights", "a schedule of lengths", "short, weighted", "a sum of sums"),
    *("bfloat16", "embedding", "slices of a window", "an added sum", "noise", "our callbacks"),
)
not_on_jax = pytest.mark.once_by("tensorflow", "torch")


def mark(name):
    if name in NOT_ON_JAX:
        return thorough, not_on_jax
    return () if name in KINDS else thorough


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark(name)) for name in ROWS])
def test_verdict(name):
    found, (verdict, text, *_) = compare_row(name), ROWS[name]
    assert found.verdict == verdict, str(found)
    assert str(found).startswith(f"{verdict}: ") and re.search(text, str(found), re.S), str(found)
    assert ("\n" in str(found)) == (verdict != "equal" or text == HALF)
    squares = np.sum([np.square(each[1:]) for each in found.by_variable], axis=0)
    np.testing.assert_allclose(np.sqrt(squares), [found.window, found.control])
    assert found.by_variable == sorted(found.by_variable, key=lambda each: -each.distance)


@thorough
def test_rounding_of_a_gradient_that_is_zero_in_theory_does_not_count():
    """As of the bias of attention's keys, which Adam would amplify."""
    found = compare_row("attention")
    (bias,) = [each for each in found.by_variable if each.name.endswith("key/bias")]
    assert found.verdict == "equal" and bias.distance < 1e-6


def values(model):
    """Everything that a comparison may not move: arrays, and the objects in the model."""
    owners = [model, model.optimizer, *model.metrics]
    found = [v() if callable(v) else v for v in (owner.variables for owner in owners)]
    arrays = [np.array(hosts.array(variable)) for variables in found for variable in variables]
    state = np.random.get_state()
    arrays += [state[1], np.array(state[2]), np.array(random.getstate()[1])]
    if hosts.IS_TORCH:
        import torch

        arrays.append(torch.get_rng_state().numpy().copy())
    return arrays, dict(vars(model))


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


def fitted(is_eager=True, epochs=1):
    """A model with states of all kinds, in a window that is open."""
    model = network(layers.BatchNormalization(), layers.Dropout(0.5))
    model.compile(hosts.ours("Adam", accum_iters=LENGTH), "mse", metrics=["mae"])
    model.run_eagerly = is_eager
    if epochs:
        model.fit(X[:SIZE], Y[:SIZE], batch_size=SIZE, epochs=epochs, verbose=0)
    return model


@pytest.mark.parametrize("is_interrupted", [pytest.param(False, marks=thorough), True])
@pytest.mark.parametrize("epochs", [pytest.param(0, marks=thorough), LENGTH + 1])
def test_nothing_moves(epochs, is_interrupted):
    model = fitted(epochs=epochs)
    arrays, objects = values(model)
    if is_interrupted:
        with pytest.raises(KeyboardInterrupt):
            compare(model, callbacks=[Interrupt()])
    else:
        assert compare(model).verdict == "undecided"
    found, now = values(model)
    assert len(found) == len(arrays) and now.keys() == objects.keys()
    assert all(now[name] is objects[name] for name in now)
    for array, before in zip(found, arrays):
        np.testing.assert_array_equal(array, before)


@thorough
@pytest.mark.parametrize(
    "compares", [compare, lambda model: compare(model, callbacks=[Interrupt()])]
)
def test_a_training_after_it_is_the_same(compares):
    """Traced, with another order of the samples and dropout."""

    def train(before):
        keras.utils.set_random_seed(0)  # TensorFlow's, too
        model = fitted(is_eager=False, epochs=0)
        try:
            before(model)
        except KeyboardInterrupt:
            pass
        model.fit(X, Y, batch_size=SIZE, verbose=0, epochs=2)
        return values(model)[0]

    for array, expected in zip(train(compares), train(lambda model: None)):
        np.testing.assert_array_equal(array, expected)


def test_a_model_without_weights_is_built():
    model = keras.Sequential([layers.Dense(2)])
    model.compile(ours(), "mse", run_eagerly=True)
    assert compare(model).verdict == "equal" and model.built


@thorough
def test_traced():
    """Several steps in one call, and a callback that changes the train function."""
    model = network()
    steps = {} if hosts.IS_TORCH else {"steps_per_execution": 2}
    model.compile(ours(), "mse", **steps)
    assert compare(model).verdict == "equal"
    model.compile(ours(), "mse")
    assert compare(model, callbacks=[accum.PythonGate()]).verdict == "equal"


@thorough
def test_half_precision_with_a_loss_scale_that_overflows():
    model = mixed("mixed_float16")()
    model.compile(ours(), "mse", run_eagerly=True)
    found = compare(model, (X, Y * 3000))
    assert found.verdict == "equal" and HALF in str(found)


@thorough
def test_other_optimizers_of_the_model_are_put_back():
    class Two(OwnStep):
        def train_step(self, *arguments):
            self.other.iterations.assign_add(1)
            return keras.Model.train_step(self, *arguments)

    model = Two()
    model(X)
    model.other = hosts.stock("SGD", learning_rate=0.5)
    model.other.build(model.trainable_variables) if hosts.HAS_EMA else model.other.iterations
    model.compile(ours(), "mse", run_eagerly=True)
    if not hosts.IS_KERAS3 or hosts.BACKEND != "jax":  # whose steps write their own state only
        assert compare(model).verdict == "equal"
        assert int(hosts.array(model.other.iterations)) == 0


def frozen():
    model = network()
    model.trainable = False
    return model


class Twice(OwnStep):
    def train_step(self, *arguments):
        self.optimizer.close_window(True)
        return keras.Model.train_step(self, *arguments)


NO_END = {"accum_iters": None}
SAME = X * 0, Y * 0
# What the message says, the model, options, data, and arguments.
BAD = {
    "one sample too many": ("exactly one window: 7 to 9", network, {}, PAIR, {"batch_size": 3}),
    "too few": ("exactly one window: 9 to 12,.*Received: 8 samples", network, {}, (X[:8], Y[:8])),
    "no batch size": ("`batch_size` must be", network, {}, PAIR, {"batch_size": 0}),
    "lengths": ("equally many samples", network, {}, (X, Y[:5])),
    "a list of numbers": ("`x` must be an array", network, {}, (X.tolist(), Y)),
    "a dataset": ("unbatch", network, {}, (iter([PAIR]),)),
    "no targets as arrays": ("`y` must be an array", network, {}, (X, "y")),
    "no windows": (
        "These samples are one micro-batch",
        network,
        {"accum_iters": 1},
        (X[:4], Y[:4]),
    ),
    "frozen": ("no weights to train", frozen, {}, PAIR),
    "not finite": ("gradient of the window is not finite", network, {}, (X * np.inf, Y)),
    "zero": ("gradient of the big batch is zero", lambda: network(use_bias=False), {}, SAME),
    "all dropped": ("All micro-batches were dropped", network, {"skip_norm": 1e-9}, PAIR),
    "several updates": ("one update, but `train_step` made 3", Twice, NO_END, PAIR),
}


@once_by_torch
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    text, build, options, data, *more = BAD[name]
    model = build()
    model.compile(ours(**options), "mse", run_eagerly=True)
    with pytest.raises(ValueError, match=text):
        compare(model, data, **{"batch_size": SIZE, **dict(*more)})


@once_by_torch
def test_models_that_are_refused():
    model = network()
    with pytest.raises(ValueError, match="must be compiled: call"):
        compare(model)
    model.compile(hosts.stock("SGD"), "mse")
    with pytest.raises(ValueError, match="with one optimizer of keras_accum"):
        compare(model)


# Rows by the number of their cause in the page. The others compare trainings, where a window of
# their model is equal.
CAUSES = {
    1: ["plain"],
    2: ["a mask", "short", "an ignored class"],
    3: ["batch normalization"],
    4: ["dropout", "noise"],
    5: ["all options"],
    6: ["relu, L2, constraint"],
    7: ["plain"],
    8: ["float16", "bfloat16"],
    9: ["a loss that compares samples"] if hosts.IS_KERAS3 else [],
    10: ["a layer that compares samples", *(name for name in ROWS if name.endswith("something"))],
    11: ["attention"],
    12: ["embedding"],
    13: ["plain"],
}


def test_what_the_page_says():
    """The page's table has a column with what is printed for each cause."""
    page = (hosts.PROJECT / "docs/why_different.md").read_text("utf-8")
    found = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|", page, re.M)
    assert [int(number) for number, _ in found] == list(CAUSES)
    for number, cell in found:
        verdict, *texts = re.findall("`(.+?)`", cell)
        for name in CAUSES[int(number)]:
            expected, said, *_ = ROWS[name]
            assert verdict == expected, name
            # `test_verdict` finds this text in what is printed.
            is_said = any(text in said.replace("\\", "") for text in texts)
            assert is_said or not texts, (name, texts)
