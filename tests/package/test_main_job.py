"""`python -m keras_accum`, as a user runs it."""

import importlib.util
import os
import re
import subprocess
import sys
import types

import hosts
import numpy as np
import pytest
from cases import once_on_keras3, quick_once, thorough

import keras_accum
from keras_accum import __main__ as main

on_tensorflow = hosts.IS_TENSORFLOW and not hosts.IS_KERAS2
trains = pytest.mark.skipif(not on_tensorflow, reason="TensorFlow, as in README, is enough")
needs_sklearn = pytest.mark.skipif(
    not (hosts.IS_KERAS3 and importlib.util.find_spec("sklearn")), reason="needs scikit-learn"
)
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
    assert job.stdout.splitlines()[-1] == main.HINT and "--plot" in main.HINT
    assert f"keras_accum.{hosts.HOST} on tensorflow, " in job.stdout
    assert job.stdout.splitlines()[0].endswith(", in full float32")
    assert "after 2 of 25 micro-batches" in job.stdout
    rows = dict(line.rsplit(None, 1) for line in job.stdout.splitlines() if "%" in line)
    names, differences = zip(*((start.split()[0], float(end)) for start, end in rows.items()))
    assert names == ("big", "control:", "accumulated", "small")
    _, control, accumulated, small = differences
    assert differences[0] == 0 < min(control, accumulated)
    assert max(control, accumulated) < 1e-4 < 0.1 < small
    assert max(map(len, job.stdout.splitlines())) <= 80
    lines = job.stderr.splitlines()  # no line of a log
    assert all(re.fullmatch(r"training, .+: \d+%", line) for line in lines)
    told = list(dict.fromkeys(re.findall("training, (.*): ", job.stderr)))
    assert told == [main.BIG, main.CONTROL, main.OURS, main.SMALL, "to be stopped", "continued"]
    # Of four trainings, and of one that stops and continues in another process.
    assert len(lines) == 4 * main.EPOCHS + 3 + 3 and lines[-1].endswith(" 100%")


def shortens():
    """Return whether a GPU would shorten float32 now, in products and convolutions."""
    if hosts.IS_TENSORFLOW:
        return hosts.tf.config.experimental.tensor_float_32_execution_enabled()
    if hosts.IS_TORCH:
        import torch

        cudnn = torch.backends.cudnn.allow_tf32
        return cudnn or torch.get_float32_matmul_precision() != "highest"
    import jax

    return jax.config.jax_default_matmul_precision != "highest"


@needs_sklearn
def test_it_trains_in_full_float32(monkeypatch):
    demo, found, before = main.Demo(), [], shortens()
    monkeypatch.setattr(demo.keras.Model, "fit", lambda *_, **__: found.append(shortens()))
    demo.train("stock", demo.stock(), main.BATCH, slice(main.STOP))
    assert {*found} == {False} and shortens() == before


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="tf_keras has TensorFlow's")
@pytest.mark.parametrize(("kind", "name"), [("cpu", "CPU"), ("gpu", "NVIDIA H100")])
def test_the_device_is_named(kind, name, monkeypatch):
    from keras_accum.keras3 import compare

    types_of_torch = {"cpu": "cpu", "gpu": "cuda"}
    device = types.SimpleNamespace(platform=kind, device_kind=name, type=types_of_torch[kind])
    if hosts.IS_TENSORFLOW:
        config, visible = hosts.tf.config, {"cpu": [], "gpu": [device]}[kind]
        monkeypatch.setattr(config, "get_visible_devices", lambda kind: visible)
        details = {"device_name": name}
        monkeypatch.setattr(config.experimental, "get_device_details", lambda gpu: details)
    elif hosts.IS_TORCH:
        import torch

        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    tensor = types.SimpleNamespace(device=device)
    monkeypatch.setattr(hosts.keras.ops, "zeros", lambda shape: tensor)
    assert compare.device_name() == name


@needs_sklearn
def test_the_control_has_the_same_big_batches_in_another_order():
    order = main.Demo().in_another_order.reshape(-1, main.BATCH * main.ACCUM_ITERS)
    in_order = np.arange(order.size).reshape(order.shape)
    assert (np.sort(order, axis=1) == in_order).all() and (order != in_order).any(axis=1).all()


@once_on_keras3
@pytest.mark.parametrize(
    ("accumulated", "control", "holds"),
    [
        (1e-6, 4e-7, True),
        (1e-3, 4e-6, False),  # TF32 on a GPU
        (0.5, 0.3, False),  # a control that is as far away as the small batch shows nothing
    ],
)
def test_it_judges_against_its_control(accumulated, control, holds):
    distances = main.OURS, main.CONTROL, main.SMALL
    claims = main.judge(dict(zip(distances, (accumulated, control, 0.4))), 0.05, 0)
    claim, *others = claims
    assert claims[claim] == holds and all(claims[other] for other in others)
    assert f"({accumulated:.1e}, control: {control:.1e})" in claim
    assert list(main.judge(dict.fromkeys(distances, 0.1), -0.1, 1e-9).values())[1:] == [False] * 2


@once_on_keras3
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress(is_terminal, monkeypatch, capsys):
    """One line on a terminal, elsewhere a line for each fifth and for the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    for done in (500, 1500, 2000):
        main.show("training", done, 2000)
    said = capsys.readouterr().err
    if is_terminal:
        lines = said.split("\r")
        assert [line.strip() for line in lines] == [*(f"training: {n}%" for n in (25, 75, 100)), ""]
        assert len({*map(len, lines[:-1])}) == 1  # each covers the one before
    else:
        assert said == "training: 75%\ntraining: 100%\n"


@once_on_keras3
def test_the_version():
    """Told before a framework is imported."""
    job = run("--version")
    assert (job.returncode, job.stdout) == (0, f"keras_accum {keras_accum.__version__}\n")


@quick_once
@needs_sklearn
def test_a_picture_of_the_curves(tmp_path):
    """It has the test loss after each part of a training."""
    pytest.importorskip("matplotlib")
    demo, curve, path = main.Demo(), [], tmp_path / "curves.png"
    stock = demo.stock(main.LEARNING_RATE)
    model = demo.train("stock", stock, 100, slice(2 * main.PART), curve)
    assert len(curve) == 2 and curve[1] < curve[0]
    assert curve[1] == pytest.approx(model.evaluate(*demo.test, verbose=0)[0], rel=1e-6)
    main.draw(path, {main.BIG: curve})
    assert path.read_bytes().startswith(b"\x89PNG")


@once_on_keras3
def test_a_picture_without_an_extension(monkeypatch, tmp_path):
    """The line names the file that is written."""
    drawn = []

    def draw(path, curves):
        drawn.append(path)
        raise OSError("enough")

    monkeypatch.setattr(main, "draw", draw)
    for name, written in (("a", "a.png"), ("b.svg", "b.svg")):
        assert main.main(str(tmp_path / name)) == 2
        assert drawn.pop() == str(tmp_path / written)


@once_on_keras3
def test_no_picture(monkeypatch, capsys):
    """It is said before any training."""
    if importlib.util.find_spec("matplotlib"):
        assert main.main("nowhere/curves.png") == 2
        assert "--plot can't write nowhere/curves.png: " in capsys.readouterr().err
        assert main.main("curves.unknown") == 2
        assert "--plot can't write curves.unknown: " in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main.main("curves.png") == 2
    said = capsys.readouterr()
    assert "--plot needs matplotlib: `pip install matplotlib`" in said.err and said.out == ""


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
    assert 'pip install ".[tensorflow,demo]"' in said.err


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
    assert job.returncode == 130 and job.stderr.strip() == "Interrupted."


@once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has backends")
def test_wrong_backend():
    job = run(KERAS_BACKEND="theano")
    assert job.returncode == 2 and len(job.stderr.splitlines()) == 1  # no word of scikit-learn
    assert re.search(f"backend 'theano'.*Installed: .*KERAS_BACKEND=.*{hosts.BACKEND}", job.stderr)
