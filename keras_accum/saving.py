"""What saves and loads an optimizer: its state, its config. No Keras is imported here."""

from keras_accum.options import make_config
from keras_accum.schedule import check_length
from keras_accum.warn import warn

# Keras 2.0 to 2.3 wrote every argument of a class into its config, and no name. Of these arguments,
# each of its classes has both of one pair.
_KERAS_2_WROTE = {"decay", "epsilon"}, {"decay", "nesterov"}, {"schedule_decay", "epsilon"}


class Saving:
    """What a user or a Keras calls to save an optimizer and to load it."""

    # -- the state ---------------------------------------------------------------------------------

    def get_state(self):
        """Return the whole state as `{name: NumPy array}`, to save or to pass to `set_state`.

        The names and shapes are the same on every Keras; the module `keras_accum.state` has them.
        `np.savez` takes the dictionary.
        """
        return self._accumulation.state.get()

    def set_state(self, state):
        """Continue from a state that `get_state` returned, on this Keras or on another.

        An optimizer that has no variables yet keeps the state until its variables are created.
        `learning_rate` is optional. Without the window, a fresh window starts. The trainable
        variables of the model must have the same order. An open window keeps its length. The next
        windows have the length of this optimizer, unless `accum_iters` was set before the state was
        saved: then that length is used, with a warning.

        Raises:
            keras_accum.StateError: If the state doesn't fit this optimizer. The message names
                everything that doesn't fit, and the optimizer is unchanged.
        """
        self._load(self._accumulation.state.set, state)

    def set_weights(self, weights):
        """Continue from a list of arrays, of this optimizer, of the stock optimizer or of Keras 2.

        Raises:
            keras_accum.StateError: If the list is none of these. The optimizer is unchanged.
        """
        self._load(self._accumulation.state.set, weights)

    def save_own_variables(self, store):
        """Write the state to a Keras file, under the names of `get_state`."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a Keras file of this package or of the stock optimizer."""
        self._load(self._accumulation.state.load, store)

    def _load(self, load, saved):
        """Load a state. The script's `accum_iters` stays, unless another one was set and saved."""
        given = self.accum_iters
        load(saved)
        self._say_if_not(given)

    # -- the config --------------------------------------------------------------------------------

    def get_config(self):
        config = super().get_config()
        for name in self._fixed:
            config.pop(name, None)
        options, now = self._accumulation.options, self.accum_iters
        config.update(make_config(options))
        if not options.is_scheduled:
            config["accum_iters"] = now
            if options.accumulates and now == 1:  # its files have accumulators all the same
                config["constructed_with"] = options.accum_iters
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Return the optimizer of a config from `get_config`, also from Keras 2.0 to 2.3."""
        config, is_set_to_1 = dict(config), "constructed_with" in config
        if is_set_to_1:
            config["accum_iters"] = config.pop("constructed_with")
        is_whole = any(pair <= set(config) for pair in _KERAS_2_WROTE)
        of_keras_2 = is_whole and "name" not in config
        if of_keras_2 and "clipnorm" in config:
            # In Keras 2.0 to 2.3, `clipnorm` is the norm of all gradients together.
            config["global_clipnorm"] = config.pop("clipnorm")
        config.pop("all_reduce", None)  # of version 0.3; the numbers are the same
        # A user's `from_config` may take nothing but the config.
        more = () if custom_objects is None else (custom_objects,)
        optimizer = cls._from_arguments(config, *more)
        if is_set_to_1:
            optimizer.accum_iters = 1
        if of_keras_2 and "accum_iters" not in config:
            warn(
                f"This {cls.__name__} was saved by a class that didn't save accum_iters, so "
                "accum_iters=1 is used: an update on every micro-batch. Give accum_iters when "
                f"loading, custom_objects={{'{cls.__name__}': "
                f"{cls.__name__}.with_accum_iters(5)}}. For a file of a stock optimizer, use "
                "with_accum_iters(5, stock=True)."
            )
            optimizer._accumulation.state.counts_micro_batches = True
        # A Keras that registers names looks for `keras_accum>AdamAccumulate`, and finds the class.
        loader = cls._port_class.in_custom_objects(cls.__name__)
        if isinstance(loader, Loader):
            optimizer._say_if_not(loader.accum_iters)
        return optimizer

    def _say_if_not(self, given):
        """Warn if `accum_iters` isn't the one that the user has given."""
        if self.accum_iters != given and not self._accumulation.options.is_scheduled:
            warn(
                f"accum_iters={self.accum_iters} of the saved optimizer is used, not {given}. To "
                f"change it, set `optimizer.accum_iters = {given}` after loading, in a callback if "
                "`fit` loads, as with BackupAndRestore."
            )

    @classmethod
    def _from_arguments(cls, config, *more):
        """Return the optimizer of arguments with their present names, not of an old file."""
        return super().from_config(config, *more)

    @classmethod
    def with_accum_iters(cls, accum_iters, stock=False):
        """Return this class for `custom_objects`, to load a file that doesn't hold `accum_iters`.

        Files of the AdamAccumulate class that is copied across the web don't hold `accum_iters`.
        These files count micro-batches, and the count is converted to updates. Files of stock
        optimizers of Keras 2 count updates.

        Args:
            accum_iters: Integer >= 1. The number of micro-batches that make one update.
            stock: Boolean, default False. True if a stock optimizer wrote the file. Keras 2 writes
                the names of stock optimizers in lower case.

        Example:

        >>> copied = {"AdamAccumulate": AdamAccumulate.with_accum_iters(5)}
        >>> model = load_model("copied_class.h5", custom_objects=copied)
        >>> stock = {"adam": AdamAccumulate.with_accum_iters(5, stock=True)}
        >>> model = load_model("stock.h5", custom_objects=stock)
        """
        return Loader(cls, check_length(accum_iters), stock)


class Loader:
    """The result of `with_accum_iters`: the part of a class that loading needs."""

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
