#!/usr/bin/env bash
# Expectation: a .keras file of Keras 3.10 continues in 3.15 as it would in 3.10, whatever the optimizer.
# What happens: Adam and others do, bit by bit. Muon opens without a warning and with every slot, and trains
# differently: newer arguments (rms_rate, adam_weight_decay) aren't in the file, and their values aren't
# neutral.
# Why it matters: that all slots of an optimizer were restored doesn't show that its updates were.
# Source: keras/src/optimizers/muon.py of both releases
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
for keras in 3.10.0 3.15.1; do
  "$folder/bin/pip" install -q --no-compile --target "$folder/$keras" keras==$keras jax==0.10.2 numpy==2.4.6
done
cat > "$folder/run.py" <<'PYTHON'
import sys
import keras
import numpy

folder, saves = sys.argv[1], sys.argv[2] == "save"
x = numpy.random.default_rng(0).normal(size=(64, 3)).astype("float32")
y, found = 2 * x[:, :1], True
print("keras", keras.__version__)
for name in ("Adam", "Nadam", "Adafactor", "Lamb", "Muon"):
    file = f"{folder}/{name}.keras"
    if saves:
        keras.utils.set_random_seed(0)
        layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(getattr(keras.optimizers, name)(1e-2), "mse")
        model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
        model.save(file)
    model = keras.saving.load_model(file)
    slots = [numpy.array(slot) for slot in model.optimizer.variables]
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    now = slots + model.get_weights()
    if saves:
        numpy.savez(f"{folder}/{name}.npz", *now)
        continue
    with numpy.load(f"{folder}/{name}.npz") as then:
        differences = [float(abs(a - b).max()) for a, b in zip(now, then.values(), strict=True)]
    slot, weight = max(differences[: len(slots)]), max(differences[len(slots) :])
    print(f"{name}: slots after loading differ by {slot}, weights an epoch later by {weight:.1e}")
    found = found and slot == 0.0 and (weight > 1e-3 if name == "Muon" else weight < 1e-6)
sys.exit(0 if found else "The behavior has changed.")
PYTHON
export KERAS_BACKEND=jax JAX_PLATFORMS=cpu
PYTHONPATH="$folder/3.10.0" "$folder/bin/python" -W ignore "$folder/run.py" "$folder" save
PYTHONPATH="$folder/3.15.1" "$folder/bin/python" -W ignore "$folder/run.py" "$folder" load
