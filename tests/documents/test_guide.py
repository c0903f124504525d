"""The code in the pages for users runs unchanged, and makes the updates that it should."""

import functools
import importlib
import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import keras2_has_no
from hosts import accum, keras
from training import batches, compiled, data, dense_model, go_on, initialize

pytestmark = pytest.mark.filterwarnings("error:An epoch ended inside a window")
PAGES = "start", "choose", "train", "loops", "monitor", "saving", "migrate", "why_different"
TEXT = "\n".join((hosts.PROJECT / f"docs/{page}.md").read_text("utf-8") for page in PAGES)
FOUND = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", TEXT, re.S)
BLOCKS = dict(FOUND)
X, Y = (np.concatenate([array] * 3)[:70] for array in data())  # seven micro-batches of 10
PLAIN_TF = hosts.IS_LEGACY and not hosts.keras.__name__.startswith("tf_keras")


def run(block, **names):
    code = BLOCKS[block].replace("import keras\n", hosts.IMPORT_KERAS + "\n")
    exec(code, names)
    return names


def test_all_blocks_are_tested():
    assert len(BLOCKS) == len(FOUND) == TEXT.count("```python")
    tests = Path(__file__).read_text("utf-8")
    # test_devices.py runs "several GPUs"
    assert [name for name in BLOCKS if f'"{name}"' not in tests] == []


def row(block, updates, position, only_on=True):
    """A block with a model, and the updates and the position in the window that it leaves."""
    marks = pytest.mark.skipif(not only_on, reason="the block is for other hosts")
    return pytest.param(block, updates, position, id=block, marks=marks)


# The second update of 70 samples is that of the partial window.
@pytest.mark.parametrize(
    "block, updates, position",
    [
        row("Keras 3", 2, 0, hosts.IS_KERAS3),
        row("Keras 3, any optimizer", 2, None, hosts.IS_KERAS3),
        row("a size that fits", 2, None, hosts.IS_KERAS3),
        row("tf_keras", 2, 0, hosts.IS_TF_KERAS and not PLAIN_TF),
        row("TensorFlow up to 2.15", 2, 0, PLAIN_TF),
        row("Keras 2.2 and 2.3", 2, 0, hosts.IS_KERAS2),
        row("your own loop, TensorFlow", 2, 0, hosts.IS_KERAS3 and hosts.IS_TENSORFLOW),
        row("your own loop, JAX", 2, 0, hosts.BACKEND == "jax"),
        row("your own loop, PyTorch", 2, 0, hosts.IS_TORCH),
        row("mixed precision", 2, 0, hosts.IS_KERAS3),
        row("resume", 8, 0, hosts.IS_KERAS3),
        row("the big batch in one train step", 2, None, hosts.IS_KERAS3),
        row("weights in fit", 2, 0, not hosts.IS_KERAS2),
        row("validation with the big batch", 2, 0, hosts.IS_KERAS3),
        row("ask your model", 0, 0, not hosts.IS_KERAS2),
        row("a monitor", 1, 0, hosts.IS_KERAS3),
        row("callbacks that count updates", 2, 0, hosts.IS_KERAS3),
        row("half trained: Keras's own", 1, 2, hosts.IS_KERAS3),
    ],
)
def test_a_block_with_a_model(block, updates, position, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = initialize(dense_model())
    if block == "half trained: Keras's own":
        own = run("before: Keras's own", keras=keras)["optimizer"]
        go_on(compiled(model, own, metrics=["mae"]), 0, 7)
    names = {"keras": keras, "model": model, "make_model": lambda: initialize(dense_model())}
    dtype = "float32" if hosts.IS_TORCH else hosts.FLOATX
    names.update(x=X.astype(dtype), y=Y.astype(dtype), path=str(tmp_path / "saved.keras"))
    try:
        names = run(block, **names)
    finally:
        if block == "mixed precision":
            keras.config.set_dtype_policy(hosts.FLOATX)
    model = names["model"]
    if block == "half trained: Keras's own":
        assert model.get_compile_config()["metrics"] == ["mae"]
    optimizer = names.get("optimizer") or model.optimizer  # the first one in a loop
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    assert int(hosts.array(optimizer.iterations)) == updates
    assert position in (None, getattr(optimizer, "window_position", None))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_loop_with_a_short_last_batch():
    names = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    x, y = X[:67].astype("float32"), Y[:67].astype("float32")
    models = [initialize(dense_model(dtype="float32")) for _ in range(2)]
    run(f"your own loop, {names[hosts.BACKEND]}", model=models[0], x=x, y=y)
    models[1].compile(hosts.stock("Adam", learning_rate=1e-3), "mse")
    models[1].fit(x, y, batch_size=50, shuffle=False, verbose=0)
    for ours, stock in zip(*[model.get_weights() for model in models]):
        np.testing.assert_allclose(ours, stock, rtol=0, atol=1e-6)


@keras2_has_no("schedules")
def test_schedules_of_the_learning_rate():
    names = run("a schedule in updates")
    assert names["updates"] == 20 * 21
    assert float(names["schedule"](420)) == 0 < float(names["schedule"](419))
    grows = run("windows that grow")
    assert (grows["optimizer"].accum_iters, grows["updates"]) == (1, 100 + 200 + 1100 // 16)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_the_rest_of_an_epoch():
    """After it, the weights are those of two whole epochs."""
    x, y = (np.concatenate([array] * 2)[:100].astype("float32") for array in (X, Y))
    models = [
        compiled(initialize(dense_model()), hosts.ours("Adam", accum_iters=5)) for _ in range(2)
    ]
    settings = {"batch_size": 10, "shuffle": False, "verbose": 0}
    models[0].fit(x, y, epochs=2, **settings)
    with pytest.warns(UserWarning, match="An epoch ended inside a window, after 2 of its 5"):
        models[1].fit(x[:70], y[:70], **settings)
    run("the rest of an epoch", model=models[1], x=x, y=y, EPOCHS=2)
    for whole, resumed in zip(*[model.get_weights() for model in models]):
        np.testing.assert_allclose(resumed, whole, rtol=1e-6, atol=1e-6)


@keras2_has_no("`.keras` files and `to_stock`")
@pytest.mark.skipif(PLAIN_TF, reason="its `.keras` files hold no legacy optimizer")
def test_saving(tmp_path, monkeypatch):
    """Also of a state, which another model continues."""
    monkeypatch.chdir(tmp_path)
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=5), hosts.mean_squared_error())
    go_on(model, 0, 7)
    for block, counts in {
        "save and load": (1, 2),
        "a state on tf_keras": (1, 2),
        "the state on Keras 3": (1, 2),
        "freeze a layer and continue": (1, 2),
        "from and to stock optimizers": None,
    }.items():
        if block == "the state on Keras 3":
            model = compiled(dense_model(), hosts.ours("Adam", accum_iters=5))
            hosts.build(model)
        if counts is None:  # `to_stock` needs a closed window
            model.optimizer.apply_partial_window()
        model = run(block, keras=keras, model=model)["model"]
        if counts:
            optimizer = model.optimizer
            assert (optimizer.completed_updates, optimizer.window_position) == counts
    assert type(model.optimizer) is type(hosts.stock("Adam"))
    assert int(hosts.array(model.optimizer.iterations)) == 2


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_the_updates_of_a_training():
    """With 1,003 samples, each of the two epochs ends with a short window: 26 updates each."""
    random = np.random.default_rng(0)
    x, y = (random.uniform(0, 1, (1003, n)).astype(hosts.FLOATX) for n in (3, 2))
    code = BLOCKS["a schedule in updates"]
    numbers = "samples, epochs, batch_size, accum_iters = 1003, 20, 10, 5"
    assert numbers in code
    code = code.replace(numbers, numbers.replace("20, 10, 5", "2, 10, 4"))
    names = {}
    exec(code, names)
    model = compiled(initialize(dense_model()), names["optimizer"])
    model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    assert names["optimizer"].completed_updates == names["updates"] == 52


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_fair_comparison(capsys):
    run("a fair comparison", make_model=dense_model, x=X, y=Y)
    assert 0 <= float(capsys.readouterr().out.split()[-1]) < 1e-6  # 0 by chance on JAX


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="for JAX")
def test_a_loop_for_jax():
    model, optimizer = initialize(dense_model()), hosts.ours("Adam", accum_iters=None)
    hosts.build_on(optimizer, model.trainable_variables)

    def loss_of(trainable, others, x, y):
        outputs, others = model.stateless_call(trainable, others, x, training=True)
        return ((outputs - y) ** 2).mean(), others

    variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    names = {"optimizer": optimizer, "micro_batches": batches(10, (X, Y)), "loss_of": loss_of}
    names["state"] = tuple([v.value for v in group] for group in variables)
    names.update(functools=functools, jax=importlib.import_module("jax"))
    found = run("a loop for JAX", **names)["state"]
    for v, value in zip(optimizer.variables, found[2]):
        v.assign(value)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)


@pytest.mark.skipif(hosts.IS_KERAS3 or hosts.IS_NEW_STYLE, reason="test_recipes.py runs it")
def test_adam_in_numpy():
    names, script = {}, (hosts.PROJECT / "examples" / "numpy_adam.py").read_text("utf-8")
    hosts.set_floatx("float32")
    try:
        exec(script.replace("import keras\n", hosts.IMPORT_KERAS + "\n"), names)
    finally:
        hosts.set_floatx(hosts.FLOATX)
    assert names["difference"] < 1e-5


@keras2_has_no("`accumulating`")
def test_another_optimizer():
    class Yours(type(hosts.stock("SGD"))):
        pass

    names = run("another optimizer", Yours=Yours)
    assert issubclass(names["YoursAccumulate"], Yours)
    assert (names["optimizer"].accum_iters, names["optimizer"].completed_updates) == (5, 0)


@keras2_has_no("reduction='weighted'")
def test_weights_in_a_train_step():
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=2, reduction="weighted")
    variable, train_step = hosts.variable([1.0], "w"), run("weights in a train step")["train_step"]
    for gradient, tokens in ((1.0, 3), (-1.0, 1)):
        gradient = hosts.native(hosts.variable([gradient], "g")) + 0.0
        train_step(optimizer, [gradient], [variable], tokens)
    assert hosts.array(variable) == [1 - 0.5 * (3 - 1) / 4]


def followed(optimizer, batch_size, in_step):
    """Train a model, and return its target network's weights, moved in its step or a callback."""

    class Move(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for old, new in zip(self.model.target.weights, self.model.online.weights):
                old.assign(old + 0.01 * (new - old))

    cls = run("a target network", keras=keras)["WithTarget"] if in_step else keras.Model
    x, online = keras.Input((3,)), initialize(dense_model())
    model = cls(x, online(x))
    model.online, model.target = online, initialize(dense_model())
    model.target.trainable = False
    model.compile(optimizer, "mse", **({} if hosts.BACKEND == "jax" else {"run_eagerly": True}))
    is_ours = hasattr(optimizer, "completed_updates")
    callbacks = [accum.OnUpdates([Move()]) if is_ours else Move()] if not in_step else []
    settings = {"epochs": 3, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    model.fit(X[:60], Y[:60], batch_size=batch_size, **settings)
    return model.target.get_weights()


@pytest.mark.parametrize("in_step", [True, False])
def test_what_a_train_step_moves(in_step):
    """A target network moves once per update, by the block on the page or by a callback."""
    if hosts.IS_KERAS2 or in_step and not (hosts.IS_KERAS3 and hosts.BACKEND != "jax"):
        pytest.skip("the block is for other hosts")
    expected = followed(hosts.stock("SGD", learning_rate=0.5), 30, in_step)
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=3)
    for a, b in zip(followed(optimizer, 10, in_step), expected):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's own accumulation")
def test_in_place_of_keras_s_own():
    before = run("before: Keras's own", keras=keras)["optimizer"]
    for block in ("after: Keras's own", "from another package"):
        after = run(block)["optimizer"]
        assert type(after) is accum.AdamAccumulate
        assert after.accum_iters == before.gradient_accumulation_steps
        assert float(after.learning_rate) == float(before.learning_rate)
