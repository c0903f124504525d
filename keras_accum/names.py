"""The public names: on which Keras each one is, and which have changed. No host is imported."""

import sys
import warnings

_NEWER = "Keras 3, tf_keras and tf.keras"
_NEW_STYLE = "Keras 3, and tf_keras and tf.keras since they have optimizers that aren't legacy"
_KERAS_3 = "Keras 3, in its newest versions"

# Of what an optimizer of the name <name>Accumulate stands for, which Keras has it.
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
    "AccumulationMonitor": _NEWER,
    "MicroBatchWeights": _NEWER,
    "PythonGate": _NEWER,
    "StateError": "every Keras",
    "accumulating": "every Keras",
}

WHERE = {**{f"{name}Accumulate": where for name, where in OPTIMIZERS.items()}, **_OTHERS}

# Names of version 0.1, until version 0.3.
RENAMED = {"HostGate": "PythonGate"}


def fallback(module):
    """The `__getattr__` of a module: what a name means that it hasn't got."""

    def __getattr__(name):
        if name in RENAMED:
            new = RENAMED[name]
            warnings.warn(
                f"{name} is {new} now, and the old name goes with version 0.3.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(sys.modules[module], new)
        if name in WHERE:
            # No AttributeError: of that, `from ... import` would drop the message.
            raise ImportError(
                f"{module} has no {name} on this Keras. It is there on {WHERE[name]}."
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
