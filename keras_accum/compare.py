"""`compare_with_big_batch`: is a window equal to the big batch on your model? No Keras here."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import warnings
from collections import namedtuple
from typing import Any, Sequence

import numpy as np

from keras_accum.callbacks.base import is_named
from keras_accum.callbacks.train_function import attribute, undone
from keras_accum.convert import inner, is_ours
from keras_accum.generators import remember_generators
from keras_accum.host import SAID_BY
from keras_accum.options import Options

# A window's distance may be this many times the control, or the rounding of the data type.
_TIMES = 10
_EQUAL = 1e-5  # and in float32, at most this
_RANDOM = 1e-3  # a control above this isn't rounding
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of others, float32's: 2.0**-24

_UNCOMPILED = "`model` must be compiled: call `model.compile(...)` first. Received: {!r}"
_NOT_OURS = (
    "`model` must be compiled with one optimizer of keras_accum, or `callbacks` must have "
    "MicroBatches. Received: optimizer={!r}"
)
_FROZEN = "`model` has no weights to train, so nothing can be compared. Received: {!r}"
_NO_ARRAY = (
    "`{}` must be an array of samples, or a list or dict of arrays. From a dataset, take one "
    "window: `x, y = next(iter(dataset.unbatch().batch(50)))`. Received: {}"
)
_LENGTHS = "`x`, `y` and `sample_weight` must have equally many samples. Received: {}"
_NO_WINDOW = (
    "`x` must have the samples of exactly one window: {} to {}, with accum_iters={} and "
    "batch_size={}. Received: {} samples"
)
_WHOLE = (
    "These samples are one micro-batch, so there is nothing to compare: give the optimizer an "
    "`accum_iters` of at least 2, or MicroBatches a size below the number of samples. Received: "
    "{} samples, with batch_size={}"
)
_UPDATES = (
    "A window must make one update, but `train_step` made {}: let it call `close_window` once, "
    "and apply gradients once."
)
_ALL_DROPPED = "All micro-batches were dropped: leave out `skip_nonfinite` and `skip_norm`."
_NOTHING = "The gradient of the {} is {}. Compare with other samples or weights."

_DRAWS = (
    "The big batch differs as much from itself in another order, so the model draws random "
    "numbers{}. That isn't wrong, but hides all else. For this comparison, make a model without "
    "dropout, noise and augmentation (rate=0)."
)
_ROUNDS = (
    "The big batch differs nearly as much from itself in another order: rounding is large beside "
    "this gradient. Compare with initial weights, or in float64."
)
_IS_HALF = "In half precision, smaller differences don't show: for those, compare in float32."
_REMEDY = "It is equal ({:.2g}) {}."
_UNKNOWN = (
    "No option of this package makes it equal. Look for a layer, a loss or a `train_step` where a "
    "sample's gradient depends on other samples in its batch, or for an added loss that is a sum."
)

VariableDistance = namedtuple("VariableDistance", "name distance control")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare_with_big_batch`. Print it.

    window: the distance between the gradients of the window, a, and of the big batch, b:
        ||a - b|| / ||b||.
    control: the same for the big batch in another order, which differs by rounding alone.
    by_variable: (name, distance, control) for each variable, the largest distance first. Their
        squares add up to those of `window` and `control`.
    verdict: "equal", "differs" or "undecided".
    warnings: what `fit` warned of in the window, but not with the big batch.
    advice: the next step, "" if there is none.
    """

    window: float
    control: float
    by_variable: list
    verdict: str
    warnings: list
    advice: str

    def __str__(self):
        what = "control" if self.verdict == "undecided" else "rounding"
        found = f"{self.verdict}: {self.window:.2g} ({what}: {self.control:.2g})"
        if self.verdict == "equal":
            return "\n".join([f"{found}.", *filter(None, [self.advice])])
        found = f"{found}, most in {self.by_variable[0].name}."
        return "\n".join([found, *self.warnings, *filter(None, [self.advice])])


def compare_with_big_batch(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int = 32,
    callbacks: Sequence[Any] = (),
) -> Comparison:
    """Compare a window's gradient with the big batch's, on your own model and samples.

    `fit` trains your model as you compiled it: in micro-batches, with all samples in one batch, and
    as a control with these in another order. An optimizer that only keeps gradients takes the place
    of yours, so learning rate, clipping, decay, moving averages and `window_transforms` take no
    part: they act once per update. If the window differs, this package's other options are tried.

    Then everything is put back: weights, states of layers, metrics, seeds, and your optimizer. Only
    eager dropout of tf_keras continues with other draws.

    The big batch must fit in memory. If it doesn't, compare `x[:10]` with `batch_size=2`.

    Args:
        model: A model compiled with an accumulating optimizer, or with any optimizer if
            `callbacks` has MicroBatches. If it has no weights yet, it is built.
        x: The samples of one window: an array, or a list or dict of arrays.
        y: The targets, or None.
        sample_weight: The weights of samples, or None.
        batch_size: Integer >= 1, default 32, as you give it to `fit`.
        callbacks: List of callbacks, default empty: those that your gradient depends on, as
            MicroBatches. This package's callbacks run in the window only.

    Returns:
        A Comparison. Print it, or read its `verdict`: "equal", "differs" or "undecided".

    Example:

    >>> import keras, numpy as np
    >>> from keras_accum import AdamAccumulate, compare_with_big_batch
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.random.rand(50, 3), np.ones((50, 1))
    >>> found = compare_with_big_batch(model, x, y, batch_size=10)
    >>> print(found)  # doctest: +SKIP
    equal: 1.9e-07 (rounding: 1.4e-07).
    >>> found.verdict
    'equal'
    """
    subject, options = _find_subject(model, callbacks)
    data = [_as_arrays(*pair) for pair in zip(("x", "y", "sample_weight"), (x, y, sample_weight))]
    samples = _count_samples(data)
    options = _in_one_window(options, samples, batch_size, callbacks)
    subject.build(_take(data[0], slice(1)))
    if not model.trainable_variables:
        raise ValueError(_FROZEN.format(model))
    with subject.unchanged():
        return _Window(subject, data, samples, batch_size).compare(options, list(callbacks))


def _find_subject(model, callbacks):
    """Return the model's Subject, and the options of its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(_UNCOMPILED.format(model))
    found, keras_name, options = inner(optimizer), "keras3", Options()
    if is_ours(found):
        keras_name, options = found._keras_name, found._accumulation.options
    elif not any(is_named(callback, "MicroBatches") for callback in callbacks):
        raise ValueError(_NOT_OURS.format(optimizer))
    package = importlib.import_module(f"keras_accum.{keras_name}")
    subject = importlib.import_module(f"keras_accum.{keras_name}.compare").Subject(model, package)
    return subject, dataclasses.replace(options, window_transforms=None)


def _as_arrays(name, data):
    """Return arrays of NumPy in the same dicts, lists and tuples."""

    def convert(array):
        if not (hasattr(array, "__array__") and len(getattr(array, "shape", ()))):
            raise ValueError(_NO_ARRAY.format(name, type(array).__name__))
        return np.asarray(array)

    return _map(convert, data)


def _map(function, data):
    if isinstance(data, dict):
        return {key: _map(function, value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_map(function, value) for value in data)
    return None if data is None else function(data)


def _take(data, which):
    return _map(lambda array: array[which], data)


def _count_samples(data):
    counts = []
    _map(lambda array: counts.append(len(array)), data)
    if len(set(counts)) != 1:
        raise ValueError(_LENGTHS.format(counts))
    return counts[0]


def _in_one_window(options, samples, batch_size, callbacks):
    """Return the options for these samples, or raise a ValueError if they aren't one window."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be an integer >= 1. Received: {batch_size!r}")
    count, length = math.ceil(samples / batch_size), options.accum_iters
    if options.is_scheduled:  # any of its windows
        length, options = count, dataclasses.replace(options, accum_iters=count)
    if length not in (count, None):
        most = batch_size * length
        least = most - batch_size + 1
        raise ValueError(_NO_WINDOW.format(least, most, length, batch_size, samples))
    slices = [c.size for c in callbacks if is_named(c, "MicroBatches")]
    if count == 1 and not any(size is None or size < samples for size in slices):
        raise ValueError(_WHOLE.format(samples, batch_size))
    return options


class Subject:
    """A model that is compared. Each Keras has a subclass with these members.

    package: the module with the public names for this Keras.
    get_name(variable): the name to show, as "dense/kernel".
    read(variable): its value in NumPy. write(variable, value): the inverse.
    make_recorder(options, scale): an accumulating optimizer that keeps the gradient of its last
        update and moves no weight. It may be wrapped to scale the loss.
    read_gradients(recorder): these gradients by NumPy, for all trainable variables.
    loss_scale(): the optimizer's factor for losses, or None.
    list_states(): the variables changed by a training, except the optimizer's.
    list_random(): the names of layers that draw random numbers, as far as known.
    in_full_precision(): a scope where a GPU doesn't shorten float32.
    """

    def __init__(self, model, package):
        self.model, self.package = model, package

    def build(self, x):
        """Create the model's weights if some are missing, as `fit` would."""
        layers = [layer for layer in self.model._flatten_layers() if layer is not self.model]
        if not (layers and all(layer.built for layer in layers)):
            self.model(x)

    def remember_generators(self):
        """Return functions to restore the present states of random generators."""
        return remember_generators()

    def scope(self):
        """Return the scope for new variables: a strategy's, on TensorFlow."""
        strategy = getattr(self.model, "distribute_strategy", None)
        return contextlib.nullcontext() if strategy is None else strategy.scope()

    @contextlib.contextmanager
    def unchanged(self):
        """Put everything back at the end, also after an exception."""
        model, restores = self.model, self.remember_generators()
        # Keras's containers of losses and metrics: the first training builds them.
        owners = [v for n, v in vars(model).items() if n.strip("_").startswith("compile")]
        owners = [model, *(owner for owner in owners if hasattr(owner, "__dict__"))]
        attributes = [dict(vars(owner)) for owner in owners]
        # Copies, because what is read may be the variable's own memory.
        states = [(variable, np.array(self.read(variable))) for variable in self.list_states()]
        weights = set(map(id, model.weights))
        self._weights = [pair for pair in states if id(pair[0]) in weights]
        try:
            with self.in_full_precision():
                yield
        finally:
            vars(model)["optimizer"] = attributes[0]["optimizer"]
            model.reset_metrics()  # also those made now
            for owner, before in zip(owners, attributes):
                for name, value in list(vars(owner).items()):
                    if before.get(name, self) is not value:
                        delattr(owner, name)  # otherwise Keras would keep track of it
                vars(owner).update(before)
            for variable, value in states:
                self.write(variable, value)
            for restore in restores:
                restore()

    def restore_weights(self):
        for variable, value in self._weights:
            self.write(variable, value)

    @undone
    def install(self, recorder):
        """Train the model with this optimizer from now on."""
        model, train_step = self.model, self.model.train_step
        vars(model)["optimizer"] = recorder  # without Keras's tracking
        # A new function, because JAX's jit cache is keyed by function.
        with attribute(model, "train_step", lambda *arguments: train_step(*arguments)):
            model.make_train_function(force=True)

    def rounding(self):
        """Return the relative rounding of the least precise layer."""
        types = {layer.compute_dtype for layer in self.model._flatten_layers()}
        return max(_ROUNDING.get(dtype, 2.0**-24) for dtype in types)


class _Window:
    """One window, and the runs that compare it."""

    def __init__(self, subject, data, samples, batch_size):
        self._subject, self._data, self._samples = subject, data, samples
        self._batch_size, self._scale = batch_size, subject.loss_scale()

    def compare(self, options, callbacks):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            window = self._train_window(options, callbacks, self._batch_size)
            said, caught[:] = _texts(caught), []
            big, control = self._train_big(options, callbacks)
            said = [text for text in said if text not in _texts(caught)]
            distances = _measure(window, big), _measure(control, big)
            verdict, advice = self._judge(*distances)
            if verdict == "differs":
                advice = self._find_remedy(options, callbacks, big, distances[1])
                if not (advice or said):
                    advice = _UNKNOWN
        by_variable = self._by_variable(window, big, control)
        return Comparison(*distances, by_variable, verdict, said, advice)

    def _train_window(self, options, callbacks, batch_size):
        """Return the window's gradient, with a loss scale that doesn't overflow."""
        if not any(is_named(callback, "ApplyPartialWindow") for callback in callbacks):
            # Some micro-batches may be dropped, or the caller may close windows.
            callbacks = [self._subject.package.ApplyPartialWindow(), *callbacks]
        while True:
            recorder = self._subject.make_recorder(options, self._scale)
            found = self._train(recorder, self._data, batch_size, callbacks)
            if self._scale is None or self._scale <= 1 or _are_finite(found):
                return _check(found, "window")
            self._scale /= 16

    def _train_big(self, options, callbacks):
        """Return the big batch's gradients, in this order of samples and in another."""
        options = Options(reduction=options.reduction)  # as `weigh` may be called
        recorder, callbacks = self._subject.make_recorder(options, self._scale), _others(callbacks)
        found = self._train(recorder, self._data, self._samples, callbacks)
        order = np.random.default_rng(0).permutation(self._samples)
        permuted = [_take(each, order) for each in self._data]
        # Seeds continue, so that random draws show.
        control = self._train(recorder, permuted, self._samples, callbacks, is_new=False)
        if not any(gradient.any() for gradient in found):
            raise ValueError(_NOTHING.format("big batch", "zero"))
        return _check(found, "big batch"), _check(control, "big batch")

    def _train(self, recorder, data, batch_size, callbacks, is_new=True):
        """Train one epoch, and return its update's gradient."""
        subject, own = self._subject, inner(recorder)
        subject.restore_weights()
        with subject.scope():
            if is_new:
                subject.install(recorder)
            before, arguments = own.completed_updates, {"shuffle": False, "verbose": 0}
            arguments.update(zip(("x", "y", "sample_weight"), data))
            subject.model.fit(batch_size=batch_size, callbacks=callbacks, **arguments)
            made = own.completed_updates - before
        if made != 1:
            raise ValueError(_UPDATES.format(made) if made else _ALL_DROPPED)
        gradients = subject.read_gradients(own)
        return [g.astype(np.result_type(g.dtype, "float64")) for g in gradients]

    def _judge(self, window, control):
        """Return the verdict, and the next step."""
        rounding = self._subject.rounding()
        is_half = rounding > 1e-6
        if control > max(_RANDOM, _TIMES * rounding):
            names = ", ".join(self._subject.list_random())
            return "undecided", _DRAWS.format(names and f" in {names}")
        if window > _TIMES * max(control, rounding):
            return "differs", ""
        if window > _EQUAL and not is_half:
            return "undecided", _ROUNDS
        return "equal", _IS_HALF if is_half else ""

    def _find_remedy(self, options, callbacks, big, control):
        """Return the first change that makes the window equal, as an advice, or ""."""
        for text, *changed in self._list_remedies(options, callbacks):
            with contextlib.suppress(Exception):  # the model may not allow it
                distance = _measure(self._train_window(*changed), big)
                if self._judge(distance, control)[0] == "equal":
                    return _REMEDY.format(distance, text)
        return ""

    def _list_remedies(self, options, callbacks):
        """Yield changes to try: a text, options, callbacks, and the batch size."""
        package, size = self._subject.package, self._batch_size
        if options.drops:
            changed = dataclasses.replace(options, skip_norm=None, skip_nonfinite=False)
            yield "without `skip_norm` and `skip_nonfinite`", changed, callbacks, size
        for reduction in ("mean", "weighted", "sum") if options.accumulates else ():
            if reduction != options.reduction:
                changed = dataclasses.replace(options, reduction=reduction)
                yield f"with reduction={reduction!r}", changed, callbacks, size
        if hasattr(package, "MicroBatches"):
            size = min([size, *(c.size for c in callbacks if is_named(c, "MicroBatches"))])
            text = f"with MicroBatches({size}, loss='batch'), the stock optimizer and whole batches"
            slices = package.MicroBatches(size, loss="batch")
            yield text, Options(), [slices, *_others(callbacks)], self._samples

    def _by_variable(self, window, big, control):
        names = map(self._subject.get_name, self._subject.model.trainable_variables)
        whole = _norm(big)
        found = [
            VariableDistance(name, _norm([a - b]) / whole, _norm([c - b]) / whole)
            for name, a, b, c in zip(names, window, big, control)
        ]
        return sorted(found, key=lambda each: -each.distance)


def _texts(caught):
    return list(dict.fromkeys(str(each.message).replace(SAID_BY, "", 1) for each in caught))


def _others(callbacks):
    """Return the callbacks from outside this package."""
    return [c for c in callbacks if not type(c).__module__.startswith("keras_accum.")]


def _norm(arrays):
    return math.sqrt(sum(float(np.sum(np.abs(array) ** 2)) for array in arrays))


def _measure(gradients, big):
    return _norm([a - b for a, b in zip(gradients, big)]) / _norm(big)


def _are_finite(gradients):
    return all(np.isfinite(gradient).all() for gradient in gradients)


def _check(gradients, what):
    if not _are_finite(gradients):
        raise ValueError(_NOTHING.format(what, "not finite"))
    return gradients
