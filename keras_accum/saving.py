"""Saving and loading: an optimizer's state and config. No Keras is imported here."""

import functools

from keras_accum.engine.state.checks import StateError
from keras_accum.host import find_user_classes, warn
from keras_accum.options import make_config
from keras_accum.schedule import check_length

# Keras 2.0 to 2.3 wrote all arguments into a config, and no name. Each class has one pair.
_KERAS_2_WROTE = {"decay", "epsilon"}, {"decay", "nesterov"}, {"schedule_decay", "epsilon"}


class Saving:
    """Methods that you or Keras call to save and load an optimizer."""

    @staticmethod
    def _in_custom_objects(name):
        """Return the object registered under this name while a file is loaded, or None."""

    def get_state(self):
        """Return the whole state as `{name: NumPy array}`, for `set_state` or `np.savez`.

        Names and shapes are the same on every Keras: `completed_updates`, `Adam.momentum.0`,
        `accumulator.0` and others, listed in docs/reference/state.md.
        """
        return self._accumulation.state.get()

    def set_state(self, state, by_name=False):
        """Continue from a state that `get_state` returned, on this Keras or another.

        Before `build`, the optimizer keeps the state until its variables are created. The model's
        trainable variables must be the same, in the same order. `learning_rate` is optional;
        without the window's arrays, a new window starts. An open window keeps its length. Later
        windows have this optimizer's length, unless you had set `accum_iters` before saving: then
        they have that one, with a warning.

        Args:
            state: Dictionary from `get_state`.
            by_name: Boolean, default False. True, after `build`, if you have frozen or unfrozen
                layers since: weights with a name that is in the state continue, and the others
                keep what this optimizer has for them, in a new one the start.

        Raises:
            keras_accum.StateError: If the state doesn't fit. The message lists every misfit, and
                the optimizer is unchanged.
        """
        self._load(functools.partial(self._accumulation.state.set, by_name=by_name), state)

    def set_weights(self, weights):
        """Continue from a list of arrays: this optimizer's, the stock optimizer's or Keras 2's.

        Raises:
            keras_accum.StateError: If no known layout fits. The optimizer is unchanged.
        """
        try:
            self._load(self._accumulation.state.set, weights)
        except StateError as error:
            stock = self._stock_class
            if any("set_weights" in vars(cls) for cls in find_user_classes(stock)):
                error.args = (
                    f"{error} An accumulating optimizer doesn't call `{stock.__name__}.set_weights`"
                    ", which might take this list: load it into the stock optimizer, and use "
                    "`from_optimizer`.",
                )
            raise

    def save_own_variables(self, store):
        """Write the state to a Keras file, under `get_state`'s names."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a Keras file, also one from the stock optimizer."""
        self._load(functools.partial(self._accumulation.state.load, by_order=True), store)

    def _load(self, load, saved):
        """Load a state. The script's `accum_iters` stays, unless another one was set and saved."""
        given = self.accum_iters
        load(saved)
        self._warn_unless(given)

    def get_config(self):
        config = super().get_config()
        for name in self._fixed:
            config.pop(name, None)
        options, now = self._accumulation.options, self.accum_iters
        config.update(make_config(options))
        if not options.is_scheduled:
            config["accum_iters"] = now
            if options.accumulates and now == 1:  # it still has accumulators
                config["constructed_with"] = options.accum_iters
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Create an optimizer from a config, also one from Keras 2.0 to 2.3."""
        config, is_set_to_1 = dict(config), "constructed_with" in config
        if is_set_to_1:
            config["accum_iters"] = config.pop("constructed_with")
        is_whole = any(pair <= set(config) for pair in _KERAS_2_WROTE)
        of_keras_2 = is_whole and "name" not in config
        if of_keras_2 and "clipnorm" in config:  # the norm of all gradients together
            config["global_clipnorm"] = config.pop("clipnorm")
        config.pop("all_reduce", None)  # from version 0.3; the numbers are the same
        # A user's `from_config` may take only the config.
        more = () if custom_objects is None else (custom_objects,)
        optimizer = cls._from_arguments(config, *more)
        if is_set_to_1:
            optimizer.accum_iters = 1
        if of_keras_2 and "accum_iters" not in config:
            warn(
                f"This {cls.__name__} was saved by a class that didn't save accum_iters, so "
                "accum_iters=1 is used: an update on every micro-batch. To set it, load with "
                f"custom_objects={{'{cls.__name__}': {cls.__name__}.with_accum_iters(5)}}, or if "
                "a stock optimizer was saved, with_accum_iters(5, stock=True)."
            )
            optimizer._accumulation.state.counts_micro_batches = True
        # A Keras with registered names finds the class and ignores the user's Loader.
        loader = cls._in_custom_objects(cls.__name__)
        if isinstance(loader, Loader):
            optimizer._warn_unless(loader.accum_iters)
        return optimizer

    def _warn_unless(self, given):
        """Warn if `accum_iters` isn't the given one."""
        if self.accum_iters != given and not self._accumulation.options.is_scheduled:
            warn(
                f"Using the saved accum_iters={self.accum_iters} instead of {given}. To change it, "
                f"set `optimizer.accum_iters = {given}` after loading, in a callback if `fit` "
                "loads, as with BackupAndRestore."
            )

    @classmethod
    def _from_arguments(cls, config, *more):
        """Create an optimizer from current arguments, not those in an old file."""
        return super().from_config(config, *more)

    @classmethod
    def with_accum_iters(cls, accum_iters, stock=False):
        """Return this class for `custom_objects`, to load a file without `accum_iters`.

        The AdamAccumulate class copied across the web writes such files. They count micro-batches,
        and the count is converted to updates. Keras 2's stock optimizers count updates.

        Args:
            accum_iters: Integer >= 1: micro-batches per update.
            stock: Boolean, default False. True if a stock optimizer wrote the file. Keras up to
                3.15 looks for its name in lower case, Keras 3.16 for the name of its class.

        Example:

        >>> copied = {"AdamAccumulate": AdamAccumulate.with_accum_iters(5)}
        >>> model = load_model("copied_class.h5", custom_objects=copied)
        >>> adam = AdamAccumulate.with_accum_iters(5, stock=True)
        >>> model = load_model("stock.h5", custom_objects={"adam": adam, "Adam": adam})
        """
        return Loader(cls, check_length(accum_iters), stock)


class ByName:
    """Registered under the name of a class in lower case, for `compile("adamaccumulate")`."""

    def __init__(self, cls):
        self.__name__ = cls.__name__

    def from_config(self, config, custom_objects=None):
        raise ValueError(
            f"A name has no place for accum_iters: give `compile` the optimizer itself, "
            f"`{self.__name__}(accum_iters=5)`. Received: the name {self.__name__!r}"
        )


class Loader:
    """Returned by `with_accum_iters` in place of a class in `custom_objects`."""

    def __init__(self, cls, accum_iters, stock):
        self.cls, self.accum_iters, self.stock = cls, accum_iters, stock
        self.__name__ = cls.__name__

    def from_config(self, config, custom_objects=None):
        if config.get("accum_iters", self.accum_iters) != self.accum_iters:
            raise ValueError(
                f"with_accum_iters({self.accum_iters}) for a file that holds "
                f"accum_iters={config['accum_iters']}: load the file with {self.__name__} itself, "
                f"and compile the model with `{self.__name__}.from_optimizer(model.optimizer, "
                f"accum_iters={self.accum_iters})`."
            )
        is_of_copied_class = "accum_iters" not in config and not self.stock
        config = {**config, "accum_iters": self.accum_iters}
        optimizer = self.cls.from_config(config, custom_objects)
        optimizer._accumulation.state.counts_micro_batches = is_of_copied_class
        return optimizer
