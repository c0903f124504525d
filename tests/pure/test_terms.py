"""What a loss is divided by, and what a window does with it, without a framework.

`numbers/test_right_by_default.py` has the same decisions in trainings.
"""

import functools
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

from keras_accum.host import is_code_of_keras
from keras_accum.terms import repeated
from keras_accum.terms import term as terms_module
from keras_accum.terms.table import OWN_LOSS, OWN_STEP, Loss, Way
from keras_accum.terms.term import Divisor, Term, are_means, read_shape

# -- the table -------------------------------------------------------------------------------------


def term(divisor, key=1, size=6, masked=False, name="it", obstacle="", is_of_bag=False):
    """A term as the table reads it, by default of six samples with a value each."""
    kind = Divisor[divisor.upper()]
    found = SimpleNamespace(name=name, divisor=kind, key=key, size=size, shape=(6, key))
    found.depends_on_data = masked
    # A term has words for this also where its divisor is known.
    found.obstacle = obstacle or "" if divisor == "unknown" else "isn't asked for"
    found.is_of_bag = is_of_bag
    return found


mean, values, masked = term("samples"), term("values", 3, 18), term("unmasked", ("a",), masked=True)
sum_, unknown, compares = term("nothing"), term("unknown"), term("compares")
one_number = term("unknown", obstacle="returns one number")
of_bag = term("unknown", obstacle="returns one number", is_of_bag=True)
other = term("unmasked", ("b",), masked=True, name="other")
BY, AS_SUM, SAMPLES = Way.BY_DIVISOR, Way.AS_SUM, Way.BY_SAMPLES
OWN = {"own": OWN_LOSS}
ADDS = {"adds": True, "adds_means": True, "inputs": 7}
ADDS_SUMS = {"adds": True, "adds_sums": True}
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
    ([mean, term("values", 3, None)], {}, BY, None, None, [1, 3], "Several losses"),
    ([mean, masked], {}, SAMPLES, "Several losses", BOTH),
    ([masked, masked], {}, BY, None, None),
    ([masked, other], {}, SAMPLES, "Several losses.*'it' of values.*'other' of values", BOTH),
    # beside losses that layers add, which are means over samples
    ([mean], ADDS, BY, None, None, [6, 7], "Layers add losses"),
    ([values], ADDS, BY, None, None, [18, 7], "Layers add.* mean over values"),
    ([values], {**ADDS, "inputs": None}, BY, None, None, [3, 1], "Layers add losses"),
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
    ([unknown, mean], {}, SAMPLES, None, "the loss 'it' is divided"),
    ([unknown, values], {}, SAMPLES, "Several losses", BOTH),
    ([unknown, masked], {}, SAMPLES, "Several losses", BOTH),
    ([unknown, sum_], {}, SAMPLES, "The loss 'it' is a sum beside", BOTH),
    ([one_number], {}, SAMPLES, "it returns one number.*a value for each", BOTH),
    ([of_bag], {}, SAMPLES, "returns one number, and.*one row for.*reduction='mean'", BOTH),
    ([mean, one_number], {}, SAMPLES, "it returns one number.*MicroBatchWeights", BOTH),
    ([sum_, one_number], {}, SAMPLES, "it returns one number", BOTH),
    # the model's own code may do anything with the losses that it calls
    ([mean], OWN, SAMPLES, "own `compute_loss`, and takes it for a mean over samples. If", BOTH),
    ([], OWN, SAMPLES, "own `compute_loss`.*MicroBatchWeights.*compares.*MicroBatches", BOTH),
    ([one_number], OWN, SAMPLES, "own `compute_loss`.*but the loss 'it' returns one number", BOTH),
    ([mean, values], OWN, SAMPLES, "mean over samples, but the loss 'it' is a mean over", BOTH),
    ([sum_], OWN, SAMPLES, "but the loss 'it' is a sum", BOTH),
    ([mean], {**ADDS_SUMS, **OWN}, SAMPLES, "Give `add_loss` their mean", BOTH),
    ([], {"own": OWN_STEP}, SAMPLES, "own `train_step`, and takes.*optimizer.weigh", BOTH),
    ([masked], {"own": OWN_STEP}, SAMPLES, "'it' is divided.*aren't masked.*weigh", BOTH),
]


@pytest.mark.parametrize("row", DECISIONS)
def test_what_a_window_does_with_a_loss(row):
    terms, more, way, problem, strict, *unequal = row
    sizes, if_unequal = unequal or ([], None)
    found = Loss(terms, **more).decide()
    assert (found.way, list(found.sizes)) == (way, sizes)
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


class LossOfKeras:
    """A loss of NumPy's Keras, whose own code is what has no `<locals>` in its name."""

    def __init__(self, reduction, name, config, **more):
        self.reduction, self.name, self.get_config = reduction, name, lambda: config
        vars(self).update(more)

    def __call__(self, *arguments):
        pass

    def call(self, *arguments):
        pass


@pytest.fixture(autouse=True)
def a_keras_of_its_own(monkeypatch):
    def is_of_keras(function):
        return "<locals>" not in function.__qualname__

    monkeypatch.setattr(terms_module, "is_code_of_keras", is_of_keras)


def loss(reduction="sum_over_batch_size", name="it", fn=None, ignore_class=None, axis=None):
    config = {} if ignore_class is None else {"ignore_class": ignore_class}
    fn = fn or (lambda: 0)  # a user's
    return LossOfKeras(reduction, name, config, fn=fn, _fn_kwargs={"axis": axis})


def made(values, targets=(6, 2), weights=None, output_mask=None, **more):
    output = array(*targets, mask=output_mask)
    return Term(LIBRARY, loss(**more), values, np.ones(targets), output, weights)


def of_keras(name="dice"):
    def function():
        pass

    function.__name__ = function.__qualname__ = name
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
    "no values and a sum": (None, {"reduction": "sum"}, "UNKNOWN", False, 1, 1),
    "two for each sample": (array(2, 6), {}, "VALUES", False, 6, 12),
    "two for each, in one axis": (array(12), {}, "SAMPLES", False, 1, 12),
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


def test_why_a_loss_cannot_be_read():
    assert made(array()).obstacle == made(array(), reduction="sum").obstacle == "returns one number"
    assert made(None).obstacle == "has a `__call__` of its own"
    assert made(array(3)).obstacle == "has values of shape (3,)"
    huber = {"fn": of_keras("huber")}
    assert made(array(), **huber).obstacle == ""
    assert "the mean of the sample weights" in made(array(), **huber, weights=half).obstacle


def test_a_list_of_one_array_of_weights():
    """As Keras passes it if `y` is such a list, too."""
    found = made(array(6), reduction="mean_with_sample_weight", weights=[np.full(6, 0.5)])
    assert found.count("float64") == 3


def test_a_graph_that_does_not_know_the_lengths():
    found = made(SimpleNamespace(shape=(None, 4)))
    assert found.divisor is Divisor.VALUES
    assert (found.size, found.key) == (None, 4)
    longer = SimpleNamespace(shape=(6, None))
    assert made(longer).key == (id(longer),)
    assert made(longer).divisor is Divisor.VALUES


def test_a_size_that_only_the_framework_knows():
    values = array(6, 4)
    found = made(values)
    found.shape = (6, None)
    assert found.count("float32") == 24


def test_a_known_number_of_other_values():
    """As of classes, in a graph that doesn't know the number of samples."""
    found = Term(LIBRARY, loss(), array(3), SimpleNamespace(shape=(None, 2)), array(6, 2), None)
    assert found.divisor is Divisor.UNKNOWN


def test_whose_code_a_loss_is():
    class WithCall(LossOfKeras):
        def call(self, *arguments):
            pass

    class WithOwnCall(LossOfKeras):
        def __call__(self, *arguments):
            pass

    class WithName(LossOfKeras):
        pass

    given = "mean", "it", {}
    fn, call = of_keras(), of_keras()
    of_users = [WithCall(*given, fn=fn), WithOwnCall(*given), LossOfKeras(*given, call=call)]
    assert all(map(terms_module.is_own, [*of_users, loss()]))
    of_keras_itself = LossOfKeras(*given), WithName(*given, fn=fn), loss(fn=fn)
    assert not any(map(terms_module.is_own, of_keras_itself))


def test_the_code_of_keras(monkeypatch):
    """`functools.wraps` copies the module and the name."""

    def mse():
        pass

    module = types.ModuleType("keras.made_for_this_test")
    module.mse, mse.__module__, mse.__qualname__ = mse, module.__name__, "mse"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert is_code_of_keras(mse)
    assert not is_code_of_keras(functools.wraps(mse)(lambda: 0))
    assert not is_code_of_keras(functools.partial(mse)) and not is_code_of_keras(len)


def test_means_by_their_reductions():
    assert are_means([loss(), "mse", loss("mean")]) and not are_means([loss(), loss("sum")])


def test_a_name_and_a_shape():
    assert made(array(6), name=None).name == "LossOfKeras"
    assert read_shape(None) == () and read_shape(array(2, 3)) == (2, 3)
    assert read_shape(SimpleNamespace(shape=SimpleNamespace(rank=None))) == ()


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
