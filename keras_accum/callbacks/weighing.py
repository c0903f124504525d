"""The part of `fit` that weighs each micro-batch by what its loss is divided by."""

import contextlib
from fractions import Fraction

from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.convert import list_accumulating
from keras_accum.engine.pending import OF_SUM, Found
from keras_accum.host import find_own_methods, warn_once
from keras_accum.host.scopes import attribute
from keras_accum.terms import sums, table
from keras_accum.terms.table import Loss, Way
from keras_accum.terms.tap import Tap, find_own_losses
from keras_accum.terms.term import find_divisor, read_shape


class WeighMicroBatches(InTrainFunction):
    """Weighs each micro-batch in `fit`. `together` adds it to each training with windows.

    weight: the user's function for the weight, or None.
    """

    _takes_several = True
    _weight = _weighing = None

    def around(self, train_step):
        if self._weighing is None or not self._weighing.fits(self.model):
            self._weighing = Weighing(self.library, self.model, self._weight)
        return self._weighing.around(train_step)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.takes_part = True

    def run(self, run, *arguments):
        # Not in the train step, because a strategy's replicas run it in turns.
        try:
            with contextlib.ExitStack() as scope:
                self._weighing.install(scope)
                return run(*arguments)
        finally:
            self._weighing.warn()


class OfOneLoss:
    """The weight of one micro-batch, on one replica.

    weight: the divisor of its loss, None until it's known.
    of_logs: the weight of what Keras logs as the loss; None as in Keras.
    terms: the calls of its losses, so far.
    """

    weight = of_logs = None
    terms = ()


class Weighing:
    """Calls a model's `compute_loss`, and gives the divisor in its loss to the optimizers.

    Traced steps call it once for each trace. There, a callback's `model` can't be used: on JAX, it
    writes the model's variables.
    """

    def __init__(self, library, model, weight):
        self._model, self._library, self._weight = model, library, weight
        self._compute_loss = model.compute_loss
        own = find_own_methods(model, library.keras.Model, "compute_loss", "train_step")
        self._own_loss = table.OWN_LOSS if "compute_loss" in own else ""
        self._has_own_step = "train_step" in own
        self._optimizers = list_accumulating(model)
        self._engines = [o._accumulation for o in self._optimizers]
        self._weighed = [e for e in self._engines if e.options.weighs]
        self._values, self._replicas = self._engines[0].values, self._engines[0].replicas
        self._container = library.find_losses(model)[0]
        self._tap = Tap(library, model, self._weigh_new_metrics)
        self._ratios = None  # of several divisors, in the traces and steps so far
        self._metrics = []  # those of losses
        self._scope = None  # in which the model is changed
        self._current = {}  # an OfOneLoss for each replica
        self._found = {}  # weights that no optimizer has taken yet, for each replica
        self._problems = []  # (optimizer, text) to warn of after the step
        self._told = set()  # optimizers; a text has shapes, so a later batch may have another

    def fits(self, model):
        """Return True for the same model, not compiled again: what traces have shown holds."""
        container = self._library.find_losses(model)[0]
        return (
            model is self._model
            and container is self._container
            and self._optimizers == list_accumulating(model)
        )

    def install(self, scope):
        """Change the model within this scope, an ExitStack."""
        self._scope = scope
        self._tap.reset()
        scope.callback(self._end)
        scope.enter_context(attribute(self._model, "compute_loss", self.compute_loss))
        self._metrics = self._metrics or self._library.loss_metrics(self._model)
        for metric in self._metrics:
            self._weigh_metric(metric)

    def around(self, train_step):
        """Return the train step; a model's own weighs by samples if it calls no `compute_loss`."""
        if not self._has_own_step or self._weight is not None:
            return train_step

        def step(*arguments):
            rows = self._find_rows(arguments[-1])
            if rows is None:
                return train_step(*arguments)
            found = Found(self._values.traces(), [self._count(rows)])
            for engine in self._weighed:
                engine.pending.note_samples(found)
            with self._tap.scope() as terms:
                result = train_step(*arguments)
                if found.is_taken:
                    self._check(self._describe(terms, rows, table.OWN_STEP).decide())
            return result

        return step

    def warn(self):
        """Give the warnings of a step, outside of its trace: one for each optimizer."""
        problems, self._problems = self._problems, []
        for optimizer, text in problems:
            if optimizer not in self._told:
                self._told.add(optimizer)
                warn_once(optimizer, text)

    def _end(self):
        self._current.clear()
        for engine in self._weighed:
            engine.pending.forget_samples()

    def compute_loss(self, *arguments, **keywords):
        batch = _take_batch(*arguments, **keywords)
        current = self._current[self._replicas.index()] = OfOneLoss()
        if self._weight is not None:
            current.weight = current.of_logs = self._weight(*batch)
        x, y, y_pred, _ = batch
        with self._tap.scope() as terms:
            del terms[:]  # those of an earlier call in the model's own step
            current.terms = terms
            loss = self._compute_loss(*arguments, **keywords)
            current.terms = list(terms)
        rows = self._find_rows(x, y_pred, y)
        decision = self._describe(current.terms, rows, self._own_loss).decide()
        self._check(decision)
        weight = self._find_weight(current, decision, rows)
        current.terms = ()  # they have the tensors of a trace or step
        if weight is None:
            return loss
        group = self._library.find_process_group(self._model)
        if group is not None and weight is not OF_SUM:
            weight, loss = self._replicas.share(weight, loss, group)
            current.of_logs = weight / group.size()
        elif decision.way is Way.BY_DIVISOR:
            current.of_logs = weight
        self.give(weight)
        return loss

    # -- the weight --------------------------------------------------------------------------------

    def _find_rows(self, *nested):
        """Return the first array that has a row for each sample, or None."""
        arrays = [array for each in nested for array in self._library.flatten(each)]
        return next((array for array in arrays if read_shape(array)), None)

    def _describe(self, terms, rows, own):
        """Return the Loss of these terms; `own` is code of the model that puts it together."""
        library, model = self._library, self._model
        kept = find_own_losses(library, model) if own and not terms else ()
        kinds = [(each.name, find_divisor(each)) for each in kept]
        has_sum = any(term.loss.reduction == "sum" for term in terms)
        return Loss(
            terms,
            None if rows is None else rows.shape[0],
            adds=library.added_losses(model) > 0,
            is_penalized=has_sum and library.has_penalties(model),
            own=own,
            kept=[(name, kind) for name, kind in kinds if kind is not None],
            remedy=sums.make_remedy(model, self._optimizers[0], library) if has_sum else "",
        )

    def _find_weight(self, current, decision, rows):
        """Return the micro-batch's weight, None if there is no way to know it."""
        if self._weight is not None:
            weight = current.weight
        elif decision.way is Way.AS_SUM:
            return OF_SUM
        elif decision.way is Way.BY_DIVISOR:
            weight = self._find_divisor(current)
        else:
            weight = self._count(rows)
        current.weight = None if weight is None else self._values.without_gradient(weight)
        return current.weight

    def _find_divisor(self, current):
        """Return the divisor of the first loss."""
        if current.weight is None:
            current.weight = self._not_zero(current.terms[0].count(self._values.scalar_dtype))
        return current.weight

    def _count(self, rows):
        """Return the number of samples."""
        if rows is None:
            return None
        ops, dtype = self._library.ops, self._values.scalar_dtype
        known = rows.shape[0]
        return self._not_zero(ops.cast(ops.shape(rows)[0], dtype) if known is None else known)

    def _not_zero(self, weight):
        if isinstance(weight, int):
            return weight or self._library.least_weight
        ops = self._library.ops
        return ops.where(ops.not_equal(weight, 0), weight, self._library.least_weight)

    def give(self, weight):
        """Let the next call of each optimizer take the weight."""
        replica, traces = self._replicas.index(), self._values.traces()
        found = self._found.get(replica)
        if found is None or found.is_taken or not found.belongs_to(traces):
            found = self._found[replica] = Found(traces)
        found.weights.append(weight)
        for engine in self._weighed:
            engine.pending.find(found)

    # -- what isn't known --------------------------------------------------------------------------

    def _check(self, decision):
        """Note a decision's problem for a warning, or raise it if an optimizer is strict."""
        if self._weight is None:
            problem, strict = decision.problem, decision.strict_problem
            if decision.sizes and self._are_unequal(decision.sizes):
                problem = strict = decision.if_unequal
            self._check_weights(decision.way, problem, strict)
        for optimizer, engine in zip(self._optimizers, self._engines):
            if engine.options.reduction == "sum":
                self._check_sum(optimizer)

    def _are_unequal(self, sizes):
        """Return True if numbers have another ratio than in earlier micro-batches."""
        ratios = [Fraction(size, sizes[0] or 1) for size in sizes]
        before, self._ratios = self._ratios, self._ratios or ratios
        return before not in (None, ratios)

    def _check_weights(self, way, problem, strict_problem):
        for optimizer, engine in zip(self._optimizers, self._engines):
            options = engine.options
            if not options.weighs:
                continue
            if options.is_strict and strict_problem:
                raise ValueError(table.STRICT + strict_problem)
            if problem and not sums.are_scaled(self._model, optimizer, self._library):
                start = table.BY_SAMPLES if way is Way.BY_SAMPLES else ""
                self._problems.append((optimizer, problem + table.UNTIL_THEN.format(start)))

    def _check_sum(self, optimizer):
        """Note terms that `reduction="sum"` would count too often."""
        is_own = bool(self._own_loss) or self._has_own_step
        adds = self._library.added_losses(self._model) > 0
        if is_own or adds:
            text = sums.describe(self._model, optimizer, self._library, is_own, adds)
            if text:
                self._problems.append((optimizer, text))

    # -- the logged loss ---------------------------------------------------------------------------

    def _weigh_new_metrics(self):
        for metric in self._library.loss_metrics(self._model):
            if not any(metric is known for known in self._metrics):
                self._metrics.append(metric)
                self._weigh_metric(metric)

    def _weigh_metric(self, metric):
        """Let a metric of losses weight each micro-batch as the gradients are."""
        update, ops = metric.update_state, self._library.ops

        def update_state(values, sample_weight=None):
            weight = self._find_weight_of_logs()
            if weight is None:
                return update(values, sample_weight=sample_weight)
            if not isinstance(weight, int):  # the mean of nothing may be NaN
                values = ops.where(ops.equal(weight, 0), ops.zeros_like(values), values)
            return update(values, sample_weight=weight)

        self._scope.enter_context(attribute(metric, "update_state", update_state))

    def _find_weight_of_logs(self):
        """Return the weight of a logged loss, None as in Keras."""
        current = self._current.get(self._replicas.index())
        if current is None or not current.terms:
            return None if current is None else current.of_logs
        if current.weight is not None:
            return current.weight
        # Keras updates the metrics of outputs within `compute_loss`.
        way = self._describe(current.terms, None, self._own_loss).decide().way
        return self._find_divisor(current) if way is Way.BY_DIVISOR else None


def _take_batch(x=None, y=None, y_pred=None, sample_weight=None, **more):
    return x, y, y_pred, sample_weight
