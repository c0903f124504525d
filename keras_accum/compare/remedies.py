"""How to train a window, and changes that may make it equal."""

import dataclasses

from keras_accum.compare.samples import list_slice_sizes
from keras_accum.host import is_named
from keras_accum.options import Options


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train the window.

    option_sets: the Options of each optimizer.
    callbacks, batch_size: arguments of `fit`.
    """

    option_sets: list
    callbacks: list
    batch_size: int

    def change(self, callbacks, **options):
        """Return the settings with other options for the optimizers that accumulate or drop."""
        option_sets = [
            dataclasses.replace(old, **options) if old.accumulates or old.drops else old
            for old in self.option_sets
        ]
        return Settings(option_sets, callbacks, self.batch_size)


def list_remedies(settings, package, samples):
    """Return changed Settings by their text after "It is equal with", the first to take first.

    package: the module with the public names for this Keras.
    samples: the number of samples in the window.
    """
    callbacks = settings.callbacks
    by_default = [each for each in callbacks if not is_named(each, "MicroBatchWeights")]
    remedies = {
        "skip_norm=None and skip_nonfinite=False": settings.change(
            callbacks, skip_norm=None, skip_nonfinite=False
        )
    }
    for name in ("auto", "mean", "sum"):
        remedies[f"reduction={name!r}"] = settings.change(by_default, reduction=name)
    if hasattr(package, "MicroBatches"):
        size = min([settings.batch_size, *filter(None, list_slice_sizes(callbacks))])
        text = f"MicroBatches({size}), the stock optimizer and whole batches"
        stock = [Options() for _ in settings.option_sets]
        remedies[text] = Settings(stock, [package.MicroBatches(size)], samples)
    return {text: changed for text, changed in remedies.items() if changed != settings}
