"""Small models, parts of models and data that two or more files of tests need.

A model that one file alone needs, or that is what its test is about, stays where its reader sees
it. `training.dense_model` is the plain one.
"""

import hosts
import numpy as np
from hosts import keras

layers = keras.layers

# -- data ------------------------------------------------------------------------------------------

STEPS = 5
ENDS = [1, 1, 2, 1, 3, 2, 4, 5, 4, 5, 5, 2, 1, 3]  # steps of each sample that aren't masked


def arrays(samples, x=(3,), y=(2,)):
    """Inputs and targets of these shapes, from 1 to 2."""
    random = np.random.default_rng(0)
    return [random.uniform(1, 2, (samples, *shape)).astype(hosts.FLOATX) for shape in (x, y)]


def padded(samples=11):
    """Sequences of different lengths; the first micro-batches have many masked steps."""
    random = np.random.default_rng(3)
    x = random.uniform(0.5, 1.5, (samples, STEPS, 3)).astype(hosts.FLOATX)
    y = random.uniform(1, 2, (samples, STEPS, 2)).astype(hosts.FLOATX)
    is_masked = np.arange(STEPS) >= np.array(ENDS[:samples])[:, None]
    x[is_masked], y[is_masked] = 0, 100  # no loss may contain such a target
    return x, y


class Batches(keras.utils.PyDataset if hosts.IS_KERAS3 else keras.utils.Sequence):
    """A list of batches, as a user's own data."""

    def __init__(self, batches, **more):
        super().__init__(**more)
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


# -- models ----------------------------------------------------------------------------------------


def network(*between, cls=keras.models.Model, **arguments):
    """A model of this class with layers between its two. The arguments are the first one's."""
    return heads("out", between=between, cls=cls, **arguments)


def heads(*names, between=(), cls=keras.models.Model, **arguments):
    """The same with an output of each name."""
    x = layers.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden", **arguments)(x)
    for layer in between:
        y = layer(y)
    outputs = [layers.Dense(2, name=name)(y) for name in names]
    return cls(x, outputs if len(outputs) > 1 else outputs[0])


def masked_heads(*names):
    """A model of sequences whose outputs have one mask."""
    x = layers.Input((STEPS, 3))
    y = layers.Masking()(x)
    return keras.models.Model(x, [layers.Dense(2, name=name)(y) for name in names])


class OwnLoss(keras.models.Model):
    """Its own `compute_loss` calls Keras's."""

    def compute_loss(self, *arguments, **keywords):
        return super().compute_loss(*arguments, **keywords)


class OwnWords(keras.models.Model):
    """Computes its loss without Keras's."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        return mean_square(keras.ops.convert_to_tensor(y) if hosts.IS_KERAS3 else y, y_pred)


class OwnStep(keras.models.Model):
    """Its own `train_step` calls Keras's."""

    def train_step(self, *arguments):
        return super().train_step(*arguments)


class Halves(keras.models.Model):
    """Two halves, each with its own optimizer in an attribute, as in a GAN."""

    def __init__(self, first, second):
        super().__init__()
        self.a, self.b = (layers.Dense(2, use_bias=False) for _ in range(2))
        self.first, self.second = first, second

    def call(self, x):
        return self.a(x) + self.b(x)

    def list_optimizers(self):
        return self.first, self.second

    def train_step(self, batch):
        x, y, *_ = batch
        groups = self.a.trainable_variables, self.b.trainable_variables
        loss, gradients = take_gradients(self, lambda: mean_square(self(x), y), *groups)
        for optimizer, *pairs in zip(self.list_optimizers(), gradients, groups):
            optimizer.apply_gradients(list(zip(*pairs)))
        return {"loss": loss}


def take_gradients(model, find_loss, *groups):
    """Return a loss in a model's train step, and its gradients by these lists of variables.

    Not on JAX, whose train steps are others.
    """
    if hosts.IS_TORCH:
        model.zero_grad()
        loss = find_loss()
        loss.backward()
        return loss, [[v.value.grad for v in group] for group in groups]
    with hosts.tf.GradientTape() as tape:
        loss = find_loss()
    return loss, tape.gradient(loss, groups)


# -- parts -----------------------------------------------------------------------------------------


def mean(x, axis=None):
    return keras.ops.mean(x, axis) if hosts.IS_KERAS3 else hosts.tf.reduce_mean(x, axis)


def total(x, axis=None):
    return keras.ops.sum(x, axis) if hosts.IS_KERAS3 else hosts.tf.reduce_sum(x, axis)


def mean_square(y_true, y_pred):
    """A loss that is one number."""
    return mean((y_true - y_pred) ** 2)


class Adds(layers.Layer):
    """Passes its input on, and adds a loss: what `reduce` makes of its squares."""

    def __init__(self, reduce=mean):
        super().__init__()
        self.reduce = reduce

    def call(self, x):
        self.add_loss(self.reduce(x**2))
        return x

    def compute_output_shape(self, shape):
        return shape


class OwnMask(keras.losses.Loss if not hosts.IS_KERAS2 else object):
    """A loss that masks missing labels itself."""

    def call(self, y_true, y_pred):
        values, found = mean((y_true - y_pred) ** 2, -1), y_true[..., 0] < 1.5
        if hosts.IS_KERAS3:
            keras.src.backend.common.masking.set_keras_mask(values, found)
        else:
            values._keras_mask = found
        return values


def activity_is_a_mean():
    """True if activity regularizers are means over samples; on Keras 3.12 they are sums."""
    layer = layers.Dense(1, activity_regularizer="l2", kernel_initializer="ones")
    ones = [np.ones((count, 1), hosts.FLOATX) for count in (1, 2)]
    found = [(layer(array), float(hosts.array(layer.losses[0])))[1] for array in ones]
    return found[0] == found[1]


class Interrupt(keras.callbacks.Callback):
    """Ends a training after so many micro-batches, in whatever epoch."""

    def __init__(self, after=1, error=KeyboardInterrupt):
        super().__init__()
        self.left, self.error = after, error

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise self.error
