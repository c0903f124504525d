"""All that differs from one host to the next, so that no test needs to know where it runs.

The environment says which host: KERAS_ACCUM_TEST_HOST is `keras3` (with KERAS_BACKEND) or
`tf_keras` (which is tf.keras where TensorFlow has no other Keras than that).
"""

import importlib.util
import os

import numpy as np

HOST = os.environ.get("KERAS_ACCUM_TEST_HOST", "keras3")
IS_KERAS3 = HOST == "keras3"

# Two devices for the tests of distribution. Both must be set before a framework starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

if IS_KERAS3:
    import keras

    IMPORT_KERAS = "import keras"
    BACKEND = keras.backend.backend()
else:
    if importlib.util.find_spec("tf_keras"):
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tf_keras as keras

        IMPORT_KERAS = "import tf_keras as keras"
    else:
        from tensorflow import keras

        IMPORT_KERAS = "from tensorflow import keras"

    BACKEND = "tensorflow"

IS_TENSORFLOW = BACKEND == "tensorflow"
IS_TORCH = BACKEND == "torch"
if IS_TENSORFLOW:
    import tensorflow as tf

if IS_TENSORFLOW and "TF_CONFIG" not in os.environ:
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

accum = importlib.import_module(f"keras_accum.{HOST}")

# Only TensorFlow computes in float64 throughout.
FLOATX = "float64" if IS_TENSORFLOW else "float32"
TOLERANCE = {"rtol": 0, "atol": 1e-11} if IS_TENSORFLOW else {"rtol": 1e-5, "atol": 1e-6}


def stock(optimizer, **arguments):
    """The optimizer that the class `<optimizer>Accumulate` stands for."""
    if optimizer == "AMSGrad":
        optimizer, arguments = "Adam", {"amsgrad": True, **arguments}
    optimizers = keras.optimizers
    if not IS_KERAS3:
        optimizers = getattr(optimizers, "legacy", optimizers)  # up to 2.10 there are no others
    return getattr(optimizers, optimizer)(**arguments)


def ours(optimizer, **arguments):
    return getattr(accum, f"{optimizer}Accumulate")(**arguments)


def take(table, index):
    if IS_KERAS3:
        return keras.ops.take(table, index)
    return tf.gather(table, tf.cast(index, "int32"))


class EachUpdate(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is a list: the rate of each update. (Keras's own compute in float32.)"""

    def __init__(self, rates):
        self.rates = rates

    def __call__(self, update):
        return take(np.array(self.rates, FLOATX), update)

    def get_config(self):
        return {"rates": self.rates}


def decayed(learning_rate, decay, updates):
    """The stock arguments that mean what our `decay` means."""
    if not IS_KERAS3:
        return {"learning_rate": learning_rate, "decay": decay}
    rates = [learning_rate / (1 + decay * update) for update in range(updates)]
    return {"learning_rate": EachUpdate(rates)}


def stock_variables(optimizer):
    return optimizer.variables if IS_KERAS3 else optimizer.variables()


def loss_scaled(optimizer, initial_scale):
    if IS_KERAS3:
        return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=initial_scale)
    return keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=initial_scale)


def variable(value, name, dtype=None):
    """A weight outside of a model."""
    dtype = dtype or FLOATX
    if IS_KERAS3:
        return keras.Variable(value, dtype=dtype, name=name)
    return tf.Variable(value, dtype=dtype, name=name)


def native(variable):
    """What the framework's own functions take for a variable."""
    return variable.value if IS_KERAS3 else variable


def array(value):
    """A tensor or variable as NumPy."""
    return keras.ops.convert_to_numpy(value) if IS_KERAS3 else value.numpy()


def apply(optimizer, gradients, variables):
    """One micro-batch with given gradients."""
    if IS_KERAS3:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    else:
        optimizer.apply_gradients(list(zip(map(tf.convert_to_tensor, gradients), variables)))


def accumulators(optimizer):
    return [v for v in stock_variables(optimizer) if "accumulator" in v.name]


def slots(optimizer, weights):
    """{name: variable} of the optimizer's whole state but the learning rate."""
    if IS_KERAS3:
        found = {v.name: v for v in optimizer.variables if v.name != "learning_rate"}
        assert len(found) >= len(optimizer.variables) - 1, "two slots of one name"
        return found
    found = {"iterations": optimizer.iterations}
    for slot in optimizer.get_slot_names():
        for v in weights:
            try:
                found[f"{v.name}/{slot}"] = optimizer.get_slot(v, slot)
            except KeyError:  # a variable that never had a gradient
                continue
    return found
