"""An update by the stock optimizer's own code, which runs without writing.

The `get_updates` of a stock class computes new values from gradients and writes the new values,
both with functions of `keras.backend`. While `get_updates` runs, these functions are replaced: the
gradients are the averages of a window, and writes are recorded.
"""

import contextlib
import re
from collections import namedtuple

import keras
import tensorflow as tf

from keras_accum import lists, states

K = keras.backend

# names: the names in a state of what an update writes besides parameters and `iterations`. files:
# the names of the stock optimizer's `weights`, None for a weight that no update writes. attributes:
# by name, the stock optimizer's attributes with variables that aren't in `weights`.
Layout = namedtuple("Layout", "names files attributes")

Recorded = namedtuple("Recorded", "writes kept made")

_WRITES = re.compile("(Resource)?(Sparse)?(Assign|Scatter|Apply)")


def record(optimizer, get_updates, params, averages, made=None):
    """Record the writes of one update without writing.

    Args:
        optimizer: The optimizer with the `iterations`, `weights` and hyperparameters.
        get_updates: The stock method.
        params: The parameters to update.
        averages: The gradients of the parameters.
        made: The variables that an earlier call for the same `params` created, to reuse them.

    Returns:
        A tuple. writes: pairs of variables and new values. kept: the written variables that aren't
        parameters, in the order of `weights`. made: the variables that were created.
    """
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    recording = _Recording(type(optimizer).__name__, params, averages, made)
    with _replaced(recording.functions()):
        updates = get_updates(loss=recording.loss, params=params)
    recording.take(updates)
    recording.check(graph.get_operations()[before:])
    kept = _kept(optimizer, params, recording.writes)
    return Recorded(recording.writes, kept, recording.new if made is None else made)


class _Recording:
    """What an update sees in place of functions of `keras.backend`, and what the update does.

    loss: stands for the loss of the window. writes: pairs of variables and new values. new: the
    variables that the update creates.
    """

    def __init__(self, name, params, averages, made):
        self._name, self._params, self._averages = name, params, averages
        self._made = None if made is None else iter(made)
        self.loss = _loss(params, averages)
        self.writes, self.new = [], []

    def functions(self):
        creating = {name: self._making(getattr(K, name)) for name in ("variable", "zeros", "ones")}
        return {
            "update": self._note,
            "update_add": lambda x, increment: self._note(x, x + increment),
            "update_sub": lambda x, decrement: self._note(x, x - decrement),
            "gradients": self._gradients,
            **creating,
        }

    def _note(self, variable, value):
        value = tf.convert_to_tensor(value, variable.dtype.base_dtype)
        self.writes.append((variable, value))
        return value

    def _making(self, create):
        def make(*args, **kwargs):
            if self._made is not None:
                return next(self._made)
            # Outside of any conditional, and with a short name: see `make` in `port`.
            with tf.init_scope(), tf.name_scope(""):
                self.new.append(create(*args, **kwargs))
            return self.new[-1]

        return make

    def _gradients(self, loss, variables):
        if loss is not self.loss or list(map(id, variables)) != list(map(id, self._params)):
            raise self._error(
                "it takes gradients of something other than the loss, and a window has only the "
                "average gradient of the loss."
            )
        return list(self._averages)

    def take(self, updates):
        """Record the writes that `get_updates` returns for `K.function`."""
        noted = {id(value) for _, value in self.writes}
        for update in updates:
            if isinstance(update, tuple):
                self._note(*update)
            elif id(update) not in noted:
                raise self._unknown_write(getattr(update, "name", update))

    def check(self, operations):
        """Raise an error if the update, which added these operations, can't accumulate."""
        initializers = {variable.initializer for variable in self.new}
        for operation in operations:
            if _WRITES.match(operation.type) and operation not in initializers:
                raise self._unknown_write(operation.name)
        variables, values = zip(*self.writes) if self.writes else ((), ())
        if _is_computed_from(self.loss, values, known=self._averages):
            raise self._error(
                "its update is computed from the value of the loss, and a window has only the "
                "average gradient of the loss."
            )
        if len(set(map(id, variables))) < len(variables):
            raise self._error("it writes a variable twice in an update, in unknown order.")

    def _unknown_write(self, what):
        return self._error(
            "its `get_updates` may write only with `update`, `update_add` and `update_sub` of "
            "keras.backend, to variables that it has created with `zeros`, `ones` and `variable` "
            f"of keras.backend. Received: {what}"
        )

    def _error(self, why):
        return ValueError(f"{self._name} can't accumulate: {why}")


def _loss(params, averages):
    """Return a tensor in place of the loss: its gradients are the averages, its value is nothing.

    The loss of a window isn't known.
    """
    products = [
        K.sum(tf.stop_gradient(average) * param) for average, param in zip(averages, params)
    ]
    return tf.add_n([tf.cast(product, K.floatx()) for product in products])


def _is_computed_from(tensor, values, known):
    """True if some of these values are computed from the tensor. The `known` tensors aren't."""
    seen, todo = {value.op for value in known}, [value.op for value in values]
    while todo:
        operation = todo.pop()
        if operation not in seen:
            seen.add(operation)
            todo += [tensor.op for tensor in operation.inputs]
    return tensor.op in seen


@contextlib.contextmanager
def _replaced(functions):
    """A scope in which these functions replace those of `keras.backend`."""
    originals = {name: getattr(K, name) for name in functions}
    vars(K).update(functions)
    try:
        yield
    finally:
        vars(K).update(originals)


def _kept(optimizer, params, writes):
    """Return the written variables besides parameters and `iterations`, in order of `weights`."""
    others = {id(variable) for variable in [*params, optimizer.iterations]}
    written = {id(variable): variable for variable, _ in writes if id(variable) not in others}
    ordered = [written.pop(id(v)) for v in optimizer.weights if id(v) in written]
    return ordered + list(written.values())


def layout(make, rule, variables):
    """Return the layout of the state of `make()`, a stock optimizer, for a number of variables.

    The optimizer is made in a graph of its own, for variables of different lengths: the length of a
    slot identifies its variable. Slots and scalars of Keras's own optimizers have the names that
    they have on every Keras. Others are called `slot_0`, ... and `scalar_0`, ..., in the order of
    the stock optimizer's files.
    """
    with tf.Graph().as_default():
        optimizer = make()
        lengths = {1009 + i: i for i in range(variables)}  # lengths that nothing else has
        params = [K.zeros(length) for length in lengths]
        averages = [tf.zeros_like(param) for param in params]
        kept = record(optimizer, optimizer.get_updates, params, averages).kept
        slots, scalars = lists.KERAS_2_SLOTS.get(rule), lists.KERAS_2_SCALARS.get(rule)
        names, slots_of = {id(optimizer.iterations): "completed_updates"}, [0] * variables
        for variable in kept:
            shape = K.int_shape(variable)
            if shape == ():
                number = sum(states.index_of(name) is None for name in names.values()) - 1
                scalar = scalars[number] if scalars else f"scalar_{number}"
                names[id(variable)] = states.scalar_name(rule, scalar)
            elif len(shape) == 1 and shape[0] in lengths:
                i = lengths[shape[0]]
                slot = slots[slots_of[i]] if slots else f"slot_{slots_of[i]}"
                names[id(variable)] = states.slot_name(rule, slot, i)
                slots_of[i] += 1
            else:
                raise ValueError(
                    f"{type(optimizer).__name__} can't accumulate: it keeps a variable of shape "
                    f"{shape}, which is neither a parameter's shape nor a scalar's."
                )
        files = [names.get(id(variable)) for variable in optimizer.weights]
        attributes = {
            names[id(value)]: attribute
            for attribute, value in vars(optimizer).items()
            if id(value) in names and names[id(value)] not in files
        }
        return Layout([names[id(variable)] for variable in kept], files, attributes)


def names_for(two, variables):
    """Return the names for a number of variables from the names for two, or None.

    The names for two variables must be in one of two orders: slot by slot, as in Keras's own
    optimizers, or variable by variable.
    """

    def by_slot(variables):
        for name in two:
            index, stem = states.index_of(name), name.rpartition(".")[0]
            if index is None:
                yield name
            elif index == 0:
                yield from (f"{stem}.{i}" for i in range(variables))

    def by_variable(variables):
        stems = [name.rpartition(".")[0] for name in two if states.index_of(name) == 0]
        for name in two:
            if states.index_of(name) is None:
                yield name
            elif name == f"{stems[0]}.0":
                yield from (f"{stem}.{i}" for i in range(variables) for stem in stems)

    for order in (by_slot, by_variable):
        if list(order(2)) == two:
            return list(order(variables))
    return None


def check_shapes(name, kept, names, params):
    """Raise a ValueError unless the kept variables have the shapes that the layout expects."""
    shapes = [K.int_shape(param) for param in params]
    expected = {n: () if states.index_of(n) is None else shapes[states.index_of(n)] for n in names}
    found = [K.int_shape(variable) for variable in kept]
    if found != list(expected.values()):
        raise ValueError(
            f"{name} can't accumulate: what it keeps for a variable has neither the variable's "
            f"shape nor a scalar's. Expected: {list(expected.values())}. Received: {found}"
        )
