"""From a stock optimizer to one of this package, and back."""

from keras_accum import arguments, base, states
from keras_accum.tf_keras import layout, updates
from keras_accum.tf_keras.library import keras, legacy


class Moving(base.Optimizer):
    """The part of an optimizer that takes a stock optimizer's place, and gives it back."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, legacy or not, or one of this package.
                It is left as it is. One that isn't legacy must have no `weight_decay` and no
                `use_ema`, and its RMSprop has epsilon under the root.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.tf_keras import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        cls._check_source(optimizer, cls._sources())
        config = _constructor_arguments(optimizer)
        cls._check_fixed(config)
        new = cls._like(config, arguments)
        if isinstance(optimizer, base.Optimizer):
            state, keys = optimizer.get_state(), optimizer._pending.keys
            if optimizer._variables:
                new.build(optimizer._variables)
        else:
            state, keys = new._state_of_stock(optimizer)
        new._continue_from(state, optimizer)
        new._pending.keys = keys
        return new

    @classmethod
    def _sources(cls):
        """The classes of stock optimizers that this one can take the place of."""
        stock = cls._stock_class
        namesake = getattr(keras.optimizers, stock.__name__, None)
        return {stock, namesake} if updates.has_rule(stock) else {stock}

    def _state_of_stock(self, optimizer):
        """The state of a stock optimizer and which variables it is for."""
        found = {"completed_updates": optimizer.iterations}
        if isinstance(optimizer, legacy.Optimizer):
            keys = list(optimizer._slots)
            slots = {
                name: [optimizer._slots[key][slot] for key in keys]
                for name, slot in self._stock_slots.items()
            }
            for name, attribute in self._stock_scalars.items():
                if getattr(optimizer, attribute) is not None:
                    scalar = states.scalar_name(self._rule_name, name)
                    found[scalar] = getattr(optimizer, attribute)
        else:
            keys = list(getattr(optimizer, "_index_dict", ()))
            slots = {s: _slot_variables(optimizer, s) for s in self._rule_slots} if keys else {}
        for slot, variables in slots.items():
            found.update(
                {states.slot_name(self._rule_name, slot, i): v for i, v in enumerate(variables)}
            )
        return dict(zip(found, keras.backend.batch_get_value(list(found.values())))), keys

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        It is the legacy optimizer, has its variables, and a model can be compiled with it. This
        optimizer is left as it is.

        Raises:
            ValueError: if a window is open, and if the rule is none of a stock optimizer.
        """
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**_constructor_arguments(self), **self.fixed}
        for name in ("name", *arguments.OWN):
            if name != "decay":
                config.pop(name, None)
        stock = self._stock_class(**config)
        if self._is_built:
            stock._create_all_weights(self._variables)
            state = self._read_state()
            pairs = [(stock.iterations, state["completed_updates"])]
            for name, attribute in self._stock_scalars.items():
                scalar = states.scalar_name(self._rule_name, name)
                pairs.append((getattr(stock, attribute), state[scalar]))
            for name, slot in self._stock_slots.items():
                for i, variable in enumerate(self._variables):
                    target = stock.get_slot(variable, slot)
                    pairs.append((target, state[states.slot_name(self._rule_name, name, i)]))
            keras.backend.batch_set_value(pairs)
        return stock


# What optimizers that aren't legacy have and legacy ones don't, with values that change nothing.
_NEWER = {
    "is_legacy_optimizer": False,
    "jit_compile": None,
    "weight_decay": None,
    "use_ema": False,
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
}


def _constructor_arguments(optimizer):
    """Of any optimizer: what stock and this package's classes take of its config."""
    config = {k: v for k, v in optimizer.get_config().items() if v is not None}
    config = layout.constructor_arguments(type(optimizer), config)
    is_legacy = isinstance(optimizer, legacy.Optimizer)
    rate = optimizer._hyper.get("learning_rate") if is_legacy else optimizer._learning_rate
    if callable(rate):
        config["learning_rate"] = rate  # a schedule too; the config has it serialized
    for name, harmless in _NEWER.items():
        value = config.pop(name, harmless)
        if name in ("weight_decay", "use_ema") and value != harmless:
            raise ValueError(
                f"`optimizer` has {name}={value}, which no legacy optimizer has, nor those of this "
                "package on Keras 2."
            )
    if not isinstance(optimizer, base.Optimizer):
        del config["name"]
    return config


def _slot_variables(optimizer, slot):
    """A slot's variables in an optimizer that isn't legacy."""
    plural = {"velocity": "velocities"}.get(slot, f"{slot}s")
    names = plural, f"_{plural}"
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
