"""What Keras 2 does for the engine, as part of the graph of a train step.

TensorFlow 1 doesn't order the operations of a train step, and neither do the stock optimizers: a
weight may be overwritten before back-propagation has read the weight, or a counter before the bias
correction has read the counter. Here a step computes all values before its first write, and writes
the counters last.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_accum import gates, kernels, port, rules, states
from keras_accum.keras2 import recording
from keras_accum.keras2.state import StatePort, make

K = keras.backend


class Port(StatePort):
    """Keras 2 on TensorFlow 1. Each compiled model gets variables and a window of its own."""

    window_order = ("state_format", *states.WINDOW, "accumulator")
    # This host has no strategies.
    replica, across = port.Port.replica, port.Port.across
    in_any_replica = port.Port.in_any_replica

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self._variables = []
        self._made = None  # the variables that the stock optimizer has made for the model
        self._loss = None  # of the train step that is being built
        self._operations = None  # the writes of the train step
        self._closing = None  # the operation that closes the model's window
        self._accum_iters = None  # shared by all models, as are `iterations` and learning rate
        self._positions = {}  # positions in the windows of models, by the keys of their variables

    # -- the model's variables ---------------------------------------------------------------------

    @property
    def variables(self):
        return self._variables

    def start_model(self, variables):
        """Forget the last model's variables, and make those for these variables of a model.

        Without a rule, the stock optimizer makes slots and scalars, as part of an update.
        """
        rule = self.rule
        self._variables, self.slots = list(variables), {}
        self._made = self._closing = self.accumulation.window = None
        for slot in rule.slots if rule else ():
            for i, variable in enumerate(variables):
                name = states.slot_name(self.rule_name, slot, i)
                self.slots[name] = make(K.zeros, K.int_shape(variable), K.dtype(variable), name)
        self.accumulation.open_window()

    def key(self, variable):
        return variable.name

    def are_frozen(self, variables):
        return [False] * len(variables)  # the variables of a train step are fixed

    # -- the variables of a window -----------------------------------------------------------------

    def add_counter(self, name, value, shape=()):
        if name == "accum_iters" and self._accum_iters is not None:
            return self._accum_iters
        counter = make(K.variable, value, "int64", name)
        if name == "accum_iters":
            self._accum_iters = counter
        if name == "window_position":
            self._positions[self._model] = counter
        return counter

    def add_scalar(self, name, value):
        return make(K.variable, value, self.scalar_dtype, name)

    def add_sum(self, variable):
        # A sum of many half precision gradients overflows or stalls in half precision.
        dtype = "float32" if K.dtype(variable) == "float16" else K.dtype(variable)
        name = f"accumulator.{self._variables.index(variable)}"
        return make(K.zeros, K.int_shape(variable), dtype, name)

    @property
    def _model(self):
        return tuple(map(self.key, self._variables))

    def check_between_steps(self):
        # This host doesn't call the method in a traced function, but its models may share an
        # optimizer, and each model has a window of its own.
        others = [p for model, p in self._positions.items() if model != self._model]
        if any(self.read_all(others)):
            raise ValueError(
                "`apply_partial_window` of an optimizer in several models is for the model whose "
                "train step was made last, but another model's window is open: give each model its "
                "own optimizer."
            )

    # -- values ------------------------------------------------------------------------------------

    def one_after(self, gradients):
        # All writes wait for the gradients anyway. Values that wait, too, would make TensorFlow add
        # the parts of a gradient to its sum in another order.
        return tf.ones([], tf.int64)

    # -- an update ---------------------------------------------------------------------------------

    def update(self, step, averages, variables, switches):
        clips = (getattr(self.optimizer, name, 0) for name in ("clipnorm", "clipvalue"))
        averages = _clipped(averages, *clips)
        averages = [tf.cast(g, v.dtype.base_dtype) for g, v in zip(averages, variables)]
        if self.rule:
            values = {dtype: self._scalars(step, dtype) for dtype in set(map(K.dtype, variables))}
        else:
            values = self._selected(step.switch, averages)
        with _barrier([self._loss, averages, values, step]):
            if self.rule:
                self._write_by_rule(step.switch, averages, variables, values)
            else:
                self._operations += [K.update(variable, value) for variable, value in values]

    def count_updates(self, switch):
        self.on(self.updates, lambda _, count, switch: K.update_add(count, switch), switch)

    def keep(self, step, totals, variables):
        with self.after_writes():  # the update has read the sums
            super().keep(step, totals, variables)

    @contextlib.contextmanager
    def unclipped(self):
        """A scope in which the stock code doesn't clip: the window's average is clipped here."""
        attributes = vars(self.optimizer)
        clips = {n: attributes.pop(n) for n in ("clipnorm", "clipvalue") if n in attributes}
        try:
            yield
        finally:
            attributes.update(clips)

    # -- an update by the stock optimizer's own code -----------------------------------------------

    def _selected(self, switch, averages):
        """Return the stock optimizer's writes: variables, each with its new or its old value."""
        optimizer, params = self.optimizer, self._variables
        get_updates = functools.partial(optimizer._stock_class.get_updates, optimizer)
        with self.unclipped(), self._at_decayed_rate():
            recorded = recording.record(optimizer, get_updates, params, averages, self._made)
        if self._made is None:
            # Making a layout takes as long as making an update, so make the smallest layout.
            names = recording.names_for(self.layout_of(2).names, len(params))
            names = names or self.layout_of(len(params)).names
            recording.check_shapes(type(optimizer).__name__, recorded.kept, names, params)
            kept = dict(zip(names, recorded.kept))
            names = self.names_of_rule(params)
            self.slots = {name: kept[name] for name in names}
            self._made = recorded.made
        return [
            (variable, _chosen(switch, value, tf.convert_to_tensor(variable)))
            for variable, value in recorded.writes
            if variable is not self.updates  # `count_updates` counts
        ]

    @contextlib.contextmanager
    def _at_decayed_rate(self):
        """A scope with the decayed learning rate, for stock code without a decay of its own."""
        rate, decay = self.rate, self.accumulation.options.decay
        if decay:
            self.rate = rules.decayed(rate, decay, K.cast(self.updates, K.dtype(rate)))
        try:
            yield
        finally:
            self.rate = rate

    # -- an update by a rule -----------------------------------------------------------------------

    def _scalars(self, step, dtype):
        """Return the scalars of an update for variables of this data type."""
        optimizer, rule = self.optimizer, self.rule
        rate = tf.cast(self.rate, dtype)
        if optimizer.initial_decay > 0:
            updates = tf.cast(self.updates, dtype)
            rate = rules.decayed(rate, tf.cast(optimizer.decay, dtype), updates)
        hyperparameters = {
            name: _scalar(getattr(optimizer, name, 0.0), dtype)  # RMSprop here has no momentum
            for name in rule.hyperparameters
        }
        update = tf.cast(self.updates + 1, dtype)
        switch = tf.cast(step.switch, dtype)
        coefficients = rule.coefficients(self.ops, switch, rate, update, **hyperparameters)
        return kernels.kernel_scalars(rule, coefficients)

    def _write_by_rule(self, switch, averages, variables, scalars):
        rule, name = self.rule, self.rule_name
        for i, (variable, average) in enumerate(zip(variables, averages)):
            slots = [self.slots[states.slot_name(name, slot, i)] for slot in rule.slots]
            found = scalars[K.dtype(variable)]
            written = kernels.apply_rule(rule, found, average, variable, slots)
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                with tf.control_dependencies(written):
                    value = variable.read_value()
                    chosen = _chosen(switch, constraint(value), value)
                    written.append(K.update(variable, chosen))
            self._operations += written

    # -- the order of a train step -----------------------------------------------------------------

    def train_step(self, loss, gradients, variables):
        """Return the operation of a train step."""
        self._loss = loss
        try:
            return self._grouped(self.accumulation.micro_batch, gradients, variables)
        finally:
            self._loss = None

    def _grouped(self, function, *arguments):
        """Call a function of a train step, and return one operation that makes all its writes."""
        outer, self._operations = self._operations, []
        try:
            function(*arguments)
            return tf.group(*self._operations)
        finally:
            self._operations = outer

    def on(self, variable, function, *tensors):
        self._operations.append(function(variable, variable, *tensors))

    def after_writes(self):
        return _barrier(self._operations)

    def is_traced(self):
        return False

    def branch(self, step, gradients, update, add):
        with _barrier([self._loss, gradients, step]):
            operation = tf.cond(
                step.switch > 0,
                lambda: self._grouped(update, step, gradients),
                lambda: self._grouped(add, step, gradients),
            )
        self._operations.append(operation)

    def between_steps(self, function, *arguments):
        if self._closing is None:
            self._closing = self._grouped(function, *arguments)
        K.get_session().run(self._closing)


def _barrier(values):
    """A scope whose operations run after all values, by way of one operation to keep edges few."""
    values = [v for v in tf.nest.flatten(values) if hasattr(v, "device")]  # not numbers and None
    return tf.control_dependencies([tf.group(*values)])


def _clipped(grads, clipnorm, clipvalue):
    """Return the gradients as stock optimizers clip them, but without their conditional."""
    if clipnorm > 0:
        norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in grads))
        factor = tf.compat.v2.where(norm >= clipnorm, clipnorm / norm, tf.ones_like(norm))
        grads = [factor * g for g in grads]
    if clipvalue > 0:
        grads = [tf.clip_by_value(g, -clipvalue, clipvalue) for g in grads]
    return grads


def _chosen(switch, new, old):
    """Return the new value if the switch is 1, else the old value."""
    return new if gates.is_certain(switch) else tf.compat.v2.where(switch > 0, new, old)


def _scalar(value, dtype):
    # `tf.cast` of a Python number would round to float32.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)
