"""Random trainings with our optimizers, compared with the stock optimizer after each step.

Hypothesis draws an optimizer with its arguments and a data type, and then a sequence of steps:
micro-batches by `apply`, `train_on_batch` and `fit`, with callbacks, interrupted, or of another
model; files, copies, states, changes of `accum_iters`. The reference is the stock optimizer,
applied eagerly to the averages of the windows. A failure is shrunk to the shortest sequence, which
Hypothesis prints.

    pytest tests/numbers/test_fuzz.py                                the same cases each time
    KERAS_ACCUM_TEST_FUZZ=3600 pytest -s tests/numbers/test_fuzz.py  new cases, for 3600 seconds
    KERAS_ACCUM_TEST_FUZZ_SEED=7 ...                         the new cases of this seed
"""

import contextlib
import copy
import os
import pickle
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import hosts
import hypothesis
import numpy as np
import pytest
from cases import CASES, NO_DECAY
from formats import FORMATS
from hosts import keras
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from training import Shrink, assert_equal, registered

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
    pytest.mark.filterwarnings("ignore:MicroBatches.* changes nothing"),
]

if hosts.BACKEND == "jax":
    import jax

SECONDS = float(os.environ.get("KERAS_ACCUM_TEST_FUZZ", 0))
SEED = os.environ.get("KERAS_ACCUM_TEST_FUZZ_SEED")
# The cases of the second tier, for about 20 seconds on each host, and the steps in a case.
TIER = {"keras2": 8, "jax": 4, "torch": 25, "tensorflow": 10}
TIER = TIER[hosts.HOST if hosts.IS_KERAS2 else hosts.BACKEND]
STEPS = 10 if hosts.IS_KERAS2 else 12

# Trainings of many updates need room, and half precision rounds each weight in each update.
HALVES = {"float16": 2e-2, "bfloat16": 1e-1, "mixed_float16": 1e-2, "mixed_bfloat16": 5e-2}
if hosts.IS_KERAS2:
    HALVES = {"float16": 2e-2}
elif not hosts.IS_KERAS3:  # it makes every optimizer of mixed_float16 a LossScaleOptimizer
    del HALVES["mixed_float16"]
TOLERANCES = {name: {"rtol": error, "atol": error} for name, error in HALVES.items()}
TOLERANCES["float64"] = {"rtol": 1e-9, "atol": 1e-9}
TOLERANCES["float32"] = {"rtol": 2e-4, "atol": 2e-5}

# -- the model: its gradients are the targets, whatever its weights -------------------------------

ROWS, COLUMNS = 3, 3
LAYERS = {"a": slice(0, 2), "b": slice(2, 3)}  # columns of the targets
NAMES = "a.kernel", "a.bias", "b.kernel", "b.bias"


@registered
class Linear(object if hosts.IS_KERAS2 else keras.losses.Loss):
    """The sum of targets times outputs, so the targets are the gradients of a unit's inputs."""

    def call(self, y_true, y_pred):
        return targets_times_outputs(y_true, y_pred)


@registered
def targets_times_outputs(y_true, y_pred):
    ops = keras.ops if hosts.IS_KERAS3 else keras.backend
    return ops.sum(ops.cast(y_true, y_pred.dtype) * y_pred, axis=(1, 2))


def gradients_of(*targets):
    """The gradients that the model has for a batch of targets, in the order of NAMES."""
    target = np.mean(targets, axis=0)
    kernels = [target[:, columns] for columns in LAYERS.values()]
    return [gradient for kernel in kernels for gradient in (kernel, kernel.sum(axis=0))]


def random_target(seed):
    """Each column keeps its sign: near zero, rounding could change the sign of a sum."""
    target = np.random.RandomState(seed).randint(8, 25, (ROWS, COLUMNS)) / 16  # in any data type
    return (target * [1, -1, 1]).astype(hosts.FLOATX)


def inputs(targets):
    return np.stack([np.eye(ROWS, dtype=hosts.FLOATX)] * len(targets)), np.stack(targets)


def model_of(plan):
    layers = keras.layers
    # On Keras 2, `set_floatx` makes half precision.
    more = {} if hosts.IS_KERAS2 else {"dtype": plan["dtype"]}
    x = layers.Input((ROWS, ROWS))
    ys = []
    for name, columns in LAYERS.items():
        constraint = Shrink() if plan["constraint"] and name == "a" else None
        units = columns.stop - columns.start
        ys.append(layers.Dense(units, name=name, kernel_constraint=constraint, **more)(x))
    model = keras.models.Model(x, layers.concatenate(ys), name="model")
    values, shapes = np.random.RandomState(0), [w.shape for w in model.get_weights()]
    model.set_weights([values.choice([-1, 1], s) * values.uniform(0.5, 1, s) for s in shapes])
    return model


def compiled(model, optimizer, plan):
    arguments = {}
    if not hosts.IS_KERAS2:
        arguments["run_eagerly"] = not plan["traced"]
    if hosts.IS_KERAS3:
        arguments["auto_scale_loss"] = False
        if hosts.IS_TENSORFLOW or arguments["run_eagerly"]:
            arguments["jit_compile"] = False
    model.compile(optimizer, targets_times_outputs if hosts.IS_KERAS2 else Linear(), **arguments)
    return model


# -- plans: which optimizer, with which arguments ------------------------------------------------

RATES = 400  # updates that a schedule has rates for


@registered
def constant_rate():
    return 2**-6


OF_TESTS = {"Shrink": Shrink}
if not hosts.IS_KERAS2:
    OF_TESTS.update(EachUpdate=hosts.EachUpdate, constant_rate=constant_rate)


@st.composite
def plans(draw):
    """Draw the arguments of the optimizers and what else stays the same in a case."""
    row = draw(st.sampled_from(sorted(CASES)))
    name, arguments = CASES[row]
    stock, ours = dict(arguments), {}
    rate = arguments["learning_rate"]
    plan = {"row": row, "rate": "number", "constraint": draw(st.booleans())}

    kinds = ["number"]
    if not hosts.IS_KERAS2 and name not in NO_DECAY:
        kinds.append("schedule")
    if hosts.IS_KERAS3:
        kinds.append("callable")
    if hosts.HAS_DECAY and not (name == "Nadam" and not hosts.IS_KERAS3):
        kinds.append("decay")
    plan["rate"] = draw(st.sampled_from(kinds))
    if plan["rate"] == "schedule":
        stock["learning_rate"] = hosts.EachUpdate([rate / (1 + n / 4) for n in range(RATES)])
    if plan["rate"] == "callable":
        stock["learning_rate"] = constant_rate
    ours.update(stock)
    if plan["rate"] == "decay":
        stock.update(hosts.decayed(rate, 0.25, RATES))
        ours.update(decay=0.25)

    both = {}
    clips = ["clipnorm", "clipvalue"] + ["global_clipnorm"] * (not hosts.IS_KERAS2)
    clip = draw(st.sampled_from([None, *clips]))
    if clip:
        both[clip] = draw(st.sampled_from([0.25, 1.0]))
    if hosts.HAS_EMA:
        if "weight_decay" not in arguments and draw(st.booleans()):
            both["weight_decay"] = 0.125
        if draw(st.booleans()):
            both.update(use_ema=True, ema_momentum=0.5)
            both["ema_overwrite_frequency"] = draw(st.sampled_from([None, 1, 2, 3]))

    reductions = ["mean", "sum"] + ["weighted"] * (not hosts.IS_KERAS2)
    ours.update(
        accum_iters=draw(st.integers(1, 4)),
        reduction=draw(st.sampled_from(reductions)),
        gate=draw(st.sampled_from(["select", "conditional"])),
        skip_nonfinite=draw(st.integers(0, 2)) == 2,
    )
    # In bfloat16, weights of these become NaN in the stock optimizer, too; see limits.md.
    is_nan = name in ("Nadam", "ScheduleFreeAdamW")
    halves = sorted(half for half in HALVES if not (is_nan and half == "bfloat16"))
    if name == "Muon":  # Keras's own multiplies half precision by a schedule's float64
        halves = []
    plan["dtype"] = draw(st.sampled_from([hosts.FLOATX] * 8 + halves))
    plan["loss"] = draw(st.sampled_from(["sample", "batch"]))  # of MicroBatches
    plan.update(traced=draw(st.integers(0, 5)) == 5, name=name, stock={**stock, **both})
    plan["ours"] = {**ours, **both}
    return plan


def optimizers_of(plan):
    """Return the stock optimizer and ours."""
    return hosts.stock(plan["name"], **plan["stock"]), hosts.ours(plan["name"], **plan["ours"])


# -- the reference -------------------------------------------------------------------------------


def of_dtypes(gradients, variables):
    """The gradients in the data types of their variables."""
    return [np.asarray(g).astype(hosts.array(v).dtype) for g, v in zip(gradients, variables)]


def is_trainable(variable):
    return variable.trainable if hosts.IS_KERAS3 else True


class BigBatch:
    """The stock optimizer on the averages of the windows, which are plain lists here."""

    def __init__(self, plan, optimizer):
        self.model = model_of(plan)
        self.optimizer = optimizer
        self.reduction = plan["ours"]["reduction"]
        self.skips = plan["ours"]["skip_nonfinite"]
        self.use_ema = plan["stock"].get("use_ema", False)
        self.accum_iters = self.length = plan["ours"]["accum_iters"]
        self.window = []  # of {index of the variable: gradient}, weight
        self.updates = 0
        hosts.build_on(optimizer, self.variables)

    @property
    def variables(self):
        return self.model.weights

    def micro_batch(self, gradients, weight=1.0, closes=False):
        finite = all(np.isfinite(g).all() for g in gradients.values())
        if not (self.skips and not finite):
            if not self.window:
                self.length = self.accum_iters
            self.window.append((gradients, weight))
        if closes or len(self.window) >= self.length:
            self.update()

    def update(self):
        if not self.window:
            return
        divisor = {
            "mean": len(self.window),
            "sum": 1,
            "weighted": sum(weight for _, weight in self.window),
        }[self.reduction]
        averages = {}
        for gradients, weight in self.window:
            factor = weight if self.reduction == "weighted" else 1
            for index, gradient in gradients.items():
                total = averages.get(index, 0) + np.asarray(gradient, "float64") * factor
                averages[index] = total
        self.window = []
        indices = [i for i in sorted(averages) if is_trainable(self.variables[i])]
        if not indices:  # all of the window's variables are frozen: there is no update
            return
        self.updates += 1
        variables = [self.variables[i] for i in indices]
        averages = [averages[i] / divisor for i in indices]
        hosts.apply(self.optimizer, of_dtypes(averages, variables), variables)

    def end_fit(self):
        """What Keras does at the end of `fit`, if there is an average of the weights."""
        if self.use_ema and self.updates:
            self.optimizer.finalize_variable_values(self.variables)


# -- callbacks -------------------------------------------------------------------------------------

CALLBACKS = ["partial"]
if not hosts.IS_KERAS2:
    CALLBACKS += ["monitor", "updates", "slices", "gate"]
if hosts.IS_TORCH:
    CALLBACKS += ["in_backward"]

# What can't be in one training, and what can't be where windows have several micro-batches.
APART = [{"slices", "in_backward"}, {"slices", "weighted"}]
APART_IN_WINDOWS = [{"in_backward", "weighted"}, {"in_backward", "skips"}]
APART_IN_WINDOWS += [{"gate", "skips"}] * (not hosts.IS_TORCH)


def make_callback(name, plan):
    accum = hosts.accum
    return {
        "partial": lambda: accum.ApplyPartialWindow(),
        "monitor": lambda: accum.AccumulationMonitor(batch_size=1),
        "updates": lambda: accum.OnUpdates([Seen()]),
        "slices": lambda: accum.MicroBatches(1, loss=plan["loss"]),
        "gate": lambda: accum.PythonGate(),
        "in_backward": lambda: accum.AccumulateInBackward(),
        "weighs": lambda: accum.MicroBatchWeights(weight_of),
    }[name]()


class Seen(keras.callbacks.Callback):
    """Counts the updates of a training that OnUpdates tells of."""

    def on_train_begin(self, logs=None):
        self.updates = 0

    def on_train_batch_end(self, update, logs=None):
        self.updates += 1


class Stop(KeyboardInterrupt):
    """A user stops the training."""


class StopAt(keras.callbacks.Callback):
    """Stops a training before it takes the micro-batch with this number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def on_batch_begin(self, batch, logs=None):
        if not self.number:
            assert self.model  # Keras on JAX gives a model its values when a callback asks for it
            raise Stop
        self.number -= 1


# -- the machine -----------------------------------------------------------------------------------

COUNTS = Counter()
seeds = st.integers(0, 2**16)

# Without those of test_saving.py that go through several files or are slow.
FORMS = sorted(name for name in FORMATS if not name.endswith("again") and name != "saved_model")


class Training(RuleBasedStateMachine):
    """A random training with our optimizer and, after each update, with the stock optimizer."""

    def __init__(self):
        super().__init__()
        if hosts.IS_KERAS2 or not COUNTS["cases"] % 25:
            keras.backend.clear_session()  # takes longer than a case
            if hosts.BACKEND == "jax":  # which would run out of memory maps for its programs
                jax.clear_caches()
        self.model = None
        self.folders, self.used = [], {}
        COUNTS["cases"] += 1

    @initialize(data=st.data())
    def compile(self, data):
        self.plan = data.draw(plans(), label="plan")
        hosts.set_floatx(self.plan["dtype"] if hosts.IS_KERAS2 else hosts.FLOATX)
        stock, ours = optimizers_of(self.plan)
        self.big_batch = BigBatch(self.plan, stock)
        self.model = compiled(model_of(self.plan), ours, self.plan)
        self.waits = True  # for its variables

    # -- conditions --------------------------------------------------------------------------------

    @property
    def optimizer(self):
        return self.model.optimizer

    @property
    def skips(self):
        return self.plan["ours"]["skip_nonfinite"]

    @property
    def accumulates(self):
        return self.plan["ours"]["accum_iters"] > 1

    @property
    def weighs(self):
        return self.plan["ours"]["reduction"] == "weighted" and self.accumulates

    @property
    def is_frozen(self):
        return not all(map(is_trainable, self.big_batch.variables))

    def weigh(self, weight):
        if self.weighs:
            self.optimizer.weigh(weight)

    # -- micro-batches -----------------------------------------------------------------------------

    if not hosts.IS_KERAS2:

        @rule(
            seed=seeds,
            missing=st.sets(st.integers(0, 3), max_size=3),
            weight=st.integers(1, 3),
            closes=st.booleans(),
        )
        def apply(self, seed, missing, weight, closes):
            """A step of one's own, in which the gradients of some variables are missing."""
            found = dict(enumerate(gradients_of(random_target(seed))))
            variables = self.model.weights
            frozen = {i for i in found if not is_trainable(variables[i])}
            found = {i: g for i, g in found.items() if i not in missing | frozen}
            if not found:
                return
            self.build()
            self.weigh(weight)
            if closes:
                self.optimizer.close_window()
            there = [variables[i] for i in found]
            hosts.apply(self.optimizer, of_dtypes(found.values(), there), there)
            self.big_batch.micro_batch(found, weight, closes)

        @precondition(lambda self: self.skips and not self.is_frozen)
        @rule(seed=seeds, index=st.integers(0, 3), value=st.sampled_from([np.inf, np.nan]))
        def drop(self, seed, index, value):
            """A step with a gradient that isn't finite."""
            found = gradients_of(random_target(seed))
            found[index] = np.full_like(found[index], value)
            self.build()
            self.weigh(1)
            hosts.apply(self.optimizer, of_dtypes(found, self.model.weights), self.model.weights)
            self.big_batch.micro_batch(dict(enumerate(found)))

    @precondition(lambda self: not self.is_frozen)
    @rule(seed=seeds)
    def train_on_batch(self, seed):
        if self.weighs and self.plan["traced"]:
            return  # the weight of a traced step is a tensor of that step
        target = random_target(seed)
        self.weigh(2)
        self.model.train_on_batch(*inputs([target]))
        self.big_batch.micro_batch(dict(enumerate(gradients_of(target))), 2)
        self.waits = False

    @precondition(lambda self: not self.is_frozen)
    @rule(
        seeds=st.lists(seeds, min_size=1, max_size=6),
        with_=st.lists(st.sampled_from(CALLBACKS), max_size=3, unique=True),
        are_new=st.booleans(),
        batch_size=st.integers(1, 3),
        epochs=st.integers(1, 2),
        stop=st.none() | st.integers(0, 5),
    )
    def fit(self, seeds, with_, are_new, batch_size, epochs, stop):
        targets, big_batch = list(map(random_target, seeds)), self.big_batch
        batches = [targets[i : i + batch_size] for i in range(0, len(targets), batch_size)]
        with_ = with_ + ["weighs"] * self.weighs
        with_.sort(key=lambda name: name != "partial")  # the one that must come before others
        if are_new:
            self.used = {}
        callbacks = [self.used.setdefault(name, make_callback(name, self.plan)) for name in with_]
        stops = stop is not None and stop < epochs * len(batches)
        is_refused, before = self.is_refused(with_), big_batch.updates
        raises = contextlib.nullcontext()
        if is_refused:
            raises = pytest.raises(ValueError, match="can't be used with")
        elif stops:
            callbacks.insert(0, StopAt(stop))
            raises = pytest.raises(Stop)
        with raises:
            x, y = inputs(targets)
            settings = {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": callbacks}
            self.model.fit(x, y, batch_size=batch_size, **settings)
        if is_refused:
            COUNTS["refusals"] += 1
            return
        self.waits = self.waits and stop == 0
        for number, batch in enumerate(batches * epochs):
            if number == stop:
                COUNTS["interrupted"] += 1
                break
            weight = float(np.abs(batch[0][0, 0]))
            big_batch.micro_batch(dict(enumerate(gradients_of(*batch))), weight)
            if "partial" in with_ and (number + 1) % len(batches) == 0:
                big_batch.update()
        if not stops or hosts.BACKEND == "jax":  # where Keras ends an interrupted training as well
            big_batch.end_fit()
        if "updates" in with_ and not stops:
            (seen,) = self.used["updates"].callbacks
            assert seen.updates == big_batch.updates - before

    def is_refused(self, with_):
        words = {*with_, self.plan["ours"]["reduction"], *["skips"] * self.skips}
        return any(words >= pair for pair in APART + APART_IN_WINDOWS * self.accumulates)

    # Keras on JAX can't train only some of an optimizer's variables.
    if not (hosts.IS_KERAS2 or hosts.BACKEND == "jax"):

        # An average of the weights needs all of them at the end of `fit`.
        @precondition(lambda self: not (self.is_frozen or self.weighs or self.big_batch.use_ema))
        @rule(seeds=st.lists(seeds, min_size=1, max_size=3), head=st.sampled_from(sorted(LAYERS)))
        def fit_another_model(self, seeds, head):
            """A second model of some layers, on the same optimizer."""
            self.build()
            targets = list(map(random_target, seeds))
            x, y = inputs(targets)
            output = self.model.get_layer(head).output
            model = keras.models.Model(self.model.input, output)
            compiled(model, self.optimizer, self.plan)
            settings = {"batch_size": 1, "shuffle": False, "verbose": 0}
            model.fit(x, y[..., LAYERS[head]], **settings)
            for target in targets:
                found = dict(enumerate(gradients_of(target)))
                found = {i: g for i, g in found.items() if NAMES[i].startswith(head)}
                self.big_batch.micro_batch(found)

    # -- between micro-batches ---------------------------------------------------------------------

    @precondition(lambda self: self.accumulates)
    @rule(accum_iters=st.integers(1, 9))
    def set_accum_iters(self, accum_iters):
        self.build()  # without variables, the optimizer would be one that never accumulates
        self.optimizer.accum_iters = self.big_batch.accum_iters = accum_iters

    @rule()
    def apply_partial_window(self):
        self.build()
        self.optimizer.apply_partial_window()
        self.big_batch.update()

    @precondition(lambda self: self.model and self.plan["rate"] == "number")
    @rule(exponent=st.integers(3, 7))
    def set_learning_rate(self, exponent):
        rate = 2**-exponent
        for optimizer in (self.optimizer, self.big_batch.optimizer):
            if hosts.IS_KERAS2:
                keras.backend.set_value(optimizer.lr, rate)
            else:
                optimizer.learning_rate = rate

    if hosts.IS_KERAS3:

        # With an average that overwrites the weights, Keras moves frozen variables, too.
        @precondition(lambda self: self.model and not self.big_batch.use_ema)
        @rule(index=st.integers(0, 3))
        def freeze_or_thaw(self, index):
            self.build()
            for model in (self.model, self.big_batch.model):
                variable = model.weights[index]
                variable.trainable = not variable.trainable

    # -- files and copies --------------------------------------------------------------------------

    def build(self):
        if self.waits:
            hosts.build(self.model)
            self.waits = False

    def fresh(self):
        """A model whose optimizer has seen nothing, to load something into."""
        return compiled(model_of(self.plan), optimizers_of(self.plan)[1], self.plan)

    @precondition(lambda self: not self.is_frozen)
    @rule(form=st.sampled_from(FORMS), build=st.booleans())
    def save_and_load(self, form, build):
        if not self.holds(form):
            return
        # A checkpoint may be read when the variables are created, so the folder stays.
        self.folders.append(tempfile.TemporaryDirectory())
        folder = Path(self.folders[-1].name)
        self.build()
        FORMATS[form].save(self.model, folder)
        # HDF5 files of tf_keras hold the names of registered objects without their package.
        with keras.utils.custom_object_scope(OF_TESTS):
            model = FORMATS[form].load(folder, self.fresh)
        # Standalone Keras 2 forgets slots when a model is compiled again, and builds when it loads.
        self.model = model if hosts.IS_KERAS2 else compiled(model, model.optimizer, self.plan)
        self.waits = not hosts.IS_KERAS2
        # The newer style reads these files when the variables are created.
        if build or hosts.IS_NEW_STYLE and form in ("checkpoint", "weights"):
            self.build()

    def holds(self, form):
        """False if a format doesn't hold the optimizer or the model."""
        if self.plan["dtype"] == "bfloat16":  # as Keras's own layers
            return form in (["keras", "weights"] if hosts.IS_KERAS3 else ["checkpoint", "weights"])
        if hosts.IS_KERAS3 and "h5" in form:
            return self.plan["name"] not in ("Muon", "Adafactor")
        return True

    @precondition(lambda self: self.model and not self.is_frozen)
    @rule(build=st.booleans(), way=st.sampled_from(["pickle", "deepcopy", "state"]))
    def copy_the_optimizer(self, build, way):
        old = self.optimizer
        if way == "state":
            self.build()
            new = optimizers_of(self.plan)[1]
            new.set_state(old.get_state())
        else:
            new = copy.deepcopy(old) if way == "deepcopy" else pickle.loads(pickle.dumps(old))
        model = model_of(self.plan)
        model.set_weights(self.model.get_weights())
        self.model, self.waits = compiled(model, new, self.plan), True
        if build:
            self.build()

    if not hosts.IS_KERAS2:

        @rule()
        def compile_again(self):
            compiled(self.model, self.optimizer, self.plan)

    # -- what must be equal ------------------------------------------------------------------------

    @invariant()
    def equal_to_the_big_batch(self):
        if self.model is None:
            return
        big_batch, optimizer = self.big_batch, self.optimizer
        COUNTS["steps"] += 1
        assert optimizer.completed_updates == big_batch.updates
        assert optimizer.window_position == len(big_batch.window)
        assert optimizer.accum_iters == big_batch.accum_iters
        weights = self.model.weights
        actual = dict(zip(NAMES, map(hosts.array, weights)))
        expected = dict(zip(NAMES, map(hosts.array, big_batch.variables)))
        if not self.waits:
            found = [
                hosts.slots(o, ws)
                for o, ws in ((optimizer, weights), (big_batch.optimizer, big_batch.variables))
            ]
            own, stock = [{n: hosts.array(v) for n, v in slots.items()} for slots in found]
            if not big_batch.updates:  # there is no average yet
                stock = {n: v for n, v in stock.items() if not is_average(n)}
            actual.update(own)
            expected.update(stock)
            if not big_batch.window and self.accumulates:
                for accumulator in hosts.accumulators(optimizer):
                    assert not hosts.array(accumulator).any(), "a sum is pending"
        assert_equal(actual, expected, **TOLERANCES[self.plan["dtype"]])

    def teardown(self):
        for folder in self.folders:
            folder.cleanup()
        if self.model is not None:
            COUNTS["updates"] += self.big_batch.updates


def is_average(name):
    return name.endswith("_average") or name.startswith(("moving_average", "average/"))


def weight_of(x, y, y_pred, sample_weight):
    return (keras.ops if hosts.IS_KERAS3 else keras.backend).abs(y[0, 0, 0])


# -- the tests -----------------------------------------------------------------------------------


def run(seed=None, **options):
    """Run cases, which are always the same without a seed."""
    machine = Training if seed is None else hypothesis.seed(seed)(type("Training", (Training,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            database=None,
            deadline=None,
            derandomize=seed is None,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


def test_random_trainings():
    if not SECONDS:
        run(max_examples=TIER, stateful_step_count=STEPS)
        assert COUNTS["updates"], COUNTS
        return
    end = time.monotonic() + SECONDS
    seed = random.SystemRandom().randrange(2**31) if SEED is None else int(SEED)
    while time.monotonic() < end:
        print(f"KERAS_ACCUM_TEST_FUZZ_SEED={seed}, after {dict(COUNTS)}", flush=True)
        run(seed, max_examples=25, stateful_step_count=2 * STEPS, print_blob=True)
        seed += 1
    print(dict(COUNTS))
