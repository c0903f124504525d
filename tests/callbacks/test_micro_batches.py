"""`MicroBatches`: a train step in slices equals plain `fit` of the stock optimizer at its batch."""

import contextlib
import warnings

import hosts
import numpy as np
import pytest
from cases import quick_first, thorough
from hosts import keras
from training import DenseEmbedding, assert_equal, embedding_model, initialize

if hosts.IS_KERAS2:
    pytest.skip("Keras 2.0 to 2.3 has no MicroBatches", allow_module_level=True)

layers = keras.layers
ops = keras.ops if hosts.IS_KERAS3 else hosts.ops_of_tensorflow()
MicroBatches = hosts.accum.MicroBatches

SAMPLES, BATCH, SIZE, STEPS = 20, 8, 3, 5  # the last batch is short, and so are last slices
HALF = {"rtol": 2e-2, "atol": 2e-3}


def uniform(*shape):
    return np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape).astype(hosts.FLOATX)


X, Y, WEIGHTS = uniform(SAMPLES, 3) - 1, uniform(SAMPLES, 2), uniform(SAMPLES)
WORDS = np.random.default_rng(0).integers(0, 6, (SAMPLES, STEPS))
CLASSES = WORDS[:, 0] % 2
SEQUENCES, STEP_WEIGHTS = uniform(SAMPLES, STEPS, 3), uniform(SAMPLES, STEPS)
for i, sequence in enumerate(SEQUENCES):  # the first slices have many masked steps
    sequence[1 + i % 3 if i % BATCH < SIZE else STEPS :] = 0
TARGETS = uniform(SAMPLES, STEPS, 2)


def _is_a_mean():
    """True if activity regularizers are means over samples; on Keras 3.12 they are sums."""
    layer = layers.Dense(1, activity_regularizer="l2", kernel_initializer="ones")
    ones = [np.ones((count, 1), "float32") for count in (1, 2)]
    found = [(layer(array), hosts.array(layer.losses[0]))[1] for array in ones]
    return found[0] == found[1]


ACTIVITY = "l2" if _is_a_mean() else None


@keras.saving.register_keras_serializable("tests")
class MeanSquare(layers.Layer):
    """Adds a loss that is a mean over samples, and one that doesn't depend on samples."""

    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        self.add_loss(ops.cast(0.5, x.dtype))
        return x


def sequential(*more, **of_first):
    first = layers.Dense(4, "tanh", name="hidden", **of_first)
    return keras.Sequential([layers.Input((3,)), first, *more, layers.Dense(2, name="out")])


def classifier():
    return keras.Sequential([layers.Input((3,)), layers.Dense(2, "softmax", name="out")])


def masked():
    """Three outputs, two of them with a mask."""
    inputs = layers.Input((STEPS, 3))
    penalty = {"activity_regularizer": ACTIVITY}
    hidden = layers.Dense(4, "tanh", name="h", **penalty)(layers.Masking()(inputs))
    recurrent = layers.SimpleRNN(3, return_sequences=True, name="r")(hidden)
    flat = layers.Flatten()(inputs)
    outputs = [layers.Dense(2, name=n)(t) for n, t in zip("abc", [hidden, recurrent, flat])]
    return keras.Model(inputs, outputs)


def nested():
    """Inputs and outputs in dictionaries."""
    inputs = {n: layers.Input((w,), name=n) for n, w in (("left", 3), ("right", 2))}
    both = layers.Concatenate()([inputs["left"], inputs["right"]])
    hidden = layers.Dense(4, "tanh", name="hidden")(both)
    return keras.Model(inputs, {n: layers.Dense(2, name=n)(hidden) for n in ("one", "two")})


class Subclassed(keras.Model):
    """Only the first call makes its variables."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, "tanh", name="hidden"), layers.Dense(2, name="out")

    def call(self, x):
        return self.out(self.hidden(x))


def mse(reduction):
    return keras.losses.MeanSquaredError(reduction=reduction)


WEIGHTED_MEAN = "mean_with_sample_weight" if hosts.IS_KERAS3 else "sum"


def three(**more):
    losses = ["mse", mse(WEIGHTED_MEAN), "mae"]
    return {"loss": losses, "loss_weights": [1, 2, 0.5], **more}


SHORT = X[: BATCH + SIZE - 1], Y[: BATCH + SIZE - 1]
WITH_XLA = {"jit_compile": True} if hosts.IS_TENSORFLOW else {}
NESTED = {"left": X, "right": Y}, {"one": Y, "two": Y[::-1]}
WORD_LABELS = WORDS % 3
# build, (x, y), arguments of `fit`, arguments of `compile` or a function that makes them
CASES = {
    "plain": (sequential, (X, Y), {}, {"metrics": ["mae", keras.metrics.RootMeanSquaredError]}),
    "sample weights": (
        sequential,
        (X, Y),
        {"sample_weight": WEIGHTS},
        {"metrics": ["mae"], "weighted_metrics": ["mse"]},
    ),
    "class weights": (
        classifier,
        (X, CLASSES),
        {"class_weight": {0: 0.3, 1: 2.0}},
        {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
    ),
    "sum": (sequential, (X, Y), {"sample_weight": WEIGHTS}, lambda: {"loss": mse("sum")}),
    "weighted mean": (
        sequential,
        (X, Y),
        {"sample_weight": WEIGHTS},
        lambda: {"loss": mse("mean_with_sample_weight")},
    ),
    "penalties": (
        lambda: sequential(MeanSquare(), kernel_regularizer="l2", activity_regularizer=ACTIVITY),
        (X, Y),
        {},
        {},
    ),
    "masks": (masked, (SEQUENCES, [TARGETS, TARGETS, Y]), {}, lambda: three(metrics=[["mae"]] * 3)),
    "masks and weights": (
        masked,
        (SEQUENCES, [TARGETS, TARGETS, Y]),
        {"sample_weight": [STEP_WEIGHTS, STEP_WEIGHTS[::-1], WEIGHTS]},
        three,
    ),
    "ignored class": (
        classifier,
        (X, WORD_LABELS[:, 0] % 2 * 2),
        {},
        lambda: {"loss": keras.losses.SparseCategoricalCrossentropy(ignore_class=2)},
    ),
    "nested": (nested, NESTED, {}, {"loss": {"one": "mse", "two": "mae"}}),
    "subclassed": (Subclassed, (X, Y), {}, {"metrics": ["mae"]}),
    "a batch in one slice": (sequential, (X[:SIZE], Y[:SIZE]), {}, {}),
    "a last batch in a part of a slice": (sequential, SHORT, {}, WITH_XLA),
    "eagerly": (sequential, (X, Y), {}, {"run_eagerly": True}),
    "two steps in one call": (sequential, (X, Y), {}, {"steps_per_execution": 2}),
    "xla": (masked, (SEQUENCES, [TARGETS, TARGETS, Y]), {}, lambda: three(jit_compile=True)),
}
if hosts.IS_TORCH:  # Keras refuses several steps
    del CASES["two steps in one call"]
# JAX compiles anyway, and torch.compile takes long. On tf_keras, other tests here run with XLA.
if not (hosts.IS_TENSORFLOW and hosts.IS_KERAS3):
    del CASES["xla"]
if not hosts.IS_KERAS3:
    del CASES["weighted mean"]


def train(case, callbacks=(), optimizer=None, batch_size=BATCH, epochs=2):
    """Return weights, slots and history of a training."""
    build, (x, y), in_fit, in_compile = case
    hosts.set_random_seed()
    model = build()
    arguments = {"loss": "mse", **(in_compile() if callable(in_compile) else in_compile)}
    if hosts.IS_TENSORFLOW:
        arguments = {"jit_compile": False, **arguments}
    if "metrics" in arguments:
        arguments["metrics"] = [m() if isinstance(m, type) else m for m in arguments["metrics"]]
    model.compile(optimizer or hosts.stock("Adam", learning_rate=0.01), **arguments)
    history = model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks), **in_fit,
    )  # fmt: skip
    return model, values(model, history)


def values(model, history):
    named = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    slots = hosts.slots(optimizer, model.trainable_weights)
    named.update({f"slot {i}": hosts.array(v) for i, v in enumerate(slots.values())})
    named.update({f"history {k}": np.array(v) for k, v in history.history.items()})
    return named


QUICK = ["sample weights", "penalties", "masks and weights", "contrastive"]
if not hosts.IS_KERAS3:
    QUICK = ["masks and weights", "contrastive"]
# Tests of code that tf_keras shares with Keras 3 on TensorFlow.
shared = (lambda test: test) if hosts.IS_KERAS3 else thorough


def each_of(table):
    """Parametrize a test by the names of a table. Only those in `QUICK` are in the second tier."""
    marks = {name: () if name in QUICK else thorough for name in table}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


@pytest.mark.filterwarnings("ignore:MicroBatches.* changes nothing")
@each_of(CASES)
def test_equals_the_whole_batch(name):
    _, expected = train(CASES[name])
    _, actual = train(CASES[name], [MicroBatches(SIZE)])
    assert actual.keys() == expected.keys()
    assert_equal(actual, expected)


@quick_first("in_compile", [{}, {"jit_compile": True}] if hosts.IS_TENSORFLOW else [{}])
def test_an_embedding_has_the_dense_gradient(in_compile):
    """Rows are repeated in a slice, and missing in others. The last row is in no slice."""

    def trained(layer, *callbacks):
        case = (lambda: initialize(embedding_model(layer))), (WORDS % 5, Y), {}, in_compile
        return train(case, callbacks)[1]

    assert_equal(trained(layers.Embedding, MicroBatches(SIZE)), trained(DenseEmbedding))


def two_towers():
    """Two models whose layers have the same names, so that their variables have the same paths."""
    inputs = layers.Input((3,))
    return keras.Model(inputs, layers.Add()([tower()(inputs) for _ in range(2)]))


def tower():
    inputs = layers.Input((3,))
    hidden = layers.Dense(4, "tanh", name="hidden")(inputs)
    return keras.Model(inputs, layers.Dense(2, name="out")(hidden))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="variables of tf_keras have no paths")
@pytest.mark.parametrize("loss", ["sample", "batch"])
def test_variables_of_the_same_path(loss):
    """One batch: Keras on PyTorch doesn't forget all gradients of such variables after a batch."""
    case = two_towers, (X, Y), {}, {}
    trained = []
    for callbacks in [], [MicroBatches(SIZE, loss=loss)]:
        optimizer = hosts.stock("SGD", learning_rate=0.1)
        model, _ = train(case, callbacks, optimizer, batch_size=SAMPLES, epochs=1)
        trained.append(model.get_weights())
    assert len({v.path for v in model.variables}) < len(model.variables)
    for actual, expected in zip(*trained):
        np.testing.assert_allclose(actual, expected, **hosts.TOLERANCE)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="about hooks of PyTorch")
@pytest.mark.parametrize("fails", [False, True])
def test_a_training_leaves_no_hooks(fails):
    """Also a training that ends with an error inside a step: later, `backward` is PyTorch's."""
    slices_seen = []

    def loss(y_true, y_pred):
        if fails and y_pred.requires_grad:
            slices_seen.append(y_pred)
            if len(slices_seen) == 2:
                raise OSError
        return ops.square(y_true - y_pred)

    model = sequential()
    model.compile("sgd", loss)
    with pytest.raises(OSError) if fails else contextlib.nullcontext():
        model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[MicroBatches(SIZE)])
    model.zero_grad()
    ops.mean(model(X)).backward()
    assert all(v.value.grad is not None for v in model.trainable_weights)


def optimizers():
    rates = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    averaged = {"use_ema": True, "ema_overwrite_frequency": 2} if hosts.HAS_EMA else {}
    return {
        "Adam": hosts.stock("Adam", learning_rate=rates, **averaged),
        "SGD": hosts.stock("SGD", learning_rate=0.1, momentum=0.9, global_clipnorm=0.1),
        "ours": hosts.ours("Adam", learning_rate=0.01),
    }


@quick_first("name", ["Adam", "SGD", "ours"])
def test_optimizers(name):
    _, expected = train(CASES["plain"], optimizer=optimizers()[name])
    model, actual = train(CASES["plain"], [MicroBatches(SIZE)], optimizers()[name])
    assert_equal(actual, expected)
    assert int(model.optimizer.iterations) == 2 * -(-SAMPLES // BATCH)


@quick_first("others", [["AccumulationMonitor", "PythonGate"], ["PythonGate"], []])
def test_windows_count_batches(others):
    """With `accum_iters=2`, an update is made every two batches, each of them in slices."""
    build, (x, y), *arguments = CASES["plain"]
    case = build, (x[:16], y[:16]), *arguments
    _, expected = train(case, optimizer=hosts.stock("Adam", learning_rate=0.01))
    ours = hosts.ours("Adam", learning_rate=0.01, accum_iters=2)
    callbacks = [MicroBatches(SIZE), *[getattr(hosts.accum, name)() for name in others]]
    model, actual = train(case, callbacks, ours, BATCH // 2)
    assert model.optimizer.completed_updates == 4
    names = [name for name in expected if "weight" in name or name == "history loss"]
    assert_equal(actual, {name: expected[name] for name in names})


@thorough
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(dtype):
    """Each slice's loss is scaled; the loss scale moves as in plain `fit`."""

    def build():
        if not hosts.IS_KERAS3:
            return sequential(dtype=keras.mixed_precision.Policy(dtype))
        policy = keras.dtype_policies.DTypePolicy(dtype)
        model = sequential(dtype=policy)
        model.dtype_policy = policy
        return model

    case = build, (X, Y), {}, {}

    def optimizer():
        sgd = hosts.stock("SGD", learning_rate=0.05)
        if dtype != "mixed_float16":
            return sgd
        return hosts.loss_scaled(sgd, 64, dynamic_growth_steps=2)

    expected = train(case, optimizer=optimizer())
    actual = train(case, [MicroBatches(SIZE)], optimizer())
    models = actual[0], expected[0]
    assert_equal(*[dict(enumerate(model.get_weights())) for model in models], **HALF)
    if dtype == "mixed_float16":
        scales = [float(hosts.loss_scale(model.optimizer)) for model in models]
        assert scales[0] == scales[1] > 64


class Seen(layers.Layer):
    """Keeps the number of samples of each call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rows = []

    def call(self, x):
        self.rows.append(x.shape[0])
        return x


@shared
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch loops in Python")
def test_the_program_does_not_grow_with_the_number_of_slices():
    def traced(batch):
        layer = Seen()
        train((lambda: sequential(layer), (X[:18], Y[:18]), {}, {}), [MicroBatches(SIZE)],
              batch_size=batch, epochs=1)  # fmt: skip
        return len(layer.rows)

    assert traced(18) == traced(9)


@shared
def test_the_model_sees_slices():
    layer = Seen()
    model, _ = train((lambda: sequential(layer), (X, Y), {}, {}), epochs=1)
    layer.rows.clear()
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[MicroBatches(SIZE)])
    known = {rows for rows in layer.rows if rows is not None}
    assert SIZE in known and known <= {SIZE, BATCH % SIZE, SAMPLES % BATCH % SIZE}


@shared
def test_batch_normalization_moves_with_each_slice():
    def build():
        return sequential(layers.BatchNormalization(momentum=0.5, name="norm"))

    frozen = hosts.stock("SGD", learning_rate=0.0)
    model, _ = train(
        (build, (X[:BATCH], Y[:BATCH]), {}, {}), [MicroBatches(SIZE)], frozen, epochs=1
    )
    hosts.set_random_seed()
    other = build()
    for start in range(0, BATCH, SIZE):
        other(X[start : min(start + SIZE, BATCH)], training=True)
    found, expected = [dict(enumerate(m.get_weights())) for m in (model, other)]
    assert_equal(found, expected)


@shared
def test_dropout_draws_for_each_slice():
    """The gradient of a kernel counts how many of its input's samples are kept."""

    def build():
        dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="out")
        return keras.Sequential([layers.Input((64,)), layers.Dropout(0.5, seed=1), dense])

    ones, count = np.ones((4 * SIZE, 64), hosts.FLOATX), 4
    case = build, (ones, ones[:, :1]), {}, {"loss": lambda y_true, y_pred: ops.sum(y_pred, -1)}
    sgd = hosts.stock("SGD", learning_rate=0.5)  # a kept input is twice as large
    model, _ = train(case, [MicroBatches(SIZE)], sgd, batch_size=count * SIZE, epochs=1)
    kept = np.round(-model.get_weights()[0] * count * SIZE)
    assert 0 < kept.mean() < count * SIZE
    assert (kept % count).any()  # with equal draws, each slice would keep the same number


def scalar(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


class OwnStep(keras.Model):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


class OwnLoss(keras.Model):
    def compute_loss(self, *arguments, **keywords):
        return super().compute_loss(*arguments, **keywords)


def of_class(cls):
    def build():
        inputs = layers.Input((3,))
        return cls(inputs, layers.Dense(2, name="out")(inputs))

    return build


def stateful():
    inputs = layers.Input((3,), batch_size=BATCH)
    steps = layers.Reshape((1, 3))(inputs)
    recurrent = layers.SimpleRNN(2, stateful=True, name="state")(steps)
    return keras.Model(inputs, recurrent)


REFUSED = {
    "the stateful layer state": {"build": stateful},
    "has its own `train_step`": {"build": of_class(OwnStep)},
    "has its own `compute_loss`": {"build": of_class(OwnLoss)},
    "one value per sample of the loss 'scalar'": {"loss": lambda: scalar},
    "one value per sample of the metric 'scalar'": {"metrics": [scalar]},
    "what the loss 'mean_squared_error' is divided by": {"loss": lambda: mse("none")},
    "the loss 'circle', which compares": {"loss": getattr(keras.losses, "Circle", None)},
    "reduction='weighted'": {"optimizer": ("Adam", {"accum_iters": 2, "reduction": "weighted"})},
}
if not hosts.IS_KERAS3:
    del REFUSED["the loss 'circle', which compares"]


@pytest.mark.parametrize("message", REFUSED)
def test_refused_at_the_start(message):
    more = dict(REFUSED[message])
    name, arguments = more.pop("optimizer", ("Adam", {}))
    build = more.pop("build", sequential)
    case = build, (X, Y), {}, lambda: {**more, "loss": more.get("loss", str)() or "mse"}
    if "circle" in message:
        case = build, (X, CLASSES), {}, case[3]
    with pytest.raises(ValueError, match=f"MicroBatches .*{message}"):
        train(case, [MicroBatches(SIZE)], hosts.ours(name, **arguments))


@shared
def test_a_batch_that_is_one_slice_is_said():
    """At the first batch, and not of a last one."""
    with pytest.warns(UserWarning, match=r"MicroBatches\(8, .*changes nothing") as found:
        train(CASES["plain"], [MicroBatches(BATCH)])
    assert [w.filename for w in found if "MicroBatches" in str(w.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "MicroBatches.* changes nothing")
        train(CASES["plain"], [MicroBatches(BATCH)])
    model, callback = sequential(), MicroBatches(SIZE + 1)
    model.compile("sgd", "mse")
    for _ in range(2):  # the last batch is one slice
        model.fit(X, Y, BATCH, verbose=0, callbacks=[callback])


def test_a_callback_in_the_place_of_an_optimizer():
    with pytest.raises(ValueError, match=r"MicroBatches\(10, .*a callback: give it to `fit`"):
        sequential().compile(MicroBatches(10), "mse")


def test_a_class_in_the_place_of_a_callback():
    model = sequential()
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="must have callbacks, not their classes"):
        model.fit(X, Y, verbose=0, callbacks=[MicroBatches])


@pytest.mark.skipif(hosts.FLOATX != "float64", reason="float32 has no more digits")
def test_shares_are_not_rounded():
    (_, expected), (_, actual) = (
        train(CASES["masks"], callbacks, hosts.stock("SGD", learning_rate=0.1))
        for callbacks in ([], [MicroBatches(SIZE)])
    )
    weights = {name: value for name, value in expected.items() if "weight" in name}
    assert_equal(actual, weights, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size, error", [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_sizes(size, error):
    with pytest.raises(error, match="`size` must be"):
        MicroBatches(size)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3 has `compute_loss`")
def test_versions_without_compute_loss_are_refused(monkeypatch):
    model = sequential()
    model.compile("sgd", "mse")
    monkeypatch.delattr(keras.Model, "compute_loss")
    with pytest.raises(ValueError, match="needs TensorFlow 2.9 or newer"):
        model.fit(X, Y, verbose=0, callbacks=[MicroBatches(SIZE)])


def test_arrays_of_different_lengths_are_refused():
    model = sequential()
    model.compile("sgd", "mse")
    step = MicroBatches._step_class(model, SIZE, "sample")
    arrays = [hosts.tf.constant(a) if hosts.IS_TENSORFLOW else a for a in (X[:4], Y[:6])]
    with pytest.raises(ValueError, match="the first dimension of all arrays"):
        step.rows_of(arrays)


# -- "auto" --------------------------------------------------------------------------------------


def out_of_memory(where):
    """The error of the backend."""
    if hosts.IS_TORCH:
        import torch

        return torch.cuda.OutOfMemoryError(f"CUDA out of memory in {where}")
    if hosts.IS_TENSORFLOW:
        return MemoryError(f"OOM in {where}")  # TensorFlow makes it a ResourceExhaustedError
    import jax

    return jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: out of memory in {where}")


def raising(x, count, fits):
    """Return x, or raise the error in the program if `fits(rows, count)` is false."""
    if not hosts.IS_TENSORFLOW:
        return checked(x, count, fits)
    tf = hosts.tf
    arguments = [x, tf.cast(count, tf.int32)]
    y = tf.numpy_function(lambda x, count: checked(x, count, fits), arguments, x.dtype)
    y.set_shape(x.shape)
    return x + tf.stop_gradient(y - x)


def checked(x, count, fits):
    if not fits(x.shape[0], count):
        raise out_of_memory("this test")
    return x


class Small(layers.Layer):
    """A layer that needs memory, and counts its calls."""

    def __init__(self, fits, **kwargs):
        super().__init__(**kwargs)
        self.fits = fits

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.built = True

    def call(self, x, training=False):
        if training:  # not when Keras 3 builds the model
            x = raising(x, 1 if hosts.BACKEND == "jax" else self.count, self.fits)
            self.count.assign(self.count + 1)
        return x


@quick_first("loss", ["sample", "batch"])
def test_auto_finds_a_size(loss, capsys):
    """Slices of 8, of 4, and then of 2; the second slice of 4 fails when one is in the sums."""

    def fits(rows, count):  # on JAX, the error comes while it traces
        return rows <= 2 or rows <= 4 and count == 0

    case = (lambda: sequential(Small(fits, name="small"))), *CASES["sample weights"][1:]
    callback = MicroBatches("auto", loss=loss)
    assert callback.size is None
    model, actual = train(case, [callback])
    assert callback.size == 2
    assert capsys.readouterr().out.count("slices of 2 samples") == 1
    _, expected = train(case, [MicroBatches(2, loss=loss)])
    assert actual.keys() == expected.keys()
    assert_equal(actual, expected)
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert callback.size == 2 and not capsys.readouterr().out


class Raises(keras.constraints.Constraint):
    def __call__(self, w):
        return raising(w, 0, lambda rows, count: False)


@quick_first("in_the_update", [True, False])
def test_auto_gives_up(in_the_update):
    """One sample doesn't fit, or an update was made in part: only JAX knows that it wasn't."""

    def build():
        if not in_the_update:
            return sequential(Small(lambda rows, count: False, name="small"))
        return sequential(kernel_constraint=Raises())

    callback = MicroBatches("auto")
    undone = not in_the_update or hosts.BACKEND == "jax"
    message = "this test" if undone else "had begun to update the weights"
    with pytest.raises(Exception, match=message) as raised:
        train((build, (X, Y), {}, {}), [callback])
    assert (type(raised.value) is RuntimeError) != undone
    assert callback.size == (1 if undone else None)


@thorough
def test_auto_with_windows():
    """All callbacks that substitute the train function find the size."""

    def build():
        return sequential(Small(lambda rows, count: rows <= 2, name="small"))

    small = build, (X[: 2 * BATCH], Y[: 2 * BATCH]), {}, {}
    found = []
    for size in 2, "auto":
        others = hosts.accum.AccumulationMonitor(), hosts.accum.PythonGate()
        callbacks = [MicroBatches(size), *others]
        ours = hosts.ours("Adam", learning_rate=0.01, accum_iters=2)
        found.append(train(small, callbacks, ours)[1])
        assert callbacks[0].size == 2
    assert_equal(found[1], found[0])


@shared
@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras refuses several steps")
def test_auto_needs_one_step_in_one_call():
    case = sequential, (X, Y), {}, {"steps_per_execution": 2}
    with pytest.raises(ValueError, match='"auto" and steps_per_execution=2'):
        train(case, [MicroBatches("auto")])


# -- loss="batch" --------------------------------------------------------------------------------


def contrastive(y_true, y_pred):
    """Each sample's output is told from the other samples' outputs."""
    y_true, y_pred = [v / ops.norm(v, axis=-1, keepdims=True) for v in (y_true, y_pred)]
    logits = 3 * ops.matmul(y_pred, ops.transpose(y_true))
    return ops.logsumexp(logits, axis=-1) - ops.diagonal(logits)


def correlation(y_true, y_pred):
    y_true, y_pred = [v - ops.mean(v, axis=0) for v in (y_true, y_pred)]
    return -ops.sum(y_true * y_pred) / ops.sqrt(ops.sum(ops.square(y_pred)) + 0.1)


def on_labels():
    return {"loss": keras.losses.Circle()}  # which Keras 2 doesn't have


COUPLED = {
    "contrastive": (
        lambda: sequential(MeanSquare(), kernel_regularizer="l2"),
        (X, Y),
        {"sample_weight": WEIGHTS},
        {"loss": contrastive, "metrics": ["mae", correlation]},
    ),
    "circle": (sequential, (X, CLASSES), {}, on_labels),
    "masked": (
        masked,
        (SEQUENCES, [TARGETS, TARGETS, Y]),
        {},
        lambda: three(metrics=[["mae"]] * 3) | {"loss": ["mse", "mae", correlation]},
    ),
    "nested": (nested, NESTED, {}, {"loss": {"one": contrastive, "two": correlation}}),
    "a last batch in a part of a slice": (sequential, SHORT, {}, {"loss": contrastive, **WITH_XLA}),
}
if not hosts.IS_KERAS3:
    del COUPLED["circle"]


@each_of(COUPLED)
def test_any_loss_of_the_whole_batch(name):
    def sgd():  # Adam would enlarge the rounding of a bias that has no gradient
        return hosts.stock("SGD", learning_rate=0.03, momentum=0.5)

    _, expected = train(COUPLED[name], optimizer=sgd())
    _, actual = train(COUPLED[name], [MicroBatches(SIZE, loss="batch")], sgd())
    assert actual.keys() == expected.keys()
    assert_equal(actual, expected)
    if name == "contrastive":  # no average of slices has this gradient
        _, sliced = train(COUPLED[name], optimizer=sgd(), batch_size=SIZE)
        assert np.abs(sliced["weight 0"] - expected["weight 0"]).max() > 1e-3


def test_both_passes_have_the_same_dropout():
    """For a loss of degree 2 in the weights w, gradient * w is twice the loss."""

    def build():
        dense = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="out")
        return keras.Sequential([layers.Input((64,)), layers.Dropout(0.5, seed=1), dense])

    ones = np.ones((BATCH, 64), hosts.FLOATX)
    case = build, (ones, ones[:, :1]), {}, {"loss": lambda y_true, y_pred: ops.mean(y_pred**2)}
    sgd = hosts.stock("SGD", learning_rate=2**-10)
    if hosts.IS_TF_KERAS:
        with pytest.raises(ValueError, match="the same random numbers.*enable_tf_random_generator"):
            train(case, [MicroBatches(SIZE, loss="batch")])
        keras.backend.experimental.enable_tf_random_generator()
    try:
        model, found = train(case, [MicroBatches(SIZE, loss="batch")], sgd, epochs=1)
    finally:
        if hosts.IS_TF_KERAS:
            keras.backend.experimental.disable_tf_random_generator()
    product = np.sum(1 - model.get_weights()[0]) * 2**10
    np.testing.assert_allclose(product, 2 * found["history loss"][0], rtol=1e-3)


def test_a_loss_scale_acts_on_the_loss_of_the_batch():
    def optimizer():
        sgd = hosts.stock("SGD", learning_rate=0.03)
        return hosts.loss_scaled(sgd, 64)

    _, expected = train(COUPLED["contrastive"], optimizer=optimizer())
    batch = [MicroBatches(SIZE, loss="batch")]
    _, actual = train(COUPLED["contrastive"], batch, optimizer())
    assert_equal(actual, {k: v for k, v in expected.items() if "slot" not in k})


@shared
def test_batch_normalization_must_be_frozen():
    def build(trainable):
        return sequential(layers.BatchNormalization(name="norm", trainable=trainable))

    batch = [MicroBatches(SIZE, loss="batch")]
    with pytest.raises(ValueError, match="batch normalization that trains.*'norm'"):
        train((lambda: build(True), (X, Y), {}, {}), batch)
    case = (lambda: build(False)), (X, Y), {}, {}
    _, expected = train(case)
    _, actual = train(case, batch)
    assert_equal(actual, expected)


def test_loss_batch_needs_a_loss():
    with pytest.raises(ValueError, match="a model that is compiled with a loss"):
        train(
            (lambda: sequential(MeanSquare()), (X, Y), {}, {"loss": None}),
            [MicroBatches(SIZE, loss="batch")],
        )
    with pytest.raises(ValueError, match='`loss` must be "sample" or "batch"'):
        MicroBatches(SIZE, loss="mse")


@shared
def test_compiled_again():
    """The callback that trained the model with one loss trains it with another loss."""
    expected, actual = [], []
    for found, callbacks in (expected, []), (actual, [MicroBatches(SIZE)]):
        model, _ = train(CASES["sample weights"], callbacks, epochs=1)
        model.compile(hosts.stock("SGD", learning_rate=0.1), mse(WEIGHTED_MEAN))
        model.fit(X, Y, BATCH, sample_weight=WEIGHTS, shuffle=False, verbose=0, callbacks=callbacks)
        found.extend(model.get_weights())
    assert_equal(dict(enumerate(actual)), dict(enumerate(expected)))


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


class StopsBefore(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise KeyboardInterrupt


@shared
@pytest.mark.parametrize("stop", [Stop, StopsBefore])
def test_compiled_again_after_an_interrupted_training(stop):
    """The next training, without the callback, is by whole batches."""
    seen = []

    class Sees(layers.Layer):
        def call(self, x):
            seen.append(x.shape[0])
            return x

    model = sequential(Sees(trainable=False))
    model.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, BATCH, verbose=0, callbacks=[MicroBatches(SIZE), stop()])
    model.compile("sgd", "mse")
    seen.clear()
    model.fit(X, Y, BATCH, verbose=0)
    assert seen and SIZE not in seen


@shared
def test_the_model_gets_back_its_train_function():
    model, _ = train(CASES["plain"])
    own, names = model.train_function, set(vars(model))
    callback = MicroBatches(SIZE)
    model.fit(X, Y, verbose=0, callbacks=[callback])
    assert model.train_function is own
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, verbose=0, callbacks=[callback, Stop()])
    assert model.train_function is own and set(vars(model)) == names
    model.fit(X, Y, verbose=0, callbacks=[callback])
    assert model.train_function is own


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="strategies are TensorFlow's")
def test_mirrored_strategy_reduces_once():
    tf = hosts.tf
    executed = tf.Variable(0)

    class Counting(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, *arguments):
            executed.assign_add(1)
            return super().batch_reduce_implementation(*arguments)

    _, expected = train(CASES["masks"])
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Counting()).scope():
        _, plain = train(CASES["masks"])
        before = int(executed)
        _, actual = train(CASES["masks"], [MicroBatches(SIZE)])
    assert int(executed) - before == before
    assert_equal(actual, plain)


class Synchronizes(layers.Layer):
    """Waits in its forward pass for all replicas."""

    def call(self, x):
        replica = hosts.tf.distribute.get_replica_context()
        if replica is not None:
            replica.all_reduce("sum", x)
        return x


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="strategies are TensorFlow's")
@pytest.mark.parametrize("samples", [16, 14])
def test_layers_that_wait_for_other_replicas(samples, strategy):
    """TensorFlow itself refuses them in the loop over slices, so replicas' slices don't mix."""
    with strategy.scope():
        case = (lambda: sequential(Synchronizes())), (X[:samples], Y[:samples]), {}, {}
        with pytest.raises(RuntimeError, match="merge_call"):
            train(case, [MicroBatches(SIZE)], batch_size=samples)


@pytest.fixture
def two_devices():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    assert keras.distribution.distribution().device_mesh.shape[0] == 2
    yield
    keras.distribution.set_distribution(None)


on_jax = pytest.mark.skipif(hosts.BACKEND != "jax", reason="distributions are JAX's")


@on_jax
@quick_first("size, loss", [(2, "batch"), (SIZE, "sample"), (2, "sample")])
def test_data_parallel(size, loss, request):
    """Equal to the whole batch on one device."""
    case = sequential, *(COUPLED["contrastive"] if loss == "batch" else CASES["plain"])[1:]
    _, expected = train(case, optimizer=hosts.stock("SGD", learning_rate=0.03))
    request.getfixturevalue("two_devices")
    callback = MicroBatches(size, loss=loss)
    _, actual = train(case, [callback], hosts.stock("SGD", learning_rate=0.03))
    assert_equal(actual, expected)


@on_jax
def test_auto_on_several_devices_is_refused(two_devices):
    with pytest.raises(ValueError, match='"auto".* several devices or replicas.*Received: 2'):
        train(CASES["plain"], [MicroBatches("auto")])


@on_jax
def test_devices_take_parts_of_slices(two_devices):
    """No device gets samples of another device."""
    import jax

    model = sequential()
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(X[:2], Y[:2], WEIGHTS[:2])  # Keras 3.10 fails without weights
    kinds = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
    state = tuple([v.value for v in kind] for kind in (*kinds, model.metrics_variables))
    of_data = keras.distribution.distribution().get_data_layout((BATCH, 3)).backend_layout
    data = jax.device_put((X[:BATCH], Y[:BATCH]), of_data)

    def program(size):
        step = MicroBatches._step_class(model, size, "sample")
        return jax.jit(lambda *arguments: step(*arguments)).lower(state, data).compile().as_text()

    assert "all-reduce" in program(2) and "all-gather" not in program(2)
    assert "all-gather" in program(1)  # two devices can't take parts of one sample


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX tells what a program will need")
@pytest.mark.parametrize("loss", ["sample", "batch"])
def test_the_memory_is_that_of_a_slice(loss):
    import jax

    batch, parts = 2048, 16
    x, y = np.ones((batch, 8), "float32"), np.ones((batch, 1), "float32")
    hidden = [layers.Dense(64, "tanh") for _ in range(4)]
    model = keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse")
    model.train_on_batch(x[:1], y[:1])
    kinds = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
    state = tuple([v.value for v in kind] for kind in (*kinds, model.metrics_variables))

    def needed(step):
        program = jax.jit(lambda *arguments: step(*arguments)).lower(state, (x, y)).compile()
        return program.memory_analysis().temp_size_in_bytes

    step = MicroBatches._step_class(model, batch // parts, loss)
    assert needed(step) < 2 / parts * needed(model.train_step)


@shared
def test_sums_of_half_precision_do_not_stall():
    """The gradient is 1: in bfloat16, a sum of 512 parts of it would end at a half."""

    def build():
        out = layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="bfloat16")
        return keras.Sequential([layers.Input((1,)), out])

    ones = np.ones((512, 1), hosts.FLOATX)
    case = build, (ones, ones), {}, {"loss": lambda y_true, y_pred: ops.sum(y_pred, -1)}
    sgd = hosts.stock("SGD", learning_rate=1.0)
    model, _ = train(case, [MicroBatches(1)], sgd, batch_size=512, epochs=1)
    assert float(model.get_weights()[0][0, 0]) == -1
