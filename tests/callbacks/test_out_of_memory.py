"""`MicroBatches("auto")` when the framework's own allocator refuses: nothing raises by hand."""

import contextlib
import mmap
import sys
import time
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once, thorough
from hosts import keras
from memory import Greedy, ask, in_memory, is_out_of_memory
from training import assert_equal

if not hosts.IS_KERAS3:
    pytest.skip("MicroBatches is for Keras 3", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The model does not have any trainable weights"),
    # TensorFlow's allocator waits for ten seconds before it refuses; test_micro_batches.py asks it.
    *[thorough, pytest.mark.weekly] * hosts.IS_TENSORFLOW,
]

layers = keras.layers
MicroBatches = hosts.accum.MicroBatches
LIMIT, BATCH, SAMPLES = 128, 512, 2 * 512 + 150  # the last batch is short, and not whole slices
WITHOUT_XLA = {"jit_compile": False} if hosts.IS_TENSORFLOW else {}
IS_JAX = hosts.BACKEND == "jax"
on_jax = pytest.mark.skipif(not IS_JAX, reason="elsewhere, a model keeps its weights in a step")


def uniform(*shape):
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(hosts.FLOATX)


X, Y, WEIGHTS = uniform(SAMPLES, 3), uniform(SAMPLES, 2), 1 + uniform(SAMPLES)


def build(limit=LIMIT, normalizes=False, greedy=Greedy):
    hosts.set_random_seed()
    norm = [layers.BatchNormalization(momentum=0.5, name="norm")] * normalizes
    return keras.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(4, "tanh", name="hidden"),
            *norm,
            layers.Dropout(0.5, seed=1, name="dropout"),
            greedy(limit, name="greedy"),
            layers.Dense(2, name="out"),
        ],
        name="model",
    )


def compile_with(model, optimizer, **arguments):
    metrics = {"metrics": ["mae"], "weighted_metrics": ["mse"]}
    model.compile(optimizer, "mse", **{**metrics, **WITHOUT_XLA, **arguments})
    return model


def values(model):
    """All that a step changes."""
    variables = *model.variables, *model.optimizer.variables
    return {f"{i} {v.name}": hosts.array(v) for i, v in enumerate(variables)}


def assert_same_weights(model, before):
    assert_equal(*[dict(enumerate(w)) for w in (model.get_weights(), before)], rtol=0, atol=0)


def train(callback, optimizer, count=SAMPLES, epochs=2, batch_size=BATCH, **arguments):
    """Return what a training changes and logs."""
    normalizes = callback._loss == "sample"
    model = compile_with(build(normalizes=normalizes), optimizer(), **arguments)
    says = pytest.warns(UserWarning, match="Layers keep values.*: norm")
    with says if normalizes else contextlib.nullcontext():
        history = model.fit(
            X[:count], Y[:count], batch_size, epochs, 0, [callback], shuffle=False,
            validation_data=(X[:8], Y[:8]), sample_weight=WEIGHTS[:count],
        )  # fmt: skip
    found = values(model)
    found.update({f"history {k}": np.array(v) for k, v in history.history.items()})
    return model, found


def stock():
    return hosts.stock("Adam", learning_rate=0.01)


def ours():
    return hosts.ours("Adam", learning_rate=0.01, accum_iters=1)


def scaled():
    return hosts.loss_scaled(hosts.stock("SGD", learning_rate=0.01, momentum=0.5), 64)


ROWS = {
    "ours": (ours, "sample", {}),
    "stock": (stock, "sample", {}),
    "the loss of the batch": (stock, "batch", {}),
    "a loss scale": (scaled, "sample", {}),
    "eagerly": (ours, "sample", {"run_eagerly": True}),
}


@quick_first("name", list(ROWS))
def test_ends_as_with_the_size_that_fits(name, capsys):
    """To the bit: weights, slots, metrics, moving averages and random numbers."""
    optimizer, loss, arguments = ROWS[name]
    callback = MicroBatches("auto", loss=loss)
    _, found = train(callback, optimizer, **arguments)
    assert callback.size == LIMIT
    assert capsys.readouterr().out.count(f"slices of {LIMIT} samples") == 1
    _, expected = train(MicroBatches(LIMIT, loss=loss), optimizer, **arguments)
    assert found.keys() == expected.keys()
    assert_equal(found, expected, rtol=0, atol=0)


@thorough
@on_jax
@pytest.mark.parametrize("optimizer", [ours, stock])
def test_on_two_devices(optimizer, two_devices):
    """The state is where it was, and a device gets its part of each slice."""
    callback, count = MicroBatches("auto"), 2 * BATCH
    model, found = train(callback, optimizer, count)
    assert callback.size == LIMIT
    _, expected = train(MicroBatches(LIMIT), optimizer, count)
    assert_equal(found, expected, rtol=0, atol=0)
    assert {len(v.value.sharding.device_set) for v in model.variables} == {2}


@on_jax
@thorough
def test_a_size_for_two_devices(two_devices):
    """Slices of 6, 4 and 2 samples, and none of 1, which would be a part of a sample for each."""
    sizes = []

    class Sizes(Greedy):
        def call(self, x, training=False):
            sizes.extend([x.shape[0]] * training)
            return super().call(x, training)

    model = compile_with(build(0, greedy=Sizes), stock())
    before = model.get_weights()
    with pytest.raises(Exception) as raised:
        model.fit(X[:6], Y[:6], 6, verbose=0, callbacks=[MicroBatches("auto")])
    assert is_out_of_memory(raised.value)
    assert sorted(set(sizes)) == [2, 4, 6]
    assert_same_weights(model, before)


def batches(*sizes):
    """A data set of batches of these sizes, in a generator."""
    start = 0
    for size in sizes:
        yield X[start : start + size], Y[start : start + size]
        start += size


def fit_batches(model, sizes, callbacks):
    settings = {"steps_per_epoch": len(sizes), "verbose": 0, "shuffle": False}
    return model.fit(batches(*sizes), callbacks=callbacks, **settings)


@quick_once
@quick_first("optimizer", [ours, stock])
def test_a_later_batch_is_larger(optimizer):
    """A whole batch fits, a later one doesn't: nothing of the earlier ones is undone."""
    found, sizes = [], (100, 100, 300, 300)
    for size in "auto", 75:
        model, callback = compile_with(build(), optimizer()), MicroBatches(size)
        fit_batches(model, sizes[:2], [] if size == 75 else [callback])
        fit_batches(model, sizes[2:], [callback])
        assert callback.size == 75
        found.append(values(model))
    assert_equal(*found, rtol=0, atol=0)


@quick_once
@quick_first("run_eagerly", [False, True])
def test_the_smallest_size_does_not_fit(run_eagerly):
    """The allocator's own error; the model is as before, and can be used."""
    model = compile_with(build(limit=0), stock(), run_eagerly=run_eagerly)
    before, callback = model.get_weights(), MicroBatches("auto")
    with pytest.raises(Exception) as raised:
        model.fit(X[:4], Y[:4], 4, verbose=0, callbacks=[callback])
    assert is_out_of_memory(raised.value) and callback.size == 1
    assert_same_weights(model, before)
    assert all(np.isfinite(hosts.array(v)).all() for v in model.optimizer.variables)
    assert int(model.optimizer.iterations) == 0
    model.evaluate(X[:4], Y[:4], verbose=0)


@thorough
def test_frozen_weights():
    """No update is made, so none is half made. JAX alone splits a batch without gradients."""
    model, callback = build(limit=3), MicroBatches("auto")
    model.trainable = False
    compile_with(model, stock())
    before = model.get_weights()
    if IS_JAX:
        fit_batches(model, (3, 4), [callback])
        assert callback.size == 2
    else:
        with pytest.raises(Exception) as raised:
            fit_batches(model, (3, 4), [callback])
        assert is_out_of_memory(raised.value)
    after = zip(model.get_weights(), before, model.weights)
    assert all((a == b).all() for a, b, v in after if "seed" not in v.path)


# -- JAX: what is copied, and what an error leaves -------------------------------------------------


@thorough
@on_jax
def test_copies_and_waits(monkeypatch):
    """Only the first batch of each shape in a training."""
    import jax

    from keras_accum.keras3.micro_batches import jax as of_jax

    found, copy, wait = [], of_jax._copy_to_host, jax.block_until_ready
    monkeypatch.setattr(of_jax, "_copy_to_host", lambda a: log("copy") or copy(a))
    monkeypatch.setattr(jax, "block_until_ready", lambda a: log("wait") or wait(a))
    model, callback = compile_with(build(), ours()), MicroBatches("auto")

    def log(what):
        found[-1].add(what)

    class Batches(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            found.append(set())

    settings = {"epochs": 2, "verbose": 0, "callbacks": [callback, Batches()]}
    for _ in range(2):
        model.fit(X, Y, BATCH, **settings)
        found[-1].discard("wait")  # for the end of a training
    both, none = {"copy", "wait"}, set()
    assert found == 2 * [both, none, both, none, none, none]


@thorough
@on_jax
def test_an_error_before_anything_runs():
    """The allocator refuses while the program is made, as XLA's search for fast kernels may."""
    import jax

    class Tunes(Greedy):
        def call(self, x, training=False):
            if training and x.shape[0] > self.limit:
                with jax.ensure_compile_time_eval():
                    ask(jax.numpy.ones(1), True).block_until_ready()
            return x

    found = []
    for size in "auto", LIMIT:
        model = compile_with(build(greedy=Tunes), stock())
        callback = MicroBatches(size)
        model.fit(X, Y, BATCH, verbose=0, callbacks=[callback])
        assert callback.size == LIMIT
        found.append(values(model))
    assert_equal(*found, rtol=0, atol=0)


TEXTS = {
    "INTERNAL: Error dispatching computation: Out of memory allocating 400 bytes.": True,
    "INTERNAL: Autotuning failed for HLO: CUDA_ERROR_OUT_OF_MEMORY": True,
    "UNKNOWN: Failed to determine best cudnn convolution algorithm: RESOURCE_EXHAUSTED": True,
    "INVALID_ARGUMENT: Executable expected parameter 0 of size 4": False,
}


@on_jax
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_errors(text):
    """Of an array that depends on one that was refused, and of a GPU's search for kernels."""
    import jax

    class Raises(Greedy):
        def call(self, x, training=False):
            if training and x.shape[0] > self.limit:
                raise jax.errors.JaxRuntimeError(text)
            return x

    model, callback = compile_with(build(greedy=Raises), stock()), MicroBatches("auto")
    raises = pytest.raises(jax.errors.JaxRuntimeError, match="expected parameter")
    with contextlib.nullcontext() if TEXTS[text] else raises:
        model.fit(X[:BATCH], Y[:BATCH], BATCH, verbose=0, callbacks=[callback])
    assert callback.size == (LIMIT if TEXTS[text] else None)


COUNT, ROOM = 10**8, 10**8  # numbers in 400 MB, and bytes


class Large(layers.Layer):
    """Needs 400 MB for any batch."""

    def __init__(self, limit, **kwargs):
        super().__init__(**kwargs)

    def call(self, x, training=False):
        return x + in_memory(x, COUNT) if training else x


class Limit(keras.callbacks.Callback):
    """Lowers the memory of this process when a training has had a batch."""

    def __init__(self):
        super().__init__()
        import resource

        self.set, self.kind = resource.setrlimit, resource.RLIMIT_AS
        self.before = resource.getrlimit(self.kind)

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            used = min(self.measure() for _ in range(20))
            self.set(self.kind, (used + ROOM, self.before[1]))

    def measure(self):
        time.sleep(0.02)  # another thread may free the last batch's memory now
        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]
        return int(pages) * mmap.PAGESIZE

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.set(self.kind, self.before)


class Reads(keras.callbacks.Callback):
    """Waits for each step, and so the error comes in a callback."""

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])


@on_jax
@pytest.mark.skipif(sys.platform != "linux", reason="about a limit that Linux keeps")
@quick_first("sizes, callbacks", [([8, 8, 4], []), ([8] * 3, []), ([8] * 3, [Reads()])])
def test_a_size_that_had_fitted(sizes, callbacks):
    """Something else takes memory: the weights are lost, and the error says what to load."""
    model = compile_with(build(greedy=Large), ours())
    fit_batches(model, [8], [MicroBatches("auto")])
    says = "RESOURCE_EXHAUSTED" if callbacks else "load your last checkpoint"
    with Limit() as limit, pytest.raises(RuntimeError, match=says) as raised:
        fit_batches(model, sizes, [MicroBatches("auto"), limit, *callbacks])
    assert is_out_of_memory(raised.value)


@thorough
@on_jax
def test_interrupted_while_it_waits(monkeypatch):
    """A program runs, and Python has no results of it."""
    import jax

    model = compile_with(build(), ours())
    fit_batches(model, [8], [])
    before, names, wait = model.get_weights(), set(vars(model)), jax.block_until_ready

    def interrupt(arrays):
        monkeypatch.setattr(jax, "block_until_ready", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(jax, "block_until_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_batches(model, [8], [MicroBatches("auto")])
    assert_same_weights(model, before)
    assert set(vars(model)) == names
    fit_batches(model, [8], [MicroBatches("auto")])


@on_jax
def test_data_that_fail():
    """An error between Keras, which has taken the weights, and the train step."""
    model = compile_with(build(), stock())
    fit_batches(model, [8], [])
    before = model.get_weights()
    for size in "auto", 4:
        with pytest.raises(ValueError, match="the first dimension of all arrays"):
            data = (pair for pair in [(X[:4], Y[:6])])
            model.fit(data, verbose=0, shuffle=False, callbacks=[MicroBatches(size)])
        assert_same_weights(model, before)
