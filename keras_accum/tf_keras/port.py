"""What both styles of optimizers of this Keras do for the engine.

A port runs the stock optimizer's own update in every micro-batch, and then takes back what a switch
of 0 must not have written. Only the legacy optimizers of `rules` need no taking back: their
coefficients hold everything still.
"""

import abc
import contextlib

import tensorflow as tf

from keras_accum import window
from keras_accum.training import UPDATE_NORM
from keras_accum.tensorflow import port
from keras_accum.tf_keras import models, stock
from keras_accum.tf_keras.library import key_of, keras, utilities


class Port(port.Port):
    """Keras 2 on TensorFlow 2. A subclass is for one style of optimizers.

    variables: the model's trainable variables, in the order of the model; empty before `build`.
    slots: {(name, key of a variable): variable}, what the rule keeps for each variable.
    scalars: {name: variable}, what the rule keeps once for all variables.
    to_sum: the argument of `apply_gradients` for gradients that aren't summed over replicas yet.
    """

    can_reduce_late = True
    variables = ()
    scalars = {}
    to_sum = None

    def __init__(self, accumulation):
        super().__init__(accumulation)
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        if not (is_eager or accumulation.options.is_stock):
            raise ValueError(
                f"{type(self.optimizer).__name__} needs the eager execution of TensorFlow 2: leave "
                "tf.compat.v1.disable_eager_execution() out."
            )
        self.slots = {}
        self._updates_begun = 0  # one for each replica that waits in the same update
        # By replica, the weight of a micro-batch whose gradients a LossScaleOptimizer has summed.
        self._weights_in_advance = {}

    # -- the model's variables ---------------------------------------------------------------------

    def key(self, variable):
        return key_of(variable)

    def are_frozen(self, variables):
        return models.are_frozen(self.optimizer, variables)

    def check_known(self, var_list):
        """Raise a ValueError if there are variables that the optimizer wasn't built for."""
        known = set(map(self.key, self.variables))
        new = [self.name_of(v) for v in var_list if self.key(v) not in known]
        if new:
            name = type(self.optimizer).__name__
            raise ValueError(
                f"{name} was built for {len(known)} variables, and these are others: "
                f"{', '.join(new)}. Call `optimizer.build(variables)` before the first step, with "
                "all variables that it will ever update, in the order of the model. If layers were "
                f"unfrozen since, compile the model with a new {name}."
            )

    # -- the state, between train steps ------------------------------------------------------------

    @property
    def updates(self):
        return self.optimizer.iterations

    def named(self):
        found = {"completed_updates": self.updates}
        if self.variables:
            found.update((self._name(name), scalar) for name, scalar in self.scalars.items())
        places = {self.key(variable): i for i, variable in enumerate(self.variables)}
        found.update(
            (self._name(name, places[key]), slot)
            for (name, key), slot in self.slots.items()
            if key in places
        )
        return found

    def _name(self, name, place=None):
        """Return the name in a state of a scalar, or of a slot of the variable in this place."""
        prefix = "" if name == "moving_average" else f"{self.rule_name}."
        return f"{prefix}{name}" if place is None else f"{prefix}{name}.{place}"

    def read(self, variable):
        return keras.backend.get_value(variable)

    def write(self, variable, value):
        port.write(variable, value)

    def eagerly(self):
        return tf.init_scope()

    @property
    @abc.abstractmethod
    def raw_rate(self):
        """The learning rate as the optimizer has it: a number, a variable, a schedule, ..."""

    def rate(self):
        is_number = not callable(self.raw_rate) and self.raw_rate is not None
        return self.read(self.raw_rate) if is_number else None

    def write_rate(self, rate):
        self.optimizer.learning_rate = float(rate)

    # -- stock optimizers --------------------------------------------------------------------------

    rate_argument = staticmethod(stock.rate_argument)

    @staticmethod
    def stock_variables(optimizer):
        return models.variables_with(optimizer, [])

    def _named_in_stock(self, optimizer):
        """Return a stock optimizer's variables by the names of this optimizer's state."""
        slots, scalars = stock.kept_by(optimizer)
        keys = list(map(self.key, self.variables)) or list(dict.fromkeys(key for _, key in slots))
        found = {"completed_updates": optimizer.iterations}
        found.update((self._name(name), variable) for name, variable in scalars.items())
        found.update(
            (self._name(name, keys.index(key)), slot)
            for (name, key), slot in slots.items()
            if key in keys
        )
        return found

    def stock_state(self, optimizer):
        # A stock optimizer has no slots of a variable that never had a gradient.
        own = {name: v for name, v in self.named().items() if self.variables}
        found = {**own, **self._named_in_stock(optimizer)}
        return {name: self.read(variable) for name, variable in found.items()}

    def write_stock(self, optimizer):
        own = self.named()
        for name, variable in self._named_in_stock(optimizer).items():
            self.write(variable, self.read(own[name]))

    # -- the variables of a window -----------------------------------------------------------------

    @property
    def scalar_dtype(self):
        return tf.float64 if keras.backend.floatx() == "float64" else tf.float32

    def add_counter(self, name, value, shape=()):
        return self.add_variable(name, value, tf.int64, shape)

    def add_scalar(self, name, value):
        return self.add_variable(name, value, self.scalar_dtype, ())

    @abc.abstractmethod
    def add_variable(self, name, value, dtype, shape):
        """Make a variable of the optimizer that every replica has."""

    def add_norm(self, name):
        with tf.init_scope(), self.variable_scope():
            return tf.Variable(
                -1.0,
                trainable=False,
                name=name,
                dtype=self.scalar_dtype,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def variable_scope(self):
        """The scope for making variables."""
        if self.strategy is None or tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return self.strategy.scope()

    def dtype_scope(self, variable):
        """The scope for making the gradient sum of a variable, whatever dtype Keras asks for."""
        # A sum of many half precision gradients overflows or stalls in half precision.
        is_half = dtype_of(variable) in (tf.float16, tf.bfloat16)
        return _variables_in_float32() if is_half else contextlib.nullcontext()

    # -- a train step ------------------------------------------------------------------------------

    def micro_batch(self, pairs, is_summed):
        """Take the pairs of gradients and variables of a micro-batch."""
        accumulation, options = self.accumulation, self.accumulation.options
        gradients, variables = map(list, zip(*utilities.filter_empty_gradients(pairs)))
        accumulation.has_stepped = True
        if not is_summed:
            accumulation.micro_batch(gradients, variables)
            return
        was_summed_here = self.replica() in self._weights_in_advance
        weight = self._weights_in_advance.pop(self.replica(), None)
        if options.reduces_late or options.weighs and not was_summed_here:
            argument = "all_reduce='per_window'" if options.reduces_late else "reduction='weighted'"
            raise ValueError(
                f"{argument} needs the gradients before they are summed over replicas: leave "
                f"{self.to_sum}. A LossScaleOptimizer sums in each micro-batch, so it needs "
                "all_reduce='per_micro_batch'."
            )
        accumulation.take(gradients, weight, variables)

    def sum_in_advance(self, pairs):
        """Return pairs with gradients that are summed over replicas.

        A LossScaleOptimizer calls this on every micro-batch, looks whether the sums are finite, and
        hands them to `apply_gradients`.
        """
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        gradients, variables = map(list, zip(*present))
        sums, weight = self.accumulation.reduce(gradients, variables)
        self._weights_in_advance[self.replica()] = weight
        return list(zip(sums, variables))

    def reduce(self, tensors, variables):
        return [total for total, _ in self.sum_pairs(list(zip(tensors, variables)))]

    @abc.abstractmethod
    def sum_pairs(self, pairs):
        """Return pairs of gradients and variables, summed over replicas by the stock optimizer."""

    # -- an update ---------------------------------------------------------------------------------

    def update(self, step, averages, variables, switches):
        self.accumulation.norms.write(UPDATE_NORM, averages, step.switch)
        averages = [tf.cast(a, dtype_of(v)) for a, v in zip(averages, variables)]
        written = [(self.updates, 0)]  # the engine counts updates, after all other writes
        for variable, switch in zip(variables, switches):
            if not window.is_certain(switch):
                written += [(each, switch) for each in self.written_with(variable)]
        if not window.is_certain(step.switch):
            written += [(scalar, step.switch) for scalar in self.scalars.values()]
        old = [self.value(variable) for variable, _ in written]
        # Otherwise a train step that finds no more data could decay weights before it fails.
        with port.after(averages), self._updating():
            self.run_stock(averages, variables, switches)

        def take_back(switches, old):
            for (variable, _), switch, value in zip(written, switches, old):
                self.on(variable, _select, switch, value)

        self.across(take_back, [switch for _, switch in written], old)

    @abc.abstractmethod
    def run_stock(self, averages, variables, switches):
        """Make the stock optimizer's update. The averages of a window aren't summed any more."""

    @abc.abstractmethod
    def written_with(self, variable):
        """Return what an update of a variable may write, and a switch of 0 must take back."""

    @contextlib.contextmanager
    def _updating(self):
        self._updates_begun += 1
        try:
            yield
        finally:
            self._updates_begun -= 1

    def check_is_update(self, method):
        """Raise a RuntimeError if somebody else's optimizer calls a part of an update of ours."""
        if not (self._updates_begun or self.accumulation.options.is_stock):
            name, stock = type(self.optimizer).__name__, self.stock.__name__
            raise RuntimeError(
                f"`{method}` of {name} is called from outside of a step of {name}, as by Lookahead "
                "of tensorflow-addons. The update would use the gradient of a single micro-batch. "
                f"Write what the wrapper does as a subclass of {stock}, and make the optimizer "
                f"with `accumulating(your_subclass)`. Without accumulation, wrap {stock} itself."
            )

    def slots_of(self, variable):
        key = self.key(variable)
        return [slot for (_, other), slot in self.slots.items() if other == key]

    def count_updates(self, switch):
        def count(variable, target, switch):
            return target.assign_add(tf.cast(switch, target.dtype))

        self.on(self.updates, count, switch)


def _select(variable, target, switch, old):
    return target.assign(tf.where(switch > 0, target.read_value(), old))


def dtype_of(variable):
    """Return a variable's own dtype. With mixed precision, its `dtype` may be what it is cast to."""
    return getattr(variable, "true_dtype", variable.dtype).base_dtype


def _variables_in_float32():
    """A scope whose variables are float32 zeros, whatever dtype the caller asks for."""

    def creator(next_creator, initial_value=None, **arguments):
        def zeros():
            value = initial_value() if callable(initial_value) else initial_value
            return tf.zeros_like(getattr(value, "wrapped_value", value), tf.float32)

        return next_creator(initial_value=zeros, **{**arguments, "dtype": tf.float32})

    return tf.variable_creator_scope(creator)
