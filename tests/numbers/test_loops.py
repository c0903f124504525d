"""A training loop of PyTorch, and steps that fail. `steps.py` has the loops of all other tests."""

import hosts
import numpy as np
import pytest
import training
from cases import ADAM, CASES, quick_first, skip_file_on_keras2
from training import BIG, LENGTH, MICRO, START, assert_equal, assert_moved, batches, compiled

skip_file_on_keras2("`apply`: its train step is a part of the graph")
pytestmark = pytest.mark.usefixtures("grappler")


def test_a_gpu_would_compute_in_float32():
    """Tolerances are for float32, and TF32 has ten bits."""
    if hosts.BACKEND == "jax":
        import jax

        program = str(jax.make_jaxpr(jax.numpy.dot)(np.ones((2, 2)), np.ones((2, 2))))
        assert "HIGHEST" in program
    elif hosts.IS_TORCH:
        import torch

        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    else:
        assert not hosts.tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.skipif(not hosts.IS_TORCH, reason="a loop with backward(), for PyTorch only")
def test_torch_loop():
    """`stateless_apply` writes to no tensor of the caller, as the stock optimizer may."""
    import torch

    found = []
    for make, more, size in ((hosts.stock, {}, BIG), (hosts.ours, {"accum_iters": LENGTH}, MICRO)):
        optimizer, variables = make("Adam", **ADAM.arguments, **more), training.linear_variables()
        optimizer.build(variables)
        for x, y in batches(size):
            given = [v.value for v in variables]
            for value in given:
                value.grad = None
            x, y = map(hosts.keras.ops.convert_to_tensor, (x, y))  # on the device of the weights
            training.squares(*given, x, y).mean().backward()
            with torch.no_grad():
                state, gradients = [v.value for v in optimizer.variables], [v.grad for v in given]
                tensors = state + given + gradients
                copies = [tensor.clone() for tensor in tensors]
                new_weights, new_state = optimizer.stateless_apply(state, gradients, given)
                if more:
                    assert all(map(torch.equal, tensors, copies)), "a tensor of the caller"
                new = [*new_weights, *new_state]
                for variable, value in zip([*variables, *optimizer.variables], new):
                    variable.assign(value.clone())
        found.append(training.values(optimizer, variables))
    assert_moved(START, {name: found[0][name] for name in START})
    assert_equal(found[1], found[0])


OTHER = "nadam" if "nadam" in CASES else "adamw"  # tf_keras's newer style has no Nadam


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about tf.data")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@quick_first("name, gate", [("adam", "auto"), (OTHER, "auto"), ("adam", "select")])
def test_a_step_that_finds_no_more_data(name, gate):
    """A step without data may run in part before it fails. Nothing of it may be visible."""
    case, tf, states = CASES[name], hosts.tf, []
    arguments = {**case.arguments, **({"weight_decay": 0.25} if hosts.IS_KERAS3 else {})}
    parts = batches(MICRO)[: LENGTH - 1]
    samples = tuple(np.concatenate(arrays) for arrays in zip(*parts))
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(MICRO)
    dataset = dataset.filter(lambda x, y: True)  # so that its length is unknown
    for by_fit in (True, False):
        more = {"accum_iters": LENGTH, "reduction": "mean", "gate": gate, **arguments}
        ours = hosts.ours(case.name, **more)
        model = compiled(training.dense_model(), ours)
        for _ in range(5):
            if by_fit:
                model.fit(dataset, verbose=0, shuffle=False)
            else:
                for x, y in parts:
                    model.train_on_batch(x, y)
        states.append({**training.weights(model), **model.optimizer.get_state()})
    assert states[1]["completed_updates"] == 3 and states[1]["window_position"] == 3
    assert_equal(states[0], states[1])
