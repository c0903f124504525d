"""The notebooks run unchanged, and the outputs saved in them are theirs."""

import json
import re

import hosts
import pytest

if not hosts.IS_KERAS3 or hosts.IS_TORCH:
    pytest.skip("the notebooks run on Keras 3 with TensorFlow or JAX", allow_module_level=True)

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the extra `notebooks`")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need the extra `notebooks`")

FOLDER = hosts.PROJECT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# JAX runs these in a third of the time. The others run on TensorFlow, which has float64.
ON_JAX = "4_noise_scale", "8_the_whole_batch"
HERE = [path for path in NOTEBOOKS if (path.stem in ON_JAX) == (hosts.BACKEND == "jax")]


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 8
    assert HERE


@every_notebook
def test_begins_with_a_title(path):
    """The documentation takes the title from the first line."""
    first = json.loads(path.read_text("utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")


@every_notebook
def test_text_before_each_picture(path):
    """The cell before a picture says what the picture shows, for readers who can't see it."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    for before, cell in zip(cells, cells[1:]):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            said = "".join(before["source"])
            assert before["cell_type"] == "markdown" and re.search("panel|bars|picture", said)


@every_notebook
def test_each_panel_has_a_title_and_labels(path):
    """One title, x label and y label at least for each picture."""
    for cell in code_cells(json.loads(path.read_text("utf-8"))):
        if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            source = "".join(cell["source"])
            assert all(word + "=" in source for word in ("title", "xlabel", "ylabel")), source


@every_notebook
def test_saved_with_outputs(path):
    cells = code_cells(json.loads(path.read_text("utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)  # frameworks' logs


@every_notebook
def test_the_last_cell_asserts_the_claims(path):
    last = json.loads(path.read_text("utf-8"))["cells"][-1]
    assert last["cell_type"] == "code" and "assert " in "".join(last["source"])


@pytest.mark.thorough
@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs(path):
    """A notebook runs in its folder. A cell whose claim doesn't hold raises an error."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
