"""Random trainings with our optimizers, compared with the stock optimizer after each step.

Hypothesis draws an optimizer with its arguments, and then a sequence of steps: micro-batches by
`apply`, `train_on_batch` and `fit`, files, copies, states, callbacks, changes of `accum_iters`. The
reference is the stock optimizer, applied eagerly to the averages of the windows. A failure is
shrunk to the shortest sequence, which Hypothesis prints.

    pytest tests/numbers/test_fuzz.py                                the same cases each time
    KERAS_ACCUM_TEST_FUZZ=3600 pytest -s tests/numbers/test_fuzz.py  new cases, for 3600 seconds
    KERAS_ACCUM_TEST_FUZZ_SEED=7 ...                         the new cases of this seed
"""

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
from steps import stepper
from training import Shrink, assert_equal, registered

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

SECONDS = float(os.environ.get("KERAS_ACCUM_TEST_FUZZ", 0))
SEED = os.environ.get("KERAS_ACCUM_TEST_FUZZ_SEED")
# The cases of the second tier, for about 20 seconds on each host, and the steps in a case.
TIER = {"keras2": 5, "jax": 4, "torch": 25, "tensorflow": 10}
TIER = TIER[hosts.HOST if hosts.IS_KERAS2 else hosts.BACKEND]
STEPS = 10 if hosts.IS_KERAS2 else 12

# float32 needs room for trainings of many updates.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9} if hosts.IS_TENSORFLOW else {"rtol": 2e-4, "atol": 2e-5}

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
    if hosts.IS_KERAS3:
        return keras.ops.sum(y_true * y_pred, axis=(1, 2))
    return keras.backend.sum(y_true * y_pred, axis=(1, 2))


def gradients_of(target):
    """The gradients that the model has for a target, in the order of NAMES."""
    kernels = [target[:, columns] for columns in LAYERS.values()]
    return [gradient for kernel in kernels for gradient in (kernel, kernel.sum(axis=0))]


def random_target(seed):
    """Each column keeps its sign: near zero, rounding could change the sign of a sum."""
    target = np.random.RandomState(seed).uniform(0.5, 1.5, (ROWS, COLUMNS))
    return (target * [1, -1, 1]).astype(hosts.FLOATX)


def inputs(targets):
    return np.stack([np.eye(ROWS, dtype=hosts.FLOATX)] * len(targets)), np.stack(targets)


def model_of(plan):
    layers = keras.layers
    x = layers.Input((ROWS, ROWS))
    ys = []
    for name, columns in LAYERS.items():
        constraint = Shrink() if plan["constraint"] and name == "a" else None
        units = columns.stop - columns.start
        ys.append(layers.Dense(units, name=name, kernel_constraint=constraint)(x))
    model = keras.models.Model(x, layers.concatenate(ys), name="model")
    values, shapes = np.random.RandomState(0), [w.shape for w in model.get_weights()]
    model.set_weights([values.choice([-1, 1], s) * values.uniform(0.5, 1, s) for s in shapes])
    return model


def compiled(model, optimizer, plan):
    arguments = {}
    if not hosts.IS_KERAS2:
        arguments["run_eagerly"] = not plan["traced"]
    if hosts.IS_KERAS3 and (hosts.IS_TENSORFLOW or arguments["run_eagerly"]):
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
        skip_nonfinite=draw(st.booleans()),
    )
    plan.update(traced=draw(st.integers(0, 5)) == 5, name=name, stock={**stock, **both})
    plan["ours"] = {**ours, **both}
    return plan


def optimizers_of(plan):
    """Return the stock optimizer and ours."""
    return hosts.stock(plan["name"], **plan["stock"]), hosts.ours(plan["name"], **plan["ours"])


# -- the reference -------------------------------------------------------------------------------


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

    def micro_batch(self, gradients, weight=1.0):
        finite = all(np.isfinite(g).all() for g in gradients.values())
        if self.skips and not finite:
            return
        if not self.window:
            self.length = self.accum_iters
        self.window.append((gradients, weight))
        if len(self.window) >= self.length:
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
        grads = [(averages[i] / divisor).astype(hosts.FLOATX) for i in indices]
        hosts.apply(self.optimizer, grads, [self.variables[i] for i in indices])

    def end_fit(self):
        """What Keras does at the end of `fit`, if there is an average of the weights."""
        if self.use_ema and self.updates:
            self.optimizer.finalize_variable_values(self.variables)


# -- the machine -----------------------------------------------------------------------------------

COUNTS = Counter()
seeds = st.integers(0, 2**16)


def is_multi_step(form):
    """True for formats of test_saving.py that go through several files or are slow."""
    return form.endswith("again") or form == "saved_model"


def formats():
    return sorted(name for name in FORMATS if not is_multi_step(name))


class Training(RuleBasedStateMachine):
    """A random training with our optimizer and, after each update, with the stock optimizer."""

    def __init__(self):
        super().__init__()
        hosts.set_floatx(hosts.FLOATX)
        if hosts.IS_KERAS2 or not COUNTS["cases"] % 25:
            keras.backend.clear_session()  # takes longer than a case
        self.model = None
        self.folders = []
        self.step_of = None
        COUNTS["cases"] += 1

    @initialize(data=st.data())
    def compile(self, data):
        self.plan = data.draw(plans(), label="plan")
        stock, ours = optimizers_of(self.plan)
        self.big_batch = BigBatch(self.plan, stock)
        self.model = compiled(model_of(self.plan), ours, self.plan)
        self.waits = True  # for its variables

    # -- conditions --------------------------------------------------------------------------------

    @property
    def optimizer(self):
        return self.model.optimizer

    def draws(self, **values):
        return self.model is not None and all(self.plan["ours"][k] == v for k, v in values.items())

    @property
    def weighs(self):
        return self.plan["ours"]["reduction"] == "weighted" and self.plan["ours"]["accum_iters"] > 1

    @property
    def accumulates(self):
        return self.plan["ours"]["accum_iters"] > 1

    @property
    def is_frozen(self):
        return not all(map(is_trainable, self.big_batch.variables))

    def weigh(self, weight):
        if self.weighs:
            self.optimizer.weigh(weight)

    # -- micro-batches -----------------------------------------------------------------------------

    if not hosts.IS_KERAS2:

        @rule(seed=seeds, missing=st.sets(st.integers(0, 3), max_size=3), weight=st.integers(1, 3))
        def apply(self, seed, missing, weight):
            """A step of one's own, in which the gradients of some variables are missing."""
            found = dict(enumerate(gradients_of(random_target(seed))))
            variables = self.model.weights
            frozen = {i for i in found if not is_trainable(variables[i])}
            found = {i: g for i, g in found.items() if i not in missing | frozen}
            if not found:
                return
            self.build()
            self.weigh(weight)
            hosts.apply(self.optimizer, list(found.values()), [variables[i] for i in found])
            self.big_batch.micro_batch(found, weight)

        @precondition(lambda self: self.draws(skip_nonfinite=True) and not self.is_frozen)
        @rule(seed=seeds, index=st.integers(0, 3), value=st.sampled_from([np.inf, np.nan]))
        def drop(self, seed, index, value):
            """A step with a gradient that isn't finite."""
            found = gradients_of(random_target(seed))
            found[index] = np.full_like(found[index], value)
            self.build()
            self.weigh(1)
            hosts.apply(self.optimizer, found, self.model.weights)
            self.big_batch.micro_batch(dict(enumerate(found)))

        @precondition(lambda self: self.draws() and self.plan["traced"] and not self.is_frozen)
        @rule(seed=seeds)
        def traced_step(self, seed):
            """A step of one's own in a function that is traced once."""
            if self.weighs:
                return
            self.build()
            if self.step_of is not self.optimizer:
                self.step_of = self.optimizer
                self.step = stepper(self.optimizer, self.model.weights)
            found = gradients_of(random_target(seed))
            self.step(found)
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
        seeds=st.lists(seeds, min_size=1, max_size=5),
        with_=st.sets(st.sampled_from(["gate", "monitor", "partial"]), max_size=2),
        epochs=st.integers(1, 2),
    )
    def fit(self, seeds, with_, epochs):
        targets = list(map(random_target, seeds))
        accum, big_batch = hosts.accum, self.big_batch
        callbacks = []
        if self.weighs:
            callbacks.append(accum.MicroBatchWeights(weight_of))
        if "partial" in with_:
            callbacks.append(accum.ApplyPartialWindow())
        if "monitor" in with_ and not hosts.IS_KERAS2:
            callbacks.append(accum.AccumulationMonitor(batch_size=1))
        if "gate" in with_ and not hosts.IS_KERAS2 and self.draws(skip_nonfinite=False):
            callbacks.append(accum.PythonGate())
        x, y = inputs(targets)
        settings = {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": callbacks}
        self.model.fit(x, y, batch_size=1, **settings)
        for _ in range(epochs):
            for target in targets:
                weight = float(np.abs(target[0, 0]))
                big_batch.micro_batch(dict(enumerate(gradients_of(target))), weight)
            if "partial" in with_:
                big_batch.update()
        big_batch.end_fit()
        self.waits = False

    # -- between micro-batches ---------------------------------------------------------------------

    @precondition(lambda self: self.accumulates)
    @rule(accum_iters=st.integers(1, 5))
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

    def continue_with(self, optimizer, build):
        model = model_of(self.plan)
        model.set_weights(self.model.get_weights())
        self.model = compiled(model, optimizer, self.plan)
        self.waits = True
        if build:
            self.build()

    @precondition(lambda self: not self.is_frozen)
    @rule(form=st.sampled_from(formats()), build=st.booleans())
    def save_and_load(self, form, build):
        if not self.holds(form):
            return
        # A checkpoint may be read when the variables are created, so the folder stays.
        self.folders.append(tempfile.TemporaryDirectory())
        folder = Path(self.folders[-1].name)
        self.build()
        self.format(form).save(self.model, folder)
        # HDF5 files of tf_keras hold the names of registered objects without their package.
        with keras.utils.custom_object_scope(OF_TESTS):
            model = self.format(form).load(folder, self.fresh)
        # Standalone Keras 2 forgets slots when a model is compiled again, and builds when it loads.
        self.model = model if hosts.IS_KERAS2 else compiled(model, model.optimizer, self.plan)
        self.waits = not hosts.IS_KERAS2
        # The newer style reads these files when the variables are created.
        if build or hosts.IS_NEW_STYLE and form in ("checkpoint", "weights"):
            self.build()

    def holds(self, form):
        """False if the page on saving says that a format doesn't hold the optimizer."""
        if hosts.IS_KERAS3 and "h5" in form:
            return self.plan["name"] not in ("Muon", "Adafactor")
        return True

    def format(self, form):
        return FORMATS[form]

    @precondition(lambda self: self.model and not self.is_frozen)
    @rule(build=st.booleans(), way=st.sampled_from(["pickle", "deepcopy", "state", "config"]))
    def copy_the_optimizer(self, build, way):
        old = self.optimizer
        if way == "pickle":
            new = pickle.loads(pickle.dumps(old))
        elif way == "deepcopy":
            new = copy.deepcopy(old)
        else:
            self.build()
            new = type(old).from_config(old.get_config())
            if way == "state":
                new.set_state(old.get_state())
        if way == "config":  # the state is set after the build
            state = old.get_state()
            self.continue_with(new, True)
            new.set_state(state)
        elif way == "deepcopy" and hosts.IS_LEGACY:  # the copy has the model's variables
            compiled(self.model, new, self.plan)
        else:
            self.continue_with(new, build)

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
        assert_equal(actual, expected, **TOLERANCE)

    def teardown(self):
        for folder in self.folders:
            folder.cleanup()
        if self.model is not None:
            COUNTS["updates"] += self.big_batch.updates


def is_average(name):
    return name.endswith("_average") or name.startswith(("moving_average", "average/"))


def weight_of(x, y, y_pred, sample_weight):
    if hosts.IS_KERAS3:
        return keras.ops.abs(y[0, 0, 0])
    return hosts.tf.abs(y[0, 0, 0])


# -- the tests -----------------------------------------------------------------------------------

CHECKS = list(HealthCheck)


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
            suppress_health_check=CHECKS,
            **options,
        ),
    )


def test_random_trainings():
    if not SECONDS:
        run(max_examples=TIER, stateful_step_count=STEPS)
        assert COUNTS["updates"]
        return
    end = time.monotonic() + SECONDS
    seed = random.randrange(2**31) if SEED is None else int(SEED)
    while time.monotonic() < end:
        print(f"KERAS_ACCUM_TEST_FUZZ_SEED={seed}, after {dict(COUNTS)}", flush=True)
        run(seed, max_examples=25, stateful_step_count=2 * STEPS, print_blob=True)
        seed += 1
