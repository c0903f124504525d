"""Weighting, dropping and transforming gradients, if asked to. No Keras is imported here."""

from itertools import compress

from keras_accum.engine.window import certain


def weigh(accumulation, gradients, variables):
    """Multiply gradients by their micro-batch's weight. Return both.

    The factor includes the number of replicas, because Keras divides each replica's loss by it. A
    weight that isn't a number >= 0 makes the gradients NaN.
    """
    values, open_window = accumulation.values, accumulation.window
    given = accumulation.pending.take("weigh")
    if given is None:
        raise ValueError(
            "reduction='weighted' needs the weight of each micro-batch. `fit` with Keras's own "
            "`train_step` finds it. In a train step of your own, call `optimizer.weigh(weight)` "
            "before `apply_gradients`. `train_on_batch` can't be used: call `fit`."
        )
    ops, weight = values.ops, values.cast(given, open_window.weight.dtype)
    is_weight = ops.logical_and(weight >= 0, weight < float("inf"))
    weight = ops.where(is_weight, weight, ops.zeros_like(weight))
    nan = float("nan") * ops.ones_like(weight)
    factor = ops.where(is_weight, weight * accumulation.replicas.count(), nan)

    def times(gradient, variable):
        if accumulation.store.overwrites(variable):
            return gradient
        dtype = open_window.get_sum(variable).dtype  # half precision could overflow
        return values.times(values.cast(gradient, dtype), values.cast(factor, dtype))

    return list(map(times, gradients, variables)), weight


def drop_bad(accumulation, gradients, weight, variables):
    """Return 1 and the gradients, or 0 and zeros if the micro-batch is dropped."""
    values, options = accumulation.values, accumulation.options
    counted = (values.all_finite if options.skip_nonfinite else values.one_after)(gradients)
    if options.skip_norm is not None:
        overwrites = accumulation.store.overwrites
        summed = [g for g, v in zip(gradients, variables) if not overwrites(v)]
        norm = values.norm(summed) / accumulation.update.loss_scale
        if weight is not None:
            # At weight 0, the norm is 0 already, and 0 / 0 would be NaN.
            weight = values.ops.where(weight > 0, weight, values.ops.ones_like(weight))
            norm = norm / values.cast(weight, norm.dtype)
        if callable(options.skip_norm):
            counted = counted * (1 - values.count_if(options.skip_norm(norm)))
        else:
            counted = counted * values.count_if(norm <= options.skip_norm)  # false for NaN
    return counted, values.zero_unless(gradients, counted)


def _fits(gradient, variable):
    """True if a gradient has the variable's shape, as far as a graph knows it."""
    if gradient is None:
        return False
    found, expected = gradient.shape, list(map(int, variable.shape))
    if hasattr(found, "as_list"):  # TensorFlow's
        found = [] if found.ndims is None else found.as_list()
    return len(found) == len(expected) and all(n in (None, m) for n, m in zip(found, expected))


def transform(accumulation, totals, variables, steps):
    """Apply the user's `window_transforms`. Return the result, and zeros inside a window.

    The functions get averages in every micro-batch, never the zeros of an open window.
    """
    update, due = accumulation.update, {id(step): certain(step) for step in steps}
    averages = update.averages(totals, variables, [due[id(step)] for step in steps])
    summed = [not accumulation.store.overwrites(variable) for variable in variables]
    gradients = [average / update.loss_scale for average in compress(averages, summed)]
    for function in accumulation.options.window_transforms:
        of_sums = list(compress(variables, summed))
        gradients = list(function(list(gradients), of_sums))
        if len(gradients) != len(of_sums) or not all(map(_fits, gradients, of_sums)):
            found = ", ".join(str(None if g is None else g.shape) for g in gradients)
            shapes = ", ".join(str(variable.shape) for variable in of_sums)
            raise ValueError(
                "A function of `window_transforms` must return one gradient for each variable, in "
                "the order of the variables and of the same shapes. Received from "
                f"{function}: the shapes {found}, for gradients of the shapes {shapes}"
            )
    gradients = iter(gradients)
    values = accumulation.values
    averages = [
        values.cast(next(gradients) * update.loss_scale, average.dtype) if is_summed else average
        for average, is_summed in zip(averages, summed)
    ]
    return values.mask(averages, [step.switch for step in steps])
