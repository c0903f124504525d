"""What the callbacks share: optimizers, trainings, the model's train function.

No host is imported here.
"""

import functools

from keras_accum.base import inner
from keras_accum.convert import accumulates
from keras_accum.train_functions import Substitute, TracedAnew


def accumulating_in(optimizer):
    """Return the accumulating optimizers that a model's optimizer is or wraps."""
    found = inner(optimizer)
    candidates = getattr(found, "optimizers", [found])  # several in a MultiOptimizer
    return list(filter(accumulates, candidates))


class SeesTrainings:
    """A callback that tells optimizers when a training begins and ends; not every Keras does."""

    # True if the callback can be used with a MultiOptimizer, which wraps several optimizers.
    _takes_several = False

    def on_train_begin(self, logs=None):
        self._check_optimizer(inner(self.model.optimizer))
        for optimizer in accumulating_in(self.model.optimizer):
            optimizer._accumulation.training.start()

    def on_train_end(self, logs=None):
        for optimizer in accumulating_in(self.model.optimizer):
            if not optimizer._accumulation.port.tells_of_the_end:
                optimizer._accumulation.training.end()

    def _check_optimizer(self, optimizer):
        name, found = type(self).__name__, accumulating_in(optimizer)
        if not found:
            raise TypeError(
                f"{name} needs a model that is compiled with an optimizer of keras_accum. "
                f"Received: optimizer={optimizer!r}"
            )
        if found != [optimizer] and not self._takes_several:
            raise TypeError(
                f"{name} needs a model with one optimizer, and {type(optimizer).__name__} wraps "
                "several optimizers, each with windows of its own. Leave the callback out. "
                f"Received: optimizers={found}"
            )


def steps_per_execution(model):
    if getattr(model, "autotune_steps_per_execution", False):
        return "auto"
    variable = getattr(model, "_steps_per_execution", None)  # on Keras 2
    return model.steps_per_execution if variable is None else int(variable.numpy())


class KnowsOthers:
    """A callback that knows the callbacks which are before and after it in a training."""

    _before = _after = ()


def introduce(callback_list):
    """Make Keras's class CallbackList tell callbacks which others are before and after them.

    Keras doesn't tell a callback of the others. A progress bar is a callback, too.
    """
    on_train_begin = callback_list.on_train_begin

    @functools.wraps(on_train_begin)
    def introduce_and_begin(self, logs=None):
        for i, callback in enumerate(self.callbacks):
            if isinstance(callback, KnowsOthers):
                callback._before, callback._after = self.callbacks[:i], self.callbacks[i + 1 :]
        on_train_begin(self, logs)

    callback_list.on_train_begin = introduce_and_begin


def is_named(callback, name):
    """True if a class of the callback has this name. The classes themselves are a host's."""
    return any(cls.__name__ == name for cls in type(callback).__mro__)


class SubstitutesTrainFunction(SeesTrainings):
    """A callback that substitutes the model's train function while `fit` runs.

    The substitute is made once and kept, because it holds traces. After a `fit` that was aborted,
    the substitute is still in place: the next `fit` first restores the model's own function.
    """

    _substitute = None
    # A host defines: whether Keras traces the train step of a model's class, not the model's own.
    _traces_class = staticmethod(lambda: False)

    def _check_train_step(self):
        """Raise an error if Keras wouldn't see another train step of the model."""
        if self._traces_class():
            raise ValueError(
                f"{type(self).__name__} can't be used in Keras's NNX mode, which traces the train "
                "step of the model's class, and not the train step that the callback puts in its "
                "place. Start Python without KERAS_NNX_ENABLED."
            )

    def _put_substitute(self, kind=TracedAnew):
        """Substitute the model's train function."""
        found = self._find_train_function()
        if hasattr(self.model, "_record_training_state_sharding_spec"):
            # Keras 3.10 and 3.11 on JAX: the callback may have made variables of the optimizer.
            self.model._record_training_state_sharding_spec()
        if self._substitute is None or self._substitute.in_place_of is not found:
            self._substitute = kind(self.model, found)
        self._substitute.training = self.params
        self.model.train_function = self._substitute

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._put_back()

    def _put_back(self):
        """Restore the model's own train function, under any number of substitutes."""
        while isinstance(self.model.train_function, Substitute):
            self.model.train_function = self.model.train_function.in_place_of

    def _find_train_function(self):
        """Return the model's train function, or another callback's substitute for this `fit`."""
        found = self.model.train_function
        if isinstance(found, Substitute) and found.training is not self.params:
            self._put_back()
            found = self.model.train_function
        last = getattr(found, "last", None)
        if last is not None:
            raise ValueError(f"{type(self).__name__} must come before {last} in `callbacks`.")
        return found


class SubstitutesTrainStep(SubstitutesTrainFunction):
    """A callback that substitutes the model's train step, and its train function, during `fit`.

    The substitute is made once for a model. After a `fit` that was aborted, the substitute is still
    in place: the next `fit` first restores the model's own train step.
    """

    # A host defines: the class of train steps.
    _step_class = None
    _step = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._restore_train_step()
        self._check_train_step()
        self._check_model()
        if self._step is None or self._step.model is not self.model:
            self._step = self._new_step()
        self._begin()
        vars(self.model)["train_step"] = self._step
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._restore_train_step()

    def _restore_train_step(self):
        if isinstance(vars(self.model).get("train_step"), self._step_class):
            del vars(self.model)["train_step"]

    def _check_model(self):
        """Raise an error if the callback can't be used with the model."""

    def _new_step(self):
        return self._step_class(self.model)

    def _begin(self):
        """Prepare the substitute for a training."""
