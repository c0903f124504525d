"""The package as a user meets it: imports, the choice of the host, and docstrings."""

import ast
import doctest
import importlib
import inspect
import pydoc
import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import once_on_keras3, thorough
from processes import python
from training import compiled, dense_model

import keras_accum
from keras_accum import WHERE, host
from keras_accum.host import registration
from keras_accum.optimizer import Accumulating

pytestmark = once_on_keras3


NEEDS = {"keras3": "Keras 3.10 or newer", "keras2": "standalone Keras 2.1.6 to 2.3"}
NEEDS.pop(hosts.HOST, None)
if hosts.IS_KERAS2:
    NEEDS["tf_keras"] = "TensorFlow 2.8 or newer"
IMPORT_EACH = f"""
import importlib
from keras_accum import AdamAccumulate
print(AdamAccumulate.__module__)
for module in {list(NEEDS)}:
    try:
        importlib.import_module(f"keras_accum.{{module}}")
    except ImportError as error:
        print(module, error)
"""


@thorough
def test_import_takes_the_keras_in_use():
    """The module of another Keras says what it needs, what was found, and which one to use."""
    taken, *refusals = python(IMPORT_EACH)
    assert taken == f"keras_accum.{hosts.HOST}.optimizers"
    refusals = dict(line.split(" ", 1) for line in refusals)
    for module, needs in NEEDS.items():
        version = importlib.import_module("tensorflow" if module == "tf_keras" else "keras")
        if (module, version.__version__[0]) == ("keras3", "3"):
            continue  # keras_accum.keras3 can be imported, as Keras 3 is installed beside tf_keras
        found = re.escape(version.__version__.rpartition(".")[0])
        said = f"{module} needs {needs}. .*keras_accum.{hosts.HOST}.* Found: .*{found}"
        assert re.search(said, refusals[module])


@thorough
def test_import_registers_the_classes_of_a_keras_that_is_imported(tmp_path):
    """Of one that is imported later, the first import of a class does so.

    Keras 3 decides its policy for dtypes when the first layer is made: our import makes none.
    """
    file = str(tmp_path / "model.h5")
    optimizer = hosts.accum.AdamAccumulate(accum_iters=2)
    compiled(dense_model(), optimizer, hosts.mean_squared_error()).save(file)
    name = hosts.keras.__name__.partition(".")[0]
    dtype = "keras.config.dtype_policy().name" if hosts.IS_KERAS3 else "keras.backend.floatx()"
    load = f"print(keras.models.load_model({file!r}).optimizer.accum_iters, {dtype})"
    set_dtype = "keras.backend.set_floatx('float64')"
    assert python(f"import {name} as keras, keras_accum; {set_dtype}; {load}")[-1] == "2 float64"
    program = f"""
import keras_accum, {name} as keras
{set_dtype}
try:
    {load}
except Exception as error:  # Keras's own
    print(error)
from keras_accum import AdamAccumulate
{load}
"""
    *said, loaded = python(program)
    assert re.search("Unknown optimizer|Could not interpret optimizer", "\n".join(said))
    assert loaded == "2 float64"


@pytest.mark.parametrize("error", [ImportError, AttributeError])
def test_an_error_in_our_import_leaves_an_imported_keras_as_it_is(error, monkeypatch):
    """As with a Keras that is too new. The first import of a class raises it again."""
    calls = []

    def fail(name):
        calls.append(name)
        raise error("too new")

    monkeypatch.setattr(registration.importlib, "import_module", fail)
    registration.register()
    assert f"keras_accum.{hosts.HOST}" in calls


def test_the_environment_chooses_tf_keras(monkeypatch):
    for version, module in ((2, 3), "keras2"), ((2, 4), "tf_keras"), ((3, 10), "keras3"):
        monkeypatch.setattr(host, "_keras_version", lambda version=version: version)
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
        assert host.module_name() == "keras_accum.tf_keras"
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
        assert host.module_name() == f"keras_accum.{module}"


NAMES = [name for name in WHERE if name in vars(hosts.accum)]


def is_here(where):
    """True if this Keras has what `WHERE` says: None where that depends on its version."""
    if where == "every Keras":
        return True
    if hosts.IS_KERAS2:
        return False
    if hosts.IS_TF_KERAS:
        return None if "since" in where else where.startswith("Keras 3 and tf_keras")
    return None if "newer" in where else where.startswith("Keras 3")


of_package = pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="whose names are the tests'")


@of_package
def test_names():
    module = importlib.import_module(f"keras_accum.{hosts.HOST}")
    found = [name for name in WHERE if name in vars(module)]
    assert sorted(module.__all__) == sorted(found) == sorted(dir(module))
    shown = {name for name in dir(keras_accum) if name[0] != "_"}
    assert shown == {*WHERE, "callbacks", "optimizers", "keras3", "tf_keras", "keras2"}
    for name in NAMES:
        assert getattr(keras_accum, name) is getattr(hosts.accum, name)
        assert getattr(hosts.accum, name).__doc__, f"{name} has no docstring"
    for name, where in WHERE.items():
        stock = getattr(hosts.keras.optimizers, name.partition("Accumulate")[0], None)
        expected = is_here(where)
        assert (name in NAMES) == (bool(stock) if expected is None else expected), name
    with pytest.raises(AttributeError, match="no_such_name"):
        keras_accum.no_such_name  # noqa: B018


@of_package
def test_modules_named_as_in_keras():
    """`keras_accum.callbacks` and `keras_accum.optimizers`; no name is in neither."""
    parts = [importlib.import_module(f"keras_accum.{part}") for part in ("callbacks", "optimizers")]
    for part in parts:
        found = {}
        exec(f"from {part.__name__} import *", {}, found)
        assert found and {name for name in dir(part) if name in NAMES} == {*found}
        assert all(found[name] is getattr(hosts.accum, name) for name in found)
        with pytest.raises(AttributeError, match="no attribute 'Other'"):
            part.Other  # noqa: B018
    callback = hosts.keras.callbacks.Callback
    found = {name for name in NAMES if name in dir(parts[0])}
    classes = {n for n in NAMES if isinstance(getattr(hosts.accum, n), type)}
    assert found == {n for n in classes if issubclass(getattr(hosts.accum, n), callback)}
    rest = {*NAMES} - {*dir(parts[0]), *dir(parts[1])}
    assert rest <= {"AccumulationWarning", "StateError", "Comparison", "compare_with_big_batch"}


@pytest.mark.parametrize("module", ["", ".optimizers", f".{hosts.HOST}"])
def test_a_stock_name(module):
    """The error says which class accumulates."""
    said = rf"keras_accum{module} has no Adam\. Use AdamAccumulate\."
    with pytest.raises(ImportError, match=said):
        exec(f"from keras_accum{module} import Adam", {})
    with pytest.raises(AttributeError, match=said):
        importlib.import_module(f"keras_accum{module}").Adam  # noqa: B018


@of_package
def test_names_that_this_keras_does_not_have():
    """They are in no import of all names, and the error says which Keras has them."""
    for module in ("keras_accum", f"keras_accum.{hosts.HOST}"):
        found = {}
        exec(f"from {module} import *", {}, found)
        assert found.keys() == {*NAMES}
    for name in WHERE:
        for module in (hosts.accum, keras_accum):
            assert hasattr(module, name) == (name in NAMES)
    for name in {*WHERE} - {*NAMES}:
        said = f"no {name} on this Keras. It is there on {WHERE[name]}"
        for module in (f"keras_accum.{hosts.HOST}", "keras_accum"):
            with pytest.raises(ImportError, match=said):
                exec(f"from {module} import {name}", {})
            with pytest.raises(AttributeError, match=said):
                getattr(importlib.import_module(module), name)


def tables():
    """Return what the reference's tables say: {class: {argument: (its words, its default)}}."""
    found = {}
    for page, name in ("shared", "Accumulating"), ("callbacks", None):
        text = (hosts.PROJECT / "docs" / "reference" / f"{page}.md").read_text("utf-8")
        text = text.partition("| method |")[0]  # test_site.py has that table
        for line in re.findall(r"^\|(.*`.*)\|$", text, re.M):
            *of, argument, values, default, _ = (cell.strip(" `") for cell in line.split("|"))
            name = "".join(of) or name
            words = re.findall(r'"(\w+)"', values)
            found.setdefault(name, {}).update({argument: (words, default)} if argument else {})
    return found


def arguments_of(cls):
    """Return the same by the constructor of a class."""
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            default = "" if p.default is p.empty else repr(p.default).replace("'", '"')
            literals = "".join(re.findall(r"Literal\[.*?\]", str(p.annotation)))
            yield p.name, (re.findall(r"'(\w+)'", literals), default)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the reference is of Keras 3")
def test_the_tables_of_the_reference_are_those_of_the_signatures():
    found = tables()
    own = found.pop("Accumulating")
    assert own == dict(arguments_of(Accumulating))
    callback = hosts.keras.callbacks.Callback
    public = {name: getattr(hosts.accum, name) for name in NAMES}
    classes = {name: cls for name, cls in public.items() if isinstance(cls, type)}
    assert {*found} == {name for name in classes if issubclass(classes[name], callback)}
    for name in found:
        assert found[name] == dict(arguments_of(classes[name]))
    shown = pydoc.plaintext.document(hosts.accum.AdamAccumulate).splitlines()[:60]
    described = re.findall(r"^ \|      (\w+): ", "\n".join(shown), re.M)
    assert described == [*own]


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="checkers see the classes of Keras 3")
def test_the_signatures_that_checkers_see_are_those_of_the_classes():
    """The family has them. What every optimizer takes by name is in `arguments.More`."""
    folder, seen = Path(hosts.accum.__file__).parent, {}
    (*_, more) = ast.parse((folder / "arguments.py").read_text("utf-8")).body
    types = {n.target.id: ast.unparse(n.annotation) for n in more.body if hasattr(n, "target")}
    own = list(inspect.signature(Accumulating.__init__).parameters.values())[2:-1]
    assert {p.name: p.annotation for p in own}.items() <= types.items()
    for cls in ast.parse((folder / "optimizers.py").read_text("utf-8")).body:
        for node in ast.walk(cls) if isinstance(cls, ast.ClassDef) else ():
            if getattr(node, "name", "") == "__init__":
                names = [argument.arg for argument in node.args.args[1:]]
                seen[cls.name] = dict(zip(names, map(ast.literal_eval, node.args.defaults)))
    assert [*seen] == [f"{n}Accumulate" for n in ("SGD", "RMSprop", "Adam", "AMSGrad")]
    for name, first in seen.items():
        parameters = inspect.signature(getattr(hosts.accum, name)).parameters
        assert {n: parameters[n].default for n in [*parameters][: len(first)]} == first
        assert {*parameters} - {*first} == {*types}


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the reference is of Keras 3")
def test_the_table_of_classes_has_the_arguments_of_their_rules():
    text = (hosts.PROJECT / "docs" / "reference" / "optimizers.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)Accumulate` \| \[`(\w+)`\].* \| (.*) \|$", text, re.M)
    assert sorted(name for name, *_ in rows) == sorted(hosts.OPTIMIZERS)
    for name, stock, arguments in rows:
        parameters = inspect.signature(getattr(hosts.accum, f"{name}Accumulate")).parameters
        own = dict(argument.split("=") for argument in re.findall("`(.+?)`", arguments))
        assert {n: repr(parameters[n].default) for n in own} == own
        assert stock == name or name == "AMSGrad"
        shared = text.partition("stock optimizers share")[2].partition("Give these")[0]
        assert {*parameters} == {*own, *re.findall(r"`(\w+)`", shared), *tables()["Accumulating"]}


# Optimizers share the examples of README and guide.
WITH_EXAMPLE = {name for name in NAMES if not name.endswith("Accumulate")}
WITH_EXAMPLE -= {"accumulating", "AccumulationWarning", "StateError", "Comparison"}
if not hosts.IS_KERAS3:
    WITH_EXAMPLE -= {"compare_with_big_batch"}  # its example is for Keras 3


@thorough
@pytest.mark.parametrize("name", sorted(WITH_EXAMPLE))
def test_docstring_example(name):
    """Every callback has an example that runs, and so have layers and schedules."""
    public = getattr(hosts.accum, name)
    (examples,) = doctest.DocTestFinder(recurse=False).find(public, name, globs={})
    assert examples.examples, f"{name} has no example"
    failures, attempted = doctest.DocTestRunner().run(examples)
    assert attempted and not failures


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the reference is of Keras 3")
def test_the_example_of_position_in_data():
    """Without a framework, `pure/test_engine.py` has each position."""
    model = hosts.keras.Sequential([hosts.keras.Input((3,)), hosts.keras.layers.Dense(1)])
    names = {"model": model, "x": np.ones((10, 3)), "y": np.ones((10, 1))}
    names["AdamAccumulate"] = hosts.accum.AdamAccumulate
    method = Accumulating.position_in_data
    (examples,) = doctest.DocTestFinder(recurse=False).find(method, globs=names)
    failures, attempted = doctest.DocTestRunner().run(examples)
    assert attempted == 3 and not failures
