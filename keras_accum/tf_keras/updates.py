"""The update from the window's average: by a rule, or by the stock optimizer's own code.

Both change nothing if the switch is 0. A rule has the switch in its scalars, and a fused kernel
runs the rule. The stock optimizer may write any value, and `where(switch > 0, new, old)` restores
the old value. If the switch is the integer 1, the update always happens and nothing is selected.
"""

from collections import namedtuple

import tensorflow as tf

from keras_accum import base, kernels, rules, window
from keras_accum.tf_keras.library import legacy

# Passed from the replicas to the write in cross-replica context. `averages`, `totals` and `scalars`
# have an element for each variable. An average is None for a variable that isn't updated. `scalars`
# has values that are the same for all elements of a variable. `prepared` has the result of the
# stock optimizer's preparation.
Update = namedtuple("Update", "step variables averages totals scalars prepared")


# The stock classes whose own code gives the same numbers as a rule.
_RULES = {
    legacy.SGD: lambda o: rules.SGD(momentum=o._momentum, nesterov=o.nesterov),
    legacy.Adam: lambda o: rules.AMSGrad() if o.amsgrad else rules.Adam(),
    # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
    legacy.RMSprop: lambda o: rules.RMSprop(o._momentum, o.centered, epsilon_in_root=o._momentum),
}


def has_rule(stock_class):
    return stock_class in _RULES


def rule_of(optimizer):
    """Return the rule of an optimizer with its constructor arguments, None without a rule."""
    stock = optimizer._stock_class
    return _RULES[stock](optimizer) if stock in _RULES and optimizer._updates_as_stock else None


def from_totals(optimizer, step, totals, variables, absent, frozen):
    """Return the update from the sums of a window.

    The variables in `absent` (indices) come last, and are updated if they had a gradient earlier in
    the window. The `frozen` variables aren't updated, and their sums are dropped.
    """
    step, totals = optimizer._reduced(step, totals, variables)
    steps = [step] * (len(variables) - len(absent))
    steps += [window.of_variable(step, index) for index in absent]
    averages = _averages(optimizer, steps, totals)
    optimizer._write_norm(base.UPDATE_NORM, averages, step.switch)
    averages = _clipped(optimizer, steps, averages, variables)
    kind = optimizer._kind_of_update
    prepared = kind.prepare(optimizer, step, variables)
    variables, steps = [*variables, *frozen], steps + [step] * len(frozen)
    averages += [None] * len(frozen)
    totals += [tf.convert_to_tensor(optimizer._accumulators[v.ref()]) for v in frozen]
    dtypes = [variable.dtype.base_dtype for variable in variables]

    def scalars_of(step, dtype):
        switch = tf.cast(step.switch, dtype)
        return {"hold": 1 - switch, **kind.scalars(optimizer, step, switch)}

    scalars = _once(scalars_of, steps, dtypes)
    return Update(step, variables, averages, totals, scalars, prepared)


def write(optimizer, distribution, update):
    """Make all assignments except to counters, in cross-replica context; return the operations."""
    kind, operations, last = optimizer._kind_of_update, [], []
    for variable, *tensors in zip(update.variables, update.averages, update.totals, update.scalars):
        with tf.control_dependencies(last if kind.in_turn else []):
            last = optimizer._update(
                distribution, variable, _write_variable(optimizer), *tensors, update.prepared
            )
        operations += last
    return operations + kind.finish(optimizer, distribution, update, operations)


def _write_variable(optimizer):
    def write_variable(variable, target, average, total, scalars, prepared):
        operations = []
        if average is not None:
            average = tf.cast(average, target.dtype.base_dtype)
            operations += optimizer._kind_of_update.write(
                optimizer, variable, target, average, scalars, prepared
            )
        if optimizer._accumulates:
            accumulator = optimizer._accumulators[variable.ref()]
            rest = kernels.gate(total, tf.cast(scalars["hold"], total.dtype))
            operations.append(accumulator.assign(rest, read_value=False))
        return operations

    return write_variable


def _once(function, steps, dtypes):
    """Return `function(step, dtype)` for each of these pairs, called once for equal pairs."""
    keys = [(id(step), dtype) for step, dtype in zip(steps, dtypes)]
    found = {}
    for key, step, dtype in zip(keys, steps, dtypes):
        if key not in found:
            found[key] = function(step, dtype)
    return [found[key] for key in keys]


def _averages(optimizer, steps, totals):
    def scale(step, dtype):
        if optimizer.gradient_transformers:
            step = step._replace(switch=1)
        return window.scale(tf, step, optimizer.reduction, lambda x: tf.cast(x, dtype))

    return list(map(kernels.gate, totals, _once(scale, steps, [t.dtype for t in totals])))


def _clipped(optimizer, steps, averages, variables):
    """Return the averages after clipping or after the user's transformers."""
    pairs = optimizer._transform_averages(list(zip(averages, variables)))
    if not optimizer.gradient_transformers:
        return [average for average, _ in pairs]
    # A user's function may change zeros, reorder the pairs and omit some of them.
    return [
        None if average is None else kernels.gate(average, tf.cast(step.switch, average.dtype))
        for step, average in zip(steps, _in_order(pairs, variables))
    ]


def _in_order(pairs, variables):
    """Return the gradients of a transformer's pairs in order, None for a missing variable."""
    pairs = list(pairs)
    found = {variable.ref(): gradient for gradient, variable in pairs}
    if len(found) < len(pairs) or not found.keys() <= {variable.ref() for variable in variables}:
        raise ValueError(
            "`gradient_transformers` must return pairs of the variables that they are given, each "
            f"at most once. Received: pairs of {[variable.name for _, variable in pairs]}"
        )
    return [found.get(variable.ref()) for variable in variables]


class ByRule:
    """An update by a rule of `rules`, which has the switch in its scalars."""

    in_turn = False

    def __init__(self, rule):
        self._rule = rule

    def prepare(self, optimizer, step, variables):
        return None

    def scalars(self, optimizer, step, switch):
        dtype = switch.dtype
        hyperparameters = {
            name: optimizer._get_hyper(name, dtype)
            if name in optimizer._hyper
            else tf.convert_to_tensor(getattr(optimizer, name), dtype)  # tf.cast rounds to float32
            for name in self._rule.hyperparameters
        }
        rate, update = optimizer._decayed_lr(dtype), tf.cast(optimizer.iterations + 1, dtype)
        coefficients = self._rule.coefficients(tf, switch, rate, update, **hyperparameters)
        return {"switch": switch, "rule": kernels.kernel_scalars(self._rule, coefficients)}

    def write(self, optimizer, variable, target, average, scalars, prepared):
        slots = [
            optimizer.get_slot(variable, optimizer._stock_slots[name]) for name in self._rule.slots
        ]
        operations = kernels.apply_rule(self._rule, scalars["rule"], average, target, slots)
        if target.constraint is not None:
            with tf.control_dependencies(operations):
                value = target.read_value()
                chosen = tf.where(scalars["switch"] > 0, target.constraint(value), value)
                operations.append(target.assign(chosen))
        return operations

    def finish(self, optimizer, distribution, update, operations):
        return []


class ByStock:
    """An update by the stock optimizer's own code; the switch selects what it has written."""

    # True: one variable after another, so that the old values of all variables don't take memory at
    # the same time.
    in_turn = True

    def prepare(self, optimizer, step, variables):
        """Return the old values of the stock optimizer's scalars, the switch, and coefficients."""
        old = [] if _is_known(step.switch) else list(map(tf.convert_to_tensor, optimizer._scalars))
        with tf.control_dependencies(old):
            return old, step.switch, _Coefficients(optimizer._prepare_stock(variables))

    def scalars(self, optimizer, step, switch):
        return {"switch": step.switch}

    def write(self, optimizer, variable, target, average, scalars, prepared):
        *_, coefficients = prepared
        if _is_known(scalars["switch"]):
            return self._update(optimizer, target, average, coefficients)
        slots = optimizer._stock_slots.values()
        written = [target, *(optimizer.get_slot(variable, slot) for slot in slots)]
        old = list(map(tf.convert_to_tensor, written))
        with tf.control_dependencies(old):
            done = self._update(optimizer, target, average, coefficients)
        with tf.control_dependencies(done):
            return [_select(v, v, o, scalars["switch"]) for v, o in zip(written, old)]

    def _update(self, optimizer, target, average, coefficients):
        arguments = {"apply_state": coefficients.of_stock}
        if "apply_state" not in optimizer._dense_apply_args:
            arguments = {}
        with optimizer._in_own_update():
            done = optimizer._resource_apply_dense(average, target, **arguments)
        done = [] if done is None else [done]
        if target.constraint is not None:
            with tf.control_dependencies(done):
                done = [target.assign(target.constraint(target.read_value()))]
        return done

    def finish(self, optimizer, distribution, update, operations):
        old, switch, _ = update.prepared
        selected = []
        with tf.control_dependencies(operations):
            for scalar, value in zip(optimizer._scalars, old):  # `old` is empty for a known switch
                selected += optimizer._update(distribution, scalar, _select, value, switch)
        return selected


class _Coefficients:
    """An opaque container: `tf.distribute` passes each replica's coefficients in one piece."""

    def __init__(self, of_stock):
        self.of_stock = of_stock


def _is_known(switch):
    return isinstance(switch, int)


def _select(variable, target, old, switch):
    return target.assign(tf.where(switch > 0, target.read_value(), old))
