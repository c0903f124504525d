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
    initialize,
    train,
)

pytestmark = quick_once

skip_file_on_keras2("AccumulationMonitor")

every_gate = pytest.mark.usefixtures("every_gate")
Monitor = hosts.accum.AccumulationMonitor
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


@pytest.mark.parametrize("decay", [False, True] if hosts.HAS_DECAY else [False])
def test_learning_rate_in_use(decay):
    if decay:
        optimizer = sgd(decay=0.5)
        rates = [RATE / (1 + 0.5 * update) for update in range(UPDATES + 1)]
    else:
        rates = [RATE / 2**update for update in range(UPDATES + 1)]
        optimizer = sgd(learning_rate=hosts.EachUpdate(rates))
    _, _, each = monitored(optimizer)
    expected = [rates[update] for update in each.column("completed_updates")]
    np.testing.assert_allclose(each.column("learning_rate"), expected, rtol=1e-6)


def test_a_learning_rate_that_is_a_function():
    _, _, each = monitored(sgd(learning_rate=lambda: RATE))
    assert set(each.column("learning_rate")) == {RATE}


def test_length_that_changes():
    def change(batch, logs):
        if batch == 1:
            model.optimizer.accum_iters = 3

    model, each = compiled(dense_model(), sgd()), Each()
    if hosts.IS_KERAS3 and not hosts.IS_TORCH and not hosts.IS_TENSORFLOW:
        pytest.skip("on JAX this change is tested in test_python_gate.py")
    used = [callbacks.LambdaCallback(on_train_batch_end=change), Monitor(MICRO), each]
    fit(model, MICRO, epochs=1, callbacks=used)
    assert each.column("effective_batch") == [LENGTH * MICRO] * LENGTH + [3 * MICRO] * 8


def test_csv_logger_and_progress_bar(tmp_path, capsys):
    path = tmp_path / "log.csv"
    logger = callbacks.CSVLogger(str(path))
    model = compiled(dense_model(), sgd())
    fit(model, MICRO, callbacks=[Monitor(MICRO), logger], verbose=2)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(float(row["completed_updates"])) for row in rows] == [3, 6, 9]
    assert {"window_position", "learning_rate", "gradient_norm"} <= set(rows[0])
    printed = capsys.readouterr().out
    assert "updates: 9" in printed


# -- the progress bar ------------------------------------------------------------------------------


class Lines:
    """What `fit` prints at most, without the codes for colors."""

    def __init__(self, capsys, monitor, optimizer=None, verbose=1, more=()):
        # 100 steps, the last of which is inside of a window
        model = compiled(dense_model(), optimizer or sgd(), metrics=["mae"])
        arrays = [np.concatenate([array] * 9)[: 100 * MICRO] for array in data()]
        model.optimizer.accum_iters = 3
        used = [*more, monitor]
        self.history = fit(model, MICRO, arrays, epochs=1, callbacks=used, verbose=verbose).history
        text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).replace("\b", "")
        lines = [line.rstrip() for line in re.split("[\r\n]", text)]
        self.all = [line for line in lines if line]
        self.last = self.all[-1]


def test_the_bar_is_short(capsys):
    lines = Lines(capsys, Monitor(MICRO, noise_scale=True))
    assert lines.last.endswith(" - updates: 33")
    assert max(map(len, lines.all)) <= 100
    assert "loss" in lines.last and "mae" in lines.last
    assert lines.history["completed_updates"] == [33] and "noise_scale" in lines.history


def test_the_bar_shows_the_last_value_and_no_average(capsys):
    lines = Lines(capsys, Monitor())
    found = [re.search(r" *(\d+)/100.*updates: (\d+)", line) for line in lines.all]
    steps = [tuple(map(int, line.groups())) for line in found if line]
    assert steps and all(updates == step // 3 for step, updates in steps)
    assert all(type(lines.history[name][0]) in (int, float) for name in lines.history)


def test_one_line_an_epoch(capsys):
    assert "- updates: 33" in Lines(capsys, Monitor(), verbose=2).last


@pytest.mark.parametrize("first", [False, True])
def test_a_bar_of_your_own(first, capsys):
    """Listed before the monitor it doesn't show what the monitor adds, and is left as it was."""
    bar = callbacks.ProgbarLogger(**({} if hosts.IS_KERAS3 else {"count_mode": "steps"}))
    model, monitor = compiled(dense_model(), sgd()), Monitor()
    used = [bar, monitor] if first else [monitor, bar]
    fit(model, MICRO, epochs=1, callbacks=used, verbose=2)
    assert ("updates: 3" in capsys.readouterr().out) is not first
    assert not {"on_train_batch_end", "on_epoch_end"} & set(vars(bar))
    fit(model, MICRO, epochs=1, callbacks=used, verbose=2)
    assert ("updates: 6" in capsys.readouterr().out) is not first


@pytest.mark.skipif(
    not hosts.IS_TENSORFLOW, reason="TensorBoard's files can only be read with TensorFlow"
)
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed with TensorFlow 2.21")
    board = callbacks.TensorBoard(str(tmp_path), write_graph=False)
    monitored(sgd(), more=[board])
    tags = {
        value.tag
        for path in tmp_path.glob("train/*")
        for event in hosts.tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert {"epoch_completed_updates", "epoch_gradient_norm", "epoch_effective_batch"} <= tags


@every_gate
def test_the_training_is_the_same():
    arguments = {"accum_iters": LENGTH, "learning_rate": 2**-5}
    plain = train(hosts.ours("Adam", **arguments), MICRO)
    monitor = Monitor(MICRO, noise_scale=True)
    watched = train(hosts.ours("Adam", **arguments), MICRO, callbacks=[monitor])
    assert_equal(watched.weights, plain.weights, rtol=1e-6, atol=1e-12)


def test_files_and_state_do_not_have_the_monitor_s_variables(tmp_path):
    model, _, _ = monitored(sgd(momentum=0.5), Monitor(MICRO, noise_scale=True), epochs=1)
    other = compiled(dense_model(), sgd(momentum=0.5))
    fit(other, MICRO, epochs=1)
    assert set(model.optimizer.get_state()) == set(other.optimizer.get_state())
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert_equal(loaded.optimizer.get_state(), model.optimizer.get_state(), rtol=0, atol=0)
    fit(loaded, MICRO, epochs=1)
    fit(model, MICRO, epochs=1)
    for actual, value in zip(loaded.get_weights(), model.get_weights()):
        np.testing.assert_allclose(actual, value, rtol=1e-6)


def test_traced_once_and_gone_afterwards():
    model, monitor = compiled(dense_model(), sgd()), Monitor(MICRO)
    norms, traced = model.optimizer._accumulation.norms, []
    write = norms.write

    def note(name, tensors, switch):
        traced.append(name in norms.watched)
        write(name, tensors, switch)

    norms.write = note
    fit(model, MICRO, epochs=1)
    plain, before = model.train_function, len(traced)
    assert not any(traced)
    fit(model, MICRO, epochs=1, callbacks=[monitor])
    watching = len(traced)
    assert any(traced[before:]) and model.train_function is plain
    fit(model, MICRO, epochs=2, callbacks=[monitor])
    if not hosts.IS_TORCH:  # PyTorch doesn't trace
        assert len(traced) == watching
    norm = model.optimizer._accumulation.norms.read("gradient_norm")
    fit(model, MICRO, epochs=1)
    assert model.optimizer._accumulation.norms.read("gradient_norm") == norm


@quick_first("eagerly", [False, True])
def test_python_gate(eagerly):
    results = []
    gate = hosts.accum.PythonGate
    for first, last in ((), ()), ((), (gate(),)), ((gate(),), ()):
        model, each = compiled(dense_model(), sgd(), run_eagerly=eagerly), Each()
        used = [*first, Monitor(MICRO, noise_scale=True), *last, each]
        fit(model, MICRO, callbacks=used, epochs=2)
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


def test_sparse_gradient():
    def model():
        layers = [keras.layers.Embedding(6, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
        return compiled(hosts.sequential((4,), layers), sgd())

    x = np.random.default_rng(6).integers(0, 6, (SAMPLES, 4))
    each = Each()
    arrays = x, np.ones((SAMPLES, 1))
    fit(model(), MICRO, arrays, callbacks=[Monitor(MICRO), each])
    norm = norms_of_updates(each)[-1]
    np.testing.assert_allclose(each.column("gradient_norm")[-1], norm, **EXACT)


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
    """Windows open at the start or closed early aren't seen whole, and don't count."""
    w = np.array([1.0, 0.75, 0.25])
    arrays, _ = regression(2 * 43, w)
    parts = batches(2, arrays)
    model = linear_model(w, accum_iters=4, reduction=reduction)
    monitor = Monitor(2, noise_scale=True, smoothing=0.5)

    def run(start, stop, *more):
        x, y = (array[2 * start : 2 * stop] for array in arrays)
        settings = {"batch_size": 2, "shuffle": False, "verbose": 0}
        return model.fit(x, y, callbacks=[monitor, *more], **settings).history["noise_scale"][-1]

    model.fit(*(array[:2] for array in arrays), batch_size=2, verbose=0)
    assert np.isnan(run(1, 4))
    windows = [parts[4:8], parts[8:12]]
    expected = estimated(windows, w, 2, 0.5)
    expected = expected if expected > 0 else np.nan
    np.testing.assert_allclose(run(4, 14), expected, rtol=1e-4)
    model.optimizer.apply_partial_window()
    windows += [parts[14:18]]
    expected = estimated(windows, w, 2, 0.5)
    expected = expected if expected > 0 else np.nan
    np.testing.assert_allclose(run(14, 18), expected, rtol=1e-4)


def test_a_dropped_micro_batch_does_not_count():
    w = np.array([1.0, 0.75, 0.25])
    (x, y), _ = regression(2 * 9, w)
    x[6:8] = np.nan
    model = linear_model(w, accum_iters=4, skip_nonfinite=True)
    monitor = Monitor(2, noise_scale=True, smoothing=0.0)
    settings = {"batch_size": 2, "shuffle": False, "verbose": 0}
    found = model.fit(x, y, callbacks=[monitor], **settings).history["noise_scale"][-1]
    window = [part for i, part in enumerate(batches(2, (x, y))) if i != 3][4:8]
    expected = estimated([window], w, 2, 0.0)
    np.testing.assert_allclose(found, expected if expected > 0 else np.nan, rtol=1e-4)


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


def test_a_stock_optimizer_is_refused():
    with pytest.raises(TypeError, match="an optimizer of keras_accum"):
        fit(compiled(dense_model(), hosts.stock("Adam")), MICRO, callbacks=[Monitor()])


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"accum_iters": 1}, "accum_iters=1"),
        ({"reduction": "weighted"}, "reduction='weighted'"),
        pytest.param(
            LATE,
            "all_reduce='per_window'",
            marks=pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="per_window is TensorFlow's"),
        ),
    ],
)
def test_windows_without_a_noise_scale(arguments, said):
    model = compiled(dense_model(), sgd(**arguments))
    with pytest.raises(ValueError, match=f"can't be used with {said}: `noise_scale`"):
        fit(model, MICRO, callbacks=[Monitor(MICRO, noise_scale=True)])


@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras on PyTorch has no steps_per_execution")
def test_steps_per_execution():
    model = initialize(dense_model())
    model.compile(sgd(), "mse", steps_per_execution=2)
    with pytest.raises(ValueError, match="can't be used with steps_per_execution=2"):
        fit(model, MICRO, callbacks=[Monitor(MICRO, noise_scale=True)])
    history = fit(model, MICRO, callbacks=[Monitor(MICRO)]).history
    assert history["completed_updates"][-1] == UPDATES
