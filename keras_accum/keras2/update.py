"""An update on Keras 2: a rule with the update switch in its scalars."""

import keras
import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.engine.window import is_unconditional
from keras_accum.keras2.order import Keras2Replicas, Keras2Values, Order, after
from keras_accum.keras2.store import Keras2Store

K = keras.backend


class Keras2Update(parts.Update):
    """An update on Keras 2 and TensorFlow 1, in a train step's `order`."""

    step_is_fixed = True

    def __init__(self, order, *arguments):
        super().__init__(*arguments)
        self._order = order

    def start_model(self):
        """Prepare for a new train step."""
        self.replicas.closing = None
        self._rate = self.optimizer.learning_rate  # another step may get a tensor

    def make_step(self, loss, gradients, micro_batch):
        """Return a train step's operation, with the writes made by `micro_batch()`."""
        self._order.computed = [loss, *gradients]
        step = self._order.group(micro_batch)
        self._order.computed = ()
        return step

    def check_between_steps(self, method):
        self.store.check_other_windows(method)

    def branch(self, step, update):
        order = self._order
        with after([order.computed, order.writes, step]):
            operation = tf.cond(step.switch > 0, lambda: order.group(update, step), tf.no_op)
        order.writes.append(operation)

    def run(self, step, average, variables, switches):
        averages = self._clip(average())
        averages = [tf.cast(a, v.dtype.base_dtype) for a, v in zip(averages, variables)]
        dtypes, rule = {average.dtype for average in averages}, self.store.rule
        scalars = {dtype: self._scalars(step.switch, dtype) for dtype in dtypes}
        with after([self._order.computed, averages, list(scalars.values()), step]):
            for variable, average in zip(variables, averages):
                slots = self.store.get_slots(variable)
                written = rule.apply(scalars[average.dtype], average, variable, slots)
                self._order.writes += written + self._constrain(step.switch, variable, written)

    def _clip(self, gradients):
        """Clip gradients as stock optimizers do, but without a conditional."""
        # Keras 2.0 to 2.3 has these attributes only if they were given.
        clipnorm, clipvalue = (getattr(self.optimizer, n, 0) for n in ("clipnorm", "clipvalue"))
        if clipnorm > 0:
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
            factor = self.values.ops.where(norm >= clipnorm, clipnorm / norm, tf.ones_like(norm))
            gradients = [factor * gradient for gradient in gradients]
        if clipvalue > 0:
            gradients = [tf.clip_by_value(g, -clipvalue, clipvalue) for g in gradients]
        return gradients

    def _scalars(self, switch, dtype):
        """Return an update's scalars, with the switch, for one data type."""
        optimizer, rule = self.optimizer, self.store.rule
        updates, rate = tf.cast(self.store.updates, dtype), tf.cast(self._rate, dtype)
        if optimizer.initial_decay > 0:
            rate = rate / (1 + tf.cast(optimizer.decay, dtype) * updates)
        hyperparameters = {  # RMSprop has no momentum here
            name: self.values.cast(getattr(optimizer, name, 0.0), dtype)
            for name in rule.hyperparameters
        }
        switch = tf.cast(switch, dtype)
        return rule.scalars(switch, rate, updates + 1, **hyperparameters)

    def _constrain(self, switch, variable, written):
        """Return operations to constrain a variable after `written`."""
        constraint = getattr(variable, "constraint", None)  # native variables have none
        if constraint is None:
            return []
        with tf.control_dependencies(written):
            value = variable.read_value()
            constrained = constraint(value)
            if not is_unconditional(switch):
                constrained = self.values.ops.where(switch > 0, constrained, value)
            return [variable.assign(constrained)]

    def after_writes(self):
        return self._order.after_writes()

    def count_updates(self, switch):
        updates = self.store.updates
        self._order.writes.append(K.update_add(updates, K.cast(switch, K.dtype(updates))))


def make_parts(optimizer, options):
    """Return an optimizer's parts."""
    order = Order()
    values = Keras2Values(parts.scalar_dtype(K.floatx()), order)
    three = values, Keras2Replicas(order), Keras2Store(optimizer)
    update = Keras2Update(order, optimizer, options, *three)
    return parts.Parts(*three, update)
