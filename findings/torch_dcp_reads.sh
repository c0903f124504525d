#!/usr/bin/env bash
# Expectation: get_optimizer_state_dict of torch.distributed.checkpoint reads.
# What happens: on an optimizer without state it makes a step with zero gradients: Adam's counter is 1, and
# its first real update is a quarter too small. Inside a window, where there are gradients, it makes no
# step, and returns no state at all.
# Why it matters: a first checkpoint changes the training, and what it holds depends on open gradients.
# Source: https://github.com/pytorch/pytorch/issues/164929
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import copy
import sys
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def first_update(reads_after):
    """Adam's first update from 2 micro-batches; the state that was read after some of them."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before, state = model.weight.item(), None
    for micro_batch in range(2):
        if reads_after == micro_batch:
            state = copy.deepcopy(get_optimizer_state_dict(model, optimizer)["state"])
        (model(torch.ones(1, 1)).mean() / 2).backward()
    optimizer.step()
    return before - model.weight.item(), state


print("torch", torch.__version__)
never, fresh, inside = (first_update(when) for when in (None, 0, 1))
print(f"without reading: {never[0]:.4f}")
print(f"read before the first micro-batch: {fresh[0]:.4f}, step {fresh[1]['weight']['step']}")
print(f"read inside the window: {inside[0]:.4f}, state {inside[1]}")
found = abs(never[0] - 0.1) < 1e-4 and abs(fresh[0] - 0.0744) < 1e-3
found = found and abs(inside[0] - 0.1) < 1e-4 and inside[1] == {}
sys.exit(0 if found else "The behavior has changed.")
PYTHON
