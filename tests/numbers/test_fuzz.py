"""Random trainings with our optimizers, compared with the stock optimizer after each step.

Hypothesis draws an optimizer with its arguments, and then a sequence of steps: micro-batches by
`apply`, `train_on_batch` and `fit`, with callbacks, interrupted, failing, resumed from a backup, of
another model, or under XLA; files, copies, states, changes of `accum_iters`. A second machine has
a subclassed model with two optimizers. The reference is the stock optimizer, applied eagerly to the
averages of the windows. A failure is shrunk to the shortest sequence, which Hypothesis prints.

    pytest tests/numbers/test_fuzz.py                              on PyTorch, the same cases
    KERAS_ACCUM_TEST_FUZZ=1000 pytest tests/numbers/test_fuzz.py   1000 new cases
"""

import contextlib
import copy
import itertools
import os
import pickle
import tempfile
from pathlib import Path

import hosts
import numpy as np
import pytest
import zoo
from cases import CASES, NO_DECAY, skip_file_on_keras2
from formats import FORMATS
from hosts import keras
from hypothesis import HealthCheck, Phase, assume, settings
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

from keras_accum import AccumulationSchedule

skip_file_on_keras2("callbacks that such trainings have")

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:keras_accum. Layers keep values"),  # as the plans say
    pytest.mark.filterwarnings("ignore:(keras_accum. )?Gradients do not exist"),
    pytest.mark.filterwarnings("ignore:keras_accum. Using the saved accum_iters=."),
    pytest.mark.filterwarnings("ignore:keras_accum. No window of this training was whole"),
    pytest.mark.filterwarnings("ignore:keras_accum. This training ends with no update"),
]

if hosts.BACKEND == "jax":
    import jax

NEW_CASES = int(os.environ.get("KERAS_ACCUM_TEST_FUZZ", 0))
CASES_OF_A_CHANGE, STEPS = 12, 12  # the steps are those of a case

# Trainings of many updates need room.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9} if hosts.IS_TENSORFLOW else {"rtol": 2e-4, "atol": 2e-5}

# -- the model: its gradients are the targets, whatever its weights -------------------------------

ROWS, COLUMNS = 3, 3
SLOPE = 0.25  # less than any target, so that no sum changes its sign
LAYERS = {"a": slice(0, 2), "b": slice(2, 3)}  # columns of the targets
NAMES = "a.kernel", "a.bias", "b.kernel", "b.bias"


@registered
class Linear(keras.losses.Loss):
    """The sum of targets times outputs, so the targets are the gradients of a unit's inputs.

    It has a value for each row, so that samples may have fewer of them.
    """

    def call(self, y_true, y_pred):
        ops = keras.ops if hosts.IS_KERAS3 else keras.backend
        return ROWS * ops.sum(y_true * y_pred, axis=2)


def random_targets(seeds):
    """Each column keeps its sign: near zero, rounding could change the sign of a sum."""
    drawn = [np.random.RandomState(seed).randint(8, 25, (ROWS, COLUMNS)) for seed in seeds]
    return [(d / 16 * [1, -1, 1]).astype(hosts.FLOATX) for d in drawn]


def in_batches(targets, size):
    return [targets[i : i + size] for i in range(0, len(targets), size)]


def inputs(targets):
    return np.stack([np.eye(ROWS, dtype=hosts.FLOATX)] * len(targets)), np.stack(targets)


def of_lengths(batches, lengths):
    """A data set of batches with these numbers of rows, and targets with the same gradients."""
    found, whole = [], []
    for batch, rows in zip(batches, lengths):
        x = np.full((len(batch), rows, ROWS), 1 / ROWS, hosts.FLOATX)
        found.append((x, np.stack(batch)[:, :rows]))
        whole.append([np.tile(target[:rows].mean(axis=0), (ROWS, 1)) for target in batch])
    if not hosts.IS_TENSORFLOW:
        return zoo.Batches(found), whole
    spec = hosts.tf.TensorSpec((None, None, ROWS), hosts.FLOATX)
    make = hosts.tf.data.Dataset.from_generator
    return make(lambda: iter(found), output_signature=(spec, spec)), whole


@registered
class Counts(keras.layers.Layer):
    """Passes its input on, and counts the micro-batches in a variable that doesn't train."""

    def build(self, shape):
        zero = {"shape": (), "initializer": "zeros", "trainable": False}
        self.count = self.add_weight(name="count", **zero)

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x

    def compute_output_shape(self, shape):
        return shape


def gradients_of(targets, head="", penalty=0.0):
    """The gradients that the model, or one of its layers, has for a batch: {index of NAMES: ...}"""
    target = np.mean(targets, axis=0)
    kernels = [target[:, columns] for columns in LAYERS.values()]
    found = [gradient for kernel in kernels for gradient in (kernel, kernel.sum(axis=0))]
    found[0] = found[0] + penalty
    return {i: found[i] for i, name in enumerate(NAMES) if name.startswith(head)}


@registered
class Slope(keras.regularizers.Regularizer):
    """A penalty with the gradient SLOPE, whatever the weights."""

    def __call__(self, w):
        return SLOPE * (keras.ops.sum if hosts.IS_KERAS3 else hosts.tf.reduce_sum)(w)

    def get_config(self):
        return {}


def model_of(plan):
    layers = keras.layers
    inputs = layers.Input((None, ROWS))
    x, ys = Counts(name="counts")(inputs) if plan["counts"] else inputs, []
    for name, columns in LAYERS.items():
        constraint = Shrink() if plan["constraint"] and name == "a" else None
        units = columns.stop - columns.start
        more = {"kernel_regularizer": Slope()} if plan["penalty"] and name == "a" else {}
        ys.append(layers.Dense(units, name=name, kernel_constraint=constraint, **more)(x))
    model = keras.models.Model(inputs, layers.concatenate(ys), name="model")
    return initialized(model)


def initialized(model):
    values = np.random.RandomState(0)
    for v in weights_of(model):
        shape = tuple(v.shape)
        v.assign(values.choice([-1, 1], shape) * values.uniform(0.5, 1, shape))
    return model


def weights_of(model):
    """The weights in the order of NAMES."""
    return [w for name in LAYERS for w in model.get_layer(name).weights]


def compiled(model, optimizer, plan):
    arguments = {"run_eagerly": not plan["traced"]}
    if hosts.IS_KERAS3:
        arguments["auto_scale_loss"] = False
    if hosts.IS_TENSORFLOW or not plan["traced"]:
        arguments["jit_compile"] = plan["traced"] and plan["xla"]
    model.compile(optimizer, Linear(), **arguments)
    return model


def is_trainable(variable):
    return variable.trainable if hosts.IS_KERAS3 else True


def apply(optimizer, variables, found):
    gradients = [gradient.astype(hosts.FLOATX) for gradient in found.values()]
    hosts.apply(optimizer, gradients, [variables[i] for i in found])


# -- plans: which optimizer, with which arguments ------------------------------------------------

ARMED = []  # the exception that `halved` raises, once


class Failed(Exception):
    """A function of the user fails."""


def halved(gradients, variables):
    if ARMED:
        raise ARMED.pop()
    return [gradient / 2 for gradient in gradients]


RATES = 400  # updates that a schedule has rates for
LENGTHS = AccumulationSchedule({0: 1, 1: 3, 3: 2})
OF_TESTS = {"Shrink": Shrink, "EachUpdate": hosts.EachUpdate, "Counts": Counts}
OF_TESTS["Slope"] = Slope


@st.composite
def plans(draw):
    """Draw the arguments of the optimizers and what else stays the same in a case."""
    name, arguments = CASES[draw(st.sampled_from(sorted(CASES)))]
    rate = arguments["learning_rate"]
    plan = {"name": name, "constraint": draw(st.booleans()), "stock": dict(arguments)}

    kinds = {"number": {}}
    if name not in NO_DECAY:
        rates = [rate / (1 + n / 4) for n in range(RATES)]
        kinds["schedule"] = {"learning_rate": hosts.EachUpdate(rates)}
    if hosts.HAS_DECAY and not (name == "Nadam" and not hosts.IS_KERAS3):
        kinds["decay"] = hosts.decayed(rate, 0.25, RATES)
    plan["rate"] = draw(st.sampled_from(sorted(kinds)))
    plan["stock"].update(kinds[plan["rate"]])

    clip = draw(st.sampled_from([None, "clipnorm", "clipvalue", "global_clipnorm"]))
    if clip:
        plan["stock"][clip] = draw(st.sampled_from([0.25, 1.0]))
    if hosts.HAS_EMA:
        if "weight_decay" not in arguments and draw(st.booleans()):
            plan["stock"]["weight_decay"] = 0.125
        if draw(st.booleans()):
            frequency = draw(st.sampled_from([None, 1, 2, 3]))
            plan["stock"].update(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=frequency)

    lengths = [1, 2, 3, 4, LENGTHS]
    if hosts.IS_LEGACY and name == "AMSGrad":  # whose stock kernel XLA doesn't have
        lengths.remove(1)
    plan["ours"] = {
        **plan["stock"],
        "accum_iters": draw(st.sampled_from(lengths)),
        "reduction": draw(st.sampled_from(["mean", "sum", "auto", "weighted"])),
        "gate": draw(st.sampled_from(["select", "conditional"])),
        "skip_nonfinite": draw(st.integers(0, 2)) == 2,
    }
    if plan["rate"] == "decay":
        plan["ours"].update(learning_rate=rate, decay=0.25)
    plan["transforms"] = draw(st.integers(0, 3)) == 3
    if plan["transforms"]:
        plan["ours"]["window_transforms"] = [halved]
    plan["counts"] = draw(st.booleans())
    plan["penalty"] = draw(st.booleans())
    plan["traced"] = draw(st.integers(0, 5)) == 5
    plan["xla"] = hosts.IS_TENSORFLOW and draw(st.booleans())
    return plan


def optimizer_of(plan):
    return hosts.ours(plan["name"], **plan["ours"])


class BigBatch:
    """The stock optimizer on the averages of the windows, which are plain lists here."""

    def __init__(self, plan, head=""):
        self.model = model_of(plan)
        self.variables = weights_of(self.model)
        self.trained = [v for v, name in zip(self.variables, NAMES) if name.startswith(head)]
        self.factor = 0.5 if plan["transforms"] else 1
        self.name, self.arguments = plan["name"], plan["stock"]
        self.optimizer = hosts.stock(self.name, **self.arguments)
        self.reduction = plan["ours"]["reduction"]
        self.skips = plan["ours"]["skip_nonfinite"]
        self.use_ema = plan["stock"].get("use_ema", False)
        self.set_accum_iters = plan["ours"]["accum_iters"]
        self.accumulates = self.set_accum_iters != 1
        self.weighs = self.reduction in ("auto", "weighted") and self.accumulates
        self.window = []  # of {index of the variable: gradient}, weight
        self.updates = 0
        hosts.build_on(self.optimizer, self.trained)

    @property
    def accum_iters(self):
        given = self.set_accum_iters
        return given(self.updates) if callable(given) else given

    def micro_batch(self, gradients, weight=1.0, closes=None):
        """Add a micro-batch. `closes` is what a user has decided, None for the window's length."""
        if self.skips and not all(np.isfinite(g).all() for g in gradients.values()):
            return
        if not self.window:
            self.length = self.accum_iters
        self.window.append((gradients, weight))
        if len(self.window) >= self.length if closes is None else closes:
            self.update()

    def update(self):
        if not self.window:
            return
        has_weights = self.reduction in ("auto", "weighted")
        weights = [weight if has_weights else 1 for _, weight in self.window]
        divisor = (1 if self.reduction == "sum" else sum(weights)) / self.factor
        averages = {}
        for (gradients, _), weight in zip(self.window, weights):
            for index, gradient in gradients.items():
                part = np.asarray(gradient, "float64") * weight / divisor
                averages[index] = averages.get(index, 0) + part
        self.window = []
        averages = {i: averages[i] for i in sorted(averages) if is_trainable(self.variables[i])}
        if averages:  # otherwise all of the window's variables are frozen: there is no update
            self.updates += 1
            apply(self.optimizer, self.variables, averages)

    def train(self, names):
        """Make a new stock optimizer for these weights. Weights that go on keep their slots."""
        old, rate = hosts.slots(self.optimizer, self.trained), self.optimizer.learning_rate
        indices = [i for i, name in enumerate(NAMES) if name in names]
        self.trained = [self.variables[i] for i in indices]
        self.window = [({i: g[i] for i in g if i in indices}, w) for g, w in self.window]
        self.optimizer = hosts.stock(self.name, **self.arguments)
        hosts.build_on(self.optimizer, self.trained)
        for name, slot in hosts.slots(self.optimizer, self.trained).items():
            if name in old:
                slot.assign(hosts.array(old[name]))
        if not callable(self.arguments["learning_rate"]):
            self.optimizer.learning_rate = float(hosts.array(rate))

    def end_fit(self):
        """What Keras does at the end of `fit`, if there is an average of the weights."""
        if self.use_ema and (self.updates or hosts.IS_NEW_STYLE):  # where it begins in `build`
            self.optimizer.finalize_variable_values(self.trained)


# -- callbacks -------------------------------------------------------------------------------------


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


def weight_of(x, y, y_pred, sample_weight):
    return (keras.ops if hosts.IS_KERAS3 else keras.backend).abs(y[0, 0, 0])


CALLBACKS = {
    "partial": hosts.accum.ApplyPartialWindow,
    "monitor": hosts.accum.AccumulationMonitor,
}
DRAWN = list(CALLBACKS)
CALLBACKS["weighs"] = lambda: hosts.accum.MicroBatchWeights(weight_of)

# -- the machine -----------------------------------------------------------------------------------

seed = st.integers(0, 2**16)
FORMS = sorted(name for name in FORMATS if name != "saved_model")  # which is slow
ONE_AT_A_TIME = {"shuffle": False, "verbose": 0}
CASE = itertools.count()
none_is_frozen = precondition(lambda self: all(map(is_trainable, self.big_batch.variables)))


class Training(RuleBasedStateMachine):
    """A random training with our optimizer and, after each update, with the stock optimizer."""

    def __init__(self):
        super().__init__()
        if not next(CASE) % 25:
            keras.backend.clear_session()  # takes longer than a case
            if hosts.BACKEND == "jax":  # which would run out of memory maps for its programs
                jax.clear_caches()
        self.folders, self.used, self.calls = [], {}, 0  # of the model, which its layer counts

    @initialize(plan=plans())
    def compile(self, plan):
        self.plan = plan
        self.big_batch = BigBatch(plan)
        self.model = self.fresh()
        self.waits = True  # for its variables

    @property
    def accumulates(self):
        return self.big_batch.accumulates

    @property
    def weighs(self):
        return self.big_batch.weighs

    @property
    def optimizer(self):
        return self.model.optimizer

    def fresh(self, optimizer=None):
        """A model whose optimizer has seen nothing, to train or to load something into."""
        return compiled(model_of(self.plan), optimizer or optimizer_of(self.plan), self.plan)

    @property
    def is_refused(self):
        """True if `fit` would add up a penalty, which counts once."""
        return self.plan["penalty"] and self.accumulates and self.big_batch.reduction == "sum"

    def gradients_of(self, targets, head=""):
        return gradients_of(targets, head, SLOPE if self.plan["penalty"] else 0)

    def build(self):
        if self.waits:
            hosts.build(self.model)
            self.waits = False

    # -- micro-batches -----------------------------------------------------------------------------

    @rule(
        seed=seed,
        missing=st.sets(st.integers(0, 3), max_size=3),
        weight=st.integers(1, 3),
        closes=st.sampled_from([None, "close_window", "decide", "leave open"]),
        bad=st.sampled_from([None, None, None, np.inf, np.nan]),
        fails=st.booleans(),
    )
    def apply(self, seed, missing, weight, closes, bad, fails):
        """A step of one's own, in which gradients are missing or aren't finite, or that fails."""
        variables, big_batch = weights_of(self.model), self.big_batch
        missing = missing | {i for i, v in enumerate(variables) if not is_trainable(v)}
        found = gradients_of(random_targets([seed]))
        found = {i: gradient for i, gradient in found.items() if i not in missing}
        if not found:
            return
        if bad and big_batch.skips:
            last = max(found)
            found[last] = np.full_like(found[last], bad)
        if closes in ("decide", "leave open") and (big_batch.skips or not self.accumulates):
            closes = None  # an error

        def step():
            if self.weighs:
                self.optimizer.weigh(weight)
            if closes == "close_window":
                self.optimizer.close_window()
            elif closes:
                self.optimizer.decide(closes == "decide")
            apply(self.optimizer, variables, found)

        self.build()
        if fails:
            ARMED.append(Failed())
        try:
            step()
        except Failed:
            self.equal_to_the_big_batch()
            step()
        ARMED.clear()
        big_batch.micro_batch(found, weight, closes and closes != "leave open")

    @none_is_frozen
    @rule(seeds=st.lists(seed, min_size=1, max_size=3))
    def train_on_batch(self, seeds):
        targets = random_targets(seeds)
        self.model.train_on_batch(*inputs(targets))
        self.big_batch.micro_batch(self.gradients_of(targets), len(targets) * ROWS)
        self.calls += 1
        self.waits = False

    @none_is_frozen
    @rule(
        seeds=st.lists(seed, min_size=1, max_size=6),
        with_=st.lists(st.sampled_from(DRAWN), max_size=2, unique=True),
        are_new=st.booleans(),
        batch_size=st.integers(1, 3),
        epochs=st.integers(1, 2),
        stop=st.none() | st.integers(0, 5),
        weighs=st.booleans(),
        discards=st.booleans(),
    )
    def fit(self, seeds, with_, are_new, batch_size, epochs, stop, weighs, discards):
        targets, big_batch = random_targets(seeds), self.big_batch
        if self.is_refused:
            self.build()
            with pytest.raises(ValueError, match="would count penalties on weights"):
                self.model.fit(*inputs(targets), batch_size=batch_size, **ONE_AT_A_TIME)
            return
        batches = in_batches(targets, batch_size)
        with_ = with_ + ["weighs"] * (self.weighs and weighs)
        with_.sort(key=lambda name: name != "partial")  # the one that must come before others
        if are_new:
            self.used = {}
        callbacks = [self.used.setdefault(name, CALLBACKS[name]()) for name in with_]
        stops = stop is not None and stop < epochs * len(batches)
        raises = contextlib.nullcontext()
        if stops:
            callbacks.insert(0, StopAt(stop))
            raises = pytest.raises(Stop)
        with raises:
            settings = {**ONE_AT_A_TIME, "epochs": epochs, "callbacks": callbacks}
            self.model.fit(*inputs(targets), batch_size=batch_size, **settings)
        self.waits = self.waits and stop == 0
        self.epochs(batches, with_, (batches * epochs)[: stop if stops else None])
        if not stops or hosts.BACKEND == "jax":  # where Keras ends an interrupted training as well
            big_batch.end_fit()
        if stops and discards:  # as the next `fit` does
            self.optimizer.discard_window()
            big_batch.window = []
        elif stops and self.optimizer.window_position:
            self.optimizer.set_state(self.optimizer.get_state())

    @none_is_frozen
    @rule(
        seeds=st.lists(seed, min_size=1, max_size=6),
        lengths=st.lists(st.integers(1, ROWS), min_size=6, max_size=6),
        batch_size=st.integers(1, 3),
    )
    def fit_unequal_lengths(self, seeds, lengths, batch_size):
        assume(not self.is_refused)
        data, batches = of_lengths(in_batches(random_targets(seeds), batch_size), lengths)
        self.model.fit(data, **ONE_AT_A_TIME)
        self.calls += len(batches)
        for batch, rows in zip(batches, lengths):
            self.big_batch.micro_batch(self.gradients_of(batch), len(batch) * rows)
        if self.weighs:
            self.big_batch.update()
        self.waits = False
        self.big_batch.end_fit()

    def epochs(self, batches, with_, taken):
        """What the stock optimizer makes of the batches that `fit` has taken."""
        self.calls += len(taken)
        for number, batch in enumerate(taken, start=1):
            # Without the callback, `fit` weighs by what Keras divides by.
            weight = float(np.abs(batch[0][0, 0])) if "weighs" in with_ else len(batch) * ROWS
            self.big_batch.micro_batch(self.gradients_of(batch), weight)
            if ("partial" in with_ or self.weighs) and number % len(batches) == 0:
                self.big_batch.update()

    @none_is_frozen
    @rule(
        seeds=st.lists(seed, min_size=1, max_size=6),
        with_=st.lists(st.sampled_from(["partial", "monitor"]), max_size=2, unique=True),
        batch_size=st.integers(1, 3),
        stop=st.integers(0, 5),
    )
    def back_up_and_resume(self, seeds, with_, batch_size, stop):
        """A training that ends in its second epoch, and goes on in a new model."""
        if self.is_refused or hosts.IS_KERAS3 and not self.holds("weights.h5"):
            return
        targets = random_targets(seeds)
        batches = in_batches(targets, batch_size)
        with_.sort(key=lambda name: name != "partial")
        self.folders.append(tempfile.TemporaryDirectory())
        self.used = {}

        def train(*callbacks):
            # JAX ends an interrupted training, and would delete its backup.
            backup = {"backup_dir": self.folders[-1].name, "delete_checkpoint": False}
            callbacks += tuple(CALLBACKS[name]() for name in with_)
            callbacks += (keras.callbacks.BackupAndRestore(**backup),)
            settings = {**ONE_AT_A_TIME, "epochs": 2, "callbacks": list(callbacks)}
            self.model.fit(*inputs(targets), batch_size=batch_size, **settings)

        with pytest.raises(Stop):
            train(StopAt(len(batches) + stop % len(batches)))
        self.model = self.fresh()
        if hosts.IS_KERAS3:
            hosts.build(self.model)
        train()
        if hosts.IS_KERAS3:  # each later `fit` would leave out the first epoch
            self.model._initial_epoch = None
        else:  # the next `fit` would fail, because the callback deletes this attribute
            self.model._training_state = None
        self.waits = False
        self.epochs(batches, with_, batches * 2)
        self.big_batch.end_fit()

    # Keras on JAX can't train only some of an optimizer's variables.
    if hosts.BACKEND != "jax":

        @none_is_frozen
        # An average of the weights needs all of them at the end of `fit`.
        @precondition(lambda self: not (self.weighs or self.big_batch.use_ema))
        @rule(seeds=st.lists(seed, min_size=1, max_size=3), head=st.sampled_from(sorted(LAYERS)))
        def fit_another_model(self, seeds, head):
            """A second model of some layers, on the same optimizer."""
            assume(not self.is_refused)
            self.build()
            output = self.model.get_layer(head).output
            model = keras.models.Model(self.model.input, output)
            targets = random_targets(seeds)
            x, y = inputs(targets)
            compiled(model, self.optimizer, self.plan)
            model.fit(x, y[..., LAYERS[head]], batch_size=1, **ONE_AT_A_TIME)
            self.calls += len(targets)
            for target in targets:
                self.big_batch.micro_batch(self.gradients_of([target], head))

    # -- between micro-batches ---------------------------------------------------------------------

    @precondition(lambda self: self.accumulates and not callable(self.plan["ours"]["accum_iters"]))
    @rule(accum_iters=st.integers(1, 9))
    def set_accum_iters(self, accum_iters):
        self.optimizer.accum_iters = self.big_batch.set_accum_iters = accum_iters

    @rule(everything=st.booleans())
    def restart(self, everything):
        """Schedules start again, inside a window, too; or all but the rate is reset to zeros."""
        self.build()
        # In the newer style, `fit` writes averages to the weights, zeros as well.
        everything = everything and not (hosts.IS_NEW_STYLE and self.big_batch.use_ema)
        for optimizer in (self.optimizer, self.big_batch.optimizer):
            optimizer.iterations.assign(0)
            for v in hosts.stock_variables(optimizer) if everything else ():
                if v is not getattr(optimizer, "_learning_rate", None):
                    v.assign(np.zeros(v.shape))
        self.big_batch.updates = 0
        if everything:
            self.big_batch.window = []
            # A file's config makes the length that was set the constructor's.
            own = self.optimizer._accumulation.options.accum_iters
            self.plan["ours"]["accum_iters"] = self.big_batch.set_accum_iters = own

    @rule()
    def apply_partial_window(self):
        self.build()
        self.optimizer.apply_partial_window()
        self.big_batch.update()

    @precondition(lambda self: self.plan["rate"] == "number")
    @rule(exponent=st.integers(3, 7))
    def set_learning_rate(self, exponent):
        if hosts.IS_LEGACY:  # whose stock optimizers can't set a config's rate before, either
            self.build()
        for optimizer in (self.optimizer, self.big_batch.optimizer):
            optimizer.learning_rate = 2**-exponent

    if hosts.IS_KERAS3:
        # With an average that overwrites the weights, Keras moves frozen variables, too.
        @precondition(lambda self: not self.big_batch.use_ema)
        @rule(index=st.integers(0, 3))
        def freeze_or_thaw(self, index):
            self.build()
            for model in (self.model, self.big_batch.model):
                variable = weights_of(model)[index]
                variable.trainable = not variable.trainable

    # -- files and copies --------------------------------------------------------------------------

    @none_is_frozen
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
        self.model, self.waits = compiled(model, model.optimizer, self.plan), True
        # The newer style reads these files when the variables are created.
        if build or hosts.IS_NEW_STYLE and form in ("checkpoint", "weights"):
            self.build()

    def holds(self, form):
        """False if a format doesn't hold the optimizer, or its functions."""
        if self.plan["transforms"] and form not in ("weights", "checkpoint", "weights.h5"):
            return False
        is_held = self.plan["name"] not in ("Muon", "Adafactor")
        return is_held or not (hosts.IS_KERAS3 and "h5" in form)

    @none_is_frozen
    @rule(build=st.booleans(), way=st.sampled_from(["pickle", "deepcopy", "state"]))
    def copy_the_optimizer(self, build, way):
        old, values = self.optimizer, self.model.get_weights()
        if way == "state" or self.plan["transforms"]:
            self.build()
            new = optimizer_of(self.plan)
            new.set_state(old.get_state())
        else:
            new = copy.deepcopy(old) if way == "deepcopy" else pickle.loads(pickle.dumps(old))
        self.model, self.waits = self.fresh(new), True
        self.model.set_weights(values)
        if build:
            self.build()

    # Adafactor's slots have one name for all weights.
    @none_is_frozen
    @precondition(lambda self: not self.big_batch.use_ema and self.plan["name"] != "Adafactor")
    @rule(frozen=st.sampled_from(sorted(LAYERS)), seeds=st.lists(seed, max_size=3))
    def freeze_between_states(self, frozen, seeds):
        """A new optimizer for one layer, and then one for both, continue by name."""
        self.build()
        others = [name for name in NAMES if not name.startswith(frozen)]
        for names in (others, NAMES):
            for model in (self.model, self.big_batch.model):
                for layer in LAYERS:
                    model.get_layer(layer).trainable = names is NAMES or layer != frozen
            state, new = self.optimizer.get_state(), optimizer_of(self.plan)
            compiled(self.model, new, self.plan)
            new.build([v for v, name in zip(weights_of(self.model), NAMES) if name in names])
            new.set_state(state, by_name=True)
            self.big_batch.train(names)
            for each in seeds if names is others else ():
                found = gradients_of(random_targets([each]))
                found = {i: gradient for i, gradient in found.items() if NAMES[i] in names}
                if self.weighs:
                    self.optimizer.weigh(1.0)
                apply(self.optimizer, weights_of(self.model), found)
                self.big_batch.micro_batch(found)

    @rule()
    def compile_again(self):
        compiled(self.model, self.optimizer, self.plan)

    # -- what must be equal ------------------------------------------------------------------------

    @invariant()
    def equal_to_the_big_batch(self):
        model, optimizer, big_batch = self.model, self.optimizer, self.big_batch
        assert optimizer.completed_updates == big_batch.updates
        assert optimizer.window_position == len(big_batch.window)
        assert optimizer.accum_iters == big_batch.accum_iters
        actual, expected = (dict(zip(NAMES, weights_of(each))) for each in (model, big_batch.model))
        if self.plan["counts"]:
            assert hosts.array(model.get_layer("counts").count) == self.calls
        if not self.waits:
            slots = hosts.slots(big_batch.optimizer, big_batch.variables)
            if not big_batch.updates:  # there is no average yet
                slots = {name: v for name, v in slots.items() if not is_average(name)}
            actual.update(hosts.slots(optimizer, weights_of(model)))
            expected.update(slots)
            if not big_batch.window and big_batch.accumulates:
                for accumulator in hosts.accumulators(optimizer):
                    assert not hosts.array(accumulator).any(), "a sum is pending"
        actual, expected = (
            {name: hosts.array(v) for name, v in each.items()} for each in (actual, expected)
        )
        assert_equal(actual, expected, **TOLERANCE)

    def teardown(self):
        for folder in self.folders:
            folder.cleanup()


def is_average(name):
    return name.endswith("_average") or name.startswith(("moving_average", "average/"))


# -- a subclassed model with two optimizers ------------------------------------------------------


class Pair(keras.Model):
    """Two layers, each with an optimizer of its own, which is an attribute as in a GAN."""

    def __init__(self):
        super().__init__(name="pair")
        for name, columns in LAYERS.items():
            setattr(self, name, keras.layers.Dense(columns.stop - columns.start, name=name))

    def compile(self, optimizers, loss, **arguments):
        super().compile(**arguments)
        self.of_a, self.of_b = optimizers
        self.loss_of = loss

    def call(self, x, training=False):
        return keras.layers.concatenate([self.a(x), self.b(x)])

    def train_step(self, batch):
        x, y, *_ = batch
        groups = self.a.weights, self.b.weights
        find_loss = lambda: self.loss_of(y, self(x, training=True))  # noqa: E731
        loss, gradients = zoo.take_gradients(self, find_loss, *groups)
        for optimizer, *pairs in zip((self.of_a, self.of_b), gradients, groups):
            optimizer.apply_gradients(list(zip(*pairs)))
        return {"loss": loss}


which = st.sampled_from(sorted(LAYERS))


class TwoOptimizers(RuleBasedStateMachine):
    """A random training of such a model, whose layers don't know of each other."""

    @initialize(plans=st.tuples(plans(), plans()))
    def compile(self, plans):
        self.plans = dict(zip(LAYERS, plans))
        for plan in plans:  # the model, and what `fit` weighs, are common to both
            plan.update(counts=False, constraint=False, transforms=False, penalty=False)
            plan["ours"].pop("window_transforms", None)
            if plan["ours"]["reduction"] in ("auto", "weighted"):
                plan["ours"]["reduction"] = "mean"
        self.big_batches = {head: BigBatch(plan, head) for head, plan in self.plans.items()}
        self.optimizers = {head: optimizer_of(plan) for head, plan in self.plans.items()}
        self.model = Pair()
        self.model(np.zeros((1, ROWS, ROWS), hosts.FLOATX))
        initialized(self.model)
        self.compile_again()
        for head, optimizer in self.optimizers.items():
            optimizer.build(self.model.get_layer(head).weights)

    @rule()
    def compile_again(self):
        optimizers = [self.optimizers[head] for head in LAYERS]
        self.model.compile(optimizers, Linear(), run_eagerly=not self.plans["a"]["traced"])

    @rule(
        seeds=st.lists(seed, min_size=1, max_size=6),
        batch_size=st.integers(1, 3),
        epochs=st.integers(1, 2),
        partial=st.booleans(),
    )
    def fit(self, seeds, batch_size, epochs, partial):
        targets = random_targets(seeds)
        callbacks = [CALLBACKS["partial"]()] if partial else []
        settings = {**ONE_AT_A_TIME, "epochs": epochs, "callbacks": callbacks}
        self.model.fit(*inputs(targets), batch_size=batch_size, **settings)
        for _ in range(epochs):
            for batch in in_batches(targets, batch_size):
                self.take(batch)
            for big_batch in self.big_batches.values() if partial else ():
                big_batch.update()

    @rule(seed=seed)
    def train_on_batch(self, seed):
        targets = random_targets([seed])
        self.model.train_on_batch(*inputs(targets))
        self.take(targets)

    def take(self, batch):
        for head, big_batch in self.big_batches.items():
            big_batch.micro_batch(gradients_of(batch, head))

    @rule(head=which, seed=seed, closes=st.sampled_from([None, True, False]))
    def apply(self, head, seed, closes):
        """A step of one of them alone."""
        optimizer, big_batch = self.optimizers[head], self.big_batches[head]
        if big_batch.skips or not big_batch.accumulates:
            closes = None
        if closes is not None:
            optimizer.decide(closes)
        found = gradients_of(random_targets([seed]), head)
        apply(optimizer, weights_of(self.model), found)
        big_batch.micro_batch(found, closes=closes)

    @rule(head=which, accum_iters=st.integers(1, 9))
    def set_accum_iters(self, head, accum_iters):
        big_batch = self.big_batches[head]
        assume(big_batch.accumulates and not callable(self.plans[head]["ours"]["accum_iters"]))
        self.optimizers[head].accum_iters = big_batch.set_accum_iters = accum_iters

    @rule(head=which)
    def apply_partial_window(self, head):
        self.optimizers[head].apply_partial_window()
        self.big_batches[head].update()

    @rule(head=which)
    def copy_the_state(self, head):
        new = optimizer_of(self.plans[head])
        new.build(self.model.get_layer(head).weights)
        new.set_state(self.optimizers[head].get_state())
        self.optimizers[head] = new
        self.compile_again()

    @invariant()
    def equal_to_the_big_batches(self):
        for head, big_batch in self.big_batches.items():
            optimizer = self.optimizers[head]
            assert optimizer.completed_updates == big_batch.updates
            assert optimizer.window_position == len(big_batch.window)
            actual, expected = (
                {v: hosts.array(w) for v, w in zip(NAMES, weights_of(model)) if v.startswith(head)}
                for model in (self.model, big_batch.model)
            )
            assert_equal(actual, expected, **TOLERANCE)


MACHINES = {"one": Training}
if hosts.BACKEND != "jax":  # where `fit` knows the variables of one optimizer
    MACHINES["two optimizers"] = TwoOptimizers
# The same in a process of `torch.distributed`, which may change how `fit` trains.
DISTRIBUTED = [False, True] if hosts.IS_TORCH else [False]


@pytest.fixture
def processes(request, tmp_path):
    if not request.param:
        yield
        return
    import torch

    file = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", file, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(
    not (NEW_CASES or hosts.IS_TORCH), reason="elsewhere `nox -s fuzz` runs new cases each week"
)
@pytest.mark.parametrize("processes", DISTRIBUTED, indirect=True, ids=lambda d: f"group={d}")
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_random_trainings(machine, processes):
    """After each step of any sequence, ours equals the stock optimizer."""
    share = len(MACHINES) * len(DISTRIBUTED)
    options = {"max_examples": CASES_OF_A_CHANGE, "stateful_step_count": STEPS, "derandomize": True}
    if NEW_CASES:
        options = {"max_examples": NEW_CASES, "stateful_step_count": 2 * STEPS, "print_blob": True}
    options["max_examples"] = -(-options["max_examples"] // share)
    run_state_machine_as_test(
        machine,
        settings=settings(
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )
