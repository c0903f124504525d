"""A gradient that is missing in some micro-batches adds nothing there, and changes nothing else.

The update at a window's end covers the variables that had a gradient in the window, and no others.
The reference is the stock optimizer with the averages of just these variables.
"""

import contextlib

import hosts
import numpy as np
import pytest
from cases import CASES, KINDS, LATE, SPECIAL, on_adam, over, quick_first, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    Shrink,
    assert_equal,
    compiled,
    data,
    dense_model,
    go_on,
    initialize,
    weights,
)

if hosts.BACKEND == "jax":
    import jax

pytestmark = [
    pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 refuses missing gradients"),
    pytest.mark.usefixtures("every_gate"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

START = [[1.0, -2.0], [0.5, 1.5, -1.0], [2.0]]
NAMES = "abc"

# Which of three variables have a gradient, in windows of four micro-batches.
WINDOWS = [
    ["abc", "abc", "abc", "abc"],
    ["a", "b", "c", "a"],
    ["abc", "ab", "ab", "ab"],  # c has a gradient only in the first micro-batch
    ["a", "a", "abc", "a"],
    ["b", "ab", "b", "a"],  # c has no gradient
    ["a", "a", "a", "a"],
    ["ab", "a", "a", "abc"],  # only the last micro-batch has all three
    ["c", "c", "c", "c"],
]


def start():
    variables = [
        hosts.variable(np.array(value, hosts.FLOATX), name, constraint=constraint)
        for name, value, constraint in zip(NAMES, START, (None, Shrink(), None))
    ]
    return dict(zip(NAMES, variables))


def gradients():
    """One list per window, with the gradients of each micro-batch as a dict."""
    random = np.random.default_rng(3)

    def some(names):
        shapes = dict(zip(NAMES, map(np.shape, START)))
        return {n: random.uniform(0.5, 1.5, shapes[n]).astype(hosts.FLOATX) for n in names}

    return [[some(names) for names in window] for window in WINDOWS]


def average(window):
    """The big batch's gradients: a missing gradient counts as 0, and the divisor stays the same."""
    names = sorted(set().union(*window))
    return {n: sum(m[n] for m in window if n in m) / len(window) for n in names}


def apply(optimizer, variables, found, way="subset"):
    """Make a micro-batch step where missing gradients are left out ("subset") or None ("none")."""
    names = found if way == "subset" else variables
    pairs = [(found.get(n), variables[n]) for n in names]
    if hosts.IS_KERAS3:
        tensors = [None if g is None else keras.ops.convert_to_tensor(g) for g, _ in pairs]
        optimizer.apply(tensors, [v for _, v in pairs])
    else:
        convert = hosts.tf.convert_to_tensor
        optimizer.apply_gradients([(None if g is None else convert(g), v) for g, v in pairs])


def values(optimizer, variables):
    found = {**variables, **hosts.slots(optimizer, variables.values())}
    return {name: np.array(hosts.array(v)) for name, v in found.items()}


def build(optimizer, variables):
    if hasattr(optimizer, "build"):  # stock legacy optimizers build when they meet variables
        optimizer.build(list(variables.values()))


def assert_nothing_pending(optimizer):
    for accumulator in hosts.accumulators(optimizer):
        assert not hosts.array(accumulator).any()


def jitted():
    """Return a jitted step for JAX, where each set of gradients has a function, compiled once."""
    functions = {}

    def step(optimizer, variables, found, way):
        function = functions.setdefault("".join(found), jax.jit(optimizer.stateless_apply))
        written = [*variables.values(), *optimizer.variables]
        values = [v.value for v in written]
        gradients = [found.get(name) for name in NAMES]
        new_weights, new_state = function(values[len(NAMES) :], gradients, values[: len(NAMES)])
        for variable, value in zip(written, [*new_weights, *new_state]):
            variable.assign(value)

    return step


def both(case, way="subset", step=None, scope=contextlib.nullcontext, **options):
    """Run all windows with ours and with the stock optimizer, and compare after each window."""
    step = step or (jitted() if hosts.BACKEND == "jax" else apply)
    arguments = {**case.arguments, **options}
    with scope():
        ours, our_variables = hosts.ours(case.name, accum_iters=LENGTH, **arguments), start()
        build(ours, our_variables)
    stock, stock_variables = hosts.stock(case.name, **arguments), start()
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
        if "use_ema" not in options:  # the moving average overwrites all weights
            for name in NAMES:
                moved = np.abs(after[name] - before[name]).max() > 1e-3
                assert moved == any(name in micro_batch for micro_batch in window)
        assert_nothing_pending(ours)


@over({**KINDS, **{n: c for n, c in SPECIAL.items() if n != "adafactor"}}, quick=["adam"])
def test_equals_big_batch(case):
    both(case)


@pytest.mark.parametrize("way", ["subset", "none"])
def test_left_out_or_none(way):
    both(CASES["sgd"], way, step=apply)


OPTIONS = {"clipnorm": {"clipnorm": 0.3}, "several": {"global_clipnorm": 0.5}}
if hosts.HAS_EMA:
    OPTIONS["clipnorm"]["weight_decay"] = 0.2
    OPTIONS["several"].update(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)


@pytest.mark.skipif(
    not hosts.IS_TENSORFLOW, reason="about gradients in several functions of TensorFlow"
)
@on_adam
@quick_first("jit_compile", [False, True])
def test_any_traced_function_can_close_the_window(case, jit_compile):
    """Each set of gradients has its own function, traced once and without a conditional."""
    functions, traces = {}, {}

    def traced(optimizer, variables, found, way):
        names = "".join(found)
        if names not in functions:
            functions[names] = hosts.tf.function(
                lambda values: apply(optimizer, variables, dict(zip(names, values))),
                jit_compile=jit_compile,
            )
        functions[names]([hosts.tf.constant(value) for value in found.values()])
        count = functions[names].experimental_get_tracing_count()
        assert count == traces.setdefault(names, count), "traced again"

    both(case, step=traced)
    if hosts.GATE["gate"] == "select":
        from graphs import conditionals, operations

        for names, function in functions.items():
            shapes = [np.shape(START[NAMES.index(name)]) for name in names]
            specs = [hosts.tf.TensorSpec(shape, hosts.FLOATX) for shape in shapes]
            assert not conditionals(operations(function.python_function, specs))


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@quick_first("gate", {"window": LATE, "micro_batch": {}})
def test_in_replicas(strategy, gate, monkeypatch):
    monkeypatch.setattr(hosts, "GATE", gate)
    functions = {}

    def run(optimizer, variables, found, way):
        def replica(values):
            parts = {n: v / strategy.num_replicas_in_sync for n, v in zip(found, values)}
            apply(optimizer, variables, parts)

        run_all = hosts.tf.function(lambda values: strategy.run(replica, (values,)))
        function = functions.setdefault("".join(found), run_all)
        function([hosts.tf.constant(value) for value in found.values()])

    both(CASES["adam"], step=run, scope=strategy.scope, clipnorm=0.3)


def test_no_gradient_at_all_is_refused_as_in_the_stock_optimizer():
    optimizer, variables = hosts.ours("SGD", accum_iters=2), start()
    build(optimizer, variables)
    with pytest.raises(ValueError, match="No gradients provided"):
        apply(optimizer, variables, {}, way="none")


def test_a_variable_that_is_twice_in_one_call_is_refused():
    optimizer, w = hosts.ours("SGD", accum_iters=2), hosts.variable([1.0, 2.0], "w")
    gradient = np.ones(2, hosts.FLOATX)
    with pytest.raises(ValueError, match="must be there once.*Add up the gradients.*twice: .*w"):
        hosts.apply(optimizer, [gradient, gradient], [w, w])


# -- frozen layers -------------------------------------------------------------------------------

trains_some = pytest.mark.skipif(
    hosts.BACKEND == "jax", reason="Keras on JAX can't train only some of an optimizer's variables"
)
WITHOUT_XLA = {"jit_compile": False} if hosts.IS_KERAS3 else {}


def gradients_of(model, x, y):
    variables = model.trainable_variables
    if hosts.IS_TORCH:
        import torch

        loss = keras.losses.MeanSquaredError()(torch.as_tensor(y), model(torch.as_tensor(x)))
        found = torch.autograd.grad(loss, [v.value for v in variables])
    else:
        with hosts.tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
        found = tape.gradient(loss, [hosts.native(v) for v in variables])
    return [(v, hosts.array(g)) for v, g in zip(variables, found)]


def layer_of(variable):
    return (variable.path if hosts.IS_KERAS3 else variable.name).split("/")[-2]


OPTIMIZERS = {
    "momentum": ("SGD", {"learning_rate": 0.125, "momentum": 0.9}),
    "AdamW": ("AdamW", {"learning_rate": 2**-6}),
}
if "adamw" not in CASES:
    del OPTIMIZERS["AdamW"]
every_style = quick_first("name, arguments", OPTIMIZERS)


def set_trainable(model, value):
    model.layers[0 if hosts.IS_TORCH else -2].trainable = value
    model.compile(model.optimizer, "mse", **WITHOUT_XLA)


def frozen_in(optimizer, micro_batches=LENGTH - 2, further=2, **fit_arguments):
    """Train a model, freeze a layer after `micro_batches`, and train on `further` micro-batches."""
    model = compiled(dense_model(), optimizer)
    go_on(model, stop=micro_batches)
    before = weights(model)
    set_trainable(model, False)
    x, y = (array[micro_batches * MICRO :][: further * MICRO] for array in data())
    model.fit(x, y, batch_size=MICRO, shuffle=False, verbose=0, **fit_arguments)
    return model, before


def between_windows(optimizer):
    """Not even the momentum of the first window moves the layer in the second."""
    return frozen_in(optimizer, LENGTH, callbacks=[hosts.accum.ApplyPartialWindow()])


def closed_as_a_partial_window(optimizer):
    model, before = frozen_in(optimizer, further=1)
    assert optimizer.window_position == LENGTH - 1
    optimizer.apply_partial_window()
    return model, before


def closed_by_a_python_gate(optimizer):
    return frozen_in(optimizer, callbacks=[hosts.accum.PythonGate()])


def in_mixed_precision(optimizer):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model, before = frozen_in(optimizer)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert hasattr(model.optimizer, "inner_optimizer")
    return model, before


def assert_only_the_rest_moved(optimizer, model, before):
    """The sum of the frozen layer is dropped, however the window closes."""
    assert optimizer.window_position == 0
    assert_nothing_pending(optimizer)
    after = weights(model)
    for name, value in before.items():
        moved = np.abs(after[name] - value).max()
        assert moved == 0 if "hidden" in name else moved > 0, name


FREEZES = [between_windows, frozen_in, closed_as_a_partial_window, closed_by_a_python_gate]


@trains_some
@every_style
@pytest.mark.parametrize("freeze", [*FREEZES, pytest.param(in_mixed_precision, marks=thorough)])
def test_a_frozen_layer_does_not_move(name, arguments, freeze):
    optimizer = hosts.ours(name, accum_iters=LENGTH, **arguments)
    model, before = freeze(optimizer)
    assert optimizer.completed_updates == (2 if freeze is between_windows else 1)
    assert_only_the_rest_moved(optimizer, model, before)


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@pytest.mark.parametrize("gate", [{}, LATE], ids=["micro_batch", "window"])
def test_a_layer_that_is_frozen_under_a_strategy(gate, strategy, monkeypatch):
    monkeypatch.setattr(hosts, "GATE", gate)
    name, arguments = list(OPTIMIZERS.values())[-1]
    with strategy.scope():
        optimizer = hosts.ours(name, accum_iters=LENGTH, **arguments)
        model, before = frozen_in(optimizer)
    assert_only_the_rest_moved(optimizer, model, before)


@trains_some
def test_the_layers_that_train_on_get_the_big_batch():
    """And a layer that trains again starts without a sum. The reference has SGD with momentum."""
    name, arguments = OPTIMIZERS["momentum"]
    ours, stock = hosts.ours(name, accum_iters=LENGTH, **arguments), hosts.stock(name, **arguments)
    model, _ = frozen_in(ours)
    reference = initialize(dense_model())
    if hasattr(stock, "build"):
        stock.build(reference.trainable_variables)
    for window, layers in enumerate(("out", "hidden out")):
        if window:
            set_trainable(model, True)
            go_on(model, LENGTH, 2 * LENGTH)
        big = [array[window * LENGTH * MICRO :][: LENGTH * MICRO] for array in data()]
        found = gradients_of(reference, *big)
        hosts.apply(stock, *zip(*[(g, v) for v, g in found if layer_of(v) in layers]))
        assert_equal(weights(model), weights(reference))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="on Keras 2, a variable can't be frozen by itself")
def test_a_variable_that_is_frozen_in_a_loop_of_ones_own():
    """Frozen and trainable again within the window, the variable gets all of its gradients."""
    ones = {n: np.ones_like(v, hosts.FLOATX) for n, v in zip(NAMES, START)}
    for is_frozen_at_the_end in (True, False):
        optimizer, variables = in_a_window([ones])
        before = hosts.array(variables["a"]).copy()
        rest = {name: value for name, value in ones.items() if name != "a"}
        variables["a"].trainable = False
        for _ in range(LENGTH - 2):
            apply(optimizer, variables, rest)
        variables["a"].trainable = not is_frozen_at_the_end
        apply(optimizer, variables, rest)
        moved = hosts.array(variables["a"]) - before
        expected = 0 if is_frozen_at_the_end else -1 / LENGTH
        np.testing.assert_allclose(moved, np.full_like(moved, expected), rtol=1e-6)
        assert_nothing_pending(optimizer)


def test_a_window_of_which_all_is_frozen_closes_and_moves_nothing():
    name, arguments = OPTIMIZERS["momentum"]
    model = compiled(dense_model(), hosts.ours(name, accum_iters=LENGTH, **arguments))
    optimizer, before = model.optimizer, weights(model)
    go_on(model, stop=LENGTH - 2)
    model.trainable = False
    optimizer.apply_partial_window()
    assert optimizer.window_position == 0
    assert_nothing_pending(optimizer)
    assert_equal(weights(model), before, rtol=0, atol=0)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the optimizers of tf_keras")
@pytest.mark.parametrize("is_built", [True, False])
def test_a_layer_that_is_unfrozen_in_a_window(is_built):
    """It is updated if the optimizer was built for it, and otherwise refused with this remedy."""
    optimizer = hosts.ours("SGD", learning_rate=0.125, accum_iters=LENGTH)
    model = dense_model()
    if is_built:
        optimizer.build(model.trainable_variables)
    model.layers[-2].trainable = False
    go_on(compiled(model, optimizer), stop=LENGTH - 1)
    before = weights(model)
    set_trainable(model, True)
    if not is_built:
        with pytest.raises(ValueError, match=r"others: hidden/kernel.*`optimizer\.build\("):
            go_on(model, start=LENGTH - 1, stop=LENGTH)
        return
    after = weights(go_on(model, start=LENGTH - 1, stop=LENGTH))
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in before)
    assert_nothing_pending(optimizer)


# -- states ----------------------------------------------------------------------------------------


def in_a_window(steps):
    optimizer = hosts.ours("SGD", learning_rate=1.0, momentum=0.5, accum_iters=LENGTH)
    variables = start()
    build(optimizer, variables)
    for found in steps:
        apply(optimizer, variables, found)
    return optimizer, variables


def test_a_state_holds_which_gradients_have_been_missing():
    """A window continued or closed from a state updates just the variables that had a gradient."""
    first, second = gradients()[0], gradients()[4]
    optimizer, variables = in_a_window([*first, *second[:2]])
    state = optimizer.get_state()
    np.testing.assert_array_equal(state["missing_gradients"], [1, 0, 2, 1])

    copy, copies = in_a_window([])
    copy.set_state(state)
    for name, variable in copies.items():
        hosts.assign(variable, hosts.array(variables[name]))
    for found in second[2:]:
        apply(optimizer, variables, found)
        apply(copy, copies, found)
    assert_equal(values(copy, copies), values(optimizer, variables), rtol=0, atol=0)
    assert "missing_gradients" not in optimizer.get_state()

    optimizer.set_state(state)
    at_rest = hosts.array(variables["c"])
    optimizer.apply_partial_window()
    np.testing.assert_array_equal(hosts.array(variables["c"]), at_rest)

    del state["missing_gradients"]  # as in files of 0.1.0: none is missing
    optimizer.set_state(state)
    assert "missing_gradients" not in optimizer.get_state()
