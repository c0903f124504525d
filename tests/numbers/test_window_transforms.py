"""`window_transforms` change the average of a window, before it is clipped."""

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from training import assert_equal


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
    ours, mine = steps.made(
        hosts.ours(case.name, accum_iters=accum_iters, window_transforms=transforms, **clip)
    )
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
