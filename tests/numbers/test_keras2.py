"""Standalone Keras 2 on TensorFlow 1, whose graphs have no order of their own."""


import hosts
import numpy as np
import pytest
from cases import CASES, on_adam, on_adam_and_amsgrad
from graphs import CONTROL_FLOW, operations_of_session, races
from hosts import accum, keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    Shrink,
    assert_equal,
    assert_moved,
    batches,
    compiled,
    data,
    dense_model,
    slots,
    weights,
)

if not hosts.IS_KERAS2:
    pytest.skip("about graphs of standalone Keras 2 on TensorFlow 1", allow_module_level=True)

K, tf = keras.backend, hosts.tf
SLOW = 2**-7  # a small rate, so that float32 errors are those of sums and not of signs


# -- the order of a step -----------------------------------------------------------------------

INPUTS, WIDTH, STEPS = 16, 96, 12
BUILDS = 8


def big_data(dtype):
    random = np.random.RandomState(7)
    x = random.uniform(-1, 1, (STEPS * MICRO, INPUTS)).astype(dtype)
    return x, random.uniform(1, 2, (STEPS * MICRO, 2)).astype(dtype)


def big_weights():
    random = np.random.RandomState(8)
    shapes = [(INPUTS, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 2), (2,)]
    return [random.uniform(-0.2, 0.2, shape) for shape in shapes]


def replay():
    """Compute Adam on big batches in NumPy with float64."""
    x, y = big_data("float64")
    w = big_weights()
    m, v = ([np.zeros_like(some) for some in w] for _ in range(2))
    for t in range(1, STEPS // LENGTH + 1):
        xs, ys = x[(t - 1) * BIG : t * BIG], y[(t - 1) * BIG : t * BIG]
        one = np.tanh(xs @ w[0] + w[1])
        two = np.tanh(one @ w[2] + w[3])
        error = 2 * (two @ w[4] + w[5] - ys) / ys.size
        back_two = error @ w[4].T * (1 - two**2)
        back_one = back_two @ w[2].T * (1 - one**2)
        inputs, errors = (xs, one, two), (back_one, back_two, error)
        grads = [g for a, e in zip(inputs, errors) for g in (a.T @ e, e.sum(0))]
        rate = SLOW * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for i, g in enumerate(grads):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g * g
            w[i] = w[i] - rate * m[i] / (np.sqrt(v[i]) + 1e-7)
    return w


def trained_on_big_data(optimizer, batch_size):
    K.clear_session()
    layer = keras.layers.Dense
    x = keras.layers.Input((INPUTS,))
    y = layer(2)(layer(WIDTH, activation="tanh")(layer(WIDTH, activation="tanh")(x)))
    model = keras.models.Model(x, y)
    model.set_weights(big_weights())
    model.compile(optimizer(), "mse")
    for xs, ys in batches(batch_size, big_data(K.floatx())):
        model.train_on_batch(xs, ys)
    return model


KINDS = ["references", "resources"] if keras.__version__ < "2.3" else ["resources"]


@pytest.fixture(params=[kind == "resources" for kind in KINDS], ids=KINDS)
def resources(request):
    """Run on both kinds of TensorFlow 1 variables. Keras 2.3 knows resources only."""
    if request.param:
        tf.enable_resource_variables()
    yield request.param
    tf.disable_resource_variables()


TOLERANCES = {"float32": 1e-6, "float64": 1e-12}


@pytest.mark.parametrize(
    ("floatx", "gate"),
    [("float32", "select"), ("float64", "select"), ("float64", "conditional")],
)
def test_every_build_equals_the_big_batch(floatx, gate, resources):
    hosts.set_floatx(floatx)
    expected = replay()
    assert_moved(dict(enumerate(big_weights())), dict(enumerate(expected)), by=SLOW)
    ours = {"learning_rate": SLOW, "accum_iters": LENGTH, "gate": gate}
    for _ in range(BUILDS):
        model = trained_on_big_data(lambda: hosts.ours("Adam", **ours), MICRO)
        for actual, w in zip(model.get_weights(), expected):
            np.testing.assert_allclose(actual, w, rtol=0, atol=TOLERANCES[floatx])


def test_the_reference_of_all_tests_is_ordered():
    expected = replay()
    for _ in range(BUILDS):
        model = trained_on_big_data(lambda: hosts.stock("Adam", learning_rate=SLOW), BIG)
        for actual, w in zip(model.get_weights(), expected):
            np.testing.assert_allclose(actual, w, rtol=0, atol=1e-12)


@on_adam_and_amsgrad
@pytest.mark.parametrize("length", [1, LENGTH])
def test_nothing_is_read_while_it_is_written(case, length, resources):
    arguments = {"accum_iters": length, "clipnorm": 0.3, "decay": 0.25, "skip_nonfinite": True}
    regularizer = keras.regularizers.l2(0.1)
    model = dense_model(kernel_constraint=Shrink(), kernel_regularizer=regularizer)
    assert races(compiled(model, hosts.ours(case.name, **{**case.arguments, **arguments}))) == []


def test_the_stock_adam_reads_while_it_writes():
    assert races(compiled(dense_model(), keras.optimizers.Adam()))


# -- the graph ---------------------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "clipnorm": {"clipnorm": 0.3},
    "clipvalue": {"clipvalue": 0.1},
    "decay": {"decay": 0.25},
    "skip_nonfinite": {"skip_nonfinite": True},
    "accum_iters_1": {"accum_iters": 1, "clipnorm": 0.3, "gate": "conditional"},
}


@on_adam_and_amsgrad
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_conditional(case, options):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **options})
    layers = [keras.layers.Embedding(6, 3), keras.layers.Dense(2, kernel_constraint=Shrink())]
    model = hosts.sequential((5,), layers)
    model.compile(optimizer, "mse")
    model._make_train_function()
    optimizer.window_position  # noqa: B018, a read adds to the graph
    assert not operations_of_session() & CONTROL_FLOW


@on_adam_and_amsgrad
def test_one_conditional_for_all_variables(case):
    """In TensorFlow 1, every output of a conditional has a Merge. Here only its end has one."""
    arguments = {"clipnorm": 0.3, "skip_nonfinite": True, "gate": "conditional"}
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **arguments)
    compiled(dense_model(), optimizer)._make_train_function()
    graph = K.get_session().graph.as_graph_def()
    assert sum(node.op in ("Merge", "RefMerge") for node in graph.node) == 1


def test_the_stock_clipnorm_has_a_conditional():
    model = compiled(dense_model(), hosts.stock("Adam", clipnorm=0.3))
    model._make_train_function()
    assert operations_of_session() & CONTROL_FLOW


KERNELS = {"sgd": "ApplyGradientDescent", "nesterov": "ApplyMomentum", "adam": "ApplyAdam"}


@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernel(name, resources):
    case = CASES[name]
    compiled(dense_model(), hosts.ours(case.name, **case.arguments))._make_train_function()
    prefix = "Resource" if resources else ""
    assert prefix + KERNELS[name] in operations_of_session()


# -- models ------------------------------------------------------------------------------------


@on_adam
def test_one_optimizer_in_two_models(case):
    """In turn, then in the first again: slots are each model's own, and the counter is shared."""

    def trained(optimizer, size):
        models = [compiled(dense_model(), optimizer) for _ in range(2)]
        for model in (*models, models[0]):
            for x, y in batches(size):
                model.train_on_batch(x, y)
        return [weights(model) for model in models], slots(models[1])

    expected, expected_slots = trained(hosts.stock(case.name, **case.arguments), BIG)
    optimizer = hosts.ours(case.name, **case.arguments, accum_iters=LENGTH)
    actual, actual_slots = trained(optimizer, MICRO)
    for some, others in zip(actual, expected):
        assert_equal(some, others)
    assert_equal(actual_slots, expected_slots)
    assert optimizer.completed_updates == 3 * len(batches(BIG))


class Idle(keras.layers.Layer):
    def build(self, shape):
        self.idle = self.add_weight(name="idle", shape=(2,), initializer="ones")
        super().build(shape)

    def call(self, x):
        return x


@on_adam_and_amsgrad
def test_a_missing_gradient_is_an_error_as_in_the_stock_optimizer(case):
    said = []
    for optimizer in (hosts.stock(case.name), hosts.ours(case.name, accum_iters=2)):
        model = compiled(hosts.sequential((3,), [Idle(), keras.layers.Dense(2)]), optimizer)
        with pytest.raises(ValueError) as error:
            model.train_on_batch(*data())
        said.append(str(error.value))
    assert said[0] == said[1] and "`None` for gradient" in said[0]


def test_generator_closes_the_last_window_of_an_epoch():
    """Twelve micro-batches: windows of 5, 5 and 2; the last one closes before the validation."""

    def trained(optimizer, size, callbacks):
        model = compiled(dense_model(), optimizer)
        history = model.fit_generator(
            iter(batches(size) * 2),
            len(batches(size)),
            epochs=2,
            callbacks=callbacks,
            validation_data=data(),
            shuffle=False,
            verbose=0,
        )
        return weights(model), history.history["val_loss"]

    callback = accum.ApplyPartialWindow()
    actual, losses = trained(hosts.ours("SGD", accum_iters=5), MICRO, [callback])
    expected, stock_losses = trained(hosts.stock("SGD"), 5 * MICRO, [])
    assert_equal(actual, expected)
    np.testing.assert_allclose(losses, stock_losses, rtol=1e-9)


# -- arguments ---------------------------------------------------------------------------------


def test_clipnorm_is_global():
    """It is global as in Keras 2's stock optimizer, and also has its name in other versions."""
    for name in ("clipnorm", "global_clipnorm"):
        optimizer = hosts.ours("Adam", **{name: 0.5})
        assert optimizer.clipnorm == 0.5
        config = optimizer.get_config()
        assert config["global_clipnorm"] == 0.5 and "clipnorm" not in config
        assert type(optimizer).from_config(config).clipnorm == 0.5
        assert optimizer.to_stock().clipnorm == 0.5
    assert not hasattr(hosts.ours("Adam", clipnorm=None), "clipnorm")


def test_reduction_weighted_is_refused():
    with pytest.raises(ValueError, match="reduction='weighted'.*'sum'"):
        hosts.ours("Adam", accum_iters=2, reduction="weighted")
