"""An update on tf_keras: the stock optimizer's own, then old values are restored.

SGD, Adam and RMSprop of the legacy style run fused kernels instead, with the update switch in their
scalars; then nothing is restored.
"""

import abc

import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.engine.window import is_unconditional
from keras_accum.host import find_user_classes
from keras_accum.tensorflow import rules
from keras_accum.tensorflow.values import TensorFlowValues, after
from keras_accum.tf_keras.imports import keras, legacy
from keras_accum.tf_keras.replicas import TfKerasReplicas
from keras_accum.tf_keras.store import LegacyStore, NewStyleStore, get_dtype

# Rules that compute the same numbers as these stock classes.
_RULES = {
    legacy.SGD: lambda o: rules.SGD(momentum=o._momentum, nesterov=o.nesterov),
    legacy.Adam: lambda o: rules.AMSGrad() if o.amsgrad else rules.Adam(),
    # The stock optimizer's momentum kernels put epsilon under the root, its other code doesn't.
    legacy.RMSprop: lambda o: rules.RMSprop(o._momentum, o.centered, epsilon_in_root=o._momentum),
}


class TfKerasUpdate(parts.Update):
    """An update on Keras 2 and TensorFlow 2. Each style has a subclass.

    already_summed: {replica: the MicroBatch}, after gradients were summed for a LossScaleOptimizer.
    given: the arguments of the last `apply_gradients`, for a user's override of it.
    """

    given = {}

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.already_summed = {}
        self._updates_begun = 0  # replicas inside an update

    @property
    def has_own_apply(self):
        """True if a user's stock class overrides `apply_gradients`, whose code may test flags."""
        bases = find_user_classes(self.store.stock_class)
        return any("apply_gradients" in vars(base) for base in bases)

    @abc.abstractmethod
    def run_stock(self, averages, variables, switches):
        """Make the stock optimizer's update, without summing over replicas."""

    def runs_user_code(self):
        functions = getattr(self.optimizer, "gradient_transformers", None)
        return bool(functions) or super().runs_user_code()

    def prefers_branch(self):
        return self.replicas.prefers_branch(self.runs_user_code())

    def branch(self, step, update):
        self.replicas.branch(step, update)

    def list_written(self, variables, switches, switch):
        """Return (variable, switch) pairs for all variables an update may write.

        `switch` is for the optimizer's variables shared by all weights.
        """
        store = self.store
        switch_by_key = {None: switch, **dict(zip(map(store.key, variables), switches))}
        pairs = list(zip(variables, switches))
        for (_, key), variable in store.kept.items():
            _, owner, _ = store.created.get(id(variable), (None, None, None))
            if (owner or key) in switch_by_key:
                pairs.append((variable, switch_by_key[owner or key]))
        return [(variable, switch) for variable, switch in pairs if not is_unconditional(switch)]

    def run(self, step, average, variables, switches):
        written = self.list_written(variables, switches, step.switch)
        written.append((self.store.updates, 0))  # the engine counts updates, after all other writes
        # A step that finds no more data must not decay weights: wait for the gradients.
        with after([step.divisor]):
            held = [(variable, switch, self.values.value(variable)) for variable, switch in written]
            self._updates_begun += 1
            try:
                averages = [tf.cast(a, get_dtype(v)) for a, v in zip(average(), variables)]
                self.run_stock(averages, variables, switches)
            finally:
                self._updates_begun -= 1
                self.take_back(held)

    @property
    def is_updating(self):
        return self._updates_begun > 0

    def count_updates(self, switch):
        def count(variable, target, switch):
            return target.assign_add(tf.cast(switch, target.dtype))

        self.replicas.on(self.store.updates, count, switch)


class LegacyUpdate(TfKerasUpdate):
    """A legacy optimizer's update."""

    @property
    def rule(self):
        """The rule that replaces the stock optimizer's code, or None."""
        is_plain = self.runs_code_of_keras and self.store.stock_class in _RULES
        is_complex = any(variable.dtype.is_complex for variable in self.store.variables)
        if not is_plain or is_complex or self.optimizer.gradient_transformers:
            return None
        return _RULES[self.store.stock_class](self.optimizer)

    def list_written(self, variables, switches, switch):
        if self.rule is None:
            return super().list_written(variables, switches, switch)
        constrained = [pair for pair in zip(variables, switches) if pair[0].constraint is not None]
        return [pair for pair in constrained if not is_unconditional(pair[1])]

    def run_stock(self, averages, variables, switches):
        optimizer, stock, key = self.optimizer, self.store.stock_class, self.store.key
        if self.has_own_apply:
            stock.apply_gradients(optimizer, list(zip(averages, variables)), **self.given)
            return
        if self.rule is None:
            apply_state = optimizer._prepare(variables)
        else:
            apply_state = self._compute_scalars(variables, switches)
        pairs = list(optimizer._transform_gradients(list(zip(averages, variables))))
        if not {key(v) for _, v in pairs} <= set(map(key, variables)):
            raise ValueError(
                "`gradient_transformers` must return pairs of the variables that they are given. "
                f"Received: {[v.name for _, v in pairs]}"
            )

        def apply(pairs):
            strategy = tf.distribute.get_strategy()
            return optimizer._distributed_apply(strategy, pairs, apply_state, name=None)

        self.replicas.across(apply, pairs)

    def _compute_scalars(self, variables, switches):
        """Compute the rule's scalars, by variable key; equal ones are computed once."""
        optimizer, rule, computed, by_key = self.optimizer, self.rule, {}, {}
        for variable, switch in zip(variables, switches):
            dtype = variable.dtype.base_dtype
            if (id(switch), dtype) not in computed:
                hyperparameters = {
                    name: optimizer._get_hyper(name, dtype)
                    if name in optimizer._hyper
                    else tf.convert_to_tensor(vars(optimizer)[name], dtype)  # `cast` rounds first
                    for name in rule.hyperparameters
                }
                rate, update = optimizer._decayed_lr(dtype), tf.cast(self.store.updates + 1, dtype)
                gated = rule.scalars(tf.cast(switch, dtype), rate, update, **hyperparameters)
                computed[id(switch), dtype] = gated
            by_key[self.store.key(variable)] = computed[id(switch), dtype]
        return by_key


class NewStyleUpdate(TfKerasUpdate):
    """An update in the newer style."""

    def run_stock(self, averages, variables, switches):
        if any(switch is not switches[0] for switch in switches):  # a gradient is missing
            self.check_norm(keras.optimizers.Optimizer, ["apply_gradients"])
        pairs, stock = list(zip(averages, variables)), self.store.stock_class
        given = self.given if self.has_own_apply else {"skip_gradients_aggregation": True}
        stock.apply_gradients(self.optimizer, pairs, **given)


def make_parts(optimizer, options):
    """Return an optimizer's parts, in the style of its stock class."""
    is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    if not (is_eager or options.is_stock):
        raise ValueError(
            f"{type(optimizer).__name__} needs TensorFlow 2's eager execution, but "
            "`model_to_estimator` and `tf.compat.v1.disable_eager_execution()` switch it off: "
            "train with `fit`, without either."
        )
    if isinstance(optimizer, legacy.Optimizer):
        method, store, cls = "_aggregate_gradients", LegacyStore(optimizer), LegacyUpdate
    else:
        method, store, cls = "aggregate_gradients", NewStyleStore(optimizer), NewStyleUpdate
    values = TensorFlowValues(parts.scalar_dtype(keras.backend.floatx()))
    three = values, TfKerasReplicas(optimizer, method), store
    return parts.Parts(*three, cls(optimizer, options, *three))
