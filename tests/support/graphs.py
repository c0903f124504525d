"""What is in the graphs of TensorFlow: their operations, their conditionals, and their order."""

from collections import Counter

import hosts

CONTROL_FLOW = {
    *("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"),
    *("Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "Exit", "NextIteration"),
}


def graph_of(function, *arguments, jit_compile=False):
    function = hosts.tf.function(function, jit_compile=jit_compile)
    return function.get_concrete_function(*arguments).graph


def operations(function, *arguments, jit_compile=False):
    """Count the operations by type, in the traced graph and in the functions that it calls."""
    graph = graph_of(function, *arguments, jit_compile=jit_compile).as_graph_def()
    nodes = list(graph.node)
    for called in graph.library.function:
        nodes += called.node_def
    return Counter(node.op for node in nodes)


def conditionals(operations):
    return sum(operations[op] for op in CONTROL_FLOW)


def branches(optimizer):
    """The number of branches in a plain graph on CPUs."""
    return int(optimizer.gate != "select")


# -- the graph of standalone Keras 2 --------------------------------------------------------------


def operations_of_session():
    """The types of all operations of Keras 2's graph."""
    graph = hosts.keras.backend.get_session().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


def before(op):
    """All operations that must run before this operation."""
    found, todo = set(), [op]
    while todo:
        op = todo.pop()
        for earlier in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if earlier not in found:
                found.add(earlier)
                todo.append(earlier)
    return found


def races(model):
    """Find the pairs of a write and a use of a variable that a step may run in any order."""
    model._make_train_function()
    step = before(model.train_function.updates_op)
    step.update(*(before(output.op) for output in model.train_function.outputs))
    found = []
    for variable in {op for op in step if op.type in ("VariableV2", "VarHandleOp")}:
        consumers = [op for op in variable.outputs[0].consumers() if op in step]
        reads = [op for op in consumers if op.type in ("Identity", "ReadVariableOp")]
        writes = [op for op in consumers if op not in reads]
        uses = list(reads)
        for read in reads:  # a reference is read by the operation that takes it
            uses += [op for op in read.outputs[0].consumers() if op in step]
        for write in writes:
            ahead = before(write)
            found += [
                (write.name, use.name)
                for use in uses + writes
                if use is not write
                and use not in ahead
                and write not in before(use)
                # A reference that is merely passed on hasn't been read yet.
                and not (use.type == "Identity" and use.name.endswith("/read"))
            ]
    return found
