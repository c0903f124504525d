"""The figures in the documents are those that the benchmarks wrote, and all contenders exist."""

import json
import re
import subprocess
import sys

import hosts
import pytest
from cases import once, quick_once, thorough
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    assert_moved,
    compiled,
    data,
    dense_model,
    fit,
    initialize,
    weights,
)

PROJECT = hosts.PROJECT


def read(name):
    return (PROJECT / name).read_text("utf-8")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


@once
def test_tables_are_those_of_their_results(tmp_path):
    import tables
    from matplotlib import pyplot

    for page, shown in tables.in_pages().items():
        assert [table for table in shown if table not in read(page)] == []
        assert "results" not in page or read(page) == shown[0]
    tables.draw(tmp_path / "drawn.png")  # the picture has bars
    assert len(pyplot.gca().containers) == 3 and all(pyplot.gca().containers)
    prose = re.sub(r"(?m)^[|!].*\n", "", read("docs/cost.md"))
    assert re.findall(r"\d\.\d+ to \d", prose) == []  # a range is in a table


@once
def test_ranges_of_rounding_are_those_of_their_tables():
    page = read("docs/exactness.md")
    rows = re.findall(r"(?m)^\| `(mixed_\w+)` \| \w+ \| (\S+) ", page)
    assert len(rows) == 4
    half = [float(found) for _, found in rows]
    bfloat16 = [float(found) for policy, found in rows if policy == "mixed_bfloat16"]
    assert f"[{shown(half)}](exactness.md#half-precision)" in read("docs/why_different.md")
    assert f"[{shown(bfloat16)}](exactness.md#half-precision)" in read("docs/train.md")
    (worst,) = re.findall(r"(?m)^\| relu \| worst of 20 \| (\S+) ", page)
    for name in ("exactness", "why_different", "language_model"):
        assert shown([float(worst)]) in read(f"docs/{name}.md")


def shown(figures):
    """Return the least and the most of some distances, as prose has them."""
    ends = dict.fromkeys((min(figures), max(figures)))
    return " to ".join(f"{end:.0e}" for end in ends).replace("e-0", "e-")


@once
def test_tables_of_a_gpu_name_their_card_and_versions():
    import tables

    found, alone = tables.newest_gpu(), tables.newest_gpu("alone")
    pages = ("benchmarks/README.md", found), ("benchmarks/README.md", alone)
    for page, of in (*pages, ("docs/exactness.md", found)):
        parts = of["card"], of["date"], f"keras_accum {of['versions']['keras_accum']}"
        assert [part for part in parts if part not in read(page)] == []


@pytest.mark.weekly
@thorough
@once
def test_the_benchmark_of_a_gpu_runs_without_one(tmp_path):
    """Every part of it, on small networks."""
    import tables

    path = tmp_path / "found.json"
    program = str(PROJECT / "benchmarks" / "gpu.py")
    settings = "--small", "--rounds", "1", "--backends", hosts.BACKEND, "--write", str(path)
    job = subprocess.run([sys.executable, program, *settings], capture_output=True, text=True)
    assert job.returncode == 0 and "failed" not in job.stderr, job.stderr
    found = json.loads(path.read_text("utf-8"))
    (times,) = found["fit"][hosts.BACKEND].values()
    assert list(times) == tables.contenders_of(hosts.BACKEND) and all(times.values())
    (networks,) = found["distances"][hosts.BACKEND].values()
    for distances in networks.values():
        assert len(distances) == 4 and 0 < max(distances.values()) < 1e-4
    ends = found["out_of_memory"][hosts.BACKEND]
    assert len(ends) == 4 and max(ends.values()) < 1e-6  # all trained
    assert tables.fit_table(found, hosts.BACKEND) in job.stdout


@pytest.mark.skipif(not hosts.IS_TORCH or hosts.IS_KERAS_3_16, reason="PyTorch and Keras 3.15's")
def test_where_pytorch_waits():
    import tables
    from accelerators import waits

    assert waits.measure() == tables.compiled("torch")["cases"]


@thorough
@pytest.mark.skipif(not hosts.IS_TORCH, reason="about PyTorch")
def test_the_time_of_python_is_printed():
    program = str(PROJECT / "benchmarks" / "launch.py")
    job = subprocess.run([sys.executable, program, "--rounds", "1"], capture_output=True, text=True)
    *_, head, _, plain, mean, weighted, nonfinite, norm = job.stdout.splitlines()
    assert head == "| | inside a window | its end | `fit` |"
    assert [row.split(" | ")[0] for row in (plain, mean, weighted, nonfinite, norm)] == [
        *("| plain", "| mean", "| weighted", "| skip_nonfinite", "| skip_norm")
    ]
    assert head in read("benchmarks/README.md")


@quick_once
def test_contenders():
    """Each trains as the stock optimizer at the big batch, but the floor, which never moves."""
    from shared import contenders

    found = contenders.find(hosts.HOST)
    assert {contenders.SELECT, contenders.CONDITIONAL, contenders.FLOOR} < set(found)
    start = weights(initialize(dense_model()))
    ends = {name: weights(trained_by(contender)) for name, contender in found.items()}
    assert_equal(ends[contenders.FLOOR], start, rtol=0, atol=0)
    assert_moved(start, ends[contenders.BIG], by=1e-4)
    # A step of stock Keras 2 doesn't repeat, so other tests compare ours with NumPy.
    reference = contenders.SELECT if hosts.IS_KERAS2 else contenders.BIG
    others = {contenders.FLOOR, contenders.STOCK, *[contenders.BIG] * hosts.IS_KERAS2}
    for name in {*found} - others:  # the stock optimizer updates at each batch
        assert_equal(ends[name], ends[reference])


def trained_by(contender):
    """Return the model after one window."""
    model = contender.wrap(dense_model(), LENGTH)
    compiled(model, contender.optimizer(LENGTH))
    size = BIG if contender.big else MICRO
    arrays = [array[:BIG] for array in data()]
    fit(model, size, arrays, callbacks=contender.callbacks(), epochs=1)
    return model
