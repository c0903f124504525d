"""On TensorFlow, the switch chooses the variables of an update: their order, and what is written.

`tf.function` doesn't order what is done through chosen handles, so these steps read the weights
after an update, compute gradients of new weights, or fail inside of an update. Every gradient is a
factor times a weight: a step that reads an old weight gets another number.
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
# The hosts whose default gate chooses variables in a graph on CPUs.
CHOOSES = hosts.IS_KERAS3 or hosts.IS_TF_KERAS
LENGTH, WINDOWS = 2, 3
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}
OPTIMIZERS = {
    "fused": ("Adam", {"learning_rate": 0.125}),
    "stock": ("RMSprop", {"learning_rate": 0.125, "momentum": 0.9, "centered": True}),
}
on_each = pytest.mark.parametrize("kind", OPTIMIZERS)


@pytest.fixture(autouse=True)
def small_variables_are_chosen(monkeypatch):
    if hosts.IS_TENSORFLOW:
        monkeypatch.setattr("keras_accum.tensorflow.port.LARGE", 0)


def made(kind, **arguments):
    name, given = OPTIMIZERS[kind]
    return hosts.ours(name, accum_iters=LENGTH, **given, **arguments)


def weights(constraint=None):
    values = {name: np.linspace(0.5, 1, int(np.prod(s))).reshape(s) for name, s in SHAPES.items()}
    return [hosts.variable(v, name, constraint=constraint) for name, v in values.items()]


def factors(seed=0):
    """The factors of all micro-batches."""
    random = np.random.default_rng(seed)
    found = [random.uniform(0.5, 1.5, len(SHAPES)) for _ in range(LENGTH * WINDOWS)]
    return np.asarray(found, hosts.FLOATX)


def gradients(factor, ws):
    return [factor[i] * tf.convert_to_tensor(hosts.native(w)) for i, w in enumerate(ws)]


def apply(optimizer, factor, ws):
    optimizer.apply_gradients(list(zip(gradients(factor, ws), ws)))


def trained_by_stock(kind, values=None, constraint=None, **arguments):
    """Return the weights after updates of the stock optimizer with the averages of windows."""
    name, given = OPTIMIZERS[kind]
    optimizer, ws = hosts.stock(name, **given, **arguments), weights(constraint)
    if hosts.HAS_EMA:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    hosts.build_on(optimizer, ws)
    values = factors() if values is None else values
    for window in values.reshape(WINDOWS, -1, len(SHAPES)):
        apply(optimizer, window.mean(0), ws)
    return arrays(ws)


def arrays(ws):
    return {name: np.array(hosts.array(w)) for name, w in zip(SHAPES, ws)}


def built(optimizer, ws):
    if hosts.HAS_EMA:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    hosts.build_on(optimizer, ws)
    return optimizer


# -- the order of what comes later -----------------------------------------------------------------


@on_each
def test_weights_are_read_after_the_update(kind):
    ws = weights()
    optimizer = built(made(kind), ws)

    @tf.function
    def step(factor):
        apply(optimizer, factor, ws)
        return [tf.identity(hosts.native(w)) for w in ws]

    for number, factor in enumerate(factors(), 1):
        before, read = arrays(ws), step(tf.constant(factor))
        assert_equal({name: r.numpy() for name, r in zip(SHAPES, read)}, arrays(ws), rtol=0)
        moved = [bool(np.any(before[name] != now)) for name, now in arrays(ws).items()]
        assert moved == [number % LENGTH == 0] * len(SHAPES)
    assert_equal(arrays(ws), trained_by_stock(kind))


def in_a_while_loop(optimizer, ws, values):
    @tf.function
    def train(values):
        for factor in values:  # AutoGraph makes a tf.while_loop
            apply(optimizer, factor, ws)

    train(values)


def unrolled(optimizer, ws, values):
    @tf.function
    def train(values):
        for factor in tf.unstack(values):
            apply(optimizer, factor, ws)

    train(values)


def eagerly_and_in_a_graph(optimizer, ws, values):
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    for number, factor in enumerate(tf.unstack(values)):
        if number % 3:
            step(factor)
        else:
            apply(optimizer, factor, ws)


@on_each
@pytest.mark.parametrize("train", [in_a_while_loop, unrolled, eagerly_and_in_a_graph])
def test_many_steps(kind, train):
    ws = weights()
    train(built(made(kind), ws), ws, tf.constant(factors()))
    assert_equal(arrays(ws), trained_by_stock(kind))


@on_each
def test_steps_per_execution(kind):
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(12, n)).astype(hosts.FLOATX) for n in (3, 2))

    def trained(optimizer, size, steps):
        hosts.set_random_seed()
        model = hosts.sequential((3,), [keras.layers.Dense(4), keras.layers.Dense(2)])
        model.compile(optimizer, hosts.mean_squared_error(), steps_per_execution=steps)
        model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
        return dict(enumerate(model.get_weights()))

    name, given = OPTIMIZERS[kind]
    expected = trained(hosts.stock(name, **given), 4, 1)
    assert_equal(trained(made(kind), 4 // LENGTH, 3), expected)


@on_each
def test_two_optimizers_of_the_same_variables(kind):
    """The second optimizer gets gradients of the weights that the first one has just written."""
    ws, first, second = weights(), made(kind), made("fused")
    for optimizer in (first, second):
        hosts.build_on(optimizer, ws)

    @tf.function
    def step(factor, other):
        apply(first, factor, ws)
        apply(second, other, ws)

    for factor, other in zip(factors(), factors(1)):
        step(tf.constant(factor), tf.constant(other))

    stock, expected = [], weights()
    for name, given in (OPTIMIZERS[kind], OPTIMIZERS["fused"]):
        stock.append(hosts.stock(name, **given))
        hosts.build_on(stock[-1], expected)
    shape = WINDOWS, LENGTH, len(SHAPES)
    for factor, other in zip(factors().reshape(shape), factors(1).reshape(shape)):
        inside = [gradients(each, expected) for each in other[:-1]]
        apply(stock[0], factor.mean(0), expected)
        of_window = zip(*inside, gradients(other[-1], expected))
        averages = [tf.add_n(each) / LENGTH for each in of_window]
        stock[1].apply_gradients(list(zip(averages, expected)))
    assert_equal(arrays(ws), arrays(expected))


@on_each
def test_two_optimizers_of_one_model(kind):
    ws, optimizers = weights(), [made(kind), made("fused")]
    parts = [ws[:1], ws[1:]]
    for optimizer, part in zip(optimizers, parts):
        hosts.build_on(optimizer, part)

    @tf.function
    def step(factor):
        pairs = list(zip(gradients(factor, ws), ws))
        optimizers[0].apply_gradients(pairs[:1])
        optimizers[1].apply_gradients(pairs[1:])

    for factor in factors():
        step(tf.constant(factor))
    expected = {**trained_by_stock("fused"), "kernel": trained_by_stock(kind)["kernel"]}
    assert_equal(arrays(ws), expected)


# -- what an update may have -----------------------------------------------------------------------

OPTIONS = {"clipnorm": {"clipnorm": 0.1}, "constraint": {"constraint": keras.constraints.NonNeg()}}
OPTIONS["maximum"] = {"constraint": keras.constraints.MaxNorm(0.9, axis=0)}
OPTIONS["constraint of a user"] = {"constraint": Shrink()}
if hosts.HAS_EMA:
    OPTIONS["weight decay"] = {"weight_decay": 0.2}
    OPTIONS["average"] = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}


@on_each
@pytest.mark.parametrize("option", OPTIONS)
def test_option(kind, option):
    arguments = dict(OPTIONS[option])
    constraint = arguments.pop("constraint", None)
    ws = weights(constraint)
    if option == "maximum":
        ws = ws[:2]  # a scalar has no axis
    optimizer = built(made(kind, **arguments), ws)
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    for factor in factors():
        step(tf.constant(factor))
    name, given = OPTIMIZERS[kind]
    stock, expected = hosts.stock(name, **given, **arguments), weights(constraint)[: len(ws)]
    built(stock, expected)
    for window in factors().reshape(WINDOWS, LENGTH, len(SHAPES)):
        apply(stock, window.mean(0), expected)
    assert_equal(arrays(ws), arrays(expected))


@on_each
def test_window_transforms(kind):
    """A user's function gets whole averages on each micro-batch."""
    ws, shapes = weights(), []

    def double(averages, variables):
        shapes.append([tuple(average.shape) for average in averages])
        return [2 * average for average in averages]

    optimizer = built(made(kind, window_transforms=[double]), ws)
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    for factor in factors():
        step(tf.constant(factor))
    assert set(map(tuple, shapes)) == {tuple(SHAPES.values())}
    assert_equal(arrays(ws), trained_by_stock(kind, 2 * factors()))


@on_each
def test_nan_inside_a_window(kind):
    """A NaN is skipped; without `skip_nonfinite` it spoils the update of its window, no earlier."""
    ws, spoiled = weights(), weights()
    skips, spoils = built(made(kind, skip_nonfinite=True), ws), built(made(kind), spoiled)
    skipping = tf.function(lambda factor: apply(skips, factor, ws))
    spoiling = tf.function(lambda factor: apply(spoils, factor, spoiled))
    values = list(factors())
    values.insert(1, np.full_like(values[0], np.nan))
    for factor in values:
        skipping(tf.constant(factor))
    assert_equal(arrays(ws), trained_by_stock(kind))
    spoiling(tf.constant(values[1]))
    assert_equal(arrays(spoiled), arrays(weights()), rtol=0)
    spoiling(tf.constant(values[0]))
    assert all(np.isnan(value).all() for value in arrays(spoiled).values())


@on_each
def test_sparse_gradients_of_a_variable_that_is_used_twice(kind):
    ids = tf.constant([[0, 2, 2], [1, 0, 2]])
    name, given = OPTIMIZERS[kind]

    def gradient(factor, w):
        with tf.GradientTape() as tape:
            table = hosts.native(w)
            rows = [tf.nn.embedding_lookup(table, row) for row in tf.unstack(ids)]
            loss = factor[0] * tf.reduce_sum(rows[0] * rows[1])
        return tape.gradient(loss, table)

    ws = weights()[:1]
    optimizer = built(made(kind), ws)

    @tf.function
    def step(factor):
        optimizer.apply_gradients([(gradient(factor, ws[0]), ws[0])])

    assert isinstance(gradient(tf.constant(factors()[0]), ws[0]), tf.IndexedSlices)
    for factor in factors():
        step(tf.constant(factor))
    stock, expected = hosts.stock(name, **given), weights()[:1]
    hosts.build_on(stock, expected)
    for window in factors().reshape(WINDOWS, LENGTH, len(SHAPES)):
        average = tf.convert_to_tensor(gradient(tf.constant(window.mean(0)), expected[0]))
        stock.apply_gradients([(average, expected[0])])
    assert_equal(arrays(ws), arrays(expected))


@on_each
def test_missing_gradients(kind):
    """Each variable lacks its gradient in one of the two micro-batches."""
    ws = weights()
    optimizer, values = built(made(kind), ws), factors()

    @tf.function
    def step(factor, is_first):
        pairs = list(zip(gradients(factor, ws), ws))
        optimizer.apply_gradients(pairs[:1] if is_first else pairs[1:])

    for number, factor in enumerate(values):
        step(tf.constant(factor), number % LENGTH == 0)
        values[number] *= np.arange(len(SHAPES)) < 1 if number % LENGTH == 0 else [0, 1, 1]
    assert_equal(arrays(ws), trained_by_stock(kind, values))


# -- when something fails, and when a step is saved ------------------------------------------------


@on_each
def test_an_error_in_an_update(kind):
    """The optimizer and the weights are as before, and the next step is right."""

    class Fails(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, update):
            if fails:
                raise ArithmeticError("no rate")
            return tf.constant(0.125, hosts.FLOATX)

        def get_config(self):
            return {}

    name, given = OPTIMIZERS[kind]
    ws, fails = weights(), False  # some optimizers ask for a rate when they are made
    natives, given = [hosts.native(w) for w in ws], {**given, "learning_rate": Fails()}
    optimizer = built(hosts.ours(name, accum_iters=LENGTH, **given), ws)
    fails = True
    with pytest.raises(Exception, match="no rate"):  # of a class that AutoGraph makes
        tf.function(lambda factor: apply(optimizer, factor, ws))(tf.constant(factors()[0]))
    assert all(hosts.native(w) is native for w, native in zip(ws, natives))
    fails = False
    step = tf.function(lambda factor: apply(optimizer, factor, ws))
    for factor in factors():
        step(tf.constant(factor))
    assert_equal(arrays(ws), trained_by_stock(kind))


@on_each
def test_a_step_that_is_exported(kind, tmp_path):
    """A train step goes on in a SavedModel from the middle of a window."""

    class Trained(tf.Module):
        def __init__(self):
            self.weights, self.optimizer = weights(), made(kind)
            hosts.build_on(self.optimizer, self.weights)

        @tf.function(input_signature=[tf.TensorSpec([len(SHAPES)], hosts.FLOATX)])
        def step(self, factor):
            apply(self.optimizer, factor, self.weights)
            return [tf.identity(hosts.native(w)) for w in self.weights]

    trained, values = Trained(), factors()
    trained.step(tf.constant(values[0]))
    tf.saved_model.save(trained, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for factor in values[1:]:
        read = loaded.step(tf.constant(factor))
    expected = trained_by_stock(kind)
    assert_equal({name: r.numpy() for name, r in zip(SHAPES, read)}, expected)


# -- the graph -------------------------------------------------------------------------------------


def concrete(optimizer, ws, **arguments):
    step = tf.function(lambda factor: apply(optimizer, factor, ws), **arguments)
    return step.get_concrete_function(tf.TensorSpec([len(SHAPES)], hosts.FLOATX))


def chooses(graph):
    gathers = [op for op in graph.get_operations() if op.type == "GatherV2"]
    return any(op.inputs[0].dtype == tf.resource for op in gathers)


@on_each
def test_nothing_but_sums_and_scalars_is_written_inside_a_window(kind):
    """All other writes go through chosen handles, and there is no conditional."""
    ws = weights()
    optimizer = built(made(kind), ws)
    function = concrete(optimizer, ws)
    given = tf.TensorSpec([len(SHAPES)], hosts.FLOATX)
    assert not conditionals(operations(lambda factor: apply(optimizer, factor, ws), given))
    if not CHOOSES:
        return
    assert chooses(function.graph)
    sums = [hosts.native(total) for total in hosts.accumulators(optimizer)]
    may_be_written = [total.handle for total in sums]
    written = []
    for op in function.graph.get_operations():
        if op.type.startswith(("Assign", "ResourceApply", "ResourceScatter")):
            written += [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
    captured = {id(inner): outer for outer, inner in function.graph.captures}
    direct = [captured[id(tensor)] for tensor in written if id(tensor) in captured]
    assert len(direct) < len(written)  # some writes are through chosen handles
    arrays_written = [
        variable
        for variable in hosts.listed(optimizer) + ws
        if len(variable.shape) and any(hosts.native(variable).handle is h for h in direct)
    ]
    for variable in arrays_written:
        handle = hosts.native(variable).handle
        assert any(handle is other for other in may_be_written), variable.name


def of_a_user():
    class OfAUser(type(hosts.stock("Adam"))):
        """Anybody's code may need the shapes of weights."""

    return hosts.accum.accumulating(OfAUser)(accum_iters=LENGTH)


@pytest.mark.skipif(not CHOOSES, reason="the default gate of this host chooses no variables")
@pytest.mark.parametrize("why", ["jit_compile", "constraint", "of_a_user", "Adafactor"])
def test_where_variables_are_not_chosen(why):
    ws = weights(Shrink() if why == "constraint" else None)
    optimizer = made("fused")
    if why == "of_a_user":
        optimizer = of_a_user()
    if why == "Adafactor":
        optimizer = hosts.accum.accumulating(keras.optimizers.Adafactor)(accum_iters=LENGTH)
    hosts.build_on(optimizer, ws)
    arguments = {"jit_compile": True} if why == "jit_compile" else {}
    assert not chooses(concrete(optimizer, ws, **arguments).graph)
