"""optax.MultiSteps and optax.microbatch, used as documented, for the table of everybody."""

import pickle
from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax

from .common import (
    AVERAGE,
    BIG,
    CLIP,
    DECAY,
    INFINITE,
    LEFT_OVER,
    MICRO,
    RATE,
    STOP,
    WINDOWS,
    Data,
    K,
    difference,
    start,
)

jax.config.update("jax_enable_x64", True)
FLOATX = "float64"


def versions():
    return {name: version(name) for name in ("jax", "optax")}


def columns():
    return {"optax.MultiSteps": MultiSteps(), "optax.microbatch": Microbatch()}


def forward(weights, x, heads, normalized=False):
    hidden = x @ weights["hidden"] + weights["hidden_bias"]
    if normalized:
        hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-3)
    hidden = jnp.tanh(hidden)
    out = hidden @ weights["out"] + weights["out_bias"]
    other = hidden @ weights["other"] + weights["other_bias"]
    return jnp.where(heads.reshape(-1, *[1] * (out.ndim - 1)) == 0, out, other)


def losses(weights, x, y, mask, heads, normalized=False):
    return jnp.mean((forward(weights, x, heads, normalized) - y) ** 2, -1) * mask


def loss_of(weights, x, y, mask, heads, normalized=False):
    return losses(weights, x, y, mask, heads, normalized).sum() / mask.sum()


gradients_of = jax.jit(jax.grad(loss_of), static_argnums=5)


def first():
    return jax.tree.map(jnp.asarray, start())


def rule(decay=0.0, clip=None, scheduled=False):
    rate = optax.exponential_decay(RATE, 1, 0.5) if scheduled else RATE
    clipping = optax.clip_by_global_norm(clip) if clip else optax.identity()
    return optax.chain(clipping, optax.adamw(rate, weight_decay=decay))


def averaged(old, new):
    return optax.incremental_update(new, old, 1 - AVERAGE)


def stock(data, average=False, normalized=False, leave=(), **of_rule):
    """optax's own loop at the big batch, without the micro-batches `leave`."""
    optimizer, weights = rule(**of_rule), first()
    state, mean = optimizer.init(weights), None
    parts = [part for i, part in enumerate(data.parts(MICRO)) if i not in leave]
    for i in range(0, len(parts), K):
        batch = [jnp.concatenate(arrays) for arrays in zip(*parts[i : i + K])]
        gradients = gradients_of(weights, *batch, normalized)
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        mean = weights if mean is None else averaged(mean, weights)
    return jax.tree.leaves(mean if average else weights)


class Column:
    def compare(self, data=None, leave=(), **both):
        data = data or Data()
        return difference(self.train(data, **both), stock(data, leave=leave, **both))

    def schedule(self):
        return self.compare(scheduled=True)

    def clipping(self):
        return self.compare(clip=CLIP)

    def decay(self):
        return self.compare(decay=DECAY)

    def average(self):
        return self.compare(average=True)

    def missing(self):
        return self.compare(Data(heads=True))

    def normalization(self):
        return self.compare(normalized=True)


class MultiSteps(Column):
    def train(self, data, average=False, normalized=False, stop=None, skip=None, **of_rule):
        more = {"accumulator_dtype": jnp.float64}  # it would be float32
        more.update({"should_skip_update_fn": skip} if skip else {})
        optimizer = optax.MultiSteps(rule(**of_rule), every_k_schedule=K, **more)
        weights, mean = first(), None
        state, update = optimizer.init(weights), jax.jit(optimizer.update)
        for i, batch in enumerate(data.parts(MICRO)):
            gradients = gradients_of(weights, *batch, normalized)
            updates, state = update(gradients, state, weights)
            weights = optax.apply_updates(weights, updates)
            if average and optimizer.has_updated(state):
                mean = weights if mean is None else averaged(mean, weights)
            if i + 1 == stop:
                weights, state = pickle.loads(pickle.dumps((weights, state)))
        return jax.tree.leaves(mean if average else weights)

    def tokens(self):
        return self.compare(Data(tokens=True))

    def last(self):
        data = Data(more=LEFT_OVER)
        found = self.train(data)
        closed = difference(found, stock(data))
        whole = difference(found, stock(data, leave=range(WINDOWS * K, data.count)))
        return "left over" if whole < closed else closed

    def continued(self):
        return difference(self.train(Data(), stop=STOP), stock(Data()))

    def infinite(self):
        data = Data(more=1)
        data.x[INFINITE * MICRO] = float("inf")
        found = self.train(data, skip=optax.skip_not_finite)
        return difference(found, stock(data, leave=[INFINITE]))


class Microbatch(Column):
    """The batch is split inside of the step, so a window is a call."""

    def train(self, data, average=False, normalized=False, **of_rule):
        optimizer, weights, mean = rule(**of_rule), first(), None
        state = optimizer.init(weights)

        def sums(weights, *batch):
            gradients = jax.grad(lambda w: losses(w, *batch, normalized).sum())(weights)
            return gradients, batch[2].sum()

        in_slices = optax.microbatching.microbatch(
            sums, argnums=(1, 2, 3, 4), microbatch_size=MICRO
        )
        for batch in data.parts(BIG):
            gradients, tokens = in_slices(weights, *map(jnp.asarray, batch))
            gradients = jax.tree.map(lambda total, by=tokens: total / by, gradients)
            updates, state = optimizer.update(gradients, state, weights)
            weights = optax.apply_updates(weights, updates)
            mean = weights if mean is None else averaged(mean, weights)
        return jax.tree.leaves(mean if average else weights)

    def tokens(self):
        return self.compare(Data(tokens=True))

    def last(self):
        return self.compare(Data(more=LEFT_OVER))

    def continued(self):
        return "no state inside a window"
