"""A model's train step that takes its batch in slices: the outline, for every Keras and backend.

Each slice goes through the model's own train step, and a stand-in for the optimizer takes the
gradients.
"""

import contextlib

from keras_accum.callbacks.base import normalizes_batches
from keras_accum.callbacks.micro_batches.halving import Halving
from keras_accum.callbacks.micro_batches.losses import Losses
from keras_accum.callbacks.micro_batches.passes import one_pass, two_passes
from keras_accum.callbacks.train_function import attribute

_LENGTHS = (
    "MicroBatches takes slices of samples: the first dimension of all arrays of a batch must be "
    "the number of samples. Received first dimensions: {}"
)
_SEVERAL = (
    'MicroBatches("auto") can\'t be used with several devices or replicas: a step that failed on '
    "one of them can't be undone. Give a size. Received: {}"
)
_NO_LOSS = "MicroBatches(loss='batch') needs a model that is compiled with a loss."
_NORMALIZES = (
    "MicroBatches(loss='batch') can't be used with batch normalization that trains: the output of "
    "a sample depends on the other samples of its slice. Freeze the layer with `trainable=False`. "
    "Received: {!r}"
)


class Takes:
    """Stands in for an optimizer while a train step runs: it takes the gradients.

    scale: a function of the loss of the step. The loss is scaled, and not the gradient, so that XLA
    adds sparse rows in place.
    """

    def __init__(self, optimizer, scale):
        self.variables = optimizer.variables
        self.scale_loss, self.gradients = scale, None

    def apply(self, gradients, trainable_variables=None):
        self.gradients = list(gradients)

    def apply_gradients(self, pairs):
        self.gradients = [gradient for gradient, _ in pairs]

    def stateless_apply(self, optimizer_variables, gradients, trainable_variables):
        self.gradients = gradients
        return trainable_variables, optimizer_variables

    def minimize(self, loss, variables, tape):
        with tape:
            loss = self.scale_loss(loss)
        self.gradients = tape.gradient(loss, variables)


class Step(Halving):
    """A train step in slices.

    A Keras (`keras3`, `tf_keras`) says how a model computes its losses and metrics: `keras`, `ops`,
    `tree` and the methods there. A backend has the loop over slices, and a gradient:

        scan(function, carry, data, rows)       function(carry, slice, samples of the slice), which
                                                returns the next carry and arrays, to be joined
        gradient_of_arrays(objective, arrays)   gradients, and what else `objective` returns
        traced(function, data)                  what `function` returns for a slice; nothing runs
    """

    of_optimizer = ()  # the methods of an optimizer that are called in a train step, and not here
    coupling = ()  # the functions of Keras's losses that compare the samples of a batch

    def __init__(self, model, size, loss):
        self.model, self.loss = model, loss
        self.optimizer, self.is_built = model.optimizer, False
        self.searches = size == "auto"
        self.size = None if self.searches else size
        self.own, self.losses = model.train_step, Losses(self)

    def check(self):
        """Raise an error if this model can't be trained in slices, at the start of a training."""
        self.is_built, self.optimizer, self.rows = False, self.model.optimizer, None
        self.steps = int(self.begun)  # a training may have been broken off in an update
        if self.searches and self.devices() > 1:
            raise ValueError(_SEVERAL.format(self.devices()))
        if self.loss != "batch":
            return
        if not self.model.loss:
            raise ValueError(_NO_LOSS)
        for layer in self.model._flatten_layers():
            if layer.trainable and normalizes_batches(layer):
                raise ValueError(_NORMALIZES.format(layer.name))

    def __call__(self, data):
        """Run the step as Keras does; JAX has the state, too."""
        rows, model = self.rows_of(data), self.model
        self.rows = rows
        self.build(data)
        is_whole = self.is_one_slice(rows)
        if not model.trainable_weights or (is_whole and not self.searches):
            return self.own(data)
        gradients = self.taken(data, self.scaled) if is_whole else self.gradients(data, rows)
        with self.marked(gradients) as gradients:
            self.apply(gradients)
        return model.get_metrics_result()

    def build(self, data):
        """Make all variables of the model, because a loop of a program can't."""
        if not self.is_built:
            self.make_variables(data)
            self.is_built = True

    def make_variables(self, data):
        """Nothing, where Keras makes them before a training."""

    def unpack(self, data):
        return self.keras.utils.unpack_x_y_sample_weight(data)

    def rows_of(self, batch):
        """Return the number of samples of a batch, on which its arrays must agree.

        It is None if TensorFlow knows it only when the program runs.
        """
        arrays = [array for array in self.tree.flatten(batch) if array is not None]
        counts = {array.shape[0] if len(array.shape) else 1 for array in arrays}
        if len(counts - {None}) > 1:
            raise ValueError(_LENGTHS.format(counts))
        return None if None in counts else counts.pop()

    def replicas(self):
        """Return the number of replicas, each of which takes slices of its part of a batch."""
        return 1

    def devices(self):
        """Return the number of devices that run a step together."""
        return self.replicas()

    def is_one_slice(self, rows):
        return self.size is None or (rows is not None and rows <= self.size)

    def was_one_slice(self, steps):
        """Return whether the first batch was, as far as it is known. A call runs these steps."""
        return self.rows is not None and self.is_one_slice(self.rows)

    # -- gradients ---------------------------------------------------------------------------------

    def gradients(self, data, rows):
        """Return the gradients of the batch. The model's other variables are as after the step."""
        gradients_of = two_passes if self.loss == "batch" else one_pass
        pairs = zip(gradients_of(self, data, rows), self.model.trainable_weights)
        return [g if g is None else self.ops.cast(g, weight.dtype) for g, weight in pairs]

    def taken(self, data, scale):
        """Return the gradients that the model's own train step makes of a slice."""
        takes = Takes(self.optimizer, scale)
        with attribute(self.model, "optimizer", takes):
            self.run_own(data)
        return takes.gradients

    def run_own(self, data):
        self.own(data)

    def sums(self, gradients, data, rows):
        """Return the sums of the gradients of slices, None for variables without a gradient."""
        weights = self.model.trainable_weights
        missing = set(range(len(weights)))

        def add(sums, data, count):
            found = gradients(data, count)
            missing.intersection_update(i for i, g in enumerate(found) if g is None)
            return [s if g is None else self.plus(s, g) for s, g in zip(sums, found)]

        zeros = [self.zeros_for_sum(w.shape, w.dtype) for w in weights]
        sums = self.fold(add, zeros, data, rows)
        return [None if i in missing else total for i, total in enumerate(sums)]

    def fold(self, function, carry, data, rows):
        """Scan with a function that returns the next carry alone."""
        return self.scan(lambda *arguments: (function(*arguments), []), carry, data, rows)[0]

    def zeros_for_sum(self, shape, dtype):
        """Return what sums of values of this type begin with: half precision would stall."""
        return self.ops.zeros(shape, "float32" if "float16" in str(dtype) else dtype)

    def plus(self, total, gradient):
        return total + self.ops.cast(gradient, total.dtype)

    def part(self, loss, share):
        """Return a slice's share of a loss."""
        return self.ops.convert_to_tensor(share, loss.dtype) * loss

    # -- what a pass changes -----------------------------------------------------------------------

    def state(self):
        """Return the variables that a train step changes besides weights and optimizer."""
        layers = self.model._flatten_layers()
        frozen = {id(weight) for layer in layers for weight in vars(layer)[self.own_weights]}
        others = [v for v in self.model.non_trainable_variables if id(v) not in frozen]
        return [*others, *(v for metric in self.model.metrics for v in metric.variables)]

    @contextlib.contextmanager
    def restored(self):
        """A scope after which layers, metrics and random numbers are as before."""
        before = self.kept()
        yield
        self.put_back(before)

    unchanged = restored
