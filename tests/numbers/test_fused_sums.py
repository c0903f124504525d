"""PyTorch's fused sums keep their tensors from step to step. Whatever replaces them is noticed."""

import functools

import hosts
import numpy as np
import pytest
from hosts import keras

if not hosts.IS_TORCH:
    pytest.skip("about PyTorch's sums", allow_module_level=True)

import torch

SHAPES = (3, 2), (2,), ()
LENGTH = 4


@pytest.fixture(autouse=True)
def on_the_device_of_keras():
    with keras.ops.zeros(()).device:
        yield


def variables(dtype="float32"):
    return [keras.Variable(np.ones(shape), dtype=dtype) for shape in SHAPES]


def draw(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        [torch.tensor(random.normal(size=s), dtype=torch.float32) for s in SHAPES]
        for _ in range(count)
    ]


def values(variables):
    return [hosts.array(variable) for variable in variables]


def expected(gradients, weights=None, rule="Adam"):
    """Return the weights after stock updates with the windows' averages."""
    stock, found = hosts.stock(rule, learning_rate=0.1), variables()
    for start in range(0, len(gradients), LENGTH):
        window = gradients[start : start + LENGTH]
        shares = weights[start : start + LENGTH] if weights else [1.0] * LENGTH
        rows = zip(*window)
        stock.apply([sum(g * w for g, w in zip(row, shares)) / sum(shares) for row in rows], found)
    return values(found)


def assert_near(actual, wanted, tolerance=1e-6):
    for mine, other in zip(actual, wanted):
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance)


def move_sums(optimizer):
    """Give the sums other tensors, as a move to another device does."""
    for total in optimizer._accumulation.store.sums:
        total._value = torch.nn.Parameter(total.value.clone(), requires_grad=False)


def set_again(optimizer):
    optimizer.set_state(optimizer.get_state())


def step_elsewhere(optimizer):
    """Make a stateless step, of which the optimizer keeps nothing."""
    state = [v.value for v in optimizer.variables]
    weights = [v.value for v in optimizer._trainable_variables]
    optimizer.stateless_apply(state, draw(1, seed=1)[0], weights)


BETWEEN = {"moved": move_sums, "set": set_again, "stateless": step_elsewhere}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_between_steps(between):
    gradients, found = draw(2 * LENGTH), variables()
    ours = hosts.ours("Adam", learning_rate=0.1, accum_iters=LENGTH)
    for each in gradients:
        ours.apply(each, found)
        between(ours)
    assert_near(values(found), expected(gradients))
    assert all(not total.value.any() for total in ours._accumulation.store.sums)


@pytest.mark.parametrize("weigh", [float, torch.tensor, lambda w: torch.tensor(w).reshape(())])
def test_weights(weigh):
    """A number and a tensor weigh alike, with 0 for the mean of nothing."""
    gradients, found = draw(2 * LENGTH), variables()
    weights = [1.0, 2.0, 0.0, 5.0, 0.0, 0.5, 3.0, 1.0]
    ours = hosts.ours("Adam", learning_rate=0.1, accum_iters=LENGTH, reduction="weighted")
    for each, weight in zip(gradients, weights):
        each = [g * np.nan for g in each] if weight == 0 else each
        ours.weigh(weigh(weight))
        ours.apply(each, found)
    usable = [[torch.nan_to_num(g) for g in each] for each in gradients]
    assert_near(values(found), expected(usable, weights))


def test_weights_on_a_device():
    """There, zero isn't known, and has to give zero."""
    values = hosts.ours("Adam", accum_iters=2)._accumulation.values
    gradients = [torch.tensor([np.nan, 1.0]), torch.tensor([[np.inf]])]
    for factor, wanted in ((0.0, [[0.0, 0.0], [[0.0]]]), (2.0, [[np.nan, 2.0], [[np.inf]]])):
        scaled = values.scale_all(gradients, torch.tensor(factor))
        for value, each in zip(scaled, wanted):
            np.testing.assert_array_equal(hosts.array(value), np.array(each, "float32"))
    np.testing.assert_array_equal(hosts.array(gradients[1]), [[np.inf]])  # the caller's


GIVEN = {
    "one": lambda: [torch.tensor([1.0, 2.0])],
    "one, a view": lambda: [torch.tensor([[1.0, 2.0], [3.0, 4.0]])[1]],
    "one, expanded": lambda: [torch.tensor(3.0).expand(2)],
    "two": lambda: [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])],
    "half precision": lambda: [torch.tensor([1.0, 2.0], dtype=torch.float16)],
    "two in half precision": lambda: [torch.ones(3).bfloat16(), torch.ones(2).bfloat16()],
    "mixed": lambda: [torch.ones(3), torch.ones(2).half()],
}
HANDLED = {
    "weigh(0.0)": {"reduction": "weighted", "weight": 0.0},
    "weigh(1.0)": {"reduction": "weighted", "weight": 1.0},
    "weigh(tensor)": {"reduction": "weighted", "weight": torch.tensor(3.0)},
    "weighted and dropped": {"reduction": "weighted", "weight": 2.0, "skip_nonfinite": True},
    "skip_nonfinite": {"skip_nonfinite": True},
    "skip_norm": {"skip_norm": 1e3},
    "skip_nonfinite alone": {"skip_nonfinite": True, "accum_iters": 1},
    "window_transforms": {"window_transforms": [lambda given, _: [g.mul_(2) for g in given]]},
    "clipping": {"global_clipnorm": 0.1},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
}


@pytest.mark.parametrize("handled", HANDLED)
@pytest.mark.parametrize("given", GIVEN)
def test_gradients_stay_as_the_caller_gave_them(given, handled):
    """Good and bad ones, inside a window and at its end; and those of a stateless step."""
    options = {"accum_iters": 2, **HANDLED[handled]}
    weight = options.pop("weight", None)
    found = [keras.Variable(np.ones(g.shape), dtype=str(g.dtype)[6:]) for g in GIVEN[given]()]
    ours = hosts.ours("SGD", learning_rate=0.1, momentum=0.9, **options)
    ours.build(found)
    for factor in (1.0, 1.0, 1.0, np.inf, 1.0, np.nan):
        gradients = [g * factor if factor != 1 else g for g in GIVEN[given]()]
        for is_stateless in (True, False):
            before = [g.clone() for g in gradients]
            state = [v.value for v in ours.variables], [v.value for v in found]
            were = [value.clone() for value in sum(state, [])]
            if weight is not None:
                ours.weigh(weight)
            if is_stateless:
                ours.stateless_apply(state[0], gradients, state[1])
                for value, was in zip(sum(state, []), were):
                    assert torch.equal(value.nan_to_num(), was.nan_to_num())
            else:
                ours.apply(gradients, found)
            for gradient, was in zip(gradients, before):
                assert torch.equal(gradient.nan_to_num(7.0), was.nan_to_num(7.0))


def test_a_weight_of_zero_and_one_tensor():
    """The gradient with the weight 0 counts for nothing, the other one alone."""
    w = keras.Variable([3.0, 5.0])
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=2, reduction="weighted")
    gradient = torch.tensor([2.0, 4.0])
    for weight in (0.0, 1.0):
        ours.weigh(weight)
        ours.apply([gradient], [w])
    assert_near(values([w]), [[1.0, 1.0]])


@pytest.mark.parametrize(
    "of_sums, of_gradients",
    [
        ("float32", torch.float16),
        ("float32", torch.float64),
        ("float16", torch.float16),
        ("bfloat16", torch.float32),
    ],
)
def test_data_types(of_sums, of_gradients):
    """Gradients of another type are summed in the sums' own, float32 for half precision."""
    gradients, found = draw(LENGTH), variables(of_sums)
    gradients = [[g.to(of_gradients) for g in each] for each in gradients]
    ours = hosts.ours("SGD", learning_rate=0.1, accum_iters=LENGTH)
    for each in gradients:
        ours.apply(each, found)
    floats = [[g.float() for g in each] for each in gradients]
    wanted = expected(floats, rule="SGD")  # stock Adam in bfloat16 hardly moves
    tolerance = 1e-6 if of_sums == "float32" else 1e-2
    assert_near([value.astype("float32") for value in values(found)], wanted, tolerance)
    kinds = {total.value.dtype for total in ours._accumulation.store.sums}
    assert kinds == {torch.float32}


@pytest.mark.parametrize("options", [{}, {"reduction": "mean"}, {"reduction": "weighted"}])
def test_float64_under_float32(options):
    """Averages of float64 gradients are exact, also where Keras's own numbers are float32."""
    found, wanted = variables("float64"), variables("float64")
    gradients = [[g.double() for g in each] for each in draw(3)]
    ours = hosts.ours("SGD", learning_rate=0.5, accum_iters=3, **options)
    weights = [1.0, 2.0, 4.0] if "weighted" in options.values() else [1.0, 1.0, 1.0]
    for weight, each in zip(weights, gradients):
        if weights[1] != 1:
            ours.weigh(weight)
        ours.apply(each, found)
    averages = [sum(w * g for w, g in zip(weights, row)) / sum(weights) for row in zip(*gradients)]
    hosts.stock("SGD", learning_rate=0.5).apply(averages, wanted)
    assert_near(values(found), values(wanted), tolerance=1e-14)


MAPPED = {
    "all": lambda v, ours: True,
    "all but iterations": lambda v, ours: v is not ours.iterations,
    "sums": lambda v, ours: "accumulator" in v.path,
    "counters": lambda v, ours: "window" in v.path and not v.shape,
    "no variable": lambda v, ours: False,
}


@pytest.mark.parametrize("is_mapped", MAPPED.values(), ids=MAPPED)
def test_a_scope_with_some_of_the_variables(is_mapped):
    """Those in a StatelessScope have its values, the others have their own."""
    plain, found = variables(), variables()
    alone, ours = (
        hosts.ours("Adam", learning_rate=0.1, accum_iters=2, name="same") for _ in range(2)
    )
    alone.build(plain), ours.build(found)
    mapped = [v for v in [*ours.variables, *found] if is_mapped(v, ours)]
    before = values(mapped)
    with keras.StatelessScope([(v, v.value.detach().clone()) for v in mapped]):
        for each in draw(5):
            alone.apply(each, plain)
            ours.apply(each, found)
            pairs = zip([*ours.variables, *found], [*alone.variables, *plain])
            for variable, other in pairs:
                np.testing.assert_array_equal(hosts.array(variable), hosts.array(other))
            for variable, value in zip(mapped, before):
                np.testing.assert_array_equal(hosts.array(variable._value), value)


def test_all_kinds_in_one_window():
    """A part of the variables, in another order, and all of them."""
    found = [*variables(), keras.Variable(1.0)]
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=3)
    ours.build(found)
    one, *_ = draw(1)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        ours.apply([*one[:2], None, torch.tensor(2.0)], found)
    ours.apply([torch.tensor(5.0), one[1]], [found[3], found[1]])
    ours.apply([*one, torch.tensor(3.0)], found)
    wanted = [1 - 2 * one[0] / 3, 1 - one[1], 1 - one[2] / 3, 1 - torch.tensor(10.0) / 3]
    assert_near(values(found), [hosts.array(w) for w in wanted])
    assert ours.window_position == 0 and ours.completed_updates == 1


def test_an_error_inside_a_window_adds_nothing():
    found, (one, two) = variables(), draw(2)
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=2)
    ours.apply(one, found)
    before = ours.get_state()
    for wrong in ([one[0], one[1], torch.ones(3)], [one[0], torch.ones(2, 2), one[2]]):
        with pytest.raises(RuntimeError):
            ours.apply(wrong, found)
        for name, value in ours.get_state().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    ours.apply(two, found)
    assert_near(values(found), [1 - hosts.array(a + b) / 2 for a, b in zip(one, two)])


@pytest.mark.parametrize("bad", ["empty", "complex", "half", "mixed"])
def test_norms_of_unusual_gradients(bad):
    """Fused norms don't take them all; the result is the same."""
    kinds = {
        "empty": torch.float32,
        "complex": torch.complex64,
        "half": torch.float16,
        "mixed": torch.float64,
    }
    values = hosts.ours("Adam", accum_iters=2)._accumulation.values
    tensors = [torch.ones(3), torch.full((0,) if bad == "empty" else (4,), 2.0).to(kinds[bad])]
    square = sum(float((t.abs().double() ** 2).sum()) for t in tensors)
    assert abs(float(values.norm(tensors)) - square**0.5) < 1e-5
    assert values.all_finite(tensors) == 1
    for wrong in (np.nan, np.inf, -np.inf):
        assert values.all_finite([*tensors, torch.tensor([1.0, wrong])]) == 0


TRACED = {
    "all": {},
    "a gradient is missing": {},
    "weighted": {"reduction": "weighted"},
    "clipped": {"global_clipnorm": 0.5},
    "transformed": {"window_transforms": [lambda gradients, _: [2 * g for g in gradients]]},
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Dynamo:UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", TRACED)
def test_one_compiled_graph_is_enough(case):
    """`fullgraph=True` fails if a step leaves it, and each micro-batch has the same one."""
    graphs, results = [], []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    compile = functools.partial(torch.compile, backend=backend, fullgraph=True)
    count = 2 if case == "a gradient is missing" else 3
    for wrap in (compile, lambda step: step):
        torch._dynamo.reset()
        found = variables()
        ours = hosts.ours("Adam", learning_rate=0.1, accum_iters=LENGTH, **TRACED[case])
        ours.build(found)

        def step(gradients, weight, ours=ours, found=found):
            if ours.reduction == "weighted":
                ours.weigh(weight)
            ours.apply(gradients[:count], found[:count])

        step = wrap(step)
        for weight, gradients in enumerate(draw(2 * LENGTH), start=1):
            step(gradients, torch.tensor(float(weight)))
        assert ours.completed_updates == 2
        results.append(values(found))
    assert len(graphs) == 1
    assert_near(*results)


class LeavesTheGraph(hosts.accum.AccumulationSchedule):
    """Ends a compiled graph in the middle of a step, as code that PyTorch can't trace does."""

    def in_step(self, ops, updates):
        torch._dynamo.graph_break()
        return super().in_step(ops, updates)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")
def test_a_step_in_several_graphs_is_compiled_once():
    """The rest of the step doesn't depend on which objects the first part made."""
    graphs, found = [], variables()

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    ours = hosts.ours("Adam", learning_rate=0.1, accum_iters=LeavesTheGraph({0: LENGTH}))
    ours.build(found)
    step = torch.compile(lambda gradients: ours.apply(gradients, found), backend=backend)
    counts = []
    for gradients in draw(2 * LENGTH):
        step(gradients)
        counts.append(len(graphs))
    assert counts[0] == counts[-1], counts
    assert_near(values(found), expected(draw(2 * LENGTH)))
