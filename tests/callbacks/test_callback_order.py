"""Which train function a model is trained by, with several callbacks and after a break.

And which order of callbacks is warned of, because logs would be missing.
"""

import contextlib
import csv
import warnings

import hosts
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, slots, weights

pytestmark = [
    quick_once,
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

skip_file_on_keras2("PythonGate")

Gate, Monitor = hosts.accum.PythonGate, hosts.accum.AccumulationMonitor
Weights = hosts.accum.MicroBatchWeights

MICRO_BATCHES = LENGTH + 1


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def model_of():
    optimizer = hosts.ours("Adam", learning_rate=2**-5, accum_iters=LENGTH, reduction="weighted")
    return compiled(dense_model(), optimizer)


def train(model, *callbacks):
    arrays = [array[: MICRO_BATCHES * MICRO] for array in data()]
    return fit(model, MICRO, arrays, epochs=1, callbacks=callbacks)


@pytest.mark.parametrize(
    "first, then",
    [
        ([Weights, Monitor, Gate], None),
        ([Weights, Gate], [Monitor, Weights, Gate]),
        ([Weights, Monitor, Gate], [Weights]),
    ],
    ids=["the same callbacks", "others and a gate", "others"],
)
def test_after_a_break(first, then):
    """The next training raises no error, and ends as if there had been no first one."""
    model, other = model_of(), model_of()
    model.make_train_function()
    own, start = model.train_function, model.get_weights()
    callbacks = [make() for make in first]
    with pytest.raises(KeyboardInterrupt):
        train(model, *callbacks, Stop())
    model.set_weights(start)
    hosts.build(other)
    model.optimizer.set_state(other.optimizer.get_state())
    train(model, *([make() for make in then] if then else callbacks))
    assert model.train_function is own
    assert not {"train_step", "compute_loss"} & set(vars(model))
    train(other, Weights())
    assert_equal(weights(model), weights(other))
    assert_equal(slots(model), slots(other))


def test_the_model_gets_back_its_own_train_function():
    model, callbacks = model_of(), [Monitor(), Weights(), Gate()]
    model.make_train_function()
    own = model.train_function
    for _ in range(2):
        train(model, *callbacks)
        assert model.train_function is own


def test_without_the_callback_the_optimizer_needs_a_weight_again():
    model = model_of()
    train(model, Weights())
    with pytest.raises(ValueError, match="needs the weight of each micro-batch"):
        train(model)


@pytest.mark.parametrize("last", [Stop, Gate])
def test_an_hdf5_file_after_a_training_that_failed(last, tmp_path):
    """On JAX, the norms that a monitor watches are among the variables that these files hold."""
    options = {"skip_nonfinite": True} if last is Gate else {}
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, **options)
    model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    hosts.build(model)
    error = KeyboardInterrupt if last is Stop else ValueError
    does_nothing = last is Gate and hosts.IS_TORCH
    with contextlib.nullcontext() if does_nothing else pytest.raises(error):
        train(model, Monitor(), last())
    model.save(str(tmp_path / "m.h5"))
    loaded = keras.models.load_model(str(tmp_path / "m.h5"))
    hosts.build(loaded)
    assert_equal(loaded.optimizer.get_state(), model.optimizer.get_state())


class Look(keras.callbacks.Callback):
    """Keeps what a model has between two batches, and then an error of somebody's."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.found = fails, []

    def on_train_batch_begin(self, batch, logs=None):
        self.found.append({**vars(self._model if hosts.IS_KERAS3 else self.model)})

    def on_train_batch_end(self, batch, logs=None):
        self.on_train_batch_begin(batch)
        if self.fails:
            raise OSError


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_ours_is_in_a_model_between_two_batches(fails):
    """Nor after an error: the model has its own train function."""
    model, look = model_of(), Look(fails)
    train(model, Weights())
    own, names = model.train_function, set(vars(model))
    callbacks = [Gate(), Weights(), Monitor(), look]
    with pytest.raises(OSError) if fails else contextlib.nullcontext():
        train(model, *callbacks)
    for found in [*look.found, vars(model)]:
        assert found["train_function"] is own and set(found) <= names | {"_jax_state"}


def test_a_monitor_sees_the_training_after_a_break():
    model = model_of()
    with pytest.raises(KeyboardInterrupt):
        train(model, Weights(), Monitor(), Gate(), Stop())
    history = train(model, Weights(), Monitor(), Gate()).history
    assert history["gradient_norm"][-1] > 0


# -- logs ----------------------------------------------------------------------------------------


def order_of(*names):
    """The warnings of a training with these callbacks, and what CSVLogger has written."""
    made = [MADE[name]() for name in names]
    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=LENGTH))
    arrays = [array[: MICRO_BATCHES * MICRO] for array in data()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(model, MICRO, arrays, epochs=1, callbacks=made).history
    said = [str(w.message) for w in caught if "in `callbacks`" in str(w.message)]
    return said, history


callbacks = keras.callbacks
MADE = {
    "Monitor": Monitor,
    "History": callbacks.History,
    "EarlyStopping": lambda: callbacks.EarlyStopping("gradient_norm", mode="min"),
    "ReduceLROnPlateau": lambda: callbacks.ReduceLROnPlateau("gradient_norm", mode="min"),
    "of the loss": lambda: callbacks.EarlyStopping("loss"),
    "ApplyPartialWindow": hosts.accum.ApplyPartialWindow,
    "PythonGate": Gate,
}


def test_csv_logger_before_the_monitor(tmp_path):
    path = tmp_path / "log.csv"
    MADE["CSVLogger"] = lambda: callbacks.CSVLogger(str(path))
    said, _ = order_of("CSVLogger", "Monitor")
    assert said == [
        "AccumulationMonitor is after CSVLogger in `callbacks`, so CSVLogger can't see the logs of "
        "AccumulationMonitor. List AccumulationMonitor first."
    ]
    assert "completed_updates" not in next(csv.DictReader(path.read_text().splitlines()))
    assert order_of("Monitor", "CSVLogger")[0] == []
    row = next(csv.DictReader(path.read_text().splitlines()))
    assert int(row["completed_updates"]) == 1 and int(row["window_position"]) == 1
    assert float(row["learning_rate"]) == pytest.approx(0.01)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="TensorBoard's files are TensorFlow's")
def test_tensorboard_before_the_monitor(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorFlow 2.21 doesn't come with it")
    MADE["TensorBoard"] = lambda: callbacks.TensorBoard(str(tmp_path), write_graph=False)
    (said,) = order_of("TensorBoard", "Monitor")[0]
    assert "AccumulationMonitor is after TensorBoard in" in said
    assert order_of("Monitor", "TensorBoard")[0] == []


@pytest.mark.parametrize("name", ["EarlyStopping", "ReduceLROnPlateau", "History"])
def test_others_before_the_monitor(name):
    (said,) = order_of(name, "Monitor")[0]
    assert f"is after {name} in" in said
    assert order_of("Monitor", name)[0] == []


def test_several_before_the_monitor():
    (said,) = order_of("EarlyStopping", "of the loss", "History", "Monitor")[0]
    assert "AccumulationMonitor is after EarlyStopping, History in" in said


def test_orders_that_do_not_matter():
    assert order_of("of the loss", "Monitor", "PythonGate")[0] == []


def test_apply_partial_window_after_the_monitor():
    said, history = order_of("Monitor", "ApplyPartialWindow")
    assert len(said) == 1 and "is before ApplyPartialWindow in" in said[0]
    assert (history["completed_updates"], history["window_position"]) == ([1], [1])
    said, history = order_of("ApplyPartialWindow", "Monitor")
    assert said == []
    assert (history["completed_updates"], history["window_position"]) == ([2], [0])


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="Keras's NNX mode is JAX's")
@pytest.mark.parametrize("name", ["PythonGate", "MicroBatches", "WindowStatistics"])
def test_the_nnx_mode_is_refused(name, monkeypatch):
    """In this mode, Keras traces the train step of the model's class: a callback's isn't seen."""
    callback = getattr(hosts.accum, name)(*[MICRO] * (name == "MicroBatches"))
    callback.set_model(model_of())
    monkeypatch.setattr("keras.src.backend.config._NNX_ENABLED", True)
    with pytest.raises(ValueError, match=f"{name} can't be used in Keras's NNX mode"):
        callback.on_train_begin()
