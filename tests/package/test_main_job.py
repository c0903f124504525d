"""`python -m keras_accum`, as a user runs it."""

import os
import re
import subprocess
import sys

import hosts
import pytest
from cases import thorough

from keras_accum import __main__ as main

trains = pytest.mark.skipif(
    hosts.IS_KERAS2, reason="python -m keras_accum trains on Keras 3 and tf_keras"
)


@thorough
@trains
def test_it_shows_what_it_claims(tmp_path):
    """One epoch is enough, and no framework logs anything on the terminal."""
    picture = tmp_path / "curves.png"
    small = "--epochs", "1", "--batch", "75", "--accum-iters", "4", "--plot", str(picture)
    job = subprocess.run(
        [sys.executable, "-m", "keras_accum", *small], capture_output=True, text=True
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("holds: ") == 2 and "FAILS" not in job.stdout
    assert job.stderr == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = job.stdout.splitlines()
    assert str(picture) in lines[0]
    assert f", epochs: 1, {hosts.FLOATX}" in lines[1]
    assert max(map(len, lines[1:])) <= 100  # the first line has the path


def test_picture(tmp_path):
    curves = {
        name: [3.0 / slope / epoch for epoch in range(1, 16)]
        for name, slope in (("big batch", 1), ("accumulated", 1), ("micro-batches", 2))
    }
    figure = main.draw(10, 5, curves)
    axes = figure.axes[0]
    assert axes.get_title() == "5 accumulated batches of 10 train as one batch of 50"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) == 3 and all(re.search("batches of [15]0", label) for label in labels)
    figure.savefig(str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size < 60_000


# An option, its value, and what of it the message repeats.
BAD = [
    ("--epochs", "0", "0, 10, 5"),
    ("--batch", "1000", "15, 1000, 5"),  # a window of more digits than there are
    ("--accum-iters", "1", "15, 10, 1"),
    ("--plot", "no/such/folder.png", "no/such/folder.png"),
]


def test_bad_value(capsys):
    """Refused before anything is trained, with the option's name."""
    for option, value, received in BAD:
        with pytest.raises(SystemExit) as end:
            main.main([option, value])
        said = capsys.readouterr()
        assert end.value.code == 2 and said.out == ""
        assert option in said.err and received in said.err


def test_missing_package(tmp_path, monkeypatch, capsys):
    """Or a Keras that is too old, which the demo needs first."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main.main(["--plot", str(tmp_path / "curves.png")]) == 2
    said = capsys.readouterr()
    assert ("standalone Keras 2" if hosts.IS_KERAS2 else "sklearn") in said.err
    assert "The demo needs Keras 3 or tf_keras" in said.err and said.out == ""
    assert "pip install 'keras_accum[" in said.err


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has backends")
def test_wrong_backend():
    environment = {**os.environ, "KERAS_BACKEND": "theano"}
    command = [sys.executable, "-m", "keras_accum"]
    job = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert job.returncode == 2 and "theano" in job.stderr and "Traceback" not in job.stderr
