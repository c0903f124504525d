"""The trainings of a comparison: the window, the big batch with its controls, and remedies."""

import contextlib
import copy
import dataclasses
import re
import warnings

import numpy as np

from keras_accum.compare.remedies import list_remedies
from keras_accum.compare.verdict import Big, Comparison, Judgement, are_finite, norm
from keras_accum.convert import inner
from keras_accum.host import SAID_BY, find_own_methods, is_named
from keras_accum.options import Options

_NUDGES, _ORDERS, _PARTS = 3, 2, 8
_SCALES = 0.6, 0.7, 0.9  # no powers of 2: they round nothing

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
_REMEDY = "It is equal ({:.2g}) with {}."
_UNKNOWN = (
    "None of these makes it equal: {}. Look for a layer, a loss or a `train_step` where a sample's "
    "gradient depends on other samples in its batch, or for an added loss that is a sum{}."
)
_IN_STEP = (
    ". Functions of gradients in your `train_step`, such as clipping, see each micro-batch's: give "
    "the optimizer `global_clipnorm` or `window_transforms` instead"
)
_CLIPS = (
    "Your `train_step` gives the optimizer gradients of norm {0:.3g} from any batch, so it clips "
    "or scales each micro-batch's. Give the optimizer `global_clipnorm={0:.3g}` instead, or a "
    "function in `window_transforms`: they act once per update."
)


@dataclasses.dataclass(frozen=True)
class Change:
    """How to train the window: by each optimizer's options, callbacks and a batch size."""

    options: list
    callbacks: list
    batch_size: int

    def apply(self, remedy, samples):
        """Return the same with a Remedy, for a window with so many samples."""
        if remedy.in_slices:
            return Change([Options() for _ in self.options], list(remedy.callbacks), samples)
        options = [
            dataclasses.replace(each, **remedy.options) if each.accumulates or each.drops else each
            for each in self.options
        ]
        callbacks = self.callbacks
        if remedy.callbacks is not None:
            others = [each for each in callbacks if not is_named(each, "MicroBatchWeights")]
            callbacks = [*remedy.callbacks, *others]
        return Change(options, callbacks, self.batch_size)


class Window:
    """One window, and the runs that compare it.

    kept: the state of the model before the comparison, with its optimizers.
    """

    def __init__(self, subject, kept, samples):
        self._subject, self._kept, self._samples = subject, kept, samples
        self._optimizers = list(kept.optimizers.values())
        self._name = type(inner(subject.compiled)).__name__
        self._smaller = 1  # the divisor of loss scales, against overflow
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
                parts, scaled = self._train_parts(run), self._train_scaled(change, big.gradients)
                big = dataclasses.replace(big, parts=parts, scaled=scaled)
                found = self._judge(window, big.gradients, big)
            advice = found.advise(self._precision, self._subject.list_random())
            if found.verdict == "differs":
                advice = self._explain(change, big, said)
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
        run = self._install_big(change)
        size, order = self._samples.count, self._in_order
        found = run.train(order, size)
        again = run.train(order, size, with_random=False)  # seeds continue, to show draws
        nudged = [run.train(order, size, nudge=seed) for seed in range(_NUDGES)]
        orders = [run.train(each, size) for each in self._orders]
        if not any(gradient.any() for gradient in found):
            raise ValueError(_NOTHING.format("big batch", "zero"))
        if not all(map(are_finite, [found, again, *nudged, *orders])):
            raise ValueError(_NOTHING.format("big batch", "not finite"))
        return run, Big(found, again, nudged, orders)

    def _train_parts(self, run):
        size = -(-self._samples.count // _PARTS)
        starts = range(0, self._samples.count - size + 1, size)
        found = []
        with contextlib.suppress(Exception):  # the model may have a fixed batch size
            found += [run.train(self._in_order[start:][:size], size) for start in starts]
        return list(filter(are_finite, found))  # a part may have no labels

    def _train_scaled(self, change, gradients):
        """Return the big batch's gradients, of a multiplied loss and then divided."""
        found = []
        with contextlib.suppress(Exception):  # `train_step` may not allow it
            for scale in _SCALES:
                run = self._install_big(change, scale)
                scaled = run.train(self._in_order, self._samples.count)
                found.append(_undo_scale(scaled, gradients, scale))
        return list(filter(are_finite, found))

    def _explain(self, change, big, said):
        """Return what to do about a window that differs, "" if warnings say it."""
        tried = []
        for remedy in self._list_remedies(change):
            tried.append(remedy.text)
            with contextlib.suppress(Exception):  # the model may not allow it
                distance = self._try(change.apply(remedy, self._samples.count), big)
                if distance is not None:
                    return _REMEDY.format(distance, remedy.text)
        has_own_step = self._has_own_step()
        common = big.find_common_norm() if has_own_step else None
        if common is not None:
            return _CLIPS.format(common)
        return "" if said else _UNKNOWN.format("; ".join(tried), _IN_STEP * has_own_step)

    def _list_remedies(self, change):
        count, size = self._samples.count, change.batch_size
        slices = [c.size for c in change.callbacks if is_named(c, "MicroBatches")]
        found = list_remedies(
            self._subject.package,
            min([size, *filter(None, slices)]),
            drops=any(each.drops for each in change.options),
        )
        return [each for each in found if change.apply(each, count) != change]

    def _has_own_step(self):
        stock = self._subject.host.keras.Model
        return bool(find_own_methods(self._subject.model, stock, "train_step"))

    def _try(self, change, big):
        """Return the window's distance if it is equal, in another order, too; otherwise None."""
        windows, _ = self._train_window(change, self._in_order, self._orders[0])
        pairs = zip(windows, (big.gradients, big.orders[0]))
        found = [self._judge(*pair, big) for pair in pairs]
        if all(each.verdict == "equal" for each in found):
            return found[0].by_variable[0].distance
        return None

    def _install_big(self, change, times=None):
        # The option of an optimizer about weights from `train_step`.
        return self._install([Options(reduction=each.reduction) for each in change.options], times)

    def _install(self, options, times=None):
        """Let recorders with these options take the optimizers' places.

        times: multiply losses by this, and divide the gradients.

        A train step may be traced once, so each trace begins with the layers' values in Python.
        """
        self._kept.put_back()
        self._subject.prepare(self._kept.objects)
        make = self._subject.make_recorder
        scales = [self._find_scale(optimizer, times) for optimizer in self._optimizers]
        recorders = [make(*each) for each in zip(self._optimizers, options, scales)]
        self._kept.replace_optimizers(dict(zip(map(id, self._optimizers), recorders)))
        self._subject.make_train_function()
        known = self._subject, self._kept, self._samples
        return _Run(*known, self._optimizers, options, recorders)

    def _find_scale(self, optimizer, times):
        scale = self._subject.loss_scale(optimizer)
        scale = scale and scale / self._smaller
        return scale if times is None else times * (scale or 1.0)


def _undo_scale(gradients, unscaled, scale):
    """Return gradients without the effects of a scale, except for its rounding.

    A `train_step` may not scale its loss, and tf_keras rounds a scale and its inverse to float32.
    """
    pairs = list(zip(gradients, unscaled))
    pairs = [(u if norm(g * scale - u) < norm(g - u) else g, u) for g, u in pairs]
    factor = sum(np.vdot(u, g).real for g, u in pairs) / sum(norm(u) ** 2 for _, u in pairs)
    return [g / factor for g, _ in pairs]


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
        """Return a text for each stock optimizer with several updates beside ours."""
        return [
            _SEVERAL.format(type(inner(optimizer)).__name__, made)
            for optimizer, made in zip(self._optimizers, self._made)
            if made > 1
        ]
