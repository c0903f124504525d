"""Ways in which a model's state gets into another model: by files, copies and states."""

import copy
import pickle

import hosts
from cases import CASES
from formats import CLASSES
from hosts import accum, keras
from training import LENGTH, compiled, dense_model

EAGER = {} if hosts.IS_KERAS2 else {"run_eagerly": True}


def fresh(optimizer=None, **more):
    arguments = {"accum_iters": LENGTH, **CASES["adam"].arguments, **more}
    optimizer = optimizer or hosts.ours("Adam", **arguments)
    return compiled(dense_model(), optimizer, hosts.mean_squared_error(), **EAGER)


def load(path):
    """Load a model to run it as it ran before: XLA would round differently."""
    model = keras.models.load_model(str(path), custom_objects=CLASSES)
    if EAGER:
        model.run_eagerly = True
    return model


def like(source, optimizer=None):
    """Return a fresh model with the weights of `source`."""
    model = fresh(optimizer)
    model.set_weights(source.get_weights())
    return model


def set_state(source, folder):
    model = like(source)
    model.optimizer.set_state(source.optimizer.get_state())
    return model


def set_weights(source, folder):
    model = like(source)
    model.optimizer.set_weights(source.optimizer.get_weights())
    return model


def loaded_weights(source, folder):
    source.save_weights(folder / "waits.weights.h5")
    model = fresh()
    model.load_weights(folder / "waits.weights.h5")
    return model


def checkpoint(model):
    return hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def to_file(name):
    def act(model, folder):
        model.save(str(folder / name))
        return load(folder / name)

    return act


def to_pickle(model, folder):
    return like(model, pickle.loads(pickle.dumps(model.optimizer)))


def to_copy(model, folder):
    return like(model, copy.deepcopy(model.optimizer))


def to_other(model, folder):
    other = accum.AdamAccumulate.from_optimizer(model.optimizer)
    model.compile(other, model.loss, **EAGER)
    return model


def to_state(model, folder):
    return set_state(model, folder)


def to_weights(model, folder):
    return set_weights(model, folder)


SAVED = {
    "h5": to_file("then.h5"),
    "pickle": to_pickle,
    "other": to_other,
    "state": to_state,
}
if hosts.IS_LEGACY or hosts.IS_KERAS2:
    SAVED["weights"] = to_weights
if not hosts.IS_KERAS2:
    SAVED["keras"] = to_file("then.keras")
if hosts.IS_KERAS3:
    SAVED["weights_file"] = loaded_weights
    SAVED["copy"] = to_copy


def to_checkpoint(model, folder):
    path = checkpoint(model).save(str(folder / "then"))
    other = fresh()
    checkpoint(other).restore(path)
    return other
