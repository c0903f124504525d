"""The code in README.md runs, and its figures are those of the benchmarks and the picture."""

import re

import hosts
import numpy as np
import pytest
from cases import once, thorough

import keras_accum

pytestmark = pytest.mark.filterwarnings("error:An epoch ended inside a window")
README = (hosts.PROJECT / "README.md").read_text("utf-8")
(DIFF,) = re.findall(r"```diff\n(.*?)```", README, re.S)
STOCK, OURS = (re.sub(rf"(?m)^[{other}].*\n|^..", "", DIFF) for other in "+-")


def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights())
    return max(abs(ours - of_stock).max() for ours, of_stock in pairs)


@thorough
@once
def test_scripts():
    """The new lines end with the weights of the old ones, also with a short last window."""
    hosts.set_floatx("float32")
    random, found = np.random.default_rng(0), []
    for script in (OURS, STOCK):
        hosts.keras.utils.set_random_seed(1)
        names = {"x": random.random((1013, 20)), "y": random.random((1013, 1))}
        if found:
            names.update(x=found[0]["x"], y=found[0]["y"])
        layers = hosts.keras.layers.Dense(64, activation="tanh"), hosts.keras.layers.Dense(1)
        names["model"] = hosts.keras.Sequential([hosts.keras.Input((20,)), *layers])
        exec(script.replace("batch_size", "shuffle=False, batch_size"), names)
        found.append(names)
    names, stock = found
    assert distance(names["model"], stock["model"]) < 1e-5
    assert type(stock["model"].optimizer) is hosts.keras.optimizers.Adam
    assert names["model"].optimizer.completed_updates == 21


@once
def test_it_is_short():
    assert len(README.split()) <= 900


def test_type_checkers_know_every_line_of_python():
    """`typed_uses.py` has the script and the imports, and no complaint about them."""
    uses = (hosts.TESTS / "package" / "typed_uses.py").read_text("utf-8").splitlines()
    imports = re.findall(r"`(from keras_accum\S* import \w+)`", README)
    assert len({*imports}) == 3
    assert {*filter(None, OURS.splitlines()), *imports} <= {line.strip() for line in uses}


@once
def test_the_comparison_is_that_of_the_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(hosts.PROJECT / "benchmarks"))
    import tables

    def rows(text):
        lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        return {cells[0]: cells[1:] for cells in lines if cells[0] != "---"}

    measured, shown = rows(tables.everybody_table()), rows(README[README.index("| case |") :])
    places = [measured["case"].index(package) for package in shown["case"]]
    cases = shown.keys() & measured.keys()
    assert len(cases) == 4  # the heads, too
    for case in cases:
        assert shown[case] == [measured[case][place] for place in places]


def test_it_names_the_version():
    major_and_minor = keras_accum.__version__.rpartition(".")[0]
    assert f"keras_accum {major_and_minor} " in README


@once
def test_the_picture_ends_at_the_losses_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(hosts.PROJECT / "docs" / "site"))
    import draw_curves

    losses = re.findall(r"\b0\.\d{4}\b", README)
    assert len(losses) == 3
    ends = [y for _, y in draw_curves.points([float(loss) for loss in losses])]
    picture = (hosts.PROJECT / "docs" / "images" / "curves.svg").read_text("utf-8")
    curves = re.findall(r'points="([^"]+)"', picture)
    found = sorted(float(curve.split(",")[-1]) for curve in curves if len(curve.split()) == 15)
    np.testing.assert_allclose(found, sorted(ends), atol=0.2)
