"""The arguments of ours that decide how an optimizer accumulates. No host is imported here."""

from dataclasses import dataclass
from typing import Any

from keras_accum import schedule


@dataclass(frozen=True)
class Options:
    """The checked arguments; `arguments` has their ranges, and a docstring their meaning."""

    accum_iters: Any = 1  # an int, None, or a function of the number of updates
    reduction: str = "mean"
    skip_nonfinite: bool = False
    skip_norm: Any = None  # a float, or a function of the norm that returns True to skip
    window_transforms: Any = None  # a list of functions of gradients and variables
    gate: str = "select"
    all_reduce: str = "per_micro_batch"
    # Of the first window if a callback has set the length before the window's variables existed.
    first_length: int = 0
    decay: float = 0.0  # where the stock optimizer has no decay of its own

    @property
    def is_scheduled(self):
        """True if the lengths of windows depend on the number of updates."""
        return callable(self.accum_iters)

    @property
    def accumulates(self):
        return self.is_scheduled or self.accum_iters is None or self.accum_iters > 1

    def length_at(self, updates):
        """Return the length of the window after this number of completed updates, an int."""
        return schedule.length_at(self.accum_iters, updates)

    @property
    def weighs(self):
        """True if each micro-batch of a window has a weight."""
        return self.accumulates and self.reduction == "weighted"

    @property
    def reduces_late(self):
        """True if each replica keeps a gradient sum of its own until the window closes."""
        return self.accumulates and self.all_reduce == "per_window"

    @property
    def is_stock(self):
        """True if the stock optimizer's own code does all that is asked for."""
        return self.always_updates and not (self.decay or self.window_transforms)

    @property
    def always_updates(self):
        """True if each micro-batch makes an update."""
        return not (self.accumulates or self.drops)

    @property
    def drops(self):
        """True if a micro-batch may be dropped, by what its gradient is."""
        return self.skip_nonfinite or self.skip_norm is not None


class ReadOnly(property):
    """A constructor argument as an attribute that can't be set afterwards.

    The train steps that are traced already have the value, so a new value would change only some of
    the train steps.
    """

    def __init__(self, name):
        def get(self):
            return getattr(self._accumulation.options, name)

        get.__doc__ = f"The constructor argument `{name}`, which can't be changed afterwards."
        super().__init__(get)
        self._name = name

    def __set__(self, optimizer, value):
        cls, name = type(optimizer), self._name
        if not optimizer._accumulation.is_ready:
            check_taken(cls._stock_class, [name], [name])
        raise AttributeError(
            f"`{name}` can't be changed after construction. Make a new optimizer with the same "
            f"state, and compile the model with it: `{cls.__name__}.from_optimizer(optimizer, "
            f"{name}={value!r})`. Received: {name}={value!r}"
        )


def check_taken(stock, theirs, ours):
    """Raise a TypeError if attributes of a stock optimizer have the names of ours."""
    taken = sorted(set(theirs) & set(ours))
    if taken:
        raise TypeError(
            f"{stock.__name__} sets attributes that every accumulating optimizer has, for another "
            f"purpose: {', '.join(taken)}. Rename them in {stock.__name__}."
        )


def check_attributes(optimizer, new):
    """Raise a TypeError if the stock class has set attributes that our classes use."""
    classes = [c for c in type(optimizer).__mro__ if c.__module__.startswith("keras_accum.")]
    ours = {name for cls in classes for name in vars(cls)}
    check_taken(type(optimizer)._stock_class, set(new) - {"_accumulation"}, ours)
