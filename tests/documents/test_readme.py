"""The script in README.md, run as a reader would, its two more lines, and those that save."""

import re
import subprocess
import sys

import hosts
import pytest
from cases import thorough

README = hosts.PROJECT / "README.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README.read_text("utf-8"), re.S)

# The script with all digits: first as it is, which warns, and then with the two lines.
WEIGHTED = (
    'AdamAccumulate(accum_iters=5, reduction="weighted")',
    "callbacks=[MicroBatchWeights()]",
)
ALL_DIGITS = """
import functools
from keras_accum import MicroBatchWeights
x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1) / 16
big_batch = train(keras.optimizers.Adam(), batch_size=50)
mean = train(AdamAccumulate(accum_iters=5), batch_size=10)
fit = keras.Model.fit
keras.Model.fit = functools.partialmethod(fit, {1})
weighted = train({0}, batch_size=10)
keras.Model.fit = fit
for name, found in (("mean", mean), ("weighted", weighted)):
    print(f"largest difference, {{name}}: {{abs(found - big_batch).max():.0e}}")
""".format(*WEIGHTED)

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
    (_, script), (_, output), (_, two_lines), (_, save_and_load) = BLOCKS
    assert all(line in two_lines for line in WEIGHTED)
    program = "\n".join([script, ALL_DIGITS, MODEL, save_and_load, END])
    (tmp_path / "script.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    printed, written = (
        re.findall(r"^(largest.*): +(\S+)$", text, re.M) for text in (done.stdout, output)
    )
    assert [label for label, _ in printed[:2]] == [label for label, _ in written]
    accumulated, micro_batches, mean, weighted = (float(number) for _, number in printed)
    assert accumulated < 1e-4 < 0.1 < micro_batches
    assert weighted < 1e-4 < 1e-3 < mean
    assert done.stderr.count("have 1797 samples together, and the first one has 10") == 1
    assert done.stdout.splitlines()[-1] == "1 update, 2 micro-batches"
