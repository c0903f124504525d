"""One micro-batch of an accumulating optimizer on Keras 3.

An update is the stock optimizer's own `apply` on the average gradient of a window. A gate (see
`gates`) selects whether the writes of `apply` take effect, so that one traced program serves every
micro-batch.
"""

import numbers

import keras
from keras import ops

from keras_accum import arguments, base, rules, window
from keras_accum.keras3.variables import dtype_of, path_of, to_numpy


class MicroBatches:
    """A base class before the stock class: from the gradients of a micro-batch to the weights."""

    def apply(self, grads, trainable_variables=None):
        self._has_stepped = True
        if self._is_stock:
            result = super().apply(grads, trainable_variables)
            self._check_update()
            return result
        grads = list(grads)
        if not grads:
            return None
        if trainable_variables is None:
            if not self.built or len(grads) != len(self._trainable_variables):
                return super().apply(grads)  # raises the stock optimizer's error
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        with keras.name_scope(self.name, caller=self):  # as in the stock class, for equal paths
            self.build(trainable_variables)
            self._check_variables_are_known(trainable_variables)
            grads, variables = self._filter_empty_gradients(grads, trainable_variables)
            present = [self._get_variable_index(v) for v in variables]
            arguments.check_once(present, lambda index: path_of(self._trainable_variables[index]))
            known = range(len(self._trainable_variables)) if self._accumulates else ()
            self._take_micro_batch(grads, variables, absent=sorted(set(known) - set(present)))

    def _take_micro_batch(self, grads, variables, absent):
        """Add the gradients of one micro-batch, and update if the micro-batch closes the window.

        `absent` has the indices of the variables whose gradients are missing.
        """
        self._count_trace()
        grads, weight = self._weighted(grads, variables)
        if not self._reduces_late:
            grads, weight = self._reduced(grads, weight, variables)
        counted, grads = self._drop_nonfinite(grads)
        self._write_norm_of_micro_batch(grads, variables, counted)
        step = self._advance_window(counted, weight, absent)
        is_due = self._is_due(step)
        if is_due:
            self._update_from(grads, step._replace(switch=1), variables, absent)
        elif is_due is not None:
            self._accumulate_gradients(grads, variables)
        elif self._branches:
            self._conditional(
                step.switch,
                lambda grads, step: self._update_from(
                    grads, step._replace(switch=1), variables, absent
                ),
                lambda grads, step: self._accumulate_gradients(grads, variables),
                grads,
                step,
            )
        else:
            self._update_from(grads, step, variables, absent)
        self._write_counters(step)

    def _weighted(self, grads, variables):
        """Return the gradients times the micro-batch's weight, and the weight; None without one."""
        if not self._weighs:
            return grads, None
        weight = ops.cast(self._take_weight(), self._window.weight.dtype)
        is_weight = ops.logical_and(weight >= 0, ops.isfinite(weight))
        weight = ops.where(is_weight, weight, 0)
        factor = ops.where(is_weight, weight * self._replicas(), float("nan"))

        def times(gradient, variable):
            if self._overwrite_variable_with_gradient(variable):
                return gradient
            dtype = self._sum_of(variable).dtype  # float32, because half precision could overflow
            return self._times_factor(ops.cast(gradient, dtype), ops.cast(factor, dtype))

        return [times(g, v) for g, v in zip(grads, variables)], weight

    @staticmethod
    def _without_gradient(weight):
        if isinstance(weight, numbers.Real):
            return weight
        return ops.stop_gradient(ops.convert_to_tensor(weight))

    def _reduced(self, tensors, weight, variables):
        """Return the sums over replicas of these variables' tensors, and of a weight, if any."""
        if not self._weighs:
            return self._sum_over_replicas(tensors, variables), weight
        everything = [*variables, self._window.weight]
        *tensors, weight = self._sum_over_replicas([*tensors, weight], everything)
        return tensors, weight

    def _drop_nonfinite(self, grads):
        """Return 1 and the gradients, or 0 and zero gradients if the micro-batch is dropped."""
        counted = self._counted_after(grads)
        if self.skip_nonfinite:
            counted = ops.cast(self._all_finite(grads), counted.dtype)
            grads = [self._times_factor(g, ops.cast(counted, g.dtype)) for g in grads]
        return counted, grads

    def _write_norm_of_micro_batch(self, grads, variables, counted):
        if base.MICRO_BATCH_NORM in self._watched:
            overwritten = map(self._overwrite_variable_with_gradient, variables)
            summed = [g for g, skip in zip(grads, overwritten) if not skip]
            self._write_norm(base.MICRO_BATCH_NORM, summed, counted)

    def _advance_window(self, counted, weight, absent):
        xp = self._counts_with
        step = window.advance(xp, *self._window_state(), counted=counted)
        if absent:
            counts = map(self._count_value, (self._window.missing_gradients, self._iterations))
            step = window.miss(xp, step, *counts, absent, counted)
        if self._weighs:
            weight = weight * ops.cast(counted, weight.dtype)
            step = step._replace(divisor=self._value_of(self._window.weight) + weight)
        return step

    def _window_state(self):
        """Return position, length and next length of the window, as values."""
        if not self._accumulates:
            return [self._count_of_one() * value for value in (0, 1, 1)]
        return [self._count_value(counter) for counter in self._counters().values()]

    def _accumulate_gradients(self, grads, variables):
        """Add gradients to their accumulators, without an update."""
        if self._accumulates:
            self._across_replicas(lambda *grads: self._add_all(grads, variables), *grads)

    def _update_from(self, grads, step, variables, absent):
        known = self._trainable_variables
        absent, frozen = self._apart_from_frozen(absent, known)
        totals = [self._sum_with(g, v) for g, v in zip(grads, variables)]
        totals += [self._value_of(self._window.sums[i]) for i in absent]
        variables = [*variables, *(known[i] for i in absent)]
        self._update_through_gate(step, totals, variables, absent, frozen)

    @staticmethod
    def _are_frozen(variables):
        # A native variable can't be frozen: its `trainable` never changes.
        return [isinstance(v, keras.Variable) and not v.trainable for v in variables]

    def _sum_of(self, variable):
        return self._window.sums[self._get_variable_index(variable)]

    def _sum_with(self, gradient, variable):
        """Return the window's sum plus a gradient; their maximum if a gradient overwrites it."""
        if not self._accumulates:
            return self._dense(gradient)
        accumulator = self._sum_of(variable)
        if self._overwrite_variable_with_gradient(variable):
            return ops.maximum(self._value_of(accumulator), gradient)
        return self._plus(accumulator, gradient)

    def _update_through_gate(self, step, totals, variables, absent=(), frozen=()):
        """Make the stock optimizer's update from the sums of a window, through the gate.

        The variables in `absent` (indices) are updated if they had a gradient earlier in the
        window. The `frozen` variables aren't updated, and their sums are dropped.
        """
        if self._reduces_late:
            totals, divisor = self._reduced(totals, step.divisor, variables)
            step = step._replace(divisor=divisor)
        steps = {index: window.of_variable(step, index) for index in absent}
        averages = self._window_averages(step, steps, totals, variables)
        own = {index: own_step.switch for index, own_step in steps.items()}
        with self._gate_for(step, own):
            super().apply(averages, variables)
        self._check_update()
        if self._accumulates:
            totals = [*totals, *(self._value_of(self._sum_of(v)) for v in frozen)]
            variables = [*variables, *frozen]
            dtypes = {dtype_of(self._sum_of(v)) for v in variables}
            hold = {dtype: ops.cast(1 - step.switch, dtype) for dtype in sorted(dtypes)}
            self._across_replicas(
                lambda hold, *totals: self._keep_sums(hold, totals, variables), hold, *totals
            )

    def _window_averages(self, step, steps, totals, variables):
        """Return the averages of the window; gradients that overwrite variables are unchanged.

        `steps` has, by index, the steps of variables that don't follow the window's step.
        """
        scales = {}

        def average(total, variable):
            if self._overwrite_variable_with_gradient(variable):
                return total
            index = self._get_variable_index(variable)
            key = index if index in steps else None, total.dtype
            if key not in scales:
                scales[key] = window.scale(
                    ops, steps.get(index, step), self.reduction, lambda x: ops.cast(x, total.dtype)
                )
            return self._times_factor(total, scales[key])

        return list(map(average, totals, variables))

    def _keep_sums(self, hold, totals, variables):
        """Write the rest of the sums: the whole sums inside a window, zeros after its end."""

        def keep(variable, target, total, hold):
            self.assign(self._sum_of(variable), self._remainder(total, hold, target))

        for variable, total in zip(variables, totals):
            self._on_variable(variable, keep, total, hold[dtype_of(self._sum_of(variable))])

    def _write_counters(self, step):
        """Write the counters, except the number of updates, which the stock optimizer writes."""
        if self._accumulates:
            self._window.position.assign(step.position)
            self._window.length.assign(step.length)
        if step.missing is not None:
            self._window.missing_gradients.assign(step.missing)
        if self._weighs:
            hold = ops.cast(1 - step.switch, step.divisor.dtype)
            self._window.weight.assign(step.divisor * hold)

    # -- between train steps -------------------------------------------------------------------

    def _close_window(self):
        missing = to_numpy(self._window.missing_gradients)
        covered, frozen = self._covered_and_frozen(missing, self._trainable_variables)
        self._in_replicas(self._update_from_sums, covered, frozen)

    def _update_from_sums(self, variables, frozen):
        position, length, _ = self._window_state()
        totals = [self._value_of(self._sum_of(v)) for v in variables]
        step = window.close(position, length)
        if self._weighs:
            step = step._replace(divisor=self._value_of(self._window.weight))
        self._update_through_gate(step, totals, variables, frozen=frozen)
        self._write_counters(step)


class SeenByAnUpdate:
    """Overrides of attributes and methods that the stock optimizer uses during an update."""

    @property
    def _gates_by_replica(self):
        # `__dict__` bypasses Keras's attribute tracking.
        return self.__dict__.setdefault("_gates_of_updates", {})

    @property
    def _open_gate(self):
        """The gate of the current update, or None; in cross-replica context, any replica's gate."""
        gates = self._gates_by_replica
        return gates.get(self._replica()) or next(iter(gates.values()), None)

    @property
    def _is_updating(self):
        return self._open_gate is not None

    def update_step(self, gradient, variable, learning_rate):
        self._check_is_updating("update_step")
        super().update_step(gradient, variable, learning_rate)

    def _get_current_learning_rate(self):
        learning_rate = super()._get_current_learning_rate()
        if not (self.decay and self._open_gate):
            return learning_rate
        dtype = self._scalar_dtype
        rate, updates = ops.cast(learning_rate, dtype), ops.cast(self._iterations, dtype)
        return rules.decayed(rate, self.decay, updates)

    @property
    def ema_overwrite_frequency(self):
        # Hidden from Keras, which would add a conditional: `_backend_apply_gradients` below
        # overwrites the weights without one.
        return None if self._open_gate else self._ema_overwrite_frequency

    @ema_overwrite_frequency.setter
    def ema_overwrite_frequency(self, frequency):
        self._ema_overwrite_frequency = frequency

    def _clip_gradients(self, grads):
        gate = self._open_gate
        if gate:
            self._write_norm(base.UPDATE_NORM, grads, gate.step.switch)
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        if self._open_gate:
            self._open_gate.after_update_steps()

    def _backend_apply_gradients(self, grads, trainable_variables):
        super()._backend_apply_gradients(grads, trainable_variables)
        gate = self._open_gate
        if gate and self.use_ema and self._ema_overwrite_frequency:
            self._across_replicas(self._overwrite_with_averages)
        if gate:
            gate.before_constraints()

    def _overwrite_with_averages(self):
        gate = self._open_gate
        due = (self._value_of(self._iterations) + 1) % self._ema_overwrite_frequency == 0

        def overwrite(variable, target):
            average = self._averages_of_weights[self._get_variable_index(variable)]
            if average is not None:
                value = ops.where(due, self._value_of(average), self._value_of(target))
                self.assign(target, value)

        with gate.by_window():
            for variable in self._trainable_variables:
                self._on_variable(variable, overwrite)
