"""What users get wrong at first: each message names the remedy."""

import hosts
import numpy as np
import pytest
from cases import keras2_has_no
from hosts import accum
from training import compiled, dense_model, fit


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="about legacy optimizers")
@pytest.mark.parametrize("name", ["weight_decay", "use_ema"])
def test_an_argument_of_the_newer_style(name):
    with pytest.raises(TypeError, match=f"keyword argument.*{name}"):
        accum.AdamAccumulate(**{name: 0.1})


@keras2_has_no("PythonGate")
def test_the_callback_in_the_place_of_the_gate():
    for gate in (accum.PythonGate, accum.PythonGate()):
        with pytest.raises(ValueError, match=r"callbacks=\[PythonGate\(\)\]"):
            hosts.ours("Adam", gate=gate, accum_iters=5)


def test_what_loads_files_in_compile():
    said = r"AdamAccumulate.with_accum_iters\(5\).*`compile` needs an optimizer: AdamAccumulate\("
    with pytest.raises(ValueError, match=said):
        dense_model().compile(accum.AdamAccumulate.with_accum_iters(5), "mse")
    loader = accum.AdamAccumulate.with_accum_iters(5, stock=True)
    assert repr(loader).startswith("AdamAccumulate.with_accum_iters(5, stock=True)  #")


def test_the_class_of_a_callback():
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    with pytest.raises(TypeError, match=r"give ApplyPartialWindow\(\)"):
        fit(model, 2, callbacks=[accum.ApplyPartialWindow])


@pytest.mark.skipif(hosts.keras.__name__ != "tf_keras", reason="needs two versions of Keras")
def test_a_callback_of_another_keras():
    other = pytest.importorskip("keras_accum.keras3")
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    said = "is for models of keras, .* of tf_keras: from keras_accum.tf_keras import {}"
    for name in ("ApplyPartialWindow", "AccumulationMonitor"):
        with pytest.raises(TypeError, match=said.format(name)):
            fit(model, 2, callbacks=[getattr(other, name)()])
    with pytest.raises(ValueError, match="identifier: <keras_accum.keras3.*AdamAccumulate"):
        dense_model().compile(other.AdamAccumulate(accum_iters=2), "mse")


def test_an_object_that_is_no_model():
    """Somebody's own training loop may give callbacks something that stands for a model."""
    callback, model = accum.ApplyPartialWindow(), type("Trainer", (), {"stop": np.inf})()
    callback.set_model(model)
    assert callback.model is model
