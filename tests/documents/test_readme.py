"""The code in README.md, run as a reader would: the script, its further lines, and both roads."""

import re
import subprocess
import sys

import hosts
import pytest
from cases import thorough

README = hosts.PROJECT / "README.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README.read_text("utf-8"), re.S)

# The script with all digits: as it is, which warns, and then with the line that weighs.
ALL_DIGITS = """
from keras_accum import MicroBatchWeights
x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1) / 16
big_batch = train(keras.optimizers.Adam(), 50)
mean = train(AdamAccumulate(accum_iters=5), 10)
weighted = {line}
for name, found in (("mean", mean), ("weighted", weighted)):
    print(f"largest difference, {{name}}: {{abs(found - big_batch).max():.0e}}")
"""
# What the callback's lines take for granted, and the lines that save and load.
MODEL = """
layers = keras.layers.Flatten(), keras.layers.Dense(1)
model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
x, y = x[:100], y[:100]
"""
IN_A_WINDOW = """
print(int(model.optimizer.iterations), "batches of 50")
model.compile(AdamAccumulate(accum_iters=4), loss="mean_squared_error")
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
    (_, callback), (_, script), (_, output), (_, line), (_, save_and_load) = BLOCKS
    parts = script, ALL_DIGITS.format(line=line), MODEL, callback, IN_A_WINDOW, save_and_load, END
    (tmp_path / "script.py").write_text("\n".join(parts), "utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    printed, written = (
        re.findall(r"^(largest.*): +(\S+)$", text, re.M) for text in (done.stdout, output)
    )
    assert [label for label, _ in printed[:3]] == [label for label, _ in written]
    sliced, accumulated, small, mean, weighted = (float(number) for _, number in printed)
    assert max(sliced, accumulated) < 1e-4 < 0.1 < small
    assert weighted < 1e-4 < 1e-3 < mean
    assert done.stderr.count("have 1797 samples together, and the first one has 10") == 1
    assert "2 batches of 50" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 update, 2 micro-batches"
