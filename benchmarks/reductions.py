"""What one reduction per window saves: `python benchmarks/reductions.py <host>`.

Two processes on this machine train the MLP together under MultiWorkerMirroredStrategy. Each has 8
samples per micro-batch, and they exchange gradients through the loopback device. Prints the time of
a micro-batch, of one process, divided by that of stock Adam, which reduces and updates on every
micro-batch. The figures are of the smallest times of rounds in which all contenders take turns.
"""

import argparse
import json
import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PROCESSES, SAMPLES, WINDOWS = 2, 8, (2, 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("host", choices=("keras3", "tf_keras"))
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contender")
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        work(options)
        return
    sockets = [socket.create_server(("localhost", 0)) for _ in range(PROCESSES)]
    workers = [f"localhost:{s.getsockname()[1]}" for s in sockets]  # free ports
    for s in sockets:
        s.close()
    processes = []
    for index in range(PROCESSES):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
    try:
        assert all(process.wait() == 0 for process in processes)
    finally:
        for process in processes:
            process.kill()


def work(options):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before all other uses of TensorFlow

    from shared import contenders
    from shared.contenders import CONDITIONAL, SELECT, STOCK
    from shared.timing import smallest

    keras, accum, _ = contenders.load(options.host)
    found = contenders.find(options.host)
    made = {who: found[who].optimizer for who in (STOCK, SELECT, CONDITIONAL)}
    made['all_reduce="per_window"'] = lambda k: accum.AdamAccumulate(
        accum_iters=k, all_reduce="per_window"
    )
    names = [who for who in made if who != STOCK]
    is_first = strategy.cluster_resolver.task_id == 0
    if is_first:
        print(f"| micro-batches per window | {' | '.join(names)} |")
        print(f"| ---: |{' ---: |' * len(names)}")
    for k in WINDOWS:
        steps = {who: window(keras, strategy, make, k) for who, make in made.items()}
        for step in steps.values():
            step()
        times = smallest(steps, options.rounds)
        if is_first:
            cells = [f"{times[who] / times[STOCK]:.2f}" for who in names]
            print(f"| {k} | {' | '.join(cells)} |", flush=True)


def window(keras, strategy, make_optimizer, k):
    """Return a function that trains on k micro-batches."""
    import tensorflow as tf
    from shared import networks

    with strategy.scope():
        model, make_x = networks.mlp(keras)
        optimizer = make_optimizer(k)
        if hasattr(optimizer, "build"):  # Keras 3 can't build an optimizer in a replica's graph
            optimizer.build(model.trainable_variables)
    x, y = networks.draw(make_x, SAMPLES)
    loss_of = keras.losses.SparseCategoricalCrossentropy(reduction="sum")

    def replica():
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / (PROCESSES * SAMPLES)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    micro_batch = tf.function(lambda: strategy.run(replica))

    def run():
        for _ in range(k):
            micro_batch()

    return run


if __name__ == "__main__":
    main()
