"""Train steps of tf_keras optimizers, legacy and newer.

A port runs the stock optimizer's own update, and restores variables whose switch is 0. Only legacy
optimizers with `rules` need no restoring.
"""

import contextlib

import tensorflow as tf

from keras_accum.tensorflow import port
from keras_accum.tf_keras.library import utilities
from keras_accum.tf_keras.state import TfKerasStatePort, get_dtype
from keras_accum.window import is_certain


class TfKerasPort(TfKerasStatePort):
    """Keras 2 on TensorFlow 2. A subclass for each style defines these members.

    add_variable(name, value, dtype, shape): A new optimizer variable on every replica.
    to_sum: The argument to `apply_gradients` for gradients not yet summed over replicas.
    sums: The method that sums (gradient, variable) pairs over replicas. A subclass such as
        Horovod's may override it.
    sum_pairs(pairs): Pairs summed by the stock optimizer.
    run_stock(averages, variables, switches): Makes the stock optimizer's update, without summing.
    """

    def __init__(self, accumulation):
        super().__init__(accumulation)
        self._updates_begun = 0  # replicas inside an update
        self._in_advance = {}  # replica: the weight or None, after a LossScaleOptimizer's sum
        self._summing = set()  # replicas inside the method `sums`
        self._updates_before = None  # a number, if Python runs the step

    def micro_batch(self, pairs, is_summed):
        """Process a micro-batch's (gradient, variable) pairs."""
        accumulation, options = self.accumulation, self.accumulation.options
        self.optimizer.build([variable for _, variable in pairs])
        gradients, variables = map(list, zip(*utilities.filter_empty_gradients(pairs)))
        if not is_summed:
            accumulation.micro_batch(gradients, variables)
            return
        is_wrapped = vars(self.optimizer).get("_is_wrapped_by_loss_scale_optimizer", False)
        needs_pairs = options.weighs or is_wrapped and options.accumulates
        if needs_pairs and self.replica() not in self._in_advance:
            raise ValueError(
                "reduction='weighted' and a LossScaleOptimizer need the gradients before they are "
                f"summed over replicas: leave {self.to_sum}."
            )
        accumulation.take(gradients, self._in_advance.pop(self.replica(), None), variables)

    def sum_in_advance(self, pairs):
        """Sum pairs for a LossScaleOptimizer, which checks them before `apply_gradients`."""
        options, method = self.accumulation.options, getattr(type(self.optimizer), self.sums)
        is_late = options.weighs and method.__module__ != type(self).__module__  # already summed
        if not options.accumulates or is_late or self.replica() in self._summing:
            return self.sum_pairs(pairs)
        self.optimizer.build([variable for _, variable in pairs])
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not pairs:  # no trainable weights
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

    def list_written(self, variables, switches, switch):
        """Return (variable, switch) pairs for all variables that an update may write.

        `switch` is for the optimizer's variables shared by all weights.
        """
        switch_by_key = {None: switch, **dict(zip(map(self.key, variables), switches))}
        pairs = list(zip(variables, switches))
        for (_, key), each in self.kept.items():
            _, owner, _ = self.created.get(id(each), (None, None, None))
            if (owner or key) in switch_by_key:
                pairs.append((each, switch_by_key[owner or key]))
        return [(each, switch) for each, switch in pairs if not is_certain(switch)]

    def update(self, step, average, variables, switches):
        written = self.list_written(variables, switches, step.switch)
        written.append((self.updates, 0))  # the engine counts updates, after all other writes
        # A step that finds no more data must not decay weights: wait for the gradients.
        with port.after([step.divisor]), self.refusing_other_writes(step.switch):
            held = [(variable, switch, self.value(variable)) for variable, switch in written]
            self._updates_begun += 1
            try:
                averages = [tf.cast(a, get_dtype(v)) for a, v in zip(average(), variables)]
                self.run_stock(averages, variables, switches)
                self._is_made = True
            finally:
                self._updates_begun -= 1
                self._is_made = self._is_made or self._is_counted(variables)
                self.take_back(held)

    def list_held(self):
        # The newer style's rate follows the updates, although each step writes it.
        rate = vars(self.optimizer).get("_current_learning_rate")
        return [*super().list_held(), *self.kept.values(), *([] if rate is None else [rate])]

    def snapshot(self, sums):
        found = super().snapshot(sums)
        self._is_made, self._updates_before = False, found and found[-1]
        return found

    def is_made(self, snapshot):
        return self._is_made or self._is_counted(self.variables)

    def _is_counted(self, variables):
        """True if the stock optimizer has counted an update since Python began the step.

        It does so after its other writes, but in the newer style before constraints.
        """
        is_last = all(getattr(variable, "constraint", None) is None for variable in variables)
        before = self._updates_before
        return is_last and before is not None and bool(self.updates != before)

    @property
    def is_updating(self):
        return self._updates_begun > 0

    def count_updates(self, switch):
        def count(variable, target, switch):
            switch = tf.cast(switch, target.dtype)
            if self._updates_before is None:
                return target.assign_add(switch)
            return target.assign(self._updates_before + switch)  # also if called twice

        self.on(self.updates, count, switch)
