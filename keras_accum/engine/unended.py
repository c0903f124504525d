"""A training that hasn't ended. No Keras is imported here."""

import sys
import weakref


class Unended:
    """A training that hasn't ended: it runs, or an error or Ctrl-C has stopped it.

    continues: True once somebody has asked where it stopped, or has loaded a state since: then the
        next training continues its windows.
    """

    continues = False

    def __init__(self, callbacks, engines):
        """`callbacks` is its CallbackList, and `engines` are those of its optimizers."""
        self._starts = [(engine, engine.read_progress()) for engine in engines]
        self._callbacks, self._handled = weakref.ref(callbacks), id(sys.exc_info()[1])

    def discards(self, engine):
        """Return True if the next training discards the window, unless this one began none."""
        progress = engine.read_progress()
        is_as_before = progress[1] > 0 and (engine, progress) in self._starts
        return not (self.continues or is_as_before)

    def has_ended(self, callbacks):
        """Return True at the end of these callbacks' training, unless an error has stopped it.

        Up to Keras 3.14, JAX calls `on_train_end` after an error, too.
        """
        return self._callbacks() is callbacks and id(sys.exc_info()[1]) == self._handled

    def is_running(self):
        """Return True in a callback of this training."""
        callbacks, frame = self._callbacks(), sys._getframe()
        while callbacks is not None and frame is not None:
            if frame.f_locals.get("self") is callbacks:
                return True
            frame = frame.f_back
        return False
