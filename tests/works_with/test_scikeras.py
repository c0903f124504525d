"""scikeras: estimators of scikit-learn, which are given the optimizer's class."""

import pickle

import hosts
import numpy as np
import pytest
from against_stock import RATE, assert_equals_big_batch, ours
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, data, dense_model, initialize

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("float32")]


def build(compile_kwargs):
    model = dense_model()
    model.compile(**compile_kwargs)
    return initialize(model)


def estimator(optimizer, batch_size, **arguments):
    from scikeras.wrappers import KerasRegressor

    settings = {"batch_size": batch_size, "epochs": EPOCHS, "verbose": 0, "fit__shuffle": False}
    settings.update(optimizer__learning_rate=RATE, **arguments)
    return KerasRegressor(build, loss="mse", optimizer=optimizer, **settings)


def by_class(cls, batch_size):
    length = {"optimizer__accum_iters": LENGTH} if cls is not keras.optimizers.Adam else {}
    return estimator(cls, batch_size, **length)


CLASSES = lambda: keras.optimizers.Adam, lambda: hosts.accum.AdamAccumulate


@pytest.mark.row(
    "scikeras",
    "`optimizer=AdamAccumulate, optimizer__accum_iters=4`: `fit`, then `partial_fit`",
    "equal to the big batch",
)
def test_scikeras():
    """The guess: equal."""

    def train(cls, batch_size):
        return by_class(cls, batch_size).fit(*data()).partial_fit(*data()).model_

    assert_equals_big_batch(train, optimizers=CLASSES)


@pytest.mark.row(
    "scikeras",
    "an estimator pickled between two `partial_fit`",
    "goes on as the big batch",
)
def test_pickled():
    """The guess: the window is kept, too."""

    def train(cls, batch_size):
        fitted = by_class(cls, batch_size).partial_fit(*data())
        return pickle.loads(pickle.dumps(fitted)).partial_fit(*data()).model_

    assert_equals_big_batch(train, optimizers=CLASSES)


@pytest.mark.row(
    "scikeras",
    "`GridSearchCV` over `optimizer__accum_iters`",
    "the scores of these big batches",
)
def test_grid_search():
    """The guess: equal, since each fit makes its own optimizer. A fold has 12 samples."""
    from sklearn.model_selection import GridSearchCV

    lengths, settings = [2, 6], {"cv": 2, "error_score": "raise", "refit": False}
    searched = estimator(hosts.accum.AdamAccumulate, MICRO)
    found = GridSearchCV(searched, {"optimizer__accum_iters": lengths}, **settings).fit(*data())
    reference = estimator(keras.optimizers.Adam, BIG)
    sizes = {"batch_size": [MICRO * length for length in lengths]}
    expected = GridSearchCV(reference, sizes, **settings).fit(*data())
    scores = expected.cv_results_["mean_test_score"]
    assert abs(scores[0] - scores[1]) > 1e-3
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], scores, rtol=1e-5)


@pytest.mark.row(
    "scikeras",
    "an instance as `optimizer` instead of the class",
    "error at the second `fit`, which has a new model: give the class",
)
def test_instance():
    """The guess: scikeras copies the instance. It doesn't."""
    from scikeras.wrappers import KerasRegressor

    settings = {"loss": "mse", "optimizer": ours(), "batch_size": MICRO, "verbose": 0}
    fitted = KerasRegressor(build, **settings).fit(*data())
    with pytest.raises(ValueError, match="AdamAccumulate was built for"):
        fitted.fit(*data())
