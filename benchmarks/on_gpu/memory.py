"""The peak of a GPU's memory in `fit`, of one contender in a process."""

import keras
from micro_batch import fits

from . import fit, networks


def measure(options, name):
    """Return the peak in MB (2 ** 20 bytes), or None without a GPU."""
    make, count = networks.of(options)[networks.TRANSFORMER], 2 * networks.WINDOW
    run = fits(keras, make, fit.find()[name], networks.WINDOW, micro_batches=count)
    run()
    if keras.backend.backend() == "torch":
        return _peak_of_torch(run)
    import jax

    stats = jax.devices()[0].memory_stats()
    return stats and round(stats["peak_bytes_in_use"] / 2**20)


def _peak_of_torch(run):
    import torch

    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()  # the first call has chosen its algorithms
    run()
    return round(torch.cuda.max_memory_allocated() / 2**20)
