"""The engine on a Keras of NumPy arrays: each promise of a window, against plain numbers.

Unless a test says otherwise, the learning rate is 1 and there is no momentum, so that a weight
moves by minus the window's gradient.
"""

import contextlib
import copy
import re
from pathlib import Path

import numpy as np
import pytest
from numpy_keras import SGD, TRACES, SGDAccumulate, Unknown, Variable, known, tracing

from keras_accum.engine import parts, window
from keras_accum.engine.gradients import MicroBatch
from keras_accum.engine.state import StateError
from keras_accum.engine.window import is_unconditional
from keras_accum.schedule import AccumulationSchedule

# How a step runs: (gate, True if it is traced). Python knows the switch of an eager step.
STEPS = [("auto", False), ("auto", True), ("conditional", True)]


@pytest.fixture(params=STEPS, ids=["eager", "select", "conditional"])
def step(request):
    return Step(*request.param)


class Step:
    """Makes optimizers and runs their steps, in one way."""

    def __init__(self, gate="auto", is_traced=False):
        self.gate, self.is_traced = gate, is_traced

    def optimizer(self, *variables, learning_rate=1.0, momentum=0.0, **options):
        optimizer = SGDAccumulate(learning_rate, momentum, gate=self.gate, **options)
        optimizer.build(variables)
        return optimizer

    def __call__(self, optimizer, *gradients, weight=None, close=None, decide=None):
        with tracing() if self.is_traced else contextlib.nullcontext():
            if weight is not None:
                optimizer.weigh(Unknown(np.float64(weight)) if self.is_traced else weight)
            if close is not None:
                optimizer.close_window(close)
            if decide is not None:
                optimizer.decide(decide)
            optimizer.apply(list(map(as_array, gradients)), optimizer.variables)

    def refuses(self, error, match, *arguments, **keywords):
        with pytest.raises(error, match=match):
            self(*arguments, **keywords)


EAGER = Step()


def as_array(gradient):
    return None if gradient is None else np.asarray(gradient, "float64")


def counts(optimizer):
    """Return the counters: updates, position, length of the open window."""
    names = "completed_updates", "window_position", "window_length"
    return tuple(int(optimizer.get_state()[name]) for name in names)


def sums(optimizer):
    return [total.array.tolist() for total in optimizer._accumulation.store.sums]


def state(optimizer):
    return {name: array.tolist() for name, array in optimizer.get_state().items()}


# -- a window --------------------------------------------------------------------------------------


def test_a_window_of_three(step):
    a, b = Variable([10.0, 20.0], "a"), Variable(30.0, "b")
    o = step.optimizer(a, b, accum_iters=3, momentum=0.5)
    slots = o.velocities
    step(o, [1.0, 2.0], 3.0)
    # micro-batch 1: nothing moves
    assert (a.array.tolist(), float(b.array), sums(o)) == ([10.0, 20.0], 30.0, [[1.0, 2.0], 3.0])
    assert counts(o) == (0, 1, 3) and float(slots[1].array) == 0
    step(o, [3.0, 4.0], 0.0)
    # micro-batch 2: the sums are [4, 6] and 3
    assert (a.array.tolist(), float(b.array), sums(o)) == ([10.0, 20.0], 30.0, [[4.0, 6.0], 3.0])
    assert counts(o) == (0, 2, 3)
    step(o, [5.0, 0.0], 6.0)
    # micro-batch 3: the averages are [3, 2] and 3; the window is closed
    assert (a.array.tolist(), float(b.array), sums(o)) == ([7.0, 18.0], 27.0, [[0.0, 0.0], 0.0])
    assert counts(o) == (1, 0, 0) and slots[0].array.tolist() == [-3.0, -2.0]
    for _ in range(3):
        step(o, [1.0, 1.0], 1.0)
    # the next window: the velocity is 0.5 * -3 - 1 and 0.5 * -2 - 1
    assert a.array.tolist() == [7.0 - 2.5, 18.0 - 2.0] and counts(o) == (2, 0, 0)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_windows_equal_the_stock_optimizer(step, length, reduction):
    random = np.random.default_rng(length)
    gradients = random.normal(size=(4 * length, 2, 3))
    ours, theirs = ([Variable(np.ones(3), name) for name in "ab"] for _ in range(2))
    stock = SGD(0.1, 0.9)
    stock.build(theirs)
    options = {"accum_iters": length, "reduction": reduction, "skip_nonfinite": length == 1}
    o = step.optimizer(*ours, learning_rate=0.1, momentum=0.9, **options)
    for i, each in enumerate(gradients):
        before = ours[0].array.copy(), o.velocities[1].array.copy()
        step(o, *each)
        if (i + 1) % length:
            assert (ours[0].array == before[0]).all() and (o.velocities[1].array == before[1]).all()
        else:
            window = gradients[i + 1 - length : i + 1]
            stock.apply(list(window.mean(0) if reduction == "mean" else window.sum(0)), theirs)
            for mine, other in zip([*ours, *o.velocities], [*theirs, *stock.velocities]):
                np.testing.assert_allclose(mine.array, other.array, rtol=0, atol=1e-14)


def test_one_update_in_a_branch_and_all_by_selection():
    """Gates have equal results. They differ in how often the update runs, and if writes count."""
    runs = {}
    for gate, is_traced in STEPS:
        way, w, seen = Step(gate, is_traced), Variable([5.0], "w"), []
        w.constraint = lambda value, seen=seen: seen.append(1) or value
        o = way.optimizer(w, accum_iters=4)
        for _ in range(8):
            way(o, [1.0])
        assert w.array.tolist() == [3.0]
        runs[gate, is_traced] = len(seen)
    assert runs == {("auto", False): 2, ("auto", True): 8, ("conditional", True): 2}


def test_a_bad_micro_batch_spoils_its_own_window_only(step):
    w = Variable([8.0, 8.0], "w")
    o = step.optimizer(w, accum_iters=2)
    step(o, [np.inf, np.nan])
    assert w.array.tolist() == [8.0, 8.0]
    o.set_state({name: np.zeros(array.shape) for name, array in o.get_state().items()})
    o.learning_rate = 1.0
    step(o, [1.0, 2.0])
    step(o, [3.0, 2.0])
    assert w.array.tolist() == [6.0, 6.0]


# -- lengths ---------------------------------------------------------------------------------------


def test_a_new_length_begins_with_the_next_window(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2)
    step(o, 2.0)
    o.accum_iters = 3
    assert o._accumulation.counts() == (1, 2, 3)
    step(o, 4.0)  # this window keeps its length
    assert float(w.array) == -3.0 and o._accumulation.counts() == (0, 3, 3)
    for gradient, expected in [(3.0, -3.0), (3.0, -3.0), (6.0, -7.0)]:
        step(o, gradient)
        assert float(w.array) == expected
    assert counts(o) == (2, 0, 0) and o.accum_iters == 3
    o.accum_iters = 1
    step(o, 5.0)
    assert float(w.array) == -12.0


def test_a_schedule_of_lengths(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=AccumulationSchedule({0: 1, 1: 2, 2: 3}))
    closed = []
    for i in range(1, 10):
        step(o, 1.0)
        if o.window_position == 0:
            closed.append(i)
    assert closed == [1, 3, 6, 9] and float(w.array) == -4.0


# (samples, batch size): whole batches, a short last one, a single one. An epoch has 1 to 6.
EPOCHS = [(50, 10), (53, 10), (60, 10), (21, 10), (7, 10), (6, 1)]
LENGTHS = [1, 2, 3, 4, 5, 9, AccumulationSchedule({0: 2, 1: 1, 3: 4, 5: 3})]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("samples, batch_size", EPOCHS)
@pytest.mark.parametrize("accum_iters", LENGTHS)
def test_the_position_in_the_data(ends, samples, batch_size, accum_iters):
    """After each micro-batch of four epochs, and after each window that ends with its epoch."""
    reduction = "auto" if ends else "mean"
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=accum_iters, reduction=reduction)
    for epoch in range(4):
        for begin in range(0, samples, batch_size):
            assert o.position_in_data(samples, batch_size) == (epoch, begin)
            EAGER(o, 1.0)
        if ends and o.window_position:
            assert o.position_in_data(samples, batch_size) == (epoch, samples)
            o.apply_partial_window()
    assert o.position_in_data(samples=samples, batch_size=batch_size) == (4, 0)


def test_the_position_in_the_data_where_a_callback_closes_windows():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=5, reduction="mean")
    for _ in range(2):  # epochs of 7 micro-batches
        for _ in range(7):
            EAGER(o, 1.0)
        o.apply_partial_window()
    EAGER(o, 1.0)
    assert o.position_in_data(63, 10, ends_with_epoch=True) == (2, 10)


def set_a_length(optimizer):
    optimizer.accum_iters = 3


@pytest.mark.parametrize(
    "options, change, said",
    [
        ({"accum_iters": None}, None, "with `accum_iters=None`"),
        ({"accum_iters": 5, "skip_nonfinite": True}, None, "dropped micro-batches"),
        ({"accum_iters": 1, "skip_norm": 5.0}, None, "dropped micro-batches"),
        ({"accum_iters": 5}, set_a_length, "`accum_iters` was set"),
    ],
)
def test_the_position_in_the_data_that_counters_do_not_show(options, change, said):
    o = EAGER.optimizer(Variable(0.0, "w"), **options)
    if change:
        assert o.position_in_data(50, 10) == (0, 0)
        change(o)
    with pytest.raises(ValueError, match=f"{said}.*Save at the end of epochs"):
        o.position_in_data(50, 10)


def test_the_position_in_other_data():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=5)
    for _ in range(4):
        EAGER(o, 1.0)
    with pytest.raises(ValueError, match="more micro-batches than its epoch, which has 3.*=30, b"):
        o.position_in_data(30, 10)
    with pytest.raises(ValueError, match="`batch_size` must be an integer >= 1.*batch_size=0"):
        o.position_in_data(30, 0)
    with pytest.raises(ValueError, match="`samples` must be an integer.*samples=30.5"):
        o.position_in_data(30.5, 10)
    assert repr(o.position_in_data(53.0, np.float32(10))) == "PositionInData(epoch=0, done=40)"


def test_a_window_without_a_length_is_closed_by_the_caller(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=None)
    for gradient in (1.0, 2.0, 3.0):
        step(o, gradient, close=False)
    assert float(w.array) == 0.0 and o.window_position == 3 and o.accum_iters is None
    step(o, 6.0, close=True)
    assert float(w.array) == -3.0 and counts(o) == (1, 0, 0)


def test_close_window_and_a_length(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=3)
    step(o, 4.0, close=True)  # a window of one
    step(o, 1.0, close=False)
    step(o, 3.0, close=True)  # of two
    assert float(w.array) == -4.0 - 2.0 and o.completed_updates == 2
    for _ in range(3):
        step(o, 1.0)  # the argument of `close_window` is for one micro-batch
    assert float(w.array) == -7.0 and o.completed_updates == 3


def test_decide(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2)
    for gradient in (1.0, 2.0, 3.0):
        step(o, gradient, decide=False)
    assert float(w.array) == 0.0 and counts(o) == (0, 3, 2)
    step(o, 6.0, decide=True)
    assert float(w.array) == -3.0 and counts(o) == (1, 0, 0)
    step(o, 5.0, decide=True)
    assert float(w.array) == -8.0
    step.refuses(ValueError, "`close_window` can't be used", o, 1.0, decide=False, close=True)
    assert counts(o) == (2, 0, 0)


def test_without_accumulation_each_micro_batch_is_an_update(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=1, window_transforms=[lambda gs, vs: [2 * g for g in gs]])
    step(o, 1.0)
    step(o, 2.0, decide=True)
    assert float(w.array) == -6.0 and o.completed_updates == 2
    assert "window_position" not in o.get_state() and o._accumulation.counts() == (0, 1, 1)
    with pytest.raises(ValueError, match="needs accumulators"):
        o.decide(False)


# -- partial windows -------------------------------------------------------------------------------


def test_a_partial_window_has_its_own_average(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=5)
    o.apply_partial_window()  # no window is open
    assert counts(o) == (0, 0, 0)
    step(o, 1.0)
    step(o, 5.0)
    o.apply_partial_window()
    assert float(w.array) == -3.0 and counts(o) == (1, 0, 0) and sums(o) == [0.0]
    o.apply_partial_window()
    assert float(w.array) == -3.0 and counts(o) == (1, 0, 0)
    with tracing(), pytest.raises(RuntimeError, match="between train steps"):
        o.apply_partial_window()


def test_a_partial_window_covers_what_it_has_seen(step):
    a, b, c = (Variable(0.0, name) for name in "abc")
    o = step.optimizer(a, b, c, accum_iters=4, momentum=0.5)
    for gradients in [(4.0, 4.0, None)] * 4:
        step(o, *gradients)
    assert [float(v.array) for v in (a, b, c)] == [-4.0, -4.0, 0.0]
    step(o, None, 2.0, None)
    step(o, None, 4.0, 6.0)
    o.apply_partial_window()
    # a has no gradient in this window, so its velocity doesn't move it
    assert [float(v.array) for v in (a, b, c)] == [-4.0, -4.0 - 2.0 - 3.0, -3.0]
    assert sums(o) == [0.0, 0.0, 0.0] and "missing_gradients" not in o.get_state()


def test_a_partial_window_of_frozen_variables(step):
    a, b = Variable(0.0, "a"), Variable(0.0, "b")
    o = step.optimizer(a, b, accum_iters=4)
    step(o, 4.0, 2.0)
    step(o, None, 2.0)
    b.trainable = False
    assert o._accumulation.find_frozen() == ["b"]
    o.apply_partial_window()
    # b is frozen and drops its sum; a has a gradient of 4 in one of two micro-batches
    assert (float(a.array), float(b.array)) == (-2.0, 0.0) and sums(o) == [0.0, 0.0]
    a.trainable = False
    step(o, 4.0, 2.0)
    o.apply_partial_window()
    assert (float(a.array), float(b.array)) == (-2.0, 0.0) and counts(o)[1:] == (0, 0)
    assert sums(o) == [0.0, 0.0] and o._accumulation.find_frozen() == []


# -- missing gradients -----------------------------------------------------------------------------


def test_gradients_in_turns(step):
    a, b = Variable(1.0, "a"), Variable(1.0, "b")
    o = step.optimizer(a, b, accum_iters=2)
    step(o, 10.0, None)
    # missing: b once
    assert o.get_state()["missing_gradients"].tolist() == [0, 1, 0]
    step(o, None, 10.0)
    # both have 10 in one of two micro-batches
    assert [float(v.array) for v in (a, b)] == [-4.0, -4.0] and sums(o) == [0.0, 0.0]
    assert "missing_gradients" not in o.get_state() and counts(o) == (1, 0, 0)


def test_a_variable_without_any_gradient_in_a_window_stays(step):
    a, b = Variable(1.0, "a"), Variable(1.0, "b")
    o = step.optimizer(a, b, accum_iters=2, momentum=0.5)
    for _ in range(2):
        step(o, 2.0, 2.0)
    assert [float(v.array) for v in (a, b)] == [-1.0, -1.0]
    for _ in range(2):
        step(o, 2.0, None)
    # a moves by 0.5 * -2 - 2, b doesn't, and neither does its velocity
    assert [float(v.array) for v in (a, b)] == [-4.0, -1.0]
    assert [float(v.array) for v in o.velocities] == [-3.0, -2.0]
    step(o, 2.0, None)
    step(o, 2.0, 2.0)
    # b: a gradient of 2 in one of two, so it moves by 0.5 * -2 - 1
    assert [float(v.array) for v in (a, b)] == [-4.0 - 3.5, -3.0]


def test_a_frozen_variable_never_moves_and_drops_its_sum(step):
    a, b = Variable(1.0, "a"), Variable(1.0, "b")
    o = step.optimizer(a, b, accum_iters=2)
    step(o, 2.0, 2.0)
    b.trainable = False
    step(o, 4.0, None)
    assert [float(v.array) for v in (a, b)] == [-2.0, 1.0] and sums(o) == [0.0, 0.0]
    b.trainable = True
    for _ in range(2):
        step(o, 1.0, 1.0)
    assert [float(v.array) for v in (a, b)] == [-3.0, 0.0]


def test_a_variable_twice(step):
    a, b = Variable(1.0, "a"), Variable(1.0, "b")
    o = step.optimizer(a, b, accum_iters=2)
    with pytest.raises(ValueError, match="Received twice: b"):
        o.apply([1.0, 2.0, 3.0], [b, a, b])
    assert counts(o) == (0, 0, 0) and sums(o) == [0.0, 0.0]


# -- dropped micro-batches -------------------------------------------------------------------------


def test_a_dropped_micro_batch_leaves_no_trace(step):
    a, b = Variable(0.0, "a"), Variable(0.0, "b")
    o = step.optimizer(a, b, accum_iters=2, skip_nonfinite=True)
    step(o, np.nan, 1.0)
    assert counts(o) == (0, 0, 0) and sums(o) == [0.0, 0.0]
    step(o, 2.0, 4.0)
    before = state(o)
    step(o, 1.0, np.inf)
    step(o, np.inf, None, close=True)  # and closes no window
    assert state(o) == before and counts(o) == (0, 1, 2)
    step(o, 4.0, 4.0)
    assert [float(v.array) for v in (a, b)] == [-3.0, -4.0] and counts(o) == (1, 0, 0)


def test_a_window_whose_first_micro_batch_is_dropped_has_the_length_of_the_next(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2, skip_nonfinite=True)
    step(o, np.nan)
    o.accum_iters = 3
    for gradient in (3.0, 3.0, 6.0):
        assert o.completed_updates == 0
        step(o, gradient)
    assert float(w.array) == -4.0


def test_dropping_without_accumulation(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, skip_nonfinite=True)
    for gradient in (1.0, np.nan, 2.0):
        step(o, gradient)
    assert float(w.array) == -3.0 and o.completed_updates == 2


@pytest.mark.parametrize("limit", [5.0, lambda norm: norm > 5.0], ids=["number", "function"])
def test_skip_norm(step, limit):
    a, b = Variable(0.0, "a"), Variable(0.0, "b")
    o = step.optimizer(a, b, accum_iters=2, skip_norm=limit)
    step(o, 3.0, 4.0)  # a norm of 5 counts
    step(o, 3.0, 4.1)
    assert counts(o) == (0, 1, 2)
    step(o, 1.0, 0.0)
    assert [float(v.array) for v in (a, b)] == [-2.0, -2.0]


# -- weights ---------------------------------------------------------------------------------------


def test_weights(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2, reduction="weighted")
    step(o, 3.0, weight=4.0)
    assert sums(o) == [12.0] and float(o.get_state()["window_weight"]) == 4.0
    step(o, 6.0, weight=2.0)
    # (3 * 4 + 6 * 2) / 6
    assert float(w.array) == -4.0 and float(o.get_state()["window_weight"]) == 0.0
    step(o, 5.0, weight=np.float64(2.0))
    o.apply_partial_window()
    assert float(w.array) == -9.0 and sums(o) == [0.0]
    step.refuses(ValueError, "needs the weight of each micro-batch", o, 1.0)
    for weight in (-np.inf, np.inf, np.nan):
        with pytest.raises(ValueError, match="`weight` must be a finite number"):
            o.weigh(weight)


def test_negative_weights(step):
    """Sample weights may be negative, and so may their sum, by which a loss is divided."""
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2, reduction="weighted", skip_norm=5.0)
    step(o, 3.0, weight=-4.0)
    step(o, 6.0, weight=9.0)  # too large
    assert sums(o) == [-12.0] and float(o.get_state()["window_weight"]) == -4.0
    step(o, 4.0, weight=2.0)
    # (-3 * 4 + 4 * 2) / -2
    assert float(w.array) == -2.0


def test_weights_that_cancel_out_move_nothing(step):
    """As Keras's loss is 0 if it's divided by 0."""
    w = Variable(1.0, "w")
    o = step.optimizer(w, accum_iters=2, reduction="weighted")
    step(o, 3.0, weight=-2.0)
    step(o, 5.0, weight=2.0)
    assert float(w.array) == 1.0 and counts(o) == (1, 0, 0)


def test_a_weight_of_zero_does_not_count(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=3, reduction="weighted", skip_norm=5.0)
    step(o, np.nan, weight=0.0)  # the mean of nothing
    step(o, 4.0, weight=2.0)  # the norm is the gradient's, without the weight
    step(o, 6.0, weight=1.0)  # too large
    assert sums(o) == [8.0] and o.window_position == 2
    step(o, 1.0, weight=1.0)
    assert float(w.array) == -3.0


def test_a_small_weight(step):
    """The norm is the gradient's, whatever the weight."""
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2, reduction="weighted", skip_norm=5.0)
    step(o, 4.0, weight=0.5)
    step(o, 6.0, weight=0.5)
    step(o, 2.0, weight=0.5)
    assert float(w.array) == -3.0


def test_a_weight_that_is_no_number_shows(step):
    w = Variable(0.0, "w")
    for weight in (np.array(-np.inf), np.array(np.inf), np.array(np.nan)):
        o = step.optimizer(w, accum_iters=2, reduction="weighted")
        step(o, 3.0, weight=weight)
        assert not np.isfinite(sums(o)) and o.window_position == 1
        assert float(o.get_state()["window_weight"]) == 1.0
        o = step.optimizer(w, accum_iters=2, reduction="weighted", skip_nonfinite=True)
        step(o, 3.0, weight=weight)
        assert sums(o) == [0.0] and o.window_position == 0


def test_a_window_of_weight_zero_moves_nothing(step):
    w = Variable(1.0, "w")
    o = step.optimizer(w, accum_iters=2, reduction="weighted")
    for _ in range(2):
        step(o, 3.0, weight=0.0)
    assert float(w.array) == 1.0 and counts(o) == (1, 0, 0)


# -- transforms ------------------------------------------------------------------------------------


def test_transforms_get_the_average(step):
    a, b, seen = Variable(0.0, "a"), Variable(0.0, "b"), []

    def double(gradients, variables):
        seen.append([float(known(g)) for g in gradients])
        assert variables == [a, b]
        return [2 * g for g in gradients]

    o = step.optimizer(a, b, accum_iters=2, window_transforms=[double])
    step(o, 1.0, 2.0)
    step(o, 3.0, 4.0)
    assert [float(v.array) for v in (a, b)] == [-4.0, -6.0] and seen[-1] == [2.0, 3.0]
    assert len(seen) == (2 if step.is_traced and step.gate == "auto" else 1)
    assert seen[0] == ([1.0, 2.0] if len(seen) == 2 else [2.0, 3.0])  # never zeros


WRONG = {
    "too few": lambda gradients, variables: gradients[:1],
    "none": lambda gradients, variables: [gradients[0], None],
    "another shape": lambda gradients, variables: [gradients[0], np.ones(2)],
    "another rank": lambda gradients, variables: [gradients[0], np.ones((1, 1))],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_transform(step, wrong):
    variables = Variable([0.0], "a"), Variable([0.0], "b")
    o = step.optimizer(*variables, accum_iters=1, window_transforms=[wrong])
    step.refuses(ValueError, "one gradient for each variable", o, [1.0], [1.0])


# -- a step that fails -----------------------------------------------------------------------------


class Failure(BaseException):
    """Neither the package nor Keras catches it, as Ctrl-C."""


class Fail:
    """Raises a Failure at its next call, if armed."""

    def __init__(self, function=lambda *arguments: arguments[0]):
        self.function, self.is_armed = function, False

    def __call__(self, *arguments):
        if self.is_armed:
            self.is_armed = False
            raise Failure
        return self.function(*arguments)


def test_an_update_that_fails_is_undone():
    a, b, fail = Variable(0.0, "a"), Variable(0.0, "b"), Fail()
    o = EAGER.optimizer(a, b, accum_iters=2, window_transforms=[fail])
    EAGER(o, 1.0, 2.0)
    before = state(o)
    fail.is_armed = True
    EAGER.refuses(Failure, None, o, 3.0, None)
    assert state(o) == before
    fail.is_armed = True
    with pytest.raises(Failure):
        o.apply_partial_window()
    assert state(o) == before
    EAGER(o, 3.0, 4.0)
    assert [float(v.array) for v in (a, b)] == [-2.0, -3.0] and counts(o) == (1, 0, 0)


def test_an_addition_that_fails_is_undone():
    a, b = Variable(0.0, "a"), Variable([0.0, 0.0], "b")
    o = EAGER.optimizer(a, b, accum_iters=3)
    EAGER(o, 1.0, [1.0, 1.0])
    before = state(o)
    EAGER.refuses(ValueError, None, o, 1.0, [1.0, 1.0, 1.0])
    assert state(o) == before


def test_a_traced_step_that_fails_is_not_undone():
    """What a failed trace has noted is dropped with it; nothing is computed twice."""
    w, fail = Variable(0.0, "w"), Fail()
    traced = Step(is_traced=True)
    o = traced.optimizer(w, accum_iters=2, window_transforms=[fail])
    fail.is_armed = True
    traced.refuses(Failure, None, o, 3.0)
    assert sums(o) == [3.0] and counts(o) == (0, 0, 0)


def test_a_build_that_fails():
    w = Variable(0.0, "w")
    o = SGDAccumulate(accum_iters=2)
    store = o._accumulation.store
    store.add_sum = fail = Fail(store.add_sum)
    fail.is_armed = True
    with pytest.raises(Failure):
        o.build([w])
    with pytest.raises(RuntimeError, match=r"ended with Failure\(\), and may lack variables"):
        o.build([w])
    assert len(store.variables) == 0 and o._accumulation.window is None


# -- what a train step says ------------------------------------------------------------------------


def test_what_was_said_outside_or_around():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=2)
    o.close_window()
    with tracing(), pytest.raises(ValueError, match="outside of the traced function"):
        o.apply([1.0], o.variables)
    with tracing():
        o.close_window()
        with tracing():
            o.apply([1.0], o.variables)  # the innermost trace may take it
    assert counts(o) == (1, 0, 0)
    with tracing():
        with tracing():
            o.close_window()
        with pytest.raises(ValueError, match="or in another one or a conditional"):
            o.apply([1.0], o.variables)


def test_forget():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=3)
    o.close_window()
    o._accumulation.pending.forget()
    EAGER(o, 1.0)
    assert counts(o) == (0, 1, 3) and not TRACES


@pytest.mark.parametrize("value", [0, 1, None, np.True_])
def test_decide_takes_a_python_boolean(value):
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=3)
    with pytest.raises(TypeError, match="must be a Python boolean"):
        o.decide(value)


def test_decide_and_dropped_micro_batches():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=3, skip_nonfinite=True)
    with pytest.raises(ValueError, match="can't be used with skip_nonfinite=True"):
        o.decide(True)


def test_an_unconditional_switch():
    """A 1 that Python knows: `decide(False)` is 0, and an eager switch is NumPy's."""
    assert list(map(is_unconditional, (1, 0, np.int64(1), np.int64(0)))) == [1, 0, 1, 0]
    assert not is_unconditional(object())


ORDER = parts.__doc__.partition("in this order:")[2].partition("Each optimizer")[0]
WITHOUT_WEIGHT, WITH_WEIGHT = (
    re.findall(r"`(Replicas|Values|Sums|Update)\.(\w+)`", text)
    for text in ORDER.split("For a micro-batch with a weight")
)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_the_order_in_which_the_engine_calls_the_parts(weight):
    """It is the order that `engine.parts` tells whoever writes a port."""
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=2)
    if weight is not None:
        o.weigh(weight)
    EAGER(o, 1.0)
    called = []

    def recorded(part, name):
        call = getattr(part, name)

        def call_and_note(*arguments):
            called.append((kind, name))
            return call(*arguments)

        kind = next(c for c in ("Replicas", "Values", "Sums", "Update") if is_a(part, c))
        return call_and_note

    for kind, name in [*WITHOUT_WEIGHT, *WITH_WEIGHT]:
        part = getattr(o._accumulation, kind.lower())
        setattr(part, name, recorded(part, name))
    if weight is not None:
        o.weigh(weight)
    EAGER(o, 3.0)
    expected = WITHOUT_WEIGHT if weight is None else [*WITH_WEIGHT, *WITHOUT_WEIGHT]
    assert list(dict.fromkeys(called)) == list(dict.fromkeys(expected)) and len(WITHOUT_WEIGHT) > 8


def is_a(part, name):
    return any(cls.__name__ == name for cls in type(part).__mro__)


# -- a state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_built", [True, False])
def test_a_state_continues_in_a_window(step, is_built):
    options = {"accum_iters": 3, "momentum": 0.5}
    gradients = [(1.0, None), (2.0, 4.0), (3.0, 5.0), (4.0, 6.0), (None, 1.0), (1.0, 1.0)]
    one, two = ([Variable(1.0, name) for name in "ab"] for _ in range(2))
    o = step.optimizer(*one, **options)
    for each in gradients[:4]:
        step(o, *each)
    if is_built:
        new = step.optimizer(*two, **options)
        new.set_state(o.get_state())
    else:
        new = SGDAccumulate(1.0, 0.5, accum_iters=3, gate=step.gate)
        new.set_state(o.get_state())
        assert new.window_position == 1 and new.completed_updates == 1
        new.build(two)
    for mine, other in zip(one, two):
        other.assign(mine.array)
    assert state(new) == state(o)
    for each in gradients[4:]:
        for optimizer in (o, new):
            step(optimizer, *each)
    assert state(new) == state(o) and [v.array for v in one] == [v.array for v in two]


def test_a_state_that_does_not_fit():
    o = EAGER.optimizer(Variable([1.0, 2.0], "w"), accum_iters=3)
    EAGER(o, [1.0, 2.0])
    before = state(o)
    wrong = {**o.get_state(), "accumulator.0": np.zeros(3), "window_position": np.array(7)}
    with pytest.raises(StateError, match=r"accumulator.0 is \(3,\), not \(2,\)"):
        o.set_state(wrong)
    assert state(o) == before
    stock = EAGER.optimizer(Variable([1.0, 2.0], "w"))
    with pytest.raises(StateError, match="1 micro-batches into a window"):
        stock.set_state(o.get_state())
    o.apply_partial_window()
    stock.set_state(o.get_state())
    assert stock.completed_updates == 1


def test_a_list_of_arrays():
    o, new = (EAGER.optimizer(Variable([1.0, 2.0], "w"), accum_iters=3) for _ in range(2))
    EAGER(o, [1.0, 2.0])
    new.set_weights([v.array for v in o._accumulation.state.by_name().values()])
    assert state(new) == state(o)


def test_zeros_begin_a_fresh_window(step):
    w = Variable(0.0, "w")
    o = step.optimizer(w, accum_iters=2)
    o.accum_iters = 5
    step(o, 1.0)
    for variable in o._accumulation.state.by_name().values():
        variable.assign(np.zeros(variable.shape))
    assert o.accum_iters == 2
    step(o, 1.0)
    step(o, 1.0)
    assert counts(o) == (1, 0, 0)


def test_a_config_makes_an_equal_optimizer():
    o = EAGER.optimizer(Variable(0.0, "w"), accum_iters=4, reduction="sum", skip_norm=2.0)
    again = SGDAccumulate.from_config(o.get_config())
    assert again.get_config() == o.get_config() and again.accum_iters == 4


def make_stock():
    """Return a stock optimizer with one update, and its variable."""
    optimizer, w = SGD(0.5, momentum=0.9), Variable(1.0, "w")
    optimizer.build([w])
    optimizer.apply([as_array(2.0)], [w])
    return optimizer, w


def test_a_stock_optimizer_continues_in_windows_and_back(step):
    stock, w = make_stock()
    o = SGDAccumulate.from_optimizer(stock, accum_iters=2, gate=step.gate)
    for gradient in (1.0, 3.0):
        step(o, gradient)
    expected, expected_w = make_stock()
    expected.apply([as_array(2.0)], [expected_w])
    back = o.to_stock()
    assert type(back) is SGD and back.get_config() == stock.get_config()
    assert w.array == expected_w.array and back.velocities[0].array == expected.velocities[0].array
    assert back.iterations.array == 2 and stock.iterations.array == 1  # the source is unchanged


def test_an_open_window_in_a_conversion():
    o, w = EAGER.optimizer(Variable(0.0, "w"), accum_iters=3), Variable(0.0, "w")
    EAGER(o, 1.0)
    again = SGDAccumulate.from_optimizer(o)
    for optimizer in (again, copy.deepcopy(o)):
        optimizer.build([w])
        assert state(optimizer) == state(o) and counts(optimizer) == (0, 1, 3)
    with pytest.raises(ValueError, match="window_position=1"):
        o.to_stock()
    with pytest.raises(TypeError, match="needs an optimizer of Keras's SGD"):
        SGDAccumulate.from_optimizer(Variable(0.0))


def test_a_step_replaces_by_a_function_of_ours():
    """PyTorch 2.11 can't compile the `_replace` of a named tuple."""
    assert window.replace(MicroBatch([1], [2]), counted=None, weight=3) == MicroBatch([1], [2], 3)
    folder = Path(window.__file__).parent
    code = [path.read_text("utf-8") for path in folder.glob("*.py")]
    assert len(code) > 5 and not any("._replace(" in text for text in code)
