"""A step that fails leaves the window as it was, wherever Python runs the step."""

import hosts
import numpy as np
import pytest
from cases import keras2_has_no
from hosts import keras
from training import assert_equal

pytestmark = keras2_has_no("eager steps")

ARMED = []  # the exceptions that `fail` raises, once each


def fail(value, *others):
    if ARMED:
        raise ARMED.pop()
    return value


def fails(error, function, *arguments):
    ARMED.append(error)
    with pytest.raises(type(error), match=str(error) or None):
        function(*arguments)
    assert not ARMED, "another error"


class Rate(keras.optimizers.schedules.LearningRateSchedule if not hosts.IS_KERAS2 else object):
    def __call__(self, step):
        return fail(0.5)


WHERE = {
    "schedule": ({"learning_rate": Rate()}, {}, None),
    "transform": ({}, {"window_transforms": [fail]}, None),
    "constraint": ({}, {}, fail),
}
if hosts.IS_LEGACY:
    WHERE["transformer"] = ({}, {"gradient_transformers": [fail]}, None)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()], ids=["error", "stop"])
@pytest.mark.parametrize("where", WHERE)
def test_an_update_that_fails(where, error):
    """The same micro-batch again, or a partial window, equals a stock optimizer that fails too."""
    arguments, options, constraint = WHERE[where]
    arguments = {"learning_rate": 0.5, "momentum": 0.5, **arguments}
    mine, theirs = (hosts.variable([1.0, -2.0], "w", constraint=constraint) for _ in range(2))
    ours = hosts.ours("SGD", accum_iters=2, **arguments, **options)
    stock = hosts.stock("SGD", **arguments)
    grads = np.array([[0.5, 1.0], [1.5, -1.0], [2.0, 0.25]], hosts.FLOATX)
    for i, grad in enumerate([*grads, *grads]):
        average = (grad + grads[(i - 1) % 3]) / 2
        if i in (1, 3):
            fails(error, hosts.apply, ours, [grad], [mine])
            if not options:  # the stock optimizer has no transforms
                fails(error, hosts.apply, stock, [average], [theirs])
        hosts.apply(ours, [grad], [mine])
        if i % 2:
            hosts.apply(stock, [average], [theirs])
        assert (ours.completed_updates, ours.window_position) == divmod(i + 1, 2)
        np.testing.assert_allclose(hosts.array(mine), hosts.array(theirs), rtol=1e-6)
    hosts.apply(ours, [grads[0]], [mine])
    fails(error, ours.apply_partial_window)
    if not options:
        fails(error, hosts.apply, stock, [grads[0]], [theirs])
    ours.apply_partial_window()
    hosts.apply(stock, [grads[0]], [theirs])
    np.testing.assert_allclose(hosts.array(mine), hosts.array(theirs), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:(keras_accum. )?Gradients do not exist")
@pytest.mark.parametrize("factor", [1.0, 1e9, np.inf])
@pytest.mark.parametrize("where", WHERE)
def test_an_update_that_fails_leaves_the_state_to_the_bit(where, factor):
    """Of any size, also if a gradient is missing, and in a partial window."""
    arguments, options, constraint = WHERE[where]
    random, shapes = np.random.default_rng(0), [(40, 5), (), (7,)]
    ws = [hosts.variable(np.ones(shape), f"w{len(shape)}") for shape in shapes]
    if constraint:
        ws[0] = hosts.variable(np.ones(shapes[0]), "w2", constraint=constraint)
    ours = hosts.ours("SGD", **{"learning_rate": 0.5, **arguments}, accum_iters=3, **options)
    hosts.build_on(ours, ws)

    def step(factor=1.0):
        grads = [np.asarray(random.normal(size=shape), hosts.FLOATX) for shape in shapes]
        hosts.apply(ours, [factor * grads[0], None, grads[2]], ws)

    def fails_without_a_trace(function, *arguments):
        before = ours.get_state()
        fails(ValueError("bad"), function, *arguments)
        for name, value in ours.get_state().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)

    step()
    step()
    fails_without_a_trace(step, factor)
    fails_without_a_trace(ours.apply_partial_window)
    step()
    assert ours.completed_updates == 1


# The framework's error for it.
OF_SHAPE = {"jax": (TypeError, ValueError), "torch": RuntimeError}.get(hosts.BACKEND)
if hosts.IS_TENSORFLOW:
    OF_SHAPE = hosts.tf.errors.InvalidArgumentError, ValueError


def test_a_gradient_of_another_shape():
    a, b = (hosts.variable([1.0, -2.0], name) for name in "ab")
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=2)
    hosts.build_on(ours, [a, b])
    grad = np.ones(2, hosts.FLOATX)
    before = ours.get_state()
    with pytest.raises(OF_SHAPE, match="shape|size"):
        hosts.apply(ours, [grad, np.ones(3, hosts.FLOATX)], [a, b])
    assert_equal(ours.get_state(), before, rtol=0, atol=0)
    for _ in range(2):
        hosts.apply(ours, [grad, grad], [a, b])
    assert_equal({"a": hosts.array(a), "b": hosts.array(b)}, {"a": [0, -3], "b": [0, -3]})


def test_a_build_that_is_interrupted(monkeypatch):
    """Its variables may be half there, so it asks for a new optimizer."""
    ours, w = hosts.ours("SGD", learning_rate=1.0, accum_iters=2), hosts.variable([1.0, -2.0], "w")
    store, step = ours._accumulation.store, (hosts.apply, ours, [np.ones(2, hosts.FLOATX)], [w])
    add_sum = store.add_sum
    monkeypatch.setattr(store, "add_sum", lambda variable: fail(add_sum(variable)))
    fails(KeyboardInterrupt(), *step)
    message = "with KeyboardInterrupt.*: compile the model with"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            step[0](*step[1:])
    with pytest.raises(RuntimeError, match=message):  # its slots belong to no weight
        ours.get_state()
    np.testing.assert_array_equal(hosts.array(w), [1.0, -2.0])


@pytest.mark.parametrize("length", [1, 2])
def test_a_build_that_fails(length, monkeypatch):
    """As a build that runs out of memory. Stock Keras would have some variables twice."""
    ours, w = hosts.ours("Adam", accum_iters=length), hosts.variable([1.0, -2.0], "w")
    add, calls = ("add_slot" if hosts.IS_LEGACY else "add_variable_from_reference"), []
    create = getattr(ours, add)

    def create_one(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("too small")
        return create(*arguments, **keywords)

    monkeypatch.setattr(ours, add, create_one)
    grad = np.ones(2, hosts.FLOATX)
    for error, message in ((MemoryError, "too"), (RuntimeError, "ended with MemoryError.*too")):
        with pytest.raises(error, match=message):
            hosts.apply(ours, [grad], [w])
    np.testing.assert_array_equal(hosts.array(w), [1.0, -2.0])
