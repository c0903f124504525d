"""docs/language_model.md shows the text of examples/language_model.py, and what it prints."""

import itertools
import os
import re
import subprocess
import sys
import textwrap

import hosts
import pytest
from cases import once, once_by_torch, thorough

if not hosts.IS_KERAS3:
    pytest.skip("the program is for Keras 3", allow_module_level=True)

PROGRAM = (hosts.PROJECT / "examples" / "language_model.py").read_text("utf-8")
PAGE = (hosts.PROJECT / "docs" / "language_model.md").read_text("utf-8")

# On TensorFlow, stock Adam squares each use of a word by itself; elsewhere, gradients are dense.
DENSE = """
import tensorflow as tf

class DenseAdam(keras.optimizers.Adam):
    def apply(self, gradients, variables):
        super().apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)

"""
SIZES = "SENTENCES, VALIDATION, EPOCHS = 1003, 256, 3"
SMALL = {
    SIZES: "SENTENCES, VALIDATION, EPOCHS = 136, 64, 2",
    "KILLED_IN = 2, 37": "KILLED_IN = 2, 13",
}


def form(printed):
    """What is printed, without its numbers, and with one line for all epochs in a row."""
    forms = [re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?", "0", line) for line in printed.splitlines()]
    forms = [re.sub(r"most in \S+", "most in a weight.", line) for line in forms]
    return [line for line, _ in itertools.groupby(forms)]


@thorough
@pytest.mark.weekly  # three processes, for nearly a minute
def test_the_program_prints_what_the_page_shows(tmp_path):
    """A second process continues to the bit, and the last check finds the big batch's weights."""
    script = PROGRAM
    for old, new in SMALL.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    if hosts.IS_TENSORFLOW:
        stock = "keras.optimizers.Adam(schedule"
        assert script.count(stock) == 1
        script = script.replace(stock, "DenseAdam(schedule").replace("\n# -- 8.", DENSE + "# -- 8.")
    file = tmp_path / "language_model.py"
    file.write_text(script, "utf-8")
    settings = {**os.environ, "KERAS_BACKEND": hosts.BACKEND, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, file], env=settings, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "UserWarning" not in result.stderr
    printed, shown = result.stdout, "".join(re.findall(r"```text\n(.*?)```", PAGE, re.S))
    if not hosts.IS_TORCH:
        shown = re.sub(r"(?m)^.*\bloop\b.*\n", "", shown)
    assert form(printed) == form(shown)

    number = r":? (-?\d[\d.e+-]*)"
    assert re.findall(rf"without a kill{number}", printed) == ["0.0"]
    (moved,) = re.findall(rf"moved by up to{number}", printed)
    distances = [float(found) for found in re.findall(rf"(?m)^(?:fit|loop){number}", printed)]
    assert len(distances) == 1 + hosts.IS_TORCH
    assert max(distances) < 1e-5 < 1e-3 < float(moved)


@once
def test_the_page_has_the_text_of_the_program():
    """Its steps are the program's, in their order, and have blocks of its code."""
    steps = re.findall(r"(?m)^# -- (\d\. .*?) -+$", PROGRAM)
    of_page = re.split(r"(?m)^## (\d\. .*)\n", PAGE)[1:]
    assert of_page[::2] == steps and len(steps) == 8
    for step, text in zip(steps, of_page[1::2]):
        blocks = re.findall(r"```python\n(.*?)```", text, re.S)
        assert blocks, step
        for block in blocks:
            indented = [textwrap.indent(block, " " * depth) for depth in (0, 4, 8, 12)]
            assert any(text in PROGRAM for text in indented), block
    _, of_loop = re.findall(r"```diff\n(.*?)```", PAGE, re.S)
    added = "".join(re.findall(r"(?m)^\+(.*\n)", of_loop))
    assert added and textwrap.indent(added, " " * 12) in PROGRAM


@thorough
@once_by_torch
def test_the_lines_that_change():
    """The lines with a plus end with the weights of those with a minus."""
    diff, _ = re.findall(r"```diff\n(.*?)```", PAGE, re.S)
    hosts.set_floatx("float32")
    names = {"__name__": "language_model"}
    exec(PROGRAM.replace(SIZES, SMALL[SIZES]), names)
    start, *found = (names["make_model"]() for _ in range(3))
    for other, model in zip("+-", found):
        script = re.sub(rf"(?m)^[{other}].*\n|^.", "", diff)
        script = re.sub(r"\bbatch_size", "shuffle=False, verbose=0, batch_size", script)
        exec(script, {**names, "model": model})
    distance = names["distance"]
    assert distance(*found) < 1e-5 < 1e-3 < distance(start, found[0])
