"""What a loss is divided by, and what a window does with it, without a framework.

`numbers/test_right_by_default.py` has the same decisions in trainings.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from numpy_fit import Loss as NumPyLoss
from numpy_fit import NumPyHost

from keras_accum.terms import repeated
from keras_accum.terms.separability import compare, try_loss
from keras_accum.terms.table import OWN_LOSS, OWN_STEP, Loss, Way
from keras_accum.terms.tap import TappedLoss
from keras_accum.terms.term import Answer, Divisor, Term, are_means, find_divisor, read_shape

# -- the table -------------------------------------------------------------------------------------


def term(divisor, key=1, size=6, masked=False, leaves_out=False, name="it", of_number=None):
    """A term as the table reads it, by default of six samples with a value each."""
    kind = Divisor[divisor.upper()]
    found = SimpleNamespace(name=name, divisor=kind, key=key, size=size, shape=(6, key))
    found.depends_on_data, found.leaves_out, found.of_number = masked, leaves_out, of_number
    return found


mean, values, masked = term("samples"), term("values", 3, 18), term("unmasked", ("a",), masked=True)
sum_, unknown, compares = term("nothing"), term("unknown"), term("compares")
other = term("unmasked", ("b",), masked=True, name="other")
BY, AS_SUM, SAMPLES = Way.BY_DIVISOR, Way.AS_SUM, Way.BY_SAMPLES
SIX = {"rows": SimpleNamespace(size=6)}
OWN_SIX = {"own": OWN_LOSS, **SIX}
ADDS = {"adds": True, "adds_means": True, **SIX, "inputs": SimpleNamespace(size=7)}
ADDS_SUMS = {"adds": True, "adds_sums": True, **SIX}
UNKNOWN = SimpleNamespace(size=None)
BOTH = object()  # the problem of "weighted" is the same

# Terms, and what else is known of a loss; the way; the problem, and that of "weighted"; numbers
# whose ratios must stay the same, and the problem if they don't.
DECISIONS = [
    ([mean], {}, BY, None, None),
    ([values], {}, BY, None, None),
    ([masked], {}, BY, None, None),
    ([masked], {"is_penalized": True}, BY, None, None),
    ([sum_], {}, AS_SUM, None, None),
    ([sum_, sum_], {}, AS_SUM, None, None),
    ([sum_], {"is_penalized": True, "remedy": "Do so."}, SAMPLES, "it' is a sum.*Do so", BOTH),
    ([sum_], {"adds": True}, SAMPLES, "sum beside terms", BOTH),
    ([mean, sum_], {}, SAMPLES, "sum beside terms", BOTH),
    ([compares], {}, SAMPLES, "'it' isn't a mean over samples.*MicroBatches", BOTH),
    ([mean, compares], {"own": OWN_LOSS}, SAMPLES, "isn't a mean over samples", BOTH),
    # several means: their numbers of values, where they are known
    ([mean, values], {}, BY, None, None, [6, 18], "Several losses.*of values .6, 1., .*6, 3"),
    ([mean, values], SIX, BY, None, None, [6, 18], "Several losses"),
    ([mean, term("values", 3, None)], {}, BY, None, None, [1, 3], "Several losses"),
    ([mean, masked], {}, SAMPLES, "Several losses", BOTH),
    ([masked, masked], {}, BY, None, None),
    ([masked, other], {}, SAMPLES, "Several losses.*'it' of values.*'other' of values", BOTH),
    # beside losses that layers add, which are means over samples
    ([mean], ADDS, BY, None, None, [6, 7], "Layers add losses"),
    ([values], ADDS, BY, None, None, [18, 7], "Layers add.* mean over values"),
    ([values], {**ADDS, "inputs": UNKNOWN}, BY, None, None, [3, 1], "Layers add losses"),
    ([masked], {"adds": True}, SAMPLES, "Layers add.*aren't masked", BOTH),
    ([mean, values], ADDS, BY, None, None, [6, 18, 7], "Layers add losses"),
    # or sums, of several values each
    ([], ADDS_SUMS, AS_SUM, None, None),
    ([sum_], ADDS_SUMS, AS_SUM, None, None),
    ([mean], ADDS_SUMS, SAMPLES, "Give `add_loss` their mean", BOTH),
    ([], {**ADDS_SUMS, "adds_means": True}, SAMPLES, "Keras takes their sum", BOTH),
    ([], {**ADDS_SUMS, "is_penalized": True}, SAMPLES, "Keras takes their sum", BOTH),
    # what `fit` can't read
    ([], {}, SAMPLES, None, "the model's loss is divided by.*no compiled loss"),
    ([unknown], {}, SAMPLES, None, "the loss 'it' is divided.*MicroBatchWeights"),
    ([unknown, mean], SIX, SAMPLES, None, "the loss 'it' is divided", [6, 6], "mean over values"),
    ([unknown, values], SIX, SAMPLES, None, "'it' is divided", [18, 6], "mean over values"),
    ([unknown, masked], {}, SAMPLES, "loss 'it' is divided.*aren't masked", BOTH),
    ([unknown, sum_], {}, SAMPLES, "the loss 'it' is a sum", BOTH),
    ([term("unknown", masked=True)], {}, SAMPLES, "aren't masked", BOTH),
    ([term("unknown", of_number=Divisor.ONE_NUMBER)], {}, SAMPLES, "number, so its reduc", BOTH),
    ([term("unknown", leaves_out=True)], {}, SAMPLES, "mean over values", BOTH),
    ([term("samples", leaves_out=True)], OWN_SIX, SAMPLES, None, None, [6, 6], "mean"),
    ([mean], OWN_SIX, SAMPLES, None, None, [6, 6], "compute_loss.*MicroBatchWeights"),
    ([unknown], {"own": OWN_LOSS}, SAMPLES, None, "own `compute_loss` is divided"),
    ([], {"own": OWN_LOSS}, SAMPLES, None, "own `compute_loss` is divided"),
    ([], {"own": OWN_STEP}, SAMPLES, None, None),
    ([unknown], {"own": OWN_STEP}, SAMPLES, None, None),
    ([masked], {"own": OWN_STEP}, SAMPLES, "own `train_step` is divided.*optimizer.weigh", BOTH),
    ([mean, values], OWN_SIX, SAMPLES, None, None, [6, 18, 6], "mean over values"),
    ([mean, term("values", ("id",), None)], {"own": OWN_LOSS}, SAMPLES, "is a mean over", BOTH),
    ([], {"own": OWN_LOSS, "kept": [("kept", Divisor.NOTHING)]}, SAMPLES, "'kept' is a sum", BOTH),
]


@pytest.mark.parametrize("row", DECISIONS)
def test_what_a_window_does_with_a_loss(row):
    terms, more, way, problem, strict, *unequal = row
    sizes, if_unequal = unequal or ([], None)
    found = Loss(terms, **more).decide()
    assert (found.way, list(found.sizes)) == (way, sizes)
    is_counted = more.get("inputs") is UNKNOWN or any(each.size is None for each in terms)
    assert len(found.to_count) == len(sizes) * is_counted
    assert_says(found.problem, problem)
    assert_says(found.strict_problem, problem if strict is BOTH else strict)
    assert_says(found.if_unequal, if_unequal)


def assert_says(text, pattern):
    assert (text is None) == (pattern is None)
    if pattern:
        with pytest.raises(ValueError, match=pattern):
            raise ValueError(text)


# -- a term ----------------------------------------------------------------------------------------


class Array(np.ndarray):
    """An array with a mask."""

    mask = None


def array(*shape, mask=None):
    found = np.ones(shape).view(Array)
    found.mask = mask
    return found


class SumLoss:
    """Keras's reduction "sum": values times weights, where nothing is masked, added up."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        values = np.asarray(self.call(y_true, y_pred))
        for mask in (y_pred.mask, self.call(y_true, y_pred).mask):
            values = values if mask is None else values * mask
        return (values if sample_weight is None else values * sample_weight).sum()


def set_mask(x, mask):
    x.mask = mask


# A Keras of NumPy arrays, as far as `Term` needs one.
LIBRARY = SimpleNamespace(
    flatten=lambda x: x if isinstance(x, list) else [x],
    get_mask=lambda x: getattr(x, "mask", None),
    set_mask=set_mask,
    make_sum_loss=lambda dtype: SumLoss(),
    ops=SimpleNamespace(
        size=np.size,
        cast=lambda x, dtype: np.asarray(x, dtype),
        ones_like=lambda x, dtype=None: np.ones(x.shape, dtype).view(Array),
    ),
)


def loss(reduction="sum_over_batch_size", name="it", fn=None, ignore_class=None, axis=None):
    more = {} if fn is None else {"fn": fn, "_fn_kwargs": {"axis": axis}}
    config = {} if ignore_class is None else {"ignore_class": ignore_class}
    return SimpleNamespace(reduction=reduction, name=name, get_config=lambda: config, **more)


def made(values, targets=(6, 2), weights=None, output_mask=None, **more):
    output = array(*targets, mask=output_mask)
    return Term(LIBRARY, loss(**more), values, np.ones(targets), output, weights)


def of_keras(name="dice"):
    def function():
        pass

    function.__module__, function.__name__ = "keras.src.losses.losses", name
    return function


OF_KERAS_SUM = {"fn": of_keras(), "reduction": "sum"}
WITHOUT = {"reduction": "mean_with_sample_weight"}
WEIGHTED = {**WITHOUT, "weights": np.full(6, 0.5)}
half = np.array([1, 1, 1, 0, 0, 0])
# Values, and more; the divisor; whether data are in it; the key; the count.
TERMS = {
    "samples": (array(6), {}, "SAMPLES", False, 1, 6),
    "several values": (array(6, 4), {}, "VALUES", False, 4, 24),
    "three dimensions": (array(6, 4, 5), {}, "VALUES", False, 20, 120),
    "a sum": (array(6), {"reduction": "sum"}, "NOTHING", False, 1, 6),
    "no reduction": (array(6), {"reduction": None}, "NOTHING", False, 1, 6),
    "none": (array(6), {"reduction": "none"}, "NOTHING", False, 1, 6),
    "none of a scalar": (array(), {"reduction": "none"}, "UNKNOWN", False, 1, 1),
    "another reduction": (array(6), {"reduction": "product"}, "UNKNOWN", False, 1, 6),
    "a scalar": (array(), {}, "UNKNOWN", False, 1, 1),
    "others than samples": (array(3), {}, "UNKNOWN", False, 1, 3),
    "a scalar of Keras": (array(), {"fn": of_keras()}, "COMPARES", False, 1, 1),
    "circle": (array(6), {"fn": of_keras("circle")}, "COMPARES", False, 1, 6),
    "a user's circle": (array(6), {"fn": lambda: 0}, "SAMPLES", False, 1, 6),
    "a sum of a scalar": (array(), {"reduction": "sum"}, "UNKNOWN", False, 1, 1),
    "no values and a sum": (None, {"reduction": "sum"}, "NOTHING", False, 1, 1),
    "a scalar of Keras and a sum": (array(), OF_KERAS_SUM, "COMPARES", False, 1, 1),
    "an axis of samples": (array(6), {"fn": of_keras(), "axis": (0, 1)}, "COMPARES", False, 1, 6),
    "from the end": (array(6), {"fn": of_keras(), "axis": -2}, "COMPARES", False, 1, 6),
    "its sum": (array(6), {**OF_KERAS_SUM, "axis": 0}, "COMPARES", False, 1, 6),
    "another axis": (array(6, 4), {"fn": of_keras(), "axis": [-1, 1]}, "VALUES", False, 4, 24),
    "an output of one axis": (array(), {"fn": of_keras("huber")}, "UNKNOWN", False, 1, 1),
    "of Keras": (array(6), {"fn": of_keras("mse")}, "SAMPLES", False, 1, 6),
    "masked values": (array(6, mask=half), {}, "UNMASKED", True, (id(half),), 3),
    "a masked output": (array(6), {"output_mask": half}, "UNMASKED", True, (id(half),), 3),
    "weights": (array(6), WEIGHTED, "SAMPLE_WEIGHTS", True, (id(WEIGHTED["weights"]),), 3),
    "weights without their reduction": (array(6), {"weights": half}, "SAMPLES", False, 1, 6),
    "their reduction without weights": (array(6), WITHOUT, "SAMPLES", False, 1, 6),
    "weights of steps": (array(6, 1), {"weights": np.ones((6, 4))}, "VALUES", False, 1, 24),
    "weights of rows": (array(6, 4), {"weights": np.ones((6, 1))}, "VALUES", False, 4, 24),
    "a weight for each": (array(6, 4), {"weights": np.ones((6, 4))}, "VALUES", False, 4, 24),
}


@pytest.mark.parametrize("values, more, divisor, in_data, key, count", TERMS.values(), ids=TERMS)
def test_what_a_call_is_divided_by(values, more, divisor, in_data, key, count):
    found = made(values, **more)
    assert (found.divisor, found.depends_on_data) == (Divisor[divisor], in_data)
    assert (found.key, found.count("float64")) == (key, count)
    assert (found.name, found.size) == ("it", np.size(values))


def test_one_number():
    assert [made(array(), reduction=name).of_number for name in ("sum", "mean")] == [
        Divisor.ONE_NUMBER,
        None,
    ]
    assert made(array(), weights=half).of_number is Divisor.TIMES_WEIGHTS
    assert made(array(6), weights=half, reduction="sum").of_number is None


def test_a_graph_that_does_not_know_the_lengths():
    found = made(SimpleNamespace(shape=(None, 4)))
    assert found.divisor is Divisor.VALUES and not found.leaves_out
    assert (found.size, found.key) == (None, 4)
    longer = SimpleNamespace(shape=(6, None))
    assert made(longer).key == (id(longer),)
    assert made(longer).divisor is Divisor.VALUES


def test_a_size_that_only_the_framework_knows():
    values = array(6, 4)
    found = made(values)
    found.shape = (6, None)
    assert found.count("float32") == 24


def test_a_loss_that_leaves_out_samples():
    assert [made(array(n)).leaves_out for n in (1, 3, 6)] == [False, True, False]
    assert not made(array()).leaves_out and not made(None).leaves_out


def test_what_a_trial_has_shown():
    for answer, divisor in (None, "SAMPLES"), (SAME, "SAMPLES"), (DIFFER, "COMPARES"):
        found = made(array(6))
        found.answer = answer
        assert found.divisor is Divisor[divisor] and not found.leaves_out
    found.answer = MISSING
    assert found.divisor is Divisor.UNKNOWN and found.leaves_out


def test_a_loss_that_is_not_called_yet():
    assert find_divisor(loss("sum")) is Divisor.NOTHING
    assert find_divisor(loss("mean_with_sample_weight")) is Divisor.SAMPLE_WEIGHTS
    assert find_divisor(loss(ignore_class=0)) is Divisor.UNMASKED
    assert find_divisor(loss()) is None
    assert are_means([loss(), "mse", loss("mean")]) and not are_means([loss(), loss("sum")])


def test_a_name_and_a_shape():
    assert made(array(6), name=None).name == "SimpleNamespace"
    assert read_shape(None) == () and read_shape(array(2, 3)) == (2, 3)
    assert read_shape(SimpleNamespace(shape=SimpleNamespace(rank=None))) == ()


# -- a trial ---------------------------------------------------------------------------------------

drawn, draws = np.random.default_rng(0), itertools.cycle([0, 1e-4, 1e-2, 1e-2])
SAME, DIFFER, MISSING = Answer.SAME, Answer.DIFFER, Answer.DIFFER_IF_MISSING
COMPARES = {
    "a mean for each sample": (lambda y, p: ((y - p) ** 2).mean(-1), SAME),
    "a mean": (lambda y, p: ((y - p) ** 2).mean(), SAME),
    "a scalar for all": (lambda y, p: p.sum() / y.sum(), DIFFER),
    "an average that is taken away": (lambda y, p: (p - p.mean(0)).max(-1), DIFFER),
    "random draws": (lambda y, p: drawn.normal() * p.mean(0), SAME),
    "small draws, then large ones": (lambda y, p: p.mean() + next(draws), SAME),
    "NaN together": (lambda y, p: p.mean(-1) * (np.nan if len(p) == 5 else 1), None),
    "NaN together for NaN": (lambda y, p: p.mean(-1) + (0 * y.sum() if len(p) == 5 else 0), SAME),
    "neighbours": (lambda y, p: p[1:] - p[:-1], DIFFER),
    "an error": (lambda y, p: y.no_such_member, None),
    "classes alone": (lambda y, p: classes_alone(y).mean(-1) + p.mean(-1), SAME),
    "classes that are compared": (lambda y, p: classes_alone(y).mean(0)[:1] + 0 * p[:, 0], DIFFER),
    "by the number of ones": (lambda y, p: p.sum() / (1 + (y == 1).sum()), DIFFER),
    "a mean without -1": (lambda y, p: p[y != -1].mean(), MISSING),
    "a mean without -100": (lambda y, p: (p * (y != -100)).sum() / (y != -100).sum(), MISSING),
    "a mean without NaN": (lambda y, p: np.nanmean((y - p) ** 2), MISSING),
    "a mean without -1, written into the targets": (lambda y, p: without(y, p, -1), MISSING),
    "zeros for -1": (lambda y, p: (p * (y != -1)).mean(), SAME),
    "a mean of each sample without -1": (lambda y, p: (p * (y != -1)).sum(-1) / 3, SAME),
}


def without(y, p, missing):
    known = y != missing
    y[~known] = 0
    return (p * known).sum() / known.sum()


def classes_alone(y):
    assert np.isin(y, [0, 1]).all()
    return y


@pytest.mark.parametrize("name", COMPARES)
def test_a_trial(name):
    """Five samples together and apart: a loss that is a mean over them is the same."""
    function, expected = COMPARES[name]
    for shape in [(None, 3), (None, None), (5, 3)]:
        given = [SimpleNamespace(shape=shape, dtype="float32")] * 2
        assert try_loss(NumPyHost(), function, given) is expected


def test_a_trial_that_is_interrupted():
    """It is made again at the next call."""
    is_interrupted = [True]

    class Interrupted(NumPyLoss):
        def call(self, y_true, y_pred):
            if len(y_true) == 5 and is_interrupted:
                is_interrupted.clear()
                raise KeyboardInterrupt
            return (y_true - y_pred.mean(0)).mean(-1)

    terms = []
    tapped = TappedLoss(NumPyHost(), Interrupted(), None, lambda term, result: terms.append(term))
    samples = np.ones((2, 3), "float32")
    with pytest.raises(KeyboardInterrupt):
        tapped(samples, samples)
    tapped(samples, samples)
    assert [term.answer for term in terms] == [DIFFER]


def samples_of_a_trial(shape, dtypes):
    """The batches of a trial: those of five, five, three and two samples, for each change."""
    seen, are_missing = [], []

    def evaluate(groups, with_missing):
        seen.extend(sum(groups, []))
        are_missing.append(with_missing)
        return [np.ones(5)] * 3

    assert compare(evaluate, [shape] * 2, dtypes) is Answer.SAME
    changes = 5 if "float" in dtypes[0] else 4
    assert are_missing == ([False] * 2 + [True] * 3)[:changes]
    assert [len(y) for y, _ in seen] == [len(p) for _, p in seen] == [5, 5, 3, 2] * changes
    return seen


# The shape that a graph knows, and that of a trial. In large samples, sides are at most 16.
SHAPES = {
    (None, 2): (2,),
    (2**19, 2): (2,),
    (None, None): (4,),
    (None, 2**16): (2**16,),
    (None, 2**16 + 1): (16,),
    (None, 2, 2**16): (2, 16),
    (None, 64, 64): (64, 64),
    (None, 64, 64, 3): (16, 16, 3),
    (None, 13, 13, 85): (13, 13, 85),
    (None, 64, 9, 2**8): (16, 9, 2**8),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_size_of_a_trial(shape):
    for y, p in samples_of_a_trial(shape, ["float32"] * 2):
        assert y.shape[1:] == p.shape[1:] == SHAPES[shape]


def test_a_size_that_only_one_array_knows():
    """A graph of tf_keras may not know the targets' shape."""
    for shapes in [(None, None), (None, 2)], [(None, 2), (None, None)], [(None, None, 2), (9, 2)]:
        given = [SimpleNamespace(shape=shape, dtype="float32") for shape in shapes]
        assert try_loss(NumPyHost(), lambda y, p: (y - p.mean(0)).mean(-1), given) is DIFFER


def test_large_samples_in_arrays_of_different_ranks():
    """Classes may have an axis less."""
    seen = []

    def function(y, p):
        seen.append((y.shape[1:], p.shape[1:]))
        return p.mean(-1).mean(-1).mean(-1)

    shapes = (None, 64, 64), (None, 64, 64, 19)
    given = [SimpleNamespace(shape=shape, dtype="float32") for shape in shapes]
    assert try_loss(NumPyHost(), function, given) is SAME
    assert {*seen} == {((16, 16), (16, 16, 19))}


def test_the_samples_of_a_trial():
    """They are unlike each other, and in data types that NumPy knows."""
    (y, p), *_ = samples_of_a_trial((None, 64), ["int64", "bfloat16"])
    assert (y.dtype, p.dtype) == ("int64", "float32") and {*y.flat} == {0, 1}
    (_, p), *_ = samples_of_a_trial((None, 64), ["float32"] * 2)
    assert 0 < p.min() and p.max() < 1
    scales = [row.max() for row in p]
    assert scales[0] > 3 * scales[-1]


def test_targets_are_tried_as_numbers_and_as_classes():
    batches = samples_of_a_trial((None, 64), ["float32"] * 2)
    are_classes = [[np.isin(array, [0, 1]).all() for array in batch] for batch in batches]
    assert are_classes == [[False, False]] * 4 + [[True, False]] * 4 + [[False, False]] * 12


# -- sums ------------------------------------------------------------------------------------------


class Model:
    def train_step(self):
        pass

    def compute_loss(self):
        pass


class OwnStep(Model):
    def train_step(self):
        pass


def model_of(*losses, cls=Model, weights=None):
    model = cls()
    model.loss, model.weights = list(losses), weights
    return model


def a_host(name="keras3", has_penalties=False):
    def find_losses(model):
        return SimpleNamespace(_user_loss_weights=model.weights), "losses", None

    def flatten(found):
        return found if isinstance(found, list) else [found]

    return SimpleNamespace(
        name=name,
        keras=SimpleNamespace(Model=Model),
        flatten=flatten,
        find_losses=find_losses,
        has_penalties=lambda model: has_penalties,
    )


def optimizer(reduction="sum", accum_iters=4):
    options = SimpleNamespace(accum_iters=accum_iters, accumulates=accum_iters != 1)
    return SimpleNamespace(reduction=reduction, _accumulation=SimpleNamespace(options=options))


def test_sums_beside_means():
    mixed, penalized = model_of(loss("sum"), "mse"), model_of(loss("sum"))
    assert repeated.find_repeated(mixed, a_host()) == "losses that are means"
    assert "kernel_regularizer" in repeated.find_repeated(penalized, a_host(has_penalties=True))
    assert " and " in repeated.find_repeated(mixed, a_host(has_penalties=True))
    for alone in (model_of("mse"), model_of(loss("sum"), None), model_of(loss("none"))):
        assert repeated.find_repeated(alone, a_host()) == ""


def test_which_sums_are_refused():
    mixed = model_of(loss("sum"), "mse")
    with pytest.raises(ValueError, match="would count losses that are means once per micro-batch"):
        repeated.refuse_repeated(mixed, [optimizer("mean"), optimizer()], a_host())
    for model, one in (
        (model_of("mse"), optimizer()),
        (model_of(loss("sum"), "mse", cls=OwnStep), optimizer()),
        (mixed, optimizer("mean")),
        (mixed, optimizer(accum_iters=1)),
    ):
        repeated.refuse_repeated(model, [one], a_host())


def test_the_line_to_write_instead():
    mixed, one = model_of(loss("sum"), "mse"), model_of(loss("sum"))
    said = repeated.make_remedy(mixed, optimizer(), a_host())
    assert "MicroBatches" in said and "loss_weights=[4.0, 1.0])` for a sum and a mean;" in said
    said = repeated.make_remedy(one, optimizer(), a_host("tf_keras"))
    assert said.startswith("Construct") and "loss_weights=[4.0])`;" in said
    assert "loss_weights=[n])`" in repeated.make_remedy(one, optimizer(accum_iters=None), a_host())


def test_what_is_said_of_a_sum():
    mixed, one = model_of(loss("sum"), "mse"), model_of(loss("sum"))
    for model, is_own, adds, words in (
        (mixed, True, False, ["losses that are means once"]),
        (one, True, True, ["losses that layers add, such as activity penalties, once"]),
        (mixed, True, True, ["penalties, and losses that are means once"]),
        (mixed, False, True, ["activity penalties, once"]),
    ):
        said = repeated.describe(model, optimizer(), a_host(), is_own, adds)
        assert all(word in said for word in words) and "once per micro-batch" in said
    assert repeated.describe(mixed, optimizer(), a_host(), False, False) == ""
    assert repeated.describe(one, optimizer(), a_host(), True, False) == ""


def test_sums_that_are_scaled():
    def are_scaled(*losses, weights):
        return repeated.are_scaled(model_of(*losses, weights=weights), optimizer(), a_host())

    total = loss("sum")
    assert are_scaled(total, weights=[4.0])
    assert are_scaled(total, "mse", weights=[4.0, 1.0])
    assert not are_scaled(total, "mse", weights=[1.0, 1.0])
    assert not are_scaled(total, loss("sum"), weights=[4.0, 1.0])
    assert not are_scaled("mse", weights=[4.0])
    assert not are_scaled(total, weights=None)
