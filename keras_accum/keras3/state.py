"""The variables of an optimizer on Keras 3, and their names in a state."""

import keras
import numpy as np

from keras_accum import rules, states
from keras_accum.keras3.kept import Kept
from keras_accum.keras3.stock import StockPort, all_variables
from keras_accum.ranges import is_of_keras
from keras_accum.warn import warn

# Keras's names for what it keeps per variable outside of the rules.
_NOT_OF_A_RULE = {"average": "moving_average", "gradient_accumulator": "accumulator"}

_NATIVE = "which isn't a Keras variable"


def to_numpy(value):
    """Return the value of a variable or a tensor as a new array."""
    if isinstance(value, keras.Variable):
        value = value.value
    if hasattr(value, "detach"):  # on PyTorch, whose tensors NumPy can't read everywhere
        is_bfloat16 = keras.backend.standardize_dtype(value.dtype) == "bfloat16"
        value = value.detach().cpu()
        if is_bfloat16:
            return np.asarray(value.float()).astype("bfloat16")
    if hasattr(value, "numpy"):  # on TensorFlow, also for the copies of a variable on replicas
        value = value.numpy()
    # Not `np.array`, as Keras converts: NumPy 2 warns of tensors that don't copy themselves.
    return np.asarray(value).copy()


class StatePort(StockPort):
    """What the state of an optimizer is on Keras 3.

    slots: the variables that `add_variable_from_reference` has made, by (name, key of the weight).
    owners: {id: index} of the variables that are kept by the index of a weight.
    """

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self._variables, self._indices = [], {}
        self.slots, self.owners = {}, {}
        self._names_of_found = {}  # by id, of the variables that Keras doesn't track by itself
        self._kept_at_build = None  # {place: tensor}, until the first update

    # -- the model's variables ---------------------------------------------------------------------

    @property
    def variables(self):
        return self._variables

    @variables.setter
    def variables(self, variables):
        self._variables = list(variables)
        self._indices = {self.key(variable): i for i, variable in enumerate(self._variables)}

    @property
    def keys(self):
        return self._indices

    def key(self, variable):
        return id(variable)

    def index(self, variable):
        """Return the index of a variable of the model, None for any other variable."""
        return self._indices.get(self.key(variable))

    def forget(self):
        """Forget the model's variables, after a `build` that failed."""
        self.variables = []
        self.slots.clear()

    # -- names -------------------------------------------------------------------------------------

    @property
    def updates(self):
        return self.optimizer._iterations  # `iterations` may be a quotient, see Keras's own

    @property
    def accumulates_itself(self):
        return bool(self.optimizer.gradient_accumulation_steps)

    def shared_variables(self):
        found, rate = {"completed_updates": self.updates}, self.optimizer._learning_rate
        return {**found, "learning_rate": rate} if isinstance(rate, keras.Variable) else found

    def stock_variables(self):
        named = {**self.rule_variables(), **self.shared_variables()}
        names = {id(variable): name for name, variable in named.items()}
        return {names[id(v)]: v for v in self.optimizer._variables if id(v) in names}

    def rule_variables(self):
        """Return the stock optimizer's variables by name, without the shared variables.

        A slot has the name with which it was created for its variable. Other variables have the
        name of their attribute, or of the attributes that lead to them in other objects. All
        remaining variables are numbered.
        """
        found = self._names_by_id()
        not_of_rule = {id(v) for v in self.shared_variables().values()}
        window = self.accumulation.window
        if window is not None:
            not_of_rule.update(map(id, window.named.values()))
        named, rest = {}, 0
        for variable in self.optimizer._variables:
            if id(variable) not in not_of_rule:
                name = found.get(id(variable))
                if name is None:
                    name, rest = states.scalar_name(self.rule_name, f"variable_{rest}"), rest + 1
                named[name] = variable
        return named

    def _names_by_id(self):
        found = {}
        for (slot, key), variable in self.slots.items():
            index = self._indices[key]
            if slot in _NOT_OF_A_RULE:
                found[id(variable)] = f"{_NOT_OF_A_RULE[slot]}.{index}"
            else:
                found[id(variable)] = states.slot_name(self.rule_name, slot, index)
        for attribute, value in vars(self.optimizer).items():
            name = states.scalar_name(self.rule_name, attribute.strip("_"))
            if isinstance(value, keras.Variable):
                found.setdefault(id(value), name)
            elif isinstance(value, (list, tuple)) and len(value) == len(self._variables):
                for index, item in enumerate(value):
                    found.setdefault(id(item), f"{name}.{index}")
        for key, name in self._names_of_found.items():
            found.setdefault(key, states.scalar_name(self.rule_name, name))
        return found

    # -- values ------------------------------------------------------------------------------------

    def read(self, variable):
        return to_numpy(variable)

    def write(self, variable, value):
        variable.assign(value)

    def rate_state(self):
        rate = self.optimizer._learning_rate
        return {"learning_rate": to_numpy(rate)} if isinstance(rate, keras.Variable) else {}

    def write_rate(self, rate):
        self.optimizer._learning_rate.assign(rate)

    def rate_in_use(self):
        rate = float(to_numpy(self.optimizer.learning_rate))
        updates = self.accumulation.state.completed_updates()
        return rules.decayed(rate, self.accumulation.options.decay, updates)

    def add_waiting(self, name, array):
        return keras.Variable(array, trainable=False, name=name)

    def note_waiting(self):
        self.optimizer.built = False  # Keras's HDF5 loader calls `build` with an empty list

    def without_wrapper(self, arrays):
        first, name = arrays[:4], self.optimizer.name
        # Iterations, a learning rate of zero, the steps since the last change of the scale, the
        # scale.
        kinds = [array.dtype.kind for array in first if array.ndim == 0]
        if kinds != ["i", "f", "i", "f"] or first[1] != 0:
            return arrays
        warn(
            f"The file is of a LossScaleOptimizer around {name}, but {name} has no "
            "LossScaleOptimizer here: the loss scale is ignored, everything else is loaded. To "
            "keep the loss scale, call "
            "`keras.mixed_precision.set_dtype_policy('mixed_float16')` before loading.",
        )
        return arrays[4:]

    # -- what other people's optimizers keep -------------------------------------------------------

    def track_all(self):
        """Let Keras track the variables that it hasn't found, or raise a TypeError.

        Keras's own optimizers keep none.
        """
        if is_of_keras(self.stock):
            return
        kept = Kept(self.optimizer, self._variables)
        self._check_kept(
            [f"{place}, {_NATIVE}" for place, t in kept.tensors.items() if self.can_be_written(t)],
        )
        self._names_of_found, self.owners = kept.names, kept.owners
        self._kept_at_build = kept.tensors
        for variable in all_variables(self.optimizer, kept):
            if not self.optimizer._tracker.is_in_store("variables", variable):
                self.optimizer._track_variable(variable)

    def check_update(self):
        before, self._kept_at_build = self._kept_at_build, None
        if before is None:
            return
        kept = Kept(self.optimizer, self._variables)
        new = {place: t for place, t in kept.tensors.items() if place not in before}
        self._check_kept(
            [f"{name}, which an update creates" for name in kept.names.values()],
            [f"{place}, {_NATIVE}" for place, t in new.items() if self.was_written(t)],
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
                f"{self.stock.__name__} can't accumulate: it keeps {'; '.join(problems)}. "
                "A state needs the names of all that an update writes: make it a `keras.Variable` "
                "in `build`, in an attribute, a list or a dictionary. Keep a constant as a number "
                "or a NumPy array."
            )

    def can_be_written(self, tensor):
        """True if a tensor of the framework itself is a variable."""
        return False

    def was_written(self, tensor):
        """True if a tensor that an update has made is a variable."""
        return False
