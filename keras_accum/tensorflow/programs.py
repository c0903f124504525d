"""A function of arrays as a program of TensorFlow that changes nothing."""

import contextlib
import re

import tensorflow as tf

from keras_accum.host.description import LARGEST_NETWORK

_CHANGES = re.compile("Assign|Resource(?!Gather)|.*PyFunc")  # types of operations


def make_program(function):
    """Return a program for lists of NumPy arrays of the same shapes.

    It raises a ValueError, and runs nothing, if it would write a variable, run Python or call a
    LARGEST_NETWORK.
    """
    # Without autograph, which lets a loss that reads numbers in Python keep tensors of this graph.
    program, made = tf.function(function, autograph=False), []

    def run(arrays):
        if not made:  # later arrays have the same shapes
            # Not `program(arrays)`: TensorFlow would warn of many functions made in one place.
            concrete = program.get_concrete_function(arrays)
            _check(concrete)
            made.append(concrete)
        return made[0](arrays)

    return run


@contextlib.contextmanager
def outside(with_missing):
    """Scope outside of any graph and gradient; on the CPU, where kernels check labels, if asked."""
    with tf.init_scope(), tf.device("CPU:0") if with_missing else contextlib.nullcontext():
        yield


def _check(concrete):
    definition = concrete.graph.as_graph_def()
    nodes = [definition.node, *(called.node_def for called in definition.library.function)]
    if any(_CHANGES.match(node.op) for each in nodes for node in each):
        raise ValueError("the function may change something")
    if sum(v.shape.num_elements() or 0 for v in concrete.variables) >= LARGEST_NETWORK:
        raise ValueError("the function calls a large network")
