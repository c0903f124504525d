"""One micro-batch on Keras 2, as part of the graph of a train step.

TensorFlow 1 doesn't order the operations of a train step, and neither do the stock optimizers: a
weight may be overwritten before back-propagation has read the weight, or a counter before the bias
correction has read the counter. Here a step computes all values before its first write, and writes
the counters last.
"""

import contextlib

import keras
import tensorflow as tf

from keras_accum import kernels, rules, states, window
from keras_accum.keras2 import recording
from keras_accum.keras2.state import Shape

K = keras.backend
ops = tf.compat.v2  # `where` of version 1 is deprecated


class MicroBatches:
    """A base class that comes before a stock optimizer class."""

    def get_updates(self, loss, params):
        """Return a list with the operation that makes the step of one micro-batch."""
        with self._unclipped():
            grads = keras.optimizers.Optimizer.get_gradients(self, loss, params)
        state = self._take_waiting(
            [Shape(K.int_shape(variable), K.dtype(variable)) for variable in params]
        )
        self._build(params)
        counted = tf.ones([], tf.int64)
        if self.skip_nonfinite:
            counted = tf.cast(kernels.all_finite(grads), tf.int64)
            grads = [kernels.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        step = window.advance(ops, *self._window_state(), counted=counted)
        if self._branches:
            self.updates = [self._branch(step, grads, after=[loss])]
        else:
            self.updates = [self._write(step, self._totals(grads), after=[loss])]
        if state is not None:
            self._write_state(state)
        self.weights = list(self._state_variables().values())
        return self.updates

    def _close_window(self):
        if self._closing is None:
            position, length, _ = self._window_state()
            totals = [tf.convert_to_tensor(accumulator) for accumulator in self._accumulators]
            self._closing = self._write(window.close(position, length), totals, after=[])
        K.get_session().run(self._closing)

    def _check_is_between_steps(self):
        # This host doesn't call the method in a traced function, but its models may share an
        # optimizer, and each model has a window of its own.
        others = [p for key, p in self._positions.items() if key != self._model_key]
        if any(K.batch_get_value(others)):
            raise ValueError(
                "`apply_partial_window` of an optimizer in several models is for the model whose "
                "train step was made last, but another model's window is open: give each model its "
                "own optimizer."
            )

    @contextlib.contextmanager
    def _unclipped(self):
        """A scope in which the stock code doesn't clip: the window's average is clipped here."""
        clips = {n: self.__dict__.pop(n) for n in ("clipnorm", "clipvalue") if n in self.__dict__}
        try:
            yield
        finally:
            self.__dict__.update(clips)

    @contextlib.contextmanager
    def _at_decayed_rate(self):
        """A scope with the decayed learning rate, for stock code without a decay of its own."""
        rate = self._rate
        if self._added_decay:
            updates = K.cast(self.iterations, K.dtype(rate))
            self._rate = rules.decayed(rate, self._added_decay, updates)
        try:
            yield
        finally:
            self._rate = rate

    def _window_state(self):
        """Return position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._window]

    def _totals(self, grads):
        """Return the window's gradient sums including these gradients."""
        if not self._accumulates:
            return list(map(tf.convert_to_tensor, grads))
        return list(map(kernels.add, map(tf.convert_to_tensor, self._accumulators), grads))

    def _branch(self, step, grads, after):
        """Make one conditional: the update at the end of a window, or the additions inside it."""

        def accumulate():
            added = list(map(kernels.accumulate, self._accumulators, grads))
            return self._write_counters(step, after=added)

        def update():
            return self._write(step._replace(switch=1), self._totals(grads), after=[])

        with _barrier([after, grads, step]):
            return tf.cond(step.switch > 0, update, accumulate)

    def _write(self, step, totals, after):
        """Make all assignments: after all values are computed, and the counters last."""
        # Some fields of a step are None: missing gradients are an error on this host.
        step = window.Step(*(None if v is None else tf.cast(v, tf.int64) for v in step))
        averages = self._clipped([self._average(step, total) for total in totals])
        if self._rule():
            values = {
                dtype: self._scalars(step, dtype) for dtype in set(map(K.dtype, self._variables))
            }
        else:
            values = self._selected(step.switch, averages)
        with _barrier([after, totals, averages, values, step]):
            if self._rule():
                operations = self._write_by_rule(averages, values)
            else:
                operations = [K.update(variable, value) for variable, value in values]
            if self._accumulates:
                operations += [
                    K.update(sums, kernels.gate(total, tf.cast(1 - step.switch, total.dtype)))
                    for sums, total in zip(self._accumulators, totals)
                ]
        return self._write_counters(step, after=operations)

    def _selected(self, switch, averages):
        """Return the stock optimizer's writes: variables, each with its new or its old value."""
        params = self._variables
        averages = [tf.cast(g, v.dtype.base_dtype) for g, v in zip(averages, params)]
        get_updates = super().get_updates
        with self._unclipped(), self._at_decayed_rate():
            recorded = recording.record(self, get_updates, params, averages, self._made)
        if self._made is None:
            # Making a layout takes as long as making an update, so make the smallest layout.
            names = recording.names_for(self._layout_of(2).names, len(params))
            names = names or self._layout_of(len(params)).names
            recording.check_shapes(type(self).__name__, recorded.kept, names, params)
            kept = dict(zip(names, recorded.kept))
            self._kept = {
                name: kept[name] for name in self._list_names(len(params), stock=True)[1:]
            }
            self._made = recorded.made
        return [
            (variable, ops.where(switch > 0, value, tf.convert_to_tensor(variable)))
            for variable, value in recorded.writes
            if variable is not self.iterations  # `_write_counters` counts updates
        ]

    def _write_counters(self, step, after):
        operations = list(after)
        with tf.control_dependencies(operations):
            if self._accumulates:
                position, length, _ = self._window
                operations += [K.update(position, step.position), K.update(length, step.length)]
            operations.append(K.update_add(self.iterations, step.switch))
        return tf.group(*operations)

    def _average(self, step, total):
        scale = window.scale(ops, step, self.reduction, lambda x: tf.cast(x, total.dtype))
        return kernels.gate(total, scale)

    def _clipped(self, grads):
        """Return the gradients as stock optimizers clip them, but without their conditional."""
        clipnorm, clipvalue = (getattr(self, name, 0) for name in ("clipnorm", "clipvalue"))
        if clipnorm > 0:
            norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in grads))
            factor = ops.where(norm >= clipnorm, clipnorm / norm, tf.ones_like(norm))
            grads = [factor * g for g in grads]
        if clipvalue > 0:
            grads = [tf.clip_by_value(g, -clipvalue, clipvalue) for g in grads]
        return grads

    def _scalars(self, step, dtype):
        """Return the scalars of an update for variables of this data type."""
        switch = tf.cast(step.switch, dtype)
        rule = self._rule()
        rate = tf.cast(self.learning_rate, dtype)
        if self.initial_decay > 0:
            updates = tf.cast(self.iterations, dtype)
            rate = rules.decayed(rate, tf.cast(self.decay, dtype), updates)
        hyperparameters = {
            name: _scalar(getattr(self, name), dtype) for name in rule.hyperparameters
        }
        update = tf.cast(self.iterations + 1, dtype)
        coefficients = rule.coefficients(ops, switch, rate, update, **hyperparameters)
        return {"switch": switch, "rule": kernels.kernel_scalars(rule, coefficients)}

    def _write_by_rule(self, averages, scalars):
        operations, rule = [], self._rule()
        for i, (variable, average) in enumerate(zip(self._variables, averages)):
            found = scalars[K.dtype(variable)]
            names = [states.slot_name(self._rule_name, slot, i) for slot in rule.slots]
            slots = [self._kept[name] for name in names]
            average = tf.cast(average, variable.dtype.base_dtype)
            written = kernels.apply_rule(rule, found["rule"], average, variable, slots)
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                with tf.control_dependencies(written):
                    value = variable.read_value()
                    chosen = ops.where(found["switch"] > 0, constraint(value), value)
                    written.append(K.update(variable, chosen))
            operations += written
        return operations


def _barrier(values):
    """A scope whose operations run after all values, by way of one operation to keep edges few."""
    values = [value for value in tf.nest.flatten(values) if value is not None]
    return tf.control_dependencies([tf.group(*values)])


def _scalar(value, dtype):
    # `tf.cast` of a Python number would round to float32.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)
