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
    """Micro-batches of random sizes: (x, y) for each of two processes, and micro-batches a window."""
    random = np.random.default_rng(seed)
    micro_batches = [
        [
            [random.uniform(*ends, (size, n)).astype("float32") for ends, n in [((-1, 1), 3), ((1, 2), 2)]]
            for size in random.integers(1, 7, 2)
        ]
        for _ in range(random.integers(5, 12))
    ]
    return micro_batches, int(random.integers(2, 5))


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
