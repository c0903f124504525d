"""TensorFlow graphs of one micro-batch: where they have a conditional, and fused kernels."""

import re

import hosts
import numpy as np
import pytest
from cases import CASES, on_adam, on_adam_and_amsgrad, quick_first, skip_file_on_keras2
from graphs import branches, conditionals, graph_of, operations
from training import Shrink

skip_file_on_keras2("tf.function; test_keras2.py tests its graphs")
if not hosts.IS_TENSORFLOW:
    pytest.skip("about TensorFlow graphs, which other backends don't have", allow_module_level=True)

tf = hosts.tf

MANY = {"clipnorm": 0.3, "skip_nonfinite": True, "reduction": "weighted", **hosts.our_decay(0.25)}
if hosts.HAS_EMA:
    MANY.update(weight_decay=0.2, use_ema=True, ema_overwrite_frequency=2)
# Arguments of `step_of`.
GIVEN = {
    "plain": {},
    "many": {**MANY, "sparse": True, "constraint": Shrink()},
    "sum": {"reduction": "sum", "global_clipnorm": 0.5},
    "every_micro_batch": {"accum_iters": 1, **hosts.our_decay(0.25)},
}


def step_of(case, sparse=False, constraint=None, variables=1, **arguments):
    """Return an optimizer, and a step that applies given gradients to its variables."""
    optimizer = hosts.ours(case.name, **{**case.arguments, "accum_iters": 4, **arguments})
    ws = [hosts.variable([[1.0], [2.0]], f"w{i}", constraint=constraint) for i in range(variables)]

    def apply(values):
        if optimizer.reduction == "weighted":
            optimizer.weigh(2.0)
        if sparse:
            values = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([2, 1]))
        optimizer.apply_gradients([(values, w) for w in ws])

    return optimizer, apply


GRADIENT = tf.TensorSpec([2, 1], hosts.FLOATX)


def operations_of_apply(case, jit_compile=False, **arguments):
    """Count the operations of apply_gradients with given gradients."""
    return operations(step_of(case, **arguments)[1], GRADIENT, jit_compile=jit_compile)


def test_the_search_finds_a_conditional_in_a_function():
    inner = tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))
    assert conditionals(operations(lambda x: inner(x), tf.TensorSpec([])))


@pytest.fixture
def visible_gpu(monkeypatch):
    """Let TensorFlow see a GPU that isn't there. Graphs are traced for it, not run."""
    devices = [*tf.config.get_visible_devices(), tf.config.PhysicalDevice("GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: devices)


# Where the graph of a micro-batch has no conditional, for each option.
NONE = {
    "select": {"gate": "select"},
    "select by XLA": {"gate": "select", "jit_compile": True},
}


@on_adam_and_amsgrad
@quick_first("where", NONE)
@pytest.mark.parametrize("name", GIVEN)
def test_no_conditional(case, where, name):
    """With any option, length, constraint or sparse gradient, where the default selects."""
    arguments = {**where, **GIVEN[name]}
    if name == "every_micro_batch":
        arguments["gate"] = "conditional"
    assert not conditionals(operations_of_apply(case, **arguments))


@on_adam_and_amsgrad
@pytest.mark.usefixtures("visible_gpu")
@quick_first("jit_compile", [True, False])
@pytest.mark.parametrize("name", GIVEN)
def test_a_visible_gpu_takes_select(case, jit_compile, name):
    assert not conditionals(operations_of_apply(case, jit_compile, **GIVEN[name]))


@on_adam_and_amsgrad
@quick_first("gate", ["auto", "conditional"])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_conditional_that_takes_no_gradient(case, gate, sparse):
    """In a plain graph on CPUs. The conditional has the handles of variables, and scalars."""
    arguments = {"clipnorm": 0.3, "skip_nonfinite": True, "gate": gate, "constraint": Shrink()}
    optimizer, apply = step_of(case, sparse, variables=3, **arguments)
    found = operations(apply, GRADIENT)
    assert conditionals(found) == found["If"] == branches(optimizer) == 1
    (branch,) = [op for op in graph_of(apply, GRADIENT).get_operations() if op.type == "If"]
    assert {tensor.shape.rank for tensor in branch.inputs if tensor.dtype != tf.resource} == {0}


@on_adam_and_amsgrad
@quick_first("gate", ["auto", "conditional"])
def test_a_conditional_is_a_loop_under_xla(case, gate):
    """Where only CPUs are visible, auto takes it."""
    found = operations_of_apply(case, gate=gate, variables=3, jit_compile=True)
    assert conditionals(found) == found["While"] == 1


@on_adam_and_amsgrad
@pytest.mark.parametrize("gate", ["auto", "select"])
def test_xla_copies_nothing(case, gate):
    """Neither a weight nor a slot nor a sum, each of them a vector of 1000."""
    if hosts.IS_NEW_STYLE and gate == "select":
        pytest.skip("old values are restored, so they are copied")
    optimizer = hosts.ours(case.name, **case.arguments, accum_iters=4, gate=gate)
    w = hosts.variable(np.ones(1000), "w")
    hosts.build_on(optimizer, [w])

    @tf.function(jit_compile=True)
    def step(gradient):
        optimizer.apply_gradients([(gradient, w)])

    program = step.experimental_get_compiler_ir(tf.ones([1000], hosts.FLOATX))("optimized_hlo")
    lines = [line for line in program.splitlines() if re.search(r" = f\d+\[1000\]", line)]
    assert [line for line in lines if " add(" in line]
    assert not [line for line in lines if re.search(r" copy\(", line)]


KERNELS = {
    "sgd": "ResourceApplyGradientDescent",
    "momentum": "ResourceApplyMomentum",
    "nesterov": "ResourceApplyMomentum",
    "adam": "ResourceApplyAdam",
    "adam_betas": "ResourceApplyAdam",
}


@pytest.mark.skipif(not hosts.HAS_RULES, reason="stock code, without kernels")
@pytest.mark.parametrize("gate", ["select", "conditional"])
@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernel(name, gate):
    assert operations_of_apply(CASES[name], gate=gate)[KERNELS[name]] == 1


@on_adam
@pytest.mark.parametrize("reduction", ["mean", "weighted"])
@pytest.mark.parametrize("gated", [{}, {"gate": "conditional"}], ids=str)
def test_conditionals_in_a_strategy(strategy, case, gated, reduction):
    arguments = {**case.arguments, "accum_iters": 4, "reduction": reduction, **gated}
    with strategy.scope():
        optimizer = hosts.ours(case.name, **arguments)
        variable = hosts.variable([1.0, 2.0], "w")
        optimizer.build([variable])

    def replica(value):
        if reduction == "weighted":
            optimizer.weigh(2.0)
        optimizer.apply_gradients([(value + 1, variable)])

    given = tf.TensorSpec([2], hosts.FLOATX)
    found = operations(lambda value: strategy.run(replica, (value,)), given)
    assert conditionals(found) == bool(gated)


@pytest.mark.skipif(hosts.IS_LEGACY, reason="Keras can't export legacy optimizers")
@pytest.mark.filterwarnings("ignore:.*Interpreter is deprecated")
def test_a_train_step_of_tensorflow_lite(tmp_path):
    """Its accumulators became scalars: it trained wrongly or ended the process, by the version."""
    module, start = tf.Module(), np.array([[1.0], [2.0]], "float32")
    w = hosts.variable(start, "w", "float32")
    # Not the default: TensorFlow Lite computes no weights in float64, which is the floatx here.
    arguments = {"momentum": 0.5, "accum_iters": 2, "reduction": "mean"}
    optimizer = hosts.ours("SGD", learning_rate=0.5, **arguments)
    hosts.build_on(optimizer, [w])
    module.optimizer = optimizer
    module.used = [hosts.native(v) for v in (w, *optimizer.variables)]

    @tf.function(input_signature=[tf.TensorSpec([2, 1], tf.float32)])
    def train(gradient):
        optimizer.apply_gradients([(gradient, w)])
        return {"gradient": tf.identity(gradient)}

    @tf.function(input_signature=[])
    def read():  # another function, because the converter may read before an update
        total = hosts.native(hosts.accumulators(optimizer)[0])
        return {"w": tf.identity(hosts.native(w)), "sum": tf.identity(total)}

    tf.saved_model.save(module, str(tmp_path), {"train": train, "read": read})
    lite = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    lite.experimental_enable_resource_variables = True
    interpreter = tf.lite.Interpreter(model_content=lite.convert())
    train_lite, read_lite = map(interpreter.get_signature_runner, ("train", "read"))
    for i in range(6):
        gradient = np.array([[0.5], [-1.0 - i]], "float32")
        train(gradient), train_lite(gradient=gradient)
        found, expected = read_lite(), read()
        for name, value in found.items():
            assert value.shape == (2, 1), name  # before the next step, which would use it
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)
    assert not np.array_equal(found["w"], start)
