"""The timing of all benchmarks. This module runs on Python 3.7."""

import time


def smallest(steps, rounds, clock=time.process_time):
    """Return {name: seconds} of functions that take turns. Each has run once before.

    The time is that of the processors, of all threads of this process, and the smallest of several:
    what else a machine does changes it little, and can only add to it.
    """
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = clock()
            step()
            times[name].append(clock() - start)
    return {name: min(values) for name, values in times.items()}
