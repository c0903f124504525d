"""What a user reads and calls on every accumulating optimizer: counters, window and state.

No host is imported here.
"""

import dataclasses

from keras_accum import arguments, schedule
from keras_accum.options import ReadOnly


class Members:
    """The public members that know only `_accumulation`."""

    reduction, skip_nonfinite = ReadOnly("reduction"), ReadOnly("skip_nonfinite")
    skip_norm, window_transforms = ReadOnly("skip_norm"), ReadOnly("window_transforms")
    gate, all_reduce = ReadOnly("gate"), ReadOnly("all_reduce")

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        return self._accumulation.state.completed_updates()

    @property
    def window_position(self):
        """The number of micro-batches in the open window; 0 if no window is open. An int."""
        return self._accumulation.state.count("window_position", 0)

    @property
    def accum_iters(self):
        """The number of micro-batches that make an update; None if only the caller closes windows.

        A new value takes effect with the next window. The value 1 can be raised only before the
        first step, because an optimizer that steps with `accum_iters=1` has no accumulators. With a
        function or an AccumulationSchedule, the value is the length of the next window, and can't
        be set.
        """
        options, state = self._accumulation.options, self._accumulation.state
        if options.is_scheduled:
            return options.length_at(state.completed_updates())
        length = state.count("accum_iters", options.first_length or options.length_at(0))
        return None if length == schedule.ENDLESS else length

    @accum_iters.setter
    def accum_iters(self, accum_iters):
        name, accumulation = type(self).__name__, self._accumulation
        if accumulation.options.is_scheduled:
            raise AttributeError(arguments.IS_SCHEDULED.format(accum_iters, name))
        if accum_iters is not None:
            accum_iters = schedule.check_length(accum_iters)
        counter = accumulation.state.counters.get("accum_iters")
        if counter is not None:
            accumulation.port.write(counter, schedule.length_at(accum_iters, 0))
        elif not accumulation.has_stepped:
            accumulation.options = dataclasses.replace(
                accumulation.options, accum_iters=accum_iters
            )
            accumulation.open_window()
            accumulation.state.recount()
        elif accum_iters != 1:
            raise ValueError(arguments.NO_ACCUMULATORS.format(accum_iters, name))

    def apply_partial_window(self):
        """Close the open window now: make one update from the micro-batches in the window.

        With `reduction="mean"`, the gradient sum is divided by the number of these micro-batches;
        with `reduction="weighted"`, by the sum of their weights. Does nothing if no window is open.
        Call this method between train steps.

        Raises:
            RuntimeError: If the method is called in a traced function.
            ValueError: On Keras 2.0 to 2.3, if several models share the optimizer, and the open
                window belongs to a model other than the one whose train step was built last.
        """
        accumulation = self._accumulation
        accumulation.port.check_between_steps()
        if self.window_position:
            accumulation.state.check_is_built("apply_partial_window")
            accumulation.close_window()

    def close_window(self, when=True):
        """Let the next micro-batch close its window, also before the window has its length.

        A train step calls `close_window` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`), also in a traced function (`tf.function`, `jax.jit`): a tensor `when`
        decides anew in each step, without a conditional. The micro-batch is the last one of its
        window. If the micro-batch is dropped (`skip_nonfinite`, `skip_norm`), the window closes
        with the micro-batches that it has. If a LossScaleOptimizer skips the micro-batch, the
        window stays open. In replicas of `tf.distribute`, the window closes if one of the replicas
        says so.

        Args:
            when: Boolean, default True, or a scalar tensor. If false, the window closes as without
                the call.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            ValueError: When a train step is traced, if the call was outside of the trace. With
                PythonGate.

        Example:

        A window by tokens, in a train step: `optimizer.close_window(tokens >= 100000)`.
        """
        if self._accumulation.options.accumulates:
            self._accumulation.closings.say(when)

    def decide(self, is_update):
        """Decide in Python whether the next micro-batch closes its window.

        This is what `PythonGate` does in `fit`, for training loops of one's own. A train step calls
        `decide` each time before `apply_gradients` (or `apply`, or `stateless_apply`). A traced
        function (`tf.function`, `jax.jit`) takes `is_update` as a static argument, so it is traced
        twice: one program only adds gradients to the accumulators, and the other one makes the
        update. This is the cheapest micro-batch. The window has the micro-batches that the caller
        gives it, whatever its length.

        Args:
            is_update: Boolean. True: the micro-batch closes its window and makes the update. False:
                the micro-batch only adds to the window.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            TypeError: If `is_update` isn't a Python boolean. A tensor is for `close_window`.
            ValueError: With `skip_nonfinite` or `skip_norm`, because only the device knows whether
                a micro-batch counts. If `is_update` is false with `accum_iters=1`, which has no
                accumulators. When a train step is traced, if the call was outside of the trace.

        Example:

        A step for JAX, with `jax.jit(step, static_argnames="is_update")`:

        >>> def step(optimizer, state, gradients, weights, is_update):
        ...     optimizer.decide(is_update)
        ...     return optimizer.stateless_apply(state, gradients, weights)
        """
        accumulation = self._accumulation
        arguments.check_decision(is_update, accumulation.options)
        if accumulation.options.accumulates:
            accumulation.decisions.say(is_update)

    def weigh(self, weight):
        """Set the weight of the next micro-batch in its window, with `reduction="weighted"`.

        A train step calls `weigh` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`). In `fit`, the callback `MicroBatchWeights` calls `weigh`. A test step
        must not: the next micro-batch would take the weight of the test batch. If the train step
        is traced (`tf.function`, `jax.jit`, `train_on_batch`), call `weigh` in the traced function,
        with a tensor where the weight differs from step to step.

        Args:
            weight: Scalar >= 0, a number or a tensor. The number by which the loss of the
                micro-batch, a mean, was divided; in a `tf.distribute` replica, the number for the
                replica's share. If the value of a tensor is negative, infinite or NaN, the
                gradients of the micro-batch become NaN: `skip_nonfinite` drops the micro-batch,
                and otherwise the update shows the NaN.

        Raises:
            ValueError: If `reduction` isn't "weighted", or if a number is negative, infinite or
                NaN. When a train step is traced, if its weight comes from outside of the trace.
        """
        self._accumulation.weights.say(weight)

    # -- the state ---------------------------------------------------------------------------------

    def get_state(self):
        """Return the whole state as `{name: NumPy array}`, to save or to pass to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

        - `state_format`: the version of this layout, 1.
        - `completed_updates`: integer scalar, the number of updates made.
        - `learning_rate`: scalar, if the learning rate is a number.
        - `<Rule>.<slot>.<i>`: a slot of trainable variable i, for example `Adam.momentum.0`.
        - `<Rule>.<scalar>`: what a rule keeps once for all variables, for example
          `Nadam.u_product`.
        - `moving_average.<i>`: the moving average of variable i, with `use_ema`.
        - `window_position`, `window_length`, `accum_iters`, with `accum_iters` > 1: the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window. If `accum_iters` is a function, the last is the length of
          the latest window.
        - `accumulator.<i>`, with `accum_iters` > 1: the gradient sum of the open window.
        - `window_weight`, with `reduction="weighted"`: the weight of the gradient sum.
        - `missing_gradients`, if gradients have been missing in the open window: for each variable,
          the number of micro-batches in which its gradient was missing. The last element is
          `completed_updates`.

        Returns:
            A new dictionary of arrays.
        """
        return self._accumulation.state.get()

    def set_state(self, state):
        """Continue from a state that `get_state` returned, on this Keras or on another.

        An optimizer that has no variables yet keeps the state until its variables are created.

        Args:
            state: `{name: array}`. `learning_rate` is optional. The window is optional, too:
                without a window, a fresh window starts. The trainable variables of the model must
                have the same order.

        Raises:
            keras_accum.StateError: If the state doesn't fit this optimizer. The message names
                everything that doesn't fit, and the optimizer is unchanged.
        """
        self._accumulation.state.set(state)

    def set_weights(self, weights):
        """Continue from a list of arrays, in the order of the host's files.

        The list may also come from the stock optimizer, or from Keras 2.0 to 2.3.

        Args:
            weights: List of NumPy arrays.

        Raises:
            keras_accum.StateError: If the list is none of these. The optimizer is unchanged.
        """
        self._accumulation.state.set_list(weights)

    def save_own_variables(self, store):
        """Write the state to a Keras file, under the names of `get_state`."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a Keras file of this package or of the stock optimizer."""
        self._accumulation.state.load(store)
