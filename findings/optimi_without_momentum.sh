#!/usr/bin/env bash
# Expectation: optimi's optimizer accumulation, which adds gradients to the optimizer's state in place of
# a buffer, is gradient accumulation for its simplest optimizer, SGD without momentum.
# What happens: SGD without momentum has no state to add to: only the last micro-batch of a window counts,
# without an error or a warning. With momentum it approximates, as the documentation says.
# Why it matters: three quarters of the data don't train at all.
# Source: https://optimi.benjaminwarner.dev/optimizer_accumulation/
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torch-optimi==0.3.3 torch==2.13.0 numpy==2.4.6 packaging==26.4
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version
import optimi
import torch


def train(accumulates, momentum):
    """The weight after each of 2 windows; the gradients of the micro-batches are 1, 2, 3, 4."""
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    optimizer = optimi.SGD(
        model.parameters(), lr=1.0, momentum=momentum, gradient_release=accumulates
    )
    if accumulates:
        optimi.prepare_for_gradient_release(model, optimizer)
    weights = []
    for _ in range(2):
        for x in (1.0, 2.0, 3.0, 4.0):
            if accumulates:
                optimizer.optimizer_accumulation = x < 4.0
            (model(torch.tensor([[x]])).mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.append(round(model.weight.item(), 3))
    return weights


print("torch-optimi", version("torch-optimi"), "torch", torch.__version__)
results = {}
for momentum in (0.0, 0.9):
    results[momentum] = train(False, momentum), train(True, momentum)
    print(f"momentum {momentum}: sums {results[momentum][0]}, optimi {results[momentum][1]}")
found = results[0.0] == ([-2.5, -5.0], [-1.0, -2.0]) and results[0.9][1][0] < -2.0
sys.exit(0 if found else "The behavior has changed.")
PYTHON
