"""Each term of the big batch's loss counts as in the big batch, or `fit` says what to write.

The rows and the text of these messages: `test_caveats.py` has those of equal lengths.
"""

import warnings

import hosts
import numpy as np
import pytest
from cases import once_by_torch, skip_file_on_keras2, thorough
from hosts import keras
from training import assert_equal, compiled, initialize, weights

skip_file_on_keras2("a CallbackList that knows the model")

SIZE, LENGTH = 4, 3
BIG = SIZE * LENGTH
RATE = {"learning_rate": 0.01}
layers, penalty = keras.layers, keras.regularizers.L2(0.5)
TOLERANCE = {"rtol": 0, "atol": 2e-6}  # without the lines named here, weights are 1e-3 off
COUNTS, WOULD = "reduction='sum' counts", "reduction='sum' would count"


def mean_square(reduction="sum"):
    return keras.losses.MeanSquaredError(reduction=reduction)


class Mean(layers.Layer):
    """It passes its input on, and adds a loss that is a mean over samples, or a sum."""

    def __init__(self, is_sum=False):
        super().__init__()
        self.is_sum = is_sum

    def call(self, x):
        ops = keras.ops if hosts.IS_KERAS3 else hosts.tf.math
        names = ("sum", "mean") if hosts.IS_KERAS3 else ("reduce_sum", "reduce_mean")
        self.add_loss(getattr(ops, names[0 if self.is_sum else 1])(x**2))
        return x

    def compute_output_shape(self, shape):
        return shape


def network(*more, model=keras.Model, **arguments):
    x = keras.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden", **arguments)(x)
    for layer in more:
        y = layer(y)
    return model(x, layers.Dense(2, name="out")(y))


def two_outputs():
    x = keras.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden")(x)
    return keras.Model(x, [layers.Dense(2, name=name)(y) for name in ("a", "b")])


class OwnLoss(keras.Model):
    def compute_loss(self, *arguments, **keywords):
        return super().compute_loss(*arguments, **keywords)


def arrays(samples=4 * BIG, outputs=1):
    random = np.random.default_rng(0)
    x, y = (random.uniform(1, 2, (samples, n)).astype(hosts.FLOATX) for n in (3, 2))
    return x, [y] * outputs if outputs > 1 else y


def train(model, optimizer, size, loss, samples=4 * BIG, callbacks=(), said=None, **arguments):
    """Train for two epochs, and return the model. The texts of warnings are added to `said`."""
    compiled(model, optimizer, loss, run_eagerly=True, **arguments)
    data = arrays(samples, len(model.outputs))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        settings = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(*data, batch_size=size, **settings)
    if said is not None:
        said += [text for text in (str(w.message) for w in found) if "reduction=" in text]
    return model


def ours(reduction="mean", **arguments):
    return hosts.ours("SGD", **{"accum_iters": LENGTH, "reduction": reduction, **RATE, **arguments})


def stock():
    return hosts.stock("SGD", **RATE)


def network_of(kind):
    if kind == "a mean":
        return two_outputs(), [mean_square(), mean_square("sum_over_batch_size")]
    more = [Mean()] if kind == "an added loss" else []
    penalties = {"weights": "kernel_regularizer", "activity": "activity_regularizer"}
    arguments = {penalties[kind]: penalty} if kind in penalties else {}
    return network(*more, **arguments), mean_square()


def is_mean():
    """True if activity regularizers are means over samples; on Keras 3.12 they are sums."""
    layer = layers.Dense(1, activity_regularizer="l2", kernel_initializer="ones")
    layer(np.ones((2, 1), hosts.FLOATX))
    return float(hosts.array(layer.losses[0])) < 0.015


KINDS = ["weights", "an added loss"]
KINDS += [pytest.param(kind, marks=once_by_torch) for kind in ("activity", "a mean")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_term_beside_a_sum(kind):
    """The lines that `fit` names instead of reduction="sum" are exact."""
    if kind == "activity" and not is_mean():
        pytest.skip("a sum in this version")
    (model, loss), said = network_of(kind), []
    if kind in ("weights", "a mean"):
        with pytest.raises(ValueError, match=WOULD) as error:
            train(model, ours("sum"), SIZE, loss)
        said = [str(error.value)]
    else:
        train(model, ours("sum"), SIZE, loss, said=said)
        assert len(said) == 1 and COUNTS in said[0]
    factors = [3.0, 1.0] if kind == "a mean" else [3.0]
    assert f"`compile(..., loss_weights={factors})`" in said[0]
    assert ("use `MicroBatches`" in said[0]) == hosts.IS_KERAS3
    expected = weights(train(network_of(kind)[0], stock(), BIG, loss))
    model = train(network_of(kind)[0], ours(), SIZE, loss, said=said, loss_weights=factors)
    assert len(said) == 1  # with its factor, a sum is right
    assert_equal(weights(model), expected, **TOLERANCE)
    if hosts.IS_TORCH:
        slices = [hosts.accum.MicroBatches(SIZE)]
        model = train(network_of(kind)[0], stock(), BIG, loss, callbacks=slices)
        assert_equal(weights(model), expected, **TOLERANCE)


@once_by_torch
def test_sums_alone():
    """Sums that layers add are exact, and what isn't trained or accumulated isn't refused."""
    said = []
    expected = weights(train(network(Mean(is_sum=True)), stock(), BIG, mean_square()))
    model = train(network(Mean(is_sum=True)), ours("sum"), SIZE, mean_square(), said=said)
    assert_equal(weights(model), expected, **TOLERANCE)
    assert len(said) == 1 and "right only for sums over samples" in said[0]

    said = []
    frozen = network(kernel_regularizer=penalty)
    frozen.get_layer("hidden").trainable = False
    train(frozen, ours("sum"), SIZE, mean_square(), said=said)
    train(network(kernel_regularizer=penalty), ours("sum", accum_iters=1), BIG, mean_square())
    train(two_outputs(), ours("sum"), SIZE, [mean_square(), mean_square()], said=said)
    assert not said


@once_by_torch
def test_which_line_is_said_of_a_sum_in_a_mean():
    """No warning sends you to a line that the next error refuses."""
    for arguments, line in (({}, "with reduction='sum'"), ({"kernel_regularizer": penalty}, "3.0")):
        said = []
        train(network(**arguments), ours(), SIZE, mean_square(), said=said)
        assert len(said) == 1 and line in said[0] and said[0].startswith("keras_accum: The loss")


@once_by_torch
def test_terms_in_a_loss_of_the_model():
    """Its own code may count them right, so it isn't refused."""
    said, model = [], network(model=OwnLoss, kernel_regularizer=penalty)
    train(model, ours("sum"), SIZE, mean_square(), said=said)
    assert len(said) == 1 and f"{COUNTS} penalties on weights" in said[0]


@pytest.mark.skipif(hosts.IS_KERAS3, reason="Keras 3 builds a model before it trains")
def test_a_model_that_is_built_in_its_first_step():
    model = keras.Sequential([layers.Dense(2, kernel_regularizer=penalty)])
    model.compile(ours("sum"), mean_square(), run_eagerly=True)
    with pytest.raises(ValueError, match=WOULD):
        model.fit(*arrays(), batch_size=SIZE, verbose=0)
    assert model.optimizer.completed_updates == 0


# -- lengths ---------------------------------------------------------------------------------------


def of_lengths(lengths, sizes=None):
    """Batches of sequences without masks."""
    random = np.random.default_rng(0)
    shapes = [(n, length) for n, length in zip(sizes or [SIZE] * len(lengths), lengths)]
    return [
        tuple(random.uniform(1, 2, (*shape, n)).astype(hosts.FLOATX) for n in (3, 2))
        for shape in shapes
    ]


class Batches(keras.utils.PyDataset if hosts.IS_KERAS3 else keras.utils.Sequence):
    def __init__(self, batches):
        if hosts.IS_KERAS3:
            super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def steps_model():
    x = keras.Input((None, 3))
    return keras.Model(x, layers.Dense(2)(x))


def said_of(model, batches):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(Batches(batches), epochs=2, shuffle=False, verbose=0)
    return [str(w.message) for w in found if "is a mean over" in str(w.message)]


UNEQUAL, EQUAL = [5, 7, 5, 5, 7, 5], [5] * 6
# The lengths, the sizes of the batches, and whether a warning is right.
LENGTHS = {
    "unequal": (UNEQUAL, None, True),
    "equal": (EQUAL, None, False),
    "equal and short": (EQUAL, [4, 4, 4, 4, 4, 2], False),  # told by another warning
    "as many values": (UNEQUAL, [7, 5, 7, 7, 5, 7], False),
}


# PyTorch takes eager steps, and JAX traced ones. In TensorFlow's graphs, lengths are unknown.
WAYS = {"eager": {"run_eagerly": True}} if hosts.IS_TORCH or hosts.IS_TF_KERAS else {}
WAYS.update({"traced": {}} if hosts.BACKEND == "jax" else {})
if hosts.IS_TENSORFLOW:
    WAYS["graph"] = {"jit_compile": False}
ROWS = [pytest.param(way, row, id=f"{way}, {row}") for way in WAYS for row in LENGTHS]
if hosts.IS_TENSORFLOW:
    WAYS["xla"] = {"jit_compile": True}
    ROWS.append(pytest.param("xla", "unequal", marks=thorough, id="xla"))


@pytest.mark.parametrize("way, row", ROWS)
def test_unequal_lengths_without_a_mask(way, row):
    lengths, sizes, is_said = LENGTHS[row]
    model = steps_model()
    compiled(model, ours(), mean_square("sum_over_batch_size"), **WAYS[way])
    found = said_of(model, of_lengths(lengths, sizes))
    assert len(found) == is_said
    assert not found or "over 20 values in one micro-batch, and over 28 in another" in found[0]
    assert not found or "with reduction='weighted'" in found[0]
    assert said_of(model, of_lengths(lengths, sizes)) == []  # once


def test_weighted_is_exact_with_unequal_lengths():
    """As from the mean over all values of the window."""
    batches = of_lengths(UNEQUAL)
    model = compiled(steps_model(), ours("weighted"), "mse", run_eagerly=True)
    model.fit(Batches(batches), shuffle=False, verbose=0)
    flat = compiled(network_of_steps(), stock(), "mse", run_eagerly=True)
    for window in (batches[:3], batches[3:]):
        joined = [
            np.concatenate([a.reshape(-1, a.shape[-1]) for a in part]) for part in zip(*window)
        ]
        flat.train_on_batch(*joined)
    for a, b in zip(model.get_weights(), flat.get_weights()):
        np.testing.assert_allclose(a, b, **TOLERANCE)


def network_of_steps():
    x = keras.Input((3,))
    return keras.Model(x, layers.Dense(2)(x))


@pytest.mark.skipif(hosts.IS_KERAS3, reason="ragged tensors in Keras 2 only")
@pytest.mark.parametrize("eager", [True, False])
def test_ragged_targets(eager):
    lengths = np.array([1, 4, 2, 5, 3, 3, 2, 6, 1, 7, 2, 2])
    random, tf = np.random.default_rng(0), hosts.tf
    x, y = (
        tf.RaggedTensor.from_row_lengths(random.uniform(1, 2, (sum(lengths), n)), lengths)
        for n in (3, 2)
    )
    data, found = tf.data.Dataset.from_tensor_slices((x, y)).batch(SIZE), {}
    for reduction in ("mean", "weighted"):
        i = keras.Input((None, 3), ragged=True)
        model = keras.Model(i, layers.Dense(2)(i))
        model.compile(ours(reduction), "mse", run_eagerly=eager)
        initialize(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, epochs=2, verbose=0)
        found[reduction] = sum("is a mean over" in str(w.message) for w in caught)
    assert found == {"mean": 1, "weighted": 0}


# -- a train step of one's own ---------------------------------------------------------------------


class OwnStep(keras.Model):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


def train_short(model, optimizer, size, callbacks=(), **arguments):
    compiled(model, optimizer, "mse", **arguments)
    settings = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    if size == SIZE:  # its trace is kept
        start = model.get_weights()
        model.fit(*arrays(BIG), batch_size=size, **{**settings, "epochs": 1})
        model.set_weights(start)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(*arrays(BIG - 2), batch_size=size, **settings)
    texts = [str(w.message) for w in found]
    return weights(model), [text for text in texts if "is a mean over" in text]


@pytest.mark.parametrize("way", ["eager"] if hosts.IS_TORCH else ["traced"])
def test_a_short_micro_batch_in_a_step_of_ones_own(way):
    """The line that `fit` names is exact."""
    arguments = {"run_eagerly": True} if way == "eager" else {}
    expected, _ = train_short(network(), stock(), BIG)
    _, said = train_short(network(model=OwnStep), ours(), SIZE, **arguments)
    assert len(said) == 1
    assert "reduction='weighted' and give `fit` `callbacks=[MicroBatchWeights()]`" in said[0]
    callbacks = [hosts.accum.MicroBatchWeights()]
    own = network(model=OwnStep)
    actual, said = train_short(own, ours("weighted"), SIZE, callbacks, **arguments)
    assert_equal(actual, expected, **TOLERANCE)
    assert not said
