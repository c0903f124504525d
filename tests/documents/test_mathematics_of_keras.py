"""The ten lines of docs/mathematics.md, with an update by hand, against an optimizer of Keras 3."""

import hosts
import numpy as np
import pytest
from hosts import keras
from mathematics import ADAMW, LEAST, micro_batch, optimizer, start


class AtLeast(keras.constraints.Constraint):
    def __call__(self, w):
        return keras.ops.maximum(w, keras.ops.cast(LEAST, w.dtype))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the page has the order of Keras 3's update")
def test_an_update_has_the_lines_of_the_page_in_their_order():
    rate = keras.optimizers.schedules.InverseTimeDecay(0.3, decay_steps=1, decay_rate=1)
    ours = hosts.ours("AdamW", learning_rate=rate, accum_iters=3, **ADAMW)
    weights = hosts.variable(start()[0], "w", constraint=AtLeast())
    hosts.build_on(ours, [weights])
    page = optimizer(lambda updates: 3)
    for gradient in np.random.default_rng(0).normal([0.5, -0.3, 0.1], 0.6, (13, 3)):
        micro_batch(page, gradient)
        hosts.apply(ours, [gradient.astype(hosts.FLOATX)], [weights])
        # Keras has schedules in float32 on every backend.
        np.testing.assert_allclose(hosts.array(weights), page.weights, rtol=0, atol=1e-6)
    assert (ours.completed_updates, ours.window_position) == (page.updates, page.position)
    assert (page.updates, page.position) == (4, 1)
    for name, expected in zip(("momentum", "velocity", "average"), page.slots):
        (slot,) = [v for v in ours.variables if name in v.name]
        np.testing.assert_allclose(hosts.array(slot), expected, rtol=0, atol=1e-6)
