"""The optimizers of Keras 2 that aren't legacy: `tf_keras.optimizers.AdamW` and its like.

An update runs the stock optimizer's own code on the window's average. The writes to a variable, its
slots and its moving average are selected: if the switch is 0, the old values are written back. One
traced graph thus serves every micro-batch, without a conditional. With `accum_iters=1` and without
`skip_nonfinite`, only the stock optimizer's own code runs.
"""

import contextlib
import functools
import inspect

import numpy as np
import tensorflow as tf

from keras_accum import arguments, base, docs, kernels, ranges, states, window
from keras_accum.tf_keras.library import IMPORT_KERAS, keras
from keras_accum.tf_keras.models import InModels
from keras_accum.tf_keras.new_style_state import (
    State,
    StockOptimizer,
    averages_of,
    constructor_arguments,
    copy_exclusions,
    utilities,
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
    if isinstance(switch, int):
        yield
        return
    old = [tf.identity(variable) for variable in variables]
    yield
    for variable, value in zip(variables, old):
        variable.assign(tf.where(switch > 0, variable, value))


def _after(distribution, tensors):
    """A scope whose operations run after these tensors are computed on all replicas.

    Otherwise a train step that finds no more data could decay weights or advance counters before it
    fails.
    """
    of_replicas = map(distribution.experimental_local_results, tensors)
    return tf.control_dependencies([tensor for found in of_replicas for tensor in found])


class AccumulatingNewStyleOptimizer(State, InModels):
    """The base class of these optimizers; it comes before the stock class.

    `fixed` has the stock arguments whose values a class fixes.
    """

    fixed = {}

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

        super().__init__(**given, **self.fixed)
        self._accum_iters = own["accum_iters"]
        self.__dict__["_options"] = own  # bypasses Keras's attribute tracking

    @property
    def _is_stock(self):
        """True if the stock optimizer's own code does all that is asked for."""
        return not (self._accumulates or self.skip_nonfinite)

    def get_config(self):
        config = super().get_config()
        for name in type(self).__signature__.parameters:  # some stock classes omit an argument
            if name not in config and hasattr(self, name):
                config[name] = getattr(self, name)
        for name in (*self.fixed, "lr"):
            config.pop(name, None)
        config.update(arguments.own_config(self))
        return config

    def __repr__(self):
        return arguments.representation(self)

    def __str__(self):
        return arguments.description(self, "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)")

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
        is_ours = isinstance(optimizer, base.Optimizer)
        is_legacy = is_ours and not isinstance(optimizer, State)
        if not (is_legacy and optimizer._stock_class.__name__ == cls._stock_class.__name__):
            cls._check_source(optimizer, [cls._stock_class])
        config = cls._config_of_legacy(optimizer) if is_legacy else constructor_arguments(optimizer)
        cls._check_fixed(config)
        if not is_ours:
            del config["name"]
        new = cls._like(config, arguments)
        if is_ours:
            state, keys = optimizer.get_state(), list(optimizer._pending.keys)
            variables = optimizer._variables if is_legacy else optimizer.__dict__.get("_trainable")
            if variables:
                new.build(variables)
        else:
            found = {"completed_updates": optimizer.iterations}
            keys = list(getattr(optimizer, "_index_dict", ()))
            if keys:
                found.update(new._named_rule_variables(optimizer))
            state = {name: variable.numpy() for name, variable in found.items()}
        if not is_legacy:
            copy_exclusions(optimizer, new)
        new._continue_from(state, optimizer)
        new._pending.keys = keys
        return new

    @classmethod
    def _config_of_legacy(cls, optimizer):
        config = {name: v for name, v in optimizer.get_config().items() if v is not None}
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
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**constructor_arguments(self), **self.fixed}
        for name in ("name", *arguments.OWN):
            config.pop(name, None)
        stock = self._stock_class(**config)
        copy_exclusions(self, stock)
        if self._is_built:
            stock.build(self._trainable)
            stock.iterations.assign(self.completed_updates)
            own = self._named_rule_variables(self)
            for name, variable in self._named_rule_variables(stock).items():
                kernels.write(variable, own[name].numpy())
            if hasattr(stock, "_u_product_counter"):
                stock._u_product_counter = self.completed_updates + 1
        return stock

    # -- one micro-batch -----------------------------------------------------------------------

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        self._has_stepped = True
        if self._is_stock:
            return super().apply_gradients(
                grads_and_vars, name, skip_gradients_aggregation, **kwargs
            )
        pairs = list(grads_and_vars)
        if not pairs:
            return self._iterations
        is_summed = skip_gradients_aggregation
        is_summed |= not kwargs.pop("experimental_aggregate_gradients", True)
        self._check_summed(is_summed)
        with tf.name_scope(name or self.name):
            self.build([variable for _, variable in pairs if variable is not self._weight])
            pairs = list(utilities.filter_empty_gradients(pairs))
            if not is_summed:
                pairs = self.aggregate_gradients(pairs)
            self._take_micro_batch(*zip(*pairs))
        return self._iterations

    def _check_summed(self, is_summed):
        """Raise a ValueError if gradients are already summed over replicas but must not be."""
        if not is_summed:
            return
        if self._reduces_late:
            raise ValueError(
                "all_reduce='per_window' needs the gradients before they are summed over replicas: "
                "leave skip_gradients_aggregation=False. A LossScaleOptimizer needs the sums of "
                "each micro-batch: use all_reduce='per_micro_batch'."
            )
        if self._replica() in self._summed:
            self._summed.remove(self._replica())
        elif self._is_scaled or self._weighs:
            raise ValueError(
                "reduction='weighted', and a LossScaleOptimizer around an optimizer with "
                "accum_iters > 1, need the gradients before they are summed over replicas: leave "
                "skip_gradients_aggregation=False."
            )

    @property
    def _is_scaled(self):
        """True if a LossScaleOptimizer skips micro-batches that a window would count."""
        return self._accumulates and getattr(self, "_is_wrapped_by_loss_scale_optimizer", False)

    @property
    def _summed(self):
        # The replicas whose gradients are summed and not applied yet. `__dict__` bypasses Keras's
        # attribute tracking.
        return self.__dict__.setdefault("_replicas_summed", set())

    @property
    def _weight(self):
        return None if self._window is None else self._window.get(states.WEIGHT)

    def aggregate_gradients(self, grads_and_vars):
        """Sum over replicas, and undo what a LossScaleOptimizer added to `iterations`.

        A LossScaleOptimizer calls this method on every micro-batch. If it skips a micro-batch, it
        adds 1 to `iterations` and applies nothing. `unapplied` becomes 1 here, and 0 when the
        micro-batch is applied. A 1 at the next call is therefore the 1 that was added.
        """
        pairs = list(grads_and_vars)
        if not self._accumulates:
            return super().aggregate_gradients(pairs)
        self.build([variable for _, variable in pairs])
        self._summed.add(self._replica())  # until they are handed to `apply_gradients`
        if self._weighs:
            pairs = self._weighted(pairs)
        if not self._reduces_late:
            pairs = list(super().aggregate_gradients(pairs))
        if self._is_scaled:
            with tf.control_dependencies([gradient for gradient, _ in pairs]):  # see `_after`
                self._iterations.assign_sub(tf.convert_to_tensor(self._window["unapplied"]))
                self._window["unapplied"].assign(1)
        return pairs

    def _weighted(self, pairs):
        """Return the gradients times the weight of their micro-batch, and the weight as last pair.

        The weight is thus summed over replicas together with the gradients. The factor includes the
        number of replicas, because Keras divides the loss of each replica by that number.
        """
        weight = tf.cast(self._take_weight(), self._weight.dtype)
        is_weight = tf.logical_and(weight >= 0, tf.math.is_finite(weight))
        weight = tf.where(is_weight, weight, tf.zeros_like(weight))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        factor = tf.where(is_weight, weight * replicas, np.nan * tf.ones_like(weight))

        def times(gradient, variable):
            dtype = self._sum_of(variable).dtype  # half precision could overflow
            return kernels.gate(tf.cast(gradient, dtype), tf.cast(factor, dtype))

        return [(times(g, v), v) for g, v in pairs if g is not None] + [(weight, self._weight)]

    def _index(self, variable):
        """Return the index of a variable among the optimizer's variables."""
        key = self._var_key(variable)
        if key not in self._index_dict:
            raise KeyError(
                f"The optimizer cannot recognize variable {variable.name}. Call "
                "`optimizer.build(variables)` with all trainable variables before the first step."
            )
        return self._index_dict[key]

    def _sum_of(self, variable):
        return self._sums[self._index(variable)]

    def _take_micro_batch(self, grads, variables):
        """Add the gradients of one micro-batch, and update if the micro-batch closes the window."""
        self._summed.discard(self._replica())
        self._count_trace()
        weight = None
        if self._weighs:
            (*grads, weight), (*variables, _) = grads, variables
        present = [self._index(variable) for variable in variables]
        arguments.check_once(present, lambda index: self._trainable[index].name)
        with tf.control_dependencies(grads):  # see `_after`; all counters depend on this number
            counted = tf.identity(tf.ones([], tf.int64))
        if self.skip_nonfinite:
            counted = tf.cast(kernels.all_finite(grads), tf.int64)
            grads = [kernels.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        self._write_norm(base.MICRO_BATCH_NORM, grads, counted)
        step = window.advance(tf, *self._window_state(), counted=counted)
        known = range(len(self._trainable)) if self._accumulates else ()
        absent = sorted(set(known) - set(present))
        if absent:
            missing = tf.convert_to_tensor(self._window[states.MISSING])
            number = tf.convert_to_tensor(self._iterations)
            step = window.miss(tf, step, missing, number, absent, counted)
        if self._weighs:
            weight = weight * tf.cast(counted, weight.dtype)
            step = step._replace(divisor=tf.convert_to_tensor(self._weight) + weight)
        if self._branches:
            across_replicas(self._branch, grads, step, variables=variables, absent=absent)
        elif self._decided is False:
            across_replicas(self._accumulate, grads, step, variables=variables)
        else:
            if self._decided:
                step = step._replace(switch=1)
            self._update_from(grads, step, variables, absent)

    def _branch(self, distribution, grads, step, variables, absent):
        """Run one conditional: the update at the end of a window, or the additions inside it."""

        def update(grads, step):
            return self._update_from(grads, step._replace(switch=1), variables, absent)

        def accumulate(grads, step):
            return across_replicas(self._accumulate, grads, step, variables=variables)

        kernels.branch(distribution, step.switch, update, accumulate, grads, step)

    def _accumulate(self, distribution, grads, step, variables):
        """Write a micro-batch inside a window. This runs in cross-replica context."""
        update = functools.partial(distribution.extended.update, group=False)
        if self._accumulates:
            for gradient, variable in zip(grads, variables):
                update(self._sum_of(variable), kernels.accumulate, args=(gradient,))
        self._write_counters(update, step, switch=0)

    def _update_from(self, grads, step, variables, absent):
        """Make the update at the end of a window; inside a window, its writes have no effect.

        The variables in `absent` (indices) are updated if they had a gradient earlier in the
        window.
        """
        known = self._trainable if self._accumulates else ()
        absent, frozen = self._apart_from_frozen(absent, known)
        if self._accumulates:
            totals = [kernels.add(self._sum_of(v), g) for g, v in zip(grads, variables)]
            totals += [tf.convert_to_tensor(self._sums[index]) for index in absent]
        else:
            totals = list(map(tf.convert_to_tensor, grads))
        variables = [*variables, *(known[i] for i in absent)]
        self._update(totals, step, variables, absent, frozen)

    def _update(self, totals, step, variables, absent=(), frozen=()):
        step, totals = self._reduced(step, totals, variables)
        own_steps = [window.of_variable(step, index) for index in absent]
        steps = [step] * (len(variables) - len(absent)) + own_steps

        def average(step, total):
            scale = window.scale(tf, step, self.reduction, lambda x: tf.cast(x, total.dtype))
            return kernels.gate(total, scale)

        averages = list(map(average, steps, totals))
        self._write_norm(base.UPDATE_NORM, averages, step.switch)
        averages = [
            tf.cast(a, getattr(v, "true_dtype", v.dtype))
            for a, v in zip(self._clip_gradients(averages), variables)
        ]
        switches = [own.switch for own in steps]
        across_replicas(
            self._write, averages, totals, switches, step, variables=variables, frozen=frozen
        )

    def _reduced(self, step, totals, variables):
        """Sum the window's sums over the replicas, if each replica has its own until now."""
        if not self._reduces_late:
            return step, totals
        pairs = list(zip(totals, variables))
        if self._weighs:
            # With one replica the sum is the same tensor, and a branch of a conditional may return
            # only its own tensors: the identity is one.
            pairs.append((tf.identity(step.divisor), self._weight))
        totals = [total for total, _ in super().aggregate_gradients(pairs)]
        if self._weighs:
            step = step._replace(divisor=totals.pop())
        return step, totals

    def _window_state(self):
        """Return position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._counters().values()]

    def _close_window(self):
        missing = self._window[states.MISSING].numpy()
        variables, frozen = self._covered_and_frozen(missing, self._trainable)
        updates = self.completed_updates

        def update():
            position, length, _ = self._window_state()
            step = window.close(position, length)
            if self._weighs:
                step = step._replace(divisor=tf.convert_to_tensor(self._weight))
            self._update(
                [tf.convert_to_tensor(self._sum_of(v)) for v in variables],
                step,
                variables,
                frozen=frozen,
            )

        self._set_count(self._iterations, updates)  # undo what a LossScaleOptimizer has added
        kernels.in_replicas(self._distribution_strategy, update)

    # -- writing, in cross-replica context -------------------------------------------------------

    def _write(self, distribution, averages, totals, switches, step, variables, frozen):
        update = functools.partial(distribution.extended.update, group=False)
        with _after(distribution, averages):
            overwrites = None
            if self.use_ema and self.ema_overwrite_frequency:
                due = (self._iterations + 1) % self.ema_overwrite_frequency == 0
                overwrites = tf.cast(due, tf.int64)
            self._write_common(update, step.switch)
            for variable, average, total, switch in zip(variables, averages, totals, switches):
                gradient = average, switch, overwrites
                update(variable, self._write_variable, args=(gradient, total, step.switch))
            for total in map(self._sum_of, frozen):
                update(total, _keep_inside_window, args=(step.switch,))
            self._write_counters(update, step, step.switch)

    def _write_common(self, update, switch):
        """Write what belongs to no single variable, before any variable."""
        if isinstance(self._learning_rate, _schedules.LearningRateSchedule):
            rate = self._learning_rate(self._iterations)
            update(self._current_learning_rate, _assign_if, args=(rate, switch))

    def _write_variable(self, variable, gradient, total, switch):
        """Write a variable, its slots, its moving average and its sum, in each replica."""
        if self.jit_compile:
            self._update_step_xla(gradient, variable, id(self._var_key(variable)))
        else:
            self._update_step(gradient, variable)
        if variable.constraint is not None:  # not in XLA, as in the stock optimizer
            with _selecting(gradient[1], [variable]):
                variable.assign(variable.constraint(variable))
        if self._accumulates:
            _assign_rest(self._sum_of(variable), total, switch)

    def _update_step(self, gradient, variable):
        """Update one variable: decay, the rule, the moving average, and its overwriting."""
        if self._is_stock:
            super()._update_step(gradient, variable)
            return
        gradient, switch, overwrites = gradient
        plain = super(StockOptimizer, self)  # its methods use no strategy: this runs per replica
        with _selecting(switch, [variable, *self._written_with(variable)]):
            plain._apply_weight_decay([variable])
            with self._in_own_update():
                super()._update_step(gradient, variable)
            plain._update_model_variables_moving_average([variable])
            if overwrites is not None:
                with _selecting(overwrites, [variable]):
                    plain._overwrite_model_variables_with_average_value([variable])

    def update_step(self, gradient, variable):
        self._check_is_updating("update_step")
        super().update_step(gradient, variable)

    def _written_with(self, variable):
        """Return all other variables that an update of this variable may write."""
        index = self._index(variable)
        slots = [found[index] for found in self._rule_slot_variables.values()]
        averages = [averages_of(self)[index]] if self.use_ema else []
        return [*slots, *averages, *self._rule_scalar_variables.values()]

    def _write_counters(self, update, step, switch):
        if self._accumulates:
            counters = {
                "window_position": step.position,
                "window_length": step.length,
                "unapplied": 0,
            }
            if step.missing is not None:
                counters[states.MISSING] = step.missing
            for name, value in counters.items():
                update(self._window[name], _assign, args=(value,))
            if self._weighs:
                update(self._weight, _assign_rest, args=(step.divisor, switch))
        update(self._iterations, _assign_add, args=(switch,))

    def _write_norm(self, name, tensors, switch):
        """Write the global norm of these tensors if the norm is watched and the switch is 1."""
        if name in self._watched:
            dtype = self._scalar_dtype
            squares = [
                tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(t), dtype))) for t in tensors
            ]
            _assign_if(self._norms[name], tf.sqrt(tf.add_n(squares)), switch)


class AccumulatingNadam(AccumulatingNewStyleOptimizer):
    """Nadam by its formula, and as the stock optimizer computes it in eager mode.

    In a graph, the stock optimizer multiplies its product of rates, in a conditional, once per
    variable instead of once per update. With `accum_iters=1` this class is the stock optimizer.
    """

    def _write_common(self, update, switch):
        super()._write_common(update, switch)

        def multiply(product, switch):
            _assign_if(product, product * self._rate_of_momentum(1, product.dtype), switch)

        update(self._u_product, multiply, args=(switch,))

    def _rate_of_momentum(self, ahead, dtype):
        update = tf.cast(self._iterations + ahead, dtype)
        power = tf.pow(tf.cast(0.96, dtype), update)
        return tf.cast(self.beta_1, dtype) * (1.0 - 0.5 * power)

    def update_step(self, gradient, variable):
        if self._is_stock:
            super().update_step(gradient, variable)
            return
        self._check_is_updating("update_step")
        dtype, index = variable.dtype, self._index(variable)
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


def across_replicas(function, *tensors, **known):
    """Call `function(strategy, *tensors, **known)` once for all replicas, not in each of them."""
    tf.__internal__.distribute.interim.maybe_merge_call(
        lambda distribution, *values: function(distribution, *values, **known),
        tf.distribute.get_strategy(),
        *tensors,
    )


def _assign(variable, value):
    variable.assign(value)


def _assign_add(variable, value):
    variable.assign_add(tf.cast(value, variable.dtype))


def _assign_rest(variable, value, switch):
    variable.assign(kernels.gate(value, tf.cast(1 - switch, value.dtype)))


def _keep_inside_window(variable, switch):
    _assign_rest(variable, variable, switch)


def _assign_if(variable, value, switch):
    variable.assign(tf.where(switch > 0, tf.cast(value, variable.dtype), variable))


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
    base.check_members(AccumulatingNewStyleOptimizer, stock)
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
