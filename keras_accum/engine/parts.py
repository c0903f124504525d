"""The parts of a Keras that the engine works with. No Keras is imported here.

`Values` does the framework's mathematics, `Replicas` reaches the devices that share a micro-batch,
`Store` has the optimizer's variables and their names, and `Update` runs the stock optimizer's
update. Update calls the other three; replicas and store know no other part. The window's gradient
sums (`sums.Sums`) are the engine's own, on every Keras.

In a micro-batch the engine calls, in this order:

1. `Replicas.reduce`, then `Values.one_when_computed` (if micro-batches may be dropped, others);
2. `Sums.add`;
3. where a gate makes an update, in a `branch` or not: `Sums.totals`, then `Update.run`, which calls
   `Sums.averages`, then `Sums.keep`;
4. `Update.assign` for each counter, and `Update.count_updates`.

For a micro-batch with a weight, it begins with `Sums.as_summed` and `Replicas.reduce_weighted`.

Each optimizer has its own parts, put together by a function `make_parts` of its Keras.
"""

import abc
import contextlib
import itertools
import operator
from collections import namedtuple

import numpy as np

from keras_accum.engine.window import is_known, is_unconditional
from keras_accum.host import runs_code_of_keras

Parts = namedtuple("Parts", "values replicas store update")


def scalar_dtype(floatx):
    """Return the dtype for weights, norms and rates: float64 if Keras's floatx is, else float32."""
    return "float64" if floatx == "float64" else "float32"


def sum_dtype(dtype):
    """Return the dtype of a sum of gradients: in half precision, it could overflow or stall."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def fits(gradient, variable):
    """Return True if a gradient has the variable's shape, as far as a graph knows it."""
    if gradient is None:
        return False
    if not hasattr(gradient, "shape"):  # a sparse one on TensorFlow 1
        return True
    shape, expected = gradient.shape, list(map(int, variable.shape))
    if hasattr(shape, "as_list"):  # TensorFlow's
        shape = [] if shape.ndims is None else shape.as_list()
    return len(shape) == len(expected) and all(n in (None, m) for n, m in zip(shape, expected))


class Values(abc.ABC):
    """The values in a train step: tensors of a framework.

    A *count* is a 0 or 1: a tensor in the dtype of the counters, or a number that Python knows.
    restores_checkpoints: False if nothing restores a window's variables past the optimizer.
    scalar_dtype: The dtype for weights and norms; see the function of this name.
    """

    restores_checkpoints = True

    def __init__(self, scalar_dtype="float32"):
        self.scalar_dtype = scalar_dtype

    @property
    @abc.abstractmethod
    def ops(self):
        """A namespace with `where`, `equal`, `maximum`, `zeros_like` and `ones_like`."""

    def ops_of(self, value):
        """Return the namespace for a value, such as a counter: NumPy if Python knows it."""
        return np if is_known(value) else self.ops

    @abc.abstractmethod
    def traces(self):
        """Return the programs being traced, the innermost first; none if steps run eagerly."""

    def is_traced(self):
        """Return True in a traced function."""
        return bool(self.traces())

    @abc.abstractmethod
    def value(self, variable):
        """Read a variable."""

    def read_counter(self, counter):
        """Read a counter. Python knows its value, except in a trace."""
        value = self.value(counter)
        return value if self.is_traced() else np.asarray(value)[()]

    def read_scalar(self, variable):
        """Read a scalar. Python knows its value if it needn't wait for it."""
        return self.value(variable)

    @abc.abstractmethod
    def add_in_place(self, variable, value):
        """Add to a variable, and return the operation in a graph of TensorFlow 1."""

    @abc.abstractmethod
    def one_when_computed(self, gradients):
        """Return a count of 1 that exists only once all gradients do."""

    def count_if(self, condition):
        """Return the count 1 if a user's condition is true, else 0."""
        return self.as_count(condition) if self.is_traced() else int(bool(condition))

    @abc.abstractmethod
    def as_count(self, condition):
        """Return `count_if` as a tensor."""

    @abc.abstractmethod
    def cast(self, value, dtype):
        """Convert a value to a tensor of this dtype."""

    def scalar(self, value, dtype):
        """Convert a user's scalar to a tensor of this dtype, or to a number that Python knows."""
        return self.cast(value, dtype)

    @abc.abstractmethod
    def times(self, value, factor):
        """Multiply; a factor of zero gives zero, even for infinity and NaN."""

    def scale_all(self, tensors, factor):
        """Multiply each tensor by one factor; zero gives zero, even for infinity and NaN."""
        return [self.times(tensor, self.cast(factor, tensor.dtype)) for tensor in tensors]

    def remainder(self, total, hold, written):
        """Return a sum's new value, sequenced after the write to its variable `written`."""
        return self.times(total, hold)

    @abc.abstractmethod
    def all_finite(self, gradients):
        """Return the count 1 if all elements are finite, else 0."""

    @abc.abstractmethod
    def norm(self, tensors):
        """Return the global norm."""

    def dense(self, gradient):
        """Convert a gradient that may be sparse to a dense tensor."""
        return gradient

    def without_gradient(self, value):
        """Stop a value's gradient."""
        return value

    def zero_unless(self, gradients, counted):
        """Return the gradients, or zeros if `counted` is 0."""
        if is_unconditional(counted):
            return gradients
        return self.scale_all(gradients, counted)

    def mask(self, values, switches):
        """Return the values, with zeros where the switch is 0."""
        return [
            value if is_unconditional(switch) else self.times(value, self.cast(switch, value.dtype))
            for value, switch in zip(values, switches)
        ]

    # -- lists with an item for each variable, which a framework may fuse -------------------------

    adds_multiples = False  # True if `add_each` and `plus_each` multiply by the factor

    def cast_each(self, gradients, totals):
        """Return gradients in the dtypes of their sums, the variables `totals`."""
        return [self.cast(g, total.dtype) for g, total in zip(gradients, totals)]

    def shape_each(self, gradients, totals):
        """Return gradients in the shapes of their sums, or raise an error."""
        for gradient, total in zip(gradients, totals):
            if not fits(gradient, total):
                raise ValueError(
                    "A gradient must have the shape of its variable. Give the gradients in the "
                    f"order of the variables. Received: the shape {gradient.shape}, for a "
                    f"variable of the shape {total.shape}"
                )
        return gradients

    def add_each(self, replicas, totals, gradients, factor):
        """Add gradients, in the dtypes and shapes of their sums, to the variables `totals`."""
        replicas.on_each(totals, lambda total, target, g: self.add_in_place(target, g), gradients)

    def plus_each(self, totals, gradients, factor):
        """Return the sums of the variables `totals` and gradients, and write nothing."""
        return [self.value(total) + gradient for total, gradient in zip(totals, gradients)]

    def copies(self, totals):
        """Return the values of the variables `totals`, which later writes don't change."""
        return list(map(self.value, totals))

    def scale_copies(self, tensors, factor):
        """Multiply tensors that nobody else has by one factor; zero gives zero, also for NaN."""
        return self.scale_all(tensors, factor)

    def zero_each(self, replicas, totals):
        """Set the variables `totals` to zero."""

        def write(total, target):
            return target.assign(self.ops.zeros_like(self.value(target)))

        replicas.on_each(totals, write)


class Replicas:
    """The devices that share a micro-batch. This class is for a single one.

    On TensorFlow each replica runs a train step, and variables are written once for all replicas:
    `across` enters the cross-replica context, and `on` reaches a variable's copies there.
    """

    def index(self):
        """Return the current replica's index."""
        return 0

    def count(self):
        """Return the number of replicas that share a micro-batch."""
        return 1

    def reduce(self, tensors, variables):
        """Sum tensors, one for each variable, over replicas."""
        return tensors

    def reduce_weighted(self, gradients, variables, weight, of_window):
        """Sum gradients and the micro-batch's weight, whose variable is `of_window`, at once."""
        *gradients, weight = self.reduce([*gradients, weight], [*variables, of_window])
        return gradients, weight

    def share(self, weight, loss, group=None):
        """Return a micro-batch's weight and loss, so that several processes are one.

        This is for processes whose gradients something else averages. The weight becomes that of
        all of them, and the loss is multiplied by this one's share in it.
        """
        return weight, loss

    def in_any(self, count):
        """Return 1 if the count is 1 in any replica, else 0."""
        return count

    def across(self, function, *tensors):
        """Call a function once for all replicas, with the tensors of each."""
        function(*tensors)

    def on(self, variable, function, *tensors):
        """Call `function(variable, target, *tensors)` for each copy (target) of a variable."""
        function(variable, variable, *tensors)

    def on_each(self, variables, function, *lists):
        """Call `on` for each variable, across replicas, with its tensor from each list."""

        def across(*tensors):
            for index, variable in enumerate(variables):
                self.on(variable, function, *tensors[index :: len(variables)])

        self.across(across, *itertools.chain(*lists))

    def between_steps(self, function):
        """Call a function of the train step from outside a train step."""
        function()


class Store(abc.ABC):
    """One optimizer's variables, and their names in a state.

    variables: The trainable variables that the optimizer was built for, in the model's order.
    sums: Their accumulators, without a window none.
    to_build: In messages: how to create an optimizer's variables.
    """

    variables = sums = ()
    to_build = "call `optimizer.build(model.trainable_variables)`"

    def __init__(self, optimizer):
        self.optimizer = optimizer

    # -- the model's variables ---------------------------------------------------------------------

    @abc.abstractmethod
    def key(self, variable):
        """Return a hashable key, the same for each reference to a variable."""

    @abc.abstractmethod
    def are_frozen(self, variables):
        """Return for each variable True if its layer is frozen now."""

    def get_name(self, variable):
        """Return a variable's name, for messages."""
        return variable.name

    def check_names(self):
        """Raise a ValueError for names of variables that a state can't tell apart."""

    def list_layers(self, layer):
        """Return the layers that a layer or model has itself, not those inside of them."""
        return layer._flatten_layers(recursive=False, include_self=False)

    def has_all(self, variables):
        """Return True for the model's variables, all and in their order."""
        known = self.variables
        return len(variables) == len(known) and all(map(operator.is_, variables, known))

    # -- the optimizer's variables -----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def updates(self):
        """The variable that counts updates."""

    @abc.abstractmethod
    def by_name(self):
        """Return the stock optimizer's variables by their names in a state, in file order.

        `completed_updates` is there before `build`, and `learning_rate` if it is a variable.
        """

    @abc.abstractmethod
    def add_counter(self, name, value, shape=()):
        """Create an integer variable for the window."""

    @abc.abstractmethod
    def add_scalar(self, name, value):
        """Create a floating-point scalar for the window."""

    @abc.abstractmethod
    def add_sum(self, variable):
        """Create an accumulator in the `sum_dtype` of the variable."""

    def create_sums(self):
        """Create an accumulator for each variable, and return them."""
        self.sums = list(map(self.add_sum, self.variables))
        self._sum_by_key = dict(zip(map(self.key, self.variables), self.sums))
        return self.sums

    def list_sums(self, variables):
        """Return these variables' accumulators."""
        if variables is self.variables:
            return self.sums
        return [self._sum_by_key[self.key(variable)] for variable in variables]

    # -- the state, between train steps ------------------------------------------------------------

    @abc.abstractmethod
    def read(self, variable):
        """Return a variable's value as a NumPy array."""

    @abc.abstractmethod
    def write(self, variable, value):
        """Write a NumPy array to a variable."""

    def rate(self):
        """Return the learning rate as a float, None if it isn't a number."""
        variable = self.by_name().get("learning_rate")
        return None if variable is None else float(self.read(variable))

    def write_rate(self, rate):
        """Set a learning rate that is a number."""
        self.write(self.by_name()["learning_rate"], rate)

    def rate_in_use(self):
        """Return the next update's learning rate as a float."""
        return float(self.read(self.optimizer.learning_rate))

    def start_training(self):
        """Prepare the variables for `fit`."""

    # -- the rule ----------------------------------------------------------------------------------

    @property
    def stock_class(self):
        """The stock class."""
        return type(self.optimizer)._stock_class

    @property
    def rule_name(self):
        """The rule's name in a state. AdamW is Adam with a different weight decay."""
        if getattr(self.optimizer, "amsgrad", False):
            return "AMSGrad"
        name = self.stock_class.__name__
        return "Adam" if name == "AdamW" else name


class Update(abc.ABC):
    """The stock optimizer's update, and the writes of counters.

    step_is_fixed: True if a user can't change the train step.
    is_updating: True while the stock optimizer makes its update.
    runs_code_of_keras: False if a user's class may change the update.
    """

    step_is_fixed = is_updating = False

    def __init__(self, optimizer, options, values, replicas, store):
        self.optimizer, self.options = optimizer, options
        self.values, self.replicas, self.store = values, replicas, store
        self.runs_code_of_keras = runs_code_of_keras(type(optimizer))

    # -- deciding ----------------------------------------------------------------------------------

    def runs_user_code(self):
        """Return True if an update may run a user's code, which may do anything."""
        return bool(self.options.window_transforms) or not self.runs_code_of_keras

    def prefers_branch(self):
        """Return True if gate="auto" means a branch in the current context."""
        return False

    @abc.abstractmethod
    def branch(self, step, update):
        """Call `update(step)` in a branch that runs if the switch is 1."""

    # -- updating ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def run(self, step, average, variables, switches):
        """Make the stock optimizer's update, and change nothing where a switch is 0.

        `average()` returns the gradients. `switches` has one for each variable; everything else has
        the step's switch.
        """

    def take_back(self, held):
        """Restore old values where a switch is 0. `held` has (variable, switch, old value)."""
        values = self.values

        def select(variable, target, switch, old):
            return target.assign(values.ops.where(switch > 0, values.value(target), old))

        if held:
            variables, switches, old = zip(*held)
            self.replicas.on_each(variables, select, switches, old)

    def check_norm(self, base, methods):
        """Raise a TypeError if a missing gradient could count in the global norm.

        It could if the stock class overrides one of these methods of `base`, Keras's own class.
        """
        clip, stock = self.optimizer.global_clipnorm, self.store.stock_class
        if clip and any(getattr(stock, name) is not getattr(base, name) for name in methods):
            raise TypeError(
                f"A gradient is missing in a micro-batch, and {stock.__name__} could change "
                "its zero, which would then count in the global norm. Change gradients in the "
                f"train step, or leave `global_clipnorm` out. Received: global_clipnorm={clip}"
            )

    def check_is_update(self, method):
        """Raise a RuntimeError if something else than our update calls a part of it."""
        if not self.is_updating:
            name, stock = type(self.optimizer).__name__, self.store.stock_class.__name__
            raise RuntimeError(
                f"`{method}` of {name} was called from outside, as by an optimizer that wraps it: "
                "the update would use a single micro-batch. Write the wrapper as a subclass of "
                f"{stock}, and pass that to `accumulating`."
            )

    # -- counting ----------------------------------------------------------------------------------

    def after_writes(self):
        """Return a scope for writes after all earlier ones in the train step."""
        return contextlib.nullcontext()

    def assign(self, variable, value):
        """Write a variable, in the cross-replica context."""
        self.replicas.on(variable, lambda variable, target, value: target.assign(value), value)

    @abc.abstractmethod
    def count_updates(self, switch):
        """Add the switch to the count of updates, unless `run` does."""

    # -- between train steps -----------------------------------------------------------------------

    def between_steps(self, update, of_variables):
        """Call `update()` between train steps, which reads and writes what `of_variables` name."""
        update()

    def check_between_steps(self, method):
        """Raise an error if `method` can't close a window now."""
        if self.values.is_traced():
            raise RuntimeError(
                f"`{method}` can't be called in a traced function (tf.function, "
                "jax.jit, torch.compile): call it between train steps."
            )
