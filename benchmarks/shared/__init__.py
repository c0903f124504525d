"""What several benchmarks import: contenders, networks, an optimizer alone, timing."""
