#!/usr/bin/env bash
# Expectation: accelerate always makes an update at the end of the training data, whatever an evaluation
# in between did.
# What happens: if the evaluation's loop ends with `break`, its DataLoader stays the active one. The last
# window then makes no update, and its gradients are added to the next epoch's first window.
# Why it matters: evaluating on a few batches in the middle of an epoch is common, and nothing is said.
# Source: https://github.com/huggingface/accelerate/pull/4248
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import accelerate
import torch


def updates(evaluated):
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.ones(10, 1))
    loaders = [torch.utils.data.DataLoader(data, batch_size=1) for _ in range(2)]
    model, optimizer, training, evaluation = accelerator.prepare(model, optimizer, *loaders)
    made = []
    for step, (x,) in enumerate(training):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            made.append(step)
        if step == 5:
            for batch, _ in enumerate(evaluation):
                if batch == evaluated - 1:
                    break
    return made


print("accelerate", accelerate.__version__, "torch", torch.__version__)
whole, part = updates(evaluated=11), updates(evaluated=3)
print("10 batches in windows of 4; updates after the batches")
print(f"evaluated on all batches: {whole}; on 3 of them, with break: {part}")
sys.exit(0 if (whole, part) == ([3, 7, 9], [3, 7]) else "The behavior has changed.")
PYTHON
