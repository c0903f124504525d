"""Loops over slices, and gradients, on TensorFlow: for Keras 3 and for tf_keras."""

import contextlib

import tensorflow as tf


class Loops:
    """A train step in slices, which may not know the number of samples while traced.

    A Keras defines `build`, which makes all variables, because a loop can't; and `apply`.
    """

    flatten = staticmethod(tf.nest.flatten)

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        if self.searches:
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)

    def check(self):
        super().check()
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        if self.searches and replicas > 1:
            raise ValueError(
                'MicroBatches("auto") can\'t be used under a strategy with several replicas: a '
                "step that failed on one of them can't be undone. Give a size. "
                f"Received: {replicas} replicas"
            )

    def __call__(self, data):
        with self.marked():
            return self._step(data)

    def _step(self, data):
        arrays = [a for a in tf.nest.flatten(data) if a is not None]
        self._check_dense(arrays)
        rows = self.rows(arrays)
        model = self.model
        self.build(data)
        if self.is_one_slice(rows) or not model.trainable_weights:
            return self.own(data)
        rows = tf.shape(arrays[0])[0] if rows is None else rows
        variables = model.trainable_weights
        sums = self.gradients(data, rows)
        gradients = [s if s is None else tf.cast(s, v.dtype) for s, v in zip(sums, variables)]
        self.apply(gradients, variables)
        return model.get_metrics_result()

    def prepare(self, batch):
        self.build(batch)

    @contextlib.contextmanager
    def mark(self, pairs):
        gradients, variables = zip(*pairs)
        arrays = tf.nest.flatten(gradients, expand_composites=True)
        with tf.control_dependencies([array for array in arrays if array is not None]):
            begun = self._begun.assign_add(1)
        with tf.control_dependencies([begun]):  # else a counter is written while a slice fails
            yield list(zip(gradients, variables))

    def is_out_of_memory(self, error):
        return isinstance(error, tf.errors.ResourceExhaustedError)

    @staticmethod
    def _check_dense(arrays):
        for array in arrays:
            if not isinstance(array, tf.Tensor):
                raise ValueError(
                    "MicroBatches takes slices of dense arrays only. Received: an array of type "
                    f"{type(array).__name__}"
                )

    def gradient(self, objective):
        """Return the gradients of `objective()`, and what it returns besides."""
        with tf.GradientTape() as tape:
            loss, found = objective()
        return tape.gradient(loss, self.model.trainable_weights), found

    def gradient_of_arrays(self, objective, arrays):
        """Return the gradients of `objective(arrays)`, and what it returns besides."""
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            loss, found = objective([tf.identity(array) for array in arrays])
        zeros = tf.UnconnectedGradients.ZERO
        return tape.gradient(loss, arrays, unconnected_gradients=zeros), found

    def sums(self, gradients, data, rows):
        """Return the sums of the gradients of slices, None for variables without a gradient."""
        variables = self.model.trainable_weights
        missing = set(range(len(variables)))

        def add(sums, data, count):
            found = gradients(data, count)
            missing.intersection_update(i for i, g in enumerate(found) if g is None)
            return [s if g is None else _add(s, g) for s, g in zip(sums, found)]

        zeros = [tf.zeros(v.shape, _wide(tf.as_dtype(v.dtype))) for v in variables]
        sums = self.fold(add, zeros, data, rows)
        return [None if i in missing else total for i, total in enumerate(sums)]

    def fold(self, function, carry, data, rows):
        """Return `function(carry, slice, samples of the slice)`, called with each slice in turn."""
        return self._scan(lambda *arguments: (function(*arguments), []), carry, data, rows, [])[0]

    def scan(self, function, carry, data, rows):
        """Return the last carry, and the list of arrays that `function` returns besides, joined."""
        _, specs = self.traced(lambda data: function(carry, data, self.size), data)
        return self._scan(function, carry, data, rows, specs)

    def _scan(self, function, carry, data, rows, specs):
        """Scan in a loop of the program over equal slices. `specs` are the arrays of a slice."""
        equal = rows // self.size
        kept = [tf.TensorArray(s.dtype, equal, element_shape=s.shape) for s in specs]

        def step(i, carry, kept):
            part = self._part(data, i * self.size, self.size)
            carry, found = function(carry, part, self.size)
            return i + 1, carry, [arrays.write(i, array) for arrays, array in zip(kept, found)]

        _, carry, kept = tf.while_loop(
            lambda i, *_: i < equal,
            step,
            (0, carry, kept),
            parallel_iterations=1,
            maximum_iterations=equal,
        )
        found = [tf.reshape(k.stack(), [-1, *s.shape[1:]]) for k, s in zip(kept, specs)]
        rest = rows - equal * self.size

        def last():
            new, more = function(carry, self._part(data, equal * self.size, rest), rest)
            return new, [tf.concat([f, m], 0) for f, m in zip(found, more)]

        if isinstance(rest, int):
            return last() if rest else (carry, found)
        return tf.cond(rest > 0, last, lambda: (carry, found))

    def traced(self, function, data):
        """Return what `function` returns for a slice, in a graph that never runs."""
        returned = []

        def spec(array):
            return tf.TensorSpec([self.size, *array.shape[1:]], array.dtype)

        specs = tf.nest.map_structure(lambda a: None if a is None else spec(a), data)
        traced = tf.function(lambda data: returned.append(function(data)), autograph=False)
        traced.get_concrete_function(specs)
        return returned[0]

    @staticmethod
    def _part(data, start, count):
        def of_array(array):
            if array is None:
                return None
            shape, size = tf.shape(array), count if isinstance(count, int) else None
            # XLA compiles the loop also for a batch of fewer samples, in which it never runs.
            there = tf.minimum(count, shape[0])
            # Not `array[start : start + there]`, whose size XLA doesn't know.
            begin = tf.concat([[start], tf.zeros_like(shape[1:])], 0)
            part = tf.slice(array, begin, tf.concat([[there], shape[1:]], 0))
            if size is not None:
                part = tf.pad(part, [[0, size - there], *[[0, 0]] * (array.shape.rank - 1)])
            part.set_shape([size, *array.shape[1:]])
            return part

        return tf.nest.map_structure(of_array, data)


def _wide(dtype):
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def _add(total, gradient):
    """Add a gradient to a sum. Of sparse rows, only these rows are read and written."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, total.dtype)
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], values)
    return total + tf.cast(gradient, total.dtype)
