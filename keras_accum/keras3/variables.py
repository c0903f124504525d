"""The variables of an optimizer on Keras 3, and their names in a state."""

import types

import keras

from keras_accum import states
from keras_accum.arguments import config_of
from keras_accum.keras3.kept import Kept
from keras_accum.ranges import is_of_keras
from keras_accum.warn import warn

# Keras's names for what it keeps per variable outside of the rules.
_NOT_OF_A_RULE = {"average": "moving_average", "gradient_accumulator": "accumulator"}


class StateByNames:
    """A base class before a stock optimizer class: finds a name for each of its variables."""

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        variable = super().add_variable_from_reference(
            reference_variable, name=name, initializer=initializer
        )
        self._slots_by_name[name, self._var_key(reference_variable)] = variable
        return variable

    @property
    def _slots_by_name(self):
        # `__dict__` bypasses Keras's attribute tracking.
        return self.__dict__.setdefault("_slots_of_names", {})

    def _state_variables(self):
        """Return all variables by their names in a state, in the order of `variables`."""
        if self._pending:
            return self._pending.variables
        named = {**self._named_rule_variables(), **self._shared_variables()}
        window = self._accumulation.window
        if window is not None:
            named.update(window.named)
        names = {id(variable): name for name, variable in named.items()}
        return {names[id(v)]: v for v in self._variables}

    def _named_rule_variables(self):
        """Return the stock optimizer's variables by their names in a state.

        A slot has the name with which it was created for its variable. Other variables have the
        name of their attribute, or of the attributes that lead to them in other objects. All
        remaining variables are numbered.
        """
        found = {}
        for (slot, key), variable in self._slots_by_name.items():
            index = self._trainable_variables_indices[key]
            if slot in _NOT_OF_A_RULE:
                found[id(variable)] = f"{_NOT_OF_A_RULE[slot]}.{index}"
            else:
                found[id(variable)] = states.slot_name(self._rule_name, slot, index)
        for attribute, value in vars(self).items():
            name = states.scalar_name(self._rule_name, attribute.strip("_"))
            if isinstance(value, keras.Variable):
                found.setdefault(id(value), name)
            elif isinstance(value, (list, tuple)) and len(value) == len(self._trainable_variables):
                for index, item in enumerate(value):
                    found.setdefault(id(item), f"{name}.{index}")
        for key, name in vars(self).get("_names_of_found", {}).items():
            found.setdefault(key, states.scalar_name(self._rule_name, name))
        not_of_rule = {id(v) for v in self._shared_variables().values()}
        window = self._accumulation.window
        if window is not None:
            not_of_rule.update(map(id, window.named.values()))
        named, rest = {}, 0
        for variable in self._variables:
            if id(variable) not in not_of_rule:
                name = found.get(id(variable))
                if name is None:
                    name, rest = states.scalar_name(self._rule_name, f"variable_{rest}"), rest + 1
                named[name] = variable
        return named

    def _track_all(self):
        """Let Keras track the variables that it hasn't found, or raise a TypeError.

        Keras's own optimizers keep none.
        """
        if is_of_keras(self._stock_class):
            return
        kept, port = Kept(self, self._trainable_variables), self._accumulation.port
        self._check_kept(
            [f"{place}, {_NATIVE}" for place, t in kept.tensors.items() if port.can_be_written(t)],
        )
        self.__dict__.update(
            _names_of_found=kept.names, _owners_of_slots=kept.owners, _kept_at_build=kept.tensors
        )
        _track(self, kept.variables)
        _track(self, super().variables)  # those that a method of the class's own tells of

    # {id of a variable: index of the trainable variable to which it belongs}, besides its name.
    _owners_of_slots = types.MappingProxyType({})
    # {place: tensor}, until the first update.
    _kept_at_build = None

    def _check_update(self):
        """Raise a TypeError if the first update has made something that no state can hold."""
        before = self._kept_at_build
        if before is None:
            return
        self.__dict__["_kept_at_build"] = None
        kept, port = Kept(self, self._trainable_variables), self._accumulation.port
        new = {place: t for place, t in kept.tensors.items() if place not in before}
        self._check_kept(
            [f"{name}, which an update creates" for name in kept.names.values()],
            [f"{place}, {_NATIVE}" for place, t in new.items() if port.was_written(t)],
            [
                f"{place}, which an update replaces"
                for place, tensor in before.items()
                if kept.tensors.get(place, tensor) is not tensor
            ],
        )

    def _check_kept(self, *problems):
        problems = [problem for some in problems for problem in some]
        if problems:
            raise TypeError(
                f"{self._stock_class.__name__} can't accumulate: it keeps {'; '.join(problems)}. "
                "A state needs the names of all that an update writes: make it a `keras.Variable` "
                "in `build`, in an attribute, a list or a dictionary. Keep a constant as a number "
                "or a NumPy array."
            )

    @property
    def _rule_slots(self):
        return tuple(n[: -len(".0")] for n in self._names_of_rule() if states.index_of(n) == 0)

    @property
    def _rule_scalars(self):
        return tuple(n for n in self._names_of_rule() if states.index_of(n) is None)

    def _names_of_rule(self):
        prefix = f"{self._rule_name}."
        return [n[len(prefix) :] for n in self._list_names() if n.startswith(prefix)]

    def _list_names(self, variables=None, stock=True):
        # The stock optimizer decides the order, and the window comes after it.
        window = self._accumulation.window
        own = window.named if stock and window is not None else ()
        return [name for name in self._state_variables() if name not in own]

    def _shared_variables(self):
        found = {"completed_updates": self._iterations}
        if isinstance(self._learning_rate, keras.Variable):
            found["learning_rate"] = self._learning_rate
        return found


_NATIVE = "which isn't a Keras variable"


def of_stock(optimizer):
    """Return all variables of a built stock optimizer, in the order of an accumulating one's."""
    variables = list(optimizer._variables)
    if not is_of_keras(type(optimizer)):
        variables += Kept(optimizer, optimizer._trainable_variables).variables
        variables += [v for v in optimizer.variables if all(v is not other for other in variables)]
    return variables


def _track(optimizer, variables):
    for variable in variables:
        if not optimizer._tracker.is_in_store("variables", variable):
            optimizer._track_variable(variable)


def constructor_arguments(optimizer):
    """Return the config of a Keras 3 optimizer, with a callable learning rate not serialized."""
    config = config_of(optimizer)
    if not isinstance(optimizer._learning_rate, keras.Variable):
        config["learning_rate"] = optimizer._learning_rate
    return config


def without_loss_scale(arrays, name):
    """Return a list of arrays without the first arrays, if they are a LossScaleOptimizer's."""
    first = [states.as_array(array) for array in arrays[:4]]
    # Iterations, a learning rate of zero, the steps since the last change of the scale, the scale.
    kinds = [array.dtype.kind for array in first if array.ndim == 0]
    if kinds != ["i", "f", "i", "f"] or first[1] != 0:
        return arrays
    warn(
        f"The file is of a LossScaleOptimizer around {name}, but {name} has no LossScaleOptimizer "
        "here: the loss scale is ignored, everything else is loaded. To keep the loss scale, call "
        "`keras.mixed_precision.set_dtype_policy('mixed_float16')` before loading.",
    )
    return arrays[4:]
