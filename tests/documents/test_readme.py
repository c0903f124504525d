"""The code in README.md runs: the script, its further lines, and both roads."""

import re

import hosts
import pytest
from cases import once, thorough

README = (hosts.PROJECT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README, re.S)

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
assert model.optimizer.iterations == 2  # batches of 50
model.compile(AdamAccumulate(accum_iters=4), loss="mean_squared_error")
x, y = x[:30], y[:30]
model.fit(x, y, batch_size=10)
"""


@thorough
@once
def test_scripts(tmp_path, monkeypatch, capsys):
    """The script makes two of its ten epochs here."""
    hosts.set_floatx("float32")
    monkeypatch.chdir(tmp_path)
    (_, callback), (_, script), (_, output), (_, line), (_, save_and_load) = BLOCKS
    script = script.replace('"epochs": 10', '"epochs": 2')
    parts = script, ALL_DIGITS.format(line=line), MODEL, callback, IN_A_WINDOW, save_and_load
    names = {}
    with pytest.warns(UserWarning, match="1797 samples together, and the first one has 10"):
        exec("\n".join(parts), names)
    printed, written = (
        re.findall(r"^(largest.*): +(\S+)$", text, re.M)
        for text in (capsys.readouterr().out, output)
    )
    assert [label for label, _ in printed[:3]] == [label for label, _ in written]
    sliced, accumulated, small, mean, weighted = (float(number) for _, number in printed)
    assert max(sliced, accumulated) < 1e-5 < 1e-2 < small
    assert weighted < 1e-5 < 1e-4 < mean
    optimizer = names["model"].optimizer
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)
