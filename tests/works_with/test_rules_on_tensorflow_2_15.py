"""Optimizers and trainings of other packages on TensorFlow 2.15."""

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch
from hosts import keras
from training import EPOCHS, LENGTH, SAMPLES, compiled, data, dense_model, fit, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.15 alone"),
]


def trained(optimizer, batch_size):
    model = compiled(dense_model(), optimizer)
    fit(model, batch_size)
    return model


@pytest.mark.row(
    "tf-models-official",
    "`accumulating(LAMB)`",
    "equal to the big batch",
)
def test_lamb():
    """The guess: equal."""
    from official.modeling.optimization.lamb import LAMB

    rule = {"learning_rate": RATE, "weight_decay_rate": 0.01}
    pair = (
        lambda: LAMB(**rule),
        lambda: hosts.accum.accumulating(LAMB)(accum_iters=LENGTH, **rule),
    )
    assert_equals_big_batch(trained, optimizers=pair)


@pytest.mark.row(
    "tensorflow-privacy",
    '`make_keras_generic_optimizer_class(AdamAccumulate)` with `reduction="mean"`',
    "without noise equal to the big batch; for noise see [limits](limits.md)",
)
def test_privacy():
    """The guess: equal without noise, as each sample is clipped by itself."""
    from tensorflow_privacy import GaussianSumQuery
    from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

    make = dp_optimizer_keras.make_keras_generic_optimizer_class
    query = GaussianSumQuery(l2_norm_clip=0.1, stddev=0.0)
    pair = (
        lambda: make(type(hosts.stock("Adam")))(query, learning_rate=RATE),
        lambda: make(hosts.accum.AdamAccumulate)(
            query, learning_rate=RATE, accum_iters=LENGTH, reduction="mean"
        ),
    )

    def train(optimizer, batch_size):
        loss = keras.losses.MeanSquaredError(reduction="none")
        model = compiled(dense_model(), optimizer, loss, run_eagerly=False)
        fit(model, batch_size)
        return training.weights(model)

    assert_equals_big_batch(train, optimizers=pair)


@pytest.mark.row("elephas", "a synchronous worker, which gets the config", "equal to the big batch")
def test_elephas():
    """The guess: the worker doesn't find the class. It is registered."""
    from types import SimpleNamespace

    from elephas.worker import SparkWorker

    def train(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        start = SimpleNamespace(value=model.get_weights())
        config = {"epochs": EPOCHS, "batch_size": batch_size, "shuffle": False, "verbose": 0}
        sent = keras.optimizers.serialize(optimizer)
        worker = SparkWorker(model.to_json(), start, config, sent, "mse", [], {})
        ((changes, _),) = worker.train(zip(*data()))
        assert type(worker.model.optimizer) is type(optimizer)
        return dict(enumerate(changes))

    assert_equals_big_batch(train)


@pytest.mark.row("keras-bert", "`get_model` with a head of your own", "equal to the big batch")
def test_keras_bert():
    """The guess: equal without dropout."""
    from keras_bert import get_model

    tokens = np.random.default_rng(5).integers(1, 9, (SAMPLES, 4))
    arrays = [tokens, np.zeros_like(tokens)], data()[1]

    def train(optimizer, batch_size):
        inputs, outputs = get_model(
            9, seq_len=4, embed_dim=4, head_num=2, transformer_num=1, feed_forward_dim=8,
            dropout_rate=0.0, training=False,
        )  # fmt: skip
        out = keras.layers.Dense(2)(keras.layers.Flatten()(outputs))
        model = compiled(keras.Model(inputs, out), optimizer)
        fit(model, batch_size, arrays)
        return training.weights(model)

    assert_equals_big_batch(train, atol=1e-5)


@pytest.mark.row(
    "tf-agents",
    "`DqnAgent` with `accum_iters` times `target_update_period`",
    "equal to the big batch; `train_step_counter` counts micro-batches",
)
def test_dqn():
    """The guess: equal, and the agent's own counter counts micro-batches."""
    import tensorflow as tf
    from tf_agents.agents.dqn.dqn_agent import DqnAgent
    from tf_agents.networks import q_network
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step, trajectory

    observations = tensor_spec.TensorSpec((3,), tf.float32)
    actions = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 1)
    chosen = np.arange(SAMPLES * 2, dtype="int32").reshape(SAMPLES, 2) // 3 % 2
    x, reward = (array.astype("float32") for array in data())
    states = np.stack([x, x[::-1]], 1)

    def steps(rows):
        arrays = states[rows], chosen[rows], reward[rows]
        observed, action, rewards = map(tf.constant, arrays)
        return trajectory.mid(observed, action, (), rewards, tf.ones_like(rewards))

    def train(optimizer, batch_size):
        network = q_network.QNetwork(observations, actions, fc_layer_params=(4,))
        length = LENGTH if training.is_ours(optimizer) else 1
        counter = tf.Variable(0)
        agent = DqnAgent(
            time_step.time_step_spec(observations), actions, network, optimizer,
            target_update_period=3 * length, train_step_counter=counter,
        )  # fmt: skip
        initialize(network)
        agent.initialize()
        for start in range(0, SAMPLES, batch_size):
            agent.train(steps(slice(start, start + batch_size)))
        assert counter == SAMPLES // batch_size
        found = [*network.weights, *agent._target_q_network.weights]  # no public name
        return {str(i): w.numpy() for i, w in enumerate(found)}

    assert_equals_big_batch(train)
