"""The trainings of a comparison: of the window, the big batch with its controls, and remedies."""

import contextlib
import copy
import dataclasses
import re
import warnings

import numpy as np

from keras_accum.compare.remedies import list_remedies
from keras_accum.compare.samples import list_slice_sizes
from keras_accum.compare.verdict import BigBatch, Comparison, Judgement, are_finite, norm
from keras_accum.convert import inner
from keras_accum.host import SAID_BY, find_own_methods, is_named
from keras_accum.options import Options

_NUDGES, _ORDERS, _PARTS = 3, 2, 8  # how many trainings with each
_SCALES = 0.6, 0.7, 0.9  # no powers of 2, which round nothing

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
class Settings:
    """How to train the window.

    option_sets: the Options of each optimizer.
    callbacks, batch_size: arguments of `fit`.
    """

    option_sets: list
    callbacks: list
    batch_size: int

    def apply(self, remedy, samples):
        """Return the settings with a Remedy, for a window with this number of samples."""
        if remedy.in_slices:
            stock = [Options() for _ in self.option_sets]
            return Settings(stock, list(remedy.callbacks), samples)
        option_sets = [
            dataclasses.replace(options, **remedy.options)
            if options.accumulates or options.drops
            else options
            for options in self.option_sets
        ]
        callbacks = self.callbacks
        if remedy.callbacks is not None:
            others = [c for c in callbacks if not is_named(c, "MicroBatchWeights")]
            callbacks = [*remedy.callbacks, *others]
        return Settings(option_sets, callbacks, self.batch_size)


class Experiment:
    """Trains one window and its big batch, and compares their gradients.

    snapshot: the Snapshot of the model before the comparison, with its optimizers.
    """

    def __init__(self, subject, snapshot, samples):
        self._subject, self._snapshot, self._samples = subject, snapshot, samples
        self._optimizers = list(snapshot.optimizers.values())
        self._optimizer_name = type(inner(subject.compiled)).__name__
        self._scale_divisor = 1  # of loss scales, so that none overflows
        variables = subject.model.trainable_variables
        self._variable_names = [subject.get_name(variable) for variable in variables]
        self._precision = subject.precision()
        self._in_order = np.arange(samples.count)
        rng = np.random.default_rng(0)
        self._orders = [rng.permutation(samples.count) for _ in range(_ORDERS)]

    def compare(self, settings, notes):
        """Return the Comparison for a window with these settings. It also has these notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (window,), several = self._train_window(settings, self._in_order)
            warned = self._list_texts(caught)
            caught.clear()
            trainer, big = self._train_big(settings)
            warned_in_both = self._list_texts(caught)
            warned = [text for text in warned if text not in warned_in_both] + several
            judgement = self._judge(window, big.gradients, big)
            if judgement.verdict == "differs":
                parts = self._train_parts(trainer)
                scaled = self._train_scaled(settings, big.gradients)
                big = dataclasses.replace(big, parts=parts, scaled=scaled)
                judgement = self._judge(window, big.gradients, big)
            advice = judgement.advise(self._precision, self._subject.list_random())
            if judgement.verdict == "differs":
                advice = self._explain(settings, big, warned)
        notes = [*judgement.list_notes(self._samples.count), *notes]
        if judgement.verdict == "equal":
            notes += self._subject.list_notes(self._optimizers, settings.batch_size)
        by_variable, verdict = judgement.by_variable, judgement.verdict
        _, distance, control = by_variable[0]
        return Comparison(distance, control, by_variable, verdict, warned, notes, advice)

    def _list_texts(self, caught):
        """Return the warnings' texts, with the optimizer's name for the recorder's."""
        texts = [str(warning.message).replace(SAID_BY, "", 1) for warning in caught]
        texts = [re.sub(r"\w*RecorderAccumulate", self._optimizer_name, text) for text in texts]
        return list(dict.fromkeys(texts))

    def _judge(self, window, gradients, big):
        return Judgement(self._variable_names, window, gradients, big, self._precision)

    def _train_window(self, settings, *orders):
        """Return the window's gradients for each order, and texts on stock optimizers beside it."""
        callbacks = settings.callbacks
        if not any(is_named(callback, "ApplyPartialWindow") for callback in callbacks):
            # Some micro-batches may be dropped, or the caller may close windows.
            callbacks = [self._subject.package.ApplyPartialWindow(), *callbacks]
        while True:
            trainer = self._install(settings.option_sets)
            runs = [trainer.train(order, settings.batch_size, callbacks) for order in orders]
            if all(map(are_finite, runs)):
                return runs, trainer.list_several()
            scales = [self._subject.loss_scale(optimizer) or 1 for optimizer in self._optimizers]
            if max(scales) <= self._scale_divisor:
                raise ValueError(_NOTHING.format("window", "not finite"))
            self._scale_divisor *= 16

    def _train_big(self, settings):
        """Return the big batch's trainer, and a BigBatch with its gradients and controls."""
        trainer = self._install_big(settings)
        size, in_order = self._samples.count, self._in_order
        gradients = trainer.train(in_order, size)
        # Seeds continue, so that random draws show.
        again = trainer.train(in_order, size, with_random=False)
        nudged = [trainer.train(in_order, size, nudge=seed) for seed in range(_NUDGES)]
        reordered = [trainer.train(order, size) for order in self._orders]
        if not any(gradient.any() for gradient in gradients):
            raise ValueError(_NOTHING.format("big batch", "zero"))
        if not all(map(are_finite, [gradients, again, *nudged, *reordered])):
            raise ValueError(_NOTHING.format("big batch", "not finite"))
        return trainer, BigBatch(gradients, again, nudged, reordered)

    def _train_parts(self, trainer):
        """Return the gradients of each part of the big batch."""
        size = -(-self._samples.count // _PARTS)
        starts = range(0, self._samples.count - size + 1, size)
        parts = []
        with contextlib.suppress(Exception):  # the model may have a fixed batch size
            parts += [trainer.train(self._in_order[start:][:size], size) for start in starts]
        return list(filter(are_finite, parts))  # a part may have no labels

    def _train_scaled(self, settings, gradients):
        """Return the big batch's gradients for multiplied losses, divided by the multiple."""
        runs = []
        with contextlib.suppress(Exception):  # `train_step` may not allow it
            for scale in _SCALES:
                trainer = self._install_big(settings, scale)
                scaled = trainer.train(self._in_order, self._samples.count)
                runs.append(_undo_scale(scaled, gradients, scale))
        return list(filter(are_finite, runs))

    def _explain(self, settings, big, warned):
        """Return what to do about a window that differs, "" if warnings say it."""
        tried = []
        for remedy in self._list_remedies(settings):
            tried.append(remedy.text)
            with contextlib.suppress(Exception):  # the model may not allow it
                distance = self._try(settings.apply(remedy, self._samples.count), big)
                if distance is not None:
                    return _REMEDY.format(distance, remedy.text)
        has_own_step = self._has_own_step()
        common_norm = big.find_common_norm() if has_own_step else None
        if common_norm is not None:
            return _CLIPS.format(common_norm)
        return "" if warned else _UNKNOWN.format("; ".join(tried), _IN_STEP * has_own_step)

    def _list_remedies(self, settings):
        """Return the Remedies that would change these settings."""
        sizes = [settings.batch_size, *filter(None, list_slice_sizes(settings.callbacks))]
        drops = any(options.drops for options in settings.option_sets)
        remedies = list_remedies(self._subject.package, min(sizes), drops)
        samples = self._samples.count
        return [remedy for remedy in remedies if settings.apply(remedy, samples) != settings]

    def _has_own_step(self):
        stock = self._subject.host.keras.Model
        return bool(find_own_methods(self._subject.model, stock, "train_step"))

    def _try(self, settings, big):
        """Return the window's distance if it is equal in two orders, otherwise None."""
        windows, _ = self._train_window(settings, self._in_order, self._orders[0])
        in_order = self._judge(windows[0], big.gradients, big)
        reordered = self._judge(windows[1], big.reordered[0], big)
        if in_order.verdict == reordered.verdict == "equal":
            return in_order.by_variable[0].distance
        return None

    def _install_big(self, settings, multiple=None):
        # Keep one option: whether to take weights, which `train_step` may give.
        option_sets = [Options(reduction=options.reduction) for options in settings.option_sets]
        return self._install(option_sets, multiple)

    def _install(self, option_sets, multiple=None):
        """Replace the optimizers by recorders with these options, and return a trainer.

        multiple: multiply losses by this, and divide the gradients.

        A train step may be traced once, so each trace begins with the layers' values in Python.
        """
        self._snapshot.put_back()
        self._subject.prepare(self._snapshot.objects)
        recorders = []
        for optimizer, options in zip(self._optimizers, option_sets):
            scale = self._find_scale(optimizer, multiple)
            recorders.append(self._subject.make_recorder(optimizer, options, scale))
        self._snapshot.replace_optimizers(dict(zip(map(id, self._optimizers), recorders)))
        self._subject.make_train_function()
        shared = self._subject, self._snapshot, self._samples, self._optimizers
        return _Trainer(*shared, option_sets, recorders)

    def _find_scale(self, optimizer, multiple):
        """Return the factor for losses, None if there is none."""
        scale = self._subject.loss_scale(optimizer)
        scale = scale and scale / self._scale_divisor
        return scale if multiple is None else multiple * (scale or 1.0)


def _undo_scale(gradients, unscaled, scale):
    """Return gradients without the effects of a loss scale other than rounding.

    A `train_step` may not scale its loss, and tf_keras rounds a scale and its inverse to float32.
    """
    pairs = list(zip(gradients, unscaled))
    pairs = [(u if norm(g * scale - u) < norm(g - u) else g, u) for g, u in pairs]
    factor = sum(np.vdot(u, g).real for g, u in pairs) / sum(norm(u) ** 2 for _, u in pairs)
    return [g / factor for g, _ in pairs]


class _Trainer:
    """Trains the model as it is now, with recorders in place of its optimizers."""

    def __init__(self, subject, snapshot, samples, optimizers, option_sets, recorders):
        self._subject, self._snapshot, self._samples = subject, snapshot, samples
        self._optimizers, self._option_sets = optimizers, option_sets
        self._recorders = list(map(inner, recorders))
        self._updates = [0 for _ in recorders]  # by each recorder, in the last training

    def train(self, order, batch_size, callbacks=(), nudge=None, with_random=True):
        """Train one epoch on the samples in this order, and return its update's gradients.

        nudge: a seed to move weights by one unit in the last place, or None.
        with_random: False to continue the random draws of the last training.
        """
        subject, recorders = self._subject, self._recorders
        self._snapshot.write_values(with_random)
        if nudge is not None:
            subject.nudge(np.random.default_rng(nudge))
        before = [recorder.completed_updates for recorder in recorders]
        with subject.scope():
            arguments = {"batch_size": int(batch_size), "shuffle": False, "verbose": 0}
            data = self._samples.take(order)
            subject.model.fit(callbacks=[*map(copy.copy, callbacks)], **data, **arguments)
            after = [recorder.completed_updates for recorder in recorders]
            by_recorder = [subject.read_gradients(recorder) for recorder in recorders]
        self._updates = [now - then for now, then in zip(after, before)]
        if not any(self._updates):
            raise ValueError(_ALL_DROPPED)
        for options, updates in zip(self._option_sets, self._updates):
            if options.accumulates and updates > 1:
                raise ValueError(_UPDATES.format(updates))
        return [sum(gradients) for gradients in zip(*by_recorder)]

    def list_several(self):
        """Return a text for each stock optimizer with several updates beside ours."""
        return [
            _SEVERAL.format(type(inner(optimizer)).__name__, updates)
            for optimizer, updates in zip(self._optimizers, self._updates)
            if updates > 1
        ]
