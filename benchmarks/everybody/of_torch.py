"""accelerate, Lightning and transformers' Trainer, used as documented, for everybody's table."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import LambdaCallback, WeightAveraging
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from transformers import Trainer, TrainerCallback, TrainingArguments

from .common import AVERAGE, BIG, MICRO, RATE, WINDOWS, Column, K, start


def columns(group):
    """Return the versions, and {package: Column}."""
    names = "torch", "accelerate", "lightning", "transformers"
    made = {"accelerate": Accelerate(), "Lightning": Lightning(), "Trainer": OfTrainer()}
    return {name: version(name) for name in names}, made


class Net(torch.nn.Module):
    """Two heads; a batch whose samples all use one of them doesn't touch the other one."""

    def __init__(self, case):
        super().__init__()
        self.hidden, self.out, self.other = (
            torch.nn.Linear(*sizes, dtype=torch.float64) for sizes in ((3, 4), (4, 2), (4, 2))
        )
        self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64) if case.normalized else None
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

    def values(self):
        found = self.state_dict().values()
        return [value.numpy().copy() for value in found if value.is_floating_point()]


def summed(model, x, y, mask, heads):
    return (((model(x, heads) - y) ** 2).mean(-1) * mask).sum()


def loss_of(model, x, y, mask, heads):
    return summed(model, x, y, mask, heads) / mask.sum()


def samples_of(data):
    return list(zip(*map(torch.tensor, data.arrays())))


def loader(data):
    return torch.utils.data.DataLoader(samples_of(data), batch_size=MICRO)


def adamw(model, case):
    """Return AdamW and its schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=case.decay)
    base = 0.5 if case.scheduled else 1.0
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: base**update)


def averaged(model):
    return AveragedModel(model, avg_fn=get_ema_avg_fn(AVERAGE))


class OfTorch(Column):
    says = dict.fromkeys(("constraint", "replicas"), "-")

    def stock(self, case, data, leave):
        """PyTorch's own loop at the big batch."""
        model = Net(case)
        (optimizer, schedule), mean = adamw(model, case), averaged(model)
        for batch in data.parts(BIG, leave):
            optimizer.zero_grad()
            loss_of(model, *map(torch.tensor, batch)).backward()
            if case.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            optimizer.step()
            schedule.step()
            mean.update_parameters(model)
        return (mean.module if case.average else model).values()


class Accelerate(OfTorch):
    says = {**OfTorch.says, "callbacks": "-"}

    def train(self, case, data):
        prepared = self.prepare(case, data)
        if case.tokens:
            return self.by_tokens(*prepared)
        self.steps(case, *prepared)
        if case.stop:
            with tempfile.TemporaryDirectory() as folder:
                prepared[0].save_state(folder)
                accelerator, batches, *others = self.prepare(case, data)
                accelerator.load_state(folder)
            rest = accelerator.skip_first_batches(batches, case.stop)
            prepared = accelerator, rest, *others
            self.steps(case, *prepared)
        *_, model, mean = prepared
        return (mean.module if case.average else model).values()

    def prepare(self, case, data):
        accelerator, model = Accelerator(gradient_accumulation_steps=K, cpu=True), Net(case)
        prepared = accelerator.prepare(loader(data), *adamw(model, case), model)
        return (accelerator, *prepared, averaged(model))

    def steps(self, case, accelerator, batches, optimizer, schedule, model, mean):
        for i, batch in enumerate(batches, 1):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, *batch))
                if case.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), case.clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                mean.update_parameters(model)
            if i == case.stop:
                break

    def by_tokens(self, accelerator, batches, optimizer, schedule, model, mean):
        """By the recipe for batches of unequal size, which divides by the window's tokens."""
        batches = iter(batches)
        for _ in range(WINDOWS):
            window = [next(batches) for _ in range(K)]
            tokens = sum(mask.sum() for _, _, mask, _ in window)
            for i, batch in enumerate(window, 1):
                accelerator.gradient_state._set_sync_gradients(i == K)
                accelerator.backward(summed(model, *batch) * K / tokens)
            optimizer.step()
            optimizer.zero_grad()
        return model.values()


class Module(lightning.LightningModule):
    def __init__(self, case):
        super().__init__()
        self.net, self.case = Net(case), case

    def training_step(self, batch):
        return loss_of(self.net, *batch)

    def configure_optimizers(self):
        optimizer, schedule = adamw(self.net, self.case)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


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


class Lightning(OfTorch):
    def train(self, case, data):
        if not case.stop:
            return self.fit(case, data)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stopped.ckpt")

            def save(trainer, module, outputs, batch, index):
                if index + 1 == case.stop:
                    trainer.save_checkpoint(path)
                    trainer.should_stop = True

            self.fit(case, data, save)
            return self.fit(case, data, ckpt_path=path, weights_only=False)

    def fit(self, case, data, on_train_batch_end=None, **more):
        module, callbacks = Module(case), [LambdaCallback(on_train_batch_end=on_train_batch_end)]
        if case.average:
            callbacks.append(WeightAveraging(avg_fn=get_ema_avg_fn(AVERAGE)))
        trainer = lightning.Trainer(
            accumulate_grad_batches=K,
            gradient_clip_val=case.clip,
            max_epochs=1,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, Resumable(data), **more)
        return module.net.values()

    def calls(self, case, data):
        called = []
        self.fit(case, data, lambda *arguments: called.append(arguments))
        return f"{len(called)} (`on_train_batch_end`)"


class Steps(TrainerCallback):
    count = 0

    def on_step_end(self, *arguments, **keywords):
        self.count += 1


class ForTrainer(torch.nn.Module):
    def __init__(self, case):
        super().__init__()
        self.net = Net(case)

    def forward(self, x, mask, heads, labels=None):
        found = {"predictions": self.net(x, heads)}
        if labels is not None:
            found["loss"] = loss_of(self.net, x, labels, mask, heads)
        return found


class OfTrainer(OfTorch):
    says = {**OfTorch.says, "average": "-", "continued": "saves at updates only"}

    def train(self, case, data, *callbacks):
        model = ForTrainer(case)
        samples = [dict(zip(("x", "labels", "mask", "heads"), row)) for row in samples_of(data)]
        for sample in samples * case.tokens:  # it counts the labels that aren't -100
            sample["labels"][sample["mask"] == 0] = -100
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=MICRO,
                gradient_accumulation_steps=K,
                max_grad_norm=case.clip or 0.0,
                num_train_epochs=1,
                train_sampling_strategy="sequential",
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
                logging_strategy="no",
            )
            trainer = Trainer(
                model,
                arguments,
                train_dataset=samples,
                optimizers=adamw(model, case),
                callbacks=list(callbacks),
                compute_loss_func=per_token if case.tokens else None,
            )
            trainer.train()
        return model.net.values()

    def calls(self, case, data):
        steps = Steps()
        self.train(case, data, steps)
        return f"{steps.count} (`on_step_end`)"


def per_token(outputs, labels, num_items_in_batch=None):
    errors = (outputs["predictions"] - labels) ** 2
    return errors[labels != -100].sum() / num_items_in_batch
