"""Weighting, checks and transformations of gradients. No Keras is imported here."""

from itertools import compress

from keras_accum.window import certain


def check_once(port, variables):
    """Raise a ValueError if a variable occurs twice."""
    keys = list(map(port.key, variables))
    if len(set(keys)) < len(keys):
        twice = next(v for i, v in enumerate(variables) if keys[i] in keys[:i])
        raise ValueError(
            "Each variable must be there once in a call of the optimizer. Add up its gradients "
            "first. For layers that several models share, "
            "`{id(v): v for v in variables}.values()` has each variable once. "
            f"Received twice: {port.get_name(twice)}"
        )


def weigh(accumulation, gradients, variables):
    """Multiply gradients by their micro-batch's weight. Return both.

    The factor includes the number of replicas, because Keras divides each replica's loss by it. A
    weight that isn't a number >= 0 makes the gradients NaN.
    """
    port, open_window = accumulation.port, accumulation.window
    given = accumulation.pending.take("weigh")
    if given is None:
        raise ValueError(
            "reduction='weighted' needs the weight of each micro-batch. `fit` with Keras's own "
            "`train_step` finds it. In a train step of your own, call `optimizer.weigh(weight)` "
            "before `apply_gradients`. `train_on_batch` can't be used: call `fit`."
        )
    ops, weight = port.ops, port.cast(given, open_window.weight.dtype)
    is_weight = ops.logical_and(weight >= 0, weight < float("inf"))
    weight = ops.where(is_weight, weight, ops.zeros_like(weight))
    nan = float("nan") * ops.ones_like(weight)
    factor = ops.where(is_weight, weight * port.replicas(), nan)

    def times(gradient, variable):
        if port.overwrites(variable):
            return gradient
        dtype = open_window.get_sum(variable).dtype  # half precision could overflow
        return port.times(port.cast(gradient, dtype), port.cast(factor, dtype))

    return list(map(times, gradients, variables)), weight


def drop_bad(accumulation, gradients, weight, variables):
    """Return 1 and the gradients, or 0 and zeros if the micro-batch is dropped."""
    port, options = accumulation.port, accumulation.options
    counted = (port.all_finite if options.skip_nonfinite else port.one_after)(gradients)
    if options.skip_norm is not None:
        summed = [g for g, v in zip(gradients, variables) if not port.overwrites(v)]
        norm = port.norm(summed) / port.loss_scale
        if weight is not None:
            # At weight 0, the norm is 0 already, and 0 / 0 would be NaN.
            weight = port.ops.where(weight > 0, weight, port.ops.ones_like(weight))
            norm = norm / port.cast(weight, norm.dtype)
        if callable(options.skip_norm):
            counted = counted * (1 - port.count_if(options.skip_norm(norm)))
        else:
            counted = counted * port.count_if(norm <= options.skip_norm)  # false for NaN
    if options.drops:
        gradients = port.zero_unless(gradients, counted)
    return counted, gradients


def transform(accumulation, totals, variables, steps):
    """Apply the user's `window_transforms`. Return the result, and zeros inside a window.

    The functions get averages in every micro-batch, never the zeros of an open window.
    """
    port, due = accumulation.port, {id(step): certain(step) for step in steps}
    averages = port.averages(totals, variables, [due[id(step)] for step in steps])
    summed = [not port.overwrites(variable) for variable in variables]
    gradients = [average / port.loss_scale for average in compress(averages, summed)]
    for function in accumulation.options.window_transforms:
        of_sums = list(compress(variables, summed))
        gradients = list(function(list(gradients), of_sums))
        fit = [g is not None and g.shape == v.shape for g, v in zip(gradients, of_sums)]
        if len(gradients) != len(of_sums) or not all(fit):
            found = ", ".join(str(None if g is None else g.shape) for g in gradients)
            shapes = ", ".join(str(variable.shape) for variable in of_sums)
            raise ValueError(
                "A function of `window_transforms` must return one gradient for each variable, in "
                "the order of the variables and of the same shapes. Received from "
                f"{function}: the shapes {found}, for gradients of the shapes {shapes}"
            )
    gradients = iter(gradients)
    averages = [
        port.cast(next(gradients) * port.loss_scale, average.dtype) if is_summed else average
        for average, is_summed in zip(averages, summed)
    ]
    return port.mask(averages, [step.switch for step in steps])
