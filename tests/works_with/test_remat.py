"""Keras's rematerialization, which also trades time for memory."""

import hosts
import pytest
from hosts import keras
from training import BIG, LENGTH, MICRO, assert_equal, dense_model, train

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(hosts.IS_TENSORFLOW, reason="Keras's own `fit` fails: see the page"),
]


def rematerialized():
    with keras.RematScope(mode="full"):
        return dense_model()


@pytest.mark.row(
    "keras", '`RematScope(mode="full")` around the model', "equal to the big batch, to 6e-8"
)
@pytest.mark.parametrize("how", ["optimizer", "sample", "batch"])
def test_remat_scope(how):
    expected = train(hosts.stock("Adam", learning_rate=0.01), BIG)
    if how == "optimizer":
        optimizer = hosts.ours("Adam", learning_rate=0.01, accum_iters=LENGTH)
        actual = train(optimizer, MICRO, rematerialized)
    else:
        slices = [hosts.accum.MicroBatches(MICRO, loss=how)]
        optimizer = hosts.stock("Adam", learning_rate=0.01)
        actual = train(optimizer, BIG, rematerialized, callbacks=slices)
    assert_equal(actual.weights, expected.weights, rtol=0, atol=6e-7)
