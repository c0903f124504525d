"""Our optimizers inside a LossScaleOptimizer of Keras 2, which sums, checks and skips by itself."""

import pickle

import hosts
import numpy as np
import pytest
from cases import on_adam
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    assert_moved,
    batches,
    compiled,
    dense_model,
)

pytestmark = [
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the LossScaleOptimizer of Keras 2"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

EXACT = {"rtol": 0, "atol": 0}
# The argument that says that the user has summed the gradients over the replicas.
SUMMED = {"experimental_aggregate_gradients": False}
if hosts.IS_NEW_STYLE:
    SUMMED = {"skip_gradients_aggregation": True}
TO_SUM = f"leave {next(iter(SUMMED))}={not next(iter(SUMMED.values()))}"


# -- reduction="weighted" ----------------------------------------------------------------------


def weighted(case, **more):
    arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **more}
    return hosts.ours(case.name, **arguments)


def stepped(optimizer, batches, model=None):
    """Train a model eagerly, where the k-th micro-batch has weight k, and return the model."""
    model = model or compiled(dense_model(), optimizer)
    model.run_eagerly = True
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for i, (x, y) in enumerate(batches, start=1):
        inner.weigh(float(i))
        model.train_on_batch(x, y)
    return model


@on_adam
def test_weighted_has_the_same_state_inside_and_alone(case, every_gate):
    alone = stepped(weighted(case), batches(MICRO)[: LENGTH + 2]).optimizer
    inside = weighted(case)
    stepped(hosts.loss_scaled(inside, 1.0), batches(MICRO)[: LENGTH + 2])
    assert_equal(inside.get_state(), alone.get_state())
    assert list(inside.get_state()) == list(alone.get_state())
    again = pickle.loads(pickle.dumps(inside))
    assert_equal(again.get_state(), inside.get_state(), **EXACT)
    if hosts.IS_NEW_STYLE:  # which has no get_weights
        return
    assert [w.shape for w in inside.get_weights()] == [w.shape for w in alone.get_weights()]
    inside.set_weights(inside.get_weights())
    assert_equal(again.get_state(), inside.get_state(), **EXACT)


# -- skipped micro-batches ---------------------------------------------------------------------


@on_adam
def test_gradients_summed_by_the_user_are_refused_with_weights(case, every_gate):
    """A sum over replicas lacks the weight of each replica's share."""
    optimizer = weighted(case)
    scaled, vs = hosts.loss_scaled(optimizer, 8.0), [hosts.variable([1.0], "w")]
    pairs = [(hosts.tf.constant([2.0], hosts.FLOATX), vs[0])]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"reduction='weighted'.*{TO_SUM}"):
            scaled.apply_gradients(pairs, **SUMMED)
        for _ in range(LENGTH):
            optimizer.weigh(1.0)
            scaled.apply_gradients(pairs)
    assert optimizer.completed_updates == 2


@on_adam
def test_gradients_summed_by_the_user_are_accepted_without_a_loss_scale(case):
    def trained(optimizer, size):
        variables = [hosts.variable([1.0, -1.0], "w")]
        start = {"w": variables[0].numpy()}
        gradients = np.random.RandomState(3).uniform(0.5, 1, (3 * BIG, 2))
        for i in range(0, len(gradients), size):
            gradient = hosts.tf.constant(gradients[i : i + size].mean(0), hosts.FLOATX)
            pairs = [(gradient, variables[0])]
            optimizer.apply_gradients(pairs, **SUMMED)
        found = {name: hosts.array(v) for name, v in hosts.slots(optimizer, variables).items()}
        return start, {"w": variables[0].numpy(), **found}

    start, expected = trained(hosts.stock(case.name, **case.arguments), BIG)
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_moved(start, {"w": expected["w"]})
    assert_equal(trained(ours, MICRO)[1], expected)


@on_adam
def test_accum_iters_1_is_the_stock_optimizer_inside_as_well(case):
    """The stock optimizer accepts gradients summed by the user, and counts skipped steps."""
    found = []
    for optimizer in (hosts.stock(case.name), hosts.ours(case.name, accum_iters=1)):
        scaled, w = hosts.loss_scaled(optimizer, 8.0), hosts.variable([1.0], "w")
        for gradient in (2.0, np.inf, 3.0):
            pairs = [(hosts.tf.constant([gradient], hosts.FLOATX), w)]
            scaled.apply_gradients(pairs, **SUMMED)
        found.append((int(optimizer.iterations), w.numpy().tolist()))
    assert found[0] == found[1] and found[0][0] == 3


@on_adam
def test_a_missing_gradient_and_a_skipped_micro_batch_in_a_window(case):
    """A variable without a gradient in a window stays, also if `iterations` has counted a skip."""
    optimizer = hosts.ours(case.name, accum_iters=2, **case.arguments)
    scaled = hosts.loss_scaled(optimizer, 8.0)
    w, b = [hosts.variable([1.0], name) for name in ("w", "b")]
    optimizer.build([w, b])

    def step(gradient, *variables):
        pairs = [(hosts.tf.constant([gradient], hosts.FLOATX), v) for v in variables]
        scaled.apply_gradients(pairs)

    for close in (lambda: step(1.0, w), optimizer.apply_partial_window):
        for _ in range(2):
            step(1.0, w, b)
        before = hosts.array(b), hosts.array(w)
        for gradient in (1.0, np.inf):
            step(gradient, w)
        copy = pickle.loads(pickle.dumps(optimizer))
        np.testing.assert_array_equal(copy.get_state()["missing_gradients"][:-1], [0, 1])
        close()
        assert hosts.array(b) == before[0] and hosts.array(w) != before[1]
        assert "missing_gradients" not in optimizer.get_state()
