"""Each private member of a backend is checked by name, and an error names it."""

import importlib
import types

import hosts
import pytest
from hosts import keras
from training import dense_model

pytestmark = pytest.mark.skipif(hosts.IS_KERAS2, reason="TensorFlow 1 doesn't change any more")


def is_named(name, package):
    return pytest.raises(
        ImportError, match=f"^{package} .* has no `{name}` in .*a newer keras_accum"
    )


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="of Keras 3")
def test_of_a_variable():
    optimizer = hosts.ours("Adam", accum_iters=2)
    del optimizer._iterations._value
    with is_named("_value", "keras"):
        optimizer.build([hosts.variable([1.0], "w")])


@pytest.mark.skipif(not hosts.IS_TORCH, reason="of PyTorch")
@pytest.mark.parametrize("name", ["_foreach_norm", "_flatten_dense_tensors"])
def test_of_torch(name, monkeypatch):
    import torch

    from keras_accum.keras3.torch import check_torch

    check_torch()
    monkeypatch.delattr(torch if hasattr(torch, name) else torch._utils, name)
    with is_named(name, "torch"):
        check_torch()


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="of JAX")
@pytest.mark.parametrize("name", ["_trace", "parent_trace"])
def test_of_jax(name, monkeypatch):
    from keras_accum.keras3 import jax

    values = hosts.ours("Adam", accum_iters=2)._accumulation.values
    tracer = types.SimpleNamespace(**({} if name == "_trace" else {"_trace": object()}))
    monkeypatch.setattr(jax.jax.core, "Tracer", types.SimpleNamespace)
    monkeypatch.setattr(hosts.keras.ops, "zeros", lambda shape: tracer)
    with is_named(name, "jax"):
        values.traces()


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="of TensorFlow")
def test_of_tensorflow(monkeypatch):
    from keras_accum.tensorflow import values

    tf = hosts.tf
    replicas = hosts.ours("Adam", accum_iters=2)._accumulation.replicas
    module, name = values.IN_XLA
    monkeypatch.delattr(importlib.import_module(module), name)
    monkeypatch.setattr(values, "OF_GRAPH", ["_gone"])
    monkeypatch.setattr(tf.__internal__.distribute, "interim", types.ModuleType("interim"))

    @tf.function
    def names():
        with is_named("GraphOrParentsInXlaContext", "tensorflow"):
            values.is_compiled_by_xla()
        with is_named("_gone", "tensorflow"):
            values.list_graphs()
        with is_named("maybe_merge_call", "tensorflow"):
            replicas.across(tf.no_op)

    names()


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="of Keras 3")
@pytest.mark.parametrize(
    "owner, name",
    {"model": "_flatten_layers", "loss": "_flat_losses", "metric": "_fn", "mask": "get_keras_mask"}
    .items(),
)  # fmt: skip
def test_of_keras(owner, name, monkeypatch):
    """Of a model in slices: without a check, something might be skipped in silence."""
    from keras_accum.keras3 import masks
    from keras_accum.keras3.micro_batches import private_members

    class Without:
        def __init__(self, of):
            self.of = of

        def __getattr__(self, asked):
            if asked == name:
                raise AttributeError(asked)
            return getattr(self.of, asked)

    model, metric = dense_model(), keras.metrics.MeanMetricWrapper(keras.ops.square)
    model.compile("sgd", "mse")
    if owner == "loss":
        monkeypatch.setattr(model, "_compile_loss", Without(model._compile_loss))
    elif owner == "mask":
        monkeypatch.setattr(masks, "_masking", Without(masks._masking))
    elif owner == "metric":
        del metric._fn
    else:
        model = Without(model)
    with is_named(name, "keras"):
        private_members.check_members_of(model)
        private_members.get_function(metric)
