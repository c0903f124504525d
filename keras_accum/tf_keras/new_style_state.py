"""The state of an accumulating new-style optimizer: its variables and their names."""

import numpy as np
import tensorflow as tf

from keras_accum import arguments, convert, states
from keras_accum.tf_keras.library import StockOptimizer
from keras_accum.tf_keras.state import StatePort

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
            slots[_slot_of(attribute)] = found
        else:
            scalars.update({f"{name}_{i}": variable for i, variable in enumerate(found)})
    known = [optimizer.iterations, *averages_of(optimizer), *scalars.values()]
    known = set(map(id, known + [variable for found in slots.values() for variable in found]))
    rest = [variable for variable in optimizer._variables if id(variable) not in known]
    scalars.update({f"variable_{i}": variable for i, variable in enumerate(rest)})
    return slots, scalars


def _slot_of(attribute):
    """Return the name in a state of a slot in this attribute."""
    name = attribute.strip("_")
    return _SLOTS.get(name, name)


def averages_of(optimizer):
    """Return the moving averages of the weights, empty if there are none."""
    return getattr(optimizer, "_model_variables_moving_average", ())


def _variables_in(value):
    if not isinstance(value, (list, tuple, dict)):
        return []
    return [item for item in tf.nest.flatten(value) if isinstance(item, tf.Variable)]


class NewStyleState(StatePort):
    """What the state of a new-style optimizer is.

    slots, scalars: what the stock optimizer keeps, `{slot: its variables}` and
    `{scalar: variable}`.
    """

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self.slots, self.scalars = {}, {}

    @property
    def rate(self):
        return self.optimizer._learning_rate

    def learn(self, variables):
        """Learn what the optimizer keeps, after the stock optimizer was built."""
        self.variables = variables
        self.slots, self.scalars = rule_variables(self.optimizer, len(variables), self._is_slot)

    def forget(self):
        """Forget the model's variables, after a `build` that failed."""
        self.variables, self.slots, self.scalars = (), {}, {}

    def _is_slot(self, attribute, found):
        """True if a list of variables is a slot: each belongs to the model's variable in order."""
        if self.optimizer._stock_class.__module__.split(".")[0] in ("keras", "tf_keras"):
            return True
        return all(slot.shape == v.shape for slot, v in zip(found, self.variables))

    # -- names -------------------------------------------------------------------------------------

    def stock_variables(self):
        found = self.shared_variables()
        if self.variables:
            found.update(self._named(self.optimizer, self.slots, self.scalars))
        places = {id(variable): i for i, variable in enumerate(self.optimizer._variables)}
        return dict(sorted(found.items(), key=lambda item: places.get(id(item[1]), len(places))))

    def _named(self, optimizer, slots, scalars):
        """Return what an optimizer keeps by the names in a state."""
        found = {f"moving_average.{i}": v for i, v in enumerate(averages_of(optimizer))}
        for slot, variables in slots.items():
            for i, variable in enumerate(variables):
                if self._is_kept(slot, variable):
                    found[states.slot_name(self.rule_name, slot, i)] = variable
        for scalar, variable in scalars.items():
            found[states.scalar_name(self.rule_name, scalar)] = variable
        return found

    def _is_kept(self, slot, variable):
        """True if a slot's variable is part of the state."""
        if self.rule_name == "SGD" and slot == "momentum":
            return self.optimizer.momentum != 0  # without momentum the slot isn't used
        # For variables with fewer than two dimensions, Adafactor has an integer as a placeholder.
        return variable.dtype.is_floating or self.rule_name != "Adafactor"

    def stock_list(self, shapes):
        # The list has variables that aren't part of a state, and lacks others.
        names = {id(v): name for name, v in self.stock_variables().items()}
        window = self.accumulation.window
        own = set() if window is None else set(map(id, window.named.values()))
        listed = [v for v in self.optimizer._variables if id(v) not in own]
        return {names.get(id(v), f"unused.{i}"): self.shape_of(v) for i, v in enumerate(listed)}

    # -- values ------------------------------------------------------------------------------------

    def write_all(self, pairs):
        super().write_all(pairs)
        count_in_python(self.optimizer, self.read(self.updates))

    def rate_in_use(self):
        rate = self.rate
        if not isinstance(rate, tf.Variable):
            rate = rate(tf.constant(self.accumulation.state.completed_updates(), tf.int64))
        return float(self.read(rate))  # on replicas, not a single variable

    # -- arguments ---------------------------------------------------------------------------------

    not_arguments = ("is_legacy_optimizer",)

    @staticmethod
    def prepare(cls, own, given):
        if "learning_rate" in given:
            given["learning_rate"] = arguments.check_learning_rate(
                given["learning_rate"],
                allowed=(tf.Tensor, tf.Variable, np.generic, np.ndarray),
            )
        arguments.name_after(cls, cls.__name__, given)

    @staticmethod
    def config_of(optimizer, config):
        for name in type(optimizer).__signature__.parameters:  # some stock classes omit an argument
            if name not in config and hasattr(optimizer, name):
                config[name] = getattr(optimizer, name)
        config.pop("lr", None)
        return config

    # -- from and to stock optimizers --------------------------------------------------------------

    @classmethod
    def stock_classes(cls, family, optimizer):
        stock = family._stock_class
        is_ours = convert.accumulates(optimizer)
        is_namesake = is_ours and optimizer._stock_class.__name__ == stock.__name__
        return {stock, *([type(optimizer)] if is_namesake else [])}

    @staticmethod
    def arguments_of(optimizer):
        if not isinstance(optimizer, StockOptimizer):
            return _config_of_legacy(optimizer)
        config = arguments.config_of(optimizer)
        if not isinstance(optimizer._learning_rate, tf.Variable):
            config["learning_rate"] = optimizer._learning_rate  # a schedule, not serialized
        config.pop("is_legacy_optimizer", None)
        return config

    def variables_of(self, optimizer):
        found, keys = {"completed_updates": optimizer.iterations}, []
        if hasattr(optimizer, "_index_dict"):
            keys = list(optimizer._index_dict)
            names = set(self._slots_like())
            kept = rule_variables(optimizer, len(keys), lambda name, _: _slot_of(name) in names)
            found.update(self._named(optimizer, *kept))
        return found, keys

    def _slots_like(self):
        """Return the names of the slots, before `build` those of an optimizer like this one."""
        if self.variables:
            return self.slots
        return self.likeness([tf.zeros([])])._accumulation.port.slots

    def build_stock(self, optimizer):
        optimizer.build(self.variables)

    def continue_stock(self, optimizer):
        super().continue_stock(optimizer)
        count_in_python(optimizer, self.accumulation.state.completed_updates())


def _config_of_legacy(optimizer):
    """Return the config of a legacy optimizer of ours."""
    config = arguments.config_of(optimizer)
    config = {k: v for k, v in config.items() if v is not None or k == "accum_iters"}
    config.update(optimizer.fixed)
    rate = optimizer._hyper["learning_rate"]
    if callable(rate):
        config["learning_rate"] = rate
    if not config.pop("decay", 0):
        return config
    raise ValueError(
        "`optimizer` has `decay`, which only legacy optimizers have: give `optimizer` an "
        "InverseTimeDecay schedule instead."
    )


def count_in_python(optimizer, updates):
    """Tell Nadam, which also counts in Python, the number of its updates."""
    if hasattr(optimizer, "_u_product_counter"):
        optimizer._u_product_counter = int(updates) + 1
