"""A micro-batch on tf_keras, whose gradients may be summed over replicas in advance."""

from keras_accum.engine.window import replace
from keras_accum.mistakes import check_horovod
from keras_accum.tf_keras.imports import utilities

# For each summing method: the argument of `apply_gradients` for unsummed gradients.
_FOR_UNSUMMED = {
    "_aggregate_gradients": "experimental_aggregate_gradients=True",
    "aggregate_gradients": "skip_gradients_aggregation=False",
}


def process(optimizer, pairs, is_reduced):
    """Process a micro-batch's (gradient, variable) pairs."""
    accumulation, replicas = optimizer._accumulation, optimizer._accumulation.replicas
    check_horovod(optimizer)
    optimizer.build([variable for _, variable in pairs])
    gradients, variables = map(list, zip(*utilities.filter_empty_gradients(pairs)))
    already_summed, replica = accumulation.update.already_summed, replicas.index()
    # In one replica, a gradient is its own sum.
    if not is_reduced or replicas.count() == 1 and replica not in already_summed:
        accumulation.micro_batch(gradients, variables)
        return
    batch = already_summed.pop(replica, None)
    if batch is None:
        is_wrapped = vars(optimizer).get("_is_wrapped_by_loss_scale_optimizer", False)
        batch = _make_unweighted(accumulation, gradients, variables, is_wrapped)
    accumulation.process(replace(batch, gradients=gradients, variables=variables))


def _make_unweighted(accumulation, gradients, variables, is_refused=False):
    """Return a micro-batch whose weight can't be reduced: its gradients are summed already."""
    options, replicas = accumulation.options, accumulation.replicas
    is_given = options.weighs and accumulation.pending.take("weigh") is not None
    if options.accumulates and (is_given or options.is_strict or is_refused):
        raise ValueError(
            "A weight, reduction='weighted' and a LossScaleOptimizer need the gradients before "
            f"they are summed over replicas: leave {_FOR_UNSUMMED[replicas.method]}."
        )
    accumulation.pending.drop_from_fit()  # each replica's own
    return accumulation.unweighted(gradients, variables)


def sum_in_advance(optimizer, pairs):
    """Sum pairs for a LossScaleOptimizer, which checks them before `apply_gradients`."""
    accumulation = optimizer._accumulation
    options, replicas = accumulation.options, accumulation.replicas
    is_ours = getattr(type(optimizer), replicas.method).__module__.startswith("keras_accum.")
    # A user's method may sum over processes what this one returns, but not the weight.
    is_late = options.weighs and not is_ours
    if not options.accumulates or options.is_strict and is_late or replicas.is_summing:
        return replicas.sum_pairs(pairs)
    optimizer.build([variable for _, variable in pairs])
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:  # no trainable weights
        return []
    gradients, variables = map(list, zip(*pairs))
    with replicas.in_method():
        if is_late:
            summed = replicas.reduce(gradients, variables)
            batch = _make_unweighted(accumulation, summed, variables)
        else:
            batch = accumulation.reduce(gradients, variables)
    accumulation.update.already_summed[replicas.index()] = batch
    return list(zip(batch.gradients, batch.variables))
