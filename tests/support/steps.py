"""Train steps without a model: given gradients, traced as the backend traces them."""

import hosts
import numpy as np
from graphs import branches, conditionals, operations
from training import LENGTH, assert_equal, is_ours

if hosts.BACKEND == "jax":
    import jax

SHAPES = {"kernel": (4, 3), "bias": (3,), "three": (2, 3, 2)}
# Weights and gradients are far from 0, so that rounding can't change a sign.
WINDOWS = 3


def shrink():
    """Return a constraint of Keras that takes 0.9 of a vector. A user's would choose a gate."""
    return hosts.keras.constraints.MinMaxNorm(min_value=0.0, max_value=0.0, rate=0.1)


def variables():
    random = np.random.default_rng(4)
    return [
        hosts.variable(
            random.choice([-1, 1], shape) * random.uniform(0.5, 1, shape),
            name,
            constraint=shrink() if name == "bias" else None,
        )
        for name, shape in SHAPES.items()
    ]


def copies_of(originals):
    copies = variables()
    for copy, original in zip(copies, originals):
        hosts.assign(copy, hosts.array(original))
    return copies


def gradients(lengths=(LENGTH,) * WINDOWS):
    """A list of windows: each window has micro-batches, and each micro-batch has gradients."""
    random = np.random.default_rng(5)
    signs = [random.choice([-1, 1], shape) for shape in SHAPES.values()]
    return [
        [
            [(s * random.uniform(0.5, 1.5, s.shape)).astype(hosts.FLOATX) for s in signs]
            for _ in range(length)
        ]
        for length in lengths
    ]


def take_steps(optimizer, variables, start=0, stop=None):
    """Make the micro-batch steps from `start` to `stop`, and return the optimizer."""
    hosts.build_on(optimizer, variables)
    for grads in sum(gradients(), [])[start:stop]:
        hosts.apply(optimizer, grads, variables)
    return optimizer


def made(optimizer):
    """Return an optimizer that is built, and its variables."""
    ws = variables()
    hosts.build_on(optimizer, ws)
    return optimizer, ws


def prepared(optimizer, variables):
    if hosts.HAS_EMA:
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    hosts.build_on(optimizer, variables)
    return optimizer


def stepper(optimizer, variables, say=None, is_static=False, **options):
    """Return a function of gradients that makes one step and is traced once.

    `say` is called in the step with the second argument of the function: a tensor or, if it
    `is_static`, a Python value, for each of which the step is traced. `options` are those of
    `tf.function`.
    """
    # In graphs, stock Nadam of the newer style deviates from its formula.
    is_eager = hosts.IS_NEW_STYLE and not is_ours(optimizer)
    say = say or (lambda value: None)
    if is_eager or hosts.IS_KERAS2 or hosts.IS_TORCH:

        def run(grads, value=None):
            is_python = is_static or value is None
            say(value if is_python else hosts.keras.ops.convert_to_tensor(value))
            hosts.apply(optimizer, grads, variables)

        return run
    if hosts.IS_TENSORFLOW:
        tf = hosts.tf

        @tf.function(**options)
        def step(value, *grads):
            say(value)
            optimizer.apply_gradients(list(zip(grads, variables)))

        def run(grads, value=None):
            value = value if is_static or value is None else tf.constant(value)
            step(value, *map(tf.constant, grads))
            assert step.experimental_get_tracing_count() <= 1 + is_static, "traced again"

        run.traced = step
        return run
    traces = []

    def step(value, *arguments):
        traces.append(value)
        say(value)
        return optimizer.stateless_apply(*arguments)

    jitted = jax.jit(step, static_argnums=[0] if is_static else [])

    def run(grads, value=None):
        own = optimizer.variables
        found = jitted(value, [v.value for v in own], grads, [v.value for v in variables])
        for v, value in zip([*variables, *own], [*found[0], *found[1]]):
            v.assign(value)
        assert len(traces) <= 1 + is_static, "traced again"

    return run


def weights_and_state(optimizer, variables):
    """Everything that only an update may move."""
    weights = {f"weight of {name}": hosts.array(v) for name, v in zip(SHAPES, variables)}
    return {**weights, **hosts.moved_by_updates(optimizer, variables)}


def assert_windows_equal_big_batches(ours, stock, mine, theirs, windows=None, step=None):
    """Compare two optimizers, ours and a stock one, that are built for `mine` and `theirs`.

    `step` takes the gradients of a micro-batch, and whether it is the last one of its window.
    """
    plain, big_step = stepper(ours, mine), stepper(stock, theirs)
    step = step or (lambda grads, is_last: plain(grads))
    for updates, micro_batches in enumerate(windows or gradients()):
        before = weights_and_state(ours, mine)
        take_window(ours, mine, micro_batches, step, updates)
        big_step([np.mean(grads, axis=0) for grads in zip(*micro_batches)])
        after = weights_and_state(ours, mine)
        for name in (f"weight of {name}" for name in SHAPES):
            assert np.abs(after[name] - before[name]).max() > 1e-3, f"{name} hardly moved"
        assert_equal(after, weights_and_state(stock, theirs))


def take_window(optimizer, variables, micro_batches, step, updates):
    """Make the steps of a window: before its last one nothing moves, to the bit."""
    before = weights_and_state(optimizer, variables)
    for position, grads in enumerate(micro_batches):
        assert (optimizer.completed_updates, optimizer.window_position) == (updates, position)
        assert_equal(weights_and_state(optimizer, variables), before, rtol=0, atol=0)
        step(grads, position + 1 == len(micro_batches))
    assert (optimizer.completed_updates, optimizer.window_position) == (updates + 1, 0)
    for name, variable in hosts.of_window(optimizer).items():
        is_kept = name in ("state_format", "accum_iters")
        assert is_kept or not hosts.array(variable).any(), f"{name} isn't 0 after a window"


def assert_branches(optimizer, variables, step=None, flag=None, is_of_user=False):
    """The program of a micro-batch has a branch if its gate is one, and no other.

    `flag` is the second argument of the step's graph. Elsewhere, Python decides.
    is_of_user: True if an update calls a user's code, which never is in a branch of auto on JAX.
    """
    if hosts.IS_TENSORFLOW and not hosts.IS_KERAS2:
        step = step or stepper(optimizer, variables)
        assert branches_of_graph(step, flag) == branches(optimizer)
    elif hosts.BACKEND == "jax":
        by_auto = optimizer.gate == "auto" and not is_of_user
        loops = int(by_auto or optimizer.gate == "conditional")
        assert branches_of_program(optimizer, variables) == (0, loops)


def branches_of_graph(step, flag=None):
    """Count the conditionals and loops of a step's graph on TensorFlow."""
    specs = [hosts.tf.TensorSpec(shape, hosts.FLOATX) for shape in SHAPES.values()]
    return conditionals(operations(step.traced.python_function, flag, *specs))


def branches_of_program(optimizer, variables):
    """Count the conditionals and the loops of a step's program on JAX."""
    state, weights = ([v.value for v in each] for each in (optimizer.variables, variables))
    program = str(jax.make_jaxpr(optimizer.stateless_apply)(state, weights, weights))
    return program.count("= cond["), program.count("= while[")
