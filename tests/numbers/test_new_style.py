"""The new-style optimizers of tf_keras: each equals the stock optimizer at the big batch."""

import copy
import doctest
import inspect
import pickle
import subprocess
import sys

import hosts
import numpy as np
import pytest
from cases import quick_first, thorough
from hosts import keras

if not hosts.IS_TF_KERAS or not hasattr(keras.optimizers, "AdamW"):
    pytest.skip("about new-style optimizers, which only tf_keras has", allow_module_level=True)

import training
from graphs import conditionals, operations
from training import BIG, LENGTH, MICRO, Shrink, compiled, dense_model, fit, weights

from keras_accum import StateError
from keras_accum.tf_keras import accumulating

tf = hosts.tf
O = keras.optimizers  # noqa: E741
Accumulating = accumulating(O.AdamW)

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")

# Learning rates are powers of two. With them, no weight comes near zero.
ROWS = {
    "sgd": ("SGD", {"learning_rate": 2**-4}),
    "momentum": ("SGD", {"learning_rate": 2**-4, "momentum": 0.75}),
    "nesterov": ("SGD", {"learning_rate": 2**-4, "momentum": 0.75, "nesterov": True}),
    "rmsprop": ("RMSprop", {"learning_rate": 2**-6}),
    "rmsprop_all": ("RMSprop", {"learning_rate": 2**-7, "momentum": 0.75, "centered": True}),
    "adam": ("Adam", {"learning_rate": 2**-5}),
    "amsgrad": ("Adam", {"learning_rate": 2**-5, "amsgrad": True, "beta_2": 0.75}),
    "adamw": ("AdamW", {"learning_rate": 2**-5, "weight_decay": 0.25}),
    "adadelta": ("Adadelta", {"learning_rate": 8.0}),
    "adagrad": ("Adagrad", {"learning_rate": 2**-4}),
    "adamax": ("Adamax", {"learning_rate": 2**-5}),
    "nadam": ("Nadam", {"learning_rate": 2**-5}),
    "ftrl": ("Ftrl", {"learning_rate": 2**-3, "l2_regularization_strength": 0.125}),
    "lion": ("Lion", {"learning_rate": 2**-6}),
    "adafactor": ("Adafactor", {"learning_rate": 2**-3}),
    "adafactor_absolute": ("Adafactor", {"learning_rate": 2**-3, "relative_step": False}),
}
QUICK = "adamw", "nadam", "adafactor"
every_row = pytest.mark.parametrize(
    "row",
    [pytest.param(r, id=n, marks=() if n in QUICK else thorough) for n, r in ROWS.items()],
)
few_rows = quick_first("name", ["adamw", "nadam", "adafactor"])
ADAMW = ROWS["adamw"]

UPDATES = 3
SHAPES = [(3, 2), (2,), (2, 3, 2), ()]


@keras.utils.register_keras_serializable("tests")
class Signed(O.Optimizer):
    """A user's optimizer: a slot, a scalar that each step writes, and a use of `iterations`."""

    def __init__(self, learning_rate=2**-5, power=0.5, name="Signed", **kwargs):
        super().__init__(name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.power = power

    def build(self, var_list):
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self.memories = [self.add_variable_from_reference(v, "memory") for v in var_list]
        self.steps = self.add_variable((), initializer="ones", name="steps")

    def update_step(self, gradient, variable):
        memory = self.memories[self._index_dict[self._var_key(variable)]]
        self.steps.assign_add(tf.cast(self.iterations + 1, self.steps.dtype))
        memory.assign(memory / 2 + gradient)
        rate = self.learning_rate / tf.cast(self.iterations + 1, variable.dtype) ** self.power
        variable.assign_sub(rate * tf.sign(memory) * tf.sqrt(self.steps))

    def get_config(self):
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate, "power": self.power}


def variables(**arguments):
    random = np.random.default_rng(1)
    values = [random.uniform(0.5, 1, shape) for shape in SHAPES]
    return [tf.Variable(v, name=f"w{i}", **arguments) for i, v in enumerate(values)]


def gradients(updates=UPDATES, length=LENGTH):
    """One list per micro-batch, with a gradient for each variable."""
    random = np.random.default_rng(2)
    return [[random.uniform(-1, 1, s) for s in SHAPES] for _ in range(updates * length)]


def averaged(grads, length=LENGTH):
    """One list per update, with the big batch's gradients."""
    return [
        [sum(g) / length for g in zip(*grads[i : i + length])] for i in range(0, len(grads), length)
    ]


def step_of(optimizer, variables):
    """Return a traced train step on given gradients."""

    @tf.function
    def step(grads):
        optimizer.apply_gradients(list(zip(grads, variables)))

    return lambda grads: step([tf.constant(g, v.dtype) for g, v in zip(grads, variables)])


def trained_by_stock(stock, arguments, grads=None, **of_variables):
    """Train the stock optimizer eagerly. In graphs, stock Nadam deviates from its formula."""
    optimizer, ws = stock(**arguments), variables(**of_variables)
    for grad in averaged(gradients() if grads is None else grads):
        optimizer.apply_gradients(list(zip(map(tf.constant, grad), ws)))
    return optimizer, ws


def everything(optimizer, ws, of=None):
    """Weights and all state by name. `of` names a stock optimizer's state like its own."""
    found = of._named_rule_variables(optimizer) if of else optimizer._state_variables()
    return {**{f"w{i}": w.numpy() for i, w in enumerate(ws)}, **hosts_values(found)}


def hosts_values(found):
    return {name: np.array(variable) for name, variable in found.items()}


def unwindowed(values):
    return {
        n: v for n, v in values.items() if not n.startswith(("window", "accumulator", "missing"))
    }


def assert_same(actual, expected):
    assert list(map(str, actual)) == list(map(str, expected))
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=str(name))


def assert_equals_stock(stock, arguments, more=None, grads=None, step=step_of, **of_variables):
    """Equal to the stock optimizer at the big batch, and unchanged to the bit inside windows."""
    grads = gradients() if grads is None else grads
    ws = variables(**of_variables)
    optimizer = accumulating(stock)(**arguments, accum_iters=LENGTH, **(more or {}))
    optimizer.build(ws)
    step, start = step(optimizer, ws), unwindowed(everything(optimizer, ws))
    for i, grad in enumerate(grads):
        before = unwindowed(everything(optimizer, ws))
        step(grad)
        after = unwindowed(everything(optimizer, ws))
        if (i + 1) % LENGTH:
            assert_same(after, before)
    assert optimizer.completed_updates == len(grads) // LENGTH
    reference, expected = trained_by_stock(stock, arguments, grads, **of_variables)
    expected = everything(reference, expected, of=optimizer)
    training.assert_equal(everything(optimizer, ws), expected)
    for i in range(len(ws)):
        assert np.abs(expected[f"w{i}"] - start[f"w{i}"]).max() > 2**-10, "nothing is tested"
    return optimizer, ws


# -- each class ----------------------------------------------------------------------------------


@every_row
def test_equals_big_batch(row):
    name, arguments = row
    optimizer, ws = assert_equals_stock(getattr(O, name), arguments)
    specs = [tf.TensorSpec(s, "float64") for s in SHAPES]
    found = operations(lambda grads: optimizer.apply_gradients(list(zip(grads, ws))), specs)
    assert not conditionals(found)


def test_a_class_of_a_user():
    optimizer, ws = assert_equals_stock(Signed, {"power": 0.25})
    assert {"Signed.steps", "Signed.memories.0"} <= set(optimizer.get_state())
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is type(optimizer)
    assert_same(again.get_state(), optimizer.get_state())


@thorough
def test_docstring_and_signature():
    for name, _ in ROWS.values():
        cls = accumulating(getattr(O, name))
        has_namesake = name not in ("AdamW", "Lion", "Adafactor")
        assert (f"`keras.optimizers.{name}`, not for the legacy" in cls.__doc__) == has_namesake
        assert "accum_iters: Integer" in cls.__doc__ and " decay: Float" not in cls.__doc__
        example = doctest.DocTestFinder(recurse=False).find(cls, name, globs={})[0]
        failures, attempted = doctest.DocTestRunner().run(example)
        assert attempted and not failures
        stock = list(inspect.signature(getattr(O, name)).parameters)[:-1]  # without **kwargs
        assert list(inspect.signature(cls).parameters)[: len(stock)] == stock


def test_each_class_is_made_once():
    assert accumulating(O.AdamW) is Accumulating
    assert hosts.accum.AdamWAccumulate is Accumulating
    assert hosts.accum.AdamAccumulate is not accumulating(O.Adam)
    assert issubclass(hosts.accum.AdamAccumulate, O.legacy.Adam)


@pytest.mark.parametrize(
    "more",
    [
        {"global_clipnorm": 0.5},
        pytest.param({"clipnorm": 0.25}, marks=thorough),
        pytest.param({"clipvalue": 0.125}, marks=thorough),
        {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 2},
        pytest.param({"use_ema": True, "ema_momentum": 0.75}, marks=thorough),
        {"learning_rate": hosts.EachUpdate([2**-5, 2**-7, 2**-4, 2**-5])},
        {"amsgrad": True},
    ],
    ids="-".join,
)
def test_arguments_of_the_stock_optimizer(more):
    name, arguments = ADAMW
    optimizer, ws = assert_equals_stock(O.AdamW, {**arguments, **more})
    specs = [tf.TensorSpec(s, "float64") for s in SHAPES]
    found = operations(lambda grads: optimizer.apply_gradients(list(zip(grads, ws))), specs)
    assert not conditionals(found)


@thorough
def test_constraint():
    assert_equals_stock(O.AdamW, {**ADAMW[1], "use_ema": True}, constraint=Shrink())


@thorough
def test_rate_of_a_schedule_is_unchanged_in_a_window():
    optimizer, ws = Accumulating(hosts.EachUpdate([0.5, 0.25]), accum_iters=2), variables()
    rates = []
    for grad in gradients(1, 4):
        optimizer.apply_gradients(list(zip(map(tf.constant, grad), ws)))
        rates.append(float(optimizer.learning_rate))
    assert rates == [0.5, 0.5, 0.5, 0.25]


def test_exclusions_from_weight_decay():
    def excluding(cls):
        class Excluding(cls):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.exclude_from_weight_decay(var_names=["w0", "w2"])

        return Excluding

    optimizer, ws = excluding(O.AdamW)(**ADAMW[1]), variables()
    ours, own = excluding(Accumulating)(**ADAMW[1], accum_iters=LENGTH), variables()
    for grad in averaged(gradients()):
        optimizer.apply_gradients(list(zip(map(tf.constant, grad), ws)))
    step = step_of(ours, own)
    for grad in gradients():
        step(grad)
    training.assert_equal(everything(ours, own), everything(optimizer, ws, of=ours))


def eager_step(optimizer, variables):
    return lambda g: optimizer.apply_gradients(list(zip(map(tf.constant, g), variables)))


@thorough
@pytest.mark.parametrize("name", ["adamw", "nadam", pytest.param("adafactor", marks=thorough)])
def test_eager_steps(name):
    name, arguments = ROWS[name]
    assert_equals_stock(getattr(O, name), arguments, step=eager_step)


def compiled_step(optimizer, variables):
    step = tf.function(
        lambda grads: optimizer.apply_gradients(list(zip(grads, variables))), jit_compile=True
    )
    return lambda grads: step(list(map(tf.constant, grads)))


@thorough
@few_rows
def test_steps_compiled_by_xla(name):
    name, arguments = ROWS[name]
    assert_equals_stock(getattr(O, name), arguments, step=compiled_step)


def with_its_own_xla(optimizer, variables):
    optimizer.jit_compile = True  # the default on a GPU
    return step_of(optimizer, variables)


@thorough
@few_rows
@pytest.mark.parametrize("gate", ["select", pytest.param("conditional", marks=thorough)])
def test_xla_inside_the_optimizer(name, gate):
    name, arguments = ROWS[name]
    arguments = {**arguments, "use_ema": True, "ema_overwrite_frequency": 2}
    more = {"gate": gate}
    assert_equals_stock(getattr(O, name), arguments, more, step=with_its_own_xla)


@thorough
def test_two_traces_of_xla_inside_the_optimizer():
    optimizer, ws = Accumulating(accum_iters=2), variables()
    for _ in range(2):
        step = with_its_own_xla(optimizer, ws)
        step(gradients()[0])
    assert optimizer.completed_updates == 1


@thorough
@few_rows
def test_conditional(name):
    name, arguments = ROWS[name]
    arguments = {**arguments, "global_clipnorm": 0.5}
    optimizer, ws = assert_equals_stock(getattr(O, name), arguments, {"gate": "conditional"})
    specs = [tf.TensorSpec(s, "float64") for s in SHAPES]
    found = operations(lambda grads: optimizer.apply_gradients(list(zip(grads, ws))), specs)
    assert conditionals(found) == 1


@thorough
def test_sum():
    grads = [[g / LENGTH for g in grad] for grad in gradients()]
    optimizer, ws = Accumulating(**ADAMW[1], accum_iters=LENGTH, reduction="sum"), variables()
    step = step_of(optimizer, ws)
    for grad in grads:
        step(grad)
    reference, expected = trained_by_stock(O.AdamW, ADAMW[1])
    expected = everything(reference, expected, of=optimizer)
    training.assert_equal(everything(optimizer, ws), expected)


@thorough
def test_skip_nonfinite():
    grads = gradients()
    optimizer = Accumulating(**ADAMW[1], accum_iters=LENGTH, skip_nonfinite=True)
    ws = variables()
    step = step_of(optimizer, ws)
    for i, grad in enumerate(grads):
        step(grad)
        if i in (0, 3, 5):
            step([g * np.nan for g in grad])
    reference, expected = trained_by_stock(O.AdamW, ADAMW[1])
    expected = everything(reference, expected, of=optimizer)
    training.assert_equal(everything(optimizer, ws), expected)


@thorough
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nonfinite_gradient_stays_in_its_window(value):
    """Inside the window, nothing that an update would write is written."""
    for name, arguments in ROWS.values():
        optimizer = accumulating(getattr(O, name))(**arguments, accum_iters=2)
        ws = variables()
        optimizer.build(ws)
        before = unwindowed(everything(optimizer, ws))
        eager_step(optimizer, ws)([np.full(s, value) for s in SHAPES])
        assert_same(unwindowed(everything(optimizer, ws)), before)


def test_at_accum_iters_1_it_is_the_stock_optimizer():
    optimizer, ws = Accumulating(**ADAMW[1]), variables()
    reference, expected = trained_by_stock(O.AdamW, ADAMW[1])
    step = eager_step(optimizer, ws)
    for grad in averaged(gradients()):
        step(grad)
    assert_same(everything(optimizer, ws, of=optimizer), everything(reference, expected, optimizer))
    assert [v.name.partition("/")[2] for v in optimizer.variables] == [
        v.name.partition("/")[2] for v in reference.variables
    ]


@thorough
def test_a_new_accum_iters_takes_effect_at_the_next_window():
    optimizer, ws = Accumulating(accum_iters=2), variables()
    step = step_of(optimizer, ws)
    lengths = []
    for grad in gradients(3, 3)[:8]:
        step(grad)
        optimizer.accum_iters = 3
        lengths.append(optimizer.completed_updates)
    assert lengths == [0, 1, 1, 1, 2, 2, 2, 3]


@thorough
def test_partial_window():
    grads = gradients()[: LENGTH - 1]
    optimizer, ws = Accumulating(**ADAMW[1], accum_iters=LENGTH), variables()
    step = step_of(optimizer, ws)
    for grad in grads:
        step(grad)
    optimizer.apply_partial_window()
    reference, expected = O.AdamW(**ADAMW[1]), variables()
    eager_step(reference, expected)(averaged(grads, len(grads))[0])
    expected = everything(reference, expected, of=optimizer)
    training.assert_equal(everything(optimizer, ws), expected)
    assert (optimizer.window_position, optimizer.completed_updates) == (0, 1)


# -- missing gradients ---------------------------------------------------------------------------


@thorough
@pytest.mark.parametrize(
    "row", [ADAMW, pytest.param(ROWS["ftrl"], marks=thorough), ("Signed", {})], ids=str
)
@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_missing_gradients(row, gate):
    """An update covers the variables that had a gradient in the window, and no others."""
    name, arguments = row
    stock = Signed if name == "Signed" else getattr(O, name)
    first, second = [0, 1], [0, 2]  # the last variable never has a gradient
    windows = [[first, second, first], [second, second, second]]
    optimizer = accumulating(stock)(**arguments, accum_iters=3, gate=gate)
    ws = variables()
    optimizer.build(ws)
    steps = {}
    for which in (first, second):

        @tf.function
        def step(grads, which=tuple(which)):
            optimizer.apply_gradients([(g, ws[i]) for g, i in zip(grads, which)])

        steps[tuple(which)] = step
    reference, expected = stock(**arguments), variables()
    reference.build(expected)
    grads = iter(gradients())
    for trained in windows:
        sums = {}
        for which in trained:
            grad = next(grads)
            steps[tuple(which)]([tf.constant(grad[i]) for i in which])
            for i in which:
                sums[i] = sums.get(i, 0) + grad[i]
        # Our optimizer updates the variables of the closing micro-batch first.
        order = [*trained[-1], *(i for i in sums if i not in trained[-1])]
        pairs = [(tf.constant(sums[i] / 3), expected[i]) for i in order]
        reference.apply_gradients(pairs)
    expected = everything(reference, expected, of=optimizer)
    training.assert_equal(everything(optimizer, ws), expected)


def test_unknown_variable():
    optimizer, ws = Accumulating(accum_iters=2), variables()
    optimizer.build(ws[:2])
    with pytest.raises(KeyError, match="cannot recognize variable w2.*build"):
        eager_step(optimizer, ws)(gradients()[0])


# -- in models -----------------------------------------------------------------------------------


def model_state(model):
    """Weights and the part of the state that a stock optimizer has."""
    optimizer = training.inner(model.optimizer)
    own = accumulating(O.AdamW)(**ADAMW[1]) if type(optimizer) is O.AdamW else optimizer
    state = {"completed_updates": optimizer.iterations, **own._named_rule_variables(optimizer)}
    return {**weights(model), **hosts_values(state)}


def train(optimizer, batch_size, build=dense_model, compile=None, **arguments):
    model = compiled(build(), optimizer, **(compile or {"run_eagerly": False}))
    fit(model, batch_size, **arguments)
    return model


def ours(**arguments):
    return Accumulating(**{**ADAMW[1], "accum_iters": LENGTH, **arguments})


def assert_fits_like_stock(both=None, more=None, **arguments):
    both = both or {}
    stock = {name: value for name, value in arguments.items() if name != "callbacks"}
    expected = model_state(train(O.AdamW(**{**ADAMW[1], **both}), BIG, **stock))
    actual = model_state(train(ours(**both, **(more or {})), MICRO, **arguments))
    training.assert_equal(actual, expected)


@thorough
def test_fit():
    assert_fits_like_stock({"use_ema": True, "ema_momentum": 0.75})


@thorough
@pytest.mark.parametrize("compile", [{"run_eagerly": True}, {"jit_compile": True}], ids=str)
def test_fit_in_other_ways(compile):
    assert_fits_like_stock(compile=compile)


@thorough
@pytest.mark.parametrize("gate", ["select", pytest.param("conditional", marks=thorough)])
def test_python_gate(gate):
    callbacks = [hosts.accum.PythonGate()]
    assert_fits_like_stock({"clipnorm": 0.25}, {"gate": gate}, callbacks=callbacks)


@thorough
def test_python_gate_needs_no_selects():
    optimizer, ws = ours(), variables()
    optimizer.build(ws)
    specs = [tf.TensorSpec(s, "float64") for s in SHAPES]
    counts = []
    for picked in (None, True, False):
        with optimizer._accumulation.deciding(picked):
            found = operations(lambda g: optimizer.apply_gradients(list(zip(g, ws))), specs)
        counts.append((found["SelectV2"], found["Sqrt"]))
    (selected, _), (known, _), (inside, roots) = counts
    assert selected - known == 3 * len(ws)  # the weights and both slots were selected
    assert inside <= known and roots == 0


def embedding_model():
    layers = [
        keras.layers.Embedding(5, 3, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, name="out"),
    ]
    return hosts.sequential((4,), layers)


@thorough
def test_embedding_with_repeated_ids():
    random = np.random.default_rng(5)
    x = random.integers(0, 5, (training.SAMPLES, 4))
    arrays = x, training.data()[1]
    assert_fits_like_stock(build=embedding_model, arrays=arrays)


@thorough
def test_mixed_float16():
    policy = hosts.mixed_float16()
    expected, actual = (
        train(
            keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=2.0),
            size,
            build=lambda: dense_model(dtype=policy),
        )
        for optimizer, size in ((O.AdamW(**ADAMW[1]), BIG), (ours(), MICRO))
    )
    training.assert_equal(model_state(actual), model_state(expected), rtol=0, atol=2e-2)


@thorough
@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_loss_scale(gate):
    """A micro-batch that a LossScaleOptimizer skips leaves no trace, and nothing counts it."""
    optimizer, ws = ours(gate=gate), variables()
    wrapper = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=4.0)
    step = step_of(wrapper, ws)
    for i, grad in enumerate(gradients()):
        step(grad)
        if i in (0, 1, 3, 11):
            step([g * np.nan for g in grad])
    reference, expected = trained_by_stock(O.AdamW, ADAMW[1])
    state = everything(optimizer, ws)
    training.assert_equal(state, everything(reference, expected, of=optimizer))
    assert optimizer.completed_updates == wrapper.completed_updates == UPDATES


@thorough
def test_monitor_and_partial_window():
    callbacks = [
        hosts.accum.ApplyPartialWindow(),
        hosts.accum.AccumulationMonitor(batch_size=MICRO),
    ]
    model = compiled(dense_model(), ours(), run_eagerly=False)
    history = fit(model, MICRO, epochs=1, callbacks=callbacks, steps_per_epoch=6).history
    assert history["completed_updates"] == [2]
    assert history["learning_rate"] == [2**-5]
    assert history["gradient_norm"][0] > 0
    assert len(model.optimizer.variables) == len(model.optimizer._state_variables())


@thorough
@pytest.mark.parametrize(
    "how", [None, "picked", pytest.param("scaled", marks=thorough), "conditional"]
)
@quick_first("name", ["adamw", "nadam"])
def test_a_step_that_finds_no_more_data(name, how):
    """A step without data may run in part before it fails. Nothing of it may be visible."""
    name, arguments = ROWS[name]
    arguments = {**arguments, "weight_decay": 0.25}
    x, y = training.data()
    shapes = tf.TensorSpec((None, 3), "float64"), tf.TensorSpec((None, 2), "float64")
    generated = tf.data.Dataset.from_generator(
        lambda: zip(*(np.split(a[: (LENGTH - 1) * MICRO], LENGTH - 1) for a in (x, y))),
        output_signature=shapes,
    )
    states = []
    for steps in (None, LENGTH - 1):
        gate = "conditional" if how == "conditional" else "select"
        optimizer = accumulating(getattr(O, name))(**arguments, accum_iters=LENGTH, gate=gate)
        if how == "scaled":
            optimizer = hosts.loss_scaled(optimizer, initial_scale=2.0)
        model = compiled(dense_model(), optimizer, run_eagerly=False)
        callbacks = [hosts.accum.PythonGate()] if how == "picked" else []
        for _ in range(5):
            model.fit(generated, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
        states.append(all_of(model))
    assert_same(*states)


@thorough
def test_micro_batch_weights():
    x, y = training.data()
    cuts = [0, 3, 5, 8]  # micro-batches of unequal size
    optimizer = ours(reduction="weighted", accum_iters=3)
    model = compiled(dense_model(), optimizer, run_eagerly=False)

    def data():
        for start, stop in zip(cuts, cuts[1:]):
            yield x[start:stop], y[start:stop]

    shapes = (tf.TensorSpec((None, 3), "float64"), tf.TensorSpec((None, 2), "float64"))
    dataset = tf.data.Dataset.from_generator(data, output_signature=shapes)
    model.fit(dataset, verbose=0, callbacks=[hosts.accum.MicroBatchWeights()])
    expected = train(O.AdamW(**ADAMW[1]), BIG, arrays=(x[:BIG], y[:BIG]), epochs=1)
    training.assert_equal(model_state(model), model_state(expected))


# -- strategies ----------------------------------------------------------------------------------


LATE = {"gate": "conditional", "all_reduce": "per_window"}


@thorough
@pytest.mark.parametrize("more", [{}, {"gate": "conditional"}, LATE, "picked"], ids=str)
@quick_first("name", ["adamw", "nadam"])
def test_two_replicas(strategy, name, more):
    name, arguments = ROWS[name]
    arguments = {**arguments, "use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 2}
    arguments["learning_rate"] = hosts.EachUpdate([2**-5, 2**-7, 2**-4, 2**-5])
    picks = more == "picked"
    with strategy.scope():
        ws = variables(constraint=Shrink())
        more = {} if picks else more
        optimizer = accumulating(getattr(O, name))(**arguments, accum_iters=LENGTH, **more)
        optimizer.build(ws)

    def replica(*grads):
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        # One replica gets a quarter, the other three quarters.
        share = tf.cast(number, "float64") + 0.5
        optimizer.apply_gradients([(g * share / 2, w) for g, w in zip(grads, ws)])

    def step(grads):
        strategy.run(tf.autograph.experimental.do_not_convert(replica), grads)

    steps = [tf.function(step) for _ in range(2)]
    for i, grad in enumerate(gradients()):
        closes = (i + 1) % LENGTH == 0
        with optimizer._accumulation.deciding(closes if picks else None):
            steps[closes and picks](list(map(tf.constant, grad)))
    reference, expected = trained_by_stock(getattr(O, name), arguments, constraint=Shrink())
    expected = everything(reference, expected, of=optimizer)
    for copy_of in (0, 1):
        found = {f"w{i}": w.values[copy_of] for i, w in enumerate(ws)}
        found.update((n, v.values[copy_of]) for n, v in optimizer._state_variables().items())
        training.assert_equal(hosts_values(found), expected)


@thorough
def test_fit_of_two_replicas(strategy):
    with strategy.scope():
        model = compiled(dense_model(), ours(), run_eagerly=False)
    fit(model, MICRO)
    expected = model_state(train(O.AdamW(**ADAMW[1]), BIG))
    training.assert_equal(model_state(model), expected)


# -- state and files -----------------------------------------------------------------------------

STOP = LENGTH + 2


def stopped(**arguments):
    """A model two micro-batches into its second window."""
    model = compiled(dense_model(), ours(use_ema=True, **arguments), run_eagerly=False)
    return training.go_on(model, stop=STOP)


def fresh(optimizer=None):
    optimizer = optimizer or ours(use_ema=True)
    return compiled(dense_model(), optimizer, run_eagerly=False)


def all_of(model):
    state = training.inner(model.optimizer).get_state()
    return {**dict(enumerate(weights(model).values())), **state}


def through_file(extension):
    def go(model, folder):
        model.save(folder / f"model{extension}")
        return keras.models.load_model(folder / f"model{extension}")

    return go


def through_checkpoint(model, folder):
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "c"))
    new = fresh()
    new.optimizer.build(new.trainable_variables)
    tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(saved).assert_consumed()
    return new


def through_checkpoint_before_building(model, folder):
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "c"))
    new = fresh()
    tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(saved)
    new.optimizer.build(new.trainable_variables)
    return new


def through_weights(model, folder):
    model.save_weights(folder / "weights")
    new = fresh()
    new.load_weights(folder / "weights")
    return new


def through_weights_and_state(model, folder):
    model.save_weights(str(folder / "w.h5"))
    np.savez(str(folder / "state.npz"), **model.optimizer.get_state())
    new = fresh()
    new.optimizer.set_state(dict(np.load(str(folder / "state.npz"))))
    new.load_weights(str(folder / "w.h5"))
    return new


def through_saved_model(model, folder):
    """Keras doesn't restore new-style optimizers from a SavedModel, stock ones included."""
    model.save(folder / "saved", save_format="tf")
    new = keras.models.load_model(folder / "saved")
    new.optimizer.build(new.trainable_variables)
    new.load_weights(folder / "saved" / "variables" / "variables").expect_partial()
    return new


WAYS = {
    ".keras": through_file(".keras"),
    ".h5": through_file(".h5"),
    "checkpoint": through_checkpoint,
    "checkpoint_before_building": through_checkpoint_before_building,
    "weights": through_weights,
    "state": through_weights_and_state,
    "saved_model": through_saved_model,
}


@thorough
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_saved_in_a_window(way, tmp_path):
    model = stopped()
    before = all_of(model)
    new = way(model, tmp_path)
    training.go_on(new, STOP, STOP + 1)
    training.go_on(model, STOP, STOP + 1)
    assert_same(all_of(new), all_of(model))
    training.go_on(new, STOP + 1)
    training.go_on(model, STOP + 1)
    assert_same(all_of(new), all_of(model))
    assert before["window_position"] == 2


def scaled(steps=0):
    optimizer = hosts.loss_scaled(ours(), initial_scale=8.0)
    return training.go_on(compiled(dense_model(), optimizer, run_eagerly=False), stop=steps)


# Keras looks for the inner optimizer of an `.h5` file by its bare name.
BY_NAME = {"AdamWAccumulate": Accumulating}


@pytest.mark.parametrize(
    "steps", [STOP, *(pytest.param(n, marks=thorough) for n in (0, LENGTH - 1, LENGTH))]
)
@quick_first("extension", [".h5", ".keras"])
def test_saved_in_a_loss_scale_optimizer(extension, steps, tmp_path):
    """A file of before the first step is loaded as well, and so is a file of before an update."""
    model, path = scaled(steps), tmp_path / f"model{extension}"
    model.save(path)
    new = keras.models.load_model(path, custom_objects=BY_NAME)
    assert type(new.optimizer) is type(model.optimizer)
    if steps:
        assert_same(all_of(new), all_of(model))
    training.go_on(new, steps)
    assert_same(all_of(new), all_of(training.go_on(scaled())))


@thorough
@pytest.mark.parametrize("way", [through_checkpoint, through_weights])
def test_a_checkpoint_of_a_loss_scale_optimizer(way, tmp_path, monkeypatch):
    model = scaled(STOP)
    monkeypatch.setitem(globals(), "fresh", scaled)
    new = training.go_on(way(model, tmp_path), STOP)
    assert_same(all_of(new), all_of(training.go_on(model, STOP)))


@thorough
@pytest.mark.parametrize("extension", [".h5", ".keras"])
def test_saved_before_the_first_step(extension, tmp_path):
    model, path = fresh(ours()), tmp_path / f"model{extension}"
    model.save(path)
    new = keras.models.load_model(path)
    assert_same(all_of(training.go_on(new)), all_of(training.go_on(model)))


def test_a_checkpoint_of_an_optimizer_that_a_checkpoint_built(tmp_path):
    """Keras keeps what a checkpoint holds from before the build, when no scalar exists yet."""
    cls, ws = accumulating(O.Nadam), variables()
    optimizer = cls(accum_iters=2)
    for number, grad in enumerate(gradients()[:3]):
        eager_step(optimizer, ws)(grad)
        saved = tf.train.Checkpoint(o=optimizer).save(str(tmp_path / str(number)))
        new = cls(accum_iters=2)
        tf.train.Checkpoint(o=new).restore(saved)
        new.build(ws)
        assert_same(new.get_state(), optimizer.get_state())
        optimizer = new
    assert optimizer.completed_updates == 1


def test_nadam_without_variables():
    """Stock Nadam can't be built without variables, as in a model whose layers are all frozen."""
    cls = accumulating(O.Nadam)
    fresh, ws = cls(accum_iters=LENGTH), variables()
    fresh.build([])
    source = {**fresh.get_state(), "Nadam.u_product": np.array(1.0)}
    others = [pickle.loads(pickle.dumps(fresh)), cls.from_optimizer(O.Nadam(), accum_iters=LENGTH)]
    for optimizer in (fresh, *others):
        optimizer.set_state(source)
        optimizer.build(ws)
        assert optimizer._is_built and optimizer.window_position == 0
    expected = fresh.get_state()
    assert expected["Nadam.u_product"] == 1
    assert_same(others[0].get_state(), expected)


def test_nadam_is_its_formula():
    """In NumPy, with a gradient that is missing in an update: the product is of all updates."""
    w, other = (tf.Variable([1.0, -2.0], dtype="float64") for _ in range(2))
    optimizer = accumulating(O.Nadam)(2**-5, beta_1=0.875, beta_2=0.75, accum_iters=2)
    optimizer.build([w, other])
    step = tf.function(lambda pairs: (optimizer.apply_gradients(pairs), None)[1])
    decay = float(np.float32(0.96))
    value, m, v, product = np.array([1.0, -2.0]), 0, 0, 1
    for t, gradient in enumerate(np.array([[1.0, 0.5], [-0.25, 2.0], [0.5, 1.0]]), start=1):
        for share in (0.5, 1.5):
            pairs = [(tf.constant(gradient * share), w)] * (t != 2)
            step(pairs + [(tf.constant(gradient), other)])
        rate, ahead = (0.875 * (1 - decay ** (t + i) / 2) for i in (0, 1))
        product = product * rate
        if t == 2:
            continue
        m, v = 0.875 * m + 0.125 * gradient, 0.75 * v + 0.25 * gradient**2
        mean = ahead * m / (1 - product * ahead) + (1 - rate) * gradient / (1 - product)
        value = value - 2**-5 * mean / (np.sqrt(v / (1 - 0.75**t)) + 1e-7)
    training.assert_equal({"w": w.numpy()}, {"w": value}, rtol=0, atol=1e-8)


_GO_ON = """
import hosts, numpy as np, training, keras_accum.tf_keras
hosts.set_floatx("float64")
import test_new_style
model = hosts.keras.models.load_model({path!r})
assert model.optimizer.window_position == 2
training.go_on(model, {stop})
np.savez({out!r}, **{{str(n): v for n, v in test_new_style.all_of(model).items()}})
"""


@thorough
@pytest.mark.parametrize("extension", [".keras", pytest.param(".h5", marks=thorough)])
def test_continues_in_a_new_process(extension, tmp_path):
    model = stopped()
    path, out = str(tmp_path / f"model{extension}"), str(tmp_path / "out.npz")
    model.save(path)
    code = _GO_ON.format(path=path, out=out, stop=STOP)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    training.go_on(model, STOP)
    assert_same(dict(np.load(out)), {str(n): v for n, v in all_of(model).items()})


def environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@thorough
@every_row
def test_a_pickle_holds_the_state(row):
    name, arguments = row
    optimizer = accumulating(getattr(O, name))(**arguments, accum_iters=LENGTH)
    ws, other = variables(), variables()
    for grad in gradients()[:STOP]:
        eager_step(optimizer, ws)(grad)
    new = pickle.loads(pickle.dumps(optimizer))
    assert type(new) is type(optimizer)
    assert_same(new.get_state(), optimizer.get_state())
    for w, o in zip(ws, other):
        o.assign(w)
    for grad in gradients()[STOP:]:
        eager_step(optimizer, ws)(grad)
        eager_step(new, other)(grad)
    assert_same(everything(new, other), everything(optimizer, ws))


@thorough
@every_row
def test_from_and_to_stock(row):
    name, arguments = row
    cls = accumulating(getattr(O, name))
    stock, ws = trained_by_stock(getattr(O, name), arguments)
    new = cls.from_optimizer(stock, accum_iters=LENGTH)
    step = eager_step(new, ws)
    for grad in gradients():
        step(grad)
    back, own = new.to_stock(), everything(new, ws)
    for grad in averaged(gradients()):
        eager_step(back, ws)(grad)
    reference, expected = trained_by_stock(getattr(O, name), arguments, gradients() * 3)
    assert type(back) is getattr(O, name)
    assert own["completed_updates"] == 2 * UPDATES
    training.assert_equal(everything(back, ws, of=new), everything(reference, expected, of=new))


@thorough
def test_deep_copy_keeps_exclusions():
    optimizer = ours()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    new = copy.deepcopy(optimizer)
    assert new._exclude_from_weight_decay_names == ["bias"]


@thorough
@quick_first("name", ["adam", "amsgrad", "sgd", "momentum"])
def test_states_move_between_legacy_and_new_style(name):
    """The mathematics are equal: a state moves from one style to the other and back."""
    name, arguments = ROWS[name]
    if name == "Adam":  # legacy optimizers pass these through float32
        arguments = {**arguments, "beta_1": 0.875, "beta_2": 0.9375}
    ours = accumulating(getattr(O, name))(**arguments, accum_iters=LENGTH)
    legacy = getattr(hosts.accum, f"{name}Accumulate")(**arguments, accum_iters=LENGTH)
    ws, other = variables(), variables()
    for optimizer, own in ((ours, ws), (legacy, other)):
        optimizer.build(own)
    for grad in gradients()[:STOP]:
        eager_step(legacy, other)(grad)
    ours.set_state(legacy.get_state())
    for w, o in zip(ws, other):
        w.assign(o)
    for grad in gradients()[STOP:]:
        eager_step(legacy, other)(grad)
        eager_step(ours, ws)(grad)
    found, expected = ours.get_state(), legacy.get_state()
    training.assert_equal(found, expected)
    training.assert_equal(dict(enumerate(ws)), dict(enumerate(other)))
    legacy.set_state(found)
    assert_same(legacy.get_state(), expected if not found else {n: found[n] for n in expected})
    moved = type(ours).from_optimizer(legacy)
    training.assert_equal(moved.get_state(), found)


@thorough
def test_a_state_that_does_not_fit():
    optimizer, ws = ours(), variables()
    optimizer.build(ws)
    with pytest.raises(StateError, match="Missing: Adam.momentum.0"):
        optimizer.set_state({"completed_updates": 3})
    with pytest.raises(StateError, match="is not a state of"):
        optimizer.set_weights([np.zeros(2)])


@thorough
def test_weights_of_the_stock_optimizer():
    stock, ws = trained_by_stock(O.AdamW, ADAMW[1])
    optimizer = ours()
    optimizer.build(ws)
    optimizer.set_weights([v.numpy() for v in stock.variables])
    expected = {n: v.numpy() for n, v in optimizer._named_rule_variables(stock).items()}
    training.assert_equal(optimizer.get_state(), expected)


@thorough
def test_fresh_state_of_a_built_optimizer():
    cls = accumulating(O.Adagrad)
    optimizer, ws = cls(accum_iters=2, use_ema=True), variables()
    optimizer.build(ws)
    expected = optimizer.get_state()
    optimizer.set_state(cls(accum_iters=2, use_ema=True).get_state())
    assert_same(optimizer.get_state(), expected)


# -- refusals ------------------------------------------------------------------------------------


def test_decay_is_refused_as_in_the_stock_optimizer():
    with pytest.raises(ValueError, match="decay is deprecated in the new"):
        ours(decay=0.1)


def test_lr_is_the_learning_rate():
    optimizer = Accumulating(lr=0.5, accum_iters=2)
    assert float(optimizer.learning_rate) == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25


@thorough
@pytest.mark.parametrize(
    "member", ["apply_gradients", "_apply_weight_decay", "_distributed_apply_gradients_fn"]
)
def test_classes_that_override_the_step_are_refused(member):
    cls = type("Other", (O.AdamW,), {member: lambda self, *args: None})
    with pytest.raises(TypeError, match=f"Other overrides {member}"):
        accumulating(cls)


@thorough
def test_a_subclass_of_nadam_with_its_own_update_is_refused():
    cls = type("Other", (O.Nadam,), {"update_step": lambda self, gradient, variable: None})
    with pytest.raises(TypeError, match="update_step of Nadam"):
        accumulating(cls)


@thorough
def test_all_reduce_per_window_needs_gradients_that_are_not_summed():
    optimizer, ws = ours(**LATE), variables()
    pairs = list(zip(map(tf.constant, gradients()[0]), ws))
    with pytest.raises(ValueError, match="skip_gradients_aggregation=False"):
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)


def test_config():
    arguments = {
        **ADAMW[1],
        "clipnorm": 0.5,
        "use_ema": True,
        "accum_iters": 3,
        "gate": "conditional",
    }
    optimizer = Accumulating(**arguments)
    again = Accumulating.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert arguments.items() <= again.get_config().items()
    serialized = keras.optimizers.serialize(optimizer)
    assert type(keras.optimizers.deserialize(serialized)) is Accumulating
