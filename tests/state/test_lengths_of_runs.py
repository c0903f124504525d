"""The next run may have another `accum_iters`, and a reset by zeros starts a fresh window."""

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once_on_keras3
from formats import FORMATS, STOP, assert_same, eager, everything, fresh, from_list, through
from hosts import accum, keras
from training import LENGTH, assert_equal, data, go_on, weights

pytestmark = quick_once_on_keras3


def assign(optimizer):
    for variable in hosts.listed(optimizer):
        hosts.assign(variable, np.zeros_like(hosts.array(variable)))


def set_list(optimizer):
    optimizer.set_weights([np.zeros(v.shape) for v in hosts.listed(optimizer)])


def set_state(optimizer):
    optimizer.set_state({n: np.zeros_like(array) for n, array in optimizer.get_state().items()})


THROUGH = [(assign, form) for form in FORMATS if form not in ("registered", "saved_model")]


@pytest.mark.filterwarnings("ignore:keras_accum. Using the saved accum_iters=4 instead of 2")
@quick_first("reset, form", [(assign, "state"), (set_list, None), (set_state, None), *THROUGH])
def test_a_reset_by_zeros_is_a_fresh_window(reset, form, tmp_path):
    """It has the length of the constructor, also in files from before and inside the window."""
    model = go_on(fresh(), 0, STOP)
    model.optimizer.accum_iters = 2
    reset(model.optimizer)
    model.optimizer.learning_rate = 2**-5
    expected = fresh()
    expected.set_weights(model.get_weights())
    for start, stop in (0, 2), (2, STOP):
        if form:
            model = through(form)(model, tmp_path)
        assert model.optimizer.accum_iters == LENGTH
        for each in (model, expected):
            go_on(each, start, stop)
    assert model.optimizer.completed_updates == 1
    assert_same(everything(model), everything(expected))


LOADS = {form: through(form) for form in ("state", "weights", "checkpoint") if form in FORMATS}
LOADS = {"state": through("state"), "list": from_list, **LOADS}
LISTED = [name for name in LOADS if name in ("state", "list") or hosts.IS_KERAS3]  # not checkpoints


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("accum_iters", [1, 3])
def test_a_closed_window_loads_into_any_length(load, accum_iters, tmp_path):
    source = go_on(fresh(), 0, LENGTH)
    model = LOADS[load](source, tmp_path, lambda: fresh(accum_iters=accum_iters))
    optimizer = type(source.optimizer).from_optimizer(source.optimizer, accum_iters=accum_iters)
    source.compile(optimizer, source.loss)
    for each in (model, eager(source)):
        assert each.optimizer.accum_iters == accum_iters
        go_on(each, LENGTH, LENGTH + 4)
    assert model.optimizer.completed_updates == 1 + 4 // accum_iters
    assert_same(everything(model), everything(source))


@pytest.mark.parametrize("load", LOADS)
def test_an_open_window_keeps_its_length(load, tmp_path):
    model = LOADS[load](go_on(fresh(), 0, STOP), tmp_path, lambda: fresh(accum_iters=3))
    optimizer, found = model.optimizer, []
    for stop in range(STOP, STOP + 5):
        found.append((optimizer.accum_iters, optimizer.window_position))
        go_on(model, stop, stop + 1)
    assert found == [(3, 2), (3, 3), (3, 0), (3, 1), (3, 2)]
    assert optimizer.completed_updates == 3


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("load", LISTED)
def test_an_open_window_needs_accumulators(load, is_built, tmp_path):
    source, model = go_on(fresh(), 0, STOP), fresh(accum_iters=1)
    if is_built or load == "weights":  # which builds the optimizer
        hosts.build(model)
    before = model.optimizer.get_state()
    says = "2 micro-batches into a window.*accum_iters > 1"
    with pytest.raises((accum.StateError, ValueError), match=says):  # Keras 3 has its own for files
        LOADS[load](source, tmp_path, lambda: model)
    assert_same(model.optimizer.get_state(), before)


tf_keras_only = pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about TensorFlow's checkpoints")


@tf_keras_only
@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("load", ["weights", "checkpoint"])
def test_a_checkpoint_in_an_open_window_needs_accumulators(load, is_built, tmp_path):
    """TensorFlow ignores what the optimizer lacks, so the next `fit` or step says so."""
    model = fresh(accum_iters=1)
    if is_built:
        go_on(model, 0, 1)
    model = LOADS[load](go_on(fresh(), 0, STOP), tmp_path, lambda: model)
    before = weights(model)
    for start in 0, 1:  # it doesn't go away
        with pytest.raises(accum.StateError, match="2 micro-batches into a window, .* > 1"):
            go_on(model, start, start + 1)
    assert_equal(weights(model), before, rtol=0, atol=0)
    closed = go_on(fresh(), 0, LENGTH)
    if load == "weights":  # a newer state is another one
        model.optimizer.set_state(closed.optimizer.get_state())
    else:
        LOADS[load](closed, tmp_path, lambda: model)
    assert go_on(model, 0, 1).optimizer.completed_updates == 2


@tf_keras_only
@pytest.mark.parametrize("amsgrad", [False, True])  # which has more slots in the file
@pytest.mark.parametrize("stop", [STOP, LENGTH])
def test_a_checkpoint_before_the_model_is_built(stop, amsgrad, tmp_path):
    def make(**arguments):
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile(hosts.ours("Adam", **arguments), "mse")
        return model

    source, model = make(accum_iters=LENGTH, amsgrad=amsgrad), make(accum_iters=1)
    go_on(source, 0, stop).save_weights(str(tmp_path / "weights"))
    model.load_weights(str(tmp_path / "weights"))
    x, y = data()
    if stop == LENGTH:
        model.fit(x, y, batch_size=len(x), verbose=0)
        assert model.optimizer.completed_updates == 2
    else:
        with pytest.raises(accum.StateError, match="2 micro-batches into a window"):
            model.fit(x, y, batch_size=len(x), verbose=0)


@pytest.mark.parametrize("load", LOADS)
def test_a_length_that_was_set_is_saved(load, tmp_path, recwarn):
    """It wins over the constructor's, as a training needs it that goes on where it was stopped."""
    source = fresh()
    source.optimizer.accum_iters = 3
    go_on(source, 0, 4)
    for given in 4, 3:
        model = LOADS[load](source, tmp_path, lambda given=given: fresh(accum_iters=given))
        hosts.build(model)
        assert (model.optimizer.accum_iters, model.optimizer.window_position) == (3, 1)
    said = [str(each.message) for each in recwarn if "accum_iters" in str(each.message)]
    assert len(said) == (load in LISTED)
    for message in said:
        assert "Using the saved accum_iters=3 instead of 4." in message
        assert "set `optimizer.accum_iters = 4` after loading, in a callback if" in message


@pytest.mark.skipif(hosts.IS_KERAS2, reason="finds a class by its name in custom_objects")
@pytest.mark.parametrize("form", ["h5", "keras"])
def test_the_length_of_a_file_wins_over_the_one_of_its_loader(form, tmp_path):
    FORMATS[form].save(go_on(fresh(), 0, STOP), tmp_path)

    def load(accum_iters):
        made = type(fresh().optimizer).with_accum_iters(accum_iters)
        (path,) = tmp_path.iterdir()
        return keras.models.load_model(str(path), custom_objects={made.__name__: made})

    says = rf"the saved accum_iters={LENGTH} instead of 9.*`optimizer.accum_iters = 9`"
    with pytest.warns(UserWarning, match=says) as said:
        assert load(9).optimizer.accum_iters == LENGTH
    assert len([each for each in said if "accum_iters" in str(each.message)]) == 1
    assert load(LENGTH).optimizer.accum_iters == LENGTH
