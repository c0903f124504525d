"""optax.MultiSteps and optax.microbatch, used as documented, for the table of everybody."""

import pickle
from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax

from .common import AVERAGE, BIG, MICRO, RATE, Column, K, start

jax.config.update("jax_enable_x64", True)


def forward(weights, x, heads, normalized):
    hidden = x @ weights["hidden"] + weights["hidden_bias"]
    if normalized:
        hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-3)
    hidden = jnp.tanh(hidden)
    out = hidden @ weights["out"] + weights["out_bias"]
    other = hidden @ weights["other"] + weights["other_bias"]
    return jnp.where(heads.reshape(-1, *[1] * (out.ndim - 1)) == 0, out, other)


def summed(weights, x, y, mask, heads, normalized):
    return (jnp.mean((forward(weights, x, heads, normalized) - y) ** 2, -1) * mask).sum()


def loss_of(weights, x, y, mask, heads, normalized):
    return summed(weights, x, y, mask, heads, normalized) / mask.sum()


gradients_of = jax.jit(jax.grad(loss_of), static_argnums=5)


def rule(case):
    rate = optax.exponential_decay(RATE, 1, 0.5) if case.scheduled else RATE
    clipping = optax.clip_by_global_norm(case.clip) if case.clip else optax.identity()
    return optax.chain(clipping, optax.adamw(rate, weight_decay=case.decay))


class OfOptax(Column):
    says = dict.fromkeys(("constraint", "replicas", "callbacks"), "-")

    def stock(self, case, data, leave):
        return loop(case, rule(case), data.parts(BIG, leave))


def loop(case, optimizer, batches, gradients_of=gradients_of, updates_at=lambda state: True):
    """optax's own loop; `updates_at` says whether there was an update."""
    weights, mean = jax.tree.map(jnp.asarray, start()), None
    state, update = optimizer.init(weights), jax.jit(optimizer.update)
    for i, batch in enumerate(batches, 1):
        gradients = gradients_of(weights, *map(jnp.asarray, batch), case.normalized)
        updates, state = update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        if updates_at(state):
            mean = weights if mean is None else optax.incremental_update(weights, mean, AVERAGE)
        if i == case.stop:
            weights, state = pickle.loads(pickle.dumps((weights, state)))
    return jax.tree.leaves(mean if case.average else weights)


class MultiSteps(OfOptax):
    def train(self, case, data):
        more = {"should_skip_update_fn": optax.skip_not_finite} if case.infinite else {}
        more["accumulator_dtype"] = jnp.float64  # it would be float32
        optimizer = optax.MultiSteps(rule(case), every_k_schedule=K, **more)
        return loop(case, optimizer, data.parts(MICRO), updates_at=optimizer.has_updated)


class Microbatch(OfOptax):
    """The batch is split inside of the step, so a window is a call."""

    says = {**OfOptax.says, "infinite": "-", "continued": "no state inside a window"}

    def train(self, case, data):
        def sums(weights, *batch):
            return jax.grad(summed)(weights, *batch, case.normalized), batch[2].sum()

        in_slices = optax.microbatching.microbatch(
            sums, argnums=(1, 2, 3, 4), microbatch_size=MICRO
        )

        def gradients_of(weights, *batch):
            gradients, tokens = in_slices(weights, *batch[:4])
            return jax.tree.map(lambda total: total / tokens, gradients)

        return loop(case, rule(case), data.parts(BIG), gradients_of)


def columns(group):
    """Return the versions, and {package: Column}."""
    versions = {name: version(name) for name in ("jax", "optax")}
    return versions, {"optax.MultiSteps": MultiSteps(), "optax.microbatch": Microbatch()}
