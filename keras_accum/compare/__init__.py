"""`compare_with_big_batch`: is a window equal to the big batch on your model? No Keras here.

`samples` are those of one window, `subject` is the model, `reached` what is found in it and put
back, `runs` trains it with controls, `verdict` compares gradients, `remedies` lists changes to try.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import numbers
from typing import Any, Sequence

from keras_accum.compare.reached import Reached
from keras_accum.compare.remedies import Settings
from keras_accum.compare.runs import Experiment
from keras_accum.compare.samples import Samples, check_window
from keras_accum.compare.verdict import Comparison, list_some
from keras_accum.engine.optimizers import accumulating_in, list_accumulating
from keras_accum.fit.callback import Callback
from keras_accum.host import is_named, module_name
from keras_accum.options import Options
from keras_accum.schedule import ENDLESS

__all__ = ["Comparison", "compare_with_big_batch"]

# A gradient depends on these, and they write no files.
_CALLBACKS = "ApplyPartialWindow", "MicroBatches", "MicroBatchWeights"

_UNCOMPILED = "`model` must be compiled: call `model.compile(...)` first. Received: {!r}"
_NOT_OURS = (
    "`model` must have an optimizer of keras_accum, given to `compile` or an attribute, or "
    "`callbacks` must have MicroBatches. Received: optimizer={!r}"
)
_SEVERAL = (
    "Optimizers within one optimizer must have the same arguments of keras_accum. For this "
    "comparison, compile the model with one of them: the gradient doesn't depend on the rest. "
    "Received: {}"
)
_UNPLACED = (
    "Keep optimizers in attributes, lists or dictionaries of the model, so that the comparison can "
    "replace them. Received: {}"
)
_FROZEN = "`model` has no weights to train, so nothing can be compared. Received: {!r}"
_OTHER_CALLBACKS = (
    "`callbacks` takes {} of keras_accum, on which the gradient depends: others may write files or "
    "keep what they saw. Leave out: {}"
)
_OFF = "Dropout and noise were off (rate 0) in the comparison, and draw again now: {}."
_IN_FLOAT32 = (
    "Computed in float32, as the variables are. Your training in half precision rounds each "
    "gradient beside this."
)


def compare_with_big_batch(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int = 32,
    callbacks: Sequence[Any] = (),
) -> Comparison:
    """Compare a window's gradient with the big batch's, on your own model and samples.

    `fit` trains your model as you compiled it: in micro-batches, and with all samples in one batch.
    Each variable is judged by itself, beside a control that only differs by rounding: the big batch
    with weights moved by one unit in the last place, and with its samples in another order. A
    variable's small elements are also judged by themselves, as Adam scales each element.
    AdamAccumulate with a learning rate of 0 stands in for your optimizers, so learning rate,
    clipping, decay, moving averages and `window_transforms` have no effect: they act once per
    update. If the window differs, this package's other options are tried.

    Keras's dropout and noise layers are off meanwhile, and a model with a mixed policy computes in
    float32. The printed notes say so.

    Then what attributes, lists and dictionaries of the model hold is put back, to the bit: weights,
    states of layers, losses and metrics, seeds, and your optimizers. Globals, files, and what your
    layers keep elsewhere aren't. If your layers draw from TensorFlow's global generator, it
    continues from where the comparison left it.

    The big batch must fit in memory. If it doesn't, compare `x[:10]` with `batch_size=2`.

    Args:
        model: A model compiled with an accumulating optimizer, or with any optimizer if
            `callbacks` has MicroBatches. A model with its own train step may have more optimizers,
            also in lists and dictionaries. If it has no weights yet, it is built.
        x: The samples of one window: an array, or a list, dict or tuple of arrays.
        y: The targets, or None.
        sample_weight: The weights of samples, or None.
        batch_size: Integer >= 1, default 32, as you give it to `fit`.
        callbacks: List of callbacks, default empty: MicroBatches, MicroBatchWeights or
            ApplyPartialWindow. They run in the window only.

    Returns:
        A Comparison. Print it, or read its `verdict`: "equal", "differs" or "undecided".

    Example:

    >>> import keras, numpy as np
    >>> from keras_accum import AdamAccumulate, compare_with_big_batch
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.random.rand(50, 3), np.ones((50, 1))
    >>> comparison = compare_with_big_batch(model, x, y, batch_size=10)
    >>> print(comparison)  # doctest: +SKIP
    equal: 1.9e-07 (rounding: 1.4e-07).
    Compared: the gradients of one window of 50 samples, 2 of 2 variables.
    >>> comparison.verdict
    'equal'
    """
    batch_size = _check_arguments(batch_size, callbacks)
    subject = _find_subject(model)
    samples = Samples(x, y, sample_weight)
    _build(subject, samples)
    reached = Reached(subject)
    option_sets = _find_options(model, reached, callbacks)
    option_sets = check_window(option_sets, samples.count, batch_size, callbacks)
    with _prepared(subject, reached) as notes:
        settings = Settings(option_sets, list(callbacks), batch_size)
        return Experiment(subject, reached, samples).compare(settings, notes)


def _check_arguments(batch_size, callbacks):
    """Return `batch_size` as an int, or raise an error."""
    is_integer = isinstance(batch_size, numbers.Integral) and not isinstance(batch_size, bool)
    if not is_integer or batch_size < 1:
        raise ValueError(f"`batch_size` must be an integer >= 1. Received: {batch_size!r}")
    refused = [type(callback).__name__ for callback in callbacks if not _is_accepted(callback)]
    if refused:
        raise ValueError(_OTHER_CALLBACKS.format(", ".join(_CALLBACKS), ", ".join(refused)))
    return int(batch_size)


def _is_accepted(callback):
    return isinstance(callback, Callback) and any(is_named(callback, name) for name in _CALLBACKS)


def _find_subject(model):
    """Return the model's Subject for its Keras."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError(_UNCOMPILED.format(model))
    ours = list_accumulating(model)
    name = f"keras_accum.{ours[0]._keras_name}" if ours else module_name()
    package = importlib.import_module(name)
    return importlib.import_module(f"{name}.compare").Subject(model, package)


def _build(subject, samples):
    """Create the model's missing weights. Raise a ValueError if none is trainable."""
    subject.build(samples.take(slice(1))["x"])
    if not subject.model.trainable_variables:
        raise ValueError(_FROZEN.format(subject.model))


def _find_options(model, reached, callbacks):
    """Return the Options of each optimizer that can be reached from the model."""
    if reached.list_unplaced():
        raise ValueError(_UNPLACED.format(reached.list_unplaced()))
    option_sets, has_ours = [], False
    for optimizer in reached.optimizers.values():
        ours = accumulating_in(optimizer)
        first, *others = [_options_now(inner) for inner in ours] or [Options()]
        if any(options != first for options in others):
            raise ValueError(_SEVERAL.format(ours))
        option_sets.append(dataclasses.replace(first, window_transforms=None))
        has_ours = has_ours or bool(ours)
    if not has_ours and not any(is_named(callback, "MicroBatches") for callback in callbacks):
        raise ValueError(_NOT_OURS.format(model.optimizer))
    return option_sets


def _options_now(optimizer):
    """Return an optimizer's options, with the length that it has now."""
    options = optimizer._accumulation.options
    if options.is_scheduled or not options.accumulates:
        return options
    # Not the property, which creates the counter of updates on tf_keras.
    length = optimizer._accumulation.state.counter("accum_iters")
    if length:  # it was set
        length = None if length == ENDLESS else length
        return dataclasses.replace(options, accum_iters=length)
    return options


@contextlib.contextmanager
def _prepared(subject, reached):
    """Scope in which the model draws no random numbers, and after which all of it is put back.

    Its value is the notes on what was changed.
    """
    try:
        with subject.running():
            yield _list_notes(*subject.prepare())
    finally:
        reached.put_back()


def _list_notes(layers_off, is_in_float32):
    """Return notes on what was changed for the comparison."""
    notes = [_OFF.format(list_some(layers_off))] if layers_off else []
    return notes + [_IN_FLOAT32] * is_in_float32
