"""Layers that ask their framework's allocator for more memory than there is."""

import hosts

keras = hosts.keras
COUNT = 10**14  # numbers in 400 TB, more than a process can address


def ask(x, too_much):
    """Return x. If `too_much`, ask for 400 TB, in the program if there is one.

    too_much: on TensorFlow, also a tensor; elsewhere, a boolean.
    """
    if hosts.IS_TENSORFLOW:
        tf = hosts.tf
        first = tf.reshape(tf.stop_gradient(x), [-1])[0]
        count = tf.where(too_much, tf.constant(COUNT, "int64"), 1)
        return x + (tf.fill([count], first)[0] - first)
    if not too_much:
        return x
    if hosts.IS_TORCH:
        import torch

        torch.empty(COUNT)
        raise AssertionError("this machine has 400 TB")
    return x + in_memory(x, COUNT)


def in_memory(x, count):
    """Return 0, computed by a program of JAX from as many numbers in memory."""
    import jax

    first = jax.lax.stop_gradient(x).reshape(-1)[0]
    times = jax.numpy.where(first < float("inf"), 1, 2)  # XLA would compute one number otherwise
    numbers = jax.lax.full((count,), first)
    numbers = jax.lax.fori_loop(0, times, lambda i, found: found + first, numbers)
    return 0 * numbers[0]


class Greedy(keras.layers.Layer):
    """A layer that needs 400 TB when it trains on more than `limit` samples."""

    def __init__(self, limit, **kwargs):
        super().__init__(**kwargs)
        self.limit = limit

    def call(self, x, training=False):
        return ask(x, keras.ops.shape(x)[0] > self.limit) if training else x


def is_out_of_memory(error):
    """True for an error of the framework's allocator."""
    texts = "Out of memory allocating", "OOM when allocating", "can't allocate memory"
    return any(text in str(error) for text in texts)
