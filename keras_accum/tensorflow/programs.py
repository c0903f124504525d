"""Graphs of functions that may not keep anything. Imports no Keras."""

import re

import tensorflow as tf

from keras_accum.host.description import LARGEST_NETWORK

_WRITE = re.compile("Assign|Resource(?!Gather)")  # the type of an operation


def make_program(function, autograph=False):
    """Return a function that runs as a graph of its own, outside of any other and of a gradient.

    It raises a ValueError, and runs nothing, if the function writes a variable, or calls a
    LARGEST_NETWORK.

    autograph: True to convert control flow of Python, as tf_keras does.
    """

    program = tf.function(function, autograph=autograph)

    def run(structure):
        with tf.init_scope():
            tensors = tf.nest.map_structure(tf.convert_to_tensor, structure)
            _check(program.get_concrete_function(tensors).graph)
            return program(tensors)

    return run


def _check(graph):
    definition = graph.as_graph_def()
    nodes = [definition.node, *(called.node_def for called in definition.library.function)]
    if any(_WRITE.match(node.op) for each in nodes for node in each):
        raise ValueError("the function writes a variable")
    if sum(variable.shape.num_elements() or 0 for variable in graph.variables) >= LARGEST_NETWORK:
        raise ValueError("the function calls a large network")
