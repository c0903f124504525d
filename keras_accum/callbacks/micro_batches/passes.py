"""The gradients of a batch from its slices: in one pass over the slices, or in two."""

from keras_accum.callbacks.train_function import attribute


def one_pass(step, data, rows):
    """Return the gradients of a loss that is a mean over samples."""
    divisors = _divisors(step, data, rows)

    def of_slice(data, count):
        def scale(loss):
            return step.scaled(step.part(loss, count / rows))

        with step.losses.as_parts(count, rows, divisors):
            return step.taken(data, scale)

    return step.sums(of_slice, data, rows)


def _divisors(step, data, rows):
    """Return what each loss of the batch is divided by, None if in proportion to the samples.

    Masks, which only the model knows, take a pass of their own, in inference mode.
    """

    def of_slice(data, count):
        with step.unchanged():
            return step.losses.divisors(data, count)

    found = step.traced(lambda data: of_slice(data, step.size), data)
    unknown = [i for i, divisor in enumerate(found) if divisor is not None]
    if not unknown:
        return found

    def add(sums, data, count):
        of_losses = of_slice(data, count)
        return [total + of_losses[i] for i, total in zip(unknown, sums)]

    zeros = [step.zeros_for_sum((), found[i].dtype) for i in unknown]
    sums = step.fold(add, zeros, data, rows)
    return [dict(zip(unknown, sums)).get(i) for i in range(len(found))]


def two_passes(step, data, rows):
    """Return the gradients of any loss of the model's outputs: first come those of the outputs."""
    of_arrays = _gradients_of_outputs(step, data, rows)

    def of_slice(data, count):
        (data, of_arrays), penalties = data, []

        def product(x, y, y_pred, *others, **more):
            """Return a loss whose gradient with respect to the outputs is `of_arrays`."""
            penalties.append(step.penalties(count / rows))
            cast, floatx = step.ops.cast, step.floatx()
            pairs = zip(step.tree.flatten(y_pred), of_arrays)
            parts = [cast(a, floatx) * cast(g, floatx) for a, g in pairs if g is not None]
            return sum(map(step.ops.sum, parts))

        with attribute(step.model, "compute_loss", product), step.without_metrics():
            return step.taken(data, lambda loss: loss + step.scaled(penalties.pop()))

    return step.sums(of_slice, (data, of_arrays), rows)


def _gradients_of_outputs(step, data, rows):
    """Return the gradients of the loss with respect to the joined outputs of all slices."""
    x, y, sample_weight = step.unpack(data)
    structure, masked = [], []

    def forward(total, data, count):
        """Return, with the sum of penalties, the outputs and the masks of those that have one."""
        y_pred = step.call(step.unpack(data)[0], training=True)
        arrays = step.tree.flatten(y_pred)
        masks = [step.mask_of(array) for array in arrays]
        structure[:] = [step.tree.map_structure(lambda _: None, y_pred)]
        masked[:] = [i for i, mask in enumerate(masks) if mask is not None]
        return total + step.penalties(count / rows), [*arrays, *(masks[i] for i in masked)]

    with step.restored():  # so that the second pass draws the same
        penalties, found = step.scan(forward, step.ops.zeros(()), data, rows)
    count = len(found) - len(masked)

    def objective(arrays):
        arrays = list(arrays)
        for i, mask in zip(masked, found[count:]):
            arrays[i] = step.masked(arrays[i], mask)
        y_pred = step.tree.pack_sequence_as(structure[0], arrays)
        loss = step.loss_of_outputs(y, y_pred, sample_weight, penalties)
        return step.scaled(loss), (loss, y_pred)

    of_arrays, (loss, y_pred) = step.gradient_of_arrays(objective, found[:count])
    step.track(loss, rows, x, y, y_pred, sample_weight)
    return of_arrays
