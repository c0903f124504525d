"""What the rest of the package knows of Keras 3."""

import keras
import numpy as np

from keras_accum.host import check_members, parse_version
from keras_accum.host.description import Host
from keras_accum.host.layers import normalizes_batches, torch_modules
from keras_accum.keras3.masks import get_mask, set_mask

IS_TORCH = keras.backend.backend() == "torch"
# Keras wraps the model in DistributedDataParallel if `torch.distributed` is initialized.
WRAPS_MODEL = IS_TORCH and parse_version(keras.__version__) >= (3, 16)


def read(variable):
    """Return a variable or tensor as a NumPy array."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    if IS_TORCH and keras.ops.is_tensor(value):
        value = value.detach().cpu()
        if keras.backend.standardize_dtype(value.dtype) == "bfloat16":
            return np.asarray(value.float()).astype("bfloat16")
    if keras.backend.backend() == "tensorflow" and keras.ops.is_tensor(value):
        value = value.numpy()  # also for the copies of a variable on replicas
    # Not `np.array`, as Keras converts: NumPy 2 warns of tensors that don't copy themselves.
    return np.asarray(value).copy()


def _list_penalized(model):
    return [w for w in model.trainable_weights if w.regularizer is not None]


class _Host(Host):
    """Keras 3, on any backend."""

    name, keras, ops = "keras3", keras, keras.ops
    is_traced, closes_in_steps = not IS_TORCH, True
    get_mask, set_mask = staticmethod(get_mask), staticmethod(set_mask)
    flatten, read = staticmethod(keras.tree.flatten), staticmethod(read)

    def find_losses(self, model):
        def replace(item, function):
            return item._replace(loss=function(item.loss))

        check_members(keras, model, ["_compile_loss", "_losses_override"])
        return model._compile_loss, "_flat_losses", replace

    def list_loss_weights(self, container):
        for item in container._flat_losses:
            check_members(keras, item, ["loss_weights"])
        return [item.loss_weights for item in container._flat_losses]

    def loss_metrics(self, model):
        means = [m for m in model.metrics if m.name == "loss" and type(m) is keras.metrics.Mean]
        container = self.find_losses(model)[0]
        return [*means[:1], *(() if container is None else container.metrics)]

    def find_process_group(self, model):
        if WRAPS_MODEL:
            check_members(keras, model, ["ddp_model"])
        wrapper = getattr(model, "ddp_model", None)
        return None if wrapper is None else wrapper.process_group

    def make_sum_loss(self, dtype):
        return keras.losses.Loss(reduction="sum", dtype=dtype)

    def list_added_losses(self, model):
        if model._losses_override or type(model).losses is not keras.Model.losses:
            losses = model.losses  # penalties on weights come last
            return losses[: len(losses) - len(_list_penalized(model))]
        # Keras would compute all penalties for `model.losses`.
        return [loss for layer in self.list_layers(model) for loss in layer._get_own_losses()]

    def has_penalties(self, model):
        return bool(_list_penalized(model))

    def write(self, variable, value):
        if IS_TORCH and keras.ops.is_tensor(variable):
            variable.data.copy_(keras.ops.convert_to_tensor(value))
        else:
            variable.assign(value)

    def list_buffers(self, model):
        """Return the tensors that modules of PyTorch in a model keep: Keras doesn't know them."""
        modules = sum(map(torch_modules, self.list_layers(model)), [])
        return [buffer for module in modules for buffer in module.buffers(recurse=False)]

    def list_kept(self, layer):
        kept = super().list_kept(layer)
        for module in torch_modules(layer):
            kept += module.buffers(recurse=False)
            if normalizes_batches(module) and module.running_mean is None:
                kept.append(np.nan)  # never equal to itself: it always uses the batch's moments
        return kept

    def hides_train_steps(self):
        # Keras 3.10 has no NNX mode.
        return getattr(keras.config, "is_nnx_enabled", lambda: False)()


HOST = _Host()
# Called in `fit` and in comparisons.
check_members(keras, keras.Model, ["_flatten_layers", "_get_own_losses", "losses"])
check_members(keras, keras.losses.MeanSquaredError(), ["_fn_kwargs"])  # has the axis of a loss
