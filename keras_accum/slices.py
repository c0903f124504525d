"""Train steps that take their batch in slices, for `MicroBatches`: what all hosts share.

No host is imported here.
"""

import contextlib

from keras_accum.halving import Searches, attribute


def _per_sample(values, what, rows):
    """Return the values of a loss or a metric, after checking that each sample has its own."""
    known = rows if isinstance(rows, int) else None
    if not len(values.shape) or None not in (known, values.shape[0]) and values.shape[0] != known:
        raise ValueError(
            f"MicroBatches needs one value per sample of {what}, or one per element: what is made "
            "of the values of several samples can't be added up over slices. Return the values and "
            "let Keras reduce them, or use MicroBatches(size, loss='batch'). Received: values of "
            f"shape {tuple(values.shape)}"
        )
    return values


class Losses:
    """The losses of a model on a slice, as parts of the losses of the whole batch.

    A host knows how Keras calls the losses, and what it divides them by.
    """

    # A host defines: the classes of losses, and of metrics that are the mean of a function.
    _loss_class = _mean_class = None

    def __init__(self, model):
        self._model = model

    @contextlib.contextmanager
    def as_parts(self, rows, of, divisors):
        """A scope in which the mean of slices, weighted by samples, is the loss of the batch.

        A slice has `rows` of the samples `of` the batch. `divisors` has, for each loss, what the
        loss of the batch is divided by; None if this is in proportion to the samples.
        """
        share = rows / of

        def part(i, loss, y_true, y_pred, sample_weight=None):
            if divisors[i] is None:
                value, _ = self._of_slice(loss, y_true, y_pred, sample_weight, rows)
                return self._quotient(value, share) if loss.reduction == "sum" else value
            with attribute(loss, "reduction", "sum"):
                value, _ = self._of_slice(loss, y_true, y_pred, sample_weight, rows)
            return self._quotient(self._quotient(value, divisors[i]), share)

        with contextlib.ExitStack() as stack:
            stack.enter_context(self._in_place_of_losses(part))
            for metric in self._metrics():
                own = getattr(metric, "_fn", None)
                if isinstance(metric, self._mean_class) and own is not None:
                    checked = self._checked(own, metric.name, rows)
                    stack.enter_context(attribute(metric, "_fn", checked))
            for metric in self._trackers():
                update = self._weighted(metric.update_state, rows, of)
                stack.enter_context(attribute(metric, "update_state", update))
            yield

    @staticmethod
    def _checked(own, name, rows):
        def checked(*arguments, **keywords):
            return _per_sample(own(*arguments, **keywords), f"the metric {name!r}", rows)

        return checked

    def divisors(self, x, y, sample_weight, rows):
        """Return what each loss of a slice is divided by, None if in proportion to the samples."""
        found = []

        def count(i, loss, y_true, y_pred, sample_weight=None):
            value, values = self._of_slice(loss, y_true, y_pred, sample_weight, rows)
            found.append(self._divisor(loss, y_pred, values, sample_weight))
            return value

        with self._in_place_of_losses(count):
            self._compute(x, y, sample_weight)
        return found

    def _of_slice(self, loss, y_true, y_pred, sample_weight, rows):
        """Return the value of a loss, and its values before the reduction."""
        name = getattr(loss, "name", type(loss).__name__)
        own_call = type(loss).__call__ is not self._loss_class.__call__
        if own_call or loss.reduction in (None, "none"):
            raise ValueError(
                f"MicroBatches can't tell what the loss {name!r} is divided by. Give it a "
                "`reduction` and leave its `__call__` to Keras, or use "
                "MicroBatches(size, loss='batch')."
            )
        if self._couples(loss):
            raise ValueError(
                f"MicroBatches can't be used with the loss {name!r}, which compares the samples of "
                "a batch with each other. Use MicroBatches(size, loss='batch')."
            )
        own, kept = loss.call, []

        def watched(*arguments):
            kept.append(_per_sample(own(*arguments), f"the loss {name!r}", rows))
            return kept[-1]

        with attribute(loss, "call", watched):
            value = self._value(loss, y_true, y_pred, sample_weight)
        return value, kept[-1]

    def _couples(self, loss):
        """Whether a loss of Keras compares the samples of a batch with each other."""
        return False

    def _quotient(self, value, divisor):
        raise NotImplementedError

    def _value(self, loss, y_true, y_pred, sample_weight):
        """Return the loss, without changes to the arguments."""
        raise NotImplementedError

    def _divisor(self, loss, y_pred, values, sample_weight):
        """Return what a loss is divided by, None if in proportion to the samples."""
        raise NotImplementedError

    def _compute(self, x, y, sample_weight):
        """Compute the losses in inference mode."""
        raise NotImplementedError

    def _in_place_of_losses(self, function):
        """A scope in which `function(index, loss, ...)` is called in place of each loss."""
        raise NotImplementedError

    def _metrics(self):
        """Return the metrics that are given to `compile`."""
        raise NotImplementedError

    def _trackers(self):
        """Return the metrics of losses whose `update_state` needs another weight in slices."""
        raise NotImplementedError

    def _weighted(self, update_state, rows, of):
        """Return `update_state` of a tracker, weighted by the samples of the slice."""
        raise NotImplementedError


class Outputs:
    """A model's outputs as lists of arrays: the outputs and their masks.

    `tree` has Keras's functions for nested structures.
    """

    def __init__(self, tree, mask_of, masked):
        self._tree, self._mask_of, self._masked_by = tree, mask_of, masked

    def flat(self, y_pred):
        """Return the lists, and remember the structure."""
        arrays = self._tree.flatten(y_pred)
        masks = [self._mask_of(array) for array in arrays]
        self._structure = self._tree.map_structure(lambda _: None, y_pred)
        self.count = len(arrays)
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        return arrays, [masks[i] for i in self._masked]

    def packed(self, arrays, masks):
        """Return the outputs that these lists are of."""
        arrays = list(arrays)
        for i, mask in zip(self._masked, masks):
            arrays[i] = self._masked_by(arrays[i], mask)
        return self._tree.pack_sequence_as(self._structure, arrays)


class StepInSlices(Searches):
    """A model's train step that takes its batch in slices.

    The two outlines are here: `_of_samples` and `_of_outputs`. A Keras defines what a train step
    does with a model; a backend the loops over slices, and gradients.
    """

    def __init__(self, model, size, loss):
        self.model, self.loss = model, loss
        self.searches = size == "auto"
        self.size = None if self.searches else size
        self.own = model.train_step

    def rows(self, arrays):
        """Return the number of samples of a batch, None if it isn't known before the program runs.

        The arrays of a batch must agree about it.
        """
        counts = {array.shape[0] if len(array.shape) else 1 for array in arrays}
        if len(counts - {None}) > 1:
            raise ValueError(
                "MicroBatches takes slices of samples: the first dimension of all arrays of a "
                f"batch must be the number of samples. Received first dimensions: {counts}"
            )
        return None if None in counts else counts.pop()

    def check(self):
        """Raise an error if this model can't be trained in slices, at the start of a training."""
        if self.loss != "batch":
            return
        if not self.model.loss:
            raise ValueError(
                "MicroBatches(loss='batch') needs a model that is compiled with a loss."
            )
        for layer in self.model._flatten_layers():
            if isinstance(layer, self._batch_normalizations) and layer.trainable:
                raise ValueError(
                    "MicroBatches(loss='batch') can't be used with batch normalization that "
                    "trains: the output of a sample depends on the other samples of its slice. "
                    f"Freeze the layer with `trainable=False`. Received: {layer.name!r}"
                )

    def gradients(self, data, rows):
        """Return the gradients of the batch. The model's other variables are as after the step."""
        return (self._of_outputs if self.loss == "batch" else self._of_samples)(data, rows)

    def _of_samples(self, data, rows):
        """Return the gradients of a loss that is a mean over samples."""
        divisors = self._divisors(data, rows)

        def gradients(data, count):
            x, y, sample_weight = self.unpack(data)

            def objective():
                y_pred = self.call(x)
                loss = self.loss_of_slice(x, y, y_pred, sample_weight)
                # The loss is scaled, not the gradient: XLA then adds sparse rows in place.
                return self.part(self.scaled(loss), count / rows), (loss, y_pred)

            with self.losses.as_parts(count, rows, divisors):
                found, (loss, y_pred) = self.gradient(objective)
                self.track(loss, count, x, y, y_pred, sample_weight)
            return found

        return self.sums(gradients, data, rows)

    def _divisors(self, data, rows):
        """Return what each loss of the batch is divided by, None if in proportion to samples."""

        def of_slice(data, count):
            with self.unchanged():
                return self.losses.divisors(*self.unpack(data), count)

        found = self.traced(lambda data: of_slice(data, self.size), data)
        unknown = [i for i, divisor in enumerate(found) if divisor is not None]
        if not unknown:
            return found

        def add(sums, data, count):
            of_losses = of_slice(data, count)
            return [total + of_losses[i] for i, total in zip(unknown, sums)]

        sums = self.fold(add, [self.zero(found[i].dtype) for i in unknown], data, rows)
        return [dict(zip(unknown, sums)).get(i) for i in range(len(found))]

    def _of_outputs(self, data, rows):
        """Return the gradients of a loss of all outputs of the batch."""
        of_arrays = self._gradients_of_outputs(data, rows)

        def gradients(data, count):
            data, of_arrays = data

            def objective():
                arrays, _, penalties = self._outputs_of_slice(data, count / rows)
                return self.product(arrays, of_arrays) + self.scaled(penalties), None

            return self.gradient(objective)[0]

        return self.sums(gradients, (data, of_arrays), rows)

    def _gradients_of_outputs(self, data, rows):
        """Return the gradients of the loss with respect to the joined outputs of all slices."""
        x, y, sample_weight = self.unpack(data)

        def forward(penalties, data, count):
            arrays, masks, more = self._outputs_of_slice(data, count / rows)
            return penalties + more, [*arrays, *masks]

        with self.restored():  # so that the second pass draws the same
            penalties, found = self.scan(forward, self.zero(), data, rows)
        arrays, masks = found[: self.outputs.count], found[self.outputs.count :]

        def objective(arrays):
            y_pred = self.outputs.packed(arrays, masks)
            loss = self.loss_of_outputs(y, y_pred, sample_weight, penalties)
            return self.scaled(loss), (loss, y_pred)

        of_arrays, (loss, y_pred) = self.gradient_of_arrays(objective, arrays)
        self.track(loss, rows, x, y, y_pred, sample_weight)
        return of_arrays

    def _outputs_of_slice(self, data, share):
        """Return outputs, masks, and the slice's share of the losses that layers add."""
        y_pred = self.call(self.unpack(data)[0])
        return (*self.outputs.flat(y_pred), self.penalties(share))

    @contextlib.contextmanager
    def restored(self):
        """A scope after which layers, metrics and random numbers are as before."""
        before = self.kept()
        yield
        self.put_back(before)

    unchanged = restored
