"""Gradient accumulation for Keras: the weights of a large batch in the memory of a small one.

`from keras_accum import AdamAccumulate` imports the class for the Keras that is in use. `import
keras_accum` alone imports no framework. `keras_accum.keras3`, `keras_accum.tf_keras` and
`keras_accum.keras2` name the Keras explicitly.
"""

# Made by `python docs/write_stubs.py` from keras_accum/names.py. Don't edit this file.

# `keras_accum` has the names of the Keras in use. An editor doesn't know which Keras that is, so
# these are the names of Keras 3. For another Keras, import from its own module.
from keras_accum.keras3 import AccumulateByEpoch as AccumulateByEpoch
from keras_accum.keras3 import AccumulateInBackward as AccumulateInBackward
from keras_accum.keras3 import AccumulationMonitor as AccumulationMonitor
from keras_accum.keras3 import AccumulationSchedule as AccumulationSchedule
from keras_accum.keras3 import AdadeltaAccumulate as AdadeltaAccumulate
from keras_accum.keras3 import AdafactorAccumulate as AdafactorAccumulate
from keras_accum.keras3 import AdagradAccumulate as AdagradAccumulate
from keras_accum.keras3 import AdamAccumulate as AdamAccumulate
from keras_accum.keras3 import AdamaxAccumulate as AdamaxAccumulate
from keras_accum.keras3 import AdamWAccumulate as AdamWAccumulate
from keras_accum.keras3 import AMSGradAccumulate as AMSGradAccumulate
from keras_accum.keras3 import ApplyPartialWindow as ApplyPartialWindow
from keras_accum.keras3 import FtrlAccumulate as FtrlAccumulate
from keras_accum.keras3 import GrowWithNoiseScale as GrowWithNoiseScale
from keras_accum.keras3 import LambAccumulate as LambAccumulate
from keras_accum.keras3 import LionAccumulate as LionAccumulate
from keras_accum.keras3 import MicroBatches as MicroBatches
from keras_accum.keras3 import MicroBatchWeights as MicroBatchWeights
from keras_accum.keras3 import MuonAccumulate as MuonAccumulate
from keras_accum.keras3 import NadamAccumulate as NadamAccumulate
from keras_accum.keras3 import OnUpdates as OnUpdates
from keras_accum.keras3 import PythonGate as PythonGate
from keras_accum.keras3 import RMSpropAccumulate as RMSpropAccumulate
from keras_accum.keras3 import ScheduleFreeAdamWAccumulate as ScheduleFreeAdamWAccumulate
from keras_accum.keras3 import SGDAccumulate as SGDAccumulate
from keras_accum.keras3 import StateError as StateError
from keras_accum.keras3 import WindowBatchNormalization as WindowBatchNormalization
from keras_accum.keras3 import WindowStatistics as WindowStatistics
from keras_accum.keras3 import accumulating as accumulating
from keras_accum.keras3 import with_window_statistics as with_window_statistics

__version__: str
__all__ = [
    "AMSGradAccumulate",
    "AccumulateByEpoch",
    "AccumulateInBackward",
    "AccumulationMonitor",
    "AccumulationSchedule",
    "AdadeltaAccumulate",
    "AdafactorAccumulate",
    "AdagradAccumulate",
    "AdamAccumulate",
    "AdamWAccumulate",
    "AdamaxAccumulate",
    "ApplyPartialWindow",
    "FtrlAccumulate",
    "GrowWithNoiseScale",
    "LambAccumulate",
    "LionAccumulate",
    "MicroBatchWeights",
    "MicroBatches",
    "MuonAccumulate",
    "NadamAccumulate",
    "OnUpdates",
    "PythonGate",
    "RMSpropAccumulate",
    "SGDAccumulate",
    "ScheduleFreeAdamWAccumulate",
    "StateError",
    "WindowBatchNormalization",
    "WindowStatistics",
    "accumulating",
    "with_window_statistics",
]
