"""What a train step says of its micro-batch beforehand. No host is imported here."""


class Said:
    """What was said and what no micro-batch has taken yet.

    outside: the message of the error if it was said outside of the traced function that takes it,
        with a place for the value.
    """

    def __init__(self, accumulation, outside):
        self._accumulation, self._outside = accumulation, outside
        # Each value with True if a traced function said it. By replica, because `tf.distribute`
        # runs the step of each replica in turn.
        self._values = {}
        # True after something was said. Who wants to know of a single step, sets it to False.
        self.is_used = False

    def __bool__(self):
        return bool(self._values)

    def say(self, value):
        """Keep a value, a number or a tensor, for the next micro-batch."""
        port, self.is_used = self._accumulation.port, True
        self._values[port.replica()] = port.without_gradient(value), port.is_traced()

    def take(self):
        """Return the value for the micro-batch that is run or traced, None if there is none."""
        port = self._accumulation.port
        value, is_of_trace = self._values.pop(port.replica(), (None, True))
        if port.is_traced() and not is_of_trace:
            raise ValueError(self._outside.format(value))
        return value

    def forget(self):
        """Drop what no micro-batch took, as what a validation step has said."""
        self._values.clear()
