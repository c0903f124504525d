"""The classes of a family: what `accumulating` may take, and how a class is made.

No host is imported here.
"""

from keras_accum import ranges
from keras_accum.base import Optimizer
from keras_accum.members import Members
from keras_accum.options import ReadOnly


class _InnerAttribute:
    """An attribute of a LossScaleOptimizer that belongs to its inner optimizer."""

    def __init__(self, name):
        self._name = name

    def __get__(self, wrapper, owner=None):
        return self if wrapper is None else getattr(wrapper.inner_optimizer, self._name)

    def __set__(self, wrapper, value):
        setattr(wrapper.inner_optimizer, self._name, value)


def hand_on(wrapper):
    """Give a host's LossScaleOptimizer the attributes that only our inner optimizers have.

    `compile` wraps an optimizer without being asked, and an attribute that a user then sets on the
    LossScaleOptimizer would have no effect.
    """
    names = "accum_iters", "completed_updates", "window_position"
    names += "apply_partial_window", "close_window", "decide", "weigh"
    options = (name for name, member in vars(Members).items() if isinstance(member, ReadOnly))
    for name in (*names, "lr", *options):
        if not hasattr(wrapper, name):
            setattr(wrapper, name, _InnerAttribute(name))


def check_stock_class(stock, optimizers, wrappers):
    """Raise a TypeError unless `stock` is a class that `accumulating` can take.

    `optimizers` are the host's base classes of optimizers, `wrappers` the host's classes whose
    optimizers wrap other optimizers.
    """
    if isinstance(stock, Optimizer) or isinstance(stock, type) and issubclass(stock, Optimizer):
        raise TypeError(
            "`optimizer_class` must be a class without accumulation, and this class accumulates "
            f"already: use it as it is. Received: optimizer_class={stock}"
        )
    if isinstance(stock, wrappers) or isinstance(stock, type) and issubclass(stock, wrappers):
        name = stock.__name__ if isinstance(stock, type) else type(stock).__name__
        raise TypeError(
            f"`optimizer_class` can't be {name}, which wraps other optimizers: give the class of "
            f"an inner optimizer, and wrap the result in {name}. Received: optimizer_class={stock}"
        )
    if isinstance(stock, optimizers):
        name = type(stock).__name__
        raise TypeError(
            f"`optimizer_class` must be a class, not an optimizer: accumulating({name})(...), or "
            f"accumulating({name}).from_optimizer(optimizer), which keeps the arguments and the "
            f"state of the optimizer. Received: optimizer_class={stock}"
        )
    if not (isinstance(stock, type) and issubclass(stock, optimizers)):
        raise TypeError(
            "`optimizer_class` must be a subclass of "
            f"{' or '.join(f'{kind.__module__}.{kind.__name__}' for kind in optimizers)}. "
            f"Received: optimizer_class={stock!r}"
        )


def check_members(family, stock):
    """Raise a TypeError if members of a class that isn't Keras's have the names of ours."""
    ours = {name for cls in family.__mro__[:-1] for name in vars(cls)}
    theirs, of_keras = set(), set()
    for cls in stock.__mro__[:-1]:
        (of_keras if ranges.is_of_keras(cls) else theirs).update(vars(cls))
    clashes = sorted(name for name in ours & theirs - of_keras if not name.startswith("__"))
    if clashes:
        raise TypeError(
            f"{stock.__name__} has members that every accumulating optimizer has, for another "
            f"purpose: {', '.join(clashes)}. Rename them in {stock.__name__}."
        )


def make(bases, stock, register, module, made_by=None, name=None, **members):
    """Return the accumulating class of a stock class, `<name>Accumulate`, registered for loading.

    `bases` are our base classes of the Keras's optimizers, the main one last.
    `register(cls, package)` makes a class known by its name. `module` has the classes of stock
    optimizers. `made_by` is a function that pickle can find and its arguments, to make the class
    again.
    """
    check_members(bases[-1], stock)
    is_of_keras = ranges.is_of_keras(stock)
    members["__module__"] = module if is_of_keras else stock.__module__
    members["_made_by"] = made_by
    made = type(name or f"{stock.__name__}Accumulate", (*bases, stock), members)
    return register(made, "keras_accum" if is_of_keras else stock.__module__)


def accumulating(module, docstring, check, make):
    """Return the public function `accumulating` of a module.

    `check(optimizer_class)` returns the class to take or raises an error. `make(stock, made_by)`
    makes the accumulating class.
    """
    made = {}

    def accumulating(optimizer_class):
        # Editors that run nothing show this line; the whole docstring is given below.
        """Return a subclass of an optimizer class that makes one update per window of micro-batches."""  # noqa: E501
        stock = check(optimizer_class)
        if stock not in made:
            made[stock] = make(stock, (accumulating, (stock,)))
        return made[stock]

    accumulating.__module__, accumulating.__qualname__ = module, "accumulating"
    accumulating.__doc__ = docstring
    return accumulating
