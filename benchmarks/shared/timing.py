"""The timing of all benchmarks. This module runs on Python 3.7."""

import statistics
import time


def medians(steps, rounds):
    """Return {name: median seconds} of functions that take turns. Each has run once before."""
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
