"""`compare_with_big_batch`: is a window equal to the big batch on your model? No Keras here.

`_Trainer` trains the model in `fit`, by an optimizer that keeps the gradient and moves no weight.
`_BigBatch` judges a window's gradient beside big batches that differ by rounding alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import math
import warnings
from collections import namedtuple
from typing import Any, Sequence

import numpy as np

from keras_accum.engine.optimizers import accumulating_in, find_accumulating, list_accumulating
from keras_accum.host import SAID_BY, is_named, is_of_keras, list_items, module_name
from keras_accum.host.scopes import attribute
from keras_accum.host.snapshot import Snapshot
from keras_accum.options import Options

__all__ = ["Comparison", "compare_with_big_batch"]

_IN_ORDER = slice(None)  # the samples as they come
_NUDGES, _ORDERS = 3, 2  # how many big batches that differ by rounding
_TIMES = 10  # a window's distance may be this many times the control
_EQUAL = 1e-4  # a distance above this isn't called equal, whatever the control
_ONLY_ROUNDING = 0.1  # a control above this: the gradient may be zero in theory
# A distance up to this is rounding, whatever the control, by the data type of the computation.
_HALVES = {"float16": 5e-3, "bfloat16": 4e-2}
_FLOAT32 = 5e-6  # no equal window in `benchmarks/verdicts.py` needs more than 2e-6

# A gradient depends on these, and they write no files.
_CALLBACKS = "ApplyPartialWindow", "MicroBatches", "MicroBatchWeights"

# Keras's layers that draw random numbers, with the attributes that switch this off. Most others,
# such as MultiHeadAttention, contain one of them.
_DRAWING = {
    **dict.fromkeys(["Dropout", "AlphaDropout", "GaussianDropout"], ["rate"]),
    "GaussianNoise": ["stddev"],
    **dict.fromkeys(["Attention", "BaseDenseAttention", "GroupedQueryAttention"], ["dropout"]),
    **dict.fromkeys(["DropoutRNNCell", "DropoutRNNCellMixin"], ["dropout", "recurrent_dropout"]),
}

_OTHER_CALLBACKS = (
    "`callbacks` takes {} of keras_accum, on which the gradient depends: others may write files or "
    "keep what they saw. Leave out: {}"
)
_HIDDEN = (
    "Keep each optimizer in an attribute of the model itself, so that the comparison can replace "
    "it. Found optimizers inside of: {}"
)
_SEVERAL = (
    "The optimizers of a model must have the same arguments of keras_accum to be compared: give "
    "them the same `accum_iters`, `reduction`, `skip_norm`, `skip_nonfinite` and `gate` for this "
    "comparison. Received: {}"
)
_NOTHING = (
    "There is nothing to compare: compile the model with an optimizer of keras_accum and an "
    "`accum_iters` of at least 2, or give `callbacks` MicroBatches, and more samples than one "
    "micro-batch has. Received: optimizer={}, {} samples, batch_size={}"
)
_NO_ARRAY = (
    "`x`, `y` and `sample_weight` must be arrays of samples, or lists, dicts or tuples of arrays. "
    "From a dataset, take one window: `x, y = next(iter(dataset.unbatch().batch(50)))`. Received: "
    "{}"
)
_FROZEN = "The model has no weights to train, so nothing can be compared."
_UPDATES = (
    "The samples must make one update, but made {}. It is none if all micro-batches are dropped: "
    "leave out `skip_nonfinite` and `skip_norm`. It is several if an optimizer of the model "
    "doesn't accumulate, or if `train_step` closes windows or calls an optimizer more than once."
)
_NO_GRADIENT = "The gradient is {}. Compare with other samples or weights."

_OFF = "Dropout and noise were off (rate 0) in the comparison, and draw again now: {}."
_IN_FLOAT32 = (
    "Computed in float32, as the variables are. Your training in half precision rounds each "
    "gradient beside this."
)
_COVERS = "Compared: the gradients of one window of {} samples, {} of {} variables."
_NOT_COMPARED = (
    "Not compared, because rounding moves them as much in the big batch (control: {:.2g}; their "
    "gradient may be zero in theory): {}."
)
_SPARSE = (
    "Embeddings on TensorFlow ({}): the gradients are equal, but Keras gives stock optimizers a "
    "gradient for each occurrence of a row. Clipping sees each, Keras 3's Adam squares each, and "
    "others skip rows that don't occur. Ours get their sum."
)
_DRAWS = (
    "The big batch differs from itself in the same order ({:.2g}), so the model draws random "
    "numbers, or keeps something in Python. That isn't wrong, but hides all else: compare a model "
    "without it."
)
_ROUNDS = (
    "Rounding is large beside this gradient: weights that differ by one unit in the last place, or "
    "samples in another order, move it as much. Compare with initial weights, or on TensorFlow in "
    'float64: keras.backend.set_floatx("float64") before you make the model.'
)
_REMEDY = "It is equal ({:.2g}) with {}."
_UNKNOWN = (
    "None of these makes it equal: {}. Look for a layer, a loss or a `train_step` where a sample's "
    "gradient depends on other samples in its batch, or for an added loss that is a sum. A "
    "`train_step` that clips or changes gradients sees each micro-batch's: give the optimizer "
    "`global_clipnorm` or `window_transforms` instead."
)

VariableDistance = namedtuple("VariableDistance", "name distance control")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare_with_big_batch`. Print it.

    window: the distance ||a - b|| / ||b|| between the window's gradient a and the big batch's
        gradient b of the variable that differs most.
    control: how far rounding moves this gradient in the big batch: the distance with samples in
        another order, or weights that differ by one unit in the last place.
    by_variable: (name, distance, control) for each variable, the worst first.
    verdict: "equal", "differs" or "undecided".
    warnings: the warnings that `fit` gave for the window, but not for the big batch.
    notes: what the verdict covers, and what was changed for the comparison.
    advice: the next step, "" if there is none.
    """

    window: float
    control: float
    by_variable: list
    verdict: str
    warnings: list
    notes: list
    advice: str

    def __str__(self):
        result = f"{self.verdict}: {self.window:.2g} (rounding: {self.control:.2g})"
        if self.verdict != "equal":
            result = f"{result}, most in {self.by_variable[0].name}"
        advice = [self.advice] if self.advice else []
        return "\n".join([f"{result}.", *self.warnings, *advice, *self.notes])


def compare_with_big_batch(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int = 32,
    callbacks: Sequence[Any] = (),
) -> Comparison:
    """Compare a window's gradient with the big batch's, on your own model and samples.

    `fit` trains your model as you compiled it: in micro-batches, and with all samples in one batch.
    Each variable is judged by itself, beside a control that only differs by rounding: the big batch
    with weights moved by one unit in the last place, and with its samples in another order.
    AdamAccumulate with a learning rate of 0 stands in for your optimizers, so learning rate,
    clipping, decay, moving averages and `window_transforms` have no effect: they act once per
    update. If the window differs, this package's other options are tried.

    Keras's dropout and noise layers are off meanwhile, and a model with a mixed policy computes in
    float32. The printed notes say so.

    Then weights, variables of layers, metrics and losses, seeds and the model's own attributes,
    such as its optimizer, are put back, to the bit. What layers and losses keep in Python isn't.

    The big batch must fit in memory. If it doesn't, compare `x[:10]` with `batch_size=2`.

    Args:
        model: A model compiled with an accumulating optimizer, or with any optimizer if
            `callbacks` has MicroBatches. A model with its own train step may have more optimizers,
            as attributes. If it has no weights yet, it is built.
        x: An array of samples, or a list, dict or tuple of arrays. Those of the first window are
            taken; with a schedule of lengths, or without a length, all are.
        y: The targets, or None.
        sample_weight: The weights of samples, or None.
        batch_size: Integer >= 1, default 32, as you give it to `fit`.
        callbacks: List of callbacks, default empty: MicroBatches, MicroBatchWeights or
            ApplyPartialWindow. They run in the window only.

    Returns:
        A Comparison. Print it, or read its `verdict`: "equal", "differs" or "undecided".

    Example:

    >>> import keras, numpy as np
    >>> from keras_accum import AdamAccumulate, compare_with_big_batch
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.random.rand(50, 3), np.ones((50, 1))
    >>> comparison = compare_with_big_batch(model, x, y, batch_size=10)
    >>> print(comparison)  # doctest: +SKIP
    equal: 1.9e-07 (rounding: 1.4e-07).
    Compared: the gradients of one window of 50 samples, 2 of 2 variables.
    >>> comparison.verdict
    'equal'
    """
    options = _find_options(model, callbacks)
    ours = list_accumulating(model)
    name = f"keras_accum.{ours[0]._keras_name}" if ours else module_name()
    package, tools = map(importlib.import_module, (name, f"{name}.compare"))
    data = tools.map_structure(_as_array, (x, y, sample_weight))
    count = len(package.HOST.flatten(data)[0])
    if isinstance(options.accum_iters, int):  # else, all samples are the window's
        count = min(count, batch_size * options.accum_iters)
    optimizer = getattr(model, "optimizer", None)
    in_slices = any(size is None or size < count for size in _list_slice_sizes(callbacks))
    in_micro_batches = options.accumulates and batch_size < count
    if optimizer is None or not (in_slices or in_micro_batches):
        raise ValueError(_NOTHING.format(optimizer, count, batch_size))
    if options.accum_iters is not None:  # None: the train step closes windows
        options = dataclasses.replace(options, accum_iters=math.ceil(count / batch_size))
    trainer = _Trainer(model, data, count, package, tools)
    with trainer.borrowing() as notes:
        return _compare(trainer, _Plan(options, int(batch_size), list(callbacks)), notes)


def _find_options(model, callbacks):
    """Return the Options of the model's accumulating optimizers, or raise an error."""
    refused = [type(c).__name__ for c in callbacks if not any(is_named(c, n) for n in _CALLBACKS)]
    if refused:
        raise ValueError(_OTHER_CALLBACKS.format(", ".join(_CALLBACKS), ", ".join(refused)))
    ours = find_accumulating(model)
    hidden = [
        name
        for name, value in vars(model).items()
        if not (_is_optimizer(value) or name.startswith("_"))
        and (name in ours or any(map(_is_optimizer, list_items(value))))
    ]
    if hidden:
        raise ValueError(_HIDDEN.format(", ".join(hidden)))
    ours = sum(ours.values(), [])
    found = [dataclasses.replace(o._accumulation.options, window_transforms=None) for o in ours]
    if any(options != found[0] for options in found):
        raise ValueError(_SEVERAL.format(ours))
    return found[0] if found else Options()


def _is_optimizer(obj):
    return hasattr(obj, "apply_gradients") and not isinstance(obj, type)


def _as_array(data):
    """Return a leaf of the user's data as a NumPy array, None as it is."""
    if data is None:
        return None
    if not (hasattr(data, "__array__") and len(getattr(data, "shape", ()))):
        raise ValueError(_NO_ARRAY.format(type(data).__name__))
    return np.asarray(data)


def _list_slice_sizes(callbacks):
    """Return the sizes of slices in MicroBatches: None where it finds one by itself."""
    return [callback.size for callback in callbacks if is_named(callback, "MicroBatches")]


# -- trainings -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How to train: the optimizers' Options, and arguments of `fit`."""

    options: Options
    batch_size: int
    callbacks: list

    def change(self, callbacks, **options):
        return _Plan(dataclasses.replace(self.options, **options), self.batch_size, callbacks)


class _Trainer:
    """Trains a model with stand-ins for its optimizers, which keep gradients and move no weight.

    data: x, y and the weights of samples.
    count: the number of samples in the window.
    package: the module with the public names for this Keras.
    tools: its module with what a comparison needs.
    floor: a distance up to this is rounding, in the layer that rounds most.
    """

    def __init__(self, model, data, count, package, tools):
        self.model, self.count, self.package, self.host = model, count, package, package.HOST
        self._data, self._tools = data, tools
        self._data = self._take(slice(count))
        self.layers = self.host.list_layers(model)
        inner = [layer for layer in self.layers if layer is not model]
        if not (inner and all(layer.built for layer in inner)):
            model(self._take(slice(2))[0])
            self.layers = self.host.list_layers(model)  # it may have made some
        if not model.trainable_variables:
            raise ValueError(_FROZEN)
        self._optimizers = [  # a model inside may be compiled, too
            (vars(layer), name, value)
            for layer in self.layers
            for name, value in vars(layer).items()
            if _is_optimizer(value)
        ]
        # The first `fit` builds Keras's containers of losses and metrics, and draws numbers for it.
        held = [obj for obj in vars(model).values() if is_of_keras(type(obj))]
        containers = [obj for obj in held if hasattr(obj, "built")]
        self._attributes = [(vars(obj), dict(vars(obj))) for obj in (model, *containers)]
        of_losses = [v for x in _list_own_losses(self.host, model) for v in vars(x).values()]
        weights = [*model.weights, *self.host.list_buffers(model)]
        weights += [value for value in of_losses if hasattr(value, "assign")]
        others = [*model.variables, *(v for metric in model.metrics for v in metric.variables)]
        seeds = [v for v in others if all(v is not weight for weight in model.weights)]
        read, write = self.host.read, self.host.write
        self._weights = Snapshot((), weights, read, write)
        self._random = Snapshot(tools.remember_generators(), seeds, read, write)

    @contextlib.contextmanager
    def borrowing(self):
        """Scope in which the model draws no random numbers, and after which it is as before.

        Its value is the notes on what was changed.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._put_back)
            stack.enter_context(self._tools.in_full_precision())
            off, in_float32 = self._switch_off(stack), self._use_float32(stack)
            self.floor = max(_HALVES.get(layer.compute_dtype, _FLOAT32) for layer in self.layers)
            yield [_OFF.format(_list_some(off))] * bool(off) + [_IN_FLOAT32] * bool(in_float32)

    def _put_back(self):
        for attributes, name, optimizer in self._optimizers:
            attributes[name] = optimizer
        for attributes, before in self._attributes:
            attributes.update(before)
            for name in attributes.keys() - before.keys():
                del attributes[name]
        self._weights.put_back()
        self._random.put_back()

    def _switch_off(self, stack):
        """Let layers draw no random numbers, and return the names of those that did."""
        names = []
        for layer in self.layers:
            classes = [cls.__name__ for cls in type(layer).__mro__ if is_of_keras(cls)]
            rates = [rate for name in classes for rate in _DRAWING.get(name, ())]
            for rate in filter(vars(layer).get, rates):
                stack.enter_context(attribute(layer, rate, 0.0))
                names.append(layer.name)
        return names

    def _use_float32(self, stack):
        """Let layers with float32 variables compute in float32, and return those that didn't."""
        layers = [layer for layer in self.layers if layer.compute_dtype in _HALVES]
        layers = [layer for layer in layers if layer.variable_dtype == "float32"]
        for layer in layers:
            stack.callback(self._tools.set_policy, layer, layer.dtype_policy)
            self._tools.set_policy(layer, "float32")
        return layers

    def install(self, options):
        """Give the model new stand-ins with these options."""
        with self._scope():
            self._stand_ins = [
                self._make_stand_in(options if accumulating_in(optimizer) else Options())
                for *_, optimizer in self._optimizers
            ]
            for (attributes, name, _), stand_in in zip(self._optimizers, self._stand_ins):
                attributes[name] = stand_in
            # JAX's devices need to know its state.
            self.model.optimizer.build(self.model.trainable_variables)
        self._make_train_function()

    def _make_stand_in(self, options):
        # Without `beta_1`, Adam's momentum is the gradient. Without a rate, no weight moves.
        return self.package.AdamAccumulate(learning_rate=0.0, beta_1=0.0, **vars(options))

    def _make_train_function(self):
        train_step = self.model.train_step
        # A new function, because JAX's jit cache is keyed by function.
        with attribute(self.model, "train_step", lambda *arguments: train_step(*arguments)):
            self.model.make_train_function(force=True)

    def _scope(self):
        """Return the scope for new variables: a strategy's, on TensorFlow."""
        strategy = getattr(self.model, "distribute_strategy", None)
        return contextlib.nullcontext() if strategy is None else strategy.scope()

    def train(self, batch_size, callbacks=(), order=_IN_ORDER, nudge=None, redraws=False):
        """Train one epoch, which must make one update, and return its gradients.

        nudge: a generator to move weights by one unit in the last place, or None.
        redraws: True to continue the random draws of the last training.
        """
        self._weights.put_back()
        if not redraws:
            self._random.put_back()
        if nudge is not None:
            self._nudge(nudge)
        x, y, sample_weight = self._take(order)
        arguments = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
        arguments["callbacks"] = list(map(copy.copy, callbacks))  # a callback keeps its training
        with self._scope():
            for stand_in in self._stand_ins:
                _reset(stand_in)
            self.model.fit(x, y, sample_weight=sample_weight, **arguments)
            updates = max(stand_in.completed_updates for stand_in in self._stand_ins)
            by_optimizer = list(map(self._read_gradients, self._stand_ins))
        if updates != 1:
            raise ValueError(_UPDATES.format(updates))
        gradients = [sum(each) for each in zip(*by_optimizer)]
        if not all(np.isfinite(gradient).all() for gradient in gradients):
            raise ValueError(_NO_GRADIENT.format("not finite"))
        return gradients

    def _take(self, order):
        """Return x, y and the weights of the samples at these indices."""

        def take(array):
            return None if array is None else array[order]

        return self._tools.map_structure(take, self._data)

    def _nudge(self, rng):
        for variable in self.model.weights:
            value = self.host.read(variable)
            if "float" in value.dtype.name:
                moved = np.nextafter(value, 2 * value)
                self.host.write(variable, np.where(rng.random(value.shape) < 0.5, moved, value))

    def _read_gradients(self, stand_in):
        """Return a stand-in's gradients for all trainable variables, zeros for those of others."""
        store = stand_in._accumulation.store
        state = stand_in.get_state() if store.variables else {}
        places = {store.key(variable): place for place, variable in enumerate(store.variables)}

        def read(variable):
            place = places.get(store.key(variable))
            return np.zeros(variable.shape) if place is None else state[f"Adam.momentum.{place}"]

        gradients = map(read, self.model.trainable_variables)
        return [gradient.astype(np.result_type(gradient, "float64")) for gradient in gradients]

    def list_names(self):
        """Return the names of the trainable variables."""
        get_name = self._stand_ins[0]._accumulation.store.get_name
        return [get_name(v).partition(":")[0] for v in self.model.trainable_variables]


def _reset(stand_in):
    if stand_in._accumulation.state.is_built:
        state = stand_in.get_state()
        stand_in.set_state({name: np.zeros_like(array) for name, array in state.items()})


# -- the comparison --------------------------------------------------------------------------------


def _compare(trainer, plan, notes):
    """Return the Comparison for a window that is trained by this plan. It also has these notes."""
    with _recording() as caught:
        (window,) = _train_window(trainer, plan, _IN_ORDER)
    with _recording() as caught_in_both:
        big = _BigBatch(trainer, plan.options.reduction)
        verdict, by_variable = big.judge(window)
        in_both = _list_texts(caught_in_both)
        warned = [text for text in _list_texts(caught) if text not in in_both]
        advice = _advise(trainer, plan, big, verdict)
    notes = [*_describe(trainer.count, by_variable), *notes]
    if verdict == "equal":
        notes += _note_embeddings(trainer)
    _, distance, control = by_variable[0]
    return Comparison(distance, control, by_variable, verdict, warned, notes, advice)


@contextlib.contextmanager
def _recording():
    """Scope that collects all warnings in a list, its value."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _list_texts(caught):
    texts = [str(warning.message).replace(SAID_BY, "", 1) for warning in caught]
    return list(dict.fromkeys(texts))


def _train_window(trainer, plan, *orders):
    """Return the window's gradients for each order of the samples."""
    callbacks = plan.callbacks
    if not any(is_named(callback, "ApplyPartialWindow") for callback in callbacks):
        # Some micro-batches may be dropped, or the train step may close windows.
        callbacks = [trainer.package.ApplyPartialWindow(), *callbacks]
    trainer.install(plan.options)
    return [trainer.train(plan.batch_size, callbacks, order) for order in orders]


class _BigBatch:
    """The big batch's gradients, and how far rounding moves each variable's.

    drawn: how far the gradient, or that of a variable, differs from itself, trained once more, as
        by random draws.
    limit: a distance above this isn't called equal.
    order: another order of the samples.
    """

    def __init__(self, trainer, reduction):
        # Keep one option: whether to take weights, which `train_step` may give.
        trainer.install(Options(reduction=reduction))
        self._names, self._floor = trainer.list_names(), trainer.floor
        self.limit = max(_EQUAL, self._floor)
        self._gradients = trainer.train(trainer.count)
        if not any(gradient.any() for gradient in self._gradients):
            raise ValueError(_NO_GRADIENT.format("zero"))
        again = trainer.train(trainer.count, redraws=True)
        self._controls, rng = [0.0] * len(again), np.random.default_rng(0)
        for _ in range(_NUDGES):
            self._add_control(trainer.train(trainer.count, nudge=rng))
        redrawn = zip(self._measure(again), self._controls)
        redrawn = [distance for distance, rounding in redrawn if distance > _TIMES * rounding]
        self.drawn = max([self._distance_of_all(again), *redrawn])
        self._add_control(again)
        for _ in range(_ORDERS):  # long sums round otherwise in another order
            self.order = rng.permutation(trainer.count)
            gradients = trainer.train(trainer.count, order=self.order)
            if self._distance_of_all(gradients) <= self.limit:  # else, the loss depends on it
                self._add_control(gradients)

    def _add_control(self, gradients):
        self._controls = list(map(max, self._controls, self._measure(gradients)))

    def _measure(self, gradients):
        """Return each variable's distance."""
        return list(map(_distance, gradients, self._gradients))

    def _distance_of_all(self, gradients):
        return _distance(_flatten(gradients), _flatten(self._gradients))

    def judge(self, window):
        """Return the verdict on a window, and a VariableDistance for each variable, worst first."""
        rows = list(map(VariableDistance, self._names, self._measure(window), self._controls))
        rows.sort(key=lambda row: (not self._differs(row), _is_only_rounding(row), -row.distance))
        worst = rows[0]
        if self.drawn > self.limit:
            return "undecided", rows
        if self._differs(worst):
            return "differs", rows
        is_equal = worst.distance <= self.limit and not _is_only_rounding(worst)
        return "equal" if is_equal else "undecided", rows

    def _differs(self, row):
        return row.distance > max(_TIMES * row.control, self._floor)


def _is_only_rounding(row):
    return row.control >= max(_ONLY_ROUNDING, row.distance / _TIMES)


def _flatten(gradients):
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


def _distance(a, b):
    distance, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    return distance / size if size else math.inf if distance else 0.0


def _advise(trainer, plan, big, verdict):
    """Return the next step if the verdict needs one, else ""."""
    if verdict == "equal":
        return ""
    if verdict == "undecided":
        return _DRAWS.format(big.drawn) if big.drawn > big.limit else _ROUNDS
    remedies = _list_remedies(plan, trainer.package, trainer.count)
    for text, changed in remedies.items():
        with contextlib.suppress(Exception):  # the model may not allow it
            # In two orders, because one may be equal by chance.
            windows = _train_window(trainer, changed, _IN_ORDER, big.order)
            verdicts, (rows, _) = zip(*map(big.judge, windows))
            if set(verdicts) == {"equal"}:
                return _REMEDY.format(rows[0].distance, text)
    return _UNKNOWN.format("; ".join(remedies))


def _list_remedies(plan, package, count):
    """Return other plans by their text after "It is equal with", the first to take first."""
    callbacks = plan.callbacks
    by_default = [each for each in callbacks if not is_named(each, "MicroBatchWeights")]
    remedies = {
        "skip_norm=None and skip_nonfinite=False": plan.change(
            callbacks, skip_norm=None, skip_nonfinite=False
        )
    }
    for name in ("auto", "mean", "sum"):
        remedies[f"reduction={name!r}"] = plan.change(by_default, reduction=name)
    if hasattr(package, "MicroBatches"):
        size = min([plan.batch_size, *filter(None, _list_slice_sizes(callbacks))])
        text = f"MicroBatches({size}), the stock optimizer and whole batches"
        remedies[text] = _Plan(Options(), count, [package.MicroBatches(size)])
    return {text: changed for text, changed in remedies.items() if changed != plan}


# -- what is printed -------------------------------------------------------------------------------


def _describe(count, by_variable):
    """Return what the verdict covers."""
    left_out = [row for row in by_variable if _is_only_rounding(row)]
    compared = len(by_variable) - len(left_out)
    notes = [_COVERS.format(count, compared, len(by_variable))]
    if left_out and compared:
        control = max(row.control for row in left_out)
        notes.append(_NOT_COMPARED.format(control, _list_some([row.name for row in left_out])))
    return notes


def _note_embeddings(trainer):
    keras = trainer.host.keras
    layers = [layer for layer in trainer.layers if isinstance(layer, keras.layers.Embedding)]
    names = [layer.name for layer in layers if layer.trainable_weights]
    is_sparse = names and keras.backend.backend() == "tensorflow"
    return [_SPARSE.format(_list_some(names))] if is_sparse else []


def _list_some(names):
    """Return the names as text, with a number in place of those after the fifth."""
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - 5} more"] if len(names) > 6 else []
    return ", ".join(names[:5] + more if more else names)


def _list_own_losses(host, model):
    """Return the losses kept by a model and its layers, for its own code.

    A layer may be a task that computes a loss, as in TensorFlow Recommenders. They may be in lists
    and dictionaries.
    """
    values = [value for layer in host.list_layers(model) for value in list(vars(layer).values())]
    kept = values + [item for value in values for item in list_items(value)]
    losses = {id(v): v for v in kept if isinstance(v, host.keras.losses.Loss)}
    losses.pop(id(host.find_losses(model)[0]), None)
    return list(losses.values())
