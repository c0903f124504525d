"""What is being run or traced. No host is imported here."""

import collections
import contextlib

_OUTSIDE = (
    "`{method}` of {name} is called from outside of a step of {name}, as by an optimizer that "
    "wraps {name} (such as Lookahead and MovingAverage of tensorflow-addons). With "
    "accum_iters={accum_iters} and skip_nonfinite={skip_nonfinite}, an update must go through "
    "`apply_gradients` or `apply`: otherwise the update would use the gradient of a single "
    "micro-batch. Write what the wrapper does as a subclass of {stock}, and make the optimizer "
    "with `accumulating(your_subclass)`. Without accumulation, wrap {stock} itself."
)


class Running:
    """The updates and micro-batches of one optimizer that are run or traced."""

    def __init__(self, optimizer, accumulation):
        self._optimizer, self._accumulation = optimizer, accumulation
        # The number of updates that have begun: one for each replica that waits in the same update.
        self._updates = 0
        # The number of micro-batches by replica, None if nobody counts: `torch.compile` compiles
        # again where a number changes with each micro-batch.
        self._micro_batches = None

    # -- micro-batches -----------------------------------------------------------------------------

    def start_counting(self):
        """Count the micro-batches from now on."""
        self._micro_batches = self._micro_batches or collections.Counter()

    def count(self):
        if self._micro_batches is not None:
            self._micro_batches[self._accumulation.port.replica()] += 1

    def micro_batches(self):
        """Return the number of counted micro-batches of this replica."""
        return self._micro_batches[self._accumulation.port.replica()]

    # -- updates -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def update(self):
        """A scope in which the accumulation runs the stock optimizer's update."""
        self._updates += 1
        try:
            yield
        finally:
            self._updates -= 1

    def check_is_update(self, method):
        """Raise a RuntimeError if another optimizer calls a part of an update of this one."""
        options = self._accumulation.options
        is_plain = options.always_updates and not options.window_transforms
        if not (self._updates or is_plain):
            raise RuntimeError(
                _OUTSIDE.format(
                    method=method,
                    name=type(self._optimizer).__name__,
                    accum_iters=self._optimizer.accum_iters,
                    skip_nonfinite=options.skip_nonfinite,
                    stock=self._optimizer._stock_class.__name__,
                )
            )
