"""`AccumulationMonitor`: what it logs about the windows of a training."""

import csv
import re

import hosts
import numpy as np
import pytest
from cases import LATE, quick_first, quick_once, skip_file_on_keras2
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    SAMPLES,
    UPDATES,
    WINDOWS,
    assert_equal,
    compiled,
    data,
    dense_model,
    fit,
    train,
)

pytestmark = quick_once

skip_file_on_keras2("AccumulationMonitor")

every_gate = pytest.mark.usefixtures("every_gate")
Monitor, Gate = hosts.accum.AccumulationMonitor, hosts.accum.PythonGate
callbacks = keras.callbacks
RATE = 0.125
EXACT = {"rtol": 1e-9} if hosts.IS_TENSORFLOW else {"rtol": 1e-4}


class Each(callbacks.Callback):
    """Record the logs and the weights after each micro-batch."""

    def __init__(self):
        super().__init__()
        self.logs, self.weights = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))
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


def norms_of_updates(each, rate=RATE):
    """Compute the norms from SGD, by how far each update has moved the weights."""
    moved = [np.linalg.norm(b - a) / rate for a, b in zip(each.weights, each.weights[1:])]
    return [norm for norm in moved if norm > 0]


@every_gate
def test_what_is_logged():
    _, history, each = monitored(sgd())
    micro_batches = range(1, UPDATES * LENGTH + 1)
    assert each.column("completed_updates") == [i // LENGTH for i in micro_batches]
    assert each.column("window_position") == [i % LENGTH for i in micro_batches]
    assert set(each.column("window_length")) == {LENGTH}
    assert set(each.column("learning_rate")) == {RATE}
    norms = each.column("gradient_norm")
    assert np.isnan(norms[: LENGTH - 1]).all()
    for update, norm in enumerate(norms_of_updates(each), start=1):
        inside = norms[LENGTH * update - 1 : LENGTH * (update + 1) - 1]
        np.testing.assert_allclose(inside, norm, **EXACT)
    assert history["completed_updates"] == [WINDOWS, 2 * WINDOWS, 3 * WINDOWS]
    assert history["gradient_norm"] == norms[SAMPLES // MICRO - 1 :: SAMPLES // MICRO]


def test_gradient_norm_of_a_sum_before_it_is_clipped():
    mean, _, of_mean = monitored(sgd(learning_rate=0.0))
    summed, _, of_sum = monitored(sgd(learning_rate=0.0, reduction="sum", clipnorm=1e-3))
    mean, summed = (np.array(each.column("gradient_norm")) for each in (of_mean, of_sum))
    np.testing.assert_allclose(summed, LENGTH * mean, **EXACT)


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
    arrays = [np.concatenate([array] * 9)[: 100 * MICRO] for array in data()]
    used = [Monitor(), callbacks.CSVLogger(str(path))]
    fit(compiled(dense_model(), sgd()), MICRO, arrays, epochs=2, callbacks=used, verbose=1)
    (row, _) = csv.DictReader(path.read_text().splitlines())
    assert (int(row["completed_updates"]), int(row["window_position"])) == (25, 0)
    assert {"learning_rate", "gradient_norm"} <= set(row)
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert re.search(r"completed_updates: 50.0+ - window_position: 0\S+ - window_length: 4", text)
    found = re.findall(r"(\d+)/100[^\r\n\b]*? completed_updates: ([\d.]+)", text)
    shown = [(int(step), float(updates)) for step, updates in found]
    assert shown[-1][1] == 50 and {updates for step, updates in shown if step == 100} == {25, 50}
    assert all(updates - step // LENGTH in (0, 25) for step, updates in shown)


@every_gate
def test_the_training_is_the_same():
    arguments = {"accum_iters": LENGTH, "learning_rate": 2**-5}
    plain = train(hosts.ours("Adam", **arguments), MICRO)
    watched = train(hosts.ours("Adam", **arguments), MICRO, callbacks=[Monitor()])
    assert_equal(watched.weights, plain.weights, rtol=1e-6, atol=1e-12)


def test_it_is_gone_afterwards():
    """A state, and so a file, doesn't have the monitor's variables."""
    model, _, _ = monitored(sgd(), epochs=1)
    watched, other = model.optimizer._accumulation.watched, compiled(dense_model(), sgd())
    norm = watched.read("gradient_norm")
    assert not watched.names
    fit(model, MICRO, epochs=1)
    assert watched.read("gradient_norm") == norm > 0
    hosts.build(other)
    assert set(model.optimizer.get_state()) == set(other.optimizer.get_state())
    assert len(hosts.listed(model.optimizer)) == len(hosts.listed(other.optimizer))


@quick_first("eagerly", [False, True])
def test_python_gate(eagerly):
    results = []
    for names in [Monitor], [Monitor, Gate], [Gate, Monitor]:
        model, each = compiled(dense_model(), sgd(), run_eagerly=eagerly), Each()
        fit(model, MICRO, callbacks=[*(make() for make in names), each], epochs=2)
        results.append(each)
    for name in ("gradient_norm", "window_position"):
        for result in results[1:]:
            np.testing.assert_allclose(result.column(name), results[0].column(name), rtol=1e-5)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@pytest.mark.parametrize("gate", [{}, {"gate": "conditional"}, LATE], ids=str)
def test_replicas(strategy, gate):
    with strategy.scope():
        model, each = compiled(dense_model(), sgd(learning_rate=0.0, **gate)), Each()
    fit(model, MICRO, callbacks=[Monitor(), each])
    _, _, single = monitored(sgd(learning_rate=0.0))
    norms = (logged.column("gradient_norm") for logged in (each, single))
    np.testing.assert_allclose(*norms, rtol=1e-9)


def test_without_accumulation():
    _, history, _ = monitored(sgd(accum_iters=1))
    assert history["completed_updates"][-1] == UPDATES * LENGTH
    assert "gradient_norm" not in history
