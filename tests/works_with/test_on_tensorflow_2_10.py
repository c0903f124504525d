"""Packages of 2019 to 2022 for the Keras of TensorFlow 2.10, each in its own training."""

import subprocess
import sys

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch, distance, ours, run, stock
from hosts import accum, keras
from training import (
    BIG,
    EPOCHS,
    LENGTH,
    MICRO,
    SAMPLES,
    UPDATES,
    assert_equal,
    compiled,
    data,
    dense_model,
    fit,
    initialize,
    train,
    weights,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.10 alone"),
]
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def assert_equal_in_float64(cls, **arguments):
    """Compare `accumulating(cls)` with the class itself, as another package made it."""
    in_a_graph = {"run_eagerly": False}  # MadGrad keeps its first step in Python
    expected = train(cls(**arguments), BIG, compile=in_a_graph)
    actual = train(accum.accumulating(cls)(**arguments, accum_iters=LENGTH), MICRO)
    assert_equal(actual.weights, expected.weights, **EXACT)
    training.assert_moved(expected.start, expected.weights)


@pytest.mark.row(
    "adabelief-tf", "`accumulating(AdaBeliefOptimizer)`, also with decay and warm-up", "equal to "
    "the big batch, to 1e-9 in float64",
)  # fmt: skip
@pytest.mark.parametrize(
    "arguments",
    [{}, {"weight_decay": 0.01}, {"total_steps": 8, "warmup_proportion": 0.3, "amsgrad": True}],
)
def test_adabelief(arguments):
    from adabelief_tf import AdaBeliefOptimizer

    assert_equal_in_float64(
        AdaBeliefOptimizer, learning_rate=0.1, print_change_log=False, **arguments
    )


@pytest.mark.row(
    "tf-madgrad", "`accumulating(MadGrad)`", "equal to the big batch, to 1e-9 in float64"
)
def test_madgrad():
    from madgrad import MadGrad

    assert_equal_in_float64(MadGrad, learning_rate=0.01, weight_decay=0.01)


@pytest.mark.row(
    "keras-adabound", "`accumulating(AdaBound)`", "equal to the big batch, to 1e-9 in float64"
)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adabound(amsgrad):
    from keras_adabound import AdaBound

    assert_equal_in_float64(AdaBound, learning_rate=0.05, weight_decay=0.01, amsgrad=amsgrad)


@pytest.mark.row(
    "params-flow", "`accumulating(RAdam)`", "equal to the big batch, to 1e-9 in float64"
)
def test_params_flow():
    from params_flow.optimizers import RAdam

    assert_equal_in_float64(RAdam, learning_rate=0.1)


@pytest.mark.row(
    "keras-rectified-adam", "`accumulating(RAdam)`, also with decay and warm-up", "equal to the "
    "big batch, to 1e-9 in float64",
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.01, "total_steps": 8, "min_lr": 0.01}])
def test_rectified_adam(more):
    from keras_radam import RAdam

    assert_equal_in_float64(RAdam, learning_rate=0.1, **more)


@pytest.mark.row(
    "one-cycle-tf", "`OneCycle` as the learning rate", "counts updates, equal to the big batch"
)
@pytest.mark.usefixtures("float32")
def test_one_cycle():
    from one_cycle_tf import OneCycle

    rate = {"learning_rate": OneCycle(0.01, 0.1, UPDATES)}

    def trained(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size)
        return model

    pair = (
        lambda: hosts.stock("Adam", **rate),
        lambda: hosts.ours("Adam", accum_iters=LENGTH, **rate),
    )
    assert_equals_big_batch(trained, optimizers=pair)


@pytest.mark.row(
    "keras-buoy", "`ResumableModel.fit`, ended after an epoch and continued", "goes on as the big "
    "batch",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_buoy(tmp_path):
    from keras_buoy.models import ResumableModel

    runs = []

    def trained(optimizer, batch_size):
        path = str(tmp_path / f"{len(runs)}.h5")
        runs.append(path)
        x, y = data()
        settings = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
        model = compiled(dense_model(), optimizer)
        ResumableModel(model, save_every_epochs=1, to_path=path).fit(x, y, epochs=1, **settings)
        custom = {"AdamAccumulate": accum.AdamAccumulate}
        again = ResumableModel(
            dense_model(), save_every_epochs=1, to_path=path, custom_objects=custom
        )
        assert again.initial_epoch == 1
        again.fit(x, y, epochs=EPOCHS, **settings)
        return again.model

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "alt-model-checkpoint", "`AltModelCheckpoint` with a compiled copy of the model", "its file "
    "goes on as the big batch",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_alt_model_checkpoint(tmp_path):
    from alt_model_checkpoint.tensorflow import AltModelCheckpoint

    def trained(optimizer, batch_size):
        path = str(tmp_path / "model.h5")
        model = compiled(dense_model(), optimizer)
        copy = keras.Model(model.inputs, model.outputs)
        copy.compile(type(optimizer).from_config(optimizer.get_config()), "mse")
        fit(model, batch_size, epochs=1, callbacks=[AltModelCheckpoint(path, copy)])
        custom = {"AdamAccumulate": accum.AdamAccumulate}
        loaded = keras.models.load_model(path, custom_objects=custom)
        fit(loaded, batch_size, epochs=EPOCHS - 1)
        return loaded

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "tensorflow-lattice", "`PWLCalibration` and `Lattice` with `monotonicities`", "equal to the "
    "big batch: their projections run once per update",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_lattice():
    """The guess: equal."""
    import tensorflow_lattice as tfl

    def trained(optimizer, batch_size):
        x = keras.Input((3,))
        columns = hosts.tf.split(x, 3, axis=1)
        knots = np.linspace(-1, 1, 4)
        parts = [
            tfl.layers.PWLCalibration(
                knots, output_min=0, output_max=1, monotonicity="increasing", name=f"pwl{i}",
                kernel_regularizer=("hessian", 0, 0.01),
            )(column)
            for i, column in enumerate(columns)
        ]  # fmt: skip
        lattice = tfl.layers.Lattice([2, 2, 2], monotonicities=3 * ["increasing"], name="out")
        model = keras.Model(x, lattice(parts))
        model.compile(optimizer, keras.losses.MeanSquaredError())
        hosts.set_random_seed()
        random = np.random.default_rng(2)
        model.set_weights([random.uniform(0.2, 0.6, w.shape) for w in model.get_weights()])
        fit(model, batch_size, (data()[0], data()[1][:, :1]))
        return weights(model)

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "tensorflow-model-remediation",
    "`MinDiffModel` with `MMDLoss`",
    "not equal, as it compares the batch's samples, silently: make the micro-batches large",
)
@pytest.mark.usefixtures("float32")
def test_min_diff():
    """The guess: not equal, and `fit` warns."""
    from tensorflow_model_remediation import min_diff

    dataset = hosts.tf.data.Dataset.from_tensor_slices

    def trained(optimizer, batch_size):
        x, y = (array.astype("float32") for array in data())
        membership = (np.arange(SAMPLES) % 3 == 0).astype("float32")[:, None]
        pairs = min_diff.keras.utils.pack_min_diff_data(
            dataset((x, y[:, :1])).batch(batch_size), None, None,
            dataset((x[::-1].copy(), membership)).batch(batch_size),
        )  # fmt: skip
        base = hosts.sequential((3,), [keras.layers.Dense(1, activation="sigmoid", name="out")])
        model = min_diff.keras.MinDiffModel(base, min_diff.losses.MMDLoss(), loss_weight=2.0)
        model.compile(optimizer, keras.losses.MeanSquaredError())
        initialize(base)
        model.fit(pairs, epochs=EPOCHS, verbose=0)
        return weights(base)

    assert_off(trained, by=1e-3)


def assert_off(train, by):
    """Our weights differ from the big batch's."""
    found = distance(run(train, ours, MICRO), run(train, stock, BIG))
    assert found > by


SCIANN = """
import numpy as np
import sciann as sn
from keras_accum.tf_keras import AdamAccumulate
place = sn.Variable("x", dtype="float32")
u = sn.Functional("u", place, [4], "tanh")
model = sn.SciModel(place, u, "mse", AdamAccumulate(accum_iters=4))
model.train(np.ones((2, 1)), [np.ones((2, 1))], batch_size=1, epochs=1)
"""


@pytest.mark.row(
    "sciann", "`SciModel(optimizer=AdamAccumulate(...))`", "error: `import sciann` switches eager "
    "execution off",
)  # fmt: skip
def test_sciann():
    """The guess: equal with `shuffle=False`."""
    found = subprocess.run([sys.executable, "-c", SCIANN], stderr=subprocess.PIPE, text=True)
    assert "AdamAccumulate needs TensorFlow 2's eager execution" in found.stderr


@pytest.mark.row(
    "pyod", "`AutoEncoder(optimizer=AdamAccumulate(...))`, `dropout_rate=0`", "equal to the big "
    "batch, also with its `l2_regularizer` of activities",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_pyod():
    """The guess: equal."""
    from pyod.models.auto_encoder import AutoEncoder

    def trained(optimizer, batch_size):
        detector = AutoEncoder(
            [2, 2], optimizer=optimizer, batch_size=batch_size, epochs=EPOCHS, dropout_rate=0.0,
            validation_size=0.0, preprocessing=False, l2_regularizer=0.1, verbose=0, random_state=0,
        )  # fmt: skip
        hosts.tf.random.set_seed(1)
        detector.fit(data()[0])
        return {str(i): w for i, w in enumerate(detector.model_.get_weights())}

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "stellargraph",
    "`GCN` with `FullBatchNodeGenerator`",
    "nothing accumulates, with a warning: an epoch is one batch, with which its window ends; equal "
    "to the stock optimizer",
)
@pytest.mark.usefixtures("float32")
def test_stellargraph():
    """The guess: equal, with `accum_iters` times the epochs."""
    import pandas
    import stellargraph as sg

    nodes = pandas.DataFrame(data()[0])
    edges = pandas.DataFrame({"source": np.arange(SAMPLES), "target": np.arange(SAMPLES) * 5 % 11})
    graph = sg.StellarGraph(nodes, edges)
    generator = sg.mapper.FullBatchNodeGenerator(graph, method="gcn")

    def trained(optimizer, batch_size):
        network = sg.layer.GCN([4, 2], generator, activations=["tanh", "linear"])
        inputs, outputs = network.in_out_tensors()
        model = compiled(keras.Model(inputs, outputs), optimizer)
        batch = generator.flow(range(16), data()[1][:16])
        model.fit(batch, epochs=EPOCHS, shuffle=False, verbose=0)
        return {str(i): w for i, w in enumerate(model.get_weights())}

    expected = run(trained, stock, BIG)
    with pytest.warns(accum.AccumulationWarning, match="No window of this training was whole"):
        actual = run(trained, ours, MICRO)
    assert_equal(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.row("keras-gcn", "`GraphConv` and `GraphMaxPool`", "equal to the big batch")
@pytest.mark.usefixtures("float32")
def test_keras_gcn():
    """The guess: equal."""
    from keras_gcn import GraphConv, GraphMaxPool

    random = np.random.default_rng(4)
    x = random.normal(size=(SAMPLES, 5, 3)).astype("float32")
    edges = (random.uniform(size=(SAMPLES, 5, 5)) > 0.5) | np.eye(5, dtype=bool)

    def trained(optimizer, batch_size):
        nodes, pairs = keras.Input((5, 3)), keras.Input((5, 5))
        hidden = GraphConv(4, activation="tanh", name="conv")([nodes, pairs])
        pooled = GraphMaxPool(name="pool")([hidden, pairs])
        out = keras.layers.Dense(2, name="out")(keras.layers.Flatten()(pooled))
        model = compiled(keras.Model([nodes, pairs], out), optimizer)
        fit(model, batch_size, ([x, edges.astype("float32")], data()[1]))
        return weights(model)

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "keras-transformer", "`get_model`, also with padded targets", "equal to the big batch"
)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.usefixtures("float32")
def test_transformer(is_padded):
    """The guess: equal."""
    from keras_transformer import get_model

    random = np.random.default_rng(5)
    encoded, decoded, targets = random.integers(1, 7, (3, SAMPLES, 5))
    for i in range(SAMPLES if is_padded else 0):
        decoded[i, 1 + i % 5 :] = targets[i, 1 + i % 5 :] = 0

    def trained(optimizer, batch_size):
        model = compiled(get_model(7, 4, 1, 1, 2, 8), optimizer, "sparse_categorical_crossentropy")
        fit(model, batch_size, ([encoded, decoded], targets[:, :, None]))
        return {str(i): w for i, w in enumerate(model.get_weights())}

    assert_equals_big_batch(trained, atol=2e-5)


@pytest.mark.row(
    "ktrain", "`get_learner(...).fit_onecycle`", "not equal: the rate and momentum go through "
    "their cycle by micro-batches, silently; `fit` is equal",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_ktrain():
    """The guess: so."""
    import ktrain

    def trained_by(method):
        def trained(optimizer, batch_size):
            model = compiled(dense_model(), optimizer)
            learner = ktrain.get_learner(model, train_data=data(), batch_size=batch_size)
            if method == "fit":
                model.fit, stock_fit = (
                    lambda *a, **b: stock_fit(*a, **{**b, "shuffle": False, "verbose": 0}),
                    model.fit,
                )
            getattr(learner, method)(RATE, EPOCHS, verbose=0)
            return weights(model)

        return trained

    assert_equals_big_batch(trained_by("fit"))
    assert_off(trained_by("fit_onecycle"), by=1e-3)


@pytest.mark.row(
    "alibi-detect", "`models.tensorflow.trainer`, its own loop", "equal to the big batch"
)
@pytest.mark.usefixtures("float32")
def test_alibi_detect():
    """The guess: equal."""
    from alibi_detect.models.tensorflow.trainer import trainer

    def trained(optimizer, batch_size):
        model = initialize(dense_model())
        x, y = data()
        hosts.tf.random.set_seed(1)  # it shuffles
        trainer(
            model, keras.losses.MeanSquaredError(), x, y, optimizer=optimizer, epochs=EPOCHS,
            batch_size=batch_size, verbose=False,
        )  # fmt: skip
        return weights(model)

    assert_equals_big_batch(trained)
