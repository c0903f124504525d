"""What docstrings promise of the stock arguments: each value out of a range is refused by name."""

import ast
import inspect
import re

import hosts
import numpy as np
import pytest
from cases import NAMES, every_name, thorough
from hosts import keras

NAN = float("nan")
# By what a docstring says: values at the edge or inside, and values outside.
PROMISES = {
    "Float": ([0.5, -2.0], [NAN, "a", True]),
    "Float >= 0": ([0.0, 1e-3], [-1e-3, NAN, "a", True]),
    "Float > 0": ([1e-3], [0.0, -1.0, NAN, "a", True]),
    "Float <= 0": ([0.0, -0.25], [0.25, NAN, "a", True]),
    "Float < 0": ([-0.25], [0.0, 0.25, NAN, "a", True]),
    "Float in [0, 1]": ([0.0, 1.0], [-0.5, 1.5, NAN, "a", True]),
    "Float in [0, 1)": ([0.0, 0.5], [-0.5, 1.0, 2.0, NAN, "a", True]),
    "Float in (0, 1]": ([0.5, 1.0], [0.0, 1.5, NAN, "a", True]),
    "Integer >= 0": ([0, 3], [-1, 2.5, "a", True]),
    "Integer >= 1": ([1, np.int64(3)], [0, -1, 2.5, "a", True]),
    "Boolean": ([True, False], ["False", 2, 0.5]),
    "List of strings": ([["out"], []], ["out", [1], 1]),
}
ENTRY = re.compile(
    r"^ {8}(?P<names>\w+(?:, \w+)*): "
    r"(?P<kind>(?:Float|Integer|Boolean|List of strings)(?: in \S+ \d[\])]| [<>]=? -?\d(?!\d))?)"
    r"(?P<or_none> or None)?",
    re.MULTILINE,
)
OWN = ("accum_iters", "skip_nonfinite", "skip_norm", "window_transforms")  # have tests of their own


def promises(cls):
    """{argument: (what it may be, whether it may be None)} as the docstring has it."""
    found = {}
    for entry in ENTRY.finditer(cls.__doc__):
        for name in entry["names"].split(", "):
            if name not in OWN:
                found[name] = entry["kind"], bool(entry["or_none"])
    return found


def classes(name):
    found = [getattr(hosts.accum, f"{name}Accumulate")]
    if hosts.IS_TF_KERAS and hasattr(keras.optimizers, "legacy"):
        found.append(hosts.accum.accumulating(getattr(keras.optimizers, name.replace("MSG", "d"))))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_argument_has_a_promise(name):
    for cls in classes(name if name != "AMSGrad" else "Adam"):
        said = set(promises(cls)) | set(OWN)
        others = {"name", "lr", "reduction", "gate", "all_reduce", "gradient_accumulation_steps"}
        others |= {"gradient_aggregator", "gradient_transformers"}
        missing = set(inspect.signature(cls).parameters) - said - others
        # On tf_keras not each class has a decay, and its newest Adam one argument more. Keras 2 has
        # two names for one norm.
        assert missing <= {"decay", "global_clipnorm", "adaptive_epsilon"}


DEFAULT = re.compile(r"^ {8}(\w+): .*(?:, default (\S+?)[.;](?!\S)|(?<!\S)(\S+) \(default\))", re.M)


# Defaults of Muon in Keras 3.10 to 3.12, which docs/hosts.md names.
EARLIER = {"Muon": [("adam_lr_ratio", 0.1), ("ns_steps", 6), ("weight_decay", 0.1)]}


@pytest.mark.parametrize("name", NAMES)
def test_each_default_is_that_of_the_signature(name):
    for cls in classes(name if name != "AMSGrad" else "Adam"):
        parameters = inspect.signature(cls).parameters
        for argument, *said in DEFAULT.findall(cls.__doc__):
            default = parameters[argument].default if argument in parameters else None
            # If it is None, the host has the default.
            if default is not None and (argument, default) not in EARLIER.get(name, ()):
                assert ast.literal_eval("".join(said).strip("`")) == default, argument


@every_name
def test_out_of_range(name):
    for cls in classes(name if name != "AMSGrad" else "Adam"):
        found = promises(cls)
        assert {"learning_rate", "clipnorm"} < set(found)
        for argument, (kind, or_none) in found.items():
            for value in PROMISES[kind][1]:
                with pytest.raises((TypeError, ValueError)) as refusal:
                    cls(**{argument: value})
                said = str(refusal.value)
                assert f"{argument}={value}" in said.replace("'", "")
                assert argument in said.replace(f"{argument}={value}", "")  # says what is allowed
            if not or_none and argument not in ("learning_rate", "epsilon", "decay"):
                if inspect.signature(cls).parameters[argument].default is not None:
                    with pytest.raises((TypeError, ValueError), match=f"`{argument}`"):
                        cls(**{argument: None})


@every_name
def test_in_range(name):
    """Up to the edges of what is promised, and to None where that is."""
    cls = getattr(hosts.accum, f"{name}Accumulate")
    for argument, (kind, or_none) in promises(cls).items():
        if argument in ("decay", "global_clipnorm"):
            continue
        for value in PROMISES[kind][0] + [None] * or_none:
            if argument == "epsilon" and value == 0 and hosts.IS_TF_KERAS:
                continue  # which takes its default for it
            optimizer = cls(**{argument: value})
            config = optimizer.get_config()
            if kind.startswith("Float") and argument in config and value is not None:
                np.testing.assert_allclose(config[argument], value, rtol=1e-6)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="messages of Keras 3")
def test_the_stock_class_has_its_say():
    said = r"`momentum` must be a float between \[0, 1\]. Received: momentum=2.0"
    with pytest.raises(ValueError, match=said):
        hosts.ours("SGD", momentum=2.0)


# -- files: what an older version took is loaded -------------------------------------------------

ODD = {"beta_1": 1.0, "epsilon": -1.0, "learning_rate": -0.5}


def odd_config():
    config = hosts.ours("Adam", accum_iters=2).get_config()
    odd = dict(ODD)
    if "lr" in config:
        odd["lr"] = odd.pop("learning_rate")
    return {**config, **odd}


def test_a_config_with_odd_values_is_loaded():
    config = odd_config()
    with pytest.raises(ValueError, match="must be a float"):
        hosts.accum.AdamAccumulate(**config)
    optimizer = hosts.accum.AdamAccumulate.from_config(config)
    assert optimizer.get_config() == config
    with pytest.raises(ValueError, match="must be a float"):  # as before
        hosts.accum.AdamAccumulate(**config)


def test_an_optimizer_with_odd_values_goes_on():
    """It's built, copied and handed over; what is given anew is checked."""
    from training import compiled, dense_model, go_on

    optimizer = hosts.accum.AdamAccumulate.from_config(odd_config())
    model = go_on(compiled(dense_model(), optimizer), 0, 3)
    assert model.optimizer.completed_updates == 1
    other = hosts.accum.AdamAccumulate.from_optimizer(model.optimizer, accum_iters=4)
    assert other.get_config()["epsilon"] == -1.0
    with pytest.raises(ValueError, match="`beta_2` must be"):
        hosts.accum.AdamAccumulate.from_optimizer(model.optimizer, beta_2=2.0)


# -- classes of somebody else ------------------------------------------------------------------


@thorough
def test_arguments_of_another_meaning():
    class Heavy(keras.optimizers.SGD):
        def __init__(self, learning_rate=0.01, weight="heavy", rho=-7, **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.weight, self.rho = weight, rho

        def get_config(self):
            return {**super().get_config(), "weight": self.weight, "rho": self.rho}

    cls = hosts.accum.accumulating(Heavy)
    optimizer = cls(0.5, weight="light", rho=-8)
    assert (optimizer.weight, optimizer.rho) == ("light", -8)
    with pytest.raises(ValueError, match="`clipnorm` must be a float >= 0 or None"):
        cls(clipnorm=-1.0)
