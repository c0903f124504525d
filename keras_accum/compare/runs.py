"""The trainings of a comparison: the window, the big batch with its controls, and remedies."""

import contextlib
import copy
import dataclasses
import re
import warnings

import numpy as np

from keras_accum.callbacks.base import find_own_methods, is_named
from keras_accum.compare.verdict import Big, Comparison, Judgement, are_finite
from keras_accum.convert import inner
from keras_accum.host import SAID_BY
from keras_accum.options import Options

_NUDGES, _ORDERS = 3, 2

_UPDATES = (
    "A window must make one update, but `train_step` made {}: let it call `close_window` once, "
    "and apply gradients once."
)
_ALL_DROPPED = (
    "No optimizer made an update: all micro-batches were dropped, or `train_step` calls none. "
    "Leave out `skip_nonfinite` and `skip_norm`."
)
_NOTHING = "The gradient of the {} is {}. Compare with other samples or weights."
_SEVERAL = (
    "{0} made {1} updates in this window, where the big batch makes one. To train it with windows, "
    "too, give the model {0}Accumulate(accum_iters=...) in its place."
)
_REMEDY = "It is equal ({:.2g}) {}."
_UNKNOWN = (
    "No option of this package makes it equal. Look for a layer, a loss or a `train_step` where a "
    "sample's gradient depends on other samples in its batch, or for an added loss that is a sum."
)


@dataclasses.dataclass(frozen=True)
class Change:
    """How to train the window: by each optimizer's options, callbacks and a batch size."""

    options: list
    callbacks: list
    batch_size: int
    text: str = ""

    def each(self, text, **changed):
        """Return the same with other options of the optimizers that accumulate or drop."""
        options = [
            dataclasses.replace(each, **changed) if each.accumulates or each.drops else each
            for each in self.options
        ]
        return dataclasses.replace(self, options=options, text=text)


class Window:
    """One window, and the runs that compare it.

    kept: the state of the model before the comparison, with its optimizers.
    """

    def __init__(self, subject, kept, samples):
        self._subject, self._kept, self._samples = subject, kept, samples
        self._optimizers = list(kept.optimizers.values())
        self._name = type(inner(subject.compiled)).__name__
        self._smaller = 1  # what loss scales are divided by, so that none overflows
        self._names = list(map(subject.get_name, subject.model.trainable_variables))
        self._precision = subject.precision()
        self._in_order = np.arange(samples.count)
        rng = np.random.default_rng(0)
        self._orders = [rng.permutation(samples.count) for _ in range(_ORDERS)]

    def compare(self, change, notes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (window,), several = self._train_window(change, self._in_order)
            said, caught[:] = self._list_texts(caught), []
            run, big = self._train_big(change)
            of_big = self._list_texts(caught)
            said = [text for text in said if text not in of_big] + several
            found = self._judge(window, big.gradients, big)
            if found.verdict == "differs":
                big = dataclasses.replace(big, parts=self._train_halves(run))
                found = self._judge(window, big.gradients, big)
            advice = found.advise(self._precision, self._subject.list_random())
            if found.verdict == "differs":
                advice = self._find_remedy(change, big)
                if not (advice or said):
                    advice = _UNKNOWN
        notes = [*found.list_notes(self._samples.count), *notes]
        if found.verdict == "equal":
            notes += self._subject.list_notes(self._optimizers, change.batch_size)
        worst = found.by_variable[0]
        return Comparison(
            worst.distance, worst.control, found.by_variable, found.verdict, said, notes, advice
        )

    def _list_texts(self, caught):
        """Return the warnings' texts, with the optimizer's name for the recorder's."""
        texts = [str(each.message).replace(SAID_BY, "", 1) for each in caught]
        texts = [re.sub(r"\w*RecorderAccumulate", self._name, text) for text in texts]
        return list(dict.fromkeys(texts))

    def _judge(self, window, gradients, big):
        return Judgement(self._names, window, gradients, big, self._precision)

    def _train_window(self, change, *orders):
        """Return the window's gradients, for each order, and what else `train_step` did."""
        callbacks = change.callbacks
        if not any(is_named(callback, "ApplyPartialWindow") for callback in callbacks):
            # Some micro-batches may be dropped, or the caller may close windows.
            callbacks = [self._subject.package.ApplyPartialWindow(), *callbacks]
        while True:
            run = self._install(change.options)
            found = [run.train(order, change.batch_size, callbacks) for order in orders]
            if all(map(are_finite, found)):
                return found, run.list_several()
            scales = [self._subject.loss_scale(each) or 1 for each in self._optimizers]
            if max(scales) <= self._smaller:
                raise ValueError(_NOTHING.format("window", "not finite"))
            self._smaller *= 16

    def _train_big(self, change):
        """Return a run of the big batch, and its gradients and controls."""
        # Of an optimizer's options, that about the weights which `train_step` may give.
        run = self._install([Options(reduction=each.reduction) for each in change.options])
        size, order = self._samples.count, self._in_order
        found = run.train(order, size)
        again = run.train(order, size, with_random=False)  # seeds continue, so that draws show
        nudged = [run.train(order, size, nudge=seed) for seed in range(_NUDGES)]
        orders = [run.train(each, size) for each in self._orders]
        if not any(gradient.any() for gradient in found):
            raise ValueError(_NOTHING.format("big batch", "zero"))
        if not all(map(are_finite, [found, again, *nudged, *orders])):
            raise ValueError(_NOTHING.format("big batch", "not finite"))
        return run, Big(found, again, nudged, orders)

    def _train_halves(self, run):
        size = (self._samples.count + 1) // 2
        with contextlib.suppress(Exception):  # the model may have a fixed batch size
            halves = self._in_order[:size], self._in_order[-size:]
            return [run.train(half, size) for half in halves]
        return []

    def _find_remedy(self, change, big):
        """Return the first change that makes the window equal, in another order, too; or ""."""
        for remedy in self._list_remedies(change):
            with contextlib.suppress(Exception):  # the model may not allow it
                windows, _ = self._train_window(remedy, self._in_order, self._orders[0])
                pairs = zip(windows, (big.gradients, big.orders[0]))
                found = [self._judge(*pair, big) for pair in pairs]
                if all(each.verdict == "equal" for each in found):
                    return _REMEDY.format(found[0].by_variable[0].distance, remedy.text)
        return ""

    def _list_remedies(self, change):
        """Yield changes to try."""
        package, size = self._subject.package, change.batch_size
        if any(each.drops for each in change.options):
            text = "without `skip_norm` and `skip_nonfinite`"
            yield change.each(text, skip_norm=None, skip_nonfinite=False)
        others = [c for c in change.callbacks if not is_named(c, "MicroBatchWeights")]
        unweighted = dataclasses.replace(change, callbacks=others)
        for reduction in ("mean", "weighted", "sum"):
            if any(each.accumulates and each.reduction != reduction for each in change.options):
                yield unweighted.each(f"with reduction={reduction!r}", reduction=reduction)
        if find_own_methods(self._subject.model, package.keras.Model, "train_step"):
            text = "with reduction='weighted' and the callback MicroBatchWeights()"
            weighted = dataclasses.replace(change, callbacks=[package.MicroBatchWeights(), *others])
            yield weighted.each(text, reduction="weighted")
        if hasattr(package, "MicroBatches"):
            slices = [c.size for c in change.callbacks if is_named(c, "MicroBatches")]
            size = min([size, *filter(None, slices)])
            text = f"with MicroBatches({size}, loss='batch'), the stock optimizer and whole batches"
            slices = package.MicroBatches(size, loss="batch")
            options = [Options() for _ in change.options]
            yield Change(options, [slices], self._samples.count, text)

    def _install(self, options):
        """Let recorders with these options take the optimizers' places.

        A train step may be traced once, so each trace begins with what layers keep in Python.
        """
        self._kept.put_back()
        self._subject.prepare(self._kept.objects)
        make = self._subject.make_recorder
        recorders = [make(*pair, self._smaller) for pair in zip(self._optimizers, options)]
        self._kept.replace_optimizers(dict(zip(map(id, self._optimizers), recorders)))
        self._subject.make_train_function()
        known = self._subject, self._kept, self._samples
        return _Run(*known, self._optimizers, options, recorders)


class _Run:
    """Trains the model as it is now, with recorders in place of its optimizers."""

    def __init__(self, subject, kept, samples, optimizers, options, recorders):
        self._subject, self._kept, self._samples = subject, kept, samples
        self._optimizers, self._options, self._recorders = optimizers, options, recorders
        self._made = [0 for _ in recorders]  # updates in the last training

    def train(self, order, batch_size, callbacks=(), nudge=None, with_random=True):
        """Train one epoch on these samples, and return its update's gradient.

        nudge: a seed to move weights by one unit in the last place.
        """
        subject, inners = self._subject, list(map(inner, self._recorders))
        self._kept.write_values(with_random)
        if nudge is not None:
            subject.nudge(np.random.default_rng(nudge))
        before = [each.completed_updates for each in inners]
        with subject.scope():
            arguments = {"batch_size": int(batch_size), "shuffle": False, "verbose": 0}
            data = self._samples.take(order)
            subject.model.fit(callbacks=[*map(copy.copy, callbacks)], **data, **arguments)
            self._made = [each.completed_updates - b for each, b in zip(inners, before)]
            gradients = [subject.read_gradients(each) for each in inners]
        if not any(self._made):
            raise ValueError(_ALL_DROPPED)
        for options, made in zip(self._options, self._made):
            if options.accumulates and made > 1:
                raise ValueError(_UPDATES.format(made))
        return [sum(each) for each in zip(*gradients)]

    def list_several(self):
        """Return a text for each stock optimizer beside ours that made several updates."""
        return [
            _SEVERAL.format(type(inner(optimizer)).__name__, made)
            for optimizer, made in zip(self._optimizers, self._made)
            if made > 1
        ]
