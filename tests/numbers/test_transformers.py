"""`gradient_transformers` of Keras 2 that reorder the pairs, drop some of them or repeat one."""

import copy
import pickle

import hosts
import numpy as np
import pytest
from cases import ADAM
from training import BIG, LENGTH, MICRO, assert_equal, compiled, dense_model, go_on, train

pytestmark = pytest.mark.skipif(not hosts.IS_LEGACY, reason="only these have transformers")


def drop_biases(pairs):
    return [(gradient, variable) for gradient, variable in pairs if len(variable.shape) > 1]


def drop_then_reverse(pairs):
    """Return an iterator that isn't a list, as zip() does."""
    return ((2 * gradient + 0.125, variable) for gradient, variable in drop_biases(pairs)[::-1])


TRANSFORMERS = {
    "reverse": lambda pairs: pairs[::-1],
    "normalize": lambda pairs: [(g / hosts.tf.norm(g), v) for g, v in pairs],
    "repeat": lambda pairs: pairs + pairs[:1],
    "drop biases": drop_biases,
    "drop then reverse": drop_then_reverse,
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_gradients_stay_with_their_variables(name, every_gate):
    arguments = {**ADAM.arguments, "gradient_transformers": [TRANSFORMERS[name]]}
    expected = train(hosts.stock("Adam", **arguments), BIG)
    actual = train(hosts.ours("Adam", accum_iters=LENGTH, **arguments), MICRO)
    assert_equal(actual.weights, expected.weights)
    assert_equal(actual.slots, expected.slots)


def test_the_sum_of_a_dropped_variable_is_emptied(every_gate):
    arguments = {**ADAM.arguments, "gradient_transformers": [drop_biases]}
    ours = hosts.ours("Adam", accum_iters=LENGTH, **arguments)
    model = go_on(compiled(dense_model(), ours), stop=LENGTH - 1)
    sums = hosts.accumulators(ours)
    assert len(sums) == 4 and all(np.any(hosts.array(v)) for v in sums)
    go_on(model, start=LENGTH - 1, stop=LENGTH)
    assert ours.completed_updates == 1
    assert not any(np.any(hosts.array(v)) for v in sums)


def test_a_variable_that_was_not_given_is_refused():
    other = hosts.tf.Variable([1.0])
    ours = hosts.ours("SGD", accum_iters=2, gradient_transformers=[lambda pairs: [(1.0, other)]])
    with pytest.raises(ValueError, match="must return pairs of the variables that they are given"):
        go_on(compiled(dense_model(), ours), stop=1)


def double(pairs):
    return [(2 * gradient, variable) for gradient, variable in pairs]


def summed_and_doubled(pairs):
    return double(pairs)


FUNCTIONS = {
    "gradient_transformers": [double],
    "gradient_aggregator": summed_and_doubled,
}
WAYS = {
    "stock to ours": lambda make, ours: type(ours).from_optimizer(make(), accum_iters=LENGTH),
    "ours to ours": lambda make, ours: type(ours).from_optimizer(ours),
    "pickled": lambda make, ours: pickle.loads(pickle.dumps(ours)),
    "copied": lambda make, ours: copy.deepcopy(ours),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_go_along_with_an_optimizer(function, way):
    """Keras's config lacks them."""
    arguments = {"learning_rate": 0.1, function: FUNCTIONS[function]}
    how = {"run_eagerly": True}
    expected = train(hosts.stock("SGD", **arguments), BIG, compile=how)
    ours = hosts.ours("SGD", accum_iters=LENGTH, **arguments)
    other = WAYS[way](lambda: hosts.stock("SGD", **arguments), ours)
    assert_equal(train(other, MICRO, compile=how).weights, expected.weights)
    back = ours.to_stock()
    assert vars(back)[function] == FUNCTIONS[function]


def test_functions_are_replaced_by_arguments():
    stock = hosts.stock("SGD", gradient_transformers=[double])
    ours = hosts.accum.SGDAccumulate.from_optimizer(stock, gradient_transformers=None, clipnorm=1.0)
    assert ours.gradient_transformers == [] and ours.clipnorm == 1.0
