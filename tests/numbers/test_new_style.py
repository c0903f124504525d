"""What only the newer style of tf_keras has: XLA of its own, and the legacy style beside it.

All other tests run on this style as they run on every host: KERAS_ACCUM_TEST_HOST=tf_keras_new.
"""

import copy
import pickle

import hosts
import numpy as np
import pytest
from cases import CASES, LATE, each_version, quick_first, thorough
from formats import CLASSES, STOP, assert_same
from hosts import accum, keras
from steps import assert_windows_equal_big_batches, gradients, prepared, variables
from training import LENGTH, assert_equal, compiled, dense_model, go_on, inner, weights

if not hosts.IS_NEW_STYLE:
    pytest.skip("about new-style optimizers, which only tf_keras has", allow_module_level=True)

tf = hosts.tf
O = keras.optimizers  # noqa: E741
few_rows = quick_first("name", ["adamw", "adagrad", "adafactor"])
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    each_version,
]


def ours(**arguments):
    return hosts.ours("AdamW", **{**CASES["adamw"].arguments, "accum_iters": LENGTH, **arguments})


def micro_batches():
    return sum(gradients(), [])


def assert_equals_stock(stock, arguments, trace=None, **more):
    """With `trace(function)` as the traced train step."""
    mine, theirs = variables(), variables()
    optimizer = prepared(accum.accumulating(stock)(**arguments, accum_iters=LENGTH, **more), mine)
    reference = prepared(stock(**arguments), theirs)
    if trace:
        apply = optimizer.apply_gradients
        step = trace(lambda grads: apply(list(zip(grads, mine))))
        optimizer.apply_gradients = lambda pairs: step([gradient for gradient, _ in pairs])
    assert_windows_equal_big_batches(optimizer, reference, mine, theirs)
    return optimizer


# -- classes ---------------------------------------------------------------------------------------


@keras.utils.register_keras_serializable("tests")
class Signed(O.Optimizer):
    """A user's optimizer: a slot, a scalar that each step writes, and a use of `iterations`."""

    def __init__(self, learning_rate=2**-5, power=0.5, name="Signed", **kwargs):
        super().__init__(name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.power = power

    def build(self, var_list):
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self.memories = [self.add_variable_from_reference(v, "memory") for v in var_list]
        self.steps = self.add_variable((), initializer="ones", name="steps")

    def update_step(self, gradient, variable):
        memory = self.memories[self._index_dict[self._var_key(variable)]]
        self.steps.assign_add(tf.cast(self.iterations + 1, self.steps.dtype))
        memory.assign(memory / 2 + gradient)
        rate = self.learning_rate / tf.cast(self.iterations + 1, variable.dtype) ** self.power
        variable.assign_sub(rate * tf.sign(memory) * tf.sqrt(self.steps))

    def get_config(self):
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate, "power": self.power}


def test_a_class_of_a_user():
    optimizer = assert_equals_stock(Signed, {"power": 0.25})
    assert {"Signed.steps", "Signed.memories.0"} <= set(optimizer.get_state())
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is type(optimizer)
    assert_same(again.get_state(), optimizer.get_state())


def test_each_class_is_made_once():
    from keras_accum import tf_keras

    assert tf_keras.AdamWAccumulate is accum.accumulating(O.AdamW)
    assert tf_keras.AdamAccumulate is not accum.accumulating(O.Adam)
    assert issubclass(tf_keras.AdamAccumulate, O.legacy.Adam)


# -- XLA -------------------------------------------------------------------------------------------


@thorough
@few_rows
def test_steps_compiled_by_xla(name):
    stock, arguments = CASES[name]

    def compiled_by_xla(function):
        return tf.function(function, jit_compile=True)

    assert_equals_stock(getattr(O, stock), arguments, compiled_by_xla)


@thorough
@few_rows
@quick_first("gate", ["select", "conditional"])
def test_xla_inside_the_optimizer(name, gate):
    """`jit_compile=True` is the default on a GPU."""
    stock, arguments = CASES[name]
    average = {"use_ema": True, "ema_momentum": 0.25}  # overwriting is a conditional of Keras
    mine, theirs = variables(), variables()
    optimizer = hosts.ours(stock, **arguments, **average, accum_iters=LENGTH, gate=gate)
    optimizer.jit_compile = True
    reference = prepared(hosts.stock(stock, **arguments, **average), theirs)
    assert_windows_equal_big_batches(prepared(optimizer, mine), reference, mine, theirs)


@thorough
def test_two_traces_of_xla_inside_the_optimizer():
    optimizer, ws = ours(accum_iters=2), variables()
    optimizer.jit_compile = True
    for grads in micro_batches()[:2]:
        tf.function(lambda grads: optimizer.apply_gradients(list(zip(grads, ws))))(grads)
    assert optimizer.completed_updates == 1


# -- state and files -------------------------------------------------------------------------------


def scaled(steps=0):
    optimizer = hosts.loss_scaled(ours(), initial_scale=8.0)
    return go_on(compiled(dense_model(), optimizer, run_eagerly=False), stop=steps)


def everything(model):
    return {**dict(enumerate(weights(model).values())), **inner(model.optimizer).get_state()}


@quick_first("steps", [STOP, 0, LENGTH - 1, LENGTH])
@quick_first("extension", [".h5", ".keras"])
def test_saved_in_a_loss_scale_optimizer(extension, steps, tmp_path):
    """A file of before the first step is loaded as well, and so is a file of before an update."""
    model, path = scaled(steps), tmp_path / f"model{extension}"
    model.save(path)
    new = keras.models.load_model(path, custom_objects=CLASSES)
    assert type(new.optimizer) is type(model.optimizer)
    if steps:
        assert_same(everything(new), everything(model))
    go_on(new, steps)
    assert_same(everything(new), everything(go_on(scaled())))


@thorough
def test_deep_copy_keeps_exclusions():
    finals = []
    for again in (lambda optimizer: optimizer, copy.deepcopy):
        optimizer, ws = ours(accum_iters=1, weight_decay=0.5), variables()
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        optimizer = again(optimizer)
        hosts.apply(optimizer, micro_batches()[0], ws)
        finals.append([w.numpy() for w in ws])
    for one, other in zip(*finals):
        np.testing.assert_array_equal(one, other)


@thorough
@quick_first("name", ["adam", "amsgrad", "sgd", "momentum"])
def test_states_move_between_legacy_and_new_style(name):
    """The mathematics are equal: a state moves from one style to the other and back."""
    from keras_accum import tf_keras

    name, arguments = CASES[name]
    if name == "Adam":  # legacy optimizers pass these through float32
        arguments = {**arguments, "beta_1": 0.875, "beta_2": 0.9375}
    new = hosts.ours(name, **arguments, accum_iters=LENGTH)
    legacy = getattr(tf_keras, f"{name}Accumulate")(**arguments, accum_iters=LENGTH)
    ws, other = variables(), variables()
    for optimizer, own in ((new, ws), (legacy, other)):
        optimizer.build(own)
    for grads in micro_batches()[:STOP]:
        hosts.apply(legacy, grads, other)
    new.set_state(legacy.get_state())
    for w, o in zip(ws, other):
        w.assign(o)
    for grads in micro_batches()[STOP:]:
        hosts.apply(legacy, grads, other)
        hosts.apply(new, grads, ws)
    found, expected = new.get_state(), legacy.get_state()
    assert found["completed_updates"] == 3
    assert_equal(found, expected)
    assert_equal(dict(enumerate(ws)), dict(enumerate(other)))
    legacy.set_state(found)
    assert_same(legacy.get_state(), {n: found[n] for n in expected})


# -- refusals --------------------------------------------------------------------------------------


def test_decay_is_refused_as_in_the_stock_optimizer():
    with pytest.raises(ValueError, match="decay is deprecated in the new"):
        ours(decay=0.1)


class DecaysTwice(O.AdamW):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)

    def _apply_weight_decay(self, variables):
        super()._apply_weight_decay(variables)
        super()._apply_weight_decay(variables)


@thorough
def test_a_class_that_overrides_the_step():
    assert_equals_stock(DecaysTwice, CASES["adamw"].arguments)


def test_nadam_is_refused():
    for cls in (O.Nadam, type("Other", (O.Nadam,), {})):
        with pytest.raises(TypeError, match="`NadamAccumulate`, which is Keras's legacy Nadam"):
            accum.accumulating(cls)


@thorough
def test_all_reduce_per_window_needs_gradients_that_are_not_summed():
    optimizer, ws = ours(**LATE), variables()
    pairs = list(zip(map(tf.constant, micro_batches()[0]), ws))
    with pytest.raises(ValueError, match="skip_gradients_aggregation=False"):
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
