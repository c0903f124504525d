"""Several optimizers, steps, threads, devices and graphs in one program of TensorFlow.

Two optimizers, with windows of 2 and 3 micro-batches, take the same factors. Each gradient is a
factor times a weight, so a step that reads an old weight gets another number. Stock optimizers that
get the averages of the windows are the reference.
"""

import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor

import hosts
import numpy as np
import pytest
from cases import quick_first, skip_file_on_keras2
from training import Shrink, assert_equal

skip_file_on_keras2("tf.function")
if not hosts.IS_TENSORFLOW:
    pytest.skip("about TensorFlow graphs, which other backends don't have", allow_module_level=True)

tf, keras = hosts.tf, hosts.keras
pytestmark = [pytest.mark.usefixtures("every_gate", "grappler"), pytest.mark.all_gates]
LENGTHS = {"Adam": 2, "Adamax": 3}
# After hundreds of updates, an update depends on their number, and no weight is near 0.
BOTH = {"learning_rate": 2**-11, "beta_1": 0.99}
SHAPES = {"kernel": (64, 32), "bias": (32,), "scale": ()}
ALL = range(len(SHAPES))
SPEC = tf.TensorSpec([len(SHAPES)], hosts.FLOATX)


class Averaged:
    """A stock optimizer that gets the average of each window, after `change`."""

    def __init__(self, stock, length, change):
        self.stock, self.length, self.change, self.window = stock, length, change, []

    def apply_gradients(self, pairs):
        self.window.append(pairs)
        if len(self.window) == self.length:
            sums = {}
            for gradient, w in sum(self.window, []):
                total, _ = sums.get(id(w), (0, w))
                sums[id(w)] = total + tf.convert_to_tensor(gradient), w
            averages = [(self.change(total / self.length), w) for total, w in sums.values()]
            self.stock.apply_gradients(averages)
            self.window = []


def accumulating(name, ws, change=None, **arguments):
    if change is not None:
        arguments["window_transforms"] = [lambda averages, ws: list(map(change, averages))]
    optimizer = hosts.ours(name, accum_iters=LENGTHS[name], **arguments)
    hosts.build_on(optimizer, ws)
    return optimizer


def stock(name, ws, change=lambda average: average, skip_nonfinite=False, **arguments):
    optimizer = hosts.stock(name, **arguments)
    hosts.build_on(optimizer, ws)
    return Averaged(optimizer, LENGTHS[name], change)


def players(make, times=1, is_shared=False, device="CPU:0", constraint=None, **arguments):
    """Return optimizers, made by `ours` or `stock`, with their variables, which lie on a device."""
    found = []
    for name in [*LENGTHS] * times:
        with tf.device(device):
            values = {n: np.linspace(0.5, 1, int(np.prod(s))).reshape(s) for n, s in SHAPES.items()}
            ws = [hosts.variable(v, n, constraint=constraint) for n, v in values.items()]
        if found and is_shared:
            ws = found[0][1]
        found.append((make(name, ws, **{**BOTH, **arguments}), ws))
    return found


def factors(steps):
    """The factors of each micro-batch, one for each weight."""
    shape = steps, len(SHAPES)
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(hosts.FLOATX)


def take(players, factor, present=ALL, is_sparse=False):
    """Make one micro-batch step of each optimizer."""
    for optimizer, ws in players:
        gradients = [factor[i] * tf.convert_to_tensor(hosts.native(w)) for i, w in enumerate(ws)]
        if is_sparse:  # each row is there twice
            rows = tf.concat([tf.range(64)] * 2, 0)
            gradients[0] = tf.IndexedSlices(tf.concat([gradients[0] / 2] * 2, 0), rows, (64, 32))
        optimizer.apply_gradients([(gradients[i], ws[i]) for i in present])


def one_by_one(players, values, present=(ALL,), **how):
    for number, factor in enumerate(tf.unstack(values)):
        take(players, factor, present[number % len(present)], **how)


def arrays(players):
    found = enumerate(w for _, ws in players for w in ws)
    return {str(i): np.array(hosts.array(w)) for i, w in found}


@functools.lru_cache(maxsize=None)
def by_stock(steps, **options):
    theirs = players(stock, **options)
    windows = tf.function(lambda values: one_by_one(theirs, values))  # of both lengths
    for values in factors(steps).reshape(-1, 6, len(SHAPES)):
        windows(tf.constant(values))
    return arrays(theirs)


# -- programs --------------------------------------------------------------------------------------


def step_by_step(mine, values):
    step = tf.function(lambda factor: take(mine, factor))
    for factor in values:
        step(factor)


def in_one_graph(mine, values, **how):
    tf.function(lambda values: one_by_one(mine, values, **how))(values)


def in_a_loop(mine, values):
    @tf.function
    def run(values):
        for factor in values:  # AutoGraph makes a tf.while_loop
            take(mine, factor)

    run(values)


def in_threads(mine, values):
    with ThreadPoolExecutor(len(mine)) as pool:
        list(pool.map(lambda player: in_a_loop([player], values), mine))


def called_by_xla(mine, values):
    """The step is traced without XLA, and then it is called in a function with XLA."""
    step = tf.function(lambda factor: take(mine, factor))
    by_xla = tf.function(lambda factor: step(factor), jit_compile=True)
    for number, factor in enumerate(values):
        by_xla(factor) if number else step(factor)


def saved(step, mine, folder):
    module = tf.Module()
    module.mine, module.step = mine, tf.function(step, input_signature=[SPEC])
    tf.saved_model.save(module, folder)


def exported(mine, values):
    """The step goes on in a SavedModel, and returns weights that it has read after updates."""
    natives = [hosts.native(w) for _, ws in mine for w in ws]

    def step(factor):
        take(mine, factor)
        return list(map(tf.identity, natives))

    step_by_step(mine, values[:1])
    with tempfile.TemporaryDirectory() as folder:
        saved(step, mine, folder)
        loaded = tf.saved_model.load(folder)
    for factor in values[1:]:
        read = loaded.step(factor)
    for native, value in zip(natives, read):
        native.assign(value)


# A program, its number of steps, and arguments of `players`. What may race has many steps.
PROGRAMS = {
    "two in one step": (step_by_step, 120, {}),
    "threads": (in_threads, 240, {"times": 2}),
    "the same variables": (in_one_graph, 6, {"is_shared": True}),
    "two devices": (step_by_step, 6, {"device": "CPU:1"}),
    "loop": (in_a_loop, 60, {}),
    "called by XLA": (called_by_xla, 12, {}),
    "SavedModel": (exported, 12, {}),
}


@quick_first("program, steps, options", PROGRAMS)
def test_programs(program, steps, options):
    """Each step reads the weights of the last update, in whatever threads, loops and graphs."""
    mine = players(accumulating, **options)
    program(mine, tf.constant(factors(steps)))
    assert_equal(arrays(mine), by_stock(steps, **options))


average = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
fine = {"learning_rate": 2**-5, "epsilon": 2**-7}  # otherwise a norm hardly matters to Adam
# Arguments of `players`, and of steps.
OPTIONS = {
    "never seen": (  # a scalar without a gradient counts in no norm, also after a NaN
        {
            "change": lambda average: 2 * average + 1,
            **{"global_clipnorm": 0.5, "skip_nonfinite": True, **fine},
        },
        {"present": [[0, 1]]},
    ),
    "missing": ({"clipnorm": 0.5}, {"present": [[0], [1, 2]], "is_sparse": True}),
    "dropped": ({"constraint": Shrink(), "skip_nonfinite": True}, {}),
}
if hosts.HAS_EMA:
    OPTIONS["dropped"][0].update(weight_decay=0.2, **average)


@quick_first("options, how", OPTIONS)
def test_many_steps_in_one_graph(options, how):
    """With clipping, transforms, NaN, constraints, and sparse or missing gradients."""
    mine, theirs = players(accumulating, **options), players(stock, **options)
    values = factors(6)
    one_by_one(theirs, values, **how)
    if "skip_nonfinite" in options:
        values = np.insert(values, 1, np.nan, axis=0)
    in_one_graph(mine, tf.constant(values), **how)
    assert_equal(arrays(mine), arrays(theirs))


# -- what may fail ----------------------------------------------------------------------------


def test_an_error_in_an_update():
    """The optimizers and the weights are as before, and the next step is right."""
    fails = []

    class Fails(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, update):
            if fails:
                raise ArithmeticError("no rate")
            return tf.constant(BOTH["learning_rate"], hosts.FLOATX)

    mine, values = players(accumulating, learning_rate=Fails()), tf.constant(factors(6))
    step = tf.function(lambda factor: take(mine, factor))
    fails.append(True)
    with pytest.raises(Exception, match="no rate"):  # of a class that AutoGraph makes
        step(values[0])
    fails.clear()
    for factor in values:
        step(factor)
    assert_equal(arrays(mine), by_stock(6))
