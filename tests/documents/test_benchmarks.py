"""The figures in the documents are those that the benchmarks wrote, and all contenders exist."""

import hosts
import pytest
from cases import once
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
def test_tables_are_those_of_their_results(tmp_path, monkeypatch):
    import report
    from accelerators import tables
    from everybody import common
    from matplotlib import pyplot

    found, compiled = report.load(), tables.load()
    assert set(found) == set(report.HOSTS)
    for table in report.short_table(found), report.ranges_table(found):
        assert table in read("docs/cost.md")
    page = read("benchmarks/README.md")
    for table in tables.short_table(compiled), tables.torch_table(compiled), common.table():
        assert table in page
    assert tables.reductions_table(compiled) in read("docs/devices.md")
    assert read("benchmarks/results/micro_batch.md") == report.long_table(found)
    assert read("benchmarks/results/accelerators.md") == tables.long_page(compiled)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.draw(found)  # the picture has bars
    assert len(pyplot.gca().containers) == 3 and all(pyplot.gca().containers)


@pytest.mark.skipif(not hosts.IS_TORCH or hosts.IS_KERAS_3_16, reason="PyTorch and Keras 3.15's")
def test_where_pytorch_waits():
    from accelerators import tables, waits

    assert waits.count() == tables.load()["torch"]["cases"]


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
