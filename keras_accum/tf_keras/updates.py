"""What an update is, from the window's average: a rule, or the stock optimizer's own code.

Both change nothing where the switch is 0. A rule has the switch in its scalars, and a fused kernel
runs it. The stock optimizer writes what it likes, and `where(switch > 0, new, old)` takes it back.
An update whose switch is the integer 1 happens in any case: nothing is selected.
"""

from collections import namedtuple

import tensorflow as tf

from keras_accum import kernels, rules, window
from keras_accum.callbacks import monitor
from keras_accum.tf_keras.library import legacy

# What goes from the replicas to where all of them write. `averages`, `totals` and `scalars` have an
# element for each variable: an average is None for one that isn't updated, `scalars` has what is
# the same for all elements of the variable. `prepared` is what the stock optimizer prepares.
Update = namedtuple("Update", "step variables averages totals scalars prepared")


# Of whose own code the numbers are a rule's.
_RULES = {
    legacy.SGD: lambda o: rules.SGD(momentum=o._momentum, nesterov=o.nesterov),
    legacy.Adam: lambda o: rules.AMSGrad() if o.amsgrad else rules.Adam(),
    # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
    legacy.RMSprop: lambda o: rules.RMSprop(o._momentum, o.centered, epsilon_in_root=o._momentum),
}


def has_rule(stock_class):
    return stock_class in _RULES


def rule_of(optimizer):
    """The rule that an optimizer is as it was constructed, None if there is none."""
    stock = optimizer._stock_class
    if stock not in _RULES or type(optimizer)._resource_apply_dense != stock._resource_apply_dense:
        return None
    return _RULES[stock](optimizer)


def from_totals(optimizer, step, totals, variables, absent):
    """The update from the sums of a window.

    The variables with the indices `absent`, which come last, are covered if they had a gradient
    earlier in the window.
    """
    step, totals = optimizer._reduced(step, totals, variables)
    steps = [step] * (len(variables) - len(absent))
    steps += [window.of_variable(step, index) for index in absent]
    averages = _averages(optimizer, steps, totals)
    optimizer._write_norm(monitor.UPDATE_NORM, averages, step.switch)
    averages = _clipped(optimizer, steps, averages, variables)
    kind = optimizer._kind_of_update
    prepared = kind.prepare(optimizer, step, variables)
    dtypes = [variable.dtype.base_dtype for variable in variables]

    def scalars_of(step, dtype):
        switch = tf.cast(step.switch, dtype)
        return {"hold": 1 - switch, **kind.scalars(optimizer, step, switch)}

    scalars = _once(scalars_of, steps, dtypes)
    return Update(step, variables, averages, totals, scalars, prepared)


def write(optimizer, distribution, update):
    """All assignments but those of the counters, and return the operations. Across replicas."""
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
    """`function(step, dtype)` for each of these pairs, called once for equal ones."""
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
    """The averages, clipped or as the user's functions transform them."""
    pairs = optimizer._transform_averages(list(zip(averages, variables)))
    if not optimizer.gradient_transformers:
        return [average for average, _ in pairs]
    # A user's function need not leave zeros alone, nor the order, and may leave some out.
    return [
        None if average is None else kernels.gate(average, tf.cast(step.switch, average.dtype))
        for step, average in zip(steps, _in_order(pairs, variables))
    ]


def _in_order(pairs, variables):
    """The gradients of a transformer's pairs, None for a variable that it has left out."""
    pairs = list(pairs)
    found = {variable.ref(): gradient for gradient, variable in pairs}
    if len(found) < len(pairs) or not found.keys() <= {variable.ref() for variable in variables}:
        raise ValueError(
            "`gradient_transformers` must return pairs of the variables that they are given, each "
            f"at most once. Received: pairs of {[variable.name for _, variable in pairs]}"
        )
    return [found.get(variable.ref()) for variable in variables]


class ByRule:
    """The update is a rule of `rules`, which has the switch in its scalars."""

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
            else tf.convert_to_tensor(getattr(optimizer, name), dtype)  # a cast is by float32
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
    """The update is the stock optimizer's own code, and the switch selects what it has written."""

    # One variable after the other, so that the old values of all aren't there at one time.
    in_turn = True

    def prepare(self, optimizer, step, variables):
        """The stock optimizer's coefficients, and its scalars as they were before."""
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
            for scalar, value in zip(optimizer._scalars, old):  # there are none if it is known
                selected += optimizer._update(distribution, scalar, _select, value, switch)
        return selected


class _Coefficients:
    """In one piece for `tf.distribute`: each replica has the coefficients for its own device."""

    def __init__(self, of_stock):
        self.of_stock = of_stock


def _is_known(switch):
    return isinstance(switch, int)


def _select(variable, target, old, switch):
    return target.assign(tf.where(switch > 0, target.read_value(), old))
