"""At accum_iters=1 our classes pass the tests of optimizers that Keras 3 ships in its wheel."""

import importlib
import importlib.util
import inspect
import types
import unittest
from pathlib import Path

import hosts
import pytest
from cases import NAMES, skip_file_on_keras2, thorough

skip_file_on_keras2("tests of its optimizers in its wheel")

pytestmark = [
    pytest.mark.once_by("tensorflow"),  # at accum_iters=1, all code is Keras's
    pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 ships tests of its optimizers"),
    pytest.mark.filterwarnings("default"),  # the tests are Keras's own, and so are their warnings
]


# Where we differ on purpose.
OTHERWISE = {
    "MultiOptimizerTest-test_serialization": "our class has another name than the stock class",
    "NadamTest-test_build_with_empty_var_list": "without variables, our `build` makes none",
    "OptimizerTest-test_get_method": "Keras finds its own class by a string like 'sgd'",
    "OptimizerTest-test_optimizer_auto_naming": "our names begin with adam_accumulate",
    "OptimizerTest-test_set_weights": "a list that comes before the variables waits for them",
}
if importlib.util.find_spec("tensorflow") is None:
    logging = "MultiOptimizerTest-test_tensorboard_logging_with_multi_optimizer"
    OTHERWISE[logging] = "Keras's callback TensorBoard needs TensorFlow"


def keras_tests():
    if not hosts.IS_KERAS3:
        return []
    package = importlib.import_module("keras.src.optimizers")
    cases = []
    for file in sorted(Path(package.__file__).parent.glob("*_test.py")):
        module = importlib.import_module(f"{package.__name__}.{file.stem}")
        for suite in vars(module).values():
            if inspect.isclass(suite) and issubclass(suite, unittest.TestCase):
                tests = [test for test in dir(suite) if test.startswith("test_")]
                cases += [case(module, suite, test) for test in tests]
    return cases


def case(module, suite, test):
    name, function = f"{suite.__name__}-{test}", getattr(suite, test)
    # A test or its suite may be skipped on other backends.
    marks = [*getattr(suite, "pytestmark", []), *getattr(function, "pytestmark", [])]
    if name in OTHERWISE:
        marks += [pytest.mark.skip(reason=OTHERWISE[name])]
    if not suite.__name__.startswith(("SGD", "Adam", "RMSprop", "LossScale")):
        marks += [thorough]
    return pytest.param(module, suite, test, id=name, marks=marks)


@pytest.mark.parametrize("module, suite, name", keras_tests())
def test_as_the_stock_optimizer(module, suite, name, monkeypatch):
    hosts.set_floatx("float32")  # Keras's own tests are for its default data type
    replaced = []
    if hasattr(module, "optimizers"):  # a copy, because Keras itself uses this module on PyTorch
        copy = types.ModuleType("optimizers")
        vars(copy).update(vars(module.optimizers))
        monkeypatch.setattr(module, "optimizers", copy)
    for stock in NAMES:
        # Some of the tests import each class, and others a module of all classes.
        for where in (module, getattr(module, "optimizers", None)):
            if hasattr(where, stock):
                monkeypatch.setattr(where, stock, getattr(hosts.accum, f"{stock}Accumulate"))
                replaced.append(stock)
    assert replaced, "the test has no optimizer of ours"
    result = suite(name).run()
    for _, reason in result.skipped:
        pytest.skip(f"Keras: {reason}")
    assert result.testsRun == 1
    problems = [trace for _, trace in result.failures + result.errors]
    assert not problems, problems[0]


def test_every_optimizer_has_its_suite():
    tested = {case.values[1].__name__.lower() for case in keras_tests()}
    if hosts.keras.__version__.startswith(("3.10.", "3.11.")) or "dev" in hosts.keras.__version__:
        pytest.skip("Keras 3.10, 3.11 and its nightly don't ship their tests")
    assert {f"{name.lower()}test" for name in NAMES if name != "AMSGrad"} <= tested
