"""What users get wrong at first, how an optimizer is printed, and what Python warns of."""

import importlib
import warnings

import hosts
import numpy as np
import pytest
from cases import every_name, keras2_has_no, once_on_keras3, quick_first, quick_once_on_keras3
from hosts import accum, keras
from training import compiled, data, dense_model, fit


@pytest.mark.parametrize("name", ["keras_accum", "keras_accum.callbacks", accum.__name__])
def test_a_callback_that_is_gone(name):
    module = importlib.import_module(name)
    assert "PythonGate" not in dir(module)
    with pytest.raises(ImportError, match="PythonGate is gone in 2.0: leave it out"):
        exec(f"from {name} import PythonGate")
    with pytest.raises(AttributeError, match="The default is as fast"):
        _ = module.PythonGate


def test_the_name_of_an_optimizer():
    said = r"no place for accum_iters.*`AdamAccumulate\(accum_iters"
    if hosts.IS_KERAS_3_16:  # which doesn't look for a name among registered classes
        said = "Could not interpret optimizer identifier: adamaccumulate"
    with pytest.raises(ValueError, match=said):
        dense_model().compile("adamaccumulate", "mse")


@pytest.mark.skipif(
    not hosts.IS_LEGACY or not hasattr(accum, "AdamWAccumulate"), reason="about two styles"
)
def test_an_argument_of_the_newer_style():
    for name, use in ("Adam", "AdamWAccumulate, or `acc"), ("SGD", r"`accumulating\(.*SGD\)`"):
        with pytest.raises(TypeError, match=f"`weight_decay` is an argument.*newer.* Use {use}"):
            hosts.ours(name, accum_iters=2, weight_decay=0.1)


@pytest.mark.skipif(not hasattr(accum, "MicroBatches"), reason="MicroBatches is for Keras 3")
def test_another_name_of_the_size_of_slices():
    said = "MicroBatches takes `size`, the number of samples per slice.*{'batch_size': 10}"
    with pytest.raises(TypeError, match=said):
        accum.MicroBatches(batch_size=10)


@keras2_has_no("optimizers that keep their variables")
def test_a_layer_that_is_unfrozen_later():
    """The optimizer was built for the others by the first step."""
    model = dense_model()
    model.get_layer("hidden").trainable = False
    fit(compiled(model, hosts.ours("Adam", accum_iters=2)), 2, epochs=1)
    model.get_layer("hidden").trainable = True
    said = r"built for 2 variables.* others: \S*hidden/kernel.*`new.set_state\(state, by_name=True"
    if hosts.keras.backend.backend() == "jax":  # whose `fit` takes weights by position
        said = "for 2, and the model has 4.*unfreeze layers, compile with a new"
    with pytest.raises(ValueError, match=said):
        fit(compiled(model, model.optimizer), 2, epochs=1)


NAMES = {
    "AdamAccumulator": r"Did you mean AdamAccumulate\?",
    "Microbatches": r"Did you mean MicroBatches\?",
    "AccumulatingMonitor": r"Did you mean AccumulationMonitor\?",
    "acumulating": r"Did you mean accumulating\?",
    "GradientAccumulation": r"compile with an optimizer: AdamAccumulate\(accum_iters=5\)",
    "MultiSteps": r"compile with an optimizer: AdamAccumulate\(accum_iters=5\)",
}


@pytest.mark.parametrize("module", ["keras_accum", f"keras_accum.{hosts.HOST}"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_nearly_ours(name, module):
    """The name is suggested, also by `import`; other names have Python's own errors."""
    with pytest.raises(ImportError, match=f"^{module} has no {name}. (To .*)?{NAMES[name]}"):
        exec(f"from {module} import {name}")
    with pytest.raises(AttributeError, match=NAMES[name]):
        getattr(importlib.import_module(module), name)
    for other in ("Unrelated", "_accumulating", "__wrapped__"):
        assert not hasattr(importlib.import_module(module), other)
        with pytest.raises(ImportError, match="cannot import name"):
            exec(f"from {module} import {other}")


WEIGHTS = {
    "a mask": (lambda: keras.ops.ones((2, 3)), ValueError, r"one number, such as `mask.sum\(\)`"),
    "sample weights": (lambda: np.ones(4), ValueError, r"one number.*`mask.sum\(\)`.*shape \(4,\)"),
    "a name": (lambda: "a", TypeError, "a number or a scalar tensor: the divisor.*weight='a'"),
    "nothing": (lambda: None, TypeError, "a number or a scalar tensor.*weight=None"),
    "a list": (lambda: [1.0], TypeError, r"a number or a scalar tensor.*weight=\[1.0\]"),
    "infinity": (lambda: float("inf"), ValueError, "a finite number: the divisor.*weight=inf"),
}


@keras2_has_no("weights")
@pytest.mark.parametrize("given", WEIGHTS)
def test_a_weight_that_is_no_number(given):
    make, error, said = WEIGHTS[given]
    if given == "a mask" and not hosts.IS_KERAS3:
        make = lambda: hosts.tf.ones((2, 3))  # noqa: E731
    optimizer = hosts.ours("SGD", accum_iters=2)
    with pytest.raises(error, match=f"`weight` must be {said}"):
        optimizer.weigh(make())
    for weight in (3, 0.5, np.float32(2), np.ones(()), np.ones((1,), "float32")):
        hosts.ours("SGD", accum_iters=2).weigh(weight)


@keras2_has_no("weights")
def test_no_weight_in_a_loop_of_ones_own():
    """The error names the methods that such a loop calls."""
    w, optimizer = (
        hosts.variable([1.0], "w"),
        hosts.ours("SGD", accum_iters=2, reduction="weighted"),
    )
    with pytest.raises(ValueError, match=r"`optimizer.weigh\(weight\)` before `apply`, `stateless"):
        hosts.apply(optimizer, [np.ones(1, hosts.FLOATX)], [w])


@keras2_has_no("OnUpdates")
def test_a_monitor_in_the_place_of_a_callback_by_update():
    said = r"AccumulationMonitor can't.*`callbacks=\[AccumulationMonitor\(\.\.\.\), OnUpdates\("
    with pytest.raises(ValueError, match=said):
        accum.OnUpdates([accum.AccumulationMonitor()])


def test_a_name_or_a_class_in_the_place_of_an_optimizer():
    for given in ("adam", "Adam", type(hosts.stock("Adam"))):
        with pytest.raises(TypeError, match=r"^Write `AdamAccumulate\(accum_iters=5\)`.*`from_opt"):
            accum.SGDAccumulate.from_optimizer(given)
    with pytest.raises(TypeError, match=r"^Write `SGDAccumulate\(accum_iters=5\)`"):
        accum.SGDAccumulate.from_optimizer("mine")
    lion = "Lion" if hasattr(accum, "LionAccumulate") else "SGD"  # no class that is missing here
    with pytest.raises(TypeError, match=rf"^Write `{lion}Accumulate\(accum_iters=5\)`"):
        accum.SGDAccumulate.from_optimizer("lion")
    with pytest.raises(TypeError, match=r"needs an optimizer of Keras's SGD, or of this package"):
        accum.SGDAccumulate.from_optimizer(hosts.stock("Adam"))


@keras2_has_no("accumulating")
def test_what_cannot_accumulate():
    """The line to write comes first, without names of Keras's inner modules."""
    for given, said in (
        ("adam", r"^Write `AdamAccumulate\(accum_iters=5\)` in place of the name\. `optim"),
        ("mine", r"^Write `AdamAccumulate\(accum_iters=5\)` in place of the name\. `optim"),
        (hosts.stock("Adam"), r"^Give the class, as in `accumulating\(type\(optimizer\)\)\.from_"),
        (hosts.loss_scaled(hosts.stock("Adam"), 8.0), "In place of a LossScaleOptimizer, give"),
    ):
        with pytest.raises(TypeError, match=said) as found:
            accum.accumulating(given)
        assert ".src." not in str(found.value).partition("Received")[0]


def test_no_length_after_construction():
    """The warning names what can update: on Keras 2, train steps can't."""
    optimizer = hosts.ours("Adam", accum_iters=2)
    steps = "" if hosts.IS_KERAS2 else "`close_window`, `decide` and "
    said = f"only {steps}`apply_partial_window` can update.*set 1"
    with pytest.warns(accum.AccumulationWarning, match=said):
        optimizer.accum_iters = None
    optimizer = hosts.ours("Adam", accum_iters=None)
    optimizer.accum_iters = 2
    optimizer.accum_iters = None  # as it was constructed


@quick_once_on_keras3
@keras2_has_no("callbacks in `evaluate`")
def test_a_callback_outside_of_fit():
    """Nothing is said in `fit`, which evaluates with its callbacks, and OnUpdates does, too."""
    x, y = data()
    names = ["AccumulationMonitor", "ApplyPartialWindow", "OnUpdates", "MicroBatches"]
    for name in [name for name in names if hasattr(accum, name)]:
        callback = getattr(accum, name)(*{"OnUpdates": [[]], "MicroBatches": [1]}.get(name, []))
        ours = hosts.ours("Adam", accum_iters=2)
        optimizer = hosts.stock("Adam") if name == "MicroBatches" else ours
        model = compiled(dense_model(), optimizer)
        fit(model, 2, callbacks=[callback], epochs=1, validation_data=(x, y))
        for method in (model.evaluate, model.predict)[name == "OnUpdates" :]:
            inputs = (x, y) if method.__name__ == "evaluate" else (x,)
            said = f"{name} is for `fit`, and does nothing in `{method.__name__}`"
            with pytest.warns(accum.AccumulationWarning, match=said):
                method(*inputs, verbose=0, callbacks=[callback])


class Decaying(hosts.optimizers.Optimizer):
    """A class with an argument of this name, as in tensorflow-addons."""

    def __init__(self, weight_decay, name="Decaying", **kwargs):
        super().__init__(name=name, **kwargs)
        self.decays = weight_decay


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="about the legacy style")
def test_an_argument_of_a_user_with_such_a_name():
    assert accum.accumulating(Decaying)(weight_decay=0.1, accum_iters=2).decays == 0.1


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about tf.keras of TensorFlow 1.15")
def test_tf_keras_of_tensorflow_1():
    keras = hosts.tf.keras
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
    with pytest.raises(ValueError, match="AdamAccumulate .*, for models of standalone Keras>"):
        model.compile(hosts.ours("Adam", accum_iters=2), "mse")


@keras2_has_no("accum_iters=None")
def test_no_window_ends_by_itself():
    with pytest.warns(UserWarning, match="ends with no update.*accum_iters=None.*close_window"):
        fit(compiled(dense_model(), hosts.ours("SGD", accum_iters=None)), 2, epochs=1)


@pytest.mark.skipif(not hosts.IS_NEW_STYLE, reason="about the newer style of tf_keras")
def test_a_config_of_keras_2():
    """And so a file of Keras 2, which has `decay`."""
    with pytest.raises(ValueError, match="`decay`.*legacy.*tf_keras.AdamAccumulate"):
        type(hosts.ours("Adam")).from_config({"lr": 0.1, "decay": 0.0, "beta_1": 0.9})


@pytest.mark.skipif(hosts.keras.__name__ != "tf_keras", reason="needs two versions of Keras")
def test_objects_of_another_keras():
    """The error of an optimizer is Keras's own, with the module that ours is from."""
    other = pytest.importorskip("keras_accum.keras3")
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    said = "is for models of keras.* of tf_keras"
    with pytest.raises(TypeError, match=said):
        fit(model, 2, callbacks=[other.ApplyPartialWindow()])
    with pytest.raises(ValueError, match="identifier: <keras_accum.keras3.*AdamAccumulate"):
        dense_model().compile(other.AdamAccumulate(accum_iters=2), "mse")


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about TensorFlow's graphs without functions")
def test_no_eager_execution():
    with hosts.tf.Graph().as_default():
        with pytest.raises(ValueError, match="model_to_estimator.*disable_eager.*train with `fit`"):
            hosts.ours("Adam", accum_iters=2)


def test_an_object_that_is_no_model():
    """A user's own training loop may give callbacks something that stands for a model."""
    callback, model = accum.ApplyPartialWindow(), object()
    callback.set_model(model)
    assert callback.model is model


def test_what_is_printed(capsys):
    optimizer = hosts.ours("Adam", accum_iters=5)
    print(optimizer)
    assert capsys.readouterr().out.strip() == repr(optimizer)
    assert "AdamAccumulate learning_rate=0.001 accum_iters=5" in repr(optimizer)


@once_on_keras3
def test_a_warning_has_our_category_and_name():
    """So users can filter it by either, also with `python -W`; its line is the user's."""
    optimizer, said = hosts.ours("Adam", accum_iters=2), "^keras_accum: `accum_iters = None`"
    with pytest.warns(accum.AccumulationWarning, match=said) as found:
        optimizer.accum_iters = None
    assert found[0].filename == __file__ and issubclass(accum.AccumulationWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=accum.AccumulationWarning)
        optimizer.accum_iters = None


@once_on_keras3
@every_name
def test_a_repr_has_the_learning_rate_and_accum_iters(name):
    optimizer = hosts.ours(name, learning_rate=0.25, accum_iters=3)
    cls = type(optimizer)
    note = ", for models of standalone Keras" * hosts.IS_KERAS2
    said = f"<{cls.__module__}.{cls.__name__} learning_rate=%s accum_iters=%s{note}>"
    assert repr(optimizer) == said % (0.25, 3)
    optimizer.learning_rate, optimizer.accum_iters = 0.1, 7
    assert repr(optimizer) == said % (0.1, 7)


@keras2_has_no("learning rates that are functions")
def test_a_repr_of_a_function():
    optimizer = hosts.ours("SGD", learning_rate=lambda step=None: 0.5)
    shown = 0.5 if hosts.IS_NEW_STYLE else "a schedule"  # that style calls the function once
    assert f"learning_rate={shown} accum_iters=1>" in repr(optimizer)


def test_a_repr_never_raises():
    assert "AdamAccumulate" in repr(accum.AdamAccumulate.__new__(accum.AdamAccumulate))
    optimizer, printed = hosts.ours("SGD", accum_iters=5), []
    if hosts.IS_TENSORFLOW and not hosts.IS_KERAS2:
        hosts.tf.function(lambda: printed.append(repr(optimizer)))()
        assert "SGDAccumulate" in printed[0]


@keras2_has_no("NumPy 2")
@quick_first("name", ["AccumulationMonitor", None, "ApplyPartialWindow"])
def test_numpy_has_nothing_to_warn_of(name):
    """NumPy 2 warns if a Keras variable or a PyTorch tensor is given to `np.array`."""
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    callbacks = [getattr(accum, name)()] if name else []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*__array__")  # which conftest.py ignores, for Keras's
        fit(model, 2, epochs=1, callbacks=callbacks)
        state = model.optimizer.get_state()
    assert state["completed_updates"] > 0
