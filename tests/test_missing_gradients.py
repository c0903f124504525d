"""A gradient that is missing in some micro-batches adds nothing there, and nothing else changes.

The update at a window's end covers the variables that had a gradient in it, and no other. The
reference is the stock optimizer, handed the averages of those variables and of no other.
"""

import hosts
import numpy as np
import pytest
from cases import every_case
from hosts import keras
from training import Shrink, assert_equal

pytestmark = [
    pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 refuses a missing gradient"),
    pytest.mark.usefixtures("every_gate"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

LENGTH = 4

START = [[1.0, -2.0], [0.5, 1.5, -1.0], [2.0]]
NAMES = "abc"

# Which of three variables have a gradient, in windows of four micro-batches.
WINDOWS = [
    ["abc", "abc", "abc", "abc"],
    ["a", "b", "c", "a"],
    ["abc", "ab", "ab", "ab"],  # the rest of c comes from the first
    ["a", "a", "abc", "a"],
    ["b", "ab", "b", "a"],  # none for c
    ["a", "a", "a", "a"],
    ["ab", "a", "a", "abc"],  # the last is of all, the others aren't
    ["c", "c", "c", "c"],
]


def start():
    variables = [
        hosts.variable(np.array(value, hosts.FLOATX), name, constraint=constraint)
        for name, value, constraint in zip(NAMES, START, (None, Shrink(), None))
    ]
    return dict(zip(NAMES, variables))


def gradients():
    """For each window and micro-batch the gradients that there are."""
    random = np.random.default_rng(3)

    def some(names):
        shapes = dict(zip(NAMES, map(np.shape, START)))
        return {n: random.uniform(0.5, 1.5, shapes[n]).astype(hosts.FLOATX) for n in names}

    return [[some(names) for names in window] for window in WINDOWS]


def average(window):
    """The big batch's gradients: what is missing counts as nothing, not as a smaller window."""
    names = sorted(set().union(*window))
    return {n: sum(m[n] for m in window if n in m) / len(window) for n in names}


def apply(optimizer, variables, found, way="subset"):
    """One micro-batch, its missing gradients left out or None."""
    names = found if way == "subset" else variables
    pairs = [(found.get(n), variables[n]) for n in names]
    if hosts.IS_KERAS3:
        tensors = [None if g is None else keras.ops.convert_to_tensor(g) for g, _ in pairs]
        optimizer.apply(tensors, [v for _, v in pairs])
    else:
        optimizer.apply_gradients([(None if g is None else hosts.tf.constant(g), v) for g, v in pairs])


def values(optimizer, variables):
    found = {**variables, **hosts.slots(optimizer, variables.values())}
    return {name: np.array(hosts.array(v)) for name, v in found.items()}


def build(optimizer, variables):
    if hasattr(optimizer, "build"):  # a stock optimizer of tf_keras builds as it meets variables
        optimizer.build(list(variables.values()))


def assert_nothing_pending(optimizer):
    for accumulator in hosts.accumulators(optimizer):
        assert not hosts.array(accumulator).any()


def both(case, way="subset", step=apply, **options):
    """All windows by ours and by the stock optimizer, compared after each."""
    arguments = {**case.arguments, **options}
    ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
    stock = hosts.stock(case.name, **arguments)
    our_variables, stock_variables = start(), start()
    build(ours, our_variables)
    build(stock, stock_variables)
    for window in gradients():
        before = values(ours, our_variables)
        for micro_batch in window:
            for name in NAMES:
                np.testing.assert_array_equal(hosts.array(our_variables[name]), before[name])
            step(ours, our_variables, micro_batch, way)
        apply(stock, stock_variables, average(window))
        after = values(ours, our_variables)
        assert_equal(after, values(stock, stock_variables))
        for name in NAMES:
            moved = np.abs(after[name] - before[name]).max() > 1e-3
            assert moved == any(name in micro_batch for micro_batch in window)
        assert_nothing_pending(ours)


@every_case
@pytest.mark.parametrize("way", ["subset", "none"])
def test_equals_big_batch(case, way):
    both(case, way)
