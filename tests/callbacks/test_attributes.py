"""Optimizers that a model keeps as attributes, in lists and dictionaries: `fit` finds each one."""

import hosts
import numpy as np
import pytest
from hosts import accum, keras
from training import data
from zoo import Halves

if hosts.IS_KERAS2 or hosts.BACKEND == "jax":
    pytest.skip("a train step that calls several optimizers", allow_module_level=True)


class InDictionary(Halves):
    """Its second optimizer is in a dictionary."""

    def __init__(self, first, second):
        super().__init__(first, None)
        self.more = {"second": second}

    def list_optimizers(self):
        return self.first, self.more["second"]


def trained(first, second, callbacks=()):
    model, (x, y) = InDictionary(first, second), data()
    model(x[:1])
    for layer in (model.a, model.b):
        layer.set_weights([np.full((3, 2), 0.5)])
    for optimizer, layer in ((first, model.a), (second, model.b)):
        hosts.build_on(optimizer, layer.trainable_variables)
    model.compile()
    model.fit(x[:10], y[:10], batch_size=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def sgd(length=None, reduction="auto"):
    if length is None:
        return hosts.stock("SGD", learning_rate=0.25)
    return hosts.ours("SGD", learning_rate=0.25, accum_iters=length, reduction=reduction)


def test_apply_partial_window_closes_all():
    first, second = sgd(2, "mean"), sgd(3, "mean")
    trained(first, second, [accum.ApplyPartialWindow()])
    assert (first.completed_updates, first.window_position) == (3, 0)
    assert (second.completed_updates, second.window_position) == (2, 0)


def test_callbacks_for_one_optimizer():
    seen = []
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *given: seen.append(given))
    callbacks = [accum.OnUpdates([each]), accum.AccumulationMonitor()]
    model = trained(sgd(2, "mean"), sgd(), callbacks)
    assert model.first.completed_updates == 2 and len(seen) == 2
    assert model.history.history["completed_updates"] == [2]
    several = "has several.*'first': .*'more': "
    for callback in (accum.OnUpdates([each]), accum.AccumulationMonitor()):
        with pytest.raises(TypeError, match=several):
            trained(sgd(2), sgd(2), [callback])


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="its files of weights have all optimizers")
def test_a_file_of_weights_has_the_windows_of_both(tmp_path):
    path = str(tmp_path / "both.weights.h5")
    model = trained(sgd(3, "mean"), sgd(4, "mean"))
    model.save_weights(path)
    other = trained(sgd(3, "mean"), sgd(4, "mean"))
    for optimizer in (other.first, other.more["second"]):
        optimizer.apply_partial_window()
    other.load_weights(path)
    pairs = (model.first, other.first), (model.more["second"], other.more["second"])
    for mine, loaded in pairs:
        assert loaded.window_position == mine.window_position > 0
        state, found = mine.get_state(), loaded.get_state()
        for name in state.keys() - {"weight_names"}:  # the second model has other numbers
            np.testing.assert_array_equal(found[name], state[name], err_msg=name)
