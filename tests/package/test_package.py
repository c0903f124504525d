"""The package as a user meets it: imports, the choice of the host, and docstrings."""

import doctest
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys

import hosts
import pytest
from cases import once_on_keras3, thorough
from training import compiled, dense_model

import keras_accum
from keras_accum import WHERE, host


def python(program, **environment):
    """Return what a new Python process prints."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@thorough
def test_import_takes_the_keras_in_use():
    program = "from keras_accum import AdamAccumulate; print(AdamAccumulate.__module__)"
    assert python(program) == f"keras_accum.{hosts.HOST}.optimizers"
    if hosts.IS_KERAS3:
        assert python(program, TF_USE_LEGACY_KERAS="0") == "keras_accum.keras3.optimizers"


@thorough
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_import_registers_the_classes_of_a_keras_that_is_imported(tmp_path):
    file = str(tmp_path / "model.h5")
    optimizer = hosts.accum.AdamAccumulate(accum_iters=2)
    compiled(dense_model(), optimizer, hosts.mean_squared_error()).save(file)
    name = hosts.keras.__name__.partition(".")[0]
    program = (
        f"import {name} as keras, keras_accum; keras.backend.set_floatx({hosts.FLOATX!r}); "
        f"print(keras.models.load_model({file!r}).optimizer.accum_iters)"
    )
    assert python(program).endswith("2")


def test_a_loss_scale_optimizer_of_somebody_else_is_as_keras_made_it():
    if hosts.IS_KERAS2:
        pytest.skip("standalone Keras 2 has no LossScaleOptimizer")
    inner = hosts.keras.optimizers.SGD()
    wrapper = hosts.loss_scaled(inner, 8.0)
    for _ in range(2):
        with pytest.raises(AttributeError, match="accum_iters"):
            wrapper.accum_iters  # noqa: B018
        inner.accum_iters = 3
    wrapper.accum_iters = 5
    assert (wrapper.accum_iters, inner.accum_iters) == (5, 3)


OTHERS = {"keras3": "Keras 3.10 or newer", "keras2": "standalone Keras 2.0 to 2.3"}
OTHERS.pop(hosts.HOST, None)
if hosts.IS_KERAS2:
    OTHERS["tf_keras"] = "TensorFlow 2.4 or newer"


IMPORT_EACH = f"""
import importlib
for module in {list(OTHERS)}:
    try:
        importlib.import_module(f"keras_accum.{{module}}")
    except ImportError as error:
        print(module, error)
"""


@pytest.fixture(scope="module")
def refusals():
    """What a new process says of each module of another Keras, in one line each."""
    return dict(line.split(" ", 1) for line in python(IMPORT_EACH).splitlines())


@thorough
@pytest.mark.parametrize("module", OTHERS)
def test_module_of_another_keras(module, refusals):
    """The error says what the module needs, what was found, and which module to use."""
    version = "tensorflow" if module == "tf_keras" else "keras"
    package = importlib.import_module(version)
    if (module, package.__version__[0]) == ("keras3", "3"):
        pytest.skip("keras_accum.keras3 can be imported, as Keras 3 is installed beside tf_keras")
    found = ".".join(package.__version__.split(".")[: 3 if module == "tf_keras" else 2])
    message = f"{module} needs {OTHERS[module]}. .*keras_accum.{hosts.HOST}.* Found: .*{found}"
    assert re.search(message, refusals[module])


@pytest.mark.parametrize("keras", ["2.3", "4.0"])
def test_keras3_of_another_version(monkeypatch, keras):
    version = tuple(map(int, keras.split(".")))
    monkeypatch.setattr(host, "_keras_version", lambda: version)
    with pytest.raises(ImportError, match=f"needs Keras 3.*keras2.*Found: .*{keras}"):
        host.import_keras("keras3")


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has a policy that stays")
def test_an_import_leaves_the_dtypes_open():
    """Keras decides its policy for dtypes when the first layer is made."""
    program = (
        "import keras, keras_accum.keras3; keras.config.set_floatx('float64'); "
        "print(keras.config.dtype_policy().name)"
    )
    assert python(program) == "float64"


@thorough
def test_the_environment_chooses_tf_keras():
    pytest.importorskip("tf_keras")
    program = "from keras_accum import AdamAccumulate; print(AdamAccumulate.__module__)"
    assert python(program, TF_USE_LEGACY_KERAS="1") == "keras_accum.tf_keras.optimizers"


NAMES = [name for name in keras_accum.__all__ if name in vars(hosts.accum)]

# Optimizers share the examples of README and guide.
WITHOUT_EXAMPLE = {name for name in NAMES if name.endswith("Accumulate")}
WITHOUT_EXAMPLE |= {"accumulating", "StateError"}


def test_names():
    assert set(keras_accum.__all__) <= set(dir(keras_accum))
    for name in NAMES:
        assert getattr(keras_accum, name) is getattr(hosts.accum, name)
        assert getattr(hosts.accum, name).__doc__, f"{name} has no docstring"
    for name in keras_accum.__all__:
        is_offered = WHERE[name] == "every Keras" or hosts.IS_KERAS3 or "tf_keras" in WHERE[name]
        assert name in NAMES or hosts.IS_KERAS2 or not is_offered or "newest" in WHERE[name]
    with pytest.raises(AttributeError, match="no_such_name"):
        keras_accum.no_such_name  # noqa: B018


def test_help_and_signature():
    """They say what the class does, and its arguments in their order: the stock class's first."""
    cls = hosts.accum.AdamAccumulate
    text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
    assert cls.__doc__.splitlines()[0] in text and "accum_iters=1" in text
    names = list(inspect.signature(cls).parameters)
    stock = list(inspect.signature(type(hosts.stock("Adam"))).parameters)
    stock = [name for name in stock if name not in ("args", "kwargs")]
    assert names[: len(stock)] == stock and "accum_iters" in names[len(stock) :]


@thorough
@once_on_keras3
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_EXAMPLE])
def test_docstring_example(name):
    """Every callback has an example that runs, and so have layers and schedules."""
    public = getattr(hosts.accum, name)
    examples = doctest.DocTestFinder(recurse=False).find(public, name, globs={})
    assert examples and examples[0].examples, f"{name} has no example"
    failures, attempted = doctest.DocTestRunner().run(examples[0])
    assert attempted and not failures


def test_a_name_that_this_keras_does_not_have():
    """The error says which Keras has it."""
    missing = [name for name in WHERE if name not in NAMES]
    if not missing:
        pytest.skip("this Keras has every public name")
    for name in missing:
        for module in (f"keras_accum.{hosts.HOST}", "keras_accum"):
            with pytest.raises(ImportError, match=f"no {name} on this Keras. It is there on"):
                exec(f"from {module} import {name}", {})
