"""A model in a comparison. Each Keras has a subclass of `Subject`."""

import contextlib

import numpy as np

from keras_accum.compare.verdict import precision_of
from keras_accum.host import is_of_keras
from keras_accum.host.scopes import attribute, undone
from keras_accum.host.snapshot import remember_generators

STAND_IN = "AdamAccumulate"  # its name in warnings

# Keras's layers that draw random numbers, with the attributes that switch this off. Most others,
# such as MultiHeadAttention, contain one of them.
_DRAWING = {
    **dict.fromkeys(["Dropout", "AlphaDropout", "GaussianDropout"], ["rate"]),
    "GaussianNoise": ["stddev"],
    **dict.fromkeys(["Attention", "BaseDenseAttention", "GroupedQueryAttention"], ["dropout"]),
    **dict.fromkeys(["DropoutRNNCell", "DropoutRNNCellMixin"], ["dropout", "recurrent_dropout"]),
}
_HALVES = "float16", "bfloat16"


def _find_rates(layer):
    """Return the names of the attributes that switch off a layer's random draws."""
    classes = [cls.__name__ for cls in type(layer).__mro__ if is_of_keras(cls)]
    return [attribute for name in classes for attribute in _DRAWING.get(name, ())]


class Subject:
    """A model in a comparison. Each Keras has a subclass with these members.

    package: the module with the public names for this Keras.
    host: the Host of this Keras.
    internal_dtypes: data types in which this Keras computes parts of any model.
    compiled: the model's own optimizer.
    variables, generators: the classes of variables and of random generators with a `state`.
    is_optimizer(obj): True for an optimizer of this Keras.
    remember_generators(): functions that put back the random generators outside of a model.
    list_buffers(): values that layers keep and that are no variables of this Keras.
    get_name(variable): the name to show, as "dense/kernel".
    adam(optimizer): the class of AdamAccumulate that can stand in for this optimizer.
    compute_in_float32(layer): let a layer with float32 variables compute in float32.
    draws(layer): True if a layer is known to draw random numbers.
    list_notes(optimizers, size): notes on a model with an equal gradient, for micro-batches of this
        size.
    running(): a scope where GPUs compute float32 in full, and TensorFlow's log is short.
    """

    variables, generators, internal_dtypes, host = (), (), (), None
    remember_generators = staticmethod(remember_generators)

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

    def list_buffers(self):
        return []

    def list_notes(self, optimizers, size):
        return []

    def make_stand_in(self, optimizer, options):
        """Return an accumulating optimizer to keep the gradient of its last update.

        Without `beta_1`, Adam's momentum is the gradient. Without a rate, no weight moves.
        """
        with self.scope():
            adam = self.adam(optimizer)(learning_rate=0.0, beta_1=0.0, **vars(options))
            if optimizer is self.compiled:  # JAX's devices need to know its state
                adam.build(self.model.trainable_variables)
            return adam

    def reset(self, stand_in):
        if stand_in._accumulation.state.is_built:
            state = stand_in.get_state()
            stand_in.set_state({name: np.zeros_like(array) for name, array in state.items()})

    def read_gradients(self, stand_in):
        """Return a stand-in's gradients for all trainable variables, zeros for those of others."""
        store = stand_in._accumulation.store
        state = stand_in.get_state() if store.variables else {}
        places = {store.key(variable): place for place, variable in enumerate(store.variables)}

        def read(variable):
            place = places.get(store.key(variable))
            return np.zeros(variable.shape) if place is None else state[f"Adam.momentum.{place}"]

        gradients = map(read, self.model.trainable_variables)
        return [gradient.astype(np.result_type(gradient, "float64")) for gradient in gradients]

    def prepare(self):
        """Switch off random draws, and let layers compute in float32.

        Return the names of the layers that are switched off, and True if any computed in half
        precision.
        """
        return self._switch_off(), self._use_float32()

    def _switch_off(self):
        names = []
        for layer in self._list_layers():
            rates = {name: 0.0 for name in _find_rates(layer) if vars(layer).get(name)}
            vars(layer).update(rates)
            names += [layer.name] if rates else []
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
