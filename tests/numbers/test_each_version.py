"""Each minor version of Keras that docs/install.md names trains as the big batch, also from files.

`nox -s tf_keras_versions keras3_versions` runs this file on each of them.
"""

import hosts
import numpy as np
import pytest
from cases import CASES, skip_file_on_keras2, thorough
from formats import FORMATS, STOP, assert_same, everything, fresh
from hosts import keras
from training import LENGTH, MICRO, assert_same_training, big_batch, go_on, in_windows, train
from zoo import STEPS, padded

skip_file_on_keras2("minor versions but those of its sessions")

pytestmark = [thorough, pytest.mark.weekly]

FOUR = {name: CASES[name] for name in ("momentum", "adam", "amsgrad", "rmsprop")}
# Keras up to 3.12 divides by the number of unmasked steps plus 1e-7, and the Keras of TensorFlow
# 2.8 computes the mean of a loss in float32.
IS_ROUNDED = hosts.VERSION < (2, 9) or (3,) <= hosts.VERSION < (3, 13)
SAMPLES = 11  # the last micro-batch is short


@pytest.mark.parametrize("case", FOUR.values(), ids=FOUR)
def test_training(case):
    assert_same_training(train(in_windows(case), MICRO), big_batch(case))


@pytest.mark.filterwarnings("ignore:(?s).*`fit` found a micro-batch's weight")  # JAX, eager steps
@pytest.mark.parametrize("form", FORMATS)
def test_a_file_in_a_window(form, tmp_path):
    """A model that is loaded continues to the bit."""
    model = go_on(fresh(), 0, STOP)
    FORMATS[form].save(model, tmp_path)
    # Up to TensorFlow 2.9, the first step restores the counters of a checkpoint.
    loaded = go_on(FORMATS[form].load(tmp_path, fresh), STOP, STOP + 1)
    assert loaded.optimizer.window_position == STOP % LENGTH + 1 < LENGTH
    assert_same(everything(go_on(loaded, STOP + 1)), everything(go_on(model, STOP)))


def assert_weighed(first=(), callbacks=(), tolerance=hosts.TOLERANCE, **settings):
    """Compare trainings on padded sequences, by a model that begins with these layers."""

    def build():
        dense = keras.layers.Dense(2, activation="tanh", name="out")
        return hosts.sequential((STEPS, 3), [*first, dense])

    settings.update(build=build, arrays=padded())
    expected = train(hosts.stock("Adam", learning_rate=2**-5), SAMPLES, **settings)
    ours = hosts.ours("Adam", learning_rate=2**-5, accum_iters=4)
    actual = train(ours, 3, callbacks=callbacks, **settings)
    assert_same_training(actual, expected, **tolerance)


def test_masks_and_sample_weights():
    weights = np.random.default_rng(4).uniform(0.5, 2, (SAMPLES, STEPS)).astype(hosts.FLOATX)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if IS_ROUNDED else hosts.TOLERANCE
    assert_weighed([keras.layers.Masking()], tolerance=tolerance, sample_weight=weights)


def sum_of(values):
    return (keras.ops.sum if hosts.IS_KERAS3 else hosts.tf.reduce_sum)(values)


def count_each(y):
    """Return 1 for each step of a sequence, and 0 for the steps after its end."""
    return (keras.ops if hosts.IS_KERAS3 else hosts.tf).cast(y[..., 0] < 50, hosts.FLOATX)


def test_weights_by_a_callback():
    """The loss returns one number, so the function says what it's divided by."""

    def mean_over_steps(y_true, y_pred):
        counts = count_each(y_true)
        return sum_of(counts * (y_true - y_pred)[..., 0] ** 2) / sum_of(counts)

    weights = hosts.accum.MicroBatchWeights(lambda x, y, *others: sum_of(count_each(y)))
    assert_weighed(callbacks=[weights], compile={"loss": mean_over_steps})


def test_a_cell_that_runs_twice():
    """The newer class of a name replaces the older one, also in files."""
    stock = type(hosts.stock("SGD"))
    older, newer = (hosts.accum.accumulating(type("Mine", (stock,), {})) for _ in range(2))
    config = keras.optimizers.serialize(newer(accum_iters=3))
    assert older is not newer is type(keras.optimizers.deserialize(config))
