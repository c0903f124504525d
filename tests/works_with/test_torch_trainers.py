"""Packages that run a training on PyTorch: what they do with an optimizer that isn't PyTorch's."""

import os
import sys

import hosts
import pytest
import training
from against_stock import assert_equals_big_batch, ours
from processes import run_together, two_free_ports
from training import EPOCHS, MICRO, compiled, data, dense_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TORCH, reason="PyTorch alone"),
]


def model(optimizer):
    found = compiled(dense_model(), optimizer)
    hosts.build(found)
    return found


def loader(batch_size):
    import torch

    pairs = torch.utils.data.TensorDataset(*map(torch.from_numpy, data()))
    return torch.utils.data.DataLoader(pairs, batch_size)


def step(trained, x, y, backward):
    """A step as a user writes it by hand."""
    trained.zero_grad()
    loss = ((trained(x) - y) ** 2).mean()
    trained.optimizer.weigh(len(x)) if training.is_ours(trained.optimizer) else None
    backward(loss)
    weights = trained.trainable_weights
    trained.optimizer.apply([w.value.grad for w in weights], weights)


@pytest.mark.row(
    "accelerate",
    "`prepare(model, optimizer, loader)`, its `gradient_accumulation_steps` left at 1",
    "equal to the big batch; `prepare` returns our optimizer itself, so `save_state` lacks it",
)
def test_accelerate(tmp_path):
    """The guess: `prepare` wraps the optimizer. It wraps those of PyTorch alone."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def train(optimizer, batch_size):
        built = model(optimizer)
        trained, prepared, batches = accelerator.prepare(built, optimizer, loader(batch_size))
        assert prepared is optimizer
        for _ in range(EPOCHS):
            for x, y in batches:
                step(trained, x, y, accelerator.backward)
        accelerator.save_state(str(tmp_path))
        assert not list(tmp_path.rglob("optimizer*"))
        accelerator.free_memory()
        return built

    assert_equals_big_batch(train)


@pytest.mark.row(
    "lightning",
    "`automatic_optimization = False`, and the optimizer called in `training_step`",
    "equal to the big batch; checkpoints lack our optimizer, and `global_step` stays 0",
)
def test_lightning(tmp_path):
    """The guess: equal, and Lightning knows nothing of the optimizer."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self, trained):
            super().__init__()
            self.trained, self.automatic_optimization = trained, False

        def configure_optimizers(self):
            return None

        def training_step(self, batch, index):
            step(self.trained, *batch, self.manual_backward)

    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )

    def train(optimizer, batch_size):
        trained = model(optimizer)
        trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, **quiet)
        trainer.fit(Module(trained), loader(batch_size))
        assert trainer.global_step == 0
        trainer.save_checkpoint(tmp_path / "checkpoint")
        kept = torch.load(tmp_path / "checkpoint", weights_only=False)
        assert not any(kept["optimizer_states"])
        return trained

    assert_equals_big_batch(train)


@pytest.mark.row(
    "opacus",
    "`PrivacyEngine().make_private` with our optimizer",
    "error: it needs an optimizer of PyTorch. Use [JAX Privacy](#jax-privacy)",
)
def test_opacus():
    """The guess: it is refused."""
    import opacus

    trained = model(ours())
    arguments = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "data_loader": loader(MICRO)}
    with pytest.raises(AttributeError, match="param_groups"):
        opacus.PrivacyEngine().make_private(
            module=trained, optimizer=trained.optimizer, **arguments
        )


SHARDED = """
import torch
from hosts import keras, set_random_seed
from keras_accum import SGDAccumulate
from torch.distributed.fsdp import fully_shard
from training import dense_model

torch.distributed.init_process_group("gloo")
rank, found = torch.distributed.get_rank(), []
for optimizer in keras.optimizers.SGD(0.1), SGDAccumulate(0.1, accum_iters=2):
    set_random_seed()
    model = fully_shard(dense_model())
    optimizer.build(model.trainable_variables)
    length = getattr(optimizer, "accum_iters", 1)
    for x in torch.full((4, 3), rank + 1.0).split(4 // length):
        for weight in model.trainable_weights:
            weight.value.grad = None  # `zero_grad` of a sharded module leaves it
        (model(x) ** 2).mean().backward()
        with torch.no_grad():
            optimizer.apply([w.value.grad for w in model.trainable_weights])
    found.append(torch.cat([w.value.flatten() for w in model.trainable_weights]))
torch.testing.assert_close(*found)
everywhere = [torch.empty_like(found[0]) for _ in range(2)]
torch.distributed.all_gather(everywhere, found[0])
assert (everywhere[0] - everywhere[1]).abs().max() > 0.01
"""


@pytest.mark.row(
    "torch",
    "`fully_shard(model)` (FSDP2) with a model of Keras, in two processes",
    "not equal, with Keras's own optimizer, too: it shards and reduces nothing, and each process "
    "trains whole weights alone",
)
def test_fsdp2():
    """The guess: weights are shards, which our optimizer can't update."""
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(two_free_ports()[0])}
    shared.update(WORLD_SIZE="2", PYTHONPATH=os.pathsep.join([str(hosts.SUPPORT), *sys.path]))
    run_together([(["-c", SHARDED], {**shared, "RANK": rank}) for rank in "01"])
