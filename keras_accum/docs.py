"""The public docstrings, put together from what the optimizers share and what they don't."""

_SHARED_ARGUMENTS = """\
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
{reduction}
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: it isn't added and doesn't count. Otherwise it spoils its own window, as it
            would spoil the big batch, and nothing after it but what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window: factors of zero in the update's scalars, or one conditional around the update.
            Numbers and state are the same. "conditional" costs less where parameters dominate, and
            can't run in torch.compile.
{all_reduce}
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates."""

_WEIGHTED = """\
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights)."""

_REDUCTION = {
    "keras3": _WEIGHTED,
    "tf_keras": _WEIGHTED,
    "keras2": """\
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.""",
}

_LATE = """\
        all_reduce: "per_micro_batch" (default) or "per_window"{where}. When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy."""

_ALL_REDUCE = {
    "keras3": _LATE.format(where=" (TensorFlow)"),
    "tf_keras": _LATE.format(where=""),
    "keras2": """\
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.""",
}

_HOST_ARGUMENTS = {
    "keras3": """\
        weight_decay: Float >= 0 or None (default). Before an update, weights shrink by
            learning_rate * weight_decay of themselves.
        clipnorm, clipvalue, global_clipnorm: Float > 0 or None (default), one of them at most.
            Clip the window's average: each weight's norm, each element, the norm of all together.
        use_ema, ema_momentum, ema_overwrite_frequency: Boolean, default False; float in [0, 1],
            default 0.99; integer >= 1 or None (default). Keep a moving average of the weights, and
            overwrite the weights with it every so many updates.
        loss_scale_factor: Float > 0 or None (default). What the loss is multiplied by, and the
            gradients are divided by.
        gradient_accumulation_steps: None. Keras's own accumulation; use `accum_iters`.
        name: String, default the class's name in snake case.""",
    "tf_keras": """\
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.""",
    "keras2": """\
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.""",
}

_WINDOW_WEIGHT = """
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32."""

_MISSING = """
        missing_gradients: integers, one more than there are variables, with accum_iters > 1 {when}:
            for each variable in how many micro-batches of the open window its gradient has been
            missing, and last the number of the window."""

_MORE_STATE = {
    "keras3": _WINDOW_WEIGHT + _MISSING.format(when="only"),
    "tf_keras": f"""{_WINDOW_WEIGHT}{_MISSING.format(when="and once one is missing")}
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.""",
    "keras2": "",
}

_LEARNING_RATE = """\
        learning_rate: Float >= 0, default {rate}, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches."""

_LEARNING_RATES = {
    "keras3": _LEARNING_RATE,
    "tf_keras": _LEARNING_RATE,
    "keras2": """\
        learning_rate: Float >= 0, default {rate}. Keras 2.2 calls it `lr`.""",
}

_OPTIMIZERS = {
    "SGDAccumulate": {
        "rate": 0.01,
        "line": "Gradient descent with momentum, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        u <- momentum * u - learning_rate * G
        p <- p + u                                      momentum
        p <- p + momentum * u - learning_rate * G       Nesterov momentum
        p <- p - learning_rate * G                      momentum = 0""",
        "arguments": """\
        momentum: Float in [0, 1], default 0.
        nesterov: Boolean, default False.""",
        "slots": dict.fromkeys(("keras3", "tf_keras", "keras2"), "`momentum` (u)"),
        "paper": """\
    On the importance of initialization and momentum in deep learning. Ilya Sutskever, James
    Martens, George Dahl, Geoffrey Hinton, 2013.""",
    },
    "AdamAccumulate": {
        "rate": 0.001,
        "line": "Adam, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    Epsilon is the paper's "epsilon hat", outside the root, as in every Keras. PyTorch and optax
    have Algorithm 1's, which is smaller by sqrt(1 - beta_2^t).""",
        "arguments": """\
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.""",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v), with amsgrad `velocity_hat`",
            "tf_keras": "`m`, `v`, with amsgrad `vhat`",
            "keras2": "`momentum` (m), `velocity` (v), with amsgrad `velocity_hat`",
        },
        "paper": """\
    Adam: A Method for Stochastic Optimization. Diederik P. Kingma, Jimmy Ba, 2014.""",
    },
    "AMSGradAccumulate": {
        "rate": 0.001,
        "line": "AMSGrad, Adam with a second moment that never falls, per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        w <- max(w, v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(w) + epsilon)

    The maximum is of v before its bias correction, as in every Keras. PyTorch takes it after.""",
        "arguments": """\
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.""",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v), `velocity_hat` (w)",
            "tf_keras": "`m`, `v`, `vhat` (w)",
            "keras2": "`momentum` (m), `velocity` (v), `velocity_hat` (w)",
        },
        "paper": """\
    On the Convergence of Adam and Beyond. Sashank J. Reddi, Satyen Kale, Sanjiv Kumar, 2018.""",
    },
    "RMSpropAccumulate": {
        "rate": 0.001,
        "line": "RMSprop, plain or centered, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        v <- v + (1 - rho) * (G^2 - v)
        a <- a + (1 - rho) * (G - a)                    centered, else a = 0
        d <- learning_rate * G / {root}
        u <- momentum * u + d
        p <- p - u                                      momentum = 0: p <- p - d

    {convention}""",
        "arguments": """\
        rho: Float in [0, 1), default 0.9.
        momentum: Float in [0, 1], default 0.
        epsilon: Float >= 0, default 1e-7; None is the default.
        centered: Boolean, default False. Divide by the deviation of the gradient instead of its
            root mean square.""",
        "slots": {
            "keras3": "`velocity` (v), with momentum `momentum` (u), centered `average_gradient`",
            "tf_keras": "`rms` (v), with momentum `momentum` (u), centered `mg`",
            "keras2": "`velocity` (v)",
        },
        "paper": """\
    Lecture 6.5, RMSprop: divide the gradient by a running average of its recent magnitude. Tijmen
    Tieleman, Geoffrey Hinton, 2012. Centered: Generating Sequences With Recurrent Neural Networks.
    Alex Graves, 2013.""",
        "keras3": {
            "root": "sqrt(v - a^2 + epsilon)",
            "convention": "Epsilon is under the root in Keras 3; Keras 2 without momentum has it "
            "outside.",
        },
        "tf_keras": {
            "root": "(sqrt(v - a^2) + epsilon)",
            "convention": "With momentum, this host has epsilon under the root, as Keras 3 always "
            "has.",
        },
        "keras2": {
            "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        v <- v + (1 - rho) * (G^2 - v)
        p <- p - learning_rate * G / (sqrt(v) + epsilon)

    Epsilon is outside the root, where Keras 3 has it inside.""",
            "arguments": """\
        rho: Float in [0, 1), default 0.9.
        epsilon: Float >= 0, default 1e-7; None is the default.""",
        },
    },
}

_TEMPLATE = """{line}

{mathematics}

    Inside a window weights and slots are exactly unchanged. The traced graph has no branch, unless
    `gate` asks for one.

    Args:
{learning_rate}
{arguments}
{host_arguments}
{shared_arguments}

    State, all of it in `{variables}`:
        iterations: integer scalar, completed updates.
        {slots}: each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.{more_state}
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
{paper}

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import {name}
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer={name}(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
"""


_OF_ANY = """{stock}, one update per window of micro-batches.

    The update is that of `{module}.{stock}`, from the average gradient of a window of `accum_iters`
    micro-batches. Inside a window weights and slots are exactly unchanged.

    Args:
        The arguments of `{stock}` in their order, then:
{host_arguments}
{shared_arguments}

    State, all of it in `{variables}`: that of `{stock}` and, with accum_iters > 1,
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.{more_state}
        `get_state` has it by names.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Example:

    >>> from keras_accum.{host} import accumulating
    >>> from {module} import {stock}
    >>> optimizer = accumulating({stock})(accum_iters=5)
    >>> optimizer.accum_iters
    5
"""


def _of_any(host, stock):
    return _OF_ANY.format(
        stock=stock.__name__,
        module=stock.__module__,
        host=host,
        host_arguments=_HOST_ARGUMENTS[host],
        shared_arguments=_SHARED_ARGUMENTS.format(
            reduction=_REDUCTION[host], all_reduce=_ALL_REDUCE[host]
        ),
        variables="variables" if host == "keras3" else "weights",
        more_state=_MORE_STATE[host],
    )


def docstring(name, host, import_keras, stock=None):
    """The docstring of an optimizer on a host, that of a `stock` class if it has no own text here.

    None if there is neither.
    """
    if name not in _OPTIMIZERS:
        return stock and _of_any(host, stock)
    texts = {**_OPTIMIZERS[name], **_OPTIMIZERS[name].get(host, {})}
    return _TEMPLATE.format(
        name=name,
        host=host,
        import_keras=import_keras,
        line=texts["line"],
        mathematics=texts["mathematics"].format(**texts),
        learning_rate=_LEARNING_RATES[host].format(rate=texts["rate"]),
        arguments=texts["arguments"],
        host_arguments=_HOST_ARGUMENTS[host],
        shared_arguments=_SHARED_ARGUMENTS.format(
            reduction=_REDUCTION[host], all_reduce=_ALL_REDUCE[host]
        ),
        variables="variables" if host == "keras3" else "weights",
        slots=texts["slots"][host],
        more_state=_MORE_STATE[host],
        paper=texts["paper"],
    )


_NEW_STYLE = """{stock} that isn't legacy, one update per window of micro-batches.

    An update is that of `{module}.{stock}`, from the average gradient of a window of `accum_iters`
    micro-batches. Inside a window weights and slots are exactly unchanged. The traced graph has no
    branch, unless `gate` asks for one.{more}

    Args:
        The arguments of `{stock}` in their order, those that every optimizer of its kind has, and

{shared_arguments}

    State, all of it in `variables`: that of `{stock}` and, with accum_iters > 1,
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.{more_state}
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.
"""

_NEW_STYLE_NADAM = """

    In a graph, the stock optimizer multiplies its product of rates once for each variable instead
    of once for each update. This one does what the formula says, as the stock one in eager mode. At
    `accum_iters=1` it is the stock one."""


def of_new_style(stock):
    """The docstring of the class for a stock optimizer of Keras 2 that isn't legacy."""
    shared = _SHARED_ARGUMENTS.format(
        reduction=_REDUCTION["tf_keras"], all_reduce=_ALL_REDUCE["tf_keras"]
    )
    return _NEW_STYLE.format(
        stock=stock.__name__,
        module=stock.__module__,
        more=_NEW_STYLE_NADAM if stock.__name__ == "Nadam" else "",
        shared_arguments=shared.partition("\n        decay:")[0],  # which legacy ones have
        more_state=_MORE_STATE["tf_keras"].replace(" and once one is missing", " only"),
    )
