"""Everything that differs between the hosts, so that a test needn't know which host it runs on.

The environment variable KERAS_ACCUM_TEST_HOST names the host: `keras3` (with KERAS_BACKEND),
`tf_keras` (tf.keras itself where the package tf_keras isn't installed), `tf_keras_new` (its
optimizers that aren't legacy) or `keras2`.
"""

import importlib.util
import os
import types
import warnings
import weakref
from pathlib import Path
from unittest import mock

import numpy as np

import keras_accum.host

# The stock optimizers that have a class <name>Accumulate on some Keras.
OPTIMIZERS = [n[: -len("Accumulate")] for n in keras_accum.WHERE if n.endswith("Accumulate")]

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
PROJECT = TESTS.parent

HOST = os.environ.get("KERAS_ACCUM_TEST_HOST", "keras3")
IS_NEW_STYLE = HOST == "tf_keras_new"  # the optimizers of tf_keras that aren't legacy
if IS_NEW_STYLE:
    HOST = "tf_keras"  # for the package, it is one host
IS_KERAS3 = HOST == "keras3"
IS_TF_KERAS = HOST == "tf_keras"
IS_LEGACY = IS_TF_KERAS and not IS_NEW_STYLE
IS_KERAS2 = HOST == "keras2"

# Devices for the tests of distribution. Both settings must be made before a framework starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_TWO = "--xla_force_host_platform_device_count=2"
if _TWO not in os.environ.get("XLA_FLAGS", ""):  # a process that a test starts inherits the flag
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_TWO}".strip()
# Several workers may share a GPU, so none takes its whole memory at once.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

if not IS_TF_KERAS:
    with warnings.catch_warnings():
        if IS_KERAS2:  # Python 3.7 warns about code of TensorFlow 1
            warnings.simplefilter("ignore")
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

# `tf.keras` of TensorFlow 2.13 and 2.14 has no version.
VERSION = keras_accum.host.parse_version((tf if IS_TF_KERAS else keras).__version__)
# From this version on, `fit` on PyTorch uses DistributedDataParallel and `steps_per_execution`.
IS_KERAS_3_16 = IS_KERAS3 and VERSION >= (3, 16)


def set_grappler(is_on):
    """Switch TensorFlow's optimizer of graphs, which takes up to a third of a test's time."""
    if IS_KERAS2:
        options = tf.GraphOptions()
        options.rewrite_options.disable_meta_optimizer = not is_on
        keras.backend.set_session(tf.Session(config=tf.ConfigProto(graph_options=options)))
    elif IS_TENSORFLOW:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not is_on})


if IS_TENSORFLOW and not IS_KERAS2:
    set_grappler(False)
    # Otherwise the thread that tunes a dataset can miss its end, and wait for up to a minute.
    tf.data.experimental.enable_debug_mode()


def compute_in_float32():
    """Switch TF32 off, with which a GPU rounds to ten bits: tolerances here are for float32."""
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    elif IS_TORCH:
        import torch

        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    elif not IS_KERAS2:
        tf.config.experimental.enable_tensor_float_32_execution(False)


compute_in_float32()


def new_style(package):
    """The package as its users would like it for the newer style: our classes are of that style."""
    found = types.ModuleType(package.__name__)
    vars(found).update(vars(package))
    for name in OPTIMIZERS:
        vars(found).pop(f"{name}Accumulate", None)
        if hasattr(keras.optimizers, name) and name != "Nadam":  # which is refused in this style
            cls = package.accumulating(getattr(keras.optimizers, name))
            vars(found)[f"{name}Accumulate"] = cls
    return found


if IS_TENSORFLOW and not IS_KERAS2 and "TF_CONFIG" not in os.environ:
    cpu = tf.config.list_physical_devices("CPU")[0]
    three = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(cpu, three)

accum = importlib.import_module(f"keras_accum.{HOST}")
if IS_NEW_STYLE:
    accum = new_style(accum)
# The module of the stock optimizers. Up to TensorFlow 2.10 there is only one style.
optimizers = keras.optimizers
if IS_LEGACY:
    optimizers = getattr(optimizers, "legacy", optimizers)
    if issubclass(optimizers.Optimizer, keras.optimizers.Optimizer):  # TensorFlow 2.9 and 2.10
        optimizers = keras.optimizers
# Where the stock optimizers average their weights and decay them.
HAS_EMA = IS_KERAS3 or IS_NEW_STYLE
# Where rules of `rules.py` replace stock code, some of them as fused kernels.
HAS_RULES = IS_LEGACY or IS_KERAS2
# Our argument `decay`. The stock optimizers of the newer style refuse it, and so do ours.
HAS_DECAY = not IS_NEW_STYLE

# Only TensorFlow computes in float64 throughout.
FLOATX = "float64" if IS_TENSORFLOW else "float32"
TOLERANCE = {"rtol": 0, "atol": 1e-11} if IS_TENSORFLOW else {"rtol": 1e-5, "atol": 1e-6}


def stock(optimizer, **arguments):
    """The stock optimizer that `<optimizer>Accumulate` is based on."""
    if optimizer == "AMSGrad":
        optimizer, arguments = "Adam", {"amsgrad": True, **arguments}
    if IS_KERAS2:
        if "learning_rate" in arguments:
            arguments["lr"] = arguments.pop("learning_rate")
        return in_order(getattr(keras.optimizers, optimizer)(**arguments))
    return getattr(optimizers, optimizer)(**arguments)


def in_order(optimizer):
    """Make each step of a stock optimizer of Keras 2 compute all values before it writes any.

    Stock optimizers on TensorFlow 1 read and write in no fixed order: two runs can differ.
    """
    get_updates = optimizer.get_updates

    def get_updates_in_order(loss, params):
        writes = []

        def note(x, new):
            writes.append((x, new))
            return new

        functions = {
            "update": note,
            "update_add": lambda x, more: note(x, x + more),
            "update_sub": lambda x, less: note(x, x - less),
        }
        with mock.patch.multiple(keras.backend, **functions):
            updates = get_updates(loss=loss, params=params)
        writes += [update for update in updates if isinstance(update, tuple)]  # Nadam's scalar
        with tf.control_dependencies([loss] + [new for _, new in writes]):
            return [tf.assign(x, new) for x, new in writes]

    optimizer.get_updates = get_updates_in_order
    return optimizer


GATE = {}  # arguments for all of our optimizers unless a test overrides them; set by `every_gate`


def has(name):
    """Return True if the host has an optimizer of this name, of the style that `ours` makes."""
    try:
        found = getattr(accum, name)
    except (ImportError, AttributeError):  # the first one for a name of another Keras
        return False
    return not IS_LEGACY or issubclass(found, optimizers.Optimizer)


def ours(optimizer, **arguments):
    return getattr(accum, f"{optimizer}Accumulate")(**{**GATE, **arguments})


if not IS_KERAS2:

    @keras.utils.register_keras_serializable("tests")
    class EachUpdate(keras.optimizers.schedules.LearningRateSchedule):
        """A schedule given as a list: the rate of each update. (Keras's own compute in float32.)"""

        def __init__(self, rates):
            self.rates = rates

        def __call__(self, update):
            rates = np.array(self.rates, FLOATX)
            if IS_KERAS3:
                return keras.ops.take(rates, update)
            return tf.gather(rates, tf.cast(update, "int32"))

        def get_config(self):
            return {"rates": self.rates}


def our_decay(decay):
    """Return our argument `decay` where the host has it, for tests of many arguments at once."""
    return {"decay": decay} if HAS_DECAY else {}


def decayed(learning_rate, decay, updates):
    """Return the stock arguments that are equivalent to `our_decay(decay)`."""
    if not IS_KERAS3:
        return {"learning_rate": learning_rate, **our_decay(decay)}
    rates = [learning_rate / (1 + decay * update) for update in range(updates)]
    return {"learning_rate": EachUpdate(rates)}


def set_floatx(floatx):
    keras.backend.set_floatx(floatx)
    if IS_KERAS3:  # set_floatx doesn't change a policy that Keras 3 has already cached
        keras.config.set_dtype_policy(floatx)
    if IS_TF_KERAS:  # reset the policy that an earlier test may have set to that of this data type
        keras.mixed_precision.set_global_policy(None)


def set_random_seed():
    if IS_KERAS2:
        keras.backend.clear_session()
        set_grappler(False)
        np.random.seed(0)
        tf.set_random_seed(0)
    elif not IS_TENSORFLOW:
        keras.utils.set_random_seed(0)
    else:
        # Not TensorFlow's own: TensorFlow would build the kernels of all eager operations again.
        own = mock.patch.object(tf.random, "set_seed")
        with own, mock.patch.object(tf.compat.v2.random, "set_seed"):
            keras.utils.set_random_seed(0)


def mean_squared_error():
    """Return the loss in a form that every file format of the host can hold."""
    return "mse" if IS_KERAS2 else keras.losses.MeanSquaredError()


def sequential(input_shape, layers, **arguments):
    """A model with the layers in sequence."""
    if not IS_KERAS2:
        return keras.Sequential([keras.Input(input_shape, **arguments), *layers], name="model")
    # Keras 2.2 leaves the input of a Sequential out of its files.
    x = y = keras.layers.Input(input_shape, **arguments)
    for layer in layers:
        y = layer(y)
    return keras.models.Model(x, y, name="model")


def stock_variables(optimizer):
    if IS_KERAS2:
        return [optimizer.iterations, *optimizer.weights]
    return list(optimizer.variables) if IS_KERAS3 or IS_NEW_STYLE else optimizer.variables()


def listed(optimizer):
    """The variables of a list for `set_weights`, in its order."""
    return list(optimizer.variables if IS_KERAS3 or IS_NEW_STYLE else optimizer.weights)


def build(model):
    """Give a compiled model's optimizer its variables before the first step."""
    if IS_KERAS2:
        model._make_train_function()
    else:
        model.optimizer.build(model.trainable_variables)


def list_losses(model):
    """Return the objects that Keras calls for a compiled model's losses."""
    if IS_KERAS3:
        return [item.loss for item in model._compile_loss._flat_losses]
    return [loss for loss in model.compiled_loss._losses if loss is not None]


def loss_scaled(optimizer, initial_scale, **arguments):
    module = keras.optimizers if IS_KERAS3 else keras.mixed_precision
    return module.LossScaleOptimizer(optimizer, initial_scale=initial_scale, **arguments)


def mixed_float16():
    policy = keras.DTypePolicy if IS_KERAS3 else keras.mixed_precision.Policy
    return policy("mixed_float16")


def variable(value, name, dtype=None, constraint=None):
    """A weight outside of a model."""
    dtype = dtype or FLOATX
    if IS_KERAS3:
        variable = keras.Variable(value, dtype=dtype, name=name)
        variable.constraint = constraint
        return variable
    if IS_KERAS2:
        return keras.backend.variable(value, dtype, name, constraint)
    return tf.Variable(value, dtype=dtype, name=name, constraint=constraint)


def native(variable):
    """The variable in the form that the framework's own functions take."""
    return variable.value if IS_KERAS3 else variable


def array(value):
    """Convert a tensor or variable to NumPy."""
    if IS_KERAS2:
        return keras.backend.get_value(value)
    return keras.ops.convert_to_numpy(value) if IS_KERAS3 else value.numpy()


def assign(variable, value):
    if IS_KERAS2:
        keras.backend.set_value(variable, value)
    else:
        variable.assign(value)


_STEPS = weakref.WeakKeyDictionary()


def step(optimizer, variables):
    """Return a train step on given gradients, built once per optimizer. For Keras 2 only."""
    if optimizer not in _STEPS:
        K = keras.backend
        grads = [K.placeholder(K.int_shape(v), dtype=K.dtype(v)) for v in variables]
        loss = sum(K.sum(gradient * v) for gradient, v in zip(grads, variables))
        updates = optimizer.get_updates(loss=loss, params=list(variables))
        _STEPS[optimizer] = K.function(grads, [loss], updates=updates)
    return _STEPS[optimizer]


def build_on(optimizer, variables):
    """Give an optimizer its variables without a model."""
    if IS_KERAS2:
        step(optimizer, variables)
    elif hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:  # a stock legacy optimizer
        optimizer._create_all_weights(variables)


def apply(optimizer, gradients, variables):
    """Make one micro-batch step with the given gradients, some of which may be None."""
    if IS_KERAS2:
        step(optimizer, variables)(gradients)
        return
    convert = keras.ops.convert_to_tensor if IS_KERAS3 else tf.convert_to_tensor
    tensors = [None if gradient is None else convert(gradient) for gradient in gradients]
    if IS_KERAS3:
        optimizer.apply(tensors, variables)
    else:
        optimizer.apply_gradients(list(zip(tensors, variables)))


def accumulators(optimizer, are_needed=True):
    """All accumulators of an optimizer. Without any, nothing would be tested."""
    named = optimizer._accumulation.state.by_name()
    found = [v for name, v in named.items() if name.startswith("accumulator.")]
    assert found or not are_needed
    return found


def slots(optimizer, weights):
    """The whole state of the optimizer but the learning rate, as {name: variable}."""
    if IS_KERAS2:
        return _slots_of_keras2(optimizer, len(weights))
    if IS_KERAS3:
        found = {}
        for v in optimizer.variables:  # Adafactor has several variables of the same name
            name = "scalar" if v.name.startswith("variable") else v.name  # Nadam's is unnamed
            same = sum(other.partition(" ")[0] == name for other in found)
            found[f"{name} {same}" if same else name] = v
        found.pop("learning_rate", None)
        return found
    if IS_NEW_STYLE:
        scope = f"{optimizer.name}/"  # of variables that a train function creates
        found = {v.name.replace(scope, ""): v for v in optimizer.variables}
        if not getattr(optimizer, "momentum", True):  # SGD creates the slots even with momentum 0
            found = {name: v for name, v in found.items() if not name.startswith("m/")}
        return {"iterations": found.pop("iteration:0"), **found}  # first, as elsewhere
    found = {"iterations": optimizer.iterations}
    if getattr(optimizer, "_m_cache", None) is not None:  # Nadam's running product
        found["momentum_cache"] = optimizer._m_cache
    for slot in optimizer.get_slot_names():
        for v in weights:
            try:
                variable = optimizer.get_slot(v, slot)
            except KeyError:  # a variable that never had a gradient
                continue
            found[f"{v.name}/{slot}"] = variable
    return found


def moved_by_updates(optimizer, weights):
    """The slots without the window's own variables, as {name: array}."""
    ours = set(map(id, of_window(optimizer).values()))
    found = slots(optimizer, weights).items()
    return {name: array(v) for name, v in found if id(v) not in ours}


def of_window(optimizer):
    """The variables of an optimizer's window by their names in a state, none of a stock one."""
    accumulation = getattr(optimizer, "_accumulation", None)
    return getattr(getattr(accumulation, "window", None), "named", {})


# In the order of `weights`, after `iterations`.
STOCK_SLOTS = {
    "SGD": ["momentum"],
    "RMSprop": ["velocity"],
    "Adam": ["momentum", "velocity", "velocity_hat"],
}


def _slots_of_keras2(optimizer, count):
    found = {"iterations": optimizer.iterations}
    if hasattr(optimizer, "completed_updates"):  # "Adam.momentum.0"
        named = optimizer._accumulation.state.by_name().items()
        found.update((n.partition(".")[2] if n[0].isupper() else n, v) for n, v in named)
        found.pop("completed_updates", None)
        return found
    rule = type(optimizer).__name__
    arrays = [v for v in optimizer.weights if v is not optimizer.iterations]
    names = [f"{slot}.{i}" for slot in STOCK_SLOTS[rule] for i in range(count)]
    if rule != "SGD" or array(optimizer.momentum):  # SGD creates the slots even with momentum 0
        found.update(zip(names, arrays))
    if not getattr(optimizer, "amsgrad", True):
        found = {name: v for name, v in found.items() if not name.startswith("velocity_hat")}
    return found
