"""On TensorFlow, the switch chooses the variables of an update: their order, and what is written.

`tf.function` doesn't order what is done through chosen handles. Every gradient here is a factor
times a weight, and one graph has several steps: a step that reads an old weight gets another
number.
"""

import hosts
import numpy as np
import pytest
from cases import skip_file_on_keras2
from graphs import conditionals, operations
from training import Shrink, assert_equal

skip_file_on_keras2("tf.function")
if not hosts.IS_TENSORFLOW:
    pytest.skip("about TensorFlow graphs, which other backends don't have", allow_module_level=True)

tf, keras = hosts.tf, hosts.keras
LENGTH, WINDOWS = 2, 3
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}
ALL = [[True] * len(SHAPES)] * LENGTH
OPTIMIZERS = {
    "fused": ("Adam", {"learning_rate": 0.125}),
    "stock": ("RMSprop", {"learning_rate": 0.125, "momentum": 0.9, "centered": True}),
}
on_each = pytest.mark.parametrize("kind", OPTIMIZERS)
FACTORS = tf.TensorSpec([len(SHAPES)], hosts.FLOATX)


@pytest.fixture(autouse=True)
def small_variables_are_chosen(monkeypatch):
    monkeypatch.setattr("keras_accum.tensorflow.port.LARGE", 0)


def made(make, kind, ws=None, constraint=None, count=None, **arguments):
    """Return an optimizer, ours or a stock one, and its variables."""
    name, given = OPTIMIZERS[kind]
    optimizer = make(name, **{**given, **arguments})
    if ws is None:
        values = [np.linspace(0.5, 1, int(np.prod(s))).reshape(s) for s in SHAPES.values()]
        pairs = list(zip(SHAPES, values))[:count]
        ws = [hosts.variable(value, name, constraint=constraint) for name, value in pairs]
    if hosts.HAS_EMA:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    hosts.build_on(optimizer, ws)
    return optimizer, ws


def ours(kind, **arguments):
    return made(hosts.ours, kind, accum_iters=LENGTH, **arguments)


def factors(seed=0):
    """The factors of all micro-batches."""
    shape = LENGTH * WINDOWS, len(SHAPES)
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(hosts.FLOATX)


def apply(optimizer, factor, ws, present=ALL[0], is_sparse=False):
    gradients = [factor[i] * tf.convert_to_tensor(hosts.native(w)) for i, w in enumerate(ws)]
    if is_sparse:  # each row is there twice
        rows = tf.constant([0, 1, 2, 3] * 2)
        gradients[0] = tf.IndexedSlices(tf.concat([gradients[0] / 2] * 2, 0), rows, (4, 3))
    pairs = zip(gradients, ws, present)
    optimizer.apply_gradients([(g, w) for g, w, is_present in pairs if is_present])


def arrays(ws):
    return {name: np.array(hosts.array(w)) for name, w in zip(SHAPES, ws)}


def trained_by_stock(kind, values=None, present=ALL, **arguments):
    """Return the weights after updates of the stock optimizer with the averages of windows."""
    optimizer, ws = made(hosts.stock, kind, **arguments)
    values = factors() if values is None else values
    for window in values.reshape(WINDOWS, LENGTH, len(SHAPES)):
        apply(optimizer, (window * present).mean(0), ws)
    return arrays(ws)


# -- what an update may have -----------------------------------------------------------------------


def doubled(averages, variables):
    """A user's function gets whole averages on each micro-batch."""
    assert [tuple(average.shape) for average in averages] == list(SHAPES.values())
    return [2 * average for average in averages]


# Arguments of both optimizers, of ours alone, and of `apply`.
ROWS = {
    "plain": ({}, {}, {}),
    "clipnorm": ({"clipnorm": 0.1}, {}, {}),
    "constraint": ({"constraint": keras.constraints.NonNeg()}, {}, {}),
    "maximum": ({"constraint": keras.constraints.MaxNorm(0.9, axis=0), "count": 2}, {}, {}),
    "constraint of a user": ({"constraint": Shrink()}, {}, {}),
    "doubled": ({}, {"window_transforms": [doubled]}, {}),
    "NaN": ({}, {"skip_nonfinite": True}, {}),
    "sparse": ({}, {}, {"is_sparse": True}),
    "missing": ({}, {}, {"present": [[True, False, False], [False, True, True]]}),
}
if hosts.HAS_EMA:
    average = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    ROWS.update({"weight decay": ({"weight_decay": 0.2}, {}, {}), "average": (average, {}, {})})


@on_each
@pytest.mark.parametrize("row", ROWS)
def test_many_steps_in_one_graph(kind, row):
    both, of_ours, of_apply = ROWS[row]
    optimizer, ws = ours(kind, **both, **of_ours)
    present = of_apply.get("present", ALL)
    values = list(factors())
    if "skip_nonfinite" in of_ours:
        values.insert(1, np.full_like(values[0], np.nan))

    @tf.function
    def train():
        for number, factor in enumerate(values):
            apply(optimizer, factor, ws, **{**of_apply, "present": present[number % LENGTH]})

    train()
    times = 2 if "window_transforms" in of_ours else 1
    assert_equal(arrays(ws), trained_by_stock(kind, times * factors(), present, **both))


def in_a_loop(optimizer, ws, values):
    @tf.function
    def train(values):
        for several in values:  # AutoGraph makes a tf.while_loop
            for factor in tf.unstack(several):
                apply(optimizer, factor, ws)

    train(tf.reshape(values, [LENGTH, WINDOWS, -1]))  # an update is inside of a round


def eagerly_and_in_a_graph(optimizer, ws, values):
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    for number, factor in enumerate(tf.unstack(values)):
        step(factor) if number % 3 else apply(optimizer, factor, ws)


@on_each
@pytest.mark.parametrize("train", [in_a_loop, eagerly_and_in_a_graph])
def test_many_steps(kind, train):
    optimizer, ws = ours(kind)
    train(optimizer, ws, tf.constant(factors()))
    assert_equal(arrays(ws), trained_by_stock(kind))


@on_each
def test_two_optimizers_of_the_same_variables(kind):
    """The second optimizer gets gradients of the weights that the first one has just written."""
    first, ws = ours(kind)
    second, _ = ours("fused", ws=ws)

    @tf.function
    def train():
        for factor, other in zip(factors(), factors(1)):
            apply(first, factor, ws)
            apply(second, other, ws)

    train()
    stock, expected = made(hosts.stock, kind)
    other, _ = made(hosts.stock, "fused", ws=expected)
    shape = WINDOWS, LENGTH, len(SHAPES)
    for window, of_other in zip(factors().reshape(shape), factors(1).reshape(shape)):
        before = [tf.identity(hosts.native(w)) for w in expected]
        apply(stock, window.mean(0), expected)
        now = [tf.identity(hosts.native(w)) for w in expected]
        sums = [of_other[0][i] * before[i] + of_other[1][i] * now[i] for i in range(len(SHAPES))]
        other.apply_gradients([(total / LENGTH, w) for total, w in zip(sums, expected)])
    assert_equal(arrays(ws), arrays(expected))


# -- when something fails, and when a step is saved ------------------------------------------------


@on_each
def test_an_error_in_an_update(kind):
    """The optimizer and the weights are as before, and the next step is right."""
    fails = []

    class Fails(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, update):
            if fails:
                raise ArithmeticError("no rate")
            return tf.constant(0.125, hosts.FLOATX)

    optimizer, ws = ours(kind, learning_rate=Fails())
    natives = list(map(hosts.native, ws))
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    fails.append(True)
    with pytest.raises(Exception, match="no rate"):  # of a class that AutoGraph makes
        step(tf.constant(factors()[0]))
    assert all(hosts.native(w) is native for w, native in zip(ws, natives))
    fails.clear()
    for factor in factors():
        step(tf.constant(factor))
    assert_equal(arrays(ws), trained_by_stock(kind))


@on_each
def test_a_step_that_is_exported(kind, tmp_path):
    """A train step goes on in a SavedModel, and returns weights that it has read after updates."""

    class Trained(tf.Module):
        def __init__(self):
            self.optimizer, self.weights = ours(kind)

        @tf.function(input_signature=[FACTORS])
        def step(self, factor):
            apply(self.optimizer, factor, self.weights)
            return [tf.identity(hosts.native(w)) for w in self.weights]

    trained, values = Trained(), factors()
    trained.step(tf.constant(values[0]))
    tf.saved_model.save(trained, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for factor in values[1:]:
        read = loaded.step(tf.constant(factor))
    found = {name: r.numpy() for name, r in zip(SHAPES, read)}
    assert_equal(found, trained_by_stock(kind))


# -- the graph -------------------------------------------------------------------------------------


def graph_of(optimizer, ws, **arguments):
    step = tf.function(lambda factor: apply(optimizer, factor, ws), **arguments)
    return step.get_concrete_function(FACTORS).graph


def chooses(graph):
    gathers = [op for op in graph.get_operations() if op.type == "GatherV2"]
    return any(op.inputs[0].dtype == tf.resource for op in gathers)


@on_each
def test_nothing_but_sums_is_written_inside_a_window(kind):
    """All other arrays are written through chosen handles, and there is no conditional."""
    optimizer, ws = ours(kind)
    assert not conditionals(operations(lambda factor: apply(optimizer, factor, ws), FACTORS))
    graph = graph_of(optimizer, ws)
    assert chooses(graph)
    captured = {id(inner): outer for outer, inner in graph.captures}
    written = [
        captured.get(id(tensor))
        for op in graph.get_operations()
        if op.type.startswith(("Assign", "ResourceApply", "ResourceScatter"))
        for tensor in op.inputs
        if tensor.dtype == tf.resource
    ]
    assert any(handle is None for handle in written)  # a chosen handle
    sums = [hosts.native(total) for total in hosts.accumulators(optimizer)]
    for variable in map(hosts.native, [*hosts.listed(optimizer), *ws]):
        is_written = any(variable.handle is handle for handle in written)
        assert not (is_written and len(variable.shape)) or any(variable is s for s in sums)


@pytest.mark.parametrize("why", ["jit_compile", "constraint", "a user's class", "Adafactor"])
def test_where_variables_are_not_chosen(why):
    # Anybody's code may need the shapes of weights.
    stock = type("OfAUser", (type(hosts.stock("Adam")),), {})
    classes = {"a user's class": stock, "Adafactor": keras.optimizers.Adafactor}
    make = hosts.ours
    if why in classes:
        cls = hosts.accum.accumulating(classes[why])
        make = lambda name, **arguments: cls(**arguments)  # noqa: E731
    constraint = Shrink() if why == "constraint" else None
    optimizer, ws = made(make, "fused", constraint=constraint, accum_iters=LENGTH)
    arguments = {"jit_compile": True} if why == "jit_compile" else {}
    assert not chooses(graph_of(optimizer, ws, **arguments))
