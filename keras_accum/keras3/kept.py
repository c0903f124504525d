"""What an optimizer keeps, also in the objects that its attributes lead to.

Keras tracks a variable in an attribute of an optimizer. Keras doesn't track a variable in an
attribute of another object, for example of an optimizer inside the optimizer: such a variable would
be part of no state, and a gate in TensorFlow or a train step on JAX wouldn't see its writes.
"""

import collections
import types

import keras

# Attributes, of the optimizer and of optimizers inside it, that lead to the model's variables, to
# ours, or to variables that another attribute has, too.
_SECOND_HAND = {
    *("_variables", "_trainable_variables", "_tracker", "_distribution_strategy"),
    "_accumulation",
}
# A layer's variables are saved with a model, and no update writes a schedule's.
_NOT_FOLLOWED = (
    *(keras.Layer, keras.optimizers.schedules.LearningRateSchedule),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
_SEQUENCES = (list, tuple, collections.deque)


class Kept:
    """The variables and tensors that the attributes of an optimizer lead to.

    names: {id: name} of the Keras variables that Keras doesn't track. A name is made of the names
        on the way, and ends with the index of a trainable variable if the way has one.
    variables: the same Keras variables, in the order of the attributes.
    owners: {id: index} of all Keras variables that are kept by the index of a trainable variable.
    tensors: {place: tensor} of the framework itself.
    """

    def __init__(self, optimizer, trainable_variables):
        self.names, self.variables, self.owners, self.tensors = {}, [], {}, {}
        self._trainable = trainable_variables
        self._tracked = {id(variable) for variable in optimizer._variables}
        self._indices = {}
        for index, v in enumerate(trainable_variables):
            keys = index, id(v), optimizer._var_key(v), v.name, getattr(v, "path", v.name)
            self._indices.update(dict.fromkeys(keys, index))
        known = [*trainable_variables, *(getattr(v, "value", v) for v in trainable_variables)]
        self._seen = {id(value): value for value in known}
        self._follow(optimizer, ())

    def _follow(self, value, path):
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, keras.Variable):
            owner = self._owner(value, path)
            if owner is not None:
                self.owners[id(value)] = owner
            if id(value) in self._tracked:
                return
            name = _name(path)
            while name in self.names.values():
                name = f"other_{name}"
            self.names[id(value)] = name
            self.variables.append(value)
        elif keras.ops.is_tensor(value):
            self.tensors[_place(path)] = value
        else:
            for step, part in self._parts(value):
                self._follow(part, (*path, step))

    def _owner(self, variable, path):
        indices = [step for step in path if isinstance(step, int)]
        of_shape = [i for i in indices if tuple(self._trainable[i].shape) == tuple(variable.shape)]
        return next(iter(of_shape + indices), None)

    def _parts(self, value):
        """Return the parts of a container or an object, each with a name or with an index.

        Only the index of a trainable variable is an integer.
        """
        if isinstance(value, dict):
            if all(key in self._indices for key in value):
                return [(self._indices[key], part) for key, part in value.items()]
            is_name = [isinstance(key, str) and key.isidentifier() for key in value]
            steps = [key if is_name[i] else str(i) for i, key in enumerate(value)]
            return list(zip(steps, value.values()))
        if isinstance(value, _SEQUENCES):
            by_variable = len(value) == len(self._trainable)
            return [(i if by_variable else str(i), part) for i, part in enumerate(value)]
        if isinstance(value, _NOT_FOLLOWED) or type(value).__module__.startswith("tensorflow."):
            return []
        return [
            (name, part)
            for name, part in getattr(value, "__dict__", {}).items()
            if name not in _SECOND_HAND and not name.startswith("_self_")
        ]


def _name(path):
    """Return the name in a state, without the rule, of a variable at the end of this way."""
    index = next((step for step in path if isinstance(step, int)), None)
    steps = list(path)
    if index is not None:
        steps.remove(index)
    name = "_".join(str(step).strip("_") for step in steps)
    return name if index is None else f"{name}.{index}"


def _place(path):
    """Return the end of a way as a reader would write it, for example memory.slots[0]."""
    steps = (step if str(step).isidentifier() else f"[{step}]" for step in path)
    return ".".join(steps).replace(".[", "[")
