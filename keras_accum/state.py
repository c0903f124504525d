"""The state of an optimizer, for every Keras: named, read, written, loaded, and kept waiting.

No host is imported here: a port knows the variables of its Keras and their order in files.
"""

import contextlib

import numpy as np

from keras_accum import arguments, lists, states
from keras_accum.fitting import FORMAT, OF_LISTS, Fitting
from keras_accum.pending import PendingState
from keras_accum.warn import warn


class State:
    """The state of one optimizer.

    waiting: the state that was loaded before the optimizer's variables exist; see `pending`.
    """

    def __init__(self, optimizer, accumulation):
        self._optimizer, self._accumulation = optimizer, accumulation
        self._port = accumulation.port
        self.waiting = PendingState()
        self._lists = lists.Lists(optimizer, accumulation, self)
        self._fitting = Fitting(accumulation, self._lists)

    # -- variables ---------------------------------------------------------------------------------

    @property
    def is_built(self):
        """True if slots and accumulators exist."""
        return bool(self._port.variables)

    def check_is_built(self, method):
        if not self.is_built:
            raise ValueError(
                f"`{method}` before the optimizer has its variables: call "
                "`optimizer.build(model.trainable_variables)` first."
            )

    def named(self):
        """Return the variables by their names, in the order of files unless they wait."""
        if self.waiting:
            return self.waiting.variables
        window = self._accumulation.window
        return {**self._port.stock_variables(), **({} if window is None else window.named)}

    def variables(self):
        """Return the variables in the order of files."""
        found = self.named()
        if not self.waiting or states.has_unnamed(found):
            return list(found.values())
        # A state by names may have any order.
        order = self._port.names_for(states.by_index(states.without(found, states.MISSING)))
        order = list(dict.fromkeys([*order, states.MISSING]))  # last where it's made when needed
        if found.keys() - set(order):
            self.check_is_built("variables")
        return [found[name] for name in order if name in found]

    @property
    def counters(self):
        """The window's counters by name, of the built or of the waiting state, if any."""
        if self.waiting:
            return self.waiting.counters
        window = self._accumulation.window
        return {} if window is None else window.counters

    def count(self, name, default):
        """Return a counter's value, or the default if the counter doesn't exist yet."""
        counter = self.counters.get(name)
        return int(default if counter is None else self._port.read(counter))

    def completed_updates(self):
        """Return the number of updates made, without what a LossScaleOptimizer has added to it."""
        window = self._accumulation.window
        added = None if window is None else window.named.get("unapplied")
        updates = self._port.read(self._port.updates)
        return int(updates if added is None else updates - self._port.read(added))

    # -- reading and writing -----------------------------------------------------------------------

    def get(self):
        """Return the state as `{name: array}`, with its format."""
        self._port.check_order()
        state = {name: states.portable(array) for name, array in self.read().items()}
        return {**FORMAT, **state}

    def set(self, state):
        """Continue from a state by names, now or when the variables are created."""
        state = states.as_arrays(state)
        if self.is_built:
            self._port.check_order()
            self.write(self._fitting.to_built(state, self.named()))
        else:
            self._keep(state)

    def set_list(self, arrays):
        """Continue from a list of arrays of this Keras, of another one or of a stock optimizer."""
        arrays = self._port.without_wrapper([states.as_array(array) for array in arrays])
        counts = self.waiting.counts
        try:
            if self.is_built:
                self.set(self._lists.named(arrays, self._fitting.shapes(self.named())))
            else:
                self.set(self._lists.unnamed(arrays))
        except states.StateError:
            self.waiting.counts = counts
            raise

    def load(self, store):
        """Continue from what a Keras file holds: a state by names, or a list by places."""
        state = states.as_arrays(store)
        if not state:
            name = arguments.config_of(self._optimizer)["name"]
            warn(
                f"The file holds no state of {name}, so {name} is unchanged. If the optimizer was "
                "in a LossScaleOptimizer when the file was saved, put it in a LossScaleOptimizer "
                "before loading.",
            )
        elif all(map(states.is_index, state)):
            self.set_list([state[name] for name in sorted(state, key=int)])
        else:
            self.set(state)

    def read(self):
        """Return the built state, or else the waiting state."""
        found = self.named()
        state = dict(zip(found, self._port.read_all(list(found.values()))))
        if not states.has_unnamed(state):  # otherwise it tells the order of the list
            state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        state.pop("state_format", None)
        return states.without_idle({**state, **self._port.rate_state()})

    def write(self, state):
        """Write a complete state that fits."""
        window = self._accumulation.window
        if window is not None and window.missing is None:
            state = states.without_idle(state)
            if states.MISSING in state:
                window.add(states.MISSING)
        self._write({**state, "unapplied": np.asarray(0)}, self.named())

    def _write(self, state, variables):
        rate = state.get("learning_rate")
        if rate is not None:
            self._port.write_rate(rate)
        names = [name for name in variables if name in state and name != "learning_rate"]
        self._port.write_all([(variables[name], state[name]) for name in names])

    # -- a state that waits ------------------------------------------------------------------------

    def _keep(self, state):
        """Keep a state until the variables are created, and write the variables that exist."""
        has_scalars = any(map(states.is_scalar_of_rule, state))
        state = self._fitting.before_build(state)
        if states.MISSING not in self._port.window_order:  # made only where needed
            state = states.without_idle(state)
        shared = self._port.shared_variables()
        self._write(state, shared)
        self.waiting.drop()
        if states.count(state) or has_scalars:
            if states.has_unnamed(state):
                names = lists.order({**shared, **state})
            else:
                names = [*shared, *(n for n in state if n not in shared and n != "learning_rate")]
                if "accum_iters" in state:
                    names += [name for name in self._port.window_order if name in OF_LISTS]
            self.waiting.hold(state, names, shared, self._port.add_waiting)
        self._port.note_waiting()

    def recount(self):
        """Complete the state, after accum_iters was set that a file didn't hold."""
        if self.waiting or self.waiting.micro_batches is not None:
            self.set(self.waiting.recounted(self.get(), self._accumulation.options.accum_iters))
            self.waiting.micro_batches = None

    @contextlib.contextmanager
    def restored(self, variables, keys=()):
        """A scope that makes what these variables need; at its end, the waiting state is written.

        If the state doesn't fit, or if the scope fails, the state goes on waiting.
        """
        if not self.waiting:
            yield
            return
        port = self._port
        with port.eagerly():
            state = self.waiting.in_order(self.read(), keys)
        waiting = self.waiting.take()
        try:
            if port.knows_names:
                state = self._fitting.to_variables(state, variables)
            yield
            with port.eagerly():
                if not port.knows_names:
                    state = self._fitting.to_built(state, self.named())
                self.write(state)
                self._accumulation.training.start()
        except Exception:
            self.waiting.put_back(waiting)
            raise
