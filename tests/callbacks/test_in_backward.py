"""`AccumulateInBackward`: the same training to the bit, without all gradients at once."""

import contextlib

import hosts
import numpy as np
import pytest
from cases import ADAM, CASES, RULES, over, quick_first, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    Shrink,
    assert_equal,
    assert_same_training,
    batches,
    big_batch,
    compiled,
    dense_model,
    fit,
    initialize,
    train,
    weights,
)

if not hosts.IS_KERAS3:
    pytest.skip("AccumulateInBackward is for Keras 3", allow_module_level=True)

accum = hosts.accum
AccumulateInBackward = accum.AccumulateInBackward
scope = AccumulateInBackward.scope


def adam(accum_iters=5, **arguments):  # an epoch has 12 micro-batches, so windows cross its end
    return hosts.ours("Adam", accum_iters=accum_iters, **{**ADAM.arguments, **arguments})


if not hosts.IS_TORCH:
    pytest.skip("only PyTorch has it", allow_module_level=True)

import torch  # noqa: E402


def built(optimizer=None, build=dense_model):
    model = compiled(build(), optimizer or adam())
    model.optimizer.build(model.trainable_variables)
    return model


def assert_same_bits(actual, expected):
    """The same weights and the same state in two models."""
    found, wanted = (model.optimizer.get_state() for model in (actual, expected))
    assert found.keys() == wanted.keys() and wanted["completed_updates"] > 0
    assert_equal(found, wanted, rtol=0, atol=0)
    assert_equal(weights(actual), weights(expected), rtol=0, atol=0)


def backward(model, batch, heads=(0,)):
    """The backward pass of a hand-written train step. The loss uses the outputs in `heads`."""
    model.zero_grad()
    x, y = map(torch.tensor, batch)
    outputs = model(x)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    sum(torch.mean((outputs[i] - y) ** 2) for i in heads).backward()


def apply(model, count=None):
    variables = model.trainable_variables[:count]
    with torch.no_grad():
        model.optimizer.apply([v.value.grad for v in variables], variables)


def step(model, batch, heads=(0,)):
    backward(model, batch, heads)
    apply(model)


# -- equal -----------------------------------------------------------------------------------------


def test_equals_the_big_batch():
    actual = train(adam(LENGTH), MICRO, callbacks=[AccumulateInBackward()])
    assert_same_training(actual, big_batch(ADAM))


def assert_same_in_both(make, train_step=lambda model, i, batch: step(model, batch)):
    """Train in the ordinary way and in scopes, of which the second begins inside a window."""
    models = make(), make()
    for model, way in zip(models, (scope, contextlib.nullcontext)):
        for part in range(7), range(7, 12):
            with way(model.optimizer):
                for i in part:
                    train_step(model, i, batches(MICRO)[i])
    assert_same_bits(*models)


@over(CASES, quick=[*RULES, "nadam"])
def test_each_optimizer_equals_the_ordinary_way(case):
    make = lambda: hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)  # noqa: E731
    assert_same_in_both(lambda: built(make()))


def two_heads():
    inputs = keras.layers.Input((3,))
    hidden = keras.layers.Dense(4, "tanh", name="hidden")(inputs)
    outputs = [keras.layers.Dense(2, name=name)(hidden) for name in ("left", "right")]
    return initialize(keras.Model(inputs, outputs))


def frozen_and_thawed(model, i, batch):
    model.layers[0].trainable = i % 5 > 1  # the second scope begins with a frozen layer
    step(model, batch)


def closed_by_the_caller(model, i, batch):
    backward(model, batch)
    model.optimizer.close_window(i % 3 == 2)
    apply(model)
    if i == 4:
        model.optimizer.apply_partial_window()


def gradients_of_autograd(model, i, batch):
    """Gradients that a train step computes itself are added in the ordinary way."""
    model.train_on_batch(*batch)
    x, y = map(torch.tensor, batch)
    values = [v.value for v in model.trainable_variables]
    found = torch.autograd.grad(torch.mean((model(x) - y) ** 2), values)
    with torch.no_grad():
        model.optimizer.apply(found, model.trainable_variables)


TRAIN_STEPS = {  # in every second window, the head on the right has no gradient
    "a head first": (3, two_heads, lambda m, i, batch: step(m, batch, (0,) if i % 6 else (0, 1))),
    "a head last": (3, two_heads, lambda m, i, batch: step(m, batch, (1 if i % 6 == 2 else 0,))),
    "frozen": (3, dense_model, frozen_and_thawed),
    "closed": (None, dense_model, closed_by_the_caller),
    "autograd": (3, dense_model, gradients_of_autograd),
}


@pytest.mark.parametrize("name", TRAIN_STEPS)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_equals_the_ordinary_way(name):
    accum_iters, build, train_step = TRAIN_STEPS[name]
    assert_same_in_both(lambda: built(adam(accum_iters), build), train_step)


ALL = {"use_ema": True, "ema_overwrite_frequency": 2, "clipnorm": 0.125}
ALL.update({"weight_decay": 0.125, "decay": 0.125})
FITS = {
    "everything": (ALL, lambda: dense_model(kernel_constraint=Shrink())),
    "schedule": ({"accum_iters": accum.AccumulationSchedule({0: 1, 2: 4})}, dense_model),
    "bfloat16": (
        {"reduction": "sum", "global_clipnorm": 0.5},
        lambda: dense_model(dtype="bfloat16"),
    ),
    "one": ({"accum_iters": 1}, dense_model),
}


@quick_first("arguments, build", FITS)
def test_equals_the_ordinary_way_in_fit(arguments, build):
    """To the bit: weights, slots, the open window and what the monitor tells."""

    def fitted(*callbacks):
        model = compiled(build(), adam(**arguments))
        fit(model, MICRO, callbacks=[accum.ApplyPartialWindow(), *callbacks], epochs=1)
        monitor = accum.AccumulationMonitor()
        logs = fit(model, MICRO, callbacks=[monitor, *callbacks], epochs=2).history
        return model, logs

    (actual, logs), (expected, expected_logs) = fitted(AccumulateInBackward()), fitted()
    assert_same_bits(actual, expected)
    assert logs == expected_logs
    assert arguments == {"accum_iters": 1} or logs["completed_updates"][-1] > 0


def test_the_groups():
    """Kernels of 3 x 4 and 4 x 2, biases of 4 and 2."""

    class Mine(type(hosts.stock("Adam"))):
        pass

    for optimizer, groups in (
        (adam(), [[0], [1, 2], [3]]),
        (hosts.ours("Nadam", accum_iters=2), [[0, 1, 2, 3]]),  # has a product of rates
        (accum.accumulating(Mine)(accum_iters=2), [[0, 1, 2, 3]]),
    ):
        model = built(optimizer)
        with scope(model.optimizer) as found:
            assert found.groups(model.trainable_variables) == groups


def test_gradients_are_added_and_freed_while_backward_goes_on():
    """When the first layer gets its gradient, the last layer's is in its sum, and gone."""
    model, seen = built(), []
    first, last = (layer.kernel for layer in model.layers)
    total = model.optimizer._accumulation.window.sum_of(last)
    first.value.register_hook(lambda _: seen.append((last.value.grad, hosts.array(total).any())))
    with scope(model.optimizer):
        backward(model, batches(MICRO)[0])
        assert seen == [(None, True)] and first.value.grad is None
        apply(model)
    backward(model, batches(MICRO)[0])  # outside of the scope, gradients stay
    assert first.value.grad is not None and seen[1][0] is not None


# -- refused ---------------------------------------------------------------------------------------


def in_scope(optimizer):
    with scope(optimizer):
        pass


def in_fit(*callbacks, optimizer=None, **arguments):
    fit(compiled(dense_model(), optimizer or adam(), **arguments), MICRO, callbacks=callbacks)


def in_both(make):
    in_scopes = lambda: in_scope(built(make()).optimizer)  # noqa: E731
    return in_scopes, lambda: in_fit(AccumulateInBackward(), optimizer=make())


def with_callback(make):
    """Whatever comes first in the list."""
    in_order = lambda: in_fit(AccumulateInBackward(), make())  # noqa: E731
    return in_order, lambda: in_fit(make(), AccumulateInBackward())


def in_a_scope():
    optimizer = built().optimizer
    with scope(optimizer):
        in_scope(optimizer)


REFUSED = {
    "skip_nonfinite or": in_both(lambda: adam(skip_nonfinite=True)),
    "or skip_norm, which need all gradients": in_both(lambda: adam(skip_norm=10.0)),
    "reduction='weighted', whose weights": in_both(lambda: adam(reduction="weighted")),
    "LossScaleOptimizer": in_both(lambda: hosts.loss_scaled(adam(), 4.0)),
    "can't be used with MicroBatches": with_callback(lambda: accum.MicroBatches(1)),
    "`optimizer` must be an optimizer of keras_accum": [lambda: in_scope(hosts.stock("Adam"))],
    "call `optimizer.build": [lambda: in_scope(adam())],
    "in use already": [in_a_scope],
    "jit_compile=True": [lambda: in_fit(AccumulateInBackward(), jit_compile=True)],
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    for use in REFUSED[message]:
        with pytest.raises((TypeError, ValueError), match=message):
            use()


def test_refused_with_torch_distributed(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="DistributedDataParallel"):
            in_scope(built().optimizer)
    finally:
        torch.distributed.destroy_process_group()


# -- train steps that can't be taken ---------------------------------------------------------------


def given(model):
    variables = model.trainable_variables
    model.optimizer.apply([torch.ones_like(v.value) for v in variables], variables)


ADDED = "has added the gradient of .*out.* already"
# What comes after a micro-batch and `backward` of a second one.
ERRORS = {
    "nothing": ("scope ended after `backward`", lambda model: None),
    "backward": (ADDED, lambda model: backward(model, batches(MICRO)[2])),
    "another gradient": (ADDED, given),
    "fewer variables": ("wasn't called for the variable", lambda model: apply(model, 2)),
    "torch.compile": (
        "can't be used with torch.compile",
        lambda model: torch.compile(lambda: apply(model), backend="eager")(),
    ),
}


def left_open(model):
    step(model, batches(MICRO)[0])
    backward(model, batches(MICRO)[1])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=thorough if n == "torch.compile" else ()) for n in ERRORS]
)
@pytest.mark.filterwarnings("ignore:The open window was dropped")
def test_gradients_that_would_be_lost_or_added_twice(name):
    """An error, and nothing of them is left: the training goes on with a new window."""
    (message, then), model, expected = ERRORS[name], built(adam(2)), built(adam(2))
    with pytest.raises(Exception, match=message) as raised, scope(model.optimizer):
        left_open(model)
        then(model)
    assert name == "torch.compile" or raised.type is ValueError
    assert model.optimizer.window_position == 0
    for one in (model, expected):
        for batch in batches(MICRO)[:3]:
            step(one, batch)
    assert_same_bits(model, expected)


def test_an_error_before_the_first_step_leaves_no_hook(monkeypatch):
    model, made = built(), []
    register = torch.Tensor.register_post_accumulate_grad_hook

    def fails(tensor, hook):
        if len(made) == 2:
            raise RuntimeError("no more hooks")
        made.append(register(tensor, hook))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", fails)
    with pytest.raises(RuntimeError, match="no more hooks"):
        in_scope(model.optimizer)
    backward(model, batches(MICRO)[0])
    assert all(variable.value.grad is not None for variable in model.trainable_variables)


def test_an_interrupted_fit():
    """The window is dropped with a warning if its sums have a part of a micro-batch."""

    def interrupt(gradient):
        raise KeyboardInterrupt

    model, expected = (compiled(dense_model(), adam(2)) for _ in range(2))
    callback = AccumulateInBackward()
    x, y = (np.concatenate(parts) for parts in zip(*batches(MICRO)[:3]))
    fit(model, MICRO, (x, y), epochs=1, callbacks=[callback])
    two = x[: 2 * MICRO], y[: 2 * MICRO]
    fit(expected, MICRO, two, epochs=1, callbacks=[accum.ApplyPartialWindow()])
    hook = model.layers[0].kernel.value.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="window was dropped"):
        fit(model, MICRO, callbacks=[callback])
    hook.remove()
    assert_same_bits(model, expected)
    for one, callbacks in ((model, [callback]), (expected, [])):
        fit(one, MICRO, callbacks=callbacks)
    assert_same_bits(model, expected)
