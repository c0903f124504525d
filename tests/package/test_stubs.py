"""The stubs, which editors read in place of the source, say what the classes say at run time."""

import ast
import copy
import importlib.util
import inspect
import re
from pathlib import Path

import hosts
import pytest

import keras_accum
from keras_accum import arguments, host, names
from keras_accum.base import Optimizer

PACKAGE = Path(keras_accum.__file__).parent
SCRIPT = hosts.PROJECT / "docs" / "write_stubs.py"
REMEDY = "run docs/write_stubs.py, as its first lines say"


def read(folder):
    return (PACKAGE / folder / "__init__.pyi").read_text("utf-8")


def by_name(nodes):
    """The definitions among these nodes. The setter of a property is left out."""
    definitions = (ast.ClassDef, ast.FunctionDef)
    return {node.name: node for node in reversed(nodes) if isinstance(node, definitions)}


TEXT = read(hosts.HOST)
TREE = ast.parse(TEXT)
STUBS = by_name(TREE.body)

KERAS, *version = re.search(r"from (\w+) (\d+)\.(\d+)\. Don't edit", TEXT).groups()
IS_SAME_VERSION = tuple(map(int, version)) == host._installed_version(KERAS)
of_the_same_version = pytest.mark.skipif(
    not IS_SAME_VERSION, reason=f"the stub is made from {KERAS} {'.'.join(version)}"
)

PUBLIC = {name: vars(hosts.accum)[name] for name in names.WHERE if name in vars(hosts.accum)}
OF_NO_HOST = "AccumulationSchedule", "StateError"
CLASSES = [n for n in PUBLIC if isinstance(PUBLIC[n], type) and n not in OF_NO_HOST]
OPTIMIZERS = {name: PUBLIC[name] for name in CLASSES if issubclass(PUBLIC[name], Optimizer)}
# The classes of this package that come before a stock class, each with an optimizer class.
BASES = {cls.__bases__[0]: cls for cls in OPTIMIZERS.values()}
NOT_MEMBERS = (
    *("build", "save_own_variables", "load_own_variables"),  # which Keras calls
    "fixed",  # for those who write a class
    # which instances of stock optimizers have
    *("weight_decay", "ema_overwrite_frequency", "gradient_accumulation_steps"),
)
MEMBERS = [
    (base, name)
    for base, cls in BASES.items()
    for name in dir(base)
    if not (name.startswith("_") or name in NOT_MEMBERS or hasattr(cls._stock_class, name))
    if getattr(base, name) is not None  # an attribute
]


def stub_of(base):
    return next(stub for name, stub in STUBS.items() if name.lstrip("_") == base.__name__).body


def signature_of(function):
    """The signature of a function in a stub, without types."""
    function = copy.deepcopy(function)
    function.returns, function.decorator_list = None, []
    for argument in arguments_of(function):
        argument.annotation = None
    defined = {}
    exec(compile(ast.Module([function], type_ignores=[]), "stub", "exec"), defined)
    return inspect.signature(defined[function.name])


def arguments_of(function):
    return [node for node in ast.walk(function.args) if isinstance(node, ast.arg)]


def has_types(function):
    typed = [node.annotation for node in arguments_of(function) if node.arg not in ("self", "cls")]
    return None not in (*typed, function.returns)


@pytest.mark.parametrize("folder", ["keras3", "tf_keras", "keras2"])
def test_the_stubs_are_in_the_package(folder):
    assert (PACKAGE / "py.typed").exists()
    assert "AdamAccumulate" in by_name(ast.parse(read(folder)).body)


def imported(stub):
    """The names that a stub hands on."""
    imports = [node.names for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name for names in imports for alias in names if alias.asname == alias.name}


def test_names():
    in_stub = {*imported(TREE), *STUBS}.intersection(names.WHERE)
    assert set(PUBLIC) <= in_stub
    assert set(PUBLIC) == in_stub or not IS_SAME_VERSION


def test_names_of_the_package():
    """They are those of Keras 3, the newest Keras."""
    stub = ast.parse(read(""))
    modules = {node.module for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert modules == {"keras_accum.keras3"}
    assigned = {n.targets[0].id: n.value for n in stub.body if isinstance(n, ast.Assign)}
    assert sorted(imported(stub)) == ast.literal_eval(assigned["__all__"]) == keras_accum.__all__
    assert ast.get_docstring(stub) == inspect.getdoc(keras_accum).strip(), REMEDY


@pytest.mark.parametrize("name", CLASSES)
def test_signature(name):
    """Of another version of the Keras, the stub takes all arguments and knows this package's."""
    init = by_name(STUBS[name].body)["__init__"]
    assert has_types(init)
    in_stub = dict(signature_of(init).parameters)
    del in_stub["self"]
    at_run_time = inspect.signature(PUBLIC[name]).parameters
    if IS_SAME_VERSION:
        assert list(in_stub.values()) == list(at_run_time.values()), REMEDY
        return
    assert set(at_run_time) <= set(in_stub)
    if name in OPTIMIZERS:
        for own in set(arguments.OWN) - {"lr", "decay"}:
            assert in_stub[own] == at_run_time[own], REMEDY


@of_the_same_version
@pytest.mark.parametrize("name", [*CLASSES, "accumulating"])
def test_docstring(name):
    docstring = ast.get_docstring(STUBS[name])
    assert docstring == inspect.getdoc(PUBLIC[name]).strip(), REMEDY
    assert len(docstring.splitlines()) > 5


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_members(base):
    """All that an optimizer has and its stock optimizer hasn't."""
    stub = stub_of(base)
    in_stub, at_run_time = set(by_name(stub)), {name for of, name in MEMBERS if of is base}
    assert at_run_time <= in_stub, REMEDY
    assert {"__init__", *at_run_time} == in_stub or not IS_SAME_VERSION
    assert {"reduction", "skip_nonfinite", "gate", "all_reduce"} <= in_stub


@pytest.mark.parametrize("base, name", MEMBERS)
def test_a_member(base, name):
    member = inspect.getattr_static(base, name)
    if isinstance(member, property):
        kinds, functions = ["property", "setter"], [member.fget, member.fset]
    elif isinstance(member, classmethod):
        kinds, functions = ["classmethod"], [member.__func__]
    else:
        kinds, functions = [], [member]
    functions = [function for function in functions if function]
    nodes = [node for node in stub_of(base) if getattr(node, "name", None) == name]
    assert ast.get_docstring(nodes[0]) == inspect.getdoc(functions[0]), REMEDY
    assert [*map(signature_of, nodes)] == [*map(inspect.signature, functions)], REMEDY
    assert all(map(has_types, nodes))
    decorators = [decorator for node in nodes for decorator in node.decorator_list]
    found = [getattr(node, "id", None) or node.attr for node in decorators]
    assert found == kinds[: len(functions)]


def write_stubs():
    spec = importlib.util.spec_from_file_location("write_stubs", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@of_the_same_version
def test_the_script_writes_the_stubs():
    """So no change of a type in the script is forgotten in the stubs."""
    script = write_stubs()
    assert script.host_stub(hosts.HOST) == TEXT, REMEDY
    assert script.package_stub() == read(""), REMEDY


def test_an_argument_without_a_type():
    script = write_stubs()
    del script.ARGUMENTS["accum_iters"]
    with pytest.raises(SystemExit, match="`accum_iters` has no type. Give it one in `ARGUMENTS`"):
        script.host_stub(hosts.HOST)
