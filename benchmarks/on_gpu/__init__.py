"""The parts of `benchmarks/gpu.py`. Each has `measure(options, what)`, which runs in a process."""
