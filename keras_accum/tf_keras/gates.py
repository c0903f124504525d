"""Gates: make the update at the end of a window, and only accumulate inside a window.

A gate is two functions. `prepare(optimizer, micro_batch)` runs in each replica. Its result goes to
`write(optimizer, distribution, prepared)`, which runs in cross-replica context.
"""

from collections import namedtuple

import tensorflow as tf

from keras_accum import kernels
from keras_accum.tf_keras import updates

Gate = namedtuple("Gate", "prepare write")

# step: see `window`. absent: the indices of the variables whose gradients are missing.
MicroBatch = namedtuple("MicroBatch", "step gradients variables absent")

# Passed in place of gradients between two methods that Keras calls.
Gated = namedtuple("Gated", "write prepared")


def gated(optimizer, micro_batch):
    """Return the micro-batch as its gate has prepared it for the write in cross-replica context."""
    if optimizer._decided is not None:
        gate = _UPDATE if optimizer._decided else _ACCUMULATE
    else:
        gate = _CONDITIONAL if optimizer._branches else _SELECT
    return Gated(gate.write, gate.prepare(optimizer, micro_batch))


def _update(optimizer, micro_batch):
    """Return the update from the window's sums including these gradients."""
    step, gradients, variables, absent = micro_batch
    known = optimizer._variables
    absent, frozen = optimizer._apart_from_frozen(absent, known)
    variables = [*variables, *(known[i] for i in absent)]
    if optimizer._accumulates:
        sums = [optimizer._accumulators[variable.ref()] for variable in variables]
        totals = list(map(tf.convert_to_tensor, sums))
        totals[: len(gradients)] = map(kernels.add, totals, gradients)
    else:
        totals = list(map(tf.convert_to_tensor, gradients))
    return updates.from_totals(optimizer, step, totals, variables, absent, frozen)


def _unconditional_update(optimizer, micro_batch):
    step = micro_batch.step._replace(switch=1)
    return _update(optimizer, micro_batch._replace(step=step))


def _unchanged(optimizer, micro_batch):
    return micro_batch


def write_update(optimizer, distribution, update):
    operations = updates.write(optimizer, distribution, update)
    return _write_counters(optimizer, distribution, update.step, after=operations)


def _accumulate(optimizer, distribution, micro_batch):
    operations = _add(optimizer, distribution, micro_batch)
    return _write_counters(optimizer, distribution, micro_batch.step, after=operations)


def _branch(optimizer, distribution, micro_batch):
    """One conditional: the update of a window's end, or the additions inside it."""

    def across(function, tensors):
        def group(distribution, tensors):
            return tf.group(*function(optimizer, distribution, tensors))

        return tf.distribute.get_replica_context().merge_call(group, args=(tensors,))

    # The variables are captured and not passed as tensors: a replica needs the distributed
    # variables with all copies, and would be passed a single copy of each.
    def update(step, gradients):
        here = micro_batch._replace(step=step, gradients=gradients)
        return across(updates.write, _unconditional_update(optimizer, here))

    def accumulate(step, gradients):
        return across(_add, micro_batch._replace(step=step, gradients=gradients))

    step, gradients = micro_batch.step, micro_batch.gradients
    done = kernels.branch(distribution, step.switch, update, accumulate, step, gradients)
    return _write_counters(optimizer, distribution, step, after=[] if done is None else [done])


def _add(optimizer, distribution, micro_batch):
    """Add the gradients to the accumulators in place."""
    operations = []
    if optimizer._accumulates:
        for gradient, variable in zip(micro_batch.gradients, micro_batch.variables):
            accumulator = optimizer._accumulators[variable.ref()]
            operations += optimizer._update(distribution, accumulator, _add_to, gradient)
    return operations


def _write_counters(optimizer, distribution, step, after):
    """Write the counters and the window's weight after these operations."""
    operations = list(after)

    def write(function, variable, *tensors):
        operations.extend(optimizer._update(distribution, variable, function, *tensors))

    with tf.control_dependencies(operations):
        if optimizer._accumulates:
            counters = (*optimizer._window[:2], optimizer._unapplied)
            for counter, value in zip(counters, (step.position, step.length, 0)):
                write(_assign, counter, value)
        if step.missing is not None:
            write(_assign, optimizer._missing_gradients, step.missing)
        if optimizer._weighs:
            write(_assign_rest, optimizer._window_weight, step.divisor, step.switch)
        write(_assign_add, optimizer.iterations, step.switch)
    return optimizer.iterations if tf.executing_eagerly() else tf.group(*operations)


def _add_to(variable, target, gradient):
    return kernels.accumulate(target, gradient)


def _assign(variable, target, value):
    return target.assign(value)


def _assign_rest(variable, target, value, switch):
    return target.assign(value * tf.cast(1 - switch, value.dtype))


def _assign_add(variable, target, value):
    return target.assign_add(value)


_SELECT = Gate(_update, write_update)
_UPDATE = Gate(_unconditional_update, write_update)
_ACCUMULATE = Gate(_unchanged, _accumulate)
_CONDITIONAL = Gate(_unchanged, _branch)
