"""A gradient that is missing in some micro-batches adds nothing there, and changes nothing else."""

import contextlib
from functools import partial

import hosts
import numpy as np
import pytest
import training
from cases import CASES, KINDS, SPECIAL, over, quick_first
from steps import stepper
from training import LENGTH, MICRO, assert_equal, batches, compiled, dense_model, go_on, weights

pytestmark = [
    pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 refuses missing gradients"),
    pytest.mark.filterwarnings("ignore:(keras_accum. )?Gradients do not exist"),
]

START = {"a": [1.0, -2.0], "b": [0.5, 1.5, -1.0], "c": [2.0]}
# Which of the variables have a gradient, in windows of four micro-batches.
WINDOWS = [
    "abc abc abc abc",
    "a b c a",
    "abc ab ab ab",  # c has a gradient only in the first micro-batch
    "a a abc a",
    "b ab b a",  # c has no gradient
    "a a a a",
    "ab a a abc",  # only the last micro-batch has all three
    "c c c c",
]


def start():
    return {
        name: hosts.variable(value, name, constraint=training.Shrink() if name == "b" else None)
        for name, value in START.items()
    }


def some(names, seed=3):
    random = np.random.default_rng(seed)
    return {n: random.uniform(0.5, 1.5, np.shape(START[n])).astype(hosts.FLOATX) for n in names}


def built(optimizer, variables):
    if hasattr(optimizer, "build"):  # stock legacy optimizers build when they meet variables
        optimizer.build(list(variables.values()))
    return optimizer


def values(optimizer, variables):
    found = {**variables, **hosts.slots(optimizer, variables.values())}
    return {name: np.array(hosts.array(v)) for name, v in found.items()}


def assert_nothing_pending(optimizer):
    assert optimizer.window_position == 0
    for accumulator in hosts.accumulators(optimizer):
        assert not hosts.array(accumulator).any()


# -- ways to make a step --------------------------------------------------------------------------


def left_out(optimizer, variables, found):
    hosts.apply(optimizer, list(found.values()), [variables[name] for name in found])


def none(optimizer, variables, found):
    hosts.apply(optimizer, [found.get(name) for name in START], list(variables.values()))


def traced(make=stepper):
    """A step in which each set of gradients has a function of its own, traced once."""
    steps = {}

    def step(optimizer, variables, found):
        names = "".join(found)
        there = START if hosts.BACKEND == "jax" else names  # JAX's function takes all variables
        if names not in steps:
            steps[names] = make(optimizer, [variables[name] for name in there])
        steps[names]([found.get(name) for name in there])

    step.steps = steps
    return step


def equals_big_batch(case, step, scope=contextlib.nullcontext, **options):
    """Run all windows with ours and with the stock optimizer, and compare after each window."""
    arguments = {**case.arguments, **options}
    with scope():
        mine = start()
        ours = built(hosts.ours(case.name, accum_iters=LENGTH, **arguments), mine)
    theirs = start()
    stock = built(hosts.stock(case.name, **arguments), theirs)
    random = np.random.default_rng(3)
    for window in WINDOWS:
        before = values(ours, mine)
        micro_batches = [some(names, random) for names in window.split()]
        for found in micro_batches:
            for name in START:
                np.testing.assert_array_equal(hosts.array(mine[name]), before[name])
            step(ours, mine, found)
        # A missing gradient counts as 0, and the divisor stays the same.
        there = [name for name in START if name in window]
        sums = {name: sum(found.get(name, 0) for found in micro_batches) for name in there}
        left_out(stock, theirs, {name: total / LENGTH for name, total in sums.items()})
        after = values(ours, mine)
        assert_equal(after, values(stock, theirs))
        for name in START:
            assert (np.abs(after[name] - before[name]).max() > 1e-3) == (name in there)
        assert_nothing_pending(ours)


WITHOUT_ADAFACTOR = {name: case for name, case in SPECIAL.items() if name != "adafactor"}


@pytest.mark.usefixtures("every_gate")
@over({**KINDS, **WITHOUT_ADAFACTOR}, quick=["adam"])
def test_equals_big_batch(case):
    equals_big_batch(case, traced())


@pytest.mark.parametrize("step", [left_out, none])
def test_left_out_or_none(step):
    equals_big_batch(CASES["sgd"], step)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about several traced functions")
@pytest.mark.usefixtures("every_gate")
@quick_first("jit_compile", [False, True])
def test_any_traced_function_can_close_the_window(jit_compile):
    """Each set of gradients has its own function, traced once, with at most one conditional."""
    from graphs import conditionals, operations

    step = traced(partial(stepper, jit_compile=jit_compile))
    equals_big_batch(CASES["adam"], step)
    for names, run in step.steps.items():
        specs = [hosts.tf.TensorSpec(np.shape(START[n]), hosts.FLOATX) for n in names]
        traced_again = run.traced.python_function, None, *specs
        found = conditionals(operations(*traced_again, jit_compile=jit_compile))
        assert found <= (hosts.GATE["gate"] == "auto")


@pytest.mark.quick_by("tf_keras", "tf_keras_new")
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@quick_first("gate", {"auto": {}, "conditional": {"gate": "conditional"}})
def test_in_replicas(strategy, gate, monkeypatch):
    monkeypatch.setattr(hosts, "GATE", gate)

    def make(optimizer, variables):
        def replica(found):
            parts = [value / strategy.num_replicas_in_sync for value in found]
            hosts.apply(optimizer, parts, variables)

        return hosts.tf.function(lambda found: strategy.run(replica, (found,)))

    equals_big_batch(CASES["adam"], traced(make), scope=strategy.scope, clipnorm=0.3)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="others take pairs")
@pytest.mark.parametrize("accum_iters", [1, 2])
@pytest.mark.parametrize("number", [2, 4])
def test_one_gradient_for_each_variable(number, accum_iters):
    """Stock raises on PyTorch, and ignores on TensorFlow and JAX what is left over."""
    variables = start()
    ours = hosts.ours("SGD", accum_iters=accum_iters, skip_nonfinite=True)
    grads = [*some("abc").values(), *some("c").values()][:number]
    with pytest.raises(ValueError, match=f"Received: {number} gradients for 3 variables"):
        hosts.apply(ours, grads, list(variables.values()))
    assert (ours.completed_updates, ours.window_position) == (0, 0)


def test_what_the_stock_optimizer_refuses():
    variables = start()
    optimizer = built(hosts.ours("SGD", accum_iters=2), variables)
    with pytest.raises(ValueError, match="No gradients provided"):
        none(optimizer, variables, {})
    with pytest.raises(ValueError, match="must be there once.*Add up its gradients.*twice: .*c"):
        hosts.apply(optimizer, [np.ones(1, hosts.FLOATX)] * 2, [variables["c"]] * 2)


# -- frozen layers -------------------------------------------------------------------------------

# How many micro-batches of a window come before a layer is frozen, how many there are, the callback
# that closes the window, and whether replicas train.
FREEZES = {
    "in_a_window": (2, LENGTH, None, False),
    "between_windows": (0, LENGTH, None, False),
    "partial_window": (2, LENGTH - 1, "ApplyPartialWindow", False),
}
if hosts.IS_TENSORFLOW:
    FREEZES["replicas"] = (2, LENGTH, None, True)


def set_trainable(model, value):
    model.get_layer("hidden").trainable = value
    model.compile(model.optimizer, "mse", **({"jit_compile": False} if hosts.IS_KERAS3 else {}))


@pytest.mark.skipif(hosts.BACKEND == "jax", reason="where Keras must train all variables")
@quick_first("before, length, callback, in_replicas", FREEZES)
def test_a_frozen_layer(before, length, callback, in_replicas, request):
    """Neither momentum nor sum moves it. The reference has it frozen for the whole window."""
    arguments = {"learning_rate": 2**-5, "momentum": 0.9}
    with request.getfixturevalue("strategy").scope() if in_replicas else contextlib.nullcontext():
        ours = hosts.ours("SGD", accum_iters=LENGTH, reduction="mean", **arguments)
        model = compiled(dense_model(), ours)
    reference = compiled(dense_model(), hosts.stock("SGD", **arguments))
    first, second, third = batches(training.BIG)
    second = [array[: length * MICRO] for array in second]

    go_on(model, arrays=first)
    reference.train_on_batch(*first)
    go_on(model, arrays=second, stop=before)
    for each in (model, reference):
        set_trainable(each, False)
    start = weights(model)
    rest = [array[before * MICRO :] for array in second]
    callbacks = [getattr(hosts.accum, callback)()] if callback else []
    training.fit(model, MICRO, rest, epochs=1, callbacks=callbacks)
    reference.train_on_batch(*second)
    assert ours.completed_updates == 2
    assert_nothing_pending(ours)
    for layer, value in weights(model).items():
        assert (value != start[layer]).any() == ("hidden" not in layer)
    assert_equal(weights(model), weights(reference))

    for each in (model, reference):
        set_trainable(each, True)
    go_on(model, arrays=third)
    reference.train_on_batch(*third)
    assert_equal(weights(model), weights(reference))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="on Keras 2, a variable can't be frozen by itself")
@pytest.mark.parametrize("is_frozen_at_the_end", [True, False])
def test_a_variable_that_is_frozen_in_a_loop_of_ones_own(is_frozen_at_the_end):
    """Frozen and trainable again within the window, the variable gets all of its gradients."""
    optimizer, variables = in_a_window("abc")
    before = hosts.array(variables["a"]).copy()
    left_out(optimizer, variables, some("a"))
    for is_frozen in (True, is_frozen_at_the_end):
        variables["a"].trainable = not is_frozen
        left_out(optimizer, variables, some("bc"))
    moved = (hosts.array(variables["a"]) != before).any()
    assert moved == (not is_frozen_at_the_end)
    assert_nothing_pending(optimizer)


def test_a_window_of_which_all_is_frozen_closes_and_moves_nothing():
    model = compiled(dense_model(), hosts.ours("SGD", momentum=0.9, accum_iters=LENGTH))
    optimizer, before = model.optimizer, weights(model)
    go_on(model, stop=LENGTH - 2)
    model.trainable = False
    optimizer.apply_partial_window()
    assert_nothing_pending(optimizer)
    assert_equal(weights(model), before, rtol=0, atol=0)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="on Keras 2, a variable can't be frozen by itself")
def test_what_a_window_of_frozen_variables_lacked_is_not_missing_in_the_next():
    optimizer, variables = in_a_window("a")
    variables["a"].trainable = False
    optimizer.apply_partial_window()
    before = [hosts.array(variables[name]).copy() for name in "abc"]
    left_out(optimizer, variables, some("bc"))
    optimizer.apply_partial_window()
    moved = [(hosts.array(variables[n]) != old).any() for n, old in zip("abc", before)]
    assert moved == [False, True, True]
    assert optimizer.completed_updates == 1


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the optimizers of tf_keras")
@pytest.mark.parametrize("is_built", [True, False])
def test_a_layer_that_is_unfrozen_in_a_window(is_built):
    """It is updated if the optimizer was built for it, and otherwise a new one continues."""
    optimizer = hosts.ours("SGD", learning_rate=0.125, accum_iters=LENGTH)
    model = dense_model()
    if is_built:
        optimizer.build(model.trainable_variables)
    model.get_layer("hidden").trainable = False
    go_on(compiled(model, optimizer), stop=LENGTH - 1)
    before = weights(model)
    set_trainable(model, True)
    if not is_built:
        state = optimizer.get_state()
        for converts in True, False:  # the second one is the remedy
            new = type(optimizer).from_optimizer(optimizer) if converts else None
            new = new or hosts.ours("SGD", learning_rate=0.125, accum_iters=LENGTH)
            model.compile(new, "mse")
            if converts:
                with pytest.raises(ValueError, match=r"others: hidden/kernel.*, by_name=True"):
                    model.train_on_batch(*batches(MICRO)[LENGTH - 1])
        new.build(model.trainable_variables)
        new.set_state(state, by_name=True)
        model.train_on_batch(*batches(MICRO)[LENGTH - 1])
        assert (new.completed_updates, new.window_position) == (1, 0)
        return
    after = weights(go_on(model, LENGTH - 1, LENGTH))
    assert optimizer.completed_updates == 1
    assert all((after[name] != before[name]).any() for name in before)
    assert_nothing_pending(optimizer)


# -- states ----------------------------------------------------------------------------------------


def in_a_window(*steps):
    variables = start()
    optimizer = built(hosts.ours("SGD", momentum=0.5, accum_iters=LENGTH), variables)
    for names in steps:
        left_out(optimizer, variables, some(names))
    return optimizer, variables


def test_a_state_holds_which_gradients_have_been_missing():
    """Where it doesn't say so, none is missing, and momentum moves all."""
    optimizer, variables = in_a_window(*"abc abc abc abc b ab".split())
    state = optimizer.get_state()
    np.testing.assert_array_equal(state["missing_gradients"], [1, 0, 2, 0])
    older = {name: array for name, array in state.items() if name != "missing_gradients"}
    for each in (state, older):
        optimizer.set_state(each)
        assert optimizer.get_state().keys() == each.keys()
        before = hosts.array(variables["c"]).copy()
        optimizer.apply_partial_window()
        assert (hosts.array(variables["c"]) != before).any() == (each is older)
    assert "missing_gradients" not in optimizer.get_state()


@pytest.mark.usefixtures("every_gate")
@pytest.mark.parametrize("updates", [0, 100])
def test_a_warm_restart_keeps_which_gradients_have_been_missing(updates):
    """`iterations` is set inside a window and between two windows."""
    found = []
    for restarts in [(), (6, 8)]:
        optimizer, variables = in_a_window()
        step, random = traced(), np.random.default_rng(3)
        for number, names in enumerate("abc abc abc abc ab ab ab ab abc abc abc ab".split()):
            if number in restarts:
                optimizer.iterations.assign(updates)
            step(optimizer, variables, some(names, random))
        found.append({name: hosts.array(v).copy() for name, v in variables.items()})
    assert_equal(found[1], found[0], rtol=0, atol=0)
