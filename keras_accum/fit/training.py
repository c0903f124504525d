"""What happens at the beginning of each training: checks of its callbacks, and what `fit` adds.

Keras tells no callback about the others, so `look_at_trainings` hooks into CallbackList. It also
acts without our callbacks: windows are weighed and end with their epochs, and `fit` can warn.
"""

from collections import defaultdict

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.engine.unended import Unended
from keras_accum.fit import closing, hooks, train_function, warnings
from keras_accum.fit.callback import Callback
from keras_accum.fit.weighing import WeighMicroBatches, find_weighing
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
        def begin(callbacks, logs=None):  # not `self`: see `Unended.is_running`
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
            _begin_windows(callbacks, optimizers)
            added = (
                [] if _is_weighed(callbacks.callbacks) else find_weighing(host, model, optimizers)
            )
            ends_all = any(map(_ends_windows, callbacks.callbacks))
            ends_any = any(o._accumulation.options.ends_with_epoch for o in optimizers)
            if ends_all or ends_any and host.waits_for_steps(model):
                batches = (getattr(callbacks, "params", None) or {}).get("steps")
                added.append(ending_class(ends_all, batches))
            for callback in added:  # Keras doesn't know these callbacks
                callback.set_model(model)
                callback.on_train_begin()
            for callback in (*callbacks.callbacks, *added):
                if isinstance(callback, WeighMicroBatches):
                    callback.begin()
            _install(callbacks, optimizers, host, added)

        return begin

    return host.keras.callbacks.CallbackList, "on_train_begin", hook


def _begin_windows(callbacks, optimizers):
    """Discard the windows of a training that hasn't ended, and note that this one runs."""
    engines = [optimizer._accumulation for optimizer in optimizers]
    # Not in a `fit` in a callback of `fit`, whose windows it continues.
    engines = [e for e in engines if e.unended is None or not e.unended.is_running()]
    for engine in engines:
        if engine.unended is not None and engine.unended.discards(engine):
            _, position = engine.read_progress()
            engine.discard_window()  # a step that failed may have left a part of its sum
            if position:
                warn_once(engine.optimizer, _DISCARDED, position)
    this = Unended(callbacks, engines)
    for engine in engines:
        engine.unended = this


def _end_windows(callbacks, optimizers):
    """Note that a training has ended."""
    for optimizer in optimizers:
        optimizer._accumulation.note_weighed()
        last = optimizer._accumulation.unended
        if last is not None and last.has_ended(callbacks):
            optimizer._accumulation.unended = None


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


def _is_weighed(callbacks):
    """Return True if a callback in the list weighs, or has whole batches."""
    named = "MicroBatchWeights", "MicroBatches"
    return any(is_named(callback, name) for callback in callbacks for name in named)


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
            for name in closing.IN_EPOCH:
                before[name].append(getattr(callback, name))
    model = callbacks.model
    if optimizers and not model.built:  # its penalties are known after a step

        def refuse_after_a_step(batch, logs=None):
            before["on_train_batch_end"].remove(refuse_after_a_step)
            repeated.refuse_repeated(model, optimizers, host)

        before["on_train_batch_end"].append(refuse_after_a_step)
    for name, functions in warnings.find_hooks(callbacks, optimizers, host, added).items():
        before[name] += functions
    before["on_train_end"].insert(0, lambda logs=None: _end_windows(callbacks, optimizers))
    hooks.install(callbacks, before, after)
