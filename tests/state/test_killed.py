"""A training that is killed again and again ends with the same bits as an undisturbed one."""

import multiprocessing
import os
import random
import signal
import sys
import time

import hosts
import numpy as np
import pytest
from cases import thorough
from formats import FORMATS, assert_same, everything, fresh
from training import LENGTH, MICRO, batches

pytestmark = pytest.mark.skipif(
    not (hosts.IS_TORCH or hosts.IS_KERAS2),
    reason="files are the same on all backends of Keras 3, and .h5 is the same on all Keras 2",
)

KILLS = 4
STEPS = 50
FILE = "m.keras" if hosts.IS_KERAS3 else "m.h5"


def steps_made(model):
    return model.optimizer.completed_updates * LENGTH + model.optimizer.window_position


def step(model):
    """Train on the next micro-batch, as counted by the optimizer's state."""
    samples = batches(MICRO)
    model.train_on_batch(*samples[steps_made(model) % len(samples)])


def train(folder, says):
    """Train in the process that gets killed, from the newest file on.

    A file is written under another name and then renamed, which can't happen in part.
    """
    hosts.set_floatx(hosts.FLOATX)
    model = fresh()
    if (folder / FILE).exists():
        model = FORMATS[FILE[2:]].load(folder, fresh)
    says.send(steps_made(model))
    while steps_made(model) < STEPS:
        step(model)
        model.save(str(folder / f"next-{FILE}"))
        os.replace(folder / f"next-{FILE}", folder / FILE)
        says.send(steps_made(model))
    np.savez(folder / "end.npz", **{str(n): array for n, array in everything(model).items()})


@thorough
def test_killed_again_and_again(tmp_path, monkeypatch):
    """All processes are forked from one that has imported the framework and done nothing else."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    random.seed(1)
    newest = 0
    for left in reversed(range(KILLS + 1)):
        said, says = context.Pipe(duplex=False)
        process = context.Process(target=train, args=(tmp_path, says), daemon=True)
        process.start()
        says.close()
        assert said.recv() >= newest, "a file was lost, which the final comparison can't tell"
        if left:
            for _ in range(random.randint(1, 2)):
                newest = said.recv()
            time.sleep(random.uniform(0, 0.05))  # dies in a later step or while it writes a file
            process.kill()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if left else 0), "too few STEPS, or an error"
    alone = fresh()
    for _ in range(STEPS):
        step(alone)
    with np.load(tmp_path / "end.npz") as end:
        assert_same(dict(end), everything(alone))
