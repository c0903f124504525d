"""The state of an accumulating new-style optimizer: its variables and their names."""

import numpy as np
import tensorflow as tf

from keras_accum import base, kernels, states
from keras_accum.arguments import config_of
from keras_accum.tf_keras.library import keras
from keras_accum.tf_keras.state import State, copy_exclusions

# The names in a state of the slots of stock classes, by attribute without underscores. Other
# attributes keep their names in a state.
_SLOTS = {
    "momentums": "momentum",
    "velocities": "velocity",
    "velocity_hats": "velocity_hat",
    "average_gradients": "average_gradient",
    "accumulated_grads": "accumulated_grad",
    "accumulated_delta_vars": "accumulated_delta_var",
    "accumulators": "accumulator",
    "linears": "linear",
    "m": "momentum",
    "v": "velocity",
    "u": "norm",
}

# Attributes of every optimizer, Keras's and ours, that hold variables outside of a rule.
_NOT_OF_A_RULE = (
    *("_variables", "_iterations", "_learning_rate", "_current_learning_rate"),
    *("_model_variables_moving_average", "_coalesced_children"),
)


def rule_variables(optimizer, count, is_slot):
    """Return what a built optimizer keeps: {slot: its variables} and {scalar: variable}.

    A slot is a list with one variable for each of the model's `count` variables, if
    `is_slot(attribute, variables)` is True for the list. All other variables are called scalars,
    whatever their shape.
    """
    slots, scalars = {}, {}
    for attribute, value in vars(optimizer).items():
        if attribute in _NOT_OF_A_RULE or attribute.startswith("_self_"):  # TensorFlow's tracking
            continue
        name, found = attribute.strip("_"), _variables_in(value)
        if isinstance(value, tf.Variable):
            scalars[name] = value
        elif found and len(found) == count and is_slot(attribute, found):
            slots[_SLOTS.get(name, name)] = found
        else:
            scalars.update({f"{name}_{i}": variable for i, variable in enumerate(found)})
    known = [optimizer.iterations, *averages_of(optimizer), *scalars.values()]
    known = set(map(id, known + [variable for found in slots.values() for variable in found]))
    rest = [variable for variable in optimizer._variables if id(variable) not in known]
    scalars.update({f"variable_{i}": variable for i, variable in enumerate(rest)})
    return slots, scalars


def averages_of(optimizer):
    """Return the moving averages of the weights, empty if there are none."""
    return getattr(optimizer, "_model_variables_moving_average", ())


def _variables_in(value):
    if not isinstance(value, (list, tuple, dict)):
        return []
    return [item for item in tf.nest.flatten(value) if isinstance(item, tf.Variable)]


class NewStyleState(State):
    """The part of an optimizer that creates and names its variables."""

    def build(self, var_list):
        if getattr(self, "_built", False):
            return
        variables = list(var_list)
        if not variables:  # as in loading a frozen model; some stock classes fail
            return
        kernels.check_no_tensor(variables)
        port = self._accumulation.port
        with tf.init_scope():
            if not tf.executing_eagerly() or self._run_with_dtensor:
                raise ValueError(
                    f"{type(self).__name__} needs the eager execution of TensorFlow 2, without "
                    "DTensor: leave out tf.compat.v1.disable_eager_execution() and the mesh."
                )
            state = self._take_waiting(variables, [self._var_key(v) for v in variables])
            # Keras keeps a list of what a checkpoint holds, also from before this build.
            self.__dict__.pop("_coalesced_children", None)
            super().build(variables)
            self._built = True  # some classes don't set it
            port.variables = variables
            port.slots, port.scalars = rule_variables(self, len(variables), self._is_slot)
            self._build_window()
            if state is not None:
                self.set_state(state)

    @property
    def _window_variables(self):
        """The variables of the window by their names, empty without a window."""
        window = self._accumulation.window
        return {} if window is None else window.named

    # -- names ---------------------------------------------------------------------------------

    @property
    def _rule_slots(self):
        return tuple(self._known()._accumulation.port.slots)

    @property
    def _rule_scalars(self):
        return tuple(self._known()._accumulation.port.scalars)

    def _known(self):
        return self if self._is_built else self._scratch([_of_shape(())], stock=True)

    def _scratch(self, variables, stock):
        """Return an optimizer like this one, or like the stock one, built for other variables."""
        config = constructor_arguments(self)
        if stock:
            config["accum_iters"] = 1
        scratch = self._like(config)
        scratch.build(variables)
        return scratch

    def _is_slot(self, attribute, found):
        """True if a list of variables is a slot: each belongs to the model's variable in order."""
        if self._stock_class.__module__.split(".")[0] in ("keras", "tf_keras"):
            return True
        variables = self._accumulation.port.variables
        return all(slot.shape == v.shape for slot, v in zip(found, variables))

    def _state_variables(self):
        """Return all variables by name, in the order of files: the stock ones first."""
        if self._pending:
            return self._pending.variables
        found = {"completed_updates": self._iterations}
        if self._is_built:
            found.update(self._named_rule_variables(self))
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        found = dict(sorted(found.items(), key=lambda item: places.get(id(item[1]), len(places))))
        return {**found, **self._window_variables}

    def _named_rule_variables(self, optimizer):
        """Return what this optimizer, or a stock one like it, keeps, by the names in a state."""
        if optimizer is self:
            port = self._accumulation.port
            slots, scalars = port.slots, port.scalars
        else:
            names = self._rule_slots
            count = len(optimizer._index_dict)
            slots, scalars = rule_variables(
                optimizer,
                count,
                lambda attribute, found: (
                    _SLOTS.get(attribute.strip("_"), attribute.strip("_")) in names
                ),
            )
        found = {f"moving_average.{i}": v for i, v in enumerate(averages_of(optimizer))}
        for slot, variables in slots.items():
            for i, variable in enumerate(variables):
                if self._is_kept(slot, variable):
                    found[states.slot_name(self._rule_name, slot, i)] = variable
        for scalar, variable in scalars.items():
            found[states.scalar_name(self._rule_name, scalar)] = variable
        return found

    def _is_kept(self, slot, variable):
        """True if a slot's variable is part of the state."""
        if self._rule_name == "SGD" and slot == "momentum":
            return self.momentum != 0  # without momentum the slot exists but isn't used
        # For variables with fewer than two dimensions, Adafactor has an integer as a placeholder.
        return variable.dtype.is_floating or self._rule_name != "Adafactor"

    def _list_names(self, variables, stock):
        if self._is_built and len(self._accumulation.port.variables) == variables:
            names = self._state_variables()
        else:
            scratch = self._scratch([_of_shape(())] * max(variables, 1), stock)
            names = scratch._state_variables()
            if not variables:
                of_rule = filter(states.is_scalar_of_rule, names)
                names = ["completed_updates", *of_rule]
        return [n for n in names if not (stock and n in self._window_variables)]

    def _state_names(self, variables):
        names = self._list_names(variables, stock=False)
        return [name for name in names if name != "unapplied"] + list(self._rate_state())

    def _layout(self):
        found = {**self._state_variables(), **self._rate_state()}
        names = self._state_names(len(self._accumulation.port.variables))
        return {name: tuple(found[name].shape) for name in names if name != "state_format"}

    def _expected_layout(self, state, variables):
        if self._has_uniform_slots:
            return super()._expected_layout(state, variables)
        # Names and shapes depend on the variables, so `build` checks them.
        rule = f"{self._rule_name}."
        known = {"completed_updates", "learning_rate", *states.WINDOW, states.WEIGHT}
        return {
            name: np.shape(array)
            for name, array in state.items()
            if name.startswith((rule, "moving_average.", "accumulator.", states.MISSING))
            or name in known
        }

    def _keep_waiting(self, state):
        if self._has_uniform_slots:
            super()._keep_waiting(state)
            return
        state = self._fitted(state, states.by_index(state))
        self._write_shared(state)
        self._pending.drop()
        if states.count(state):
            names = [name for name in state if name != "learning_rate"]
            self._pending.hold(state, names, self._shared_variables(), self._add_waiting)

    @property
    def _has_uniform_slots(self):
        """True if each variable has the same slots of its own shape, besides scalars."""
        shapes = (), (1, 1)
        scratch = self._scratch([_of_shape(shape) for shape in shapes], stock=True)
        kept = scratch._accumulation.port
        return all(
            tuple(variable.shape) == shape and self._is_kept(slot, variable)
            for slot, found in kept.slots.items()
            if slot != "momentum"
            for variable, shape in zip(found, shapes)
        ) and not any(v.shape.rank for v in kept.scalars.values())

    # -- reading and writing ---------------------------------------------------------------------

    def set_state(self, state):
        state = states.as_arrays(state)
        if self._is_built and states.is_fresh(state):
            state = {**self._initial_arrays(), **state}
        super().set_state(state)

    set_state.__doc__ = base.Optimizer.set_state.__doc__

    def _initial_arrays(self):
        """Return the initial values of what an optimizer keeps, by their names in a state."""
        port, fresh = self._accumulation.port, self._scratch([_of_shape(())], stock=True)
        kept = fresh._accumulation.port
        found = {f"moving_average.{i}": v for i, v in enumerate(port.variables)}
        found = found if self.use_ema else {}
        for slot, (first, *_) in kept.slots.items():
            for i, variable in enumerate(port.slots[slot]):
                if self._is_kept(slot, variable):
                    name = states.slot_name(self._rule_name, slot, i)
                    found[name] = tf.fill(variable.shape, tf.cast(first, variable.dtype))
        for scalar, variable in kept.scalars.items():
            found[states.scalar_name(self._rule_name, scalar)] = variable
        return {name: value.numpy() for name, value in found.items()}

    @property
    def variables(self):
        """The variables of the state, in the order of files."""
        # Keras 2's list type is callable.
        return type(super().variables)(self._state_variables().values())

    def _write_state(self, state):
        super()._write_state(state)
        count_in_python(self, state["completed_updates"])

    def _named(self, arrays):
        """Return a list of arrays, this class's or the stock optimizer's, as a state."""
        arrays = [states.as_array(array) for array in arrays]
        if [array.shape for array in arrays] == [()]:  # of an optimizer without variables
            return {"completed_updates": arrays[0]}
        self._check_is_built("set_weights")
        of_state = self._state_variables()
        names = {id(variable): name for name, variable in of_state.items()}
        window = set(map(id, self._window_variables.values()))
        # The stock optimizer's lists have variables that aren't part of a state, and lack others.
        of_stock = [variable for variable in self._variables if id(variable) not in window]
        for variables in (of_state.values(), of_stock):
            if [array.shape for array in arrays] == [tuple(v.shape) for v in variables]:
                break
        else:
            raise states.StateError(
                f"A list of {len(arrays)} arrays is not a state of {self._described}. The list "
                "belongs to another optimizer, is truncated, or was written by a newer "
                "keras_accum. Nothing was changed."
            )
        state = {names.get(id(variable)): array for variable, array in zip(variables, arrays)}
        state.pop(None, None)
        for scalar in self._rule_scalars:
            name = states.scalar_name(self._rule_name, scalar)
            state.setdefault(name, of_state[name].numpy())
        states.check_numbers(state, self._described)
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        return state

    def __deepcopy__(self, memo):
        make, made_of = self._how_made()
        new = base.restored(make, made_of, config_of(self), self.get_state())
        copy_exclusions(self, new)
        return new

    def _trackable_children(self, *args, **kwargs):
        self._check_nothing_waits()  # TensorFlow calls this when it saves
        return super()._trackable_children(*args, **kwargs)

    def _rate_in_use(self):
        rate = self._learning_rate
        if not isinstance(rate, tf.Variable):
            rate = rate(tf.constant(self.completed_updates, tf.int64))
        return float(self._accumulation.port.read(rate))  # on replicas, not a single variable


def _of_shape(shape):
    return tf.Variable(np.zeros(shape, keras.backend.floatx()))


def constructor_arguments(optimizer):
    """Return the config of a new-style optimizer, with a schedule not serialized."""
    config = config_of(optimizer)
    if not isinstance(optimizer._learning_rate, tf.Variable):
        config["learning_rate"] = optimizer._learning_rate
    config.pop("is_legacy_optimizer", None)
    return config


def count_in_python(optimizer, updates):
    """Tell Nadam, which also counts in Python, the number of its updates."""
    if hasattr(optimizer, "_u_product_counter"):
        optimizer._u_product_counter = int(updates) + 1
