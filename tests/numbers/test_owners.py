"""Which weight a variable of a user's optimizer belongs to, on tf_keras, and what it is called."""

import types

import hosts
import numpy as np
import pytest
from cases import quick_first
from hosts import accum
from steps import assert_windows_equal_big_batches, gradients, prepared, stepper, variables
from training import LENGTH, compiled, dense_model, go_on

if not hosts.IS_TF_KERAS:
    pytest.skip("about the optimizers of tf_keras", allow_module_level=True)
tf = hosts.tf
optimizers = hosts.optimizers
GATES = ["select", "conditional", "auto"]


class Proximal(optimizers.Optimizer):
    """Slots in an object. `make` makes further variables, and `change` is a part of each update."""

    slot = "accumulator"

    def __init__(self, learning_rate=2**-3, name="Proximal", **kwargs):
        super().__init__(name, **kwargs)
        self.own = types.SimpleNamespace(slots={})
        if hosts.IS_LEGACY:
            self._set_hyper("learning_rate", learning_rate)
        else:
            self._learning_rate = self._build_learning_rate(learning_rate)

    def make(self):
        pass

    def change(self):
        pass

    def build(self, var_list):  # of the newer style
        super().build(var_list)
        if not self.own.slots:
            add = self.add_variable_from_reference
            self.own.slots = {self._var_key(v): add(v, self.slot) for v in var_list}
            self.make()

    def update_step(self, grad, var):
        self.update(grad, var, self.own.slots[self._var_key(var)])

    def _create_slots(self, var_list):  # of the legacy style
        for var in var_list:
            self.add_slot(var, self.slot)
        self.make()

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return self.update(grad, var, self.get_slot(var, self.slot))

    def update(self, grad, var, slot):
        self.change()
        slot.assign(slot / 2 + grad * grad + 0.25)
        return var.assign_sub(tf.cast(self.learning_rate, grad.dtype) * grad / tf.sqrt(slot))

    def get_config(self):
        return {**super().get_config(), "learning_rate": 2**-3}


if hosts.IS_LEGACY:
    del Proximal.build


def proximal(gate="select", **members):
    return accum.accumulating(type("Own", (Proximal,), members))(accum_iters=LENGTH, gate=gate)


def hides(self):
    if not hasattr(self.own, "count"):
        self.own.count = tf.Variable(0.0, name="count")


def hides_at_once(self, **kwargs):
    Proximal.__init__(self, **kwargs)
    hides(self)


def counts(self):
    self.own.count.assign_add(1.0)


@quick_first("slot", ["accumulator", "average", "gradient_accumulator", "momentum"])
@pytest.mark.parametrize("gate", GATES)
def test_a_slot_may_have_any_name_but_ours(slot, gate):
    """It stays for a weight without a gradient. A conditional holds what nobody tracks, too."""
    mine, theirs, members = variables(), variables(), {"slot": slot}
    if gate == "conditional":
        members.update(make=hides, change=counts)
    optimizer = prepared(proximal(gate, **members), mine)
    stock = prepared(type("Own", (Proximal,), members)(), theirs)
    assert_windows_equal_big_batches(optimizer, stock, mine, theirs)
    if gate == "conditional":
        assert optimizer.own.count.numpy() == stock.own.count.numpy() > 0
    state = optimizer.get_state()
    assert {f"Own.{slot}.2", "accumulator.2"} <= set(state)
    step = stepper(optimizer, mine[:2])
    for grads in gradients()[0]:
        step(grads[:2])
    after = optimizer.get_state()
    moved = [(after[f"Own.{slot}.{i}"] != state[f"Own.{slot}.{i}"]).any() for i in range(3)]
    assert moved == [True, True, False]


def adds(name, attribute):
    def make(self):
        more = {"shape": [], "dtype": tf.as_dtype(hosts.FLOATX)}
        add = self.add_weight if hosts.IS_LEGACY else self.add_variable
        setattr(self, attribute, add(name=name, **more))

    return make


def makes_two(self):
    adds("a", "scale")(self)
    adds("b", "_scale")(self)


WRONG = {
    "two": ({"make": makes_two}, "`scale` and `_scale` of Own"),
    "counter": ({"make": adds("window_position", "x")}, "Own makes .* 'window_position', which"),
    "sums": ({"slot": "window_accumulator"}, "Own makes .* 'window_accumulator', which"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_told_apart_is_refused(name):
    members, message = WRONG[name]
    optimizer, ws = proximal(**members), variables()
    for error in ((TypeError, ValueError), (TypeError, RuntimeError)):  # a build fails for good
        with pytest.raises(error, match=message):
            hosts.build_on(optimizer, ws)
            stepper(optimizer, ws)(gradients()[0][0])


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="only the legacy style's sums are named slots")
def test_sums_and_slots_of_adagrad_do_not_mix_in_checkpoints(tmp_path):
    def checkpoint(optimizer):
        model = compiled(dense_model(), optimizer)
        return model, tf.train.Checkpoint(model=model, optimizer=optimizer)

    inside, outside = hosts.ours("Adam", accum_iters=LENGTH), hosts.stock("Adagrad")
    for source, target in ((inside, outside), (outside, hosts.ours("Adam", accum_iters=LENGTH))):
        model, saved = checkpoint(source)
        go_on(model, 0, 2)
        path = saved.write(str(tmp_path / "checkpoint"))
        model, saved = checkpoint(target)
        saved.read(path).expect_partial()
        hosts.build_on(target, model.trainable_variables)
        if target is outside:
            found = [target.get_slot(v, "accumulator") for v in model.trainable_variables]
        else:
            found = hosts.accumulators(target)
        for value in found:
            np.testing.assert_array_equal(value.numpy(), 0.1 if target is outside else 0.0)


@quick_first("name", ["Adam", "RMSprop", "SGD"])
@pytest.mark.parametrize("gate", GATES)
def test_complex_variables(name, gate):
    start = [1.0 + 2.0j, -1.0 + 0.5j]
    mine, theirs = ([tf.Variable(start)] for _ in range(2))
    ours = prepared(hosts.ours(name, learning_rate=2**-3, accum_iters=2, gate=gate), mine)
    stock = prepared(hosts.stock(name, learning_rate=2**-3), theirs)
    step, big_step = stepper(ours, mine), stepper(stock, theirs)
    for number in range(1, 4):
        grads = np.array([[0.5 + 0.25j, 1.0 - 1.0j], [1.0j, 2.0]]) * number
        for gradient in grads:
            step([gradient])
        big_step([grads.mean(axis=0)])
    assert ours.completed_updates == 3
    np.testing.assert_allclose(mine[0].numpy(), theirs[0].numpy(), rtol=0, atol=1e-12)
    assert np.abs(mine[0].numpy() - start).min() > 0.01
