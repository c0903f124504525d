"""At accum_iters=1 our classes pass the installed Keras's own tests of its optimizers.

Keras 3 ships these tests in its wheel. Each runs here with our class under the stock name; the
tests of LossScaleOptimizer run with our SGD inside.
"""

import importlib

import hosts
import pytest
from cases import skip_file_on_keras2

skip_file_on_keras2("tests of its optimizers in its wheel")

pytestmark = [
    pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 ships tests of its optimizers"),
    pytest.mark.filterwarnings("default"),  # the tests are Keras's own, and so are their warnings
]


def keras_tests():
    if not hosts.IS_KERAS3:
        return []
    cases = []
    suites = {
        "SGDTest": ("sgd", "SGD"),
        "AdamTest": ("adam", "Adam"),
        "RMSpropTest": ("rmsprop", "RMSprop"),
        "LossScaleOptimizerTest": ("loss_scale_optimizer", "SGD"),
    }
    for name, (of, stock) in suites.items():
        module = importlib.import_module(f"keras.src.optimizers.{of}_test")
        suite = getattr(module, name)
        tests = [test for test in dir(suite) if test.startswith("test_")]
        cases += [pytest.param(module, suite, stock, test, id=f"{name}-{test}") for test in tests]
    return cases


@pytest.mark.parametrize("module, suite, stock, name", keras_tests())
def test_as_the_stock_optimizer(module, suite, stock, name, monkeypatch):
    monkeypatch.setattr(module, stock, getattr(hosts.accum, f"{stock}Accumulate"))
    result = suite(name).run()
    assert result.testsRun == 1 or result.skipped
    problems = [trace for _, trace in result.failures + result.errors]
    assert not problems, problems[0]
