"""Where TensorFlow 2 writes: in replicas and in branches. Imports no Keras."""

import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.host import check_members
from keras_accum.tensorflow.values import as_written, is_compiled_by_xla

OF_INTERIM = ("maybe_merge_call",)  # a private member of TensorFlow


class TensorFlowReplicas(parts.Replicas):
    """A `tf.distribute` strategy's replicas.

    native(variable): The TensorFlow variable inside a Keras variable.
    """

    def __init__(self, optimizer, native=lambda variable: variable):
        self.optimizer, self.native = optimizer, native

    @property
    def strategy(self):
        """The strategy in use when the optimizer was constructed."""
        return self.optimizer._distribution_strategy

    def index(self):
        context = tf.distribute.get_replica_context()
        number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        return 0 if number is None else int(number)

    def count(self):
        return tf.distribute.get_strategy().num_replicas_in_sync

    def reduce(self, tensors, variables):
        if self.count() == 1:
            return tensors
        replicas = tf.distribute.get_replica_context()
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def in_any(self, count):
        if self.count() == 1:
            return count
        replicas, count = tf.distribute.get_replica_context(), tf.convert_to_tensor(count, tf.int64)
        count = tf.minimum(replicas.all_reduce(tf.distribute.ReduceOp.SUM, count), 1)
        return count if tf.inside_function() else int(count)

    def across(self, function, *tensors):
        interim = tf.__internal__.distribute.interim
        check_members(tf, interim, OF_INTERIM)
        return interim.maybe_merge_call(
            lambda strategy, *values: function(*values), tf.distribute.get_strategy(), *tensors
        )

    def on(self, variable, function, *tensors):
        return tf.distribute.get_strategy().extended.update(
            self.native(variable),
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )

    def between_steps(self, function):
        outside = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
        if self.strategy is not None and outside:
            self.strategy.run(as_written(function))
        else:
            function()

    # -- branches ----------------------------------------------------------------------------------

    def prefers_branch(self, runs_user_code):
        """Return True if an update should run in a branch here."""
        return runs_user_code or (
            not tf.distribute.has_strategy()
            and all(device.device_type == "CPU" for device in tf.config.get_visible_devices())
        )

    def branch(self, step, update):
        """Make one branch for all replicas, because a replica's own couldn't write."""

        def across(step):
            strategy = tf.distribute.get_strategy()
            if not tf.distribute.in_cross_replica_context():
                run_if(step.switch, lambda: update(step))
                return

            def in_replicas():
                strategy.extended.call_for_each_replica(update, (step,))

            switch = strategy.experimental_local_results(step.switch)[0]  # the same on all
            run_if(switch, in_replicas)

        try:
            self.across(across, step)
        except ValueError as error:
            if type(error).__name__ != "InaccessibleTensorError":
                raise
            cls = type(self.optimizer)
            raise TypeError(
                f"An update of {cls._stock_class.__name__} can't run in a conditional: its code, "
                "or a schedule's or constraint's, keeps a tensor for later. Construct "
                f"{cls.__name__} with gate='select'."
            ) from error


def run_if(switch, function):
    """Call a function in a branch that runs if the switch is 1."""

    def branch():
        function()
        return tf.no_op()

    def iterate(i):
        function()
        return i + 1

    if is_compiled_by_xla():  # it copies variables in a conditional, but not in a loop
        zero = tf.zeros_like(switch)
        tf.while_loop(lambda i: i < switch, iterate, [zero], parallel_iterations=1)
    else:
        tf.cond(switch > 0, branch, tf.no_op)


def write(variable, value):
    """Write a variable copy by copy, so that a single replica's thread may call this."""
    for copy in _list_copies(variable):
        copy.assign(tf.cast(value, copy.dtype))


def _list_copies(variable):
    """Return a variable's copies on replicas, or itself if it has none."""
    return getattr(variable, "values", None) or [variable]
