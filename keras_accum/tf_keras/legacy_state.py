"""The state of a legacy optimizer: its variables, their order and their names."""

import tensorflow as tf

from keras_accum import arguments, lists, rules, states
from keras_accum.options import check_attributes
from keras_accum.tf_keras import layout
from keras_accum.tf_keras.library import keras, legacy
from keras_accum.tf_keras.numbering import Numbering

# The stock classes whose own code gives the same numbers as a rule.
RULES = {
    legacy.SGD: lambda o: rules.SGD(momentum=o._momentum, nesterov=o.nesterov),
    legacy.Adam: lambda o: rules.AMSGrad() if o.amsgrad else rules.Adam(),
    # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
    legacy.RMSprop: lambda o: rules.RMSprop(o._momentum, o.centered, epsilon_in_root=o._momentum),
}

# What Keras's base class takes as **kwargs.
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
_ELSEWHERE = (
    "`{name}` is an argument of the optimizers that aren't legacy: use `AdamWAccumulate`, or "
    "`accumulating(keras.optimizers.Adam)` and its like."
)

# The arguments that only the newer optimizers have, with values that change nothing.
_NEWER = {
    "jit_compile": None,
    "weight_decay": None,
    "use_ema": False,
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
}


class LegacyState(Numbering):
    """What the state of a legacy optimizer is. A subclass has `rule`."""

    knows_names = True
    elsewhere = {name: _ELSEWHERE.format(name=name) for name in _NEWER}

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self._layout = None

    @property
    def rate(self):
        return self.optimizer._hyper.get("learning_rate")

    # -- what the stock optimizer keeps ------------------------------------------------------------

    @property
    def layout(self):
        if self._layout is None:
            self._layout = layout.of(self.optimizer._stock_class, self.given)
        return self._layout

    @property
    def slots(self):
        """The slots per variable, as {name in a state: name here}."""
        rule = self.rule
        if rule is None:
            return self.layout.slots
        stock = self.optimizer._stock_class
        return {name: layout.stock_name_of(stock, name) for name in rule.slots}

    @property
    def scalars(self):
        """The stock optimizer's scalars for all variables, as {name in a state: attribute}."""
        return {} if self.rule else self.layout.scalars

    @property
    def scalar_variables(self):
        return [getattr(self.optimizer, name) for name in self.scalars.values()]

    # -- names -------------------------------------------------------------------------------------

    def names_for(self, variables):
        scalars, slots = tuple(self.scalars), tuple(self.slots)
        options, count = self.accumulation.options, len(variables)
        names = lists.with_unapplied(
            self.rule_name, scalars, slots, count, options.accumulates, options.weighs
        )
        if not self.rule and self.layout.by_variable:
            of_slots = slice(1 + len(scalars), 1 + len(scalars) + len(slots) * count)
            names[of_slots] = sorted(names[of_slots], key=states.index_of)
        return names

    def shapes_for(self, variables):
        scalar_slots = () if self.rule else self.layout.scalar_slots
        return {
            name: () if any(f".{slot}." in name for slot in scalar_slots) else shape
            for name, shape in super().shapes_for(variables).items()
        }

    def stock_variables(self):
        found, rule = self.shared_variables(), self.rule_name
        if self.variables:
            scalars = zip(self.scalars, self.scalar_variables)
            found.update({states.scalar_name(rule, name): scalar for name, scalar in scalars})
        for name, slot in self.slots.items():
            for i, variable in enumerate(self.variables):
                found[states.slot_name(rule, name, i)] = self.optimizer.get_slot(variable, slot)
        return {name: found[name] for name in self.names_for(self.variables) if name in found}

    def initial_values(self):
        initial = {} if self.rule else self.layout.initial
        return {states.scalar_name(self.rule_name, name): n for name, n in initial.items()}

    def rate_in_use(self):
        is_nadam = self.optimizer._stock_class is legacy.Nadam  # its `decay` is of the momentum
        rate = self.optimizer.learning_rate
        return float(self.read(rate if is_nadam else self.optimizer._decayed_lr(self.scalar_dtype)))

    # -- arguments ---------------------------------------------------------------------------------

    @staticmethod
    def keywords_of(stock):
        more = arguments.keywords_of(stock)
        if "gradient_aggregator" in more:  # the base class's
            more = {**dict.fromkeys(_CLIPS), **more}
        return {**more, "schedule_decay": 0.004} if stock is legacy.Nadam else more

    @staticmethod
    def prepare(cls, own, given):
        if "learning_rate" in given:
            given["learning_rate"] = arguments.check_learning_rate(
                given["learning_rate"], allowed=(tf.Tensor, tf.Variable)
            )
        arguments.name_after(cls, cls.__name__, given)
        if cls._stock_class is legacy.Nadam and "decay" in given:
            raise ValueError(
                "`decay` isn't for Nadam, whose learning rate doesn't decay on this Keras. Use "
                "`schedule_decay` for the decay of its momentum, which its config calls decay. "
                f"Received: decay={given['decay']!r}"
            )

    def check_constructed(self):
        optimizer = self.optimizer
        check_attributes(optimizer, {*vars(optimizer), *optimizer._hyper})
        if not (self.accumulation.options.is_stock or self.rule):
            check_attributes(optimizer, self.layout.attributes)

    @staticmethod
    def config_of(optimizer, config):
        stock = optimizer._stock_class
        config = layout.constructor_arguments(stock, config)
        if optimizer._initial_decay and stock is not legacy.Nadam:
            config["decay"] = optimizer._initial_decay  # some classes omit decay from their config
        return config

    # -- from and to stock optimizers --------------------------------------------------------------

    @classmethod
    def stock_classes(cls, family, optimizer):
        stock = family._stock_class
        namesake = getattr(keras.optimizers, stock.__name__, None)
        return {stock, namesake} if stock in RULES else {stock}

    @staticmethod
    def arguments_of(optimizer):
        config = arguments.config_of(optimizer)
        config = {k: v for k, v in config.items() if v is not None or k == "accum_iters"}
        config = layout.constructor_arguments(type(optimizer), config)
        is_legacy = isinstance(optimizer, legacy.Optimizer)
        rate = optimizer._hyper.get("learning_rate") if is_legacy else optimizer._learning_rate
        if callable(rate):
            config["learning_rate"] = rate  # also a schedule, which is serialized in the config
        config.pop("is_legacy_optimizer", None)
        for name, harmless in () if is_legacy else _NEWER.items():
            value = config.pop(name, harmless)
            if name in ("weight_decay", "use_ema") and value != harmless:
                raise ValueError(
                    f"`optimizer` has {name}={value}, which legacy optimizers and their "
                    "accumulating classes don't have."
                )
        return config

    def variables_of(self, optimizer):
        found, rule = {"completed_updates": optimizer.iterations}, self.rule_name
        if isinstance(optimizer, legacy.Optimizer):
            keys = list(optimizer._slots)
            slots = {
                name: [optimizer._slots[key][slot] for key in keys]
                for name, slot in self.slots.items()
            }
            for name, attribute in self.scalars.items():
                if getattr(optimizer, attribute) is not None:
                    found[states.scalar_name(rule, name)] = getattr(optimizer, attribute)
        else:
            keys = list(getattr(optimizer, "_index_dict", ()))
            slots = {slot: _slot_variables(optimizer, slot) for slot in self.slots} if keys else {}
        for slot, variables in slots.items():
            found.update({states.slot_name(rule, slot, i): v for i, v in enumerate(variables)})
        return found, keys

    def build_stock(self, optimizer):
        optimizer._create_all_weights(self.variables)


def _slot_variables(optimizer, slot):
    """Return a slot's variables in an optimizer that isn't legacy."""
    plural = {"velocity": "velocities"}.get(slot, f"{slot}s")
    names = plural, f"_{plural}"
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
