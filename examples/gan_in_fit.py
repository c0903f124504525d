"""A GAN in `fit`, with an optimizer for each network. TensorFlow and PyTorch."""

import contextlib

import keras
import numpy as np

from keras_accum import AdamAccumulate

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    no_grad = contextlib.nullcontext
else:
    import torch

    no_grad = torch.no_grad

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
noise, real = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))


def losses_and_gradients(compute, weights):
    """Return the losses, and the gradient of each with respect to its own network's weights."""
    if keras.backend.backend() == "tensorflow":
        with tf.GradientTape(persistent=True) as tape:
            losses = compute()
        return losses, [tape.gradient(loss, w) for loss, w in zip(losses, weights)]
    losses, weights = compute(), [[v.value for v in w] for w in weights]
    pairs = zip(losses, weights)
    gradients = [torch.autograd.grad(loss, w, retain_graph=True) for loss, w in pairs]
    return [loss.detach() for loss in losses], gradients


def make_optimizer():
    return AdamAccumulate(1e-3, accum_iters=5)


class GAN(keras.Model):
    def __init__(self, generator, critic):
        super().__init__()
        self.nets = [generator, critic]
        # attributes of the model, so that `fit` and `compare_with_big_batch` find them
        self.generator_optimizer, self.critic_optimizer = make_optimizer(), make_optimizer()
        self.built = True  # `fit` on PyTorch would call it

    def train_step(self, data):
        noise, real = data
        generator, critic = self.nets

        def compute():
            of_fake, of_real = critic(generator(noise)), critic(real)
            losses = (of_fake - 1) ** 2, (of_real - 1) ** 2 + of_fake**2
            return [keras.ops.mean(loss) for loss in losses]

        # Both gradients before either update
        weights = [net.trainable_variables for net in self.nets]
        losses, gradients = losses_and_gradients(compute, weights)
        optimizers = self.generator_optimizer, self.critic_optimizer
        with no_grad():
            for optimizer, of_net, variables in zip(optimizers, gradients, weights):
                optimizer.weigh(keras.ops.shape(real)[0])  # by which both losses are divided
                optimizer.apply_gradients(zip(of_net, variables))
        return {"generator": losses[0], "critic": losses[1]}


critic = [keras.Input((2,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model = GAN(generator, keras.Sequential(critic))
model.compile()
model.fit(noise, real, batch_size=10, epochs=3, shuffle=False)
optimizer = model.generator_optimizer
print(f"{optimizer.completed_updates} updates")
