"""The snippets of docs/devices.md, each in its processes, end with the big batch's weights."""

import importlib.util
import re
import sys

import hosts
import numpy as np
import pytest
import snippet
from cases import once, thorough
from processes import run_together, two_free_ports, two_workers
from training import assert_equal, compiled, dense_model, fit, weights

PAGE = (hosts.PROJECT / "docs" / "devices.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, re.S))
START = (hosts.PROJECT / "docs" / "start.md").read_text("utf-8")
(OF_START,) = re.findall(r"```python\n# several GPUs\n(.*?)```", START, re.S)
BLOCKS.update({f"start, {devices} GPUs": OF_START for devices in (4, 8)})
HOST = {"keras3": hosts.BACKEND}.get(hosts.HOST, hosts.HOST)
HAS_HOROVOD = hosts.IS_KERAS2 and importlib.util.find_spec("horovod")

# The host of each snippet, and how many processes and, where they are counted, reductions it has.
ROWS = {
    "DataParallel": ("jax", 1, -1),
    "start, 4 GPUs": ("jax", 1, -1),
    "start, 8 GPUs": ("jax", 1, -1),
    "ModelParallel": ("jax", 1, -1),
    "DataParallel, several processes": ("jax", 2, -1),
    "ModelParallel, several processes": ("jax", 2, -1),
    "MirroredStrategy": ("tensorflow", 1, -1),
    "MirroredStrategy, tf_keras": ("tf_keras", 1, -1),
    "MultiWorkerMirroredStrategy": ("tensorflow", 2, -1),
    "DistributedDataParallel, fit": (
        "torch" if hosts.IS_KERAS_3_16 else "torch on a newer Keras", 2, snippet.UPDATES,
    ),
    "DistributedDataParallel, no_sync": ("torch", 2, 3 * snippet.UPDATES),
    "Horovod": ("keras2", 2, -1) if HAS_HOROVOD else ("keras2", 1, 1),  # once in the graph
}  # fmt: skip
# Loops of three epochs, which leave out the samples after the last big batch.
LOOPS = "DistributedDataParallel, no_sync", "MultiWorkerMirroredStrategy"
# What the page says of several processes: `ModelParallel` in place of `DataParallel`.
LAYOUT = re.search(r"(?m)^mesh(.*\n)+parallel.*\n", BLOCKS["ModelParallel"])[0]
BLOCKS["ModelParallel, several processes"] = re.sub(
    r"(?m)^parallel.*\n",
    LAYOUT.replace('"batch")', '"batch", auto_shard_dataset=False)'),
    BLOCKS["DataParallel, several processes"],
)


@once
def test_each_snippet_has_a_row():
    """Or it is the loop of the script that `test_recipes.py` runs."""
    assert set(BLOCKS) == set(ROWS)
    script = (hosts.PROJECT / "examples" / "several_processes.py").read_text("utf-8")
    (loop,) = re.findall(r"```python\n(for epoch in range\(EPOCHS\).*?)```", PAGE, re.S)
    assert PAGE.count("```python") == len(ROWS) - 2 and loop in script


def programs(name, processes, path):
    """Return what `run_together` runs."""
    (path / "script.py").write_text(BLOCKS[name], "utf-8")
    command = [hosts.SUPPORT / "snippet.py", path / "script.py", path / "end"]
    port, *_ = two_free_ports()
    shared = {"PROCESSES": str(processes), "ADDRESS": f"localhost:{port}"}
    if name in LOOPS:
        shared["LEFT"] = "100"
    if name.startswith("start"):
        shared["DEVICES"] = name.split()[1]
    if processes == 2:
        shared["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    if name == "Horovod" and processes == 2:
        launch = "-m", "horovod.runner.launch", "-np", 2, "--gloo", sys.executable
        return [([*launch, *command, "of its own"], shared)]
    if name == "MultiWorkerMirroredStrategy":
        configs = [environment for _, environment in two_workers("")]
    else:
        configs = [
            {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
            for rank in range(processes)
        ]
    return [
        ([*command, rank], {**shared, **{key: str(value) for key, value in config.items()}})
        for rank, config in enumerate(configs)
    ]


@thorough
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[0] == HOST])
def test_it_equals_one_device_at_the_big_batch(name, tmp_path):
    """With as many reductions in an update as its row says, where they are counted."""
    _, processes, reductions = ROWS[name]
    run_together(programs(name, processes, tmp_path))
    model = compiled(dense_model(), hosts.stock("Adam"))
    start = weights(model)
    arrays, epochs = [a.astype(hosts.FLOATX) for a in snippet.data()], 3 if name in LOOPS else 1
    fit(model, snippet.BIG, arrays, epochs=epochs)
    for rank in range(processes):
        with np.load(tmp_path / f"end-{rank}.npz") as end:
            assert_equal(dict(end), weights(model))
            assert end["reductions"] == reductions
    assert max(np.abs(w - start[name]).max() for name, w in weights(model).items()) > 1e-3
