"""What a micro-batch compiles to on an H100 and a TPU v5e; see `__main__`."""

K = 5  # micro-batches in a window
