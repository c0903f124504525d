"""Packages of 2017 to 2021 for the standalone Keras 2.2.4 on TensorFlow 1."""

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
    SAMPLES,
    UPDATES,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    go_on,
    initialize,
    is_ours,
    weights,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_KERAS2, reason="Keras 2.2.4 alone"),
]

# -- agents, samplers, noise and phones ------------------------------------------------------------

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


# -- detection, text, plots and exports ------------------------------------------------------------


def off(train, by):
    """Our weights differ from the big batch's."""
    found = distance(run(train, ours, MICRO), run(train, stock, BIG))
    assert found > by


ANCHORS = 6


def detections():
    """Targets for anchors of each image: a class, and whether the anchor has an object."""
    random = np.random.default_rng(3)
    objects = random.uniform(size=(SAMPLES, ANCHORS)) < np.linspace(0.1, 0.9, SAMPLES)[:, None]
    labels = np.stack([objects, objects], -1).astype("float32")
    x = random.uniform(-1, 1, (SAMPLES, ANCHORS, 3)).astype("float32")
    return x, labels


@pytest.mark.row(
    "keras-retinanet",
    "`losses.focal()`",
    "not equal, as it divides by the anchors with an object in the batch, silently: multiply it by "
    "their number, and divide by that of images",
)
def test_retinanet():
    """The guess: not equal, and nothing is said."""
    from keras_retinanet.losses import focal

    K = keras.backend

    def by_image(y, p):
        objects = K.sum(K.cast(K.equal(y[:, :, -1], 1), "float32"))
        return focal()(y, p) * K.maximum(1.0, objects) / K.cast(K.shape(y)[0], "float32")

    def train_with(loss):
        def train(optimizer, batch_size):
            layers = [keras.layers.Dense(1, activation="sigmoid", name="out")]
            model = hosts.sequential((ANCHORS, 3), layers)
            fit(compiled(model, optimizer, loss), batch_size, detections())
            return model

        return train

    off(train_with(focal()), by=1e-3)
    assert_equals_big_batch(train_with(by_image))


@pytest.mark.row(
    "mrcnn",
    "`rpn_class_loss_graph` in `add_loss`, as matterport's `compile` does",
    "equal to the big batch with as many anchors in each image, as its generator gives them",
)
def test_matterport():
    """The guess: not equal, as it is a mean over the batch's anchors."""
    from mrcnn.model import rpn_class_loss_graph

    x, labels = detections()
    match = np.where(labels[:, :, :1] == 1, 1, -1).astype("int32")
    match[:, 0] = 0  # neutral

    def train(optimizer, batch_size):
        images = keras.layers.Input((ANCHORS, 3))
        matches = keras.layers.Input((ANCHORS, 1), dtype="int32")
        logits = keras.layers.Dense(2, name="out")(images)
        loss = keras.layers.Lambda(lambda pair: rpn_class_loss_graph(*pair), name="loss")
        model = keras.models.Model([images, matches], [logits, loss([matches, logits])])
        model.add_loss(hosts.tf.reduce_mean(model.get_layer("loss").output, keepdims=True))
        model.compile(optimizer, loss=[None, None])
        fit(initialize(model), batch_size, ([x, match], []))
        return weights(model)

    assert_equals_big_batch(train)


@pytest.mark.row(
    "bert4keras",
    "`extend_with_weight_decay(AdamAccumulate)`, and with piecewise rates, layer adaptation, lazy "
    "updates",
    "refused by name",
)
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("weight_decay", {"weight_decay_rate": 0.01}),
        ("layer_adaptation", {}),
        ("piecewise_linear_lr", {"lr_schedule": {10: 1.0}}),
        ("lazy_optimization", {"include_in_lazy_optimization": ["out"]}),
    ],
)
def test_bert4keras(name, arguments):
    """The guess: refused, as each replaces `K.update`."""
    from bert4keras import optimizers

    cls = getattr(optimizers, f"extend_with_{name}")(hosts.accum.AdamAccumulate)
    with pytest.raises(ValueError, match="was replaced.*bert4keras.optimizers"):
        go_on(compiled(dense_model(), cls(accum_iters=LENGTH, **arguments)))


@pytest.mark.row(
    "bert4keras",
    "`extend_with_exponential_moving_average(AdamAccumulate)`",
    "weights equal to the big batch; the average isn't: it moves in each micro-batch, and "
    "`apply_ema_weights` divides it by the number of updates, silently, so after 2 updates it is 3 "
    "times too large: keep an average of your own",
)
def test_bert4keras_average():
    """The guess: as keras-rl's target network."""
    from bert4keras.optimizers import extend_with_exponential_moving_average as extend

    averages = []

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size)
        averages.append(keras.backend.batch_get_value(optimizer.ema_weights))
        return weights(model)

    def extended(cls, **arguments):
        return extend(cls)(lr=RATE, ema_momentum=0.9, **arguments)

    class Adam(keras.optimizers.Adam):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            hosts.in_order(self)

    pair = (
        lambda: extended(Adam),
        lambda: extended(hosts.accum.AdamAccumulate, accum_iters=LENGTH),
    )
    assert_equals_big_batch(train, optimizers=pair)
    assert np.abs(averages[1][0] - averages[0][0]).max() > 0.05

    # Weights that never change have themselves as their average.
    optimizer = extend(hosts.accum.AdamAccumulate)(lr=0.0, ema_momentum=0.9, accum_iters=LENGTH)
    model = compiled(dense_model(), optimizer)
    start = model.get_weights()[0]
    go_on(model, stop=2 * LENGTH)
    optimizer.apply_ema_weights()
    np.testing.assert_allclose(model.get_weights()[0], start * 2.997, rtol=1e-3)


@pytest.mark.row(
    "keras-radam",
    "`accumulating(RAdam)`, which Keras 2.2 hasn't",
    "error; bert4keras's `extend_with_gradient_accumulation` takes any class there, but updates "
    "one micro-batch late, and counts micro-batches in `iterations`",
)
def test_radam():
    """The guess: an error. The peer: off, as `iterations` counts micro-batches."""
    from bert4keras.optimizers import extend_with_gradient_accumulation as extend
    from keras_radam import RAdam

    with pytest.raises(AttributeError, match="AdamAccumulate"):
        hosts.accum.accumulating(RAdam)

    optimizer = extend(RAdam)(learning_rate=RATE, grad_accum_steps=LENGTH)
    model = compiled(dense_model(), optimizer)
    start = weights(model)
    assert distance(weights(go_on(model, stop=LENGTH)), start) == 0
    assert distance(weights(go_on(model, LENGTH, LENGTH + 1)), start) > 0
    assert keras.backend.get_value(optimizer.iterations) == LENGTH + 1


@pytest.mark.row(
    "innvestigate", "`create_analyzer` and `analyze` inside a window", "goes on as the big batch"
)
def test_innvestigate():
    """The guess: equal, as an analyzer is a model of its own."""
    import innvestigate

    def train(optimizer, batch_size):
        x, y = data()
        layers = [keras.layers.Dense(4, activation="relu", name="hidden"),
                  keras.layers.Dense(2, name="out")]  # fmt: skip
        model = compiled(hosts.sequential((3,), layers), optimizer)
        go_on(model, stop=5, batch_size=batch_size)
        for name in ("gradient", "lrp.epsilon", "deep_taylor"):
            found = innvestigate.create_analyzer(name, model).analyze(x)
            assert found.shape == x.shape
        return go_on(model, 5, batch_size=batch_size)

    assert_equals_big_batch(train)


@pytest.mark.row(
    "livelossplot", "`PlotLossesKeras`", "a point per epoch, weights equal to the big batch"
)
def test_livelossplot(monkeypatch):
    """The guess: equal."""
    import matplotlib

    matplotlib.use("Agg")
    from livelossplot import PlotLossesKeras

    def train(optimizer, batch_size):
        plot = PlotLossesKeras()
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size, callbacks=[plot])
        assert len(plot.liveplot.logs) == EPOCHS
        return model

    assert_equals_big_batch(train)


@pytest.mark.row(
    "keras2onnx", "`convert_keras` inside a window", "goes on as the big batch; the file has no "
    "optimizer",
)  # fmt: skip
def test_keras2onnx():
    """The guess: equal."""
    import keras2onnx

    def train(optimizer, batch_size):
        model = go_on(compiled(dense_model(), optimizer), stop=5, batch_size=batch_size)
        found = keras2onnx.convert_keras(model)
        assert len(found.graph.initializer) == 4
        return go_on(model, 5, batch_size=batch_size)

    assert_equals_big_batch(train)


@pytest.mark.row(
    "tensorflowjs", "`converters.save_keras_model` inside a window", "goes on as the big batch; "
    "the files have no optimizer",
)  # fmt: skip
def test_tensorflowjs(tmp_path):
    """The guess: equal."""
    import json

    from tensorflowjs.converters import save_keras_model

    def train(optimizer, batch_size):
        model = go_on(compiled(dense_model(), optimizer), stop=5, batch_size=batch_size)
        save_keras_model(model, str(tmp_path))
        (group,) = json.loads((tmp_path / "model.json").read_text())["weightsManifest"]
        assert len(group["weights"]) == 4
        return go_on(model, 5, batch_size=batch_size)

    assert_equals_big_batch(train)


@pytest.mark.row("tensorflow-determinism", "`patch()`", "equal to the big batch")
def test_determinism(monkeypatch):
    """The guess: equal."""
    from tensorflow.python.ops import nn
    from tfdeterminism import patch

    monkeypatch.setattr(nn, "bias_add", nn.bias_add)  # puts it back
    monkeypatch.setattr(hosts.tf.nn, "bias_add", hosts.tf.nn.bias_add)
    monkeypatch.setenv("TF_CUDNN_DETERMINISTIC", "0")
    patch()

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size)
        return model

    assert_equals_big_batch(train)


@pytest.mark.row("keras-tqdm", "`TQDMCallback`", "the bar counts samples, so it is the big batch's")
def test_tqdm():
    """The guess: the bar counts micro-batches."""
    import io

    from keras_tqdm import TQDMCallback

    totals = []

    class Bars(TQDMCallback):
        def tqdm(self, desc, total, leave):
            totals.append(total)
            return super().tqdm(desc, total, leave)

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size, callbacks=[Bars(output_file=io.StringIO())])
        return model

    assert_equals_big_batch(train)
    assert totals == 3 * [EPOCHS, *EPOCHS * [SAMPLES]]


@pytest.mark.row(
    "imbalanced-learn",
    "`keras.BalancedBatchGenerator` with a `random_state`",
    "equal to the big batch if `accum_iters` divides the number of its batches",
)
def test_imbalanced():
    """The guess: equal."""
    from imblearn.keras import BalancedBatchGenerator

    x, y = data()
    x, y = np.concatenate([x, x]), np.arange(2 * SAMPLES) % 3 == 0  # 16 of 48

    def train(optimizer, batch_size):
        batches = BalancedBatchGenerator(x, y, batch_size=batch_size, random_state=0)
        layers = [keras.layers.Dense(1, activation="sigmoid", name="out")]
        model = compiled(hosts.sequential((3,), layers), optimizer, "binary_crossentropy")
        model.fit_generator(batches, epochs=EPOCHS, shuffle=False, verbose=0)
        return model

    assert_equals_big_batch(train)


@pytest.mark.row(
    "talos", "`lr_normalizer(lr, AdamAccumulate)`",
    "leaves the rate as it is, silently, 1000 times Adam's: give it `keras.optimizers.Adam`",
)  # fmt: skip
def test_talos():
    """The guess: refused by name."""
    from talos.model.normalizers import lr_normalizer

    assert lr_normalizer(1.0, keras.optimizers.Adam) == 1e-3
    assert lr_normalizer(1.0, hosts.accum.AdamAccumulate) == 1.0


@pytest.mark.row(
    "tensorflow-constrained-optimization",
    "`ProxyLagrangianOptimizerV1(AdamAccumulate(...))`",
    "AttributeError in `minimize`: it needs an optimizer of TensorFlow 1",
)
def test_constrained():
    """The guess: an error that names ours."""
    import tensorflow_constrained_optimization as tfco

    weight = hosts.tf.Variable([1.0, 2.0])

    class Problem(tfco.ConstrainedMinimizationProblem):
        num_constraints = 1

        def objective(self):
            return hosts.tf.reduce_sum(weight**2)

        def constraints(self):
            return hosts.tf.reshape(1 - hosts.tf.reduce_sum(weight), (1,))

    optimizer = tfco.ProxyLagrangianOptimizerV1(ours(), num_constraints=1)
    with pytest.raises(AttributeError, match="AdamAccumulate"):
        optimizer.minimize(Problem(), var_list=[weight])


@pytest.mark.row(
    "keras-lr-multiplier", "`LRMultiplier(SGDAccumulate(...), multipliers)`, also saved inside a "
    "window", "equal to the big batch; with Adam, `iterations` counts once for each different "
    "multiplier, as without this package ([shown](../findings/keras_lr_multiplier_steps.sh))",
)  # fmt: skip
def test_lr_multiplier(tmp_path):
    """The guess: refused by name, as keras-lookahead."""
    from keras_lr_multiplier import LRMultiplier

    path, counts = str(tmp_path / "model.h5"), []

    def train(optimizer, batch_size):
        wrapped = LRMultiplier(optimizer, {"hidden": 0.5})
        if not is_ours(optimizer):
            hosts.in_order(wrapped)
        model = go_on(compiled(dense_model(), wrapped), stop=5, batch_size=batch_size)
        if is_ours(optimizer):
            model.save(path)
            keras.backend.clear_session()
            model = keras.models.load_model(path, {"LRMultiplier": LRMultiplier})
        go_on(model, 5, batch_size=batch_size)
        for _ in range(EPOCHS - 1):
            go_on(model, batch_size=batch_size)
        counts.append(int(keras.backend.get_value(model.optimizer.optimizer.iterations)))
        return weights(model)

    rates = {"learning_rate": RATE, "momentum": 0.9}
    pair = (
        lambda: keras.optimizers.SGD(lr=RATE, momentum=0.9),
        lambda: hosts.ours("SGD", accum_iters=LENGTH, **rates),
    )
    assert_equals_big_batch(train, optimizers=pair)
    assert counts[1] == 2 * UPDATES


@pytest.mark.row(
    "anago", "`Sequence(optimizer=AdamAccumulate(...), dropout=0.0)`, whose CRF is padded in each "
    "batch", "equal to the big batch",
)  # fmt: skip
def test_anago(monkeypatch):
    """The guess: not equal, as a batch is padded to its own longest sentence."""
    import joblib
    import sklearn.externals

    monkeypatch.setattr(sklearn.externals, "joblib", joblib, raising=False)
    import anago.models

    random = np.random.RandomState(0)
    words = [[f"w{i}" for i in random.randint(0, 6, n)] for n in random.randint(2, 7, SAMPLES)]
    labels = [["B-A" if word < "w2" else "O" for word in sentence] for sentence in words]
    build = anago.models.BiLSTMCRF.build

    def build_initialized(self):
        model, loss = build(self)
        return initialize(model), loss

    monkeypatch.setattr(anago.models.BiLSTMCRF, "build", build_initialized)

    def train(optimizer, batch_size):
        sizes = {"word_embedding_dim": 3, "word_lstm_size": 2, "fc_dim": 3, "use_char": False}
        tagger = anago.Sequence(dropout=0.0, optimizer=optimizer, **sizes)
        settings = {"batch_size": batch_size, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
        tagger.fit(words, labels, **settings)
        return {str(i): w for i, w in enumerate(tagger.model.get_weights())}

    assert_equals_big_batch(train, atol=2e-5)
