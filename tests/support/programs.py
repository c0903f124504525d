"""Programs that people write, each put together from its parts, and what it must end with.

A Program is a row of the table in test_right_by_default.py. `run` trains it with our optimizer. The
reference is always a stock optimizer: at the big batch, or with a window's gradients, each from a
micro-batch by stock SGD, averaged in NumPy.
"""

import functools
from collections import namedtuple

import hosts
import numpy as np
import training
import zoo
from hosts import keras
from zoo import ENDS, STEPS, mean

layers = keras.layers
ops = keras.ops if hosts.IS_KERAS3 else None

SIZE, LENGTH, EPOCHS = 3, 4, 2
ADAM = {"learning_rate": 2**-5}
SAMPLES = {"even": 12, "short": 11, "partial": 14}  # others have 12
LENGTHS = [5, 3, 4, 2]  # steps in a micro-batch with the data "lengths"
LAYERS_MASK = "masking", "embedding", "pooled", "two"

Program = namedtuple("Program", "loss mask weights layers who data")
Result = namedtuple("Result", "weights slots said")


# -- losses ----------------------------------------------------------------------------------------


def doubled(base):
    """Return a subclass of a loss of Keras with a `__call__` of its own."""

    class Doubled(base):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return 2 * super().__call__(y_true, y_pred, sample_weight)

    return Doubled


class OwnCall(doubled(keras.losses.Loss)):
    def call(self, y_true, y_pred):
        return mean((y_true - y_pred) ** 2, -1)


def mse(**arguments):
    return keras.losses.MeanSquaredError(**arguments)


def ignoring(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(ignore_class=0, **arguments)


def own_mask(**arguments):
    return zoo.OwnMask(**arguments)


# For each loss: the samples' shape, and a function that returns the losses of the outputs.
OF_STEPS, OF_SAMPLES, OF_MAPS = "steps", "samples", "maps"
SUM = {"reduction": "sum"}
LOSSES = {
    "elements": (OF_STEPS, lambda **more: [mse(**more)]),
    "samples": (OF_SAMPLES, lambda **more: [mse(**more)]),
    "ignored": (OF_STEPS, lambda **more: [ignoring(**more)]),
    "sum": (OF_STEPS, lambda: [mse(**SUM)]),
    "scalar": (OF_STEPS, lambda: [zoo.mean_square]),
    "own_call": (OF_STEPS, lambda: [OwnCall()]),
    "own_mse": (OF_STEPS, lambda: [doubled(keras.losses.MeanSquaredError)()]),
    "own_dice": (OF_MAPS, lambda: [doubled(keras.losses.Dice)()]),
    "none": (OF_SAMPLES, lambda: [mse(reduction="none")]),
    "added": (OF_SAMPLES, lambda: None),  # by a layer, and none in `compile`
    "cosine": (OF_SAMPLES, lambda: [keras.losses.CosineSimilarity(axis=0)]),
    "dice": (OF_MAPS, lambda: [keras.losses.Dice()]),
    "tversky": (OF_SAMPLES, lambda: [keras.losses.Tversky()]),
    "circle": (OF_SAMPLES, lambda: [keras.losses.Circle()]),
    "two": (OF_STEPS, lambda: [mse(), mse()]),
    "two_kinds": (OF_STEPS, lambda: [mse(), mse()]),  # the second one of samples
    "two_sums": (OF_STEPS, lambda: [mse(**SUM), mse(**SUM)]),
    "sum+mean": (OF_STEPS, lambda: [mse(**SUM), mse()]),
}
ON_KERAS3_ONLY = "dice", "own_dice", "tversky", "circle", "by", "cancel"
CLASSES = "ignored", "circle"


def make_losses(program):
    """Return new losses, as `compile` gets them."""
    more = {}
    if program.weights.startswith(("by", "cancel")):
        more["reduction"] = "mean_with_sample_weight"
    if program.mask == "own":
        return own_mask(**more)
    made = LOSSES[program.loss][1](**more)
    return made[0] if made and len(made) == 1 else made


# -- models ----------------------------------------------------------------------------------------


class OwnLosses(keras.Model):
    """Has a loss of Keras as an attribute."""

    own = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        return self.own(y, y_pred)


MODELS = {
    "compute_loss": zoo.OwnLoss,
    "own_words": zoo.OwnWords,
    "own_losses": OwnLosses,
    "train_step": zoo.OwnStep,
}


def build(program, embedding=layers.Embedding):
    """Return a model with names that are the same each time."""
    kind, mask = LOSSES[program.loss][0], program.mask
    steps = None if program.data == "lengths" else STEPS
    if mask == "embedding":
        x = keras.Input((steps,), dtype="int32")
        starts = [embedding(9, 3, mask_zero=True, name="embedding")(x)]
    else:
        x = keras.Input((3,) if kind != OF_STEPS and mask != "pooled" else (steps, 3))
        starts = [layers.Masking()(x)] if mask in ("masking", "pooled", "two") else [x]
    if mask == "two":
        starts.append(layers.Masking(1.0)(x))
    activation = "softmax" if program.loss == "ignored" else None
    activation = "sigmoid" if program.loss in ("dice", "own_dice", "tversky") else activation
    outputs = 1 if program.loss not in ("two", "two_kinds", "two_sums", "sum+mean") else 2
    ys = []
    for i in range(outputs):
        y = starts[i % len(starts)]
        arguments = {}
        if program.layers == "penalty":
            arguments["kernel_regularizer"] = "l2"
        if program.layers == "activity":
            arguments["activity_regularizer"] = "l2"
        y = layers.Dense(4, activation="tanh", name=f"hidden{i}", **arguments)(y)
        if mask == "pooled" or program.loss == "two_kinds" and i:
            y = layers.GlobalAveragePooling1D(name=f"pool{i}")(y)
        units = {"ignored": 3, "dice": 8, "own_dice": 8}.get(program.loss, 2)
        y = layers.Dense(units, activation=activation, name=f"out{i}")(y)
        y = zoo.Adds()(y) if program.loss == "added" else y
        ys.append(layers.Reshape((2, 2, 2))(y) if kind == OF_MAPS else y)
    model = MODELS.get(program.who, keras.Model)(x, ys if outputs > 1 else ys[0])
    if program.who == "own_losses":
        model.own = make_losses(program)
    return model


# -- data ------------------------------------------------------------------------------------------


def make_arrays(program):
    """Return x, the targets as a list with one for each output, and sample weights or None."""
    random = np.random.default_rng(3)
    samples, kind = SAMPLES.get(program.data, 12), LOSSES[program.loss][0]
    masks = program.mask in LAYERS_MASK
    seen = np.arange(STEPS) < np.array(ENDS[:samples])[:, None]
    if program.data == "empty":
        seen[:SIZE] = False
    if program.mask == "embedding":
        x = random.integers(1, 9, (samples, STEPS)) * seen
    else:
        shape = (STEPS, 3) if kind == OF_STEPS or masks else (3,)
        x = random.uniform(0.5, 1.5, (samples, *shape))
        if masks:
            x[~seen] = 0
        if program.mask == "two":
            x[:, -1:] = 1  # the second mask's value
    if program.loss == "ignored":
        y = random.integers(1, 3, (samples, STEPS))
        y[random.uniform(size=y.shape) < 0.4] = 0
        if program.data == "empty":
            y[:SIZE] = 0
    elif program.loss == "circle":
        y = np.arange(samples) % 2
    else:
        shape = {OF_STEPS: (STEPS, 2), OF_SAMPLES: (2,), OF_MAPS: (2, 2, 2)}[kind]
        shape = (2,) if program.mask == "pooled" else shape
        y = random.uniform(1, 2, (samples, *shape))
        if masks and program.mask not in ("pooled", "two") and program.loss in ("elements", "sum"):
            y[~seen] = 100  # masked, so that no loss may contain it
    ys = [y]
    if program.loss in ("two", "two_sums", "sum+mean"):
        ys = [y, 3 - y]
    if program.loss == "two_kinds":
        ys = [y, 3 - y[:, 0]]
    return (
        x.astype("int32" if program.mask == "embedding" else hosts.FLOATX),
        ys,
        make_weights(program.weights, samples, random),
    )


def make_weights(kind, samples, random):
    if kind == "-":
        return None
    tail = {"steps": (STEPS,), "rows": (1,)}.get(kind.rpartition("_")[2], ())
    found = random.uniform(0.2, 3, (samples, *tail))
    if kind == "cancel":
        found[:SIZE] = [1, -0.5, -0.5]
    return found.astype(hosts.FLOATX)


def cast(program, ys):
    dtype = "int32" if program.loss in CLASSES else hosts.FLOATX
    return [y.astype(dtype) for y in ys]


@functools.lru_cache(maxsize=None)
def make_batches(program, size=SIZE):
    """Return the batches of an epoch as tuples (x, y, sample weights or None)."""
    x, ys, weights = make_arrays(program)
    ys, found = cast(program, ys), []
    for i, start in enumerate(range(0, len(x), size)):
        part = slice(start, start + size)
        steps = slice(LENGTHS[i] if program.data == "lengths" and size == SIZE else None)
        targets = [cut(y, part, steps) for y in ys]
        targets = tuple(targets) if len(targets) > 1 else targets[0]
        found.append((cut(x, part, steps), targets, cut(weights, part, steps)))
    return found


def cut(array, part, steps):
    if array is None:
        return None
    return array[part, steps] if array.ndim > 1 and array.shape[1] == STEPS else array[part]


def pad(program):
    """Return the big batch of masked sequences with unequal lengths."""
    x, ys, weights = make_arrays(program)
    for i, length in enumerate(LENGTHS):
        x[i * SIZE : (i + 1) * SIZE, length:] = 0
    ys = cast(program, ys)
    return [(x, ys if len(ys) > 1 else ys[0], weights)]


def count(program, batch):
    """Return what the loss of a micro-batch is divided by, in NumPy."""
    x, y, weights = batch
    if program.weights.startswith(("by", "cancel")):
        return weights.sum()
    if program.mask in LAYERS_MASK and program.mask != "pooled":
        return (x != 0).any(-1).sum() if x.ndim == 3 else (x != 0).sum()
    if program.loss == "ignored":
        return (y != 0).sum()
    return np.prod((y[0] if isinstance(y, tuple) else y).shape[:-1])


# -- trainings -------------------------------------------------------------------------------------


def compiled(program, optimizer, **arguments):
    loss = None if program.who in ("own_words", "own_losses") else make_losses(program)
    # On TensorFlow, a stock optimizer takes a repeated row of a sparse gradient as several.
    embedding = layers.Embedding if training.is_ours(optimizer) else training.DenseEmbedding
    return training.compiled(build(program, embedding), optimizer, loss, **arguments)


def take_gradients(model, loss, x, y):
    """Return the gradients of a loop of one's own."""
    variables = model.trainable_variables
    if hosts.IS_TENSORFLOW:
        with hosts.tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        natives = [v.value if hosts.IS_KERAS3 else v for v in variables]
        return tape.gradient(value, natives)
    if hosts.IS_TORCH:
        for variable in variables:
            variable.value.grad = None
        loss(keras.ops.convert_to_tensor(y), model(x, training=True)).backward()
        return [variable.value.grad for variable in variables]
    import jax

    others = [v.value for v in model.non_trainable_variables]

    def of(values):
        y_pred, _ = model.stateless_call(values, others, x, training=True)
        return loss(y, y_pred)

    return jax.grad(of)([v.value for v in variables])


def loop(program, model, weighs):
    """Train in a loop of one's own."""
    loss, optimizer, variables = make_losses(program), model.optimizer, model.trainable_variables
    hosts.build_on(optimizer, variables)
    for batch in EPOCHS * make_batches(program):
        gradients = take_gradients(model, loss, *batch[:2])
        if weighs:
            optimizer.weigh(float(count(program, batch)))
        if hosts.IS_KERAS3:
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(list(zip(gradients, variables)))


def run(program, reduction):
    """Train with our optimizer, and return the Result with its warnings."""
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, reduction=reduction, **ADAM)
    model = compiled(program, optimizer)
    batches = make_batches(program)
    with training.our_warnings() as said:
        if program.who in ("loop", "loop_weigh"):
            loop(program, model, weighs=program.who == "loop_weigh")
        elif program.who == "train_on_batch":
            for x, y, weights in EPOCHS * batches:
                model.train_on_batch(x, y, weights)
        elif program.data == "lengths":
            data = [batch if batch[2] is not None else batch[:2] for batch in batches]
            model.fit(zoo.Batches(data), epochs=EPOCHS, shuffle=False, verbose=0)
        else:
            x, ys, weights = make_arrays(program)
            ys = cast(program, ys)
            arguments = {"sample_weight": weights, "shuffle": False, "verbose": 0}
            y = ys if len(ys) > 1 else ys[0]
            model.fit(x, y, batch_size=SIZE, epochs=EPOCHS, **arguments)
    return Result(training.weights(model), training.slots(model), said)


@functools.lru_cache(maxsize=None)
def at_the_big_batch(program):
    """Return the Result of the stock optimizer."""
    if program.data == "lengths":
        if program.mask not in LAYERS_MASK:
            return by_divisors(program)
        batches = pad(program)
    else:
        batches = make_batches(program, SIZE * LENGTH)
    who = program.who if program.who in MODELS else "fit"
    model = compiled(program._replace(who=who), hosts.stock("Adam", **ADAM))
    for x, y, weights in EPOCHS * batches:
        model.train_on_batch(x, y, weights)
    return Result(training.weights(model), training.slots(model), [])


def split(batches):
    """Return lists of LENGTH batches, of which the last one may be shorter."""
    return [batches[i : i + LENGTH] for i in range(0, len(batches), LENGTH)]


def by_samples(program):
    return by_hand(program, lambda batch: len(batch[0]), EPOCHS * split(make_batches(program)))


def by_divisors(program):
    """Return the Result if micro-batches count by what their first loss is divided by."""
    windows, is_sum = EPOCHS * split(make_batches(program)), program.loss == "sum"
    return by_hand(program, lambda batch: is_sum or count(program, batch), windows, is_sum)


def by_micro_batches(program):
    """Return the Result if micro-batches count the same, in windows that go on across epochs."""
    windows = split(EPOCHS * make_batches(program))
    return by_hand(program, lambda batch: 1, [w for w in windows if len(w) == LENGTH])


def by_hand(program, weight, windows, is_sum=False):
    """Return the Result of the stock optimizer with weighted averages of stock gradients."""
    who = program.who if program.who in MODELS else "fit"
    rate, stock = 64.0, hosts.stock("Adam", **ADAM)
    model = compiled(program._replace(who=who), hosts.stock("SGD", learning_rate=rate))
    variables = model.trainable_variables
    hosts.build_on(stock, variables)
    for window in windows:
        start, found = [hosts.array(v) for v in variables], []
        for x, y, weights in window:
            model.train_on_batch(x, y, weights)
            found.append([(w - hosts.array(v)) / rate for w, v in zip(start, variables)])
            for variable, value in zip(variables, start):
                hosts.assign(variable, value)
        by = [weight(batch) for batch in window]
        average = [np.average(column, axis=0, weights=by) for column in zip(*found)]
        times = len(window) if is_sum else 1
        hosts.apply(stock, [(times * g).astype(hosts.FLOATX) for g in average], variables)
    slots = {name: hosts.array(v) for name, v in hosts.slots(stock, variables).items()}
    return Result(training.weights(model), slots, [])


# -- train steps of one's own ----------------------------------------------------------------------


class Step(keras.Model):
    """Computes its gradients in a step of its own. `find_loss(model, x, y, y_pred)` is its loss."""

    find_loss = None

    def train_step(self, *arguments):
        if hosts.BACKEND == "jax":
            return self._train_step_of_jax(*arguments)
        x, y = arguments[0][:2]
        weights = self.trainable_weights
        loss, (gradients,) = zoo.take_gradients(
            self, lambda: self.find_loss(self, x, y, self(x, training=True)), weights
        )
        self.optimizer.apply_gradients(list(zip(gradients, weights)))
        return {"own": loss}

    def _train_step_of_jax(self, state, batch):
        import jax

        values, others, own, metrics = state

        def of(values, x, y):
            y_pred, _ = self.stateless_call(values, others, x, training=True)
            return self.find_loss(self, x, y, y_pred)

        gradients = jax.grad(of)(values, *batch[:2])
        values, own = self.optimizer.stateless_apply(own, gradients, values)
        return {}, (values, others, own, metrics)


def make_step(optimizer, find_loss):
    """Return a compiled model of samples that trains by its own step."""
    model = zoo.network(cls=Step)
    model.find_loss = find_loss
    return training.compiled(model, optimizer, jit_compile=False)
