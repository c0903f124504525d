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
    scale = random.uniform(0.5, 3, (samples, *[1] * len(shape)))
    x = random.normal(2, 1, (samples, *shape)) * scale
    y = random.uniform(1, 2, (samples, 2))
    return x.astype(hosts.FLOATX), y.astype(hosts.FLOATX)


def masked_data():
    x, y = data(shape=(5, 3))
    for i in range(len(x)):
        x[i, 1 + i % 5 :] = 0
    return x, y


def with_a_bad_micro_batch():
    bad = 2 * MICRO
    return [np.insert(a, bad, np.full((MICRO, a.shape[1]), np.nan), axis=0) for a in data()]


def norm(**arguments):
    return layers.BatchNormalization(**{"momentum": 0.75, "name": "norm", **arguments})


def dense(**arguments):
    """Normalizes the data, so that the moments of the layer don't depend on other layers."""
    hosts.set_random_seed()
    return hosts.sequential((3,), [norm(**arguments), layers.Dense(2, name="out")])


def channels_first():
    arrays = [norm(axis=1), layers.Flatten(), layers.Dense(2, name="out")]
    return hosts.sequential((3, 4, 2), arrays)


def masked():
    found = [layers.Masking(0.0), norm(), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    return hosts.sequential((5, 3), found)


def ours(**arguments):
    return hosts.ours("SGD", **{**RATE, "accum_iters": LENGTH, **arguments})


def compiled(model, optimizer=None, **arguments):
    """Compile as the other tests do, but keep the weights: a variance is positive."""
    start = model.get_weights()
    training.compiled(model, optimizer or ours(), **arguments)
    model.set_weights(start)
    return model


def swapped(build=dense):
    return accum.with_window_statistics(build())


def go_on(model, arrays, *others, epochs=1):
    fit(model, MICRO, arrays, callbacks=[accum.WindowStatistics(), *others], epochs=epochs)
    return model


def stock(build=dense, arrays=None, size=BIG):
    model = compiled(build(), hosts.stock("SGD", **RATE))
    fit(model, size, data() if arrays is None else arrays, epochs=2)
    return model


def statistics(model, name="norm"):
    layer = model.get_layer(name)
    found = {"mean": layer.moving_mean, "variance": layer.moving_variance}
    return {key: hosts.array(value) for key, value in found.items()}


def window(model):
    layer = model.get_layer("norm")
    return [hosts.array(v) for v in (layer.window_count, layer.window_mean, layer.window_variance)]


def same(actual, expected):
    assert_equal(statistics(actual), statistics(expected), rtol=2e-6, atol=1e-6)
    start = statistics(dense())
    moved = [np.abs(value - start[name]).max() for name, value in statistics(expected).items()]
    assert min(moved) > 0.1


# The model, arrays, arguments of the optimizer, names of other callbacks.
ROWS = {
    "select": (dense, data(), {}, []),
    "masks": (masked, masked_data(), {}, []),
    "axis": (channels_first, data(shape=(3, 4, 2)), {}, []),
    "no gamma": (lambda: dense(center=False, scale=False), data(), {}, []),
    "conditional": (dense, data(), {"gate": "conditional"}, []),
    "reduction": (dense, data(), {"reduction": "sum"}, []),
    "a short micro-batch and a partial window": (
        dense,
        data(more=MICRO + 1),
        {"reduction": "weighted"},
        ["MicroBatchWeights", "ApplyPartialWindow"],
    ),
    "gate": (dense, data(), {}, ["PythonGate"]),
    "gate and monitor": (dense, data(), {}, ["PythonGate", "AccumulationMonitor"]),
}


@quick_first("build, arrays, arguments, others", ROWS)
def test_the_statistics_are_those_of_the_big_batch(build, arrays, arguments, others):
    model = compiled(swapped(build), ours(**arguments))
    go_on(model, arrays, *[getattr(accum, name)() for name in others], epochs=2)
    same(model, stock(build, arrays))
    assert not any(value.any() for value in window(model))


def test_a_dropped_micro_batch_is_dropped_from_the_statistics():
    model = compiled(swapped(), ours(skip_nonfinite=True))
    same(go_on(model, with_a_bad_micro_batch(), epochs=2), stock())


class Watch(keras.callbacks.Callback):
    """Keeps the statistics after each micro-batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(statistics(self.model))


@thorough
def test_inside_a_window_nothing_moves():
    """The second window begins in one epoch and ends in the next one."""
    arrays, watch = [array[: 6 * MICRO] for array in data()], Watch()
    go_on(compiled(swapped()), arrays, watch, epochs=2)
    other = compiled(dense(), hosts.stock("SGD", **RATE))
    expected, twice = [statistics(other)], [np.concatenate([array] * 2) for array in arrays]
    for start in range(0, len(twice[0]), BIG):
        other.train_on_batch(*[array[start : start + BIG] for array in twice])
        expected.append(statistics(other))
    assert len(watch.seen) == 12
    for i, seen in enumerate(watch.seen):
        assert_equal(seen, expected[(i + 1) // LENGTH], rtol=2e-6, atol=1e-6)


def test_accum_iters_1_is_the_stock_layer():
    model = compiled(swapped(), ours(accum_iters=1), run_eagerly=False)
    other = compiled(dense(), hosts.stock("SGD", **RATE), run_eagerly=False)
    fit(other, MICRO, data(), epochs=1)
    assert_equal(statistics(go_on(model, data())), statistics(other), rtol=0, atol=0)


def test_a_file_continues_in_the_middle_of_a_window(tmp_path):
    first, last = [[a[part] for a in data()] for part in (np.s_[: 6 * MICRO], np.s_[6 * MICRO :])]
    whole, part = (go_on(compiled(swapped()), first) for _ in range(2))
    part.save(tmp_path / "model.keras")
    loaded = go_on(keras.models.load_model(tmp_path / "model.keras"), last)
    for actual, expected in zip(loaded.weights, go_on(whole, last).weights, strict=True):
        np.testing.assert_array_equal(hosts.array(actual), hosts.array(expected))


def test_compiled_again_in_the_middle_of_a_window():
    """The moments of the window that is given up are dropped, as its gradients are."""
    x, y = [array[:MICRO] for array in data()]
    model = go_on(compiled(swapped()), (x + 9, y))
    assert window(model)[0].any()
    before = statistics(model)
    given_up = model.optimizer
    model.compile(ours(), "mse")
    go_on(model, (x, y))
    assert_equal(statistics(model), before)
    assert set(window(model)[0]) == {MICRO}
    go_on(model, (x, y))
    for optimizer in given_up, model.optimizer:
        assert len(optimizer._accumulation.closing_watchers) == 1
        optimizer.apply_partial_window()
        assert (statistics(model)["mean"] != before["mean"]).all() == (optimizer is not given_up)


@thorough
def test_mixed_precision():
    """A micro-batch that LossScaleOptimizer skips is dropped from the statistics."""
    wrapper = keras.optimizers.LossScaleOptimizer
    keras.config.set_dtype_policy("mixed_float16")
    model, other = (
        compiled(build(), wrapper(optimizer, initial_scale=2.0**4))
        for build, optimizer in ((swapped, ours()), (dense, hosts.stock("SGD", **RATE)))
    )
    keras.config.set_dtype_policy(hosts.FLOATX)
    go_on(model, with_a_bad_micro_batch(), epochs=2)
    fit(other, BIG, data(), epochs=2)
    assert model.optimizer.inner_optimizer.completed_updates == 6
    same(model, other)


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
def test_replicas(strategy):
    """Each replica has the statistics of what it saw, and those of the first replica are saved."""
    x, y = data()
    with strategy.scope():
        model = compiled(swapped())
    go_on(model, (x, y), accum.ApplyPartialWindow(), epochs=2)
    seen = np.arange(len(x)).reshape(-1, 2, MICRO // 2)[:, 0].ravel()
    same(model, stock(arrays=(x[seen], y[seen]), size=BIG // 2))


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about TensorFlow's graphs")
def test_no_conditional():
    model, callback = compiled(swapped(), ours(gate="select")), accum.WindowStatistics()
    fit(model, MICRO, [array[:MICRO] for array in data()], callbacks=[callback], epochs=1)
    step = callback.around(model.train_step)
    assert not conditionals(operations(lambda *batch: step(batch), *data(1)))


# -- swapping --------------------------------------------------------------------------------------


def branched():
    """A functional model, with a Sequential model as a layer that is used twice."""
    inside = keras.Sequential([keras.Input((3,)), norm(name="inside"), layers.Dense(3)])
    x = keras.Input((3,))
    both = layers.Add()([inside(x), inside(norm(trainable=False)(x))])
    return keras.Model(x, layers.Dense(2, name="out")(layers.Dropout(0.0)(both)))


def test_a_functional_model_with_a_model_inside():
    source, (x, y) = compiled(branched(), "sgd"), data()
    fit(source, BIG, (x, y))
    copy = accum.with_window_statistics(source)
    kinds = [type(layer).__name__ for layer in copy._flatten_layers()]
    assert kinds.count("WindowBatchNormalization") == 2 and "BatchNormalization" not in kinds
    assert_equal({"y": copy.predict(x, verbose=0)}, {"y": source.predict(x, verbose=0)})
    before, inside = statistics(copy), copy._flatten_layers()
    (inside,) = [layer for layer in inside if layer.name == "inside"]
    mean = hosts.array(inside.moving_mean)
    go_on(compiled(copy), (x, y))
    assert_equal(statistics(copy), before, rtol=0, atol=0)  # frozen
    assert (np.abs(hosts.array(inside.moving_mean) - mean) > 1e-3).all()


@thorough
def test_the_layer_sees_a_step_twice():
    """A layer that is used twice in a train step pools both."""

    def build():
        x, layer = keras.Input((3,)), norm()
        both = layers.Concatenate()([layer(x), layer(x * 2)])
        return keras.Model(x, layers.Dense(2, name="out")(both))

    model = go_on(compiled(swapped(build)), data(), epochs=2)
    mean, variance = np.zeros(3), np.ones(3)
    for part in np.split(np.concatenate([data()[0]] * 2), 6):
        seen = np.concatenate([part, 2 * part])
        mean, variance = 0.75 * mean + 0.25 * seen.mean(0), 0.75 * variance + 0.25 * seen.var(0)
    assert_equal(statistics(model), {"mean": mean, "variance": variance}, rtol=2e-6, atol=1e-6)


# -- what is refused -------------------------------------------------------------------------------


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
    """Also after a training with it."""
    refused = pytest.raises(ValueError, match="trains only with the callback WindowStatistics")
    with refused:
        fit(compiled(swapped()), MICRO, data())
    with refused:
        go_on(compiled(swapped()), data()).train_on_batch(*data(1))


class Closes(keras.Sequential):
    """Closes a window in its train step."""

    def train_step(self, *arguments):
        self.optimizer.close_window()
        return super().train_step(*arguments)


@quick_first("skips", [True, False])
def test_close_window(skips, recwarn):
    """Windows of one micro-batch, and without a warning of batch normalization."""
    found = [keras.Input((3,)), accum.WindowBatchNormalization(momentum=0.75, name="norm")]
    model = compiled(Closes([*found, layers.Dense(2)]), ours(skip_nonfinite=skips))
    arrays = with_a_bad_micro_batch() if skips else data()
    same(go_on(model, arrays, epochs=2), stock(size=MICRO))
    assert not [one for one in recwarn if "Batch normalization" in str(one.message)]


def test_trainings_that_are_refused():
    with pytest.raises(ValueError, match="needs a model with layers WindowBatchNormalization"):
        go_on(compiled(dense()), data())
    with pytest.raises(TypeError, match="WindowStatistics needs a model that is compiled with an"):
        go_on(compiled(swapped(), hosts.stock("SGD")), data())
    with pytest.raises(ValueError, match="can't be used with MicroBatches"):
        go_on(compiled(swapped()), data(), accum.MicroBatches(1))
