#!/usr/bin/env bash
# Expectation: Poutyne's batches_per_step=4 averages 4 losses, a shorter last window is divided by 4, too,
# and its ClipNorm callback clips the average.
# What happens: the division is exact, by the number of samples, also in a short last window. But it comes
# last: ClipNorm acts after each micro-batch on the sum so far, so ClipNorm(3) leaves norms of 0.75.
# Why it matters: with clipping, updates become up to as many times too small as a window has samples, and
# the early micro-batches are clipped several times.
# Source: https://poutyne.org/callbacks.html
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile poutyne==1.19.0 torch==2.13.0
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import poutyne
import torch


def gradients(callbacks):
    """What the optimizer gets; the gradient of a micro-batch is its one sample, 1 to 10."""
    module = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *args: seen.append(round(module.weight.grad.item(), 3))
    )
    data = torch.utils.data.TensorDataset(torch.arange(1.0, 11)[:, None], torch.zeros(10, 1))
    poutyne.Model(module, optimizer, lambda output, target: output.mean()).fit_generator(
        torch.utils.data.DataLoader(data, batch_size=1),
        epochs=1,
        batches_per_step=4,
        verbose=False,
        callbacks=callbacks(module.parameters()),
    )
    return seen


print("poutyne", poutyne.__version__, "torch", torch.__version__)
plain = gradients(lambda parameters: [])
clipped = gradients(lambda parameters: [poutyne.ClipNorm(parameters, 3.0)])
print(f"windows of 4, 4 and 2 samples: {plain} (by 4 the last would be 4.75)")
print(f"with ClipNorm(3): {clipped} (a clipped average would be [2.5, 3.0, 3.0])")
found = plain == [2.5, 6.5, 9.5] and clipped == [0.75, 0.75, 1.5]
sys.exit(0 if found else "The behavior has changed.")
PYTHON
