"""`AccumulateInBackward`: the same training to the bit, without all gradients at once."""

import contextlib

import hosts
import numpy as np
import pytest
from cases import ADAM, on_every_optimizer, quick_first, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    Shrink,
    assert_same_training,
    batches,
    big_batch,
    compiled,
    dense_model,
    fit,
    initialize,
    train,
)

if not hosts.IS_KERAS3:
    pytest.skip("AccumulateInBackward is for Keras 3", allow_module_level=True)

AccumulateInBackward = hosts.accum.AccumulateInBackward
scope = AccumulateInBackward.scope


def adam(accum_iters=5, **arguments):  # an epoch has 12 micro-batches, so windows cross its end
    return hosts.ours("Adam", accum_iters=accum_iters, **{**ADAM.arguments, **arguments})


if not hosts.IS_TORCH:

    def test_other_backends_are_refused():
        for use in (AccumulateInBackward, lambda: scope(adam())):
            with pytest.raises(ValueError, match="needs the PyTorch backend"):
                use()

    pytest.skip("only PyTorch has it", allow_module_level=True)

import torch  # noqa: E402

# -- the ordinary way and the other ----------------------------------------------------------------


def ordinary(optimizer):
    return contextlib.nullcontext()


def built(optimizer=None, build=dense_model):
    model = compiled(build(), optimizer or adam())
    model.optimizer.build(model.trainable_variables)
    return model


def assert_same_bits(actual, expected):
    """The same weights and the same state in two models."""
    for found, wanted in zip(actual.get_weights(), expected.get_weights()):
        np.testing.assert_array_equal(found, wanted)
    found, wanted = (model.optimizer.get_state() for model in (actual, expected))
    assert found.keys() == wanted.keys() and wanted["completed_updates"] > 0
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def assert_same_in_both(train):
    """`train(scope)` trains and returns a model, with the scopes of one way or the other."""
    actual = train(scope)
    assert_same_bits(actual, train(ordinary))
    return actual


def backward(model, x, y, heads=(0,)):
    """The backward pass of a hand-written train step. The loss uses the outputs in `heads`."""
    model.zero_grad()
    outputs = model(torch.tensor(x))
    outputs = outputs if isinstance(outputs, list) else [outputs]
    sum(torch.mean((outputs[i] - torch.tensor(y)) ** 2) for i in heads).backward()


def apply(model, variables=None):
    variables = variables or model.trainable_variables
    with torch.no_grad():
        model.optimizer.apply([v.value.grad for v in variables], variables)


def step(model, batch, heads=(0,)):
    backward(model, *batch, heads)
    apply(model)


def two_heads():
    inputs = keras.layers.Input((3,))
    hidden = keras.layers.Dense(4, "tanh", name="hidden")(inputs)
    outputs = [keras.layers.Dense(2, name=name)(hidden) for name in ("left", "right")]
    return initialize(keras.Model(inputs, outputs))


# -- equal -----------------------------------------------------------------------------------------


def test_equals_the_big_batch():
    callbacks = [AccumulateInBackward()]
    actual = train(adam(LENGTH), MICRO, callbacks=callbacks)
    assert_same_training(actual, big_batch(ADAM))


@on_every_optimizer
def test_the_update_in_groups(case):
    """Of variables, at most as large as the largest: to the bit for each optimizer."""

    def trained(scope):
        model = built(hosts.ours(case.name, accum_iters=LENGTH, **case.arguments))
        with scope(model.optimizer):
            for batch in batches(MICRO):
                step(model, batch)
        return model

    assert_same_in_both(trained)


def test_the_groups():
    """Kernels of 3 x 4 and 4 x 2, biases of 4 and 2."""

    def groups(optimizer):
        model = built(optimizer)
        with scope(model.optimizer) as found:
            return found.groups(model.trainable_variables)

    assert groups(adam()) == [[0], [1, 2], [3]]
    assert groups(hosts.ours("Nadam", accum_iters=2)) == [[0, 1, 2, 3]]  # has a product of rates

    class Mine(type(hosts.stock("Adam"))):
        pass

    assert groups(hosts.accum.accumulating(Mine)(accum_iters=2)) == [[0, 1, 2, 3]]


def bfloat16():
    return dense_model(dtype="bfloat16")


ALL = {
    "use_ema": True,
    "ema_overwrite_frequency": 2,
    "clipnorm": 0.125,
    "weight_decay": 0.125,
    "decay": 0.125,
}
ROWS = {
    "everything": (ALL, lambda: dense_model(kernel_constraint=Shrink())),
    "schedule": ({"accum_iters": hosts.accum.AccumulationSchedule({0: 1, 2: 4})}, dense_model),
    "bfloat16": ({"reduction": "sum", "global_clipnorm": 0.5}, bfloat16),
    "one": ({"accum_iters": 1}, dense_model),
}


@quick_first("arguments, build", ROWS)
def test_equals_the_ordinary_way_in_fit(arguments, build):
    """To the bit: weights, slots and the open window."""

    def fitted(*callbacks):
        model = compiled(build(), adam(**arguments))
        fit(model, MICRO, callbacks=[hosts.accum.ApplyPartialWindow(), *callbacks], epochs=1)
        fit(model, MICRO, callbacks=[*callbacks], epochs=2)
        return model

    assert_same_bits(fitted(AccumulateInBackward()), fitted())


@pytest.mark.parametrize("heads", [[(0, 1), (0,), (0,)], [(0,), (0,), (1,)]])
def test_missing_gradients(heads):
    """A gradient that `backward` has added isn't a missing one, and a missing one is missing."""

    def trained(scope):
        model = built(adam(3), two_heads)
        with pytest.warns(UserWarning, match="Gradients do not exist"), scope(model.optimizer):
            for i, batch in enumerate(batches(MICRO)):
                step(model, batch, heads[i % 3])
            right = hosts.array(model.get_layer("right").kernel)
            for batch in batches(MICRO)[:3]:  # a window in which the head rests
                step(model, batch)
        np.testing.assert_array_equal(hosts.array(model.get_layer("right").kernel), right)
        return model

    assert_same_in_both(trained)


def test_layers_that_are_frozen_and_thawed():
    def trained(scope):
        model = built(adam(3))
        model.layers[0].trainable = False
        with scope(model.optimizer):  # in which hooks aren't on frozen layers
            for i, batch in enumerate(batches(MICRO)):
                model.layers[0].trainable = i % 5 > 1
                step(model, batch)
        return model

    assert_same_in_both(trained)


def test_an_error_before_the_first_step_leaves_no_hook(monkeypatch):
    model, made = built(), []
    register = torch.Tensor.register_post_accumulate_grad_hook

    def fails(tensor, hook):
        if len(made) == 2:
            raise RuntimeError("no more hooks")
        made.append(register(tensor, hook))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", fails)
    with pytest.raises(RuntimeError, match="no more hooks"), scope(model.optimizer):
        pass
    backward(model, *batches(MICRO)[0])
    assert all(variable.value.grad is not None for variable in model.trainable_variables)


def test_windows_that_the_caller_closes():
    def trained(scope):
        model = built(adam(None))
        with scope(model.optimizer):
            for i, batch in enumerate(batches(MICRO)):
                backward(model, *batch)
                model.optimizer.close_window(i % 3 == 2)
                apply(model)
                if i == 4:
                    model.optimizer.apply_partial_window()
        return model

    assert assert_same_in_both(trained).optimizer.completed_updates == 5


def test_train_on_batch_and_gradients_of_autograd():
    """Gradients that a train step computes itself are added in the ordinary way."""

    def trained(scope):
        model = built(adam(3))
        for x, y in batches(MICRO):
            with scope(model.optimizer):
                model.train_on_batch(x, y)
                loss = torch.mean((model(torch.tensor(x)) - torch.tensor(y)) ** 2)
                variables = model.trainable_variables
                found = torch.autograd.grad(loss, [v.value for v in variables])
                with torch.no_grad():
                    model.optimizer.apply(found, variables)
        return model

    assert_same_in_both(trained)


def test_with_the_monitor():
    def logs(*callbacks):
        monitor = hosts.accum.AccumulationMonitor(batch_size=MICRO)
        model = compiled(dense_model(), adam())
        return fit(model, MICRO, callbacks=[monitor, *callbacks]).history

    actual, expected = logs(AccumulateInBackward()), logs()
    assert actual == expected and expected["gradient_norm"][-1] > 0


# -- freed -----------------------------------------------------------------------------------------


def test_gradients_are_added_and_freed_while_backward_goes_on():
    """When the first layer gets its gradient, the last layer's is in its sum, and gone."""
    model, seen = built(), []
    first, last = (layer.kernel for layer in model.layers)
    total = model.optimizer._accumulation.window.sum_of(last)

    def look(gradient):
        seen.append((last.value.grad, hosts.array(total).any()))

    first.value.register_hook(look)
    with scope(model.optimizer):
        backward(model, *batches(MICRO)[0])
        assert seen == [(None, True)] and first.value.grad is None
        apply(model)
    backward(model, *batches(MICRO)[0])  # outside of the scope, gradients stay
    assert first.value.grad is not None and seen[1][0] is not None


# -- refused ---------------------------------------------------------------------------------------


# What makes an optimizer, and whether `fit` refuses it, too.
REFUSED = {
    "skip_nonfinite=True, which needs all gradients": (lambda: adam(skip_nonfinite=True), True),
    "skip_norm, which needs all gradients": (lambda: adam(skip_norm=10.0), True),
    "reduction='weighted', whose weights": (lambda: adam(reduction="weighted"), True),
    "LossScaleOptimizer": (lambda: hosts.loss_scaled(adam(), 4.0), True),
    "`optimizer` must be an optimizer of keras_accum": (lambda: hosts.stock("Adam"), False),
    "call `optimizer.build": (adam, False),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_optimizers(message):
    make, in_fit = REFUSED[message]
    optimizer = built(make()).optimizer if in_fit else make()
    with pytest.raises((TypeError, ValueError), match=message), scope(optimizer):
        pass
    if in_fit:
        with pytest.raises(ValueError, match=message):
            fit(compiled(dense_model(), make()), MICRO, callbacks=[AccumulateInBackward()])


def test_a_scope_in_a_scope_is_refused():
    optimizer = built().optimizer
    with scope(optimizer), pytest.raises(ValueError, match="in use already"), scope(optimizer):
        pass


@pytest.mark.parametrize("is_first", [True, False])
def test_refused_callbacks(is_first):
    """Whatever comes first in the list."""
    monitor = hosts.accum.AccumulationMonitor(batch_size=MICRO, noise_scale=True)
    for callback in (hosts.accum.MicroBatches(1), monitor):
        callbacks = [AccumulateInBackward(), callback][:: 1 if is_first else -1]
        with pytest.raises(ValueError, match=f"can't be used with {type(callback).__name__}"):
            fit(compiled(dense_model(), adam()), MICRO, callbacks=callbacks)


def test_refused_with_torch_distributed(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="DistributedDataParallel"), scope(built().optimizer):
            pass
    finally:
        torch.distributed.destroy_process_group()


def test_refused_with_torch_compile():
    model = compiled(dense_model(), adam(), jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True"):
        fit(model, MICRO, callbacks=[AccumulateInBackward()])


@thorough
def test_refused_in_torch_compile():
    model = built()
    apply_compiled = torch.compile(lambda: apply(model), backend="eager")
    warned = pytest.warns(UserWarning, match="window was dropped")
    refused = pytest.raises(Exception, match="can't be used with torch.compile")
    with warned, refused, scope(model.optimizer):
        backward(model, *batches(MICRO)[0])
        apply_compiled()


# -- train steps that can't be taken ---------------------------------------------------------------


def left_open(model):
    """Make a micro-batch, and `backward` of a second one."""
    step(model, batches(MICRO)[0])
    backward(model, *batches(MICRO)[1])


def twice(model):
    left_open(model)
    backward(model, *batches(MICRO)[2])


def elsewhere(model):
    left_open(model)
    apply(model, model.trainable_variables[:2])


def given(model):
    left_open(model)
    variables = model.trainable_variables
    model.optimizer.apply([torch.ones_like(v.value) for v in variables], variables)


@pytest.mark.parametrize(
    "train_step, message",
    [
        (left_open, "scope ended after `backward`"),
        (twice, "has added the gradient of .*out.* already"),
        (elsewhere, "wasn't called for the variable"),
        (given, "has added the gradient of .*out.* already"),
    ],
)
@pytest.mark.filterwarnings("ignore:The open window was dropped")
def test_gradients_that_would_be_lost_or_added_twice(train_step, message):
    """An error, and nothing of them is left: the training goes on with a new window."""
    model, expected = built(adam(2)), built(adam(2))
    with pytest.raises(ValueError, match=message), scope(model.optimizer):
        train_step(model)
    assert model.optimizer.window_position == 0
    for one in (model, expected):
        for batch in batches(MICRO)[:3]:
            step(one, batch)
    assert_same_bits(model, expected)


def test_between_backward_and_the_optimizer():
    """The state has a part of a micro-batch then, and no counter says so."""
    model = built()
    with scope(model.optimizer):
        left_open(model)
        for call in (model.optimizer.get_state, model.optimizer.apply_partial_window):
            with pytest.raises(RuntimeError, match="a part of a micro-batch"):
                call()
        apply(model)
        assert model.optimizer.get_state()["window_position"] == 2


class Interrupted(keras.layers.Dense):
    """A layer whose gradient is interrupted on demand."""

    interrupts = False

    def call(self, inputs):
        outputs = super().call(inputs)
        if self.interrupts and outputs.requires_grad:
            outputs.register_hook(self.interrupt)
        return outputs

    def interrupt(self, gradient):
        raise KeyboardInterrupt


def test_an_interrupted_fit():
    """The window is dropped with a warning if its sums have a part of a micro-batch."""

    def interruptible():
        first, last = Interrupted(4, name="hidden"), keras.layers.Dense(2, name="out")
        return hosts.sequential((3,), [first, last])

    model, expected = compiled(interruptible(), adam(2)), compiled(interruptible(), adam(2))
    callback, missing = AccumulateInBackward(), hosts.accum.ApplyPartialWindow()
    three = [np.concatenate(parts) for parts in zip(*batches(MICRO)[:3])]
    fit(model, MICRO, three, epochs=1, callbacks=[callback])
    fit(expected, MICRO, [a[: 2 * MICRO] for a in three], epochs=1, callbacks=[missing])
    model.layers[0].interrupts = True
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="window was dropped"):
        fit(model, MICRO, callbacks=[callback])
    assert_same_bits(model, expected)
    model.layers[0].interrupts = False
    for one, callbacks in ((model, [callback]), (expected, [])):
        fit(one, MICRO, callbacks=callbacks)
    assert_same_bits(model, expected)
