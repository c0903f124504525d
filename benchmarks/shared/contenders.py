"""The contenders of the benchmarks on each Keras. This module runs on Python 3.7.

All contenders are Adam. `find(host)` returns {name: Contender}, with the peers that are installed.
"""

import importlib
import logging
from collections import namedtuple

# optimizer(k): the optimizer for `compile`. wrap(model, k): the model to be trained. callbacks():
# the callbacks for `fit`. big: True if one batch holds the k micro-batches of a window.
Contender = namedtuple("Contender", "optimizer wrap callbacks big")

STOCK, FLOOR, OWN = "stock Adam", "acc += g", "Keras's own"
SELECT, CONDITIONAL = "select", "conditional"
DEFAULT = "auto"
DECIDE = "decide"  # where Python says in a loop of one's own whether a micro-batch updates
OURS = SELECT, CONDITIONAL
BIG, LOOP = "stock, big batch", "PyTorch loop"
IN_SLICES, WEIGHTED = "MicroBatches", "weighted"
MULTI_STEPS = "optax.MultiSteps"
NEEDED = *OURS, DECIDE, STOCK, FLOOR, BIG


def contender(optimizer, wrap=lambda model, k: model, callbacks=list, big=False):
    return Contender(optimizer, wrap, callbacks, big)


def load(host):
    """Return (keras, this package's module for it, the module of its stock optimizers)."""
    accum = importlib.import_module(f"keras_accum.{host}")
    keras = accum.keras
    if host == "keras3":
        return keras, accum, keras.optimizers
    return keras, accum, getattr(keras.optimizers, "legacy", keras.optimizers)


def find(host):
    keras, accum, stock = load(host)
    found = {
        gate: contender(lambda k, gate=gate: accum.AdamAccumulate(accum_iters=k, gate=gate))
        for gate in (SELECT, CONDITIONAL)
    }
    found[STOCK] = contender(lambda k: stock.Adam())
    found[BIG] = contender(lambda k: stock.Adam(), big=True)
    found[FLOOR] = contender(lambda k: bare_accumulation(host, keras, stock)())
    if host == "keras3":
        found[OWN] = contender(lambda k: stock.Adam(gradient_accumulation_steps=k))
    return {**found, **_peers(host, stock)}


def default(host, **arguments):
    """Return what a user gets who doesn't choose a gate."""
    accum = load(host)[1]
    return contender(lambda k: accum.AdamAccumulate(accum_iters=k, **arguments))


def in_slices(host, size):
    """Return stock Adam at the big batch, which the train step takes in slices of this size."""
    _, accum, stock = load(host)
    return contender(lambda k: stock.Adam(), callbacks=lambda: [accum.MicroBatches(size)], big=True)


def _peers(host, stock):
    if host == "tf_keras" and importlib.util.find_spec("gradient_accumulator"):
        import gradient_accumulator as peer

        return {
            "gradient-accumulator, model": contender(
                lambda k: stock.Adam(),
                wrap=lambda model, k: peer.GradientAccumulateModel(
                    accum_steps=k, inputs=model.input, outputs=model.output
                ),
            ),
            "gradient-accumulator, optimizer": contender(
                lambda k: peer.GradientAccumulateOptimizer(optimizer=stock.Adam(), accum_steps=k)
            ),
        }
    if host == "keras2" and importlib.util.find_spec("runai"):
        logging.disable(logging.DEBUG)  # runai logs a line per variable
        import runai.ga.keras.optimizers

        return {
            "runai": contender(lambda k: runai.ga.keras.optimizers.Adam(k)),
            "the copied class": contender(blending(stock)),
        }
    return {}


def bare_accumulation(host, keras, stock):
    """Return an optimizer class that only adds up gradients."""

    class Keras3(stock.SGD):
        def build(self, variables):
            if not self.built:
                super().build(variables)
                self._sums = self.add_optimizer_variables(variables, "sum")

        def apply(self, grads, trainable_variables=None):
            self.build(list(trainable_variables or self._trainable_variables))
            if keras.backend.backend() == "torch":
                import torch

                torch._foreach_add_([s.value for s in self._sums], list(grads))
                return
            for gradient, total in zip(grads, self._sums):
                self.assign_add(total, gradient)

    class TFKeras(stock.SGD):
        def _create_slots(self, var_list):
            for variable in var_list:
                self.add_slot(variable, "sum")

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return self.get_slot(var, "sum").assign_add(grad)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            import tensorflow as tf

            return self.get_slot(var, "sum").scatter_add(tf.IndexedSlices(grad, indices))

    class Keras2(stock.SGD):
        def get_updates(self, loss, params):
            K = keras.backend
            grads = self.get_gradients(loss, params)
            return [K.update_add(K.zeros(K.int_shape(p)), g) for p, g in zip(params, grads)]

    return {"keras3": Keras3, "tf_keras": TFKeras, "keras2": Keras2}[host]


def blending(stock):
    """The formula of the AdamAccumulate class that was copied across the web, for Keras 2.

    x <- (1 - s) x + s new(x), for weights and moments, where s is 1 if the window closes, else 0.
    Its writes are ordered here.
    """
    import tensorflow as tf
    from keras import backend as K

    class Blending(stock.Adam):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def get_updates(self, loss, params):
            grads = self.get_gradients(loss, params)
            zeros = [[K.zeros(K.int_shape(p)) for p in params] for _ in range(3)]
            count = self.iterations + 1
            s = K.cast(K.equal(count % self.k, 0), "float32")
            t = K.cast(count // self.k, "float32") + 1 - s
            rate = self.lr * K.sqrt(1 - K.pow(self.beta_2, t)) / (1 - K.pow(self.beta_1, t))
            writes = []
            for p, g, m, v, a in zip(params, map(tf.convert_to_tensor, grads), *zeros):
                total = a + g
                average = total / self.k
                new_m = self.beta_1 * m + (1 - self.beta_1) * average
                new_v = self.beta_2 * v + (1 - self.beta_2) * K.square(average)
                new_p = p - rate * new_m / (K.sqrt(new_v) + self.epsilon)
                for x, new in ((m, new_m), (v, new_v), (p, new_p)):
                    writes.append((x, (1 - s) * x + s * new))
                writes.append((a, (1 - s) * total))
            writes.append((self.iterations, count))
            with tf.control_dependencies([loss] + [new for _, new in writes]):
                return [K.update(x, new) for x, new in writes]

    return Blending
