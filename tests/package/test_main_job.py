"""`python -m keras_accum`, as a user runs it."""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time

import hosts
import pytest
from cases import once, thorough

from keras_accum import __main__ as main
from keras_accum import demo

trains = pytest.mark.skipif(
    hosts.IS_KERAS2, reason="python -m keras_accum trains on Keras 3 and tf_keras"
)
SMALL = ("--epochs", 1, "--batch", 50, "--accum-iters", 5, "--host", hosts.HOST)


def command(*arguments):
    return [sys.executable, "-m", "keras_accum", *map(str, arguments)]


def run(command, cwd=None, **environment):
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )


# The demo where the package that the first argument names is not installed.
WITHOUT = """
import sys

class Without:
    missing = sys.argv.pop(1)

    def find_spec(self, name, path=None, target=None):
        if name == self.missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from keras_accum import __main__ as main
main.hide_logs()
sys.exit(main.main())
"""


def run_without(package, *arguments, **environment):
    return run([sys.executable, "-c", WITHOUT, package, *arguments], **environment)


def assert_refused(job, *said):
    """Ended with a message that says all of this, and without a traceback."""
    assert job.returncode == 2, job.stderr
    for text in said:
        assert text in job.stderr
    assert "Traceback" not in job.stderr
    assert "holds" not in job.stdout


# -- what it shows -------------------------------------------------------------------------------


@thorough
@trains
def test_it_shows_what_it_claims(tmp_path):
    picture = tmp_path / "curves.png"
    job = run(command(*SMALL, "--plot", picture))
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("holds: ") == 2 and "FAILS" not in job.stdout
    assert job.stderr == ""  # also nothing that a framework logs
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(str(tmp_path)) == ["curves.png"]

    lines = job.stdout.splitlines()
    assert str(picture) in lines[0]
    assert ", epochs: 1," in lines[1]
    assert lines[2].startswith(f"{hosts.FLOATX} ") and "tanh" in lines[2]
    assert "5 times as many updates, so their loss may be lower" in job.stdout
    assert max(map(len, lines[1:])) <= 100  # the first line has the path


@once
@thorough
@trains
def test_float32_and_relu(tmp_path):
    arguments = "--dtype", "float32", "--activation", "relu", "--plot", tmp_path / "curves.png"
    job = run(command(*SMALL, *arguments))
    assert job.returncode == 0, job.stdout + job.stderr
    assert "float32 (7 decimal digits), relu" in job.stdout


@pytest.mark.parametrize("epochs", [1, 2, 15])
def test_picture(epochs, tmp_path):
    options = argparse.Namespace(epochs=epochs, batch=10, accum_iters=5, optimizer="adam")
    runs = {
        name: demo.Run(10, 450, [3.0 / slope / epoch for epoch in range(1, epochs + 1)], 1.0, [])
        for name, slope in (("big batch", 1), ("accumulated", 1), ("micro-batches", 2))
    }
    figure = demo.draw(options, runs)
    axes = figure.axes[0]
    assert axes.get_title() == "5 accumulated batches of 10 train as one batch of 50"
    assert axes.get_xlabel() == "epoch" and "loss" in axes.get_ylabel()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) == 3 and all(re.search("batches of [15]0", label) for label in labels)

    path = tmp_path / "curves.png"
    figure.savefig(str(path))
    assert path.stat().st_size < 60_000
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks and all(tick == int(tick) for tick in ticks)
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
    if epochs == 1:  # a line through one point can't be seen
        assert all(line.get_marker() == "o" for line in axes.lines)


# -- what it refuses -----------------------------------------------------------------------------


def test_help():
    job = run(command("--help"))
    assert job.returncode == 0
    options = "epochs", "batch", "accum-iters", "optimizer", "dtype", "activation", "seed"
    for option in (*options, "host", "plot"):
        assert f"--{option}" in job.stdout


BAD = [
    # option, value, what of it the message repeats
    ("--epochs", "0", "0"),
    ("--batch", "-1", "-1"),
    ("--batch", "1000", "5000"),  # a window of more digits than there are
    ("--accum-iters", "1", "1"),
    ("--accum-iters", "2.5", "2.5"),
    ("--optimizer", "lion", "lion"),
    ("--dtype", "float16", "float16"),
    ("--activation", "gelu", "gelu"),
    ("--seed", "4294967296", "4294967296"),
    ("--host", "keras9", "keras9"),
    ("--plot", "curves.jpg", "curves.jpg"),
    ("--plot", "no/such/folder.png", "no/such/folder.png"),
]


@pytest.mark.parametrize("option, value, received", BAD)
def test_bad_value(option, value, received, capsys):
    """Refused before anything is trained, in one line that names the option."""
    with pytest.raises(SystemExit) as end:
        main.main([option, value])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert option in said.err and received in said.err


def test_bad_value_on_the_command_line():
    job = run(command("--epochs", "0"))
    assert_refused(job, "--epochs", "at least 1")
    assert job.stdout == ""


def test_a_folder_that_cannot_be_written(tmp_path):
    """Nobody, root included, can make a file in /proc."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs a folder in which nobody can write, as /proc is")
    job = run(command(), cwd="/proc", PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    assert_refused(job, "--plot", "must be a file that can be written", "keras_accum.png")
    assert job.stdout == ""


def test_the_trial_leaves_no_trace(tmp_path):
    old, new, folder = tmp_path / "old.png", tmp_path / "new.png", tmp_path / "folder.png"
    old.write_bytes(b"as it was")
    folder.mkdir()
    assert main.writable_png(str(old)) and main.writable_png(str(new))
    assert old.read_bytes() == b"as it was" and not new.exists()
    with pytest.raises(argparse.ArgumentTypeError, match="can be written, such as --plot /tmp/"):
        main.writable_png(str(folder))


@trains
@pytest.mark.parametrize("package", ["tqdm", "matplotlib", "sklearn"])
def test_missing_package(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    status = main.main(["--host", hosts.HOST, "--plot", str(tmp_path / "curves.png")])
    said = capsys.readouterr()
    job = subprocess.CompletedProcess([], status, said.out, said.err)
    assert_refused(job, package, "pip install 'keras_accum[")


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has backends")
class TestBackends:
    def test_missing(self, tmp_path):
        arguments = "--host", "keras3", "--plot", str(tmp_path / "curves.png")
        others = [b for b in ("tensorflow", "jax", "torch") if b != hosts.BACKEND]
        others = [b for b in others if importlib.util.find_spec(b)]
        remedy = f"pip install 'keras_accum[{hosts.BACKEND},demo]'"
        if others:
            remedy = f"KERAS_BACKEND={others[0]} python -m keras_accum"
        job = run_without(hosts.BACKEND, *arguments, KERAS_BACKEND=hosts.BACKEND)
        assert_refused(job, hosts.BACKEND, remedy)

    @pytest.mark.parametrize("backend", ["theano", "numpy"])
    def test_wrong(self, backend, tmp_path):
        arguments = "--host", "keras3", "--plot", tmp_path / "curves.png"
        job = run(command(*arguments), KERAS_BACKEND=backend)
        assert_refused(job, "KERAS_BACKEND must be tensorflow, jax, torch or unset", backend)

    @pytest.mark.skipif(hosts.IS_TENSORFLOW, reason="TensorFlow has float64")
    def test_without_float64(self, tmp_path):
        job = run(command("--dtype", "float64", "--plot", tmp_path / "curves.png"))
        assert_refused(job, "--dtype float64 needs the backend tensorflow", hosts.BACKEND)


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about standalone Keras 2")
def test_keras_2(tmp_path):
    job = run(command("--plot", tmp_path / "curves.png"))
    assert_refused(job, "The demo needs Keras 3 or tf_keras. Found: standalone Keras 2")


# -- how it ends when it is interrupted ----------------------------------------------------------


# A process in the background, as CI may be, hands down that SIGINT is ignored.
BY_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def ends(group):
    """True if no process of a group is left, within some seconds."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.2)
    return False


@once
@thorough
@trains
@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a group of processes")
@pytest.mark.parametrize("line, epochs", [("decimal digits", 1000), ("A new process goes on", 2)])
def test_interrupt(line, epochs, tmp_path):
    """Ctrl-C in a training, and while the new process works: one line, and no process is left."""
    small = "--epochs", epochs, "--batch", 150, "--host", hosts.HOST
    python, *arguments = command(*small, "--plot", tmp_path / "curves.png")
    job = subprocess.Popen(
        [python, "-c", BY_CTRL_C, python, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        start_new_session=True,
    )
    try:
        assert any(line in said for said in iter(job.stdout.readline, ""))
        os.killpg(job.pid, signal.SIGINT)
        _, error = job.communicate(timeout=60)
        assert job.returncode == 130 and error.split() == ["Interrupted."]
        assert ends(job.pid)
    finally:
        job.kill()
        job.communicate()
