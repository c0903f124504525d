"""Synchronous averaging in one page: `python notebooks/x_squared.py` (extra `tensorflow`).

y = x^2 at 50 points is learned by a 1-5-1 network with tanh, gradient descent with 0.05, 400
updates: once in one process on all 50 points, and once in two processes, each of which accumulates
5 micro-batches of its 25 points. In every update the processes average their gradients, and so both
have the same loss curve.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile

import numpy as np

PROCESSES, ACCUM_ITERS, UPDATES = 2, 5, 400
MICRO_BATCH = 50 // PROCESSES // ACCUM_ITERS  # points of one process in one micro-batch


def main():
    with tempfile.TemporaryDirectory() as folder:
        serial, parallel = f"{folder}/serial.npy", f"{folder}/parallel.npy"
        subprocess.run([sys.executable, __file__, serial], check=True)

        sockets = [socket.create_server(("localhost", 0)) for _ in range(PROCESSES)]
        workers = [f"localhost:{s.getsockname()[1]}" for s in sockets]  # free ports
        for s in sockets:
            s.close()
        processes = []
        for index in range(PROCESSES):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
            command = [sys.executable, __file__, parallel]
            processes.append(subprocess.Popen(command, env=environment))
        try:
            assert all(process.wait(timeout=300) == 0 for process in processes)
        finally:
            for process in processes:
                process.kill()

        serial, parallel = np.load(serial), np.load(parallel)
    for update in 0, 10, 100, UPDATES - 1:
        print(f"update {update:3}: loss {serial[update]:.9f} and {parallel[update]:.9f}")
    difference = np.abs(serial - parallel).max()
    print(f"largest difference of the two curves: {difference:.1e}")
    assert serial[-1] < serial[0] / 2 and difference < 1e-12


def train(path):
    """One process of several if TF_CONFIG says so, else the serial program."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow as tf

    is_parallel = "TF_CONFIG" in os.environ
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if is_parallel else tf.distribute.get_strategy()
    )
    import keras

    from keras_accum.keras3 import SGDAccumulate

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        optimizer = SGDAccumulate(0.05, accum_iters=ACCUM_ITERS if is_parallel else 1)
        optimizer.build(model.trainable_variables)

    x = np.linspace(-1, 1, 50)[:, None]
    y = x**2

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
            # The processes' gradients are summed: each is a part of their average.
            part = loss / strategy.num_replicas_in_sync
        gradients = tape.gradient(part, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    rank, micro_batch, mine = 0, 50, slice(None)
    if is_parallel:
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        micro_batch, mine = MICRO_BATCH, slice(rank, None, PROCESSES)
    my_x, my_y = tf.constant(x[mine]), tf.constant(y[mine])

    @tf.function
    def update():
        loss = tf.reduce_mean((model(x) - y) ** 2)  # on all points
        for first in range(0, len(my_x), micro_batch):
            batch = slice(first, first + micro_batch)
            strategy.run(step, (my_x[batch], my_y[batch]))
        return loss

    losses = [float(update()) for _ in range(UPDATES)]
    if rank == 0:
        np.save(path, losses)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        main()
