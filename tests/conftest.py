"""What all tests share. This file imports only what the tests in `pure` have as well.

pyproject.toml puts the folder `support` on the path, so that tests of all folders import from it.
"""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest

HOST = os.environ.get("KERAS_ACCUM_TEST_HOST", "keras3")
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow") if HOST == "keras3" else "tensorflow"

# Only `nox -s works_with` has the packages of these tests, and gives the file for their rows.
collect_ignore = [] if os.environ.get("KERAS_ACCUM_TEST_WORKS_WITH") else ["works_with"]

# Warnings are errors in the tests, except for these of the hosts' own code.
IGNORED = [
    r"__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras on torch
    r"non-integer arguments to randrange:DeprecationWarning",  # Keras 2.15's seeds
    r"`torch.jit.script_method` is deprecated:DeprecationWarning",  # torch.compile itself
    r"You are saving your model as an HDF5 file:UserWarning",  # Keras, which still does so
    r"Explicitly requested dtype int64:UserWarning",  # Keras on JAX 0.11
    r"Error reading persistent compilation cache:UserWarning",  # another process is writing
    r"\w+\.__init__ got an unexpected keyword:DeprecationWarning",  # AutoGraph on Python 3.13
]
if HOST == "keras2":  # from TensorFlow 1 and Keras on Python 3.7
    IGNORED += [":DeprecationWarning", ":FutureWarning", ":PendingDeprecationWarning"]
    IGNORED += [r"Method on_batch_\w+\(\) is slow:UserWarning"]  # of Keras, on a busy machine


# Frameworks make so many objects that Python's collector would take a twentieth of the time.
gc.set_threshold(200_000)


def pytest_configure(config):
    for warning in IGNORED:
        config.addinivalue_line("filterwarnings", f"ignore:{warning}")


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config, items):
    """Follow the marks that say on which host and in which tier a test runs."""
    for item in items:
        quick = item.get_closest_marker("quick_by")  # a test's own mark, or that of its file
        if quick and not {HOST, HOST == "keras3" and BACKEND} & set(quick.args):
            item.add_marker(pytest.mark.thorough)
        by = item.get_closest_marker("third_by")
        if by and item.get_closest_marker("thorough") and HOST == "keras3":
            if BACKEND not in by.args:
                item.add_marker(pytest.mark.weekly)
    dropped = [item for item in items if _is_dropped(item)]
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=dropped)


# The host for tests marked `once`.
ONCE = (HOST, BACKEND) == ("keras3", "jax")


def _is_dropped(item):
    """True for tests that run on another host, and for most rows with a conditional.

    A conditional has no mathematics. On Keras 2, each promise is tested with it on Adam. On
    other rows, tests marked `all_gates` are enough.
    """
    if item.get_closest_marker("once") and not ONCE:
        return True
    mark = item.get_closest_marker("once_by")
    if mark and HOST == "keras3" and BACKEND not in mark.args:
        return True
    given = getattr(getattr(item, "callspec", None), "params", {})
    if given.get("every_gate", "auto") == "auto":
        return False
    if BACKEND == "torch":  # Python decides there, by the same code for all gates
        return True
    if item.get_closest_marker("all_gates") or given["every_gate"] == "select":
        return False
    from cases import ADAM

    return given.get("case", ADAM) != ADAM


def pytest_terminal_summary(terminalreporter):
    """Write the summary that `noxfile.py` prints: the outcomes, and why tests were skipped."""
    path = os.environ.get("KERAS_ACCUM_TEST_SUMMARY")
    if not path:
        return
    stats = terminalreporter.stats
    outcomes = ("passed", "failed", "error", "skipped", "deselected")
    lines = [", ".join(f"{len(stats[what])} {what}" for what in outcomes if stats.get(what))]
    skipped = Counter(report.longrepr[2] for report in stats.get("skipped", ()))
    for reason, count in skipped.most_common():
        lines.append(f"{count} skipped: {reason.replace('Skipped: ', '')}")
    Path(path).write_text("\n".join(lines), encoding="utf-8")


# What `auto` isn't for an optimizer of Keras where only CPUs are visible.
OTHER_GATE = "conditional" if HOST == "keras2" else "select"


@pytest.fixture(params=["auto", pytest.param(OTHER_GATE, marks=pytest.mark.thorough)])
def every_gate(request, monkeypatch):
    """Run a test with each gate, for all of our optimizers."""
    import hosts

    monkeypatch.setattr(hosts, "GATE", {"gate": request.param})


@pytest.fixture
def grappler():
    """Run a test with TensorFlow's optimizer of graphs, which other tests run without."""
    import hosts

    hosts.set_grappler(True)
    yield
    hosts.set_grappler(False)


@pytest.fixture(autouse=True)
def same_start():
    """Begin each test with the same data type and random numbers."""
    import hosts

    hosts.set_floatx(hosts.FLOATX)
    hosts.set_random_seed()


@pytest.fixture
def float32():
    """Run a test with Keras's own data type, which files and other packages have."""
    import hosts

    hosts.set_floatx("float32")


@pytest.fixture(scope="session")
def strategy():
    """Two replicas for all tests: collectives of a second strategy would mix with the first's."""
    import hosts

    strategy = hosts.tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    return strategy


@pytest.fixture
def two_devices():
    """Run a test on two devices of JAX, with the batch over them."""
    from hosts import keras

    keras.distribution.set_distribution(keras.distribution.DataParallel())
    assert keras.distribution.distribution().device_mesh.shape[0] == 2
    yield
    keras.distribution.set_distribution(None)
