"""Deep Gaussian processes, Bayesian optimization and chemistry on tf_keras."""

import copy

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch, distance, ours, run
from hosts import accum, keras
from training import BIG, EPOCHS, LENGTH, MICRO, SAMPLES, data, dense_model, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="tf_keras alone"),
]


def newer():
    return keras.optimizers.Adam(RATE)


def our_newer():
    """Our form of the newer style, which these packages ask for."""
    return accum.accumulating(keras.optimizers.Adam)(RATE, accum_iters=LENGTH)


def deep_gp():
    """Return a deep Gaussian process of one layer: samples between layers would differ."""
    import gpflow
    import gpflux

    layer = gpflux.layers.GPLayer(
        gpflux.helpers.construct_basic_kernel(
            gpflow.kernels.SquaredExponential(), output_dim=1, share_hyperparams=True
        ),
        gpflux.helpers.construct_basic_inducing_variables(
            4, input_dim=3, output_dim=1, share_variables=True,
            z_init=data()[0][:4].astype("float64"),
        ),
        num_data=SAMPLES, num_latent_gps=1, mean_function=gpflow.mean_functions.Zero(),
    )  # fmt: skip
    likelihood = gpflux.layers.LikelihoodLayer(gpflow.likelihoods.Gaussian(0.1))
    return gpflux.models.DeepGP([layer], likelihood)


def trained_deep_gp(optimizers, batch_size, **more):
    deep = deep_gp()
    model = deep.as_training_model(**more)
    if more:
        model.natgrad_layers = True
    model.compile(optimizers)
    x, y = (array.astype("float64") for array in data())
    fed = {"inputs": x, "targets": y[:, :1]}
    model.fit(fed, batch_size=batch_size, epochs=EPOCHS, shuffle=False, verbose=0)
    return {str(i): v.numpy() for i, v in enumerate(deep.trainable_variables)}


@pytest.mark.row(
    "gpflux",
    "`DeepGP.as_training_model()`",
    "equal to the big batch with one layer; of several, the lower ones draw samples, so it is "
    "another run, as with dropout",
)
def test_gpflux():
    """The guess: equal, as each layer's KL is divided by `num_data`."""
    pair = newer, our_newer
    assert_equals_big_batch(trained_deep_gp, optimizers=pair, atol=1e-9)


@pytest.mark.row(
    "gpflux",
    "`NatGradModel`, with one of ours as its last optimizer",
    "not equal: it makes a step of natural gradients in each micro-batch; `fit` warns of its "
    "`train_step`; train without it",
)
def test_natural_gradients():
    """The guess: not equal, and `fit` warns of its `train_step`."""
    import gpflow
    from gpflux.optimization import NatGradModel

    steps = []

    class Counted(gpflow.optimizers.NaturalGradient):
        def _natgrad_apply_gradients(self, *arguments):
            hosts.tf.py_function(lambda: steps.append(1), [], [])
            return super()._natgrad_apply_gradients(*arguments)

    def train(optimizer, batch_size):
        optimizers = [Counted(0.1), optimizer]
        return trained_deep_gp(optimizers, batch_size, model_class=NatGradModel)

    expected = run(train, newer, BIG)
    updates = len(steps)
    with pytest.warns(hosts.accum.AccumulationWarning, match="own `train_step`"):
        actual = run(train, our_newer, MICRO)
    assert distance(actual, expected) > 0.01
    assert len(steps) - updates == LENGTH * updates


@pytest.mark.row(
    "trieste",
    "`DeepGaussianProcess` with `KerasOptimizer(accumulating(keras.optimizers.Adam)(...))`",
    "equal to the big batch, also after a `deepcopy`, after which stock Adam fails with a KeyError",
)
def test_trieste():
    """The guess: equal."""
    from trieste.data import Dataset
    from trieste.models.gpflux import DeepGaussianProcess
    from trieste.models.optimizer import KerasOptimizer

    def made(optimizer, batch_size):
        settings = {"batch_size": batch_size, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
        return DeepGaussianProcess(deep_gp, KerasOptimizer(optimizer, settings))

    x, y = (array.astype("float64") for array in data())
    arrays = Dataset(hosts.tf.constant(x), hosts.tf.constant(y[:, :1]))

    def train(optimizer, batch_size):
        model = made(optimizer, batch_size)
        model.optimize(arrays)
        return {str(i): v.numpy() for i, v in enumerate(model.model_gpflux.trainable_variables)}

    assert_equals_big_batch(train, optimizers=(newer, our_newer), atol=1e-9)

    model = made(our_newer(), MICRO)
    model.optimize(arrays)
    copied = copy.deepcopy(model)
    for each in (model, copied):
        each.optimize(arrays)
    for a, b in zip(*(m.model_gpflux.trainable_variables for m in (copied, model))):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    model = made(newer(), BIG)
    model.optimize(arrays)
    copied = copy.deepcopy(model)
    with pytest.raises(KeyError):
        copied.optimize(arrays)


@pytest.mark.row(
    "trieste", "`KerasOptimizer(AdamAccumulate(...))`", "refused by name: it asks for the newer "
    "style, `accumulating(keras.optimizers.Adam)`",
)  # fmt: skip
def test_trieste_refuses():
    """The guess: taken."""
    from trieste.models.gpflux import DeepGaussianProcess
    from trieste.models.optimizer import KerasOptimizer

    with pytest.raises(ValueError, match="AdamAccumulate"):
        DeepGaussianProcess(deep_gp, KerasOptimizer(ours()))


def chemist(tmp_path, optimizer, batch_size, model):
    import deepchem

    class Given(deepchem.models.optimizers.Optimizer):
        def _create_tf_optimizer(self, global_step):
            return optimizer

    return deepchem.models.KerasModel(
        model, deepchem.models.losses.L2Loss(), optimizer=Given(RATE), batch_size=batch_size,
        model_dir=str(tmp_path), log_frequency=1000,
    )  # fmt: skip


@pytest.mark.row(
    "deepchem",
    "`KerasModel.fit`, with one of ours from a deepchem Optimizer's `_create_tf_optimizer`",
    "equal to the big batch, also with a short last batch, which it pads with weight 0",
)
@pytest.mark.usefixtures("float32")
def test_deepchem(tmp_path):
    """The guess: not equal with a short batch."""
    import deepchem

    def train(optimizer, batch_size):
        x, y = (array.astype("float32")[:-1] for array in data())
        model = initialize(dense_model())
        wrapped = chemist(tmp_path, optimizer, batch_size, model)
        wrapped.fit(
            deepchem.data.NumpyDataset(x, y), nb_epoch=EPOCHS, deterministic=True,
            checkpoint_interval=0,
        )  # fmt: skip
        return training.weights(model)

    assert_equals_big_batch(train)


@pytest.mark.row(
    "deepchem",
    "`KerasModel.fit(..., variables=[...])`",
    "not equal: it gives the optimizer a gradient of zeros first, so windows begin one micro-batch "
    "early, silently; set `layer.trainable = False` for the others instead, which is equal",
)
@pytest.mark.usefixtures("float32")
def test_deepchem_variables(tmp_path):
    """The guess: equal."""
    import deepchem

    def train_by(is_frozen):
        def train(optimizer, batch_size):
            x, y = (array.astype("float32") for array in data())
            model = initialize(dense_model())
            model.layers[0].trainable = not is_frozen
            wrapped = chemist(tmp_path, optimizer, batch_size, model)
            more = {} if is_frozen else {"variables": model.layers[1].trainable_variables}
            wrapped.fit(
                deepchem.data.NumpyDataset(x, y), nb_epoch=EPOCHS, deterministic=True,
                checkpoint_interval=0, **more,
            )  # fmt: skip
            return training.weights(model)

        return train

    sgd = (
        lambda: hosts.stock("SGD", learning_rate=RATE),
        lambda: hosts.ours("SGD", learning_rate=RATE, accum_iters=LENGTH),
    )
    assert_equals_big_batch(train_by(True), optimizers=sgd)
    expected = run(train_by(False), sgd[0], BIG)
    assert distance(run(train_by(False), sgd[1], MICRO), expected) > 1e-3
