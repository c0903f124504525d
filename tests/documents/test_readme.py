"""The script in README.md, run as a reader would, and the lines that save and load."""

import re
import subprocess
import sys

import hosts
import pytest
from cases import thorough

README = hosts.PROJECT / "README.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README.read_text("utf-8"), re.S)


# What the lines that save and load take for granted: a model in the middle of a window.
MODEL = """
layers = keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")
model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
model.compile(AdamAccumulate(accum_iters=4), loss="sparse_categorical_crossentropy")
x, y = x[:30], y[:30]
model.fit(x, y, batch_size=10)
"""
END = """
optimizer = model.optimizer
print(optimizer.completed_updates, "update,", optimizer.window_position, "micro-batches")
"""


@thorough
@pytest.mark.skipif(
    not (hosts.IS_KERAS3 and hosts.IS_TENSORFLOW),
    reason="the output in README is from Keras 3 on TensorFlow",
)
def test_scripts(tmp_path):
    (_, script), (_, output), (_, save_and_load) = BLOCKS
    program = "\n".join([script, MODEL, save_and_load, END])
    (tmp_path / "script.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True
    )
    printed, written = (
        re.findall(r"^(largest.*): +(\S+)$", text, re.M) for text in (done.stdout, output)
    )
    assert [label for label, _ in printed] == [label for label, _ in written]
    accumulated, micro_batches = (float(number) for _, number in printed)
    assert accumulated < 1e-4 < 0.1 < micro_batches
    assert done.stdout.splitlines()[-1] == "1 update, 2 micro-batches"
