"""The stock optimizers of this Keras, and the accumulating class for each."""

from keras_accum import docs, family, names, ranges
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

# Methods that run on every micro-batch, not only in an update.
_BEFORE_THE_GATE = (
    "apply_gradients",
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
    "_distributed_apply",
)


def _check(optimizer_class):
    family.check_stock_class(optimizer_class, _KINDS, _WRAPPERS)
    return optimizer_class


def _make(stock, made_by=None, **more):
    is_legacy, suffix = issubclass(stock, legacy.Optimizer), ""
    if is_legacy:
        base = AccumulatingOptimizer
        _check_methods(stock)
    else:
        base = new_style.base_of(stock)
        suffix = ".new_style" * ranges.is_of_keras(stock)  # keras_accum>AdamAccumulate is legacy

    def register(cls, package):
        return keras.utils.register_keras_serializable(f"{package}{suffix}")(cls)

    return family.make(base, stock, register, "keras_accum.tf_keras", made_by, **more)


def _check_methods(stock):
    methods = [n for n in _BEFORE_THE_GATE if getattr(stock, n) is not getattr(legacy.Optimizer, n)]
    if methods:
        raise TypeError(
            f"{stock.__name__} has methods of its own that run on every micro-batch: "
            f"{', '.join(methods)}. The whole update must be in `_prepare`, `_prepare_local` and "
            "`_resource_apply_dense`."
        )


_LEGACY = "keras.optimizers.legacy" if legacy is not keras.optimizers else "keras.optimizers"

accumulating = family.accumulating(
    "keras_accum.tf_keras",
    docs.of_accumulating("tf_keras", IMPORT_KERAS, "Nadam", _LEGACY),
    _check,
    _make,
)


def ready():
    """Return {name: class} of this Keras's optimizers; of two with one name, the legacy one."""
    found = {
        "AMSGradAccumulate": _make(legacy.Adam, name="AMSGradAccumulate", fixed={"amsgrad": True})
    }
    for name in names.OPTIMIZERS:
        stock = getattr(legacy, name, None) or getattr(keras.optimizers, name, None)
        if isinstance(stock, type) and issubclass(stock, _KINDS):
            found[f"{name}Accumulate"] = accumulating(stock)
    return found
