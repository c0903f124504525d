"""A model in a comparison. Each Keras has a subclass of `Subject`."""

import contextlib
import random

import numpy as np

from keras_accum.compare.put_back import Kept
from keras_accum.compare.verdict import precision_of
from keras_accum.host import is_of_keras
from keras_accum.host.scopes import attribute, undone

# Keras's layers that draw random numbers, with the attributes that switch this off. Most others,
# such as MultiHeadAttention, contain one of them.
_DRAWING = {
    **dict.fromkeys(["Dropout", "AlphaDropout", "GaussianDropout"], ["rate"]),
    "GaussianNoise": ["stddev"],
    **dict.fromkeys(["Attention", "BaseDenseAttention", "GroupedQueryAttention"], ["dropout"]),
    **dict.fromkeys(["DropoutRNNCell", "DropoutRNNCellMixin"], ["dropout", "recurrent_dropout"]),
}
_HALVES = "float16", "bfloat16"


def _find_drawing(each):
    """Return the attributes to switch off an object's random draws."""
    kinds = [cls.__name__ for cls in type(each).__mro__ if is_of_keras(cls)]
    return [name for kind in kinds for name in _DRAWING.get(kind, ())]


class Subject:
    """A model in a comparison. Each Keras has a subclass with these members.

    package: the module with the public names for this Keras.
    host: the Host of this Keras.
    of_parts: data types in which this Keras computes parts of any model.
    compiled: the model's own optimizer, whose place a recorder takes.
    kinds: the kinds of objects with a value; see `put_back.Kind`.
    inside: classes of its framework that may have such objects.
    is_optimizer(each): True for an optimizer of this Keras.
    list_generators(): pairs of a `put_back.Kind` and None for the framework's own generators.
    list_roots(): more objects to put back.
    get_name(variable): the name to show, as "dense/kernel".
    make_recorder(optimizer, options, scale): an accumulating optimizer that keeps the gradient of
        its last update and moves no weight, in place of this optimizer. It scales losses by this
        factor, unless it is None.
    read_gradients(recorder): these gradients by NumPy, for all trainable variables.
    loss_scale(optimizer): the optimizer's factor for losses, or None.
    compute_in_float32(layer): let a layer with float32 variables compute in float32.
    draws(layer): True if a layer is known to draw random numbers.
    list_notes(optimizers, size): what to say of a model with an equal gradient, in micro-batches of
        this size.
    running(): a scope where a GPU doesn't shorten float32, and TensorFlow's log is short.
    """

    kinds, inside, of_parts, host = (), (), (), None

    def __init__(self, model, package):
        self.model, self.package, self.compiled = model, package, model.optimizer

    def build(self, x):
        """Create the model's weights if some are missing, as `fit` would."""
        layers = [layer for layer in self._list_layers() if layer is not self.model]
        if not (layers and all(layer.built for layer in layers)):
            self.model(x)

    def scope(self):
        """Return the scope for new variables: a strategy's, on TensorFlow."""
        strategy = getattr(self.model, "distribute_strategy", None)
        return contextlib.nullcontext() if strategy is None else strategy.scope()

    def keep(self):
        """Return everything reachable from the model, to put it back."""
        generators = random.getstate.__self__, np.random.get_state.__self__
        roots = [self.model, *generators, *self.list_roots()]
        return Kept(roots, self.kinds, self.is_optimizer, self.inside, self.list_generators())

    def list_roots(self):
        return []

    def list_generators(self):
        return []

    def list_notes(self, optimizers, size):
        return []

    def prepare(self, objects):
        """Take random draws and half precision out of the model.

        Return the names of the layers switched off, and True if others compute in float32.
        """
        return self._switch_off(objects), self._use_float32()

    def _switch_off(self, objects):
        found = []
        for each in objects:
            drawing = {name: 0.0 for name in _find_drawing(each) if vars(each).get(name)}
            vars(each).update(drawing)
            found += [each.name] if drawing else []
        return found

    def _use_float32(self):
        found = [layer for layer in self._list_layers() if layer.compute_dtype in _HALVES]
        found = [layer for layer in found if layer.variable_dtype == "float32"]
        for layer in found:
            self.compute_in_float32(layer)
        return bool(found)

    def precision(self):
        """Return the Precision of the least precise layer."""
        types = {*self.of_parts, *(layer.compute_dtype for layer in self._list_layers())}
        types.add(self.host.keras.backend.floatx())  # of losses
        order = "bfloat16", "float16", "float32", "float64"
        return precision_of(min(types & {*order}, key=order.index))

    def _list_layers(self):
        return self.host.list_layers(self.model)

    def list_random(self):
        """Return the names of the layers with random draws, as far as known."""
        layers = [layer for layer in self._list_layers() if not _find_drawing(layer)]
        return [layer.name for layer in layers if self.draws(layer)]

    def draws(self, layer):
        return False

    def nudge(self, rng):
        """Move about half of the weights by one unit in the last place."""
        unit = self.precision().unit
        for variable in self.model.weights:
            value = self.host.read(variable)
            if np.issubdtype(value.dtype, np.floating) or value.dtype.name == "bfloat16":
                moved = value.astype("float64") * (1 + unit * (rng.random(value.shape) < 0.5))
                self.host.write(variable, moved.astype(value.dtype))

    @undone
    def make_train_function(self):
        """Make the model's train function anew."""
        train_step = self.model.train_step
        # A new function, because JAX's jit cache is keyed by function.
        with attribute(self.model, "train_step", lambda *arguments: train_step(*arguments)):
            self.model.make_train_function(force=True)
