"""What a type checker must find no error in."""

from keras_accum.keras3 import AdamAccumulate, MicroBatches

optimizer = AdamAccumulate(1e-3, accum_iters=5, beta_1=0.8)
optimizer.apply_partial_window()
updates: int = optimizer.completed_updates
callbacks = [MicroBatches(10)]
