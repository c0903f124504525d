"""Variables of an optimizer in both styles, stock or ours, by their names in a state."""

import tensorflow as tf

from keras_accum.engine.optimizers import is_ours
from keras_accum.tf_keras.imports import legacy

# Stock optimizers' slots and attributes -> the names in a state, as in Keras 3.
_MOMENTS = {"m": "momentum", "v": "velocity", "vhat": "velocity_hat"}
_LEGACY = {
    legacy.Adam: _MOMENTS,
    legacy.RMSprop: {"rms": "velocity", "mg": "average_gradient"},
    legacy.Adadelta: {"accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var"},
    legacy.Adamax: {"m": "momentum", "v": "norm"},
    legacy.Nadam: {**_MOMENTS, "m_cache": "u_product"},
}
_NEWER = {
    "model_variables_moving_average": "moving_average",
    "momentums": "momentum",
    "velocities": "velocity",
    "velocity_hats": "velocity_hat",
    "average_gradients": "average_gradient",
    "accumulated_grads": "accumulated_grad",
    "accumulated_delta_vars": "accumulated_delta_var",
    "accumulators": "accumulator",
    "linears": "linear",
    "m": "momentum",
    "v": "velocity",
    "u": "norm",
}
# Every optimizer has these attributes, for variables outside a rule or listed elsewhere.
_SKIPPED = (
    *("_iterations", "_weights", "_hyper", "_slots"),
    *("_variables", "_learning_rate", "_current_learning_rate", "_coalesced_children"),
)


def is_legacy(optimizer):
    return isinstance(optimizer, legacy.Optimizer)


def find_kept(optimizer, created=None):
    """Return an optimizer's variables, {(state name, weight key): variable}, in file order.

    A key is None for a variable shared by all weights. created: (name, key, variable) tuples, None
    for a stock optimizer: its slots are read instead.
    """
    attributes, entries = vars(optimizer), {}  # {id: (attribute or slot, weight key, variable)}
    slots_by_key = attributes.get("_slots", {})
    slots = [(name, key, v) for key, by_name in slots_by_key.items() for name, v in by_name.items()]
    known = {id(variable) for *_, variable in slots}
    for source, key, variable in _list_attributes(attributes):
        if id(variable) not in known:
            entries.setdefault(id(variable), (source, key, variable))
    for entry in slots if created is None else created:
        entries.setdefault(id(entry[-1]), entry)
    for variable in (optimizer.iterations, *attributes.get("_hyper", {}).values()):
        entries.pop(id(variable), None)
    places = {id(v): place for place, v in enumerate(attributes.get("_variables", ()))}
    stock = optimizer._stock_class if is_ours(optimizer) else type(optimizer)
    names = _LEGACY.get(stock, {}) if is_legacy(optimizer) else _NEWER
    ordered = sorted(entries.values(), key=lambda entry: places.get(id(entry[-1]), len(places)))
    kept, sources = {}, {}
    for source, key, variable in ordered:
        name = names.get(source.strip("_"), source.strip("_"))
        if (name, key) in kept:
            raise ValueError(
                f"`{sources[name, key]}` and `{source}` of {type(optimizer).__name__} would have "
                f"the same name in its state, {name!r}: rename one of them."
            )
        kept[name, key], sources[name, key] = variable, source
    return kept


def _list_attributes(attributes):
    """Yield the variables in an optimizer's attributes, as (name, weight key or None, variable)."""
    keys = list(attributes.get("_index_dict", ()))
    for name, value in attributes.items():
        if name in _SKIPPED or name.startswith("_self_"):  # TensorFlow's
            continue
        variables = [v for v in tf.nest.flatten(value) if isinstance(v, tf.Variable)]
        if isinstance(value, (list, tuple)) and len(variables) == len(keys):
            for key, variable in zip(keys, variables):
                # Below two dimensions, Adafactor has integers as placeholders.
                if not (name in ("_r", "_c") and variable.dtype.is_integer):
                    yield name, key, variable
        else:
            for place, variable in enumerate(variables):
                yield name if value is variable else f"{name}_{place}", None, variable


def get_rate(optimizer):
    """Return an optimizer's learning rate: a number, a variable, a schedule, ..."""
    is_hyper = is_legacy(optimizer)
    return optimizer._hyper.get("learning_rate") if is_hyper else optimizer._learning_rate


def name_variables(optimizer, kept, keys, rule):
    """Return a rule's variables for the weights with these keys, by state name.

    kept: the optimizer's variables, from `find_kept`.
    """
    places = {None: "", **{key: f".{place}" for place, key in enumerate(keys)}}
    # Newer SGD has slots even without momentum.
    unused = () if vars(optimizer).get("momentum", True) else ("momentum",)
    named = {"completed_updates": optimizer.iterations}
    for (name, key), variable in kept.items():
        if key in places and name not in unused:
            prefix = "" if name == "moving_average" else f"{rule}."
            named[f"{prefix}{name}{places[key]}"] = variable
    return named
