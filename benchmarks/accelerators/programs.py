"""The programs that are compiled, of Keras 3 on JAX.

Each function returns {contender: Program}. All contenders are Adam.
"""

from collections import namedtuple

import jax
import keras
import numpy as np
import optax
import tables
from shared import contenders

from . import K

LARGE, MANY = [(3072, 1024)] * 4, [(64,)] * 300

# step(decision, donated, data): a train step, on everything that it changes and on the rest. It
# returns logs, and what it has changed.
# decisions: what Python says of a micro-batch inside a window and at its end, if it decides.
# donated, data: the arguments, as shapes. micro_batches: how many a step makes.
Program = namedtuple("Program", "step donated data decisions micro_batches")


def program(step, donated, data, decisions=(None,), micro_batches=1):
    return Program(step, *jax.tree.map(_shape, (donated, data)), decisions, micro_batches)


def _shape(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=getattr(array, "sharding", None))


def optimizers(names=None):
    """Return {contender: (a function that makes its optimizer, what Python decides)}."""
    default = dict.fromkeys((contenders.DEFAULT, contenders.DECIDE), contenders.default("keras3"))
    found = {**default, **contenders.find("keras3")}
    decided = {contenders.DECIDE: (False, True)}
    made = {name: (found[name].optimizer, decided.get(name, (None,))) for name in found}
    del made[contenders.BIG]
    return {name: made[name] for name in names or made}


def alone(shapes, names=None):
    """The optimizer alone, with given gradients."""
    made = {}
    gradients = [np.zeros(shape, "float32") for shape in shapes]
    for name, (make, decisions) in optimizers(names).items():
        optimizer = make(K)
        optimizer.build([keras.Variable(gradient) for gradient in gradients])

        def step(decision, donated, gradients, optimizer=optimizer):
            if decision is not None:
                optimizer.decide(decision)
            return {}, optimizer.stateless_apply(donated[1], gradients, donated[0])

        state = [variable.value for variable in optimizer.variables]
        made[name] = program(step, (gradients, state), gradients, decisions)
    if names is None:
        made[contenders.MULTI_STEPS] = of_optax(gradients)
    return made


def of_optax(weights):
    transform = optax.MultiSteps(optax.adam(1e-3), K)

    def step(decision, donated, gradients):
        updates, state = transform.update(gradients, donated[1], donated[0])
        return {}, (optax.apply_updates(donated[0], updates), state)

    return program(step, (weights, jax.eval_shape(transform.init, weights)), weights)


def fit(names=None, width=1024, layers=4, batch=16):
    """The train step that `fit` compiles, of an MLP with ReLU and mean squared error."""
    made = {}
    for name, (make, decisions) in optimizers(names).items():
        model = mlp(make(K), width, layers, batch)

        def step(decision, donated, data, model=model):
            if decision is not None:
                model.optimizer.decide(decision)
            return model.train_step(donated, data)

        made[name] = program(step, state_of(model), (np.zeros((batch, width), "float32"),) * 2)
        made[name] = made[name]._replace(decisions=decisions)
    contender = contenders.in_slices("keras3", batch)
    model, (callback,) = mlp(contender.optimizer(K), width, layers, batch), contender.callbacks()
    callback.set_model(model)
    callback.on_train_begin()
    callback._step.compiles_itself = False  # as where JAX has an accelerator
    in_slices = callback.around(model.train_step)
    made[contenders.IN_SLICES] = program(
        lambda decision, *arguments: in_slices(*arguments),
        state_of(model),
        (np.zeros((K * batch, width), "float32"),) * 2,
        micro_batches=K,
    )
    return made


def mlp(optimizer, width, layers, batch):
    dense = [keras.layers.Dense(width, activation="relu", name=f"layer_{i}") for i in range(layers)]
    model = keras.Sequential([keras.layers.Input((width,)), *dense])
    model.compile(optimizer, "mse")
    x = np.zeros((batch, width), "float32")
    model.train_on_batch(x, x)  # makes all variables
    return model


def state_of(model):
    first = [model.trainable_variables, model.non_trainable_variables]
    kinds = [*first, model.optimizer.variables, model.metrics_variables]
    return [[variable.value for variable in kind] for kind in kinds]


CASES = {
    tables.LARGE: lambda: alone(LARGE),
    tables.MANY: lambda: alone(MANY),
    tables.FIT: fit,
}
