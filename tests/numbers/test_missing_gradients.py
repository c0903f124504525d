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


OPTIONS = {
    "clipnorm": {"clipnorm": 0.3},
    "global_clipnorm": {"global_clipnorm": 0.5},
}
if hosts.HAS_EMA:
    OPTIONS["weight_decay"] = {"weight_decay": 0.2}
    OPTIONS["use_ema"] = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3}


@on_adam
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_options_that_act_on_an_update(case, options):
    both(case, **options)


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


# -- small cases worked by hand ------------------------------------------------------------------


def trained(accum_iters, steps, weights=(1.0, 1.0), **arguments):
    """Two scalar weights after each micro-batch of these gradients, by SGD at a rate of 1."""
    optimizer = hosts.ours("SGD", learning_rate=1.0, accum_iters=accum_iters, **arguments)
    variables = {name: hosts.variable(w, name) for name, w in zip(NAMES, weights)}
    optimizer.build(list(variables.values()))
    seen = []
    for found in steps:
        arrays = {name: np.array(g, hosts.FLOATX) for name, g in found.items()}
        apply(optimizer, variables, arrays, way="none")
        seen.append([float(hosts.array(v)) for v in variables.values()])
    assert_nothing_pending(optimizer)
    return seen


def test_gradients_in_turns():
    assert trained(2, [{"a": 1.0}, {"b": 1.0}] * 10)[-1] == [-4, -4]


def test_a_rare_gradient_counts_in_its_own_window():
    steps = [{"a": 0.0, "b": 1.0 * (i in (0, 5))} if i in (0, 5) else {"a": 0.0} for i in range(6)]
    assert [b for _, b in trained(2, steps)] == [1, 0.5, 0.5, 0.5, 0.5, 0]


def test_several_calls_in_a_train_step_are_several_micro_batches():
    """As with a generator and a discriminator that share an optimizer."""
    step = [{"a": 2.0}, {"b": 4.0}]
    assert trained(6, step * 6, weights=(1.0, 1.0), reduction="sum")[-1] == [-11.0, -23.0]
    assert trained(6, step * 6)[-1] == [-1.0, -3.0]


def test_a_dropped_micro_batch_leaves_no_trace():
    steps = [{"a": 1.0}, {"b": np.inf}, {"a": 1.0}, {"a": 1.0}, {"b": 2.0}]
    assert trained(2, steps[:3], skip_nonfinite=True)[-1] == [0, 1]
    assert trained(2, steps, skip_nonfinite=True)[-1] == [-0.5, 0]


def test_weights_of_micro_batches():
    optimizer = hosts.ours("SGD", learning_rate=1.0, accum_iters=2, reduction="weighted")
    variables = {name: hosts.variable(1.0, name) for name in "ab"}
    optimizer.build(list(variables.values()))
    for weight, found in ((3.0, {"a": 1.0}), (1.0, {"b": 2.0})):
        optimizer.weigh(weight)
        apply(optimizer, variables, {n: np.array(g, hosts.FLOATX) for n, g in found.items()})
    assert [float(hosts.array(v)) for v in variables.values()] == [0.25, 0.5]


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


# -- models ----------------------------------------------------------------------------------------


def heads(optimizer, names="ab"):
    """Return models that share a trunk and an optimizer but not the head, and all variables."""
    trunk = keras.layers.Dense(3, activation="tanh", name="trunk")
    models = []
    for name in names:
        x = keras.Input((3,))
        head = keras.layers.Dense(2, name=name)
        models.append(keras.Model(x, head(trunk(x)), name=f"model_{name}"))
    variables = list({id(v): v for m in models for v in m.trainable_variables}.values())
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    for model in models:
        xla = {"jit_compile": False} if hosts.IS_KERAS3 else {}
        model.compile(optimizer, "mse", **xla)
        initialize(model)
    return models, variables


@pytest.mark.skipif(
    hosts.BACKEND == "jax", reason="Keras on JAX can't train only some of an optimizer's variables"
)
@pytest.mark.parametrize("order", ["ab", "ba", "aab", "abb"])
def test_two_models_with_a_head_each(order):
    """Trained in turns within one window, they equal the big batch of both losses."""
    ours = hosts.ours("Adam", learning_rate=2**-5, accum_iters=len(order))
    models, variables = heads(ours)
    stock = hosts.stock("Adam", learning_rate=2**-5)
    copies, copied = heads(stock)
    x, y = data()
    for window in range(3):
        gradients = {}
        for head in order:
            i = NAMES.index(head)
            xs, ys = x[window * MICRO :][:MICRO], y[window * MICRO :][:MICRO]
            for v, g in gradients_of(copies[i], xs, ys):
                gradients[id(v)] = gradients.get(id(v), 0) + g / len(order)
            models[i].train_on_batch(xs, ys)
        hosts.apply(stock, [gradients[id(v)] for v in copied], copied)
        ours_now, stock_now = (dict(enumerate(map(hosts.array, vs))) for vs in (variables, copied))
        assert_equal(ours_now, stock_now)
        assert_nothing_pending(ours)


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


# -- frozen layers -------------------------------------------------------------------------------


def momentum():
    return hosts.ours("SGD", learning_rate=0.125, momentum=0.9, accum_iters=LENGTH)


def with_weight_decay():
    return hosts.ours("AdamW", learning_rate=2**-6, accum_iters=LENGTH)


OPTIMIZERS = {"momentum": momentum}
if "adamw" in CASES:
    OPTIMIZERS["AdamW"] = with_weight_decay
every_style = quick_first("optimizer", OPTIMIZERS)


def frozen_layer(model):
    return model.layers[0 if hosts.IS_TORCH else -2]


def frozen_in(optimizer, micro_batches, further=2, **fit_arguments):
    """Train a model, freeze a layer after `micro_batches`, and train on `further` micro-batches."""
    model = compiled(dense_model(), optimizer)
    go_on(model, stop=micro_batches)
    before = weights(model)
    frozen_layer(model).trainable = False
    xla = {"jit_compile": False} if hosts.IS_KERAS3 else {}
    model.compile(model.optimizer, "mse", **xla)
    x, y = (array[micro_batches * MICRO :][: further * MICRO] for array in data())
    model.fit(x, y, batch_size=MICRO, shuffle=False, verbose=0, **fit_arguments)
    return model, before


def assert_only_the_rest_moved(model, before):
    after = weights(model)
    for name, value in before.items():
        moved = np.abs(after[name] - value).max()
        assert moved == 0 if "hidden" in name else moved > 0, name


freezes = pytest.mark.skipif(
    hosts.BACKEND == "jax", reason="Keras on JAX can't train only some of an optimizer's variables"
)


@freezes
@every_style
def test_a_layer_that_is_frozen_between_windows_does_not_move(optimizer):
    """Not even the momentum of earlier windows moves it."""
    optimizer = optimizer()
    callback = hosts.accum.ApplyPartialWindow()
    model, before = frozen_in(optimizer, LENGTH, callbacks=[callback])
    assert (optimizer.completed_updates, optimizer.window_position) == (2, 0)
    assert_only_the_rest_moved(model, before)


@freezes
@every_style
@pytest.mark.parametrize("closing", ["micro-batch", "partial", "python"])
def test_a_layer_that_is_frozen_in_a_window_does_not_move(optimizer, closing):
    """Its pending sum is dropped, however the window closes."""
    optimizer = optimizer()
    callbacks = [hosts.accum.PythonGate()] if closing == "python" else []
    further = 1 if closing == "partial" else 2
    model, before = frozen_in(optimizer, LENGTH - 2, further, callbacks=callbacks)
    if closing == "partial":
        assert optimizer.window_position == LENGTH - 1
        optimizer.apply_partial_window()
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)
    assert_nothing_pending(optimizer)
    assert_only_the_rest_moved(model, before)


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@every_style
@pytest.mark.parametrize("gate", [{}, LATE], ids=["micro_batch", "window"])
def test_a_layer_that_is_frozen_under_a_strategy(optimizer, gate, strategy, monkeypatch):
    monkeypatch.setattr(hosts, "GATE", gate)
    with strategy.scope():
        optimizer = optimizer()
        model, before = frozen_in(optimizer, LENGTH - 2)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)
    assert_nothing_pending(optimizer)
    assert_only_the_rest_moved(model, before)


@thorough
@freezes
@every_style
def test_a_layer_that_is_frozen_in_mixed_precision(optimizer):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = optimizer()
        model, before = frozen_in(optimizer, LENGTH - 2)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert hasattr(model.optimizer, "inner_optimizer")
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)
    assert_nothing_pending(optimizer)
    assert_only_the_rest_moved(model, before)


@freezes
@every_style
def test_the_layers_that_train_on_get_the_big_batch(optimizer):
    """The reference takes the gradients of the whole window for them, and none for the other."""
    ours = optimizer()
    model, before = frozen_in(ours, LENGTH - 2)
    stock = type(ours.to_stock()).from_config(ours.to_stock().get_config())
    reference = initialize(dense_model())
    gradients = gradients_of(reference, *(array[: LENGTH * MICRO] for array in data()))
    out = [(g, v) for v, g in gradients if "out" in (v.path if hosts.IS_KERAS3 else v.name)]
    hosts.apply(stock, *zip(*out))
    assert_equal(weights(model), weights(reference))


@freezes
def test_a_frozen_layer_that_trains_again_starts_without_a_sum():
    """Nothing is left over from the window in which the layer was frozen."""
    model, _ = frozen_in(momentum(), LENGTH - 2)
    optimizer = model.optimizer
    frozen_layer(model).trainable = True
    compile_again = {"jit_compile": False} if hosts.IS_KERAS3 else {}
    model.compile(optimizer, "mse", **compile_again)
    reference = initialize(dense_model())
    reference.set_weights(model.get_weights())
    go_on(model, LENGTH, 2 * LENGTH)
    found = gradients_of(reference, *(a[LENGTH * MICRO : 2 * LENGTH * MICRO] for a in data()))
    hidden = {v.path if hosts.IS_KERAS3 else v.name: (v, g) for v, g in found}
    for name, (v, g) in hidden.items():
        if "hidden" in name:  # its momentum has rested at zero
            expected = hosts.array(v) - 0.125 * g
            np.testing.assert_allclose(weights(model)[name], expected, **hosts.TOLERANCE)


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
    model = compiled(dense_model(), momentum())
    optimizer, before = model.optimizer, weights(model)
    go_on(model, stop=LENGTH - 2)
    model.trainable = False
    optimizer.apply_partial_window()
    assert optimizer.window_position == 0
    assert_nothing_pending(optimizer)
    for name, value in weights(model).items():
        np.testing.assert_array_equal(value, before[name])


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


def test_a_state_without_missing_gradients_means_that_none_is_missing():
    """Files of 0.1.0 have no such entry."""
    second = gradients()[4]
    optimizer, variables = in_a_window(second[:2])
    state = optimizer.get_state()
    del state["missing_gradients"]
    optimizer.set_state(state)
    assert "missing_gradients" not in optimizer.get_state()


# -- variables that are added later ----------------------------------------------------------------


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the optimizers of tf_keras")
@pytest.mark.parametrize("is_built", [True, False])
def test_a_layer_that_is_unfrozen_in_a_window(is_built):
    """It is updated if the optimizer was built for it, and otherwise refused with this remedy."""
    optimizer = hosts.ours("SGD", learning_rate=0.125, accum_iters=LENGTH)
    model = dense_model()
    if is_built:
        optimizer.build(model.trainable_variables)
    model.layers[-2].trainable = False
    compiled(model, optimizer)
    go_on(model, stop=LENGTH - 1)
    before = weights(model)
    model.layers[-2].trainable = True
    model.compile(optimizer, "mse")
    if not is_built:
        with pytest.raises(ValueError, match=r"others: hidden/kernel.*`optimizer\.build\("):
            go_on(model, start=LENGTH - 1, stop=LENGTH)
        return
    go_on(model, start=LENGTH - 1, stop=LENGTH)
    after = weights(model)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in before)
    assert_nothing_pending(optimizer)
