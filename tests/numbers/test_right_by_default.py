"""`AdamAccumulate(accum_iters=4)` is the big batch, or `fit` says why it isn't.

A row of the table is a program, `support/programs.py` has its parts: a loss, its mask, sample
weights (`by`: they are in the divisor, one per sample, step or row), losses that layers add, who
computes the loss, and the data: `even`, with a `short` last batch, with a `partial` last window,
with unequal `lengths`, or with an `empty` mask in the first micro-batch.

The last columns say what each `reduction` does with it:

* `exact`: weights and slots are those of the stock optimizer at the big batch;
* `mean`: each micro-batch counts the same, so they are others, and nothing is said. With "mean",
  windows go on in the next epoch;
* `says:why`: one warning, and each micro-batch counts by its number of samples;
* `first:why`: the same, but it counts by what its first loss is divided by, because only later
  micro-batches show the problem. Graphs of TensorFlow don't know these lengths, and warn at once;
* `known:why`: `exact` where the lengths are known; graphs of TensorFlow say it, or refuse it;
* `no:why`: an error.

Rows that begin with `*` are quick, with `+` on PyTorch and Keras 2. Left out: sample weights of
one per sample beside a loss of steps, which Keras 3 refuses; masks and weights in loops, which are
the user's own there.
"""

import contextlib
import warnings

import hosts
import numpy as np
import pytest
import training
import zoo
from cases import (
    once_by_torch,
    own_code,
    quick_first,
    skip_file_on_keras2,
    third_by_torch,
    thorough,
)
from hosts import keras
from training import assert_equal

skip_file_on_keras2("reduction='auto'")

import programs  # noqa: E402
from programs import Program  # noqa: E402

WHY = {
    "compares": "isn't a mean over samples: it compares samples",
    "masks": "divided by the number of elements that aren't masked or ignored",
    "lengths": "is a mean over values, of which samples may have unequal numbers",
    "sum": "is a sum",
    "beside": "is a sum beside terms that aren't",
    "several": "divided by different numbers",
    "both": "divided by different numbers",
    "added": "Layers add losses, such as activity penalties",
    "unread": "can't read",
    "number": "returns one number",
    "call": "has a `__call__` of its own",
    "needs": "needs the weight of each micro-batch",
    "weights": "`weigh` needs an optimizer constructed without `reduction`",
}

# What isn't as it should be.
KNOWN = {
    "lost": "Keras's gradient is 0 if the sample weights of a micro-batch cancel, so it is lost",
}

TABLE = """
  loss      mask      weights  layers   who            data    auto          mean       weighted
  ----------------------------------------------------------------------------------------------
* samples   -         -        -        fit            short   exact         mean       exact
  samples   -         -        -        fit            even    exact         exact      exact
  samples   -         -        -        fit            partial exact         mean       exact
  elements  -         -        -        fit            short   exact         mean       exact
+ elements  -         -        -        fit            lengths exact         mean       exact
* elements  masking   -        -        fit            short   exact         mean       exact
  elements  masking   -        -        fit            even    exact         mean       exact
  elements  masking   -        -        fit            partial exact         mean       exact
  elements  masking   -        -        fit            lengths exact         mean       exact
  elements  masking   -        -        fit            empty   exact         mean       exact
  elements  embedding -        -        fit            short   exact         mean       exact
  elements  embedding -        -        fit            empty   exact         mean       exact
  elements  own       -        -        fit            short   exact         mean       exact
  elements  pooled    -        -        fit            short   exact         mean       exact
  ignored   -         -        -        fit            short   exact         mean       exact
  ignored   -         -        -        fit            empty   exact         mean       exact
  ignored   masking   -        -        fit            short   exact         mean       exact
  ignored   masking   -        -        fit            empty   exact         mean       exact
  samples   -         given    -        fit            short   exact         mean       exact
  elements  -         rows     -        fit            lengths exact         mean       exact
  elements  -         steps    -        fit            short   exact         mean       exact
  elements  masking   steps    -        fit            short   exact         mean       exact
  elements  masking   steps    -        fit            empty   exact         mean       exact
  elements  own       steps    -        fit            short   exact         mean       exact
  ignored   -         steps    -        fit            short   exact         mean       exact
  samples   -         by       -        fit            even    exact         mean       exact
  samples   -         cancel   -        fit            short   lost          mean       lost
  elements  -         by_steps -        fit            short   exact         mean       exact
* elements  -         by_rows  -        fit            lengths exact         mean       exact
  elements  masking   by_rows  -        fit            lengths exact         mean       exact
  elements  masking   by_steps -        fit            empty   exact         mean       exact
  ignored   masking   by_steps -        fit            short   exact         mean       exact
  samples   -         -        penalty  fit            short   exact         mean       exact
  elements  masking   -        penalty  fit            short   exact         mean       exact
  ignored   -         -        penalty  fit            empty   exact         mean       exact
  samples   -         -        activity fit            short   exact         mean       exact
  elements  -         -        activity fit            short   exact         mean       exact
  elements  -         rows     activity fit            short   exact         mean       exact
  elements  -         -        activity fit            lengths first:added   mean       no:added
+ elements  masking   -        activity fit            short   says:added    mean       no:added
  samples   -         by       activity fit            even    says:added    mean       no:added
* sum       -         -        -        fit            short   exact         mean       exact
  sum       -         -        -        fit            partial exact         mean       exact
  sum       -         -        -        fit            lengths exact         mean       exact
  sum       masking   -        -        fit            empty   exact         mean       exact
  sum       -         steps    -        fit            short   exact         mean       exact
  sum       -         -        penalty  fit            short   says:beside   mean       no:beside
  sum       -         -        activity fit            even    says:beside   mean       no:beside
  sum+mean  -         -        -        fit            even    says:beside   mean       no:beside
  two_sums  -         -        -        fit            short   exact         mean       exact
  scalar    -         -        -        fit            short   says:number   mean       no:number
  scalar    -         -        penalty  fit            short   says:number   mean       no:number
  scalar    masking   -        -        fit            short   says:number   mean       no:number
  own_call  -         -        -        fit            short   says:call     mean       no:call
  own_call  masking   -        -        fit            short   says:call     mean       no:call
  own_mse   -         -        -        fit            short   says:call     mean       no:call
  own_mse   masking   -        -        fit            short   says:call     mean       no:call
  own_dice  -         -        -        fit            short   says:call     mean       no:call
  added     -         -        -        fit            short   exact         mean       no:unread
  none      -         -        -        fit            short   exact         mean       exact
+ cosine    -         -        -        fit            even    says:compares mean       no:compares
  dice      -         -        -        fit            short   says:compares mean       no:compares
  tversky   -         -        -        fit            even    says:compares mean       no:compares
  circle    -         -        -        fit            even    says:compares mean       no:compares
  two       -         -        -        fit            short   exact         mean       exact
  two       -         -        -        fit            lengths known:both mean       known:both
  two       masking   -        -        fit            short   exact         mean       exact
  two       two       -        -        fit            short   says:several  mean       no:several
  two       -         -        activity fit            short   exact         mean       exact
  two_kinds -         -        -        fit            short   exact         mean       exact
  two_kinds -         -        -        fit            lengths first:several mean       no:several
  two_kinds masking   -        -        fit            even    says:several  mean       no:several
* samples   -         -        -        compute_loss   short   says:unread   mean       no:unread
  elements  -         -        -        compute_loss   short   says:unread   mean       no:unread
  elements  -         -        -        compute_loss   lengths says:lengths  mean       no:lengths
  elements  masking   -        -        compute_loss   short   says:masks    mean       no:masks
  ignored   -         -        -        compute_loss   short   says:masks    mean       no:masks
  sum       -         -        -        compute_loss   short   says:sum      mean       no:sum
  scalar    -         -        -        compute_loss   short   says:number   mean       no:number
  samples   -         -        -        own_words      short   says:unread   mean       no:unread
  samples   -         -        -        own_losses     short   says:unread   mean       no:unread
  ignored   -         -        -        own_losses     short   says:unread   mean       no:unread
  sum       -         -        -        own_losses     short   says:unread   mean       no:unread
* samples   -         -        -        train_step     short   exact         mean       exact
  elements  -         -        -        train_step     lengths exact         mean       exact
  elements  masking   -        -        train_step     short   exact         mean       exact
  ignored   masking   -        -        train_step     empty   exact         mean       exact
  elements  -         by_rows  -        train_step     lengths exact         mean       exact
  sum       -         -        -        train_step     short   exact         mean       exact
  elements  masking   -        activity train_step     short   says:added    mean       no:added
  samples   -         -        -        loop           even    exact         exact      no:needs
+ samples   -         -        -        loop           short   mean          mean       no:needs
  elements  masking   -        -        loop           even    mean          mean       no:needs
+ samples   -         -        -        loop_weigh     short   exact         no:weights exact
  elements  masking   -        -        loop_weigh     short   exact         no:weights exact
  elements  -         -        -        loop_weigh     lengths exact         no:weights exact
  ignored   -         -        -        loop_weigh     empty   exact         no:weights exact
+ samples   -         -        -        train_on_batch short   exact         mean       exact
  elements  masking   -        -        train_on_batch even    exact         mean       exact
"""


# The rows in the second tier: those with a plus where nothing is compiled, and on Keras 2.
QUICK = ("*", "+") if hosts.IS_TORCH or not hosts.IS_KERAS3 else "*"


def read_rows():
    for line in TABLE.strip().splitlines()[2:]:
        *parts, auto, mean, weighted = line.lstrip("*+ ").split()
        program = Program(*parts)
        if not hosts.IS_KERAS3 and (
            program.loss in programs.ON_KERAS3_ONLY
            or program.weights.startswith(programs.ON_KERAS3_ONLY)
        ):
            continue
        if program.loss == "none" and not hosts.IS_TENSORFLOW:
            continue  # Keras can't train with it: a gradient is that of one number
        if program.weights == "by_rows" and program.mask != "-" and hosts.IS_TORCH:
            continue  # Keras multiplies the weights in place there
        for reduction, verdict in zip(("auto", "mean", "weighted"), (auto, mean, weighted)):
            name = "-".join(part for part in (*program, reduction) if part != "-")
            is_quick = line.startswith(QUICK) and reduction == "auto"
            marks = [] if is_quick else [thorough]
            if marks and reduction != "auto":  # decided by the same code on each backend
                marks.append(once_by_torch)
            if verdict in KNOWN:
                marks.append(pytest.mark.xfail(strict=True, reason=KNOWN[verdict]))
                verdict = "exact"
            yield pytest.param(program, reduction, verdict, id=name, marks=marks)


@third_by_torch
@pytest.mark.parametrize("program, reduction, verdict", list(read_rows()))
def test_the_table(program, reduction, verdict):
    word, _, why = verdict.partition(":")
    if word == "first":
        word = "says" if hosts.IS_TENSORFLOW else "first"
    if word == "known":
        unknown = "says" if reduction == "auto" else "no"
        word, why = (unknown, why) if hosts.IS_TENSORFLOW else ("exact", "")
    if word == "no":
        with pytest.raises(ValueError, match=WHY[why]):
            programs.run(program, reduction)
        return
    result = programs.run(program, reduction)
    found = [bool(why) and WHY[why] in text for text in result.said]
    assert found == [True] * bool(why), result.said
    expected = {
        "exact": programs.at_the_big_batch,
        "mean": programs.by_micro_batches,
        "says": programs.by_samples,
        "first": programs.by_divisors,
    }[word](program)
    tolerance = hosts.TOLERANCE if word == "exact" else {"rtol": 1e-4, "atol": 1e-5}
    assert_equal(result.weights, expected.weights, **tolerance)
    assert_equal(result.slots, expected.slots, **tolerance)
    if word == "mean":
        big, found = (
            {**r.weights, **r.slots} for r in (programs.at_the_big_batch(program), result)
        )
        assert not all((np.abs(big[name] - found[name]) < 1e-4).all() for name in big)  # or NaN


# -- windows, states and what is said of them ------------------------------------------------------


def make(reduction="auto", accum_iters=programs.LENGTH, name="SGD", **arguments):
    settings = {"learning_rate": 0.01, "accum_iters": accum_iters, **arguments}
    return hosts.ours(name, reduction=reduction, **settings)


def fit_batches(model, count, epochs=1):
    """Train on this many batches, and return the texts of warnings."""
    x, y = (np.resize(array, (count * 2, *array.shape[1:])) for array in training.data())
    with training.our_warnings() as texts:
        model.fit(x, y, batch_size=2, epochs=epochs, verbose=0)
    return texts


def dense(*arguments, **keywords):
    model = training.dense_model()
    return training.compiled(model, make(*arguments, **keywords), run_eagerly=hosts.IS_TORCH)


@once_by_torch
def test_the_constructor_has_it_by_default():
    optimizer = hosts.ours("SGD", accum_iters=2)
    assert optimizer.reduction == "auto" and optimizer.get_config()["reduction"] == "auto"
    for reduction in ("mean", "sum", "weighted"):
        config = make(reduction).get_config()
        assert type(optimizer).from_config(config).reduction == reduction
    config.pop("reduction")
    assert type(optimizer).from_config(config).reduction == "auto"


@once_by_torch
def test_a_window_ends_with_its_epoch():
    """With "mean" and "sum", or with windows of your own, it goes on."""
    for reduction, updates, position in (
        *(("auto", 4, 0), ("weighted", 4, 0), ("mean", 3, 0), ("sum", 3, 0)),
    ):
        model = dense(reduction)
        if reduction == "sum":
            model = training.compiled(training.dense_model(), make("sum"), mse_sum())
        assert fit_batches(model, 6, epochs=2) == []
        optimizer = model.optimizer
        assert (optimizer.completed_updates, optimizer.window_position) == (updates, position)
    model = dense(accum_iters=None)
    fit_batches(model, 6)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (0, 6)


def mse_sum():
    return keras.losses.MeanSquaredError(reduction="sum")


@once_by_torch
def test_a_training_without_a_whole_window():
    """It is said once, and not of "mean", where windows go on in the next training."""
    for reduction in ("auto", "weighted"):
        model = dense(reduction, accum_iters=5)
        (text,) = [text for _ in range(3) for text in fit_batches(model, 1)]
        assert "had 1 of 5 micro-batches" in text and "reduction='mean'" in text
        assert (model.optimizer.completed_updates, model.optimizer.window_position) == (3, 0)
    model = dense(accum_iters=5)
    assert fit_batches(model, 6, epochs=2) == []  # each epoch has a whole window
    model = dense("mean", accum_iters=5)
    assert [fit_batches(model, 1) for _ in range(6)] == [[]] * 6
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 1)


@once_by_torch
def test_a_state_has_the_weight_of_its_window():
    """Of all micro-batches in the window, in `fit` and in loops, also of sums and outside `fit`."""
    for reduction, weight in ("auto", 7.0), ("weighted", 7.0), ("mean", None):
        optimizer, w = make(reduction), hosts.variable([1.0, 2.0], "w")
        hosts.build_on(optimizer, [w])
        for given in (3.0, 4.0):
            if reduction != "mean":
                optimizer.weigh(given)
            hosts.apply(optimizer, [np.ones(2, hosts.FLOATX)], [w])
        found = optimizer.get_state().get("window_weight")
        assert found == weight
    optimizer = make()
    for _ in range(2):
        hosts.apply(optimizer, [np.ones(2, hosts.FLOATX)], [w])
    assert optimizer.get_state()["window_weight"] == 2


# -- weights that meet each other ------------------------------------------------------------------


def whole(model, x, y, y_pred):
    return model.compute_loss(x=x, y=y, y_pred=y_pred)


def twice(model, x, y, y_pred):
    return whole(model, x, y, y_pred) + whole(model, x, y, 2 * y_pred)


def whole_and_part(model, x, y, y_pred):
    return whole(model, x, y, y_pred) + whole(model, x[1:], y[1:], y_pred[1:])


def without(model, x, y, y_pred):
    return zoo.mean((y - y_pred) ** 2)


SEVERAL = "`compute_loss` was called several times.*different weights"
# What is said, and the loss of a train step of one's own.
OWN_STEPS = {
    "once": (None, whole),
    "twice": (None, twice),
    "whole and part": (SEVERAL, whole_and_part),
}


@pytest.mark.parametrize("said, find_loss", OWN_STEPS.values(), ids=OWN_STEPS)
def test_compute_loss_in_a_step_of_ones_own(said, find_loss):
    """Called twice, it has equal divisors, or a warning says that they differ."""
    is_known = not hosts.IS_TENSORFLOW or find_loss is not twice  # a graph doesn't know the sizes
    said, x, y = said if is_known else SEVERAL, *(array[:11] for array in training.data())
    found = []
    for optimizer, size in (make(name="Adam"), 3), (hosts.stock("Adam", learning_rate=0.01), 12):
        model = programs.make_step(optimizer, find_loss)
        with pytest.warns(match=said) if said and size == 3 else contextlib.nullcontext():
            model.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0)
        found.append(training.weights(model))
    if find_loss is not whole_and_part:
        assert_equal(*found)
    if not said:
        return
    model = programs.make_step(make("weighted"), find_loss)
    with pytest.raises(ValueError, match=said):
        model.fit(x, y, batch_size=3, verbose=0)


@own_code
def test_a_step_without_compute_loss_weighs_by_samples():
    """A mean over samples is exact, with a short last batch."""
    x, y = (array[:11] for array in training.data())
    found = []
    ours, stock = make("auto", 3, "Adam", **programs.ADAM), hosts.stock("Adam", **programs.ADAM)
    for optimizer, size in (ours, 3), (stock, 9):
        model = programs.make_step(optimizer, without)
        model.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0)
        found.append(training.weights(model))
    assert_equal(*found)
    model = programs.make_step(make("weighted"), without)
    with pytest.raises(ValueError, match=WHY["needs"]):
        model.fit(x, y, batch_size=3, verbose=0)


@pytest.mark.skipif(hosts.IS_TENSORFLOW, reason="its graphs don't know these lengths")
@pytest.mark.parametrize("reduction", ["auto", "weighted"])
def test_divisors_that_change_from_one_training_to_the_next(reduction):
    """What a trace has shown is known in the next training, which may use it again."""
    inputs = [keras.Input((None, 3), name=name) for name in "ab"]
    model = keras.Model(inputs, [keras.layers.Dense(2)(each) for each in inputs])
    model.compile(make(reduction, 2), "mse")

    def fit(length):
        random = np.random.default_rng(0)
        x = [random.normal(size=(4, n, 3)) for n in (5, length)]
        model.fit(x, [each[..., :2] for each in x], batch_size=2, verbose=0)

    fit(5)
    with contextlib.ExitStack() as scope:
        if reduction == "weighted":
            scope.enter_context(pytest.raises(ValueError, match=WHY["several"]))
        else:
            scope.enter_context(pytest.warns(match=WHY["several"]))
        fit(2)


@once_by_torch
@pytest.mark.parametrize("reduction, says", [("auto", 1), ("mean", 0)])
def test_where_no_step_can_be_changed(reduction, says):
    """Each micro-batch counts the same then, and a warning says so."""

    class OwnFunction(keras.Model):
        def make_train_function(self, force=False):
            return super().make_train_function(force)

    i = keras.Input((3,))
    model = OwnFunction(i, keras.layers.Dense(2)(i))
    model.compile(make(reduction, 2), "mse", run_eagerly=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(*[array[:8] for array in training.data()], batch_size=2, verbose=0)
    texts = [str(warning.message) for warning in found]
    assert sum("own `make_train_function`, so each counts the same" in t for t in texts) == says
    assert model.optimizer.completed_updates == 2


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="only TensorFlow has tf.distribute")
@quick_first("loss, mask", [("elements", "masking"), ("samples", "-")])
def test_replicas_with_unlike_shares(strategy, loss, mask):
    """Of the micro-batches of 4, 4 and 3 samples, two replicas get different shares."""
    program = Program(loss, mask, "-", "-", "fit", "short")
    expected = programs.at_the_big_batch(program)
    with strategy.scope():
        optimizer = hosts.ours("Adam", accum_iters=3, **programs.ADAM)
        model = programs.compiled(program, optimizer, run_eagerly=False)
    x, ys, _ = programs.make_arrays(program)
    model.fit(x, ys[0], batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_equal(training.weights(model), expected.weights)
