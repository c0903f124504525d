"""The figures of programs that XLA compiles for an H100 and a TPU v5e. No driver is needed.

`jax-cuda12-plugin` and `jax-cuda12-pjrt` compile for the one, `libtpu` for the other.
"""

import math
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

# Before the first import of JAX, or a plugin looks for its device.
os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from shared.contenders import FLOOR, IN_SLICES, STOCK

from . import K, hlo, programs

# NVIDIA H100 SXM5 80 GB, from its data sheet and the CUDA programming guide for 9.0.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3350000000000
  device_memory_size: 85899345920
  l2_cache_size: 52428800
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
runtime_version { major: 12 minor: 8 patch: 0 }
dnn_version_info { major: 9 minor: 10 patch: 0 }
"""


def find(platform, count=1):
    """Return 1 or 4 devices for "gpu" or "tpu"."""
    if platform == "tpu":
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    else:
        topology = topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{count}", target_config=H100
        )
    return topology.devices[:count]


def measure(platform):
    """Return {case: {contender: its figures}}."""
    (device,), cases = find(platform), {}
    for case, make in programs.CASES.items():
        made = make()
        if platform == "tpu":  # whose compiler doesn't say how many trips a loop over slices makes
            made.pop(IN_SLICES, None)
        rows = {name: figures(device, program) for name, program in made.items()}
        floor = mean([rows[FLOOR]["bytes"][0], rows[STOCK]["bytes"][1]])
        for name, row in rows.items():
            row["over_floor"] = round(mean(row["bytes"]) / floor, 3)
            print(platform, case, name, row, flush=True)
        cases[case] = rows
    return cases


def mean(pair):
    inside, at_end = pair
    return ((K - 1) * inside + at_end) / K


def figures(device, program):
    """The figures of a program, for one micro-batch. Pairs are inside a window and at its end.

    conditionals, loops: how many are in the program. waits: how often the runtime waits for the GPU
    to decide what comes next; not for a TPU. temporary: copies of the parameters. words: 4 bytes of
    a parameter that move.
    """
    made = [compile_for(device, program, decision) for decision in program.decisions]
    inside, at_end = made[0], made[-1]
    parameters = sum(weight.size for weight in program.donated[0])
    row = {key: max(each[key] for each in made) for key in ("conditionals", "loops", "temporary")}
    row["temporary"] = round(row["temporary"] / 4 / parameters, 2)
    if device.platform != "tpu":
        row["waits"] = [inside["waits"][0], at_end["waits"][1]]
    for key in ("kernels", "copies", "bytes"):
        pair = inside["runs"][0][key], at_end["runs"][1][key]
        row[key] = [round(figure / program.micro_batches) for figure in pair]
    row["words"] = [round(moved / 4 / parameters, 2) for moved in row["bytes"]]
    return row


def compile_for(device, program, decision):
    """Return what is in a program, and what it does inside a window and at its end."""
    sharding = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        (program.donated, program.data),
    )
    step = jax.jit(lambda *arguments: program.step(decision, *arguments), donate_argnums=0)
    with mock.patch.object(jax, "devices", lambda: [device]):  # by which the default gate chooses
        lowered = step.lower(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        on_gpu = {"xla_dump_to": folder} if device.platform != "tpu" else {}
        compiled = lowered.compile(compiler_options=on_gpu)
        # The last file is what is left after the passes, if a pass has changed anything.
        thunks = [path.read_text() for path in sorted(Path(folder).glob("*thunk_sequence*.txt"))]
    computations = hlo.read(compiled.as_text())
    loops = hlo.find(computations, "while")
    known = [loop for loop in loops if hlo.trips(loop) is not None]
    return {
        "conditionals": len(hlo.find(computations, "conditional")),
        "loops": len(loops),
        "runs": [hlo.run(computations, is_update) for is_update in (False, True)],
        "waits": _waits(thunks[-1], len(known)) if on_gpu else None,
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }


def _waits(thunks, known_loops):
    """Count the waits in the list of what XLA's runtime executes.

    Outside of CUDA graphs, the runtime copies the predicate of a conditional to the host, and that
    of a loop before each trip and after the last one. A loop of known length has no predicate.
    """
    found, graph = Counter(), math.inf
    for indent, kind in re.findall(r"^( *)\d+: k(\w+)", thunks, re.MULTILINE):
        if len(indent) <= graph:
            graph = len(indent) if kind == "CommandBuffer" else math.inf
            found[kind] += 1
    loops = found["While"] - known_loops
    return found["Conditional"] + loops, found["Conditional"] + 2 * loops
