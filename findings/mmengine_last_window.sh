#!/usr/bin/env bash
# Expectation: MMEngine's OptimWrapper(accumulative_counts=4) divides by 4 throughout, updates at the end
# of an epoch, and an iteration-based scheduler counts updates.
# What happens: windows continue across epochs, and the last window of the whole run is divided by what it
# has, since the wrapper knows max_iters. The scheduler counts micro-batches.
# Why it matters: gradients need no correction, but `begin`, `end` and steps of a schedule times 4.
# Source: https://github.com/open-mmlab/mmengine/issues/1308 (the scheduler)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile mmengine==0.10.7 torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import mmengine
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner


class Model(BaseModel):
    """Has the sample as its gradient."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x, mode):
        return {"loss": self.layer(x).mean()}


def gradients(samples, epochs):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    weight, group, steps = model.layer.weight, optimizer.param_groups[0], []
    optimizer.register_step_pre_hook(lambda *_: steps.append((weight.grad.item(), group["lr"])))
    data = [{"x": torch.tensor([i + 1.0])} for i in range(samples)]
    Runner(
        model,
        "work",
        train_dataloader=torch.utils.data.DataLoader(data),
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper=OptimWrapper(optimizer, accumulative_counts=4),
        param_scheduler={"type": "StepLR", "step_size": 1, "gamma": 0.5, "by_epoch": False},
        log_level="ERROR",
    ).train()
    return zip(*steps, strict=True)


print("mmengine", mmengine.__version__, "torch", torch.__version__)
one, rates = gradients(10, 1)
two, _ = gradients(10, 2)
print(f"samples 1 to 10: {one}, at rates {rates}, halved by each step; two epochs: {two}")
found = one == (2.5, 6.5, 9.5) and two == (2.5, 6.5, 5.5, 4.5, 8.5)
found = found and rates == (0.5**3, 0.5**7, 0.5**9)
sys.exit(0 if found else "The behavior has changed.")
PYTHON
