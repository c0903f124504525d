"""A model's train step that takes its batch in slices: what is the same on all backends."""

import keras
from keras import ops
from keras.utils import unpack_x_y_sample_weight

from keras_accum.callbacks.base import normalizes_batches
from keras_accum.callbacks.micro_batches.halving import Halving
from keras_accum.callbacks.micro_batches.losses import get_mask, in_parts

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


class Slices:
    """The loop over slices, in Python. The programs of JAX and TensorFlow have loops of theirs."""

    def scan(self, function, carry, data, rows):
        """Call function(carry, slice, samples of the slice) for each slice.

        It returns the next carry, and arrays of samples, which are joined.
        """
        found = []
        for part, count in self.slices(data, rows):
            carry, arrays = function(carry, part, count)
            found.append(arrays)
        return carry, list(map(ops.concatenate, zip(*found)))

    def slices(self, data, rows):
        for start in range(0, rows, self.size):
            count = min(self.size, rows - start)
            yield self.part(data, start, count), count

    def part(self, data, start, count):
        stop = start + count
        return keras.tree.map_structure(lambda a: None if a is None else a[start:stop], data)


class StepInSlices(Slices, Halving):
    """A train step in slices. A subclass for each backend has:

        compute_gradients(objective, arrays)  gradients of objective(arrays) with respect to arrays,
                                         or to the weights; and what else `objective` returns
        outside()                           a scope outside of the trace, without gradients

    is_first: True until a training has taken its first batch.
    in_slices: True if a step was traced that takes slices.
    tried: the functions of losses and metrics that were tried on samples in this training.
    """

    def __init__(self, model, size, loss):
        self.model, self.loss, self.own = model, loss, model.train_step
        self.searches, self.in_slices = size == "auto", False
        self.size = None if self.searches else size

    def check(self):
        """Raise an error if this model can't be trained in slices, at the start of a training."""
        self.is_first, self.tried, self.optimizer = True, [], self.model.optimizer
        self.ended = int(self.begun)  # a training may have been broken off in an update
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
        rows = self.count_rows(data)
        self.build(data)
        is_whole = self.is_one_slice(rows)
        if not self.model.trainable_weights or (is_whole and not self.searches):
            return self.own(data)
        count = self.read_counter(data) if rows is None else rows
        self.apply(self.slice_samples(data, count) if is_whole else self.gradients(data, count))
        return self.model.get_metrics_result()

    def build(self, data):
        """Nothing, where Keras makes all variables before a training."""

    def count_rows(self, batch):
        """Return the number of samples of a batch, on which its arrays must agree.

        It is None if TensorFlow knows it only when the program runs.
        """
        arrays = [array for array in keras.tree.flatten(batch) if array is not None]
        counts = {array.shape[0] if len(array.shape) else 1 for array in arrays}
        if len(counts - {None}) > 1:
            raise ValueError(_LENGTHS.format(counts))
        return None if None in counts else counts.pop()

    def replicas(self):
        """Return the number of replicas, each of which takes slices of its part of a batch."""
        return 1

    def devices(self):
        return self.replicas()

    def is_one_slice(self, rows):
        return self.size is None or (rows is not None and rows <= self.size)

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_weights)

    # -- the model ---------------------------------------------------------------------------------

    def call(self, x):
        return self.model(x, training=True) if self.model._call_has_training_arg else self.model(x)

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = map(self.model._aggregate_additional_loss, self.model.losses)
        return _share(sum(losses, ops.zeros(())), share)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch."""
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # -- gradients ---------------------------------------------------------------------------------

    def gradients(self, data, rows):
        """Return the gradients of the batch. The model's other variables are as after the step."""
        of_slice, self.in_slices = self._slice_part, True
        if self.loss == "batch":
            data, of_slice = (data, self._slice_outputs(data, rows)), self._by_outputs
        sums = self.sums(lambda data, count: of_slice(data, count, rows), data, rows)
        pairs = zip(sums, self.model.trainable_weights)
        return [g if g is None else ops.cast(g, weight.dtype) for g, weight in pairs]

    def slice_samples(self, data, count, share=1.0):
        """Return the gradients of a share of the loss of samples, and update the metrics."""
        x, y, sample_weight = unpack_x_y_sample_weight(data)

        def objective(_):
            y_pred = self.call(x)
            loss = self.model.compute_loss(x, y, y_pred, sample_weight)
            # The loss is scaled, and not the gradient, so that XLA adds sparse rows in place.
            return self.optimizer.scale_loss(_share(loss, share)), (loss, y_pred)

        gradients, (loss, y_pred) = self.compute_gradients(objective)
        self.track(loss, count, x, y, y_pred, sample_weight)
        return gradients

    def _slice_part(self, data, count, of):
        """Return the gradients of a slice's part of a loss that is a mean over samples."""
        with in_parts(self, count, of):
            return self.slice_samples(data, count, count / of)

    def _slice_outputs(self, data, rows):
        """Return the gradients of the loss with respect to the joined outputs of all slices."""
        from keras.src.backend import set_keras_mask

        x, y, sample_weight = unpack_x_y_sample_weight(data)
        structure, masked = [], []

        def forward(total, data, count):
            """Return, with the sum of penalties, the outputs and the masks of some of them."""
            y_pred = self.call(unpack_x_y_sample_weight(data)[0])
            arrays = keras.tree.flatten(y_pred)
            masks = list(map(get_mask, arrays))
            structure[:] = [keras.tree.map_structure(lambda _: None, y_pred)]
            masked[:] = [i for i, mask in enumerate(masks) if mask is not None]
            return total + self.penalties(count / rows), [*arrays, *(masks[i] for i in masked)]

        with self.restoring():  # so that the second pass draws the same
            penalties, found = self.scan(forward, ops.zeros(()), data, rows)
        count = len(found) - len(masked)

        def objective(arrays):
            for i, mask in zip(masked, found[count:]):
                set_keras_mask(arrays[i], mask)
            y_pred = keras.tree.pack_sequence_as(structure[0], arrays)
            loss = self.model._compile_loss(y, y_pred, sample_weight) + penalties
            return self.optimizer.scale_loss(loss), (loss, y_pred)

        gradients, (loss, y_pred) = self.compute_gradients(objective, found[:count])
        self.track(loss, rows, x, y, y_pred, sample_weight)
        return gradients

    def _by_outputs(self, data, count, of):
        """Return the gradients of a slice, from those of its outputs."""
        data, of_outputs = data
        floatx = keras.backend.floatx()

        def objective(_):
            """Return a loss whose gradient with respect to the outputs is `of_outputs`."""
            arrays = keras.tree.flatten(self.call(unpack_x_y_sample_weight(data)[0]))
            products = [
                ops.sum(ops.cast(array, floatx) * ops.cast(g, floatx))
                for array, g in zip(arrays, of_outputs)
                if g is not None
            ]
            penalties = self.optimizer.scale_loss(self.penalties(count / of))
            return sum(products) + penalties, None

        return self.compute_gradients(objective)[0]

    def sums(self, of_slice, data, rows):
        """Return the sums of the gradients of slices, None for variables without a gradient."""
        weights = self.model.trainable_weights
        missing = set(range(len(weights)))

        def add(sums, data, count):
            found, parts = self.apart(of_slice(data, count))
            missing.intersection_update(i for i, g in enumerate(found) if g is None)
            pairs = zip(sums, found)
            return [s if g is None else s + ops.cast(g, s.dtype) for s, g in pairs], parts

        # Sums in half precision would stall.
        types = ["float32" if "float16" in str(w.dtype) else w.dtype for w in weights]
        zeros = [ops.zeros(w.shape, dtype) for w, dtype in zip(weights, types)]
        sums, parts = self.scan(add, zeros, data, rows)
        return self.join([None if i in missing else s for i, s in enumerate(sums)], parts)

    def apart(self, gradients):
        """Return gradients that are added up, and arrays that are joined."""
        return gradients, []

    def join(self, sums, parts):
        """Return the sums, with the joined arrays."""
        return sums


def _share(loss, share):
    """Return a slice's share of a loss."""
    return ops.convert_to_tensor(share, loss.dtype) * loss
