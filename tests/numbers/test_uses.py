"""What users do beside plain training, and still gets the big batch: each row is one such use."""

import pickle
import threading

import hosts
import pytest
from cases import own_code, quick_once, skip_file_on_keras2
from training import (
    MICRO,
    assert_equal,
    compiled,
    data,
    dense_model,
    go_on,
    initialize,
    slots,
    weights,
)

pytestmark = quick_once
skip_file_on_keras2("train_on_batch that weighs")

import programs  # noqa: E402

K = 3


def make(k):
    """Return a model with our optimizer, or for k=1 with the stock one."""
    kind = hosts.stock if k == 1 else hosts.ours
    more = {} if k == 1 else {"accum_iters": k}
    return compiled(dense_model(), kind("Adam", learning_rate=0.01, **more))


def train(model, k, windows=2):
    """Train a model on windows of K micro-batches, or on big batches."""
    if k == 1:
        return go_on(model, 0, windows, batch_size=K * MICRO)
    return go_on(model, 0, windows * K)


def continue_inside(restore):
    """Train a part of a window, restore the model by a function, and train the rest."""
    return go_on(restore(go_on(make(K), 0, 1)), 1, 2 * K)


def assert_same(model):
    reference = train(make(1), 1)
    for of in weights, slots:  # a pickled model has other names
        assert_equal(*(dict(enumerate(of(m).values())) for m in (model, reference)))


def test_compiled_five_times_with_one_optimizer():
    model = make(K)
    for _ in range(4):
        model.compile(model.optimizer, "mse", run_eagerly=model.run_eagerly)
    assert_same(train(model, K))


def test_updates_that_are_assigned():
    """Bias correction and schedules go on from the number of updates."""
    found = []
    for k in K, 1:
        model = make(k)
        train(model, k, 1)
        model.optimizer.iterations.assign(7)
        found.append(train(model, k))
    assert_equal(*map(weights, found))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2 pickles no models")
def test_pickled_inside_a_window():
    assert_same(continue_inside(lambda model: pickle.loads(pickle.dumps(model))))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about files of Keras 3")
def test_weights_in_several_files(tmp_path):
    def in_parts(model):
        path = tmp_path / "m.weights.json"
        model.save_weights(path, max_shard_size=1e-7)  # GB
        assert len(list(tmp_path.glob("*.h5"))) > 1
        new = make(K)
        new.optimizer.build(new.trainable_variables)
        new.load_weights(path)
        return new

    assert_same(continue_inside(in_parts))


@pytest.mark.filterwarnings("ignore:(?s).*ran out of data")
def test_a_generator_that_ends_early():
    """A window ends with the data, as the big batch does."""
    (x, y), rows, found = data(), (K + 1) * MICRO, []
    for k, size in (K, MICRO), (1, K * MICRO):
        pairs = [(x[s : s + size], y[s : s + size]) for s in range(0, rows, size)]
        pairs[-1] = tuple(a[: rows - (len(pairs) - 1) * size] for a in pairs[-1])
        model = make(k)
        model.fit((pair for pair in pairs), steps_per_epoch=9, verbose=0, shuffle=False)
        found.append(model)
    assert_equal(*map(weights, found))
    assert_equal(*map(slots, found))


def test_four_threads():
    """Each trains its own model at the same time."""
    models, errors = [make(K) for _ in range(4)], []

    def run(model):
        try:
            train(model, K)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for model in models:
        assert_same(model)


def train_by_step(find_loss):
    """Train with a step of the user's own, in micro-batches and in big batches."""
    found = []
    for kind, size, more in (hosts.ours, MICRO, {"accum_iters": K}), (hosts.stock, K * MICRO, {}):
        model = programs.make_step(kind("Adam", learning_rate=0.01, **more), find_loss)
        x, y = (array[: 4 * K * MICRO] for array in data())
        model.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0)
        found.append(model)
    assert_equal(*map(weights, found))
    assert_equal(*map(slots, found))


@own_code
def test_a_student_of_a_teacher():
    """As in a Distiller: its loss has a term by labels, and one by the outputs of a teacher."""
    teacher = dense_model()
    teacher.trainable = False
    initialize(teacher)

    def find_loss(model, x, y, y_pred):
        of_teacher = programs.mean((teacher(x, training=False) - y_pred) ** 2)
        return 0.1 * programs.mean((y - y_pred) ** 2) + 0.9 * of_teacher

    train_by_step(find_loss)


@own_code
@pytest.mark.skipif(hosts.BACKEND == "jax", reason="there, a loss can't read the optimizer")
def test_a_term_that_grows_with_the_updates():
    """As annealing of a KL divergence by `optimizer.iterations`, which counts updates."""
    cast = hosts.keras.ops.cast if hosts.IS_KERAS3 else hosts.tf.cast

    def find_loss(model, x, y, y_pred):
        share = cast(model.optimizer.iterations, y_pred.dtype) / 8
        return programs.mean((y - y_pred) ** 2) + share * programs.mean(y_pred**2)

    train_by_step(find_loss)
