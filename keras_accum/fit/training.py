"""What happens at the beginning of each training: checks of its callbacks, and what `fit` adds.

Keras tells no callback about the others, so `look_at_trainings` hooks into CallbackList. It also
acts without our callbacks: windows are weighed and end with their epochs, and `fit` can warn.
"""

import sys
from collections import defaultdict

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.fit import closing, hooks, train_function, warnings
from keras_accum.fit.callback import Callback
from keras_accum.fit.weighing import find_weighing
from keras_accum.host import find_own_methods, is_named, warn_once
from keras_accum.terms import repeated

_DISCARDED = (
    "The last training didn't end, so the {} micro-batches in its open window are discarded: this "
    "training would see them again. To continue inside the epoch instead, call "
    "`optimizer.position_in_data(samples, batch_size)` before `fit`, or load a state; to update "
    "with them, `optimizer.apply_partial_window()`. To discard them without this warning, "
    "`optimizer.discard_window()`."
)


def look_at_trainings(host):
    """Return the hook on CallbackList for a Keras."""
    ending_class = host.callback(closing.EndsWindowsFirst)

    def hook(on_train_begin):
        def begin(callbacks, logs=None):
            hooks.remove(callbacks)  # those of an earlier training
            model = getattr(callbacks, "model", None)  # TensorFlow 2.4 on: may be missing
            if model is not None:
                train_function.uninstall(model)
            optimizers = [] if model is None else list_accumulating(model)
            if not optimizers and not any(isinstance(c, Callback) for c in callbacks.callbacks):
                on_train_begin(callbacks, logs)
                return
            for optimizer in optimizers:
                optimizer._accumulation.store.start_training()
            _introduce(callbacks.callbacks)
            if optimizers and model.built:
                repeated.refuse_repeated(model, optimizers, host)
            on_train_begin(callbacks, logs)  # a callback may load a state
            _discard_unended(optimizers)
            is_weighed = any(is_named(c, "MicroBatchWeights") for c in callbacks.callbacks)
            added = [] if is_weighed else find_weighing(host, model, optimizers)
            ends_all = any(map(_ends_windows, callbacks.callbacks))
            ends_any = any(o._accumulation.options.ends_with_epoch for o in optimizers)
            if ends_all or ends_any and host.waits_for_steps(model):
                batches = (getattr(callbacks, "params", None) or {}).get("steps")
                added.append(ending_class(ends_all, batches))
            for callback in added:  # Keras doesn't know these callbacks
                callback.set_model(model)
                callback.on_train_begin()
            _install(callbacks, optimizers, host, added)

        return begin

    return host.keras.callbacks.CallbackList, "on_train_begin", hook


def _discard_unended(optimizers):
    """Discard the windows of a training that didn't end: this one would see their data again."""
    for optimizer in optimizers:
        accumulation = optimizer._accumulation
        if accumulation.has_unended_fit:
            position = optimizer.window_position
            accumulation.discard_window()  # at 0, too: a step that failed may have left a sum
            if position:
                warn_once(optimizer, _DISCARDED, position)


def _note_begun(optimizers):
    """Note that a training has begun a batch."""
    for optimizer in optimizers:
        optimizer._accumulation.has_unended_fit = True


def _note_ended(optimizers, handled):
    """Note that a training has ended, unless by another error than the one `handled` around it.

    Up to Keras 3.14, JAX is here after an error, too.
    """
    if _id_of_error() == handled:
        for optimizer in optimizers:
            optimizer._accumulation.has_unended_fit = False


def _id_of_error():
    """Return the identity of the error that Python handles now; that of None without one."""
    return id(sys.exc_info()[1])


def _introduce(callbacks):
    """Tell our callbacks which ones come after them. Raise a ValueError for two that clash."""
    for place, callback in enumerate(callbacks):
        if isinstance(callback, Callback):
            callback.after = callbacks[place + 1 :]
            _check_once(callback, callbacks[:place])
    names = "MicroBatches", "MicroBatchWeights"
    if all(any(is_named(callback, name) for callback in callbacks) for name in names):
        raise ValueError(
            "MicroBatchWeights can't be used with MicroBatches, which finds the weights of slices "
            "by itself: leave MicroBatchWeights out."
        )


def _check_once(callback, before):
    name = type(callback).__name__
    is_twice = any(type(other) is type(callback) for other in before)
    if callback in before or (is_twice and name != "OnUpdates"):
        raise ValueError(f"`callbacks` has {name} twice. Give `fit` one {name}.")


def _ends_windows(callback):
    """Return True for an ApplyPartialWindow, unless a user's subclass chooses the moment."""
    cls = closing.EndsWindows
    return isinstance(callback, cls) and not find_own_methods(callback, cls, *closing.METHODS)


def _install(callbacks, optimizers, host, added):
    """Put what this training needs before and after its CallbackList's methods."""
    before, after = defaultdict(list), train_function.find_hooks(callbacks, added)
    for callback in added:
        for name in closing.METHODS:
            before[name].append(getattr(callback, name))
        if host.closes_in_steps and isinstance(callback, closing.EndsWindowsFirst):
            before["on_train_batch_begin"].append(callback.on_train_batch_begin)
    model = callbacks.model
    if optimizers and not model.built:  # its penalties are known after a step

        def refuse_after_a_step(batch, logs=None):
            before["on_train_batch_end"].remove(refuse_after_a_step)
            repeated.refuse_repeated(model, optimizers, host)

        before["on_train_batch_end"].append(refuse_after_a_step)
    for name, functions in warnings.find_hooks(callbacks, optimizers, host).items():
        before[name] += functions
    before["on_train_batch_begin"].append(lambda batch, logs=None: _note_begun(optimizers))
    handled = _id_of_error()  # of a `fit` in an `except`
    before["on_train_end"].insert(0, lambda logs=None: _note_ended(optimizers, handled))
    hooks.install(callbacks, before, after)
