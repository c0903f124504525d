"""The parts of `gpu.py`, each of which runs in a process: a function of the options and a name."""

import contextlib
import functools
import time

import keras
import numpy as np
from micro_batch import fits, runs
from shared import contenders, networks
from shared.contenders import DEFAULT, FLOOR, IN_SLICES, OWN, STOCK, WEIGHTED
from shared.timing import smallest
from tables import CONTROL, FULL, MANY, OURS, SETTINGS, contenders_of

from keras_accum import AdamAccumulate, MicroBatches, SGDAccumulate
from keras_accum.keras3.compare import in_full_precision

IS_TORCH = keras.backend.backend() == "torch"
MICRO_BATCH, WINDOW = 16, 8
FRACTION = 0.03  # of the memory, for PyTorch; `gpu.py` gives JAX no more

# -- `fit` -------------------------------------------------------------------------------------


def find():
    """Return {name: Contender}, in the order of the tables."""
    known = {
        **contenders.find("keras3"),
        DEFAULT: contenders.default("keras3"),
        WEIGHTED: contenders.default("keras3", reduction="weighted"),
        IN_SLICES: contenders.in_slices("keras3", MICRO_BATCH),
    }
    return {name: known[name] for name in contenders_of(keras.backend.backend())}


def fit(options, network):
    """Return {contender: milliseconds of a micro-batch}, None for one that fails."""
    count = WINDOW * (2 if options.small else 6)
    make = networks.on_gpu(options.small)[network]
    steps = {name: fits(keras, make, c, WINDOW, micro_batches=count) for name, c in find().items()}
    working = {name: step for name, step in steps.items() if runs(name, step)}
    times = smallest(working, options.rounds) if options.rounds else {}
    return {name: round(1000 * times[name] / count, 3) if name in times else None for name in steps}


def memory(options, name):
    """Return the peak of a contender in MB (2 ** 20 bytes), or None without a GPU."""
    make = networks.on_gpu(options.small)[networks.TRANSFORMER]
    run = fits(keras, make, find()[name], WINDOW, micro_batches=2 * WINDOW)
    run()
    if not IS_TORCH:
        import jax

        stats = jax.devices()[0].memory_stats()
        return stats and round(stats["peak_bytes_in_use"] / 2**20)
    import torch

    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()  # the first call has chosen its algorithms
    run()
    return round(torch.cuda.max_memory_allocated() / 2**20)


# -- the optimizer alone -----------------------------------------------------------------------


def alone(options, what):
    """Return {case: {contender: its time}}.

    On JAX, over the floor, four bare additions `acc += g` and one stock update, of the programs of
    `accelerators`. On PyTorch, milliseconds from the call to the device's end with a transformer's
    variables, inside a window and at its end.
    """
    rounds = max(options.rounds, 1)
    if IS_TORCH:
        return alone_on_torch(rounds, networks.on_gpu(options.small)[networks.TRANSFORMER])
    import jax
    from accelerators.programs import CASES, K

    found = {}
    for case in [MANY] if options.small else CASES:
        windows = {name: window(jax, K, program) for name, program in CASES[case]().items()}
        for run in windows.values():
            run()
        with jax.transfer_guard_device_to_host("disallow_explicit"):
            windows[DEFAULT]()  # an error if Python waits for a value
        times = smallest(windows, rounds)
        floor = ((K - 1) * times[FLOOR] + times[STOCK]) / K
        found[case] = {name: round(times[name] / floor, 2) for name in times}
    return found


def window(jax, k, program):
    """Return a function that runs a window of a program."""
    function = jax.jit(program.step, static_argnums=0, donate_argnums=1)
    shapes = program.donated, program.data
    state, data = jax.tree.map(lambda a: jax.numpy.zeros(a.shape, a.dtype), shapes)
    steps = k // program.micro_batches
    decisions = [program.decisions[0]] * (steps - 1) + [program.decisions[-1]]

    def run():
        nonlocal state
        for decision in decisions:
            _, state = function(decision, state, data)
        jax.block_until_ready(state)

    return run


def alone_on_torch(rounds, network):
    import torch

    variables = network(keras)[0].trainable_variables
    gradients = [torch.full_like(variable.value, 1e-3) for variable in variables]
    parameters = [torch.nn.Parameter(v.value.detach().clone()) for v in variables]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    sums = [torch.zeros_like(gradient) for gradient in gradients]
    found = contenders.find("keras3")
    made = {name: found[name].optimizer(WINDOW) for name in (STOCK, OWN)}
    made[DEFAULT] = AdamAccumulate(accum_iters=WINDOW)
    made["skip_nonfinite"] = AdamAccumulate(accum_iters=WINDOW, skip_nonfinite=True)
    steps = {FLOOR: lambda: torch._foreach_add_(sums, gradients)}
    for name, optimizer in made.items():
        optimizer.build(variables)
        steps[name] = functools.partial(optimizer.apply, gradients, variables)
    steps["torch.optim.Adam"] = torch.optim.Adam(parameters, fused=True).step
    inside, at_end = {}, {}
    with torch.no_grad():
        for name, step in steps.items():
            *times, at_end[name] = times_in_window(torch, step, rounds)
            if name not in (STOCK, "torch.optim.Adam"):
                inside[name] = round(sum(times) / (WINDOW - 1), 3)
        del at_end[FLOOR]
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")  # if Python waits
        for _ in range(WINDOW - 1):
            steps[DEFAULT]()
    return {"inside a window": inside, "at its end": at_end}


def times_in_window(torch, step, rounds):
    """Return the smallest time of each micro-batch of a window, in milliseconds."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times = [[] for _ in range(WINDOW)]
    for _ in range(rounds + 1):  # the first window makes what is made once
        for each in times:
            wait()
            start = time.perf_counter()
            step()
            wait()
            each.append(time.perf_counter() - start)
    return [round(1000 * min(each[1:]), 3) for each in times]


# -- where trainings end -----------------------------------------------------------------------

SMALL_NETWORKS = {
    "MLP, tanh": functools.partial(networks.mlp, width=256, activation="tanh"),
    "convolutions, relu": functools.partial(networks.deep_conv_net, size=16, filters=(32,)),
    "transformer": functools.partial(networks.transformer, width=64, blocks=1, vocabulary=200),
}


def distances(options, setting):
    """Return {network: {training: its distance}}, over how far the big batch's weights moved.

    The setting is TF32, none, or half precision.
    """
    keras.config.set_dtype_policy("float32" if setting in SETTINGS[:2] else setting)
    names = list(SMALL_NETWORKS)[: 1 if options.small else None]
    with in_full_precision() if setting == FULL else contextlib.nullcontext():
        return {name: distances_of(SMALL_NETWORKS[name]) for name in names}


def distances_of(network, window=5, updates=3):
    keras.utils.set_random_seed(1)
    np.random.seed(1)
    model, make_x = network(keras)
    big_batch = MICRO_BATCH * window
    x, y = networks.draw(make_x, big_batch * updates)
    start = model.get_weights()
    order = np.random.permutation(big_batch) + big_batch * np.arange(updates)[:, None]

    def train(make, batch, order=slice(None), callbacks=(), **arguments):
        model.set_weights(start)
        model.compile(make(0.1, momentum=0.9, **arguments), networks.LOSS)
        settings = {"shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x[order], y[order], batch_size=batch, **settings)
        return flat(model.get_weights())

    stock = keras.optimizers.SGD
    big = train(stock, big_batch)
    ends = {
        OURS: train(SGDAccumulate, MICRO_BATCH, accum_iters=window),
        CONTROL: train(stock, big_batch, order.ravel()),
        OWN: train(stock, MICRO_BATCH, gradient_accumulation_steps=window),
        IN_SLICES: train(stock, big_batch, callbacks=[MicroBatches(MICRO_BATCH)]),
    }
    moved = abs(big - flat(start)).max()
    return {name: float(f"{abs(end - big).max() / moved:.1e}") for name, end in ends.items()}


def flat(weights):
    return np.concatenate([np.ravel(weight) for weight in weights]).astype("float64")


def out_of_memory(options, what):
    """Return {training: how it ended} with 3% of the memory, in order.

    That is the largest difference of a weight to slices of 16, over the largest weight, or the
    error. The first one should run out of memory.
    """
    if IS_TORCH:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(FRACTION)
    big, size = (32, 8) if options.small else (2048, 128)
    stock, ours = keras.optimizers.SGD, SGDAccumulate
    in_slices = f"MicroBatches({MICRO_BATCH})"
    trainings = {
        "stock, big batch": (stock(0.1), big),
        in_slices: (stock(0.1), big, [MicroBatches(MICRO_BATCH)]),
        'MicroBatches("auto")': (stock(0.1), big, [MicroBatches("auto")]),
        "accumulating optimizer": (ours(0.1, accum_iters=big // MICRO_BATCH), MICRO_BATCH),
    }
    ends = {name: attempt(size, big, *training) for name, training in trainings.items()}
    expected = ends[in_slices]
    for name, end in ends.items():
        if not isinstance(end, str):
            distance = "trained"
            if not isinstance(expected, str):
                distance = float(f"{abs(end - expected).max() / abs(expected).max():.1e}")
            ends[name] = distance
    return ends


def attempt(size, samples, optimizer, batch, callbacks=()):
    """Return the weights after two epochs on pictures of this size, or the error."""
    keras.utils.set_random_seed(0)
    layers, conv = keras.layers, {"kernel_size": 3, "padding": "same", "activation": "tanh"}
    hidden = layers.Conv2D(32, **conv), layers.Conv2D(32, **conv), layers.GlobalAveragePooling2D()
    model = keras.Sequential([keras.Input((size, size, 3)), *hidden, layers.Dense(1)])
    model.compile(optimizer, "mse")
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, size, size, 3)).astype("float32")
    y = random.normal(size=(samples, 1)).astype("float32")
    settings = {"shuffle": False, "verbose": 0, "callbacks": list(callbacks), "epochs": 2}
    try:
        model.fit(x, y, batch_size=batch, **settings)
    except Exception as error:  # each backend has its own
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return flat(model.get_weights())
