"""`accumulating` on Keras 3: its arguments, its result, and an optimizer that isn't Keras's."""

import copy
import inspect
import pickle
import subprocess
import sys

import hosts
import numpy as np
import pytest
from cases import thorough
from hosts import accum, keras
from training import LENGTH, assert_equal, compiled, dense_model, go_on

if not hosts.IS_KERAS3:
    pytest.skip("about `accumulating` on Keras 3; Keras 2 has other files", allow_module_level=True)

from test_every_optimizer import assert_windows_equal_big_batches, variables

from keras_accum import names


@keras.saving.register_keras_serializable("tests")
class Noted(keras.optimizers.Optimizer):
    """Gradient descent with a slot, a scalar, and a learning rate that depends on `iterations`.

    It writes in three ways: by the optimizer's `assign`, by a Keras variable's and, on TensorFlow,
    by the native variable's own.
    """

    def __init__(self, learning_rate=0.1, fade=0.5, name="noted", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.fade = fade

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._traces = self.add_optimizer_variables(variables, "trace")
        self._total = self.add_variable((), name="total")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self._total.assign_add(1.0)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        ops = keras.ops
        trace = self._traces[self._get_variable_index(variable)]
        rate = ops.cast(learning_rate, variable.dtype)
        rate = rate / ops.cast(self.iterations + 1, variable.dtype)
        self.assign(trace, self.fade * trace + ops.cast(gradient, variable.dtype))
        variable.assign_sub(rate * trace * ops.cast(self._total, variable.dtype))

    def get_config(self):
        return {**super().get_config(), "fade": self.fade}


NotedAccumulate = accum.accumulating(Noted)


@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_another_optimizer_equals_its_big_batch(gate):
    mine, theirs = variables(), variables()
    ours, stock = NotedAccumulate(2**-4, accum_iters=LENGTH, gate=gate), Noted(2**-4)
    hosts.build_on(ours, mine)
    hosts.build_on(stock, theirs)
    assert_windows_equal_big_batches(ours, stock, mine, theirs)
    assert int(hosts.array(ours._total)) == 3


def noted_model():
    optimizer = NotedAccumulate(2**-4, 0.25, accum_iters=LENGTH)
    return compiled(dense_model(), optimizer, hosts.mean_squared_error())


@pytest.mark.parametrize("form", ["keras", "pickle", "copy"])
def test_another_optimizer_continues_in_a_window(form, tmp_path):
    saved = go_on(noted_model(), 0, LENGTH + 2)
    if form == "keras":
        saved.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
    else:
        copied = copy.deepcopy if form == "copy" else lambda o: pickle.loads(pickle.dumps(o))
        again = noted_model()
        again.set_weights(saved.get_weights())
        again.compile(copied(saved.optimizer), saved.loss, jit_compile=saved.jit_compile)
    assert type(again.optimizer) is NotedAccumulate and again.optimizer.fade == 0.25
    for model in (saved, again):
        go_on(model, LENGTH + 2, 3 * LENGTH)
    assert_equal(dict(enumerate(again.get_weights())), dict(enumerate(saved.get_weights())))
    assert_equal(again.optimizer.get_state(), saved.optimizer.get_state())
    assert {"Noted.trace.0", "Noted.total"} <= set(saved.optimizer.get_state())


def test_to_stock_and_back():
    saved = go_on(noted_model(), 0, LENGTH)
    stock = saved.optimizer.to_stock()
    assert type(stock) is Noted and stock.fade == 0.25
    again = NotedAccumulate.from_optimizer(stock, accum_iters=LENGTH)
    assert_equal(again.get_state(), saved.optimizer.get_state(), rtol=0, atol=0)


def test_signature_and_docstring():
    parameters = list(inspect.signature(NotedAccumulate).parameters)
    assert parameters[:3] == ["learning_rate", "fade", "name"]
    assert {"accum_iters", "gate", "clipnorm", "use_ema"} <= set(parameters)
    assert NotedAccumulate(0.5, 0.75, clipnorm=1.0, accum_iters=2).get_config()["clipnorm"] == 1.0
    for words in ("NotedAccumulate", "fade", "accum_iters", "one update per window"):
        assert words in NotedAccumulate.__doc__


def test_the_same_class_again():
    assert accum.accumulating(Noted) is NotedAccumulate
    assert accum.accumulating(keras.optimizers.Lion) is accum.LionAccumulate
    assert NotedAccumulate.__module__ == Noted.__module__


@pytest.mark.parametrize("name", [n for n in names.OPTIMIZERS if hasattr(keras.optimizers, n)])
def test_every_stock_optimizer_has_a_name(name):
    found = getattr(accum, f"{name}Accumulate")
    assert found is accum.accumulating(getattr(keras.optimizers, name))
    optimizer = found(accum_iters=2)
    assert type(pickle.loads(pickle.dumps(optimizer))) is found
    assert keras.saving.get_registered_name(found) == f"keras_accum>{name}Accumulate"


@pytest.mark.parametrize(
    "given, said",
    [
        (lambda: keras.optimizers.Adam(), r"must be a class.*accumulating\(Adam\).from_optimizer"),
        (lambda: keras.optimizers.LossScaleOptimizer, "wrap the result in LossScaleOptimizer"),
        (lambda: keras.optimizers.MultiOptimizer, "wrap the result in MultiOptimizer"),
        (lambda: accum.AdamAccumulate, "accumulates already"),
        (lambda: accum.AdamAccumulate(), "accumulates already"),
        (lambda: dict, "must be a subclass of.*Optimizer.*Received.*dict"),
        (lambda: "adam", "must be a subclass of.*Received.*'adam'"),
    ],
)
def test_what_it_refuses(given, said):
    with pytest.raises(TypeError, match=said):
        accum.accumulating(given())


def test_names_that_are_taken():
    class Gated(Noted):
        def __init__(self, gate=1):
            super().__init__()

    class Received(Noted):
        def _take_micro_batch(self):
            pass

    class Windowed(Noted):
        def build(self, variables):
            super().build(variables)
            self._window = 3

    with pytest.raises(TypeError, match="Windowed sets attributes.*_window"):
        accum.accumulating(Windowed)(accum_iters=2).build(variables())
    with pytest.raises(TypeError, match="Gated takes arguments.*gate"):
        accum.accumulating(Gated)
    with pytest.raises(TypeError, match="Received has members.*_take_micro_batch"):
        accum.accumulating(Received)


def test_a_list_of_arrays_waits_for_no_variables():
    optimizer = accum.AdafactorAccumulate(accum_iters=2)
    with pytest.raises(accum.StateError, match="without names"):
        optimizer.set_weights([np.zeros(()), np.zeros((2, 3))])


def test_old_names():
    with pytest.warns(DeprecationWarning, match="HostGate is PythonGate now"):
        assert accum.HostGate is accum.PythonGate
    with pytest.warns(DeprecationWarning, match="gate='branch' is gate='conditional' now"):
        optimizer = accum.AdamAccumulate(accum_iters=2, gate="branch")
    config = {**optimizer.get_config(), "gate": "arithmetic", "all_reduce": "micro_batch"}
    again = accum.AdamAccumulate.from_config(config)  # a config, which may be a file's: no warning
    assert (again.gate, again.all_reduce) == ("select", "per_micro_batch")
    with pytest.raises(ImportError, match="has no AdamZAccumulate|cannot import name"):
        exec("from keras_accum.keras3 import AdamZAccumulate", {})


@thorough
def test_loads_in_a_new_process(tmp_path):
    """A stock optimizer's accumulating class can be loaded once the host's module is imported."""
    model = compiled(
        dense_model(), accum.LionAccumulate(2**-6, accum_iters=LENGTH), hosts.mean_squared_error()
    )
    go_on(model, 0, LENGTH + 2).save(tmp_path / "model.keras")
    program = f"""
import keras, keras_accum.keras3
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
print(type(model.optimizer).__name__, model.optimizer.window_position)
"""
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.stdout.split() == ["LionAccumulate", "2"], job.stderr
