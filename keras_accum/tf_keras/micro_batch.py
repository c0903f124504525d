"""One micro-batch: the methods that Keras calls, from the gradients to the writes.

`_transform_gradients` turns the gradients, summed over the replicas, into a window's average or an
addition (see `gates`), which `_distributed_apply` writes. One traced graph serves every
micro-batch.
"""

import inspect

import numpy as np
import tensorflow as tf

from keras_accum import arguments, base, kernels, window
from keras_accum.tf_keras import gates, updates
from keras_accum.tf_keras.library import keras

NO_TRAIN_FUNCTION = (
    "{} needs the train function of TensorFlow 2, which models don't have after "
    "tf.compat.v1.disable_eager_execution(): leave that call out."
)


class MicroBatches(base.Optimizer):
    """The part of an optimizer that processes gradients."""

    def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
        if self._reduces_late and not experimental_aggregate_gradients:
            raise ValueError(
                "all_reduce='per_window' needs the gradients before they are summed over replicas: "
                "leave experimental_aggregate_gradients=True. A LossScaleOptimizer needs the sums "
                "of each micro-batch: use all_reduce='per_micro_batch'."
            )
        if self._is_scaled and not experimental_aggregate_gradients:
            if self._replica() not in self._summed:
                raise ValueError(
                    "A LossScaleOptimizer around an optimizer with accum_iters > 1 needs the "
                    "gradients before they are summed over replicas: leave "
                    "experimental_aggregate_gradients=True. Otherwise a skipped micro-batch would "
                    "count as an update."
                )
            self._summed.remove(self._replica())
        return super().apply_gradients(grads_and_vars, name, experimental_aggregate_gradients)

    @property
    def _is_scaled(self):
        """True if a LossScaleOptimizer skips micro-batches that a window would count."""
        return self._accumulates and getattr(self, "_is_wrapped_by_loss_scale_optimizer", False)

    def _aggregate_gradients(self, grads_and_vars):
        """Sum over replicas, and undo what a LossScaleOptimizer added to `iterations`.

        A LossScaleOptimizer calls this method on every micro-batch. If it skips a micro-batch, it
        adds 1 to `iterations` and applies nothing. `unapplied` becomes 1 here, and 0 when the
        micro-batch is applied. A 1 at the next call is therefore the 1 that was added.
        """
        pairs = list(grads_and_vars)
        if self._is_scaled:
            self._summed.add(self._replica())  # until it hands them to `apply_gradients`
        if self._accumulates:
            with tf.init_scope():
                self._create_all_weights([variable for _, variable in pairs])
        if self._weighs:
            pairs = self._weighted(pairs)
        if not self._reduces_late:
            pairs = list(super()._aggregate_gradients(pairs))
        if not self._accumulates:
            return pairs
        with kernels.after([gradient for gradient, _ in pairs]):
            taken_back = self._take_back()
            if tf.compat.v1.executing_eagerly_outside_functions():
                self._unapplied.assign(1)
                return pairs
        # A TensorFlow 1 graph runs only operations on which the results depend.
        with tf.control_dependencies([taken_back]):
            unapplied = self._unapplied.assign(1)
        with tf.control_dependencies([unapplied]):
            return [(tf.identity(gradient), variable) for gradient, variable in pairs]

    def _weighted(self, grads_and_vars):
        """Return the gradients times the weight of their micro-batch, and the weight as last pair.

        The weight is thus summed over replicas together with the gradients. The factor includes the
        number of replicas, because Keras divides the loss of each replica by that number.
        """
        if not (self._weights_said or tf.compat.v1.executing_eagerly_outside_functions()):
            raise ValueError(NO_TRAIN_FUNCTION.format("reduction='weighted' in `fit`"))
        weight = tf.cast(self._take_weight(), self._window_weight.dtype)
        is_weight = tf.logical_and(weight >= 0, tf.math.is_finite(weight))
        weight = tf.where(is_weight, weight, tf.zeros_like(weight))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        factor = tf.where(is_weight, weight * replicas, np.nan * tf.ones_like(weight))

        def times(gradient, variable):
            dtype = self._accumulators[variable.ref()].dtype  # half precision could overflow
            return kernels.gate(tf.cast(gradient, dtype), tf.cast(factor, dtype))

        pairs = [(times(gradient, variable), variable) for gradient, variable in grads_and_vars]
        return pairs + [(weight, self._window_weight)]

    def _take_back(self):
        return self.iterations.assign_sub(tf.convert_to_tensor(self._unapplied))

    def _transform_gradients(self, grads_and_vars):
        """Return, in place of gradients, what `_distributed_apply` writes."""
        if self._is_stock:
            return super()._transform_gradients(grads_and_vars)
        return gates.gated(self, self._micro_batch(*zip(*grads_and_vars)))

    # Before TensorFlow 2.9, the remaining arguments have a different order.
    def _distributed_apply(self, distribution, gated, *args, **kwargs):
        self._has_stepped = True
        if not isinstance(gated, gates.Gated):
            return super()._distributed_apply(distribution, gated, *args, **kwargs)
        with tf.name_scope(self._name):
            return gated.write(self, distribution, gated.prepared)

    def _micro_batch(self, grads, variables):
        """Return these gradients as a micro-batch, with the window's step."""
        references = [variable.ref() for variable in variables]
        arguments.check_once(references, lambda reference: reference.deref().name)
        self._count_trace()
        self._has_traced = self._has_traced or not tf.executing_eagerly()
        if self._weighs:
            *grads, weight = grads
            *variables, last = variables
            if last is not self._window_weight:  # experimental_aggregate_gradients=False
                raise ValueError(
                    "reduction='weighted' needs the gradients before they are summed over "
                    "replicas: leave experimental_aggregate_gradients=True."
                )
        with kernels.after(grads):  # all counters and switches depend on this number
            counted = tf.ones([], tf.int64)
        if self.skip_nonfinite:
            counted = tf.cast(kernels.all_finite(grads), tf.int64)
            grads = [kernels.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        self._write_norm(base.MICRO_BATCH_NORM, grads, counted)
        step = window.advance(tf, *self._window_state(), counted=counted)
        absent = self._absent(variables)
        if absent:
            missing, number = map(tf.convert_to_tensor, (self._missing_gradients, self.iterations))
            step = window.miss(tf, step, missing, number, absent, counted)
        if self._weighs:
            weight = weight * tf.cast(counted, weight.dtype)
            step = step._replace(divisor=tf.convert_to_tensor(self._window_weight) + weight)
        return gates.MicroBatch(step, list(grads), list(variables), absent)

    def _absent(self, variables):
        """Return the indices of the variables whose gradients are missing; `variables` have one."""
        if not self._accumulates:
            return []
        present = {variable.ref() for variable in variables}
        return [i for i, variable in enumerate(self._variables) if variable.ref() not in present]

    def _prepare(self, var_list):
        # An update calls `_prepare_stock` itself, when the number of earlier updates is known.
        return super()._prepare(var_list) if self._is_stock else {}

    def _prepare_stock(self, variables):
        return super()._prepare(variables)

    def _transform_averages(self, averages_and_vars):
        return super()._transform_gradients(averages_and_vars)

    # In place of these methods of the stock optimizer, other optimizers must call
    # `apply_gradients`. OptimizerV2 looks for `apply_state` in their signatures.

    def _resource_apply_dense(self, grad, var, apply_state=None):
        self._check_is_updating("_resource_apply_dense")
        stock = super()._resource_apply_dense
        return stock(grad, var, **_taken(stock, apply_state=apply_state))

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        self._check_is_updating("_resource_apply_sparse")
        stock = super()._resource_apply_sparse
        return stock(grad, var, indices, **_taken(stock, apply_state=apply_state))

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
        self._check_is_updating("_resource_apply_sparse_duplicate_indices")
        return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices, **kwargs)

    @property
    def _updates_as_stock(self):
        """True if no subclass of this class changes the stock optimizer's update."""
        return type(self)._resource_apply_dense is MicroBatches._resource_apply_dense

    @property
    def _kind_of_update(self):
        rule = self._rule()
        return updates.ByStock() if rule is None else updates.ByRule(rule)

    def _reduced(self, step, totals, variables):
        """Sum the window's sums over the replicas, if each replica has its own until now."""
        if not self._reduces_late:
            return step, totals
        pairs = list(zip(totals, variables))
        if self._weighs:
            # With one replica the sum is the same tensor, and a branch of a conditional may return
            # only its own tensors: the identity is one.
            pairs.append((tf.identity(step.divisor), self._window_weight))
        totals = [total for total, _ in super()._aggregate_gradients(pairs)]
        if self._weighs:
            step = step._replace(divisor=totals.pop())
        return step, totals

    def _close_window(self):
        missing = self._missing_gradients
        if missing is not None:
            missing = keras.backend.get_value(missing)
        variables, frozen = self._covered_and_frozen(missing, self._variables)

        def update():
            with tf.control_dependencies([self._take_back()]):
                position, length, _ = self._window_state()
                totals = [tf.convert_to_tensor(self._accumulators[v.ref()]) for v in variables]
                step = window.close(position, length)
                if self._weighs:
                    step = step._replace(divisor=tf.convert_to_tensor(self._window_weight))
                closing = updates.from_totals(self, step, totals, variables, [], frozen)
            return tf.distribute.get_replica_context().merge_call(
                lambda *args: gates.write_update(self, *args), args=(closing,)
            )

        if tf.compat.v1.executing_eagerly_outside_functions():
            kernels.in_replicas(self._distribution_strategy, update)
            return
        if self._distribution_strategy is not None:
            raise ValueError(
                "`apply_partial_window` on replicas needs the eager execution of TensorFlow 2: "
                "leave tf.compat.v1.disable_eager_execution() out. Received: "
                f"{type(self._distribution_strategy).__name__}"
            )
        key = tuple(variable.ref() for variable in (*variables, *frozen))
        if key not in self._closings:  # kept, because a graph only grows
            with tf.control_dependencies([update()]):
                self._closings[key] = tf.ones([])
        keras.backend.get_value(self._closings[key])

    def _window_state(self):
        """Return position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._window]

    def _update(self, distribution, variable, function, *tensors):
        """Call `function(variable, target, *tensors)` for each replica's copy of a variable."""
        done = distribution.extended.update(
            variable,
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )
        return [operation for operation in tf.nest.flatten(done) if operation is not None]


def _taken(function, **arguments):
    """Return those of the arguments that the function takes."""
    taken = inspect.signature(function).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return {name: value for name, value in arguments.items() if any_name or name in taken}
