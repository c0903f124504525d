"""The timing of all benchmarks. This module runs on Python 3.7."""

import time


def smallest(steps, rounds):
    """Return {name: seconds} of functions that take turns. Each has run once before.

    The smallest of several times: what else a machine does can only add to a time.
    """
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}
