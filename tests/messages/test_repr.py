"""How an optimizer is printed: as the call that makes it."""

import hosts
import pytest
from cases import arguments_of, every_name, keras2_has_no
from hosts import accum, keras


def evaluated(optimizer, **more):
    return eval(repr(optimizer), {**vars(accum), **more})


@every_name
def test_defaults_are_left_out(name):
    rate = float(hosts.array(hosts.ours(name).learning_rate))
    rate = float(f"{rate:.3g}")  # it's a variable, in float32
    assert repr(hosts.ours(name)) == f"{name}Accumulate(learning_rate={rate}, accum_iters=1)"


def test_the_call_of_a_readme():
    assert repr(accum.AdamAccumulate(accum_iters=5)) == (
        "AdamAccumulate(learning_rate=0.001, accum_iters=5)"
    )
    text = repr(hosts.ours("Adam", learning_rate=1e-4, beta_1=0.8, accum_iters=5))
    assert text == "AdamAccumulate(learning_rate=0.0001, beta_1=0.8, accum_iters=5)"


@every_name
def test_every_argument(name):
    optimizer = hosts.ours(name, **arguments_of(name))
    again = evaluated(optimizer)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    assert repr(again) == repr(optimizer)


def test_what_has_been_set_since():
    optimizer = hosts.ours("SGD", accum_iters=5)
    optimizer.learning_rate, optimizer.accum_iters = 0.25, 7
    assert repr(optimizer) == "SGDAccumulate(learning_rate=0.25, accum_iters=7)"


@keras2_has_no("schedules")
def test_a_schedule():
    schedules = keras.optimizers.schedules
    optimizer = hosts.ours("SGD", learning_rate=schedules.ExponentialDecay(0.1, 2, 0.5, True))
    assert repr(optimizer) == (
        "SGDAccumulate(learning_rate=ExponentialDecay(initial_learning_rate=0.1, decay_steps=2, "
        "decay_rate=0.5, staircase=True), accum_iters=1)"
    )
    again = evaluated(optimizer, ExponentialDecay=schedules.ExponentialDecay)
    assert again.get_config()["learning_rate"] == optimizer.get_config()["learning_rate"]


def rate_of_mine(step=None):
    return 0.5


@keras2_has_no("learning rates that are functions")
@pytest.mark.filterwarnings("error")
def test_a_function():
    said = "rate_of_mine" if hosts.IS_KERAS3 else "0.5"  # what it gives now
    optimizer = hosts.ours("SGD", learning_rate=rate_of_mine)
    assert repr(optimizer) == f"SGDAccumulate(learning_rate={said}, accum_iters=1)"
    said = "<lambda>" if hosts.IS_KERAS3 else "0.5"
    optimizer = hosts.ours("SGD", learning_rate=lambda step=None: 0.5)
    assert repr(optimizer) == f"SGDAccumulate(learning_rate={said}, accum_iters=1)"


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


def test_it_is_printed_as_the_call():
    optimizer = accum.AdamAccumulate(accum_iters=5)
    assert str(optimizer) == repr(optimizer)


@keras2_has_no("other Keras beside it")
def test_where_another_keras_has_it():
    """Keras says this of an optimizer of another Keras. It can be evaluated all the same."""
    optimizer = accum.AdamAccumulate(accum_iters=5)
    other = "tf_keras" if hosts.IS_KERAS3 else "keras3"
    assert f"{optimizer}".startswith(f"{optimizer!r}  # of {type(optimizer).__module__}, for ")
    if type(optimizer).__module__ == accum.__name__:
        assert f": from keras_accum.{other} import AdamAccumulate." in f"{optimizer}"


def test_a_class_of_your_own():
    class Mine(keras.optimizers.SGD):
        def __init__(self, learning_rate=0.01, shoes="old", **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.shoes = shoes

        def get_config(self):
            return {**super().get_config(), "shoes": self.shoes}

    cls = accum.accumulating(Mine)
    assert repr(cls()).startswith("MineAccumulate(learning_rate=0.01, accum_iters=1")
    assert "shoes" not in repr(cls()) and "shoes='new'" in repr(cls(shoes="new"))
    assert "from keras_accum" not in f"{cls()}"
