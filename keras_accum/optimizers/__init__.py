"""The accumulating optimizers for your Keras, which `from keras_accum import ...` also gives you.

A package, and not a module, because only for packages can a failed import say what to use.
"""

from typing import TYPE_CHECKING

from keras_accum import WHERE, offer

if TYPE_CHECKING:
    from keras_accum.keras3 import AccumulationSchedule as AccumulationSchedule
    from keras_accum.keras3.optimizers import *  # noqa: F403
else:
    _NAMES = *(n for n in WHERE if n.endswith("Accumulate")), "AccumulationSchedule", "accumulating"
    __getattr__, __dir__ = offer(__name__, _NAMES)
