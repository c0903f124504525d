"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with other hooks.
At `accum_iters=1` it is the stock optimizer altogether. Above, `_transform_gradients` turns the
summed gradients of the replicas into the window's average, and `_distributed_apply` runs the rule
with gated scalars (see `_rules`), so that one traced graph serves every micro-batch.
"""

import contextlib
import functools
import importlib
import warnings

import numpy as np
import tensorflow as tf

from keras_accum import arguments, base, docs, host, kernels, names, rules, states, window
from keras_accum.callbacks import monitor, partial_window, python_gate, weights
from keras_accum.callbacks.base import inner
from keras_accum.states import StateError

keras = host.import_keras_2()
_stock = getattr(keras.optimizers, "legacy", keras.optimizers)

_IMPORT = (
    "import tf_keras as keras" if keras.__name__ == "tf_keras" else "from tensorflow import keras"
)

_NO_TRAIN_FUNCTION = (
    "{} needs the train function of TensorFlow 2, which models don't have after "
    "tf.compat.v1.disable_eager_execution(): leave that call out."
)

# What an optimizer takes besides the stock class's named arguments.
_MORE = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator", "gradient_transformers")


class AccumulatingOptimizer(base.Optimizer):
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
            cls.__doc__ = cls.__doc__ or docs.docstring(cls.__name__, "tf_keras", _IMPORT)

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

    # -- state ---------------------------------------------------------------------------------

    @property
    def _is_stock(self):
        """Whether there is nothing here that the stock optimizer doesn't do."""
        return not (self._accumulates or self.skip_nonfinite or self.rule_arguments)

    def build(self, var_list):
        """Create the state for these variables, as the first step would; the name is Keras 3's.

        The state has the variables in this order. Give all that the model trains, and before the
        first step where train steps are traced that have some of them each.
        """
        var_list = list(var_list)
        with tf.init_scope():
            self._create_all_weights(var_list)
            if not self._is_numbered and len(var_list) == len(self._variables):
                if self._has_traced and self._missing_gradients is not None:
                    raise ValueError(
                        "`build` after train steps were traced that know the variables in another "
                        "order: call it before the first step, with all that the model trains."
                    )
                self._reorder(var_list)
                self._is_numbered = True

    def _create_all_weights(self, var_list):
        # A LossScaleOptimizer hands back the weight that `_aggregate_gradients` has added.
        var_list = [variable for variable in var_list if variable is not self._window_weight]
        state = self._released(var_list, [variable._unique_id for variable in var_list])
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
        """Know these variables, numbered as in the newest list that has new ones.

        So a layer that is thawed later has its place in the model. Graphs know variables by their
        numbers: the order of those that are known stays, but for a call of `build`.
        """
        found = {variable.ref(): variable for variable in [*self._variables, *var_list]}
        old = [variable.ref() for variable in self._variables]
        new = list(dict.fromkeys(variable.ref() for variable in var_list))
        if len(found) == len(old):
            self._is_numbered = self._is_numbered or new == old
            return
        if old and self._accumulates:
            self._warn_of_steps_without([found[r] for r in new if r not in set(old)])
        order, is_told = states.merged(old, new)
        self._reorder([found[reference] for reference in order])
        self._is_numbered = is_told and (self._is_numbered or len(new) == len(found))

    def _reorder(self, variables):
        """Have the variables in this order, and counts of missing gradients for all of them."""
        old, self._variables = self._variables, variables
        if self._missing_gradients is not None:
            self._build_missing_gradients(old)

    def _check_numbers(self):
        if not self._is_numbered:
            what = "which of its variables is which of the model's: it has met them in parts"
        elif not self._is_built and not self._pending and self._has_deferred:
            what = "its slots yet: a checkpoint restores them when the variables are there"
        else:
            return
        raise StateError(
            f"{type(self).__name__} can't be read, written or saved as a whole before it knows "
            f"{what}. Call `optimizer.build(model.trainable_variables)` first."
        )

    @property
    def _has_deferred(self):
        """Whether there is no slot yet for what the counters say has been done."""
        names = states.slot_major(self._rule_name, (), self._rule_slots, 1, self._accumulates)
        counts = self.completed_updates or self.window_position
        return bool(counts) and any(states.index_of(name) is not None for name in names)

    def _build_window(self):
        if not (self._accumulates and self._variables):
            return
        self._build_counters()
        for variable in self._variables:
            if variable.ref() not in self._accumulators:
                self._accumulators[variable.ref()] = self.add_slot(variable, "accumulator")

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
        # Whether such a step is still in use can't be told: TensorFlow keeps graphs alive.
        if self._has_traced:
            warnings.warn(
                f"{self._name} has met new variables ({variables[0].name}, ...) after a train step "
                "was traced without them. That step can't update them: gradients would be left "
                "over at the end of a window. If the model that the step belongs to has been "
                "compiled again since, all is well. Else call `optimizer.build(all_variables)` "
                "before the first step.",
                stacklevel=2,
            )

    def _build_missing_gradients(self, known=()):
        """Have counts for all variables, those of the `known` ones, which had some, as they are."""
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
        # Reading a checkpoint makes slots by itself.
        if slot_name != "accumulator":
            return super().add_slot(var, slot_name, *args, **kwargs)
        # A sum of many half precision gradients overflows or stalls in half precision, and a slot
        # has the data type of its variable.
        is_half = getattr(var, "true_dtype", var.dtype).base_dtype in (tf.float16, tf.bfloat16)
        in_float32 = kernels.variables_in_float32 if is_half else contextlib.nullcontext
        with self._sum_scope(), in_float32():
            return super().add_slot(var, slot_name, *args, **kwargs)

    def _sum_scope(self):
        """Where the variables are made that hold a window's sums."""
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

    @property
    def completed_updates(self):
        """The number of updates made: what schedules, `decay` and bias correction count. An int."""
        updates = int(keras.backend.get_value(self.iterations))
        if self._window is not None:
            updates -= int(keras.backend.get_value(self._unapplied))
        return self._count("completed_updates", updates)

    def _counters(self):
        if self._pending:
            return self._pending.counters
        return {} if self._window is None else dict(zip(states.WINDOW, self._window))

    def _get_scalar(self, variable):
        return keras.backend.get_value(variable)

    def _add_norm(self, name):
        with self._distribution_strategy_scope():
            return tf.Variable(
                -1.0,
                trainable=False,
                name=name,
                dtype=self._scalar_dtype,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _note(self, name, tensors, switch):
        """Write the norm of these tensors together, where it's watched and the switch is on."""
        if name in self._watched:
            dtype = self._scalar_dtype
            squares = [
                tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(t), dtype))) for t in tensors
            ]
            norm, variable = tf.sqrt(tf.add_n(squares)), self._norms[name]
            variable.assign(tf.where(switch > 0, norm, tf.convert_to_tensor(variable)))

    def _rate_in_use(self):
        return float(keras.backend.get_value(self._decayed_lr(self._scalar_dtype)))

    def _set_count(self, counter, value):
        keras.backend.set_value(counter, value)

    @property
    def weights(self):
        """All of the state as variables, in the order of files, whatever created them first."""
        if not (self._pending or self._variables):
            return super().weights
        self._check_numbers()
        return list(self._state_variables().values())

    def variables(self):
        return self.weights

    _rule_scalars = ()

    @property
    def _rule_slots(self):
        return self._rule().slots

    @property
    def _is_built(self):
        return bool(self._variables)

    def _list_names(self, variables, stock):
        accumulates = self._accumulates and not stock
        return states.with_unapplied(
            self._rule_name, (), self._rule_slots, variables, accumulates, self._weighs
        )

    def _state_names(self, variables):
        names = [n for n in self._list_names(variables, stock=False) if n != "unapplied"]
        return names + [states.MISSING] * self._accumulates + list(self._rate_state())

    def _state_variables(self):
        """All weights by their names, in the order of `_list_names`."""
        if self._pending:
            return self._pending.variables
        rule = self._rule()
        found = {"completed_updates": self.iterations}
        for slot in rule.slots:
            for i, variable in enumerate(self._variables):
                found[states.slot_name(self._rule_name, slot, i)] = self.get_slot(
                    variable, self.slot_names[slot]
                )
        if self._window is not None:
            found["state_format"] = self._state_format
            found.update(self._counters())
            found["unapplied"] = self._unapplied
            if self._weighs:
                found[states.WEIGHT] = self._window_weight
            for i, variable in enumerate(self._variables):
                found[f"accumulator.{i}"] = self._accumulators[variable.ref()]
        if self._missing_gradients is not None:
            found[states.MISSING] = self._missing_gradients
        return found

    def _layout(self):
        return states.layout(self._state_names(len(self._variables)), self._variables)

    def _read_state(self):
        found = self._state_variables()
        state = dict(zip(found, keras.backend.batch_get_value(list(found.values()))))
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        state.pop("state_format", None)
        return states.without_idle({**state, **self._rate_state()})

    def _rate_state(self):
        rate = self._hyper["learning_rate"]
        if callable(rate):  # a schedule too
            return {}
        return {"learning_rate": np.asarray(keras.backend.get_value(rate))}

    def _write_state(self, state):
        if self._window is not None:
            state = {**state, "unapplied": np.asarray(0)}
        if self._missing_gradients is None and states.MISSING in state:
            state = states.without_idle(state)
            if states.MISSING in state:
                self._build_missing_gradients()
        if "learning_rate" in state:
            state = dict(state)
            self.learning_rate = float(state.pop("learning_rate"))
        variables = self._state_variables()
        if not tf.executing_eagerly():
            keras.backend.batch_set_value([(variables[name], state[name]) for name in state])
            return
        for name, value in state.items():
            kernels.write(variables[name], value)

    def _shared_variables(self):
        return {"completed_updates": self.iterations}

    def _add_waiting(self, name, array):
        return keras.backend.variable(array, dtype=array.dtype, name=name)

    def _write_shared(self, state):
        if "learning_rate" in state:
            self.learning_rate = float(state["learning_rate"])
        keras.backend.set_value(self.iterations, state["completed_updates"])

    # -- TensorFlow's checkpoints ----------------------------------------------------------------

    def get_slot_names(self):
        """The names of the slots, which TensorFlow asks for when it saves."""
        if self._pending:
            raise ValueError(
                "A state waits in this optimizer, and a checkpoint or SavedModel has no place for "
                "it before its variables are there: call "
                "`optimizer.build(model.trainable_variables)` first."
            )
        return super().get_slot_names()

    @property
    def _update_uid(self):
        return super()._update_uid

    @_update_uid.setter
    def _update_uid(self, uid):
        # TensorFlow has come here with a checkpoint, and looks for what it's to restore next.
        super(AccumulatingOptimizer, type(self))._update_uid.fset(self, uid)
        self._pending.drop()
        with tf.init_scope():
            self._build_counters()

    def _create_or_restore_slot_variable(
        self, slot_variable_position, slot_name, variable, *args, **kwargs
    ):
        # The same, with a slot: all of them are made, numbered as in the model that they are of.
        if tf.executing_eagerly():
            objects = slot_variable_position.checkpoint.object_by_proto_id.values()
            models = [
                found
                for found in objects
                if isinstance(found, keras.Model) and found.built and inner(found.optimizer) is self
            ]
            for model in models:
                self._create_all_weights(model.trainable_variables)
            if not models:
                self._create_slots([variable])
        return super()._create_or_restore_slot_variable(
            slot_variable_position, slot_name, variable, *args, **kwargs
        )

    def __reduce__(self):
        return base.restored, (*self._how_made(), self.get_config(), self.get_state())

    def __deepcopy__(self, memo):
        memo.update({id(variable): variable for variable in self._variables})  # the model's
        return super().__deepcopy__(memo)

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, legacy or not, or one of this package.
                It is left as it is. One that isn't legacy must have no `weight_decay` and no
                `use_ema`, and its RMSprop has epsilon under the root.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.tf_keras import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        stock = cls._stock_class
        cls._check_source(optimizer, {stock, getattr(keras.optimizers, stock.__name__)})
        config = _constructor_arguments(optimizer)
        cls._check_fixed(config)
        new = cls(**{**config, **arguments})
        if isinstance(optimizer, AccumulatingOptimizer):
            state, keys = optimizer.get_state(), optimizer._pending.keys
            if optimizer._variables:
                new.build(optimizer._variables)
        else:
            state, keys = new._state_of_stock(optimizer)
        new._continue_from(state, optimizer)
        new._pending.keys = keys
        return new

    def _state_of_stock(self, optimizer):
        """The state of a stock optimizer and which variables it is for."""
        rule = self._rule()
        found = {"completed_updates": optimizer.iterations}
        if isinstance(optimizer, _stock.Optimizer):
            keys = list(optimizer._slots)
            slots = {s: [optimizer._slots[k][self.slot_names[s]] for k in keys] for s in rule.slots}
        else:
            keys = list(getattr(optimizer, "_index_dict", ()))
            slots = {s: _slot_variables(optimizer, s) for s in rule.slots} if keys else {}
        for slot, variables in slots.items():
            found.update(
                {states.slot_name(self._rule_name, slot, i): v for i, v in enumerate(variables)}
            )
        return dict(zip(found, keras.backend.batch_get_value(list(found.values())))), keys

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        It is the legacy optimizer, has its variables, and a model can be compiled with it. This
        optimizer is left as it is.

        Raises:
            ValueError: if a window is open, and if the rule is none of a stock optimizer.
        """
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**_constructor_arguments(self), **self.fixed}
        for name in ("name", *arguments.OWN):
            if name != "decay":
                config.pop(name, None)
        stock = self._stock_class(**config)
        if self._is_built:
            stock._create_all_weights(self._variables)
            rule, state = self._rule(), self._read_state()
            pairs = [(stock.iterations, state["completed_updates"])]
            for slot in rule.slots:
                for i, variable in enumerate(self._variables):
                    target = stock.get_slot(variable, self.slot_names[slot])
                    pairs.append((target, state[states.slot_name(self._rule_name, slot, i)]))
            keras.backend.batch_set_value(pairs)
        return stock

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
            raise ValueError(_NO_TRAIN_FUNCTION.format("reduction='weighted' in `fit`"))
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


# What optimizers that aren't legacy have and legacy ones don't, with values that change nothing.
_NEWER = {
    "is_legacy_optimizer": False,
    "jit_compile": None,
    "weight_decay": None,
    "use_ema": False,
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
}


def _constructor_arguments(optimizer):
    """Of any optimizer: what `_stock` and this package's classes take of its config."""
    config = {k: v for k, v in optimizer.get_config().items() if v is not None}
    legacy = isinstance(optimizer, _stock.Optimizer)
    rate = optimizer._hyper["learning_rate"] if legacy else optimizer._learning_rate
    if callable(rate):
        config["learning_rate"] = rate  # a schedule too; the config has it serialized
    for name, harmless in _NEWER.items():
        value = config.pop(name, harmless)
        if name in ("weight_decay", "use_ema") and value != harmless:
            raise ValueError(
                f"`optimizer` has {name}={value}, which no legacy optimizer has, nor those of this "
                "package on Keras 2."
            )
    if not isinstance(optimizer, AccumulatingOptimizer):
        del config["name"]
    return config


def _slot_variables(optimizer, slot):
    """A slot's variables in an optimizer that isn't legacy."""
    plural = {"velocity": "velocities"}.get(slot, f"{slot}s")
    names = plural, f"_{plural}"
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))


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


def _keep_state_in_keras_files():
    """Have `.keras` files hold the state of this package's optimizers.

    From TensorFlow 2.12 on, to tf_keras 2.21, the writer and the reader of these files pass over
    every OptimizerV2. They ask a function which objects to visit: it is given ours as well.
    """
    package = keras.Model.__module__.rpartition(".engine.")[0]
    try:
        saving_lib = importlib.import_module(f"{package}.saving.saving_lib")
        visits = saving_lib._is_keras_trackable
    except (ImportError, AttributeError):  # before TensorFlow 2.12
        return
    saving_lib._is_keras_trackable = lambda obj: (
        visits(obj)
        or isinstance(obj, AccumulatingOptimizer)
        or isinstance(obj, _stock.Optimizer)  # a LossScaleOptimizer
        and isinstance(getattr(obj, "inner_optimizer", None), AccumulatingOptimizer)
    )


_keep_state_in_keras_files()
base.hand_on(keras.mixed_precision.LossScaleOptimizer)


def _compile_loaded_models_as_they_were():
    """Have `.keras` files say what a model's optimizer was, and build it when they are loaded.

    By themselves they build all optimizers but legacy ones, and leave out the LossScaleOptimizer
    that `compile` puts around one where the global policy is mixed_float16.
    """
    get_compile_config = getattr(keras.Model, "get_compile_config", None)
    if get_compile_config is None:  # before TensorFlow 2.12
        return
    compile_from_config = keras.Model.compile_from_config

    @functools.wraps(get_compile_config)
    def get_config(model):
        config = get_compile_config(model)
        if config and isinstance(inner(model.optimizer), AccumulatingOptimizer):
            config["optimizer"] = keras.saving.serialize_keras_object(model.optimizer)
        return config

    @functools.wraps(compile_from_config)
    def compile_and_build(model, config):
        compile_from_config(model, config)
        optimizer = inner(getattr(model, "optimizer", None))
        if isinstance(optimizer, AccumulatingOptimizer) and model.built:
            optimizer.build(model.trainable_variables)

    keras.Model.get_compile_config = get_config
    keras.Model.compile_from_config = compile_and_build


_compile_loaded_models_as_they_were()

_register = keras.utils.register_keras_serializable(package="keras_accum")


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
    slot_names = {"momentum": "momentum"}

    def _rule(self):
        return rules.SGD(momentum=self._momentum, nesterov=self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, _stock.Adam):
    slot_names = {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"}

    def _rule(self):
        return rules.AMSGrad() if self.amsgrad else rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, _stock.Adam):
    fixed = {"amsgrad": True}
    slot_names = AdamAccumulate.slot_names

    def _rule(self):
        return rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, _stock.RMSprop):
    slot_names = {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"}

    def _rule(self):
        # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
        return rules.RMSprop(self._momentum, self.centered, epsilon_in_root=self._momentum)


class ApplyPartialWindow(partial_window.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = partial_window.ApplyPartialWindow.__doc__.format(
        host="tf_keras", import_keras=_IMPORT
    )


class MicroBatchWeights(weights.MicroBatchWeights, keras.callbacks.Callback):
    __doc__ = weights.MicroBatchWeights.__doc__.format(host="tf_keras", import_keras=_IMPORT)
    _ops, _sum, _flatten = tf, staticmethod(tf.reduce_sum), staticmethod(tf.nest.flatten)

    @staticmethod
    def _mask(output):
        return getattr(output, "_keras_mask", None)


class _InTrainFunction:
    """A callback that has a part in the model's train function."""

    def on_train_begin(self, logs=None):
        accumulates = getattr(inner(self.model.optimizer), "_accumulates", False)
        if accumulates and not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(_NO_TRAIN_FUNCTION.format(type(self).__name__))
        super().on_train_begin(logs)


class AccumulationMonitor(_InTrainFunction, monitor.AccumulationMonitor, keras.callbacks.Callback):
    __doc__ = monitor.AccumulationMonitor.__doc__.format(host="tf_keras", import_keras=_IMPORT)


class PythonGate(_InTrainFunction, python_gate.PythonGate, keras.callbacks.Callback):
    __doc__ = python_gate.PythonGate.__doc__.format(host="tf_keras", import_keras=_IMPORT)
    _picker = python_gate.Picker


__getattr__ = names.fallback(__name__)
