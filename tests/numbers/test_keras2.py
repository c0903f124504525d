"""Standalone Keras 2 on TensorFlow 1: graphs without an order of their own, and models."""

import hosts
import numpy as np
import pytest
import training
from cases import CASES, on_adam_and_amsgrad, thorough
from graphs import CONTROL_FLOW, operations_of_session, races
from hosts import accum, keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, go_on, weights

if not hosts.IS_KERAS2:
    pytest.skip("about graphs of standalone Keras 2 on TensorFlow 1", allow_module_level=True)

K, tf = keras.backend, hosts.tf
KINDS = ["references", "resources"] if keras.__version__ < "2.3" else ["resources"]


@pytest.fixture(params=[kind == "resources" for kind in KINDS], ids=KINDS)
def resources(request):
    """Run on both kinds of TensorFlow 1 variables. Keras 2.3 knows resources only."""
    if request.param:
        tf.enable_resource_variables()
    yield request.param
    tf.disable_resource_variables()


# -- the order of a step -----------------------------------------------------------------------


@pytest.mark.usefixtures("grappler")
@on_adam_and_amsgrad
@pytest.mark.parametrize("length", [1, LENGTH])
def test_nothing_is_read_while_it_is_written(case, length, resources, every_gate):
    """`races` doesn't look into a conditional: four runs of a wide model have equal numbers."""

    def model(make, **arguments):
        dense, l2 = keras.layers.Dense, keras.regularizers.l2(0.1)
        shrink = {"kernel_constraint": training.Shrink(), "kernel_regularizer": l2}
        wide = dense(96, activation="tanh", **shrink)
        arguments = {"clipnorm": 0.3, "decay": 0.25, **case.arguments, **arguments}
        network = hosts.sequential((3,), [wide, dense(96), dense(2)])
        return compiled(network, make(case.name, **arguments))

    reference = model(hosts.stock)
    assert races(reference) == []
    start = reference.get_weights()
    expected = go_on(reference, batch_size=length * MICRO).get_weights()
    training.assert_moved(dict(enumerate(start)), dict(enumerate(expected)))
    is_conditional = length > 1 and hosts.GATE["gate"] == "conditional"
    for _ in range(4 if is_conditional else 1):
        accumulating = model(hosts.ours, accum_iters=length, skip_nonfinite=True)
        assert is_conditional or races(accumulating) == []
        actual = go_on(accumulating).get_weights()
        assert_equal(dict(enumerate(actual)), dict(enumerate(expected)))


# -- the graph ---------------------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "many": {"reduction": "sum", "clipnorm": 0.3, "decay": 0.25, "skip_nonfinite": True},
    "clipvalue": {"clipvalue": 0.1},
    "accum_iters_1": {"accum_iters": 1, "clipnorm": 0.3, "gate": "conditional"},
}


@on_adam_and_amsgrad
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_conditional(case, options):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **options})
    constrained = keras.layers.Dense(2, kernel_constraint=training.Shrink())
    layers = [keras.layers.Embedding(6, 3), constrained]
    compiled(hosts.sequential((5,), layers), optimizer)._make_train_function()
    optimizer.window_position  # noqa: B018, a read adds to the graph
    assert not operations_of_session() & CONTROL_FLOW


@on_adam_and_amsgrad
def test_one_conditional_for_all_variables(case):
    """In TensorFlow 1, every output of a conditional has a Merge. Here only its end has one."""
    arguments = {"clipnorm": 0.3, "skip_nonfinite": True, "gate": "conditional"}
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **arguments)
    compiled(dense_model(), optimizer)._make_train_function()
    graph = K.get_session().graph.as_graph_def()
    assert sum(node.op in ("Merge", "RefMerge") for node in graph.node) == 1


def test_the_stock_adam_has_races_and_a_conditional():
    assert races(compiled(dense_model(), keras.optimizers.Adam(clipnorm=0.3)))
    assert operations_of_session() & CONTROL_FLOW


# SGD's momentum may be set later, so its kernel has one from the start.
KERNELS = {"sgd": "ApplyMomentum", "nesterov": "ApplyMomentum", "adam": "ApplyAdam"}


@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernel(name, resources):
    case = CASES[name]
    compiled(dense_model(), hosts.ours(case.name, **case.arguments))._make_train_function()
    prefix = "Resource" if resources else ""
    assert prefix + KERNELS[name] in operations_of_session()


# -- models ------------------------------------------------------------------------------------


def sum_of_squares(y_true, y_pred):
    return K.sum(K.square(y_true - y_pred))


def train_sums(make, size, reduction="mean", layer=None, **arguments):
    """Return the weights after training with a loss that sums, and with what a layer adds."""
    given = {"accum_iters": LENGTH, "reduction": reduction} if make is hosts.ours else {}
    model = dense_model(**layer or {})
    compiled(model, make("SGD", learning_rate=0.003, **given), sum_of_squares, **arguments)
    return weights(training.go_on(model, batch_size=size))


def test_a_penalty_beside_a_sum():
    """The line in the error, and on the page, is exact; a layer that is frozen has no penalty."""
    layer = {"kernel_regularizer": keras.regularizers.l2(0.5)}
    expected = train_sums(hosts.stock, training.BIG, layer=layer)
    mean = {"loss_weights": [float(LENGTH)]}
    assert_equal(train_sums(hosts.ours, MICRO, layer=layer, **mean), expected)
    said = r"penalties on weights.*reduction='mean'.*loss_weights=\[4.0\]"
    with pytest.raises(ValueError, match=said):
        train_sums(hosts.ours, MICRO, "sum", layer)
    inner, outer = dense_model(**layer), keras.models.Sequential()
    outer.add(inner)
    compiled(outer, hosts.ours("SGD", accum_iters=2, reduction="sum"), sum_of_squares)
    with pytest.raises(ValueError, match=said.replace("4", "2")):
        outer._make_train_function()
    inner.trainable = False
    model = hosts.sequential((3,), [inner, keras.layers.Dense(2)])
    compiled(model, hosts.ours("SGD", accum_iters=2, reduction="sum"), sum_of_squares)
    model._make_train_function()


def test_what_a_layer_adds_beside_a_sum():
    """This Keras sums activity penalties over samples, so they may stay; a mean may not."""
    layer = {"activity_regularizer": keras.regularizers.l2(0.5)}
    expected = train_sums(hosts.stock, training.BIG, layer=layer)
    with pytest.warns(UserWarning, match=r"losses that layers add.*sums over samples.*\[4.0\]"):
        actual = train_sums(hosts.ours, MICRO, "sum", layer)
    assert_equal(actual, expected)
    with pytest.warns(None) as found:
        train_sums(hosts.ours, MICRO, "mean", layer)
        train_sums(hosts.ours, MICRO, "sum")
    assert not [each for each in found if "losses that layers add" in str(each.message)]


def chain(layers, name="dense"):
    hosts.set_random_seed()
    named = [keras.layers.Dense(2, name=f"{name}_{i}") for i in range(layers)]
    return hosts.sequential((3,), named)


def sgd():
    return hosts.ours("SGD", learning_rate=2**-3, momentum=0.9, accum_iters=LENGTH)


def assert_is_big_batch(model, sizes):
    """Compare with the stock optimizer on batches of these numbers of micro-batches."""
    reference = compiled(dense_model(), hosts.stock("SGD", learning_rate=2**-3, momentum=0.9))
    ends = np.cumsum([0, *sizes]) * MICRO
    for start, end in zip(ends, ends[1:]):
        reference.train_on_batch(*[array[start:end] for array in data()])
    assert_equal(weights(model), weights(reference))


def test_a_missing_gradient_is_an_error_as_in_the_stock_optimizer():
    said = []
    for optimizer in (hosts.stock("Adam"), hosts.ours("Adam", accum_iters=2)):
        layers = [keras.layers.Dense(2), keras.layers.Lambda(K.stop_gradient)]
        model = compiled(hosts.sequential((3,), layers), optimizer)
        with pytest.raises(ValueError, match="`None` for gradient") as error:
            model.train_on_batch(*data())
        said.append(str(error.value))
    assert said[0] == said[1]


def test_generator_closes_the_last_window_of_an_epoch():
    """Twelve micro-batches: windows of 5, 5 and 2; the last one closes before the validation.

    So callbacks before ApplyPartialWindow see it, too.
    """
    seen = []

    def trained(optimizer, size, *callbacks):
        model = compiled(dense_model(), optimizer)
        steps, settings = training.batches(size), {"epochs": 2, "shuffle": False, "verbose": 0}
        settings.update(callbacks=list(callbacks), validation_data=data())
        history = model.fit_generator(iter(steps * 2), len(steps), **settings)
        return weights(model), history.history["val_loss"]

    ours = hosts.ours("SGD", accum_iters=5)
    see = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(ours.window_position)
    )
    actual, losses = trained(ours, MICRO, see, accum.ApplyPartialWindow())
    assert seen == [0, 0]
    expected, stock_losses = trained(hosts.stock("SGD"), 5 * MICRO)
    assert_equal(actual, expected)
    np.testing.assert_allclose(losses, stock_losses, rtol=1e-9)


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_a_layer_in_two_parts_of_a_model_moves_once(name):
    """This Keras lists the layer's variables twice. The reference lists the variables once."""

    def trained(optimizer, in_parts):
        given, shared = keras.layers.Input((3,)), keras.layers.Dense(3, name="shared")
        first = second = shared
        if in_parts:
            first, second = (
                keras.models.Sequential([keras.layers.InputLayer((3,)), shared]) for _ in range(2)
            )
        model = compiled(keras.models.Model(given, second(first(given))), optimizer)
        assert len(model.trainable_weights) == (4 if in_parts else 2)
        shared.set_weights([np.arange(9).reshape(3, 3) / 10 - 0.35, np.zeros(3)])
        before = shared.get_weights()
        model.train_on_batch(np.ones((MICRO, 3)), np.zeros((MICRO, 3)))
        assert (before[0] != shared.get_weights()[0]).any()
        return shared.get_weights()

    stock = trained(getattr(keras.optimizers, name)(), in_parts=False)
    for actual, expected in zip(trained(hosts.ours(name), in_parts=True), stock):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_file_of_long_names(tmp_path):
    """An HDF5 attribute has at most 64 kB. Keras splits a longer one and can't read it back."""
    path = str(tmp_path / "model.h5")
    for optimizer in (keras.optimizers.Adam, lambda: hosts.ours("Adam", accum_iters=LENGTH)):
        model = go_on(compiled(chain(4, "block_" * 1200), optimizer()), stop=LENGTH + 1)
        saved = model.optimizer.get_weights()
        model.save(path)
        again = keras.models.load_model(path)
        for actual, expected in zip(again.optimizer.get_weights(), saved):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("micro_batches", [LENGTH, LENGTH - 2])
def test_a_frozen_layer_does_not_move(micro_batches, every_gate):
    """Compiled again, the optimizer has neither a momentum nor a pending sum of the layer."""
    model = go_on(compiled(dense_model(), sgd()), stop=micro_batches)
    before = weights(model)
    model.layers[-2].trainable = False
    model.compile(model.optimizer, "mse")
    go_on(model, micro_batches, micro_batches + LENGTH)
    moved = {name: (value != before[name]).any() for name, value in weights(model).items()}
    assert moved == {name: "hidden" not in name for name in before}


@pytest.mark.parametrize("keeps", [False, True], ids=["optimizer", "from_optimizer"])
def test_a_model_that_is_compiled_again(keeps):
    """With its optimizer, it starts with a fresh window, and with `from_optimizer` it goes on."""
    optimizer = sgd()
    model = go_on(compiled(dense_model(), optimizer), stop=LENGTH + 2)
    new = type(optimizer).from_optimizer(optimizer) if keeps else optimizer
    model.compile(new, "mse")
    model._make_train_function()
    assert (new.completed_updates, new.window_position) == (1, 2 if keeps else 0)
    go_on(model, LENGTH + 2, 2 * LENGTH)
    if keeps:
        assert_is_big_batch(model, [LENGTH, LENGTH])
        new.apply_partial_window()
    else:
        with pytest.raises(ValueError, match="another step is open.*from_optimizer"):
            new.apply_partial_window()
    assert new.completed_updates == 1 + keeps


# -- one optimizer in two models ---------------------------------------------------------------


def in_two_models(are_same_variables=False):
    optimizer, networks = sgd(), [dense_model(), dense_model()]
    if are_same_variables:
        networks[1] = keras.models.Model(networks[0].inputs, networks[0].outputs)
    models = [compiled(network, optimizer) for network in networks]
    for model in models:
        model._make_train_function()
    return optimizer, models


@pytest.mark.parametrize("stop", [0, 1], ids=["before", "within"])
def test_one_optimizer_in_two_models(stop):
    """In turn: windows and slots are each model's own, and the counter and length are shared."""
    optimizer, models = in_two_models()
    for model in models:
        go_on(model, stop=stop)
    optimizer.accum_iters = 3
    first = LENGTH if stop else 3
    for model in models:
        go_on(model, start=stop, stop=first)
    for model in models:
        go_on(model, start=first, stop=first + 3)
        assert_is_big_batch(model, [first, 3])
    assert (optimizer.accum_iters, optimizer.completed_updates) == (3, 4)


@pytest.mark.parametrize("are_same_variables", [False, True])
def test_a_partial_window_of_two_models(are_same_variables):
    """The call doesn't say which model's window is meant: it is that of the last, or refused."""
    optimizer, (first, second) = in_two_models(are_same_variables)
    said = pytest.raises(ValueError, match="apply_partial_window.*several train.*its own optimizer")
    go_on(first, stop=1)
    with said:
        optimizer.apply_partial_window()
    callbacks = [hosts.accum.ApplyPartialWindow()]
    with said:
        training.fit(first, 1, epochs=1, callbacks=callbacks)

    optimizer, (first, second) = in_two_models()
    go_on(first, stop=LENGTH)
    go_on(second, stop=2)
    optimizer.apply_partial_window()
    assert_is_big_batch(second, [2])
    assert_is_big_batch(first, [LENGTH])


# -- what a user overrides or wraps ------------------------------------------------------------


def doubled(optimizer, way):
    """Return an optimizer with other gradients: on an instance, or as Horovod makes a class."""
    own = optimizer.get_gradients
    if way == "instance":
        optimizer.get_gradients = lambda loss, params: [2 * g for g in own(loss, params)]
        return optimizer

    def get_gradients(self, loss, params):
        return [2 * g for g in super(self.__class__, self).get_gradients(loss, params)]

    cls = type(type(optimizer).__name__, (type(optimizer),), {"get_gradients": get_gradients})
    return cls.from_config(optimizer.get_config())


@pytest.mark.parametrize("way", ["class", "instance"])
@pytest.mark.parametrize("length", [1, LENGTH])
@pytest.mark.parametrize("clip", [{"clipnorm": 2.0}, {"clipvalue": 0.1}], ids=str)
def test_get_gradients_of_the_user_is_called(way, length, clip):
    """For each micro-batch. Clipping acts on the window's average of what it returns."""
    arguments = {"learning_rate": 2**-3, "momentum": 0.9, **clip}
    reference = hosts.stock("SGD", **arguments)
    own = reference.get_gradients
    reference.get_gradients = lambda loss, params: own(2 * loss, params)
    expected = go_on(compiled(dense_model(), reference), batch_size=length * MICRO)
    ours = doubled(hosts.ours("SGD", accum_iters=length, **arguments), way)
    assert_equal(weights(go_on(compiled(dense_model(), ours))), weights(expected))
    assert {name: getattr(ours, name) for name in clip} == clip


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam"])
def test_each_method_of_the_stock_class_may_be_overridden(name, tmp_path):
    """Keras, or the stock class itself, calls it on the user's object. None is left out."""
    cls, called = type(hosts.ours(name)), set()
    stock = getattr(keras.optimizers, name)
    names = {n for n in dir(stock) if callable(getattr(stock, n)) and not n.startswith("__")}
    assert {"get_updates", "get_gradients", "set_weights", "get_config"} < names

    def noting(method):
        def noted(owner, *args, **kwargs):
            called.add(method)
            return getattr(super(made, owner), method)(*args, **kwargs)

        return classmethod(noted) if method == "from_config" else noted

    made = type("Made", (cls,), {method: noting(method) for method in names})
    path = str(tmp_path / "model.h5")
    go_on(compiled(dense_model(), made(accum_iters=2))).save(path)
    model = keras.models.load_model(path, custom_objects={"Made": made})
    assert model.optimizer.get_weights() and called == names


def test_a_tensor_as_the_learning_rate_and_the_old_order_of_arguments():
    """As multipliers of rates and agents call `get_updates`. A partial window has the rate, too."""
    optimizer = hosts.ours("SGD", learning_rate=2**-5, momentum=0.9, accum_iters=LENGTH)
    own, rate = optimizer.get_updates, optimizer.lr

    def get_updates(loss, params):
        optimizer.lr = 4.0 * rate
        updates = own(params, [], loss)
        assert "learning_rate=a schedule" in repr(optimizer)
        optimizer.lr = rate
        return updates

    optimizer.get_updates = get_updates
    model = go_on(compiled(dense_model(), optimizer), stop=LENGTH + 2)
    optimizer.apply_partial_window()
    assert_is_big_batch(model, [LENGTH, 2])


@pytest.mark.parametrize("names", [["update"], ["update_add"], ["update", "update_sub"]])
def test_functions_that_write_are_replaced(names, monkeypatch):
    """As wrappers do for the weights' new values. After the error, what it says to do works."""
    own = {name: getattr(K, name) for name in names}
    for name in names:
        monkeypatch.setattr(K, name, lambda x, new: (x, new))
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    said = "`, `K.".join(names)
    with pytest.raises(ValueError, match=f"`K.{said}` of Keras was replaced.*of {__name__}"):
        model.train_on_batch(*data())
    assert own == {name: getattr(K, name) for name in names}
    compiled(dense_model(), hosts.ours("Adam", accum_iters=2)).train_on_batch(*data())


# -- arguments ---------------------------------------------------------------------------------


def test_clipnorm_is_global():
    """It is global as in Keras 2's stock optimizer, and also has its name in other versions."""
    for name in ("clipnorm", "global_clipnorm"):
        optimizer = hosts.ours("Adam", **{name: 0.5})
        config = optimizer.get_config()
        assert config["global_clipnorm"] == 0.5 and "clipnorm" not in config
        for each in (optimizer, type(optimizer).from_config(config)):
            assert each.clipnorm == 0.5
    assert not hasattr(hosts.ours("Adam", clipnorm=None), "clipnorm")


def test_decay_by_position_and_by_name():
    with pytest.raises(TypeError, match="multiple values for keyword argument 'decay'"):
        hosts.accum.SGDAccumulate(0.1, 0.9, 0.01, decay=0.5)


def test_reduction_weighted_is_refused():
    with pytest.raises(ValueError, match="reduction='weighted'.*'sum'"):
        hosts.ours("Adam", accum_iters=2, reduction="weighted")


@pytest.mark.parametrize("calls", [True, False])
def test_get_updates_of_a_subclass(calls):
    """One that never calls ours would update in each micro-batch."""

    class Own(accum.SGDAccumulate):
        def get_updates(self, loss, params):
            if calls:
                return super().get_updates(loss, params)
            gradients = self.get_gradients(loss, params)
            return [K.update_sub(p, self.lr * g) for p, g in zip(params, gradients)]

    optimizer, w = Own(lr=0.5, accum_iters=2), hosts.variable([1.0, 2.0], "w")
    if calls:
        for _ in range(2):
            hosts.apply(optimizer, [np.ones(2)], [w])
        np.testing.assert_allclose(hosts.array(w), [0.5, 1.5])
    else:
        with pytest.raises(TypeError, match="`get_updates` of Own doesn't call `super"):
            hosts.build_on(optimizer, [w])


@thorough
def test_tensorboard_writes_gradients(tmp_path):
    """It asks the optimizer for a micro-batch's gradients, which closes no window."""
    options = {"histogram_freq": 1, "write_grads": True, "write_graph": False}
    board, more = keras.callbacks.TensorBoard(str(tmp_path), **options), {"validation_data": data()}
    case = CASES["adam"]
    actual = training.train(training.in_windows(case), MICRO, callbacks=[board], **more)
    training.assert_same_training(actual, training.big_batch(case))
    (events,) = tmp_path.iterdir()
    values = [v.tag for e in tf.train.summary_iterator(str(events)) for v in e.summary.value]
    assert any("kernel" in tag and tag.endswith("_grad") for tag in values)
