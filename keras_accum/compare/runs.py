"""The trainings of a comparison: of the window, the big batch with its controls, and remedies."""

import contextlib
import copy
import dataclasses
import re
import warnings

import numpy as np

from keras_accum.compare.remedies import list_remedies
from keras_accum.compare.subject import STAND_IN
from keras_accum.compare.verdict import BigBatch, Comparison, Judgement, are_finite
from keras_accum.engine.optimizers import inner
from keras_accum.host import SAID_BY, find_own_methods, is_named
from keras_accum.options import Options

_NUDGES, _ORDERS, _PARTS = 3, 2, 8  # how many trainings with each

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


class Experiment:
    """Trains one window and its big batch, and compares their gradients.

    reached: what was Reached in the model before the comparison, with its optimizers.
    """

    def __init__(self, subject, reached, samples):
        self._subject, self._reached, self._samples = subject, reached, samples
        self._optimizers = list(reached.optimizers.values())
        self._optimizer_name = type(inner(subject.compiled)).__name__
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
                big = dataclasses.replace(big, parts=self._train_parts(trainer))
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
        """Return the warnings' texts, with the optimizer's name in place of its stand-in's."""
        texts = [str(warning.message).replace(SAID_BY, "", 1) for warning in caught]
        texts = [re.sub(rf"\b{STAND_IN}\b", self._optimizer_name, text) for text in texts]
        return list(dict.fromkeys(texts))

    def _judge(self, window, gradients, big):
        return Judgement(self._variable_names, window, gradients, big, self._precision)

    def _train_window(self, settings, *orders):
        """Return the window's gradients for each order, and texts on stock optimizers beside it."""
        callbacks = settings.callbacks
        if not any(is_named(callback, "ApplyPartialWindow") for callback in callbacks):
            # Some micro-batches may be dropped, or the caller may close windows.
            callbacks = [self._subject.package.ApplyPartialWindow(), *callbacks]
        trainer = self._install(settings.option_sets)
        runs = [trainer.train(order, settings.batch_size, callbacks) for order in orders]
        if not all(map(are_finite, runs)):
            raise ValueError(_NOTHING.format("window", "not finite"))
        return runs, trainer.list_several()

    def _train_big(self, settings):
        """Return the big batch's trainer, and a BigBatch with its gradients and controls."""
        # Keep one option: whether to take weights, which `train_step` may give.
        option_sets = [Options(reduction=options.reduction) for options in settings.option_sets]
        trainer = self._install(option_sets)
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

    def _explain(self, settings, big, warned):
        """Return what to do about a window that differs, "" if warnings say it."""
        remedies = list_remedies(settings, self._subject.package, self._samples.count)
        for text, changed in remedies.items():
            with contextlib.suppress(Exception):  # the model may not allow it
                distance = self._try(changed, big)
                if distance is not None:
                    return _REMEDY.format(distance, text)
        stock = self._subject.host.keras.Model
        has_own_step = bool(find_own_methods(self._subject.model, stock, "train_step"))
        return "" if warned else _UNKNOWN.format("; ".join(remedies), _IN_STEP * has_own_step)

    def _try(self, settings, big):
        """Return the window's distance if it is equal in two orders, otherwise None."""
        windows, _ = self._train_window(settings, self._in_order, self._orders[0])
        in_order = self._judge(windows[0], big.gradients, big)
        reordered = self._judge(windows[1], big.reordered[0], big)
        if in_order.verdict == reordered.verdict == "equal":
            return in_order.by_variable[0].distance
        return None

    def _install(self, option_sets):
        """Put stand-ins with these options in place of the optimizers, and return a trainer.

        A train step may be traced once, so each trace begins with the layers' values in Python.
        """
        subject, reached = self._subject, self._reached
        reached.put_back()
        subject.prepare()
        pairs = zip(self._optimizers, option_sets)
        stand_ins = [subject.make_stand_in(optimizer, options) for optimizer, options in pairs]
        reached.replace_optimizers(dict(zip(map(id, self._optimizers), stand_ins)))
        subject.make_train_function()
        return _Trainer(subject, reached, self._samples, option_sets, stand_ins)


class _Trainer:
    """Trains the model as it is now, with stand-ins for its optimizers."""

    def __init__(self, subject, reached, samples, option_sets, stand_ins):
        self._subject, self._reached, self._samples = subject, reached, samples
        self._option_sets, self._stand_ins = option_sets, list(map(inner, stand_ins))

    def train(self, order, batch_size, callbacks=(), nudge=None, with_random=True):
        """Train one epoch on the samples in this order, and return its update's gradients.

        nudge: a seed to move weights by one unit in the last place, or None.
        with_random: False to continue the random draws of the last training.
        """
        subject = self._subject
        self._reached.put_back_values(with_random)
        if nudge is not None:
            subject.nudge(np.random.default_rng(nudge))
        with subject.scope():
            for stand_in in self._stand_ins:
                subject.reset(stand_in)
            arguments = {"batch_size": int(batch_size), "shuffle": False, "verbose": 0}
            data = self._samples.take(order)
            subject.model.fit(callbacks=[*map(copy.copy, callbacks)], **data, **arguments)
            updates = self._count_updates()
            by_optimizer = list(map(subject.read_gradients, self._stand_ins))
        if not any(updates):
            raise ValueError(_ALL_DROPPED)
        for options, count in zip(self._option_sets, updates):
            if options.accumulates and count > 1:
                raise ValueError(_UPDATES.format(count))
        return [sum(gradients) for gradients in zip(*by_optimizer)]

    def _count_updates(self):
        return [stand_in.completed_updates for stand_in in self._stand_ins]

    def list_several(self):
        """Return a text for each stock optimizer with several updates beside ours."""
        optimizers = self._reached.optimizers.values()
        return [
            _SEVERAL.format(type(inner(optimizer)).__name__, count)
            for optimizer, count in zip(optimizers, self._count_updates())
            if count > 1
        ]
