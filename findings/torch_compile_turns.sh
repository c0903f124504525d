#!/usr/bin/env bash
# Expectation: with 6 layers that get gradients in turns, as experts do, a compiled Adam step becomes 6
# programs at most, one for each layer, and zero_grad(set_to_none=False) changes nothing about that.
# What happens: it needs 11, a program before and one after the state of a layer exists, and at the limit
# of 8 PyTorch stops compiling and runs the step uncompiled, with one warning. With zeros, 6 suffice.
# Why it matters: windows in which a part of the model has no gradient undo what compiling gained. (Zeros
# also move: Adam then updates all layers by their momentum.)
# Source: torch._dynamo.config.recompile_limit
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys
import torch
import torch._dynamo


def programs(layers, set_to_none, windows=30):
    torch._dynamo.reset()
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    model = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(layers)])
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(lambda: optimizer.step(), backend=backend)
    for window in range(windows):
        for _ in range(2):
            model[window % layers](torch.ones(2, 4)).sum().backward()
        step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return len(compiled)


print("torch", torch.__version__)
limit = torch._dynamo.config.recompile_limit
counts = {}
for layers in (3, 4, 6):
    counts[layers] = programs(layers, True), programs(layers, False)
    print(f"{layers} layers: {counts[layers][0]} programs, with zeros {counts[layers][1]}", end="")
    print(f" (limit {limit})")
with torch._dynamo.config.patch(recompile_limit=64):
    needed = programs(6, True)
print(f"6 layers, limit 64: {needed} programs")
found = counts == {3: (5, 3), 4: (7, 4), 6: (8, 6)} and limit == 8 and needed == 11
sys.exit(0 if found else "The behavior has changed.")
PYTHON
