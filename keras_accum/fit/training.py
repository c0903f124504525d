"""What happens at the beginning of each training: checks of its callbacks, and what `fit` adds.

Keras tells no callback about the others, so `look_at_trainings` hooks into CallbackList. It also
acts without our callbacks: windows are weighed and end with their epochs, and `fit` can warn.
"""

from collections import defaultdict

from keras_accum.convert import list_accumulating
from keras_accum.engine.pending import UNWEIGHED
from keras_accum.engine.unended import Unended
from keras_accum.fit import closing, hooks, train_function, warnings
from keras_accum.fit.callback import Callback
from keras_accum.fit.weighing import WeighMicroBatches
from keras_accum.host import find_own_methods, is_named, warn_once
from keras_accum.terms import repeated

_DISCARDED = (
    "The last training didn't end, so the {} micro-batches in its open window are discarded: this "
    "training would see them again. To continue inside the epoch in place of this, call "
    "`optimizer.position_in_data(samples, batch_size)` before `fit`; to update with them, "
    "`optimizer.apply_partial_window()`. To hide this warning, `optimizer.discard_window()`."
)


def look_at_trainings(host):
    """Return the hook on CallbackList for a Keras."""
    weighing_class = host.callback(WeighMicroBatches)
    ending_class = host.callback(closing.EndsWindowsFirst)

    def hook(on_train_begin):
        def begin(self, logs=None):
            hooks.remove(self)  # those of an earlier training
            model = getattr(self, "model", None)  # TensorFlow 2.4 on: may be missing
            if model is not None:
                train_function.uninstall(model)
            optimizers = [] if model is None else list_accumulating(model)
            if not optimizers and not any(isinstance(c, Callback) for c in self.callbacks):
                on_train_begin(self, logs)
                return
            for optimizer in optimizers:
                optimizer._accumulation.store.start_training()
            _introduce(self.callbacks)
            if optimizers and model.built:
                repeated.refuse_repeated(model, optimizers, host)
            on_train_begin(self, logs)  # a callback may load a state
            _begin_windows(self, optimizers)
            added = _find_weighing(weighing_class, self, optimizers, host)
            ends_all = any(map(_ends_windows, self.callbacks))
            ends_any = any(o._accumulation.options.ends_with_epoch for o in optimizers)
            if ends_all or ends_any and host.waits_for_steps(model):
                added.append(ending_class(ends_all))
            for callback in added:  # Keras doesn't know these callbacks
                callback.set_model(model)
                callback.on_train_begin()
            _install(self, optimizers, host, added)

        return begin

    return host.keras.callbacks.CallbackList, "on_train_begin", hook


def _begin_windows(callbacks, optimizers):
    """Discard the windows of a training that hasn't ended, and note that this one runs."""
    this = Unended(callbacks)
    for optimizer in optimizers:
        accumulation, last = optimizer._accumulation, optimizer._accumulation.unended
        if last is not None and last.is_running():  # a `fit` in a callback of `fit`
            continue
        if last is not None and not last.continues:
            position = optimizer.window_position
            accumulation.discard_window()  # a step that failed may have left a part of its sum
            if position:
                warn_once(optimizer, _DISCARDED, position)
        accumulation.unended = this


def _end_windows(callbacks, optimizers):
    """Note that a training has ended."""
    for optimizer in optimizers:
        last = optimizer._accumulation.unended
        if last is not None and last.is_of(callbacks):
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


def _find_weighing(weighing_class, callbacks, optimizers, host):
    """Return the callbacks that `fit` adds to weigh micro-batches, at most one."""
    options = [o._accumulation.options for o in optimizers]
    of_windows = [o for o in options if o.accumulates and o.reduction != "mean"]
    model, named = callbacks.model, ("MicroBatchWeights", "MicroBatches")
    is_given = any(is_named(callback, name) for callback in callbacks.callbacks for name in named)
    if is_given or not of_windows:
        return []
    obstacle = _find_obstacle(model, host)
    if obstacle and not any(o.is_strict for o in of_windows):
        for optimizer in optimizers:
            if optimizer._accumulation.options.weighs:
                warn_once(optimizer, UNWEIGHED.format(obstacle))
        return []
    # Kept, because it has the traces of the train step.
    accumulation = optimizers[0]._accumulation
    callback = accumulation.weighing_callback
    if callback is None or callback.model is not model:
        callback = accumulation.weighing_callback = weighing_class()
    return [callback]


def _find_obstacle(model, host):
    """Return why train steps can't be changed here, in words, or ""."""
    if not hasattr(model, "compute_loss"):
        return "in TensorFlow 2.8"
    if not host.waits_for_steps(model):
        return "under ParameterServerStrategy"
    if find_own_methods(model, host.keras.Model, "make_train_function"):
        return "of a model with its own `make_train_function`"
    return "in Keras's NNX mode" if host.hides_train_steps() else ""


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
    model = callbacks.model
    if optimizers and not model.built:  # its penalties are known after a step

        def check(batch, logs=None):
            before["on_train_batch_end"].remove(check)
            repeated.refuse_repeated(model, optimizers, host)

        before["on_train_batch_end"].append(check)
    for name, functions in warnings.find_hooks(callbacks, optimizers, host, added).items():
        before[name] += functions
    before["on_train_end"].insert(0, lambda logs=None: _end_windows(callbacks, optimizers))
    hooks.install(callbacks, before, after)
