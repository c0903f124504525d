"""The ten lines of docs/mathematics.md, with an update by hand, against an optimizer of Keras 3."""

import hosts
import numpy as np
import pytest
from hosts import keras
from mathematics import ADAMW, LEAST, micro_batch, optimizer, start

WINDOW, UPDATES = 3, 4
TOLERANCE = {"rtol": 0, "atol": 1e-6}  # Keras has schedules in float32 on every backend


class AtLeast(keras.constraints.Constraint):
    def __call__(self, w):
        return keras.ops.maximum(w, keras.ops.cast(LEAST, w.dtype))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the page has the order of Keras 3's update")
def test_an_update_has_the_lines_of_the_page_in_their_order():
    rate = keras.optimizers.schedules.InverseTimeDecay(0.3, decay_steps=1, decay_rate=1)
    ours = hosts.ours("AdamW", learning_rate=rate, accum_iters=WINDOW, **ADAMW)
    weights = hosts.variable(start()[0], "w", constraint=AtLeast())
    hosts.build_on(ours, [weights])
    page = optimizer(lambda updates: WINDOW)
    random = np.random.default_rng(0)
    for gradient in random.normal([0.5, -0.3, 0.1], 0.6, (WINDOW * UPDATES + 1, 3)):
        micro_batch(page, gradient)
        hosts.apply(ours, [gradient.astype(hosts.FLOATX)], [weights])
        found = keras.ops.convert_to_numpy(weights)
        np.testing.assert_allclose(found, page.weights, **TOLERANCE)
    assert (ours.completed_updates, ours.window_position) == (page.updates, page.position)
    assert (page.updates, page.position) == (UPDATES, 1)
    for name, expected in zip(("momentum", "velocity", "average"), page.slots):
        (slot,) = [v for v in ours.variables if name in v.name]
        np.testing.assert_allclose(keras.ops.convert_to_numpy(slot), expected, **TOLERANCE)
