"""Train steps without a model: given gradients, traced as the backend traces them."""

import hosts
import numpy as np
from training import LENGTH, Shrink, assert_equal, is_ours

if hosts.BACKEND == "jax":
    import jax

SHAPES = {"kernel": (4, 3), "bias": (3,), "three": (2, 3, 2)}
# Weights and gradients are far from 0, so that rounding can't change a sign.
WINDOWS = 3


def variables():
    random = np.random.default_rng(4)
    return [
        hosts.variable(
            random.choice([-1, 1], shape) * random.uniform(0.5, 1, shape),
            name,
            constraint=Shrink() if name == "bias" else None,
        )
        for name, shape in SHAPES.items()
    ]


def gradients():
    """A list of windows: each window has micro-batches, and each micro-batch has gradients."""
    random = np.random.default_rng(5)
    signs = [random.choice([-1, 1], shape) for shape in SHAPES.values()]
    return [
        [
            [(s * random.uniform(0.5, 1.5, s.shape)).astype(hosts.FLOATX) for s in signs]
            for _ in range(LENGTH)
        ]
        for _ in range(WINDOWS)
    ]


def prepared(optimizer, variables):
    if hosts.HAS_EMA:
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    hosts.build_on(optimizer, variables)
    return optimizer


def stepper(optimizer, variables):
    """Return a function of gradients that makes one step and is traced once."""
    # In graphs, stock Nadam of the newer style deviates from its formula.
    is_eager = hosts.IS_NEW_STYLE and not is_ours(optimizer)
    if is_eager or hosts.IS_KERAS2 or hosts.IS_TORCH:
        return lambda grads: hosts.apply(optimizer, grads, variables)
    if hosts.IS_TENSORFLOW:
        tf = hosts.tf

        @tf.function
        def step(*grads):
            optimizer.apply_gradients(list(zip(grads, variables)))

        def run(grads):
            step(*map(tf.constant, grads))

        run.traced = step
        return run
    step = jax.jit(optimizer.stateless_apply)

    def run(grads):
        own = optimizer.variables
        found = step([v.value for v in own], grads, [v.value for v in variables])
        for v, value in zip([*variables, *own], [*found[0], *found[1]]):
            v.assign(value)

    return run


def weights_and_state(optimizer, variables):
    """Everything that only an update may move."""
    weights = {f"weight of {name}": v for name, v in zip(SHAPES, variables)}
    found = {**weights, **hosts.slots(optimizer, variables)}
    ours = "window_", "accum_iters", "state_format", "missing_gradients", "unapplied"
    return {
        name: hosts.array(v)
        for name, v in found.items()
        if not any(word in name for word in ours) and not name.startswith("accumulator")
    }


def assert_windows_equal_big_batches(ours, stock, mine, theirs):
    """Compare two optimizers, ours and a stock one, that are built for `mine` and `theirs`."""
    step, big_step = stepper(ours, mine), stepper(stock, theirs)
    for micro_batches in gradients():
        before = weights_and_state(ours, mine)
        for grads in micro_batches[:-1]:
            step(grads)
            assert_equal(weights_and_state(ours, mine), before, rtol=0, atol=0)
        step(micro_batches[-1])
        big_step([np.mean(grads, axis=0) for grads in zip(*micro_batches)])
        after = weights_and_state(ours, mine)
        for name in (f"weight of {name}" for name in SHAPES):
            assert np.abs(after[name] - before[name]).max() > 1e-3, f"{name} hardly moved"
        assert_equal(after, weights_and_state(stock, theirs))
    if hosts.IS_TENSORFLOW and not hosts.IS_KERAS2:
        from graphs import conditionals, operations

        specs = [hosts.tf.TensorSpec(shape, hosts.FLOATX) for shape in SHAPES.values()]
        found = conditionals(operations(step.traced.python_function, *specs))
        assert found == (ours.gate == "conditional"), f"{found} conditionals"
