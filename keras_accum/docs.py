"""The public docstrings, composed of shared texts and of texts for each optimizer.

A text that depends on the Keras has a key for each style of optimizers: "keras3", "tf_keras" for
the legacy optimizers of tf_keras, "new_style" for its newer optimizers, and "keras2". The texts
are read in `help()` and as Markdown. No host is imported here.

RANGE in an entry stands for the allowed values of the argument, see `ranges`.
"""

import inspect
import re
import textwrap

from keras_accum import arguments, ranges

_SHARED_ARGUMENTS = """\
        accum_iters: Integer >= 1 and below `2**31`, default 1. The number of micro-batches that
            make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable.
{reduction}
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
{all_reduce}
        lr: Another name for `learning_rate`.{decay}"""

_DECAY = """
        decay: RANGE, default 0. The learning rate is divided by
            `1 + decay * completed_updates`."""

_NO_DECAY = """
        decay: None. On this Keras, the learning rate of Nadam doesn't decay; see
            `schedule_decay`."""

_WEIGHTED = """\
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`."""

_REDUCTION = {
    "keras3": _WEIGHTED,
    "tf_keras": _WEIGHTED,
    "new_style": _WEIGHTED,
    "keras2": """\
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.""",
}

_LATE = """\
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`{where}. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`."""

_ALL_REDUCE = {
    "keras3": _LATE.format(where=" (TensorFlow only)"),
    "tf_keras": _LATE.format(where=""),
    "new_style": _LATE.format(where=""),
    "keras2": """\
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.""",
}

_WEIGHT_DECAY = """\
        weight_decay: {weight_decay}. Each update first reduces the weights by
            `learning_rate * weight_decay` times their value."""

_MOVING_AVERAGE = """\
        use_ema: RANGE, default False. Keep a moving average of the weights.
        ema_momentum: RANGE, default 0.99. The share of the average that an update keeps.
        ema_overwrite_frequency: RANGE (default). The number of updates
            after which the average overwrites the weights."""

_CLIPPING = """\
        clipnorm: RANGE (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: RANGE (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: RANGE (default). Clip the window's average gradients of
            all variables together to this norm."""

_HOST_ARGUMENTS = {
    "keras3": f"""\
{_WEIGHT_DECAY}
{_CLIPPING} At most one of `clipnorm`,
            `clipvalue` and `global_clipnorm` may be set.
{_MOVING_AVERAGE}
        loss_scale_factor: RANGE (default). The loss is multiplied by this
            factor, and the gradients are divided by it.
        gradient_accumulation_steps: None. Keras's own accumulation; use `accum_iters` instead.
        name: String, default the class's name in snake case.""",
    "new_style": f"""\
{_WEIGHT_DECAY}
{_CLIPPING} At most one of `clipnorm`
            and `global_clipnorm` may be set.
{_MOVING_AVERAGE}
        jit_compile: RANGE, default True. Compile the update with XLA if there is a GPU.
        name: String, default the class's name.""",
    "tf_keras": f"""\
        name: String, default the class's name.
{_CLIPPING} At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.""",
    "keras2": """\
        clipnorm: RANGE (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: RANGE (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.""",
}

_WINDOW_WEIGHT = """
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32."""

_MISSING = """
        - `missing_gradients`{when}: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window."""

_UNAPPLIED = """
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0."""

_MORE_STATE = {
    "keras3": _WINDOW_WEIGHT + _MISSING.format(when=""),
    "new_style": _WINDOW_WEIGHT + _MISSING.format(when="") + _UNAPPLIED,
    "tf_keras": _WINDOW_WEIGHT + _MISSING.format(when=", once a gradient is missing") + _UNAPPLIED,
    "keras2": "",
}

_LEARNING_RATE = """\
        learning_rate: RANGE, default {rate}; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches."""

_LEARNING_RATES = {
    "keras3": _LEARNING_RATE,
    "tf_keras": _LEARNING_RATE,
    "new_style": _LEARNING_RATE,
    "keras2": """\
        learning_rate: RANGE, default {rate}. Keras 2.2 calls this argument `lr`.""",
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
        momentum: RANGE, default 0.
        nesterov: RANGE, default False.""",
        "slots": {
            "keras3": "`momentum` (u)",
            "tf_keras": "`momentum` (u)",
            "new_style": "`m` (u)",
            "keras2": "`momentum` (u)",
        },
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

    Epsilon is the paper's "epsilon hat" and is outside the root, as in every Keras. PyTorch and
    optax take the epsilon of Algorithm 1, which corresponds to `epsilon * sqrt(1 - beta_2^t)` in
    this formula.""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.
        amsgrad: RANGE, default False. See AMSGradAccumulate.""",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v), with amsgrad `velocity_hat`",
            "tf_keras": "`m`, `v`, with amsgrad `vhat`",
            "new_style": "`m`, `v`, with amsgrad `vhat`",
            "keras2": "`momentum` (m), `velocity` (v), with amsgrad `velocity_hat`",
        },
        "paper": """\
    Adam: A Method for Stochastic Optimization. Diederik P. Kingma, Jimmy Ba, 2014.""",
    },
    "AMSGradAccumulate": {
        "rate": 0.001,
        "line": "AMSGrad, Adam with a nondecreasing second moment, one update per window of "
        "micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        w <- max(w, v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(w) + epsilon)

    The maximum is taken of v before its bias correction, as in every Keras and in PyTorch. optax
    takes the maximum after the bias correction by default. Epsilon is outside the root, as in
    AdamAccumulate.""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v), `velocity_hat` (w)",
            "tf_keras": "`m`, `v`, `vhat` (w)",
            "new_style": "`m`, `v`, `vhat` (w)",
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
        rho: RANGE, default 0.9.
        momentum: RANGE, default 0.
        epsilon: RANGE, default 1e-7; None means the default.
        centered: RANGE, default False. Divide by the standard deviation of the gradient
            instead of its root mean square.""",
        "slots": {
            "keras3": "`velocity` (v), with momentum `momentum` (u), centered `average_gradient`",
            "tf_keras": "`rms` (v), with momentum `momentum` (u), centered `mg`",
            "new_style": "`velocity` (v), `momentum` (u), centered `average_gradient`",
            "keras2": "`velocity` (v)",
        },
        "paper": """\
    Lecture 6.5, RMSprop: divide the gradient by a running average of its recent magnitude. Tijmen
    Tieleman, Geoffrey Hinton, 2012. Centered: Generating Sequences With Recurrent Neural Networks.
    Alex Graves, 2013.""",
        **dict.fromkeys(
            ("keras3", "new_style"),
            {
                "root": "sqrt(v - a^2 + epsilon)",
                "convention": "Epsilon is under the root in Keras 3 and in the newer optimizers "
                "of tf_keras.\n    In legacy tf_keras without momentum, and in Keras 2, epsilon "
                "is outside the root.",
            },
        ),
        "tf_keras": {
            "root": "(sqrt(v - a^2) + epsilon)",
            "convention": "This is the formula without momentum. With momentum, this Keras has "
            "epsilon under the\n    root, as Keras 3 always has.",
        },
        "keras2": {
            "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        v <- v + (1 - rho) * (G^2 - v)
        p <- p - learning_rate * G / (sqrt(v) + epsilon)

    Epsilon is outside the root; in Keras 3 it is under the root.""",
            "arguments": """\
        rho: RANGE, default 0.9.
        epsilon: RANGE, default 1e-7; None means the default.""",
        },
    },
    "AdamWAccumulate": {
        "rate": 0.001,
        "line": "Adam with decoupled weight decay, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        p <- p - learning_rate * weight_decay * p
        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    Weight decay is part of the update, so the weights shrink once per window. Epsilon is outside
    the root, as in AdamAccumulate.""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.
        amsgrad: RANGE, default False. See AMSGradAccumulate.""",
        "weight_decay": "RANGE, default 0.004",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v), with amsgrad `velocity_hat`",
            "new_style": "`m`, `v`, with amsgrad `vhat`",
        },
        "paper": """\
    Decoupled Weight Decay Regularization. Ilya Loshchilov, Frank Hutter, 2017.""",
    },
    "AdadeltaAccumulate": {
        "rate": 0.001,
        "line": "Adadelta, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        a <- rho * a + (1 - rho) * G^2
        d <- sqrt(b + epsilon) / sqrt(a + epsilon) * G
        b <- rho * b + (1 - rho) * d^2
        p <- p - learning_rate * d

    Epsilon is under both roots, as in the paper and in every Keras. The paper has no learning rate:
    its rule is this formula with `learning_rate=1`.""",
        "arguments": """\
        rho: RANGE, default 0.95.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "slots": {
            "keras3": "`accumulated_grad` (a), `accumulated_delta_var` (b)",
            "tf_keras": "`accum_grad` (a), `accum_var` (b)",
            "new_style": "`accumulated_grad` (a), `accumulated_delta_var` (b)",
            "keras2": "`accumulated_grad` (a), `accumulated_delta_var` (b)",
        },
        "paper": """\
    ADADELTA: An Adaptive Learning Rate Method. Matthew D. Zeiler, 2012.""",
        "keras2": {"rate": 1.0},
    },
    "AdagradAccumulate": {
        "rate": 0.001,
        "line": "Adagrad, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches, and a starting at
    {beginning}:

        a <- a + G^2
        p <- p - learning_rate * G / {root}

    {convention}""",
        "arguments": """\
        initial_accumulator_value: RANGE, default 0.1.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "beginning": "initial_accumulator_value",
        "root": "sqrt(a + epsilon)",
        "convention": "Epsilon is under the root in Keras 3 and in the newer optimizers of "
        "tf_keras.\n    In legacy tf_keras and in Keras 2 it is outside the root.",
        "slots": dict.fromkeys(
            ("keras3", "tf_keras", "new_style", "keras2"),
            "`accumulator` (a; not the gradient sum of a window)",
        ),
        "paper": """\
    Adaptive Subgradient Methods for Online Learning and Stochastic Optimization. John Duchi, Elad
    Hazan, Yoram Singer, 2011.""",
        "tf_keras": {
            "root": "(sqrt(a) + epsilon)",
            "convention": "Epsilon is outside the root; in Keras 3 it is under the root.",
        },
        "keras2": {
            "rate": 0.01,
            "beginning": "0",
            "root": "(sqrt(a) + epsilon)",
            "convention": "Epsilon is outside the root; in Keras 3 it is under the root. Newer "
            "Keras versions start\n    with a = 0.1.",
            "arguments": """\
        epsilon: RANGE, default 1e-7; None means the default.""",
        },
    },
    "AdamaxAccumulate": {
        "rate": 0.001,
        "line": "Adamax, Adam with the infinity norm, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        u <- max(beta_2 * u, |G|)
        p <- p - learning_rate / (1 - beta_1^t) * m / (u + epsilon)

    The paper has no epsilon. Every Keras adds epsilon to u.""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "slots": {
            "keras3": "`momentum` (m), `norm` (u)",
            "tf_keras": "`m`, `v` (u)",
            "new_style": "`m`, `u`",
            "keras2": "`momentum` (m), `norm` (u)",
        },
        "paper": """\
    Adam: A Method for Stochastic Optimization, section 7.1. Diederik P. Kingma, Jimmy Ba, 2014.""",
        "keras2": {"rate": 0.002},
    },
    "AdafactorAccumulate": {
        "rate": 0.001,
        "line": "Adafactor, Adam with a factored second moment, one update per window of "
        "micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches, t = 1, 2, ... the number
    of the update, and RMS(x) the root of the mean of x^2:

        alpha <- max(epsilon_2, RMS(p)) * min(learning_rate, 1 / sqrt(t))
        beta <- 1 - t^beta_2_decay
        r <- beta * r + (1 - beta) * mean of (G^2 + epsilon_1) over the last dimension
        c <- beta * c + (1 - beta) * mean of (G^2 + epsilon_1) over the second-to-last dimension
        v <- r / (mean of r over its last dimension) * c        an outer product
        d <- G / sqrt(v)
        p <- p - alpha * d / max(1, RMS(d) / clip_threshold)

    A variable with fewer than two dimensions keeps all of v, and uses neither r nor c:

        v <- beta * v + (1 - beta) * (G^2 + epsilon_1)

    The rule needs the RMS of a whole variable and of its whole update, so it has no meaning for a
    part of a variable.""",
        "arguments": """\
        beta_2_decay: RANGE, default -0.8.
        epsilon_1: RANGE, default 1e-30. Keeps the second moment from being 0.
        epsilon_2: RANGE, default 1e-3. The lower bound of `RMS(p)` in `alpha`.
        clip_threshold: RANGE, default 1. The upper bound of the RMS of d.
        relative_step: RANGE, default True. Bound the learning rate by `1 / sqrt(t)`, unless the
            rate is a schedule or another callable. Keras has the same bound in `alpha` in any case,
            so False gives the same numbers.""",
        "slots": {
            "keras3": "`r`, `c`, `velocity` (v)",
            "new_style": "`r`, `c`, `v`",
        },
        "shapes": "slots, each of its variable's dtype. `r` has the variable's shape without the "
        "last dimension, `c` without the second-to-last dimension, v has the variable's shape. "
        "With fewer than two dimensions `r` and `c` aren't used",
        "paper": """\
    Adafactor: Adaptive Learning Rates with Sublinear Memory Cost. Noam Shazeer, Mitchell Stern,
    2018.""",
    },
    "NadamAccumulate": {
        "rate": 0.001,
        "line": "Nadam, Adam with Nesterov momentum, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches, t = 1, 2, ... the number
    of the update, and mu(t) = beta_1 * (1 - 0.5 * 0.96^{exponent}):

        w <- w * mu(t)
        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        d <- mu(t + 1) * m / (1 - w * mu(t + 1)) + (1 - mu(t)) * G / (1 - w)
        p <- p - learning_rate * d / (sqrt(v / (1 - beta_2^t)) + epsilon)

    w starts at 1, and all variables share one w. {convention}""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "exponent": "t",
        "convention": "Epsilon is outside the root.\n    In legacy tf_keras and in Keras 2, mu "
        "grows more slowly: `t * schedule_decay` in place of t.",
        "slots": {
            "keras3": "`momentum` (m), `velocity` (v)",
            "tf_keras": "`m`, `v`",
            "new_style": "`m`, `v`",
            "keras2": "`momentum` (m), `velocity` (v)",
        },
        "scalars": """
        - `u_product` (w): float scalar, one for all variables.""",
        "paper": """\
    Incorporating Nesterov Momentum into Adam. Timothy Dozat, 2016.""",
        "new_style": {
            "convention": "Epsilon is outside the root.\n    In a graph, the stock optimizer "
            "multiplies w once per variable instead of once per update. This\n    class multiplies "
            "w once per update, as the stock optimizer does in eager mode."
        },
        **{
            style: {
                "exponent": "(t * schedule_decay)",
                "convention": "Epsilon is outside the root.\n    Keras 3 has t in place of "
                "`t * schedule_decay`.",
                "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.
        schedule_decay: RANGE, default 0.004. The speed at which mu grows to `beta_1`.""",
                "scalars": f"""
        - `{scalar}` (w): float scalar, one for all variables; `u_product` in `get_state`.""",
                **more,
            }
            for style, scalar, more in (
                ("tf_keras", "momentum_cache", {"decay": _NO_DECAY}),
                ("keras2", "m_schedule", {"rate": 0.002}),
            )
        },
    },
    "FtrlAccumulate": {
        "rate": 0.001,
        "line": "FTRL-Proximal, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches, q = -learning_rate_power
    and l1, l2, shrinkage the three regularization strengths:

        n' <- n + G^2
        z <- z + G + 2 * shrinkage * p - (n'^q - n^q) / learning_rate * p
        p <- (clip(z, -l1, l1) - z) / ((n'^q + beta) / learning_rate + 2 * l2)
        n <- n'

    n starts at `initial_accumulator_value`, z at 0. Each update recomputes a weight from z: the
    previous value of the weight matters only through z.""",
        "arguments": """\
        learning_rate_power: RANGE, default -0.5. 0 gives a fixed learning rate.
        initial_accumulator_value: RANGE, default 0.1.
        l1_regularization_strength: RANGE, default 0.
        l2_regularization_strength: RANGE, default 0. An L2 penalty that isn't part of the
            gradient.
        l2_shrinkage_regularization_strength: RANGE, default 0. An L2 penalty that is part of
            the gradient in z, but not in n.
        beta: RANGE, default 0. Added to `n'^q`.""",
        "slots": dict.fromkeys(
            ("keras3", "tf_keras", "new_style"),
            "`accumulator` (n; not the gradient sum of a window), `linear` (z)",
        ),
        "paper": """\
    Ad Click Prediction: a View from the Trenches. H. Brendan McMahan and others, 2013.""",
    },
    "LionAccumulate": {
        "rate": 0.001,
        "line": "Lion, steps by the sign of the momentum, one update per window of micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches:

        p <- p - learning_rate * sign(beta_1 * m + (1 - beta_1) * G)
        m <- beta_2 * m + (1 - beta_2) * G

    Each element moves by `learning_rate` or not at all. The authors recommend a learning rate three
    to ten times smaller than Adam's, and a weight decay larger by the same factor.""",
        "arguments": """\
        beta_1: RANGE, default 0.9. The share of m in the argument of sign.
        beta_2: RANGE, default 0.99.""",
        "slots": {"keras3": "`momentum` (m)", "new_style": "`m`"},
        "paper": """\
    Symbolic Discovery of Optimization Algorithms. Xiangning Chen and others, 2023.""",
        "new_style": {"rate": 0.0001},
    },
    "LambAccumulate": {
        "rate": 0.001,
        "line": "LAMB, Adam with steps scaled to each variable's norm, one update per window of "
        "micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches, t = 1, 2, ... the number
    of the update, and |x| the norm of a whole variable:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        d <- m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
        p <- p - learning_rate * |p| / |d| * d          |p| = 0 or |d| = 0: without the ratio

    Epsilon is outside the root, after the bias correction. In the paper, weight decay is part of d.
    Keras 3 applies weight decay before the update, as in AdamW.""",
        "arguments": """\
        beta_1: RANGE, default 0.9.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-7; None means the default.""",
        "slots": {"keras3": "`momentum` (m), `velocity` (v)"},
        "paper": """\
    Large Batch Optimization for Deep Learning: Training BERT in 76 minutes. Yang You and others,
    2019.""",
    },
    "MuonAccumulate": {
        "rate": 0.001,
        "line": "Muon for matrices and Adam for the rest, one update per window of micro-batches.",
        "mathematics": """\
    G is the average gradient of a window of `accum_iters` micro-batches. For a variable with two
    dimensions that isn't excluded:

        m <- momentum * m + G
        x <- G + momentum * m                           nesterov, else x = m
        x <- x / (|x| + 1e-7)                           |x| is the Frobenius norm
        y <- x x^T;  x <- muon_a * x + (muon_b * y + muon_c * y y) x            ns_steps times
        p <- p - learning_rate * rms_rate * sqrt(max(rows, columns)) * x

    A matrix with more rows than columns is transposed before the third line and transposed back
    after the fourth. For every other variable, with t = 1, 2, ... the number of the update:

        m <- m + (1 - adam_beta_1) * (G - m)
        v <- v + (1 - adam_beta_2) * (G^2 - v)
        r <- adam_lr_ratio * learning_rate * sqrt(1 - adam_beta_2^t) / (1 - adam_beta_1^t)
        p <- p - r * m / (sqrt(v) + epsilon)

    Epsilon is outside the root, as in AdamAccumulate. With `gate="select"`, every micro-batch
    computes the matrix products of an update. `gate="conditional"` and the callback `PythonGate`
    compute them once per window.""",
        "arguments": """\
        adam_beta_1: RANGE, default 0.9.
        adam_beta_2: RANGE, default 0.999.
        adam_weight_decay: RANGE, default 0.004. The `weight_decay` of variables that
            Adam updates.
        epsilon: RANGE, default 1e-7; None means the default. Used by Adam.
        exclude_layers: RANGE (default). Regular expressions. Adam updates each
            variable in whose path one of them is found. Exclude the last layer of a model.
        exclude_embeddings: RANGE, default True. Let Adam update variables with "embedding" in
            their path.
        muon_a: RANGE, default 3.4445. A coefficient of the Newton-Schulz iteration.
        muon_b: RANGE, default -4.775. A coefficient of the Newton-Schulz iteration.
        muon_c: RANGE, default 2.0315. A coefficient of the Newton-Schulz iteration.
        adam_lr_ratio: RANGE, default 1.
        momentum: RANGE, default 0.95.
        ns_steps: RANGE, default 5. The number of steps of the Newton-Schulz iteration.
        nesterov: RANGE, default True.
        rms_rate: RANGE, default 0.2. If None, rms_rate and the root after it are
            omitted from the formula.""",
        "weight_decay": "RANGE, default 0.004",
        "slots": {"keras3": "`momentum` (m), and `velocity` (v) where Adam updates"},
        "paper": """\
    Muon: An optimizer for hidden layers in neural networks. Keller Jordan and others, 2024. The
    scale of an update: Muon is Scalable for LLM Training. Jingyuan Liu and others, 2025.""",
    },
    "ScheduleFreeAdamWAccumulate": {
        "rate": 0.0025,
        "line": "Schedule-free AdamW, averaging instead of a schedule, one update per window of "
        "micro-batches.",
        "mathematics": """\
    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        rate <- learning_rate * min(1, t / warmup_steps)                no warm-up: learning_rate
        x <- (p - (1 - beta_1) * z) / beta_1
        v <- v + (1 - beta_2) * (G^2 - v)
        z <- z - rate * G / (sqrt(v / (1 - beta_2^t)) + epsilon)
        x <- (1 - 1 / t) * x + z / t
        p <- (1 - beta_1) * z + beta_1 * x

    z starts as the weights. x, the average at which the paper evaluates a model, isn't stored: the
    weights p lie between z and x. The second line has the old z, as in the paper. Keras 3.15 takes
    the old z on JAX, but the new z on TensorFlow and PyTorch. This class gives the numbers of the
    stock optimizer on the same backend. Epsilon is outside the root, after the bias correction.""",
        "arguments": """\
        beta_1: RANGE, default 0.9. The share of x in the weights.
        beta_2: RANGE, default 0.999.
        epsilon: RANGE, default 1e-8; None means the default.
        warmup_steps: RANGE, default 0. The number of updates in which the learning rate
            grows to its full value.""",
        "slots": {"keras3": "`momentum` (z), `velocity` (v)"},
        "paper": """\
    The Road Less Scheduled. Aaron Defazio and others, 2024.""",
    },
}

_READY = """{line}

{mathematics}
{in_a_window}
    Args:
{learning_rate}
{arguments}
{host_arguments}
{shared_arguments}
{state_and_errors}
    Paper:
{paper}

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> {import_class}
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer={name}(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
"""

_MADE = """{stock}, one update per window of micro-batches.

    An update runs the code of
    `{module}.{stock}`
    on the average gradient of a window of `accum_iters` micro-batches.
{in_a_window}
    Args:
{arguments}
{shared_arguments}
{state_and_errors}
    Example:

    >>> from {module} import {stock}
    >>> from keras_accum.{host} import accumulating
    >>> {name} = accumulating({stock})
    >>> optimizer = {name}(accum_iters=5)
    >>> optimizer.accum_iters
    5
"""

# For a new-style optimizer that has the name of a legacy optimizer.
_NOT_LEGACY = """
    This class is for the newer `keras.optimizers.{stock}`, not for the legacy optimizer.
"""

_MAKE = """from keras_accum.{host} import accumulating
    >>> {name} = accumulating(keras.optimizers.{stock})"""

_IN_A_WINDOW = """
    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.
"""

_STATE_AND_ERRORS = """
    State:
        All of the state is in `{variables}`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
{slots}{scalars}

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.{more_state}

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.
"""

_SHAPES = "slots, each of its variable's shape and dtype"

_MADE_SLOTS = {
    "slots": "The slots of {stock}",
    "shapes": "each of its variable's shape and dtype",
    "scalars": """
        - The scalars of {stock}: what {stock} keeps once for all variables.""",
}


def docstring(name, host, import_keras, stock=None):
    """Return the docstring of an optimizer on a host.

    `stock` is the stock class; with `stock`, every class has a docstring. Without `stock`, `name`
    must be in the table above, else the result is None.
    """
    texts = _OPTIMIZERS.get(name, {"slots": {}})
    style = _style(host, stock, "tf_keras" in texts["slots"])
    if style not in texts["slots"] or stock is not None and not ranges.is_of_keras(stock):
        return None if stock is None else _made(name, host, style, stock)
    texts = {**texts, **texts.get(style, {})}
    texts.setdefault("weight_decay", "RANGE (default)")
    in_a_window, import_class = _IN_A_WINDOW, "from keras_accum.{host} import {name}"
    if style == "new_style" and "tf_keras" in texts["slots"]:
        in_a_window, import_class = _NOT_LEGACY + _IN_A_WINDOW, _MAKE
    stock_name = name[: -len("Accumulate")]
    text = _READY.format(
        name=name,
        host=host,
        import_keras=import_keras,
        import_class=import_class.format(host=host, name=name, stock=stock_name),
        in_a_window=in_a_window.format(stock=stock_name),
        line=texts["line"],
        mathematics=texts["mathematics"].format(**texts),
        learning_rate=_LEARNING_RATES[style].format(rate=texts["rate"]),
        arguments=texts["arguments"],
        host_arguments=_HOST_ARGUMENTS[style].format(**texts),
        shared_arguments=_shared_arguments(style, texts.get("decay", _DECAY)),
        state_and_errors=_state_and_errors(
            style,
            slots=texts["slots"][style],
            shapes=texts.get("shapes", _SHAPES),
            scalars=texts.get("scalars", ""),
        ),
        paper=_filled(texts["paper"]),
    )
    return _with_ranges(text, stock_name)


def _with_ranges(text, stock_name):
    """Return a docstring with the allowed values of each argument in place of RANGE."""
    allowed = ranges.of_class(stock_name)

    def allowed_values(entry):
        phrase = allowed[entry.group("name")]
        return f"{entry.group('entry')}{phrase[0].upper()}{phrase[1:]}"

    return re.sub(r"^(?P<entry> {8}(?P<name>\w+): )RANGE", allowed_values, text, flags=re.M)


def _made(name, host, style, stock):
    """Return the docstring of a class that `accumulating` made: the stock arguments, then ours."""
    documented = _stock_arguments(stock)
    if "clipnorm" not in documented:
        host_arguments = _HOST_ARGUMENTS[style].format(weight_decay="RANGE (default)")
        documented = f"{documented}\n{host_arguments}" if documented else host_arguments
    texts = {text: value.format(stock=stock.__name__) for text, value in _MADE_SLOTS.items()}
    text = _MADE.format(
        name=name,
        host=host,
        stock=stock.__name__,
        module=stock.__module__,
        in_a_window=_IN_A_WINDOW,
        arguments=documented,
        shared_arguments=_shared_arguments(style),
        state_and_errors=_state_and_errors(style, **texts),
    )
    return _with_ranges(text, stock.__name__)


def _style(host, stock, has_legacy):
    """Return the key of the texts. On tf_keras without `stock`, a legacy optimizer goes first."""
    if host != "tf_keras":
        return host
    if stock is None:
        return "tf_keras" if has_legacy else "new_style"
    parameters = [inspect.signature(cls.__init__).parameters for cls in stock.__mro__[:-1]]
    return "new_style" if any("use_ema" in names for names in parameters) else "tf_keras"


def _shared_arguments(style, decay=_DECAY):
    decay = "" if style == "new_style" else decay
    reduction, all_reduce = _REDUCTION[style], _ALL_REDUCE[style]
    return _SHARED_ARGUMENTS.format(reduction=reduction, all_reduce=all_reduce, decay=decay)


def _state_and_errors(style, slots, shapes, scalars):
    return _STATE_AND_ERRORS.format(
        variables="variables" if style in ("keras3", "new_style") else "weights",
        slots=_filled(f"- {slots}: {shapes}.", hanging=2),
        scalars=scalars,
        more_state=_MORE_STATE[style],
    )


def _filled(text, hanging=0):
    indents = {"initial_indent": " " * 8, "subsequent_indent": " " * (8 + hanging)}
    return textwrap.fill(" ".join(text.split()), 100, **indents)


_HEADS = ("Args:", "Arguments:", "# Arguments")  # Keras 2 has the last


def _stock_arguments(stock):
    """Return the arguments of a stock class, from its docstring or else from its signature.

    Arguments that the shared texts describe are omitted.
    """
    lines = inspect.cleandoc(vars(stock).get("__doc__") or "").splitlines()
    head = next((i for i, line in enumerate(lines) if line in _HEADS), None)
    if head is not None:
        section = "\n".join(lines[head + 1 :])
        section = textwrap.dedent(re.split(r"\n(?=\S)", section)[0]).strip("\n")
        entries = re.split(r"\n(?=\S)", section)
    else:
        entries = [
            f"{name}: Required."
            if parameter.default is inspect.Parameter.empty
            else f"{name}: Default {parameter.default!r}."
            for name, parameter in arguments.parameters_of(stock).items()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
    ours = [entry for entry in entries if entry.partition(":")[0] not in arguments.OWN]
    return textwrap.indent("\n".join(ours), " " * 8)
