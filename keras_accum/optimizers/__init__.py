"""The accumulating optimizers for your Keras, as by `from keras_accum import ...`.

A package, and not a module: only for packages can a failed import name the remedy.
"""

from typing import TYPE_CHECKING

from keras_accum import WHERE, offer

if TYPE_CHECKING:
    from keras_accum.keras3 import AccumulationSchedule as AccumulationSchedule
    from keras_accum.keras3.optimizers import *  # noqa: F403
else:
    _NAMES = *(n for n in WHERE if n.endswith("Accumulate")), "AccumulationSchedule", "accumulating"
    __getattr__, __dir__ = offer(__name__, _NAMES)
