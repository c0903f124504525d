"""Train steps after which batch normalization moves its statistics, if a window has closed."""

import keras
from keras import ops

from keras_accum.callbacks.window_statistics.layer import layers_of, moments_are
from keras_accum.convert import inner


class Step:
    """A model's train step that tells the layers what became of its micro-batch.

    The counters of the optimizer say so: the number of updates rises when a window closes, and
    neither this number nor the position in the window changes when a micro-batch is dropped.

    own: the train step that is run.
    """

    def __init__(self, model, own):
        self.model, self.own, self.layers = model, own, layers_of(model)

    @property
    def _accumulation(self):
        return inner(self.model.optimizer)._accumulation

    def __call__(self, *arguments):
        accumulation = self._accumulation
        if not accumulation.options.accumulates:
            with moments_are("moved", self.layers):
                return self.own(*arguments)
        run = self._with_state if accumulation.port.steps_return_state else self._in_place
        return run(*arguments)

    def _in_place(self, *arguments):
        before = self._look()
        with moments_are("pooled", self.layers):
            results = self.own(*arguments)
        self._settle(*before)
        return results

    def _with_state(self, state, data):
        """Run a train step of JAX, which takes all variables and returns them."""
        with self._scope(state):
            before = self._look()
        with moments_are("pooled", self.layers):
            logs, (trainable, *others) = self.own(state, data)
        with self._scope((trainable, *others)) as scope:
            self._settle(*before)
        known = self.model.non_trainable_variables
        return logs, (trainable, list(map(scope.get_current_value, known)), *others[1:])

    def _scope(self, state):
        variables = [*self.model.non_trainable_variables, *self.model.optimizer.variables]
        return keras.StatelessScope(state_mapping=list(zip(variables, [*state[1], *state[2]])))

    def _counts(self):
        """Return the number of updates, and the position in the window."""
        port, named = self._accumulation.port, self._accumulation.window.named
        return list(map(port.count_of, (port.updates, named["window_position"])))

    def _look(self):
        return self._counts(), [layer.copy_of_window() for layer in self.layers]

    def _settle(self, counts, windows):
        (updates, position), (updates_now, position_now) = counts, self._counts()
        closed = ops.greater(updates_now, updates)
        counted = ops.logical_or(closed, ops.not_equal(position_now, position))
        for layer, window in zip(self.layers, windows):
            layer.settle(window, counted, closed)


def settle_between_steps(model, optimizer):
    """Move the statistics of a window that this optimizer closed between train steps.

    An optimizer without an update has closed no window: then the moments are of a window that was
    given up with an earlier optimizer, and are dropped.
    """
    is_of_model = inner(model.optimizer) is optimizer  # otherwise, it was compiled again
    if is_of_model and optimizer.window_position == 0:
        was_closed = optimizer.completed_updates > 0
        optimizer._accumulation.port.between_steps(lambda: _end_window(model, was_closed))


def _end_window(model, was_closed):
    for layer in layers_of(model):
        count, *moments = layer.copy_of_window()
        window = [count if was_closed else ops.zeros_like(count), *moments]
        layer.settle(window, False, True)
