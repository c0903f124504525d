"""Train steps after which batch normalization moves its statistics, if a window has closed."""

import keras
from keras import ops

from keras_accum.base import inner
from keras_accum.keras3.batch_normalization import layers_of, moments_are

_CLOSED = (
    "WindowStatistics can't be used with `close_window` and skip_nonfinite or skip_norm: the "
    "counters of the optimizer don't say whether the micro-batch that closed the window was "
    "dropped. Leave one of them out. Received: optimizer={!r}"
)


class Step:
    """A model's train step that tells the layers what became of its micro-batch.

    The counters of the optimizer say so: the number of updates rises when a window closes, and
    neither this number nor the position in the window changes when a micro-batch is dropped.
    """

    def __init__(self, model):
        self.model, self.own = model, model.train_step
        self.layers = layers_of(model)

    def __call__(self, *arguments):
        accumulation = self._accumulation
        accumulation.closings.is_used = False
        results = self._run(*arguments)
        if accumulation.closings.is_used and accumulation.options.drops:
            raise ValueError(_CLOSED.format(inner(self.model.optimizer)))
        return results

    def _run(self, *arguments):
        if not self._accumulation.options.accumulates:
            with moments_are("moved", self.layers):
                return self.own(*arguments)
        run = self._with_state if keras.backend.backend() == "jax" else self._in_place
        return run(*arguments)

    @property
    def _accumulation(self):
        return inner(self.model.optimizer)._accumulation

    def _in_place(self, *arguments):
        before = self._look()
        with moments_are("pooled", self.layers):
            results = self.own(*arguments)
        self._settle(before)
        return results

    def _with_state(self, state, data):
        """Run a train step of JAX, which takes all variables and returns them."""
        with self._scope(state):
            before = self._look()
        with moments_are("pooled", self.layers):
            logs, (trainable, *others) = self.own(state, data)
        with self._scope((trainable, *others)) as scope:
            self._settle(before)
        known = self.model.non_trainable_variables
        return logs, (trainable, list(map(scope.get_current_value, known)), *others[1:])

    def _scope(self, state):
        model = self.model
        pairs = [*zip(model.non_trainable_variables, state[1])]
        pairs += zip(model.optimizer.variables, state[2])
        return keras.StatelessScope(state_mapping=pairs)

    def _look(self):
        """Return the number of updates, the position in the window, and the open window."""
        accumulation = self._accumulation
        counters = accumulation.port.updates, accumulation.state.counters["window_position"]
        return [
            *map(accumulation.port.count_of, counters),
            [layer.copy_of_window() for layer in self.layers],
        ]

    def _settle(self, before):
        updates, position, windows = before
        updates_now, position_now, _ = self._look()
        closed = ops.greater(updates_now, updates)
        counted = ops.logical_or(closed, ops.not_equal(position_now, position))
        for layer, window in zip(self.layers, windows):
            layer.settle(window, counted, closed)

    def settle_between_steps(self):
        """Move the statistics of a window that was closed between train steps."""
        if inner(self.model.optimizer).window_position == 0:
            self._accumulation.port.between_steps(self._move)

    def _move(self):
        for layer in self.layers:
            layer.settle(layer.copy_of_window(), True, True)
