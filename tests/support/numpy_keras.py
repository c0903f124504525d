"""A Keras of NumPy arrays: the smallest port, and the reference for the engine's tests.

`SGD` is a stock optimizer, and the rest is what a port consists of: `Values`, `Store` and `Update`
with the abstract members of `engine.parts`, `make_parts`, `Stock` for conversion, and
`SGDAccumulate` with the methods that this Keras calls on an optimizer. One device shares each
micro-batch, so `parts.Replicas` is enough.

Within `tracing()` a value that a variable holds is `Unknown`: like a tensor in a traced function,
it has no truth value, so only then does the gate matter.
"""

import contextlib

import numpy as np

from keras_accum.convert import Convertible
from keras_accum.engine import parts
from keras_accum.engine.stock import Stock
from keras_accum.engine.window import is_unconditional

# -- this Keras ------------------------------------------------------------------------------------


class Variable:
    """An array with a name. A constraint changes it after each update."""

    def __init__(self, value, name="", constraint=None):
        self.array, self.name, self.constraint = np.array(value, "float64"), name, constraint
        self.trainable = True

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def assign(self, value):
        self.array = np.array(known(value), self.array.dtype).reshape(self.array.shape)


class Counter(Variable):
    """A variable that holds integers."""

    def __init__(self, value, name=""):
        super().__init__(value, name)
        self.array = np.array(value, "int64")


class SGD:
    """Momentum: v = momentum v - learning_rate g, then w = w + v, then the constraint."""

    def __init__(self, learning_rate=0.1, momentum=0.9):
        self.learning_rate, self.momentum = learning_rate, momentum
        self.iterations, self.variables, self.velocities = Counter(0, "iterations"), [], []

    def build(self, variables):
        self.variables = list(variables)
        self.velocities = [Variable(np.zeros(v.shape), f"{v.name}_momentum") for v in variables]

    def apply(self, gradients, variables):
        slots = {id(v): slot for v, slot in zip(self.variables, self.velocities)}
        for gradient, variable in zip(gradients, variables):
            slot = slots[id(variable)]
            moved = self.momentum * slot.array - self.learning_rate * known(gradient)
            self.write(variable, variable.array + moved)
            self.write(slot, moved)
        for variable in variables:
            if variable.constraint is not None:
                self.write(variable, variable.constraint(variable.array))
        self.write(self.iterations, self.iterations.array + 1)

    def write(self, variable, value):
        """Write a variable. Each write of an update goes through here."""
        variable.assign(value)

    def get_config(self):
        return {"learning_rate": self.learning_rate, "momentum": self.momentum}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Unknown(np.lib.mixins.NDArrayOperatorsMixin):
    """An array whose value Python may not look at."""

    def __init__(self, array):
        self.array = np.asarray(array)

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def __getitem__(self, index):
        return Unknown(self.array[index])

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        return Unknown(getattr(ufunc, method)(*map(known, inputs), **keywords))

    def __array_function__(self, function, types, arguments, keywords):
        return Unknown(function(*map(known, arguments), **keywords))

    def __bool__(self):
        raise TypeError("Python looked at a traced value")

    __int__ = __index__ = __float__ = __array__ = __bool__


def known(value):
    return value.array if isinstance(value, Unknown) else value


TRACES = []  # those in progress, the innermost first


@contextlib.contextmanager
def tracing():
    """Scope of a traced function."""
    TRACES.insert(0, object())
    try:
        yield
    finally:
        TRACES.pop(0)


# -- its port --------------------------------------------------------------------------------------


class NumPyValues(parts.Values):
    ops = np

    def traces(self):
        return list(TRACES)

    def value(self, variable):
        return Unknown(variable.array) if TRACES else variable.array[()]

    def add_in_place(self, variable, value):
        variable.assign(self.value(variable) + value)

    def one_when_computed(self, gradients):
        return Unknown(np.int64(1)) if TRACES else 1

    def as_count(self, condition):
        return self.cast(condition, "int64")

    def cast(self, value, dtype):
        if isinstance(value, Unknown):
            return Unknown(value.array.astype(dtype))
        return np.asarray(value, dtype)[()]

    def times(self, value, factor):
        with np.errstate(invalid="ignore"):  # infinity times zero
            return np.where(factor == 0, 0.0, value * factor)

    def all_finite(self, gradients):
        return self.count_if(np.min([np.min(np.isfinite(g)) for g in map(known, gradients)]))

    def norm(self, tensors):
        return np.sqrt(sum(np.sum(np.square(tensor)) for tensor in tensors))


class NumPyStore(parts.Store):
    def key(self, variable):
        return id(variable)

    def are_frozen(self, variables):
        return [not variable.trainable for variable in variables]

    @property
    def updates(self):
        return self.optimizer.iterations

    def by_name(self):
        slots = {f"SGD.momentum.{i}": v for i, v in enumerate(self.optimizer.velocities)}
        return {"completed_updates": self.updates, **slots}

    def add_counter(self, name, value, shape=()):
        return Counter(np.full(shape, value), name)

    def add_scalar(self, name, value):
        return Variable(value, name)

    def add_sum(self, variable):
        return Variable(np.zeros(variable.shape), f"{variable.name}_sum")

    def read(self, variable):
        return variable.array

    def write(self, variable, value):
        variable.assign(value)

    def rate(self):
        return self.optimizer.learning_rate

    def write_rate(self, rate):
        self.optimizer.learning_rate = float(rate)


class NumPyStock(Stock):
    def arguments(self, optimizer):
        return optimizer.get_config()

    def function_arguments(self, optimizer):
        return {}

    def variables(self, optimizer):
        return optimizer.variables

    def state(self, optimizer, store):
        return {name: v.array for name, v in zip(store.by_name(), _list_written(optimizer))}

    def write(self, optimizer, store):
        for variable, value in zip(_list_written(optimizer), store.by_name().values()):
            variable.assign(value.array)


def _list_written(optimizer):
    return [optimizer.iterations, *optimizer.velocities]


class NumPyUpdate(parts.Update):
    switches = None  # {id of a variable: switch} during an update

    @property
    def is_updating(self):
        return self.switches is not None

    def branch(self, step, update):
        if known(step.switch):
            update(step)

    def run(self, step, average, variables, switches):
        optimizer = self.optimizer
        slots = {id(v): slot for v, slot in zip(optimizer.variables, optimizer.velocities)}
        self.switches = {id(optimizer.iterations): step.switch}
        for variable, switch in zip(variables, switches):
            self.switches.update({id(variable): switch, id(slots[id(variable)]): switch})
        try:
            SGD.apply(optimizer, average(), variables)
        finally:
            self.switches = None

    def select(self, variable, value):
        """Return the value to write: the old one where the switch is 0."""
        switch = self.switches[id(variable)]
        return value if is_unconditional(switch) else np.where(switch > 0, value, variable.array)

    def count_updates(self, switch):
        """Do nothing: the stock optimizer counts its updates."""


def make_parts(optimizer, options):
    three = NumPyValues("float64"), parts.Replicas(), NumPyStore(optimizer)
    return parts.Parts(*three, NumPyUpdate(optimizer, options, *three))


class SGDAccumulate(Convertible, SGD):
    """The accumulating SGD: the methods that this Keras calls on an optimizer."""

    _keras_name, _make_parts, _stock_optimizers = "numpy", staticmethod(make_parts), NumPyStock()

    def build(self, variables):
        variables = list(variables)
        with self._accumulation.building(variables):
            super().build(variables)
        self._accumulation.state.write_pending()

    def apply(self, gradients, variables):
        if not self.variables:
            self.build(variables)
        given = [(g, v) for g, v in zip(gradients, variables) if g is not None]
        gradients, variables = map(list, zip(*given))
        if self._accumulation.store.has_all(variables):
            variables = self._accumulation.store.variables  # so the engine looks for none missing
        self._accumulation.micro_batch(gradients, variables)

    def write(self, variable, value):
        super().write(variable, self._accumulation.update.select(variable, value))
