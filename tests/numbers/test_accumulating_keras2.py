"""`accumulating` on standalone Keras 2, for optimizers from elsewhere."""

import inspect
import pickle

import hosts
import numpy as np
import pytest
from hosts import accum, keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    Shrink,
    assert_equal,
    assert_moved,
    batches,
    compiled,
    data,
    dense_model,
    go_on,
    registered,
    slots,
    state,
    weights,
)

if not hosts.IS_KERAS2:
    pytest.skip("about `accumulating` on standalone Keras 2", allow_module_level=True)

from graphs import CONTROL_FLOW, operations_of_session, races

K, tf = keras.backend, hosts.tf
Optimizer = keras.optimizers.Optimizer
RATE = "lr" if keras.__version__ < "2.3" else "learning_rate"  # in 2.3 `lr` reads `learning_rate`


@registered
class Wander(Optimizer):
    """A slot, a scalar, a rate that depends on `iterations`, and a variable that isn't used.

    # Arguments
        lr: float >= 0. Learning rate.
        pace: float in [0, 1). How long it keeps a direction.
    """

    def __init__(self, lr=0.125, pace=0.5, **kwargs):
        super().__init__(**kwargs)
        self.iterations = K.variable(0, dtype="int64", name="iterations")
        setattr(self, RATE, K.variable(lr, name="lr"))
        self.pace = pace

    def make_state(self, params):
        length = K.variable(1.0, name="length")
        directions = [K.zeros(K.int_shape(p)) for p in params]
        self.weights = [self.iterations, length, *directions, K.zeros(1)]
        return length, directions

    def get_updates(self, loss, params):
        grads = self.get_gradients(loss, params)
        length, directions = self.make_state(params)
        new_length = self.pace * length + sum(K.sum(K.square(g)) for g in grads)
        rate = self.lr / (1 + 0.25 * K.cast(self.iterations, K.floatx()))
        self.updates = [K.update_add(self.iterations, 1), (length, new_length)]
        for p, g, direction in zip(params, grads, directions):
            new = self.pace * direction + g / K.sqrt(new_length)
            self.updates.append(K.update(direction, new))
            if getattr(p, "constraint", None) is None:
                self.updates.append(K.update_sub(p, rate * new))
            else:
                self.updates.append(K.update(p, p.constraint(p - rate * new)))
        return self.updates

    def get_config(self):
        own = {"lr": float(K.get_value(self.lr)), "pace": self.pace}
        return {**super().get_config(), **own}


@registered
class Strange(Wander):
    """Its variables come parameter by parameter, and not slot by slot."""

    def get_updates(self, loss, params):
        grads = self.get_gradients(loss, params)
        pairs = [[K.zeros(K.int_shape(p)) for _ in range(2)] for p in params]
        self.weights = [variable for pair in pairs for variable in pair]
        self.updates = [K.update_add(self.iterations, 1)]
        for p, g, (first, second) in zip(params, grads, pairs):
            new = K.update(second, first + g)  # `update` returns the new value
            self.updates += [new, K.update(first, g), K.update(p, p - self.lr * new)]
        return self.updates


WanderAccumulate = accum.accumulating(Wander)
StrangeAccumulate = accum.accumulating(Strange)
PAIRS = pytest.mark.parametrize(
    ("stock", "ours"), [(Wander, WanderAccumulate), (Strange, StrangeAccumulate)]
)


def stock_state(model):
    """The stock optimizer's variables by the names in our state."""
    optimizer, params = model.optimizer, range(4)
    rule, found = type(optimizer).__name__, K.batch_get_value(model.optimizer.weights)
    if rule == "Wander":
        names = [None, "scalar_0", *(f"slot_0.{i}" for i in params), None]
    else:
        names = [f"slot_{slot}.{i}" for i in params for slot in range(2)]
    arrays = {f"{rule}.{name}": array for name, array in zip(names, found) if name}
    assert len(names) == len(found)
    return {"completed_updates": K.get_value(optimizer.iterations), **arrays}


@PAIRS
@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_it_equals_the_big_batch(stock, ours, gate):
    shared = {"lr": 0.25, "clipnorm": 0.5}
    reference = compiled(dense_model(bias_constraint=Shrink()), hosts.in_order(stock(**shared)))
    start = weights(reference)
    expected = go_on(reference, batch_size=BIG)
    optimizer = ours(accum_iters=LENGTH, gate=gate, **shared)
    actual = go_on(compiled(dense_model(bias_constraint=Shrink()), optimizer))
    assert_moved(start, weights(expected))
    assert_equal(weights(actual), weights(expected))
    assert_equal(optimizer.get_state(), stock_state(expected))


def test_nothing_moves_inside_a_window():
    """To the bit, with no conditional in the graph and no read after a write of the same step."""
    optimizer = WanderAccumulate(accum_iters=LENGTH, skip_nonfinite=True, clipnorm=0.3)
    model = go_on(compiled(dense_model(kernel_constraint=Shrink()), optimizer), stop=LENGTH)
    assert not operations_of_session() & CONTROL_FLOW
    assert races(model) == []
    before = {**state(model), **optimizer.get_state()}
    go_on(model, LENGTH, 2 * LENGTH - 1)
    after = {**state(model), **optimizer.get_state()}
    same = {name for name in before if not name.startswith(("accumulator", "window_position"))}
    assert len(same) > 10
    for name in same:
        np.testing.assert_array_equal(after[name], before[name])
    assert after["window_position"] == LENGTH - 1


def test_one_conditional_in_the_graph():
    optimizer = WanderAccumulate(accum_iters=LENGTH, gate="conditional", skip_nonfinite=True)
    compiled(dense_model(), optimizer)._make_train_function()
    graph = K.get_session().graph.as_graph_def()
    assert sum(node.op in ("Merge", "RefMerge") for node in graph.node) == 1


def test_a_partial_window():
    """The update uses the variables that the train step made."""
    reference = compiled(dense_model(), hosts.in_order(Wander()))
    model = compiled(dense_model(), WanderAccumulate(accum_iters=LENGTH))
    x, y = data()
    for size in (BIG, MICRO * 2, BIG):  # the second window is half as long
        reference.train_on_batch(x[:size], y[:size])
        go_on(model, arrays=(x[:size], y[:size]))
        model.optimizer.apply_partial_window()
    assert_equal(weights(model), weights(reference))
    assert_equal(model.optimizer.get_state(), stock_state(reference))


@PAIRS
@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_saved_in_the_middle_of_a_window(stock, ours, gate, tmp_path):
    model = compiled(dense_model(), ours(accum_iters=LENGTH, gate=gate, pace=0.25))
    go_on(model, stop=LENGTH + 1).save(str(tmp_path / "m.h5"))
    again = keras.models.load_model(str(tmp_path / "m.h5"))
    assert type(again.optimizer) is ours and again.optimizer.window_position == 1
    for each in (model, again):
        go_on(each, LENGTH + 1)
    assert_equal(weights(again), weights(model), rtol=0, atol=0)
    assert_equal(again.optimizer.get_state(), model.optimizer.get_state(), rtol=0, atol=0)


def test_pickled_in_the_middle_of_a_window():
    """An optimizer that is unpickled without a model keeps its state until it gets one."""
    model = go_on(compiled(dense_model(), WanderAccumulate(accum_iters=LENGTH)), stop=LENGTH + 1)
    copy = pickle.loads(pickle.dumps(model.optimizer))
    assert type(copy) is WanderAccumulate
    assert_equal(copy.get_state(), model.optimizer.get_state(), rtol=0, atol=0)
    start = model.get_weights()
    again = compiled(dense_model(), copy)
    again.set_weights(start)
    for each in (model, again):
        go_on(each, LENGTH + 1)
    assert_equal(weights(again), weights(model), rtol=0, atol=0)


@PAIRS
def test_from_and_to_stock(stock, ours):
    """One update by the stock optimizer, one by ours, one by the stock optimizer again."""
    reference = compiled(dense_model(), hosts.in_order(stock(pace=0.25)))
    model = compiled(dense_model(), hosts.in_order(stock(pace=0.25)))
    for each in (reference, model):
        go_on(each, stop=1, batch_size=BIG)
    optimizer = ours.from_optimizer(model.optimizer, accum_iters=LENGTH)
    model.compile(optimizer, "mse")
    go_on(model, LENGTH, 2 * LENGTH)
    back = optimizer.to_stock()
    assert type(back) is stock and back.pace == 0.25
    model.compile(hosts.in_order(back), "mse")
    go_on(model, 2, batch_size=BIG)
    go_on(reference, 1, batch_size=BIG)
    assert_equal(weights(model), weights(reference))
    assert_equal(stock_state(model), stock_state(reference))


def test_one_optimizer_in_two_models():
    """Trained in turn: the slots are each model's own, and `iterations` is shared."""

    def trained(optimizer, size):
        models = [compiled(dense_model(), optimizer) for _ in range(2)]
        for model in models:
            go_on(model, batch_size=size)
        return [weights(model) for model in models]

    expected = trained(hosts.in_order(Wander()), BIG)
    for actual, other in zip(trained(WanderAccumulate(accum_iters=LENGTH), MICRO), expected):
        assert_equal(actual, other)


def test_decay():
    """`decay` also works for an optimizer that has none of its own."""
    reference = compiled(dense_model(), hosts.in_order(Wander(0.25)))
    optimizer = WanderAccumulate(0.25, decay=0.5, accum_iters=LENGTH)
    model = compiled(dense_model(), optimizer)
    for update, (x, y) in enumerate(batches(BIG)):
        K.set_value(reference.optimizer.lr, 0.25 / (1 + 0.5 * update))
        reference.train_on_batch(x, y)
        go_on(model, arrays=(x, y))
    assert_equal(weights(model), weights(reference))
    assert optimizer.get_config()["decay"] == 0.5 and K.get_value(optimizer.lr) == 0.25
    with pytest.raises(ValueError, match="decay=0.5: Wander of this Keras has no decay"):
        optimizer.to_stock()


@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adamax", "Nadam"])
def test_from_stock_through_a_file_and_back(name, tmp_path):
    """One update by stock, one and a quarter by ours, the rest after loading, one by stock."""
    reference = compiled(dense_model(), hosts.stock(name))
    model = compiled(dense_model(), hosts.stock(name))
    for each in (reference, model):
        go_on(each, stop=1, batch_size=BIG)
    go_on(reference, 1, batch_size=BIG)
    go_on(reference, stop=1, batch_size=BIG)
    ours = getattr(accum, f"{name}Accumulate")
    model.compile(ours.from_optimizer(model.optimizer, accum_iters=LENGTH), "mse")
    go_on(model, LENGTH, 2 * LENGTH + 1).save(str(tmp_path / "m.h5"))
    again = keras.models.load_model(str(tmp_path / "m.h5"))
    assert type(again.optimizer) is ours and again.optimizer.window_position == 1
    go_on(again, 2 * LENGTH + 1)
    again.compile(hosts.in_order(again.optimizer.to_stock()), "mse")
    go_on(again, stop=1, batch_size=BIG)
    assert_equal(weights(again), weights(reference))
    assert_equal(slots(again), slots(reference))


def test_a_missing_gradient():
    """The error is the stock optimizer's."""
    unused = K.variable(np.ones(2))
    said = []
    for optimizer in (Wander(), WanderAccumulate(accum_iters=2)):
        with pytest.raises(ValueError) as error:
            optimizer.get_updates(K.sum(K.square(K.variable(np.ones(2)))), [unused])
        said.append(str(error.value))
    assert said[0] == said[1] and "`None` for gradient" in said[0]


# -- the class ---------------------------------------------------------------------------------


def test_the_class():
    assert accum.accumulating(Wander) is WanderAccumulate
    assert accum.accumulating(keras.optimizers.Adam) is accum.AdamAccumulate
    assert accum.accumulating(keras.optimizers.Nadam) is accum.NadamAccumulate
    assert WanderAccumulate.__module__ == Wander.__module__
    parameters = inspect.signature(WanderAccumulate).parameters
    assert list(parameters)[:3] == ["lr", "pace", "accum_iters"]
    assert {"learning_rate", "decay", "gate", "clipnorm", "global_clipnorm"} <= set(parameters)
    assert "pace: float in [0, 1). How long" in WanderAccumulate.__doc__
    with pytest.raises(TypeError, match="Unexpected keyword argument .*: {'epsilon': 1}"):
        WanderAccumulate(epsilon=1)


def test_the_config():
    config = WanderAccumulate(0.5, 0.75, accum_iters=3).get_config()
    assert (config["lr"], config["pace"], config["accum_iters"]) == (0.5, 0.75, 3)
    assert WanderAccumulate.from_config(config).get_config() == config


def test_arguments_that_are_passed_on():
    """A constructor with **kwargs takes the arguments of its base class, in Keras 2.3 as in 2.2."""

    class Heir(keras.optimizers.Nadam):
        def __init__(self, hat=True, **kwargs):
            super().__init__(**kwargs)
            self.hat = hat

    optimizer = accum.accumulating(Heir)(False, beta_1=0.5, epsilon=0.25, schedule_decay=0.125)
    assert (optimizer.hat, optimizer.epsilon, optimizer.schedule_decay) == (False, 0.25, 0.125)
    assert K.get_value(optimizer.beta_1) == 0.5


def test_a_class_that_is_defined_again():
    """As in a notebook. Keras 2 loads classes by name, and each name means one class."""
    made = []
    for _ in range(2):

        class Again(Wander):
            pass

        made.append(accum.accumulating(Again))
    assert made[0] is not made[1]
    assert keras.utils.get_custom_objects()["AgainAccumulate"] is made[1]
    adam = type("Adam", (Wander,), {})
    with pytest.raises(TypeError, match="AdamAccumulate already belongs to keras.optimizers.Adam"):
        accum.accumulating(adam)
    assert keras.utils.get_custom_objects()["AdamAccumulate"] is accum.AdamAccumulate


def test_slots_in_another_order():
    """The second slots are listed backwards. The state has them in the order of the first ones."""

    def backwards(optimizer, loss, params):
        grads = optimizer.get_gradients(loss, params)
        pairs = [[K.zeros(K.int_shape(p)) for p in params] for _ in range(2)]
        optimizer.weights = [*pairs[0], *reversed(pairs[1])]
        updates = [K.update(slot, g) for slot, g in zip(pairs[0], grads)]
        return updates + [K.update(slot, g * 2) for slot, g in zip(pairs[1], grads)]

    made = accum.accumulating(type("Backwards", (Wander,), {"get_updates": backwards}))
    model = go_on(compiled(dense_model(), made()), stop=1)
    state = model.optimizer.get_state()
    for i, weight in enumerate(model.get_weights()):
        assert state[f"Backwards.slot_0.{i}"].shape == weight.shape
        first, second = (state[f"Backwards.slot_{slot}.{i}"] for slot in range(2))
        np.testing.assert_array_equal(second, first * 2)
        assert first.any()


# -- refusals ----------------------------------------------------------------------------------

REFUSED = {
    "an optimizer": (lambda: Wander(), r"accumulating\(Wander\)\.from_optimizer"),
    "ours": (lambda: WanderAccumulate, "accumulates already: use it as it is.*WanderAccumulate"),
    "a wrapper": (lambda: keras.optimizers.TFOptimizer, "TFOptimizer, which wraps other"),
    "a layer": (lambda: keras.layers.Dense, r"must be a subclass of keras.optimizers.Optimizer"),
    "a name": (lambda: "adam", "optimizer_class='adam'"),
    "a member of ours": (lambda: type("Busy", (Wander,), {"weigh": 1}), "purpose: weigh"),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED)
def test_classes_that_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        accum.accumulating(make())


def assigning(optimizer, loss, params):
    return [tf.assign_sub(p, g) for p, g in zip(params, optimizer.get_gradients(loss, params))]


def assigning_unseen(optimizer, loss, params):
    (p, *_), (g, *_) = params, optimizer.get_gradients(loss, params)
    with tf.control_dependencies([tf.assign_sub(p, g)]):
        return [K.update(p, p - g)]


def other_gradients(optimizer, loss, params):
    grads = optimizer.get_gradients(loss, params)
    return [K.update(p, p - g) for p, g in zip(params, K.gradients(K.sum(grads[0]), params))]


def two_writes(optimizer, loss, params):
    return [K.update_sub(p, p) for p in params] * 2 + [K.update_sub(p, p) for p in params]


def a_history(optimizer, loss, params):
    losses = K.zeros(10)
    return [K.update(losses, losses + 1)]


def the_loss(optimizer, loss, params):
    return [K.update(p, p - loss) for p in params]


WRONG = {
    assigning: r"may write only with `update`, .*Received: .*AssignSub",
    assigning_unseen: r"may write only with `update`.*Received: .*AssignSub",
    other_gradients: "takes gradients of something other than the loss",
    two_writes: "writes a variable twice",
    a_history: r"keeps a variable of shape \(10,\)",
    the_loss: "is computed from the value of the loss, and a window has only the average gradient",
}


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_updates_that_are_refused(function):
    """The error comes when the train step is made, before any variable is written."""
    made = accum.accumulating(type(function.__name__, (Wander,), {"get_updates": function}))
    with pytest.raises((ValueError, TypeError), match=WRONG[function]):
        compiled(dense_model(), made(accum_iters=2)).train_on_batch(*data())


class FromTheTensor(Wander):
    """It uses the loss as a tensor: its type, a control dependency and TensorFlow's gradients."""

    def get_updates(self, loss, params):
        rate = K.cast(self.lr, K.dtype(loss))
        with tf.control_dependencies([loss]):
            grads = tf.gradients(loss, params)
        return [K.update_add(self.iterations, 1)] + [
            K.update_sub(p, rate * g) for p, g in zip(params, grads)
        ]


@pytest.mark.parametrize("gate", ["select", "conditional"])
def test_a_loss_that_is_used_as_a_tensor(gate):
    """It has a data type and gradients like the loss of a train step."""
    expected = go_on(compiled(dense_model(), hosts.in_order(FromTheTensor())), batch_size=BIG)
    optimizer = accum.accumulating(FromTheTensor)(accum_iters=LENGTH, gate=gate)
    model = compiled(dense_model(), optimizer)
    start = weights(model)
    assert_moved(start, weights(expected))
    assert_equal(weights(go_on(model)), weights(expected))


def test_a_variable_of_another_shape():
    """Only the parameters' shapes can tell: those of the trial layout have one dimension."""

    def rows(optimizer, loss, params):
        sums = [K.zeros(K.int_shape(p)[:1]) for p in params]
        return [K.update(s, s + 1) for s in sums]

    made = accum.accumulating(type("Rows", (Wander,), {"get_updates": rows}))
    with pytest.raises(ValueError, match=r"RowsAccumulate can't accumulate.*Received: \[\(3,\)"):
        compiled(dense_model(), made(accum_iters=2)).train_on_batch(*data())


@pytest.mark.parametrize("name", ["_accumulation", "gate", "weigh"])
def test_an_attribute_of_ours(name):
    class Busy(Wander):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            setattr(self, name, 1)

    with pytest.raises(TypeError, match=f"Busy sets attributes.* for another purpose: {name}"):
        accum.accumulating(Busy)()


def test_a_rate_that_is_no_variable():
    class Fixed(Optimizer):
        def __init__(self, lr=0.1, **kwargs):
            super().__init__(**kwargs)
            self.iterations = K.variable(0, dtype="int64", name="iterations")
            setattr(self, RATE, lr)

    with pytest.raises(TypeError, match="Fixed can't accumulate: it has no variable `learning_ra"):
        accum.accumulating(Fixed)()
