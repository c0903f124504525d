"""What the state is, for both styles of optimizers: reading and writing its variables."""

import numpy as np

from keras_accum import arguments, base, states
from keras_accum.tf_keras.library import keras


class State(base.Optimizer):
    """A base class that comes before a stock optimizer class. A style defines `_state_variables`.

    `fixed` has the stock arguments whose values a class fixes.
    """

    fixed = {}
    _keras = "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)"
    _can_reduce_late = True

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        port, window = self._accumulation.port, self._accumulation.window
        unapplied = 0 if window is None else port.read(window.named["unapplied"])
        return int(port.read(port.updates) - unapplied)

    @property
    def _is_built(self):
        return bool(self._accumulation.port.variables)

    def _read_state(self):
        state = _values(self._state_variables())
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        state.pop("state_format", None)
        return states.without_idle({**state, **self._rate_state()})

    def _rate_state(self):
        rate = self._accumulation.port.rate
        if rate is None or callable(rate):  # also a schedule
            return {}
        return {"learning_rate": np.asarray(keras.backend.get_value(rate))}

    def _write_state(self, state):
        self._write_shared(state)
        state, variables = dict(state), self._state_variables()
        state.pop("learning_rate", None)
        if self._accumulation.window is not None:
            state["unapplied"] = np.asarray(0)
        for name, value in state.items():
            self._accumulation.port.write(variables[name], value)

    def _shared_variables(self):
        return {"completed_updates": self.iterations}

    def _add_waiting(self, name, array):
        return keras.backend.variable(array, dtype=np.asarray(array).dtype, name=name)

    def _write_shared(self, state):
        if "learning_rate" in state and self._rate_state():
            self.learning_rate = float(state["learning_rate"])
        if "completed_updates" in state:
            self._accumulation.port.write(self.iterations, state["completed_updates"])

    # -- checkpoints -------------------------------------------------------------------------------

    @property
    def _update_uid(self):
        return super()._update_uid

    @_update_uid.setter
    def _update_uid(self, uid):
        # TensorFlow sets this attribute when it starts to restore this object from a checkpoint.
        super(State, type(self))._update_uid.fset(self, uid)
        self._pending.drop()

    def _check_nothing_waits(self):
        """Raise a ValueError if TensorFlow saves an optimizer in which a state waits."""
        if self._pending:
            raise ValueError(
                "A state waits in this optimizer for its variables, and a checkpoint or SavedModel "
                "can't hold a waiting state: call `optimizer.build(model.trainable_variables)` "
                "first."
            )

    # -- from and to stock optimizers --------------------------------------------------------------

    # A style defines
    # * `_sources(optimizer)`: the classes of stock optimizers that this optimizer may be of;
    # * `_arguments_of(optimizer)`: its constructor arguments, as this class takes them;
    # * `_of_stock(optimizer)`: a stock optimizer's variables by their names in a state, and the
    #   keys of the model's variables, in order;
    # * `_build_stock(optimizer, variables)`.

    @classmethod
    def _made_from(cls, optimizer, given):
        """Return an optimizer of this class with the arguments and the state of another."""
        cls._check_source(optimizer, cls._sources(optimizer))
        config, is_ours = cls._arguments_of(optimizer), isinstance(optimizer, base.Optimizer)
        cls._check_fixed(config)
        if not is_ours:
            del config["name"]
        new = cls._like(config, given)
        if is_ours:
            state, keys = optimizer.get_state(), list(optimizer._pending.keys)
            if optimizer._is_built:
                new.build(optimizer._accumulation.port.variables)
        else:
            found, keys = new._of_stock(optimizer)
            state = _values(found)
        copy_exclusions(optimizer, new)
        new._continue_from(state, optimizer)
        new._pending.keys = keys
        return new

    def _made_stock(self):
        """Return a stock optimizer with the arguments and the state of this optimizer."""
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**self._arguments_of(self), **self.fixed}
        for name in {"name", *arguments.OWN} - {"decay"}:
            config.pop(name, None)
        stock = self._stock_class(**config)
        copy_exclusions(self, stock)
        if self._is_built:
            self._build_stock(stock, self._accumulation.port.variables)
            state = self._read_state()
            for name, variable in self._of_stock(stock)[0].items():
                self._accumulation.port.write(variable, state[name])
        return stock


def copy_exclusions(source, target):
    """Copy the exclusions from weight decay, which no config has."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_names"):
        if hasattr(source, name):
            setattr(target, name, list(getattr(source, name)))


def _values(variables):
    """Return the values of variables by name."""
    return dict(zip(variables, keras.backend.batch_get_value(list(variables.values()))))
