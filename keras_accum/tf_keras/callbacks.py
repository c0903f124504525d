"""Callbacks for tf_keras."""

from keras_accum.callbacks import (
    accumulation_monitor,
    apply_partial_window,
    micro_batch_weights,
    on_updates,
)
from keras_accum.tf_keras.host import HOST

__all__ = ["ApplyPartialWindow", "AccumulationMonitor", "MicroBatchWeights", "OnUpdates"]

AccumulationMonitor = HOST.callback(accumulation_monitor.AccumulationMonitor)
ApplyPartialWindow = HOST.callback(apply_partial_window.ApplyPartialWindow)
MicroBatchWeights = HOST.callback(micro_batch_weights.MicroBatchWeights)
OnUpdates = HOST.callback(on_updates.OnUpdates)
