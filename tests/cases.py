"""The table of optimizers that every promise is tested over. Adding an optimizer is adding a row.

The learning rates are powers of two, so that no host rounds them, and of a size that moves weights
by about 0.1 in the few updates of a test.
"""

from collections import namedtuple

import hosts
import pytest

# name: of the stock optimizer, see `hosts.stock`; ours is the one called <name>Accumulate.
Case = namedtuple("Case", "name arguments")

CASES = {
    "sgd": Case("SGD", {"learning_rate": 2**-3}),
    "momentum": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.9}),
    "nesterov": Case("SGD", {"learning_rate": 2**-4, "momentum": 0.8, "nesterov": True}),
    "adam": Case("Adam", {"learning_rate": 2**-5}),
    "adam_betas": Case("Adam", {"learning_rate": 2**-5, "beta_1": 0.7, "beta_2": 0.95}),
    "amsgrad": Case("AMSGrad", {"learning_rate": 2**-5, "beta_2": 0.9, "epsilon": 1e-4}),
    "rmsprop": Case("RMSprop", {"learning_rate": 2**-6}),
    "rmsprop_momentum": Case("RMSprop", {"learning_rate": 2**-7, "rho": 0.8, "momentum": 0.7}),
    "rmsprop_centered": Case("RMSprop", {"learning_rate": 2**-6, "centered": True}),
    "rmsprop_both": Case(
        "RMSprop", {"learning_rate": 2**-7, "momentum": 0.7, "centered": True, "epsilon": 1e-4}
    ),
}

if hosts.IS_KERAS2:  # its RMSprop has neither
    CASES = {
        name: case
        for name, case in CASES.items()
        if case.name != "RMSprop" or not {"momentum", "centered"} & set(case.arguments)
    }

# Rows that after the plain promise are left out, as they would add minutes: their rule is a part of
# another row's. On JAX and PyTorch, which run the same rules, some more.
LEFT_OUT = ("momentum", "adam_betas", "rmsprop_momentum", "rmsprop_centered")
if not hosts.IS_KERAS2:
    LEFT_OUT += ("rmsprop",)
if not hosts.IS_TENSORFLOW:
    LEFT_OUT += ("nesterov", "amsgrad")
NEEDED = {name: case for name, case in CASES.items() if name not in LEFT_OUT}

# For a promise that doesn't depend on the rule: one without slots and one with all there is.
FEW = {name: CASES[name] for name in ("sgd", "adam")}
# One reduction over replicas for each window. It needs the other gate.
LATE = {"gate": "branch", "all_reduce": "window"}
NAMES = sorted({case.name for case in CASES.values()})


def keras2_has_no(what):
    return pytest.mark.skipif(hosts.IS_KERAS2, reason=f"Keras 2.0 to 2.3 has no {what}")


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
few_cases = pytest.mark.parametrize("case", FEW.values(), ids=FEW)
