"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with another `get_updates`: it adds the gradients to
the accumulators and makes the update of their average, at `accum_iters=1` as well. SGD, Adam and
RMSprop run their rule with gated scalars (see `rules`). All others run the stock `get_updates`, and
what it writes is selected.

| file | holds |
| --- | --- |
| `optimizer` | what an optimizer does: arguments, config |
| `micro_batch` | one micro-batch: the sums, the update, the order of all writes |
| `recording` | the stock `get_updates`, run without being let write |
| `state` | slots, counters and sums, and their names |
| `stock` | the stock optimizers: from one, back to one |
"""

# Made by `python docs/write_stubs.py` from keras 2.2. Don't edit this file.

from typing import Any, Literal, Mapping

import keras
from typing_extensions import Self

from keras_accum.states import StateError as StateError

class AccumulatingOptimizer(keras.optimizers.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    reduction: Literal["mean", "sum"]
    skip_nonfinite: bool
    gate: Literal["select", "conditional"]
    all_reduce: Literal["per_micro_batch"]

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def accum_iters(self) -> int:
        """The number of micro-batches that make one update. Set it: the next window has it.

        From 1 to more only before the first step, when there are no accumulators yet.
        """

    @accum_iters.setter
    def accum_iters(self, accum_iters: int) -> None: ...
    @property
    def window_position(self) -> int:
        """The number of micro-batches in the open window, 0 when none is open. An int."""

    @property
    def completed_updates(self) -> int:
        """The number of updates made: what `decay` and bias correction count. An int."""

    @property
    def learning_rate(self) -> Any:
        """The variable of the learning rate. Set it to a number: the next update has it."""

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | None) -> None: ...
    @property
    def lr(self) -> Any:
        """The variable of the learning rate. Set it to a number: the next update has it."""

    @lr.setter
    def lr(self, learning_rate: float | None) -> None: ...
    def apply_partial_window(self) -> None:
        """Close the open window now: one update from the micro-batches that it holds.

        With `reduction="mean"` their sum is divided by how many they are, with "weighted" by what
        they weigh. Does nothing when no window is open. To be called between train steps.

        Raises:
            RuntimeError: if it's called in a function that is traced.
            ValueError: on Keras 2.0 to 2.3, if the optimizer is in several models, and a window is
                open that isn't of the one whose train step was made last.
        """

    def weigh(self, weight: Any) -> None:
        """Say what the next micro-batch weighs in its window, with `reduction="weighted"`.

        A train step calls it before `apply_gradients` (or `apply`, or `stateless_apply`), each
        time; in `fit` the callback `MicroBatchWeights` does. A test step doesn't: the weight that
        it says would be taken for the next micro-batch's.

        Args:
            weight: Scalar >= 0, a number or a tensor: what the loss of the micro-batch, which is a
                mean, was divided by. In a `tf.distribute` replica, that of the replica's share.
                Where the value of a tensor is negative, infinite or NaN, the gradients of the
                micro-batch become NaN: `skip_nonfinite` drops it, and else the update shows it.

        Raises:
            ValueError: if `reduction` is another, or if a number is negative, infinite or NaN.
        """

    def get_state(self) -> dict[str, Any]:
        """The whole state as {name: NumPy array}, to be saved or handed to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

            state_format: the version of this layout, 1.
            completed_updates: integer scalar.
            learning_rate: scalar, where it's a number.
            <Rule>.<slot>.<i>: a slot of trainable variable i, as in Adam.momentum.0.
            moving_average.<i>: on Keras 3 with use_ema.
            window_position, window_length, accum_iters, accumulator.<i>: with accum_iters > 1,
                the micro-batches in the open window, how many close it, how many will close the
                next, and the open window's gradient sum.
            window_weight: with reduction="weighted", the weight of that sum.
            missing_gradients: where gradients have been missing in the open window, for each
                variable in how many of its micro-batches, and last `completed_updates`.
        """

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `get_state` returned, here or on another Keras.

        An optimizer that hasn't got its variables yet keeps the state until it gets them.

        Args:
            state: {name: array}. `learning_rate` may be left out, as may the window: then a fresh
                one is begun. The model's trainable variables must come in the same order.

        Raises:
            keras_accum.StateError: if the state doesn't fit this optimizer, naming every misfit.
                The optimizer is then what it was.
        """

    @classmethod
    def from_optimizer(cls, optimizer: keras.optimizers.Optimizer, **arguments: Any) -> Self:
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, or one of this package. It is left as
                it is. Compile the model with the result.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.keras2 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """

    def to_stock(self) -> keras.optimizers.Optimizer:
        """The stock optimizer with the same arguments and state, for those without this package.

        Compile the model with it, to train on or to save it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, and if the rule is none of a stock optimizer.
        """

    @classmethod
    def with_accum_iters(cls, accum_iters: int, stock: bool = False) -> Any:
        """This class for `custom_objects`, where a file doesn't hold accum_iters.

        Files of the AdamAccumulate class that was copied from the web don't, and they count
        micro-batches, which are converted. Files of stock optimizers of Keras 2 count updates.

        Args:
            accum_iters: Integer >= 1.
            stock: Boolean, default False. Whether the file is a stock optimizer's. Keras knows
                those by names in lower case.

        Example:

            load_model(path, custom_objects={"AdamAccumulate": AdamAccumulate.with_accum_iters(5)})
            load_model(path, custom_objects={"adam": AdamAccumulate.with_accum_iters(5, True)})
        """

class SGDAccumulate(AccumulatingOptimizer, keras.optimizers.SGD):
    """Gradient descent with momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        u <- momentum * u - learning_rate * G
        p <- p + u                                      momentum
        p <- p + momentum * u - learning_rate * G       Nesterov momentum
        p <- p - learning_rate * G                      momentum = 0

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01. Keras 2.2 calls it `lr`.
        momentum: Float in [0, 1], default 0.
        nesterov: Boolean, default False.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `momentum` (u): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    On the importance of initialization and momentum in deep learning. Ilya Sutskever, James
    Martens, George Dahl, Geoffrey Hinton, 2013.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.01,
        momentum: float = 0.0,
        decay: float | None = 0.0,
        nesterov: bool = False,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class RMSpropAccumulate(AccumulatingOptimizer, keras.optimizers.RMSprop):
    """RMSprop, plain or centered, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        v <- v + (1 - rho) * (G^2 - v)
        p <- p - learning_rate * G / (sqrt(v) + epsilon)

    Epsilon is outside the root, where Keras 3 has it inside.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls it `lr`.
        rho: Float in [0, 1), default 0.9.
        epsilon: Float >= 0, default 1e-7; None is the default.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `velocity` (v): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Lecture 6.5, RMSprop: divide the gradient by a running average of its recent magnitude. Tijmen
    Tieleman, Geoffrey Hinton, 2012. Centered: Generating Sequences With Recurrent Neural Networks.
    Alex Graves, 2013.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import RMSpropAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=RMSpropAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.001,
        rho: float = 0.9,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdamAccumulate(AccumulatingOptimizer, keras.optimizers.Adam):
    """Adam, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    Epsilon is the paper's "epsilon hat", outside the root, as in every Keras. PyTorch and optax
    have Algorithm 1's, which is smaller by sqrt(1 - beta_2^t).

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls it `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `momentum` (m), `velocity` (v), with amsgrad `velocity_hat`: each of its variable's shape
            and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Adam: A Method for Stochastic Optimization. Diederik P. Kingma, Jimmy Ba, 2014.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AdamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        amsgrad: bool = False,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AMSGradAccumulate(AccumulatingOptimizer, keras.optimizers.Adam):
    """AMSGrad, Adam with a second moment that never falls, per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        w <- max(w, v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(w) + epsilon)

    The maximum is of v before its bias correction, as in every Keras. PyTorch takes it after.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls it `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `momentum` (m), `velocity` (v), `velocity_hat` (w): each of its variable's shape and data
            type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    On the Convergence of Adam and Beyond. Sashank J. Reddi, Satyen Kale, Sanjiv Kumar, 2018.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AMSGradAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AMSGradAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdadeltaAccumulate(AccumulatingOptimizer, keras.optimizers.Adadelta):
    """Adadelta, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        a <- rho * a + (1 - rho) * G^2
        d <- sqrt(b + epsilon) / sqrt(a + epsilon) * G
        b <- rho * b + (1 - rho) * d^2
        p <- p - learning_rate * d

    Epsilon is under both roots, as in the paper and in every Keras. The paper has no learning rate,
    which is a learning_rate of 1.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 1.0. Keras 2.2 calls it `lr`.
        rho: Float in [0, 1), default 0.95.
        epsilon: Float >= 0, default 1e-7; None is the default.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `accumulated_grad` (a), `accumulated_delta_var` (b): each of its variable's shape and data
            type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    ADADELTA: An Adaptive Learning Rate Method. Matthew D. Zeiler, 2012.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AdadeltaAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdadeltaAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 1.0,
        rho: float = 0.95,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdagradAccumulate(AccumulatingOptimizer, keras.optimizers.Adagrad):
    """Adagrad, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, and a beginning as
    0:

        a <- a + G^2
        p <- p - learning_rate * G / (sqrt(a) + epsilon)

    Epsilon is outside the root, where Keras 3 has it inside. Newer Keras versions begin with
    a = 0.1.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01. Keras 2.2 calls it `lr`.
        epsilon: Float >= 0, default 1e-7; None is the default.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `accumulator` (a), not the `accumulator` of a window: each of its variable's shape and data
            type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Adaptive Subgradient Methods for Online Learning and Stochastic Optimization. John Duchi, Elad
    Hazan, Yoram Singer, 2011.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AdagradAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdagradAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.01,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdamaxAccumulate(AccumulatingOptimizer, keras.optimizers.Adamax):
    """Adamax, Adam by the largest gradient, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        u <- max(beta_2 * u, |G|)
        p <- p - learning_rate / (1 - beta_1^t) * m / (u + epsilon)

    The paper has no epsilon; every Keras adds it to u.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.002. Keras 2.2 calls it `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `momentum` (m), `norm` (u): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Adam: A Method for Stochastic Optimization, section 7.1. Diederik P. Kingma, Jimmy Ba, 2014.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AdamaxAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamaxAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.002,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        decay: float | None = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class NadamAccumulate(AccumulatingOptimizer, keras.optimizers.Nadam):
    """Nadam, Adam with Nesterov momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, t = 1, 2, ... the number
    of the update, and mu(t) = beta_1 * (1 - 0.5 * 0.96^(t * schedule_decay)):

        w <- w * mu(t)
        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        d <- mu(t + 1) * m / (1 - w * mu(t + 1)) + (1 - mu(t)) * G / (1 - w)
        p <- p - learning_rate * d / (sqrt(v / (1 - beta_2^t)) + epsilon)

    w begins as 1, and there is one w for all variables. Epsilon is outside the root.
    Keras 3 has t in place of t * schedule_decay.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.002. Keras 2.2 calls it `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        schedule_decay: Float >= 0, default 0.004. How fast mu grows to beta_1.
        clipnorm, clipvalue: Float >= 0 or None (default). Clip the window's average: the norm of
            all weights' gradients together, as this Keras does, and each element.
        global_clipnorm: Another name of `clipnorm`, which it is on all other Keras versions.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default) or "sum". What a window's gradients are turned into: their
            average, which is the gradient of the big batch if the loss averages over samples, or
            their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch". Nothing is reduced over devices here.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `momentum` (m), `velocity` (v): each of its variable's shape and data type.
        m_schedule (w): float scalar, once for all variables; u_product in `get_state`.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Incorporating Nesterov Momentum into Adam. Timothy Dozat, 2016.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import NadamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=NadamAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        lr: float | None = 0.002,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        schedule_decay: float = 0.004,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        decay: float | None = None,
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class ApplyPartialWindow(keras.callbacks.Callback):
    """Close the window that is open at the end of an epoch, before validation if there is one.

    Without it an unfinished window is carried over into the next epoch. With it, its gradients
    make an update of their own (`apply_partial_window()` of the optimizer). List it before
    callbacks that save the model. In a MultiOptimizer it closes the window of each optimizer of
    this package.

    Raises:
        TypeError: at the start of training, if the model's optimizer is none of keras_accum.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import ApplyPartialWindow, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[ApplyPartialWindow()])
    >>> model.optimizer.completed_updates
    2
    """

    def __init__(self) -> None: ...

def accumulating(
    optimizer_class: type[keras.optimizers.Optimizer],
) -> type[AccumulatingOptimizer]:
    """The class of an optimizer with `accum_iters`: one update per window of micro-batches.

    An update is the code of `optimizer_class`, on the average gradient of a window. The class has
    the arguments of `optimizer_class` in their order and then those that all classes of this
    package have, by keyword. For the same `optimizer_class` it is the same class.

    Its `get_updates` must write by `update`, `update_add` and `update_sub` of `keras.backend`, to
    variables that it makes by `zeros`, `ones` and `variable` of `keras.backend`, as Keras's own do.

    Args:
        optimizer_class: A class of optimizers: one of Keras, as `keras.optimizers.Nadam`, or a
            subclass of `keras.optimizers.Optimizer` of your own.

    Returns:
        A subclass of `optimizer_class`, registered for loading by its name. Call `accumulating`
        before you load a model that was saved with such an optimizer.

    Raises:
        TypeError: if `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers are around others (TFOptimizer), if it has an argument or a member by the
            name of one of this package's, or if another class has its name.
        ValueError: when a train step is made, if `get_updates` writes by something else.

    Example:

    >>> import keras
    >>> from keras_accum.keras2 import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
