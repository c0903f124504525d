"""An open window that a training left when it didn't end, and `discard_window`."""

import pickle

import hosts
import numpy as np
import pytest
from cases import quick_once
from hosts import keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    SAMPLES,
    WINDOWS,
    assert_equal,
    assert_same_models,
    compiled,
    data,
    dense_model,
    fit,
    go_on,
    our_warnings,
    state,
)
from zoo import Interrupt

pytestmark = quick_once
needs_hook = pytest.mark.skipif(hosts.IS_KERAS2, reason="there, nothing looks at trainings")
IN_EPOCH = WINDOWS * LENGTH
LEFT = 2  # micro-batches in the window that is left open, after a whole one


def adam(**arguments):
    return hosts.ours("Adam", learning_rate=0.01, accum_iters=LENGTH, **arguments)


def stock_model():
    return compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))


def interrupted(optimizer=None, error=KeyboardInterrupt):
    model = compiled(dense_model(), optimizer or adam())
    with pytest.raises(error):
        fit(model, MICRO, callbacks=[Interrupt(LENGTH + LEFT, error)])
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, LEFT)
    return model


def said(model, **arguments):
    """Train for an epoch, and return how often `fit` said that it discards."""
    with our_warnings() as texts:
        fit(model, MICRO, epochs=1, **arguments)
    return sum("are discarded" in text for text in texts)


@needs_hook
@pytest.mark.parametrize("reduction", ["auto", "mean"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_the_next_fit_discards_it(error, reduction):
    model, reference = interrupted(adam(reduction=reduction), error), stock_model()
    go_on(reference, stop=1, batch_size=BIG)
    assert said(model) == 1
    assert said(model) == 0
    fit(reference, BIG, epochs=2)
    assert_same_models(model, reference)


@needs_hook
def test_in_a_later_epoch():
    """Each epoch's end closes windows, and so does a callback of the user's."""

    class Closes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                self.model.optimizer.apply_partial_window()

    model, reference = compiled(dense_model(), adam()), stock_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, MICRO, callbacks=[Closes(), Interrupt(IN_EPOCH + 1 + LENGTH + LEFT)])
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (6, LEFT)
    assert said(model) == 1
    ends = [MICRO, MICRO + BIG, MICRO + 2 * BIG, len(data()[0])]
    for ends_of_epoch in (ends, ends[:2]):
        for start, end in zip([0, *ends_of_epoch], ends_of_epoch):
            reference.train_on_batch(*(array[start:end] for array in data()))
    fit(reference, BIG, epochs=1)
    assert_same_models(model, reference)


@needs_hook
def test_the_epoch_begins_again():
    """By `initial_epoch`, if it was interrupted in its first window."""
    model, reference = compiled(dense_model(), adam()), stock_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, MICRO, callbacks=[Interrupt(IN_EPOCH + LEFT)])
    with pytest.warns(UserWarning, match="are discarded"):
        fit(model, MICRO, initial_epoch=1)
    fit(reference, BIG)
    assert_same_models(model, reference)


@needs_hook
@pytest.mark.parametrize("epoch", [0, 1])
def test_single_samples_continue_in_larger_micro_batches(epoch):
    """Each of the window's samples has counted as one."""
    model, reference = compiled(dense_model(), adam()), stock_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, 1, callbacks=[Interrupt(epoch * SAMPLES + LENGTH + LEFT)])
    position = model.optimizer.position_in_data(len(data()[0]), 1)
    assert position == (epoch, LENGTH + LEFT)
    assert said(model, arrays=[array[LENGTH + LEFT :] for array in data()]) == 0
    if epoch:
        fit(reference, LENGTH, epochs=epoch)
    windows = [LENGTH, LENGTH + LEFT + (LENGTH - LEFT) * MICRO]
    windows += [*range(windows[-1] + BIG, len(data()[0]), BIG), len(data()[0])]
    for start, end in zip([0, *windows], windows):
        reference.train_on_batch(*(array[start:end] for array in data()))
    assert_same_models(model, reference)


@needs_hook
def test_a_training_within_an_except_has_ended():
    """Its open window continues, as a window of "mean" does."""
    model, reference = (compiled(dense_model(), adam(reduction="mean")) for _ in range(2))
    first, rest = ([array[rows] for array in data()] for rows in (np.s_[:10], np.s_[10:]))
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        fit(model, MICRO, first, epochs=1)
    assert model.optimizer.window_position == 1
    assert said(model, arrays=rest) == 0
    fit(reference, MICRO, epochs=1)
    assert_equal(state(model), state(reference), rtol=0, atol=0)


def ask(model):
    assert model.optimizer.position_in_data(len(data()[0]), MICRO) == (0, (LENGTH + LEFT) * MICRO)


def load(model):
    model.optimizer.set_state(model.optimizer.get_state())


@needs_hook
@pytest.mark.parametrize("how", [ask, load])
def test_it_continues_if_asked_where_or_loaded(how):
    """To the bit as without an interruption."""
    model, reference = interrupted(), compiled(dense_model(), adam())
    how(model)
    fit(reference, MICRO, epochs=1)
    assert said(model, arrays=[array[(LENGTH + LEFT) * MICRO :] for array in data()]) == 0
    assert_equal(state(model), state(reference), rtol=0, atol=0)


@needs_hook
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "loaded"])
def test_asked_before_the_interruption(is_asked):
    """As by a callback that saves the position in each epoch."""

    class Ask(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if is_asked and batch < LENGTH + 1:
                self.model.optimizer.position_in_data(len(data()[0]), MICRO)
            elif batch < LENGTH + 1:
                load(self.model)

    model = compiled(dense_model(), adam())
    with pytest.raises(KeyboardInterrupt):
        fit(model, MICRO, callbacks=[Ask(), Interrupt(LENGTH + LEFT)])
    assert said(model) == 1


@pytest.mark.parametrize("accum_iters", [1, LENGTH])
def test_discard_window(accum_iters):
    """As if the window had never begun. The length of the next windows stays."""
    optimizer = hosts.ours("Adam", learning_rate=0.01, accum_iters=accum_iters)
    optimizer.discard_window()  # before `build`
    model = compiled(dense_model(), optimizer)
    updates = 1 if accum_iters > 1 else LENGTH + LEFT
    go_on(model, stop=LENGTH + LEFT)
    before = state(model)
    if accum_iters > 1:
        optimizer.accum_iters = 2
    optimizer.discard_window()
    assert (optimizer.completed_updates, optimizer.window_position) == (updates, 0)
    assert_equal(state(model), before, rtol=0, atol=0)
    if accum_iters == 1:
        return
    found = optimizer.get_state()
    of_window = [name for name in found if name.startswith(("accumulator", "window_"))]
    assert len(of_window) >= 6 and not any(np.any(found[name]) for name in of_window)
    assert optimizer.accum_iters == 2
    go_on(model, start=LENGTH, stop=LENGTH + 2)
    reference = go_on(stock_model(), stop=1, batch_size=BIG)
    go_on(reference, start=2, stop=3, batch_size=2 * MICRO)
    assert_same_models(model, reference)


@needs_hook
def test_train_on_batch_continues():
    """In a loop of one's own, and a later `fit` discards nothing of it."""
    model, reference = interrupted(), compiled(dense_model(), adam())
    go_on(model, LENGTH + LEFT, LENGTH + LEFT + 1)
    assert said(model, arrays=[array[(LENGTH + LEFT + 1) * MICRO :] for array in data()]) == 0
    fit(reference, MICRO, epochs=1)
    assert_equal(state(model), state(reference), rtol=0, atol=0)


@needs_hook
def test_a_pickled_optimizer_continues():
    """It has no training of this process behind it."""
    model, reference = interrupted(), stock_model()
    other = compiled(dense_model(), pickle.loads(pickle.dumps(model.optimizer)))
    other.set_weights(model.get_weights())
    assert said(other, arrays=[array[:MICRO] for array in data()]) == 0
    assert other.optimizer.completed_updates == 2
    go_on(reference, stop=1, batch_size=BIG)
    window = [np.r_[array[BIG : BIG + LEFT * MICRO], array[:MICRO]] for array in data()]
    reference.train_on_batch(*window)
    assert_same_models(other, reference)


@needs_hook
def test_a_fit_inside_of_an_epoch():
    """It discards the open window, and the outer training goes on with a new one."""
    inner = [array[:BIG] for array in data()]

    class Nested(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == LENGTH + LEFT:
                with pytest.warns(hosts.accum.AccumulationWarning, match="are discarded"):
                    fit(self.model, MICRO, inner, epochs=1)

    model, reference = compiled(dense_model(), adam()), stock_model()
    fit(model, MICRO, epochs=1, callbacks=[Nested()])
    go_on(reference, stop=1, batch_size=BIG)
    fit(reference, BIG, inner, epochs=1)
    fit(reference, BIG, [array[(LENGTH + LEFT) * MICRO :] for array in data()], epochs=1)
    assert_same_models(model, reference)
