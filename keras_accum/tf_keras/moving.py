"""Conversion of legacy optimizers from and to stock optimizers."""

from keras_accum import states
from keras_accum.arguments import config_of
from keras_accum.tf_keras import layout
from keras_accum.tf_keras.legacy import has_rule
from keras_accum.tf_keras.library import keras, legacy
from keras_accum.tf_keras.state import State


class Moving(State):
    """The part of an optimizer that converts from and to stock optimizers."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, legacy or not, or an optimizer of this
                package with the same rule. The optimizer isn't changed. An optimizer that isn't
                legacy must not use `weight_decay` or `use_ema`. An RMSprop that isn't legacy has
                epsilon under the root, so its updates differ from a legacy RMSprop's without
                momentum.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer.

        Raises:
            TypeError: If the optimizer has a different rule or is a LossScaleOptimizer.
            ValueError: If the optimizer uses `weight_decay` or `use_ema`, if an argument that this
                class fixes has a different value, or if the optimizer has an open window and the
                new `accum_iters` is 1.

        Example:

        >>> from keras_accum.tf_keras import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        return cls._made_from(optimizer, arguments)

    @classmethod
    def _sources(cls, optimizer):
        stock = cls._stock_class
        namesake = getattr(keras.optimizers, stock.__name__, None)
        return {stock, namesake} if has_rule(stock) else {stock}

    @staticmethod
    def _arguments_of(optimizer):
        return _constructor_arguments(optimizer)

    def _of_stock(self, optimizer):
        found, port = {"completed_updates": optimizer.iterations}, self._accumulation.port
        if isinstance(optimizer, legacy.Optimizer):
            keys = list(optimizer._slots)
            slots = {
                name: [optimizer._slots[key][slot] for key in keys]
                for name, slot in port.slots.items()
            }
            for name, attribute in port.scalars.items():
                if getattr(optimizer, attribute) is not None:
                    scalar = states.scalar_name(self._rule_name, name)
                    found[scalar] = getattr(optimizer, attribute)
        else:
            keys = list(getattr(optimizer, "_index_dict", ()))
            slots = {s: _slot_variables(optimizer, s) for s in port.slots} if keys else {}
        for slot, variables in slots.items():
            found.update(
                {states.slot_name(self._rule_name, slot, i): v for i, v in enumerate(variables)}
            )
        return found, keys

    @staticmethod
    def _build_stock(optimizer, variables):
        optimizer._create_all_weights(variables)

    def to_stock(self):
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        The stock optimizer is the legacy optimizer, built for the same variables: compile the model
        with it. This optimizer isn't changed.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, or if the class has arguments that the stock optimizer
                doesn't have.
        """
        return self._made_stock()


# The arguments that only the newer optimizers have, with values that change nothing.
_NEWER = {
    "is_legacy_optimizer": False,
    "jit_compile": None,
    "weight_decay": None,
    "use_ema": False,
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
}


def _constructor_arguments(optimizer):
    """Return the part of an optimizer's config that stock classes and ours accept."""
    config = config_of(optimizer)
    config = {k: v for k, v in config.items() if v is not None or k == "accum_iters"}
    config = layout.constructor_arguments(type(optimizer), config)
    is_legacy = isinstance(optimizer, legacy.Optimizer)
    rate = optimizer._hyper.get("learning_rate") if is_legacy else optimizer._learning_rate
    if callable(rate):
        config["learning_rate"] = rate  # also a schedule, which is serialized in the config
    for name, harmless in _NEWER.items():
        value = config.pop(name, harmless)
        if name in ("weight_decay", "use_ema") and value != harmless:
            raise ValueError(
                f"`optimizer` has {name}={value}, which legacy optimizers and their accumulating "
                "classes don't have."
            )
    return config


def _slot_variables(optimizer, slot):
    """Return a slot's variables in an optimizer that isn't legacy."""
    plural = {"velocity": "velocities"}.get(slot, f"{slot}s")
    names = plural, f"_{plural}"
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
