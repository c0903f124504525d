"""On JAX, an error in a train step leaves a model with its weights."""

import hosts
import numpy as np
import pytest
from hosts import accum
from training import MICRO, compiled, data, dense_model, fit

if hosts.BACKEND != "jax":
    pytest.skip("elsewhere, a model keeps its weights during a step", allow_module_level=True)


def refuse(gradients, variables):
    raise ArithmeticError("no")


def compares(y_true, y_pred):
    return hosts.keras.ops.mean(y_pred)


FAILING = {
    "our optimizer": (
        lambda: hosts.ours("SGD", accum_iters=2, window_transforms=[refuse]),
        [],
        "mse",
    ),
    "a callback": (lambda: hosts.stock("SGD"), [accum.MicroBatches(1, "sample")], compares),
    "a callback for ours": (
        lambda: hosts.ours("SGD", accum_iters=2, reduction="weighted"),
        [accum.MicroBatchWeights(lambda *arguments: 1 / 0)],
        "mse",
    ),
}


@pytest.mark.parametrize("make, callbacks, loss", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("is_fit", [True, False])
def test_a_model_keeps_its_weights(make, callbacks, loss, is_fit):
    """You can follow the error's remedy in the next line."""
    if callbacks and not is_fit:
        pytest.skip("`train_on_batch` has no callbacks")
    model = compiled(dense_model(), make(), loss)
    before, (x, y) = model.get_weights(), data()
    with pytest.raises((ArithmeticError, ValueError)):
        if is_fit:
            fit(model, MICRO, callbacks=callbacks)
        else:
            model.train_on_batch(x, y)
    for value, old in zip(model.get_weights(), before):
        np.testing.assert_array_equal(value, old)
    assert int(model.optimizer.iterations) == 0
    model.compile("sgd", "mse")
    fit(model, MICRO)


def test_a_keras_without_its_flag():
    """Keras syncs a model's variables if this private flag says so."""
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    del model._jax_state_synced
    with pytest.raises(ImportError, match="has no `_jax_state_synced`"):
        fit(model, MICRO)
