"""Where TensorFlow 2 writes: in replicas, in branches, and nowhere unseen. Imports no Keras."""

import contextlib

import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.engine.window import is_unconditional
from keras_accum.host import check_members, import_private
from keras_accum.tensorflow.values import as_written, is_compiled_by_xla, list_graphs

# Private members of TensorFlow.
LISTS_RESOURCES = (
    "tensorflow.python.framework.auto_control_deps_utils",
    "get_read_write_resource_inputs",
)
OF_HANDLE, OF_INTERIM = ("_handle_data",), ("maybe_merge_call",)


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
        if not tf.inside_function():
            return self.count() == 1  # Python reads the switch
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

    # -- writes that nobody sees -------------------------------------------------------------------

    @contextlib.contextmanager
    def refusing_other_writes(self, switch, list_held):
        """Scope that raises a TypeError if its graph writes a variable that isn't protected.

        list_held(): At the end, the variables protected while the switch is 0.
        """
        if is_unconditional(switch) or not tf.inside_function():
            yield
            return
        graph = tf.compat.v1.get_default_graph()
        made = len(graph.get_operations())
        yield
        held = map(self.native, list_held())
        handles = {id(v.handle): v.handle for variable in held for v in _list_copies(variable)}
        for handle in handles.values():
            check_members(tf, handle, OF_HANDLE)
        captures = [{id(inner): outer for outer, inner in g.captures} for g in list_graphs()]
        for operation in graph.get_operations()[made:]:
            for handle in find_written(operation, captures):
                if id(handle) not in handles:
                    spec = handle._handle_data.shape_and_type[0]
                    cls = type(self.optimizer)
                    raise TypeError(
                        f"An update of {cls._stock_class.__name__} writes a variable that Keras "
                        f"doesn't track, of shape {tf.TensorShape(spec.shape)} and "
                        f"{tf.as_dtype(spec.dtype)!r}, by {operation.name}. Without a "
                        "conditional, each micro-batch would write it. Construct "
                        f"{cls.__name__} with gate='conditional'."
                    )


def find_written(operation, captures):
    """Return handles of the variables written by an operation.

    captures: {id of a tensor: the tensor outside} for each graph, the innermost first.
    """
    handles, list_resources = [], import_private(tf, *LISTS_RESOURCES)
    for handle in list_resources(operation)[1]:
        for outside in captures:
            handle = outside.get(id(handle), handle)
        # Other resources, such as summary writers, have no data type.
        if getattr(handle, "_handle_data", None) and handle._handle_data.is_set:
            handles.append(handle)
    return handles


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
