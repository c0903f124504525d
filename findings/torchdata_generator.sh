#!/usr/bin/env bash
# Expectation: a StatefulDataLoader that resumes in the middle of an epoch repeats this and later epochs,
# all the more if you give it a generator of your own.
# What happens: with `generator=` and without workers, the rest of the epoch is right, and the next epoch
# has another order. Without a generator, or with a worker, both are right.
# Why it matters: a resumed run has other windows than an uninterrupted one, from the next epoch on.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys
import torch
from importlib.metadata import version
from torchdata.stateful_dataloader import StatefulDataLoader


def loader(seed, workers, own):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed) if own else None
    return StatefulDataLoader(
        list(range(12)), batch_size=2, shuffle=True, num_workers=workers, generator=generator
    )


def epoch(batches):
    return [batch.tolist() for batch in batches]


def resumed_right(workers, own):
    first = loader(0, workers, own)
    batches = iter(first)
    next(batches), next(batches)
    state = first.state_dict()
    rest, following = epoch(batches), epoch(first)
    second = loader(1, workers, own)
    second.load_state_dict(state)
    return epoch(second) == rest, epoch(second) == following


if __name__ == "__main__":
    print("torchdata", version("torchdata"), "torch", torch.__version__)
    results = {}
    for workers in (0, 1):
        for own in (False, True):
            results[workers, own] = rest, following = resumed_right(workers, own)
            name = "a generator" if own else "no generator"
            print(f"{workers} workers, {name}: rest as before {rest}, next epoch {following}")
    expected = {key: (True, key != (0, True)) for key in results}
    sys.exit(0 if results == expected else "The behavior has changed.")
PYTHON
"$folder/bin/python" -W ignore "$folder/run.py"
