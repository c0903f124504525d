"""A model's train function, and the functions that take its place during `fit`.

No host is imported here.
"""

import functools

import numpy as np

from keras_accum import window
from keras_accum.halving import Halving, attribute

ONE_CALL = (
    "PythonGate needs a train step that calls the model's optimizer once, whatever happens in the "
    "step: Python must know before a micro-batch whether the micro-batch closes the window. Leave "
    "the callback out."
)


def own_train_function(model, around=lambda train_step: train_step):
    """Return a new train function of the model, with a trace of its own.

    `around` wraps the model's train step.
    """

    own = model.train_step

    def make():
        step, in_use = around(own), model.train_function
        # JAX caches traces by function equality, and bound methods compare equal; a fresh lambda
        # forces a new trace.
        with attribute(model, "train_step", lambda *arguments: step(*arguments)):
            model.make_train_function(force=True)
        made, model.train_function = model.train_function, in_use
        return made

    searches = getattr(own, "searches", False)  # in slices of a size to be found
    return Halving(own, make) if searches else make()


class Substitute:
    """A function that a callback puts in place of a model's train function during `fit`."""

    # The name of the callback if no other callback may substitute this function in turn.
    last = None

    def __init__(self, in_place_of):
        self.in_place_of = in_place_of
        # Identifies the `fit`: the `params` object that one `fit` gives to all of its callbacks.
        self.training = None


class TracedAnew(Substitute):
    """The model's train function, traced again after a callback has changed the model."""

    def __init__(self, model, in_place_of):
        super().__init__(in_place_of)
        self._function = own_train_function(model)

    def __call__(self, *arguments):
        return self._function(*arguments)


class Picker(Substitute):
    """Two train functions in place of the model's. Python picks one for each micro-batch."""

    last = "PythonGate"

    def __init__(self, model, in_place_of):
        super().__init__(in_place_of)
        self._model, self._optimizer = model, model.optimizer
        self._optimizer._accumulation.running.start_counting()
        self._functions = [
            own_train_function(model, functools.partial(self._decided, is_update=is_update))
            for is_update in (False, True)
        ]

    def __call__(self, *arguments):
        position, length, next_length = self._before(arguments)
        step = window.advance(np, position, length, next_length, counted=1)
        # Keras 2 looks the train step up while it traces.
        decided = self._decided(self._model.train_step, bool(step.switch))
        with attribute(self._model, "train_step", decided):
            results = self._functions[int(step.switch)](*arguments)
        self._keep(step, results)
        return results

    def _before(self, arguments):
        """Return position, length and next length of the window before the micro-batch."""
        return self._optimizer._accumulation.counts()

    def _keep(self, step, results):
        """Remember the counters after the step of a micro-batch, if the backend can use them."""

    def check(self):
        """Raise an error if the window's counters differ from the remembered counters."""

    def _decided(self, train_step, is_update):
        """Wrap a train step, which must make one micro-batch: with or without an update."""

        def decided_train_step(*arguments):
            before = self._optimizer._accumulation.running.micro_batches()
            self._optimizer.decide(is_update)
            result = train_step(*arguments)
            calls = self._optimizer._accumulation.running.micro_batches() - before
            if calls != 1:
                raise ValueError(
                    f"{ONE_CALL} Received: a train step that calls the optimizer {calls} times."
                )
            return result

        return decided_train_step
