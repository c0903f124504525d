"""Conversion of an optimizer from and to stock optimizers, and to other arguments.

No host is imported here.
"""

import copy

import numpy as np

from keras_accum import arguments, ranges, states
from keras_accum.accumulation import Accumulation

# The exclusions from weight decay, which no config has.
_EXCLUSIONS = (
    *("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"),
    "_exclude_from_weight_decay_names",
)


def from_optimizer(cls, optimizer, given):
    """Return an optimizer of this class with the state and the other arguments of an optimizer."""
    is_ours = accumulates(optimizer)
    _check_source(cls, optimizer)
    if given and not is_ours:
        # A new value may change what an optimizer keeps: only names tell what stays.
        return from_optimizer(cls, from_optimizer(cls, optimizer, {}), given)
    config = cls._port.arguments_of(optimizer)
    _check_fixed(cls, config)
    if not is_ours:
        config.pop("name", None)
    new = cls._like(config, given)
    copy_exclusions(optimizer, new)
    if is_ours:
        _continue_as(new, optimizer)
    else:
        state, keys = new._accumulation.port.state_of_stock(optimizer)
        _continue_from(new._accumulation, state)
        new._accumulation.state.waiting.keys = keys
    return new


def to_stock(optimizer):
    """Return the stock optimizer with the arguments and the state of this optimizer."""
    port = optimizer._accumulation.port
    _check_can_be_stock(optimizer)
    config = {**port.arguments_of(optimizer), **optimizer.fixed}
    for name in ("name", *ranges.OURS):
        config.pop(name, None)
    stock = port.make_stock(config)
    copy_exclusions(optimizer, stock)
    port.continue_stock(stock)
    return stock


def accumulates(optimizer):
    """True if this is an optimizer of ours."""
    return isinstance(getattr(optimizer, "_accumulation", None), Accumulation)


def _check_source(cls, optimizer):
    """Raise a TypeError unless the optimizer can become one of this class."""
    if hasattr(optimizer, "inner_optimizer"):
        raise TypeError(
            "`optimizer` is a LossScaleOptimizer: give its `inner_optimizer`, and wrap the "
            f"result in a LossScaleOptimizer. Received: optimizer={optimizer}"
        )
    kinds = cls._port.stock_classes(cls, optimizer)
    is_ours = accumulates(optimizer) and isinstance(optimizer, cls._stock_class)
    if type(optimizer) not in kinds and not is_ours:
        names = sorted({f"{kind.__module__}.{kind.__name__}" for kind in kinds})
        raise TypeError(
            f"`optimizer` must be of the stock class of {cls.__name__}, {' or '.join(names)}, "
            "or an optimizer of this package with the same rule. "
            f"Received: optimizer={optimizer}"
        )


def _check_fixed(cls, config):
    """Remove what this class fixes from a config, and raise an error if a value differs."""
    for name, value in cls.fixed.items():
        received = config.pop(name, value)
        if received != value:
            raise ValueError(
                f"`optimizer` must have {name}={value} to become {cls.__name__}. "
                f"Received: {name}={received}"
            )


def copy_exclusions(source, target):
    for name in _EXCLUSIONS:
        if hasattr(source, name):
            setattr(target, name, copy.copy(getattr(source, name)))


def _continue_as(new, optimizer):
    """Continue from an optimizer of ours."""
    source, target = optimizer._accumulation, new._accumulation
    state = optimizer.get_state()
    if states.has_unnamed(state):
        # A list tells its origin also by having a learning rate or not.
        if source.port.shared_variables().keys() != target.port.shared_variables().keys():
            source.state.check_is_built("from_optimizer")
    if source.state.is_built:
        target.port.build(source.port.variables)
    keys = list(source.state.waiting.keys)
    _continue_from(target, source.state.waiting.recounted(state, target.options.accum_iters))
    target.state.waiting.keys = keys


def _continue_from(accumulation, state):
    """Continue from the state of the optimizer from which this accumulation's was made."""
    state = states.without(state, "learning_rate")  # the constructor has set it
    options = accumulation.options
    if options.accumulates:
        if "accum_iters" in state:
            length = options.length_at(int(state["completed_updates"]))
            state["accum_iters"] = np.asarray(length)
    elif state.get("window_position", 0):
        raise ValueError(
            f"`optimizer` is {state['window_position']} micro-batches into a window, and with "
            "accum_iters=1 there are no accumulators: call `apply_partial_window()` first, or "
            "give accum_iters >= 2."
        )
    else:
        state = states.without_window(state)
    accumulation.state.set(state)


def _check_can_be_stock(optimizer):
    """Raise a ValueError if the stock optimizer can't continue as this optimizer would."""
    name = type(optimizer).__name__
    more = set(arguments.config_of(optimizer)) - set(type(optimizer).__signature__.parameters)
    more.discard("is_legacy_optimizer")  # Keras 2 adds this key to a config
    if more:
        raise ValueError(
            f"{name} has arguments that no stock optimizer has: {', '.join(sorted(more))}. "
            f"Write a `to_stock` method for {name} that converts them."
        )
    if optimizer.window_transforms:
        raise ValueError(
            "A stock optimizer has no `window_transforms`: write them into a subclass of "
            f"{optimizer._stock_class.__name__}. Received: {optimizer.window_transforms}"
        )
    if optimizer.window_position:
        raise ValueError(
            f"`to_stock` at window_position={optimizer.window_position}: a stock optimizer can't "
            "keep the gradients of an open window. Close the window first with "
            "`apply_partial_window()`."
        )
