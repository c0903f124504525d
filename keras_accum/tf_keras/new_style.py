"""The optimizers of Keras 2 that aren't legacy: `tf_keras.optimizers.AdamW` and its like.

An update runs the stock optimizer's own code on the window's average. The writes to a variable, its
slots and its moving average are selected: if the switch is 0, the old values are written back. One
traced graph thus serves every micro-batch, without a conditional. With `accum_iters=1` and without
`skip_nonfinite`, only the stock optimizer's own code runs.
"""

import contextlib

import tensorflow as tf

from keras_accum import arguments, base, convert, gates, kernels, ranges, states
from keras_accum.norms import UPDATE_NORM
from keras_accum.tf_keras import port
from keras_accum.tf_keras.library import StockOptimizer, keras, utilities
from keras_accum.tf_keras.new_style_state import NewStyleState, averages_of
from keras_accum.tf_keras.state import Checkpointed

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


class Port(NewStyleState, port.Port):
    """The port of an optimizer that isn't legacy."""

    window_order = (
        *(*states.WINDOW, "state_format", "unapplied", states.MISSING, states.WEIGHT),
        "accumulator",
    )
    to_sum = "skip_gradients_aggregation=False"

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


class AccumulatingNewStyleOptimizer(Checkpointed):
    """The base class of these optimizers; it comes before the stock class."""

    _port = Port

    # -- variables ---------------------------------------------------------------------------------

    def build(self, var_list):
        variables = list(var_list)
        # Some stock classes fail on an empty list, as in loading a frozen model.
        if getattr(self, "_built", False) or not variables:
            return
        kernels.check_no_tensor(variables)
        accumulation, kept = self._accumulation, list(self._variables)
        with tf.init_scope():
            if not tf.executing_eagerly() or self._run_with_dtensor:
                raise ValueError(
                    f"{type(self).__name__} needs the eager execution of TensorFlow 2, without "
                    "DTensor: leave out tf.compat.v1.disable_eager_execution() and the mesh."
                )
            try:
                with accumulation.state.restored(variables, list(map(self._var_key, variables))):
                    # Keras keeps a list of what a checkpoint holds, also from before this build.
                    self.__dict__.pop("_coalesced_children", None)
                    super().build(variables)
                    self._built = True  # some classes don't set it
                    accumulation.port.learn(variables)
                    accumulation.open_window()
            except Exception:
                # A step would start with a fresh optimizer. The state waits for its own variables.
                self._variables, self._built = kept, False
                accumulation.window = None
                accumulation.port.forget()
                raise

    @property
    def variables(self):
        """The variables of the state, in the order of files."""
        # Keras 2's list type is callable.
        return type(super().variables)(self._accumulation.state.variables())

    def __deepcopy__(self, memo):
        make, made_of = self._how_made()
        new = base.restored(make, made_of, arguments.config_of(self), self.get_state())
        convert.copy_exclusions(self, new)
        return new

    def _trackable_children(self, *args, **kwargs):
        self._check_nothing_waits()  # TensorFlow calls this when it saves
        return super()._trackable_children(*args, **kwargs)

    # -- what Keras and other optimizers call in a train step --------------------------------------

    @kernels.as_written
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
        self._accumulation.running.check_is_update("update_step")
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
        self._accumulation.running.check_is_update("update_step")
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


def base_of(stock):
    """Return our base class for a stock class that isn't legacy, or raise a TypeError."""
    _check(stock)
    is_nadam = issubclass(stock, keras.optimizers.Nadam)
    return AccumulatingNadam if is_nadam else AccumulatingNewStyleOptimizer


def _check(stock):
    """Raise a TypeError if a class changes more of an update than `update_step`."""
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
