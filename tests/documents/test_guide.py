"""The code in the pages for users runs unchanged, and makes the updates that it should."""

import contextlib
import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import keras2_has_no, once_by_torch, quick_once_on_keras3, thorough
from hosts import accum, keras
from training import compiled, data, dense_model, go_on, initialize

pytestmark = pytest.mark.filterwarnings("error:An epoch ended inside a window")
PAGES = "start", "choose", "train", "loops", "monitor", "saving", "migrate", "why_different"
TEXT = "\n".join((hosts.PROJECT / f"docs/{page}.md").read_text("utf-8") for page in PAGES)
FOUND = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", TEXT, re.S)
BLOCKS = dict(FOUND)
X, Y = (np.concatenate([array] * 3)[:70] for array in data())  # seven micro-batches of 10
PLAIN_TF = hosts.IS_LEGACY and not hosts.keras.__name__.startswith("tf_keras")


IN_START = re.findall("```python\n# ([^\n]+)", (hosts.PROJECT / "docs/start.md").read_text("utf-8"))


@pytest.fixture(scope="module")
def whole():
    """The names of start's whole script."""
    return run_whole() if hosts.IS_KERAS3 else None


def run_whole(**changes):
    code = BLOCKS["a whole script"].replace("batch_size", "shuffle=False, batch_size")
    for old, new in changes.items():
        code = code.replace(old, new)
    names = {"__name__": "page"}
    with in_float32():
        keras.utils.set_random_seed(0)
        exec(code, names)
    return names


@contextlib.contextmanager
def in_float32():
    """As for a user, while the tests have their own type."""
    hosts.set_floatx("float32")
    try:
        yield
    finally:
        hosts.set_floatx(hosts.FLOATX)


def run(block, **names):
    code = BLOCKS[block].replace("import keras\n", hosts.IMPORT_KERAS + "\n")
    names.setdefault("__name__", "page")
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
@quick_once_on_keras3
@pytest.mark.parametrize(
    "block, updates, position",
    [
        row("Keras 3, any optimizer", 2, None, hosts.IS_KERAS3),
        row("tf_keras", 2, 0, hosts.IS_TF_KERAS and not PLAIN_TF),
        row("TensorFlow up to 2.15", 2, 0, PLAIN_TF),
        row("Keras 2.2 and 2.3", 2, 0, hosts.IS_KERAS2),
        row("your own loop, TensorFlow", 6, 0, hosts.IS_KERAS3 and hosts.IS_TENSORFLOW),
        row("your own loop, JAX", 6, 0, hosts.BACKEND == "jax"),
        row("your own loop, PyTorch", 6, 0, hosts.IS_TORCH),
        row("mixed precision", 2, 0, hosts.IS_KERAS3),
        row("resume", 8, 0, hosts.IS_KERAS3),
        row("a contrastive loss", 2, None, hosts.IS_KERAS3),
        row("a weight of your own", 2, 0, hosts.IS_KERAS3),
        row("moving averages", 2, 0, hosts.IS_KERAS3),
        row("validation with the big batch", 2, 0, hosts.IS_KERAS3),
        row("ask your model", 0, 0, not hosts.IS_KERAS2),
        row("a monitor", 1, 0, hosts.IS_KERAS3),
        row("log it", 2, 0, hosts.IS_KERAS3),
        row("the norm of a window's gradient", 2, 0, hosts.IS_KERAS3),
        row("callbacks that count updates", 2, 0, hosts.IS_KERAS3),
        row("validate every 4 updates", 12, 0, hosts.IS_KERAS3),
    ],
)
def test_a_block_with_a_model(block, updates, position, whole, tmp_path, monkeypatch):
    """Those of start go on from its whole script."""
    monkeypatch.chdir(tmp_path)
    model = initialize(dense_model())
    names = {"keras": keras, "model": model, "make_model": lambda: initialize(dense_model())}
    dtype = "float32" if hosts.IS_TORCH else hosts.FLOATX
    names.update(x=X.astype(dtype), y=Y.astype(dtype))
    if hosts.IS_KERAS3 and block in IN_START:
        with in_float32():
            make_model, x, y = whole["make_model"], whole["x"][:70], whole["y"][:70]
            names = run(block, make_model=make_model, model=make_model(), x=x, y=y)
    else:
        names = run(block, **names)
    model = names["model"]
    optimizer = names.get("optimizer") or model.optimizer  # the first one in a loop
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    assert int(hosts.array(optimizer.iterations)) == updates
    assert position in (None, getattr(optimizer, "window_position", None))
    if block == "validate every 4 updates":
        saved = {path.name for path in tmp_path.glob("0*.keras")}
        assert saved == {f"00{epoch}-0000{u}.keras" for epoch in (1, 2, 3) for u in (2, 4)}


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_the_whole_script(whole):
    """It makes as many updates as it says, and ends with the big batch's weights."""
    said = int(re.search(r"completed_updates\)  # (\d+)", BLOCKS["a whole script"])[1])
    assert whole["model"].optimizer.completed_updates == said
    stock = {"AdamAccumulate(1e-3, accum_iters=5)": "keras.optimizers.Adam(1e-3)"}
    stock.update({"batch_size=10": "batch_size=50", "completed_updates": "iterations"})
    assert_same(whole["model"], run_whole(**stock)["model"])


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's own accumulation")
def test_half_trained():
    """In a window after 7 micro-batches; 5 more by the block, one short. Metrics are kept."""
    own = run("before: Keras's own", keras=keras)["optimizer"]
    model = go_on(compiled(initialize(dense_model()), own, metrics=["mae"]), 0, 7)
    model = run("half trained: Keras's own", model=model)["model"]
    assert model.get_compile_config()["metrics"] == ["mae"]
    optimizer = model.optimizer
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)
    x, y = data()
    model.fit(x[14:23], y[14:23], batch_size=2, shuffle=False, verbose=0)
    big = compiled(initialize(dense_model()), keras.optimizers.Adam(1e-3))
    assert_same(model, go_on(big, arrays=(x[:23], y[:23]), batch_size=10))


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_loop_with_a_short_last_batch():
    """Over three epochs: a stale state on JAX would lose the updates at their ends."""
    names = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    x, y = X[:67].astype("float32"), Y[:67].astype("float32")
    models = [initialize(dense_model(dtype="float32")) for _ in range(2)]
    run(f"your own loop, {names[hosts.BACKEND]}", model=models[0], x=x, y=y)
    models[1].compile(hosts.stock("Adam", learning_rate=1e-3), "mse")
    models[1].fit(x, y, batch_size=50, epochs=3, shuffle=False, verbose=0)
    assert_same(*models)


LINES_OF_LOOPS = {  # of start's loops: the loss and the weight
    "tensorflow": ("tf.reduce_mean((model(x, training=True) - y) ** 2)", "tf.shape(x)[0]"),
    "jax": ("keras.ops.mean((y_pred - y) ** 2)", "len(x)"),
    "torch": ("torch.mean((y_pred - y_micro.to(y_pred.device)) ** 2)", "len(x_micro)"),
}
LOSSES = {
    "tensorflow": "loss(y, model(x, training=True))",
    "jax": "loss(y, y_pred)",
    "torch": "loss(y_micro, y_pred)",
}


@quick_once_on_keras3
@keras2_has_no("weights")
@pytest.mark.skipif(PLAIN_TF, reason="the page has tf_keras")
def test_the_weight_by_a_mask():
    """In start's loops with a loss object, against stock Adam at the big batch."""
    random = np.random.default_rng(0)
    lengths = np.repeat([2, 1, 6, 1, 4, 3, 5], 10)[:, None]
    x = np.where(np.arange(6) < lengths, random.integers(1, 9, (70, 6)), 0)
    y = random.integers(0, 3, (70, 6))
    models = []
    for _ in range(2):
        embedding = keras.layers.Embedding(9, 4, mask_zero=True, dtype="float32")
        last = keras.layers.Dense(3, dtype="float32")
        inputs = keras.Input((6,), dtype="int32")
        models.append(initialize(keras.Sequential([inputs, embedding, last])))
    more = {"dtype": "float32"} if hosts.IS_KERAS3 else {}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **more)
    name = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}[hosts.BACKEND]
    code = BLOCKS[f"your own loop, {name}"]
    (weight,) = re.findall("weight = (.+)", BLOCKS["the weight by a mask"])
    if not hosts.IS_KERAS3:
        (weight,) = re.findall(r"On tf_keras, write `(tf\.reduce_sum.+?)`;", TEXT)
        code = code.replace("from keras_accum ", "from keras_accum.tf_keras ")
    if hosts.IS_TORCH:
        weight = weight.replace("(x,", "(x_micro,")
    # Adam would divide by the gradients of rows that Keras's sparse update leaves out.
    code = code.replace("AdamAccumulate(1e-3", "SGDAccumulate(0.1").replace("Adam", "SGD")
    losses, weights = LINES_OF_LOOPS[hosts.BACKEND]
    assert code.count(losses) == code.count(f"weigh({weights})") == 1
    code = code.replace(losses, LOSSES[hosts.BACKEND].replace("loss(", "loss_of_all("))
    code = code.replace(f"weigh({weights})", f"weigh({weight})")
    exec(code, {"model": models[0], "x": x, "y": y, "loss_of_all": loss, "keras": keras})
    models[1].compile(hosts.stock("SGD", learning_rate=0.1), loss)
    models[1].fit(x, y, batch_size=50, epochs=3, shuffle=False, verbose=0)
    assert_same(*models)


@keras2_has_no("schedules")
def test_schedules_of_the_learning_rate():
    names = run("a schedule in updates")
    assert names["updates"] == 20 * 21
    assert float(names["schedule"](420)) == 0 < float(names["schedule"](419))
    grows = run("windows that grow")
    assert (grows["optimizer"].accum_iters, grows["epochs"] * grows["micro_batches"]) == (1, 2020)


@quick_once_on_keras3
@keras2_has_no("windows that end with an epoch")
def test_the_updates_of_windows_that_grow():
    code = BLOCKS["windows that grow"]
    for old, new in ("{0: 1, 100: 4, 300: 16}", "{0: 1, 5: 4}"), ("0, 20, 101", "0, 6, 11"):
        assert old in code
        code = code.replace(old, new)
    names = {}
    exec(code.replace("from keras_accum import", "#"), vars(accum), names)
    model = compiled(initialize(dense_model()), names["optimizer"])
    model.fit(X[:55], Y[:55], batch_size=5, epochs=6, verbose=0)
    assert model.optimizer.completed_updates == names["updates"] == 22
    assert names["windows"].updates_in(66) == 20


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_schedule_of_accelerate():
    """Ours after each update is transformers' schedule, which has 4 steps per update."""

    class Accelerator:
        def prepare(self, scheduler):
            return lambda update: scheduler(4 * update)

    def get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
        """By the formula of transformers."""
        whole = num_training_steps - num_warmup_steps

        def rate(step):
            if step < num_warmup_steps:
                return step / num_warmup_steps
            return 0.5 * (1 + np.cos(np.pi * (step - num_warmup_steps) / whole))

        return rate

    names = {"optimizer": None, "accelerator": Accelerator()}
    names["get_cosine_schedule_with_warmup"] = get_cosine_schedule_with_warmup
    before = run("before: accelerate, on 4 processes", **names)["scheduler"]
    after = run("after: accelerate")
    for update in range(251):
        rate = float(hosts.array(after["schedule"](update)))
        np.testing.assert_allclose(rate, 1e-3 * before(update), rtol=0, atol=1e-9)
    assert after["optimizer"].accum_iters == 5


class Stop(keras.callbacks.Callback):
    """Save after one micro-batch of a training, and end it."""

    def __init__(self, last):
        super().__init__()
        self.left = last

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.save("train.keras")
            raise KeyboardInterrupt


@thorough
@once_by_torch  # it compiles nothing
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
@pytest.mark.filterwarnings("ignore:keras_accum. No window of this training was whole")
@pytest.mark.parametrize(
    "samples, arguments, updates",
    [
        (53, "accum_iters=5", 4),
        pytest.param(83, "accum_iters=5", 4, marks=pytest.mark.weekly),
        (100, "accum_iters=5", 4),
        (53, "accum_iters=5, reduction='mean'", 2),
        # windows of 2, 3, 1, 3 and 3 micro-batches
        pytest.param(53, "accum_iters=schedule", 5, marks=pytest.mark.weekly),
    ],
)
def test_a_training_continues_at_each_position(samples, arguments, updates, tmp_path, monkeypatch):
    """Also after the last micro-batch of an epoch, with its window open or closed."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x, y = (random.uniform(0, 1, (samples, n)).astype("float32") for n in (3, 2))
    code = BLOCKS["save inside an epoch"]
    for old, new in (('.keras", 4, 10', '.keras", 2, 10'), ("accum_iters=5", arguments)):
        assert code.count(old) == 1
        code = code.replace(old, new)
    schedule = accum.AccumulationSchedule({0: 2, 1: 3})
    last = 2 * -(-samples // 10)
    expected = None
    for stop in (None, *range(1, last + 1)):
        model = initialize(dense_model(dtype="float32"))
        names = {"model": model, "x": x, "y": y, "schedule": schedule, "__name__": "page"}
        if stop:
            stopped = code.replace("[Save()]", "[stop]")
            with pytest.raises(KeyboardInterrupt):
                exec(stopped, {**names, "stop": Stop(stop)})
        exec(code.replace("[Save()]", "[]"), names)
        assert names["model"].optimizer.completed_updates == updates
        found = names["model"].get_weights()
        expected = expected or found
        for weight, other in zip(found, expected):
            np.testing.assert_array_equal(weight, other)
        Path("train.keras").unlink()


@once_by_torch
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_training_in_slices_continues(tmp_path, monkeypatch):
    """By the lines for MicroBatches and Keras's own optimizer, after each batch."""
    monkeypatch.chdir(tmp_path)
    x, y = X[:57].astype("float32"), Y[:57].astype("float32")
    code = BLOCKS["save inside an epoch"]
    code = re.sub(r"(?m)^first, done(.*\n)+?    first, done.*\n", BLOCKS["count batches"], code)
    ours, stock = "AdamAccumulate(1e-3, accum_iters=5)", "keras.optimizers.Adam(1e-3)"
    for old, new in ((ours, stock), ('.keras", 4, 10', '.keras", 2, 10')):
        assert code.count(old) == 1
        code = code.replace(old, new)
    ends = []
    for stop in (None, 1, 5, 6, 11):
        model = initialize(dense_model(dtype="float32"))
        names = {"model": model, "x": x, "y": y, "MicroBatches": accum.MicroBatches}
        names["__name__"] = "page"
        if stop:
            stopped = code.replace("[Save()]", "[stop, MicroBatches(5)]")
            with pytest.raises(KeyboardInterrupt):
                exec(stopped, {**names, "stop": Stop(stop)})
        exec(code.replace("[Save()]", "[MicroBatches(5)]"), names)
        assert int(names["model"].optimizer.iterations) == 2 * 6
        ends.append(names["model"])
        Path("train.keras").unlink()
    for end in ends[1:]:
        assert_same(end, ends[0])


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_weight_of_your_own():
    """With missing labels, the block ends with the big batch's weights."""
    x, y = X[:60].astype("float32"), Y[:60].astype("float32")
    y[np.random.default_rng(0).uniform(size=y.shape) < np.linspace(0, 0.9, 60)[:, None]] = -1
    models = [initialize(dense_model(dtype="float32")) for _ in range(2)]
    block = BLOCKS["a weight of your own"]
    block = block.replace("batch_size=10", "batch_size=10, shuffle=False")
    names = {"model": models[0], "x": x, "y": y, "__name__": "page"}
    exec(block, names)
    models[1].compile(keras.optimizers.Adam(1e-3), loss=names["loss"])
    models[1].fit(x, y, batch_size=50, shuffle=False, verbose=0)
    assert_same(*models)


def assert_same(model, other):
    for a, b in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@quick_once_on_keras3
@keras2_has_no("`.keras` files and `to_stock`")
@pytest.mark.skipif(PLAIN_TF, reason="its `.keras` files hold no legacy optimizer")
@pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="the page's classes are of the legacy style")
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


@quick_once_on_keras3
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
    # The comment says which samples train if some validate.
    (samples,) = re.findall(r"samples = (int\(1003 \* \(1 - 0\.2\)\))", code)
    model.fit(x, y, batch_size=10, validation_split=0.2, verbose=0)
    assert names["optimizer"].completed_updates - 52 == -(-eval(samples) // 40)


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_contrastive_loss():
    """In slices, it is the loss of the whole batch."""
    code = BLOCKS["a contrastive loss"].replace("batch_size=50", "batch_size=50, shuffle=False")
    # Adam would amplify rounding: the bias of the text has a gradient of zero in theory.
    code, models = code.replace("Adam(1e-3)", "SGD(0.1)"), []
    for callbacks in "[MicroBatches(10)]", "[]":
        keras.utils.set_random_seed(0)
        names = {"x": X.astype("float32"), "y": Y.astype("float32"), "__name__": "page"}
        exec(code.replace("[MicroBatches(10)]", callbacks), names)
        models.append(names["model"])
    assert_same(*models)


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_what_a_model_holds_after_moving_averages():
    """The average, in the model and in the optimizer; a callback before the swap has the raw."""
    model, kept = initialize(dense_model()), []
    raw = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: kept.append(model.get_weights())
    )
    code = BLOCKS["moving averages"].replace("[swap]", "[raw, swap]")
    dtype = "float32" if hosts.IS_TORCH else hosts.FLOATX
    names = {"model": model, "x": X.astype(dtype), "y": Y.astype(dtype), "raw": raw}
    exec(code, names)
    averages = [hosts.array(v) for v in model.optimizer._model_variables_moving_average]
    for weight, average, of_raw in zip(model.get_weights(), averages, kept[-1]):
        np.testing.assert_array_equal(weight, average)
        assert np.abs(weight - of_raw).max() > 0


LOGS = re.findall(r"(?m)^\| .+ \| `(log = (\w+)\..+?)` \|", TEXT)


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
@pytest.mark.parametrize("line, package", LOGS, ids=[line.split("(")[0] for line, _ in LOGS])
def test_where_numbers_are_logged(line, package, tmp_path, monkeypatch):
    """Each line of the table in the block, on the hosts that have its package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    needed = {"TensorBoard": "tensorboard", "Wandb": "wandb.integration.keras"}
    needed = [module for name, module in needed.items() if name in line]
    names = {"keras": keras, **{name: pytest.importorskip(name) for name in (package, *needed)}}
    if package == "tqdm":
        pytest.importorskip("tqdm.keras")
    if package == "wandb":
        names["wandb"].init()
    (old,) = re.findall(r"(?m)^log = .*", BLOCKS["log it"])
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda update, logs: counts.append(logs["completed_updates"])
    )
    code, counts = BLOCKS["log it"].replace(old, line), []
    code = code.replace("OnUpdates([log])", "OnUpdates([log, seen])")
    exec(code, {**names, "model": initialize(dense_model()), "x": X, "y": Y, "seen": seen})
    assert counts == [1, 2]
    if "CSVLogger" in line:
        assert "completed_updates" in Path("log.csv").read_text("utf-8").splitlines()[0]


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_the_norm_of_a_window():
    """It is how far stock SGD with a rate of 1 moves the weights at the big batch."""
    x, y = X[:50].astype("float32"), Y[:50].astype("float32")
    models = [initialize(dense_model(dtype="float32")) for _ in range(2)]
    start = models[0].get_weights()
    logs = {}
    kept = keras.callbacks.LambdaCallback(on_train_batch_end=lambda update, of: logs.update(of))
    code = BLOCKS["the norm of a window's gradient"].replace("[LogNorm()]", "[LogNorm(), kept]")
    exec(code, {"model": models[0], "x": x, "y": y, "kept": kept})
    models[1].compile(keras.optimizers.SGD(1.0), loss="mse")
    models[1].fit(x, y, batch_size=50, verbose=0)
    moved = [a - b for a, b in zip(start, models[1].get_weights())]
    expected = np.sqrt(sum((part**2).sum() for part in moved))
    np.testing.assert_allclose(logs["gradient_norm"], expected, rtol=1e-5)


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
def test_a_fair_comparison(capsys):
    run("a fair comparison", make_model=dense_model, x=X, y=Y)
    assert 0 <= float(capsys.readouterr().out.split()[-1]) < 1e-6  # 0 by chance on JAX


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="for JAX")
def test_a_loop_for_jax():
    """After the loop of start, whose names it takes. Each ends with the big batch's weights."""
    models = [initialize(dense_model(dtype="float32")) for _ in range(2)]
    x, y = X.astype("float32"), Y.astype("float32")
    names = run("your own loop, JAX", model=models[0], x=x, y=y)
    names["micro_batches"] = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 70, 10)]
    names = run("a loop for JAX", **names)
    assert names["optimizer"].completed_updates == 12
    models[1].compile(hosts.stock("Adam", learning_rate=1e-3), "mse")
    models[1].fit(x, y, batch_size=50, epochs=6, shuffle=False, verbose=0)
    assert_same(*models)


@keras2_has_no("mixed precision")
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="the page has TensorFlow")
def test_mixed_precision_in_a_loop():
    """A window with a short micro-batch makes the big batch's update, as far as float16 tells."""
    x, y = X[:47].astype("float32"), Y[:47].astype("float32")
    code = BLOCKS["mixed precision in a loop, Keras 3"]
    if not hosts.IS_KERAS3:
        own = BLOCKS["mixed precision in a loop, tf_keras"]
        code = re.sub(r"(?s)optimizer = .*?\n(?=\nfor )", lambda _: own, code)
        code = code.replace("import keras\n", hosts.IMPORT_KERAS + "\n")
        code = code.replace("from keras_accum ", "from keras_accum.tf_keras ")
    hosts.set_floatx("float32")
    set_policy = (keras.config if hosts.IS_KERAS3 else keras.mixed_precision).__dict__
    set_policy = set_policy.get("set_dtype_policy") or set_policy["set_global_policy"]
    set_policy("mixed_float16")
    try:
        model = initialize(dense_model())
    finally:
        set_policy("float32")
    plain = initialize(dense_model(dtype="float32"))
    start = plain.get_weights()
    micro_batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 47, 10)]
    names = {"model": model, "micro_batches": micro_batches, "__name__": "page"}
    try:
        exec(code.replace("AdamAccumulate(1e-3", "SGDAccumulate(0.5").replace("Adam", "SGD"), names)
    finally:
        hosts.set_floatx(hosts.FLOATX)
    assert names["inner"].completed_updates == 3
    plain.compile(hosts.stock("SGD", learning_rate=0.5), "mse")
    plain.fit(x, y, batch_size=47, epochs=3, verbose=0)
    for found, expected, before in zip(model.get_weights(), plain.get_weights(), start):
        moved = np.abs(expected - before).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-2 * moved)


@pytest.mark.quick_by("tensorflow")
@pytest.mark.skipif(not hosts.IS_KERAS3 or hosts.IS_TORCH, reason="the page has TensorFlow and JAX")
def test_padded_sequences():
    """Micro-batches with 0 to 12 labels, against stock Adam on their labels together."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (35, 6, 3)).astype("float32")
    lengths = np.repeat([2, 0, 6, 1, 4, 3, 5], 5)
    y = np.where(np.arange(6) < lengths[:, None], random.integers(0, 2, (35, 6)), -100)
    models = []
    for _ in range(2):
        model = keras.Sequential([keras.Input((6, 3)), keras.layers.Dense(2, dtype="float32")])
        models.append(initialize(model))
    micro_batches = [(x[i : i + 5], y[i : i + 5]) for i in range(0, 35, 5)]
    if hosts.IS_TENSORFLOW:
        run("padded sequences, TensorFlow", model=models[0], micro_batches=micro_batches)
    else:
        exec(start_with_labels(), {"model": models[0], "x": x, "y": y})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    models[1].compile(keras.optimizers.Adam(1e-3), loss)
    models[1].fit(x, y, batch_size=25, epochs=3, shuffle=False, verbose=0)
    assert_same(*models)


def start_with_labels():
    """Return start's loop for JAX with the page's loss and weight, in batches of 5."""
    code = BLOCKS["your own loop, JAX"]
    (weight,) = re.findall(r"`optimizer\.weigh\((.+)\)` into its step", TEXT)
    (loss,) = re.findall(r"(?m)^def loss_of(?:.*\n)+?\n", code)
    changes = {loss: BLOCKS["padded sequences, JAX"] + "\n", "weigh(len(x))": f"weigh({weight})"}
    for old, new in {**changes, "len(x), 10": "len(x), 5", "i + 10": "i + 5"}.items():
        assert old in code
        code = code.replace(old, new)
    return code


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


@keras2_has_no("weights")
def test_weights_in_a_train_step():
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=2)
    variable, train_step = hosts.variable([1.0], "w"), run("weights in a train step")["train_step"]
    for gradient, tokens in ((1.0, 3), (-1.0, 1)):
        gradient = hosts.native(hosts.variable([gradient], "g")) + 0.0
        train_step(optimizer, [gradient], [variable], tokens)
    assert hosts.array(variable) == [1 - 0.5 * (3 - 1) / 4]


@quick_once_on_keras3
@keras2_has_no("callbacks that count updates of batches with a target network")
def test_a_target_network():
    """It moves once per update, also by the updates of a last window of one micro-batch."""
    found = []
    for optimizer, size, callback in (
        (hosts.stock("SGD", learning_rate=0.5), 30, "MoveTarget()"),
        (hosts.ours("SGD", learning_rate=0.5, accum_iters=3), 10, "OnUpdates([MoveTarget()])"),
    ):
        x, online = keras.Input((3,)), initialize(dense_model())
        model = keras.Model(x, online(x))
        model.online, model.target = online, initialize(dense_model())
        model.target.trainable = False
        model.compile(optimizer, "mse", **({} if hosts.BACKEND == "jax" else {"run_eagerly": True}))
        code = BLOCKS["a target network"].replace("OnUpdates([MoveTarget()])", callback)
        code = code.replace("batch_size=10", f"batch_size={size}, epochs=3, shuffle=False")
        code = code.replace("from keras_accum import", "#").replace("import keras\n", "")
        names = {"keras": keras, "OnUpdates": accum.OnUpdates, "model": model, "x": X, "y": Y}
        exec(code, names)
        found.append(model.target.get_weights())
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="for Keras 3")
@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_TORCH, reason="for PyTorch")
def test_a_critic_that_trains_first():
    """As stock Adam at big batches of 4, 6 and 5 samples: the first leaves a window open."""
    import torch

    arrays = (torch.as_tensor(a[:60].astype("float32")) for a in (X, Y))
    big = list(zip(*(array.split([4, 6, 5] * 4) for array in arrays)))
    found = []
    for kind, size in (hosts.ours, 2), (hosts.stock, 6):
        keras.utils.set_random_seed(0)
        more = {"accum_iters": 3} if kind is hosts.ours else {}
        optimizers = [kind("Adam", learning_rate=0.01, **more) for _ in range(2)]
        layer = {"kernel_initializer": "ones", "dtype": "float32", "activation": "tanh"}
        generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, **layer)])
        critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, **layer)])

        def loss_of_critic(noise, real, critic=critic, generator=generator):
            return (critic(generator(noise)) - critic(real)).mean()

        def loss_of_generator(noise, real, critic=critic, generator=generator):
            return ((critic(generator(noise)) - 1) ** 2).mean()

        parts = [list(zip(*(array.split(size) for array in pair))) for pair in big]
        code = BLOCKS["a critic that trains first"]
        if kind is hosts.stock:
            code = re.sub(r" *optimizer\.(weigh|apply_partial_window)\(.*\n", "", code)
        names = {"torch": torch, "critic": critic, "generator": generator}
        names.update(loss_of_critic=loss_of_critic, loss_of_generator=loss_of_generator)
        names.update(generator_optimizer=optimizers[0], critic_optimizer=optimizers[1])
        exec(code, {**names, "big_batches": [parts[i : i + 3] for i in range(0, 12, 3)]})
        found.append([*generator.get_weights(), *critic.get_weights()])
        assert [int(hosts.array(o.iterations)) for o in optimizers] == [4, 8]
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_from_1_x():
    """The line lets windows continue in the next epoch, and the optimizer can be converted."""
    optimizer = run("as in 1.x")["optimizer"]
    model = compiled(initialize(dense_model()), optimizer)
    model.fit(X[:33], Y[:33], batch_size=10, epochs=2, verbose=0)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 3)
    optimizer.apply_partial_window()
    new = accum.AdamAccumulate.from_optimizer(optimizer, reduction="auto")
    assert (new.reduction, new.accum_iters, new.completed_updates) == ("auto", 5, 2)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's own accumulation")
def test_in_place_of_keras_s_own():
    before = run("before: Keras's own", keras=keras)["optimizer"]
    after = run("after: Keras's own")["optimizer"]
    assert type(after) is accum.AdamAccumulate
    assert after.accum_iters == before.gradient_accumulation_steps
    assert float(after.learning_rate) == float(before.learning_rate)
