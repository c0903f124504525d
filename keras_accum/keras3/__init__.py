"""The optimizers for Keras 3, on its TensorFlow, JAX and PyTorch backends.

Each class is the stock optimizer of its name with another `apply`. At `accum_iters=1` it is the
stock optimizer altogether. Above, `apply` adds the gradients to the accumulators and runs the rule
with gated scalars (see `_rules`), so that one traced program serves every micro-batch.

What a backend does in its own way is in `_backend_<name>`; the rest is `keras.ops`.
"""

import importlib
import numbers
import warnings

import numpy as np

from keras_accum import arguments, base, docs, host, names, rules, states, window
from keras_accum.callbacks import monitor, partial_window, python_gate, weights
from keras_accum.states import StateError  # noqa: F401, public

keras = host.import_keras_3()
ops = keras.ops
_backend = importlib.import_module(f"keras_accum.keras3.backend_{keras.backend.backend()}")


# Of the names that Keras gives to what it keeps for a variable, those that are none of a rule.
_SLOT_NAMES = {
    "average": "moving_average",
    "accumulator": "accumulator",
    "gradient_accumulator": "accumulator",
}


def _stock(name):
    """The class that `keras.optimizers.<name>(...)` makes; torch has its own behind that name."""
    public = getattr(keras.optimizers, name)
    return type(public.__new__(public))


class AccumulatingOptimizer(base.Optimizer, _backend.Backend):
    """Everything Keras, for all classes. A class names it before its stock optimizer and has

    * `_rule()`: the rule that belongs to the stock optimizer as it was constructed;
    * `fixed`: the stock arguments that the class decides itself;
    * `rule_arguments`: what the rule takes and the stock optimizer doesn't, with defaults.
    """

    fixed = {}
    rule_arguments = {}
    _is_told_of_the_end = True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, cls.rule_arguments)
            cls.__doc__ = cls.__doc__ or docs.docstring(cls.__name__, "keras3", "import keras")

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=ValueError)
        own = arguments.pop_own(type(self), given)
        decay = arguments.check_decay(given.pop("decay", None))
        given.setdefault("name", None)
        arguments.check_one_accumulation(own, given.get("gradient_accumulation_steps"))
        added = {name: given.pop(name, value) for name, value in self.rule_arguments.items()}

        super().__init__(**given, **self.fixed)
        for name, value in added.items():
            setattr(self, name, value)
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self.gate = own["gate"]
        self.all_reduce = own["all_reduce"]
        self.decay = decay
        self._accum_iters = own["accum_iters"]
        # Written past Keras's attribute tracking: the stock class tracks its slots itself.
        self.__dict__["_slots"] = {}

    # -- state ---------------------------------------------------------------------------------

    @property
    def _updates_as_stock(self):
        """Whether an update is one that the stock optimizer can make."""
        return not (self.decay or self.rule_arguments)

    @property
    def _is_stock(self):
        """Whether there is nothing here that the stock optimizer doesn't do."""
        return self._updates_as_stock and not (self._accumulates or self.skip_nonfinite)

    def build(self, variables):
        if self.built:
            return
        with self._eagerly():
            state = self._released(variables)
        super().build(variables)
        self._build_window()
        if state is not None:
            with self._eagerly():
                self._write_state(state)
                self._start_training()

    def _build_window(self):
        variables = self._trainable_variables
        if not (self._accumulates and variables):
            return
        self._state_format = self._add_counter("state_format", states.FORMAT)
        self._window_position = self._add_counter("window_position", 0)
        self._window_length = self._add_counter("window_length", self._accum_iters)
        self._next_window_length = self._add_counter("accum_iters", self._accum_iters)
        if self._weighs:
            with self._sum_scope():
                self._window_weight = self._add_scalar(states.WEIGHT, 0, self._scalar_dtype)
        if self._reduces_late and any(map(self._overwrite_variable_with_gradient, variables)):
            raise ValueError(
                "all_reduce='per_window' can't be used with float8: of the scales that a gradient "
                "overwrites there is no sum for each replica. Leave it out."
            )
        with self._sum_scope():
            self._accumulators = [self._add_accumulator(variable) for variable in variables]
        self._missing_gradients = self._add_counter(states.MISSING, 0, (len(variables) + 1,))

    @property
    def _scalar_dtype(self):
        return "float64" if keras.config.floatx() == "float64" else "float32"

    def _add_counter(self, name, value, shape=()):
        with self._counter_scope():
            return self._add_scalar(name, value, "int", shape)

    def _add_scalar(self, name, value, dtype, shape=()):
        return self.add_variable(
            shape=shape,
            initializer=keras.initializers.Constant(value),
            dtype=dtype,
            aggregation="only_first_replica",
            name=name,
        )

    def _add_accumulator(self, variable):
        if _dtype(variable) not in ("float16", "bfloat16"):
            return self.add_variable_from_reference(variable, name="accumulator")
        # A sum of many half precision gradients overflows or stalls in half precision.
        return self.add_variable(
            shape=variable.shape,
            dtype="float32",
            name=f"{_path(variable).replace('/', '_').replace(':', '_')}_accumulator",
            layout=getattr(variable, "_layout", None),
        )

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        variable = super().add_variable_from_reference(
            reference_variable, name=name, initializer=initializer
        )
        self._slots[name, self._var_key(reference_variable)] = variable
        return variable

    @property
    def completed_updates(self):
        """The number of updates made: what schedules, `decay` and bias correction count. An int."""
        return self._count("completed_updates", ops.convert_to_numpy(self.iterations))

    def _counters(self):
        if self._pending:
            return self._pending.counters
        if not (self._accumulates and self._is_built):
            return {}
        counters = self._window_position, self._window_length, self._next_window_length
        return dict(zip(states.WINDOW, counters))

    def _get_scalar(self, variable):
        return ops.convert_to_numpy(variable)

    def _add_norm(self, name):
        with self._variable_scope():
            return keras.Variable(
                -1.0,
                dtype=self._scalar_dtype,
                trainable=False,
                aggregation="only_first_replica",
                name=name,
            )

    def _note(self, name, tensors, switch):
        """Write the norm of these tensors together, where it's watched and the switch is on."""
        if name in self._watched:
            dtype = self._scalar_dtype
            squares = [ops.sum(ops.square(ops.cast(self._dense(t), dtype))) for t in tensors]
            norm, old = ops.sqrt(sum(squares)), self._value(self._norms[name])
            self._norms[name].assign(ops.where(switch > 0, norm, old))

    def _note_micro_batch(self, grads, variables, counted):
        if monitor.MICRO_BATCH_NORM in self._watched:
            overwritten = map(self._overwrite_variable_with_gradient, variables)
            summed = [g for g, skip in zip(grads, overwritten) if not skip]
            self._note(monitor.MICRO_BATCH_NORM, summed, counted)

    def _rate_in_use(self):
        rate = float(ops.convert_to_numpy(self._get_current_learning_rate()))
        return rules.decayed(rate, self.decay, self.completed_updates)

    def _set_count(self, counter, value):
        counter.assign(value)

    @property
    def _model_variables_moving_average(self):
        """The averages, for Keras: at the end of `fit` and in SwapEMAWeights.

        Until the first update there is nothing to average: there they are the weights as these are.
        """
        if not (self._is_traced() or self.completed_updates):
            for variable, average in zip(self._trainable_variables, self._averages_of_weights):
                if average is not None:
                    average.assign(ops.copy(variable))
        return self._averages_of_weights

    @_model_variables_moving_average.setter
    def _model_variables_moving_average(self, averages):
        self._averages_of_weights = averages

    def finalize_variable_values(self, var_list):
        # Keras calls this at the end of `fit`. A train step of JAX that has raised an error leaves
        # the variables without values.
        if self._iterations._value is None:
            return
        self._end_training()
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX each weight and its average are one array now, which no train step takes.
            for average in self._averages_of_weights:
                if average is not None:
                    average.assign(ops.copy(average))

    _rule_scalars = ()

    @property
    def _rule_slots(self):
        return self._rule().slots

    @property
    def _is_built(self):
        # Keras's HDF5 loader builds on an empty list.
        return bool(self._trainable_variables)

    @property
    def variables(self):
        if self._pending:
            return list(self._pending.variables.values())
        return super().variables + self._watched_norms * self._steps_return_state

    def _shared_variables(self):
        found = {"completed_updates": self._iterations}
        if isinstance(self._learning_rate, keras.Variable):
            found["learning_rate"] = self._learning_rate
        return found

    def _add_waiting(self, name, array):
        return keras.Variable(array, trainable=False, name=name)

    def _state_variables(self):
        """All variables by their names in a state, in the order of `variables`."""
        if self._pending:
            return self._pending.variables
        names = {id(variable): name for name, variable in self._shared_variables().items()}
        for (slot, key), variable in self._slots.items():
            index = self._trainable_variables_indices[key]
            if slot in _SLOT_NAMES:
                names[id(variable)] = f"{_SLOT_NAMES[slot]}.{index}"
            else:
                names[id(variable)] = states.slot_name(self._rule_name, slot, index)
        if self._accumulates and self._is_built:
            names.update({id(variable): name for name, variable in self._counters().items()})
            names[id(self._state_format)] = "state_format"
            names[id(self._missing_gradients)] = states.MISSING
            if self._weighs:
                names[id(self._window_weight)] = states.WEIGHT
            for index, accumulator in enumerate(self._accumulators):
                names[id(accumulator)] = f"accumulator.{index}"
        return {names[id(v)]: v for v in self._variables}

    def _layout(self):
        return states.layout(self._state_variables(), self._trainable_variables)

    def _list_names(self, variables, stock):
        # The order is the stock optimizer's: ask one that has as many variables, of no size.
        config = _constructor_arguments(self)
        if stock:
            config["accum_iters"] = 1
        scratch = type(self)(**config)
        scratch.build([keras.Variable(0.0) for _ in range(variables)])
        return list(scratch._state_variables())

    def _named(self, arrays):
        if _is_of_loss_scaling(arrays):
            warnings.warn(
                f"The file is of a LossScaleOptimizer around {self.name}, which here has none: the "
                "loss scale is left out, the rest is taken. `keras.mixed_precision."
                "set_dtype_policy('mixed_float16')` before loading brings it back.",
                stacklevel=2,
            )
            arrays = arrays[4:]
        return super()._named(arrays)

    def _read_state(self):
        state = {
            name: ops.convert_to_numpy(variable)
            for name, variable in self._state_variables().items()
            if name != "state_format"
        }
        return states.without_idle(state)

    def _rate_state(self):
        if not isinstance(self._learning_rate, keras.Variable):
            return {}
        return {"learning_rate": ops.convert_to_numpy(self._learning_rate)}

    def _write_state(self, state):
        variables = self._state_variables()
        for name, value in state.items():
            variables[name].assign(value)

    def _write_shared(self, state):
        for name, variable in self._shared_variables().items():
            if name in state:
                variable.assign(state[name])

    def _hold(self, state):
        super()._hold(state)
        self.built = False  # Keras's HDF5 loader has built on an empty list

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, one with Keras's own
                `gradient_accumulation_steps`, or one of this package. It is left as it is.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> import keras
        >>> from keras_accum.keras3 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(keras.optimizers.Adam(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        kinds = [cls._stock_class]
        if cls._stock_class is _stock("Adam"):
            kinds.append(_stock("AdamW"))  # Adam with another default of weight_decay
        cls._check_source(optimizer, kinds)
        config = _constructor_arguments(optimizer)
        cls._check_fixed(config)
        if isinstance(optimizer, AccumulatingOptimizer):
            state = optimizer.get_state()
        else:
            del config["name"]
            state = cls._state_of_stock(optimizer, config)
            if config["gradient_accumulation_steps"]:
                config["accum_iters"] = config.pop("gradient_accumulation_steps")
        new = cls(**{**config, **arguments})
        _copy_exclusions(optimizer, new)
        if optimizer._trainable_variables:
            new.build(optimizer._trainable_variables)
        new._adopt(state, optimizer)
        return new

    @classmethod
    def _state_of_stock(cls, optimizer, config):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Keras's own accumulation
            new = cls(**config)
            names = new._list_names(len(optimizer._trainable_variables), stock=True)
        state = dict(zip(names, map(ops.convert_to_numpy, optimizer.variables)))
        steps = config["gradient_accumulation_steps"]
        if steps:  # Keras counts micro-batches
            updates, position = divmod(int(state["completed_updates"]), steps)
            counters = dict(zip(states.WINDOW, (position, steps, steps)), completed_updates=updates)
            state.update({name: np.asarray(value) for name, value in counters.items()})
        return state

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        `decay` becomes an InverseTimeDecay schedule, which is the same rate. Built for the same
        variables: compile the model with it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, if there is `decay` and a schedule, and if the rule is
                none of a stock optimizer.
        """
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**_constructor_arguments(self), **self.fixed}
        for name in ("name", *arguments.OWN):
            config.pop(name, None)
        if self.decay:
            if not isinstance(self._learning_rate, keras.Variable):
                raise ValueError(
                    f"`to_stock` with decay={self.decay} and a schedule: no stock schedule is both."
                )
            config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
                config["learning_rate"], decay_steps=1, decay_rate=self.decay
            )
        stock = self._stock_class(**config)
        _copy_exclusions(self, stock)
        if self._is_built:
            stock.build(self._trainable_variables)
            names = self._list_names(len(self._trainable_variables), stock=True)
            if self.decay:
                names.remove("learning_rate")
            state = self._read_state()
            for name, variable in zip(names, stock.variables):
                variable.assign(state[name])
        return stock

    @property
    def lr(self):
        """Keras 2's name of `learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate):
        self.learning_rate = learning_rate

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        config.update({name: getattr(self, name) for name in self.rule_arguments})
        config.update(arguments.own_config(self), decay=self.decay)
        return config

    def __repr__(self):
        return arguments.representation(self, "Keras 3")

    # -- one micro-batch -----------------------------------------------------------------------

    def apply(self, grads, trainable_variables=None):
        self._has_stepped = True
        if self._is_stock:
            return super().apply(grads, trainable_variables)
        grads = list(grads)
        if not grads:
            return None
        if trainable_variables is None:
            if not self.built or len(grads) != len(self._trainable_variables):
                return super().apply(grads)  # raises what the stock optimizer raises
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        with keras.name_scope(self.name, caller=self):  # as the stock class: paths are the same
            self.build(trainable_variables)
            self._check_variables_are_known(trainable_variables)
            grads, variables = self._filter_empty_gradients(grads, trainable_variables)
            present = [self._get_variable_index(v) for v in variables]
            arguments.check_once(present, lambda index: _path(self._trainable_variables[index]))
            known = range(len(self._trainable_variables)) if self._accumulates else ()
            self._take(grads, variables, absent=sorted(set(known) - set(present)))

    def _stock_apply(self, grads, variables):
        super().apply(grads, variables)

    def _take(self, grads, variables, absent):
        """Add the gradients of one micro-batch, and update if that closes the window.

        `absent` are the indices of the variables whose gradients are missing.
        """
        self._note_trace()
        if self._accumulates and self._updates_as_stock and self._runs_eagerly():
            self._take_eagerly(grads, variables, absent)
            return
        grads, weight = self._weighted(grads, variables)
        if not self._reduces_late:
            grads, weight = self._reduced(grads, weight, variables)
        position, length, next_length = self._window_state()
        counted = ops.ones_like(position)
        if self.skip_nonfinite:
            counted = ops.cast(self._all_finite(grads), position.dtype)
            grads = [self._gate(g, ops.cast(counted, g.dtype)) for g in grads]
        self._note_micro_batch(grads, variables, counted)
        step = window.advance(ops, position, length, next_length, counted)
        if absent:
            missing, number = map(self._value, (self._missing_gradients, self._iterations))
            step = window.miss(ops, step, missing, number, absent, counted)
        if self._weighs:
            weight = weight * ops.cast(counted, weight.dtype)
            step = step._replace(divisor=self._value(self._window_weight) + weight)
        if self._branches:
            self._if(
                step.switch,
                lambda grads, step: self._update_from(
                    grads, step._replace(switch=1), variables, absent
                ),
                lambda grads, step: self._accumulate(grads, variables),
                grads,
                step,
            )
        elif self._picked is None:
            self._update_from(grads, step, variables, absent)
        elif self._picked:
            self._update_from(grads, step._replace(switch=1), variables, absent)
        else:
            self._accumulate(grads, variables)
        self._count_step(step)

    def _weighted(self, grads, variables):
        """The gradients times the weight of their micro-batch, and it; None where none has any."""
        if not self._weighs:
            return grads, None
        weight = ops.cast(self._take_weight(), self._window_weight.dtype)
        is_weight = ops.logical_and(weight >= 0, ops.isfinite(weight))
        weight = ops.where(is_weight, weight, 0)
        factor = ops.where(is_weight, weight * self._replicas(), float("nan"))

        def times(gradient, variable):
            if self._overwrite_variable_with_gradient(variable):
                return gradient
            dtype = self._accumulator(variable).dtype  # half precision could overflow
            return self._gate(ops.cast(gradient, dtype), ops.cast(factor, dtype))

        return [times(g, v) for g, v in zip(grads, variables)], weight

    @staticmethod
    def _without_gradient(weight):
        if isinstance(weight, numbers.Real):
            return weight
        return ops.stop_gradient(ops.convert_to_tensor(weight))

    def _reduced(self, tensors, weight, variables):
        """The sums over replicas of what belongs to these variables, and of a weight, if any."""
        if not self._weighs:
            return self._sum_over_replicas(tensors, variables), weight
        everything = [*variables, self._window_weight]
        *tensors, weight = self._sum_over_replicas([*tensors, weight], everything)
        return tensors, weight

    def _accumulate(self, grads, variables):
        """Add gradients to their accumulators, inside a window."""
        if self._accumulates:
            self._across_replicas(lambda *grads: self._add_all(grads, variables), *grads)

    def _update_from(self, grads, step, variables, absent):
        totals = [self._total(g, v) for g, v in zip(grads, variables)]
        totals += [self._value(self._accumulators[i]) for i in absent]
        variables = [*variables, *(self._trainable_variables[i] for i in absent)]
        self._update(step, totals, variables, absent)

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
        self._in_replicas(self._update_from_accumulators, self._seen_variables())

    def _seen_variables(self):
        """The variables that have had a gradient in the open window."""
        missing = ops.convert_to_numpy(self._missing_gradients)
        seen = window.was_seen(missing, self.completed_updates, self.window_position)
        return [v for v, is_seen in zip(self._trainable_variables, seen) if is_seen]

    def _update_from_accumulators(self, variables):
        position, length, _ = self._window_state()
        totals = [self._value(self._accumulator(v)) for v in variables]
        step = window.close(position, length)
        if self._weighs:
            step = step._replace(divisor=self._value(self._window_weight))
        self._update(step, totals, variables)
        self._count_step(step)

    def _window_state(self):
        """Position, length and next length of the window, as values."""
        if not self._accumulates:
            return [ops.cast(value, "int32") for value in (0, 1, 1)]
        return [self._value(counter) for counter in self._counters().values()]

    def _accumulator(self, variable):
        return self._accumulators[self._get_variable_index(variable)]

    def _total(self, gradient, variable):
        """The window's sum with this gradient in it; the maximum for what a gradient overwrites."""
        if not self._accumulates:
            return self._dense(gradient)
        accumulator = self._accumulator(variable)
        if self._overwrite_variable_with_gradient(variable):
            return ops.maximum(self._value(accumulator), gradient)
        return self._sum(accumulator, gradient)

    def _update(self, step, totals, variables, absent=()):
        """The rule with gated scalars and what goes with it, each once per closed window.

        The variables whose indices are `absent` are covered if they had a gradient earlier.
        """
        if self._reduces_late:
            totals, divisor = self._reduced(totals, step.divisor, variables)
            step = step._replace(divisor=divisor)
        steps = {index: window.of_variable(step, index) for index in absent}
        averages = self._averages(step, steps, totals, variables)
        moving = self._trainable_variables if self.use_ema else variables
        scalars = {dtype: self._scalars(step, dtype) for dtype in set(map(_dtype, moving))}
        for index, own_step in steps.items():
            dtype = _dtype(self._trainable_variables[index])
            scalars[f"{dtype}.{index}"] = self._scalars(own_step, dtype)
        self._across_replicas(
            lambda *tensors: self._write(variables, moving, *tensors), averages, totals, scalars
        )

    def _count_step(self, step):
        if self._accumulates:
            self._window_position.assign(step.position)
            self._window_length.assign(step.length)
        if step.missing is not None:
            self._missing_gradients.assign(step.missing)
        if self._weighs:
            self._window_weight.assign(step.divisor * ops.cast(1 - step.switch, step.divisor.dtype))
        self._iterations.assign_add(step.switch)

    def _averages(self, step, steps, totals, variables):
        """The clipped averages of the window, None for what a gradient overwrites.

        `steps` has the steps by which single variables go, by index.
        """

        def scale(step, dtype):
            factor = window.scale(ops, step, self.reduction, lambda x: ops.cast(x, dtype))
            return factor if self.loss_scale_factor is None else factor / self.loss_scale_factor

        overwritten = [self._overwrite_variable_with_gradient(v) for v in variables]
        indices = [self._get_variable_index(v) for v in variables]
        own = [index if index in steps else None for index in indices]
        summed = [(t, (i, t.dtype)) for t, i, skip in zip(totals, own, overwritten) if not skip]
        keys = dict.fromkeys(key for _, key in summed)
        scales = {key: scale(steps.get(key[0], step), key[1]) for key in keys}
        averages = [self._gate(total, scales[key]) for total, key in summed]
        self._note(monitor.UPDATE_NORM, averages, step.switch)
        clipped = iter(self._clip_gradients(averages))
        return [None if skip else next(clipped) for skip in overwritten]

    def _scalars(self, step, dtype):
        """What the update of a variable of this data type needs besides tensors."""
        learning_rate = self._get_current_learning_rate()
        if self.decay:
            learning_rate = rules.decayed(
                ops.cast(learning_rate, dtype), self.decay, ops.cast(self._iterations, dtype)
            )
        learning_rate = ops.cast(learning_rate, dtype)
        switch = ops.cast(step.switch, dtype)
        update = ops.cast(self._iterations + 1, dtype)
        overwrites = step.switch
        if self.ema_overwrite_frequency:
            # In integers: half precision counts no further than 256 or 2048.
            due = (self._iterations + 1) % self.ema_overwrite_frequency == 0
            overwrites = ops.where(due, overwrites, 0)
        rule = self._rule()
        hyperparameters = {name: getattr(self, name) for name in rule.hyperparameters}
        coefficients = rule.coefficients(ops, switch, learning_rate, update, **hyperparameters)
        return {
            "switch": switch,
            "hold": 1 - switch,
            "learning_rate": learning_rate,
            "update": update,
            "overwrites": ops.cast(overwrites, dtype),
            "rule": self._kernel_scalars(rule, coefficients),
        }

    def _write(self, variables, moving, averages, totals, scalars):
        """All assignments to weights and slots. On TensorFlow this runs across replicas."""

        def scalars_of(variable):
            dtype = _dtype(variable)
            return scalars.get(f"{dtype}.{self._get_variable_index(variable)}", scalars[dtype])

        for variable, average, total in zip(variables, averages, totals):
            self._on_variable(variable, self._write_variable, average, total, scalars_of(variable))
        if self.use_ema:
            for variable in moving:  # all of them, at each update
                self._on_variable(variable, self._write_moving_average, scalars[_dtype(variable)])
        for variable in variables:
            if variable.constraint is not None:
                self._on_variable(variable, self._constrain, scalars_of(variable))

    def _write_variable(self, variable, target, average, total, scalars):
        switch = scalars["switch"]
        if self._overwrite_variable_with_gradient(variable):
            self.assign(target, ops.where(switch > 0, total, self._value(target)))
        else:
            if self.weight_decay is not None and self._decays(variable):
                learning_rate, value = scalars["learning_rate"], self._value(target)
                self.assign(
                    target,
                    rules.decay_weights(ops, switch, learning_rate, self.weight_decay, value),
                )
            rule = self._rule()
            slots = [self._slots[name, self._var_key(variable)] for name in rule.slots]
            average = ops.cast(average, variable.dtype)
            self._apply_rule(rule, scalars["rule"], average, target, slots)
        if self._accumulates:
            hold = ops.cast(scalars["hold"], total.dtype)
            self.assign(self._accumulator(variable), self._rest(total, hold, target))

    def _write_moving_average(self, variable, target, scalars):
        average = self._averages_of_weights[self._get_variable_index(variable)]
        if average is None:
            return
        switch, update = scalars["switch"], scalars["update"]
        value = self._value(target)
        new_average = rules.average_weights(
            ops, switch, update, self.ema_momentum, self._value(average), value
        )
        self.assign(average, new_average)
        if self.ema_overwrite_frequency:
            self.assign(target, ops.where(scalars["overwrites"] > 0, new_average, value))

    def _constrain(self, variable, target, scalars):
        value = self._value(target)
        constrained = variable.constraint(value)
        self.assign(target, ops.where(scalars["switch"] > 0, constrained, value))


def _path(variable):
    return getattr(variable, "path", variable.name)  # a tf.Variable has none


def _dtype(variable):
    return keras.backend.standardize_dtype(variable.dtype)


def _is_of_loss_scaling(arrays):
    """Whether a list begins with what a LossScaleOptimizer has before its inner optimizer's."""
    first = [np.asarray(array) for array in arrays[:4]]
    # Its iterations, a learning rate of zero, the steps since the scale was changed, and the scale.
    kinds = [array.dtype.kind for array in first if array.ndim == 0]
    return kinds == ["i", "f", "i", "f"] and first[1] == 0


def _copy_exclusions(source, target):
    """What `exclude_from_weight_decay` was told, which is in no config."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def _constructor_arguments(optimizer):
    """Of any Keras 3 optimizer: its config, less what `serialize` does to a callable rate."""
    config = optimizer.get_config()
    if not isinstance(optimizer._learning_rate, keras.Variable):
        config["learning_rate"] = optimizer._learning_rate
    return config


base.hand_on(keras.optimizers.LossScaleOptimizer)

_register = keras.saving.register_keras_serializable(package="keras_accum")


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock("SGD")):
    def _rule(self):
        return rules.SGD(momentum=self.momentum != 0, nesterov=self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, _stock("Adam")):
    def _rule(self):
        return rules.AMSGrad() if self.amsgrad else rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, _stock("Adam")):
    fixed = {"amsgrad": True}

    def _rule(self):
        return rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, _stock("RMSprop")):
    def _rule(self):
        return rules.RMSprop(self.momentum > 0, self.centered, epsilon_in_root=True)


class ApplyPartialWindow(partial_window.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = partial_window.ApplyPartialWindow.__doc__.format(
        host="keras3", import_keras="import keras"
    )


class MicroBatchWeights(weights.MicroBatchWeights, keras.callbacks.Callback):
    __doc__ = weights.MicroBatchWeights.__doc__.format(host="keras3", import_keras="import keras")
    _ops, _sum, _flatten = ops, staticmethod(ops.sum), staticmethod(keras.tree.flatten)

    @staticmethod
    def _mask(output):
        # An attribute of the tensor where it can have one, which JAX's can't.
        return keras.src.backend.get_keras_mask(output)


class AccumulationMonitor(monitor.AccumulationMonitor, keras.callbacks.Callback):
    __doc__ = monitor.AccumulationMonitor.__doc__.format(host="keras3", import_keras="import keras")


class PythonGate(python_gate.PythonGate, keras.callbacks.Callback):
    __doc__ = python_gate.PythonGate.__doc__.format(host="keras3", import_keras="import keras")
    _picker = _backend.Picker


__getattr__ = names.fallback(__name__)
