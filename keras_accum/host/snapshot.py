"""Values to put back: those of variables, and of random generators. No Keras is imported here."""

import random

import numpy as np


class Snapshot:
    """What to put back.

    functions: put back something each, as those of `remember_generators`.
    variables: whose present values are put back.
    read: returns a variable's value, which later writes don't change.
    write: gives a variable a value.
    """

    def __init__(self, functions, variables=(), read=None, write=None):
        self._functions, self._write = functions, write
        self._values = [(variable, read(variable)) for variable in variables]

    def put_back(self):
        for variable, value in self._values:
            self._write(variable, value)
        for function in self._functions:
            function()


def remember_generators():
    """Return functions that put back the present states of Python's and NumPy's generators."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    return [lambda: random.setstate(of_python), lambda: np.random.set_state(of_numpy)]
