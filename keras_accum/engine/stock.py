"""Stock optimizers, as conversion needs them. No Keras is imported here."""

import abc


class Stock(abc.ABC):
    """The stock optimizers of a Keras: how `convert` reads, creates and writes them.

    An instance has no attributes, and all optimizers of a Keras, or of a style, share it.
    """

    def classes(self, stock_class):
        """Return the classes that `from_optimizer` accepts for our subclass of `stock_class`."""
        return {stock_class}

    # -- reading a stock optimizer -----------------------------------------------------------------

    @abc.abstractmethod
    def arguments(self, optimizer):
        """Return its constructor arguments, as our classes take them."""

    @abc.abstractmethod
    def function_arguments(self, optimizer):
        """Return the constructor arguments that are functions, also for an optimizer of ours.

        A config serializes or lacks them.
        """

    @abc.abstractmethod
    def variables(self, optimizer):
        """Return the variables that it was built for, if it knows them."""

    def keys(self, optimizer):
        """Return the keys of the weights in its state, in the state's order, if known."""
        return []

    @abc.abstractmethod
    def state(self, optimizer, store):
        """Read its state, with the names of the optimizer that has this Store."""

    # -- creating a stock optimizer ----------------------------------------------------------------

    def make(self, config, store):
        """Create the stock optimizer of a Store's optimizer from a config."""
        return store.stock_class.from_config(config)

    def build(self, optimizer, variables):
        """Create its variables. This also builds an optimizer of ours."""
        optimizer.build(variables)

    @abc.abstractmethod
    def write(self, optimizer, store):
        """Write a Store's state to a stock optimizer built for the same variables."""
