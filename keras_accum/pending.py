"""A state that is loaded before its variables exist. No host is imported here.

Hosts load before they build: a file is read, an optimizer is unpickled or `set_state` is called
before there is a model whose variables could take the values.
"""

import numpy as np

from keras_accum import states
from keras_accum.warn import warn

_COUNTS_MICRO_BATCHES = (
    "The file counts micro-batches, so its `accum_iters` must be a number: set "
    "`optimizer.accum_iters` to the number that the file was trained with, and then give another "
    "`accum_iters`. Received: accum_iters={!r}"
)


class PendingState:
    """Keeps an optimizer's state until the optimizer's variables exist. The newest state wins.

    A value whose variable exists already, such as the number of updates, is written at once. All
    other values wait in temporary variables. `variables` has both kinds, by their names in a state
    and in the order of the host's files. Code that reads, writes, saves or copies the optimizer in
    the meantime finds these variables in place of the final ones.

    If a file counts micro-batches and doesn't hold the length of a window, the count waits, too,
    until `accum_iters` is set: only then the number of updates is known.
    """

    def __init__(self):
        self.variables = {}
        # The variables of a state that came from another optimizer, in that optimizer's order,
        # which may differ from the model's.
        self.keys = []
        # True if the file that is being loaded counts micro-batches; and their number, while the
        # number of updates isn't known yet.
        self.counts_micro_batches = False
        self.micro_batches = None

    def __bool__(self):
        return bool(self.variables)

    @property
    def counters(self):
        return {name: self.variables[name] for name in states.WINDOW if name in self.variables}

    def hold(self, state, names, existing, add_variable):
        """Hold a state that fits, in place of any state that waits.

        `names` are the names in the host's files. Values that aren't part of `state` are those of a
        state that was just written. `existing` has the optimizer's variables that exist already;
        `add_variable(name, array)` creates the others.
        """
        values = {"state_format": np.asarray(states.FORMAT), "unapplied": np.asarray(0), **state}
        self.variables = {
            name: existing[name] if name in existing else add_variable(name, values[name])
            for name in names
        }
        self.keys = []

    def drop(self):
        self.variables, self.keys = {}, []

    def take(self):
        """Take the state out, and return what `put_back` needs."""
        taken = self.variables, self.keys
        self.drop()
        return taken

    def put_back(self, taken):
        self.variables, self.keys = taken

    def in_order(self, state, keys):
        """Return the state in the order of `keys`, if the state is known to be of these keys."""
        if not self.keys or sorted(keys) != sorted(self.keys):
            return state
        return states.renumbered(state, {self.keys.index(key): i for i, key in enumerate(keys)})

    # -- a count that waits for accum_iters --------------------------------------------------------

    @property
    def counts(self):
        """What is known of a count of micro-batches, to restore it."""
        return self.counts_micro_batches, self.micro_batches

    @counts.setter
    def counts(self, counts):
        self.counts_micro_batches, self.micro_batches = counts

    def convert_count(self, state, accum_iters):
        """Convert the state's count to updates if the file counts micro-batches."""
        if not self.counts_micro_batches:
            return
        self.counts_micro_batches = False
        micro_batches = int(state["completed_updates"])
        if accum_iters == 1:  # the real value isn't known yet
            self.micro_batches = micro_batches
        state["completed_updates"] = np.asarray(updates_in(micro_batches, accum_iters))

    def recounted(self, state, accum_iters):
        """Return the state with the number of updates, now that accum_iters is known."""
        if self.micro_batches is None:
            return state
        if callable(accum_iters) or accum_iters is None:
            raise ValueError(_COUNTS_MICRO_BATCHES.format(accum_iters))
        since = state["completed_updates"] - self.micro_batches
        updates = updates_in(self.micro_batches, accum_iters) + since
        return {**state, "completed_updates": np.asarray(updates)}


def updates_in(micro_batches, accum_iters):
    """Return the number of updates in a number of micro-batches."""
    updates, pending = divmod(int(micro_batches), accum_iters)
    if pending:
        warn(
            f"This model was saved {pending} of {accum_iters} micro-batches into a window, and the "
            "file doesn't hold their gradients: training continues with a fresh window.",
        )
    return updates
