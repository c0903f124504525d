"""Several devices, each with a share of every micro-batch, equal one device with the big batch."""

import contextlib
import functools
import json

import hosts
import numpy as np
import pytest
import replicas
import training
from cases import ADAM, CASES, quick_first, skip_file_on_keras2, thorough
from hosts import keras
from processes import PARTIAL, run_together, two_free_ports, two_workers, uneven_shares
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    compiled,
    dense_model,
    fit,
    in_windows,
    train,
    weights,
)
from zoo import Interrupt

skip_file_on_keras2("tf.distribute strategies")

tensorflow_only = pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about tf.distribute")


# -- MirroredStrategy --------------------------------------------------------------------------

OPTIONS = {"clipnorm": 0.3}
if hosts.HAS_EMA:
    OPTIONS.update(weight_decay=0.2, use_ema=True, ema_momentum=0.6)


@tensorflow_only
@quick_first("gated", {"select": {}, "conditional": {"gate": "conditional"}})
def test_mirrored_strategy(strategy, gated):
    """With both gates and everything that acts on an update."""
    expected = replicas.single_device(OPTIONS)
    assert_equal(replicas.in_strategy(strategy, OPTIONS, **gated), expected)


# Everything that acts on an update.
RATES = [ADAM.arguments["learning_rate"] / (1 + update) for update in range(training.UPDATES + 1)]
BOTH = {**OPTIONS, "learning_rate": hosts.EachUpdate(RATES)}
if hosts.HAS_EMA:
    BOTH["ema_overwrite_frequency"] = 2
CONSTRAINED = functools.partial(dense_model, kernel_constraint=training.Shrink())
EMBEDDINGS = [
    functools.partial(training.embedding_model, layer)
    for layer in (training.DenseEmbedding, keras.layers.Embedding)
]
ROWS = np.random.default_rng(4).integers(0, 5, (training.SAMPLES, 5)), training.data()[1]
# Arguments of both optimizers, the models of the stock optimizer and of ours, and the data.
FITS = {
    "everything": (BOTH, [CONSTRAINED, CONSTRAINED], None),
    "embedding": ({}, EMBEDDINGS, ROWS),
}


@pytest.mark.quick_by("tf_keras", "tf_keras_new")
@tensorflow_only
@quick_first("both, models, arrays", FITS)
def test_mirrored_strategy_with_fit(strategy, both, models, arrays):
    theirs = hosts.stock("Adam", **{**ADAM.arguments, **both})
    expected = train(theirs, BIG, models[0], arrays=arrays)
    with strategy.scope():
        actual = train(in_windows(ADAM, **both), MICRO, models[1], arrays=arrays)
    training.assert_same_training(actual, expected)


@pytest.mark.quick_by("tf_keras", "tf_keras_new")
@tensorflow_only
def test_mirrored_strategy_with_mixed_precision(strategy):
    hosts.set_floatx("float32")
    mixed = hosts.mixed_float16()

    def trained(optimizer, batch_size):
        optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
        return train(optimizer, batch_size, lambda: dense_model(dtype=mixed))

    expected = trained(hosts.stock("Adam", **ADAM.arguments), BIG)
    with strategy.scope():
        actual = trained(in_windows(ADAM), MICRO)
    # Float16 rounds differently in other batches.
    training.assert_same_training(actual, expected, rtol=1e-2, atol=5e-3)


@tensorflow_only
def test_eager_replicas(strategy):
    """Python decides in each of them, and all close a window that one of them closes."""
    tf = hosts.tf
    grads = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(hosts.FLOATX)
    with strategy.scope():
        mine, ours = hosts.variable(np.ones(3), "w"), hosts.ours("SGD", accum_iters=4)
        hosts.build_on(ours, [mine])

    def step(of_replicas, is_last):
        index = int(
            tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        )
        ours.close_window(tf.constant(is_last and index == 1))
        hosts.apply(ours, [of_replicas[index]], [mine])

    for i, of_replicas in enumerate(grads):
        strategy.run(step, (of_replicas, i == 2))
    strategy.run(step, (grads[0], False))
    ours.apply_partial_window()
    theirs, stock = hosts.variable(np.ones(3), "w"), hosts.stock("SGD")
    for window in (grads[:3], [*grads[3:], grads[0]]):
        hosts.apply(stock, [np.mean([pair.sum(0) for pair in window], 0)], [theirs])
    assert_equal({"w": hosts.array(mine)}, {"w": hosts.array(theirs)})


@thorough
@tensorflow_only
def test_reductions_in_two_windows():
    """Each micro-batch reduces its gradients once."""

    def reductions(**gate):
        strategy, executed = replicas.counting()
        with strategy.scope():
            model = compiled(dense_model(), in_windows(ADAM, **gate))
        arrays = [array[: 2 * BIG] for array in training.data()]
        fit(model, MICRO, arrays, epochs=1)
        assert model.optimizer.completed_updates == 2
        return int(executed)

    assert reductions() == reductions(gate="conditional") == 2 * LENGTH


@pytest.mark.quick_by("tf_keras", "tf_keras_new")
@tensorflow_only
def test_a_checkpoint_in_a_window(strategy, tmp_path):
    middle, arrays = BIG + MICRO, [a[: training.WINDOWS * BIG] for a in training.data()]

    def begin():
        model = compiled(dense_model(), in_windows(ADAM, reduction="weighted"))
        return model, hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    def fit_part(model, part, stops=False):
        with pytest.raises(KeyboardInterrupt) if stops else contextlib.nullcontext():
            # Before the epoch ends: otherwise the window would be closed.
            callbacks = [Interrupt(LENGTH + 1)] * stops
            fit(model, MICRO, [a[part] for a in arrays], epochs=1, callbacks=callbacks)

    with strategy.scope():
        model, saved = begin()
        fit_part(model, slice(middle), stops=True)
        path = saved.save(str(tmp_path / "checkpoint"))
        model, read = begin()
        read.restore(path)
        fit_part(model, slice(middle, None))
    assert model.optimizer.completed_updates == training.WINDOWS
    stock = hosts.stock("Adam", **ADAM.arguments)
    assert_equal(weights(model), train(stock, BIG, arrays=arrays, epochs=1).weights)


OWN_SUMS = ["replicas", "fit", "accum_iters_1", "scaled"]
OWN_SUMS += ["gradient_aggregator"] * hosts.IS_LEGACY


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3 has no method that sums gradients")
@quick_first("how", OWN_SUMS)
def test_gradients_that_are_summed_in_a_way_of_ones_own(how, request, recwarn):
    """By the user's function or as Horovod does, for each micro-batch as by Keras's reduction."""
    calls, arguments = [], dict(CASES["momentum"].arguments)
    method = "_aggregate_gradients" if hosts.IS_LEGACY else "aggregate_gradients"

    def of_two_equals(pairs):
        calls.append(len(pairs))
        return [(2 * gradient, variable) for gradient, variable in pairs]

    def distributed(optimizer):
        def summed(self, pairs):
            return of_two_equals(getattr(super(self.__class__, self), method)(pairs))

        cls = type(optimizer)
        cls = type(cls.__name__, (cls,), {method: summed, "__module__": "horovod._keras"})
        return cls.from_config(optimizer.get_config())

    def trained(optimizer, batch_size):
        if how != "gradient_aggregator":
            optimizer = distributed(optimizer)
        if how == "scaled":
            optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
        eagerly = how in ("fit", "gradient_aggregator")
        return train(optimizer, batch_size, compile={"run_eagerly": eagerly})

    if how == "gradient_aggregator":
        arguments[how] = of_two_equals
    expected = trained(hosts.stock("SGD", **arguments), BIG)
    calls.clear()
    length, size = (1, BIG) if how == "accum_iters_1" else (LENGTH, MICRO)
    strategy = request.getfixturevalue("strategy") if how == "replicas" else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        actual = trained(hosts.ours("SGD", **arguments, accum_iters=length), size)
    training.assert_same_training(actual, expected)
    dropped = [w for w in recwarn if "are already summed over replicas" in str(w.message)]
    assert bool(dropped) == (how == "scaled")  # a weight that `fit` found
    assert len(calls) == training.UPDATES * LENGTH or how not in ("fit", "gradient_aggregator")


# -- other strategies and several processes ----------------------------------------------------


@pytest.mark.quick_by("tf_keras", "tf_keras_new")
@tensorflow_only
def test_central_storage():
    devices = ["CPU:0", "CPU:1"]
    with hosts.tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0").scope():
        actual = train(in_windows(ADAM), MICRO)
    training.assert_same_training(actual, training.big_batch(ADAM))


@thorough
@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="Keras 3's fit has no parameter servers")
def test_parameter_server(tmp_path):
    """With one worker: several are asynchronous, and no two trainings are equal."""
    run_together([([hosts.SUPPORT / "parameter_server.py", tmp_path / "end.npz"], {})])
    with np.load(tmp_path / "end.npz") as actual:
        assert_equal(dict(actual), training.big_batch(ADAM).weights)


@pytest.mark.weekly  # test_two_processes has the same promise
@thorough
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="x_squared.py needs Keras 3")
@tensorflow_only
def test_the_example_of_two_processes():
    run_together([([hosts.PROJECT / "notebooks" / "x_squared.py"], {})])


def results(path, name):
    """What both processes have written, which is the same."""
    one, two = (dict(np.load(f"{path}-{rank}-{name}.npz")) for rank in range(2))
    assert_equal(two, one, rtol=0, atol=0)
    return one


@thorough
@tensorflow_only
def test_two_processes(tmp_path):
    """MultiWorkerMirroredStrategy with one process per worker."""
    gates, path = [{}, {"gate": "conditional"}], tmp_path / "worker"
    run_together(two_workers("multi_worker.py", path, json.dumps(gates)))
    expected = replicas.single_device({"clipnorm": 0.3})
    for i in range(len(gates)):
        assert_equal(results(path, i), expected)


# -- JAX ---------------------------------------------------------------------------------------

jax_only = pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX has keras.distribution")


@pytest.fixture
def distributed():
    """Return a function that sets the distribution of Keras."""
    yield keras.distribution.set_distribution
    keras.distribution.set_distribution(None)


@jax_only
def test_jax_model_parallel(distributed):
    """Accumulators and slots are split over the devices in the same way as their variables."""
    distribution = keras.distribution
    mesh = distribution.DeviceMesh((1, 2), ["batch", "model"], distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout[".*hidden/kernel"] = (None, "model")
    layout[".*out/kernel"] = ("model", None)
    distributed(distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
    optimizer = in_windows(ADAM)
    actual = train(optimizer, MICRO)
    distributed(None)
    training.assert_same_training(actual, training.big_batch(ADAM))
    for part, axis in {"hidden_kernel": 1, "out_kernel": 0}.items():
        found = [tuple(v.value.sharding.spec) for v in optimizer.variables if part in v.name]
        # Two slots and an accumulator. Keras 3.10 leaves out the last None.
        split = [{i: name for i, name in enumerate(spec) if name is not None} for spec in found]
        assert split == [{axis: "model"}] * 3


# Arguments of our optimizer.
TRAININGS = [{}, {"reduction": "mean"}, {"reduction": "mean", "gate": "conditional"}]


@thorough
@jax_only
def test_two_processes_of_jax(tmp_path):
    """Each has half of every micro-batch. The last two micro-batches are closed as one window."""
    script, address = hosts.SUPPORT / "jax_worker.py", f"localhost:{two_free_ports()[0]}"
    command = [script, address, tmp_path / "worker"]
    run_together(([*command, rank, json.dumps(TRAININGS)], {}) for rank in range(2))
    model = compiled(dense_model(), hosts.stock("Adam", **ADAM.arguments))
    start = weights(model)
    fit(model, BIG)
    fit(model, PARTIAL * MICRO, [array[: PARTIAL * MICRO] for array in training.data()], epochs=1)
    training.assert_moved(start, weights(model))
    for i in range(len(TRAININGS)):
        expected = {**weights(model), **training.slots(model)}
        assert_equal(results(tmp_path / "worker", i), expected)


# -- PyTorch -----------------------------------------------------------------------------------


def contrastive_in_halves(y_true, y_pred):
    """The mean over both processes, each of which has every other sample."""
    halves = [training.contrastive(y_true[i::2], y_pred[i::2]) for i in range(2)]
    return keras.ops.concatenate(halves)


# For each training of two processes: the loss, the type of the weights, samples in a batch of a
# process, how many samples the second process lacks, and arguments of our optimizer and callback.
SLICED = {
    "sample": ("mse", "float32", 6, 0, {}, {"size": 2}),
    "short slice": ("mse", "float32", 6, 0, {}, {"size": 4}),
    "batch": ("contrastive", "float32", 6, 0, {}, {"size": 2, "loss": "batch"}),
    "read": ("scaled", "float32", 6, 0, {}, {"size": 2, "loss": "batch"}),
    "half": ("mse", "bfloat16", 6, 0, {}, {"size": 1}),
    "auto": ("mse", "float32", 6, 0, {}, {"size": "auto"}),
}
WRAPPED = {
    "stock": ("mse", "float32", 6, 0, {}, {}),
    "ours": ("mse", "float32", 3, 0, {"accum_iters": 2}, {}),
    "ours in slices": ("mse", "float32", 3, 0, {"accum_iters": 2}, {"size": 2}),
    "one slice": ("mse", "float32", 6, 0, {}, {"size": 6}),
    "uneven stock": ("mse", "float32", 6, 3, {}, {}),
    "uneven": ("mse", "float32", 6, 3, {}, {"size": 2}),
}
WEIGHTED = {"weighted": ("mse", "float32", 3, 2, {"accum_iters": 2, "reduction": "weighted"}, {})}
LOOPS = {f"loop {seed}": {"seed": seed} for seed in range(4)}
HALVES = {"contrastive": contrastive_in_halves}
OF_ROWS = "loss", "dtype", "batch_size", "lacks", "ours", "slices"


def run_on_torch(rows, path):
    script, port = hosts.SUPPORT / "torch_worker.py", two_free_ports()[0]
    shared = {"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    run_together(
        (
            [script, path / "worker", rank, json.dumps(rows)],
            {name: str(value) for name, value in {**shared, "RANK": rank}.items()},
        )
        for rank in range(2)
    )
    return {name: results(path / "worker", name) for name in rows}


torch_only = pytest.mark.skipif(not hosts.IS_TORCH, reason="about DistributedDataParallel")


@thorough
@torch_only
def test_weights_in_two_processes_of_torch(tmp_path):
    """Processes whose shares weigh differently are equal, and equal one process on all samples."""
    rows = {name: dict(zip(OF_ROWS, row)) for name, row in WEIGHTED.items()}
    found = run_on_torch({**rows, **LOOPS}, tmp_path)
    assert found["weighted"].pop("reductions") == 12  # of gradients
    loss = found["weighted"].pop("loss")
    model = compiled(dense_model(), hosts.stock("Adam", **ADAM.arguments))
    # The second process lacks two of each other sample.
    x, y = (np.delete(array, [21, 23], axis=0) for array in training.data())
    losses = fit(model, 12, (x, y)).history["loss"]
    if hosts.IS_KERAS_3_16:  # where Keras sums it over processes
        np.testing.assert_allclose(loss, losses[-1], rtol=1e-5)
    assert_equal(found["weighted"], {**weights(model), **training.slots(model)})
    for name, row in LOOPS.items():
        micro_batches, length = uneven_shares(**row)
        model = compiled(dense_model(), hosts.stock("Adam", **ADAM.arguments))
        for start in range(0, len(micro_batches), length):
            shares = [share for pair in micro_batches[start : start + length] for share in pair]
            model.train_on_batch(*(np.concatenate(arrays) for arrays in zip(*shares)))
        assert_equal(found[name], {**weights(model), **training.slots(model)})


@thorough
@torch_only
def test_two_processes_of_torch(tmp_path):
    """Each process has half of each batch, and reduces once per update or, with ours, batch."""
    wraps = hosts.IS_KERAS_3_16
    rows = {n: dict(zip(OF_ROWS, r)) for n, r in {**SLICED, **(WRAPPED if wraps else {})}.items()}
    found = run_on_torch(rows, tmp_path)
    assert found.pop("auto")["refused"]
    counted = {name: int(values.pop("reductions")) for name, values in found.items()}
    batches_of = {"ours": 12, "ours in slices": 12}
    assert counted == {name: batches_of.get(name, 6) for name in found}
    losses = {name: values.pop("loss") for name, values in found.items()}
    if wraps:
        for name, of_stock in ("sample", "stock"), ("uneven", "uneven stock"):
            np.testing.assert_allclose(losses[name], losses[of_stock], rtol=1e-5)
        assert_equal(found["uneven"], found.pop("uneven stock"))
        found.pop("uneven")
    for name, values in found.items():
        loss, dtype, half, *_ = rows[name].values()
        optimizer = hosts.stock("Adam", **ADAM.arguments)
        if loss == "scaled":
            model = training.scaled_model(optimizer)
        else:
            model = compiled(dense_model(dtype=dtype), optimizer, HALVES.get(loss, loss))
        fit(model, 12)
        tolerance = {"rtol": 0.05, "atol": 0.02} if name == "half" else {}
        assert_equal(values, {**weights(model), **training.slots(model)}, **tolerance)
