"""The accumulating optimizers for your Keras, the same as in `keras_accum`.

A package, so that a failed import of a submodule can name the remedy.
"""

from typing import TYPE_CHECKING

from keras_accum import WHERE, offer

if TYPE_CHECKING:
    from keras_accum.keras3 import AccumulationSchedule as AccumulationSchedule
    from keras_accum.keras3.optimizers import *  # noqa: F403
else:
    _NAMES = *(n for n in WHERE if n.endswith("Accumulate")), "AccumulationSchedule", "accumulating"
    __getattr__, __dir__ = offer(__name__, _NAMES)
