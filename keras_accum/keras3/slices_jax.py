"""Train steps in slices on JAX."""

import contextlib

import jax
import jax.numpy as jnp
import keras

from keras_accum.keras3 import slices


class Step(slices.Step):
    """A train step in slices on JAX, which takes the whole state and returns the next state.

    Inside the step, a StatelessScope has the state. A function that JAX transforms takes values of
    variables and returns them: `_pure`.
    """

    def __call__(self, state, data):
        rows = self.rows_of(data)
        if self.is_one_slice(rows):
            return self.own(state, data)
        model = self.model
        trainable, _, optimizer, _ = state
        with keras.StatelessScope(self._pairs(state)):
            gradients = self.gradients(data, rows)
            non_trainable, metrics = self._state()
            logs = model.get_metrics_result()
        trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
        return logs, (trainable, non_trainable, optimizer, metrics)

    def gradient(self, objective):
        """Return the gradients of `objective()`, and what it returns besides."""
        pure = self._pure(objective)

        def of_weights(weights, state):
            (loss, found), state = pure(state, weights)
            return loss, (found, state)

        weights = [v.value for v in self.model.trainable_variables]
        gradients, (found, state) = jax.grad(of_weights, has_aux=True)(weights, self._state())
        self._assign(state)
        return gradients, found

    def gradient_of_arrays(self, objective, arrays):
        """Return the gradients of `objective(arrays)`, and what it returns besides."""

        def of_arrays(arrays, state):
            (loss, found), state = self._pure(lambda: objective(arrays))(state)
            return loss, (found, state)

        gradients, (found, state) = jax.grad(of_arrays, has_aux=True)(arrays, self._state())
        self._assign(state)
        return gradients, found

    def sums(self, gradients, data, rows):
        """Return the sums of the gradients of slices."""
        weights = [v.value for v in self.model.trainable_variables]

        def add(sums, data, count):
            found = gradients(data, count)
            return [s + g.astype(s.dtype) for s, g in zip(sums, found)]

        zeros = [jnp.zeros_like(w, jnp.promote_types(w.dtype, "float32")) for w in weights]
        sums = self.fold(add, zeros, data, rows)
        return [s.astype(w.dtype) for s, w in zip(sums, weights)]

    def fold(self, function, carry, data, rows):
        """Return `function(carry, slice, samples of the slice)`, called with each slice in turn."""
        return self.scan(lambda *arguments: (function(*arguments), []), carry, data, rows)[0]

    def scan(self, function, carry, data, rows):
        """Return the last carry, and the list of arrays that `function` returns besides, joined.

        The loop over equal slices is a loop in the program.
        """
        count, rest = divmod(rows, self.size)
        shards = self._shards()
        equal = jax.tree.map(lambda a: _turned(a[: rows - rest], shards, count), data)
        equal = jax.tree.map(lambda a: jnp.reshape(a, (count, self.size, *a.shape[1:])), equal)

        def step(carry_and_state, data):
            carry, state = carry_and_state
            (carry, found), state = self._pure(lambda: function(carry, data, self.size))(state)
            return jax.tree.map(_like, (carry, state), carry_and_state), found

        first = jax.tree.map(jnp.asarray, (carry, self._state()))
        (carry, state), found = jax.lax.scan(step, first, equal)
        found = [_turned(jnp.reshape(a, (-1, *a.shape[2:])), count, shards) for a in found]
        if rest:
            last = jax.tree.map(lambda a: a[rows - rest :], data)
            (carry, more), state = self._pure(lambda: function(carry, last, rest))(state)
            found = [jnp.concatenate([a, b]) for a, b in zip(found, more)]
        self._assign(state)
        return carry, found

    def _shards(self):
        """Return over how many devices Keras distributes a batch: each takes a part of a slice."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1
        mesh = distribution.device_mesh
        shards = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
        return 1 if self.size % shards else shards

    def traced(self, function, data):
        """Return what `function` returns for a slice, in a program that never runs."""
        return jax.eval_shape(function, jax.tree.map(lambda a: a[: self.size], data))

    flatten = staticmethod(jax.tree.leaves)

    def is_out_of_memory(self, error):
        return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)

    def has_begun_to_update(self, state):
        """Whether the arrays of the state are gone: JAX hands them on when a program starts."""
        return any(array.is_deleted() for array in jax.tree.leaves(state))

    def kept(self, *state):
        return () if state else super().kept()  # the state of a train function is its argument

    def of_batches(self, make, *state):
        with self._values_for_shardings(*state):
            function = make()
        waited = []

        def of_batch(state, batch):
            result = function(state, iter([batch]))
            if not waited:  # JAX returns before it has computed, or failed
                waited.append(jax.block_until_ready(result) and True)
            return result

        return of_batch

    @contextlib.contextmanager
    def _values_for_shardings(self, state):
        """A scope in which variables have values, from which Keras reads how to distribute them."""
        found = self._pairs(state) if keras.distribution.distribution() is not None else []
        own = [variable._value for variable, _ in found]
        for variable, value in found:
            variable._value = value
        yield
        for (variable, _), value in zip(found, own):
            variable._value = value

    def unchanged(self):
        return keras.StatelessScope(self._pairs())

    def _pure(self, function):
        """Return a function of the values of the state, which returns the next values, too.

        Its second argument, if it is given, has the values of the weights.
        """

        def pure(state, weights=None):
            pairs = self._pairs()
            if weights is not None:
                pairs += zip(self.model.trainable_variables, weights)
            with keras.StatelessScope([*pairs, *self._pairs_of_state(state)], collect_losses=True):
                return function(), self._state()

        return pure

    def _pairs(self, values=None):
        """Return all variables with the given values, or with their values in this scope."""
        model = self.model
        kinds = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        if values is None:
            values = [[v.value for v in kind] for kind in kinds]
        return [pair for kind, of_kind in zip(kinds, values) for pair in zip(kind, of_kind)]

    def _state(self):
        """Return the values, in this scope, of the variables that a pass of the model changes."""
        model = self.model
        kinds = model.non_trainable_variables, model.metrics_variables
        return tuple([v.value for v in kind] for kind in kinds)

    def _pairs_of_state(self, state):
        model = self.model
        kinds = model.non_trainable_variables, model.metrics_variables
        return [pair for kind, values in zip(kinds, state) for pair in zip(kind, values)]

    def _assign(self, state):
        for variable, value in self._pairs_of_state(state):
            variable.assign(value)


def _turned(array, rows, columns):
    """Return an array whose samples are a matrix of blocks, row by row, as column by column."""
    blocks = jnp.reshape(array, (rows, columns, -1, *array.shape[1:]))
    return jnp.reshape(jnp.swapaxes(blocks, 0, 1), array.shape)


def _like(new, old):
    return jnp.asarray(new, old.dtype)
