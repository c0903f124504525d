"""A function of arrays as a program of TensorFlow that changes nothing."""

import tensorflow as tf

_CHANGES = "A trial might leave something behind: {} is in it."


def make_program(function):
    """Return a program for lists of NumPy arrays of the same shapes.

    It raises a ValueError if it would write a variable or run Python.
    """
    program, made = tf.function(function, autograph=False), []

    def run(arrays):
        if not made:  # later arrays have the same shapes
            # Not `program(arrays)`: TensorFlow would warn of many functions made in one place.
            concrete = program.get_concrete_function(arrays)
            for node in _list_nodes(concrete.graph.as_graph_def()):
                writes = "Resource" in node.op and "Gather" not in node.op
                if writes or node.op.startswith("Assign") or "PyFunc" in node.op:
                    raise ValueError(_CHANGES.format(node.op))
            made.append(concrete)
        return made[0](arrays)

    return run


def _list_nodes(graph):
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return nodes
