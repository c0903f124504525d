"""The table of optimizers that every promise is tested over. Adding an optimizer is adding a row.

The learning rates are powers of two, so that no host rounds them, and of a size that moves weights
by about 0.1 in the few updates of a test.
"""

from collections import namedtuple

import hosts
import pytest

# name: of the stock optimizer, see `hosts.stock`; ours is the one called <name>Accumulate.
# kind: of state, and of what writes it. After the plain promise, one row of each kind is enough.
Case = namedtuple("Case", "name arguments kind")
Case.__new__.__defaults__ = (None,)

NO_SLOTS, SLOTS = "no slots", "slots"
# Written by operations of the rule, where TensorFlow has no fused kernel for it.
STOCK = "what the stock optimizer's code makes"
NO_KERNEL = "slots without a kernel" if hosts.IS_TENSORFLOW else SLOTS

CASES = {
    "sgd": Case("SGD", {"learning_rate": 2**-3}, NO_SLOTS),
    "adam": Case("Adam", {"learning_rate": 2**-5}, SLOTS),
    "amsgrad": Case("AMSGrad", {"learning_rate": 2**-5, "beta_2": 0.9, "epsilon": 1e-4}, NO_KERNEL),
    "momentum": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.9}, SLOTS),
    "nesterov": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.8, "nesterov": True}, SLOTS),
    "adam_betas": Case("Adam", {"learning_rate": 2**-5, "beta_1": 0.7, "beta_2": 0.95}, SLOTS),
    "rmsprop": Case("RMSprop", {"learning_rate": 2**-6}, NO_KERNEL),
    "rmsprop_momentum": Case(
        "RMSprop", {"learning_rate": 2**-7, "rho": 0.8, "momentum": 0.7}, NO_KERNEL
    ),
    "rmsprop_centered": Case("RMSprop", {"learning_rate": 2**-6, "centered": True}, NO_KERNEL),
    "rmsprop_both": Case(
        "RMSprop",
        {"learning_rate": 2**-7, "momentum": 0.7, "centered": True, "epsilon": 1e-4},
        NO_KERNEL,
    ),
}

# The rules above have the switch in their scalars on some hosts. These are the stock optimizer's
# own code everywhere, and `test_every_optimizer.py` has all features at once for each.
RULES = list(CASES)
CASES.update(
    {
        "adamw": Case("AdamW", {"learning_rate": 2**-5, "weight_decay": 2**-3}, STOCK),
        "adadelta": Case("Adadelta", {"learning_rate": 2.0**6}, STOCK),
        "adagrad": Case("Adagrad", {"learning_rate": 2**-4}, STOCK),
        "adamax": Case("Adamax", {"learning_rate": 2**-5}, STOCK),
        "nadam": Case("Nadam", {"learning_rate": 2**-5}, STOCK),
        "ftrl": Case("Ftrl", {"learning_rate": 2**-2}, STOCK),
        "lion": Case("Lion", {"learning_rate": 2**-6}, STOCK),
        "adafactor": Case("Adafactor", {"learning_rate": 2**-4}, STOCK),
        "lamb": Case("Lamb", {"learning_rate": 2**-5}, STOCK),
        "muon": Case("Muon", {"learning_rate": 2**-5}, STOCK),
        "schedule_free": Case("ScheduleFreeAdamW", {"learning_rate": 2**-5}, STOCK),
    }
)
CASES = {name: case for name, case in CASES.items() if hosts.has(f"{case.name}Accumulate")}

# Whose stock optimizer has a `decay` that isn't the learning rate's, and takes no schedule.
NO_DECAY = ("Nadam",) if hosts.IS_TF_KERAS else ()

if hosts.IS_KERAS2:  # its RMSprop has neither
    CASES = {
        name: case
        for name, case in CASES.items()
        if case.name != "RMSprop" or not {"momentum", "centered"} & set(case.arguments)
    }

# The first row of each kind stands for the others.
KINDS = {}
for name, case in CASES.items():
    if case.kind not in [STOCK, *(other.kind for other in KINDS.values())]:
        KINDS[name] = case

FEW = {name: CASES[name] for name in ("sgd", "adam")}
ADAM = CASES["adam"]
# One reduction over replicas for each window. It needs the other gate.
LATE = {"gate": "conditional", "all_reduce": "per_window"}
NAMES = sorted({case.name for case in CASES.values()})
_OF_RULES = {CASES[name].name for name in RULES if name in CASES}
every_name = pytest.mark.parametrize(
    "name", [n if n in _OF_RULES else pytest.param(n, marks=pytest.mark.thorough) for n in NAMES]
)


def keras2_has_no(what):
    return pytest.mark.skipif(hosts.IS_KERAS2, reason=f"Keras 2.0 to 2.3 has no {what}")


def skip_file_on_keras2(what):
    if hosts.IS_KERAS2:
        pytest.skip(f"Keras 2.0 to 2.3 has no {what}", allow_module_level=True)


# -- on which rows a promise is tested, and in which tier ----------------------------------------

# The third tier, what is left out of the quick loop. All that isn't marked is in the second.
thorough = pytest.mark.thorough
# Beside that: on a second version of a host, where only these of the third tier are run.
each_version = pytest.mark.each_version


def over(rows, quick):
    """A test for each of these rows. Those that aren't `quick` are in the third tier."""
    params = [
        pytest.param(case, id=name, marks=() if name in quick else thorough)
        for name, case in rows.items()
    ]
    return pytest.mark.parametrize("case", params)


def quick_first(names, values):
    """Like `parametrize`, by a list or by {id: values}: all but the first are in the third tier."""
    ids, values = zip(*values.items()) if isinstance(values, dict) else (None, values)
    params = [
        pytest.param(*(value if "," in names else (value,)), marks=thorough if i else ())
        for i, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, params, ids=ids)


# For the plain promise: the rules, and a row for each kind of state that stock code has.
every_optimizer = over(CASES, quick=[*RULES, "nadam"])
# For the file in which all features meet at once.
every_state = over(CASES, quick=["adam", "nadam", "adafactor"])
# For what is asked of all of these kinds: a scalar, factored slots, slots that differ by variable.
SPECIAL = {name: CASES[name] for name in ("nadam", "adafactor", "muon") if name in CASES}
every_special = over(SPECIAL, quick=["nadam"])
every_kind = over({**KINDS, **SPECIAL}, quick=["adam"])
# For a promise in which the rule has a say, and that doesn't need `fit`.
every_row = over({name: CASES[name] for name in RULES if name in CASES}, quick=["adam"])
# For a promise in which the state has one.
every_case = over(KINDS, quick=["adam"])
# For a promise that depends on neither: one row without slots and one with all there is.
few_cases = over(FEW, quick=["adam"])
