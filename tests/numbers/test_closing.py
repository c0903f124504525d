"""The caller closes windows: between train steps, in a train step by a tensor, or in Python."""

import copy
import json
import pickle
import warnings

import hosts
import numpy as np
import pytest
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first, thorough
from formats import CLASSES
from graphs import CONTROL_FLOW
from hosts import accum, keras
from steps import (
    assert_branches,
    assert_windows_equal_big_batches,
    gradients,
    made,
    stepper,
    weights_and_state,
)
from training import (
    EPOCHS,
    MICRO,
    assert_equal,
    assert_moved,
    compiled,
    data,
    dense_model,
    fit,
    go_on,
    in_windows,
    state,
    weights,
)

in_a_step = keras2_has_no("`close_window` and `decide`")


def endless(**arguments):
    return hosts.ours("Adam", **{**CASES["adam"].arguments, "accum_iters": None, **arguments})


def stepper_by(way, ours, mine):
    """Return a step of gradients, and of whether the micro-batch is the last one of its window."""
    if way != "apply_partial_window":
        return stepper(ours, mine, getattr(ours, way), is_static=way == "decide")
    step = stepper(ours, mine)

    def run(grads, is_last):
        step(grads)
        if is_last:
            ours.apply_partial_window()

    return run


WAYS = [pytest.param(way, marks=in_a_step) for way in ("close_window", "decide")]
WAYS += ["apply_partial_window"]


@on_adam_and_amsgrad
@quick_first("accum_iters", [None, 50])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("every_gate")
def test_windows_equal_big_batches(case, accum_iters, way):
    """By a method between train steps, a tensor in a train step, or a decision in Python."""
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=accum_iters))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, windows = stepper_by(way, ours, mine), gradients([2, 1, 3, 2])
    assert_windows_equal_big_batches(ours, stock, mine, theirs, windows, step)
    if hosts.IS_TENSORFLOW and way == "close_window":
        assert_branches(ours, mine, step, hosts.tf.TensorSpec((), "bool"))
    if hosts.IS_TENSORFLOW and way == "decide":  # the traces of an update and of an addition
        for is_update in (True, False):
            graph = step.traced.get_concrete_function(is_update, *windows[0][0]).graph
            types = {op.type for op in graph.get_operations()}
            assert ("Sqrt" in types or "ResourceApplyAdam" in types) == is_update
            assert not CONTROL_FLOW & types


@pytest.mark.usefixtures("every_gate")
def test_without_an_open_window_nothing_is_applied():
    ours = endless()
    ours.apply_partial_window()  # no variables yet
    ours, mine = made(ours)
    hosts.apply(ours, gradients()[0][0], mine)
    ours.apply_partial_window()
    before = weights_and_state(ours, mine)
    ours.apply_partial_window()
    assert_equal(weights_and_state(ours, mine), before, rtol=0, atol=0)
    assert (ours.completed_updates, ours.window_position) == (1, 0)


# "scaled": by a LossScaleOptimizer.
DROPS = {"skip_nonfinite": {"skip_nonfinite": True}, "skip_norm": {"skip_norm": 1e3}, "scaled": {}}


@in_a_step
@pytest.mark.parametrize("drops", DROPS)
def test_a_dropped_micro_batch_closes_no_window(drops):
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=None, **DROPS[drops])
    is_scaled, scale = drops == "scaled", 1
    outer = hosts.loss_scaled(ours, 8.0) if is_scaled else ours
    _, mine = made(outer)
    step = stepper(outer, mine, ours.close_window)
    (one, two), before = gradients([2])[0], hosts.array(mine[0])
    bad = [np.full_like(gradient, np.nan) for gradient in one]
    micro_batches = [(bad, True, 0, 0), (one, False, 0, 1), (bad, True, 0, 1), (two, True, 1, 0)]
    for grads, closes, updates, position in micro_batches:
        if is_scaled and hosts.IS_KERAS3:  # where `apply` divides by it
            scale = hosts.array(outer.dynamic_scale)  # lower after each bad micro-batch
        step([(gradient * scale).astype(gradient.dtype) for gradient in grads], closes)
        assert (ours.completed_updates, ours.window_position) == (updates, position)
        assert (ours.get_state()["window_length"] > 0) == (position > 0)
    np.testing.assert_allclose(hosts.array(mine[0]), before - (one[0] + two[0]) / 2, rtol=1e-6)


SAID = {"close_window": {}, "decide": {}, "weigh": {"reduction": "weighted"}}


@in_a_step
@pytest.mark.skipif(hosts.BACKEND == "jax", reason="where a LossScaleOptimizer traces its steps")
@pytest.mark.parametrize("way", SAID)
def test_an_eager_step_that_a_loss_scale_skips_says_nothing_to_the_next_one(way):
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=None, **SAID[way])
    outer = hosts.loss_scaled(ours, 1.0)
    _, mine = made(outer)
    (one, _), before = gradients([2])[0], hosts.array(mine[0])
    getattr(ours, way)(True)
    hosts.apply(outer, [np.full_like(gradient, np.nan) for gradient in one], mine)
    if way == "weigh":
        with pytest.raises(ValueError, match="needs the weight of each micro-batch"):
            hosts.apply(outer, one, mine)
    else:
        hosts.apply(outer, one, mine)
        assert ours.window_position == 1
    np.testing.assert_array_equal(hosts.array(mine[0]), before)


@in_a_step
def test_a_decided_window_may_be_longer_than_its_length_and_counters_go_on_from_there():
    ours, mine = made(endless(accum_iters=2))
    step, window = stepper_by("decide", ours, mine), gradients()[0]
    for grads in window[:3]:
        step(grads, False)
    assert (ours.completed_updates, ours.window_position) == (0, 3)
    stepper(ours, mine)(window[3])  # the counters decide: the window is full
    assert (ours.completed_updates, ours.window_position) == (1, 0)


PAST = {"decided": (2, {}, 3), "decided, shorter": (3, {"accum_iters": 1}, 3)}
PAST.update({"none": (None, {}, 3), "shorter": (4, {"accum_iters": 2}, 3)})


@pytest.mark.parametrize("length, set_to, count", PAST.values(), ids=PAST)
def test_a_window_at_or_past_its_length_can_be_saved(length, set_to, count):
    """And loaded: as a state, a list, a pickle and a copy, which continue equally."""
    if hosts.IS_KERAS2 and length in (2, 3):
        pytest.skip("Keras 2 has no `decide`")
    ours, mine = made(hosts.ours("SGD", learning_rate=0.5, accum_iters=length))
    micro_batches = gradients([count + 1])[0]
    for grads in micro_batches[:count]:
        if length in (2, 3):
            ours.decide(False)
        hosts.apply(ours, grads, mine)
        for name, value in set_to.items():
            setattr(ours, name, value)
    saved, arrays = ours.get_state(), [hosts.array(v) for v in hosts.listed(ours)]
    start = [hosts.array(v) for v in mine]

    def as_list():
        other = hosts.ours("SGD", learning_rate=0.5, accum_iters=length)
        other.set_weights(arrays)
        return other

    def as_state():
        other = hosts.ours("SGD", learning_rate=0.5, accum_iters=length)
        hosts.build_on(other, mine)
        other.set_state(saved)
        return other

    by_pickle = lambda: pickle.loads(pickle.dumps(ours))  # noqa: E731
    copies = [lambda: copy.deepcopy(ours), by_pickle, as_state, as_list]
    ends = []
    for make in copies:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length that was set
            other = make()
            hosts.build_on(other, mine)
        assert other.window_position == count
        for v, value in zip(mine, start):
            hosts.assign(v, value)
        other.apply_partial_window()
        ends.append([hosts.array(v) for v in mine])
        assert (other.completed_updates, other.window_position) == (1, 0)
    for end in ends:
        for value, first, before in zip(end, ends[0], start):
            np.testing.assert_array_equal(value, first)
            assert np.abs(value - before).min() > 0


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about tf.distribute")
def test_a_window_closes_if_one_replica_says_so(strategy):
    tf = hosts.tf
    with strategy.scope():
        w = hosts.variable([1.0, 2.0], "w")
        ours = hosts.ours("SGD", learning_rate=0.5, accum_iters=None)
        hosts.build_on(ours, [w])

    @tf.function
    def step(who):
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            ours.close_window(tf.equal(index, who))
            ours.apply_gradients([(tf.ones([2], hosts.FLOATX), w)])

        strategy.run(replica)

    for who, updates in ((5, 0), (1, 1), (5, 1), (0, 2)):
        step(tf.constant(who))
        assert ours.completed_updates == updates
    for value in strategy.experimental_local_results(hosts.native(w)):
        np.testing.assert_allclose(value.numpy(), [-1.0, 0.0])  # each average is 1 + 1


NOT_A_BOOLEAN = hosts.keras.backend.ones(()) if hosts.IS_TF_KERAS else np.ones(())
DECISIONS = {
    "skip_nonfinite": ({"skip_nonfinite": True}, True, "can't be used with skip_nonfinite"),
    "skip_norm": ({"skip_norm": 10.0}, True, "`decide` can't be used with skip_norm"),
    "1": ({"accum_iters": 1}, False, r"`decide\(False\)` needs accumulators"),
    "tensor": ({}, NOT_A_BOOLEAN, r"must be a Python boolean.*`close_window\(when\)`"),
}


@in_a_step
@pytest.mark.parametrize("arguments, decision, said", DECISIONS.values(), ids=DECISIONS)
def test_a_decision_that_is_refused(arguments, decision, said):
    with pytest.raises((TypeError, ValueError), match=said):
        endless(**arguments).decide(decision)
    if "accum_iters" in arguments:
        ours, mine = made(endless(**arguments))
        stepper_by("decide", ours, mine)(gradients()[0][0], True)
        assert ours.completed_updates == 1


@in_a_step
def test_one_of_two_ways():
    ours, mine = made(endless())

    def both(is_update):
        ours.decide(is_update)
        ours.close_window()

    with pytest.raises(ValueError, match="`close_window` can't be used with `decide`"):
        stepper(ours, mine, both, is_static=True)(gradients()[0][0], True)


@in_a_step
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
@pytest.mark.parametrize("way", ["close_window", "decide"])
def test_outside_of_the_traced_function(way):
    """Where no train step would see the call, it raises an error."""
    ours, mine = made(endless())
    getattr(ours, way)(True)
    with pytest.raises(ValueError, match=f"`{way}` was called outside of the traced function"):
        stepper(ours, mine)(gradients()[0][0])


WAYS_TO_SAY = {"close_window": {}, "decide": {}, "weigh": {"reduction": "weighted"}}


@in_a_step
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("where", ["function", "conditional"])
@pytest.mark.parametrize("way", WAYS_TO_SAY)
def test_in_another_traced_function_than_the_optimizer(way, where, is_traced):
    """An inner function or a conditional. On JAX, an eager step can't know of the former."""
    if not is_traced and (hosts.BACKEND == "jax" or where == "conditional"):
        pytest.skip("a failed trace looks the same, or the conditional isn't traced")
    ours, mine = made(endless(accum_iters=2, **WAYS_TO_SAY[way]))

    def call(value):
        getattr(ours, way)(True if way == "decide" else value)
        return value

    if hosts.BACKEND == "jax":
        import jax

        inner = jax.jit(call)
        choose = lambda value: jax.lax.cond(value > 0, call, lambda value: value, value)  # noqa: E731
    else:
        inner = hosts.tf.function(call)
        choose = lambda value: hosts.tf.cond(value > 0, lambda: call(value), lambda: value)  # noqa: E731
    say = inner if where == "function" else choose
    grads = gradients()[0][0]
    with pytest.raises(ValueError, match=f"`{way}` was called outside .* or in another one"):
        if is_traced:
            stepper(ours, mine, say)(grads, 1.0)
        else:
            say(hosts.tf.constant(1.0))
            hosts.apply(ours, grads, mine)


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about Keras 2.0 to 2.3")
@pytest.mark.parametrize("way, instead", [("close_window", "apply_partial"), ("decide", "gate=")])
def test_keras_2_has_no_train_step(way, instead):
    with pytest.raises(RuntimeError, match=f"isn't available on Keras 2.*{instead}"):
        getattr(endless(), way)(True)


def test_none_is_part_of_a_config_and_of_a_file(tmp_path):
    optimizer = endless()
    config = json.loads(json.dumps(optimizer.get_config()))
    for other in (optimizer, type(optimizer).from_config(config)):
        assert other.accum_iters is None
        assert "accum_iters=None" in repr(other)
    assert type(optimizer).from_optimizer(optimizer, learning_rate=0.5).accum_iters is None
    model = go_on(compiled(dense_model(), optimizer, hosts.mean_squared_error()), stop=3)
    path = str(tmp_path / ("model.h5" if hosts.IS_KERAS2 else "model.keras"))
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects=CLASSES)
    assert (loaded.optimizer.accum_iters, loaded.optimizer.window_position) == (None, 3)
    start = weights(model)
    for each in (model, loaded):
        each.optimizer.apply_partial_window()
    assert_moved(start, weights(model), by=1e-3)
    for one, other in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(one, other)


class Changes(keras.callbacks.Callback):
    """Changes windows between two micro-batches of `fit`."""

    number = 0

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1
        optimizer = self.model.optimizer  # on JAX, this updates the model's variables
        if self.number == 6:
            optimizer.accum_iters = 3
        if self.number == 17:
            optimizer.apply_partial_window()


@keras2_has_no("`on_train_batch_end` in 2.2")
def test_callbacks_that_change_windows_in_fit():
    ends = [4, 8, 11, 12, 15, 17, 20, 23, 24, 27, 30, 33, 36]  # of windows, in micro-batches
    model = compiled(dense_model(), in_windows(CASES["adam"]))
    fit(model, MICRO, callbacks=[Changes(), accum.ApplyPartialWindow()])
    stock = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    x, y = (np.concatenate([array] * EPOCHS) for array in data())
    for start, end in zip([0, *ends], ends):
        stock.train_on_batch(x[start * MICRO : end * MICRO], y[start * MICRO : end * MICRO])
    assert_equal(state(model), state(stock))


def test_none_can_be_set_and_replaced():
    """With None, only the caller closes windows."""
    model = go_on(compiled(dense_model(), endless(accum_iters=2)), stop=1)
    optimizer = model.optimizer
    with pytest.warns(UserWarning, match="`apply_partial_window` can update"):
        optimizer.accum_iters = None
    go_on(model, stop=4)  # closes the open window first, which keeps its length
    assert (optimizer.accum_iters, optimizer.completed_updates) == (None, 1)
    assert optimizer.window_position == 3
    optimizer.apply_partial_window()
    optimizer.accum_iters = 2
    go_on(model, stop=3)
    assert (optimizer.completed_updates, optimizer.window_position) == (3, 1)
