"""`window_transforms` change the average of a window, before it is clipped."""

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from training import assert_equal, compiled, data, dense_model


def doubled(gradients, variables):
    """NaN for the zeros of an update that isn't due."""
    return [2 * gradient * gradient / gradient for gradient in gradients]


def decayed(gradients, variables):
    return [gradient + 0.125 * variable for gradient, variable in zip(gradients, variables)]


@on_adam_and_amsgrad
@quick_first("accum_iters", [steps.LENGTH, 1])
@pytest.mark.usefixtures("every_gate")
def test_equal_to_the_stock_optimizer_on_transformed_big_batches(case, accum_iters):
    clip = {**case.arguments, "clipvalue": 1.0}
    transforms = [doubled, decayed]
    ours = hosts.ours(case.name, accum_iters=accum_iters, window_transforms=transforms, **clip)
    stock, mine, theirs = hosts.stock(case.name, **clip), steps.variables(), steps.variables()
    for optimizer, variables in ((ours, mine), (stock, theirs)):
        hosts.build_on(optimizer, variables)
    step, big_step = steps.stepper(ours, mine), steps.stepper(stock, theirs)
    windows = steps.gradients()
    if accum_iters == 1:
        windows = [[gradients] for window in windows for gradients in window]
    is_clipped = 0
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


@keras2_has_no("missing gradients")
def test_a_variable_without_a_gradient_in_the_last_micro_batch():
    arguments = CASES["adam"].arguments
    ours = hosts.ours("Adam", accum_iters=2, window_transforms=[doubled], **arguments)
    stock = hosts.stock("Adam", **arguments)
    (a, b), (c, d) = ([hosts.variable([1.0, -2.0], name) for name in "ab"] for _ in range(2))
    g = np.array([0.5, -0.75], hosts.FLOATX)
    for optimizer, variables in ((ours, [a, b]), (stock, [c, d])):
        hosts.build_on(optimizer, variables)
    hosts.apply(ours, [g, g], [a, b])
    hosts.apply(ours, [3 * g], [a])
    hosts.apply(stock, [4 * g, g], [c, d])
    for mine, theirs in ((a, c), (b, d)):
        np.testing.assert_allclose(hosts.array(mine), hosts.array(theirs), rtol=1e-6)
    assert ours.completed_updates == 1


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="an argument of Keras 3")
def test_transforms_see_gradients_before_loss_scaling():
    seen = []

    def look(gradients, variables):
        seen.extend(gradients)
        return gradients

    w = hosts.variable([1.0, 2.0], "w")
    ours = hosts.ours("SGD", accum_iters=2, window_transforms=[look], loss_scale_factor=8.0)
    for _ in range(2):
        hosts.apply(ours, [np.array([8.0, 16.0], hosts.FLOATX)], [w])
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


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about graphs that don't know a shape")
@pytest.mark.parametrize("accum_iters", [1, 2])
@keras2_has_no("tf.py_function")
def test_a_gradient_of_a_shape_that_the_graph_does_not_know(accum_iters):
    tf, w = hosts.tf, hosts.variable([[1.0, 2.0]], "w")

    def in_python(gradients, variables):
        return [tf.py_function(lambda g: g, [g], g.dtype) for g in gradients]

    ours = hosts.ours("SGD", learning_rate=1.0, window_transforms=[in_python])
    ours.accum_iters = accum_iters
    hosts.build_on(ours, [w])
    unknown = tf.TensorSpec(None, hosts.FLOATX)
    step = tf.function(lambda g: hosts.apply(ours, [g], [w]), input_signature=[unknown])
    for _ in range(accum_iters):
        step(tf.ones([1, 2], hosts.FLOATX))
    np.testing.assert_array_equal(hosts.array(w), [[0.0, 1.0]])


def test_no_config_and_no_stock_optimizer_has_them():
    ours = hosts.ours("Adam", accum_iters=2, window_transforms=[doubled])
    with pytest.raises(ValueError, match="can't hold a function.*window_transforms=.<function dou"):
        ours.get_config()
    with pytest.raises(ValueError, match="A stock optimizer has no `window_transforms`"):
        ours.to_stock()
    assert type(ours).from_optimizer(ours, accum_iters=3).window_transforms == [doubled]
    assert hosts.ours("Adam", window_transforms=[]).window_transforms is None
    assert hosts.ours("Adam").get_config()["window_transforms"] is None


@keras2_has_no("AccumulationMonitor")
def test_the_noise_scale_is_refused():
    x, y = data()
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=2, window_transforms=[decayed]))
    monitor = hosts.accum.AccumulationMonitor(batch_size=2, noise_scale=True)
    with pytest.raises(ValueError, match="window_transforms: `noise_scale` compares windows"):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[monitor])
