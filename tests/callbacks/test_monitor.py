"""`AccumulationMonitor`: what it logs about the windows of a training."""

import csv
import json
import pickle
import re

import hosts
import numpy as np
import pytest
import training
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, UPDATES, WINDOWS, compiled, dense_model, fit, train

pytestmark = quick_once

skip_file_on_keras2("AccumulationMonitor")

every_gate = pytest.mark.usefixtures("every_gate")
Monitor = hosts.accum.AccumulationMonitor
callbacks = keras.callbacks
RATE = 0.125


class Each(callbacks.Callback):
    """Record the logs after each micro-batch."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))

    def column(self, name):
        return [logs[name] for logs in self.logs]


def sgd(**arguments):
    return hosts.ours("SGD", **{"learning_rate": RATE, "accum_iters": LENGTH, **arguments})


def monitored(optimizer, **arguments):
    """Return a model after `fit`, its History, and an `Each` that has watched."""
    model, each = compiled(dense_model(), optimizer), Each()
    used = [Monitor(), each]
    return model, fit(model, MICRO, callbacks=used, **arguments).history, each


@every_gate
def test_what_is_logged():
    """Updates, positions in the window, and rates."""
    _, history, each = monitored(sgd())
    micro_batches = range(1, UPDATES * LENGTH + 1)
    assert each.column("completed_updates") == [i // LENGTH for i in micro_batches]
    assert each.column("window_position") == [i % LENGTH for i in micro_batches]
    assert set(each.column("window_length")) == {LENGTH}
    assert set(each.column("learning_rate")) == {RATE}
    assert history["completed_updates"] == [WINDOWS, 2 * WINDOWS, 3 * WINDOWS]


RATES = [RATE / 2**update for update in range(UPDATES + 1)]
RATES_IN_USE = {
    "a schedule": ({"learning_rate": hosts.EachUpdate(RATES)}, RATES),
    "a function": ({"learning_rate": lambda: RATE}, [RATE] * (UPDATES + 1)),
}
if hosts.HAS_DECAY:
    decayed = [RATE / (1 + 0.5 * update) for update in range(UPDATES + 1)]
    RATES_IN_USE["decay"] = {"decay": 0.5}, decayed


@pytest.mark.parametrize("arguments, rates", RATES_IN_USE.values(), ids=RATES_IN_USE)
def test_learning_rate_in_use(arguments, rates):
    _, _, each = monitored(sgd(**arguments))
    expected = [rates[update] for update in each.column("completed_updates")]
    np.testing.assert_allclose(each.column("learning_rate"), expected, rtol=1e-6)


def test_what_is_shown_is_the_last_value_and_no_average(tmp_path, capsys):
    """In the progress bar, after each micro-batch, and in a CSV file."""
    path = tmp_path / "log.csv"
    arrays = [np.concatenate([array] * 9)[: 100 * MICRO] for array in training.data()]
    used = [Monitor(), callbacks.CSVLogger(str(path))]
    fit(compiled(dense_model(), sgd()), MICRO, arrays, epochs=2, callbacks=used, verbose=1)
    (row, _) = csv.DictReader(path.read_text().splitlines())
    assert (int(row["completed_updates"]), int(row["window_position"])) == (25, 0)
    assert "learning_rate" in row
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert re.search(r"completed_updates: 50 - window_position: 0 - window_length: 4 ", text)
    found = re.findall(r"(\d+)/100[^\r\n\b]*? completed_updates: (\S+)", text)
    shown = [(int(step), int(updates)) for step, updates in found]
    assert shown[-1][1] == 50 and {updates for step, updates in shown if step == 100} == {25, 50}
    assert all(updates - step // LENGTH in (0, 25) for step, updates in shown)


def test_a_count_is_an_int():
    """For a user's own lines, trackers and files; only the progress bar shows it by itself."""
    _, history, _ = monitored(sgd(), epochs=1)
    (count,) = history["completed_updates"]
    assert count == WINDOWS and isinstance(count, int)
    assert (count / 2, count / 1, f"{count:.1f}") == (WINDOWS / 2, WINDOWS, f"{WINDOWS}.0")
    assert json.loads(json.dumps(history)) == history
    assert type(pickle.loads(pickle.dumps(count))) is int
    assert np.array(history["completed_updates"]).dtype.kind == "i"


@every_gate
def test_the_training_is_the_same():
    arguments = {"accum_iters": LENGTH, "learning_rate": 2**-5}
    plain = train(hosts.ours("Adam", **arguments), MICRO)
    watched = train(hosts.ours("Adam", **arguments), MICRO, callbacks=[Monitor()])
    training.assert_equal(watched.weights, plain.weights, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_epochs_rate_is_the_same_in_both_orders(is_first, tmp_path):
    """ReduceLROnPlateau logs the epoch's rate, and then sets the next epoch's."""
    plateau = callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)
    pair = [Monitor(), plateau] if is_first else [plateau, Monitor()]
    file = callbacks.CSVLogger(str(tmp_path / "log.csv"))
    fit(compiled(dense_model(), sgd()), MICRO, epochs=4, callbacks=[*pair, file])
    with open(file.filename) as lines:
        found = [float(row["learning_rate"]) for row in csv.DictReader(lines)]
    assert found == [RATE, RATE, RATE / 2, RATE / 4]
