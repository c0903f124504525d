"""An H100 and a TPU v5e for XLA to compile for. Neither is there, and no driver is needed.

`jax-cuda12-plugin` and `jax-cuda12-pjrt` compile for the one, `libtpu` for the other.
"""

import math
import os
import re
import tempfile
from collections import Counter, namedtuple
from importlib import metadata
from pathlib import Path
from unittest import mock

# Before the first import of JAX, or a plugin looks for its device.
os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from . import hlo

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

# conditionals, loops: how many are in the program. runs: what happens inside a window, and at its
# end. waits: at these, how often the runtime waits for the GPU to decide what comes next; None for
# a TPU. temporary: bytes.
Compiled = namedtuple("Compiled", "conditionals loops runs waits temporary")


def find(platform, count=1):
    """Return 1 or 4 devices for "gpu" or "tpu"."""
    if platform == "tpu":
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    else:
        topology = topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{count}", target_config=H100
        )
    return topology.devices[:count]


def versions(platform):
    """Return {package: version} of what compiles."""
    plugins = {"gpu": ("jax-cuda12-plugin", "jax-cuda12-pjrt"), "tpu": ("libtpu",)}[platform]
    names = "jax", *plugins, "keras", "optax"
    return {name: metadata.version(name) for name in names}


def compile_for(device, function, *arguments):
    """Compile a function of shapes for a device. The memory of its first argument is donated."""
    sharding = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), arguments
    )
    with mock.patch.object(jax, "devices", lambda: [device]):  # by which the default gate chooses
        lowered = jax.jit(function, donate_argnums=0).lower(*arguments)
    if device.platform == "tpu":
        program, thunks = lowered.compile(), None
    else:
        with tempfile.TemporaryDirectory() as folder:
            program = lowered.compile(compiler_options={"xla_dump_to": folder})
            # The last file is what is left after the passes, if a pass has changed anything.
            *_, thunks = sorted(Path(folder).glob("*thunk_sequence*.txt"))
            thunks = thunks.read_text()
    computations = hlo.read(program.as_text())
    loops = hlo.find(computations, "while")
    known = [loop for loop in loops if hlo.trips(loop) is not None]
    return Compiled(
        conditionals=len(hlo.find(computations, "conditional")),
        loops=len(loops),
        runs=[hlo.run(computations, is_update) for is_update in (False, True)],
        waits=thunks and _waits(thunks, len(known)),
        temporary=program.memory_analysis().temp_size_in_bytes,
    )


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
