"""`compare_with_big_batch`: its verdict, that nothing has moved afterwards, and what it refuses."""

import random
import re
from collections import namedtuple

import compared
import hosts
import numpy as np
import pytest
import zoo
from cases import once_by_torch, own_code, thorough
from compared import (
    BY_BATCH,
    DIFFERS,
    EQUAL,
    LENGTH,
    SIZE,
    OwnStep,
    Running,
    accum,
    drawing,
    embedding,
    layers,
    make,
    math,
    network,
    row,
    short,
    tokens,
    with_root,
)
from hosts import keras
from zoo import Halves

if hosts.BACKEND == "jax":
    import jax

pytestmark = pytest.mark.usefixtures("float32")


X, Y = PAIR = compared.pair(drawing(0))


def ours(optimizer="SGD", **options):
    return hosts.ours(optimizer, **{"learning_rate": 0.01, "accum_iters": LENGTH, **options})


def compare(model, data=PAIR, batch_size=SIZE, **arguments):
    return accum.compare_with_big_batch(model, *data, batch_size=batch_size, **arguments)


def adding_last():
    return hosts.sequential((3,), [layers.Dense(4, activation="tanh"), layers.Dense(2), zoo.Adds()])


def of_some(y_true, y_pred):
    """Divided by the number of labels: NaN without a label."""
    has = math.cast(y_true != 0, "float32")
    return zoo.total(has * (y_true - y_pred) ** 2) / zoo.total(has)


ROWS = {
    **compared.ROWS,
    "our callbacks": row(EQUAL, callbacks=[accum.ApplyPartialWindow]),
    "short, added losses alone": row(
        EQUAL, adding_last, lambda draw: short(draw)[:1], lambda: None
    ),
    "parts without labels": row(
        DIFFERS, data=compared.some_labels, loss=lambda: of_some, text=BY_BATCH
    ),
    # The window differs by 8e-6.
    "a part of a loss that compares samples": row(
        *(DIFFERS, lambda: compared.dense(kernel_initializer="ones")),
        loss=lambda: with_root(2.3e-4),
    ),
    "convolutions, mixed_bfloat16": row(
        *(EQUAL, lambda: compared.convolutions("mixed_bfloat16"), compared.samples(6, 6, 2)),
        text=compared.IN_FLOAT32,
    ),
}


def compare_row(name):
    is_traced = name in TRACED
    model, data, arguments = make(ROWS[name], 0, run_eagerly=not is_traced)
    return compare(model, data, **arguments)


# The kinds run everywhere, and what is rounded otherwise on TensorFlow there, too. The others run
# where nothing is compiled, on PyTorch and on tf_keras. PyTorch has all kinds in the second tier.
KINDS = ["plain", "batch normalization"]
KINDS += ["short", "dropout"] if hosts.BACKEND != "jax" else []
KINDS += [] if hosts.BACKEND == "jax" else ["a small head with a mask"]
QUICK = KINDS if hosts.IS_TORCH else [] if hosts.BACKEND == "jax" else ["plain"]
ON_TENSORFLOW = "embedding", "mixed_bfloat16", "convolutions, mixed_float16", "long sums"
# Each of many steps or samples would take its time.
TRACED = "an LSTM, weights times 4", "a SimpleRNN by ones", "ten layers by ones"
ON_TENSORFLOW += TRACED[:1]


def mark(name):
    if name in KINDS:
        return () if name in QUICK else thorough
    backends = ("tensorflow", "torch") if name in ON_TENSORFLOW else ("torch",)
    return thorough, pytest.mark.once_by(*backends)


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark(name)) for name in ROWS])
def test_verdict(name):
    """It finds each cause, and isn't fooled by random draws, half precision or rounding."""
    found, each = compare_row(name), ROWS[name]
    said = str(found)
    assert found.verdict in each.right, said
    assert said.startswith(f"{found.verdict}: ") and re.search(each.text, said, re.S), said
    assert "Compared: the gradients of one window of" in said
    worst = found.by_variable[0]
    assert (found.window, found.control) == worst[1:]


@thorough
def test_rounding_of_a_gradient_that_is_zero_in_theory_does_not_count():
    """As of the bias of attention's keys, which Adam would amplify."""
    found = compare_row("attention")
    (bias,) = [each for each in found.by_variable if each.name.endswith("key/bias")]
    assert found.verdict == "equal" and bias.control > 0.1 and found.by_variable[-1] is bias


@once_by_torch
def test_a_gradient_that_cancels_is_rounding():
    """Weights of zero can't be moved by one unit: another order of the samples tells the scale."""
    model = hosts.sequential((3,), [layers.Dense(1, kernel_initializer="zeros")])
    model.compile(ours(), "mse", run_eagerly=True)
    noise = np.random.default_rng(0).normal(size=(len(X), 1))
    targets = (1e4 * (noise - noise.mean())).astype("float32")
    found = compare(model, (X, targets))
    bias = next(each for each in found.by_variable if each.name.endswith("bias"))
    assert found.verdict == "equal" and bias.distance > 1e-3, str(found)


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


class Counts(layers.Layer):
    """Ends a training at a call."""

    def __init__(self, last=None):
        super().__init__()
        self.calls, self.last = [0], last

    def call(self, x):
        self.calls[0] += 1
        if self.calls[0] == self.last:
            raise KeyboardInterrupt
        return x


def fitted(is_eager=True, epochs=1, last=None):
    """A model with states of all kinds, in a window that is open."""
    between = layers.BatchNormalization(), layers.Dropout(0.5), Counts(last)
    model = network(*between)
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, reduction="mean")
    model.compile(optimizer, Running(), metrics=["mae"])
    model.run_eagerly = is_eager
    if epochs:
        with pytest.warns(UserWarning, match="Layers keep values"):
            model.fit(X[:SIZE], Y[:SIZE], batch_size=SIZE, epochs=epochs, verbose=0)
    return model


def find(model, kind):
    (found,) = [layer for layer in model.layers if isinstance(layer, kind)]
    return found


@pytest.mark.parametrize("is_interrupted", [pytest.param(False, marks=thorough), True])
@pytest.mark.parametrize("epochs", [pytest.param(0, marks=thorough), LENGTH + 1])
def test_nothing_moves(epochs, is_interrupted):
    """Weights, states, seeds, metrics, losses and the model's attributes, also after Ctrl-C."""
    model = fitted(epochs=epochs)
    counts, dropout = find(model, Counts), find(model, layers.Dropout)
    arrays, objects = values(model)
    scale = float(model.loss.scale)
    if is_interrupted:
        counts.last = counts.calls[0] + 2
        with pytest.raises(KeyboardInterrupt):
            compare(model)
    else:
        assert compare(model).verdict == "differs"
    found, now = values(model)
    assert len(found) == len(arrays) and now.keys() == objects.keys()
    assert all(now[name] is objects[name] for name in now)
    assert float(model.loss.scale) == scale and dropout.rate == 0.5
    for array, before in zip(found, arrays):
        np.testing.assert_array_equal(array, before)


@thorough
@pytest.mark.parametrize("last", [None, 9])
def test_a_training_after_it_is_the_same(last):
    """Traced, with another order of the samples, dropout, and a variable in the loss."""

    def train(compares):
        keras.utils.set_random_seed(0)  # TensorFlow's, too
        model = fitted(is_eager=False, epochs=0)
        if compares:
            find(model, Counts).last = last
            try:
                compare(model)
            except KeyboardInterrupt:
                pass
            find(model, Counts).last = None
        with pytest.warns(UserWarning, match="Layers keep values"):
            model.fit(X, Y, batch_size=SIZE, verbose=0, epochs=2)
        return values(model)[0]

    for array, expected in zip(train(True), train(False)):
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
    callbacks = [accum.MicroBatchWeights(lambda x, y, y_pred, sample_weight: 2)]
    assert compare(model, callbacks=callbacks).verdict == "equal"


@once_by_torch
def test_what_layers_keep_in_python_shows():
    """There, each call counts."""

    class CountsCalls(layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return x * self.calls

    model = network(CountsCalls())
    model.compile(ours(), "mse", run_eagerly=True)
    found = compare(model)
    assert found.verdict == "undecided" and "keeps something in Python" in str(found)


@thorough
def test_a_loss_scale_of_half_precision_is_left_out():
    """It could overflow, and rounds nothing."""
    model = network(dtype="float16")
    loss_scale = hosts.keras.mixed_precision.LossScaleOptimizer if not hosts.IS_KERAS3 else None
    wrap = loss_scale or keras.optimizers.LossScaleOptimizer
    model.compile(wrap(ours()), "mse", run_eagerly=True)
    found = compare(model, (X, Y * 30))
    assert found.verdict == "equal"


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="float64 without a setting of the framework")
def test_in_float64_it_shows_smaller_distances():
    hosts.set_floatx("float64")
    model = network()
    model.compile(ours(), "mse", run_eagerly=True)
    found = compare(model)
    assert found.verdict == "equal" and found.window < 1e-14


@pytest.mark.skipif(hosts.BACKEND not in ("jax", "torch"), reason="of JAX and PyTorch")
def test_in_float64_where_keras_computes_parts_in_float32():
    """Stock Keras is as far from NumPy there."""
    try:
        if hosts.BACKEND == "jax":
            jax.config.update("jax_enable_x64", True)
        hosts.set_floatx("float64")
        model = hosts.sequential((3,), [layers.Dense(2)])
        model.compile(ours(), "mse", run_eagerly=True)
        found = compare(model)
        assert found.verdict == "equal" and found.window > 1e-9
    finally:
        if hosts.BACKEND == "jax":
            jax.config.update("jax_enable_x64", False)


def make_halves():
    return Halves(*(hosts.ours("Adam", accum_iters=LENGTH) for _ in range(2)))


@once_by_torch
def test_dropout_that_the_first_call_makes():
    class Late(keras.layers.Layer):
        def build(self, shape):
            self.inner = keras.layers.Dropout(0.5)
            self.built = True

        def call(self, x):
            return self.inner(x)

    model = keras.Sequential([keras.layers.Dense(2), Late()])
    model.compile(hosts.ours("SGD", accum_iters=LENGTH), "mse", run_eagerly=True)
    found = compare(model)
    assert found.verdict == "equal" and "were off (rate 0)" in str(found)


@own_code
@pytest.mark.skipif(hosts.BACKEND == "jax", reason="`fit` has the state of one optimizer there")
@pytest.mark.parametrize("is_built", [False, pytest.param(True, marks=thorough)])
def test_optimizers_in_attributes_are_compared_and_put_back(is_built):
    def train(compares):
        hosts.set_random_seed()
        model = make_halves()
        model(X)
        model.compile(run_eagerly=True)
        if is_built:
            model.fit(X, Y, batch_size=SIZE, verbose=0, shuffle=False)
        if compares:
            found = compare(model)
            assert found.verdict == "equal" and "2 of 2" in str(found)
        model.fit(X, Y, batch_size=SIZE, verbose=0, shuffle=False)
        optimizers = model.first, model.second
        assert [each.completed_updates for each in optimizers] == [1 + is_built] * 2
        return model.get_weights()

    for weights, expected in zip(train(True), train(False)):
        np.testing.assert_array_equal(weights, expected)


@thorough
@pytest.mark.skipif(hosts.BACKEND == "jax", reason="`fit` has the state of one optimizer there")
def test_a_second_optimizer_that_does_not_accumulate():
    model = make_halves()
    model(X)
    model.first = hosts.stock("SGD")
    model.compile(run_eagerly=True)
    with pytest.raises(ValueError, match="made 3.*an optimizer of the model doesn't accumulate"):
        compare(model)


@once_by_torch
@pytest.mark.parametrize("make", [ours, lambda: hosts.stock("SGD")])
def test_optimizers_inside_of_lists_are_refused(make):
    """A stock one, too: it would train."""
    model = network()
    model.compile(ours(), "mse")
    model.others = [make()]
    with pytest.raises(ValueError, match="Keep each optimizer in an attribute.*others"):
        compare(model)


@once_by_torch
@pytest.mark.parametrize("options", [{"reduction": "sum"}, {"accum_iters": 1}])
def test_optimizers_with_other_arguments_are_refused(options):
    """A stand-in with the first one's would be equal."""
    model = network()
    model.compile(ours(), "mse")
    model.second = ours(**options)
    with pytest.raises(ValueError, match="must have the same arguments of keras_accum"):
        compare(model)


class WithInner(OwnStep):
    """Trains by the optimizer of a model inside, too."""

    def train_step(self, *arguments):
        logs = keras.Model.train_step(self, *arguments)
        kernel = self.dense.trainable_variables[:1]
        hosts.apply(self.inner.optimizer, [math.zeros_like(kernel[0])], kernel)
        return logs


@once_by_torch
def test_the_optimizer_of_a_model_inside_is_not_trained():
    model = WithInner()
    model.inner = network()
    model(X)
    model.inner.compile(hosts.ours("Adam", accum_iters=LENGTH), "mse")
    optimizer = model.inner.optimizer
    hosts.build_on(optimizer, model.dense.trainable_variables[:1])
    model.compile(ours(), "mse", run_eagerly=True)
    assert compare(model).verdict == "equal"
    assert model.inner.optimizer is optimizer and optimizer.completed_updates == 0


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="of TensorFlow")
def test_embeddings_on_tensorflow():
    """There, a stock optimizer gets a sparse gradient, and Keras 3's squares its parts."""
    model = embedding()
    model.compile(ours("Adam"), "mse", run_eagerly=True)
    found = str(compare(model, tokens()(drawing(0))))
    assert found.startswith("equal") and "gradient for each occurrence of a row" in found


Two = namedtuple("Two", "a b")


@thorough
def test_samples_of_all_kinds():
    """Named tuples, and NumPy's integers."""
    a, b = keras.Input((3,)), keras.Input((3,))
    model = keras.Model([a, b], layers.Dense(2)(layers.Add()([a, b])))
    model.compile(ours(), "mse", run_eagerly=True)
    assert compare(model, (Two(X, X), Y), np.int64(SIZE)).verdict == "equal"


@thorough
@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.15 on")
def test_several_optimizers_in_one():
    both = [ours(), ours("Adam")]
    model = network()
    several = keras.optimizers.MultiOptimizer(lambda v: both["kernel" in v.path])
    several.build(model.trainable_variables)
    model.compile(several, "mse", run_eagerly=True)
    assert compare(model).verdict == "equal"


@pytest.mark.skipif(not hosts.IS_TORCH, reason="of PyTorch")
def test_buffers_of_modules_are_put_back():
    import torch

    module = torch.nn.BatchNorm1d(4)
    model = network(layers.TorchModuleWrapper(module))
    model.compile(ours(), "mse")
    model(X)
    before = [buffer.clone() for buffer in module.buffers()]
    assert compare(model).verdict == "differs"
    assert all(bool((a == b).all()) for a, b in zip(module.buffers(), before))


@once_by_torch
@pytest.mark.parametrize("count", [SIZE * LENGTH + 1, SIZE * LENGTH - 1])
def test_the_samples_of_the_first_window_are_taken(count):
    x, y = (np.concatenate([array, array])[:count] for array in PAIR)
    model = network()
    model.compile(ours(), "mse", run_eagerly=True)
    found = compare(model, (x, y))
    assert found.verdict == "equal"
    assert f"one window of {min(count, SIZE * LENGTH)} samples" in str(found)


def test_callbacks_that_write_are_refused(tmp_path):
    model = network()
    model.compile(ours(), "mse", run_eagerly=True)
    callback = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    with pytest.raises(ValueError, match="Leave out: CSVLogger, EarlyStopping"):
        compare(model, callbacks=[callback, keras.callbacks.EarlyStopping()])
    assert list(tmp_path.iterdir()) == []


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
    "no batch size": ("batch_size=0", network, {}, PAIR, {"batch_size": 0}),
    "lengths": ("same number of samples", network, {}, (X, Y[:5])),
    "a list of numbers": ("must be arrays of samples", network, {}, (X.tolist(), Y)),
    "a dataset": ("unbatch", network, {}, (iter([PAIR]),)),
    "no targets as arrays": ("must be arrays of samples", network, {}, (X, "y")),
    "no windows": ("nothing to compare", network, {"accum_iters": 1}, (X[:4], Y[:4])),
    "one micro-batch": ("more samples than one micro-batch", network, NO_END, (X[:4], Y[:4])),
    "frozen": ("no weights to train", frozen, {}, PAIR),
    "not finite": ("gradient is not finite", network, {}, (X * np.inf, Y)),
    "zero": ("gradient is zero", lambda: network(use_bias=False), {}, SAME),
    "all dropped": ("all micro-batches are dropped", network, {"skip_norm": 1e-9}, PAIR),
    "several updates": ("must make one update, but made 3", Twice, NO_END, PAIR),
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
    with pytest.raises(ValueError, match="compile the model with an optimizer of keras_accum"):
        compare(model)
    model.compile(hosts.stock("SGD"), "mse")
    with pytest.raises(ValueError, match="compile the model with an optimizer of keras_accum"):
        compare(model)


# Rows by the number of their cause in the page. The others compare trainings, where a window of
# their model is equal.
CAUSES = {
    1: ["plain"],
    2: ["short, the mean", "an ignored class, the mean", "the mean of sums"],
    3: ["batch normalization"],
    4: ["dropout", "noise"],
    5: ["all options"],
    6: ["relu, L2"],
    7: ["plain"],
    8: ["mixed_float16", "mixed_bfloat16"],
    9: ["a loss that compares samples"] if hosts.IS_KERAS3 else [],
    10: ["a layer that compares samples", *(name for name in ROWS if name.startswith("spectral"))],
    11: ["attention"],
    12: ["embedding"],
    13: ["plain"],
    14: [] if hosts.BACKEND == "jax" else ["clipped by its own step", "changed by its own step"],
}


def test_what_the_page_says():
    """The page's table has a column with what is printed for each cause."""
    page = (hosts.PROJECT / "docs/why_different.md").read_text("utf-8")
    found = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|", page, re.M)
    assert [int(number) for number, _ in found] == list(CAUSES)
    for number, cell in found:
        verdict, *texts = re.findall("`(.+?)`", cell)
        for name in CAUSES[int(number)]:
            assert ROWS[name].right == (verdict,), name
            # `test_verdict` finds this text in what is printed.
            is_said = any(text in ROWS[name].text.replace("\\", "") for text in texts)
            assert is_said or not texts, (name, texts)
