"""`decide`: in a loop of one's own, Python decides which micro-batch makes the update."""

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from training import assert_equal

LENGTHS = [2, 1, 3, 2]
can_decide = keras2_has_no("`decide`")


def micro_batches():
    """A list of windows: each window has micro-batches, and each micro-batch has gradients."""
    random = np.random.default_rng(6)
    signs = [random.choice([-1, 1], shape) for shape in steps.SHAPES.values()]

    def gradients():
        return [(s * random.uniform(0.5, 1.5, s.shape)).astype(hosts.FLOATX) for s in signs]

    return [[gradients() for _ in range(length)] for length in LENGTHS]


def made(optimizer):
    variables = steps.variables()
    hosts.build_on(optimizer, variables)
    return optimizer, variables


def adam(**arguments):
    return hosts.ours("Adam", **{**CASES["adam"].arguments, "accum_iters": 3, **arguments})


def stepper(optimizer, variables, before=lambda: None):
    """Return a function of a decision and gradients; `run.programs` has the text of each trace."""
    programs = {}
    if hosts.IS_TENSORFLOW:

        @hosts.tf.function
        def step(is_update, *grads):
            before()
            optimizer.decide(is_update)
            optimizer.apply_gradients(list(zip(grads, variables)))

        def run(is_update, grads):
            grads = list(map(hosts.tf.constant, grads))
            step(is_update, *grads)
            assert step.experimental_get_tracing_count() <= 2
            graph = step.get_concrete_function(is_update, *grads).graph
            programs[is_update] = " ".join(op.type for op in graph.get_operations())

    elif hosts.IS_TORCH:

        def run(is_update, grads):
            before()
            optimizer.decide(is_update)
            hosts.apply(optimizer, grads, variables)

    else:
        import jax

        traces = []

        def step(is_update, *arguments):
            traces.append(is_update)
            before()
            optimizer.decide(is_update)
            return optimizer.stateless_apply(*arguments)

        jitted = jax.jit(step, static_argnums=0)

        def run(is_update, grads):
            own = optimizer.variables
            values = [v.value for v in own], grads, [v.value for v in variables]
            found = jitted(is_update, *values)
            assert len(traces) == len(set(traces))
            if is_update not in programs:
                with_decision = jax.make_jaxpr(lambda *values: step(is_update, *values))
                programs[is_update] = str(with_decision(*values))
                traces.pop()
            for v, value in zip([*variables, *own], [*found[0], *found[1]]):
                v.assign(value)

    run.programs = programs
    return run


@can_decide
@on_adam_and_amsgrad
@quick_first("accum_iters", [None, 3])
@pytest.mark.usefixtures("every_gate")
def test_windows_equal_big_batches(case, accum_iters):
    ours, mine = made(hosts.ours(case.name, **{**case.arguments, "accum_iters": accum_iters}))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, big_step = stepper(ours, mine), steps.stepper(stock, theirs)
    for updates, window in enumerate(micro_batches()):
        before = steps.weights_and_state(ours, mine)
        for position, gradients in enumerate(window[:-1], 1):
            step(False, gradients)
            assert (ours.completed_updates, ours.window_position) == (updates, position)
        assert_equal(steps.weights_and_state(ours, mine), before, rtol=0, atol=0)
        step(True, window[-1])
        assert (ours.completed_updates, ours.window_position) == (updates + 1, 0)
        big_step([np.mean(gradients, axis=0) for gradients in zip(*window)])
        assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))
    if not hosts.IS_TORCH:
        assert "sqrt" not in step.programs[False].lower()
        assert "sqrt" in step.programs[True].lower()
        if hosts.IS_TENSORFLOW:
            assert not {"If", "StatelessIf", "While"} & set(step.programs[True].split())


@can_decide
def test_a_window_may_be_longer_than_its_length_and_counters_go_on_from_there():
    ours, mine = made(adam(accum_iters=2))
    stock, theirs = made(hosts.stock("Adam", **CASES["adam"].arguments))
    gradients = [window[0] for window in micro_batches()]
    step = stepper(ours, mine)
    for each in gradients[:3]:
        step(False, each)
    assert (ours.completed_updates, ours.window_position) == (0, 3)
    steps.stepper(ours, mine)(gradients[3])  # the counters decide: the window is full
    assert (ours.completed_updates, ours.window_position) == (1, 0)
    steps.stepper(stock, theirs)([np.mean(each, axis=0) for each in zip(*gradients)])
    assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))


@can_decide
def test_accum_iters_1_has_only_updates():
    ours, mine = made(adam(accum_iters=1))
    step = stepper(ours, mine)
    step(True, micro_batches()[0][0])
    assert ours.completed_updates == 1
    with pytest.raises(ValueError, match=r"`decide\(False\)` needs accumulators"):
        ours.decide(False)


@can_decide
@pytest.mark.parametrize("options", [{"skip_nonfinite": True}, {"skip_norm": 10.0}])
def test_what_only_the_device_knows(options):
    with pytest.raises(ValueError, match=f"`decide` can't be used with {next(iter(options))}"):
        adam(**options).decide(True)


@can_decide
def test_a_decision_is_a_boolean():
    with pytest.raises(TypeError, match=r"must be a Python boolean.*`close_window\(when\)`"):
        adam().decide(hosts.keras.backend.ones(()) if hosts.IS_TF_KERAS else np.ones(()))


@can_decide
def test_one_of_two_ways():
    ours, mine = made(adam())
    with pytest.raises(ValueError, match="can't be used with PythonGate or `decide`"):
        stepper(ours, mine, before=ours.close_window)(True, micro_batches()[0][0])


@can_decide
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
def test_outside_of_the_traced_function():
    ours, mine = made(adam())
    ours.decide(True)
    with pytest.raises(ValueError, match="`decide` was called outside of the traced function"):
        steps.stepper(ours, mine)(micro_batches()[0][0])


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about Keras 2.0 to 2.3")
def test_keras_2_has_no_train_step():
    with pytest.raises(RuntimeError, match="isn't available on Keras 2.*gate='conditional'"):
        adam().decide(True)


@can_decide
@pytest.mark.skipif(hosts.BACKEND != "jax", reason="about JAX's loops")
def test_a_window_in_one_jax_program():
    """The micro-batches before the last one in `lax.scan`, then the update: one program."""
    import jax

    ours, mine = made(adam())
    stock, theirs = made(hosts.stock("Adam", **CASES["adam"].arguments))
    window = micro_batches()[2]

    @jax.jit
    def run(weights, state, gradients):
        def add(carry, gradients):
            weights, state = carry
            ours.decide(False)
            return ours.stateless_apply(state, gradients, weights), None

        before, last = [g[:-1] for g in gradients], [g[-1] for g in gradients]
        (weights, state), _ = jax.lax.scan(add, (weights, state), before)
        ours.decide(True)
        return ours.stateless_apply(state, last, weights)

    stacked = [np.stack(g) for g in zip(*window)]
    values = run([v.value for v in mine], [v.value for v in ours.variables], stacked)
    for v, value in zip([*mine, *ours.variables], [*values[0], *values[1]]):
        v.assign(value)
    steps.stepper(stock, theirs)([np.mean(g, axis=0) for g in zip(*window)])
    assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))
