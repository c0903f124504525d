"""What a loss is divided by, and how many samples there are, where it is hard to see.

test_right_by_default.py has the table of ordinary programs.
"""

import re

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once_on_keras3, skip_file_on_keras2, thorough
from hosts import keras
from training import assert_equal, compiled, is_ours, our_warnings, weights

skip_file_on_keras2("reduction='auto'")

import programs  # noqa: E402
import zoo  # noqa: E402
from zoo import Adds, mean, mean_square, take_gradients, total  # noqa: E402

layers = keras.layers
SIZES = [1, 3, 2]  # samples in the micro-batches of a window
RATE = {"learning_rate": 2**-3}
math = keras.ops if hosts.IS_KERAS3 else hosts.tf


def squares(y_true, y_pred):
    return mean((y_true - y_pred) ** 2, -1)


def centered(y_true, y_pred):
    """Compares samples, with a value for each."""
    return squares(y_true, y_pred - mean(y_pred, 0))


def square_of_known(y_true, y_pred):
    """A mean over what isn't missing."""
    known = math.cast(y_true != -1, y_true.dtype)
    return total(known * (y_true - y_pred) ** 2) / total(known)


def sum_square(y_true, y_pred):
    return total((y_true - y_pred) ** 2)


def sums(**more):
    return keras.losses.MeanSquaredError(reduction="sum", **more)


# -- data ------------------------------------------------------------------------------------------


def samples(shape=(2,), sizes=SIZES):
    """Return the micro-batches, and the big batch."""
    random = np.random.default_rng(0)
    x = random.uniform(0.5, 1.5, (sum(SIZES), 3)).astype(hosts.FLOATX)
    y = random.uniform(0.1, 1, (sum(SIZES), *shape)).astype(hosts.FLOATX)
    ends = np.cumsum(sizes)
    return [(x[end - n : end], y[end - n : end]) for n, end in zip(sizes, ends)], (x, y)


def pairs(shape=(2,)):
    """The same in micro-batches with as many samples as there are classes."""
    return samples(shape, [2, 2, 2])


def maps():
    return pairs((2, 2, 2))


def graphs():
    """The same of graphs, with a row for each node in the first useful array of x."""
    random = np.random.default_rng(0)
    nodes = [1, 2, 9, 4, 3, 1]  # in each graph
    values = [random.uniform(0.5, 1.5, (n, 3)).astype(hosts.FLOATX) for n in nodes]
    y = random.uniform(1, 2, (len(nodes), 2)).astype(hosts.FLOATX)

    def join(first, last):
        owners = np.repeat(np.arange(last - first), nodes[first:last])
        pool = (owners == np.arange(last - first)[:, None]).astype(hosts.FLOATX)
        x = {"nodes": np.concatenate(values[first:last]), "owners": pool}
        x["edges"] = np.zeros((2, len(owners)), hosts.FLOATX)
        return x, y[first:last]

    ends = np.cumsum(SIZES)
    return [join(end - n, end) for n, end in zip(SIZES, ends)], join(0, len(nodes))


# -- models ----------------------------------------------------------------------------------------


class Pool(layers.Layer):
    """Adds up the nodes of each graph."""

    def call(self, inputs):
        pool, nodes, edges = inputs
        return math.matmul(pool, nodes) + 0 * total(edges)

    def compute_output_shape(self, shapes):
        return shapes[0][0], shapes[1][1]


def of_graphs(cls=keras.Model, **more):
    shapes = {"edges": (None,), "nodes": (3,), "owners": (None,)}
    x = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    hidden = layers.Dense(4, activation="tanh", name="hidden", **more)(x["nodes"])
    return cls(x, layers.Dense(2, name="out")(Pool()([x["owners"], hidden, x["edges"]])))


def network(*more, units=2, cls=keras.Model, **arguments):
    x = keras.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden", **arguments)(x)
    y = layers.Dense(units, activation="sigmoid", name="out")(y)
    for layer in more:
        y = layer(y)
    return cls(x, y)


class Task(layers.Layer):
    """Computes a loss, as in TensorFlow Recommenders."""

    def __init__(self, loss):
        super().__init__()
        self._loss = loss

    def call(self, y, y_pred):
        return self._loss(y, y_pred)


class OfTask(keras.Model):
    calls_keras = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.task = Task(sums())

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        loss = self.task(y, y_pred)
        return loss + super().compute_loss(x, y, y_pred) if self.calls_keras else loss


class OfTaskAndKeras(OfTask):
    calls_keras = True


class OfList(keras.Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept = [sums()]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        return self.kept[0](y, y_pred)


class OneNumber(keras.losses.Loss):
    """Returns one number, of which Keras takes no sum."""

    def call(self, y_true, y_pred):
        return mean_square(y_true, y_pred)


def of_step(build):
    def make():
        model = build(programs.Step)
        model.find_loss = lambda model, x, y, y_pred: mean_square(y, y_pred)
        return model

    return make


def of_maps():
    return network(layers.Reshape((2, 2, 2)), units=8)


def own_words():
    return of_graphs(zoo.OwnWords)


def of_each(squares):
    """A value per sample."""
    return total(squares, 1)


def adding(*reduces):
    return lambda: network(*map(Adds, reduces))


COMPARES, SUM = "isn't a mean over samples", "the loss '.*' is a sum"
ONE, ADDED = "it returns one number", "Give `add_loss` their mean"
OWN = "can't read the.* model's own"
INPUTS = "Layers add losses, such as activity penalties"
# The model, its data, its loss, what is said, and whether the big batch's weights are right.
ROWS = {
    "graphs": (of_graphs, graphs, mean_square, ONE, True),
    "graphs, own words": (own_words, graphs, None, OWN, True),
    "graphs, own step": (of_step(of_graphs), graphs, None, OWN, True),
    "graphs, penalties": (
        *(lambda: of_graphs(activity_regularizer="l2"), graphs),
        # A graph of TensorFlow doesn't know the number of nodes.
        *("mse", None if hosts.IS_TENSORFLOW else INPUTS, False),
    ),
    "cosine": (network, pairs, keras.losses.CosineSimilarity(axis=0), COMPARES, False),
    "a user's": (network, samples, squares, None, True),
    "a user's that compares": (network, samples, centered, None, False),
    "a user's without -1": (network, samples, square_of_known, ONE, False),
    "a user's sum": (network, samples, sum_square, ONE, False),
    "one number": (network, samples, OneNumber(reduction="sum"), ONE, True),
    "a task": (lambda: network(cls=OfTask), samples, None, OWN, False),
    "a list of losses": (lambda: network(cls=OfList), samples, None, OWN, False),
    "a task beside": (lambda: network(cls=OfTaskAndKeras), samples, "mse", OWN, False),
    "added sums": (adding(of_each), samples, None, None, True),
    "several added sums": (adding(of_each, of_each), samples, None, None, True),
}
if hosts.IS_KERAS3:  # tf_keras has no such losses, and refuses to add these to others
    dice, tversky = keras.losses.Dice(axis=(0, 1, 2)), keras.losses.Tversky(axis=(0, -3, 2))
    summed = keras.losses.Dice(axis=(0, 1, 2), reduction="sum")
    ROWS.update(
        {
            "dice": (of_maps, maps, dice, COMPARES, False),
            "tversky": (of_maps, maps, tversky, COMPARES, False),
            "sums of dice": (of_maps, maps, summed, COMPARES, False),
            "added sums beside": (adding(of_each), samples, "mse", ADDED, False),
            "added sums and means": (adding(of_each, mean), samples, None, ADDED, False),
            "added sums, a sum": (adding(of_each), samples, sums(), None, True),
        }
    )


def train(build, optimizer, batches, loss, **more):
    """Train on these batches. Return the weights, and what is said."""
    arguments = {"run_eagerly": False, **more} if is_ours(optimizer) else more
    model = compiled(build(), optimizer, loss, **arguments)
    data = zoo.Batches(batches)
    with our_warnings() as texts:
        model.fit(data, shuffle=False, verbose=0)
    return weights(model), texts


def stock_sgd():
    return hosts.stock("SGD", **RATE)


def by_samples(build, batches, loss):
    """Return the weights after one window of stock gradients, weighed by samples."""
    found = [train(build, stock_sgd(), [batch], loss)[0] for batch in batches]
    sizes = [len(y) for _, y in batches]
    return {name: np.average([w[name] for w in found], 0, sizes) for name in found[0]}


@quick_once_on_keras3
@quick_first("build, data, loss, says, is_exact", ROWS)
def test_a_window_is_the_big_batch_or_says_why(build, data, loss, says, is_exact):
    batches, big = data()
    actual, said = train(build, hosts.ours("SGD", accum_iters=3, **RATE), batches, loss)
    assert len(said) == bool(says), said
    assert not says or re.search(says, said[0]), said
    if is_exact:
        expected, _ = train(build, stock_sgd(), [big], loss)
    else:
        expected = by_samples(build, batches, loss)
    assert_equal(actual, expected, rtol=0, atol=1e-6)


# -- a bag of instances in a batch -----------------------------------------------------------------


class MeanOfBag(layers.Layer):
    def call(self, x):
        return mean(x, 0)[None]

    def compute_output_shape(self, shape):
        return (1, *shape[1:])


def of_bag():
    x = keras.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden")(x)
    return keras.Model(x, layers.Dense(2, name="out")(MeanOfBag()(y)))


def square_of_bag(y_true, y_pred):
    return mean_square(y_true[:1], y_pred)


@quick_once_on_keras3
def test_a_bag_in_each_batch():
    """The model returns one row: each batch counts as one, and the warning says how."""
    batches, _ = samples(sizes=[3, 1, 2])
    each = [train(of_bag, stock_sgd(), [batch], square_of_bag)[0] for batch in batches]
    expected = {name: np.mean([found[name] for found in each], 0) for name in each[0]}
    for reduction, says in ("auto", "one row for all rows of y.*reduction='mean'"), ("mean", None):
        ours = hosts.ours("SGD", accum_iters=len(batches), reduction=reduction, **RATE)
        actual, said = train(of_bag, ours, batches, square_of_bag)
        assert re.search(says, said[0]) if says else not said
    assert_equal(actual, expected, rtol=0, atol=1e-6)


# -- what a loss keeps -----------------------------------------------------------------------------


class Averaging(keras.losses.Loss):
    """Keeps a moving average, in a variable and, where nothing is traced, as an attribute."""

    def __init__(self):
        super().__init__()
        variable = keras.Variable if hosts.IS_KERAS3 else hosts.tf.Variable
        self.average = variable(2.0, trainable=False, dtype=hosts.FLOATX)
        self.attribute = 2.0

    def call(self, y_true, y_pred):
        errors = squares(y_true, y_pred)
        self.average.assign(self.average / 2 + mean(errors))
        if hosts.IS_TORCH:
            self.attribute = self.attribute / 2 + hosts.array(errors).mean()
        return errors


@pytest.mark.skipif(hosts.BACKEND == "jax", reason="a traced loss writes nothing there")
def test_a_loss_that_keeps_something():
    """It changes by the micro-batches alone, as with the stock optimizer."""
    (x, y), found = samples()[1], []
    for optimizer in (
        hosts.ours("SGD", learning_rate=0.0, accum_iters=2),
        hosts.stock("SGD", learning_rate=0.0),
    ):
        hosts.set_random_seed()
        loss = Averaging()
        model = compiled(network(), optimizer, loss, run_eagerly=False)
        model.fit(x, y, batch_size=len(x) // 2, shuffle=False, verbose=0)
        found.append([float(hosts.array(loss.average)), float(loss.attribute)])
    np.testing.assert_allclose(*found, rtol=1e-6)


# -- no false alarms -------------------------------------------------------------------------------


def with_masked_output():
    x = keras.Input((3,))
    steps = layers.Masking()(layers.Reshape((3, 1))(x))
    y = layers.Dense(2, activation="tanh", name="hidden")(x)
    return keras.Model(x, [layers.Dense(2, name="whole")(y), layers.Dense(2, name="steps")(steps)])


@thorough
def test_an_output_without_weight():
    """Its mask is in no divisor."""
    batches, big = samples()
    ours, found, settings = hosts.ours("SGD", accum_iters=3, **RATE), [], {"loss_weights": [1, 0]}
    for optimizer, data in (ours, batches), (stock_sgd(), [big]):
        data = [(x * (x > 0.8), (y, np.ones((len(y), 3, 2), hosts.FLOATX))) for x, y in data]
        actual, said = train(with_masked_output, optimizer, data, ["mse"] * 2, **settings)
        assert not said
        found.append(actual)
    assert_equal(*found, rtol=0, atol=1e-6)


def of_one_axis():
    """Return the model, whose outputs have no other axis than samples."""
    x = keras.Input((3,))
    y = layers.Dense(4, activation="tanh", name="hidden")(x)
    return keras.Model(x, layers.Reshape(())(layers.Dense(1, name="out")(y)))


@thorough
def test_outputs_of_one_axis():
    """Of these, the last axis is that of samples: Keras takes a mean over them."""
    batches, big = samples(())
    ours = hosts.ours("SGD", accum_iters=3, **RATE)
    actual, said = train(of_one_axis, ours, batches, "mse")
    assert not said
    assert_equal(actual, train(of_one_axis, stock_sgd(), [big], "mse")[0], rtol=0, atol=1e-6)


@thorough
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="tf_keras itself fails with such weights")
def test_one_number_and_sample_weights():
    """Keras multiplies the number by their mean, which isn't that of the big batch."""
    (x, y), weight = samples(())[1], np.arange(6.0)
    model = compiled(of_one_axis(), hosts.ours("SGD", accum_iters=3, **RATE), "mse")
    with pytest.warns(match="multiplies by the mean of the sample weights"):
        model.fit(x, y, batch_size=2, sample_weight=weight, verbose=0)


class OfFunction(keras.Model):
    """Computes its loss in a function of its own, which is traced by itself."""

    def train_step(self, data):
        @hosts.tf.function
        def compute(x, y):
            return self.compute_loss(x, y, self(x, training=True))

        variables = self.trainable_weights
        loss, (gradients,) = take_gradients(self, lambda: compute(*data[:2]), variables)
        self.optimizer.apply_gradients(list(zip(gradients, variables)))
        return {"own": loss}


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="traces of traces are TensorFlow's")
def test_a_loss_in_a_traced_function():
    """Its divisor can't leave the function, and the step knows the number of samples."""
    batches, big = samples()
    ours = hosts.ours("SGD", accum_iters=3, **RATE)
    actual, said = train(lambda: network(cls=OfFunction), ours, batches, "mse")
    assert len(said) == 1 and re.search(OWN, said[0])
    assert_equal(actual, train(network, stock_sgd(), [big], "mse")[0], rtol=0, atol=1e-6)
