"""A training that is killed again and again ends with the same bits as an undisturbed one.

Each new process continues from the newest checkpoint.
"""

import os
import random
import signal
import subprocess
import sys
import time

import hosts
import numpy as np
import pytest
from cases import thorough
from killed_training import KILLS, STEPS, everything, fresh, step

SPARE = 2  # processes that import ahead of time, while another one trains


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", hosts.TESTS / "killed_training.py", folder],
        env=os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps_said(process):
    """Yield the step count that the process reports, first the one at which it began."""
    return (int(line.split()[1]) for line in process.stdout if line.startswith("step"))


@pytest.fixture
def processes(tmp_path):
    started = []
    yield lambda: started.append(start(tmp_path)) or started[-1]
    for process in started:
        process.kill()
        process.communicate()


@thorough
@pytest.mark.skipif(
    not (hosts.IS_TORCH or hosts.IS_KERAS2),
    reason="files are the same on all backends of Keras 3, and .h5 is the same on all Keras 2",
)
def test_killed_again_and_again(tmp_path, processes):
    random.seed(1)
    waiting = [processes() for _ in range(SPARE)]
    newest = 0
    for left in reversed(range(KILLS + 1)):
        process = waiting.pop(0)
        process.stdin.write("go\n")
        process.stdin.flush()
        if left >= SPARE:
            waiting.append(processes())
        said = steps_said(process)
        began = next(said, None)
        assert began is not None, process.stderr.read()
        assert began >= newest, "a checkpoint was lost, which the final comparison can't tell"
        if left:
            for _ in range(random.randint(1, 2)):
                newest = next(said)
            time.sleep(random.uniform(0, 0.05))  # dies in a later step or while it writes a file
            process.kill()
            assert process.wait() == -signal.SIGKILL, "the training ended before: raise STEPS"
    _, errors = process.communicate()
    assert process.returncode == 0, errors

    alone = fresh()
    for _ in range(STEPS):
        step(alone)
    with np.load(tmp_path / "end.npz") as end:
        for actual, expected in zip(end.values(), everything(alone)):
            np.testing.assert_array_equal(actual, expected)
