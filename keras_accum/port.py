"""What a Keras must do for the engine. No host is imported here.

A port answers for one optimizer. The engine (`accumulation`) calls a port in the order of a train
step: values (`totals`, `averages`), the stock optimizer's writes (`update`), the sums (`keep`), and
the counters (`count_updates`).

On TensorFlow a train step runs once in each replica, and writes once for all replicas: `across`
changes from a replica to the context of all replicas, and `on` reaches a variable's copies there.
Elsewhere both only call the function.
"""

import abc
import contextlib

import numpy as np

from keras_accum import arguments, states, window
from keras_accum.options import check_attributes


class HostPort(abc.ABC):
    """What is known of a Keras and of one optimizer's constructor.

    host: the name of the Keras's module in this package.
    title: the name of the Keras in messages.
    import_keras: the line that imports the Keras, for docstrings.
    can_reduce_late: True if the Keras has all_reduce="per_window".
    elsewhere: {argument: sentence} of arguments that other classes of the Keras take.
    not_arguments: the keys of a config that are no arguments.
    unknown_argument: the type of the stock optimizers' error for an unknown keyword.
    remedy: how to set accum_iters on a model that was loaded from a file without accum_iters.
    optimizer: the accumulating optimizer.
    given: the arguments of the stock constructor.
    """

    host = title = None
    import_keras = "import keras"
    can_reduce_late = False
    unknown_argument = TypeError
    elsewhere = {}
    not_arguments = ()
    remedy = "set model.optimizer.accum_iters = 5 before the first step of the loaded model"

    def __init__(self, optimizer, given):
        self.optimizer, self.given = optimizer, given

    @property
    def accumulation(self):
        return self.optimizer._accumulation

    @staticmethod
    def keywords_of(stock):
        """Return the keywords, with defaults, that a stock class takes and doesn't name."""
        return arguments.keywords_of(stock)

    @staticmethod
    @abc.abstractmethod
    def prepare(cls, own, given):
        """Change our arguments and the stock constructor's for this Keras, or raise an error."""

    def check_constructed(self):
        """Raise a TypeError if the stock constructor has made what we can't work with."""
        check_attributes(self.optimizer, vars(self.optimizer))

    @staticmethod
    @abc.abstractmethod
    def config_of(optimizer, config):
        """Return a config of the stock optimizer with the names and values of our arguments."""

    # -- other optimizers with the same state ------------------------------------------------------

    @classmethod
    def stock_classes(cls, family, optimizer):
        """Return the classes of stock optimizers that `optimizer` may be of, to become `family`."""
        return {family._stock_class}

    @staticmethod
    @abc.abstractmethod
    def arguments_of(optimizer):
        """Return a stock optimizer's or our optimizer's arguments, as our classes take them."""

    def build(self, variables):
        """Make what these variables need, unless only a train step can."""
        self.optimizer.build(variables)

    @abc.abstractmethod
    def state_of_stock(self, optimizer):
        """Return a stock optimizer's state, and the keys of its variables, in order.

        There are no keys if the state is in the order of the model.
        """

    @abc.abstractmethod
    def make_stock(self, config):
        """Return a stock optimizer with a config of our optimizer, without what is only ours."""

    @abc.abstractmethod
    def continue_stock(self, optimizer):
        """Build a stock optimizer for the same variables, with this optimizer's state."""


class StatePort(HostPort):
    """What the state of one optimizer is on its Keras. Names are those in a state; see `states`.

    knows_names: True if the constructor's arguments tell the names and shapes of a state.
    counts_missing: True if gradients can be missing in a micro-batch.
    accumulates_itself: True if the stock optimizer keeps gradient sums, too.
    """

    knows_names = False
    counts_missing = True
    accumulates_itself = False

    @property
    def rule_name(self):
        """The name of the rule in a state. AdamW is Adam with a different weight decay."""
        if getattr(self.optimizer, "amsgrad", False):
            return "AMSGrad"
        name = self.optimizer._stock_class.__name__
        return {"AdamW": "Adam"}.get(name, name)

    # -- the model's variables ---------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def variables(self):
        """The trainable variables that the optimizer knows, in the order of the model."""

    @abc.abstractmethod
    def key(self, variable):
        """Return a hashable key, the same for each reference to a variable."""

    @property
    def keys(self):
        """The keys of `variables`, in order."""
        return [self.key(variable) for variable in self.variables]

    @abc.abstractmethod
    def name_of(self, variable):
        """Return a variable's name, for messages."""

    @abc.abstractmethod
    def are_frozen(self, variables):
        """Return a list: for each of these variables, True if its layer is frozen now."""

    def overwrites(self, variable):
        """True if a gradient is the variable's next value; such gradients aren't summed."""
        return False

    # -- names -------------------------------------------------------------------------------------

    def shared_variables(self):
        """Return the variables that exist before `build`, by name."""
        return {"completed_updates": self.updates}

    @abc.abstractmethod
    def stock_variables(self):
        """Return the variables of the stock optimizer by name, in the order of this Keras's files.

        Before `build`, these are the shared variables.
        """

    def stock_list(self, shapes):
        """Return the stock optimizer's list of variables as `{name: shape}`.

        `shapes` has the names and shapes of the state. A variable that is part of no state has
        another name.
        """
        if not self.accumulation.options.accumulates:
            return shapes
        of_window = {name for name in shapes if states.is_of_window(name) or name == "state_format"}
        return {name: shape for name, shape in shapes.items() if name not in of_window}

    def names_for(self, variables):
        """Return the names of a state for variables of these shapes, in the order of files."""
        return list(self.likeness(variables)._accumulation.state.named())

    def shapes_for(self, variables):
        """Return the names and shapes that these variables will get, in the order of files."""
        names = self.names_for(variables)
        return {**dict.fromkeys(names, ()), **states.layout(names, variables)}

    def likeness(self, variables):
        """Return an optimizer like this one, built for other variables of these shapes."""
        optimizer = type(self.optimizer)._like(self.arguments_of(self.optimizer))
        dtype = getattr(self.scalar_dtype, "name", self.scalar_dtype)
        optimizer.build([self.add_waiting(None, np.zeros(v.shape, dtype)) for v in variables])
        return optimizer

    def initial_values(self):
        """Return the initial values of slots and scalars by name, slots without the last index."""
        state = self.likeness([np.zeros(())])._accumulation.state.read()
        return states.initial({n: a for n, a in state.items() if n.startswith(self.rule_name)})

    # -- values ------------------------------------------------------------------------------------

    def shape_of(self, variable):
        """Return a variable's shape as a tuple of ints."""
        return tuple(variable.shape)

    @abc.abstractmethod
    def rate_state(self):
        """Return the learning rate as part of a state, empty if it isn't a number."""

    @abc.abstractmethod
    def write_rate(self, rate):
        """Set the learning rate, if it is a number."""

    @abc.abstractmethod
    def read(self, variable):
        """Return a variable's value between train steps, as a NumPy array."""

    def read_all(self, variables):
        """Return the values of variables."""
        return list(map(self.read, variables))

    @abc.abstractmethod
    def write(self, variable, value):
        """Write a variable between train steps."""

    def write_all(self, pairs):
        """Write variables, each with its value."""
        for variable, value in pairs:
            self.write(variable, value)

    def eagerly(self):
        """A scope in which reading and writing aren't part of a graph that is being traced."""
        return contextlib.nullcontext()

    # -- a state that waits for its variables ------------------------------------------------------

    @abc.abstractmethod
    def add_waiting(self, name, array):
        """Make a variable that holds an array of the state."""

    def note_waiting(self):
        """Tell Keras what it must know of a state that was loaded before the variables."""
        return

    def check_order(self):
        """Raise a StateError if the order of the variables in the model isn't known."""
        return

    def without_wrapper(self, arrays):
        """Return a list of arrays without those of an optimizer around this one."""
        return arrays


class Port(StatePort):
    """The Keras of one optimizer, in a train step.

    ops: a namespace with `where`, `logical_and`, `zeros_like` and `ones_like`.
    counts_with: the namespace that computes with counters, with `where`, `equal`, `maximum` and
        `ones_like`.
    tells_of_the_end: True if Keras itself tells the optimizer that a training ends.
    scalar_dtype: the data type of weights and norms, float64 if Keras's floatx is.
    window_order: the names of the window's variables, in the order in which they are made.
    """

    ops = counts_with = None
    window_order = ()
    scalar_dtype = "float32"
    tells_of_the_end = False

    @property
    def loss_scale(self):
        """The factor in the gradients that the stock optimizer takes out in an update."""
        return 1.0

    # -- the variables of a window -----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def updates(self):
        """The variable that counts updates."""

    @abc.abstractmethod
    def add_counter(self, name, value, shape=()):
        """Make an integer variable of the optimizer."""

    @abc.abstractmethod
    def add_scalar(self, name, value):
        """Make a floating-point scalar of the optimizer."""

    @abc.abstractmethod
    def add_sum(self, variable):
        """Make the gradient sum of a variable: of its dtype, but float32 for half precision."""

    def sum_scope(self):
        """The scope for making what each replica keeps for itself with a late reduction."""
        return contextlib.nullcontext()

    def add_norm(self, name):
        """Make a floating-point scalar, -1.0, that isn't part of the state."""
        raise NotImplementedError

    def rate_in_use(self):
        """Return the learning rate of the next update for a monitor, as a float."""
        raise NotImplementedError

    # -- values ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def value(self, variable):
        """Return a variable's value in a train step."""

    def count_of(self, counter):
        """Return a counter's value in a train step, for `counts_with`."""
        return self.value(counter)

    @abc.abstractmethod
    def one_after(self, gradients):
        """Return the count 1. It must not be computed before the gradients, which may fail."""

    @abc.abstractmethod
    def count_if(self, condition):
        """Return the count 1 if a condition of a user is true, else 0."""

    @abc.abstractmethod
    def cast(self, value, dtype):
        """Return a value as a tensor of this data type."""

    @abc.abstractmethod
    def times(self, value, factor):
        """Return value * factor; zero where the factor is zero, even for infinite values or NaN."""

    @abc.abstractmethod
    def plus(self, total, gradient):
        """Return the value of a sum plus a gradient."""

    @abc.abstractmethod
    def all_finite(self, gradients):
        """Return the count 1 if all elements are finite, else 0."""

    @abc.abstractmethod
    def is_finite(self, value):
        """True where a value is finite."""

    @abc.abstractmethod
    def norm(self, tensors):
        """Return the global norm of tensors."""

    def dense(self, gradient):
        """Return a gradient that may be sparse as a dense tensor."""
        return gradient

    def without_gradient(self, weight):
        """Return a weight in a form that can leave a function that is differentiated."""
        return weight

    def kept(self, gradients, counted):
        """Return the gradients, or zeros if `counted` is 0."""
        return [self.times(g, self.cast(counted, g.dtype)) for g in gradients]

    def totals(self, sums, gradients, variables):
        """Return the window's sums including these gradients."""
        return list(map(self.plus, map(self.value, sums), gradients))

    def steps_of(self, step, absent):
        """Return, by index, the steps of variables whose gradients are missing in a micro-batch."""
        return {index: window.of_variable(step, index) for index in absent}

    def averages(self, totals, variables, steps, reduction):
        """Return what the sums of a window become in an update: zeros inside a window."""
        found = {}  # each scale is computed once

        def average(total, step):
            key = id(step), total.dtype
            if key not in found:
                found[key] = window.scale(
                    self.ops, step, reduction, lambda x: self.cast(x, total.dtype)
                )
            return self.times(total, found[key])

        return [
            total if self.overwrites(variable) else average(total, step)
            for total, variable, step in zip(totals, variables, steps)
        ]

    # -- writes ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def update(self, step, averages, variables, switches):
        """Make the stock optimizer's update, which changes nothing where a switch is 0.

        `switches` has a switch for each variable. The step's switch is that of everything else.
        All values are computed before the first write.
        """

    @abc.abstractmethod
    def count_updates(self, switch):
        """Add the switch to the number of updates, unless `update` does that."""

    def assign(self, variable, value):
        """Write a variable in the context of all replicas."""
        self.on(variable, lambda variable, target, value: target.assign(value), value)

    @abc.abstractmethod
    def add_to(self, target, gradient):
        """Add a gradient in place to a copy of a sum."""

    def add_all(self, sums, gradients, variables):
        """Add the gradients of variables in place to sums, in the context of all replicas."""
        for total, gradient in zip(sums, gradients):
            self.on(total, lambda _, target, gradient: self.add_to(target, gradient), gradient)

    def keep(self, step, totals, variables):
        """Write the rest of the sums: whole sums inside a window, zeros after its end."""
        sum_of = self.accumulation.window.sum_of
        rests = {total.dtype: self.cast(1 - step.switch, total.dtype) for total in totals}
        holds = [rests[total.dtype] for total in totals]

        def write(variable, target, total, hold):
            return sum_of(variable).assign(self.rest(total, hold, target))

        def across(*tensors):
            for variable, total, hold in zip(variables, tensors, tensors[len(variables) :]):
                self.on(variable, write, total, hold)

        self.across(across, *totals, *holds)

    def rest(self, total, hold, written):
        """Return what is left of a sum after `written`, its variable, was updated."""
        return self.times(total, hold)

    def after_writes(self):
        """A scope for what must not be written before all earlier writes of the train step."""
        return contextlib.nullcontext()

    # -- replicas and control flow -----------------------------------------------------------------

    @abc.abstractmethod
    def is_traced(self):
        """True if computations become part of a traced program."""

    def replica(self):
        """Return the number of the replica that runs or traces a train step."""
        return 0

    def replicas(self):
        """Return the number of replicas that share a micro-batch."""
        return 1

    def reduce(self, tensors, variables):
        """Return the sums over replicas of tensors that belong to these variables."""
        return tensors

    def in_any_replica(self, count):
        """Return 1 if this count, which is 0 or 1, is 1 in any replica, else 0."""
        return count

    def across(self, function, *tensors):
        """Call a function once for all replicas with the tensors of all of them."""
        function(*tensors)

    def on(self, variable, function, *tensors):
        """Call `function(variable, target, *tensors)` for each copy (target) of a variable.

        The function returns what a write returns: in TensorFlow 1, the operation.
        """
        function(variable, variable, *tensors)

    def known(self, step):
        """True or False if Python knows whether the step makes an update, else None."""
        return None

    @abc.abstractmethod
    def branch(self, step, gradients, update, add):
        """Call one of two functions of step and gradients, by the step's switch."""

    def check_between_steps(self):
        """Raise an error if `between_steps` can't be called now."""
        if self.is_traced():
            raise RuntimeError(
                "`apply_partial_window` is for the time between train steps: it can't be called in "
                "a traced function (tf.function, jax.jit, torch.compile). Call it after the traced "
                "function has returned."
            )

    def between_steps(self, function, *arguments):
        """Call a function of a train step from outside of a train step."""
        function(*arguments)
