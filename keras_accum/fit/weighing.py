"""Weighs each micro-batch in `fit` and `train_on_batch` by what its loss is divided by."""

import contextlib

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.engine.pending import OF_SUM, UNWEIGHED, StepWeight, check_weight
from keras_accum.fit.train_function import InTrainFunction, install, uninstall
from keras_accum.fit.weighed_logs import WeighedLogs
from keras_accum.host import find_own_methods, warn_once
from keras_accum.host.scopes import attribute
from keras_accum.terms import table
from keras_accum.terms.problems import Problems
from keras_accum.terms.reader import LossReader
from keras_accum.terms.table import Way
from keras_accum.terms.tap import Tap

_OWN_GRADIENTS = (
    "The loss is a sum, or has a value for each sample, and `{0}` computes gradients by itself: "
    "`fit` can't know what they are divided by. If they are means over the samples, as with "
    "clipping per sample, give reduction='mean', or for micro-batches of several sizes, "
    + table.BY_FUNCTION
    + ". If they are sums, give reduction='sum'. Received: reduction={1!r}"
)
_UNCALLED = (
    "The model's own `train_step` calls no `compute_loss`, so the function given to "
    "MicroBatchWeights isn't called. Leave the callback out, and " + table.BY_CALL + "."
)


class WeighMicroBatches(InTrainFunction):
    """Weighs each micro-batch in `fit`. `training` adds it to each training with windows.

    weight: the user's function for the weight, or None.
    """

    _takes_several = True
    _weight = _weighing = None
    _unweighed = ()  # the engines with a loaded window that may lack weights

    def around(self, train_step):
        if self._weighing is None or not self._weighing.fits(self.model):
            self._weighing = Weighing(self.host, self.model, self._weight)
        return self._weighing.around(train_step)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.takes_part = True

    def prepare(self):
        engines = self._weighing.engines  # not the model's: on JAX, `model` syncs its variables
        self._unweighed = [engine for engine in engines if engine.take_unweighed()]
        self.version = tuple(map(id, self._unweighed)) or None  # a trace for the first step alone

    def run(self, run, *arguments):
        # Not in the train step, because a strategy's replicas run it in turns.
        try:
            with contextlib.ExitStack() as scope:
                self._weighing.install(scope)
                for engine in self._unweighed:
                    scope.enter_context(attribute(engine, "weighs_window", True))
                return run(*arguments)
        finally:
            self._weighing.warn()


def find_weighing(host, model, optimizers):
    """Return the callbacks by which Keras's train function weighs micro-batches, at most one."""
    options = [o._accumulation.options for o in optimizers]
    of_windows = [o for o in options if o.accumulates and o.reduction != "mean"]
    if not of_windows:
        return []
    obstacle = _find_obstacle(model, host)
    if obstacle and not any(o.is_strict for o in of_windows):
        for optimizer in optimizers:
            if optimizer._accumulation.options.weighs:
                warn_once(optimizer, UNWEIGHED.format(obstacle))
        return []
    # Kept, because it has the traces of the train step.
    accumulation = optimizers[0]._accumulation
    callback = accumulation.weighing_callback
    if callback is None or callback.model is not model:
        callback = accumulation.weighing_callback = host.callback(WeighMicroBatches)()
    return [callback]


def _find_obstacle(model, host):
    """Return why train steps can't be changed here, in words, or ""."""
    if not host.waits_for_steps(model):
        return "under ParameterServerStrategy"
    if find_own_methods(model, host.keras.Model, "make_train_function"):
        return "of a model with its own `make_train_function`"
    return "in Keras's NNX mode" if host.hides_train_steps() else ""


def look_at_train_on_batch(host):
    """Return the hook by which a model's `train_on_batch` weighs as `fit` does."""

    def hook(train_on_batch):
        def weigh_and_train(model, *arguments, **keywords):
            uninstall(model)  # Ctrl-C may have come before its call
            optimizers = list_accumulating(model)
            callbacks = find_weighing(host, model, optimizers)
            for optimizer in optimizers:
                optimizer._accumulation.has_unended_fit = False
            for callback in callbacks:
                callback.set_model(model)
                callback.on_train_begin()
            if not callbacks:
                return train_on_batch(model, *arguments, **keywords)
            make = model.make_train_function

            def make_changed(force=False):
                made = make(force=force)
                return made if force else install(model, callbacks)

            with attribute(model, "make_train_function", make_changed):
                return train_on_batch(model, *arguments, **keywords)

        return weigh_and_train

    return host.keras.Model, "train_on_batch", hook


class Weighing:
    """Calls a model's `compute_loss`, and gives the divisor in its loss to the optimizers.

    Traced steps call it once for each trace. There, a callback's `model` can't be used: on JAX, it
    writes the model's variables.
    """

    def __init__(self, host, model, weight):
        self._model, self._host, self._weight = model, host, weight
        self._compute_loss, self._container = model.compute_loss, host.find_losses(model)[0]
        optimizers = self._optimizers = list_accumulating(model)
        self.engines = [optimizer._accumulation for optimizer in optimizers]
        self._weighed = [engine for engine in self.engines if engine.options.weighs]
        self._values, self._replicas = self.engines[0].values, self.engines[0].replicas
        reader = LossReader(host, model, optimizers[0], self._values.scalar_dtype)
        has_own_code = bool(reader.own_loss) or reader.has_own_step
        self._reader, self._problems = reader, Problems(host, model, optimizers, has_own_code)
        self._logs = WeighedLogs(host, model, self._find_weight_of_logs)
        self._tap = Tap(host, model, self._logs.weigh_new_metrics)
        self._has_called_weight = False
        self._steps = {}  # the StepWeight of each replica that runs or traces a step
        self.warn = self._problems.warn

    def fits(self, model):
        """Return True for the same model, not compiled again: what traces have shown holds."""
        container = self._host.find_losses(model)[0]
        return (
            model is self._model
            and container is self._container
            and self._optimizers == list_accumulating(model)
        )

    def install(self, scope):
        """Change the model within this scope, an ExitStack."""
        self._tap.reset()
        scope.enter_context(attribute(self._model, "compute_loss", self.compute_loss))
        if self._weighed:
            self._logs.install(scope)

    @contextlib.contextmanager
    def in_step(self):
        """Scope of a train step or its trace on one replica, whose StepWeight it yields."""
        replica, step = self._replicas.index(), StepWeight(self._values.traces())
        self._steps[replica] = step
        for engine in self._weighed:
            engine.pending.of_fit[replica] = step
        try:
            yield step
        finally:
            del self._steps[replica]
            for engine in self._weighed:
                del engine.pending.of_fit[replica]

    def around(self, train_step):
        """Return the train step; a model's own weighs by samples if it calls no `compute_loss`."""
        has_own_step, calls_weight = self._reader.has_own_step, self._weight is not None

        def step(*arguments):
            with self.in_step() as current:
                rows = None
                if has_own_step and not calls_weight:
                    rows = self._reader.find_rows_of_step(arguments[-1])
                if rows is None:
                    result = train_step(*arguments)
                    if has_own_step and calls_weight and not self._has_called_weight:
                        raise ValueError(_UNCALLED)
                    return result
                current.samples = self._reader.count_samples(rows)
                with self._tap.scope() as terms:
                    result = train_step(*arguments)
                    if current.samples_are_taken:
                        loss = self._reader.describe(terms, rows, own=table.OWN_STEP)
                        self.note_problems(loss.decide())
                return result

        return step

    def compute_loss(self, *arguments, **keywords):
        batch, step = _take_batch(*arguments, **keywords), self._steps[self._replicas.index()]
        weight = step.of_logs = None
        if self._weight is not None:
            self._has_called_weight = True
            weight = step.of_logs = self._weight(*batch)  # tf_keras logs the loss within it
            check_weight(weight)
        with self._tap.scope() as terms:
            del terms[:]  # those of an earlier call in the model's own step
            step.terms = terms
            loss = self._compute_loss(*arguments, **keywords)
            step.terms = list(terms)
        rows, inputs = self._reader.find_rows(*batch), self._reader.find_rows(batch[0])
        described = self._reader.describe(step.terms, rows if inputs is None else inputs)
        decision = described.decide()
        self.note_problems(decision)
        if self._weight is None:
            weight = self._find_weight(described.terms, decision, rows)
        step.terms = ()  # they have the tensors of a trace or step
        if weight is not None and weight is not OF_SUM:
            weight = self._values.without_gradient(weight)
            group = self._host.find_process_group(self._model)
            if group is not None:
                weight, loss = self._replicas.share(weight, loss, group)
                step.of_logs = weight / group.size()
            elif decision.way is Way.BY_DIVISOR:
                step.of_logs = weight
        if weight is not None:
            step.give(weight, self._values.traces())
        return loss

    def note_problems(self, decision):
        """Note what may make results differ from the big batch."""
        if self._weight is None:
            self._problems.note(decision)
        self._problems.check_sums()

    def _find_weight(self, terms, decision, rows):
        """Return what the micro-batch's loss is divided by, None if there is no way to know it."""
        if decision.way is Way.AS_SUM:
            self._check_own_gradients()
            return OF_SUM
        if decision.way is Way.BY_DIVISOR:
            return self._reader.read_divisor(terms[0])
        return self._reader.count_samples(rows)

    def _check_own_gradients(self):
        """Raise a ValueError if an optimizer may make means of the gradients of a sum."""
        for engine in self._weighed:
            own = self._host.find_own_gradients(engine.optimizer)
            if own:
                raise ValueError(_OWN_GRADIENTS.format(own, engine.options.reduction))

    def _find_weight_of_logs(self, is_whole):
        """Return the weight of a logged loss, None as in Keras."""
        step = self._steps[self._replicas.index()]
        if self._weight is not None or not step.terms:
            return step.of_logs
        if is_whole:
            described = self._reader.describe(step.terms)
            is_divided = described.decide().way is Way.BY_DIVISOR
            return self._reader.read_divisor(described.terms[0]) if is_divided else None
        # Keras updates the metrics of outputs within `compute_loss`, each after its own loss.
        term = step.terms[-1]
        return self._reader.read_divisor(term) if term.is_mean else None


def _take_batch(x=None, y=None, y_pred=None, sample_weight=None, *others, **keywords):
    return x, y, y_pred, sample_weight
