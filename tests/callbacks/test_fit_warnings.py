"""`fit` warns once of what makes a window differ from the big batch, and of nothing else.

What it says of losses is in test_right_by_default.py.
"""

import functools
import warnings

import hosts
import numpy as np
import pytest
import zoo
from cases import once_by_torch, quick_once_on_keras3, skip_file_on_keras2
from hosts import keras
from training import assert_equal, compiled, dense_model, fit, our_warnings, weights

# On Keras 3 they run with PyTorch, where nothing is compiled, and a row of each kind in TensorFlow,
# as `nox` alone runs.
pytestmark = pytest.mark.once_by("tensorflow", "torch")

skip_file_on_keras2("a CallbackList that knows the model")

SIZE, LENGTH = 4, 3
layers, close = keras.layers, hosts.accum.ApplyPartialWindow

STOCK = "SGDAccumulate(accum_iters=5), or give accum_iters=1 if you mean it"
BATCHES = "or the states of `stateful=True`: normalizes"
MODULES = "a module of PyTorch by `eval()`"
METRIC = "update metrics with values of a slice"
OF_WINDOWS = "Layers keep values", "update metrics", "divided by", "is a mean over", "is a sum"
OF_WINDOWS += ("No window of this training",)


def sgd(**arguments):
    return hosts.ours("SGD", **{"learning_rate": 0.01, "accum_iters": LENGTH, **arguments})


def eager(model, optimizer, *loss):
    """Compiled to run without a trace, which would take longer than the training."""
    return compiled(model, optimizer, *loss, run_eagerly=True)


def said(model, data, size=SIZE, texts=OF_WINDOWS, **arguments):
    """What a training warns of, as a list of texts."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(model, size, data, **{"epochs": 2, **arguments})
    found = [warning for warning in found if any(t in str(warning.message) for t in texts)]
    assert all(not w.filename.startswith(str(hosts.PROJECT / "keras_accum")) for w in found)
    return [str(warning.message) for warning in found]


class At(keras.callbacks.Callback):
    """Calls a function of the model after the third batch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.function(self.model)


def stop(model):
    model.stop_training = True


class Inference(layers.Layer):
    """As in a pretrained network that a new head is put on."""

    def __init__(self):
        super().__init__()
        self.inner = layers.BatchNormalization()

    def call(self, x):
        return self.inner(x, training=False)

    def compute_output_shape(self, shape):
        return shape


def normalized(layer, **arguments):
    def model():
        return hosts.sequential((3,), [layers.Dense(4), layer(**arguments), layers.Dense(2)])

    return model


def batch_norm(**arguments):
    # With a name that shows in the warning, and without variables that train.
    settings = {"name": "normalizes", "center": False, "scale": False, **arguments}
    return normalized(layers.BatchNormalization, **settings)


def unbuilt():
    """Keras 2 builds it in its first batch, whose moments can't show that values have moved."""
    model = keras.Sequential([layers.Dense(4), layers.BatchNormalization(name="normalizes")])
    model.add(layers.Dense(2))
    return model


class Head(layers.Layer):
    """Makes its layer when it is built."""

    def build(self, shape):
        self.inner = layers.BatchNormalization(name="normalizes", center=False, scale=False)
        self.inner.build(shape)
        self.built = True

    def call(self, x):
        return self.inner(x)


def unbuilt_head():
    frozen = layers.BatchNormalization(trainable=False, name="frozen")
    return keras.Sequential([layers.Dense(4), Head(), frozen, layers.Dense(2)])


def stateful():
    x = layers.Input(batch_shape=(SIZE, 3, 1))
    return keras.Model(x, layers.Dense(2)(layers.LSTM(2, stateful=True, name="normalizes")(x)))


class Measuring(layers.Layer):
    """Has a metric with a mean over the batch, or over an axis, or one that counts calls."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis
        self.metric = (Calls if axis == "calls" else keras.metrics.Mean)(name="inner")

    def call(self, x):
        of_axis = [] if self.axis == "calls" else [keras.ops.mean(keras.ops.square(x), self.axis)]
        self.metric.update_state(*of_axis)
        return x


class Calls(keras.metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self):
        self.count.assign_add(1.0)

    def result(self):
        return self.count.value


def in_module(make):
    """A model with a module of PyTorch, frozen: its statistics move nevertheless."""

    def model():
        wrapped = layers.TorchModuleWrapper(make(), output_shape=(None, 3), trainable=False)
        return hosts.sequential((3,), [wrapped, layers.Dense(2)])

    return model


def torch_norm(of_batches=False):
    import torch

    return torch.nn.BatchNorm1d(3, affine=False, track_running_stats=not of_batches)


def nested_norm():
    import torch

    return torch.nn.Sequential(torch.nn.Identity(), torch_norm())


def group_norm():
    import torch

    return torch.nn.GroupNorm(1, 3, affine=False)


def inferring_norm():
    norm = torch_norm()
    norm.train = lambda mode=True: type(norm).train(norm, False)
    return norm


WHOLE, LESS = zoo.arrays(5 * SIZE), zoo.arrays(5 * SIZE - 2)


# What is warned of, the model, its data, and arguments of the optimizer and of `fit`.
ROWS = {
    "a short micro-batch": (None, dense_model, LESS, {}, {}),
    "a short one in a mean": (None, dense_model, LESS, {"reduction": "mean"}, {}),
    "a short validation": (None, dense_model, LESS, {}, {"validation_data": zoo.arrays(SIZE + 1)}),
    "stopped in an epoch": (None, dense_model, LESS, {}, {"callbacks": [At(stop)]}),
    "batch normalization": (BATCHES, batch_norm(), WHOLE, {}, {}),
    "batch normalization, sum": (BATCHES, batch_norm(), WHOLE, {"reduction": "sum"}, {}),
    "frozen": (None, batch_norm(trainable=False), WHOLE, {}, {}),
    "built in the first batch": (BATCHES, unbuilt, WHOLE, {}, {}),
    "a layer made in the first batch": (BATCHES + ". They", unbuilt_head, WHOLE, {}, {}),
    "inference": (None, normalized(Inference), WHOLE, {}, {}),
    "other normalization": (None, normalized(layers.LayerNormalization), WHOLE, {}, {}),
    "batches without windows": (None, batch_norm(), WHOLE, {"accum_iters": 1}, {}),
}
if not hosts.IS_TORCH:  # where Keras's own training fails
    ROWS["states"] = BATCHES, stateful, [WHOLE[0][..., None], WHOLE[1]], {}, {}
if hosts.IS_KERAS3:
    slices = {"callbacks": [hosts.accum.MicroBatches(2)]}
    of_batch = {"callbacks": [hosts.accum.MicroBatches(2, loss="batch")]}
    one_slice = {"callbacks": [hosts.accum.MicroBatches(SIZE)]}
    stock = {"accum_iters": 1}
    ROWS |= {
        "batch normalization in slices": (BATCHES, batch_norm(), WHOLE, stock, slices),
        "batch normalization in one slice": (None, batch_norm(), WHOLE, stock, one_slice),
        "inference in slices": (None, normalized(Inference), WHOLE, stock, slices),
        "slices": (None, dense_model, LESS, stock, slices),
    }
if hosts.IS_KERAS3 and hosts.BACKEND != "jax":  # where Keras has no metrics in layers
    ROWS |= {
        f"a metric in a layer, {name}": (expected, normalized(Measuring, axis=axis), WHOLE, *more)
        for name, expected, axis, *more in (
            ("of a slice", METRIC, None, stock, slices),
            ("of a slice, loss of the batch", METRIC, None, stock, of_batch),
            ("of samples", None, -1, stock, slices),
            ("of calls", METRIC, "calls", stock, slices),
            ("in one slice", None, None, stock, one_slice),
        )
    }
if hosts.IS_TORCH:
    ROWS |= {
        f"PyTorch, {name}": (expected, in_module(make), WHOLE, *more)
        for name, expected, make, *more in (
            ("windows", MODULES, torch_norm, {}, {}),
            ("inside of a module", MODULES, nested_norm, {}, {}),
            ("without averages", MODULES, functools.partial(torch_norm, of_batches=True), {}, {}),
            ("slices", MODULES, torch_norm, stock, slices),
            ("one slice", None, torch_norm, stock, one_slice),
            ("inference", None, inferring_norm, {}, {}),
            ("other normalization", None, group_norm, {}, {}),
        )
    }


def over(rows, also_on_tensorflow):
    return [
        pytest.param(row, id=name, marks=() if name in also_on_tensorflow else once_by_torch)
        for name, row in rows.items()
    ]


KINDS = "a short micro-batch", "batch normalization", "states"


@pytest.mark.parametrize("row", over(ROWS, KINDS))
def test_what_is_said_once(row):
    """Batch normalization, values that layers keep, and metrics of layers."""
    expected, build, data, options, arguments = row
    optimizer = sgd(**options)
    model = build()
    if model.built:
        model = eager(model, optimizer)
    else:
        model.compile(optimizer, "mse", run_eagerly=True)
    found = said(model, data, **arguments)
    assert len(found) == bool(expected) and (expected or "") in "".join(found)
    assert said(model, data, **arguments) == []


CLOSE = {"callbacks": [close()]}


def in_windows_of(accum_iters, **more):
    return eager(dense_model(), sgd(accum_iters=accum_iters, reduction="sum", **more))


def test_a_training_without_an_update_points_at_the_line_of_the_user():
    """Not at a line of ours or of Keras."""
    with pytest.warns(UserWarning, match="No window.*was whole: the last had 6 of 100") as found:
        in_windows_of(100).fit(*zoo.arrays(6 * SIZE), batch_size=SIZE, verbose=0)
    found = [warning for warning in found if warning.category is hosts.accum.AccumulationWarning]
    assert [warning.filename for warning in found] == [__file__]


@once_by_torch
def test_which_trainings_warn_of_no_update():
    """An optimizer's first that adds to the window and closes none, by its own updates."""

    def count(model, **arguments):
        settings = {"texts": ["No window"], "epochs": 1, **arguments}
        return len(said(model, zoo.arrays(6 * SIZE), **settings))

    model = in_windows_of(20)
    monitor = hosts.accum.AccumulationMonitor()
    assert [count(model, epochs=2), count(model, callbacks=[monitor]), count(model)] == [1, 0, 0]
    assert count(model, **CLOSE) == 0
    assert (count(in_windows_of(1)), count(in_windows_of(4))) == (0, 0)
    assert count(in_windows_of(100, skip_norm=1e-9)) == 0  # all are dropped
    other = in_windows_of(9)
    other.optimizer.build(other.trainable_variables)
    other.optimizer.set_state({**model.optimizer.get_state(), "window_length": 100})
    assert other.optimizer.completed_updates == 2
    assert count(other) == 1
    grows = hosts.accum.AccumulationSchedule({0: 1, 5: 100})  # its first windows are whole
    for accum_iters, expected in (100, 1), (grows, 0):
        model = eager(dense_model(), sgd(accum_iters=accum_iters, reduction="auto"))
        assert count(model, epochs=2) == expected
    assert (
        count(eager(dense_model(), hosts.loss_scaled(sgd(accum_iters=100, reduction="sum"), 4.0)))
        == 1
    )


PAIR, MAP = zoo.arrays(6 * SIZE), zoo.arrays(6 * SIZE, y=(9, 9, 2))
# True if it is warned of, and the loss.
LOSSES = {
    "of the last axis": (False, keras.losses.CosineSimilarity),
    "one number of the user": (True, lambda: zoo.mean_square),
}
if hosts.IS_KERAS3:
    LOSSES |= {
        "by name": (True, lambda: "dice"),
        "Dice of each sample": (False, lambda: keras.losses.Dice(axis=(1, 2, 3))),
    }


@once_by_torch
@pytest.mark.parametrize("is_said, loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_compares_samples(is_said, loss):
    last = [layers.Dense(162), layers.Reshape((9, 9, 2)), layers.Activation("sigmoid")]
    model = eager(hosts.sequential((3,), last), sgd(), loss())
    found = said(model, MAP, texts=["isn't a mean over samples", "is divided by"])
    assert len(found) == is_said
    assert not found or "`MicroBatches(size)` with Keras's own optimizer" in found[0]
    assert said(model, MAP, texts=["isn't a mean over samples"]) == []


@once_by_torch
@pytest.mark.parametrize("accum_iters", [1, LENGTH])
@pytest.mark.parametrize("reduction", ["mean", "auto", "weighted"])
def test_only_training_calls_a_loss(accum_iters, reduction):
    """Each micro-batch once."""
    seen = []

    class Loss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            seen.append(float(y_true[0, 0]))
            return keras.losses.mean_squared_error(y_true, y_pred)

    model = eager(dense_model(), sgd(accum_iters=accum_iters, reduction=reduction), Loss())
    fit(model, SIZE, PAIR, epochs=1)
    expected = list(map(float, PAIR[1][::SIZE, 0]))
    assert [value for value in seen if value in expected] == expected
    assert len(seen) <= 7  # Keras itself may call it once, to find shapes


def test_without_accum_iters_it_is_said_once():
    model, data = eager(dense_model(), hosts.ours("SGD")), zoo.arrays(SIZE)
    texts = ["has accum_iters=1"]
    (found,) = said(model, data, texts=texts)
    assert STOCK in found
    assert said(model, data, texts=texts) == []
    for given in ({}, {"accum_iters": 1}, {"accum_iters": np.int64(1)}):
        assert said(eager(dense_model(), sgd(**given)), data, texts=texts) == []


@once_by_torch
def test_where_nothing_is_said():
    stock = eager(batch_norm()(), hosts.stock("SGD"))
    assert said(stock, LESS) == []


@once_by_torch
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="MicroBatches is for Keras 3")
def test_a_stock_optimizer_in_slices():
    """It is said once, also of a new callback, and where "auto" finds slices in a later batch."""
    callback = hosts.accum.MicroBatches("auto")

    def halve(model):
        callback._step.size = 2

    model = compiled(batch_norm()(), hosts.stock("SGD"))
    (found,) = said(model, WHOLE, callbacks=[callback, At(halve)])
    assert BATCHES in found
    assert said(model, WHOLE, callbacks=[hosts.accum.MicroBatches(2)]) == []


@once_by_torch
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="MicroBatches is for Keras 3")
def test_slices_in_windows_are_refused():
    """Also in those of Keras."""
    of_keras = hosts.stock("SGD", gradient_accumulation_steps=LENGTH)
    for optimizer in sgd(), sgd(accum_iters=None), hosts.loss_scaled(sgd(), 8.0), of_keras:
        with pytest.raises(ValueError, match="can't be used with SGD.*which adds up batches"):
            said(eager(dense_model(), optimizer), WHOLE, callbacks=[hosts.accum.MicroBatches(2)])


@once_by_torch
def test_in_a_traced_step():
    """With a callback of ours in it."""
    used = [hosts.accum.AccumulationMonitor()]
    found = said(compiled(batch_norm()(), sgd()), LESS, callbacks=used)
    assert len(found) == 1 and BATCHES in found[0]


class MovingCentre(layers.Layer):
    """It subtracts a moving mean of its inputs, which each call in training moves."""

    def build(self, shape):
        arguments = {"shape": (shape[-1],), "initializer": "zeros", "trainable": False}
        self.centre = self.add_weight(name="centre", **arguments)

    def call(self, x, training=False):
        if training:
            self.centre.assign(0.9 * self.centre + 0.1 * zoo.mean(x, 0))
        return x - self.centre


KEEPING = {"own": lambda: [MovingCentre(name="it")], "dropout": lambda: [layers.Dropout(0.5)]}
if hosts.IS_KERAS3:  # that of TensorFlow 2.15 fails in a graph
    KEEPING["spectral"] = lambda: [layers.SpectralNormalization(layers.Dense(3), name="it")]


@quick_once_on_keras3
@pytest.mark.parametrize("layer", KEEPING)
@pytest.mark.parametrize("way", ["windows", "slices", "slices of a batch"])
def test_layers_that_keep_something(layer, way):
    """They are named, like batch normalization; random numbers aren't."""
    callbacks, optimizer = [], hosts.ours("SGD", accum_iters=2)
    if way != "windows":
        if not hosts.IS_KERAS3:
            pytest.skip("MicroBatches is for Keras 3")
        optimizer = hosts.stock("SGD")
        callbacks = [hosts.accum.MicroBatches(1, loss="batch" if "batch" in way else "sample")]
    model = compiled(hosts.sequential((3,), [*KEEPING[layer](), layers.Dense(2)]), optimizer)
    with our_warnings() as texts:
        fit(model, SIZE, callbacks=callbacks)
    said = [text for text in texts if "Layers keep values" in text]
    assert len(said) == (layer != "dropout") and all(": it" in each for each in said)


@pytest.mark.parametrize("reduction", ["mean", "auto"])
@pytest.mark.once_by("jax", "torch")
def test_a_window_that_train_on_batch_has_begun(reduction):
    """Its micro-batches count as in `fit`, and on JAX no step is lost."""
    model, control = (eager(dense_model(), sgd(reduction=reduction)) for _ in range(2))
    x, y = zoo.arrays(3 * SIZE)
    model.train_on_batch(x[:SIZE], y[:SIZE])
    said(model, (x[SIZE:], y[SIZE:]), epochs=1)
    for i in range(3):
        control.train_on_batch(x[i * SIZE : (i + 1) * SIZE], y[i * SIZE : (i + 1) * SIZE])
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 0)
    assert_equal(weights(model), weights(control))
