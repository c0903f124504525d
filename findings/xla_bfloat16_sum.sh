#!/usr/bin/env bash
# Expectation: gradients of slices that are added up in float32 on each GPU are summed over the GPUs in
# float32, too, by one all-reduce after the loop.
# What happens: if the layers compute in bfloat16, XLA rounds the float32 sums to bfloat16 for it: it moves
# the all-reduce out of the loop with the type that the gradient of a slice has there.
# Why it matters: a float32 accumulator keeps less than it seems to, on several GPUs alone. Where that
# counts, reduce by hand, with `shard_map` and `psum`. No GPU is needed to compile.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile jax==0.10.2 jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" - <<'PYTHON'
import re
import sys
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
H100 = """platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
gpu_device_info { cuda_compute_capability { major: 9 minor: 0 } core_count: 132 fpus_per_core: 128
  clock_rate_ghz: 1.98 memory_bandwidth: 3350000000000 device_memory_size: 85899345920
  l2_cache_size: 52428800 threads_per_warp: 32 threads_per_block_limit: 1024
  threads_per_core_limit: 2048 registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 }
runtime_version { major: 12 minor: 8 patch: 0 }
dnn_version_info { major: 9 minor: 10 patch: 0 }"""
devices = topologies.get_topology_desc(platform="cuda", topology="1x1x4", target_config=H100).devices
mesh = Mesh(devices, ("batch",))


def reduced(dtype):
    """Return the types of all-reduces of more than one number, and whether they are in the loop."""

    def loss(weights, x):
        return jnp.mean(jnp.square((x.astype(dtype) @ weights.astype(dtype)).astype(jnp.float32)))

    def step(weights, slices):
        add = lambda total, x: (total + jax.grad(loss)(weights, x), None)
        return jax.lax.scan(add, jnp.zeros_like(weights), slices)[0]

    def given(shape, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    slices = given((5, 64, 512), None, "batch", None)  # the rows of each, spread over the devices
    text = jax.jit(step).lower(given((512, 256)), slices).compile().as_text()
    entry = text[text.index("\nENTRY"):]
    types = re.findall(r"= (\w+)\[[\d,]+\]\S* all-reduce(?:-start)?\(", text)
    return types, len(re.findall(r" all-reduce(?:-start)?\(", entry))


print("jax", jax.__version__, "for four H100s; sums are float32")
found = {name: reduced(name) for name in ("float32", "bfloat16")}
for name, (types, outside) in found.items():
    print(f"layers compute in {name}: all-reduce of {types}, {outside} after the loop")
sys.exit(0 if found == {"float32": (["f32"], 1), "bfloat16": (["bf16"], 1)} else "The behavior has changed.")
PYTHON
