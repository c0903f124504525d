"""Train steps in slices on TensorFlow."""

import keras
import tensorflow as tf

from keras_accum.keras3 import slices


class Step(slices.Step):
    """A train step in slices on TensorFlow, which may not know the number of samples while traced.

    A replica of a strategy takes slices of its own part of the batch, and the optimizer reduces the
    sum of the gradients once.
    """

    def replicas(self):
        return tf.distribute.get_strategy().num_replicas_in_sync

    def __call__(self, data):
        arrays = [a for a in keras.tree.flatten(data) if a is not None]
        self._check_dense(arrays)
        rows = self.rows(arrays)
        model = self.model
        if not model.trainable_weights or (rows is not None and rows <= self.size):
            return self.own(data)
        self._build(data)
        rows = tf.shape(arrays[0])[0] if rows is None else rows
        variables = model.trainable_weights
        one_pass = self._of_outputs if self.loss == "batch" else self._of_samples
        sums = one_pass(variables, data, rows)
        gradients = [s if s is None else tf.cast(s, v.dtype) for s, v in zip(sums, variables)]
        model.optimizer.apply_gradients(zip(gradients, variables))
        return model.get_metrics_result()

    def _of_samples(self, variables, data, rows):
        """Return the gradients of a loss that is a mean over samples."""
        model, divisors = self.model, self._divisors(data, rows)

        def gradients(data, count):
            x, y, sample_weight = slices.unpack(data)
            with tf.GradientTape() as tape, self.losses.as_parts(count, rows, divisors):
                y_pred = slices.call(model, x, training=True)
                loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
                with tape.stop_recording():
                    self.track(loss, count, x, y, y_pred, sample_weight)
                loss = model.optimizer.scale_loss(loss)
            return tape.gradient(loss, variables)

        return self._sums(gradients, variables, data, rows, lambda count: count / rows)

    def _of_outputs(self, variables, data, rows):
        """Return the gradients of a loss of all outputs of the batch."""
        model = self.model
        x, y, sample_weight = slices.unpack(data)

        def call(data, count):
            x, _, _ = slices.unpack(data)
            arrays, masks = self.outputs.flat(slices.call(model, x, training=True))
            return arrays, masks, self.penalties(model.losses, count / rows)

        def forward(penalties, data, count):
            arrays, masks, more = call(data, count)
            return penalties + more, [*arrays, *masks]

        state = [*model.non_trainable_variables, *model.metrics_variables]
        before = [tf.identity(v.value) for v in state]
        zero = tf.zeros((), keras.config.floatx())
        penalties, found = self._scan(forward, zero, data, rows)
        for variable, value in zip(state, before):  # so that the second pass draws the same
            variable.assign(value)
        arrays, masks = found[: self.outputs.count], found[self.outputs.count :]
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            y_pred = self.outputs.packed([tf.identity(array) for array in arrays], masks)
            loss = self.loss_of_outputs(y, y_pred, sample_weight)
            scaled = model.optimizer.scale_loss(loss)
        self.track(loss + penalties, rows, x, y, y_pred, sample_weight)
        zeros = tf.UnconnectedGradients.ZERO
        of_arrays = tape.gradient(scaled, arrays, unconnected_gradients=zeros)

        def gradients(data, count):
            data, of_arrays = data
            with tf.GradientTape() as tape:
                arrays, _, penalties = call(data, count)
                loss = self.product(arrays, of_arrays) + model.optimizer.scale_loss(penalties)
            return tape.gradient(loss, variables)

        return self._sums(gradients, variables, (data, of_arrays), rows, lambda count: 1)

    def _sums(self, gradients, variables, data, rows, share):
        """Return the sums of the gradients of slices, None for variables without a gradient."""
        missing = set(range(len(variables)))

        def add(sums, data, count):
            found = gradients(data, count)
            missing.intersection_update(i for i, g in enumerate(found) if g is None)
            return [
                s if g is None else s + tf.cast(share(count), s.dtype) * tf.cast(g, s.dtype)
                for s, g in zip(sums, found)
            ]

        zeros = [tf.zeros(v.shape, tf.float32 if _is_half(v) else v.dtype) for v in variables]
        sums = self._fold(add, zeros, data, rows)
        return [None if i in missing else total for i, total in enumerate(sums)]

    @staticmethod
    def _check_dense(arrays):
        for array in arrays:
            if not isinstance(array, tf.Tensor):
                raise ValueError(
                    "MicroBatches takes slices of dense arrays only. Received: an array of type "
                    f"{type(array).__name__}"
                )

    def _build(self, data):
        """Make all variables: a loop can't."""
        model = self.model
        parts = [*model._flatten_layers(), model._compile_loss, model._compile_metrics]
        if not all(part is None or part.built for part in [*parts, model.optimizer]):
            with tf.init_scope():
                model._symbolic_build(data_batch=data)

    def _fold(self, function, carry, data, rows):
        """Return `function(carry, slice, samples of the slice)`, called with each slice in turn."""
        return self._scan(lambda *arguments: (function(*arguments), []), carry, data, rows, [])[0]

    def _scan(self, function, carry, data, rows, specs=None):
        """Return the last carry, and the list of arrays that `function` returns besides, joined.

        The loop over equal slices is a loop in the program. `specs` are the arrays of a slice.
        """
        equal = rows // self.size
        if specs is None:
            _, specs = self._traced(lambda data: function(carry, data, self.size), data)
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

    def _traced(self, function, data):
        """Return what `function` returns for a slice, in a graph that never runs."""
        returned = []

        def spec(array):
            return tf.TensorSpec([self.size, *array.shape[1:]], array.dtype)

        specs = keras.tree.map_structure(lambda a: None if a is None else spec(a), data)
        traced = tf.function(lambda data: returned.append(function(data)), autograph=False)
        traced.get_concrete_function(specs)
        return returned[0]

    @staticmethod
    def _part(data, start, count):
        def of_array(array):
            if array is None:
                return None
            # Not `array[start : start + count]`, whose size XLA doesn't know.
            begin = tf.concat([[start], tf.zeros_like(tf.shape(array)[1:])], 0)
            part = tf.slice(array, begin, tf.concat([[count], tf.shape(array)[1:]], 0))
            part.set_shape([count if isinstance(count, int) else None, *array.shape[1:]])
            return part

        return keras.tree.map_structure(of_array, data)

    def _divisors(self, data, rows):
        """Return what each loss of the batch is divided by, None if in proportion to samples."""

        def of_slice(data, count):
            return self.losses.divisors(*slices.unpack(data), count)

        found = self._traced(lambda data: of_slice(data, self.size), data)
        unknown = [i for i, divisor in enumerate(found) if divisor is not None]
        if not unknown:
            return found

        def add(sums, data, count):
            of_losses = of_slice(data, count)
            return [total + of_losses[i] for i, total in zip(unknown, sums)]

        sums = self._fold(add, [tf.zeros((), found[i].dtype) for i in unknown], data, rows)
        return [dict(zip(unknown, sums)).get(i) for i in range(len(found))]


def _is_half(variable):
    return variable.dtype in ("float16", "bfloat16")
