"""`python -m keras_accum`, as a user runs it."""

import os
import subprocess
import sys

import hosts
import pytest
from cases import skip_file_on_keras2, thorough

skip_file_on_keras2("python -m keras_accum")


def main(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "keras_accum", *map(str, arguments)],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="README's command is about TensorFlow")
def test_it_shows_what_it_claims(tmp_path):
    for package in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(package, reason="needs the extra `demo`")
    picture = tmp_path / "curves.png"
    small = ["--epochs", 1, "--batch", 50, "--accum-iters", 5, "--host", hosts.HOST]
    job = main(*small, "--plot", picture)
    assert job.returncode == 0, job.stdout + job.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert job.stdout.count("holds: ") == 2 and "FAILS" not in job.stdout


def test_help():
    job = main("--help")
    assert job.returncode == 0
    for option in ("epochs", "batch", "accum-iters", "optimizer", "host", "plot"):
        assert f"--{option}" in job.stdout


BAD = [
    # option, value, what of it the message repeats
    ("--epochs", "0", "0"),
    ("--batch", "-1", "-1"),
    ("--batch", "1000", "5000"),  # a window of more digits than there are
    ("--accum-iters", "1", "1"),
    ("--accum-iters", "2.5", "2.5"),
    ("--optimizer", "lion", "lion"),
    ("--host", "keras9", "keras9"),
    ("--plot", "no/such/folder.png", "no/such/folder.png"),
]


@pytest.mark.parametrize("option, value, received", BAD)
def test_bad_value(option, value, received):
    """Refused before anything is trained, in one message that names the option."""
    job = main(option, value)
    assert job.returncode == 2
    assert option in job.stderr and received in job.stderr and "Traceback" not in job.stderr
