"""Packages for the standalone Keras 2.2.4 on TensorFlow 1: agents, samplers, noise and phones."""

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch, distance, ours, run, stock
from hosts import keras
from training import (
    BIG,
    EPOCHS,
    LENGTH,
    MICRO,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    go_on,
    initialize,
    weights,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_KERAS2, reason="Keras 2.2.4 alone"),
]

SGD = {"learning_rate": RATE, "momentum": 0.9}


def our_sgd(**arguments):
    return hosts.ours("SGD", accum_iters=LENGTH, **{**SGD, **arguments})


def on_batches(model, batch_size):
    """Train by `train_on_batch`, as these packages do."""
    for _ in range(EPOCHS):
        go_on(model, batch_size=batch_size)
    return model


@pytest.mark.row(
    "keras-rl",
    "`AdditionalUpdatesOptimizer(AdamAccumulate(...), updates)`, as in its agents",
    "weights equal to the big batch; the target network moves in each micro-batch, silently: run "
    "`K.function([], [], updates)` once per update instead",
)
def test_keras_rl():
    """The guess: equal, and a target network that moves `accum_iters` times too often."""
    from rl.util import AdditionalUpdatesOptimizer, get_soft_target_model_updates

    K, targets = keras.backend, []

    def train_with(is_wrapped):
        def train(optimizer, batch_size):
            model, target = dense_model(), initialize(dense_model())
            updates = get_soft_target_model_updates(target, model, 0.1)
            move = K.function([], [], updates)
            wrapped = AdditionalUpdatesOptimizer(optimizer, updates)
            compiled(model, wrapped if is_wrapped else optimizer)
            for x, y in EPOCHS * batches(batch_size):
                model.train_on_batch(x, y)
                if not (is_wrapped or getattr(optimizer, "window_position", 0)):
                    move([])
            targets.append(target.get_weights()[0])
            return {**weights(model), **({} if is_wrapped else {"target": targets[-1]})}

        return train

    assert_equals_big_batch(train_with(False))
    assert_equals_big_batch(train_with(True))
    expected, actual = targets[3:5]
    assert np.abs(actual - expected).max() > 0.05


@pytest.mark.row(
    "keras-importance-sampling", "`SVRGWrapper` with `SGDAccumulate`", "equal to the big batch"
)
def test_svrg():
    """The guess: refused, as it makes a subclass of the optimizer's class."""
    from importance_sampling.model_wrappers import SVRGWrapper

    class SGDInOrder(keras.optimizers.SGD):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            hosts.in_order(self)

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer, "mse")
        wrapper = SVRGWrapper(model)
        for _ in range(EPOCHS):
            wrapper.update_grad(batches(BIG))
            for x, y in batches(batch_size):
                wrapper.train_batch(x, y, None)
        return weights(model)

    pair = lambda: SGDInOrder(lr=RATE, momentum=0.9), our_sgd
    assert_equals_big_batch(train, optimizers=pair)


@pytest.mark.row(
    "keras-importance-sampling", "`KatyushaWrapper`",
    "not equal: it reads the rate alone, and makes its own step for each micro-batch, silently; "
    "use `SVRGWrapper`",
)  # fmt: skip
def test_katyusha():
    """The guess: equal, as the other one."""
    from importance_sampling.model_wrappers import KatyushaWrapper

    optimizer = our_sgd(momentum=0.0)
    model = compiled(dense_model(), optimizer, "mse")
    wrapper, start = KatyushaWrapper(model), weights(model)
    wrapper.update_grad(batches(BIG))
    for x, y in batches(MICRO)[:2]:  # the first one reads the weights before it
        wrapper.train_batch(x, y, None)
    assert optimizer.completed_updates == 0
    assert distance(weights(model), start) > 1e-3


def noise_of_an_update(optimizer):
    """Return the changes of 2000 weights in one update without a gradient."""
    model = hosts.sequential((1,), [keras.layers.Dense(2000, name="out")])
    model.compile(optimizer, lambda y, p: keras.backend.mean(0 * p, axis=-1))
    start = model.get_weights()[1]
    for _ in range(LENGTH if training.is_ours(optimizer) else 1):
        model.train_on_batch(np.ones((2, 1)), np.ones((2, 2000)))
    return model.get_weights()[1] - start


@pytest.mark.row(
    "keras-gradient-noise", "`add_gradient_noise(SGDAccumulate)`",
    "not equal: each micro-batch gets its own noise, so an update has half of it with "
    "`accum_iters=4`, silently; multiply `noise_eta` by `accum_iters`",
)  # fmt: skip
def test_noise():
    """The guess: half of the noise, and `noise_eta` is a variance."""
    from keras_gradient_noise import add_gradient_noise

    def std(base, **arguments):
        optimizer = add_gradient_noise(base)(lr=1.0, **arguments)
        return noise_of_an_update(optimizer).std()

    expected = std(keras.optimizers.SGD, noise_eta=1.0)
    cls = hosts.accum.SGDAccumulate
    assert 0.45 < std(cls, noise_eta=1.0, accum_iters=LENGTH) / expected < 0.55
    assert 0.9 < std(cls, noise_eta=float(LENGTH), accum_iters=LENGTH) / expected < 1.1


@pytest.mark.row(
    "keras-lookahead", "`Lookahead(SGDAccumulate(...))`",
    "refused by name: an optimizer around ours would act in each micro-batch",
)  # fmt: skip
def test_lookahead():
    """The guess: an error."""
    from keras_lookahead import Lookahead

    with pytest.raises(ValueError, match="SGDAccumulate doesn't write .*keras_lookahead"):
        on_batches(compiled(dense_model(), Lookahead(our_sgd())), MICRO)


@pytest.mark.row(
    "keras-pickle-wrapper", "a model pickled inside a window", "goes on as the big batch"
)
def test_pickled():
    """The guess: equal, as it pickles an `.h5` file."""
    import pickle

    from keras_pickle_wrapper import KerasPickleWrapper

    def train(optimizer, batch_size):
        model = go_on(compiled(dense_model(), optimizer), stop=5, batch_size=batch_size)
        if training.is_ours(optimizer):
            assert optimizer.window_position == 1
            model = pickle.loads(pickle.dumps(KerasPickleWrapper(model)))()
            assert model.optimizer.window_position == 1
        return go_on(model, 5, batch_size=batch_size)

    assert_equals_big_batch(train)


@pytest.mark.row(
    "keras-lr-finder", "`LRFinder.find`, then `fit`",
    "a search that ends inside a window leaves it open, silently: call "
    "`optimizer.discard_window()` before `fit`, which is then equal to the big batch",
)  # fmt: skip
def test_lr_finder(tmp_path, monkeypatch):
    """The guess: equal, as it restores weights and rate."""
    from keras_lr_finder import LRFinder

    monkeypatch.chdir(tmp_path)  # it keeps the weights in a file

    def train_with(is_discarded):
        def train(optimizer, batch_size):
            model = compiled(dense_model(), optimizer)
            x, y = data()
            LRFinder(model).find(x[:6], y[:6], 1e-4, 1e-3, batch_size=2)
            if is_discarded and training.is_ours(optimizer):
                optimizer.discard_window()
            fit(model, batch_size)
            return weights(model)

        return train

    # A rate alone, so that the stock optimizer keeps nothing of the search.
    pair = lambda: hosts.stock("SGD", learning_rate=RATE), lambda: our_sgd(momentum=0.0)
    assert_equals_big_batch(train_with(True), optimizers=pair)
    expected = run(train_with(False), pair[0], BIG)
    assert distance(run(train_with(False), pair[1], MICRO), expected) > 1e-3


@pytest.mark.row(
    "coremltools", "`converters.keras.convert(model, respect_trainable=True)`",
    "writes plain Adam or SGD with batches of 16: the phone doesn't accumulate, silently",
)  # fmt: skip
def test_coremltools():
    """The guess: refused, as it knows stock classes alone."""
    import coremltools

    spec = {}
    for name, optimizer in {"stock": stock(), "ours": ours()}.items():
        model = compiled(dense_model(), optimizer)
        spec[name] = coremltools.converters.keras.convert(model, respect_trainable=True).get_spec()
    found = [s.neuralNetwork.updateParams.optimizer for s in spec.values()]
    assert found[0] == found[1] and found[1].adamOptimizer.miniBatchSize.defaultValue == 16
