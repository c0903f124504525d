"""The state of an optimizer as variables: counters, sums and slots."""

import contextlib

import numpy as np
import tensorflow as tf

from keras_accum import base, kernels, states
from keras_accum.tf_keras import layout, updates
from keras_accum.tf_keras.library import keras
from keras_accum.warn import warn


class Variables(base.Optimizer):
    """The part of an optimizer that creates and numbers its variables."""

    def build(self, var_list):
        """Create the state for these variables, as the first step would.

        The state has the variables in this order. Pass all trainable variables of the model. If
        train steps update only parts of the variables, call `build` before the first step.

        Args:
            var_list: Iterable of trainable variables, in the order of the model.

        Raises:
            ValueError: If train steps were traced that know the variables in a different order.
        """
        var_list = list(var_list)
        with tf.init_scope():
            self._create_all_weights(var_list)
            if not self._is_numbered and len(var_list) == len(self._variables):
                if self._has_traced and self._missing_gradients is not None:
                    raise ValueError(
                        "`build` after train steps were traced that know the variables in another "
                        "order: call `build` before the first step, with all trainable variables "
                        "of the model."
                    )
                self._reorder(var_list)
                self._is_numbered = True

    def _create_all_weights(self, var_list):
        # A LossScaleOptimizer passes in the weight that `_aggregate_gradients` has appended.
        var_list = [variable for variable in var_list if variable is not self._window_weight]
        kernels.check_no_tensor(var_list)
        state = self._take_waiting(var_list, [variable._unique_id for variable in var_list])
        super()._create_all_weights(var_list)
        is_partial = len(var_list) < len(self._variables)
        if self._accumulates and (is_partial or states.MISSING in self._deferred_dependencies):
            if self._missing_gradients is None:
                self._build_missing_gradients()
        if state is not None:
            self._write_state(state)

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        self._number(var_list)
        self._build_window()

    def _number(self, var_list):
        """Number these variables in the order of the newest list that has new variables.

        A layer that is unfrozen later thus gets its place in the model. Graphs refer to variables
        by their numbers, so only `build` changes the order of known variables.
        """
        found = {variable.ref(): variable for variable in [*self._variables, *var_list]}
        old = [variable.ref() for variable in self._variables]
        new = list(dict.fromkeys(variable.ref() for variable in var_list))
        if len(found) == len(old):
            self._is_numbered = self._is_numbered or new == old
            return
        if old and self._accumulates:
            self._warn_of_steps_without([found[r] for r in new if r not in set(old)])
        order, is_certain = states.merged(old, new)
        self._reorder([found[reference] for reference in order])
        self._is_numbered = is_certain and (self._is_numbered or len(new) == len(found))

    def _reorder(self, variables):
        """Put the variables into this order, with counts of missing gradients for all of them."""
        old, self._variables = self._variables, variables
        if self._missing_gradients is not None:
            self._build_missing_gradients(old)

    def _build_window(self):
        if not (self._accumulates and self._variables):
            return
        self._build_counters()
        for variable in self._variables:
            if variable.ref() not in self._accumulators:
                self._accumulators[variable.ref()] = self.add_slot(variable, self._sum_slot)

    def _build_counters(self):
        if self._window is not None or not self._accumulates:
            return
        self._state_format = self._add_counter("state_format", states.FORMAT)
        self._window = (
            self._add_counter("window_position", 0),
            self._add_counter("window_length", self._accum_iters),
            self._add_counter("accum_iters", self._accum_iters),
        )
        self._unapplied = self._add_counter("unapplied", 0)
        if self._weighs:
            with self._sum_scope():
                self._window_weight = self._add_counter(states.WEIGHT, 0, self._scalar_dtype)

    def _warn_of_steps_without(self, variables):
        # The warning may be needless: TensorFlow keeps graphs alive, so it isn't known whether the
        # traced step is still in use.
        if self._has_traced:
            warn(
                f"{self._name} has met new variables ({variables[0].name}, ...) after a train step "
                "was traced without them. That train step can't update the new variables: at the "
                "end of a window, their gradients would be left over. If you have compiled the "
                "model of that train step again since, ignore this warning. Otherwise call "
                "`optimizer.build(all_variables)` before the first step.",
            )

    def _build_missing_gradients(self, known=()):
        """Create counts for all variables; the variables in `known` keep their counts."""
        old = self._missing_gradients
        counts = np.zeros(len(self._variables) + 1, "int64")
        if old is not None and tf.executing_eagerly():
            *old_counts, number = keras.backend.get_value(old)
            counts[:] = self.window_position if number == self.completed_updates else 0
            counts[-1] = number
            order = [variable.ref() for variable in self._variables]
            for variable, count in zip(known, old_counts):
                counts[order.index(variable.ref())] = count
        self._weights = [variable for variable in self._weights if variable is not old]
        self._missing_gradients = self._add_counter(states.MISSING, counts)

    def add_slot(self, var, slot_name, *args, **kwargs):
        # TensorFlow also calls this method, when it reads a checkpoint.
        if slot_name != self._sum_slot:
            return super().add_slot(var, slot_name, *args, **kwargs)
        # By default a slot has the data type of its variable, but a sum of many half precision
        # gradients overflows or stalls in half precision.
        is_half = getattr(var, "true_dtype", var.dtype).base_dtype in (tf.float16, tf.bfloat16)
        in_float32 = kernels.variables_in_float32 if is_half else contextlib.nullcontext
        with self._sum_scope(), in_float32():
            return super().add_slot(var, slot_name, *args, **kwargs)

    def _sum_scope(self):
        """The scope for creating the gradient sums of a window."""
        if not self._reduces_late:
            return contextlib.nullcontext()
        return kernels.sums_of_replicas(self._distribution_strategy)

    @property
    def _scalar_dtype(self):
        return tf.float64 if keras.backend.floatx() == "float64" else tf.float32

    def _add_counter(self, name, value, dtype=tf.int64):
        with self._distribution_strategy_scope():
            counter = self.add_weight(
                name,
                shape=np.shape(value),
                dtype=dtype,
                initializer=keras.initializers.Constant(value),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._weights.append(counter)
        return counter

    def _rule(self):
        """Return the rule that replaces the stock optimizer's own code, None without a rule."""
        return updates.rule_of(self)

    @property
    def _layout_of_stock(self):
        if self._found_layout is None:
            self._found_layout = layout.of(self._stock_class, self._given)
        return self._found_layout

    @property
    def _stock_slots(self):
        """The slots per variable, as {name in a state: name here}."""
        rule = self._rule()
        if rule is None:
            return self._layout_of_stock.slots
        return {name: layout.stock_name_of(self._stock_class, name) for name in rule.slots}

    @property
    def _stock_scalars(self):
        """The stock optimizer's scalars for all variables, as {name in a state: attribute}."""
        return {} if self._rule() else self._layout_of_stock.scalars

    @property
    def _scalars(self):
        return [getattr(self, name) for name in self._stock_scalars.values()]

    @property
    def _rule_slots(self):
        return tuple(self._stock_slots)

    @property
    def _rule_scalars(self):
        return tuple(self._stock_scalars)

    @property
    def _initial_values(self):
        return {} if self._rule() else self._layout_of_stock.initial

    @property
    def _sum_slot(self):
        """The accumulator's name among the slots, which checkpoints hold."""
        return (
            "window_accumulator" if "accumulator" in self._stock_slots.values() else "accumulator"
        )

    @property
    def _is_built(self):
        return bool(self._variables)
