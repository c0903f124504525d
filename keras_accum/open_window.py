"""The variables of the open window: its counters, its gradient sums and their weight.

No host is imported here: a port makes the variables, and reads and writes them.
"""

from keras_accum import schedule, states


class OpenWindow:
    """The variables of the open window; see `window` for their meaning.

    named: all of them, by their names in a state and in the order of files.
    """

    def __init__(self, port, options):
        self._port, self._options = port, options
        self.named, self._sums = {}, {}
        for name in port.window_order:
            self.add(name)
        # On every Keras, files have the version first, whatever was made first.
        self.named = {"state_format": self.named["state_format"], **self.named}

    def add(self, name):
        """Make one variable, or the sums of those variables of the model that have none."""
        port = self._port
        length = self._options.first_length or self._options.length_at(0)
        if name == "accumulator":
            self._add_sums()
        elif name == states.MISSING:
            shape = (len(port.variables) + 1,)
            self.named[name] = port.add_counter(name, 0, shape)
        elif name != states.WEIGHT:
            first = {"state_format": states.FORMAT, "window_length": length, "accum_iters": length}
            self.named[name] = port.add_counter(name, first.get(name, 0))
        elif self._options.weighs:
            with port.sum_scope():
                self.named[name] = port.add_scalar(name, 0)

    def _add_sums(self):
        port = self._port
        with port.sum_scope():
            for variable in port.variables:
                if port.key(variable) not in self._sums:
                    self._sums[port.key(variable)] = port.add_sum(variable)
        for index, variable in enumerate(port.variables):
            self.named[f"accumulator.{index}"] = self.sum_of(variable)

    def sum_of(self, variable):
        """Return the gradient sum of a variable of the model."""
        return self._sums[self._port.key(variable)]

    @property
    def counters(self):
        return {name: self.named[name] for name in states.WINDOW}

    @property
    def weight(self):
        return self.named.get(states.WEIGHT)

    @property
    def missing(self):
        """The counts of missing gradients, None before a port needs them."""
        return self.named.get(states.MISSING)

    def read(self):
        """Return position, length and next length of the window, as values of a train step."""
        port = self._port
        position, length, next_length = map(port.count_of, self.counters.values())
        if self._options.is_scheduled:
            updates = port.count_of(port.updates)
            next_length = schedule.length_in_step(
                self._options.accum_iters, port.counts_with, updates, port.cast
            )
        return [position, length, next_length]

    def after(self, step):
        """Return the values of counters and weight after a step, by name."""
        values = {"window_position": step.position, "window_length": step.length}
        if self._options.is_scheduled:
            values["accum_iters"] = step.length
        if "unapplied" in self.named:
            values["unapplied"] = 0
        if step.missing is not None:
            values[states.MISSING] = step.missing
        if self.weight is not None:
            hold = self._port.cast(1 - step.switch, step.divisor.dtype)
            values[states.WEIGHT] = step.divisor * hold
        return values
