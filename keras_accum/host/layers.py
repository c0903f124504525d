"""Layers that train on the moments of a batch, in any Keras."""

from keras_accum.host import is_named

_NORMALIZING = "BatchNormalization", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"


def torch_modules(layer):
    """Return the modules of PyTorch that a layer wraps: Keras doesn't know their state."""
    return list(layer.module.modules()) if is_named(layer, "TorchModuleWrapper") else []


def normalizes_batches(layer):
    """Return True for batch normalization, in any Keras or in a module of PyTorch."""
    modules = (layer, *torch_modules(layer))
    names = [cls.__name__ for module in modules for cls in type(module).__mro__]
    return any(name.startswith(_NORMALIZING) for name in names)


def trains_normalization(layer):
    """Return True if a layer will normalize by the moments of a batch in training."""
    modules = torch_modules(layer)
    if not modules:
        return layer.trainable and normalizes_batches(layer)
    layer.train()  # as its call does, whether it is trainable or not
    return any(normalizes_batches(module) and module.training for module in modules)
