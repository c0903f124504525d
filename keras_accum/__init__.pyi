"""Gradient accumulation for Keras: the weights of a large batch in the memory of a small one.

`from keras_accum import AdamAccumulate` takes the class for the Keras that is in use; importing
`keras_accum` itself imports no framework. `keras_accum.keras3`, `keras_accum.tf_keras` and
`keras_accum.keras2` say outright which Keras is meant.
"""

# Made by `python docs/write_stubs.py` from keras_accum/names.py. Don't edit this file.

# `keras_accum` has the names of the Keras in use. An editor doesn't know which Keras that is, so
# these are the names of Keras 3. For another Keras, import from its own module.
from keras_accum.keras3 import (
    AccumulationMonitor,
    AdadeltaAccumulate,
    AdafactorAccumulate,
    AdagradAccumulate,
    AdamAccumulate,
    AdamaxAccumulate,
    AdamWAccumulate,
    AMSGradAccumulate,
    ApplyPartialWindow,
    FtrlAccumulate,
    LambAccumulate,
    LionAccumulate,
    MicroBatchWeights,
    MuonAccumulate,
    NadamAccumulate,
    PythonGate,
    RMSpropAccumulate,
    ScheduleFreeAdamWAccumulate,
    SGDAccumulate,
    StateError,
    accumulating,
)

__version__: str
__all__ = [
    "AMSGradAccumulate",
    "AccumulationMonitor",
    "AdadeltaAccumulate",
    "AdafactorAccumulate",
    "AdagradAccumulate",
    "AdamAccumulate",
    "AdamWAccumulate",
    "AdamaxAccumulate",
    "ApplyPartialWindow",
    "FtrlAccumulate",
    "LambAccumulate",
    "LionAccumulate",
    "MicroBatchWeights",
    "MuonAccumulate",
    "NadamAccumulate",
    "PythonGate",
    "RMSpropAccumulate",
    "SGDAccumulate",
    "ScheduleFreeAdamWAccumulate",
    "StateError",
    "accumulating",
]
