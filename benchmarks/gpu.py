"""What accumulation costs on a GPU, in what users run: `python benchmarks/gpu.py`, in ten minutes.

    pip install '.[jax,torch]' 'jax[cuda12]' optax && python benchmarks/gpu.py

On JAX and PyTorch, whichever are installed: the time of a micro-batch in `fit` for an MLP, a
transformer, an embedding and convolutions, all contenders in turns; the optimizer alone; the peak
of the memory, and what 3% of the card's memory leads to; distances from the big batch with TF32,
without it, and in half precision. Writes `results/gpu_<card>.json`, and prints the tables that are
part of README.md and docs/exactness.md. `--tables` prints them from the newest file. `--small`
tries one case of each part on a machine without a GPU, in three minutes; its figures mean nothing.

Each part of `gpu_parts.py` runs in a process. Distances and memory run side by side, and meanwhile
the programs of `fit` are compiled into a cache; then the times are measured one after the other.
What hasn't ended after `--minutes` is left out.
"""

import argparse
import datetime
import functools
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tables
from shared import networks

import keras_accum

FIT, ALONE, OUT_OF_MEMORY = "fit", "alone", "out_of_memory"
NO_GPU = "no GPU"
# For JAX; `gpu_parts.py` has PyTorch's.
FRACTION = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.03", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}


def main():
    installed = [name for name in tables.BACKENDS if importlib.util.find_spec(name)]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender")
    parser.add_argument("--minutes", type=float, default=12, help="when to stop")
    parser.add_argument("--small", action="store_true", help="small networks: try the program")
    parser.add_argument("--backends", nargs="+", choices=tables.BACKENDS, default=installed)
    parser.add_argument("--write", type=Path, help="another JSON file to write")
    parser.add_argument("--tables", action="store_true", help="only print the newest tables")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        part, what = options.inside
        print(json.dumps(getattr(importlib.import_module("gpu_parts"), part)(options, what)))
        return
    found = tables.newest_gpu() if options.tables else measure(options)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    elif not (options.tables or options.small or found["card"] == NO_GPU):
        tables.save(f"gpu_{'_'.join(found['card'].lower().split())}", found)
    print("\n\n".join(tables.gpu_tables(found)))


def measure(options):
    """Return the contents of the JSON file."""
    end, parts = time.monotonic() + 60 * options.minutes, list_parts(options)
    with tempfile.TemporaryDirectory() as cache:
        job = functools.partial(run, options, end, cache)
        with ThreadPoolExecutor(1 if options.small else 16) as pool:
            for part in parts * (not options.small):
                if part[:2] == (FIT, "jax"):
                    pool.submit(job, part, rounds=0)  # compiles into the cache
            together = [part for part in parts if part[0] not in (FIT, ALONE)]
            ends = dict(zip(together, pool.map(job, together)))
        ends.update({part: job(part) for part in parts if part not in ends})
    packages = ("keras", *options.backends)
    versions = {"Python": platform.python_version(), "keras_accum": keras_accum.__version__}
    versions.update({name: metadata.version(name) for name in packages})
    found = {"card": find_card(), "date": f"{datetime.date.today()}", "versions": versions}
    for (part, backend, what), result in ends.items():
        result = (result or {}) if part in (ALONE, OUT_OF_MEMORY) else {what: result}
        found.setdefault(part, {}).setdefault(backend, {}).update(result)
    return found


def list_parts(options):
    """Return [(part, backend, what)]; times come last, those of `fit` first."""
    few = slice(1) if options.small else slice(None)
    names, parts = [*networks.on_gpu(options.small)][few], []
    for backend in options.backends:
        parts += [("distances", backend, setting) for setting in tables.SETTINGS[few]]
        parts += [("memory", backend, name) for name in tables.contenders_of(backend)[few]]
        parts.append((OUT_OF_MEMORY, backend, ""))
    parts += [(FIT, backend, name) for backend in options.backends for name in names]
    has_optax = bool(importlib.util.find_spec("optax"))
    return parts + [(ALONE, b, "") for b in options.backends if b != "jax" or has_optax]


def run(options, end, cache, part, rounds=None):
    """Return what a part has measured in a process, or None if it fails or takes too long."""
    what, backend, of = part
    rounds = options.rounds if rounds is None else rounds
    command = [sys.executable, __file__, "--inside", what, of, "--rounds", str(rounds)]
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **(FRACTION if what == OUT_OF_MEMORY else {}),
    }
    began, name = time.monotonic(), " ".join(filter(None, part))
    settings = {"env": environment, "capture_output": True, "text": True}
    try:
        command += ["--small"] * options.small
        job = subprocess.run(command, timeout=max(0.1, end - began), **settings)
    except subprocess.TimeoutExpired:
        print(f"{name}: no time left", file=sys.stderr)
        return None
    if job.returncode:
        print(f"{name} failed:\n{job.stderr[-2000:]}", file=sys.stderr)
        return None
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return json.loads(job.stdout.splitlines()[-1])


def find_card():
    """Return the GPU's name, such as NVIDIA H100 80GB HBM3."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NO_GPU
    return result.stdout.splitlines()[0].strip()


if __name__ == "__main__":
    main()
