"""The figures in docs/cost.md are those that the benchmarks wrote, and all contenders exist."""

import hosts
import pytest
from cases import once

PROJECT = hosts.PROJECT


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


@once
def test_tables_are_those_of_their_results():
    import everybody
    import report

    found = report.load()
    assert set(found) == set(report.HOSTS)
    assert report.short_table(found) in (PROJECT / "docs/cost.md").read_text("utf-8")
    page = (PROJECT / "benchmarks/results/micro_batch.md").read_text("utf-8")
    assert page == report.long_table(found)
    assert everybody.table() in (PROJECT / "docs/exactness.md").read_text("utf-8")


def test_contenders():
    import contenders

    found = contenders.find(hosts.HOST)
    assert {contenders.SELECT, contenders.CONDITIONAL, contenders.FLOOR} < set(found)
    for contender in found.values():
        assert hasattr(contender.optimizer(2), "get_config")
