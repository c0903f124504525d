"""The timing of all benchmarks. This module runs on Python 3.7."""

import time


def seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def in_turns(steps, rounds):
    """Return {name: [seconds]} of functions that take turns. Each has run once before."""
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step))
    return times


def smallest(steps, rounds):
    """Return {name: seconds}: what else a machine does can only add to a time."""
    return {name: min(times) for name, times in in_turns(steps, rounds).items()}
