"""What a type checker must find no error in, but for the marked one."""
# pyright: reportUnnecessaryTypeIgnoreComment=error

from keras_accum.keras3 import AdamAccumulate, MicroBatches

optimizer = AdamAccumulate(1e-3, accum_iters=5, beta_1=0.8)
optimizer.apply_partial_window(5)  # pyright: ignore[reportCallIssue]
callbacks = [MicroBatches(10)]
