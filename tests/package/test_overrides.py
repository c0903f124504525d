"""What this package overrides of Keras's optimizers: a Keras without it fails by name."""

import importlib
import os
import re
import subprocess
import sys

import hosts
import pytest

WHERE = {"keras3": ["overrides"], "tf_keras": ["legacy"], "keras2": ["optimizers"]}[hosts.HOST]
if hosts.IS_KERAS3 and hosts.BACKEND != "jax":
    WHERE = ["overrides", hosts.BACKEND]
if hosts.IS_NEW_STYLE:
    WHERE = ["new_style"]


def listed():
    modules = [importlib.import_module(f"keras_accum.{hosts.HOST}.{name}") for name in WHERE]
    return [name for module in modules for name in module.OF_KERAS]


def test_the_list_names_each_override():
    """What Python itself calls and the arguments of the constructor have no new names."""
    (ours, stock) = type(hosts.ours("Adam")), type(hosts.stock("Adam"))
    own = ours.__mro__[1 : ours.__mro__.index(stock)]
    of_keras = [cls for cls in stock.__mro__[1:] if cls is not object]
    found = {n for cls in own for n in vars(cls) if any(n in vars(base) for base in of_keras)}
    found = {name for name in found if not name.startswith("__")}
    allowed = {"ema_overwrite_frequency", "_accumulation", "_trackable_children", "from_config"}
    allowed |= {"set_weights", "get_weights", "save_own_variables", "load_own_variables", "lr"}
    assert found - allowed <= set(listed())


def test_the_classes_before_the_stock_one():
    """A reader of an optimizer meets the classes of the page, on each Keras."""
    bases = type(hosts.ours("Adam")).__mro__[1:]
    ours = [cls for cls in bases if cls.__module__.startswith("keras_accum.")]
    assert list(bases[: len(ours)]) == ours
    page = (hosts.PROJECT / "keras_accum" / "README.md").read_text("utf-8")
    (table,) = re.findall(r"^\| class \|.*?\n\n", page, re.M | re.S)
    (of_jax, *others) = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert [cls.__name__ for cls in ours][-len(others) :] == others == [*dict.fromkeys(others)]
    assert of_jax == "JaxOverrides" and all(cls.__name__.endswith("Overrides") for cls in ours[:-3])


RENAMED = """
import importlib
{keras}
base = {base}
for cls in base.__mro__:
    if {name!r} in vars(cls):
        delattr(cls, {name!r})
try:
    importlib.import_module("keras_accum.{host}")
except ImportError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.third_by("torch")
@pytest.mark.parametrize("place", [0, -1][: len(WHERE)])
def test_a_keras_without_one_of_them(place):
    name = listed()[place]
    base = "keras.optimizers.Optimizer"
    if hosts.IS_LEGACY:
        base = "getattr(keras.optimizers, 'legacy', keras.optimizers).Optimizer"
    program = RENAMED.format(keras=hosts.IMPORT_KERAS, base=base, name=name, host=hosts.HOST)
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, env=os.environ, stdout=-1, stderr=-1, text=True)
    assert f"has no `{name}` in Optimizer" in result.stdout, result.stderr
    assert "install a newer keras_accum" in result.stdout
