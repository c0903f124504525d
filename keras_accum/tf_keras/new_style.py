"""The optimizers of Keras 2 that aren't legacy: `tf_keras.optimizers.AdamW` and its like.

An update runs the stock optimizer's own code on the window's average. The writes to a variable, its
slots and its moving average are selected: if the switch is 0, the old values are written back. One
traced graph thus serves every micro-batch, without a conditional. With `accum_iters=1` and without
`skip_nonfinite`, only the stock optimizer's own code runs.
"""

import contextlib
import inspect

import numpy as np
import tensorflow as tf

from keras_accum import arguments, base, docs, family, gates, kernels, ranges, states
from keras_accum.arguments import config_of
from keras_accum.norms import UPDATE_NORM
from keras_accum.tf_keras import port
from keras_accum.tf_keras.library import IMPORT_KERAS, StockOptimizer, keras, utilities
from keras_accum.tf_keras.new_style_state import (
    NewStyleState,
    averages_of,
    constructor_arguments,
    count_in_python,
)

_schedules = keras.optimizers.schedules

# Methods of the stock optimizer that are replaced here. If a class overrides one of them, its code
# would silently not run.
_STEPS = (
    *("apply_gradients", "_internal_apply_gradients", "_distributed_apply_gradients_fn"),
    *("_update_step", "_update_step_xla", "_apply_weight_decay"),
    *("_update_model_variables_moving_average", "_compute_current_learning_rate"),
    "_overwrite_model_variables_with_average_value",
)


@contextlib.contextmanager
def _selecting(switch, variables):
    """A scope whose writes to these variables take effect if the switch is 1.

    If the switch is an int, it is 1: Python knows that this is an update.
    """
    if gates.is_certain(switch):
        yield
        return
    old = [tf.identity(variable) for variable in variables]
    yield
    for variable, value in zip(variables, old):
        variable.assign(tf.where(switch > 0, variable, value))


class Port(port.Port):
    """The port of an optimizer that isn't legacy.

    slots, scalars: what the stock optimizer keeps, `{slot: its variables}` and
    `{scalar: variable}`.
    """

    window_order = (
        *(*states.WINDOW, "state_format", "unapplied", states.MISSING, states.WEIGHT),
        "accumulator",
    )
    to_sum = "skip_gradients_aggregation=False"
    slots, scalars = {}, {}

    @property
    def rate(self):
        return self.optimizer._learning_rate

    def key(self, variable):
        """Return the index of a variable among the optimizer's variables."""
        indices, key = self.optimizer._index_dict, self.optimizer._var_key(variable)
        if key not in indices:
            raise KeyError(
                f"The optimizer cannot recognize variable {variable.name}. Call "
                "`optimizer.build(variables)` with all trainable variables before the first step."
            )
        return indices[key]

    # -- the variables of a window -----------------------------------------------------------------

    def add_counter(self, name, value, shape=()):
        return self._add(name, value, tf.int64, shape)

    def add_scalar(self, name, value):
        return self._add(name, value, self.scalar_dtype)

    def _add(self, name, value, dtype, shape=()):
        with self.variable_scope():
            initializer = keras.initializers.Constant(value)
            return self.optimizer.add_variable(shape, dtype, initializer, name=name)

    def add_sum(self, variable):
        with self.variable_scope(), self.sum_scope_of(variable):
            return self.optimizer.add_variable_from_reference(variable, "window_accumulator")

    # -- an update ---------------------------------------------------------------------------------

    def sum_pairs(self, pairs):
        return super(AccumulatingNewStyleOptimizer, self.optimizer).aggregate_gradients(pairs)

    def update(self, step, averages, variables, switches):
        self.accumulation.norms.write(UPDATE_NORM, averages, step.switch)
        averages = [
            tf.cast(average, getattr(variable, "true_dtype", variable.dtype))
            for average, variable in zip(self.optimizer._clip_gradients(averages), variables)
        ]

        def across(averages, switches, of_step):
            optimizer, overwrites = self.optimizer, None
            if optimizer.use_ema and optimizer.ema_overwrite_frequency:
                due = (self.updates + 1) % optimizer.ema_overwrite_frequency == 0
                overwrites = tf.cast(due, tf.int64)
            optimizer._write_common(of_step)
            for variable, average, switch in zip(variables, averages, switches):
                self.on(variable, self._write, average, switch, overwrites)

        # Otherwise a train step that finds no more data could decay weights before it fails.
        with kernels.after(averages):
            self.across(across, averages, switches, step.switch)

    def _write(self, variable, target, average, switch, overwrites):
        """Write a variable, its slots and its moving average, in each replica."""
        optimizer, gradient = self.optimizer, (average, switch, overwrites)
        if optimizer.jit_compile:
            optimizer._update_step_xla(gradient, target, id(optimizer._var_key(target)))
        else:
            optimizer._update_step(gradient, target)
        if target.constraint is not None:  # not in XLA, as in the stock optimizer
            with _selecting(switch, [target]):
                target.assign(target.constraint(target))

    def written_with(self, variable):
        """Return all other variables that an update of this variable may write."""
        index = self.key(variable)
        slots = [found[index] for found in self.slots.values()]
        averages = [averages_of(self.optimizer)[index]] if self.optimizer.use_ema else []
        return [*slots, *averages, *self.scalars.values()]


class AccumulatingNewStyleOptimizer(NewStyleState):
    """The base class of these optimizers; it comes before the stock class."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        stock = cls.__bases__[-1]
        if issubclass(stock, StockOptimizer) and not issubclass(stock, base.Optimizer):
            cls._stock_class = stock
            cls.__signature__ = arguments.signature(stock, cls.fixed, _keywords_of(stock))
            cls.__doc__ = cls.__doc__ or docs.docstring(
                cls.__name__, "tf_keras", IMPORT_KERAS, stock
            )

    def __init__(self, *args, **kwargs):
        kwargs.pop("is_legacy_optimizer", None)  # a key of configs
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if "learning_rate" in given:
            given["learning_rate"] = arguments.check_learning_rate(
                given["learning_rate"],
                allowed=(tf.Tensor, tf.Variable, np.generic, np.ndarray),
            )
        given.setdefault("name", type(self).__name__)

        self._start_accumulating(own, Port(self))
        super().__init__(**given, **self.fixed)
        self._accumulation.is_ready = True

    def get_config(self):
        config = super().get_config()
        for name in type(self).__signature__.parameters:  # some stock classes omit an argument
            if name not in config and hasattr(self, name):
                config[name] = getattr(self, name)
        for name in (*self.fixed, "lr"):
            config.pop(name, None)
        config.update(arguments.own_config(self))
        return config

    # -- from and to stock optimizers --------------------------------------------------------------

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, or an optimizer of this package with
                the same rule, also a legacy one without `decay`. The optimizer isn't changed.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer.

        Raises:
            TypeError: If the optimizer has a different rule or is a LossScaleOptimizer.
            ValueError: If the optimizer has `decay`, if an argument that this class fixes has a
                different value, or if the optimizer has an open window and the new `accum_iters` is
                1.
        """
        return cls._made_from(optimizer, arguments)

    @classmethod
    def _sources(cls, optimizer):
        is_ours = isinstance(optimizer, base.Optimizer)
        is_namesake = is_ours and optimizer._stock_class.__name__ == cls._stock_class.__name__
        return {cls._stock_class, *([type(optimizer)] if is_namesake else [])}

    @classmethod
    def _arguments_of(cls, optimizer):
        is_new = isinstance(optimizer, StockOptimizer)
        return constructor_arguments(optimizer) if is_new else cls._config_of_legacy(optimizer)

    def _of_stock(self, optimizer):
        found, keys = {"completed_updates": optimizer.iterations}, []
        if hasattr(optimizer, "_index_dict"):
            keys = list(optimizer._index_dict)
            found.update(self._named_rule_variables(optimizer))
        return found, keys

    @staticmethod
    def _build_stock(optimizer, variables):
        optimizer.build(variables)

    @classmethod
    def _config_of_legacy(cls, optimizer):
        config = config_of(optimizer)
        config = {k: v for k, v in config.items() if v is not None or k == "accum_iters"}
        config.update(optimizer.fixed)
        rate = optimizer._hyper["learning_rate"]
        if callable(rate):
            config["learning_rate"] = rate
        if not config.pop("decay", 0):
            return config
        raise ValueError(
            "`optimizer` has `decay`, which only legacy optimizers have: give `optimizer` an "
            "InverseTimeDecay schedule instead."
        )

    def to_stock(self):
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        The stock optimizer is built for the same variables: compile the model with it. This
        optimizer isn't changed.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, or if the class has arguments that the stock optimizer
                doesn't have.
        """
        stock = self._made_stock()
        count_in_python(stock, self.completed_updates)
        return stock

    # -- what Keras and other optimizers call in a train step --------------------------------------

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        accumulation = self._accumulation
        accumulation.has_stepped = True
        if accumulation.options.is_stock:
            return super().apply_gradients(
                grads_and_vars, name, skip_gradients_aggregation, **kwargs
            )
        pairs = list(grads_and_vars)
        if pairs:
            is_summed = skip_gradients_aggregation
            is_summed |= not kwargs.pop("experimental_aggregate_gradients", True)
            with tf.name_scope(name or self.name):
                self.build([variable for _, variable in pairs])
                pairs = list(utilities.filter_empty_gradients(pairs))
                accumulation.port.apply(pairs, is_summed)
        return self._iterations

    def aggregate_gradients(self, grads_and_vars):
        """Sum over replicas. A LossScaleOptimizer calls this on every micro-batch."""
        pairs = list(grads_and_vars)
        if not self._accumulation.options.accumulates:
            return super().aggregate_gradients(pairs)
        self.build([variable for _, variable in pairs])
        return self._accumulation.port.sum_in_advance(pairs)

    def _update_step(self, gradient, variable):
        """Update one variable: decay, the rule, the moving average, and its overwriting."""
        if self._accumulation.options.is_stock:
            super()._update_step(gradient, variable)
            return
        gradient, switch, overwrites = gradient
        plain = super(StockOptimizer, self)  # its methods use no strategy: this runs per replica
        with _selecting(switch, [variable, *self._accumulation.port.written_with(variable)]):
            plain._apply_weight_decay([variable])
            super()._update_step(gradient, variable)
            plain._update_model_variables_moving_average([variable])
            if overwrites is not None:
                with _selecting(overwrites, [variable]):
                    plain._overwrite_model_variables_with_average_value([variable])

    def update_step(self, gradient, variable):
        self._accumulation.check_is_updating("update_step")
        super().update_step(gradient, variable)

    def _write_common(self, switch):
        """Write what belongs to no single variable, before any variable."""
        if isinstance(self._learning_rate, _schedules.LearningRateSchedule):
            rate = self._learning_rate(self._iterations)
            self._accumulation.port.on(self._current_learning_rate, _assign_if, rate, switch)


class AccumulatingNadam(AccumulatingNewStyleOptimizer):
    """Nadam by its formula, and as the stock optimizer computes it in eager mode.

    In a graph, the stock optimizer multiplies its product of rates, in a conditional, once per
    variable instead of once per update. With `accum_iters=1` this class is the stock optimizer.
    """

    def _write_common(self, switch):
        super()._write_common(switch)

        def multiply(variable, product, switch):
            value = product * self._rate_of_momentum(1, product.dtype)
            _assign_if(variable, product, value, switch)

        self._accumulation.port.on(self._u_product, multiply, switch)

    def _rate_of_momentum(self, ahead, dtype):
        update = tf.cast(self._iterations + ahead, dtype)
        power = tf.pow(tf.cast(0.96, dtype), update)
        return tf.cast(self.beta_1, dtype) * (1.0 - 0.5 * power)

    def update_step(self, gradient, variable):
        if self._accumulation.options.is_stock:
            super().update_step(gradient, variable)
            return
        self._accumulation.check_is_updating("update_step")
        dtype, index = variable.dtype, self._accumulation.port.key(variable)
        m, v = self._momentums[index], self._velocities[index]
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        rate, next_rate = self._rate_of_momentum(1, dtype), self._rate_of_momentum(2, dtype)
        product = tf.cast(self._u_product, dtype)
        m.assign_add((gradient - m) * (1 - beta_1))
        v.assign_add((tf.square(gradient) - v) * (1 - beta_2))
        m_hat = next_rate * m / (1 - product * next_rate) + (1 - rate) * gradient / (1 - product)
        v_hat = v / (1 - tf.pow(beta_2, tf.cast(self._iterations + 1, dtype)))
        learning_rate = tf.cast(self.learning_rate, dtype)
        variable.assign_sub((m_hat * learning_rate) / (tf.sqrt(v_hat) + self.epsilon))


def _assign_if(variable, target, value, switch):
    target.assign(tf.where(switch > 0, tf.cast(value, target.dtype), target))


def _keywords_of(stock):
    """Return the keywords, with defaults, that a class passes to Keras's optimizer as **kwargs."""
    own = inspect.signature(stock.__init__).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values()):
        return {}
    of_keras = inspect.signature(StockOptimizer.__init__).parameters
    return {
        name: parameter.default
        for name, parameter in of_keras.items()
        if parameter.default is not inspect.Parameter.empty and name not in own
    }


def make(stock, made_by):
    """Return the accumulating class of a stock optimizer that isn't legacy.

    `made_by` has a function and its arguments, with which the function returns this class.
    """
    _check(stock)
    is_nadam = issubclass(stock, keras.optimizers.Nadam)
    family = AccumulatingNadam if is_nadam else AccumulatingNewStyleOptimizer
    name, module, package = f"{stock.__name__}Accumulate", stock.__module__, stock.__module__
    if ranges.is_of_keras(stock):  # `keras_accum>AdamAccumulate` is the legacy class
        module, package = "keras_accum.tf_keras", "keras_accum.new_style"
    made = type(name, (family, stock), {"__module__": module, "_made_by": made_by})
    return keras.utils.register_keras_serializable(package)(made)


def _check(stock):
    """Raise a TypeError if a class changes more of an update than `update_step`."""
    family.check_members(AccumulatingNewStyleOptimizer, stock)
    own = [cls for cls in stock.__mro__ if not ranges.is_of_keras(cls) and cls is not object]
    overridden = sorted({name for cls in own for name in _STEPS if name in vars(cls)})
    if issubclass(stock, keras.optimizers.Nadam) and any("update_step" in vars(c) for c in own):
        overridden.append("update_step of Nadam")
    if overridden:
        raise TypeError(
            f"{stock.__name__} overrides {', '.join(overridden)}, which accumulating optimizers "
            "replace: put the whole update into `update_step` of a subclass of "
            f"{StockOptimizer.__module__}.{StockOptimizer.__name__}. "
            f"Received: optimizer_class={stock}"
        )
