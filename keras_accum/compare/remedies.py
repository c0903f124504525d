"""What may make a window equal: a list of changes to try, the first to recommend first."""

from typing import Any, Dict, NamedTuple, Optional, Sequence

_REDUCTIONS = "auto", "mean", "sum"


class Remedy(NamedTuple):
    """A change of what the user has.

    text: what it is called, after "It is equal with".
    options: of the optimizers that accumulate or drop, such as their reduction.
    callbacks: in place of MicroBatchWeights; None leaves all callbacks as they are.
    in_slices: True for stock optimizers, whole batches and no other callbacks.
    """

    text: str
    options: Dict[str, Any]
    callbacks: Optional[Sequence[Any]] = ()
    in_slices: bool = False


def list_remedies(package, size, drops):
    """Return the Remedies for a window of this model.

    package: the module with the public names for this Keras.
    size: of micro-batches and slices.
    drops: True if an optimizer may drop micro-batches.
    """
    found = []
    if drops:
        options = {"skip_norm": None, "skip_nonfinite": False}
        found.append(Remedy("skip_norm=None and skip_nonfinite=False", options, None))
    found += [Remedy(f"reduction={name!r}", {"reduction": name}) for name in _REDUCTIONS]
    if hasattr(package, "MicroBatches"):
        text = f"MicroBatches({size}), the stock optimizer and whole batches"
        found.append(Remedy(text, {}, [package.MicroBatches(size)], True))
    return found
