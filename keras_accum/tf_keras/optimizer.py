"""The optimizers that tf_keras calls legacy: constructor, config and one micro-batch.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with other hooks.
At `accum_iters=1` it is the stock optimizer altogether. Above, `_transform_gradients` turns the
summed gradients of the replicas into the window's average, and `_distributed_apply` runs the rule
with gated scalars (see `rules`), so that one traced graph serves every micro-batch.
"""

import numpy as np
import tensorflow as tf

from keras_accum import arguments, docs, kernels, window
from keras_accum.callbacks import monitor
from keras_accum.tf_keras.library import IMPORT_KERAS, keras
from keras_accum.tf_keras.moving import Moving
from keras_accum.tf_keras.saving import Saving
from keras_accum.tf_keras.variables import Variables

NO_TRAIN_FUNCTION = (
    "{} needs the train function of TensorFlow 2, which models don't have after "
    "tf.compat.v1.disable_eager_execution(): leave that call out."
)

# What an optimizer takes besides the stock class's named arguments.
_MORE = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator", "gradient_transformers")


class AccumulatingOptimizer(Variables, Saving, Moving):
    """Everything Keras, for all classes. A class names it before its stock optimizer and has

    * `_rule()`: the rule that belongs to the stock optimizer as it was constructed;
    * `slot_names`: the stock names of the rule's slots;
    * `fixed`: the stock arguments that the class decides itself;
    * `rule_arguments`: what the rule takes and the stock optimizer doesn't, with defaults.
    """

    fixed = {}
    rule_arguments = {}
    _can_reduce_late = True
    _replica = staticmethod(kernels.replica)
    _is_traced = staticmethod(tf.inside_function)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            more = {**cls.rule_arguments, **dict.fromkeys(_MORE)}
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, more)
            cls.__doc__ = cls.__doc__ or docs.docstring(cls.__name__, "tf_keras", IMPORT_KERAS)

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if "learning_rate" in given:
            given["learning_rate"] = arguments.check_learning_rate(
                given["learning_rate"], allowed=(tf.Tensor, tf.Variable)
            )
        given.setdefault("name", type(self).__name__)
        added = {name: given.pop(name, value) for name, value in self.rule_arguments.items()}

        super().__init__(**given, **self.fixed)
        for name, value in added.items():
            self._set_hyper(name, value)
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self.gate = own["gate"]
        self.all_reduce = own["all_reduce"]
        self._accum_iters = own["accum_iters"]
        self._window = None
        self._unapplied = None
        self._window_weight = None
        self._missing_gradients = None
        self._accumulators = {}
        self._summed = set()
        self._closings = {}
        self._variables = []
        # Whether the numbers of these variables in a state are known to be those in the model.
        self._is_numbered = True
        self._has_traced = False  # whether there is a graph that has a step of these variables

    @property
    def _is_stock(self):
        """Whether there is nothing here that the stock optimizer doesn't do."""
        return not (self._accumulates or self.skip_nonfinite or self.rule_arguments)

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        for name in self.rule_arguments:
            config[name] = self._serialize_hyperparameter(name)
        config.update(arguments.own_config(self))
        return config

    def __repr__(self):
        return arguments.representation(self, "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)")

    # -- one micro-batch -----------------------------------------------------------------------

    def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
        if self._reduces_late and not experimental_aggregate_gradients:
            raise ValueError(
                "all_reduce='per_window' needs the gradients before they are summed over replicas: "
                "leave experimental_aggregate_gradients=True. A LossScaleOptimizer, which looks at "
                "the sums of each micro-batch, needs all_reduce='per_micro_batch'."
            )
        if self._is_scaled and not experimental_aggregate_gradients:
            if self._replica() not in self._summed:
                raise ValueError(
                    "A LossScaleOptimizer around an optimizer with accum_iters > 1 needs the "
                    "gradients before they are summed over replicas: leave "
                    "experimental_aggregate_gradients=True. Without, what it skips would count "
                    "as an update."
                )
            self._summed.remove(self._replica())
        return super().apply_gradients(grads_and_vars, name, experimental_aggregate_gradients)

    @property
    def _is_scaled(self):
        """Whether a LossScaleOptimizer skips micro-batches that a window would count."""
        return self._accumulates and getattr(self, "_is_wrapped_by_loss_scale_optimizer", False)

    def _aggregate_gradients(self, grads_and_vars):
        """Sum over replicas, and take back what a LossScaleOptimizer counted.

        It calls this on every micro-batch, and adds to `iterations` in place of us where it skips
        one. `unapplied` is 1 from here to the end of `_write`: what it is here is what was added.
        """
        pairs = list(grads_and_vars)
        if self._is_scaled:
            self._summed.add(self._replica())  # until it hands them to `apply_gradients`
        if self._accumulates:
            with tf.init_scope():
                self._create_all_weights([variable for _, variable in pairs])
        if self._weighs:
            pairs = self._weighted(pairs)
        if not self._reduces_late:
            pairs = list(super()._aggregate_gradients(pairs))
        if not self._accumulates:
            return pairs
        taken_back = self._take_back()
        if tf.compat.v1.executing_eagerly_outside_functions():
            self._unapplied.assign(1)
            return pairs
        # A TensorFlow 1 graph runs what there is to wait for.
        with tf.control_dependencies([taken_back]):
            unapplied = self._unapplied.assign(1)
        with tf.control_dependencies([unapplied]):
            return [(tf.identity(gradient), variable) for gradient, variable in pairs]

    def _weighted(self, grads_and_vars):
        """The gradients times the weight of their micro-batch, which comes after them as one more.

        So it's summed over replicas as they are, each of which is a part of the mean over replicas.
        """
        if not (self._weights_said or tf.compat.v1.executing_eagerly_outside_functions()):
            raise ValueError(NO_TRAIN_FUNCTION.format("reduction='weighted' in `fit`"))
        weight = tf.cast(self._take_weight(), self._window_weight.dtype)
        is_weight = tf.logical_and(weight >= 0, tf.math.is_finite(weight))
        weight = tf.where(is_weight, weight, tf.zeros_like(weight))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        factor = tf.where(is_weight, weight * replicas, np.nan * tf.ones_like(weight))

        def times(gradient, variable):
            dtype = self._accumulators[variable.ref()].dtype  # half precision could overflow
            return kernels.gate(tf.cast(gradient, dtype), tf.cast(factor, dtype))

        pairs = [(times(gradient, variable), variable) for gradient, variable in grads_and_vars]
        return pairs + [(weight, self._window_weight)]

    def _take_back(self):
        return self.iterations.assign_sub(tf.convert_to_tensor(self._unapplied))

    def _transform_gradients(self, grads_and_vars):
        """In place of the gradients, all that `_write`, `_branch` or `_accumulate` needs."""
        if self._is_stock:
            return super()._transform_gradients(grads_and_vars)
        grads, variables = zip(*grads_and_vars)
        references = [variable.ref() for variable in variables]
        arguments.check_once(references, lambda reference: reference.deref().name)
        self._count_trace()
        self._has_traced = self._has_traced or not tf.executing_eagerly()
        if self._weighs:
            *grads, weight = grads
            *variables, last = variables
            if last is not self._window_weight:  # experimental_aggregate_gradients=False
                raise ValueError(
                    "reduction='weighted' needs the gradients before they are summed over "
                    "replicas: leave experimental_aggregate_gradients=True."
                )
        counted = tf.ones([], tf.int64)
        if self.skip_nonfinite:
            counted = tf.cast(kernels.all_finite(grads), tf.int64)
            grads = [kernels.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        self._note(monitor.MICRO_BATCH_NORM, grads, counted)
        step = window.advance(tf, *self._window_state(), counted=counted)
        absent = self._absent(variables)
        if absent:
            missing, number = map(tf.convert_to_tensor, (self._missing_gradients, self.iterations))
            step = window.miss(tf, step, missing, number, absent, counted)
        if self._weighs:
            weight = weight * tf.cast(counted, weight.dtype)
            step = step._replace(divisor=tf.convert_to_tensor(self._window_weight) + weight)
        if self._branches or self._picked is False:
            return grads, variables, step
        if self._picked:
            step = step._replace(switch=1)
        return self._averages(step, *self._totals(grads, variables))

    def _absent(self, variables):
        """The indices of the variables whose gradients are missing if these are there."""
        if not self._accumulates:
            return []
        present = {variable.ref() for variable in variables}
        return [i for i, variable in enumerate(self._variables) if variable.ref() not in present]

    def _reduced(self, step, totals, variables):
        """The window's sums over all replicas, where each has had its own until now."""
        if not self._reduces_late:
            return step, totals
        pairs = list(zip(totals, variables))
        if self._weighs:
            # One replica's sum is what it was, and in a branch all must be of the branch.
            pairs.append((tf.identity(step.divisor), self._window_weight))
        totals = [total for total, _ in super()._aggregate_gradients(pairs)]
        if self._weighs:
            step = step._replace(divisor=totals.pop())
        return step, totals

    def apply_partial_window(self):
        """Close the open window now: one update from the micro-batches that it holds.

        With `reduction="mean"` their sum is divided by how many they are, with "weighted" by what
        they weigh. Does nothing when no window is open. To be called between train steps.

        Raises:
            RuntimeError: if it's called in a function that is traced.
        """
        self._check_is_between_steps()
        if self.window_position == 0:
            return
        self._check_is_built("apply_partial_window")
        variables = self._seen_variables()

        def update():
            with tf.control_dependencies([self._take_back()]):
                position, length, _ = self._window_state()
                totals = [tf.convert_to_tensor(self._accumulators[v.ref()]) for v in variables]
                step = window.close(position, length)
                if self._weighs:
                    step = step._replace(divisor=tf.convert_to_tensor(self._window_weight))
                averages = self._averages(step, totals, variables, absent=[])
            return tf.distribute.get_replica_context().merge_call(self._write, args=averages)

        if tf.compat.v1.executing_eagerly_outside_functions():
            kernels.in_replicas(self._distribution_strategy, update)
            return
        if self._distribution_strategy is not None:
            raise ValueError(
                "`apply_partial_window` on replicas needs the eager execution of TensorFlow 2: "
                "leave tf.compat.v1.disable_eager_execution() out. Received: "
                f"{type(self._distribution_strategy).__name__}"
            )
        key = tuple(variable.ref() for variable in variables)
        if key not in self._closings:  # a graph only ever grows
            with tf.control_dependencies([update()]):
                self._closings[key] = tf.ones([])
        keras.backend.get_value(self._closings[key])

    def _seen_variables(self):
        """The variables that have had a gradient in the open window."""
        if self._missing_gradients is None:
            return self._variables
        missing = keras.backend.get_value(self._missing_gradients)
        seen = window.was_seen(missing, self.completed_updates, self.window_position)
        return [v for v, is_seen in zip(self._variables, seen) if is_seen]

    def _window_state(self):
        """Position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._window]

    def _totals(self, grads, variables):
        """The window's gradient sums with these gradients in them, and what they belong to.

        Last come the variables whose gradients are missing, and which these are.
        """
        if not self._accumulates:
            return list(map(tf.convert_to_tensor, grads)), variables, []
        absent = self._absent(variables)
        variables = [*variables, *(self._variables[i] for i in absent)]
        totals = [tf.convert_to_tensor(self._accumulators[v.ref()]) for v in variables]
        totals[: len(grads)] = map(kernels.add, totals, grads)
        return totals, variables, absent

    def _averages(self, step, totals, variables, absent):
        """What goes from the replicas to `_write`.

        The variables with the indices `absent`, which come last, are covered if they had a gradient
        earlier in the window.
        """
        step, totals = self._reduced(step, totals, variables)
        own_steps = [window.of_variable(step, index) for index in absent]
        steps = [step] * (len(variables) - len(absent)) + own_steps
        scales = {(id(s), t.dtype): (s, t.dtype) for s, t in zip(steps, totals)}
        scales = {key: self._scale(*arguments) for key, arguments in scales.items()}
        averages = [kernels.gate(t, scales[id(s), t.dtype]) for s, t in zip(steps, totals)]
        self._note(monitor.UPDATE_NORM, averages, step.switch)
        pairs = super()._transform_gradients(list(zip(averages, variables)))
        if self.gradient_transformers:
            # A user's function need not leave zeros alone, nor the order, and may leave some out.
            averages = [
                None if a is None else kernels.gate(a, tf.cast(s.switch, a.dtype))
                for s, a in zip(steps, _in_order(pairs, variables))
            ]
        else:
            averages = [average for average, _ in pairs]
        scalars = {
            dtype.name: self._scalars(step, dtype)
            for dtype in {variable.dtype.base_dtype for variable in variables}
        }
        for index, own_step in zip(absent, own_steps):
            dtype = self._variables[index].dtype.base_dtype
            scalars[f"{dtype.name}.{index}"] = self._scalars(own_step, dtype)
        return averages, totals, variables, step, scalars

    def _scale(self, step, dtype):
        if self.gradient_transformers:
            step = step._replace(switch=1)
        return window.scale(tf, step, self.reduction, lambda x: tf.cast(x, dtype))

    def _scalars(self, step, dtype):
        """What the update of a variable of this data type needs besides tensors."""
        switch = tf.cast(step.switch, dtype)
        rule = self._rule()
        hyperparameters = {
            name: self._get_hyper(name, dtype)
            if name in self._hyper
            else tf.convert_to_tensor(getattr(self, name), dtype)  # a cast is by way of float32
            for name in rule.hyperparameters
        }
        rate, update = self._decayed_lr(dtype), tf.cast(self.iterations + 1, dtype)
        coefficients = rule.coefficients(tf, switch, rate, update, **hyperparameters)
        return {
            "switch": switch,
            "hold": 1 - switch,
            "rule": kernels.kernel_scalars(rule, coefficients),
        }

    # The arguments after these two come in another order before TensorFlow 2.9.
    def _distributed_apply(self, distribution, grads_and_vars, *args, **kwargs):
        self._has_stepped = True
        if self._is_stock:
            return super()._distributed_apply(distribution, grads_and_vars, *args, **kwargs)
        with tf.name_scope(self._name):
            if self._picked is False:
                write = self._accumulate
            else:
                write = self._branch if self._branches else self._write
            return write(distribution, *grads_and_vars)

    def _branch(self, distribution, grads, variables, step):
        """One conditional: the update of a window's end, or the additions inside it."""

        def across(function, *tensors):
            return tf.group(*tf.distribute.get_replica_context().merge_call(function, args=tensors))

        def update(grads, step):
            averages = self._averages(step._replace(switch=1), *self._totals(grads, variables))
            return across(self._write_weights, *averages)

        def accumulate(grads, step):
            return across(self._add_all, grads, variables)

        done = kernels.branch(distribution, step.switch, update, accumulate, grads, step)
        return self._write_counters(distribution, step, after=[] if done is None else [done])

    def _accumulate(self, distribution, grads, variables, step):
        """A micro-batch inside a window. This runs across replicas."""
        operations = self._add_all(distribution, grads, variables)
        return self._write_counters(distribution, step, after=operations)

    def _add_all(self, distribution, grads, variables):
        operations = []
        if self._accumulates:
            for gradient, variable in zip(grads, variables):
                accumulator = self._accumulators[variable.ref()]
                operations += self._update(distribution, accumulator, _accumulate, gradient)
        return operations

    def _write(self, distribution, averages, totals, variables, step, scalars):
        """All assignments, the counters last. This runs across replicas."""
        operations = self._write_weights(distribution, averages, totals, variables, step, scalars)
        return self._write_counters(distribution, step, after=operations)

    def _write_weights(self, distribution, averages, totals, variables, step, scalars):
        indices = {variable.ref(): i for i, variable in enumerate(self._variables)}
        operations = []
        for average, total, variable in zip(averages, totals, variables):
            dtype = variable.dtype.base_dtype.name
            own = scalars.get(f"{dtype}.{indices[variable.ref()]}", scalars[dtype])
            operations += self._update(
                distribution, variable, self._write_variable, average, total, own
            )
        return operations

    def _write_counters(self, distribution, step, after):
        operations = list(after)
        with tf.control_dependencies(operations):
            if self._accumulates:
                counters = (*self._window[:2], self._unapplied)
                for counter, value in zip(counters, (step.position, step.length, 0)):
                    operations += self._update(distribution, counter, _assign, value)
            if step.missing is not None:
                operations += self._update(
                    distribution, self._missing_gradients, _assign, step.missing
                )
            if self._weighs:
                operations += self._update(
                    distribution, self._window_weight, _assign_rest, step.divisor, step.switch
                )
            operations += self._update(distribution, self.iterations, _add, step.switch)
        return self.iterations if tf.executing_eagerly() else tf.group(*operations)

    def _update(self, distribution, variable, function, *tensors):
        """Call `function(variable, target, *tensors)` for each replica's copy of a variable."""
        done = distribution.extended.update(
            variable,
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )
        return [operation for operation in tf.nest.flatten(done) if operation is not None]

    def _write_variable(self, variable, target, average, total, scalars):
        operations = []
        if average is not None:
            operations += self._apply_rule(variable, target, average, scalars)
        if self._accumulates:
            hold = tf.cast(scalars["hold"], total.dtype)
            accumulator = self._accumulators[variable.ref()]
            rest = kernels.gate(total, hold)
            operations.append(accumulator.assign(rest, read_value=False))
        return operations

    def _apply_rule(self, variable, target, average, scalars):
        rule = self._rule()
        slots = [self.get_slot(variable, self.slot_names[name]) for name in rule.slots]
        average = tf.cast(average, target.dtype.base_dtype)
        operations = kernels.apply_rule(rule, scalars["rule"], average, target, slots)
        if target.constraint is not None:
            with tf.control_dependencies(operations):
                value = target.read_value()
                constrained = target.constraint(value)
                chosen = tf.where(scalars["switch"] > 0, constrained, value)
                operations.append(target.assign(chosen))
        return operations


def _in_order(pairs, variables):
    """The gradients of a transformer's pairs, None for a variable that it has left out."""
    pairs = list(pairs)
    found = {variable.ref(): gradient for gradient, variable in pairs}
    if len(found) < len(pairs) or not found.keys() <= {variable.ref() for variable in variables}:
        raise ValueError(
            "`gradient_transformers` must return pairs of the variables that they are given, each "
            f"at most once. Received: pairs of {[variable.name for _, variable in pairs]}"
        )
    return [found.get(variable.ref()) for variable in variables]


def _accumulate(variable, target, gradient):
    return kernels.accumulate(target, gradient)


def _assign(variable, target, value):
    return target.assign(value)


def _assign_rest(variable, target, value, switch):
    return target.assign(value * tf.cast(1 - switch, value.dtype))


def _add(variable, target, value):
    return target.assign_add(value)
