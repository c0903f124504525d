"""`gradient_transformers` of Keras 2 that reorder the pairs or drop some of them."""

import hosts
import numpy as np
import pytest
from cases import on_adam
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    assert_moved,
    compiled,
    data,
    dense_model,
    go_on,
    train,
)

pytestmark = pytest.mark.skipif(
    not hosts.IS_LEGACY, reason="only legacy optimizers have gradient_transformers"
)


def reverse(pairs):
    return pairs[::-1]


def drop_biases(pairs):
    return [(gradient, variable) for gradient, variable in pairs if len(variable.shape) > 1]


def drop_then_reverse(pairs):
    """Return an iterator that isn't a list, as zip() does."""
    return ((2 * gradient + 0.125, variable) for gradient, variable in drop_biases(pairs)[::-1])


@on_adam
@pytest.mark.parametrize("transformer", [reverse, drop_biases, drop_then_reverse])
def test_gradients_stay_with_their_variables(case, transformer, every_gate):
    arguments = {**case.arguments, "gradient_transformers": [transformer]}
    expected = train(hosts.stock(case.name, **arguments), BIG)
    actual = train(hosts.ours(case.name, accum_iters=LENGTH, **arguments), MICRO)
    kept = {n: v for n, v in expected.weights.items() if transformer is reverse or "kernel" in n}
    assert_moved(expected.start, kept)
    assert_equal(actual.weights, expected.weights)
    assert_equal(actual.slots, expected.slots)


@on_adam
def test_on_replicas(strategy, case, every_gate):
    arguments = {**case.arguments, "gradient_transformers": [drop_then_reverse]}
    expected = train(hosts.stock(case.name, **arguments), BIG)
    with strategy.scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
        actual = train(ours, MICRO, compile={"run_eagerly": False})
    assert_equal(actual.weights, expected.weights)


@on_adam
def test_a_dropped_variable_is_unchanged_and_its_sum_is_emptied(case, every_gate):
    ours = hosts.ours(
        case.name, accum_iters=LENGTH, gradient_transformers=[drop_biases], **case.arguments
    )
    model = compiled(dense_model(), ours)
    before = dict(zip((v.name for v in model.weights), model.get_weights()))
    go_on(model, stop=LENGTH - 1)
    sums = [hosts.array(v) for v in hosts.accumulators(ours)]
    assert len(sums) == 4 and all(sum.any() for sum in sums)
    go_on(model, start=LENGTH - 1, stop=LENGTH)
    assert not any(hosts.array(v).any() for v in hosts.accumulators(ours))
    assert ours.completed_updates == 1
    for variable in model.weights:
        same = np.array_equal(hosts.array(variable), before[variable.name])
        assert same == ("bias" in variable.name), variable.name
    assert not any(
        hosts.array(v).any()
        for name, v in hosts.slots(ours, model.weights).items()
        if "bias" in name
    )


WRONG = {
    "twice": lambda pairs: pairs + pairs[:1],
    "another": lambda pairs: [(pairs[0][0], hosts.variable([1.0], "another"))],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_pairs_are_refused(wrong):
    """The stock optimizer would update one variable twice, or fail."""
    ours = hosts.ours("SGD", accum_iters=2, gradient_transformers=[wrong])
    with pytest.raises(ValueError, match="gradient_transformers.*each at most once.*Received: "):
        compiled(dense_model(), ours, run_eagerly=True).train_on_batch(*data())
