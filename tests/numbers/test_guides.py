"""Trainings of the shapes that Keras's guides show, with ours in place of Adam.

`tests/numbers/test_loops.py` has training loops without a model, `tests/distribution` replicas.
"""

import hosts
import numpy as np
import pytest
from cases import thorough
from hosts import keras
from training import (
    BIG,
    EPOCHS,
    LENGTH,
    MICRO,
    assert_equal,
    assert_moved,
    data,
    dense_model,
    initialize,
    slots,
    weights,
)

if not hosts.IS_KERAS3:
    pytest.skip("Keras 3's guides", allow_module_level=True)

RULE = {"learning_rate": 0.02, "beta_1": 0.8}


def both_sides(training):
    """Compare a training by stock Adam at the big batch with ours at micro-batches."""
    expected = training(hosts.stock("Adam", **RULE), BIG)
    actual = training(hosts.ours("Adam", accum_iters=LENGTH, **RULE), MICRO)
    assert_moved(weights(initialize(dense_model())), weights(expected))
    assert_equal(weights(actual), weights(expected))
    assert_equal(slots(actual), slots(expected))
    assert actual.optimizer.completed_updates == int(expected.optimizer.iterations) > 3


class WithTrainStep(keras.Model):
    """A model with a `train_step` and a metric of its own."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.squares = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.error]

    def train_step(self, *arguments):
        return getattr(self, f"_on_{hosts.BACKEND}")(*arguments)

    def _on_tensorflow(self, data):
        x, y = data
        with hosts.tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.squares(y, y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.error.update_state(y, y_pred)
        return {"error": self.error.result()}

    def _on_torch(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        self.squares(y, y_pred).backward()
        variables = self.trainable_weights
        gradients = [v.value.grad for v in variables]
        import torch

        with torch.no_grad():
            self.optimizer.apply(gradients, variables)
        self.error.update_state(y, y_pred)
        return {"error": self.error.result()}

    def _on_jax(self, state, data):
        import jax

        trainable, others, of_optimizer, of_metrics = state
        x, y = data

        def loss_of(trainable, others):
            y_pred, others = self.stateless_call(trainable, others, x, training=True)
            return self.squares(y, y_pred), (y_pred, others)

        gradients, (y_pred, others) = jax.grad(loss_of, has_aux=True)(trainable, others)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        of_metrics = self.error.stateless_update_state(of_metrics, y, y_pred)
        logs = {"error": self.error.stateless_result(of_metrics)}
        return logs, (trainable, others, of_optimizer, of_metrics)


def with_train_step():
    model = dense_model()
    return initialize(WithTrainStep(model.inputs[0], model.outputs[0], name=model.name))


def test_a_train_step_of_ones_own():
    errors = {}

    def training(optimizer, size):
        model = with_train_step()
        model.compile(optimizer, **({"jit_compile": False} if hosts.IS_TENSORFLOW else {}))
        found = model.fit(*data(), batch_size=size, epochs=EPOCHS, shuffle=False, verbose=0)
        errors[size] = found.history["error"]
        return model

    both_sides(training)
    # The micro-batches of a window see the same weights as their big batch.
    np.testing.assert_allclose(errors[MICRO], errors[BIG], rtol=1e-5)


class Halving(keras.callbacks.Callback):
    """A callback of one's own that sets the learning rate, and stops at the best epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.02 / 2**epoch

    def on_epoch_end(self, epoch, logs=None):
        self.best = self.model.get_weights()
        if epoch == 1:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        self.model.set_weights(self.best)


@thorough
def test_a_callback_of_ones_own():
    def training(optimizer, size):
        model = with_train_step()
        model.compile(optimizer, **({"jit_compile": False} if hosts.IS_TENSORFLOW else {}))
        model.fit(
            *data(), batch_size=size, epochs=9, shuffle=False, verbose=0, callbacks=[Halving()]
        )
        return model

    both_sides(training)
