"""Python processes of their own, and some that train together."""

import json
import os
import socket
import subprocess
import sys

import hosts
import numpy as np

PARTIAL = 2  # micro-batches at the end, which are closed as a partial window


def python(program):
    """Return the lines that a new Python process prints."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def two_free_ports():
    with socket.socket() as one, socket.socket() as two:
        for s in (one, two):
            s.bind(("localhost", 0))
        return [s.getsockname()[1] for s in (one, two)]


def uneven_shares(seed):
    """Return random micro-batches, each with (x, y) for two processes, and a window's length."""
    random = np.random.default_rng(seed)

    def arrays(size):
        x, y = random.uniform(-1, 1, (size, 3)), random.uniform(1, 2, (size, 2))
        return x.astype("float32"), y.astype("float32")

    number, length = random.integers([5, 2], [12, 5])
    return [list(map(arrays, random.integers(1, 7, 2))) for _ in range(number)], int(length)


def run_together(programs):
    """Run Python processes that wait for each other, given as pairs (arguments, environment)."""
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments, environment in programs
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()  # a worker that is left waits for the others forever


def two_workers(script, *arguments):
    """Return the programs of two workers of a MultiWorkerMirroredStrategy, for `run_together`."""
    workers = [f"localhost:{port}" for port in two_free_ports()]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [{"cluster": {"worker": workers}, "task": task} for task in tasks]
    command = [hosts.SUPPORT / script, *arguments]
    return [(command, {"TF_CONFIG": json.dumps(config)}) for config in configs]
