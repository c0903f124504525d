"""A layer that is frozen without compiling again: the traced step goes on training it."""

import hosts
import pytest
from hosts import accum
from training import MICRO, compiled, dense_model, fit, our_warnings

if not (hosts.IS_KERAS3 and hosts.IS_TENSORFLOW):
    # JAX refuses it, PyTorch follows at once, and `fit` of tf_keras unfreezes the layer meanwhile.
    pytest.skip("about traced steps of Keras 3", allow_module_level=True)


@pytest.mark.parametrize("compiles", [False, True])
def test_leftovers_of_a_layer_that_was_frozen_without_compiling(compiles):
    """A partial window leaves it out, but the traced step would train it: a warning says so."""
    model = compiled(dense_model(), hosts.ours("SGD", learning_rate=0.125, accum_iters=5))
    fit(model, MICRO, epochs=1, callbacks=[accum.ApplyPartialWindow()])
    model.get_layer("hidden").trainable = False
    if compiles:
        model.compile(hosts.ours("SGD", accum_iters=5), "mse")
    with our_warnings() as texts:
        fit(model, MICRO, epochs=1, callbacks=[accum.ApplyPartialWindow()])
    said = [text for text in texts if "frozen since" in text]
    assert len(said) == (not compiles) and all("hidden" in s and "Compile" in s for s in said)
