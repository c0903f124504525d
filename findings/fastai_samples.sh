#!/usr/bin/env bash
# Expectation: fastai's GradientAccumulation(n_acc) averages over the samples of a window.
# What happens: it counts samples and updates once it has n_acc or more, but always divides by n_acc. With
# batches of 12 and n_acc=32, 36 samples are summed and divided by 32: an eighth too much.
# Why it matters: clipping and the learning rate act on other numbers as soon as the batch size, or a
# short batch of an earlier epoch, doesn't divide n_acc.
# Source: https://docs.fast.ai/callback.training.html, https://github.com/fastai/fastai/issues/3023
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torch==2.13.0 fastcore==2.2.41 fasttransform==0.0.5 \
  fastprogress==1.1.6 fastdownload==0.0.8 matplotlib==3.11.2 pandas==3.1.1 scikit-learn==1.9.1 \
  requests==2.34.2 pyyaml==6.0.4
"$folder/bin/pip" install -q --no-compile --no-deps fastai==2.8.12  # its other packages aren't used
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import fastai
import torch
from fastai.basics import SGD, Callback, DataLoader, DataLoaders, Learner
from fastai.callback.training import GradientAccumulation


def gradients(batch_size, n_acc, samples=36, epochs=1):
    x = torch.arange(1.0, samples + 1)[:, None]
    data = torch.utils.data.TensorDataset(x, torch.zeros(samples, 1))
    loaders = DataLoaders(*(DataLoader(data, bs=batch_size) for _ in range(2)))
    model = torch.nn.Linear(1, 1, bias=False)
    seen = []

    class Record(Callback):
        order = GradientAccumulation.order + 1  # after a window is found to be complete

        def before_step(self):
            seen.append(round(model.weight.grad.item(), 4))

    learner = Learner(
        loaders,
        model,
        loss_func=lambda output, target: output.mean(),
        opt_func=SGD,
        cbs=[GradientAccumulation(n_acc), Record()],
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(epochs, lr=0.0)
    return seen


print("fastai", fastai.__version__, "torch", torch.__version__)
print("the gradient is the mean of the samples 1 to 36: 18.5")
exact, over = gradients(12, 36), gradients(12, 32)
print(f"n_acc=36, batches of 12: {exact}; n_acc=32: {over} = 18.5 * 36 / 32")
sys.exit(0 if (exact, over) == ([18.5], [20.8125]) else "The behavior has changed.")
PYTHON
