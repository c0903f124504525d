"""What a micro-batch costs: `python benchmarks/micro_batch.py`.

Prints, for each host and backend that is installed and for each `gate`, the time of one micro-batch
of AdamAccumulate over that of stock Adam (which updates on every one), of Keras 3's own
accumulation, and of the floor, as little as can be done: for a window of k micro-batches, k - 1
bare accumulations `acc += g` and one stock update. Two networks through `fit`, and on TensorFlow
the optimizer alone on 20 M parameters.

Only ratios of medians are printed, from rounds in which all contenders take turns in one process:
a lone time says more about the machine than about the code.
"""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys

from timing import medians

CONFIGURATIONS = {
    "keras3-tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "keras3-jax": {"KERAS_BACKEND": "jax"},
    "keras3-torch": {"KERAS_BACKEND": "torch"},
    "tf_keras": {"TF_USE_LEGACY_KERAS": "1"},
}
MICRO_BATCH, WINDOW = 16, 8
GATES = "arithmetic", "branch"
COLUMNS = "stock Adam", "Keras own", "floor"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one host and backend")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options.inside, options.rounds)
        return
    print(describe_machine())
    print(f"micro-batch {MICRO_BATCH}, accum_iters {WINDOW}; ours over each, medians\n")
    columns = "".join(f"{name:>12}" for name in COLUMNS)
    print(f"{'':20}{'':14}{'gate':12}{columns}", flush=True)
    for name, environment in CONFIGURATIONS.items():
        if options.only in (None, name):
            command = [sys.executable, __file__, "--inside", name, "--rounds", str(options.rounds)]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
            if subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode:
                print(f"{name:20}skipped: it isn't installed or failed; --inside {name} says why")


def describe_machine():
    packages = ["keras", "tf_keras", "tensorflow", "jax", "torch"]
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    python = f"Python {platform.python_version()}"
    return ", ".join([platform.machine(), f"{os.cpu_count()} cores", python, *versions])


def measure(configuration, rounds):
    if configuration == "tf_keras":
        import tf_keras as keras

        from keras_accum import tf_keras as accum

        stock = keras.optimizers.legacy.Adam
    else:
        import keras

        from keras_accum import keras3 as accum

        stock = keras.optimizers.Adam

    contenders = {
        **{
            gate: lambda gate=gate: accum.AdamAccumulate(accum_iters=WINDOW, gate=gate)
            for gate in GATES
        },
        "stock Adam": stock,
        "acc += g": lambda: bare_accumulation(keras, configuration)(),
    }
    if configuration != "tf_keras":
        contenders["Keras own"] = lambda: stock(gradient_accumulation_steps=WINDOW)

    for network in (mlp, conv_net):
        report(configuration, network.__name__, fits(keras, network, contenders), rounds)
    if "jax" not in configuration and "torch" not in configuration:
        alone = optimizer_alone(contenders)
        report(configuration, "20 M, alone", alone, rounds)


def report(configuration, what, steps, rounds):
    """Let the contenders take turns and print how ours compares with each."""
    median = medians(steps, rounds)
    median["floor"] = ((WINDOW - 1) * median["acc += g"] + median["stock Adam"]) / WINDOW
    for gate in GATES:
        cells = [
            f"{median[gate] / median[name]:12.2f}" if name in median else f"{'':12}"
            for name in COLUMNS
        ]
        print(f"{configuration:20}{what:14}{gate:12}{''.join(cells)}", flush=True)


def mlp(keras):
    """3.2 M parameters: the optimizer dominates."""
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), (1024,)


def conv_net(keras):
    """1.2 M parameters, most of the time in the convolutions."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    ), (28, 28, 1)


def fits(keras, network, contenders):
    """For each contender a function that fits four windows."""
    import numpy as np

    steps = {}
    for name, optimizer in contenders.items():
        model, shape = network(keras)
        generator = np.random.default_rng(0)
        x = generator.normal(size=(4 * WINDOW * MICRO_BATCH, *shape)).astype("float32")
        y = generator.integers(0, 10, size=len(x))
        model.compile(
            optimizer=optimizer(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

        def step(model=model, x=x, y=y):
            model.fit(x, y, batch_size=MICRO_BATCH, shuffle=False, verbose=0)

        steps[name] = step
    return steps


def optimizer_alone(contenders):
    """For each contender a function that applies gradients for one window."""
    import tensorflow as tf

    steps = {}
    for name, make in contenders.items():
        optimizer = make()
        variables = [tf.Variable(tf.random.normal([5_000_000])) for _ in range(4)]
        grads = [tf.random.normal([5_000_000]) for _ in variables]

        @tf.function
        def apply(optimizer=optimizer, grads=grads, variables=variables):
            optimizer.apply_gradients(zip(grads, variables))

        def step(apply=apply):
            for _ in range(WINDOW):
                apply()

        steps[name] = step
    return steps


def bare_accumulation(keras, configuration):
    """An optimizer that does nothing but add gradients up."""
    base = keras.optimizers.SGD if configuration != "tf_keras" else keras.optimizers.legacy.SGD

    class BareAccumulation(base):
        def build(self, variables):
            if not self.built:
                super().build(variables)
                self._sums = self.add_optimizer_variables(variables, "sum")

        def apply(self, grads, trainable_variables=None):
            self.build(list(trainable_variables or self._trainable_variables))
            if keras.backend.backend() == "torch":
                import torch

                torch._foreach_add_([s.value for s in self._sums], list(grads))
                return
            for gradient, total in zip(grads, self._sums):
                self.assign_add(total, gradient)

    class BareAccumulation2(base):
        def _create_slots(self, var_list):
            for variable in var_list:
                self.add_slot(variable, "sum")

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return self.get_slot(var, "sum").assign_add(grad)

    return BareAccumulation2 if configuration == "tf_keras" else BareAccumulation


if __name__ == "__main__":
    main()
