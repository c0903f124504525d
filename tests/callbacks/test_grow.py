"""`GrowWithNoiseScale`: which lengths follow from the logs, and that the training is theirs."""

import hosts
import numpy as np
import pytest
from cases import quick_once, skip_file_on_keras2
from hosts import keras
from training import MICRO, assert_equal, compiled, dense_model, fit, slots, weights

pytestmark = quick_once

skip_file_on_keras2("AccumulationMonitor")

Grow, Monitor = hosts.accum.GrowWithNoiseScale, hosts.accum.AccumulationMonitor


class Says(keras.callbacks.Callback):
    """Puts a noise scale into the logs, one for each epoch, in place of a monitor."""

    def __init__(self, scales):
        super().__init__()
        self.scales, self.lengths = scales, []

    def on_epoch_begin(self, epoch, logs=None):
        self.scale = self.scales[epoch]
        self.lengths.append(self.model.optimizer.accum_iters)

    def on_train_batch_end(self, batch, logs=None):
        length = self.model.optimizer._accumulation.counts()[1]
        logs.update(noise_scale=self.scale, effective_batch=MICRO * length)

    def on_epoch_end(self, epoch, logs=None):
        self.on_train_batch_end(None, logs)


def trained(*callbacks, accum_iters=2, epochs):
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=accum_iters))
    fit(model, MICRO, epochs=epochs, callbacks=list(callbacks))
    return model


def test_lengths_and_weights():
    """At most doubled, never shorter, at most the maximum; NaN is no estimate."""
    scales = [np.nan, 3.1 * MICRO, 100 * MICRO, MICRO, 100 * MICRO, 100 * MICRO]
    said = Says(scales)
    model = trained(said, Grow(np.int64(10)), epochs=6)
    assert said.lengths == [2, 2, 3, 6, 6, 10] and model.optimizer.accum_iters == 10
    by_epoch = hosts.accum.AccumulateByEpoch(dict(enumerate(said.lengths)))
    expected = trained(by_epoch, epochs=6)
    assert_equal(weights(model), weights(expected), rtol=0, atol=0)
    assert model.optimizer.completed_updates == expected.optimizer.completed_updates > 10
    rest = {name: v for name, v in slots(expected).items() if "accum_iters" not in name}
    assert_equal(slots(model), rest, rtol=0, atol=0)


def test_with_a_monitor():
    """It is the monitor's estimate that decides, to the sample. Random targets make it large."""
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(96, n)).astype(hosts.FLOATX) for n in (3, 2)]
    monitor = Monitor(batch_size=MICRO, noise_scale=True, smoothing=0.5)
    growth = Grow(1000)
    model = compiled(dense_model(), hosts.ours("SGD", learning_rate=0.0, accum_iters=2))
    epochs = fit(model, MICRO, arrays, epochs=3, callbacks=[monitor, growth]).history
    lengths = [2]
    for scale in epochs["noise_scale"]:
        grown = min(round(scale / MICRO), 2 * lengths[-1]) if np.isfinite(scale) else 0
        lengths.append(max(lengths[-1], grown))
    assert lengths[-1] == model.optimizer.accum_iters > 2


def test_a_training_that_is_continued():
    model = trained(Says([100.0]), Grow(8), epochs=1)
    state = model.optimizer.get_state()
    assert state["accum_iters"] == 4
    other = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    other.optimizer.set_state(state)
    said = Says([100.0])
    fit(other, MICRO, epochs=1, callbacks=[said, Grow(8)])
    assert (said.lengths, other.optimizer.accum_iters) == ([4], 8)


@pytest.mark.parametrize(
    "maximum, error", [(1, ValueError), (2.5, ValueError), (2**31, ValueError), ("4", TypeError)]
)
def test_refused_maximum(maximum, error):
    with pytest.raises(error, match="`maximum` must be an integer >= 2 .* Received: maximum="):
        Grow(maximum)


@pytest.mark.parametrize(
    "accum_iters, message",
    [
        (1, r"Grow.*\(maximum=4\) needs .* Received: accum_iters=1"),
        (5, "Received: accum_iters=5"),
        (None, "Received: accum_iters=None"),
        (hosts.accum.AccumulationSchedule({0: 2}), "GrowWithNoiseScale needs an optimizer whose"),
    ],
)
def test_refused_optimizers(accum_iters, message):
    with pytest.raises(ValueError, match=message):
        trained(Says([1.0]), Grow(4), accum_iters=accum_iters, epochs=1)


def test_without_a_monitor_before_it():
    for monitors in ([], [Monitor(batch_size=MICRO)]):
        with pytest.raises(ValueError, match="noise_scale=True.* before it in `callbacks`"):
            trained(*monitors, Grow(8), epochs=1)
    with pytest.raises(ValueError, match="before it in `callbacks`"):
        trained(Grow(8), Monitor(batch_size=MICRO, noise_scale=True), epochs=1)
