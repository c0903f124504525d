"""accelerate, Lightning and transformers' Trainer, used as documented, for everybody's table."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from transformers import Trainer, TrainerCallback, TrainingArguments

from .common import (
    AVERAGE,
    CLIP,
    DECAY,
    INFINITE,
    LEFT_OVER,
    MICRO,
    RATE,
    STOP,
    WINDOWS,
    Data,
    K,
    difference,
    start,
)

FLOATX = "float64"


def versions():
    names = "torch", "accelerate", "lightning", "transformers"
    return {name: version(name) for name in names}


def columns():
    return {"accelerate": Accelerate(), "Lightning": Lightning(), "Trainer": OfTrainer()}


class Net(torch.nn.Module):
    """Two heads; a batch whose samples all use one of them doesn't touch the other one."""

    def __init__(self, normalized=False):
        super().__init__()
        self.hidden, self.out, self.other = (
            torch.nn.Linear(*sizes, dtype=torch.float64) for sizes in ((3, 4), (4, 2), (4, 2))
        )
        self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64) if normalized else None
        with torch.no_grad():
            for name, array in start().items():
                layer = getattr(self, name.replace("_bias", ""))
                parameter = layer.bias if "bias" in name else layer.weight
                parameter.copy_(torch.tensor(array.T))

    def forward(self, x, heads):
        hidden = self.hidden(x)
        hidden = torch.tanh(self.norm(hidden) if self.norm else hidden)
        if not heads.any():
            return self.out(hidden)
        if heads.all():
            return self.other(hidden)
        return torch.where(heads[:, None] == 0, self.out(hidden), self.other(hidden))


def losses(model, x, y, mask, heads):
    """The loss of each token."""
    return ((model(x, heads) - y) ** 2).mean(-1) * mask


def loss_of(model, x, y, mask, heads):
    return losses(model, x, y, mask, heads).sum() / mask.sum()


def tensors(part):
    return [torch.tensor(array) for array in part]


def loader(data):
    return torch.utils.data.DataLoader(list(zip(*tensors_of(data))), batch_size=MICRO)


def tensors_of(data):
    return tensors((data.x, data.y, data.mask, data.heads))


def values(model):
    found = model.state_dict().values()
    return [value.numpy().copy() for value in found if value.is_floating_point()]


def adamw(model, decay=0.0):
    return torch.optim.AdamW(model.parameters(), RATE, weight_decay=decay)


def halving(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5**update)


def averaged(model):
    return AveragedModel(model, avg_fn=get_ema_avg_fn(AVERAGE))


def stock(data, decay=0.0, clip=None, scheduled=False, average=False, normalized=False, leave=()):
    """PyTorch's own loop at the big batch, without the micro-batches `leave`."""
    model = Net(normalized)
    optimizer = adamw(model, decay)
    schedule, mean = halving(optimizer), averaged(model)
    parts = [part for i, part in enumerate(data.parts(MICRO)) if i not in leave]
    for i in range(0, len(parts), K):
        batch = [torch.cat(arrays) for arrays in zip(*map(tensors, parts[i : i + K]))]
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduled:
            schedule.step()
        mean.update_parameters(model)
    return values(mean.module if average else model)


class Column:
    """The rows that are the same question to every package of PyTorch."""

    def compare(self, data=None, leave=(), **both):
        data = data or Data()
        return difference(self.train(data, **both), stock(data, leave=leave, **both))

    def schedule(self):
        return self.compare(scheduled=True)

    def clipping(self):
        return self.compare(clip=CLIP)

    def decay(self):
        return self.compare(decay=DECAY)

    def tokens(self):
        return self.compare(Data(tokens=True))

    def last(self):
        return self.compare(Data(more=LEFT_OVER))

    def average(self):
        return self.compare(average=True)

    def missing(self):
        return self.compare(Data(heads=True))

    def infinite(self):
        data = Data(more=1)
        data.x[INFINITE * MICRO] = float("inf")
        return self.compare(data, leave=[INFINITE])

    def normalization(self):
        return self.compare(normalized=True)


class Accelerate(Column):
    def train(
        self,
        data,
        decay=0.0,
        clip=None,
        scheduled=False,
        average=False,
        normalized=False,
        stop=None,
    ):
        def prepare():
            accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
            model = Net(normalized)
            optimizer = adamw(model, decay)
            prepared = model, optimizer, loader(data), halving(optimizer)
            return (accelerator, averaged(model), *accelerator.prepare(*prepared))

        def steps(accelerator, mean, model, optimizer, batches, schedule, stop=None):
            for i, batch in enumerate(batches):
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, *batch))
                    if clip and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    if scheduled:
                        schedule.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    mean.update_parameters(model)
                if i + 1 == stop:
                    break

        accelerator, mean, model, optimizer, batches, schedule = prepare()
        steps(accelerator, mean, model, optimizer, batches, schedule, stop)
        if stop:
            with tempfile.TemporaryDirectory() as folder:
                accelerator.save_state(folder)
                accelerator, mean, model, optimizer, batches, schedule = prepare()
                accelerator.load_state(folder)
            rest = accelerator.skip_first_batches(batches, stop)
            steps(accelerator, mean, model, optimizer, rest, schedule)
        return values(mean.module if average else model)

    def tokens(self):
        """By the recipe for batches of unequal size, which divides by the window's tokens."""
        data = Data(tokens=True)
        accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
        model = Net()
        model, optimizer, batches = accelerator.prepare(model, adamw(model), loader(data))
        batches = iter(batches)
        for _ in range(WINDOWS):
            window = [next(batches) for _ in range(K)]
            tokens = sum(mask.sum() for _, _, mask, _ in window)
            for i, batch in enumerate(window):
                accelerator.gradient_state._set_sync_gradients(i == K - 1)
                loss = losses(model, *batch).sum() * K / tokens
                accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return difference(values(model), stock(data))

    def continued(self):
        return difference(self.train(Data(), stop=STOP), stock(Data()))


class Module(lightning.LightningModule):
    def __init__(self, decay, scheduled, normalized):
        super().__init__()
        self.net, self.decay, self.scheduled = Net(normalized), decay, scheduled

    def training_step(self, batch):
        return loss_of(self.net, *batch)

    def configure_optimizers(self):
        optimizer = adamw(self.net, self.decay)
        schedule = {"scheduler": halving(optimizer), "interval": "step"}
        return [optimizer], [schedule] if self.scheduled else []


class Resumable:
    """A loader that a checkpoint can continue, as Lightning asks."""

    def __init__(self, data):
        self.batches, self.next = list(loader(data)), 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Save(lightning.Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index + 1 == STOP:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


class Calls(lightning.Callback):
    count = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.count += 1


class Lightning(Column):
    def train(
        self, data, decay=0.0, clip=None, scheduled=False, average=False, normalized=False, **more
    ):
        module = Module(decay, scheduled, normalized)
        callbacks = more.pop("callbacks", [])
        if average:
            callbacks = [WeightAveraging(avg_fn=get_ema_avg_fn(AVERAGE))]
        trainer = lightning.Trainer(
            accumulate_grad_batches=K,
            gradient_clip_val=clip,
            max_epochs=1,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, Resumable(data), **more)
        return values(module.net)

    def continued(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stopped.ckpt")
            self.train(Data(), callbacks=[Save(path)])
            found = self.train(Data(), ckpt_path=path, weights_only=False)
        return difference(found, stock(Data()))

    def callbacks(self):
        calls = Calls()
        self.train(Data(), callbacks=[calls])
        return f"{calls.count} (`on_train_batch_end`)"


class Steps(TrainerCallback):
    count = 0

    def on_step_end(self, *arguments, **keywords):
        self.count += 1


class ForTrainer(torch.nn.Module):
    def __init__(self, normalized):
        super().__init__()
        self.net = Net(normalized)

    def forward(self, x, mask, heads, labels=None):
        found = {"predictions": self.net(x, heads)}
        if labels is not None:
            found["loss"] = loss_of(self.net, x, labels, mask, heads)
        return found


class OfTrainer(Column):
    def train(
        self,
        data,
        decay=0.0,
        clip=None,
        scheduled=False,
        normalized=False,
        by_tokens=False,
        callbacks=(),
    ):
        model = ForTrainer(normalized)
        rows = zip(*tensors_of(data))
        names = "x", "labels", "mask", "heads"
        samples = [dict(zip(names, row)) for row in rows]
        optimizer = adamw(model, decay)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0)
        # The Trainer counts the labels that aren't -100, here 2 for each token.
        count = {"compute_loss_func": per_token} if by_tokens else {}
        if by_tokens:
            for sample in samples:
                sample["labels"] = torch.where(
                    sample["mask"][..., None] > 0, sample["labels"], -100
                )
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=MICRO,
                gradient_accumulation_steps=K,
                max_grad_norm=clip or 0.0,
                num_train_epochs=1,
                train_sampling_strategy="sequential",
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
                logging_strategy="no",
            )
            schedule = halving(optimizer) if scheduled else constant
            trainer = Trainer(
                model,
                arguments,
                train_dataset=samples,
                optimizers=(optimizer, schedule),
                callbacks=list(callbacks),
                **count,
            )
            trainer.train()
        return values(model.net)

    def tokens(self):
        data = Data(tokens=True)
        return difference(self.train(data, by_tokens=True), stock(data))

    average = None

    def continued(self):
        return "saves at updates only"

    def callbacks(self):
        steps = Steps()
        self.train(Data(), callbacks=[steps])
        return f"{steps.count} (`on_step_end`)"


def per_token(outputs, labels, num_items_in_batch=None):
    errors = (outputs["predictions"] - labels) ** 2
    return errors[labels != -100].sum() / num_items_in_batch
