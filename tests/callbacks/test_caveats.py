"""`fit` warns once of what makes a window differ from the big batch, and of nothing else.

That a warning is right is shown by the weights: with it they differ from the big batch's.
"""

import warnings

import hosts
import numpy as np
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import compiled, dense_model, fit, go_on, weights

pytestmark = quick_once

skip_file_on_keras2("a CallbackList that knows the model")

SIZE, LENGTH = 4, 3
BATCHES = "Batch normalization trains in normalizes"
MASK = "output has a mask"
SHORT = "samples together, and the first one has 4"

layers = keras.layers


def arrays(samples, x=(3,), y=(2,)):
    random = np.random.default_rng(0)
    return [random.uniform(1, 2, (samples, *shape)).astype(hosts.FLOATX) for shape in (x, y)]


def ours(**arguments):
    return hosts.ours("SGD", **{"learning_rate": 0.01, "accum_iters": LENGTH, **arguments})


def eager(model, optimizer, *loss):
    """Compiled to run without a trace, which would take longer than the training."""
    return compiled(model, optimizer, *loss, run_eagerly=True)


OF_WINDOWS = "Batch normalization", "has a mask", "samples together"


def said(model, data, size=SIZE, texts=OF_WINDOWS, **arguments):
    """What a training warns of, as a list of texts."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(model, size, data, **{"epochs": 2, **arguments})
    found = [warning for warning in found if any(t in str(warning.message) for t in texts)]
    assert all(not w.filename.startswith(str(hosts.PROJECT / "keras_accum")) for w in found)
    return [str(warning.message) for warning in found]


def assert_said(found, expected):
    assert len(found) == 1 and expected in found[0]


# -- no accumulation ---------------------------------------------------------------------------


def test_without_accum_iters_it_is_said_once():
    model, data = eager(dense_model(), ours(accum_iters=1)), arrays(SIZE)
    texts = ["has accum_iters=1"]
    found = said(model, data, texts=texts)
    assert_said(found, "SGDAccumulate(accum_iters=5), or use the stock optimizer")
    assert said(model, data, texts=texts) == []
    assert said(eager(dense_model(), ours()), data, texts=texts) == []


# -- a short micro-batch -------------------------------------------------------------------------


def test_a_short_micro_batch_is_said_once():
    model, data = compiled(dense_model(), ours()), arrays(5 * SIZE - 2)
    assert_said(said(model, data), SHORT)
    assert said(model, data) == []


def test_the_reduction_that_it_advises_gives_the_big_batch():
    """15 samples in micro-batches of 4 against one batch of 15, with the mean and with weights."""
    data, found = arrays(15), []
    for reduction in ("mean", "weighted"):
        model = eager(dense_model(), ours(accum_iters=4, reduction=reduction))
        callbacks = [hosts.accum.MicroBatchWeights()] if reduction == "weighted" else []
        assert bool(said(model, data, epochs=1, callbacks=callbacks)) == (reduction == "mean")
        found.append(weights(model))
    stock = compiled(dense_model(), hosts.stock("SGD", learning_rate=0.01))
    big = weights(go_on(stock, 0, 1, data, 15))
    mean, weighted = (max(abs(f[name] - big[name]).max() for name in big) for f in found)
    assert weighted < 1e-6 < 1e-5 < mean


@pytest.mark.parametrize("callback", ["AccumulationMonitor", "PythonGate"])
def test_with_a_callback_of_ours(callback):
    if callback == "PythonGate" and hosts.IS_TORCH:
        pytest.skip("does nothing there")
    model, data = compiled(dense_model(), ours()), arrays(5 * SIZE - 2)
    assert_said(said(model, data, callbacks=[getattr(hosts.accum, callback)()]), SHORT)


@pytest.mark.parametrize(
    "arguments", [{"reduction": "sum"}, {"accum_iters": 1}, {"reduction": "weighted"}], ids=str
)
def test_where_a_short_micro_batch_counts_by_its_samples(arguments):
    model = eager(dense_model(), ours(**arguments))
    weighs = "weighted" in arguments.values()
    callbacks = [hosts.accum.MicroBatchWeights()] if weighs else []
    assert said(model, arrays(5 * SIZE - 2), callbacks=callbacks) == []


def test_whole_micro_batches_before_a_short_validation():
    data = arrays(5 * SIZE)
    assert said(eager(dense_model(), ours()), data, validation_data=arrays(SIZE + 1)) == []


def test_a_short_micro_batch_before_a_validation():
    data = arrays(5 * SIZE - 2)
    model = eager(dense_model(), ours())
    assert_said(said(model, data, validation_data=arrays(5 * SIZE)), SHORT)


def test_a_short_micro_batch_alone_in_its_window():
    """As a short big batch, which is an update of its own, too."""
    close, data = hosts.accum.ApplyPartialWindow, arrays(4 * SIZE - 2)
    model = eager(dense_model(), ours())
    assert said(model, data, callbacks=[close()]) == []
    assert_said(said(model, data), SHORT)  # the next epoch goes on with that window


def test_a_training_that_a_callback_ends_in_an_epoch():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    assert said(eager(dense_model(), ours()), arrays(5 * SIZE - 2), callbacks=[Stop()]) == []


def test_an_evaluation_in_an_epoch():
    """Keras forgets the samples that it has counted."""

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.evaluate(*arrays(SIZE), verbose=0)

    assert said(eager(dense_model(), ours()), arrays(5 * SIZE), callbacks=[Evaluate()]) == []


def test_a_loss_that_is_a_sum():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    assert said(eager(dense_model(), ours(), loss), arrays(5 * SIZE - 2)) == []


def test_a_loss_of_the_model_itself():
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
            return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)

    x = keras.Input((3,))
    model = Own(x, layers.Dense(2)(x))
    assert said(eager(model, ours()), arrays(5 * SIZE - 2)) == []


@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras runs one step at a time on PyTorch")
def test_several_micro_batches_in_an_execution():
    model, data = dense_model(), arrays(6 * SIZE - 2)
    model = compiled(model, ours(accum_iters=4), steps_per_execution=2)
    assert said(model, arrays(6 * SIZE)) == []
    assert_said(said(model, data), SHORT)


# -- a mask --------------------------------------------------------------------------------------


def masked(*more):
    return hosts.sequential((5,), [layers.Embedding(3, 2, mask_zero=True), *more])


TOKENS = np.array([[1, 2, 0, 0, 0], [1, 1, 1, 0, 0], [2, 2, 1, 1, 1], [1, 0, 0, 0, 0]] * LENGTH)


def test_a_mask_that_reaches_the_output():
    model, y = eager(masked(layers.Dense(1)), ours()), np.ones((len(TOKENS), 5, 1))
    assert_said(said(model, (TOKENS, y)), MASK)
    assert said(model, (TOKENS, y)) == []


def test_a_mask_that_a_layer_takes():
    model = eager(masked(layers.GlobalAveragePooling1D()), ours())
    assert said(model, (TOKENS, np.ones((len(TOKENS), 2)))) == []


@pytest.mark.parametrize("arguments", [{"reduction": "sum"}, {"accum_iters": 1}], ids=str)
def test_a_mask_without_means_in_a_window(arguments):
    model = eager(masked(layers.Dense(1)), ours(**arguments))
    assert said(model, (TOKENS, np.ones((len(TOKENS), 5, 1)))) == []


# -- batch normalization -------------------------------------------------------------------------


def normalized(layer):
    return hosts.sequential((3,), [layers.Dense(4), layer, layers.Dense(2)])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_batch_normalization_that_trains(reduction):
    layer = layers.BatchNormalization(name="normalizes", center=False, scale=False)
    model = compiled(normalized(layer), ours(reduction=reduction))
    assert_said(said(model, arrays(LENGTH * SIZE)), BATCHES)
    assert said(model, arrays(LENGTH * SIZE)) == []


def test_batch_normalization_that_is_frozen():
    layer = layers.BatchNormalization()
    layer.trainable = False
    assert said(eager(normalized(layer), ours()), arrays(LENGTH * SIZE)) == []


def test_batch_normalization_that_is_called_for_inference():
    """As in a pretrained network that a new head is put on."""

    class Inference(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.BatchNormalization()

        def call(self, x):
            return self.inner(x, training=False)

        def compute_output_shape(self, shape):
            return shape

    assert said(eager(normalized(Inference()), ours()), arrays(LENGTH * SIZE)) == []


@pytest.mark.parametrize("optimizer", [lambda: ours(accum_iters=1), lambda: hosts.stock("SGD")])
def test_batch_normalization_without_windows(optimizer):
    model = eager(normalized(layers.BatchNormalization()), optimizer())
    assert said(model, arrays(LENGTH * SIZE)) == []


def test_other_normalization():
    assert said(eager(normalized(layers.LayerNormalization()), ours()), arrays(12)) == []
