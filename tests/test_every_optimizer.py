"""Every optimizer with all features at once, which tests `accumulating` on the stock classes.

There is no `fit`: train steps get given gradients and are traced as the backend traces them.
"""

from functools import partial

import hosts
import numpy as np
import pytest
from cases import CASES, NO_DECAY, every_special, every_state, thorough
from hosts import keras
from training import LENGTH, UPDATES, Shrink, assert_equal

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
    """One list per window, in it one per micro-batch, in it one gradient per variable."""
    random = np.random.default_rng(5)
    signs = [random.choice([-1, 1], shape) for shape in SHAPES.values()]
    return [
        [
            [(s * random.uniform(0.5, 1.5, s.shape)).astype(hosts.FLOATX) for s in signs]
            for _ in range(LENGTH)
        ]
        for _ in range(WINDOWS)
    ]


def everything(case):
    """Arguments for everything that the host's optimizer can do."""
    rate = case.arguments["learning_rate"]
    if hosts.IS_KERAS2:
        decay = {} if case.name == "Nadam" else {"decay": 0.25}  # the stock Nadam has no decay
        return {**case.arguments, **decay, "clipnorm": 0.5}
    schedule = hosts.EachUpdate([rate / (1 + update) for update in range(UPDATES)])
    more = {"learning_rate": rate if case.name in NO_DECAY else schedule, "global_clipnorm": 0.75}
    if hosts.IS_KERAS3:
        more.update(weight_decay=0.25, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    return {**case.arguments, **more}


def prepared(optimizer, variables):
    if hosts.IS_KERAS3:
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    hosts.build_on(optimizer, variables)
    return optimizer


def stepper(optimizer, variables):
    """Return a function of gradients that makes one step and is traced once."""
    if hosts.IS_KERAS2 or hosts.IS_TORCH:
        return lambda grads: hosts.apply(optimizer, grads, variables)
    if hosts.IS_TENSORFLOW:
        tf = hosts.tf

        @tf.function(autograph=False)
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


@thorough
@every_special
def test_everything_at_once_in_a_conditional(case):
    everything_at_once(case, "conditional")


@every_state
def test_everything_at_once(case):
    everything_at_once(case, "select")


def everything_at_once(case, gate):
    """Nothing moves inside a window, to the bit; its end has the big batch's weights and state."""
    mine, theirs = variables(), variables()
    more = everything(case)
    ours = prepared(hosts.ours(case.name, accum_iters=LENGTH, gate=gate, **more), mine)
    stock = prepared(hosts.stock(case.name, **more), theirs)
    assert_windows_equal_big_batches(ours, stock, mine, theirs)


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
        from test_graph import conditionals, operations

        specs = [hosts.tf.TensorSpec(shape, hosts.FLOATX) for shape in SHAPES.values()]
        found = conditionals(operations(step.traced.python_function, *specs))
        assert found == (ours.gate == "conditional"), f"{found} conditionals"


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's files are tested in test_saving.py")
@every_state
@thorough
def test_saved_in_a_window(case, tmp_path):
    saved_in_a_window(case, ".keras", tmp_path)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's files are tested in test_saving.py")
@thorough
@pytest.mark.parametrize("form", [".h5", ".weights.h5", "state"])
@every_special
def test_special_state_saved_in_a_window(case, form, tmp_path):
    saved_in_a_window(case, form, tmp_path)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's lists are tested in test_old_files.py")
@pytest.mark.parametrize("built", [False, True])
@every_special
def test_a_list_of_the_stock_optimizer(case, built):
    """The slots of Adafactor and Muon depend on the variables, and a list has no names."""
    theirs, stock = variables(), hosts.stock(case.name, **case.arguments)
    hosts.apply(stock, gradients()[0][0], theirs)
    arrays = [hosts.array(v) for v in stock.variables]

    def optimizer(variables, arrays):
        found = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
        if built:
            found.build(variables)
        found.set_weights(arrays)
        found.build(variables)
        return found

    ours = optimizer(variables(), arrays)
    assert ours.completed_updates == 1
    for found, expected in zip(ours.variables, arrays):
        np.testing.assert_array_equal(hosts.array(found), expected)
    with pytest.raises(hosts.accum.StateError, match="is not a state of|doesn.t fit"):
        optimizer(variables(), arrays[:-1])


@pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="only Keras 3 keeps a list until its variables come"
)
def test_a_list_that_waited_for_other_variables():
    """No later step starts with a fresh optimizer. Another state ends the error."""
    mine, optimizer = variables(), hosts.ours("Adafactor", accum_iters=LENGTH)
    hosts.apply(optimizer, gradients()[0][0], mine)
    arrays = [hosts.array(v) for v in optimizer.variables]
    again = hosts.ours("Adafactor", accum_iters=LENGTH)
    again.set_weights(arrays)
    assert again.window_position == 1
    for _ in range(2):
        with pytest.raises(hosts.accum.StateError, match="is not a state of this"):
            hosts.apply(again, gradients()[0][0][:2], mine[:2])
    again = hosts.ours("Adafactor", accum_iters=LENGTH)
    again.set_weights(arrays)
    with pytest.raises(hosts.accum.StateError):
        again.build(mine[:2])
    fresh = hosts.ours("Adafactor", accum_iters=LENGTH)
    fresh.build(mine[:2])
    again.set_state(fresh.get_state())
    hosts.apply(again, gradients()[0][0][:2], mine[:2])


def saved_in_a_window(case, form, tmp_path):
    """The loaded model continues as if it had never stopped."""
    from test_saving import CLASSES
    from training import compiled, dense_model, go_on

    def model():
        optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
        return compiled(dense_model(), optimizer, hosts.mean_squared_error())

    stop, end = LENGTH + 2, 3 * LENGTH
    saved = go_on(model(), 0, stop)
    path = str(tmp_path / f"model{form}")
    if form == "state":
        loaded = model()
        loaded.set_weights(saved.get_weights())
        loaded.optimizer.set_state(saved.optimizer.get_state())
    elif form == ".weights.h5":
        saved.save_weights(path)
        loaded = model()
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    elif form == ".h5" and case.name == "Adafactor":
        pytest.skip("Keras 3 can't write Adafactor to .h5: two of its variables share a name")
    else:
        saved.save(path)
        loaded = keras.models.load_model(path, custom_objects=CLASSES)
    assert loaded.optimizer.window_position == 2
    go_on(saved, stop, end)
    go_on(loaded, stop, end)
    assert_equal(dict(enumerate(loaded.get_weights())), dict(enumerate(saved.get_weights())))
    assert_equal(loaded.optimizer.get_state(), saved.optimizer.get_state())


@thorough
@pytest.mark.skipif(
    not hosts.IS_TENSORFLOW or "muon" not in CASES, reason="about Muon and TensorFlow's data types"
)
def test_muon_multiplies_a_rate_by_weights_of_another_type_as_the_stock_optimizer_does():
    """The page on limits says so: a schedule of Keras is float32, the weights here are float64."""
    of_keras = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    for rate, is_refused in ((of_keras, True), (hosts.EachUpdate([0.1]), False)):
        for make in (hosts.stock, hosts.ours):
            matrix = hosts.variable(np.eye(2, 3), "kernel")
            muon = make("Muon", learning_rate=rate)
            step = partial(hosts.apply, muon, [np.eye(2, 3)], [matrix])
            if is_refused:
                with pytest.raises(Exception, match="cannot compute Mul.* a double tensor"):
                    step()
            else:
                step()
                assert (hosts.array(matrix) != np.eye(2, 3)).any()
