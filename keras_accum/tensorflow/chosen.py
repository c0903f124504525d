"""The update switch chooses the variables of an update: the third form of a gate.

TensorFlow writes a variable through a handle, and a handle is a tensor. So `tf.gather`, with the
switch as an index, takes one of two handles: that of the variable, or that of a variable without
rows. Gradients have no rows either if the switch is 0. Inside a window the stock optimizer's update
then works on nothing: there is no conditional, and nothing is read, copied or written. A scalar has
no rows: in its place, an update inside a window works on a copy.

    selected = choose(variables, switches)    # stands for the variables in an update
    ...                                       # the update, with `rows` of the gradients
    in_order(selected)                        # what comes later waits for the update

`tf.function` orders operations by their handles, and a chosen handle is another handle than the
variable's. Two operations that take the variables' own handles are therefore put around the update:
`tf.function` takes each of them for a write. `choose` comes after all earlier reads and writes of
the variables, and what comes after `in_order` waits for everything that used the chosen handles.
"""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util, resource_variable_ops


def is_compiled_by_xla():
    graph = tf.compat.v1.get_default_graph() if tf.inside_function() else None
    return graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph)


def is_possible(variables):
    """True if a switch can choose these variables in what is traced now.

    XLA can't gather handles, and a GPU has no kernel for it. In replicas a variable has several
    handles. Without a graph, Python knows the switch.
    """
    return (
        tf.inside_function()
        and not is_compiled_by_xla()
        and not tf.distribute.has_strategy()
        and all(device.device_type == "CPU" for device in tf.config.get_visible_devices())
        and all(isinstance(v, resource_variable_ops.BaseResourceVariable) for v in variables)
        and len({variable.device for variable in variables}) == 1
    )


class Chosen(resource_variable_ops.BaseResourceVariable):
    """What stands for a variable in an update. It has the variable's name, and the key of slots."""

    def __init__(self, variable, handle):
        super().__init__(
            trainable=False,
            shape=tf.TensorShape([None, *variable.shape[1:]] if variable.shape.rank else []),
            dtype=variable.dtype,
            handle=handle,
            handle_name=variable.name.partition(":")[0],
            unique_id=variable._unique_id,
            in_graph_mode=False,
            validate_shape=False,
        )
        self.variable = variable
        # A graph holds variables that it has read by weak references, and an export asks for them.
        handle.chosen = self

    def _read_variable_op(self, no_copy=False):
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        value.set_shape(self.shape)  # which a chosen handle doesn't tell
        return value


def choose(variables, switches):
    """Return a `Chosen` for each tf.Variable and its switch, by three operations for all."""
    others, handles = {}, []
    for place, variable in enumerate(variables):
        # Variables of one shape without rows share a variable, and each scalar has one of its own.
        shape = variable.shape[1:] if variable.shape.rank else ["scalar", place]
        name = "_".join(map(str, ["keras_accum", variable.dtype.name, *shape]))
        if name not in others:
            others[name] = _other(variable, name)
        handles += [others[name], variable.handle]
    distinct = {id(switch): switch for switch in switches}
    positions = dict(zip(distinct, range(len(distinct))))
    switches = tf.gather(list(distinct.values()), [positions[id(switch)] for switch in switches])
    indices = 2 * tf.range(len(variables)) + tf.cast(switches, tf.int32)
    handles = tf.gather(tf.raw_ops.Pack(values=handles), indices)
    handles = tf.raw_ops.Unpack(value=handles, num=len(variables))
    return list(map(Chosen, variables, handles))


def _other(variable, name):
    """Return the handle of what is written in place of a variable: a scalar's copy, or no rows.

    The graph makes it, so the graph can be exported.
    """
    rows = [0, *variable.shape[1:]]
    value = tf.zeros(rows, variable.dtype) if variable.shape.rank else variable.read_value()
    handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=name)
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle


def in_order(selected):
    """Make what comes later wait for everything that has used these `Chosen`."""
    used = {operation for each in selected for operation in each.handle.consumers()}
    with tf.control_dependencies(list(used)):
        tf.raw_ops.Pack(values=[each.variable.handle for each in selected])


def rows(values, switches):
    """Return each value, or a value without rows if its switch is 0. A scalar stays as it is."""
    ends = {}  # the end of a slice may be past the last row
    for key, switch in {id(switch): switch for switch in switches}.items():
        ends[key] = tf.reshape(tf.cast(switch, tf.int32) * tf.int32.max, [1])
    return [
        tf.strided_slice(value, [0], ends[id(switch)]) if value.shape.rank else value
        for value, switch in zip(values, switches)
    ]
