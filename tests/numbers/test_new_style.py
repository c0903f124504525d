"""What only the newer style of tf_keras has: XLA of its own, and the legacy style beside it."""

import copy

import hosts
import numpy as np
import pytest
from cases import CASES, each_version, quick_first, thorough
from formats import STOP, assert_same, everything, file, fresh
from hosts import accum, keras
from steps import (
    assert_branches,
    assert_windows_equal_big_batches,
    gradients,
    made,
    prepared,
    variables,
)
from training import LENGTH, assert_equal, go_on

if not hosts.IS_NEW_STYLE:
    pytest.skip("about new-style optimizers, which only tf_keras has", allow_module_level=True)

from keras_accum import tf_keras

tf = hosts.tf
pytestmark = each_version
MICRO_BATCHES = sum(gradients(), [])


def test_each_class_is_made_once():
    assert tf_keras.AdamWAccumulate is accum.accumulating(keras.optimizers.AdamW)
    assert tf_keras.AdamAccumulate is not accum.accumulating(keras.optimizers.Adam)
    assert issubclass(tf_keras.AdamAccumulate, keras.optimizers.legacy.Adam)


@thorough
@quick_first("name", ["adamw", "adagrad", "adafactor"])
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
    assert_branches(optimizer, mine)


@pytest.mark.parametrize("extension", ["h5", "keras"])
def test_saved_in_a_loss_scale_optimizer_before_the_first_step(extension, tmp_path):
    """Files of later are in test_saving.py."""
    model, form = fresh("scaled"), file(extension)
    form.save(model, tmp_path)
    new = form.load(tmp_path, fresh)
    assert type(new.optimizer) is type(model.optimizer)
    assert_same(everything(go_on(new, 0, STOP)), everything(go_on(model, 0, STOP)))


@thorough
def test_deep_copy_keeps_exclusions():
    finals = []
    for again in (lambda optimizer: optimizer, copy.deepcopy):
        optimizer, ws = hosts.ours("AdamW", weight_decay=0.5), variables()
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        optimizer = again(optimizer)
        hosts.apply(optimizer, MICRO_BATCHES[0], ws)
        finals.append([w.numpy() for w in ws])
    for one, other in zip(*finals):
        np.testing.assert_array_equal(one, other)


@thorough
@quick_first("name", ["adam", "amsgrad", "sgd", "momentum"])
def test_states_move_between_legacy_and_new_style(name):
    """The mathematics are equal: a state moves from one style to the other and back."""
    name, arguments = CASES[name]
    if name == "Adam":  # legacy optimizers pass these through float32
        arguments = {**arguments, "beta_1": 0.875, "beta_2": 0.9375}
    legacy = getattr(tf_keras, f"{name}Accumulate")(**arguments, accum_iters=LENGTH)
    legacy, other = made(legacy)
    new, ws = made(hosts.ours(name, accum_iters=LENGTH, **arguments))
    for number, grads in enumerate(MICRO_BATCHES):
        hosts.apply(legacy, grads, other)
        if number < STOP:
            new.set_state(legacy.get_state())
            for w, o in zip(ws, other):
                w.assign(o)
        else:
            hosts.apply(new, grads, ws)
    found, expected = new.get_state(), legacy.get_state()
    assert found["completed_updates"] == 3
    assert_equal(found, expected)
    assert_equal(dict(enumerate(ws)), dict(enumerate(other)))
    legacy.set_state(found)
    assert_same(legacy.get_state(), {n: found[n] for n in expected})
