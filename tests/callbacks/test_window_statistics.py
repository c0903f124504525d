"""Batch normalization whose moving statistics are those of the big batch."""

import hosts
import numpy as np
import pytest
import training
from cases import quick_first, quick_once, thorough
from hosts import keras
from training import LENGTH, MICRO, assert_equal, fit

pytestmark = quick_once

if not hosts.IS_KERAS3:
    pytest.skip("WindowBatchNormalization is for Keras 3", allow_module_level=True)

if hosts.IS_TENSORFLOW:
    from graphs import conditionals, operations

accum, layers = hosts.accum, keras.layers
BIG = LENGTH * MICRO
RATE = {"learning_rate": 2**-4}


def data(windows=3, shape=(3,), more=0):
    """Inputs whose mean and scale differ from micro-batch to micro-batch."""
    random = np.random.default_rng(3)
    samples = windows * BIG + more
    x = random.normal(2, 1, (samples, *shape)) * random.uniform(
        0.5, 3, (samples, *[1] * len(shape))
    )
    y = random.uniform(1, 2, (samples, 2))
    return x.astype(hosts.FLOATX), y.astype(hosts.FLOATX)


def norm(**arguments):
    return layers.BatchNormalization(**{"momentum": 0.75, "name": "norm", **arguments})


def dense(**arguments):
    """Normalizes the data, so that the moments of the layer don't depend on other layers."""
    hosts.set_random_seed()
    return hosts.sequential((3,), [norm(**arguments), layers.Dense(2, name="out")])


def ours(**arguments):
    return hosts.ours("SGD", **{**RATE, "accum_iters": LENGTH, **arguments})


def compiled(model, optimizer, **arguments):
    """Compile as the other tests do, but keep the weights: a variance is positive."""
    start = model.get_weights()
    training.compiled(model, optimizer, **arguments)
    model.set_weights(start)
    return model


def swapped(build=dense):
    return accum.with_window_statistics(build())


def statistics(model, name="norm"):
    layer = model.get_layer(name)
    found = {"mean": layer.moving_mean, "variance": layer.moving_variance}
    return {key: hosts.array(value) for key, value in found.items()}


def window(model, name="norm"):
    layer = model.get_layer(name)
    return [hosts.array(v) for v in (layer.window_count, layer.window_mean, layer.window_variance)]


def trained(build=dense, arrays=None, callbacks=(), size=MICRO, **arguments):
    model = compiled(swapped(build), ours(**arguments))
    arrays = data() if arrays is None else arrays
    fit(model, size, arrays, callbacks=[accum.WindowStatistics(), *callbacks], epochs=2)
    return model


def stock(build=dense, arrays=None, size=BIG):
    model = compiled(build(), hosts.stock("SGD", **RATE))
    fit(model, size, data() if arrays is None else arrays, epochs=2)
    return model


def same(actual, expected):
    assert_equal(statistics(actual), statistics(expected), rtol=2e-6, atol=1e-6)
    start = statistics(dense())
    assert all(
        np.abs(value - start[name]).max() > 0.1 for name, value in statistics(expected).items()
    )


@quick_first(
    "arguments",
    {"select": {}, "conditional": {"gate": "conditional"}, "reduction": {"reduction": "sum"}},
)
def test_the_statistics_are_those_of_the_big_batch(arguments):
    model = trained(**arguments)
    same(model, stock())
    assert [not value.any() for value in window(model)] == [True] * 3


def channels_first():
    arrays = [norm(axis=1), layers.Flatten(), layers.Dense(2, name="out")]
    return hosts.sequential((3, 4, 2), arrays)


def masked():
    found = [layers.Masking(0.0), norm(), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    return hosts.sequential((5, 3), found)


def masked_data():
    x, y = data(shape=(5, 3))
    for i in range(len(x)):
        x[i, 1 + i % 5 :] = 0
    return x, y


@quick_first(
    "build, arrays",
    {
        "masks": (masked, masked_data()),
        "axis": (channels_first, data(shape=(3, 4, 2))),
        "no gamma": (lambda: dense(center=False, scale=False), data()),
    },
)
def test_elements_are_counted(build, arrays):
    """Each channel by itself, and only what isn't masked."""
    same(trained(build, arrays), stock(build, arrays))


def test_a_short_micro_batch_and_a_partial_window():
    arrays = data(more=MICRO + 1)
    callbacks = [accum.MicroBatchWeights(), accum.ApplyPartialWindow()]
    model = trained(arrays=arrays, callbacks=callbacks, reduction="weighted")
    same(model, stock(arrays=arrays))


@thorough
def test_a_window_of_one_micro_batch():
    """Not by the code of accum_iters=1."""
    same(trained(accum_iters=accum.AccumulationSchedule({0: 1, 100: 2})), stock(size=MICRO))


@thorough
@pytest.mark.parametrize("others", [["PythonGate"], ["PythonGate", "AccumulationMonitor"]])
def test_with_other_callbacks(others):
    same(trained(callbacks=[getattr(accum, name)() for name in others]), stock())


@thorough
@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras refuses it on PyTorch")
def test_several_micro_batches_in_a_call():
    model = swapped()
    compiled(model, ours(), steps_per_execution=3)
    fit(model, MICRO, data(), callbacks=[accum.WindowStatistics()], epochs=2)
    same(model, stock())


class Watch(keras.callbacks.Callback):
    """Keeps the statistics after each micro-batch, and before each validation."""

    def __init__(self):
        super().__init__()
        self.seen, self.at_tests = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(statistics(self.model))

    def on_test_begin(self, logs=None):
        self.at_tests.append(statistics(self.model))


@thorough
def test_inside_a_window_nothing_moves():
    watch = Watch()
    trained(callbacks=[watch])
    for first in range(0, len(watch.seen) - LENGTH, LENGTH):
        inside = watch.seen[first : first + LENGTH]
        for seen in inside[1:-1]:
            assert_equal(seen, inside[0], rtol=0, atol=0)
        assert any((inside[-1][name] != inside[0][name]).all() for name in inside[0]) or first == 0


@thorough
def test_validation_in_the_middle_of_a_window():
    """The window goes on in the next epoch; validation sees the statistics of the last update."""
    x, y = data(2)
    six, watch = 6 * MICRO, Watch()
    model = compiled(swapped(), ours())
    callbacks = [accum.WindowStatistics(), watch]
    arguments = {"validation_data": (x, y), "epochs": 2}
    fit(model, MICRO, (x[:six], y[:six]), callbacks=callbacks, **arguments)
    other = compiled(dense(), hosts.stock("SGD", **RATE))
    x, y = (np.concatenate([array[:six]] * 2) for array in (x, y))
    expected = []
    for start in range(0, 2 * six, BIG):
        other.train_on_batch(x[start : start + BIG], y[start : start + BIG])
        expected.append(statistics(other))
    for seen, due in zip(watch.at_tests, [expected[0], expected[2]], strict=True):
        assert_equal(seen, due, rtol=2e-6, atol=1e-6)


def test_accum_iters_1_is_the_stock_layer():
    model, other = (
        compiled(build(), optimizer, run_eagerly=False)
        for build, optimizer in (
            (swapped, ours(accum_iters=1)),
            (dense, hosts.stock("SGD", **RATE)),
        )
    )
    fit(model, MICRO, data(), callbacks=[accum.WindowStatistics()])
    fit(other, MICRO, data())
    assert_equal(statistics(model), statistics(other), rtol=0, atol=0)


def test_a_dropped_micro_batch_is_dropped_from_the_statistics():
    x, y = data()
    bad = 2 * MICRO
    more = [np.insert(a, bad, np.full((MICRO, a.shape[1]), np.nan), axis=0) for a in (x, y)]
    model = compiled(swapped(), ours(skip_nonfinite=True))
    fit(model, MICRO, more, callbacks=[accum.WindowStatistics()], epochs=2)
    same(model, stock())


@thorough
def test_fit_does_not_warn_of_the_layer(recwarn):
    trained(accum_iters=accum.AccumulationSchedule({0: 1, 2: 2}))
    assert not [one for one in recwarn if "Batch normalization" in str(one.message)]


@thorough
def test_the_caller_closes_a_window():
    """Between train steps: the statistics move at once."""
    model = trained(arrays=data(1, more=MICRO))
    before = statistics(model)
    model.optimizer.apply_partial_window()
    assert (statistics(model)["mean"] != before["mean"]).all()
    assert not any(value.any() for value in window(model))


def test_a_file_continues_in_the_middle_of_a_window(tmp_path):
    x, y = data(3)
    six = 6 * MICRO

    def go_on(model, first, last):
        callbacks = [accum.WindowStatistics()]
        fit(model, MICRO, (x[first:last], y[first:last]), callbacks=callbacks, epochs=1)
        return model

    whole = compiled(swapped(), ours())
    go_on(go_on(whole, 0, six), six, len(x))
    part = go_on(compiled(swapped(), ours()), 0, six)
    part.save(tmp_path / "model.keras")
    loaded = go_on(keras.models.load_model(tmp_path / "model.keras"), six, len(x))
    for actual, expected in zip(loaded.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(hosts.array(actual), hosts.array(expected))


def test_compiled_again_in_the_middle_of_a_window():
    """The moments of the window that is given up are dropped, as its gradients are."""
    x, y = data()
    model, callbacks = compiled(swapped(), ours()), [accum.WindowStatistics()]
    fit(model, MICRO, (x[:MICRO] + 9, y[:MICRO]), callbacks=callbacks, epochs=1)
    assert window(model)[0].any()
    before = statistics(model)
    model.compile(ours(), "mse")
    fit(model, MICRO, (x[:MICRO], y[:MICRO]), callbacks=callbacks, epochs=1)
    assert_equal(statistics(model), before)
    assert set(window(model)[0]) == {MICRO}


@thorough
def test_mixed_precision():
    """A micro-batch that LossScaleOptimizer skips is dropped from the statistics."""
    x, y = data()
    bad = [np.insert(a, 2 * MICRO, np.full((MICRO, a.shape[1]), np.nan), axis=0) for a in (x, y)]
    wrapper = keras.optimizers.LossScaleOptimizer
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(swapped(), wrapper(ours(), initial_scale=2.0**4))
        other = compiled(dense(), wrapper(hosts.stock("SGD", **RATE), initial_scale=2.0**4))
    finally:
        keras.config.set_dtype_policy(hosts.FLOATX)
    fit(model, MICRO, bad, callbacks=[accum.WindowStatistics()], epochs=2)
    fit(other, BIG, (x, y), epochs=2)
    assert model.optimizer.completed_updates == 6
    same(model, other)


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
def test_replicas(strategy):
    """Each replica has the statistics of what it saw, and those of the first replica are saved."""
    x, y = data()
    with strategy.scope():
        model = compiled(swapped(), ours())
    callbacks = [accum.WindowStatistics(), accum.ApplyPartialWindow()]
    fit(model, MICRO, (x, y), callbacks=callbacks, epochs=2)
    seen = np.arange(len(x)).reshape(-1, 2, MICRO // 2)[:, 0].ravel()
    other = compiled(dense(), hosts.stock("SGD", **RATE))
    fit(other, BIG // 2, (x[seen], y[seen]), epochs=2)
    same(model, other)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about TensorFlow's graphs")
def test_no_conditional():
    model, callback = compiled(swapped(), ours()), accum.WindowStatistics()
    fit(model, MICRO, [array[:MICRO] for array in data()], callbacks=[callback], epochs=1)
    step = callback.around(model.train_step)
    assert not conditionals(operations(lambda *batch: step(batch), *data(1)))


# -- swapping ------------------------------------------------------------------------------------


def branched():
    """A functional model, with a Sequential model as a layer that is used twice."""
    inside = keras.Sequential([keras.Input((3,)), norm(name="inside"), layers.Dense(3)])
    x = keras.Input((3,))
    both = layers.Add()([inside(x), inside(norm(trainable=False)(x))])
    return keras.Model(x, layers.Dense(2, name="out")(layers.Dropout(0.0)(both)))


def test_a_functional_model_with_a_model_inside():
    source = compiled(branched(), "sgd")
    x, y = data()
    fit(source, BIG, (x, y))
    copy = accum.with_window_statistics(source)
    kinds = [type(layer).__name__ for layer in copy._flatten_layers()]
    assert kinds.count("WindowBatchNormalization") == 2 and "BatchNormalization" not in kinds
    assert_equal({"y": copy.predict(x, verbose=0)}, {"y": source.predict(x, verbose=0)})
    assert not copy.get_layer("norm").trainable
    compiled(copy, ours())
    before = statistics(copy)
    fit(copy, MICRO, (x, y), callbacks=[accum.WindowStatistics()])
    assert_equal(statistics(copy), before, rtol=0, atol=0)  # frozen
    means = [
        hosts.array(layer.moving_mean)
        for model in (copy, source)
        for layer in model._flatten_layers()
        if layer.name == "inside"
    ]
    assert (np.abs(means[0] - means[1]) > 1e-3).all()


@thorough
def test_the_layer_sees_a_step_twice():
    """A layer that is used twice in a train step pools both."""

    def build():
        x, layer = keras.Input((3,)), norm()
        both = layers.Concatenate()([layer(x), layer(x * 2)])
        return keras.Model(x, layers.Dense(2, name="out")(both))

    model = trained(build)
    x, _ = data()
    mean, variance = np.zeros(3), np.ones(3)
    for part in np.split(np.concatenate([x, x]), 6):
        seen = np.concatenate([part, 2 * part])
        mean, variance = (
            0.75 * old + 0.25 * new for old, new in ((mean, seen.mean(0)), (variance, seen.var(0)))
        )
    assert_equal(statistics(model), {"mean": mean, "variance": variance}, rtol=2e-6, atol=1e-6)


# -- what is refused -----------------------------------------------------------------------------


@keras.utils.register_keras_serializable("tests")
class Own(layers.BatchNormalization):
    pass


@keras.utils.register_keras_serializable("tests")
class Holds(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = norm()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=None):
        return self.norm(x, training=training)


@pytest.mark.parametrize("left", [Own, Holds])
def test_batch_normalization_that_is_left(left):
    with pytest.raises(ValueError, match="can't be swapped.*Received: layers"):
        accum.with_window_statistics(hosts.sequential((3,), [left()]))


def test_arguments_of_the_layer():
    with pytest.raises(ValueError, match="`renorm` must be False.*Received: renorm=True"):
        accum.WindowBatchNormalization(renorm=True)
    if hosts.IS_TENSORFLOW:
        with pytest.raises(ValueError, match="`synchronized` must be False"):
            accum.with_window_statistics(dense(synchronized=True))


def test_without_the_callback():
    model = compiled(swapped(), ours())
    for _ in range(2):
        with pytest.raises(ValueError, match="trains only with the callback WindowStatistics"):
            fit(model, MICRO, data())
        model = compiled(swapped(), ours())  # on JAX, an error empties the model
        fit(model, MICRO, data(), callbacks=[accum.WindowStatistics()])
    with pytest.raises(ValueError, match="trains only with the callback WindowStatistics"):
        model.train_on_batch(*data(1))


def callback_on(model, optimizer=None, before=()):
    compiled(model, optimizer or ours())
    fit(model, MICRO, data(), callbacks=[*before, accum.WindowStatistics()])


class Closes(keras.Sequential):
    """Closes a window in its train step."""

    def train_step(self, *arguments):
        self.optimizer.close_window()
        return super().train_step(*arguments)


@quick_first("skips", [True, False])
def test_close_window(skips):
    """Refused where the counters don't say whether the micro-batch was dropped."""
    found = [keras.Input((3,)), accum.WindowBatchNormalization(momentum=0.75, name="norm")]
    model = compiled(Closes([*found, layers.Dense(2)]), ours(skip_nonfinite=skips))
    if skips:
        with pytest.raises(ValueError, match="`close_window` and skip_nonfinite"):
            callback_on(model, model.optimizer)
    else:
        fit(model, MICRO, data(), callbacks=[accum.WindowStatistics()], epochs=2)
        same(model, stock(size=MICRO))


def test_trainings_that_are_refused():
    with pytest.raises(ValueError, match="needs a model with layers WindowBatchNormalization"):
        callback_on(dense())
    model = swapped()
    with pytest.raises(TypeError, match="WindowStatistics needs a model that is compiled with an"):
        callback_on(model, hosts.stock("SGD"))
    with pytest.raises(ValueError, match="can't be used with MicroBatches"):
        callback_on(model, before=[accum.MicroBatches(1)])
