"""The order of the variables of a legacy optimizer, which meets them in any order and in parts."""

import numpy as np
import tensorflow as tf

from keras_accum import states
from keras_accum.states import StateError
from keras_accum.tf_keras.state import StatePort
from keras_accum.warn import warn


class Numbering(StatePort):
    """Numbers the variables as the model does.

    is_numbered: True if the order of the variables here is known to be the model's order.
    has_traced: True if a train step was traced with these variables.
    """

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self.is_numbered, self.has_traced = True, False

    def check_order(self):
        state = self.accumulation.state
        if not self.is_numbered:
            reason = "its variables came in parts, so their order in the model isn't known"
        elif not state.is_built and not state.waiting and self._has_deferred:
            reason = "a checkpoint will restore its slots when the variables exist"
        else:
            return
        raise StateError(
            f"{type(self.optimizer).__name__} can't be read, written or saved as a whole yet: "
            f"{reason}. Call `optimizer.build(model.trainable_variables)` first."
        )

    @property
    def _has_deferred(self):
        """True if the counters show earlier steps whose slots aren't created yet."""
        updates, position = self.accumulation.progress()
        names = self.names_for([None])
        return bool(updates or position) and any(states.index_of(n) is not None for n in names)

    def number(self, var_list):
        """Number these variables in the order of the newest list that has new variables.

        A layer that is unfrozen later thus gets its place in the model. Graphs refer to variables
        by their numbers, so only `build` changes the order of known variables.
        """
        found = {variable.ref(): variable for variable in [*self.variables, *var_list]}
        old = [variable.ref() for variable in self.variables]
        new = list(dict.fromkeys(variable.ref() for variable in var_list))
        if len(found) == len(old):
            self.is_numbered = self.is_numbered or new == old
            return
        if old and self.accumulation.options.accumulates:
            self._warn_of_steps_without([found[r] for r in new if r not in set(old)])
        order, is_certain = states.merged(old, new)
        self._reorder([found[reference] for reference in order])
        self.is_numbered = is_certain and (self.is_numbered or len(new) == len(found))

    def number_as(self, var_list):
        """Put all variables into this order, if their order isn't known yet."""
        window = self.accumulation.window
        if self.is_numbered or len(var_list) != len(self.variables):
            return
        if self.has_traced and window is not None and window.missing is not None:
            raise ValueError(
                "`build` after train steps were traced that know the variables in another "
                "order: call `build` before the first step, with all trainable variables "
                "of the model."
            )
        self._reorder(var_list)
        self.is_numbered = True

    def _reorder(self, variables):
        """Put the variables into this order, with counts of missing gradients for all of them."""
        window = self.accumulation.window
        old, self.variables = self.variables, variables
        if window is None:
            return
        window.add("accumulator")
        if window.missing is not None:
            self._recount_missing_gradients(window, old)

    def _warn_of_steps_without(self, variables):
        # The warning may be needless: TensorFlow keeps graphs alive, so it isn't known whether the
        # traced step is still in use.
        if self.has_traced:
            warn(
                f"{self.optimizer._name} has met new variables ({variables[0].name}, ...) after a "
                "train step was traced without them. That train step can't update the new "
                "variables: at the end of a window, their gradients would be left over. If you "
                "have compiled the model of that train step again since, ignore this warning. "
                "Otherwise call `optimizer.build(all_variables)` before the first step.",
            )

    def _recount_missing_gradients(self, window, known):
        """Replace the counts by counts for all variables; the `known` variables keep theirs."""
        optimizer, old = self.optimizer, window.named.pop(states.MISSING)
        optimizer._weights = [variable for variable in optimizer._weights if variable is not old]
        window.add(states.MISSING)
        if tf.executing_eagerly():
            *counts, number = self.read(old)
            updates, position = self.accumulation.progress()
            new = np.full(len(self.variables) + 1, position if number == updates else 0)
            new[-1] = number
            order = [variable.ref() for variable in self.variables]
            for variable, count in zip(known, counts):
                new[order.index(variable.ref())] = count
            self.write(window.missing, new)
