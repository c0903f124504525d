"""The public names: which Keras has which, and which names have changed. No host is imported."""

import sys

from keras_accum.warn import warn

_NEWER = "Keras 3, tf_keras and tf.keras"
_NEW_STYLE = "Keras 3, and tf_keras and tf.keras since they have optimizers that aren't legacy"
_KERAS_3 = "Keras 3, in its newest versions"

# The stock optimizers that have a class <name>Accumulate, and which Keras has them.
OPTIMIZERS = {
    "SGD": "every Keras",
    "RMSprop": "every Keras",
    "Adam": "every Keras",
    "AMSGrad": "every Keras",
    "AdamW": _NEW_STYLE,
    "Adadelta": "every Keras",
    "Adagrad": "every Keras",
    "Adamax": "every Keras",
    "Nadam": "every Keras",
    "Ftrl": _NEWER,
    "Lion": _NEW_STYLE,
    "Adafactor": _NEW_STYLE,
    "Lamb": _KERAS_3,
    "Muon": _KERAS_3,
    "ScheduleFreeAdamW": _KERAS_3,
}

_OTHERS = {
    "ApplyPartialWindow": "every Keras",
    "AccumulateByEpoch": "every Keras",
    "AccumulateInBackward": "Keras 3",
    "AccumulationMonitor": _NEWER,
    "AccumulationSchedule": "every Keras",
    "GrowWithNoiseScale": _NEWER,
    "MicroBatchWeights": _NEWER,
    "MicroBatches": _NEWER,
    "OnUpdates": _NEWER,
    "PythonGate": _NEWER,
    "StateError": "every Keras",
    "WindowBatchNormalization": "Keras 3",
    "WindowStatistics": "Keras 3",
    "accumulating": "every Keras",
    "with_window_statistics": "Keras 3",
}

WHERE = {**{f"{name}Accumulate": where for name, where in OPTIMIZERS.items()}, **_OTHERS}

# Names of version 0.1. They work until version 0.3.
RENAMED = {"HostGate": "PythonGate"}


def fallback(module):
    """Return the `__getattr__` of a module, which is asked for the names that the module lacks."""

    def __getattr__(name):
        if name in RENAMED:
            new = RENAMED[name]
            warn(
                f"{name} is {new} now. The old name works until version 0.3.",
                DeprecationWarning,
            )
            return getattr(sys.modules[module], new)
        if name in WHERE:
            # Not an AttributeError: `from ... import` would drop its message.
            raise ImportError(
                f"{module} has no {name} on this Keras. It is there on {WHERE[name]}."
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
