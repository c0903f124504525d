#!/usr/bin/env bash
# Expectation: with optax.MultiSteps around apply_if_finite or zero_nans, a NaN in a micro-batch costs
# its window, and the next window is clean.
# What happens: the sums of MultiSteps stay NaN. They are reset by a product with 0, and 0 * NaN is NaN:
# no later window changes the weights, and gradient_step continues to count.
# Why it matters: a training that looks alive has stopped. Filter in MultiSteps, by skip_not_finite.
# Source: https://github.com/google-deepmind/optax/issues/828 has the case with zero_nans.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile jax==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/bin/python" - <<'PYTHON'
import sys
import jax
import jax.numpy as jnp
import optax


def updates(optimizer):
    weights = jnp.zeros(1)
    state, made = optimizer.init(weights), []
    for gradient in (1.0, float("nan"), 3.0, 5.0, 7.0, 9.0):
        update, state = optimizer.update(jnp.array([gradient]), state, weights)
        made.append(float(update[0]))
    return made, float(state.acc_grads[0]), int(state.gradient_step)


inner = {
    "apply_if_finite": optax.apply_if_finite(optax.sgd(1.0), max_consecutive_errors=100),
    "zero_nans": optax.chain(optax.zero_nans(), optax.sgd(1.0)),
}
print("jax", jax.__version__, "optax", optax.__version__)
print("gradients 1, NaN | 3, 5 | 7, 9 in windows of 2; expected updates: 0, -4, -8")
same = True
for name, optimizer in inner.items():
    made, sums, steps = updates(optax.MultiSteps(optimizer, 2))
    print(f"MultiSteps({name}): updates {made}, sums {sums}, gradient_step {steps}")
    same = same and not any(made) and sums != sums and steps == 3
skip = optax.MultiSteps(optax.sgd(1.0), 2, should_skip_update_fn=optax.skip_not_finite)
made, sums, steps = updates(skip)
print(f"MultiSteps with skip_not_finite: updates {made}, sums {sums}, gradient_step {steps}")
same = same and made[2] == -2.0 and made[4] == -6.0 and sums == 9.0
sys.exit(0 if same else "The behavior has changed.")
PYTHON
