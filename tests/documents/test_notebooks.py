"""The notebooks run unchanged, and a reader finds what is needed to understand them."""

import json
import re

import hosts
import pytest

if not hosts.IS_KERAS3 or hosts.IS_TORCH:
    pytest.skip("the notebooks run on Keras 3 with TensorFlow or JAX", allow_module_level=True)

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the group `notebooks`")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need the group `notebooks`")

FOLDER = hosts.PROJECT / "notebooks"
NOTEBOOKS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
# It trains in float64, too. The others run on JAX, which starts in less time.
ON_TENSORFLOW = {"1_same_weights"}
HERE = ON_TENSORFLOW if hosts.IS_TENSORFLOW else NOTEBOOKS.keys() - ON_TENSORFLOW


# One represents the others, which run once a week.
MARKS = {"8_the_whole_batch": ()}
RUN = [pytest.param(name, marks=MARKS.get(name, pytest.mark.weekly)) for name in sorted(HERE)]


@pytest.mark.once
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_reader_finds(name):
    """A title for the site, outputs, and claims that the last cell asserts."""
    assert len(NOTEBOOKS) == 8
    cells = json.loads(NOTEBOOKS[name].read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    assert cells[0]["cell_type"] == "markdown" and sources[0].startswith("# ")
    assert cells[-1]["cell_type"] == "code" and "assert " in sources[-1]
    backends = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    for name in re.findall(r"^import (tensorflow|jax|torch)$", "\n".join(sources), re.M):
        assert f"needs {backends[name]}" in sources[0], "say in which backend it runs"
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    pictures = 0
    for before, source, cell in zip(sources, sources[1:], cells[1:]):
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr"  # frameworks' logs
            if "image/png" in output.get("data", {}):
                pictures += 1
                assert re.search("panel|bars|picture", before)
                assert all(f"{word}=" in source for word in ("title", "xlabel", "ylabel")), source
    assert pictures


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUN)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs(name):
    """A notebook runs in its folder, without a warning of ours. A cell asserts its claims."""
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("text", "") for output in outputs)
    assert not re.search("An epoch ended inside a window|isn't a mean over samples", shown)
