"""The stock optimizers of this Keras, and the accumulating class for each."""

from keras_accum import family, names, ranges
from keras_accum.tf_keras import new_style
from keras_accum.tf_keras.library import IMPORT_KERAS, StockOptimizer, keras, legacy
from keras_accum.tf_keras.optimizer import AccumulatingOptimizer

# Both are the same class up to TensorFlow 2.10.
_KINDS = (legacy.Optimizer, StockOptimizer)

_WRAPPERS = tuple(
    kind
    for kind in keras.mixed_precision.LossScaleOptimizer.__mro__
    if kind.__name__.endswith("LossScaleOptimizer")
)

_made = {}


def accumulating(optimizer_class):
    """Return a subclass of an optimizer class that makes one update per window of micro-batches.

    An update runs the code of `optimizer_class` on the average gradient of a window. The returned
    class takes the arguments of `optimizer_class` in their order, plus the keyword arguments of all
    classes of this package: `accum_iters`, `reduction`, `skip_nonfinite`, `skip_norm`,
    `window_transforms`, `gate`, `all_reduce`, `lr` and `decay`; see `AdamAccumulate`. State, files,
    callbacks and strategies work as with all other classes of this package.

    Args:
        optimizer_class: A class of optimizers: a class of this Keras, legacy or not, or your own
            subclass of its `Optimizer`. The optimizers may keep only slots and scalars.

    Returns:
        A subclass of `optimizer_class`, `<name>Accumulate`, registered for loading. The same
        `optimizer_class` gives the same class. Call `accumulating` before you load a model that was
        saved with such an optimizer.

    Raises:
        TypeError: If `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers wrap other optimizers (LossScaleOptimizer), if it overrides methods that
            run on every micro-batch, or if it has an argument or a member with the name of one of
            this package's.

    Example:

    >>> {import_keras}
    >>> from keras_accum.tf_keras import accumulating
    >>> NadamAccumulate = accumulating({legacy}.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
    family.check_stock_class(optimizer_class, _KINDS, _WRAPPERS)
    if optimizer_class not in _made:
        make = _make if issubclass(optimizer_class, legacy.Optimizer) else new_style.make
        _made[optimizer_class] = make(optimizer_class, (accumulating, (optimizer_class,)))
    return _made[optimizer_class]


_LEGACY = "keras.optimizers.legacy" if legacy is not keras.optimizers else "keras.optimizers"

accumulating.__module__ = "keras_accum.tf_keras"
accumulating.__doc__ = accumulating.__doc__.format(import_keras=IMPORT_KERAS, legacy=_LEGACY)

# Methods that run on every micro-batch, not only in an update.
_BEFORE_THE_GATE = (
    "apply_gradients",
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
    "_distributed_apply",
)


def _make(stock, made_by):
    family.check_members(AccumulatingOptimizer, stock)
    _check_methods(stock)
    members = {"__module__": __name__, "__qualname__": f"{stock.__name__}Accumulate"}
    if ranges.is_of_keras(stock):
        members["__module__"], package = "keras_accum.tf_keras", "keras_accum"
    else:
        package = stock.__module__
    members["_made_by"] = made_by
    made = type(f"{stock.__name__}Accumulate", (AccumulatingOptimizer, stock), members)
    return keras.utils.register_keras_serializable(package=package)(made)


def _check_methods(stock):
    methods = [n for n in _BEFORE_THE_GATE if getattr(stock, n) is not getattr(legacy.Optimizer, n)]
    if methods:
        raise TypeError(
            f"{stock.__name__} has methods of its own that run on every micro-batch: "
            f"{', '.join(methods)}. The whole update must be in `_prepare`, `_prepare_local` and "
            "`_resource_apply_dense`."
        )


def _make_amsgrad():
    members = {"__module__": "keras_accum.tf_keras", "fixed": {"amsgrad": True}}
    made = type("AMSGradAccumulate", (AccumulatingOptimizer, legacy.Adam), members)
    return keras.utils.register_keras_serializable(package="keras_accum")(made)


def ready():
    """Return {name: class} of this Keras's optimizers; of two with one name, the legacy one."""
    found = {"AMSGradAccumulate": _make_amsgrad()}
    for name in names.OPTIMIZERS:
        stock = getattr(legacy, name, None) or getattr(keras.optimizers, name, None)
        if isinstance(stock, type) and issubclass(stock, _KINDS):
            found[f"{name}Accumulate"] = accumulating(stock)
    return found
