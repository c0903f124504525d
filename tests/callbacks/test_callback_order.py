"""The train function of a model with several callbacks or after a break, and what is refused."""

import contextlib

import hosts
import numpy as np
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, slots, weights
from zoo import Interrupt

pytestmark = quick_once

skip_file_on_keras2("callbacks that change a train step")

accum = hosts.accum
Monitor = accum.AccumulationMonitor


def Weights():
    return accum.MicroBatchWeights(lambda x, y, y_pred, sample_weight: 2)


Apply = accum.ApplyPartialWindow

SOME = [array[: (LENGTH + 1) * MICRO] for array in data()]


def model_of():
    optimizer = hosts.ours("Adam", learning_rate=2**-5, accum_iters=LENGTH, reduction="weighted")
    return compiled(dense_model(), optimizer)


def train(model, *callbacks):
    return fit(model, MICRO, SOME, epochs=1, callbacks=callbacks)


@pytest.mark.parametrize(
    "first, then",
    [
        ([Weights, Monitor], None),
        ([Weights], [Monitor, Weights]),
        ([Weights, Monitor], [Weights]),
    ],
    ids=["the same callbacks", "others and a monitor", "others"],
)
def test_after_a_break(first, then):
    """The next training raises no error, and ends as if there had been no first one."""
    model, other = model_of(), model_of()
    model.make_train_function()
    own, start = model.train_function, model.get_weights()
    callbacks = [make() for make in first]
    with pytest.raises(KeyboardInterrupt):
        train(model, *callbacks, Interrupt())
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
    callbacks = [Weights(), Monitor(), look]
    with pytest.raises(OSError) if fails else contextlib.nullcontext():
        train(model, *callbacks)
    for found in [*look.found, vars(model)]:
        assert found["train_function"] is own and set(found) <= names | {"_jax_state"}


class See(keras.callbacks.Callback):
    """Notes what a callback that saves the model, or decides, sees in an epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((self.model.optimizer.window_position, self.model.get_weights(), logs))

    def on_test_begin(self, logs=None):
        self.on_epoch_end(None)


@pytest.mark.parametrize("reduction", ["mean", "weighted"])
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
def test_a_partial_window_closes_before_all_callbacks(reduction, is_last, tmp_path):
    """Wherever ApplyPartialWindow is listed. Each epoch has a window and a half."""
    path = str(tmp_path / "saved.weights.h5")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    best = keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)
    numbers, updates = (
        See(),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda update, logs=None: numbers.seen.append(update)
        ),
    )
    arrays = [array[: 6 * MICRO] for array in data()]
    see, others = See(), [save, best, Monitor(), accum.OnUpdates([updates])]
    callbacks = [*[Apply()] * (not is_last), see, *others, *[Apply()] * is_last]
    optimizer = hosts.ours("SGD", accum_iters=LENGTH, reduction=reduction)
    model, big = (compiled(dense_model(), o) for o in (optimizer, hosts.stock("SGD")))
    settings, of_big = {"epochs": 2, "validation_data": arrays}, See()
    logs = fit(model, MICRO, arrays, callbacks=callbacks, **settings).history
    expected = fit(big, LENGTH * MICRO, arrays, callbacks=[of_big_batches(of_big)], **settings)
    assert [position for position, *_ in see.seen] == [0] * 4
    for (_, found, _), wanted in zip(see.seen, of_big.seen):
        for value, other in zip(found, wanted):
            np.testing.assert_allclose(value, other, **hosts.TOLERANCE)
    np.testing.assert_allclose(logs["val_loss"], expected.history["val_loss"], rtol=1e-5)
    assert (logs["completed_updates"], logs["window_position"]) == ([2, 4], [0, 0])
    assert numbers.seen == [0, 1, 0, 1]
    model.load_weights(path)
    assert_equal(weights(model), weights(big))


def of_big_batches(see):
    """Return a callback that notes the weights of a stock optimizer's model at the same moments."""

    def note(*arguments, **logs):
        see.seen.append(see.model.get_weights())

    see.on_epoch_end = see.on_test_begin = note
    return see


class Seldom(Apply):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            super().on_epoch_end(epoch, logs)


def test_a_subclass_may_choose_the_moment():
    optimizer = hosts.ours("SGD", accum_iters=LENGTH + 1, reduction="mean")
    see, model = See(), compiled(dense_model(), optimizer)
    arrays = [array[: 3 * MICRO] for array in data()]
    fit(model, MICRO, arrays, epochs=3, callbacks=[Seldom(), see])
    assert [position for position, *_ in see.seen] == [3, 0, 3]


SwapEMA = getattr(keras.callbacks, "SwapEMAWeights", None)


@pytest.mark.skipif(SwapEMA is None, reason="SwapEMAWeights is Keras 3's")
@pytest.mark.parametrize("on_epoch", [False, True])
def test_averaged_weights_are_swapped_in_after_a_partial_window(on_epoch):
    """In both orders. Closed later, it would move the averaged weights: by 0.04 and more here."""
    settings = {"use_ema": True, "ema_momentum": 0.5, "learning_rate": 0.1}
    big = compiled(dense_model(), hosts.stock("Adam", **settings))
    more = {"arrays": SOME, "validation_data": SOME}
    fit(big, LENGTH * MICRO, callbacks=[SwapEMA(on_epoch)], **more)
    for callbacks in ([Apply(), SwapEMA(on_epoch)], [SwapEMA(on_epoch), Apply()]):
        model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, **settings))
        fit(model, MICRO, callbacks=callbacks, **more)
        assert_equal(weights(model), weights(big))


GIVEN = {"OnUpdates": [[]], "MicroBatches": [2]}


@pytest.mark.parametrize(
    "name", ["ApplyPartialWindow", "OnUpdates", *["MicroBatches"] * hosts.IS_KERAS3]
)
def test_a_callback_twice_is_refused(name):
    """Two OnUpdates have callbacks of their own, unless they are the same."""
    first, second = (getattr(accum, name)(*GIVEN.get(name, [])) for _ in range(2))
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2))
    with pytest.raises(ValueError, match=f"`callbacks` has {name} twice"):
        train(model, first, first if name == "OnUpdates" else second)
    if name == "OnUpdates":
        train(model, first, second)


@pytest.mark.parametrize("make", [Monitor, Weights, lambda: accum.OnUpdates([])])
def test_a_stock_optimizer_is_refused(make):
    with pytest.raises(TypeError, match="needs a model with an optimizer of keras_accum"):
        train(compiled(dense_model(), hosts.stock("Adam")), make())


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="Keras's NNX mode is JAX's")
@pytest.mark.parametrize("name", ["MicroBatchWeights", "MicroBatches"])
def test_the_nnx_mode_is_refused(name, monkeypatch):
    """In this mode, Keras traces the train step of the model's class: a callback's isn't seen."""
    callback = Weights() if name == "MicroBatchWeights" else accum.MicroBatches(MICRO)
    callback.set_model(model_of())
    monkeypatch.setattr("keras.src.backend.config._NNX_ENABLED", True)
    with pytest.raises(ValueError, match=f"{name} can't be used with Keras's NNX mode"):
        callback.on_train_begin()
