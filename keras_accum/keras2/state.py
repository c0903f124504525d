"""What the state of an optimizer is on Keras 2.

Each compiled model gets variables of its own. `iterations` and all other variables that the
constructor creates are shared by all models.
"""

from collections import namedtuple

import keras
import numpy as np
import tensorflow as tf

from keras_accum import arguments, lists, rules, states
from keras_accum.keras2 import recording, stock
from keras_accum.tensorflow_port import TensorFlowPort

K = keras.backend

# The stock classes whose own code gives the same numbers as a rule.
_RULES = {
    keras.optimizers.SGD: lambda o, given: rules.SGD(bool(given.get("momentum")), o.nesterov),
    keras.optimizers.Adam: lambda o, given: rules.AMSGrad() if o.amsgrad else rules.Adam(),
    keras.optimizers.RMSprop: lambda o, given: rules.RMSprop(0, False, epsilon_in_root=False),
}


class StatePort(TensorFlowPort):
    """What the state of an optimizer is on Keras 2.

    rate: the learning rate, a variable that the stock constructor makes.
    slots: what the rule keeps, by the names in a state.
    """

    knows_names = True
    counts_missing = False

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self.rate, self.slots = None, {}
        self._layouts = {}  # layouts of the stock optimizer's state, by the number of variables

    @property
    def rule(self):
        """The rule that replaces the stock optimizer's own code, None without a rule."""
        make = _RULES.get(self.optimizer._stock_class)
        return make and make(self.optimizer, self.given)

    @property
    def updates(self):
        return self.optimizer.iterations

    def layout_of(self, variables):
        """Return the layout of the stock optimizer's state for this number of variables."""
        if variables not in self._layouts:
            stock_class = self.optimizer._stock_class
            self._layouts[variables] = recording.layout(
                lambda: stock_class(**self.given), self.rule_name, variables
            )
        return self._layouts[variables]

    # -- names -------------------------------------------------------------------------------------

    def names_for(self, variables):
        rule, scalars = self.rule, ()
        if rule is None:
            scalars, slots = lists.names_of(self.layout_of(2).names, self.rule_name)
        else:
            slots = rule.slots
        accumulates = self.accumulation.options.accumulates
        return lists.slot_major(self.rule_name, scalars, slots, len(variables), accumulates)

    def names_of_rule(self, variables):
        """Return the names of slots and scalars for these variables, in the order of files."""
        return [n for n in self.names_for(variables) if n.startswith(f"{self.rule_name}.")]

    def stock_variables(self):
        return {**self.shared_variables(), **self.slots}

    def initial_values(self):
        values = K.get_session().run({name: v.initial_value for name, v in self.slots.items()})
        return states.initial(values)

    # -- values ------------------------------------------------------------------------------------

    def shape_of(self, variable):
        return K.int_shape(variable)

    def read(self, variable):
        return K.get_value(variable)

    def read_all(self, variables):
        return list(map(np.asarray, K.batch_get_value(variables)))

    def write(self, variable, value):
        K.set_value(variable, value)

    def write_all(self, pairs):
        K.batch_set_value(pairs)

    def rate_state(self):
        return {"learning_rate": np.asarray(self.read(self.rate))}

    def write_rate(self, rate):
        self.write(self.rate, rate)

    def add_waiting(self, name, array):
        return make(K.variable, array, array.dtype, name)

    def note_waiting(self):
        self.optimizer.weights = self.accumulation.state.variables()

    # -- arguments ---------------------------------------------------------------------------------

    host, title = "keras2", "standalone Keras 2"
    remedy = "compile the loaded model with {name}.from_optimizer(model.optimizer, accum_iters=5)"

    @staticmethod
    def keywords_of(stock_class):
        return dict.fromkeys(["learning_rate", *stock.keywords_of(stock_class)])

    @staticmethod
    def prepare(cls, own, given):
        stock_class = cls._stock_class
        if own["reduction"] == "weighted":
            raise ValueError(
                "reduction='weighted' isn't available on Keras 2.0 to 2.3, whose train step has no "
                "place for a weight: use reduction='mean', or a loss that sums and "
                "reduction='sum'."
            )
        if not stock.has_decay(stock_class):
            own["decay"] = float(given.pop("decay", 0.0))
        if "learning_rate" in given:
            rate = arguments.check_number("learning_rate", given.pop("learning_rate"))
            given[stock.rate_name_of(stock_class)] = rate
        given.update(stock.clips(given))

    def check_constructed(self):
        super().check_constructed()
        stock.check_variables(self.optimizer)

    @staticmethod
    def config_of(optimizer, config):
        if "clipnorm" in config:  # the other hosts call this norm `global_clipnorm`
            config["global_clipnorm"] = config.pop("clipnorm")
        if not stock.has_decay(optimizer._stock_class):
            config["decay"] = optimizer._accumulation.options.decay
        return config

    # -- from and to stock optimizers --------------------------------------------------------------

    @staticmethod
    def arguments_of(optimizer):
        config = arguments.config_of(optimizer)
        if "lr" in config:  # Keras 2.2
            config["learning_rate"] = config.pop("lr")
        return config

    def build(self, variables):
        """Make nothing: only a train step knows the model's loss."""

    def state_of_stock(self, optimizer):
        found = {"completed_updates": optimizer.iterations}
        if optimizer.weights:
            one, two = (len(self.layout_of(variables).files) for variables in (1, 2))
            layout = self.layout_of((len(optimizer.weights) - one) // (two - one) + 1)
            listed = dict(zip(layout.files, optimizer.weights))
            for name, attribute in layout.attributes.items():
                listed[name] = getattr(optimizer, attribute)
            names = self.names_of_rule([None] * states.count(layout.names))
            found.update({name: listed[name] for name in names if name in listed})
        return dict(zip(found, self.read_all(list(found.values())))), []

    def make_stock(self, config):
        stock_class, decay = self.optimizer._stock_class, self.accumulation.options.decay
        if decay:
            raise ValueError(
                f"`to_stock` with decay={decay}: {stock_class.__name__} of this Keras has no decay."
            )
        if not stock.has_decay(stock_class):
            del config["decay"]
        if "global_clipnorm" in config:
            config["clipnorm"] = config.pop("global_clipnorm")
        if "learning_rate" in config:
            config[stock.rate_name_of(stock_class)] = config.pop("learning_rate")
        return stock_class(**config)

    def continue_stock(self, optimizer):
        state = self.accumulation.state.get()
        self.write(optimizer.iterations, state["completed_updates"])
        if states.count(state):
            layout = self.layout_of(states.count(state))
            arrays = states.by_index(state)
            for name, attribute in layout.attributes.items():
                self.write(getattr(optimizer, attribute), state[name])
            stock.start_from(optimizer, [_stock_array(n, state, arrays) for n in layout.files])


def _stock_array(name, state, arrays):
    """Return the array for a name in a stock optimizer's files; None is an unused placeholder."""
    if name is None:
        return np.zeros(1, K.floatx())
    return np.asarray(state.get(name, np.zeros_like(arrays[states.index_of(name) or 0])))


def make(create, value, dtype, name):
    """Make a variable that has the last parts of a name in a state, without the rule's name.

    Names are short, because the names of all weights must fit into one HDF5 attribute of 64 kB.
    """
    with tf.name_scope(""):
        return create(value, dtype, "/".join(name.split(".")[-2:]))


# The part of a variable that a state needs. A variable's own shape is a list of `Dimension`.
Shape = namedtuple("Shape", "shape dtype")


def shapes_of(variables):
    return [Shape(K.int_shape(variable), K.dtype(variable)) for variable in variables]
