#!/usr/bin/env bash
# Expectation: Grain is deterministic: its DataLoader gives the same batches for any worker_count, and
# num_epochs=2 gives each epoch's short last batch.
# What happens: each worker makes batches of its own, from every n-th record. Two workers give other batches,
# two short ones, and drop_remainder=True loses 4 records where it lost none. Without workers, a batch
# spans two epochs.
# Why it matters: worker_count changes the number of micro-batches, their sizes and so each window.
# Source: https://github.com/google/grain/issues/953
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile grain==0.2.18 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys
from importlib.metadata import version
import grain
from absl import flags


class Records:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return int(index)


def batches(workers, drop_remainder=False):
    sampler = grain.samplers.IndexSampler(
        10, grain.sharding.NoSharding(), shuffle=False, num_epochs=2, seed=0
    )
    loader = grain.DataLoader(
        data_source=Records(),
        sampler=sampler,
        operations=[grain.transforms.Batch(4, drop_remainder=drop_remainder)],
        worker_count=workers,
    )
    return [batch.tolist() for batch in loader]


if __name__ == "__main__":
    flags.FLAGS(["run.py"])
    print("grain", version("grain"))
    alone, two = batches(0), batches(2)
    print(f"no worker: {alone}\ntwo workers: {two}")
    lost = [20 - sum(map(len, batches(workers, drop_remainder=True))) for workers in (0, 2)]
    print(f"records lost by drop_remainder: {lost[0]} without workers, {lost[1]} with two")
    found = [len(batch) for batch in alone] == [4] * 5 and alone[2] == [8, 9, 0, 1]
    found = found and [len(batch) for batch in two] == [4, 4, 4, 4, 2, 2] and lost == [0, 4]
    sys.exit(0 if found else "The behavior has changed.")
PYTHON
"$folder/bin/python" -W ignore "$folder/run.py"
