"""The figures in docs/cost.md are those that the benchmarks wrote, and all contenders exist."""


import hosts
import pytest

PROJECT = hosts.PROJECT


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


def test_the_table_in_the_documentation_is_the_table_of_the_report():
    import report

    found = report.load()
    assert set(found) == set(report.HOSTS)
    assert report.short_table(found) in (PROJECT / "docs/cost.md").read_text("utf-8")
    path = PROJECT / "benchmarks/results/micro_batch.md"
    assert path.read_text("utf-8") == report.long_table(found)


def test_the_table_of_everybody_is_that_of_its_results():
    import everybody

    assert everybody.table() in (PROJECT / "docs/exactness.md").read_text("utf-8")


def test_contenders():
    import contenders

    found = contenders.find(hosts.HOST)
    assert {contenders.SELECT, contenders.CONDITIONAL, contenders.FLOOR} < set(found)
    for contender in found.values():
        assert hasattr(contender.optimizer(2), "get_config")
