"""Our optimizers inside a LossScaleOptimizer of Keras 2, which sums, checks and skips by itself."""

import pickle

import hosts
import numpy as np
import pytest
from cases import ADAM
from training import LENGTH, MICRO, assert_equal, batches, compiled, dense_model

pytestmark = pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about a wrapper of tf_keras")

EXACT = {"rtol": 0, "atol": 0}
# The argument that says that the user has summed the gradients over the replicas.
SUMMED = {"experimental_aggregate_gradients": False}
if hosts.IS_NEW_STYLE:
    SUMMED = {"skip_gradients_aggregation": True}
TO_SUM = f"leave {next(iter(SUMMED))}={not next(iter(SUMMED.values()))}"


def weighted(reduction="weighted"):
    return hosts.ours("Adam", accum_iters=LENGTH, reduction=reduction, **ADAM.arguments)


def apply(optimizer, gradient, *variables, **more):
    tensor = hosts.tf.constant([gradient], hosts.FLOATX)
    optimizer.apply_gradients([(tensor, variable) for variable in variables], **more)


def test_weighted_has_the_same_state_inside_and_alone(every_gate):
    inside, alone = weighted(), weighted()
    for ours, optimizer in ((inside, hosts.loss_scaled(inside, 1.0)), (alone, alone)):
        model = compiled(dense_model(), optimizer, run_eagerly=True)
        for i, (x, y) in enumerate(batches(MICRO)[: LENGTH + 2], start=1):
            ours.weigh(float(i))
            model.train_on_batch(x, y)
    assert_equal(inside.get_state(), alone.get_state())
    assert list(inside.get_state()) == list(alone.get_state())
    again = pickle.loads(pickle.dumps(inside))
    inside.set_weights([hosts.array(v) for v in hosts.listed(inside)])
    for each in (again, inside):
        assert_equal(each.get_state(), again.get_state(), **EXACT)


@pytest.mark.parametrize("reduction", ["weighted", "mean"])
def test_gradients_summed_by_the_user_in_a_loss_scale_and_one_replica(reduction, every_gate):
    """As without the argument, also if a micro-batch is skipped: there is nothing to sum."""
    tf, found = hosts.tf, []
    gradients = [2.0, -1.0, 0.5, np.inf, 3.0, 1.0, -2.0, 0.25, 0.75, 4.0]
    for is_traced, more in ((False, {}), (False, SUMMED), (True, SUMMED)):
        optimizer, w = weighted(reduction), hosts.variable([1.0], "w")
        scaled = hosts.loss_scaled(optimizer, 8.0)
        optimizer.build([w])

        def step(gradient, weight, optimizer=optimizer, scaled=scaled, w=w, more=more):
            if reduction == "weighted":
                optimizer.weigh(weight)
            scaled.apply_gradients([(gradient, w)], **more)

        step = tf.function(step) if is_traced else step
        for i, gradient in enumerate(gradients):
            step(*(tf.constant(value, hosts.FLOATX) for value in ([gradient], i + 1.0)))
        assert optimizer.completed_updates > 1 and optimizer.window_position == 1
        found.append({"w": hosts.array(w), **optimizer.get_state()})
    for each in found[1:]:
        assert_equal(each, found[0])


@pytest.mark.parametrize("more", [{}, SUMMED], ids=str)
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_skipped_micro_batch_is_no_update(is_traced, more, every_gate):
    """Only updates count, for Adam's bias correction and for schedules."""
    tf, gradients = hosts.tf, [2.0, np.inf, -1.0, np.nan, 0.5, 3.0, np.inf, 1.0, -2.0]
    arguments = {**ADAM.arguments, "learning_rate": hosts.EachUpdate([0.1, 0.2, 0.4])}
    optimizer, w, stock_w = (
        hosts.ours("Adam", accum_iters=2, **arguments),
        *(hosts.variable([1.0], "w") for _ in range(2)),
    )
    scaled, stock = hosts.loss_scaled(optimizer, 8.0), hosts.stock("Adam", **arguments)
    optimizer.build([w])

    def step(gradient):
        scaled.apply_gradients([(gradient, w)], **more)

    step = tf.function(step) if is_traced else step
    for gradient in gradients:
        step(tf.constant([gradient], hosts.FLOATX))
    finite = [gradient for gradient in gradients if np.isfinite(gradient)]
    for window in zip(finite[::2], finite[1::2]):
        apply(stock, sum(window) / 2, stock_w)
    assert (int(optimizer.iterations), optimizer.window_position) == (3, 0)
    assert scaled.inner_optimizer is optimizer and int(scaled.iterations) == 3
    assert_equal({"w": hosts.array(w)}, {"w": hosts.array(stock_w)})


def test_a_skipped_micro_batch_is_no_update_in_replicas(strategy):
    with strategy.scope():
        optimizer, w = hosts.ours("Adam", accum_iters=2), hosts.variable([1.0], "w")
        scaled = hosts.loss_scaled(optimizer, 8.0)
        optimizer.build([w])

    def step(gradient):
        scaled.apply_gradients([(2 * gradient, w)])

    run = hosts.tf.function(lambda gradient: strategy.run(step, (gradient,)))
    for gradient in (1.0, np.inf, 2.0, np.nan, 1.0, 1.0):
        run(hosts.tf.constant([gradient], hosts.FLOATX))
    assert (optimizer.completed_updates, optimizer.window_position) == (2, 0)
    assert scaled.inner_optimizer is optimizer


@pytest.mark.parametrize("reduction", ["weighted", "mean"])
def test_gradients_summed_by_the_user_are_refused_in_a_loss_scale_and_replicas(reduction, strategy):
    """The optimizer doesn't see a skipped micro-batch, and a sum lacks the replicas' weights."""
    with strategy.scope():
        optimizer, w = weighted(reduction), hosts.variable([1.0], "w")
        scaled = hosts.loss_scaled(optimizer, 8.0)
        optimizer.build([w])

    def step(more):
        if reduction == "weighted":
            optimizer.weigh(1.0)
        apply(scaled, 2.0, w, **more)

    run = hosts.tf.function(lambda more: strategy.run(step, (more,)))
    with pytest.raises(ValueError, match=f"gradients before they are summed.*{TO_SUM}"):
        run(SUMMED)
    for _ in range(LENGTH):
        run({})
    assert optimizer.completed_updates == 1


def test_gradients_summed_by_the_user_are_accepted_without_a_loss_scale():
    vs = [hosts.variable([1.0], "w") for _ in range(2)]
    stock = hosts.stock("Adam", **ADAM.arguments)
    ours = hosts.ours("Adam", accum_iters=LENGTH, **ADAM.arguments)
    for average in (2.0, -4.0, 3.0):
        apply(stock, average, vs[0], **SUMMED)
        for part in (-0.5, 0.5, -0.25, 0.25):
            apply(ours, average + part, vs[1], **SUMMED)
    assert ours.completed_updates == 3
    assert_equal({"w": hosts.array(vs[1])}, {"w": hosts.array(vs[0])})
    back = type(ours).from_optimizer(stock, accum_iters=LENGTH)
    back.build(vs[:1])
    assert_equal(ours.get_state(), back.get_state())


def test_accum_iters_1_is_the_stock_optimizer_inside_as_well():
    """The stock optimizer accepts gradients summed by the user, and counts skipped steps."""
    found = []
    for optimizer in (hosts.stock("Adam"), hosts.ours("Adam", accum_iters=1)):
        scaled, w = hosts.loss_scaled(optimizer, 8.0), hosts.variable([1.0], "w")
        for gradient in (2.0, np.inf, 3.0):
            apply(scaled, gradient, w, **SUMMED)
        found.append((int(optimizer.iterations), hosts.array(w).tolist()))
    assert found[0] == found[1] and found[0][0] == 3


def test_a_missing_gradient_and_a_skipped_micro_batch_in_a_window():
    """A variable without a gradient in a window stays, also after a skip."""
    optimizer = hosts.ours("Adam", accum_iters=2, **ADAM.arguments)
    scaled = hosts.loss_scaled(optimizer, 8.0)
    w, b = [hosts.variable([1.0], name) for name in ("w", "b")]
    optimizer.build([w, b])
    for close in (lambda: apply(scaled, 1.0, w), optimizer.apply_partial_window):
        for _ in range(2):
            apply(scaled, 1.0, w, b)
        before = hosts.array(b), hosts.array(w)
        for gradient in (1.0, np.inf):
            apply(scaled, gradient, w)
        copy = pickle.loads(pickle.dumps(optimizer))
        np.testing.assert_array_equal(copy.get_state()["missing_gradients"][:-1], [0, 1])
        close()
        assert hosts.array(b) == before[0] and hosts.array(w) != before[1]
        assert "missing_gradients" not in optimizer.get_state()


@pytest.mark.parametrize("scales", [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]])
def test_missing_gradients_in_checkpoints_from_and_for_a_loss_scale(scales, tmp_path):
    variables, path = {name: hosts.variable([1.0], name) for name in "wb"}, None
    steps = {"wb wb": True, "w w": False, "wb w": True, "w": False, " w": False}
    for is_scaled, (names, moves_b) in zip(scales, steps.items()):
        optimizer = hosts.ours("SGD", momentum=0.5, accum_iters=2)
        scaled = hosts.loss_scaled(optimizer, 8.0) if is_scaled else optimizer
        optimizer.build(list(variables.values()))
        checkpoint = hosts.tf.train.Checkpoint(optimizer=optimizer)
        if path:
            checkpoint.read(path).expect_partial()
        before = hosts.array(variables["b"]).copy()
        for present in names.split():
            apply(scaled, 1.0, *map(variables.get, present))
        assert (hosts.array(variables["b"]) != before) == moves_b, names
        path = checkpoint.write(str(tmp_path / "checkpoint"))
