"""Several devices, each with a share of every micro-batch, equal one device with the big batch."""

import json

import hosts
import numpy as np
import pytest
import replicas
from cases import (
    CASES,
    LATE,
    on_adam,
    on_each_kind_of_state,
    quick_first,
    skip_file_on_keras2,
    thorough,
)
from hosts import keras
from processes import PARTIAL, run_together, two_free_ports, two_workers
from replicas import in_strategy, whole_and_partial
from training import (
    BIG,
    LENGTH,
    MICRO,
    START,
    UPDATES,
    WINDOWS,
    DenseEmbedding,
    Shrink,
    assert_equal,
    assert_moved,
    assert_same_training,
    batches,
    big_batch,
    compiled,
    data,
    dense_model,
    embedding_model,
    fit,
    linear_variables,
    slots,
    squares,
    train,
    values,
    weights,
)

skip_file_on_keras2("tf.distribute strategies")

tensorflow_only = pytest.mark.skipif(
    not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute"
)
keras3_only = pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has float8 scales")


def single_device(case, options):
    """The stock optimizer on one device: big batches, then the last two micro-batches as one."""
    optimizer = hosts.stock(case.name, **{**case.arguments, **options})
    variables = linear_variables()
    native = [hosts.native(v) for v in variables]
    whole, partial = whole_and_partial()
    for x, y in [*batches(BIG, whole), partial]:
        with hosts.tf.GradientTape() as tape:
            loss = hosts.tf.reduce_mean(squares(*native, x, y))
        hosts.apply(optimizer, tape.gradient(loss, native), variables)
    return values(optimizer, variables)


every_reduction = pytest.mark.parametrize("late", [{}, LATE], ids=["micro_batch", "window"])

OPTIONS = {"clipnorm": 0.3}
if hosts.HAS_EMA:
    OPTIONS.update(weight_decay=0.2, use_ema=True, ema_momentum=0.6)
GATED = {"select": {}, "window": LATE, "conditional": {"gate": "conditional"}}


@tensorflow_only
@on_adam
@quick_first("gated", GATED)
def test_mirrored_strategy(strategy, case, gated):
    expected = single_device(case, OPTIONS)
    assert_moved(START, {name: expected[name] for name in START})
    assert_equal(in_strategy(strategy, case, OPTIONS, **gated), expected)


@tensorflow_only
@on_each_kind_of_state
@every_reduction
def test_mirrored_strategy_with_fit(strategy, case, late):
    with strategy.scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **late)
        actual = train(ours, MICRO)
    assert_same_training(actual, big_batch(case))


@tensorflow_only
@on_adam
@every_reduction
@quick_first("callbacks", [(), ("PythonGate",)])
def test_mirrored_strategy_with_everything_that_acts_on_an_update(strategy, case, late, callbacks):
    rates = [case.arguments["learning_rate"] / (1 + update) for update in range(UPDATES + 1)]
    both = {**case.arguments, "learning_rate": hosts.EachUpdate(rates), "clipnorm": 0.3}
    if hosts.HAS_EMA:
        both.update(weight_decay=0.2, use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=2)

    def build():
        return dense_model(kernel_constraint=Shrink())

    expected = train(hosts.stock(case.name, **both), BIG, build)
    callbacks = [getattr(hosts.accum, name)() for name in callbacks]
    with strategy.scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **both, **late)
        actual = train(ours, MICRO, build, callbacks=callbacks)
    assert_same_training(actual, expected)


@tensorflow_only
@on_adam
@every_reduction
def test_mirrored_strategy_with_an_embedding(strategy, case, late):
    rows = np.random.default_rng(4).integers(0, 5, (len(data()[1]), 5)).astype("int32")
    arrays = rows, data()[1]
    stock = hosts.stock(case.name, **case.arguments)
    expected = train(stock, BIG, lambda: embedding_model(DenseEmbedding), arrays=arrays)
    with strategy.scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **late)
        embedding = keras.layers.Embedding
        actual = train(ours, MICRO, lambda: embedding_model(embedding), arrays=arrays)
    assert_same_training(actual, expected)


@tensorflow_only
@on_adam
@every_reduction
def test_mirrored_strategy_with_mixed_precision(strategy, case, late):
    if late and not hosts.IS_KERAS3:
        pytest.skip("Keras 2's LossScaleOptimizer is refused with all_reduce='per_window'")
    hosts.set_floatx("float32")
    mixed = hosts.mixed_float16()

    def trained(optimizer, batch_size):
        optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
        return train(optimizer, batch_size, lambda: dense_model(dtype=mixed))

    expected = trained(hosts.stock(case.name, **case.arguments), BIG)
    with strategy.scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **late)
        actual = trained(ours, MICRO)
    # Float16 rounds differently in other batches.
    assert_same_training(actual, expected, rtol=1e-2, atol=5e-3)


def executed_reductions(*callbacks, **gate):
    """How often the replicas' gradients are reduced in two windows."""
    tf = hosts.tf
    executed = tf.Variable(0)

    class Counting(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, *arguments):
            executed.assign_add(1)  # counts in the graph, at each run of the reduction
            return super().batch_reduce_implementation(*arguments)

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Counting()).scope():
        model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, **gate))
    fit(model, MICRO, [a[: 2 * BIG] for a in data()], epochs=1, callbacks=list(callbacks))
    assert model.optimizer.completed_updates == 2
    return int(executed)


@thorough
@tensorflow_only
def test_reductions_in_two_windows():
    assert executed_reductions() == 2 * LENGTH
    assert executed_reductions(gate="conditional") == 2 * LENGTH
    assert executed_reductions(**LATE) == 2
    assert executed_reductions(hosts.accum.PythonGate(), **LATE) == 2


@tensorflow_only
@on_adam
def test_each_replica_has_its_own_sums(strategy, case):
    """The state has the total of the replicas' sums, for reading and for setting."""
    with strategy.scope():
        model = compiled(dense_model(), hosts.ours(case.name, accum_iters=LENGTH, **LATE))
        fit(model, MICRO, [array[: BIG + 2 * MICRO] for array in data()], epochs=1)
    state = model.optimizer.get_state()
    assert (state["window_position"], state["completed_updates"]) == (2, 1)

    def copies():
        variables = hosts.stock_variables(model.optimizer)
        found = [hosts.native(v) for v in variables if "accumulator" in v.name]
        return [[copy.numpy() for copy in v.values] for v in found]

    sums = [sum(values) for values in copies()]
    assert any(np.abs(one - two).max() > 1e-3 for one, two in copies())
    for i, total in enumerate(sums):
        np.testing.assert_allclose(state[f"accumulator.{i}"], total, **hosts.TOLERANCE)
    model.optimizer.set_state({**state, "accumulator.0": 2 * state["accumulator.0"]})
    again = model.optimizer.get_state()
    np.testing.assert_array_equal(again["accumulator.0"], 2 * state["accumulator.0"])
    np.testing.assert_allclose(sum(copies()[0]), 2 * sums[0], **hosts.TOLERANCE)


@tensorflow_only
@on_adam
@quick_first("was, becomes", [(LATE, {}), (LATE, LATE), ({}, LATE)])
def test_a_checkpoint_in_a_window(strategy, case, was, becomes, tmp_path):
    """Accumulators per replica are restored as common ones, and the reverse, with their weights."""
    end = WINDOWS * BIG
    first, rest = [[a[i:j] for a in data()] for i, j in ((0, BIG + MICRO), (BIG + MICRO, end))]

    def checkpoint(late):
        arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **late}
        ours = hosts.ours(case.name, **arguments)
        model = compiled(dense_model(), ours)
        return model, hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    with strategy.scope():
        model, saved = checkpoint(was)
        fit(model, MICRO, first, epochs=1, callbacks=[hosts.accum.MicroBatchWeights()])
        path = saved.save(str(tmp_path / "checkpoint"))
        model, read = checkpoint(becomes)
        read.restore(path)
        fit(model, MICRO, rest, epochs=1, callbacks=[hosts.accum.MicroBatchWeights()])
    assert model.optimizer.completed_updates == WINDOWS
    stock = hosts.stock(case.name, **case.arguments)
    expected = train(stock, BIG, arrays=[a[:end] for a in data()], epochs=1)
    assert_equal(weights(model), expected.weights)


@tensorflow_only
def test_central_storage_refuses_all_reduce_per_window():
    devices = ["CPU:0", "CPU:1"]
    with hosts.tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0").scope():
        model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, **LATE))
        with pytest.raises(
            ValueError, match="all_reduce='per_window' needs.*CentralStorageStrategy"
        ):
            fit(model, MICRO)


@tensorflow_only
@keras3_only
def test_a_float8_scale_refuses_all_reduce_per_window(strategy):
    with strategy.scope():
        scale = hosts.variable(1.0, "scale")
        scale.overwrite_with_gradient = True
        with pytest.raises(ValueError, match="all_reduce='per_window' can't be used with float8"):
            hosts.ours("Adam", accum_iters=LENGTH, **LATE).build([scale])


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="only legacy optimizers have gradient_aggregator")
@on_adam
@every_reduction
def test_a_gradient_aggregator(case, late):
    """The user's aggregator runs as often as Keras's own reduction would."""
    calls = []

    def of_two_equals(pairs):
        calls.append(len(pairs))
        return [(2 * gradient, variable) for gradient, variable in pairs]

    def trained(make, batch_size, **more):
        optimizer = make(case.name, gradient_aggregator=of_two_equals, **case.arguments, **more)
        return train(optimizer, batch_size, compile={"run_eagerly": True})

    expected = trained(hosts.stock, BIG)
    calls.clear()
    assert_same_training(trained(hosts.ours, MICRO, accum_iters=LENGTH, **late), expected)
    assert len(calls) == UPDATES * (1 if late else LENGTH)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="only Keras 2's LossScaleOptimizer needs sums")
def test_a_loss_scale_optimizer_refuses_all_reduce_per_window(strategy):
    with strategy.scope():
        ours = hosts.ours("Adam", accum_iters=LENGTH, **LATE)
        ours = hosts.loss_scaled(ours, initial_scale=8.0)
        model = compiled(dense_model(), ours)
        with pytest.raises(
            ValueError, match="LossScaleOptimizer.*needs all_reduce='per_micro_batch'"
        ):
            fit(model, MICRO)


@thorough
@pytest.mark.skipif(not hosts.IS_TORCH, reason="only PyTorch has DistributedDataParallel")
def test_two_processes_of_torch(tmp_path):
    script, store = hosts.TESTS / "torch_worker.py", tmp_path / "store"
    names = "momentum", "adam"
    run_together(([script, store, tmp_path / "worker", rank, *names], {}) for rank in range(2))
    for name in names:
        expected = big_batch(CASES[name])
        one, two = (dict(np.load(tmp_path / f"worker-{rank}-{name}.npz")) for rank in range(2))
        assert_equal(one, {**expected.weights, **expected.slots})
        assert_equal(two, one, rtol=0, atol=0)


@tensorflow_only
@on_adam
def test_central_storage(case):
    devices = ["CPU:0", "CPU:1"]
    with hosts.tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0").scope():
        ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
        actual = train(ours, MICRO)
    assert_same_training(actual, big_batch(case))


@thorough
@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3's fit has no parameter servers")
def test_parameter_server(tmp_path):
    """With one worker: several are asynchronous, and no two trainings are equal."""
    run_together([([hosts.TESTS / "parameter_server.py", tmp_path / "end.npz"], {})])
    with np.load(tmp_path / "end.npz") as actual:
        assert_equal(dict(actual), big_batch(CASES["adam"]).weights)


@thorough
@tensorflow_only
@pytest.mark.parametrize("late", [LATE] if hosts.IS_KERAS3 else [{}], ids=str)
def test_other_numbers_of_replicas(tmp_path, late):
    """Begun on two, saved in a window, and ended on one, two and three. The last batch is short."""
    script, started = hosts.TESTS / "replicas.py", tmp_path / "two.keras"
    run_together([([script, 2, tmp_path / "none", started, 0, 2, json.dumps(late)], {})])
    ends = {devices: tmp_path / f"{devices}.keras" for devices in (2, 3)}
    run_together(([script, d, started, end, 2, 4], {}) for d, end in ends.items())
    models = [keras.models.load_model(str(end)) for end in ends.values()]
    models.append(replicas.train(started, 2, 4, CASES["amsgrad"]))
    expected_reduction = late.get("all_reduce", "per_micro_batch")
    assert {model.optimizer.all_reduce for model in models} == {expected_reduction}

    arrays = [array[: replicas.SAMPLES] for array in data()]
    stock = hosts.stock("AMSGrad", **CASES["amsgrad"].arguments)
    expected = train(stock, replicas.SAMPLES, arrays=arrays, epochs=1)
    assert_moved(expected.start, expected.weights)
    # Keras 3 divides the loss by the number of replicas in float32.
    tolerance = {"rtol": 0, "atol": 1e-6} if hosts.IS_KERAS3 else {}
    for model in models:
        assert model.optimizer.completed_updates == 1
        for actual, value in zip(model.get_weights(), expected.weights.values()):
            np.testing.assert_allclose(actual, value, **(tolerance or hosts.TOLERANCE))


@thorough
@pytest.mark.skipif(
    not (hosts.IS_KERAS3 and hosts.IS_TENSORFLOW), reason="x_squared.py needs Keras 3 on TensorFlow"
)
def test_the_example_of_two_processes():
    script = hosts.PROJECT / "notebooks" / "x_squared.py"
    run_together([([script], {})])


@thorough
@tensorflow_only
def test_two_processes(tmp_path):
    """MultiWorkerMirroredStrategy with one process per worker."""
    gates = [{}, LATE]
    run_together(two_workers("multi_worker.py", tmp_path / "worker", json.dumps(gates)))
    expected = single_device(CASES["adam"], {"clipnorm": 0.3})
    assert_moved(START, {name: expected[name] for name in START})
    for i in range(len(gates)):
        for index in range(2):
            with np.load(tmp_path / f"worker-{index}-{i}.npz") as actual:
                assert_equal(dict(actual), expected)


jax_only = pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX has keras.distribution")


@pytest.fixture
def data_parallel():
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    yield
    keras.distribution.set_distribution(None)


@jax_only
@on_each_kind_of_state
def test_jax_data_parallel(case, data_parallel):
    actual = train(hosts.ours(case.name, accum_iters=LENGTH, **case.arguments), MICRO)
    keras.distribution.set_distribution(None)
    assert_same_training(actual, big_batch(case))


@jax_only
@on_adam
@quick_first("callbacks", {"()": (), "PythonGate": ("PythonGate",)})
def test_jax_model_parallel(case, callbacks):
    """Accumulators and slots are split over the devices in the same way as their variables."""
    distribution = keras.distribution
    mesh = distribution.DeviceMesh((1, 2), ["batch", "model"], distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout[".*hidden/kernel"] = (None, "model")
    layout[".*out/kernel"] = ("model", None)
    split = distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    distribution.set_distribution(split)
    try:
        optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
        callbacks = [getattr(hosts.accum, name)() for name in callbacks]
        actual = train(optimizer, MICRO, callbacks=callbacks)
    finally:
        distribution.set_distribution(None)
    assert_same_training(actual, big_batch(case))
    for part, axis in {"hidden_kernel": 1, "out_kernel": 0}.items():
        found = [tuple(v.value.sharding.spec) for v in optimizer.variables if part in v.name]
        # Two slots and an accumulator. Keras 3.10 leaves out the last None.
        split = [{i: name for i, name in enumerate(spec) if name is not None} for spec in found]
        assert split == [{axis: "model"}] * 3


# Each training of two processes: arguments of our optimizer, and callbacks of `fit`.
TRAININGS = [({}, []), ({"gate": "conditional"}, []), ({}, ["PythonGate"])]


@thorough
@jax_only
def test_two_processes_of_jax(tmp_path):
    """Each has half of every micro-batch. The last two micro-batches are closed as one window."""
    script, address = hosts.TESTS / "jax_worker.py", f"localhost:{two_free_ports()[0]}"
    command = [script, address, tmp_path / "worker"]
    run_together(([*command, rank, "adam", json.dumps(TRAININGS)], {}) for rank in range(2))
    model = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    start = weights(model)
    fit(model, BIG)
    fit(model, PARTIAL * MICRO, [array[: PARTIAL * MICRO] for array in data()], epochs=1)
    assert_moved(start, weights(model))
    for i in range(len(TRAININGS)):
        one, two = (dict(np.load(tmp_path / f"worker-{rank}-{i}.npz")) for rank in range(2))
        assert_equal(one, {**weights(model), **slots(model)})
        assert_equal(two, one, rtol=0, atol=0)
