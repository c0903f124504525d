"""An import changes nothing in Keras, and what objects of ours hook in disturbs no training."""

import re
import types
import warnings
from unittest import mock

import hosts
import pytest
from cases import keras2_has_no, once_by_torch, once_on_keras3, own_code
from hosts import keras
from processes import python
from training import MICRO, UPDATES, compiled, data, dense_model, fit, our_warnings
from zoo import network, take_gradients

from keras_accum.fit import warnings as fit_warnings
from keras_accum.host import patches

pytestmark = once_on_keras3


# Prints what is another object than before: "CallbackList.on_train_begin", "saving_lib.a_function".
PROGRAM = f"""
import sys, types
{hosts.IMPORT_KERAS}

def attributes():
    found = {{}}
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in ("keras", "tf_keras", "tensorflow") and module is not None:
            members = list(vars(module).values())
            owners = [each for each in members if isinstance(each, type)]
            # TensorFlow's modules are filled when they are used.
            owners += [module] * (package != "tensorflow")
            found.update((owner, dict(vars(owner))) for owner in owners)
    return found

def changes():
    for owner, now in attributes().items():
        for name in now.keys() | before.get(owner, now).keys():
            then, value = before.get(owner, now).get(name, MADE), now.get(name)
            is_made = isinstance(value, types.ModuleType) or name in MADE
            if value is not then and not (then is MADE and is_made):
                yield owner.__name__.rpartition(".")[2] + "." + name

MADE = "__annotations__", "__warningregistry__"  # by Python, when they are used
model = keras.models.Sequential([keras.layers.Dense(1, trainable=False)])
model.build((None, 2))
model.compile("sgd", "mse")  # after which Keras has made all that it makes when it is used
before = attributes()
assert before.keys() >= {{keras.models.Model, keras.optimizers.Optimizer, keras.callbacks.Callback}}
import keras_accum, keras_accum.{hosts.HOST}
print(*changes())
model.compile(keras_accum.{hosts.HOST}.AdamAccumulate(accum_iters=2), "mse")
print(*sorted({{*changes()}}))
print(*model.optimizer._accumulation.store.are_frozen(model.weights))
print(len(keras_accum.engine.models.list_models(model.optimizer)))
"""


@once_by_torch
def test_what_changes_in_keras():
    """An import changes nothing, and an optimizer what docs/stability.md lists.

    The first one is made after Python has looked `compile` up, which notes the model nonetheless.
    """
    of_import, of_optimizer, are_frozen, models = python(PROGRAM)
    assert of_import == "" and are_frozen.split() == [str(not hosts.IS_KERAS2)] * 2
    assert models == str(int(not hosts.IS_KERAS2))  # which tells it before the first step
    text = (hosts.PROJECT / "docs" / "stability.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*?)`(\w+\.\w+)` \|", text.partition("hooked into")[2], re.M)
    here = [f"`{hosts.HOST}`: ", f"`{hosts.BACKEND}`: "]
    here += [] if hosts.IS_KERAS2 else [""]
    listed = [name for keras_of, name in rows if keras_of in here]
    assert of_optimizer.split() == sorted(listed)


@keras2_has_no("hooks")
def test_who_hooks_in(monkeypatch):
    """A callback that gets a model does so, and an optimizer, once: it calls what was there."""
    for needs in (
        lambda: hosts.accum.ApplyPartialWindow().set_model(dense_model()),
        lambda: hosts.ours("SGD"),
    ):
        owner = types.SimpleNamespace(named=lambda: ["first"])
        hook = owner, "named", lambda original: lambda: [*original(), "hook"]
        monkeypatch.setitem(patches._planned, hosts.HOST, (hook,))
        for _ in range(2):
            needs()
            patches.plan(hosts.HOST, hook)  # as a module that is reloaded
        assert owner.named() == ["first", "hook"]


def test_a_hook_that_fails_is_tried_again(monkeypatch):
    """With those after it, each once."""
    owner = types.SimpleNamespace(first=lambda: ["first"], last=lambda: ["last"])
    broken = types.SimpleNamespace()
    hooks = [
        (each, name, lambda original: lambda: [*original(), "hook"])
        for each, name in ((owner, "first"), (broken, "named"), (owner, "last"))
    ]
    monkeypatch.setitem(patches._planned, "a Keras", hooks)
    for _ in range(2):
        with pytest.raises(AttributeError, match="named"):
            patches.put_in("a Keras")
    broken.named = list
    for _ in range(2):
        patches.put_in("a Keras")
    assert (owner.first(), owner.last()) == (["first", "hook"], ["last", "hook"])
    assert broken.named() == ["hook"]


MODELS = {
    "never compiled": dense_model,
    "compiled": lambda: compiled(dense_model(), "sgd"),
    "of ours": lambda: compiled(dense_model(), hosts.ours("SGD", accum_iters=2)),
    "none": lambda: None,
    "a user's object": lambda: types.SimpleNamespace(optimizer=mock.MagicMock()),
}


@keras2_has_no("hooks")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_loop_with_a_callback_list(make):
    """Each callback is told of everything, and what a user has put into the list stays there."""
    hosts.ours("SGD", accum_iters=2)
    told = mock.Mock(spec=keras.callbacks.Callback)
    callbacks = keras.callbacks.CallbackList([told], model=make())
    callbacks.on_epoch_end = own = mock.Mock()
    before = {*vars(callbacks), "model", "_model"}
    for _ in range(2):
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(0)
        callbacks.on_epoch_end(0)
        callbacks.on_train_end()
        callbacks.set_model(dense_model())  # for the second training
    assert {*vars(callbacks)} <= before and callbacks.on_epoch_end is own
    names = [name for name, *_ in told.method_calls if name.startswith("on_")]
    assert names == ["on_train_begin", "on_epoch_begin", "on_train_end"] * 2
    assert own.call_count == 2


if not hosts.IS_KERAS2:

    class BatchNormalizationOfMine(keras.layers.Layer):
        """A layer that has Keras's name and nothing of its code."""

        def build(self, shape):
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

        def call(self, x):
            return x * self.scale

    class Several(keras.Model):
        """Two optimizers take turns, each with a layer of its own."""

        turn = -1

        def train_step(self, data):
            self.turn += 1
            optimizers = hosts.tf.nest.flatten(self.optimizer)
            x, y = data
            weights = self.layers[1 + self.turn % 2].trainable_variables
            find_loss = lambda: self.compiled_loss(y, self(x))  # noqa: E731
            loss, (gradients,) = take_gradients(self, find_loss, weights)
            optimizers[self.turn % 2].apply_gradients(zip(gradients, weights))
            return {"loss": loss}


@keras2_has_no("hooks")
@pytest.mark.parametrize("make, said", [(hosts.stock, 0), (hosts.ours, 1)])
def test_with_a_part_of_the_user_s_own(make, said):
    """The training is shorter than a window, which is said of one of ours."""
    hosts.ours("SGD", accum_iters=2)
    model = hosts.sequential((3,), [BatchNormalizationOfMine(), keras.layers.Dense(2)])
    optimizer = make("SGD", **{"accum_iters": 3} if said else {})
    compiled(model, optimizer, run_eagerly=True)
    with our_warnings() as texts:
        fit(model, 5, [array[:9] for array in data()], epochs=1)
    assert sum("was whole" in text for text in texts) == said


@own_code
@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="only tf_keras compiles several optimizers")
@pytest.mark.parametrize("make", [hosts.stock, hosts.ours])
def test_several_optimizers(make):
    """Of ours, callbacks for several reach each, and each knows which layer is frozen."""
    length = {"accum_iters": 2} if make is hosts.ours else {}
    model = network(cls=Several)
    found = {"a": make("SGD", **length), "b": make("Adam", **length)}
    model.compile(found, "mse", run_eagerly=True)
    callbacks = [hosts.accum.ApplyPartialWindow()] * bool(length)
    fit(model, 8, callbacks=callbacks, epochs=1)  # three batches: two and one
    found = list(found.values())
    assert [int(each.iterations) for each in found] == ([1, 1] if length else [2, 1])
    frozen = model.layers[1]
    frozen.trainable = False
    for optimizer in found if length else []:
        store = optimizer._accumulation.store
        assert len(store.variables) == 2 and store.are_frozen([frozen.kernel]) == [True]


def fails(*arguments):
    raise ValueError("not as it is taken to be")


@keras2_has_no("hooks")
@once_by_torch
@pytest.mark.filterwarnings("ignore:keras_accum. Layers keep values")
@pytest.mark.parametrize("name", ["_read_kept", "_look_at_wrapper"])
def test_no_training_ends_because_of_a_warning(name, monkeypatch):
    """Code that only warns may fail."""
    model = hosts.sequential((3,), [keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    compiled(model, hosts.ours("SGD", accum_iters=2), run_eagerly=True)
    failing = mock.Mock(side_effect=fails)
    monkeypatch.setattr(fit_warnings.Training, name, failing)
    fit(model, MICRO, validation_data=data())
    assert failing.called
    assert model.optimizer.completed_updates == UPDATES * 2


@keras2_has_no("hooks")
def test_a_warning_that_a_user_has_raised():
    """A user may turn warnings into errors, which do end a training."""
    model = compiled(dense_model(), hosts.ours("SGD"), run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has accum_iters=1"):
            fit(model, MICRO)
