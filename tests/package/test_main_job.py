"""`python -m keras_accum`, as a user runs it."""

import os
import subprocess
import sys

import hosts
import pytest
from cases import once_on_keras3, thorough

from keras_accum import __main__ as main

on_tensorflow = hosts.IS_TENSORFLOW and not hosts.IS_KERAS2
trains = pytest.mark.skipif(not on_tensorflow, reason="TensorFlow, as in README, is enough")
once_a_week = pytest.mark.weekly if hosts.IS_TF_KERAS else thorough


def run(*options, **environment):
    command = [sys.executable, "-m", "keras_accum", *options]
    environment = {**os.environ, **environment}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # a user has none
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@thorough
@once_a_week
@trains
def test_it_shows_what_it_claims():
    job = run()
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("holds: ") == 3 and "FAILS" not in job.stdout
    assert f"keras_accum.{hosts.HOST} on " in job.stdout
    assert "after 2 of 25 micro-batches" in job.stdout
    rows = dict(line.rsplit(None, 1) for line in job.stdout.splitlines() if "%" in line)
    names, differences = zip(*((start.split()[0], float(end)) for start, end in rows.items()))
    assert names == ("big", "accumulated", "small")
    assert differences[0] == 0 < differences[1] < main.TOLERANCE < 0.1 < differences[2]
    assert max(map(len, job.stdout.splitlines())) <= 80
    assert job.stderr == ""  # no line of a log, and no progress but on a terminal


@once_on_keras3
def test_an_option():
    """Refused before a framework is imported."""
    job = run("--epochs", "1")
    assert job.returncode == 2 and "--epochs 1" in job.stderr


@once_on_keras3
def test_missing_package(monkeypatch, capsys):
    """Or a Keras that is too old."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main.main() == 2
    said = capsys.readouterr()
    assert ("standalone Keras 2" if hosts.IS_KERAS2 else "sklearn") in said.err
    assert "The demo needs scikit-learn, and Keras 3 or tf_keras" in said.err and said.out == ""
    assert "pip install '.[tensorflow,demo]'" in said.err


@once_on_keras3
@pytest.mark.parametrize("remedy", ["set KERAS_BACKEND=jax", "`pip install tf_keras`"])
def test_a_remedy_is_the_only_one(remedy, monkeypatch, capsys):
    """JAX without TensorFlow needs a variable, and no `pip install`."""

    def fail(demo):
        raise ImportError(remedy)

    monkeypatch.setattr(main.Demo, "__init__", fail)
    assert main.main() == 2 and capsys.readouterr().err == f"{remedy}\n"


INTERRUPTED = """
import runpy
from keras_accum import host

def interrupt():
    raise KeyboardInterrupt

host.module_name = interrupt
runpy.run_module("keras_accum", run_name="__main__")
"""


@once_on_keras3
def test_an_interruption_prints_no_traceback():
    job = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert job.returncode == 1 and job.stderr.strip() == "Interrupted."


@once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has backends")
def test_wrong_backend():
    job = run(KERAS_BACKEND="theano")
    assert job.returncode == 2 and "theano" in job.stderr and "Traceback" not in job.stderr
