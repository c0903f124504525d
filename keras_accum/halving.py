"""`MicroBatches("auto")`: a batch that memory is too small for is taken again, in smaller slices.

No host is imported here.
"""

import contextlib

_IN_THE_UPDATE = (
    'MicroBatches("auto"): memory ran out when the optimizer had begun to update the weights. Some '
    "of them may have their new values, so this batch can't be taken again, and smaller slices "
    "wouldn't need less memory there. Go on from a file, with an optimizer that has less state."
)


class Halving:
    """A train function that takes a batch again, in slices of half the size, if memory runs out.

    `step` is the model's train step in slices, and `make` returns a train function of the model.
    """

    def __init__(self, step, make):
        self._step, self._make = step, make
        self._function = None

    def __call__(self, *arguments):
        step = self._step
        *state, source = arguments
        batch = next(iter(source))
        rows = step.rows_of(batch)
        if self._function is None:
            step.prepare(batch)
        before = step.kept(*state)
        first = step.size
        while True:
            self._trace_if_new(state)
            try:
                result = self._function(*state, batch)
                break
            except Exception as error:
                if not step.is_out_of_memory(error):
                    raise
                if step.has_begun_to_update(state):
                    raise RuntimeError(_IN_THE_UPDATE) from error
                step.put_back(before, *state)
                if not step.halve(rows):
                    raise
        step.end_step()
        if step.size != first:
            print(f'MicroBatches("auto"): slices of {step.size} samples fit into memory.')
        return result

    def _trace_if_new(self, state):
        if self._function is None or self._size != self._step.size:
            self._function, self._size = None, self._step.size  # first, so that memory is freed
            self._function = self._step.of_batches(self._make, *state)


class Searches:
    """What a train step in slices has for `MicroBatches("auto")`. A backend knows its errors."""

    # True for "auto": `size` is None, or the largest size that was found to fit.
    searches = False
    # The method of an optimizer by which a train step updates weights.
    _update = "apply_gradients"
    # How many updates have begun, and how many steps have ended.
    _begun = _steps = 0

    def rows_of(self, batch):
        """Return the number of samples of a batch."""
        return self.rows([array for array in self.flatten(batch) if array is not None])

    def is_one_slice(self, rows):
        """Whether the whole batch is one slice. `rows` is None if it isn't known yet."""
        return self.size is None or (rows is not None and rows <= self.size)

    def halve(self, rows):
        """Halve the size of slices for a batch. Return False if a slice has one sample already."""
        size = rows if self.size is None else min(rows, self.size)
        self.size = (size + 1) // 2
        return size > 1

    def prepare(self, batch):
        """Make all variables of the model."""

    def kept(self, *state):
        """Return what `put_back` needs: the values of the variables that a step may change."""
        return [self.copy(variable) for variable in self.state()]

    def put_back(self, kept, *state):
        for variable, value in zip(self.state(), kept):
            variable.assign(value)

    def marked(self):
        """A scope in which the optimizer marks that it begins to update weights."""
        optimizer = self.model.optimizer
        own = getattr(optimizer, self._update)

        def update(gradients, *arguments, **keywords):
            with self.mark(gradients) as gradients:
                return own(gradients, *arguments, **keywords)

        if not self.searches:
            return contextlib.nullcontext()
        return attribute(optimizer, self._update, update)

    @contextlib.contextmanager
    def mark(self, gradients):
        """A scope of an update, after a mark that it begins, after the gradients are computed."""
        self._begun += 1
        yield gradients

    def has_begun_to_update(self, state):
        return int(self._begun) != self._steps

    def end_step(self):
        self._steps += 1

    def of_batches(self, make, *state):
        """Return a function of a batch; a train function takes an iterator or a list."""
        function = make()
        return lambda batch: function([batch])


@contextlib.contextmanager
def attribute(owner, name, value):
    """A scope in which an object has this attribute."""
    attributes = vars(owner)
    kept = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(kept)
