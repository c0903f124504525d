"""The optimizers that tf_keras calls legacy: their train step.

An update changes nothing if the switch is 0. A rule has the switch in its scalars, and a fused
kernel runs the rule. Without a rule, the stock optimizer's own code writes any value, and
`where(switch > 0, new, old)` restores the old value.
"""

import inspect

import tensorflow as tf

from keras_accum import base, gates, kernels, states
from keras_accum.norms import UPDATE_NORM
from keras_accum.tf_keras import port
from keras_accum.tf_keras.legacy_state import RULES, LegacyState
from keras_accum.tf_keras.library import keras, legacy, utilities

# The strategies whose replicas share variables.
_SHARING = tuple(
    getattr(module, name)
    for module in (tf.distribute.experimental, tf.compat.v1.distribute.experimental)
    for name in ("ParameterServerStrategy", "CentralStorageStrategy")
)


class Port(LegacyState, port.Port):
    """The port of a legacy optimizer."""

    window_order = ("state_format", *states.WINDOW, "unapplied", states.WEIGHT, "accumulator")
    to_sum = "experimental_aggregate_gradients=True"

    @property
    def rule(self):
        """The rule that replaces the stock optimizer's own code, None without a rule."""
        cls, stock = type(self.optimizer), self.optimizer._stock_class
        is_stock = cls._resource_apply_dense is Hooks._resource_apply_dense
        return RULES[stock](self.optimizer) if stock in RULES and is_stock else None

    # -- the variables of a window -----------------------------------------------------------------

    @property
    def sum_slot(self):
        """The accumulator's name among the slots, which checkpoints hold."""
        return "window_accumulator" if "accumulator" in self.slots.values() else "accumulator"

    def add_sum(self, variable):
        return self.optimizer.add_slot(variable, self.sum_slot)

    def add_counter(self, name, value, shape=()):
        return self._add(name, value, tf.int64, shape)

    def add_scalar(self, name, value):
        return self._add(name, value, self.scalar_dtype)

    def _add(self, name, value, dtype, shape=()):
        with self.variable_scope():
            variable = self.optimizer.add_weight(
                name,
                shape=shape,
                dtype=dtype,
                initializer=keras.initializers.Constant(value),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self.optimizer._weights.append(variable)
        return variable

    # -- an update ---------------------------------------------------------------------------------

    def sum_pairs(self, pairs):
        return super(Hooks, self.optimizer)._aggregate_gradients(pairs)

    def averages(self, totals, variables, steps, reduction):
        if self.optimizer.gradient_transformers:  # a user's function wants no zeros
            certain = {id(step): gates.certain(step) for step in steps}
            steps = [certain[id(step)] for step in steps]
        return super().averages(totals, variables, steps, reduction)

    def update(self, step, averages, variables, switches):
        self.accumulation.norms.write(UPDATE_NORM, averages, step.switch)
        averages = self._transformed(averages, variables, switches)
        updated = [
            (variable, average, switch)
            for variable, average, switch in zip(variables, averages, switches)
            if average is not None
        ]
        if updated:
            rule = self.rule
            update = self._update_by_stock if rule is None else self._update_by_rule
            update(rule, step.switch, *map(list, zip(*updated)))

    def _transformed(self, averages, variables, switches):
        """Return the averages after clipping or after the user's transformers."""
        pairs = self.optimizer._transform_gradients(list(zip(averages, variables)))
        if not self.optimizer.gradient_transformers:
            return [average for average, _ in pairs]
        # A user's function may change zeros, reorder the pairs and omit some of them.
        return [
            None if average is None else self.times(average, self.cast(switch, average.dtype))
            for average, switch in zip(_in_order(pairs, variables), switches)
        ]

    def _update_by_rule(self, rule, of_step, variables, averages, switches):
        found = {}  # the scalars of each switch and dtype are computed once

        def scalars_of(switch, dtype):
            key = id(switch), dtype
            if key not in found:
                found[key] = self._scalars(rule, tf.cast(switch, dtype))
            return found[key]

        def write(variable, target, average, scalars):
            average = tf.cast(average, target.dtype.base_dtype)
            slots = [self.optimizer.get_slot(variable, self.slots[name]) for name in rule.slots]
            operations = kernels.apply_rule(rule, scalars["rule"], average, target, slots)
            if target.constraint is not None:
                with tf.control_dependencies(operations):
                    value = target.read_value()
                    chosen = tf.where(scalars["switch"] > 0, target.constraint(value), value)
                    operations.append(target.assign(chosen))
            return operations

        def across(averages, scalars):
            for variable, average, own in zip(variables, averages, scalars):
                self.on(variable, write, average, own)

        dtypes = [variable.dtype.base_dtype for variable in variables]
        self.across(across, averages, list(map(scalars_of, switches, dtypes)))

    def _scalars(self, rule, switch):
        optimizer, dtype = self.optimizer, switch.dtype
        hyperparameters = {
            name: optimizer._get_hyper(name, dtype)
            if name in optimizer._hyper
            else tf.convert_to_tensor(getattr(optimizer, name), dtype)  # tf.cast rounds to float32
            for name in rule.hyperparameters
        }
        rate, update = optimizer._decayed_lr(dtype), tf.cast(optimizer.iterations + 1, dtype)
        coefficients = rule.coefficients(tf, switch, rate, update, **hyperparameters)
        return {"switch": switch, "rule": kernels.kernel_scalars(rule, coefficients)}

    def _update_by_stock(self, rule, of_step, variables, averages, switches):
        scalars = [] if gates.is_certain(of_step) else self.scalar_variables
        old = list(map(self.value, scalars))
        # `_prepare` may write, as in Nadam, but not in a step that finds no more data and fails.
        with kernels.after(averages), tf.control_dependencies(old):
            coefficients = _Coefficients(self.optimizer._prepare(variables))

        def across(averages, switches, coefficients, old, of_step):
            operations = last = []
            # One variable after another, so that the old values of all variables don't take memory
            # at the same time.
            for variable, average, switch in zip(variables, averages, switches):
                with tf.control_dependencies(last):
                    last = self.on(variable, self._write_by_stock, average, switch, coefficients)
                operations = operations + last
            with tf.control_dependencies(operations):
                for scalar, value in zip(scalars, old):
                    self.on(scalar, _select, value, of_step)

        self.across(across, averages, switches, coefficients, old, of_step)

    def _write_by_stock(self, variable, target, average, switch, coefficients):
        average = tf.cast(average, target.dtype.base_dtype)
        if gates.is_certain(switch):
            return self._run_stock(target, average, coefficients)
        slots = self.slots.values()
        written = [target, *(self.optimizer.get_slot(variable, slot) for slot in slots)]
        old = list(map(tf.convert_to_tensor, written))
        with tf.control_dependencies(old):
            done = self._run_stock(target, average, coefficients)
        with tf.control_dependencies(done):
            return [_select(v, v, value, switch) for v, value in zip(written, old)]

    def _run_stock(self, target, average, coefficients):
        arguments = {"apply_state": coefficients.of_stock}
        if "apply_state" not in self.optimizer._dense_apply_args:
            arguments = {}
        done = self.optimizer._resource_apply_dense(average, target, **arguments)
        done = [] if done is None else [done]
        if target.constraint is not None:
            with tf.control_dependencies(done):
                done = [target.assign(target.constraint(target.read_value()))]
        return done


class _Coefficients:
    """An opaque container: `tf.distribute` passes each replica's coefficients in one piece."""

    def __init__(self, of_stock):
        self.of_stock = of_stock


def _select(variable, target, old, switch):
    return target.assign(tf.where(switch > 0, target.read_value(), old))


def _in_order(pairs, variables):
    """Return the gradients of a transformer's pairs in order, None for a missing variable."""
    pairs = list(pairs)
    found = {variable.ref(): gradient for gradient, variable in pairs}
    if len(found) < len(pairs) or not found.keys() <= {variable.ref() for variable in variables}:
        raise ValueError(
            "`gradient_transformers` must return pairs of the variables that they are given, each "
            f"at most once. Received: pairs of {[variable.name for _, variable in pairs]}"
        )
    return [found.get(variable.ref()) for variable in variables]


class Hooks(base.Optimizer):
    """What Keras and other optimizers call in a train step."""

    @kernels.as_written
    def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
        accumulation = self._accumulation
        if accumulation.options.is_stock:
            accumulation.has_stepped = True
            # Not the stock class's, which would note again which variables decay; see `addons`.
            return legacy.Optimizer.apply_gradients(
                self, grads_and_vars, name, experimental_aggregate_gradients
            )
        pairs = list(utilities.filter_empty_gradients(grads_and_vars))
        with tf.name_scope(self._name):
            with tf.init_scope():
                self._create_all_weights([variable for _, variable in pairs])
            if not pairs:
                return tf.no_op()
            if tf.distribute.in_cross_replica_context():
                raise RuntimeError(
                    "`apply_gradients() cannot be called in cross-replica context. Use "
                    "`tf.distribute.Strategy.run` to enter replica context."
                )
            strategy = tf.distribute.get_strategy()
            if not experimental_aggregate_gradients and isinstance(strategy, _SHARING):
                raise NotImplementedError(
                    "experimental_aggregate_gradients=False is not supported for "
                    "ParameterServerStrategy and CentralStorageStrategy. "
                    f"Used: strategy={strategy}."
                )
            accumulation.has_stepped = True
            accumulation.port.has_traced |= not tf.executing_eagerly()
            done = accumulation.port.apply(pairs, not experimental_aggregate_gradients)
        return self.iterations if tf.executing_eagerly() else done

    def _aggregate_gradients(self, grads_and_vars):
        """Sum over replicas. A LossScaleOptimizer calls this on every micro-batch."""
        pairs = list(grads_and_vars)
        if not self._accumulation.options.accumulates:
            return super()._aggregate_gradients(pairs)
        with tf.init_scope():
            self._create_all_weights([variable for _, variable in pairs])
        return self._accumulation.port.sum_in_advance(pairs)

    # In place of these methods of the stock optimizer, other optimizers must call
    # `apply_gradients`. OptimizerV2 looks for `apply_state` in their signatures.

    def _resource_apply_dense(self, grad, var, apply_state=None):
        self._accumulation.running.check_is_update("_resource_apply_dense")
        stock = super()._resource_apply_dense
        return stock(grad, var, **_taken(stock, apply_state=apply_state))

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        self._accumulation.running.check_is_update("_resource_apply_sparse")
        stock = super()._resource_apply_sparse
        return stock(grad, var, indices, **_taken(stock, apply_state=apply_state))

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
        self._accumulation.running.check_is_update("_resource_apply_sparse_duplicate_indices")
        return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices, **kwargs)


def _taken(function, **arguments):
    """Return those of the arguments that the function takes."""
    taken = inspect.signature(function).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return {name: value for name, value in arguments.items() if any_name or name in taken}
