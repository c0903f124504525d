"""Train steps in slices on JAX."""

import jax
import jax.numpy as jnp
import keras

from keras_accum.keras3 import slices


class Step(slices.Step):
    """A train step in slices on JAX, which takes the whole state and returns the next state."""

    def __call__(self, state, data):
        rows = self.rows(jax.tree.leaves(data))
        if rows <= self.size:
            return self.own(state, data)
        model = self.model
        trainable, _, optimizer, _ = state
        one_pass = self._of_outputs if self.loss == "batch" else self._of_samples
        gradients, non_trainable, metrics = one_pass(state, data, rows)
        trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
        with self._scope(model.metrics_variables, metrics):
            logs = model.get_metrics_result()
        return logs, (trainable, non_trainable, optimizer, metrics)

    def _of_samples(self, state, data, rows):
        """Return gradients and new variables, for a loss that is a mean over samples."""
        model, (trainable, non_trainable, optimizer, metrics) = self.model, state
        divisors = self._divisors(state, data, rows)
        gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

        def add(carry, data, count):
            sums, non_trainable, metrics = carry
            x, y, sample_weight = slices.unpack(data)
            with self.losses.as_parts(count, rows, divisors):
                (_, (loss, y_pred, non_trainable, metrics)), gradients = gradient(
                    trainable,
                    non_trainable,
                    metrics,
                    x,
                    y,
                    sample_weight,
                    training=True,
                    optimizer_variables=optimizer,
                )
                with self._scope(model.metrics_variables, metrics) as scope:
                    self.track(loss, count, x, y, y_pred, sample_weight)
            metrics = [scope.get_current_value(v) for v in model.metrics_variables]
            sums = [s + (count / rows) * g.astype(s.dtype) for s, g in zip(sums, gradients)]
            return sums, non_trainable, metrics

        carry = self._zeros(trainable), non_trainable, metrics
        sums, non_trainable, metrics = self._fold(add, carry, data, rows)
        return self._as(trainable, sums), non_trainable, metrics

    def _of_outputs(self, state, data, rows):
        """Return gradients and new variables, for a loss of all outputs of the batch."""
        model, (trainable, non_trainable, optimizer, metrics) = self.model, state
        x, y, sample_weight = slices.unpack(data)
        training = {"training": True} if model._call_has_training_arg else {}

        def call(trainable, non_trainable, data, count):
            x, _, _ = slices.unpack(data)
            y_pred, non_trainable, losses = model.stateless_call(
                trainable, non_trainable, x, return_losses=True, **training
            )
            arrays, masks = self.outputs.flat(y_pred)
            return arrays, masks, non_trainable, self.penalties(losses, count / rows)

        def forward(carry, data, count):
            non_trainable, penalties = carry
            arrays, masks, non_trainable, more = call(trainable, non_trainable, data, count)
            return (non_trainable, penalties + more), (arrays, masks)

        carry = non_trainable, jnp.zeros((), keras.config.floatx())
        (_, penalties), (arrays, masks) = self._scan(forward, carry, data, rows)

        def of_outputs(arrays):
            variables = [*model.metrics_variables, *model.optimizer.variables]
            with self._scope(variables, [*metrics, *optimizer]) as scope:
                y_pred = self.outputs.packed(arrays, masks)
                loss = self.loss_of_outputs(y, y_pred, sample_weight)
                scaled = model.optimizer.scale_loss(loss)
            return scaled, (loss, [scope.get_current_value(v) for v in model.metrics_variables])

        of_arrays, (loss, metrics) = jax.grad(of_outputs, has_aux=True)(arrays)
        with self._scope(model.metrics_variables, metrics) as scope:
            y_pred = self.outputs.packed(arrays, ())  # metrics see no mask, as in Keras's own step
            self.track(loss + penalties, rows, x, y, y_pred, sample_weight)
        metrics = [scope.get_current_value(v) for v in model.metrics_variables]

        def add(carry, data, count):
            sums, non_trainable = carry
            data, of_arrays = data

            def objective(trainable):
                arrays, _, new, penalties = call(trainable, non_trainable, data, count)
                with self._scope(model.optimizer.variables, optimizer):
                    penalties = model.optimizer.scale_loss(penalties)
                return self.product(arrays, of_arrays) + penalties, new

            gradients, non_trainable = jax.grad(objective, has_aux=True)(trainable)
            return [s + g.astype(s.dtype) for s, g in zip(sums, gradients)], non_trainable

        carry = self._zeros(trainable), non_trainable
        sums, non_trainable = self._fold(add, carry, (data, of_arrays), rows)
        return self._as(trainable, sums), non_trainable, metrics

    @staticmethod
    def _zeros(values):
        return [jnp.zeros_like(v, jnp.promote_types(v.dtype, "float32")) for v in values]

    @staticmethod
    def _as(values, sums):
        return [s.astype(v.dtype) for s, v in zip(sums, values)]

    @staticmethod
    def _scope(variables, values):
        return keras.StatelessScope(state_mapping=list(zip(variables, values)))

    def _fold(self, function, carry, data, rows):
        """Return `function(carry, slice, samples of the slice)`, called with each slice in turn."""
        return self._scan(lambda *arguments: (function(*arguments), None), carry, data, rows)[0]

    def _scan(self, function, carry, data, rows):
        """Return the last carry, and the arrays that `function` has returned besides, joined.

        The loop over equal slices is a loop in the program.
        """
        count, rest = divmod(rows, self.size)
        equal = jax.tree.map(
            lambda a: jnp.reshape(a[: rows - rest], (count, self.size, *a.shape[1:])), data
        )

        def step(carry, data):
            new, found = function(carry, data, self.size)
            return jax.tree.map(lambda n, c: jnp.asarray(n, c.dtype), new, carry), found

        carry, found = jax.lax.scan(step, jax.tree.map(jnp.asarray, carry), equal)
        found = jax.tree.map(lambda a: jnp.reshape(a, (-1, *a.shape[2:])), found)
        if rest:
            last = jax.tree.map(lambda a: a[rows - rest :], data)
            carry, more = function(carry, last, rest)
            found = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found, more)
        return carry, found

    def _divisors(self, state, data, rows):
        """Return what each loss of the batch is divided by, None if in proportion to samples."""
        model, (trainable, non_trainable, _, metrics) = self.model, state
        mapping = [
            *zip(model.trainable_variables, trainable),
            *zip(model.non_trainable_variables, non_trainable),
            *zip(model.metrics_variables, metrics),
        ]

        def of_slice(data, count):
            return self.losses.divisors(*slices.unpack(data), count, mapping)

        first = jax.tree.map(lambda a: a[: self.size], data)
        specs = jax.eval_shape(lambda data: of_slice(data, self.size), first)
        if all(spec is None for spec in specs):
            return specs
        zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), specs)

        def add(sums, data, count):
            return jax.tree.map(jnp.add, sums, of_slice(data, count))

        return self._fold(add, zeros, data, rows)
