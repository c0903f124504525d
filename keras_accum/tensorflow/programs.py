"""Graphs of functions that may not keep anything. Imports no Keras."""

import re

import tensorflow as tf


def make_program(function):
    """Return a function that runs as a graph of its own, outside of any other and of a gradient.

    It raises a ValueError, and runs nothing, if the function writes a variable.
    """

    @tf.function
    def program(structure):
        results = function(structure)
        _refuse_writes(tf.compat.v1.get_default_graph())
        return results

    def run(structure):
        with tf.init_scope():
            return program(tf.nest.map_structure(tf.convert_to_tensor, structure))

    return run


def _refuse_writes(graph):
    definition = graph.as_graph_def()
    nodes = [definition.node, *(called.node_def for called in definition.library.function)]
    written = {node.op for each in nodes for node in each if _WRITES.match(node.op)}
    if written:
        raise ValueError(f"the function writes variables: {sorted(written)}")


_WRITES = re.compile("Assign|Resource(?!Gather)")
