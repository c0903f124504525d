"""The code in docs/guide.md runs unchanged."""

import functools
import importlib
import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import keras2_has_no, thorough
from hosts import keras
from training import (
    MICRO,
    assert_equal,
    assert_moved,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    go_on,
    initialize,
    weights,
)

PAGE = hosts.PROJECT / "docs" / "guide.md"
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text("utf-8"), re.S))
keras3_only = pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's own accumulation")


def run(block, **names):
    exec(BLOCKS[block].replace("import keras\n", hosts.IMPORT_KERAS + "\n"), names)
    return names


def test_all_blocks_are_tested():
    """But for the block that needs a package which ended with TensorFlow 2.15."""
    tests = Path(__file__).read_text("utf-8")
    missing = [name for name in BLOCKS if not re.search(rf'[(\[]"{name}"', tests)]
    peer = "before: GradientAccumulateModel"
    assert missing == [peer]


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no schedules")
def test_windows_that_grow():
    found = run("windows that grow")
    assert (found["optimizer"].accum_iters, found["updates"]) == (1, 100 + 200 + 1100 // 16)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no schedules")
def test_a_schedule_of_samples():
    """Equal to the stock optimizer that is given the rate and the batch of each update."""
    block = BLOCKS["a schedule of samples"].replace("100: 4, 300: 16", "2: 3, 4: 2")
    block = block.replace(
        "samples, epochs, batch_size = 1000, 20, 10", "samples, epochs, batch_size = 24, 1, 2"
    )
    names = {"__name__": "guide"}
    exec(block.replace("import keras\n", hosts.IMPORT_KERAS + "\n"), names)
    config = names["optimizer"].get_config()  # as from a file
    ours = compiled(dense_model(), type(names["optimizer"]).from_config(config))
    go_on(ours)
    stock, (x, y) = compiled(dense_model(), hosts.stock("Adam", learning_rate=1.0)), data()
    cosine = keras.optimizers.schedules.CosineDecay(1e-3, 12)
    ends = np.cumsum([0, 1, 1, 3, 3, 2, 2])
    for start, end in zip(ends, ends[1:]):
        stock.optimizer.learning_rate = float(cosine(start))
        stock.train_on_batch(x[MICRO * start : MICRO * end], y[MICRO * start : MICRO * end])
    assert ours.optimizer.completed_updates == 6
    assert_equal(weights(ours), weights(stock), atol=1e-6)


@pytest.mark.skipif(
    not (hosts.IS_TENSORFLOW or hosts.BACKEND == "jax") or hosts.IS_KERAS2,
    reason="loops of TensorFlow and JAX",
)
def test_loops_of_your_own():
    """Two windows of five micro-batches are two steps of the stock optimizer."""
    x, y = (array[:20] for array in data())
    micro_batches = batches(2, (x, y))
    model = initialize(dense_model())
    optimizer = hosts.ours("Adam", learning_rate=0.05, accum_iters=None)
    hosts.build_on(optimizer, model.trainable_variables)
    stock = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.05))
    stock.fit(x, y, batch_size=10, shuffle=False, verbose=0)
    before = weights(initialize(dense_model()))
    names = {"model": model, "optimizer": optimizer, "micro_batches": micro_batches}
    if hosts.IS_TENSORFLOW:

        def loss_of(model, x, y):
            return hosts.tf.reduce_mean((model(x, training=True) - y) ** 2)

        run("a loop for TensorFlow", **names, tf=hosts.tf, loss_of=loss_of)
    else:
        import jax

        def loss_of(trainable, others, x, y):
            outputs, others = model.stateless_call(trainable, others, x, training=True)
            return ((outputs - y) ** 2).mean(), others

        variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
        state = tuple([v.value for v in group] for group in variables)
        names.update(functools=functools, jax=jax, loss_of=loss_of, state=state)
        found = run("a loop for JAX", **names)["state"]
        for v, value in zip(model.trainable_variables, found[0]):
            v.assign(value)
        for v, value in zip(optimizer.variables, found[2]):
            v.assign(value)
    assert optimizer.completed_updates == 2
    assert_equal(weights(model), weights(stock))
    assert_moved(weights(model), before)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no AccumulationMonitor")
def test_noise_scale():
    x, y = (array[:20] for array in data())
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    assert len(run("the noise scale", model=model, x=x, y=y)["history"].history["noise_scale"]) == 5


@keras3_only
def test_the_statistics_of_the_window():
    layers = [keras.layers.BatchNormalization(momentum=0.0), keras.layers.Dense(2)]
    x, y = (np.concatenate([array] * 3)[:50] for array in data())
    found = run("the statistics of the window", model=hosts.sequential((3,), layers), x=x, y=y)
    layer = found["model"].layers[0]
    actual = {"mean": layer.moving_mean, "variance": layer.moving_variance}
    expected = {"mean": x.mean(0), "variance": x.var(0)}
    actual = {name: hosts.array(value) for name, value in actual.items()}
    assert_equal(actual, expected, rtol=1e-5, atol=1e-6)


@keras3_only
def test_callbacks_that_count_updates(tmp_path):
    model, (x, y) = dense_model(), (array[:20] for array in data())
    run("callbacks that count updates", model=model, x=x, y=y, path=str(tmp_path / "saved.keras"))
    assert model.optimizer.completed_updates == 1


@pytest.mark.skipif(
    hosts.BACKEND == "jax" or not hasattr(keras.optimizers, "AdamW"),
    reason="Keras on JAX can't train only some of an optimizer's variables; Keras 2 has no AdamW",
)
def test_frozen_layers(monkeypatch):
    """The recipe equals the same lines with the stock optimizer at the big batch."""
    block, found = BLOCKS["first the head, then everything"], []
    stock = block.replace("AdamWAccumulate(1e-3, accum_iters=5)", "keras.optimizers.AdamW(1e-3)")
    stock = stock.replace("batch_size=10, callbacks=[ApplyPartialWindow()]", "batch_size=50")
    random = np.random.default_rng(1)
    x, y = (random.uniform(0.5, 1, (100, n)).astype(hosts.FLOATX) for n in (3, 2))
    fit = functools.partialmethod(keras.Model.fit, shuffle=False, verbose=0, epochs=2)
    monkeypatch.setattr(keras.Model, "fit", fit)
    for lines in (block, stock):
        model = initialize(dense_model())
        names = {"keras": keras, "model": model, "backbone": model.layers[-2], "x": x, "y": y}
        exec(lines, names)
        found.append(weights(model))
    assert stock.count("50") == 2
    assert_equal(*found)
    before = weights(initialize(dense_model()))
    assert all((found[0][name] != before[name]).all() for name in before)


@keras2_has_no("`accumulating`")
def test_another_optimizer():
    class Yours(type(hosts.stock("SGD"))):
        pass

    names = run("another optimizer", Yours=Yours)
    assert issubclass(names["YoursAccumulate"], Yours)
    variable, one = hosts.variable([1.0], "w"), np.ones(1, hosts.FLOATX)
    for _ in range(5):
        assert hosts.array(variable) == [1]
        hosts.apply(names["optimizer"], [one], [variable])
    np.testing.assert_allclose(hosts.array(variable), [0.99], rtol=1e-6)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no MicroBatches")
def test_the_big_batch_in_one_train_step():
    x, y = data()
    model = initialize(dense_model())
    run("the big batch in one train step", model=model, x=x, y=y)
    assert int(model.optimizer.iterations) == -(-len(x) // 50)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="for PyTorch")
def test_accumulation_inside_backward():
    torch = importlib.import_module("torch")
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    names = {"optimizer": model.optimizer, "loss_of": keras.losses.MeanSquaredError()}
    x, y = data()
    run("accumulation inside backward", torch=torch, model=model, batches=[(x, y)] * 5, **names)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (2, 1)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no reduction='weighted'")
def test_weights():
    x, y = (array[:13] for array in data())
    model = initialize(dense_model())
    run("weights in fit", model=model, x=x, y=y)
    assert model.optimizer.window_position == 2
    assert model.optimizer.get_state()["window_weight"] == len(x)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no reduction='weighted'")
def test_weights_in_a_train_step():
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=2, reduction="weighted")
    variable, train_step = hosts.variable([1.0], "w"), run("weights in a train step")["train_step"]
    for gradient, tokens in ((1.0, 3), (-1.0, 1)):
        gradient = hosts.native(hosts.variable([gradient], "g")) + 0.0
        train_step(optimizer, [gradient], [variable], tokens)
    assert hosts.array(variable) == [1 - 0.5 * (3 - 1) / 4]


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has no schedules")
def test_a_schedule_that_ends_with_the_training():
    names = run("a schedule in updates")
    assert names["updates"] == 400
    assert float(names["schedule"](names["updates"])) == 0 < float(names["schedule"](399))
    assert names["optimizer"].accum_iters == 5


@thorough
@keras3_only
def test_keras_own():
    """Where Keras's own accumulation is exact, ours gives the same numbers."""
    ends = []
    before = run("before: Keras's own", keras=keras)["optimizer"]
    after = run("after: Keras's own")["optimizer"]
    for optimizer in (before, after):
        model = compiled(dense_model(), optimizer)
        fit(model, MICRO)
        ends.append(weights(model))
    assert_equal(ends[1], ends[0])


@thorough
@keras3_only
def test_half_trained_with_keras_own():
    optimizer = run("before: Keras's own", keras=keras)["optimizer"]
    model = go_on(compiled(dense_model(), optimizer), 0, 7)
    run("half trained: Keras's own", model=model)
    assert (model.optimizer.accum_iters, model.optimizer.window_position) == (5, 2)
    assert model.optimizer.completed_updates == 1


@pytest.mark.skipif(hosts.IS_KERAS2, reason="gradient-accumulator is for tf.keras")
def test_after_gradient_accumulator():
    model = initialize(dense_model())
    run("after: GradientAccumulateModel", model=model)
    go_on(model, 0, 7)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
