"""Changes that may make a window equal, in the order in which to recommend them."""

from typing import Any, Dict, NamedTuple, Optional, Sequence

_REDUCTIONS = "auto", "mean", "sum"


class Remedy(NamedTuple):
    """A change to the user's settings.

    text: its name, after "It is equal with".
    options: new options for the optimizers that accumulate or drop, such as their reduction.
    callbacks: to use in place of MicroBatchWeights; None leaves all callbacks as they are.
    in_slices: True to train stock optimizers on whole batches, with these callbacks alone.
    """

    text: str
    options: Dict[str, Any]
    callbacks: Optional[Sequence[Any]] = ()
    in_slices: bool = False


def list_remedies(package, size, drops):
    """Return the Remedies for a window of this model.

    package: the module with the public names for this Keras.
    size: the size for micro-batches and slices.
    drops: True if an optimizer may drop micro-batches.
    """
    remedies = []
    if drops:
        options = {"skip_norm": None, "skip_nonfinite": False}
        remedies.append(Remedy("skip_norm=None and skip_nonfinite=False", options, None))
    remedies += [Remedy(f"reduction={name!r}", {"reduction": name}) for name in _REDUCTIONS]
    if hasattr(package, "MicroBatches"):
        text = f"MicroBatches({size}), the stock optimizer and whole batches"
        remedies.append(Remedy(text, {}, [package.MicroBatches(size)], True))
    return remedies
