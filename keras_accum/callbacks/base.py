"""What the callbacks have in common: the optimizer they find, trainings, train functions.

No host is imported here. The docstring of a callback has fields, in which a host puts its import.
"""

import contextlib


def inner(optimizer):
    """The accumulating optimizer in a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def accumulating_in(optimizer):
    """The accumulating optimizers that a model's optimizer is, or is around."""
    found = inner(optimizer)
    several = getattr(found, "optimizers", [found])  # a MultiOptimizer's
    return [one for one in several if hasattr(one, "apply_partial_window")]


class SeesTrainings:
    """A callback that is told when a training begins and ends; not every host tells optimizers."""

    # Whether it can be used with a MultiOptimizer, which is around several optimizers.
    _takes_several = False

    def on_train_begin(self, logs=None):
        self._check_optimizer(inner(self.model.optimizer))
        for optimizer in accumulating_in(self.model.optimizer):
            optimizer._start_training()

    def on_train_end(self, logs=None):
        for optimizer in accumulating_in(self.model.optimizer):
            if not optimizer._is_told_of_the_end:
                optimizer._end_training()

    def _check_optimizer(self, optimizer):
        name, found = type(self).__name__, accumulating_in(optimizer)
        if not found:
            raise TypeError(
                f"{name} needs a model that is compiled with an optimizer of keras_accum. "
                f"Received: optimizer={optimizer!r}"
            )
        if found != [optimizer] and not self._takes_several:
            raise TypeError(
                f"{name} needs a model with one optimizer, and {type(optimizer).__name__} is "
                "around several, whose windows are their own. Leave the callback out. "
                f"Received: optimizers={found}"
            )


def steps_per_execution(model):
    if getattr(model, "autotune_steps_per_execution", False):
        return "auto"
    variable = getattr(model, "_steps_per_execution", None)  # on Keras 2
    return model.steps_per_execution if variable is None else int(variable.numpy())


@contextlib.contextmanager
def train_step_of(model, train_step):
    """The model has this train step in here."""
    attributes = vars(model)
    kept = {name: attributes[name] for name in ("train_step",) if name in attributes}
    attributes["train_step"] = train_step
    try:
        yield
    finally:
        del attributes["train_step"]
        attributes.update(kept)


def own_train_function(model, around=lambda train_step: train_step):
    """The model's train function, made anew and traced for itself.

    `around` makes of the model's train step the step of this function.
    """
    step = around(model.train_step)
    # A function of its own: JAX takes the traces of equal functions, as bound methods are, for one.
    with train_step_of(model, lambda *arguments: step(*arguments)):
        model.make_train_function(force=True)
    return model.train_function


class Substitute:
    """What a callback puts in the place of a model's train function for a `fit`."""

    # Whether there can't be another in its place in turn.
    is_last = False

    def __init__(self, in_place_of):
        self.in_place_of = in_place_of
        self.training = None  # which `fit`: the parameters that it hands to all of its callbacks


class TracedAnew(Substitute):
    """The train function that it's in place of, traced with what a callback has changed."""

    def __init__(self, model, in_place_of):
        super().__init__(in_place_of)
        self._function = own_train_function(model)

    def __call__(self, *arguments):
        return self._function(*arguments)


class SubstitutesTrainFunction(SeesTrainings):
    """A callback that has the model trained by another train function as long as `fit` runs.

    It's made once and kept, as it holds traces. A `fit` that broke off leaves it in its place: the
    next `fit` begins with the model's own.
    """

    _substitute = None

    def _put_substitute(self, kind=TracedAnew):
        """Put a substitute in place of the model's train function."""
        found = self._find_train_function()
        if self._substitute is None or self._substitute.in_place_of is not found:
            self._substitute = kind(self.model, found)
        self._substitute.training = self.params
        self.model.train_function = self._substitute

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._put_back()

    def _put_back(self):
        """Give the model its own train function back, whatever was put in its place."""
        while isinstance(self.model.train_function, Substitute):
            self.model.train_function = self.model.train_function.in_place_of

    def _find_train_function(self):
        """The model's, or the one that another callback has put there for this `fit`."""
        found = self.model.train_function
        if isinstance(found, Substitute) and found.training is not self.params:
            self._put_back()
            found = self.model.train_function
        if getattr(found, "is_last", False):
            raise ValueError(f"{type(self).__name__} must come before PythonGate in `callbacks`.")
        return found
