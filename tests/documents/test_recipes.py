"""The scripts in examples/ run unchanged, in this process. Most equal their big batch."""

import re
from pathlib import Path

import hosts
import numpy as np
import pytest
import training
from cases import once_on_keras3, thorough
from hosts import keras
from processes import run_together, two_free_ports
from training import BIG, LENGTH, MICRO, assert_equal, compiled, dense_model, fit, weights

if not hosts.IS_KERAS3:
    pytest.skip("the recipes are for Keras 3", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("error:An epoch ended inside a window")
FOLDER = hosts.PROJECT / "examples"
PAGE = (hosts.PROJECT / "docs" / "start.md").read_text("utf-8")
# The rows of the page: each script with the backends that it runs on, or "all".
FOUND = re.findall(r"^\| .*\(\.\./examples/(\w+)\.py\).* \| (.+) \|$", PAGE, re.M)
BACKENDS = {"TensorFlow": "tensorflow", "JAX": "jax", "PyTorch": "torch"}
SCRIPTS = {
    name: (FOLDER / f"{name}.py").read_text("utf-8")
    for name, on in FOUND
    if on == "all" or hosts.BACKEND in [BACKENDS[backend] for backend in on.split(", ")]
}
OURS = r"Adam(W?)Accumulate\(1e-3, accum_iters=5\)"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """What a script expects: Keras's own data type, and a folder for its files."""
    hosts.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    keras.config.set_dtype_policy(hosts.FLOATX)


def run(script):
    names = {"__name__": "recipe"}
    exec(script, names)
    return names


def recipe(name):
    """A mark for the test of a script: it runs where the script does."""
    skip = pytest.mark.skipif(name not in SCRIPTS, reason="a recipe for another backend")
    return lambda test: thorough(skip(test))


def assert_same(found, expected):
    pairs = list(zip(found.get_weights(), expected.get_weights()))
    assert pairs
    for weight, other in pairs:
        np.testing.assert_allclose(weight, other, rtol=0, atol=2e-6)


def test_each_script_has_a_test():
    assert {name for name, _ in FOUND} == {path.stem for path in FOLDER.glob("*.py")}
    files = Path(__file__), Path(__file__).with_name("test_language_model.py")
    tests = "".join(path.read_text("utf-8") for path in files)
    assert [name for name, _ in FOUND if not re.search(rf'"{name}(\.py)?"', tests)] == []


# The updates of a script, and what it has in place of micro-batches for the stock optimizer.
CHANGES = {
    "fine_tuning": (12, {"batch_size=10": "batch_size=50"}),
    # 107 samples make three updates in each of three epochs.
    "loop_tensorflow": (9, {".batch(10": ".batch(50"}),
    "loop_jax": (9, {"len(x), 10)": "len(x), 50)", "i + 10": "i + 50"}),
    "loop_torch": (9, {"batch_size=10": "batch_size=50"}),
    "gan": (9, {".batch(10": ".batch(50"}),
    "gan_jax": (9, {"len(noise), 10)": "len(noise), 50)", "i + 10": "i + 50"}),
    "gan_in_fit": (9, {"batch_size=10": "batch_size=50"}),
}


@thorough
@pytest.mark.parametrize("name", [name for name in CHANGES if name in SCRIPTS])
def test_it_equals_its_big_batch(name):
    updates, changes = CHANGES[name]
    script, count = re.subn(OURS, r"keras.optimizers.Adam\1(1e-3)", SCRIPTS[name])
    assert count == 1
    ends = r" *for _, optimizer in pairs:\n *optimizer\.apply_p.*\n| *optimizer\.apply_p.*\n"
    script = re.sub(rf"^(?:{ends}| *optimizer\.weigh.*\n| *print.*\n)", "", script, flags=re.M)
    for old, new in {"from keras_accum import": "#", **changes}.items():
        assert old in script
        script = script.replace(old, new)
    found = run(SCRIPTS[name])
    assert_same(found["model"], run(script)["model"])
    assert found["optimizer"].completed_updates == updates


@recipe("resume")
def test_resume(folder, monkeypatch):
    """Killed in its third epoch, in a window, and started again: the same as without the kill."""
    whole = run(SCRIPTS["resume"])["model"]

    class Killed(keras.callbacks.BackupAndRestore):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            super().on_epoch_begin(epoch, logs)

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == (2, 6):
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keras.callbacks, "BackupAndRestore", Killed)
        run(SCRIPTS["resume"])
    assert list(folder.glob("backup/*"))
    again = run(SCRIPTS["resume"])["model"]
    for weight, other in zip(again.get_weights(), whole.get_weights()):
        np.testing.assert_array_equal(weight, other)
    assert again.optimizer.completed_updates == whole.optimizer.completed_updates == 4 * 3


@recipe("several_processes")
def test_several_processes(folder):
    """With shares of other sizes, one of them empty, the weights of one process's big batches."""
    port, *_ = two_free_ports()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    run_together([([FOLDER / "several_processes.py"], environment) for environment in ranks])
    keras.utils.set_random_seed(0)
    layers = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), *layers])
    found = keras.models.clone_model(model)
    model.compile(keras.optimizers.Adam(1e-2), loss="mse")
    x = np.linspace(-1, 1, 50).astype("float32")[:, None]
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(50)
        model.fit(x[order], x[order] ** 2, batch_size=21, shuffle=False, verbose=0)
    found.load_weights(folder / "model.weights.h5")
    assert_same(found, model)
    assert np.load(folder / "optimizer.npz")["completed_updates"] == 9


@recipe("serving")
def test_serving(folder):
    found = run(SCRIPTS["serving"])
    x, expected = found["x"], found["model"].predict(found["x"], verbose=0)
    np.testing.assert_array_equal(found["served"].predict(x, verbose=0), expected)
    assert not found["served"].compiled
    stock = keras.models.load_model(folder / "stock.keras")
    assert type(stock.optimizer) is keras.optimizers.Adam and int(stock.optimizer.iterations) == 2
    exported = hosts.tf.saved_model.load(str(folder / "exported"))
    np.testing.assert_allclose(exported.serve(x), expected, rtol=0, atol=1e-6)


@recipe("window_by_tokens")
def test_a_window_by_tokens():
    """Twice windows of 64, 60 and 52 tokens, each a batch of its tokens for the stock optimizer."""
    found = run(SCRIPTS["window_by_tokens"])
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(1e-3), loss="mse")
    for window in 2 * (slice(0, 3), slice(3, 6), slice(6, 8)):
        pairs = [[a.reshape(1, -1, a.shape[-1]) for a in pair] for pair in found["micro_batches"]]
        model.train_on_batch(*(np.concatenate(part, 1) for part in zip(*pairs[window])))
    assert_same(found["model"], model)
    assert found["optimizer"].completed_updates == 6


@recipe("numpy_adam")
def test_numpy_adam():
    assert run(SCRIPTS["numpy_adam"])["difference"] < 1e-5


@once_on_keras3
def test_your_own_optimizer():
    found = run(SCRIPTS["your_own_optimizer"])
    # weight_decay is handled by Keras's base class.
    arguments = {"learning_rate": 2**-6, "weight_decay": 2**-2}
    stock = compiled(dense_model(), found["NormalizedSGD"](**arguments))
    start = weights(stock)
    fit(stock, BIG)
    accumulate = found["NormalizedSGDAccumulate"](accum_iters=LENGTH, **arguments)
    ours = compiled(dense_model(), accumulate)
    fit(ours, MICRO)
    training.assert_moved(start, weights(stock))
    assert_equal(weights(ours), weights(stock))
    assert accumulate.completed_updates == training.UPDATES
    slots = enumerate(stock.optimizer.momentums)
    slots = {f"NormalizedSGD.momentum.{i}": hosts.array(slot) for i, slot in slots}
    assert_equal(accumulate.get_state(), slots)
