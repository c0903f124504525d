"""What the rest of the package knows of a Keras, and a callback's class for it."""

import inspect
from typing import Type, TypeVar

Shared = TypeVar("Shared")

# The first lines in docstrings' examples.
SET_UP = """\
>>> import numpy as np
>>> {import_keras}
>>> model = keras.Sequential([keras.layers.Dense(1)])
>>> x, y = np.ones((100, 3)), np.ones((100, 1))"""


class Host:
    """The Keras that a model is written in. Each Keras has a subclass.

    ops: an object with some functions of `keras.ops`.
    list_added_losses: lists the losses that layers added to a step, without weight penalties.
    has_penalties: returns True if weights that train have penalties.
    flatten: lists the leaves in a nested structure.
    get_mask, set_mask: read and write the mask on a layer's output, which may be None.
    find_losses: returns Keras's container of a model's losses or None, the name of their list in
        it, and a function that replaces the loss in an item by the result of another function.
    list_loss_weights: lists the weight of each loss in a container that is built, None for 1.
    loss_metrics: lists the metrics that average a model's losses, "loss" first if it's there.
    make_sum_loss: returns a loss without `call`, with reduction "sum".
    least_weight: the least weight of a micro-batch in `fit`.
    read, write: a variable's value as a NumPy array, and the inverse. `read` also takes a tensor.
    is_traced: False if train steps run eagerly, so Python sees every value.
    closes_in_steps: True if no later epoch has more batches than `fit` has said, so that the last
        step of an epoch can close a window that isn't whole.
    """

    name = keras = ops = flatten = get_mask = read = None
    import_keras, shape = "import keras", "keras.ops.shape"  # in docstrings' examples
    is_traced, closes_in_steps = True, False
    # Not 0: a window in which all is masked has the average gradient, as the big batch.
    least_weight = 1e-25

    @staticmethod
    def write(variable, value):
        variable.assign(value)

    def list_layers(self, model):
        """Return the model and all layers in it."""
        return list(model._flatten_layers())

    def list_kept(self, layer):
        """Return the values that a layer's calls may change, without its random state."""
        return [*getattr(layer, "_non_trainable_variables", ()), *self.list_states(layer)]

    def is_stateful(self, layer):
        """Return True for a recurrent layer that carries states from batch to batch."""
        return isinstance(layer, self.keras.layers.RNN) and layer.stateful

    def list_states(self, layer):
        """Return what a stateful recurrent layer carries from batch to batch."""
        states = self.flatten(layer.states) if self.is_stateful(layer) else []
        return [state for state in states if state is not None]  # None before `build`

    def list_buffers(self, model):
        """Return the values in a model that are no variables of its Keras."""
        return []

    def find_own_gradients(self, optimizer):
        """Return the user's method by which an optimizer computes gradients, in words, or ""."""
        return ""

    def find_process_group(self, model):
        """Return the processes among which `fit` averages gradients, None if it doesn't."""
        return None

    def hides_train_steps(self):
        """Return True if Keras ignores a replaced train step."""
        return False

    def counts_by_itself(self, callback):
        """Return True if a Keras callback ignores the batch numbers it is given."""
        return False

    def waits_for_steps(self, model):
        """Return False if train steps are still running when Keras calls the callbacks."""
        return True

    def steps_per_execution(self, model):
        return model.steps_per_execution

    def callback(self, shared: Type[Shared], **members) -> Type[Shared]:
        """Return a callback's class for this Keras, with the fields in its docstring filled in."""
        doc = inspect.cleandoc(shared.__doc__).replace("{set_up}", SET_UP)
        doc = doc.format(module=self.name, import_keras=self.import_keras, shape=self.shape)
        members.update(host=self, __module__=f"keras_accum.{self.name}", __doc__=doc)
        return type(shared.__name__, (shared, self.keras.callbacks.Callback), members)
