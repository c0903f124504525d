"""`AccumulationMonitor`: what it logs about the windows of a training, and the noise scale."""

import csv
import re

import hosts
import numpy as np
import pytest
from cases import LATE, once, quick_first, quick_once, skip_file_on_keras2, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    SAMPLES,
    UPDATES,
    WINDOWS,
    assert_equal,
    batches,
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


def monitored(optimizer, monitor=None, more=(), arrays=None, **arguments):
    """Return a model after `fit`, its History, and an `Each` that has watched."""
    model, each = compiled(dense_model(), optimizer), Each()
    used = [monitor or Monitor(batch_size=MICRO), *more, each]
    return model, fit(model, MICRO, arrays, callbacks=used, **arguments).history, each


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
    assert set(each.column("effective_batch")) == {LENGTH * MICRO}
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
    used = [Monitor(MICRO), callbacks.CSVLogger(str(path))]
    fit(compiled(dense_model(), sgd()), MICRO, arrays, epochs=2, callbacks=used, verbose=1)
    (row, _) = csv.DictReader(path.read_text().splitlines())
    assert (int(row["completed_updates"]), int(row["window_position"])) == (25, 0)
    assert {"learning_rate", "gradient_norm", "effective_batch"} <= set(row)
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    found = re.findall(r"(\d+)/100[^\r\n\b]*? completed_updates: ([\d.]+)", text)
    shown = [(int(step), float(updates)) for step, updates in found]
    assert shown[-1][1] == 50 and {updates for step, updates in shown if step == 100} == {25, 50}
    assert all(updates - step // LENGTH in (0, 25) for step, updates in shown)


@every_gate
def test_the_training_is_the_same():
    arguments = {"accum_iters": LENGTH, "learning_rate": 2**-5}
    plain = train(hosts.ours("Adam", **arguments), MICRO)
    monitor = Monitor(MICRO, noise_scale=True)
    watched = train(hosts.ours("Adam", **arguments), MICRO, callbacks=[monitor])
    assert_equal(watched.weights, plain.weights, rtol=1e-6, atol=1e-12)


def test_it_is_gone_afterwards():
    """A state, and so a file, doesn't have the monitor's variables."""
    model, _, _ = monitored(sgd(), Monitor(MICRO, noise_scale=True), epochs=1)
    norms, other = model.optimizer._accumulation.norms, compiled(dense_model(), sgd())
    norm = norms.read("gradient_norm")
    assert not norms.watched
    fit(model, MICRO, epochs=1)
    assert norms.read("gradient_norm") == norm > 0
    hosts.build(other)
    assert set(model.optimizer.get_state()) == set(other.optimizer.get_state())
    assert len(hosts.listed(model.optimizer)) == len(hosts.listed(other.optimizer))


@quick_first("eagerly", [False, True])
def test_python_gate(eagerly):
    results = []
    for names in [Monitor], [Monitor, Gate], [Gate, Monitor]:
        model, each = compiled(dense_model(), sgd(), run_eagerly=eagerly), Each()
        arguments = {Monitor: {"batch_size": MICRO, "noise_scale": True}, Gate: {}}
        used = [make(**arguments[make]) for make in names]
        fit(model, MICRO, callbacks=[*used, each], epochs=2)
        results.append(each)
    for name in ("gradient_norm", "noise_scale", "window_position"):
        for result in results[1:]:
            np.testing.assert_allclose(result.column(name), results[0].column(name), rtol=1e-5)


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@pytest.mark.parametrize("gate", [{}, {"gate": "conditional"}, LATE], ids=str)
def test_replicas(strategy, gate):
    more = {"noise_scale": "all_reduce" not in gate}
    with strategy.scope():
        model, each = compiled(dense_model(), sgd(learning_rate=0.0, **gate)), Each()
    fit(model, MICRO, callbacks=[Monitor(MICRO, **more), each])
    _, _, single = monitored(sgd(learning_rate=0.0), Monitor(MICRO, **more))
    for name in ["gradient_norm"] + ["noise_scale"] * more["noise_scale"]:
        np.testing.assert_allclose(each.column(name), single.column(name), rtol=1e-9)


def test_without_accumulation():
    _, history, _ = monitored(sgd(accum_iters=1))
    assert history["completed_updates"][-1] == UPDATES * LENGTH
    assert history["effective_batch"][-1] == MICRO
    assert "gradient_norm" not in history


# -- the noise scale -----------------------------------------------------------------------------


def linear_model(weights, accum_iters, **arguments):
    """Return a model without a bias, whose weights never change."""
    model = hosts.sequential((len(weights),), [keras.layers.Dense(1, use_bias=False)])
    optimizer = hosts.ours("SGD", learning_rate=0.0, accum_iters=accum_iters, **arguments)
    model.compile(optimizer, "mse")
    model.set_weights([weights[:, None]])
    return model


def gradient(x, y, w):
    return 2 * x.T @ (x @ w - y[:, 0]) / len(x)


def estimated(windows, w, size, smoothing):
    """Apply the paper's two formulas to windows, each a list of (x, y)."""
    square = trace = 0.0
    for window in windows:
        each = [gradient(x, y, w) for x, y in window]
        small = np.mean([g @ g for g in each])
        mean, big = np.mean(each, axis=0), len(window) * size
        square = smoothing * square + (1 - smoothing) * (
            (big * mean @ mean - size * small) / (big - size)
        )
        trace = smoothing * trace + (1 - smoothing) * ((small - mean @ mean) / (1 / size - 1 / big))
    return trace / square


def regression(samples, w):
    """Return features of known covariance with a noisy target, and their exact noise scale."""
    random = np.random.default_rng(7)
    deviations, noise = np.array([1.0, 2.0, 0.5]), 1.5
    x = random.normal(size=(samples, 3)) * deviations
    true = np.array([0.5, -0.25, 1.0])
    y = x @ true + noise * random.normal(size=samples)
    covariance, off = np.diag(deviations**2), w - true
    mean = 2 * covariance @ off
    spread = np.trace(covariance) * off @ covariance @ off + 2 * off @ covariance @ covariance @ off
    trace = 4 * (spread + noise**2 * np.trace(covariance)) - mean @ mean
    return (x.astype(hosts.FLOATX), y[:, None].astype(hosts.FLOATX)), trace / (mean @ mean)


@thorough
@once
def test_noise_scale_in_closed_form():
    w = np.array([1.0, 0.75, 0.25])
    arrays, expected = regression(16 * 8 * 400, w)
    model = linear_model(w, accum_iters=8)
    monitor = Monitor(16, noise_scale=True, smoothing=0.998)
    history = model.fit(
        *arrays, batch_size=16, shuffle=False, verbose=0, callbacks=[monitor]
    ).history
    assert abs(history["noise_scale"][-1] / expected - 1) < 0.1


@every_gate
@quick_first("reduction", ["mean", "sum"])
def test_noise_scale_of_each_window(reduction):
    """Windows open at the start or closed early aren't seen whole, and don't count.

    Nor does a micro-batch that is dropped.
    """
    w = np.array([1.0, 0.75, 0.25])
    arrays, _ = regression(2 * 19, w)
    arrays[0][12:14] = np.nan
    parts = [part for i, part in enumerate(batches(2, arrays)) if i != 6]
    model = linear_model(w, accum_iters=4, reduction=reduction, skip_nonfinite=True)
    monitor = Monitor(2, noise_scale=True, smoothing=0.5)

    class Closes(callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 10:
                self.model.optimizer.apply_partial_window()

    def run(start, stop, *windows):
        x, y = (array[2 * start : 2 * stop] for array in arrays)
        settings = {"batch_size": 2, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, callbacks=[monitor, Closes()], **settings).history
        expected = estimated(windows, w, 2, 0.5) if windows else 0
        expected = expected if expected > 0 else np.nan
        np.testing.assert_allclose(history["noise_scale"][-1], expected, rtol=1e-4)

    model.fit(*(array[:2] for array in arrays), batch_size=2, verbose=0)
    run(1, 4)
    run(4, 19, parts[4:8], parts[8:12], parts[14:18])


# -- refusals ------------------------------------------------------------------------------------

REFUSED = [
    ({"batch_size": 0}, ValueError, "batch_size=0"),
    ({"batch_size": 2.5}, ValueError, "batch_size=2.5"),
    ({"batch_size": True}, ValueError, "batch_size=True"),
    ({"noise_scale": 1, "batch_size": 2}, TypeError, "noise_scale=1"),
    ({"noise_scale": True}, ValueError, "`noise_scale` needs `batch_size`"),
    ({"smoothing": 1.0}, ValueError, "smoothing=1.0"),
    ({"smoothing": "much"}, ValueError, "smoothing='much'"),
]


@pytest.mark.parametrize("arguments, error, said", REFUSED)
def test_arguments(arguments, error, said):
    with pytest.raises(error, match=said):
        Monitor(**arguments)


NO_NOISE_SCALE = {
    "accum_iters=1": ({"accum_iters": 1}, {}),
    "reduction='weighted'": ({"reduction": "weighted"}, {}),
}
if hosts.IS_TENSORFLOW:
    NO_NOISE_SCALE["all_reduce='per_window'"] = LATE, {}
if not hosts.IS_TORCH:
    NO_NOISE_SCALE["steps_per_execution=2"] = {}, {"steps_per_execution": 2}


@pytest.mark.parametrize("said", NO_NOISE_SCALE)
def test_windows_without_a_noise_scale(said):
    optimizer, compiling = NO_NOISE_SCALE[said]
    model = compiled(dense_model(), sgd(**optimizer), **compiling)
    with pytest.raises(ValueError, match=f"can't be used with {said}: `noise_scale`"):
        fit(model, MICRO, callbacks=[Monitor(MICRO, noise_scale=True)])
    if compiling:
        history = fit(model, MICRO, callbacks=[Monitor(MICRO)]).history
        assert history["completed_updates"][-1] == UPDATES
