"""`keras_accum.fit` on a Keras of NumPy arrays: weights, ends of windows, warnings, callbacks."""

import contextlib
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from numpy_fit import (
    HOST,
    ApplyPartialWindow,
    Callback,
    CallbackList,
    Layer,
    MicroBatchWeights,
    Model,
    SquaredError,
)
from numpy_keras import SGD, SGDAccumulate

from keras_accum.fit import callback, hooks
from keras_accum.fit import warnings as table
from keras_accum.fit.callback import is_several
from keras_accum.fit.train_function import InTrainFunction, TrainFunction
from keras_accum.host import AccumulationWarning
from keras_accum.terms.reader import LossReader

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(10, 3)), RANDOM.normal(size=(10, 2))
WEIGHTS = np.arange(1.0, 11)
DATA = X, Y, None
# Ten samples in batches of 4 are micro-batches of 4, 4 and 2.


def ours(accum_iters=3, **options):
    return SGDAccumulate(accum_iters=accum_iters, **options)


def compiled(optimizer, loss="mean", model=Model, **more):
    model = model(**more)
    model.compile(optimizer, loss)
    return model


def big(loss="mean", epochs=1, data=DATA, cls=Model):
    """The model and the logs of the stock optimizer at the big batch."""
    model = compiled(SGD(), loss, cls)
    return model, model.fit(data, len(data[0]), epochs)


def assert_equals_big(model, logs=None, **arguments):
    expected, expected_logs = big(**arguments)
    np.testing.assert_allclose(model.w.array, expected.w.array, rtol=1e-12)
    slots = model.optimizer.velocities[0].array, expected.optimizer.velocities[0].array
    np.testing.assert_allclose(*slots, rtol=1e-12)
    if logs is not None:
        found = [epoch["loss"] for epoch in logs]
        np.testing.assert_allclose(found, [epoch["loss"] for epoch in expected_logs], rtol=1e-12)


@pytest.fixture
def said():
    """The texts of all warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield Texts(found)


class Texts:
    def __init__(self, found):
        self._found = found

    def take(self):
        """Return the texts since the last call."""
        texts = [str(warning.message) for warning in self._found]
        del self._found[:]
        return texts


# -- weights ---------------------------------------------------------------------------------------

LOSSES = {
    "mean": ("mean", DATA),
    "sum": ("sum", DATA),
    "sample weights": ("mean", (X, Y, WEIGHTS)),
    "divided by sample weights": ("mean_with_sample_weight", (X, Y, WEIGHTS)),
    "two of one divisor": (["mean", "mean"], DATA),
}


@pytest.mark.parametrize("loss, data", LOSSES.values(), ids=LOSSES)
def test_uneven_micro_batches_equal_the_big_batch(loss, data, said):
    model = compiled(ours(), loss)
    logs = model.fit(data, 4, epochs=2)
    assert_equals_big(model, None if loss == "sum" else logs, loss=loss, epochs=2, data=data)
    assert model.optimizer.completed_updates == 2 and said.take() == []


def test_a_mean_over_micro_batches():
    """Nothing weighs it, and a leftover stays in its window."""
    model = compiled(ours(2, reduction="mean"))
    model.fit(DATA, 4)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 1)
    assert model.optimizer._accumulation.weighing_callback is None


OWN_CODE = pytest.mark.filterwarnings("ignore:keras_accum. `fit` can't read the model's own")


class HalfLoss(Model):
    def compute_loss(self, *arguments, **keywords):
        return super().compute_loss(*arguments, **keywords) / 2

    def compute_gradients(self, *arguments):
        return [gradient / 2 for gradient in super().compute_gradients(*arguments)]


class OwnStep(Model):
    """Calls no `compute_loss`."""

    def train_step(self, data):
        x, y, _ = data
        y_pred = x @ self.w.array
        self.tracker.update_state(self.loss[0](y, y_pred))
        self.optimizer.apply(self.compute_gradients(x, y, y_pred), [self.w])
        return {"loss": self.tracker.result()}


class OwnStepOnce(Model):
    """A step of a user's that calls it, as Keras's own does."""

    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize("model", [HalfLoss, OwnStep, OwnStepOnce])
def test_a_models_own_code_weighs_by_samples(model, said):
    trained = compiled(ours(), model=model)
    trained.fit(DATA, 4, epochs=2)
    assert_equals_big(trained, epochs=2, cls=model)
    texts = said.take()
    assert len(texts) == (model is not OwnStepOnce)
    assert all("and takes it for a mean over samples" in text for text in texts)


class OwnWeighedStep(OwnStep):
    def train_step(self, data):
        self.optimizer.weigh(len(data[0]))
        return super().train_step(data)


def test_a_step_that_weighs_is_right(said):
    model = compiled(ours(), model=OwnWeighedStep)
    model.fit(DATA, 4, epochs=2)
    assert_equals_big(model, epochs=2, cls=OwnStep)
    assert said.take() == []


class InTurns(OwnStepOnce):
    """Calls `compute_loss` in each second step, as a GAN whose critic has steps of its own."""

    calls = 0

    def train_step(self, data):
        self.calls += 1
        return super().train_step(data) if self.calls % 2 else {"loss": 0.0}


def test_a_weight_that_not_all_steps_ask_for():
    callbacks = [MicroBatchWeights(lambda x, y, y_pred, sample_weight: 4)]
    model = compiled(ours(), model=InTurns)
    model.fit(DATA, 4, epochs=2, callbacks=callbacks)
    assert model.calls == 6


def test_a_weight_that_no_step_asks_for():
    callbacks = [MicroBatchWeights(lambda x, y, y_pred, sample_weight: 4)]
    with pytest.raises(ValueError, match="isn't called. Leave the callback out.*optimizer.weigh"):
        compiled(ours(), model=OwnStep).fit(DATA, 4, callbacks=callbacks)
    compiled(ours(), model=OwnStepOnce).fit(DATA, 4, callbacks=callbacks)


def test_code_that_puts_a_sum_together(said):
    """Samples aren't its divisor: `fit` says so, once."""
    model = compiled(ours(), "sum", HalfLoss)
    model.fit(DATA, 4, epochs=2)
    (text,) = said.take()
    assert "can't read the model's own `compute_loss`" in text
    assert "is a sum" in text and "MicroBatchWeights(weight)" in text


class OwnTappedStep(OwnStep):
    """Calls the compiled losses, and no `compute_loss`."""

    def train_step(self, data):
        x, y, _ = data
        loss = self.compiled_loss(y, x @ self.w.array, None)
        super().train_step(data)
        return {"loss": loss}


def test_a_step_that_calls_a_compiled_sum(said):
    """It counts by samples, and the sum isn't divided by them: `fit` names `weigh`."""
    model = compiled(ours(), "sum", OwnTappedStep)
    model.fit(DATA, 4, epochs=2)
    (text,) = said.take()
    assert "the loss in the model's own `train_step`" in text and "optimizer.weigh(n)" in text


@pytest.mark.parametrize("is_built", [True, False])
def test_the_log_of_each_loss_has_its_own_divisor(is_built, said):
    """The whole counts by samples, as its gradient does."""
    losses, data = ["mean", "mean_with_sample_weight"], (X, Y, WEIGHTS)
    model, (expected,) = compiled(ours(learning_rate=0.0), losses), big(losses, data=data)[1]
    if is_built:
        model.compiled_loss.build()
    (logs,) = model.fit(data, 4)
    for name in ("0_loss", "1_loss"):
        assert logs[name] == pytest.approx(expected[name], rel=1e-12)
    small = compiled(SGD(0.0), losses)
    assert logs["loss"] == pytest.approx(small.fit(data, 4)[0]["loss"], rel=1e-12)
    (text,) = said.take()
    assert "divided by different numbers" in text


def test_what_traces_have_shown_holds_for_a_model_until_it_is_compiled():
    callback = MicroBatchWeights(lambda x, y, y_pred, w: float(len(x)))
    first, second = compiled(ours()), compiled(ours())
    first.fit(DATA, 4, callbacks=[callback])
    weighing = callback._weighing
    first.fit(DATA, 4, callbacks=[callback])
    assert callback._weighing is weighing
    second.fit(DATA, 4, callbacks=[callback])
    assert callback._weighing is not weighing
    assert_equals_big(second)
    weighing = callback._weighing
    second.compile(second.optimizer, "mean")
    second.fit(DATA, 4, callbacks=[callback])
    assert callback._weighing is not weighing


@pytest.mark.parametrize("model", [HalfLoss, OwnStepOnce])
def test_own_code_that_may_add_up_penalties(model, said, monkeypatch):
    monkeypatch.setattr(type(HOST), "has_penalties", lambda *_: True)
    compiled(ours(reduction="sum"), "sum", model).fit(DATA, 4)
    texts = [text for text in said.take() if "no update" not in text]
    assert len(texts) == 1 and "reduction='sum' counts penalties on weights" in texts[0]


def test_a_weight_of_your_own():
    """It weighs the logs, too, and nothing else is asked."""
    model = compiled(ours(), "mean", HalfLoss)
    callback = MicroBatchWeights(lambda x, y, y_pred, sample_weight: float(len(x)))
    logs = model.fit(DATA, 4, epochs=2, callbacks=[callback])
    assert_equals_big(model, logs, epochs=2, cls=HalfLoss)
    other = compiled(ours(), "mean")
    other.fit(DATA, 4, callbacks=[MicroBatchWeights(lambda x, *_: 1.0)])
    mean = compiled(ours(reduction="mean"), "mean")
    mean.fit(DATA, 4)
    np.testing.assert_allclose(other.w.array, mean.w.array, rtol=1e-12)


def test_what_a_weight_needs():
    for weight in (None, 3):
        with pytest.raises(TypeError, match="`weight` must be a function"):
            MicroBatchWeights(weight)
    model = compiled(ours(reduction="mean"))
    with pytest.raises(ValueError, match="needs an optimizer with weights.*'mean'"):
        model.fit(DATA, 4, callbacks=[MicroBatchWeights(lambda x, y, y_pred, w: 1)])


def test_strict():
    model = compiled(ours(reduction="weighted"), "sum", HalfLoss)
    with pytest.raises(ValueError, match="'weighted' must know what"):
        model.fit(DATA, 4)
    assert not model.w.array.any()


class OwnFunction(Model):
    def make_train_function(self, force=False):
        super().make_train_function(force)


def test_where_fit_can_not_weigh(said):
    model = compiled(ours(2), model=OwnFunction)
    model.fit(DATA, 4)
    (text,) = said.take()
    assert "of a model with its own `make_train_function`" in text
    assert model.optimizer.completed_updates == 2  # by the number of micro-batches, and the rest


def test_unbuilt_sums_are_refused_after_a_step(monkeypatch):
    """Penalties are known then."""
    model = compiled(ours(reduction="sum"), "sum")
    model.built = False
    monkeypatch.setattr(type(HOST), "has_penalties", lambda *_: True)
    with pytest.raises(ValueError, match="would count penalties on weights"):
        model.fit(DATA, 4)
    model.built = True
    with pytest.raises(ValueError, match="would count penalties on weights"):
        model.fit(DATA, 4)


class SkipsNaN(Model):
    """A step of a user's that makes no update if the loss isn't a number."""

    def train_step(self, data):
        x, y, _ = data
        y_pred = x @ self.w.array
        if np.isfinite(self.compute_loss(x, y, y_pred)):
            self.optimizer.apply(self.compute_gradients(x, y, y_pred), [self.w])
        return {"loss": 0.0}


def test_a_step_without_an_update_leaves_no_weight(said):
    """The next micro-batch counts by its own."""
    model = compiled(ours(2), model=SkipsNaN)
    bad = np.full((6, 3), np.nan), Y[:6], None
    model.fit_batches([bad, (X[:2], Y[:2], None), (X[2:6], Y[2:6], None)])
    assert_equals_big(model, data=(X[:6], Y[:6], None))
    assert said.take() == []


@pytest.mark.parametrize(
    "weight, error", [(None, TypeError), (np.nan, ValueError), (X, ValueError)]
)
def test_a_weight_that_is_no_number(weight, error):
    model = compiled(ours())
    with pytest.raises(error, match="`weight` must be"):
        model.fit(DATA, 4, callbacks=[MicroBatchWeights(lambda x, y, y_pred, w: weight)])


class Positional(Model):
    """Calls `compute_loss` with all arguments of Keras 3, by position."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        assert training in (True, False)
        return super().compute_loss(x, y, y_pred, sample_weight)

    def train_step(self, data):
        x, y, _ = data
        y_pred = x @ self.w.array
        loss = self.compute_loss(x, y, y_pred, None, True)
        self.tracker.update_state(loss, sample_weight=len(x))
        self.optimizer.apply(self.compute_gradients(x, y, y_pred), [self.w])
        return {"loss": self.tracker.result()}


@OWN_CODE
def test_all_arguments_of_compute_loss():
    model = compiled(ours(), model=Positional)
    model.fit(DATA, 4)
    assert_equals_big(model)


def test_windows_that_add_up_log_as_keras():
    model, expected = compiled(ours(reduction="sum"), "sum"), compiled(SGD(0.0), "sum")
    model.optimizer.learning_rate = 0.0
    assert model.fit(DATA, 4) == expected.fit(DATA, 4)


def test_only_optimizers_with_windows_are_told(said):
    model = compiled(ours(1), model=OwnFunction)
    model.other = ours(2)
    model.other.build([])
    model.fit(DATA, 4)
    assert len([text for text in said.take() if "can't weigh" in text]) == 1


# -- reading a loss --------------------------------------------------------------------------------


def reader(model, optimizer=None):
    return LossReader(HOST, model, optimizer, "float64")


class Unsized:
    """Rows whose number a graph doesn't know."""

    shape = (None, 3)


def test_the_number_of_samples(monkeypatch):
    read = reader(compiled(ours()))
    assert (read.count_samples(X), read.count_samples(None)) == (10, None)
    assert read.count_samples(X[:0]) == HOST.least_weight > 0
    for number, expected in ((7, 7), (0, HOST.least_weight)):
        monkeypatch.setattr(HOST.ops, "shape", lambda rows, number=number: (number, 3))
        counted = read.count_samples(Unsized())
        assert (counted, counted.dtype) == (expected, "float64")
    assert read.find_rows(X, [3.0, (Y,)], 2 * X) is Y and read.find_rows(None, 3.0) is None
    assert read.find_rows(X, None, Y) is Y and read.find_rows(X, None, None, Y) is Y
    for data, expected in (((X, Y), Y), ([X, Y, None], Y), ((X, None, Y), Y), (X, X), ((), None)):
        assert read.find_rows_of_step(data) is expected
    assert read.find_rows_of_step((None, None, None, X)) is X


def test_a_divisor_is_not_zero():
    read = reader(compiled(ours()))
    for number in (4, np.float64(4), 0, np.float64(0), -2):
        counts = [number]
        term = SimpleNamespace(number=None, count=lambda dtype, counts=counts: counts.pop())
        for _ in range(2):  # computed once
            assert read.read_divisor(term) == (number or HOST.least_weight)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_loss_described_by_its_terms(reduction, monkeypatch):
    monkeypatch.setattr(type(HOST), "has_penalties", lambda *_: True)
    model = compiled(ours(), reduction, HalfLoss)
    term = SimpleNamespace(loss=model.loss[0], is_in_loss=True)
    read, is_sum = reader(model, model.optimizer), reduction == "sum"
    loss = read.describe([term], Y)
    assert (loss.terms, loss.inputs) == ([term], 10)
    assert read.describe([term]).inputs is None
    assert (loss.adds, loss.adds_sums, loss.adds_means) == (False, False, False)
    assert (loss.is_penalized, "loss_weights=[3.0]" in loss.remedy) == (is_sum, is_sum)
    assert loss.own == read.own_loss != "" and not read.has_own_step
    assert reader(model).describe([term]).remedy == ""
    kinds = ([1.0], (False, True)), ([X, X], (True, False)), ([1.0, X], (True, True))
    for added, expected in kinds:
        monkeypatch.setattr(type(HOST), "list_added_losses", lambda *_, added=added: added)
        loss = read.describe([])
        assert loss.adds and (loss.adds_sums, loss.adds_means) == expected
        assert loss.is_penalized == expected[0]
    assert reader(compiled(ours())).own_loss == ""
    assert reader(compiled(ours(), model=OwnStep)).has_own_step


# -- the end of windows ----------------------------------------------------------------------------


class At(Callback):
    """Notes the position in the window when hooks are called."""

    def __init__(self):
        self.noted = []

    def on_test_begin(self, *arguments):
        self.noted.append(("test", self.model.optimizer.window_position))

    def on_epoch_end(self, *arguments):
        self.noted.append(("end", self.model.optimizer.window_position))


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("reduction, given", [("auto", []), ("mean", [ApplyPartialWindow])])
def test_windows_end_with_their_epoch(reduction, given, validates):
    """Before validation and before all callbacks, wherever ours is listed."""
    noting = At()
    model = compiled(ours(2, reduction=reduction))
    model.fit(DATA, 4, 2, [noting, *(cls() for cls in given)], validates)
    assert model.optimizer.completed_updates == 4
    assert noting.noted == 2 * [*[("test", 0)] * validates, ("end", 0)]


class Later(ApplyPartialWindow):
    """A subclass that chooses another moment."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            super().on_epoch_end(epoch, logs)


def test_a_subclass_chooses_the_moment():
    noting, model = At(), compiled(ours(4, reduction="mean"))
    model.fit(DATA, 4, 2, [noting, Later()])
    assert [position for _, position in noting.noted] == [3, 2]
    assert model.optimizer.completed_updates == 2


def test_a_window_without_a_length_does_not_end():
    model = compiled(ours(None))
    with pytest.warns(AccumulationWarning, match="ends with no update: with accum_iters=None"):
        model.fit(DATA, 4)
    assert model.optimizer.window_position == 3


def test_evaluation_ends_no_window():
    model = compiled(ours(4, reduction="mean"))
    model.fit(DATA, 4)
    callbacks = CallbackList([ApplyPartialWindow()], model)
    with pytest.warns(AccumulationWarning, match="is for `fit`, and does nothing in `evaluate`"):
        callbacks.on_test_begin()
    assert model.optimizer.window_position == 3


def test_evaluation_after_a_training_that_failed_ends_no_window():
    """With the same callback: the epoch of the training was never ended."""

    class Stop(Callback):
        def on_train_batch_end(self, *arguments):
            raise KeyboardInterrupt

    model, ends = compiled(ours(4, reduction="mean")), ApplyPartialWindow()
    with pytest.raises(KeyboardInterrupt):
        model.fit(DATA, 4, callbacks=[ends, Stop()])
    with pytest.warns(AccumulationWarning, match="does nothing in `evaluate`"):
        CallbackList([ends], model).on_test_begin()
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (0, 1)


def test_a_layer_that_was_frozen_in_a_window(monkeypatch, said):
    model = compiled(ours(2))
    monkeypatch.setattr(type(HOST), "is_traced", True)
    model.w.trainable = False
    model.fit(DATA, 4)
    assert "w: frozen since the train step was traced" in said.take()[0]


class NotingCallback(callback.Callback, Callback):
    """A callback of ours without anything of its own."""

    host = HOST


# -- callbacks together ----------------------------------------------------------------------------


class MicroBatches(ApplyPartialWindow):
    """Stands in for the callback of Keras 3."""

    in_slices, metrics_of_slices = False, ()

    def _check_optimizer(self, optimizer):
        pass


def test_callbacks_that_do_not_fit_together():
    weigh = MicroBatchWeights(lambda x, y, y_pred, w: 1)
    for callbacks, text in (
        ([ApplyPartialWindow(), ApplyPartialWindow()], "has ApplyPartialWindow twice"),
        ([MicroBatches(), weigh], "can't be used with MicroBatches"),
    ):
        with pytest.raises(ValueError, match=text):
            compiled(ours()).fit(DATA, 4, callbacks=callbacks)


def test_what_comes_after_a_callback():
    last, first = Callback(), ApplyPartialWindow()
    compiled(ours()).fit(DATA, 4, callbacks=[Callback(), first, last])
    assert first.after == [last]


def test_what_callbacks_are_for():
    with pytest.raises(TypeError, match="needs a model with an optimizer of keras_accum"):
        compiled(SGD()).fit(DATA, 4, callbacks=[ApplyPartialWindow()])


class OneOptimizer(NotingCallback):
    """A callback that takes one accumulating optimizer."""


class AnyNumber(NotingCallback):
    _takes_several = True


def test_one_optimizer_or_several():
    """In the model's attributes, in a list, or in a wrapper."""

    def several(*optimizers):
        model = compiled(ours())
        model.more = list(optimizers)
        for optimizer in optimizers:
            optimizer.build(model.trainable_variables)
        return model

    for model in (several(ours()), several(ours(), ours())):
        with pytest.raises(TypeError, match="needs a model with one optimizer of keras_accum"):
            model.fit(DATA, 4, callbacks=[OneOptimizer()])
        model.fit(DATA, 4, callbacks=[AnyNumber()])
    compiled(ours()).fit(DATA, 4, callbacks=[OneOptimizer()])
    assert [is_several([ours()]), is_several((1,)), is_several({}), is_several(ours())] == [
        1,
        1,
        1,
        0,
    ]
    assert is_several(SimpleNamespace(optimizers=[]))


def test_a_model_of_another_keras():
    ours = ApplyPartialWindow()
    for name, expected in (("Model", True), ("Functional", False)):
        cls = type(name, (), {"__module__": "tf_keras.src.engine"})
        raises = pytest.raises(TypeError, match="is for models of numpy_keras.*a model of tf_keras")
        with raises if expected else contextlib.nullcontext():
            ours.set_model(cls())
    ours.set_model(Model())


def test_what_is_said_outside_of_fit():
    model, callback = compiled(ours()), ApplyPartialWindow()
    model.fit(DATA, 4, callbacks=[callback], validates=True)  # which says nothing
    for hook, method in (("on_test_begin", "evaluate"), ("on_predict_begin", "predict")):
        with pytest.warns(AccumulationWarning, match=f"does nothing in `{method}`"):
            getattr(callback, hook)()


def test_a_training_without_ours_is_left_alone():
    """No method of its CallbackList is replaced."""
    model, callback = compiled(SGD()), Callback()
    callbacks = CallbackList([callback], model)
    callbacks.on_train_begin()
    assert set(vars(callbacks)) == {"callbacks", "model"}


# -- hooks -----------------------------------------------------------------------------------------


def test_functions_before_and_after_a_method():
    callbacks, called = CallbackList([], None), []

    def once(epoch):
        called.append(("once", epoch))
        before["on_epoch_begin"].remove(once)

    before = {"on_epoch_begin": [once, lambda epoch: called.append(("before", epoch))]}
    after = {"on_epoch_begin": [lambda epoch: called.append(("after", epoch))]}
    callbacks.on_epoch_begin = lambda epoch: called.append(("own", epoch)) or "result"
    own = callbacks.on_epoch_begin
    hooks.install(callbacks, before, after)
    assert callbacks.on_epoch_begin(0) == "result"
    assert called == [("once", 0), ("before", 0), ("own", 0), ("after", 0)]
    del called[:]
    hooks.install(callbacks, {"on_epoch_end": [lambda epoch: called.append(("end", epoch))]})
    callbacks.on_epoch_begin(1)
    callbacks.on_epoch_end(1)
    assert called == [("own", 1), ("end", 1)]
    hooks.remove(callbacks)
    assert callbacks.on_epoch_begin is own and "on_epoch_end" not in vars(callbacks)
    hooks.remove(callbacks)


# -- the train function ----------------------------------------------------------------------------


class Noting(InTrainFunction):
    """Notes its calls. With `version`, its train step has several traces."""

    host = HOST
    set_model = Callback.set_model

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def _check_optimizer(self, optimizer):
        pass

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.takes_part = True

    on_epoch_begin = on_epoch_end = on_train_batch_begin = on_train_batch_end = Callback._do_nothing

    def around(self, train_step):
        self.calls.append((self.name, "around"))
        return train_step

    def run(self, run, *arguments):
        self.calls.append((self.name, "run"))
        return run(*arguments)


class NotingToo(Noting):
    """`fit` takes one callback of a class."""


def test_callbacks_around_the_train_function():
    calls = []
    model, parts = compiled(SGD()), [Noting("a", calls), NotingToo("b", calls)]
    model.fit(DATA, 5, callbacks=parts)
    assert calls == [("a", "around"), ("b", "around"), *[("b", "run"), ("a", "run")] * 2]
    assert not isinstance(model.train_function, TrainFunction)
    del calls[:]
    model.fit(DATA, 5, callbacks=parts)  # with the traces of the first training
    assert ("a", "around") not in calls and len(calls) == 4


def test_a_train_function_for_each_version():
    model, part = compiled(SGD()), Noting("a", [])
    part.version = 1
    model.fit(DATA, 10, callbacks=[part])
    part.version = 2
    model.fit(DATA, 10, callbacks=[part])
    assert set(part.kept._made) == {(1,), (2,)}
    assert "train_step" not in vars(model)
    assert_equals_big(model, epochs=2)


@OWN_CODE
@pytest.mark.parametrize("where", ["in the step", "before the step"])
def test_a_training_that_fails_puts_the_train_function_back(where):
    class Failing(Callback):
        def on_train_batch_begin(self, *arguments):
            if where == "before the step":
                raise KeyboardInterrupt

    class FailingModel(Model):
        def compute_loss(self, *arguments, **keywords):
            if where == "in the step" and self.fails:
                raise KeyboardInterrupt
            return super().compute_loss(*arguments, **keywords)

    model = compiled(ours(), model=FailingModel)
    model.fails = True
    with pytest.raises(KeyboardInterrupt):
        model.fit(DATA, 4, callbacks=[Failing()])
    assert not isinstance(model.train_function, TrainFunction)
    assert {"train_step", "compute_loss"}.isdisjoint(vars(model))
    assert "update_state" not in vars(model.tracker)
    model.fails, where = False, None
    model.fit(DATA, 4)
    assert_equals_big(model)


def test_a_train_function_that_was_left_is_taken_away():
    """Ctrl-C may come before its call."""
    model, part = compiled(SGD()), Noting("a", [])
    model.fit(DATA, 10, callbacks=[part])
    own = model.train_function
    model.train_function = TrainFunction(model, [part])
    model.fit(DATA, 10)
    assert model.train_function is own


# -- warnings --------------------------------------------------------------------------------------


class Wrapper:
    """Stands in for a LossScaleOptimizer."""

    def __init__(self, optimizer, accum_iters):
        self.inner_optimizer, self.accum_iters = optimizer, accum_iters

    def apply(self, *arguments):
        self.inner_optimizer.apply(*arguments)


class Averaging:
    """A user's wrapper, which may average the weights in each `apply`."""

    def __init__(self, optimizer, average=None):
        self.wrapped = optimizer
        self.variables = [np.zeros((3, 2)) if average is None else average]
        self.variables += optimizer.variables
        self.build = optimizer.build

    def apply(self, *arguments):
        self.wrapped.apply(*arguments)

    apply_gradients = apply


class Normalization(Layer):
    """Named as Keras's is."""


Normalization.__name__ = "BatchNormalization"


class Moving(Model):
    """Calls move what its layers keep."""

    def train_step(self, data):
        for layer in self.layers:
            for kept in layer.kept:
                kept += 1
        return super().train_step(data)


def moving(*layers):
    def make():
        return Moving(*layers)

    return make


def normalization(name="norm"):
    return Normalization(name, np.zeros(2))


def slices(**attributes):
    callback = MicroBatches()
    vars(callback).update(attributes)
    return callback


# Arguments of `fit` without callbacks in slices; the optimizer; the model; what is said.
ROWS = {
    "nothing": (ours, Model, {}, None),
    "no length": (SGDAccumulate, Model, {}, "has accum_iters=1, the default"),
    "a length of 1": (lambda: ours(1), Model, {}, None),
    "an attribute of a wrapper": (
        *(lambda: Wrapper(ours(), accum_iters=2), Model, {}),
        "`accum_iters` has no effect on a Wrapper",
    ),
    "a wrapper that acts": (
        *(lambda: Averaging(ours()), Model, {}),
        "Averaging wraps SGDAccumulate and keeps values of its own",
    ),
    "a wrapper that doesn't": (lambda: Averaging(ours(), np.zeros(7)), Model, {}, None),
    "normalization": (ours, moving(normalization()), {}, "`stateful=True`: norm. They move"),
    "normalization at rest": (ours, lambda: Model(normalization()), {}, None),
    "normalization without windows": (lambda: ours(1), moving(normalization()), {}, None),
    "other values": (
        ours,
        moving(Layer("keeps", np.zeros(2))),
        {},
        "`stateful=True`: keeps. They move",
    ),
    "large values": (ours, moving(Layer("keeps", np.zeros(2**20 + 1))), {}, None),
    "slices alone": (lambda: ours(1), Model, {"callbacks": [slices(in_slices=True)]}, None),
    "normalization in slices": (
        *(lambda: ours(1), moving(normalization())),
        *({"callbacks": [slices(in_slices=True)]}, "`stateful=True`: norm. They move"),
    ),
    "metrics of slices": (
        lambda: ours(1),
        Model,
        {"callbacks": [slices(metrics_of_slices=["a", "b"], in_slices=True)]},
        "such as its mean: a, b",
    ),
    "no whole window": (lambda: ours(4), Model, {}, "had 3 of 4 micro-batches"),
    "no update": (lambda: ours(7, reduction="sum"), Model, {}, "had 6 of 7 micro-batches"),
    "a mean has no update": (lambda: ours(7, reduction="mean"), Model, {}, None),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_is_said_once(row, said):
    optimizer, model, arguments, expected = ROWS[row]
    loss = "sum" if row == "no update" else "mean"
    model = compiled(optimizer(), loss, model)
    model.fit(DATA, 4, epochs=2, **arguments)
    found = said.take()
    assert len(found) == bool(expected), found
    assert re.search(expected or "", "".join(found)), found
    model.fit(DATA, 4, epochs=2, **arguments)
    assert said.take() == []


def gradient(model, rows):
    x, y = X[rows], Y[rows]
    return model.compute_gradients(x, y, x @ model.w.array)[0]


@pytest.mark.parametrize("version, counts", [(2, 4), (3, 1)])
def test_a_loaded_window_whose_weight_is_its_position(version, counts, said):
    """Up to format 2, its micro-batches may count as the first one that `fit` weighs."""
    model, expected = compiled(ours(4)), compiled(SGD())
    parts = slice(0, 1), slice(0, 4), slice(4, 8), slice(8, 10)
    model.train_on_batch(X[:1], Y[:1])
    state = model.optimizer.get_state()
    assert state["state_format"] == 3 and state["window_weight"] == 1
    model.optimizer.set_state({**state, "state_format": np.asarray(version)})
    assert model.optimizer.get_state()["state_format"] == version
    gradients = [gradient(model, rows) for rows in parts]
    model.fit(DATA, 4)
    assert model.optimizer.get_state()["state_format"] == 3
    average = np.average(gradients, axis=0, weights=[counts, 4, 4, 2])
    expected.optimizer.apply([average], [expected.w])
    np.testing.assert_allclose(model.w.array, expected.w.array, rtol=1e-12)
    assert said.take() == [] and model.optimizer.completed_updates == 1


def test_a_window_that_was_weighed_by_one(said):
    """`weigh` and `train_on_batch` say so, so `fit` doesn't let it count as the next one."""
    for begin in ("weigh", "train_on_batch"):
        model, expected = compiled(ours(4)), compiled(SGD())
        parts = slice(0, 1), slice(0, 4), slice(4, 8), slice(8, 10)
        gradients = [gradient(model, rows) for rows in parts]
        if begin == "weigh":
            model.optimizer.weigh(1.0)
            model.optimizer.apply([gradients[0]], [model.w])
        else:
            model.train_on_batch(X[:1], Y[:1])
        model.fit(DATA, 4)
        average = np.average(gradients, axis=0, weights=[1, 4, 4, 2])
        expected.optimizer.apply([average], [expected.w])
        np.testing.assert_allclose(model.w.array, expected.w.array, rtol=1e-12)
        assert said.take() == []


def test_train_on_batch_weighs(said):
    """It goes on with the window of an earlier call, or of `fit`."""
    model, expected = compiled(ours(4)), compiled(SGD())
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10), slice(0, 6)):
        model.train_on_batch(X[rows], Y[rows])
    x, y = np.concatenate([X, X[:6]]), np.concatenate([Y, Y[:6]])
    expected.fit((x, y, None), 16)
    np.testing.assert_allclose(model.w.array, expected.w.array, rtol=1e-12)
    assert said.take() == [] and model.optimizer.completed_updates == 1


def test_a_rest_of_an_epoch_says_nothing_of_whole_windows(said):
    model = compiled(ours(4))
    model.fit((X[:4], Y[:4], None), 1)
    model.fit((X[:2], Y[:2], None), 1)
    assert said.take() == []


def test_two_losses_whose_divisors_differ(said):
    """A ratio that changes, with the sizes of the values that it is about."""

    class Summed(SquaredError):
        def call(self, y, y_pred):
            return np.square(y_pred - y)

    Summed.__module__ = "keras"
    model = compiled(ours(), [SquaredError(), SquaredError("sum", name="other")])
    model.fit(DATA, 4)
    (text,) = said.take()
    assert "'other' is a sum beside terms that aren't" in text


def fails(*arguments):
    raise ValueError("not as it is taken to be")


def test_no_training_ends_because_of_a_warning(monkeypatch):
    model = compiled(ours(), model=moving(normalization()))
    monkeypatch.setattr(table.Training, "_read_kept", fails)
    model.fit(DATA, 4, epochs=2)
    assert model.optimizer.completed_updates == 2


def test_a_warning_that_a_user_has_raised():
    model = compiled(SGDAccumulate())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AccumulationWarning, match="has accum_iters=1"):
            model.fit(DATA, 4)
