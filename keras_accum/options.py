"""The arguments of ours that decide how an optimizer accumulates. No host is imported here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The checked arguments; `arguments` has their ranges, and a docstring their meaning."""

    accum_iters: int = 1
    reduction: str = "mean"
    skip_nonfinite: bool = False
    gate: str = "select"
    all_reduce: str = "per_micro_batch"
    decay: float = 0.0  # on Keras 3; the stock optimizers of Keras 2 have a decay of their own

    @property
    def accumulates(self):
        return self.accum_iters > 1

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
        return not (self.accumulates or self.skip_nonfinite or self.decay)

    @property
    def always_updates(self):
        """True if each micro-batch makes an update."""
        return not (self.accumulates or self.skip_nonfinite)
