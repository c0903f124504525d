"""What a stock optimizer keeps, found by creating the optimizer in a graph of its own."""

from collections import namedtuple

import numpy as np
import tensorflow as tf

from keras_accum.tf_keras.library import legacy

# slots: {name in a state: name here}, per variable. scalars: {name in a state: attribute}, once for
# all variables. initial: {name in a state: number}. by_variable: True if the list of weights is
# ordered by variable, then by slot. attributes: the names of all attributes of the optimizer.
# scalar_slots: the names in a state of slots that are a scalar for each variable.
Layout = namedtuple("Layout", "slots scalars initial by_variable attributes scalar_slots")

# Names in a state, which are Keras 3's, for slots and scalars with a different name here.
_MOMENTS = {"m": "momentum", "v": "velocity", "vhat": "velocity_hat"}
_NAMES = {
    legacy.Adam: _MOMENTS,
    legacy.RMSprop: {"rms": "velocity", "mg": "average_gradient"},
    legacy.Adadelta: {"accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var"},
    legacy.Adamax: {"m": "momentum", "v": "norm"},
    legacy.Nadam: {**_MOMENTS, "_m_cache": "u_product"},
}


def name_of(stock_class, name):
    """Return the name in a state of a slot or an attribute of a stock optimizer."""
    return _NAMES.get(stock_class, {}).get(name, name.lstrip("_"))


def stock_name_of(stock_class, name):
    """Return the stock optimizer's name of a slot that has this name in a state."""
    names = _NAMES.get(stock_class, {})
    return next((stock_name for stock_name, new in names.items() if new == name), name)


def constructor_arguments(stock_class, config):
    """Return a config as the constructor takes it: Nadam's config renames an argument."""
    # NumPy's come from variables, and tensorflow-addons refuses them.
    config = {n: bool(v) if isinstance(v, np.bool_) else v for n, v in config.items()}
    if stock_class is legacy.Nadam and "decay" in config:
        config = {**config, "schedule_decay": config["decay"]}
        del config["decay"]
    return config


def of(stock_class, arguments):
    """Return the layout of the stock optimizer with these constructor arguments.

    Raises:
        TypeError: If the optimizer keeps a value that can't be selected, saved and converted by
            name.
    """
    with tf.Graph().as_default() as graph:
        optimizer = stock_class(**arguments)
        variables = [tf.Variable(tf.zeros([2, 3], tf.float64)) for _ in range(2)]
        optimizer._create_all_weights(variables)
        slots = {
            slot: [optimizer.get_slot(variable, slot) for variable in variables]
            for slot in optimizer.get_slot_names()
        }
        made = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        scalars = {
            name: value
            for name, value in vars(optimizer).items()
            if _is_in(made, value) and value is not optimizer.iterations
        }
        known = [*variables, optimizer.iterations, *optimizer._hyper.values(), *scalars.values()]
        known += [variable for slot in slots.values() for variable in slot]
        _check_kept(stock_class, slots, scalars, [v for v in made if not _is_in(known, v)])
        kept = {**{name: slot[0] for name, slot in slots.items()}, **scalars}
        with tf.compat.v1.Session(graph=graph) as session:
            initial = session.run({name: v.initial_value for name, v in kept.items()})
    names = {name: name_of(stock_class, name) for name in kept}
    return Layout(
        slots={names[slot]: slot for slot in slots},
        scalars={names[scalar]: scalar for scalar in scalars},
        initial={names[name]: value.flat[0] for name, value in initial.items()},
        by_variable=_is_by_variable(optimizer._weights, list(slots.values())),
        attributes=set(vars(optimizer)),
        scalar_slots={names[name] for name, slot in slots.items() if slot[0].shape.rank == 0},
    )


def _check_kept(stock_class, slots, scalars, others):
    wrong = [f"{variable.name}, which is in no attribute and no slot" for variable in others]
    wrong += [
        f"slot {name}, which has neither the shape of its variable nor one number"
        for name, slot in slots.items()
        if slot[0].shape not in ([2, 3], [])
    ]
    wrong += [
        f"{name}, which is neither a slot nor a scalar"
        for name, scalar in scalars.items()
        if scalar.shape.rank != 0
    ]
    if wrong:
        raise TypeError(
            f"{stock_class.__name__} can't accumulate: it keeps {'; '.join(wrong)}. An optimizer "
            "may keep only slots (`add_slot`), each of its variable's shape or a scalar, and "
            "scalars (`add_weight`) in attributes: a state needs their names."
        )


def _is_by_variable(weights, slots):
    if len(slots) < 2:
        return False
    order = [id(weight) for weight in weights]
    return order.index(id(slots[1][0])) < order.index(id(slots[0][1]))


def _is_in(variables, variable):
    return any(variable is other for other in variables)
