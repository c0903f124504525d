"""The table of optimizers for which every promise is tested. A new optimizer is a new row.

The learning rates are powers of two, so that no host rounds them. They move weights by about 0.1 in
the few updates of a test.
"""

import inspect
from collections import namedtuple

import hosts
import pytest

# name: the name of the stock optimizer, see `hosts.stock`. Ours is called <name>Accumulate.
Case = namedtuple("Case", "name arguments")

CASES = {
    "sgd": Case("SGD", {"learning_rate": 2**-3}),
    "adam": Case("Adam", {"learning_rate": 2**-5}),
    "amsgrad": Case("AMSGrad", {"learning_rate": 2**-5, "beta_2": 0.9, "epsilon": 1e-4}),
    "momentum": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.9}),
    "nesterov": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.8, "nesterov": True}),
    "adam_betas": Case("Adam", {"learning_rate": 2**-5, "beta_1": 0.7, "beta_2": 0.95}),
    "rmsprop": Case("RMSprop", {"learning_rate": 2**-6}),
    "rmsprop_momentum": Case("RMSprop", {"learning_rate": 2**-7, "rho": 0.8, "momentum": 0.7}),
    "rmsprop_centered": Case("RMSprop", {"learning_rate": 2**-6, "centered": True}),
    "rmsprop_both": Case(
        "RMSprop", {"learning_rate": 2**-7, "momentum": 0.7, "centered": True, "epsilon": 1e-4}
    ),
}

# The rules above have the update switch in their scalars on some hosts. The optimizers below are
# stock code on every host. `test_every_optimizer.py` tests each of them with all features at once.
RULES = list(CASES)
CASES.update(
    {
        "adamw": Case("AdamW", {"learning_rate": 2**-5, "weight_decay": 2**-3}),
        "adadelta": Case("Adadelta", {"learning_rate": 2.0**6}),
        "adagrad": Case("Adagrad", {"learning_rate": 2**-4}),
        "adamax": Case("Adamax", {"learning_rate": 2**-5}),
        "nadam": Case("Nadam", {"learning_rate": 2**-5}),
        "ftrl": Case("Ftrl", {"learning_rate": 2**-2}),
        "lion": Case("Lion", {"learning_rate": 2**-6}),
        "adafactor": Case("Adafactor", {"learning_rate": 2**-4}),
        "lamb": Case("Lamb", {"learning_rate": 2**-5}),
        "muon": Case("Muon", {"learning_rate": 2**-5}),
        "schedule_free": Case("ScheduleFreeAdamW", {"learning_rate": 2**-5}),
    }
)
if hosts.IS_NEW_STYLE:  # which has no class for AMSGrad
    CASES["amsgrad"] = Case("Adam", {**CASES["amsgrad"].arguments, "amsgrad": True})
CASES = {name: case for name, case in CASES.items() if hosts.has(f"{case.name}Accumulate")}

if not hosts.HAS_RULES:  # where stock code does what further arguments of a rule say
    for name in ("nesterov", "adam_betas", "rmsprop_centered"):
        CASES.pop(name, None)

# Stock optimizers whose `decay` isn't that of the learning rate. They take no schedule.
NO_DECAY = ("Nadam",) if hosts.IS_LEGACY else ()

if hosts.IS_KERAS2:  # RMSprop of Keras 2 has neither momentum nor centered
    CASES = {
        name: case
        for name, case in CASES.items()
        if case.name != "RMSprop" or not {"momentum", "centered"} & set(case.arguments)
    }

ADAM = CASES["adam"]
# All rows have all features at once. A feature by itself is tested on Adam and, where Adam is a
# fused kernel, on a row that isn't.
KINDS = {name: CASES[name] for name in (["adam", "amsgrad"] if hosts.HAS_RULES else ["adam"])}
FEW = {"adam": ADAM}
NAMES = sorted({case.name for case in CASES.values()})
_OF_RULES = {CASES[name].name for name in RULES if name in CASES}


def keras2_has_no(what):
    return pytest.mark.skipif(hosts.IS_KERAS2, reason=f"Keras 2.0 to 2.3 has no {what}")


needs_decay = pytest.mark.skipif(not hosts.HAS_DECAY, reason="the newer style has no `decay`")


def skip_file_on_keras2(what):
    if hosts.IS_KERAS2:
        pytest.skip(f"Keras 2.0 to 2.3 has no {what}", allow_module_level=True)


# -- the rows and the tier of a promise ----------------------------------------------------------

# The third tier, which the quick loop leaves out. Tests without a mark are in the second tier.
thorough = pytest.mark.thorough
# Tests of the third tier that also run on a second version of a host.
each_version = pytest.mark.each_version
# Tests of code that all hosts share: in the second tier where nothing is compiled, on Keras 3 with
# PyTorch, and on the newer style of tf_keras, whose session runs few files.
quick_once = pytest.mark.quick_by("torch", "tf_keras_new")
# Tests of code that all backends share: the same, and on every Keras 2.
quick_once_on_keras3 = pytest.mark.quick_by("torch", "tf_keras", "tf_keras_new", "keras2")


def quick_except(backend):
    """Mark tests of code that this backend shares with another one that is traced."""
    hosts = {"tensorflow", "jax", *quick_once_on_keras3.args} - {backend}
    return pytest.mark.quick_by(*sorted(hosts))


# For a loss that is a mean over samples, which `fit` can't know of a model's own code.
own_code = pytest.mark.filterwarnings("ignore:keras_accum. `fit` can't read the .*model's own")
# Tests of code that has nothing to do with a host. They run on Keras 3 with JAX alone.
once = pytest.mark.once
# Tests of code that has nothing to do with a backend. They run on every Keras, and on Keras 3 with
# JAX alone; or with PyTorch alone, where tracing or compiling would take longer than the tests.
once_on_keras3, once_by_torch = pytest.mark.once_by("jax"), pytest.mark.once_by("torch")
# Tests of code that has little to do with a backend: its thorough rows run with others once a week.
third_by_torch = pytest.mark.third_by("torch")
# For tests of arguments and configs.
every_name = pytest.mark.parametrize(
    "name",
    [n if n in _OF_RULES else pytest.param(n, marks=(thorough, once_on_keras3)) for n in NAMES],
)


def over(rows, quick):
    """Parametrize a test by rows. Rows that aren't `quick` are in the third tier."""
    params = [
        pytest.param(case, id=name, marks=() if name in quick else thorough)
        for name, case in rows.items()
    ]
    return pytest.mark.parametrize("case", params)


def quick_first(names, values):
    """Like `parametrize`, by a list or by {id: value}. All but the first are in the third tier."""
    ids, values = zip(*values.items()) if isinstance(values, dict) else (None, values)
    params = [
        pytest.param(*(value if "," in names else (value,)), marks=thorough if i else ())
        for i, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, params, ids=ids)


# What runs where. A test's decorator says on which rows it runs; the first row of a test is in the
# second tier, the others are in the third. On Adam:
on_adam = over(FEW, quick=["adam"])
# On Adam and, where Adam is a fused kernel, on AMSGrad, which isn't.
on_adam_and_amsgrad = over(KINDS, quick=["adam"])
# On Adam and, where rules have the update switch in their scalars, on each of them. Elsewhere these
# are stock code as all optimizers are, and SGD stands for the optimizers without slots.
_RULES = RULES if hosts.HAS_RULES else ["adam", "sgd"]
on_each_rule = over({name: CASES[name] for name in _RULES if name in CASES}, quick=["adam"])
# On the special kinds of state: a scalar, factored slots, slots that differ by variable.
SPECIAL = {name: CASES[name] for name in ("nadam", "adafactor", "muon") if name in CASES}
on_special_states = over(SPECIAL, quick=["nadam"])
on_each_kind_of_state = over({**KINDS, **SPECIAL}, quick=["adam"])


# -- arguments -------------------------------------------------------------------------------------

# Values that aren't the defaults, of constructor arguments whose default doesn't tell a value. An
# argument with None isn't given: another argument excludes it, or its value is a function.
VALUES = {
    **{"name": "my_optimizer", "learning_rate": 0.25, "epsilon": 1e-3, "weight_decay": 0.125},
    **{"learning_rate_power": -0.25, "beta_2_decay": -0.5, "exclude_layers": ["out"]},
    **{"clipnorm": 0.5, "ema_overwrite_frequency": 3, "loss_scale_factor": 8.0},
    **{"reduction": "sum", "gate": "conditional", "skip_norm": 1e6, "decay": 0.5},
    **{"schedule_decay": 0.25, "accum_iters": 3},
    **dict.fromkeys(["clipvalue", "global_clipnorm", "gradient_accumulation_steps"]),
    **dict.fromkeys(["gradient_aggregator", "gradient_transformers", "window_transforms"]),
}


def value_of(parameter):
    if parameter.name in VALUES:
        return VALUES[parameter.name]
    kind = type(parameter.default)
    return {bool: not parameter.default, int: 3, float: 0.5}[kind]  # none of these is a default


def arguments_of(name):
    """For each constructor argument a value that isn't its default."""
    parameters = inspect.signature(getattr(hosts.accum, f"{name}Accumulate")).parameters
    given = {n: value_of(parameter) for n, parameter in parameters.items() if n != "lr"}
    if name in NO_DECAY or not hosts.HAS_DECAY:
        given.pop("decay")
    if hosts.IS_KERAS2:  # two names for the norm, and two for the learning rate
        given["global_clipnorm"], given["clipnorm"] = given["clipnorm"], None
        if list(parameters)[0] == "lr":
            given["lr"] = given.pop("learning_rate")
    return {parameter: value for parameter, value in given.items() if value is not None}
