"""A model in a comparison. Each Keras has a subclass of `Subject`."""

import contextlib
import random

import numpy as np

from keras_accum.compare.put_back import Snapshot
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


def _find_rates(obj):
    """Return the names of the attributes that switch off an object's random draws."""
    classes = [cls.__name__ for cls in type(obj).__mro__ if is_of_keras(cls)]
    return [attribute for name in classes for attribute in _DRAWING.get(name, ())]


class Subject:
    """A model in a comparison. Each Keras has a subclass with these members.

    package: the module with the public names for this Keras.
    host: the Host of this Keras.
    internal_dtypes: data types in which this Keras computes parts of any model.
    compiled: the model's own optimizer, whose place a recorder takes.
    accessors: a `put_back.Accessor` for each class of objects with a value.
    searched: classes of its framework that may have such objects.
    is_optimizer(obj): True for an optimizer of this Keras.
    list_generators(): pairs of an Accessor and None for the framework's own generators.
    get_name(variable): the name to show, as "dense/kernel".
    make_recorder(optimizer, options, scale): an accumulating optimizer that keeps the gradient of
        its last update and moves no weight, in place of this optimizer. It scales losses by this
        factor, unless it is None.
    read_gradients(recorder): these gradients as NumPy arrays, for all trainable variables.
    loss_scale(optimizer): the optimizer's factor for losses, or None.
    compute_in_float32(layer): let a layer with float32 variables compute in float32.
    draws(layer): True if a layer is known to draw random numbers.
    list_notes(optimizers, size): notes on a model with an equal gradient, for micro-batches of this
        size.
    running(): a scope where GPUs compute float32 in full, and TensorFlow's log is short.
    """

    accessors, searched, internal_dtypes, host = (), (), (), None

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

    def take_snapshot(self):
        """Return a Snapshot of all that can be reached from the model."""
        global_generators = random.getstate.__self__, np.random.get_state.__self__
        roots = [self.model, *global_generators]
        return Snapshot(
            roots, self.accessors, self.is_optimizer, self.searched, self.list_generators()
        )

    def list_generators(self):
        return []

    def list_notes(self, optimizers, size):
        return []

    def prepare(self, objects):
        """Switch off random draws, and let layers compute in float32.

        Return the names of the layers that are switched off, and True if any computed in half
        precision.
        """
        return self._switch_off(objects), self._use_float32()

    def _switch_off(self, objects):
        names = []
        for obj in objects:
            rates = {name: 0.0 for name in _find_rates(obj) if vars(obj).get(name)}
            vars(obj).update(rates)
            names += [obj.name] if rates else []
        return names

    def _use_float32(self):
        layers = [layer for layer in self._list_layers() if layer.compute_dtype in _HALVES]
        layers = [layer for layer in layers if layer.variable_dtype == "float32"]
        for layer in layers:
            self.compute_in_float32(layer)
        return bool(layers)

    def precision(self):
        """Return the Precision of the least precise layer."""
        dtypes = {*self.internal_dtypes, *(layer.compute_dtype for layer in self._list_layers())}
        dtypes.add(self.host.keras.backend.floatx())  # of losses
        by_precision = "bfloat16", "float16", "float32", "float64"
        return precision_of(min(dtypes & {*by_precision}, key=by_precision.index))

    def _list_layers(self):
        return self.host.list_layers(self.model)

    def list_random(self):
        """Return the names of the layers that draw random numbers, as far as known."""
        layers = [layer for layer in self._list_layers() if not _find_rates(layer)]
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
        """Make a new train function for the model."""
        train_step = self.model.train_step
        # A new function, because JAX's jit cache is keyed by function.
        with attribute(self.model, "train_step", lambda *arguments: train_step(*arguments)):
            self.model.make_train_function(force=True)
