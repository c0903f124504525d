"""An epoch's leftover micro-batches: the last train step closes their window, or one program."""

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once, skip_file_on_keras2
from hosts import keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    assert_same_models,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    weights,
)
from zoo import Batches

skip_file_on_keras2("step that closes the window of leftovers")
on_jax = pytest.mark.skipif(hosts.BACKEND != "jax", reason="elsewhere, it runs eagerly")

OUT_OF_DATA = pytest.mark.filterwarnings("ignore:Your input ran out of data")
LAST = 0 if hosts.IS_KERAS3 else 3  # the position after the last step
SAMPLES = (LENGTH + 3) * MICRO - 1  # a whole window and three micro-batches, the last a short one
ARRAYS = tuple(array[:SAMPLES] for array in data())


def epochs(*lengths, size=MICRO):
    """A generator, whose length Keras doesn't know; later epochs continue it."""
    for length in lengths:
        yield from batches(size, ARRAYS)[:length]


def adam(**arguments):
    return hosts.ours("Adam", learning_rate=0.01, accum_iters=LENGTH, **arguments)


def stock_model(count=3, arrays=ARRAYS):
    reference = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))
    fit(reference, BIG, arrays, epochs=count)
    return reference


class Seen(keras.callbacks.Callback):
    """Notes the window's position after each train step."""

    def __init__(self):
        super().__init__()
        self.positions = []

    def on_train_batch_end(self, batch, logs=None):
        self.positions.append(self.model.optimizer.window_position)


@quick_first("given", ["arrays", "PyDataset", "steps", "two at once"])
def test_the_last_step_closes_the_window(given):
    """On Keras 3, where no program is compiled at the epoch's end. Elsewhere it comes after it.

    So it does with two steps in a call, of which the last one has a single one.
    """
    if given == "two at once" and hosts.BACKEND == "torch":
        pytest.skip("Keras refuses it here")
    more = {"steps_per_execution": 2} if given == "two at once" else {}
    model, seen, programs = compiled(dense_model(), adam(), **more), Seen(), []
    if given in ("arrays", "two at once"):
        train = lambda **arguments: fit(model, MICRO, ARRAYS, **arguments)  # noqa: E731
    else:
        source = (
            Batches(batches(MICRO, ARRAYS)) if given == "PyDataset" else epochs(*3 * [LENGTH + 3])
        )
        steps = LENGTH + 3 if given == "steps" else None
        train = lambda **arguments: model.fit(  # noqa: E731
            source, shuffle=False, verbose=0, steps_per_epoch=steps, **arguments
        )
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: programs.append(compile_count()),
        on_epoch_end=lambda epoch, logs: programs.append(compile_count()),
    )
    train(epochs=3, callbacks=[seen, count])
    a_third = len(seen.positions) // 3
    last = 3 if given == "two at once" else LAST
    assert seen.positions[a_third - 1 :: a_third] == [last] * 3
    if given == "arrays":
        assert seen.positions[:a_third] == [1, 2, 3, 0, 1, 2, LAST]
    if hosts.BACKEND == "jax":
        assert programs[-1] == programs[-2]
    assert_same_models(model, stock_model())


class Changing(Batches):
    """Data with more or fewer batches in each epoch. Keras 3 doesn't take more."""

    def __init__(self, by):
        super().__init__(batches(MICRO, data())[:LENGTH])
        self.count, self.by = LENGTH + 3, by

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return super().__getitem__(index % LENGTH)

    def on_epoch_end(self):
        self.count += self.by


@pytest.mark.quick_by("torch", "tf_keras")
@OUT_OF_DATA
@quick_first("by", [2, -2])
def test_data_that_grow_and_shrink(by):
    """Windows are the big batches, whatever number of batches `fit` has said."""
    optimizers = adam(), hosts.stock("Adam", learning_rate=0.01)
    model, reference = (compiled(dense_model(), optimizer) for optimizer in optimizers)
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(0),
        on_train_batch_end=lambda batch, logs: seen.append(seen.pop() + 1),
    )
    model.fit(Changing(by), epochs=2, shuffle=False, verbose=0, callbacks=[count])
    assert seen[0] > LENGTH and seen[1] - seen[0] == (0 if hosts.IS_KERAS3 and by > 0 else by)
    for number in seen:
        rows = [batches(MICRO, data())[index % LENGTH] for index in range(number)]
        for start in range(0, number, LENGTH):
            reference.train_on_batch(*map(np.concatenate, zip(*rows[start : start + LENGTH])))
    assert_same_models(model, reference)


COMPILED = []
if hosts.BACKEND == "jax":
    import jax

    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: "backend_compile" in event and COMPILED.append(event)
    )


def compile_count():
    return len(COMPILED)


@pytest.mark.quick_by("torch", "jax")
@OUT_OF_DATA
def test_an_unknown_number_of_batches():
    """The window ends in one program."""
    model, seen = compiled(dense_model(), adam()), Seen()
    model.fit(epochs(LENGTH + 3), shuffle=False, verbose=0, callbacks=[seen])
    assert seen.positions == [1, 2, 3, 0, 1, 2, 3]
    assert_same_models(model, stock_model(1))


@pytest.mark.quick_by("torch", "jax")
@OUT_OF_DATA
def test_later_epochs_of_a_dataset_of_unknown_length():
    """They may have more batches than the first."""
    tf = pytest.importorskip("tensorflow")
    passes, lengths = [], [LENGTH + 2, LENGTH + 3, LENGTH + 3]

    def generate():  # Keras may look at the first batch before
        yield from batches(MICRO, ARRAYS)[: lengths[min(len(passes), 2)]]
        passes.append(1)

    of_batch = tuple(tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in ARRAYS)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=of_batch)
    model, seen = compiled(dense_model(), adam()), Seen()
    model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=[seen])
    if not hosts.IS_KERAS3:
        lengths = 3 * lengths[:1]  # tf_keras takes no more than in the first epoch
    later = [1, 2, 3, 0, 1, 2, 3][: lengths[1]]
    assert seen.positions == [1, 2, 3, 0, 1, 2, *2 * later]
    reference = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))
    for length in lengths:
        rows = batches(MICRO, ARRAYS)[:length]
        for part in rows[:LENGTH], rows[LENGTH:]:
            reference.train_on_batch(*map(np.concatenate, zip(*part)))
    assert_same_models(model, reference)


@pytest.mark.skipif(hosts.BACKEND == "torch", reason="Keras refuses it here")
@pytest.mark.quick_by("jax")
def test_steps_that_are_no_multiple_of_an_execution():
    """Keras runs the whole last execution while data last."""
    model = compiled(dense_model(), adam(), steps_per_execution=3)
    model.fit(epochs(6), steps_per_epoch=LENGTH + 1, shuffle=False, verbose=0)
    reference = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))
    rows = batches(MICRO, ARRAYS)[: 6 if hosts.IS_KERAS3 else LENGTH + 1]
    for part in rows[:LENGTH], rows[LENGTH:]:
        reference.train_on_batch(*map(np.concatenate, zip(*part)))
    assert_same_models(model, reference)


@on_jax
def test_an_update_between_steps_is_one_program():
    """Its values come from the optimizer as it is now."""
    model = compiled(dense_model(), adam())
    model.build((None, 3))
    reference = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))
    for clipnorm, least in ((None, 1), (None, 0), (1e-3, 1)):
        model.optimizer.clipnorm = reference.optimizer.clipnorm = clipnorm
        for x, y in batches(MICRO, ARRAYS)[:2]:
            model.train_on_batch(x, y)
        before = compile_count()
        model.optimizer.apply_partial_window()
        assert least <= compile_count() - before <= 20 * least
        reference.train_on_batch(*(array[: 2 * MICRO] for array in ARRAYS))
    assert_same_models(model, reference)


@pytest.mark.quick_by("torch", "jax")
def test_a_learning_rate_set_between_two_updates():
    """A schedule's rate isn't a variable, and an update between steps is compiled."""
    rates = [0.01] + [keras.optimizers.schedules.ExponentialDecay(r, 1, 0.5) for r in (0.3, 0.02)]
    model, stock = (compiled(dense_model(), o) for o in (adam(), hosts.stock("Adam")))
    for rate in rates:
        for each in model, stock:
            each.optimizer.learning_rate = rate
        for x, y in batches(MICRO, ARRAYS)[:2]:
            model.train_on_batch(x, y)
        model.optimizer.apply_partial_window()
        stock.train_on_batch(*(array[: 2 * MICRO] for array in ARRAYS))
        assert_equal(weights(model), weights(stock))


@quick_once
def test_an_error_in_the_last_batch():
    """The next training begins its first window."""

    class Fails(keras.layers.Layer):
        fails = False

        def call(self, x):
            if self.fails:
                raise ZeroDivisionError
            return x

    fails = Fails()
    layers = [*dense_model().layers, fails]
    model = compiled(hosts.sequential((3,), layers), adam(), run_eagerly=True)

    def fail(batch, logs=None):
        fails.fails = batch == LENGTH + 2

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    with pytest.raises(ZeroDivisionError):
        fit(model, MICRO, ARRAYS, epochs=1, callbacks=[callback])
    fails.fails = False
    assert model.optimizer.window_position == 2
    with pytest.warns(UserWarning, match="are discarded"):
        fit(model, MICRO, ARRAYS, epochs=1)
    reference = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01))
    fit(reference, BIG, tuple(array[:BIG] for array in ARRAYS), epochs=1)
    fit(reference, BIG, ARRAYS, epochs=1)
    assert_same_models(model, reference)


@quick_once
def test_a_last_batch_that_is_dropped():
    """The window ends with the epoch, as one of the micro-batches that count."""
    x, y = (array.copy() for array in ARRAYS)
    y[-1] = np.nan
    model = compiled(dense_model(), adam(skip_nonfinite=True))
    fit(model, MICRO, (x, y), epochs=1)
    assert model.optimizer.window_position == 0
    assert_same_models(model, stock_model(1, tuple(array[:-1] for array in ARRAYS)))
