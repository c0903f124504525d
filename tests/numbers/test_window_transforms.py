"""`window_transforms` change the average of a window, before it is clipped."""

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from training import assert_equal, compiled, fit, weights


def doubled(gradients, variables):
    """NaN for the zeros of an update that isn't due."""
    return [2 * gradient * gradient / gradient for gradient in gradients]


def decayed(gradients, variables):
    return [gradient + 0.125 * variable for gradient, variable in zip(gradients, variables)]


@on_adam_and_amsgrad
@quick_first("accum_iters", [steps.LENGTH, 1])
@pytest.mark.usefixtures("every_gate")
def test_equal_to_the_stock_optimizer_on_transformed_big_batches(case, accum_iters):
    clip, transforms = {**case.arguments, "clipvalue": 1.0}, [doubled, decayed]
    options = {"accum_iters": accum_iters, "window_transforms": transforms}
    ours, mine = steps.made(hosts.ours(case.name, **options, **clip))
    stock, theirs = steps.made(hosts.stock(case.name, **clip))
    step, big_step, is_clipped = steps.stepper(ours, mine), steps.stepper(stock, theirs), 0
    windows = steps.gradients((accum_iters,) * steps.WINDOWS)
    for window in windows:
        before = steps.weights_and_state(ours, mine)
        for gradients in window:
            assert_equal(steps.weights_and_state(ours, mine), before, rtol=0, atol=0)
            step(gradients)
        averages = [np.mean(gradients, axis=0) for gradients in zip(*window)]
        big = [2 * g + 0.125 * hosts.array(v) for g, v in zip(averages, theirs)]
        big_step([g.astype(hosts.FLOATX) for g in big])
        is_clipped += sum((abs(g) > 1).sum() for g in big)
        assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))
    assert ours.completed_updates == len(windows) and is_clipped


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="elsewhere a trace knows all shapes")
def test_a_gradient_whose_shape_the_graph_does_not_know():
    """That of a layer on sequences, which reaches the functions as it is without accumulators."""
    keras, found = hosts.keras, []
    layers, arrays = keras.layers, [np.ones((3, 3, n), hosts.FLOATX) for n in (4, 3)]
    for optimizer in (
        hosts.ours("SGD", learning_rate=0.25, accum_iters=1, window_transforms=[doubled]),
        hosts.stock("SGD", learning_rate=0.5),
    ):
        x = layers.Input((3, 4))
        ys = [layers.Dense(units, name=f"dense_{units}")(x) for units in (1, 2)]
        model = keras.models.Model(x, layers.concatenate(ys))
        compiled(model, optimizer, lambda y, y_pred: hosts.tf.reduce_sum(y * y_pred, axis=(1, 2)))
        fit(model, 2, arrays, epochs=1)
        found.append(weights(model))
    assert_equal(*found)


class Running:
    """Divide by a running norm, which is kept in a variable."""

    def __init__(self, is_native=False):
        make = hosts.variable if not is_native else hosts.tf.Variable
        self.norm = make(np.zeros((), hosts.FLOATX), name="running_norm")

    def __call__(self, gradients, variables):
        ops = hosts.keras.ops if hosts.IS_KERAS3 else hosts.tf
        norm = ops.stop_gradient if hosts.IS_KERAS3 else hosts.tf.identity
        total = sum(ops.abs(ops.reshape(g, [-1]))[0] for g in gradients)
        self.norm.assign(0.5 * norm(self.norm) + total)
        return [g / (1 + norm(self.norm)) for g in gradients]


GATES = ["auto", "select", "conditional"]


@keras2_has_no("variables that a function can write")
@quick_first("how", [{}, {"jit_compile": True}] if hosts.IS_TENSORFLOW else [{}])
@pytest.mark.parametrize("gate", GATES)
def test_a_function_that_keeps_something(gate, how):
    """It runs once per update, or what it wrote is held."""
    if gate == "select" and hosts.IS_TF_KERAS:
        pytest.skip("a native variable can't be held: see test_a_function_that_counts")
    running, alone = Running(), Running()
    options = {"accum_iters": steps.LENGTH, "window_transforms": [running], "gate": gate}
    ours, mine = steps.made(hosts.ours("SGD", learning_rate=0.125, **options))
    stock, theirs = steps.made(hosts.stock("SGD", learning_rate=0.125))
    if hosts.BACKEND == "jax":  # a pure function would lose what isn't in the optimizer

        def step(gradients):
            hosts.apply(ours, gradients, mine)

    else:
        step = steps.stepper(ours, mine, **how)
    for window in steps.gradients():
        for gradients in window:
            step(gradients)
        averages = [np.mean(gradients, axis=0) for gradients in zip(*window)]
        convert = hosts.keras.ops.convert_to_tensor if hosts.IS_KERAS3 else hosts.tf.constant
        hosts.apply(stock, alone(list(map(convert, averages)), theirs), theirs)
        assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))
    np.testing.assert_allclose(hosts.array(running.norm), hosts.array(alone.norm), rtol=1e-6)


def counting():
    """A counter of calls, and a function that counts, by its framework's own means."""
    count = hosts.variable(0.0, "count")

    def call(value, *others):
        if not hosts.IS_KERAS2:
            count.assign(count + 1)
            return value
        with hosts.tf.control_dependencies([hosts.tf.assign_add(count, 1.0)]):
            return [hosts.tf.identity(v) for v in value] if others else hosts.tf.identity(value)

    return count, call


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("where", ["constraint", "transform"])
def test_a_function_that_counts(where, gate):
    """It counts updates, or by gate="select" micro-batches, if nothing tracks its variable."""
    count, call = counting()
    w = hosts.variable([1.0, 2.0], "w", constraint=call if where == "constraint" else None)
    transforms = [call] if where == "transform" else None
    ours = hosts.ours("SGD", accum_iters=2, window_transforms=transforms, gate=gate)
    is_held = gate == "conditional" or gate == "auto" and not hosts.IS_KERAS2 or hosts.IS_KERAS3
    if hosts.BACKEND == "jax":
        step = lambda: hosts.apply(ours, [np.ones(2, hosts.FLOATX)], [w])  # noqa: E731
    else:
        run = steps.stepper(ours, [w])
        step = lambda: run([np.ones(2, hosts.FLOATX)])  # noqa: E731
    hosts.build_on(ours, [w])
    for _ in range(4):
        step()
    assert hosts.array(count) == (2 if is_held else 4)


@pytest.mark.skipif(hosts.IS_TENSORFLOW, reason="`stateless_apply` of JAX and PyTorch")
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("where", ["constraint", "transform", "norm"])
def test_a_variable_that_a_stateless_step_returns(where, gate):
    """The optimizer's own variable counts updates."""
    count = [None]

    def call(value, *others):
        count[0].assign(count[0] + 1)
        return value if where != "norm" else value > 1e6

    arguments = {"transform": {"window_transforms": [call]}, "norm": {"skip_norm": call}}
    arguments = {"accum_iters": 2, "gate": gate, **arguments.get(where, {})}

    def run(make):
        w = hosts.variable([1.0, 2.0], "w", constraint=call if where == "constraint" else None)
        ours = hosts.ours("SGD", **arguments)
        count[0] = make(ours)
        hosts.build_on(ours, [w])
        grads = [hosts.keras.ops.ones(2)]
        for _ in range(4):
            state, weights = [v.value for v in ours.variables], [w.value]
            weights, state = ours.stateless_apply(state, grads, weights)
            for v, value in zip([w, *ours.variables], [*weights, *state]):
                v.assign(value)

    def attribute(ours):
        ours.calls = hosts.variable(0.0, "own")
        return ours.calls

    for make in (lambda ours: ours.add_variable((), name="own"), attribute):
        run(make)
        assert hosts.array(count[0]) == (4 if where == "norm" else 2)


@keras2_has_no("missing gradients")
def test_a_variable_without_a_gradient_in_the_last_micro_batch():
    arguments = CASES["adam"].arguments
    ours = hosts.ours("Adam", accum_iters=2, window_transforms=[doubled], **arguments)
    stock = hosts.stock("Adam", **arguments)
    mine, theirs = ([hosts.variable([1.0, -2.0], name) for name in "ab"] for _ in range(2))
    hosts.build_on(ours, mine)
    g = np.array([0.5, -0.75], hosts.FLOATX)
    hosts.apply(ours, [g, g], mine)
    hosts.apply(ours, [3 * g], mine[:1])
    hosts.apply(stock, [4 * g, g], theirs)
    for own, other in zip(mine, theirs):
        np.testing.assert_allclose(hosts.array(own), hosts.array(other), rtol=1e-6)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="an argument of Keras 3")
def test_transforms_see_gradients_before_loss_scaling():
    seen = []

    def look(gradients, variables):
        seen.extend(gradients)
        return gradients

    ours, w = hosts.ours("SGD", window_transforms=[look], loss_scale_factor=8.0), [1.0, 2.0]
    hosts.apply(ours, [np.array([8.0, 16.0], hosts.FLOATX)], [hosts.variable(w, "w")])
    np.testing.assert_allclose(hosts.array(seen[-1]), [1, 2])


@pytest.mark.parametrize(
    "transform, said",
    [
        (lambda gradients, variables: gradients[:1], r"from <function.* shapes \S*4, 3\S*, for"),
        (lambda gradients, variables: [None] * 3, "one gradient for each variable.* None, None"),
        (lambda gradients, variables: [g[:1] for g in gradients], r"of the same shapes.*\D1, 3"),
    ],
)
def test_a_function_that_returns_something_else(transform, said):
    ours, variables = hosts.ours("SGD", window_transforms=[transform]), steps.variables()
    with pytest.raises(ValueError, match=said):
        hosts.build_on(ours, variables)
        steps.stepper(ours, variables)(steps.gradients()[0][0])


def test_no_config_and_no_stock_optimizer_has_them():
    ours = hosts.ours("Adam", accum_iters=2, window_transforms=[doubled])
    with pytest.raises(ValueError, match="can't hold a function.*window_transforms=.<function dou"):
        ours.get_config()
    with pytest.raises(ValueError, match="A stock optimizer has no `window_transforms`"):
        ours.to_stock()
    assert type(ours).from_optimizer(ours, accum_iters=3).window_transforms == (doubled,)
    assert hosts.ours("Adam", window_transforms=[]).window_transforms is None
    assert hosts.ours("Adam").get_config()["window_transforms"] is None
