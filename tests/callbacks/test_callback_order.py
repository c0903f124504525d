"""The train function of a model with several callbacks or after a break, and what is refused."""

import contextlib

import hosts
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, slots, weights

pytestmark = quick_once

skip_file_on_keras2("PythonGate")

accum = hosts.accum
Gate, Monitor, Weights = accum.PythonGate, accum.AccumulationMonitor, accum.MicroBatchWeights
Apply = accum.ApplyPartialWindow

SOME = [array[: (LENGTH + 1) * MICRO] for array in data()]


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def model_of():
    optimizer = hosts.ours("Adam", learning_rate=2**-5, accum_iters=LENGTH, reduction="weighted")
    return compiled(dense_model(), optimizer)


def train(model, *callbacks):
    return fit(model, MICRO, SOME, epochs=1, callbacks=callbacks)


@pytest.mark.parametrize(
    "first, then",
    [
        ([Weights, Monitor, Gate], None),
        ([Weights, Gate], [Monitor, Weights, Gate]),
        ([Weights, Monitor, Gate], [Weights]),
    ],
    ids=["the same callbacks", "others and a gate", "others"],
)
def test_after_a_break(first, then):
    """The next training raises no error, and ends as if there had been no first one."""
    model, other = model_of(), model_of()
    model.make_train_function()
    own, start = model.train_function, model.get_weights()
    callbacks = [make() for make in first]
    with pytest.raises(KeyboardInterrupt):
        train(model, *callbacks, Stop())
    model.set_weights(start)
    hosts.build(other)
    model.optimizer.set_state(other.optimizer.get_state())
    logs = train(model, *([make() for make in then] if then else callbacks)).history
    assert model.train_function is own
    assert Monitor not in (then or first) or logs["completed_updates"][-1] > 0
    train(other, Weights())
    assert_equal(weights(model), weights(other))
    assert_equal(slots(model), slots(other))
    train(model), train(other, Weights())
    assert_equal(weights(model), weights(other))


class Look(keras.callbacks.Callback):
    """Keeps what a model has between two batches, and then an error of a user."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.found = fails, []

    def on_train_batch_begin(self, batch, logs=None):
        self.found.append({**vars(self._model if hosts.IS_KERAS3 else self.model)})

    def on_train_batch_end(self, batch, logs=None):
        self.on_train_batch_begin(batch)
        if self.fails:
            raise OSError


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_ours_is_in_a_model_between_two_batches(fails):
    """Nor after an error: the model has its own train function."""
    model, look = model_of(), Look(fails)
    train(model, Weights())
    own, names = model.train_function, set(vars(model))
    callbacks = [Gate(), Weights(), Monitor(), look]
    with pytest.raises(OSError) if fails else contextlib.nullcontext():
        train(model, *callbacks)
    for found in [*look.found, vars(model)]:
        assert found["train_function"] is own and set(found) <= names | {"_jax_state"}


@pytest.mark.parametrize("make", [Monitor, lambda: accum.OnUpdates([])], ids=["monitor", "updates"])
def test_apply_partial_window_comes_first(make):
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    with pytest.raises(ValueError, match="ApplyPartialWindow must come before"):
        train(model, make(), Apply())
    history = train(model, Apply(), make(), *[Monitor()] * (make is not Monitor)).history
    assert (history["completed_updates"], history["window_position"]) == ([3], [0])


SwapEMA = getattr(keras.callbacks, "SwapEMAWeights", None)


@pytest.mark.skipif(SwapEMA is None, reason="SwapEMAWeights is Keras 3's")
@pytest.mark.parametrize("on_epoch", [False, True])
def test_averaged_weights_are_swapped_in_after_a_partial_window(on_epoch):
    """The other order would change the averaged weights: by 0.04 and more here."""
    settings = {"use_ema": True, "ema_momentum": 0.5, "learning_rate": 0.1}
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, **settings))
    big, apply = compiled(dense_model(), hosts.stock("Adam", **settings)), Apply()
    more = {"arrays": SOME, "validation_data": SOME}
    fit(model, MICRO, callbacks=[apply, SwapEMA(on_epoch)], **more)
    fit(big, LENGTH * MICRO, callbacks=[SwapEMA(on_epoch)], **more)
    assert_equal(weights(model), weights(big))
    with pytest.raises(ValueError, match="ApplyPartialWindow must come before SwapEMAWeights"):
        train(model, SwapEMA(on_epoch), apply)


GIVEN = {"OnUpdates": [[]], "MicroBatches": [2]}


@pytest.mark.parametrize(
    "name", ["ApplyPartialWindow", "PythonGate", "OnUpdates", *["MicroBatches"] * hosts.IS_KERAS3]
)
def test_a_callback_twice_is_refused(name):
    """Two OnUpdates have callbacks of their own, unless they are the same."""
    first, second = (getattr(accum, name)(*GIVEN.get(name, [])) for _ in range(2))
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    with pytest.raises(ValueError, match=f"`callbacks` has {name} twice"):
        train(model, first, first if name == "OnUpdates" else second)
    if name == "OnUpdates":
        train(model, first, second)


@pytest.mark.parametrize("make", [Gate, Monitor, Weights, lambda: accum.OnUpdates([])])
def test_a_stock_optimizer_is_refused(make):
    with pytest.raises(TypeError, match="needs a model with an optimizer of keras_accum"):
        train(compiled(dense_model(), hosts.stock("Adam")), make())


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="Keras's NNX mode is JAX's")
@pytest.mark.parametrize("name", ["PythonGate", "MicroBatches"])
def test_the_nnx_mode_is_refused(name, monkeypatch):
    """In this mode, Keras traces the train step of the model's class: a callback's isn't seen."""
    callback = getattr(accum, name)(*[MICRO] * (name == "MicroBatches"))
    callback.set_model(model_of())
    monkeypatch.setattr("keras.src.backend.config._NNX_ENABLED", True)
    with pytest.raises(ValueError, match=f"{name} can't be used with Keras's NNX mode"):
        callback.on_train_begin()
