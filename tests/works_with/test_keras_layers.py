"""Packages of layers, losses, models and loaders for Keras 3."""

import contextlib

import hosts
import numpy as np
import pytest
import training
from against_stock import assert_equals_big_batch, stock
from hosts import keras
from training import BIG, EPOCHS, MICRO, SAMPLES, WINDOWS, compiled, data, dense_model, fit

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("float32")]

RANDOM = np.random.default_rng(7)
SERIES = RANDOM.normal(size=(SAMPLES, 6, 2)).astype("float32"), data()[1]
RELEVANCE = RANDOM.integers(0, 3, (SAMPLES, 4)).astype("float32")


@pytest.mark.row("keras-tcn", "`TCN` layers", "equal to the big batch")
def test_tcn():
    """The guess: equal, since its dropout is 0 and its normalization off by default."""
    from tcn import TCN

    def train(optimizer, batch_size):
        tcn = TCN(nb_filters=4, kernel_size=2, nb_stacks=1, dilations=(1, 2))
        layers = [tcn, keras.layers.Dense(2)]
        model = compiled(hosts.sequential((6, 2), layers), optimizer)
        fit(model, batch_size, SERIES)
        return model

    assert_equals_big_batch(train, atol=3e-6)


LOSSES = "ListMLELoss", "PairwiseHingeLoss", "PairwiseLogisticLoss", "PairwiseSoftZeroOneLoss"


@pytest.mark.row(
    "keras-rs",
    "`ListMLELoss` and the pairwise losses, whose lists are samples",
    "equal to the big batch",
)
@pytest.mark.parametrize("name", LOSSES)
def test_ranking(name):
    """The guess: equal."""
    import keras_rs

    def train(optimizer, batch_size):
        loss = getattr(keras_rs.losses, name)()
        model = hosts.sequential((3,), [keras.layers.Dense(4, "tanh"), keras.layers.Dense(4)])
        fit(compiled(model, optimizer, loss), batch_size, (data()[0], RELEVANCE))
        return model

    assert_equals_big_batch(train, atol=3e-6)


@pytest.mark.row(
    "keras-rs",
    "in-batch negatives with `RemoveAccidentalHits`, and `MicroBatches(2)`",
    "equal to the big batch; an accumulating optimizer isn't, as its negatives are the "
    "micro-batch's",
)
def test_in_batch_negatives():
    """The guess: equal."""
    import keras_rs

    def train(callbacks, batch_size):
        accidental = keras_rs.layers.RemoveAccidentalHits()

        def loss(items, rows):
            users, candidates = rows[:, :3], rows[:, 3:]
            logits = users @ keras.ops.transpose(candidates)
            labels = keras.ops.eye(len(rows))
            logits = accidental(logits, labels, items[:, 0])
            return keras.losses.categorical_crossentropy(labels, logits, from_logits=True)

        # Without a bias: that of the candidates has no gradient but rounding.
        out = keras.layers.Dense(6, use_bias=False)
        model = hosts.sequential((3,), [keras.layers.Dense(4, "tanh"), out])
        items = np.arange(SAMPLES).reshape(-1, 1) // 2 % 5
        fit(compiled(model, stock(), loss), batch_size, (data()[0], items), callbacks=callbacks)
        return model

    slices = lambda: [hosts.accum.MicroBatches(MICRO)]  # noqa: E731
    assert_equals_big_batch(train, optimizers=(list, slices), ours_at=BIG)


@pytest.mark.row("grain", "`DataLoader` and `MapDataset` given to `fit`", "equal to the big batch")
@pytest.mark.parametrize("kind", ["loader", "map"])
def test_grain(kind):
    """The guess: equal. The last batch is short: its window is divided by what it has."""
    import grain.python as grain

    pairs = [(x, y) for x, y in zip(*data())][: SAMPLES - 1]

    def batches(size):
        if kind == "map":
            return grain.MapDataset.source(pairs).batch(size)
        shards = grain.NoSharding()
        sampler = grain.IndexSampler(len(pairs), shards, shuffle=False, num_epochs=1, seed=0)
        return grain.DataLoader(
            data_source=pairs, sampler=sampler, operations=[grain.Batch(size)], worker_count=0
        )

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        model.fit(batches(batch_size), epochs=EPOCHS, shuffle=False, verbose=0)
        assert model.optimizer.iterations >= EPOCHS * WINDOWS  # the data doesn't run out early
        return model

    assert_equals_big_batch(train)


def import_bayesflow():
    """On PyTorch, the import ends gradients everywhere."""
    import bayesflow

    if hosts.IS_TORCH:
        import torch

        torch.set_grad_enabled(True)
    return bayesflow


@pytest.mark.row(
    "bayesflow",
    "`ContinuousApproximator` with a `CouplingFlow`",
    "equal to the big batch, with a warning: it has a `train_step` of its own",
)
def test_bayesflow():
    """The guess: equal without dropout, since its loss is a mean."""
    bayesflow = import_bayesflow()
    theta, x = data()[1], data()[0]

    def train(optimizer, batch_size):
        adapter = bayesflow.Adapter().rename("theta", "inference_variables")
        adapter = adapter.rename("x", "inference_conditions")
        flow = bayesflow.networks.CouplingFlow(
            depth=1, subnet_kwargs={"widths": (4,), "dropout": None}
        )
        model = bayesflow.ContinuousApproximator(
            inference_network=flow, adapter=adapter, standardize=None
        )
        arrays = {"theta": theta, "x": x}
        batches = bayesflow.OfflineDataset(arrays, batch_size, adapter, shuffle=False)
        model.compile(optimizer=optimizer)
        model.fit(dataset=batches, epochs=EPOCHS, shuffle=False, verbose=0)
        return model

    assert_equals_big_batch(train, atol=3e-6, says="own `train_step`")


@pytest.mark.skipif(hosts.IS_TORCH, reason="stock training fails there, too")
@pytest.mark.row(
    "hgq2",
    "`QDense` with trained widths",
    "trained weights equal to the big batch; kept ranges move in each micro-batch, with a warning",
)
def test_hgq():
    """The guess: equal but for the ranges that its quantizers keep."""
    from hgq.layers import QDense

    def train(optimizer, batch_size):
        model = hosts.sequential((3,), [QDense(4, activation="tanh"), QDense(2)])
        model.compile(optimizer, "mse")
        kind = contextlib.nullcontext()
        if training.is_ours(optimizer):
            kind = pytest.warns(hosts.accum.AccumulationWarning, match="Layers keep values")
        with kind:
            fit(model, batch_size)
        kept = {v.path for v in model.non_trainable_variables}
        found = {**training.weights(model), **training.slots(model)}
        return {name: value for name, value in found.items() if name not in kept}

    assert_equals_big_batch(train, atol=2e-5)
