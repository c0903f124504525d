#!/usr/bin/env bash
# Expectation: Optimizer.load_state_dict of PyTorch gives back what state_dict had, dtypes included.
# What happens: every tensor in the state of a parameter becomes the parameter's dtype, unless its key is
# "step". Beside a bfloat16 weight, float32 sums are rounded, and an integer counter of 257 becomes 256.0.
# Why it matters: an optimizer that keeps a window's sums or position in its state, which is where FSDP and
# checkpoints look for them, resumes with others.
# Source: https://github.com/pytorch/pytorch/issues/43706 (floating point)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import io
import sys
import torch


class Accumulating(torch.optim.Optimizer):
    """SGD that keeps the sums of a window in float32."""

    def __init__(self, parameters, window):
        super().__init__(parameters, {"lr": 0.1, "window": window})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["sums"] = torch.zeros_like(parameter, dtype=torch.float32)
                    state["position"], state["step"] = torch.tensor(0), torch.tensor(0)
                state["sums"] += parameter.grad
                state["position"] += 1
                state["step"] += 1
                if state["position"] == group["window"]:
                    parameter -= (group["lr"] / group["window"]) * state["sums"]
                    state["sums"].zero_(), state["position"].zero_()


weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
optimizer, file = Accumulating([weight], window=300), io.BytesIO()
for _ in range(257):
    weight.grad = torch.full_like(weight, 1.0078125)
    optimizer.step()
torch.save(optimizer.state_dict(), file)
file.seek(0)
resumed = Accumulating([weight], window=300)
resumed.load_state_dict(torch.load(file))
print("torch", torch.__version__)
before, after = optimizer.state[weight], resumed.state[weight]
for key in before:
    print(f"{key}: {before[key].item()} {before[key].dtype}", end=" -> ")
    print(f"{after[key].item()} {after[key].dtype}")
found = before["position"] == 257 and after["position"] == 256 and after["step"] == 257
found = found and after["sums"].dtype == torch.bfloat16 and after["sums"] != before["sums"]
sys.exit(0 if found else "The behavior has changed.")
PYTHON
