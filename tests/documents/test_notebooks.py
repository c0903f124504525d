"""The notebooks run unchanged, and the outputs saved in them are theirs."""

import json
import re

import hosts
import pytest

if not hosts.IS_KERAS3 or hosts.IS_TORCH:
    pytest.skip("the notebooks run on Keras 3 with TensorFlow or JAX", allow_module_level=True)

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the group `notebooks`")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need the group `notebooks`")

FOLDER = hosts.PROJECT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# JAX runs these in less time. The others run on TensorFlow, which has float64.
ON_JAX = "3_what_changes", "4_noise_scale", "8_the_whole_batch"
HERE = [path for path in NOTEBOOKS if (path.stem in ON_JAX) == (hosts.BACKEND == "jax")]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 8
    assert HERE


@every_notebook
def test_what_a_reader_finds(path):
    """A title, from which the site takes its own, and claims that the last cell asserts.

    The cell before a picture says what it shows, for readers who can't see it, and each picture has
    a title and labels.
    """
    cells = json.loads(path.read_text("utf-8"))["cells"]
    first, last = cells[0], cells[-1]
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
    assert last["cell_type"] == "code" and "assert " in "".join(last["source"])
    pictures = 0
    for before, cell in zip(cells, cells[1:]):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            pictures += 1
            said, source = "".join(before["source"]), "".join(cell["source"])
            assert before["cell_type"] == "markdown" and re.search("panel|bars|picture", said)
            assert all(f"{word}=" in source for word in ("title", "xlabel", "ylabel")), source
    assert pictures


@every_notebook
def test_saved_with_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)  # frameworks' logs


@pytest.mark.thorough
@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs(path):
    """A notebook runs in its folder. A cell whose claim doesn't hold raises an error."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
