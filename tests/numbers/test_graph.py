"""TensorFlow graphs of one micro-batch: they have no conditional, and they use fused kernels."""

import importlib

import hosts
import numpy as np
import pytest
from cases import CASES, LATE, on_adam, on_adam_and_amsgrad, skip_file_on_keras2, thorough
from graphs import conditionals, operations
from training import Shrink, assert_equal

skip_file_on_keras2("tf.function; test_keras2.py tests its graphs")
if not hosts.IS_TENSORFLOW:
    pytest.skip("about TensorFlow graphs, which other backends don't have", allow_module_level=True)

tf = hosts.tf

OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "weighted": {"reduction": "weighted"},
    "clipnorm": {"clipnorm": 0.3},
    "clipvalue": {"clipvalue": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "decay": hosts.our_decay(0.25),
    "skip_nonfinite": {"skip_nonfinite": True},
    "every_micro_batch": {"accum_iters": 1, "gate": "conditional", **hosts.our_decay(0.25)},
    "long": {"accum_iters": 1000},
}
if hosts.HAS_EMA:
    OPTIONS["weight_decay"] = {"weight_decay": 0.2}
    OPTIONS["ema_overwrite"] = {"use_ema": True, "ema_overwrite_frequency": 2}
# Arguments of the step.
GIVEN = {**dict.fromkeys(OPTIONS, {}), "sparse": {"sparse": True}}
GIVEN["constraint"] = {"constraint": Shrink()}


def operations_of_apply(case, sparse=False, constraint=None, variables=1, **arguments):
    """Count the operations of apply_gradients with given gradients."""
    optimizer = hosts.ours(case.name, **{**case.arguments, "accum_iters": 4, **arguments})
    ws = [hosts.variable([[1.0], [2.0]], f"w{i}", constraint=constraint) for i in range(variables)]

    def apply(values):
        if optimizer.reduction == "weighted":
            optimizer.weigh(2.0)
        if sparse:
            values = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([2, 1]))
        optimizer.apply_gradients([(values, w) for w in ws])

    return operations(apply, tf.TensorSpec([2, 1], hosts.FLOATX))


def test_the_search_finds_a_conditional_in_a_function():
    inner = tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))
    assert conditionals(operations(lambda x: inner(x), tf.TensorSpec([])))


@on_adam_and_amsgrad
@pytest.mark.parametrize("name", GIVEN)
def test_no_conditional(case, name):
    assert not conditionals(operations_of_apply(case, **GIVEN[name], **OPTIONS.get(name, {})))


@on_adam_and_amsgrad
@pytest.mark.parametrize("sparse", [False, True])
def test_one_conditional_for_all_variables(case, sparse):
    arguments = {"clipnorm": 0.3, "skip_nonfinite": True, "gate": "conditional"}
    found = operations_of_apply(case, sparse, Shrink(), variables=3, **arguments)
    assert conditionals(found) == 1


KERNELS = {
    "sgd": "ResourceApplyGradientDescent",
    "momentum": "ResourceApplyMomentum",
    "nesterov": "ResourceApplyMomentum",
    "adam": "ResourceApplyAdam",
    "adam_betas": "ResourceApplyAdam",
}


@pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="the newer style runs stock code, without kernels")
@pytest.mark.parametrize("gate", ["select", "conditional"])
@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernel(name, gate):
    assert operations_of_apply(CASES[name], gate=gate)[KERNELS[name]] == 1


def trained(optimizer, gradients, floatx):
    """Return the weights and, as the bias correction rounds in half precision, the slots."""
    w = hosts.variable([1.0, -1.0, 2.0, 3.0], "w", floatx)
    for gradient in gradients:
        hosts.apply(optimizer, [tf.constant(gradient, floatx)], [w])
    found = {"w": w, **hosts.slots(optimizer, [w])}
    return {name: np.asarray(hosts.array(v), "float64") for name, v in found.items()}


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="stock Adam of Keras 2 has the same kernel")
@pytest.mark.parametrize("name", ["Adam", pytest.param("AdamW", marks=thorough)])
@pytest.mark.parametrize("gate", ["select", pytest.param("conditional", marks=thorough)])
@pytest.mark.parametrize("floatx, rtol", [("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_many_updates_of_a_kernel_that_rounds(name, gate, floatx, rtol):
    """Adam's kernel rounds 1 - beta_2, and stock Adam doesn't. An update moves a weight by 0.03."""
    gradients = np.random.default_rng(3).uniform(0.5, 1, (100, 4))
    arguments = {"learning_rate": 2**-5, "epsilon": 2**-10}
    expected = trained(hosts.stock(name, **arguments), gradients, floatx)
    ours = hosts.ours(name, accum_iters=2, gate=gate, **arguments)
    actual = trained(ours, np.repeat(gradients, 2, axis=0), floatx)
    if floatx == "float32":  # the kernel's slots are the stock slots times a constant
        expected = {"w": expected["w"]}
    assert_equal(actual, expected, rtol=rtol, atol=rtol)


def in_replicas(strategy, case, **arguments):
    with strategy.scope():
        optimizer = hosts.ours(case.name, **case.arguments, accum_iters=4, **arguments)
        variable = hosts.variable([1.0, 2.0], "w")
        optimizer.build([variable])
    return optimizer, variable


@on_adam
@pytest.mark.parametrize("reduction", ["mean", "weighted"])
@pytest.mark.parametrize("gated", [{}, LATE], ids=str)
def test_conditionals_in_a_strategy(strategy, case, gated, reduction):
    optimizer, variable = in_replicas(strategy, case, reduction=reduction, **gated)

    def replica(value):
        if reduction == "weighted":
            optimizer.weigh(2.0)
        optimizer.apply_gradients([(value + 1, variable)])

    given = tf.TensorSpec([2], hosts.FLOATX)
    found = operations(lambda value: strategy.run(replica, (value,)), given)
    assert conditionals(found) == bool(gated)


@pytest.mark.parametrize("gated", [{}, LATE], ids=str)
def test_autograph_converts_no_step_of_ours(strategy, gated, monkeypatch):
    """A train step of a user's own in `tf.function`, which converts functions by default."""
    api = importlib.import_module("tensorflow.python.autograph.impl.api")
    convert, converted = api._convert_actual, []

    def spy(function, *arguments):
        converted.append(f"{function.__module__}.{function.__name__}")
        return convert(function, *arguments)

    monkeypatch.setattr(api, "_convert_actual", spy)
    optimizer, variable = in_replicas(strategy, CASES["adam"], **gated)

    def by_pairs(value):
        optimizer.apply_gradients([(value + 1, variable)])

    def by_lists(value):
        optimizer.apply([value + 1], [variable])

    for replica in [by_pairs, by_lists] if hosts.IS_KERAS3 else [by_pairs]:
        tf.function(strategy.run)(replica, (tf.zeros([2], hosts.FLOATX),))
        assert f"{__name__}.{replica.__name__}" in converted
    assert not [name for name in converted if name.startswith("keras_accum")]
