"""How an optimizer is printed: its class, its learning rate and `accum_iters`."""

import hosts
import pytest
from cases import every_name, keras2_has_no
from hosts import accum


def said(optimizer):
    return f"<{type(optimizer).__module__}.{type(optimizer).__name__} learning_rate="


@every_name
def test_the_learning_rate_and_accum_iters(name):
    optimizer = hosts.ours(name, learning_rate=0.25, accum_iters=3)
    assert repr(optimizer) == str(optimizer) == f"{said(optimizer)}0.25 accum_iters=3>"
    optimizer.learning_rate, optimizer.accum_iters = 0.1, 7
    assert repr(optimizer) == f"{said(optimizer)}0.1 accum_iters=7>"


@keras2_has_no("learning rates that are functions")
@pytest.mark.filterwarnings("error")
def test_a_function():
    optimizer = hosts.ours("SGD", learning_rate=lambda step=None: 0.5)
    shown = 0.5 if hosts.IS_NEW_STYLE else "a schedule"  # that style calls the function once
    assert repr(optimizer) == f"{said(optimizer)}{shown} accum_iters=1>"


@pytest.mark.skipif(hosts.IS_KERAS2 or not hosts.IS_TENSORFLOW, reason="a graph of TensorFlow")
def test_in_a_traced_function():
    """A repr never raises."""
    optimizer, printed = hosts.ours("SGD", accum_iters=5), []

    @hosts.tf.function
    def trace():
        printed.append(repr(optimizer))

    trace()
    assert "SGDAccumulate" in printed[0]


def test_half_constructed():
    assert "AdamAccumulate" in repr(accum.AdamAccumulate.__new__(accum.AdamAccumulate))
