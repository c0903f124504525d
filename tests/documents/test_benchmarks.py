"""The figures in the documents are those that the benchmarks wrote, and all contenders exist."""

import hosts
import pytest
from cases import once

PROJECT = hosts.PROJECT


def read(name):
    return (PROJECT / name).read_text("utf-8")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


@once
def test_tables_are_those_of_their_results(tmp_path, monkeypatch):
    import report
    from accelerators import tables
    from everybody import common
    from matplotlib import pyplot

    found, compiled = report.load(), tables.load()
    assert set(found) == set(report.HOSTS)
    assert report.short_table(found) in read("docs/cost.md")
    page = read("benchmarks/README.md")
    for table in tables.short_table(compiled), tables.torch_table(compiled), common.table():
        assert table in page
    assert tables.reductions_table(compiled) in read("docs/devices.md")
    assert read("benchmarks/results/micro_batch.md") == report.long_table(found)
    assert read("benchmarks/results/accelerators.md") == tables.long_page(compiled)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.draw(found)  # the picture has bars
    assert len(pyplot.gca().containers) == 3 and all(pyplot.gca().containers)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="of PyTorch")
def test_where_pytorch_waits():
    from accelerators import tables, waits

    assert waits.count() == tables.load()["torch"]["cases"]


def test_contenders():
    from shared import contenders

    found = contenders.find(hosts.HOST)
    assert {contenders.SELECT, contenders.CONDITIONAL, contenders.FLOOR} < set(found)
    for contender in found.values():
        assert hasattr(contender.optimizer(2), "get_config")
