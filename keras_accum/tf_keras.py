"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with other hooks.
At `accum_iters=1` it is the stock optimizer altogether. Above, `_transform_gradients` turns the
summed gradients of the replicas into the window's average, and `_distributed_apply` runs the rule
with gated scalars (see `_rules`), so that one traced graph serves every micro-batch.
"""

import tensorflow as tf

from keras_accum import _arguments, _callbacks, _docs, _host, _rules, _tensorflow, _window

keras = _host.import_keras_2()
_stock = getattr(keras.optimizers, "legacy", keras.optimizers)

_IMPORT = (
    "import tf_keras as keras" if keras.__name__ == "tf_keras" else "from tensorflow import keras"
)

# What an optimizer takes besides the stock class's named arguments.
_MORE = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator", "gradient_transformers")


class AccumulatingOptimizer:
    """Everything Keras, for all classes. A class names it before its stock optimizer and has

    * `_rule()`: the rule that belongs to the stock optimizer as it was constructed;
    * `slot_names`: the stock names of the rule's slots;
    * `fixed`: the stock arguments that the class decides itself;
    * `rule_arguments`: what the rule takes and the stock optimizer doesn't, with defaults.
    """

    fixed = {}
    rule_arguments = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            more = {**cls.rule_arguments, **dict.fromkeys(_MORE)}
            cls.__signature__ = _arguments.signature(cls.__bases__[-1], cls.fixed, more)
            cls.__doc__ = cls.__doc__ or _docs.docstring(cls.__name__, "tf_keras", _IMPORT)

    def __init__(self, *args, **kwargs):
        given = _arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = _arguments.pop_own(given)
        if "learning_rate" in given:
            given["learning_rate"] = _arguments.check_learning_rate(
                given["learning_rate"], allowed=(tf.Tensor, tf.Variable)
            )
        given.setdefault("name", type(self).__name__)
        added = {name: given.pop(name, value) for name, value in self.rule_arguments.items()}

        super().__init__(**given, **self.fixed)
        for name, value in added.items():
            self._set_hyper(name, value)
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self._accum_iters = own["accum_iters"]
        self._window = None
        self._unapplied = None
        self._accumulators = {}
        self._receivers = set()
        self._has_slots = False

    # -- state ---------------------------------------------------------------------------------

    @property
    def _accumulates(self):
        return self._accum_iters > 1

    @property
    def _is_stock(self):
        """Whether there is nothing here that the stock optimizer doesn't do."""
        return not (self._accumulates or self.skip_nonfinite or self.rule_arguments)

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        self._has_slots = True
        if not self._accumulates:
            return
        if self._window is None:
            self._window = (
                self._add_counter("window_position", 0),
                self._add_counter("window_length", self._accum_iters),
                self._add_counter("accum_iters", self._accum_iters),
            )
            self._unapplied = self._add_counter("unapplied", 0)
        for variable in var_list:
            if variable.ref() not in self._accumulators:
                self._accumulators[variable.ref()] = self._add_accumulator(variable)

    def _add_counter(self, name, value):
        with self._distribution_strategy_scope():
            counter = self.add_weight(
                name,
                shape=[],
                dtype=tf.int64,
                initializer=keras.initializers.Constant(value),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._weights.append(counter)
        return counter

    def _add_accumulator(self, variable):
        if variable.dtype.base_dtype not in (tf.float16, tf.bfloat16):
            return self.add_slot(variable, "accumulator")
        # A sum of many half precision gradients overflows or stalls in half precision, and a slot
        # has the data type of its variable.
        with self._distribution_strategy_scope():
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                accumulator = self.add_weight(
                    f"{variable._shared_name}/accumulator",
                    shape=variable.shape,
                    dtype=tf.float32,
                    trainable=False,
                )
        self._weights.append(accumulator)
        return accumulator

    @property
    def completed_updates(self):
        """The number of updates made: what schedules, `decay` and bias correction count. An int."""
        updates = int(keras.backend.get_value(self.iterations))
        if self._window is None:
            return updates
        return updates - int(keras.backend.get_value(self._unapplied))

    @property
    def window_position(self):
        """The number of micro-batches in the open window, 0 when none is open. An int."""
        return 0 if self._window is None else int(keras.backend.get_value(self._window[0]))

    @property
    def accum_iters(self):
        """The number of micro-batches that make one update. Set it: the next window has it."""
        if self._window is None:
            return self._accum_iters
        return int(keras.backend.get_value(self._window[2]))

    @accum_iters.setter
    def accum_iters(self, accum_iters):
        accum_iters = _arguments.check_accum_iters(accum_iters)
        if self._window is not None:
            keras.backend.set_value(self._window[2], accum_iters)
        elif not self._has_slots:
            self._accum_iters = accum_iters
        elif accum_iters != 1:
            raise ValueError(_arguments.NO_ACCUMULATORS.format(accum_iters))

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        for name in self.rule_arguments:
            config[name] = self._serialize_hyperparameter(name)
        config.update(_arguments.own_config(self))
        return config

    def __repr__(self):
        return _arguments.representation(self, "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)")

    # -- one micro-batch -----------------------------------------------------------------------

    def _aggregate_gradients(self, grads_and_vars):
        """Sum over replicas, and take back what a LossScaleOptimizer counted.

        It calls this on every micro-batch, and adds to `iterations` in place of us where it skips
        one. `unapplied` is 1 from here to the end of `_write`: what it is here is what was added.
        """
        pairs = list(super()._aggregate_gradients(grads_and_vars))
        if self._accumulates and tf.compat.v1.executing_eagerly_outside_functions():
            with tf.init_scope():
                self._create_all_weights([variable for _, variable in pairs])
            self._take_back()
            self._unapplied.assign(1)
        return pairs

    def _take_back(self):
        self.iterations.assign_sub(tf.convert_to_tensor(self._unapplied))

    def _transform_gradients(self, grads_and_vars):
        """The window's averages in place of the gradients, with all that `_write` needs."""
        if self._is_stock:
            return super()._transform_gradients(grads_and_vars)
        grads, variables = zip(*grads_and_vars)
        self._receivers.update(variable.ref() for variable in variables)
        counted = tf.ones([], tf.int64)
        if self.skip_nonfinite:
            counted = tf.cast(_tensorflow.all_finite(grads), tf.int64)
            grads = [_tensorflow.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        step = _window.advance(tf, *self._window_state(), counted=counted)
        totals = [self._total(g, v) for g, v in zip(grads, variables)]
        return self._averages(step, totals, variables)

    def apply_partial_window(self):
        """Close the open window now: one update from the micro-batches that it holds.

        With `reduction="mean"` their sum is divided by how many they are. Does nothing when no
        window is open. To be called between train steps.
        """
        if self.window_position == 0:
            return
        variables = [
            reference.deref()
            for reference in self._accumulators
            # A freshly loaded optimizer doesn't know yet which variables have a gradient.
            if reference in self._receivers or not self._receivers
        ]

        def update():
            self._take_back()
            position, length, _ = self._window_state()
            totals = [tf.convert_to_tensor(self._accumulators[v.ref()]) for v in variables]
            averages = self._averages(_window.close(position, length), totals, variables)
            tf.distribute.get_replica_context().merge_call(self._write, args=averages)

        _tensorflow.in_replicas(self._distribution_strategy, update)

    def _window_state(self):
        """Position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._window]

    def _total(self, gradient, variable):
        """The window's gradient sum with this gradient in it."""
        if not self._accumulates:
            return tf.convert_to_tensor(gradient)
        accumulator = tf.convert_to_tensor(self._accumulators[variable.ref()])
        return _tensorflow.add(accumulator, gradient)

    def _averages(self, step, totals, variables):
        """What goes from the replicas to `_write`."""
        averages = [self._average(step, total) for total in totals]
        pairs = super()._transform_gradients(list(zip(averages, variables)))
        averages = [average for average, _ in pairs]
        if self.gradient_transformers:
            # A user's function need not leave zeros alone.
            averages = [
                _tensorflow.gate(average, tf.cast(step.switch, average.dtype))
                for average in averages
            ]
        scalars = {
            dtype.name: self._scalars(step, dtype)
            for dtype in {variable.dtype.base_dtype for variable in variables}
        }
        return averages, totals, variables, step, scalars

    def _average(self, step, total):
        if self.gradient_transformers:
            step = step._replace(switch=1)
        scale = _window.scale(tf, step, self.reduction, lambda x: tf.cast(x, total.dtype))
        return _tensorflow.gate(total, scale)

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
        update = tf.cast(self.iterations + 1, dtype)
        return {
            "switch": switch,
            "rule": rule.coefficients(
                tf, switch, self._decayed_lr(dtype), update, **hyperparameters
            ),
        }

    # The arguments after these two come in another order before TensorFlow 2.9.
    def _distributed_apply(self, distribution, grads_and_vars, *args, **kwargs):
        if self._is_stock:
            return super()._distributed_apply(distribution, grads_and_vars, *args, **kwargs)
        with tf.name_scope(self._name):
            return self._write(distribution, *grads_and_vars)

    def _write(self, distribution, averages, totals, variables, step, scalars):
        """All assignments, the counters last. This runs across replicas."""
        operations = []
        for average, total, variable in zip(averages, totals, variables):
            operations += self._update(
                distribution,
                variable,
                self._write_variable,
                average,
                total,
                scalars[variable.dtype.base_dtype.name],
            )
        with tf.control_dependencies(operations):
            if self._accumulates:
                counters = (*self._window[:2], self._unapplied)
                for counter, value in zip(counters, (step.position, step.length, 0)):
                    operations += self._update(distribution, counter, _assign, value)
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
        rule = self._rule()
        slots = [self.get_slot(variable, self.slot_names[name]) for name in rule.slots]
        average = tf.cast(average, target.dtype.base_dtype)
        switch = scalars["switch"]
        operations = _tensorflow.apply_rule(rule, scalars["rule"], average, target, slots)
        if self._accumulates:
            hold = tf.cast(1 - switch, total.dtype)
            accumulator = self._accumulators[variable.ref()]
            operations.append(accumulator.assign(_tensorflow.gate(total, hold)))
        if target.constraint is not None:
            with tf.control_dependencies(operations):
                value = target.read_value()
                constrained = target.constraint(value)
                operations.append(target.assign(tf.where(switch > 0, constrained, value)))
        return tf.group(*operations)


def _assign(variable, target, value):
    return target.assign(value)


def _add(variable, target, value):
    return target.assign_add(value)


_register = keras.utils.register_keras_serializable(package="keras_accum")


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
    slot_names = {"momentum": "momentum"}

    def _rule(self):
        return _rules.SGD(momentum=self._momentum, nesterov=self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, _stock.Adam):
    slot_names = {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"}

    def _rule(self):
        return _rules.AMSGrad() if self.amsgrad else _rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, _stock.Adam):
    fixed = {"amsgrad": True}
    slot_names = AdamAccumulate.slot_names

    def _rule(self):
        return _rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, _stock.RMSprop):
    slot_names = {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"}

    def _rule(self):
        # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
        return _rules.RMSprop(self._momentum, self.centered, epsilon_in_root=self._momentum)


class ApplyPartialWindow(_callbacks.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = _callbacks.ApplyPartialWindow.__doc__.format(host="tf_keras", import_keras=_IMPORT)
