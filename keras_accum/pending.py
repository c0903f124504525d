"""A state that has come before the variables that it belongs to. No host is imported here.

Hosts load before they build: a file is read, an optimizer unpickled or `set_state` called when
there is no model yet whose variables could take the values.
"""

import numpy as np

from keras_accum import states


class PendingState:
    """Where an optimizer keeps a state until it gets its variables. The newest state wins.

    What has a variable already, as the count of updates, takes its value at once. The rest waits in
    variables of its own. All of them stand in `variables`, by the names of a state and in the order
    of the host's files: who reads, writes, saves or copies the optimizer in the meantime finds them
    where its own variables will be.

    A file that doesn't say how long a window is makes its count of micro-batches wait as well,
    until `accum_iters` says how many updates those are.
    """

    def __init__(self):
        self.variables = {}
        # The variables that a state is of, where it came from another optimizer: that may have met
        # them in another order than the model has.
        self.keys = []
        # Whether the file that is being loaded counts micro-batches, and how many it had counted,
        # if it can't be said yet how many updates those are.
        self.counts_micro_batches = False
        self.micro_batches = None

    def __bool__(self):
        return bool(self.variables)

    @property
    def counters(self):
        return {name: self.variables[name] for name in states.WINDOW if name in self.variables}

    def hold(self, state, names, existing, add_variable):
        """Take a state that fits, in place of the one that waits.

        `names` are those of the host's files, and the values that are no part of a state are those
        of a state that was just written. `existing` are the optimizer's variables that are there,
        and `add_variable(name, array)` makes one that isn't.
        """
        values = {"state_format": np.asarray(states.FORMAT), "unapplied": np.asarray(0), **state}
        self.variables = {
            name: existing[name] if name in existing else add_variable(name, values[name])
            for name in names
        }
        self.keys = []

    def drop(self):
        self.variables = {}
        self.keys = []

    def in_order(self, state, keys):
        """The state numbered as these variables are, if it's known to be of them."""
        if not self.keys or sorted(keys) != sorted(self.keys):
            return state
        return states.renumbered(state, {self.keys.index(key): i for i, key in enumerate(keys)})

    # -- a count that waits for accum_iters --------------------------------------------------------

    def convert_count(self, state, accum_iters):
        """Count updates where the file that is being loaded counts micro-batches."""
        if not self.counts_micro_batches:
            return
        self.counts_micro_batches = False
        micro_batches = int(state["completed_updates"])
        if accum_iters == 1:  # it isn't known yet
            self.micro_batches = micro_batches
        state["completed_updates"] = np.asarray(states.updates_in(micro_batches, accum_iters))

    def recounted(self, state, accum_iters):
        """The state with the updates that are known now that accum_iters is."""
        if self.micro_batches is None:
            return state
        since = state["completed_updates"] - self.micro_batches
        updates = states.updates_in(self.micro_batches, accum_iters) + since
        return {**state, "completed_updates": np.asarray(updates)}
