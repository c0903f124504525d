"""What both styles of optimizers of this Keras do in a train step.

A port runs the stock optimizer's own update, and takes back what a switch of 0 must not have
written. Only the legacy optimizers of `rules` need no taking back: their coefficients hold
everything still.
"""

import contextlib

import tensorflow as tf

from keras_accum.tensorflow import port
from keras_accum.tf_keras.library import utilities
from keras_accum.tf_keras.state import TfKerasStatePort, get_dtype
from keras_accum.window import is_certain


class TfKerasPort(TfKerasStatePort):
    """Keras 2 on TensorFlow 2. A subclass for each style of optimizers defines these members.

    add_variable(name, value, dtype, shape): A new variable of the optimizer, on every replica.
    to_sum: The argument of `apply_gradients` for gradients that aren't summed over replicas yet.
    sums: The method that sums pairs of gradients and variables over replicas. A subclass may sum in
        a way of its own, as Horovod's does.
    sum_pairs(pairs): Pairs of gradients and variables, summed by the stock optimizer.
    run_stock(averages, variables, switches): Makes the stock optimizer's update, without summing.
    """

    def __init__(self, accumulation):
        super().__init__(accumulation)
        self._updates_begun = 0  # one for each replica that waits in the same update
        # The weight of a micro-batch whose gradients a LossScaleOptimizer has summed, by replica.
        self._in_advance = {}
        self._summing = set()  # the replicas that are inside of the method `sums`

    @property
    def counts_skips(self):
        return vars(self.optimizer).get("_is_wrapped_by_loss_scale_optimizer", False)

    # -- a train step ------------------------------------------------------------------------------

    def micro_batch(self, pairs, is_summed):
        """Take the pairs of gradients and variables of a micro-batch."""
        accumulation, options = self.accumulation, self.accumulation.options
        self.optimizer.build([variable for _, variable in pairs])
        gradients, variables = map(list, zip(*utilities.filter_empty_gradients(pairs)))
        if not is_summed:
            accumulation.micro_batch(gradients, variables)
            return
        was_summed_here = self.replica() in self._in_advance
        weight = self._in_advance.pop(self.replica(), None)
        refused = None
        if options.weighs and weight is None:
            refused = "reduction='weighted'"
        elif self.counts_skips and options.accumulates and not was_summed_here:
            refused = "A LossScaleOptimizer"
        if refused:
            raise ValueError(
                f"{refused} needs the gradients before they are summed over replicas: leave "
                f"{self.to_sum}."
            )
        accumulation.take(gradients, weight, variables)

    def sum_in_advance(self, pairs):
        """Return pairs with gradients that are summed over replicas.

        A LossScaleOptimizer calls this on every micro-batch, looks whether the sums are finite, and
        hands them to `apply_gradients`.
        """
        options, method = self.accumulation.options, getattr(type(self.optimizer), self.sums)
        is_summed = options.weighs and method.__module__ != type(self).__module__  # too early
        if not options.accumulates or is_summed or self.replica() in self._summing:
            return self.sum_pairs(pairs)
        self.optimizer.build([variable for _, variable in pairs])
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not pairs:  # as in a model without trainable weights
            return []
        with self._in_sums():
            sums, weight = self.accumulation.reduce(*map(list, zip(*pairs)))
        self._in_advance[self.replica()] = weight
        return [(total, variable) for total, (_, variable) in zip(sums, pairs)]

    @contextlib.contextmanager
    def _in_sums(self):
        replica = self.replica()
        self._summing.add(replica)
        try:
            yield
        finally:
            self._summing.discard(replica)

    def reduce(self, tensors, variables):
        pairs = list(zip(tensors, variables))
        if self.replica() in self._summing:
            pairs = self.sum_pairs(pairs)
        else:
            with self._in_sums():
                pairs = getattr(self.optimizer, self.sums)(pairs)
        sums = {self.key(variable): total for total, variable in pairs}
        return [sums[self.key(variable)] for variable in variables]

    # -- an update ---------------------------------------------------------------------------------

    def list_written(self, variables, switches, switch):
        """Return what an update may write and a switch may hold: pairs of variables and switches.

        `switch` is that of what the optimizer keeps once for all variables.
        """
        of_key = {None: switch, **dict(zip(map(self.key, variables), switches))}
        owners = {place: key for place, (_, key, _) in self.made.items() if key is not None}
        kept = [(each, owners.get(id(each), key)) for (_, key), each in self.of_rule.items()]
        kept = [(each, of_key[key]) for each, key in kept if key in of_key]
        pairs = [*zip(variables, switches), *kept]
        return [(each, switch) for each, switch in pairs if not is_certain(switch)]

    def update(self, step, average, variables, switches):
        written = self.list_written(variables, switches, step.switch)
        written.append((self.updates, 0))  # the engine counts updates, after all other writes
        self._updates_begun += 1
        try:
            # Otherwise a train step that finds no more data could decay weights before it fails.
            # The counts come after all gradients.
            with port.after([step.divisor]), self.refusing_other_writes(step.switch):
                held = [(variable, switch, self.value(variable)) for variable, switch in written]
                try:
                    averages = [tf.cast(a, get_dtype(v)) for a, v in zip(average(), variables)]
                    self.run_stock(averages, variables, switches)
                    self._is_made = True
                finally:
                    self.take_back(held)
        finally:
            self._updates_begun -= 1

    def list_held(self):
        # The newer style writes the schedule's rate in each step, which follows the updates.
        rate = vars(self.optimizer).get("_current_learning_rate")
        return [*super().list_held(), *self.of_rule.values(), *([] if rate is None else [rate])]

    def snapshot(self, sums):
        self._is_made = False
        return super().snapshot(sums)

    def is_made(self, snapshot):
        return self._is_made  # `updates` is written after the sums

    @property
    def is_updating(self):
        return self._updates_begun > 0

    def count_updates(self, switch):
        def count(variable, target, switch):
            return target.assign_add(tf.cast(switch, target.dtype))

        self.on(self.updates, count, switch)
