"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15."""

# Made by `python docs/write_stubs.py` from tf_keras 2.21. Don't edit this file.

from typing import Any, Callable, Literal, Mapping, Sequence

import tensorflow as tf
import tf_keras as keras
from tf_keras.optimizers.schedules import LearningRateSchedule
from typing_extensions import Self

from keras_accum.states import StateError as StateError

class AccumulatingOptimizer(keras.optimizers.legacy.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    reduction: Literal["mean", "sum", "weighted"]
    skip_nonfinite: bool
    gate: Literal["select", "conditional"]
    all_reduce: Literal["per_micro_batch", "per_window"]

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
        """The number of updates made: what schedules, `decay` and bias correction count. An int."""

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
    def from_optimizer(
        cls,
        optimizer: keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer,
        **arguments: Any,
    ) -> Self:
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, legacy or not, or one of this package.
                It is left as it is. One that isn't legacy must have no `weight_decay` and no
                `use_ema`, and its RMSprop has epsilon under the root.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.tf_keras import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """

    def to_stock(self) -> keras.optimizers.legacy.Optimizer:
        """The stock optimizer with the same arguments and state, for those without this package.

        It is the legacy optimizer, has its variables, and a model can be compiled with it. This
        optimizer is left as it is.

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

class _AccumulatingNewStyleOptimizer(keras.optimizers.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    reduction: Literal["mean", "sum", "weighted"]
    skip_nonfinite: bool
    gate: Literal["select", "conditional"]
    all_reduce: Literal["per_micro_batch", "per_window"]

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
        """The number of updates made: what schedules and bias correction count. An int."""

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
    def from_optimizer(
        cls,
        optimizer: keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer,
        **arguments: Any,
    ) -> Self:
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, or one of this package. It is left as
                it is. It may be a legacy one of this package that has no `decay`.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.
        """

    def to_stock(self) -> keras.optimizers.Optimizer:
        """The stock optimizer with the same arguments and state, for those without this package.

        Built for the same variables: compile the model with it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, or if the class has arguments that the stock optimizer
                hasn't.
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

class SGDAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.SGD):
    """Gradient descent with momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        u <- momentum * u - learning_rate * G
        p <- p + u                                      momentum
        p <- p + momentum * u - learning_rate * G       Nesterov momentum
        p <- p - learning_rate * G                      momentum = 0

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        momentum: Float in [0, 1], default 0.
        nesterov: Boolean, default False.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
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
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class RMSpropAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.RMSprop):
    """RMSprop, plain or centered, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        v <- v + (1 - rho) * (G^2 - v)
        a <- a + (1 - rho) * (G - a)                    centered, else a = 0
        d <- learning_rate * G / (sqrt(v - a^2) + epsilon)
        u <- momentum * u + d
        p <- p - u                                      momentum = 0: p <- p - d

    With momentum, this host has epsilon under the root, as Keras 3 always has.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        rho: Float in [0, 1), default 0.9.
        momentum: Float in [0, 1], default 0.
        epsilon: Float >= 0, default 1e-7; None is the default.
        centered: Boolean, default False. Divide by the deviation of the gradient instead of its
            root mean square.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `rms` (v), with momentum `momentum` (u), centered `mg`: each of its variable's shape and
            data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import RMSpropAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=RMSpropAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float | None = 1e-07,
        centered: bool = False,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class AdamAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Adam):
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
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `m`, `v`, with amsgrad `vhat`: each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-07,
        amsgrad: bool = False,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class AMSGradAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Adam):
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
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `m`, `v`, `vhat` (w): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AMSGradAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AMSGradAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-07,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class AdamWAccumulate(_AccumulatingNewStyleOptimizer, keras.optimizers.AdamW):
    """Adam with decoupled weight decay, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        p <- p - learning_rate * weight_decay * p
        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    The decay is a part of the update: the weights shrink once a window. Epsilon is outside the
    root, as in AdamAccumulate.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        weight_decay: Float >= 0, default 0.004. Before an update, weights shrink by
            learning_rate * weight_decay of themselves.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default), one of them at most.
            Clip the window's average: each weight's norm, each element, the norm of all together.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. How much of the average an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates after
            which the weights are overwritten with the average.
        jit_compile: Boolean, default True. Have XLA compile the update, where there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.

    State, all of it in `variables`:
        iterations: integer scalar, completed updates.
        `m`, `v`, with amsgrad `vhat`: each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            only: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Decoupled Weight Decay Regularization. Ilya Loshchilov, Frank Hutter, 2017.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamWAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamWAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-07,
        amsgrad: bool = False,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        jit_compile: bool = True,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
    ) -> None: ...

class AdadeltaAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Adadelta):
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
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        rho: Float in [0, 1), default 0.95.
        epsilon: Float >= 0, default 1e-7; None is the default.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `accum_grad` (a), `accum_var` (b): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdadeltaAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdadeltaAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        rho: float = 0.95,
        epsilon: float | None = 1e-07,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class AdagradAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Adagrad):
    """Adagrad, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, and a beginning as
    initial_accumulator_value:

        a <- a + G^2
        p <- p - learning_rate * G / (sqrt(a) + epsilon)

    Epsilon is outside the root, where Keras 3 has it inside.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        initial_accumulator_value: Float >= 0, default 0.1.
        epsilon: Float >= 0, default 1e-7; None is the default.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
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
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdagradAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdagradAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-07,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class AdamaxAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Adamax):
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
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `m`, `v` (u): each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamaxAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamaxAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-07,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class NadamAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Nadam):
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
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None is the default.
        schedule_decay: Float >= 0, default 0.004. How fast mu grows to beta_1.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: None. Its learning rate doesn't decay on this Keras; see `schedule_decay`.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `m`, `v`: each of its variable's shape and data type.
        momentum_cache (w): float scalar, once for all variables; u_product in `get_state`.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import NadamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=NadamAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-07,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
        schedule_decay: float = 0.004,
    ) -> None: ...

class FtrlAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.Ftrl):
    """FTRL-Proximal, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, q = -learning_rate_power
    and l1, l2, shrinkage the three regularization strengths:

        n' <- n + G^2
        z <- z + G + 2 * shrinkage * p - (n'^q - n^q) / learning_rate * p
        p <- (clip(z, -l1, l1) - z) / ((n'^q + beta) / learning_rate + 2 * l2)
        n <- n'

    n begins as initial_accumulator_value, z as 0. A weight is made anew from z in each update: what
    it was before counts through z alone.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        learning_rate_power: Float <= 0, default -0.5. 0 is a fixed learning rate.
        initial_accumulator_value: Float >= 0, default 0.1.
        l1_regularization_strength: Float >= 0, default 0.
        l2_regularization_strength: Float >= 0, default 0. It pulls towards 0 without being a part
            of the gradient.
        l2_shrinkage_regularization_strength: Float >= 0, default 0. The L2 penalty as a part of the
            gradient in z, not in n.
        beta: Float >= 0, default 0. It is added to n'^q.
        name: String, default the class's name.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default). Clip the window's
            average: each weight's norm, each element, the norm of all together.
        gradient_aggregator: Function of a list of (gradient, variable) pairs, or None (default):
            sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions of (gradient, variable) pairs, or None (default).
            They transform the window's average.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            1 + decay * completed updates.

    State, all of it in `weights`:
        iterations: integer scalar, completed updates.
        `accumulator` (n), not the `accumulator` of a window, and `linear` (z): each of its
            variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            and once one is missing: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        unapplied: integer scalar, with accum_iters > 1 only: 1 after a micro-batch that
            a LossScaleOptimizer skipped, which it has added to iterations, else 0.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Ad Click Prediction: a View from the Trenches. H. Brendan McMahan and others, 2013.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import FtrlAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=FtrlAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_aggregator: Callable[..., Any] | None = None,
        gradient_transformers: Sequence[Callable[..., Any]] | None = None,
    ) -> None: ...

class LionAccumulate(_AccumulatingNewStyleOptimizer, keras.optimizers.Lion):
    """Lion, steps by the sign of a momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        p <- p - learning_rate * sign(beta_1 * m + (1 - beta_1) * G)
        m <- beta_2 * m + (1 - beta_2) * G

    Each element moves by learning_rate or not at all, so the rate is smaller than Adam's: three to
    ten times, the authors say, and the weight decay larger by as much.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.0001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_1: Float in (0, 1], default 0.9. The share of m in the sign.
        beta_2: Float in [0, 1), default 0.99.
        weight_decay: Float >= 0 or None (default). Before an update, weights shrink by
            learning_rate * weight_decay of themselves.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default), one of them at most.
            Clip the window's average: each weight's norm, each element, the norm of all together.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. How much of the average an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates after
            which the weights are overwritten with the average.
        jit_compile: Boolean, default True. Have XLA compile the update, where there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.

    State, all of it in `variables`:
        iterations: integer scalar, completed updates.
        `m`: each of its variable's shape and data type.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            only: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Symbolic Discovery of Optimization Algorithms. Xiangning Chen and others, 2023.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import LionAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=LionAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.0001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        jit_compile: bool = True,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
    ) -> None: ...

class AdafactorAccumulate(_AccumulatingNewStyleOptimizer, keras.optimizers.Adafactor):
    """Adafactor, a second moment of rows and columns, per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, t = 1, 2, ... the number
    of the update, and RMS(x) the root of the mean of x^2:

        alpha <- max(epsilon_2, RMS(p)) * min(learning_rate, 1 / sqrt(t))
        beta <- 1 - t^beta_2_decay
        r <- beta * r + (1 - beta) * mean of (G^2 + epsilon_1) over the last dimension
        c <- beta * c + (1 - beta) * mean of (G^2 + epsilon_1) over the last but one
        v <- r / (mean of r over its last dimension) * c        an outer product
        d <- G / sqrt(v)
        p <- p - alpha * d / max(1, RMS(d) / clip_threshold)

    A variable with less than two dimensions has the whole of v, and neither r nor c:

        v <- beta * v + (1 - beta) * (G^2 + epsilon_1)

    The sizes of a weight and of a whole update are in this rule, so it has no meaning for a part of
    a weight.

    Inside a window weights and slots are exactly unchanged. The traced graph has no conditional,
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001, a LearningRateSchedule or a callable without
            arguments; a schedule counts updates, not micro-batches.
        beta_2_decay: Float < 0, default -0.8.
        epsilon_1: Float >= 0, default 1e-30. Keeps the second moment from being 0.
        epsilon_2: Float >= 0, default 1e-3. The least size that a weight is taken to have.
        clip_threshold: Float > 0, default 1. The largest RMS of an update, before the rate.
        relative_step: Boolean, default True. Keep a learning rate that isn't a schedule or another
            callable from being above 1 / sqrt(t). Keras has this bound in `alpha` in any case, so
            False gives the same numbers.
        weight_decay: Float >= 0 or None (default). Before an update, weights shrink by
            learning_rate * weight_decay of themselves.
        clipnorm, clipvalue, global_clipnorm: Float >= 0 or None (default), one of them at most.
            Clip the window's average: each weight's norm, each element, the norm of all together.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. How much of the average an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates after
            which the weights are overwritten with the average.
        jit_compile: Boolean, default True. Have XLA compile the update, where there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below 2**31, default 1. The number of micro-batches that make
            one update. At 1 this is the stock optimizer, without an accumulator or any other extra
            variable.
        reduction: "mean" (default), "sum" or "weighted". What a window's gradients are turned into:
            their average, which is the gradient of the big batch if the loss averages over samples;
            their sum, for a loss that sums; or their average by the weights that `weigh` was told,
            where micro-batches are of unequal size or masked (see MicroBatchWeights).
        skip_nonfinite: Boolean, default False. Drop a micro-batch whose gradient has an infinite or
            NaN element: the micro-batch isn't added and doesn't count. By default such a
            micro-batch spoils its own window, as it would spoil the big batch, and later windows
            only by what the weights carry on.
        gate: "select" (default) or "conditional". What keeps weights and slots as they are inside a
            window. "select": an update is computed in every micro-batch, and what it writes is
            selected, the new value or the old one, without a conditional in the graph.
            "conditional": one conditional around the update. Numbers and state are the same.
            "conditional" costs less where parameters dominate, and can't run in torch.compile.
        all_reduce: "per_micro_batch" (default) or "per_window". When the replicas
            of a tf.distribute strategy sum their gradients: in every micro-batch, or once, at the
            window's end, with a sum of its own in each replica until then. What is read, saved and
            loaded is the sum of those: state and files are the same. "per_window" needs
            gate="conditional" and, for more than one replica, MirroredStrategy or
            MultiWorkerMirroredStrategy.
        lr: Another name of `learning_rate`.

    State, all of it in `variables`:
        iterations: integer scalar, completed updates.
        `r`, `c`, `v`: of its variable's data type; `r` without the last dimension, `c` without the
            last but one, v of the variable's shape. Below two dimensions `r` and `c` aren't used.
        accumulator: the gradient sum of the open window, of its variable's shape and data type,
            float32 for float16 and bfloat16; with accum_iters > 1 only, as are the next four.
        state_format: integer scalar, the version of this list, 1.
        window_position, window_length, accum_iters: integer scalars, the micro-batches in the
            open window, how many close it, and how many will close the next.
        window_weight: float scalar, with reduction="weighted" only, the weight of the sum;
            float64 where that is Keras's floatx, else float32.
        missing_gradients: integers, one more than there are variables, with accum_iters > 1
            only: for each variable in how many micro-batches of the open window
            its gradient has been missing, and last the number of the window.
        `get_state` has it by names that are the same on every Keras.

    Raises:
        ValueError, TypeError: for an argument out of its range or of another type, naming it, what
            is allowed and what was received. At the first step, for gate="conditional" where a
            conditional can't run.
        keras_accum.StateError: for a state, a list of weights or a file that doesn't fit, naming
            what is wrong with it.

    Paper:
    Adafactor: Adaptive Learning Rates with Sublinear Memory Cost. Noam Shazeer, Mitchell Stern,
    2018.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdafactorAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdafactorAccumulate(accum_iters=5), loss="mse")
    >>> history = model.fit(np.ones((50, 3)), np.ones((50, 1)), batch_size=10, verbose=0)
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 0.001,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        jit_compile: bool = True,
        name: str | None = None,
        *,
        accum_iters: int = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import ApplyPartialWindow, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[ApplyPartialWindow()])
    >>> model.optimizer.completed_updates
    2
    """

    def __init__(self) -> None: ...

class AccumulationMonitor(keras.callbacks.Callback):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 if no window is open.
    - `learning_rate`: the learning rate of the next update, from the schedule or from `decay`.
    - `gradient_norm`, with `accum_iters` > 1: the norm of the average gradient that made the last
      update, before clipping. NaN before the first update.
    - `effective_batch`, with `batch_size`: the number of samples in a window.
    - `noise_scale`, with `noise_scale=True`: the batch size, in samples, beyond which more
      accumulation pays little. NaN until there is an estimate.

    The callbacks of Keras get all of these logs. The progress bar shows only those that `show`
    names. The bar shortens two of them: `updates: 12` is `completed_updates`, and `window: 3/5` is
    a `window_position` of 3 in a window of 5.

    A callback gets only the logs of callbacks before it in the list. List the monitor

    - before CSVLogger and TensorBoard,
    - before EarlyStopping, ModelCheckpoint and ReduceLROnPlateau, if they watch one of its logs,
    - before PythonGate,
    - after ApplyPartialWindow, whose update at the end of an epoch is then in the logs.

    The monitor reads from the device after each micro-batch. The train function is traced once more
    for a training with the monitor. A training without the monitor isn't affected.

    The simple noise scale is B = tr(Sigma) / |G|^2, where G is the true gradient and Sigma the
    covariance of the gradient of one sample. A training with batches of B samples needs about twice
    the least possible number of samples and twice the least possible number of updates. The monitor
    estimates |G|^2 and tr(Sigma) from each window, without bias, and then smooths the estimates. In
    a window of k micro-batches of b samples:

        |G|^2     ~ (k b |average|^2 - b mean |micro-batch|^2) / (k b - b)
        tr(Sigma) ~ (mean |micro-batch|^2 - |average|^2) / (1 / b - 1 / (k b))

    Args:
        batch_size: Integer >= 1 or None (default). The samples of a micro-batch, over all replicas.
        noise_scale: Boolean, default False. Needs `batch_size` and `accum_iters` of at least 2.
        smoothing: Float in [0, 1), default 0.99. The share of the earlier estimates that each
            window keeps.
        show: List of names of logs, default ("completed_updates",). What the progress bar shows, in
            this order. The default takes about 15 characters of the line.

    Raises:
        TypeError: If an argument has the wrong type. At the start of training, if the model's
            optimizer isn't of this package.
        ValueError: If an argument is out of its range. At the start of training, if `noise_scale`
            can't be estimated: with `accum_iters=1`, `reduction="weighted"`,
            `all_reduce="per_window"` or `steps_per_execution` other than 1.

    Warns:
        UserWarning: At the start of training, if the monitor is listed after a callback of Keras
            that uses its logs, or before ApplyPartialWindow.

    Paper:
        An Empirical Model of Large-Batch Training. Sam McCandlish, Jared Kaplan, Dario Amodei and
        the OpenAI Dota Team, 2018.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AccumulationMonitor, AdamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> monitor = AccumulationMonitor(batch_size=10)
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[monitor]).history
    >>> [history[name][-1] for name in ("completed_updates", "window_position", "effective_batch")]
    [1, 2, 50]
    """

    def __init__(
        self,
        batch_size: int | None = None,
        noise_scale: bool = False,
        smoothing: float = 0.99,
        show: Sequence[str] = ("completed_updates",),
    ) -> None: ...

class MicroBatchWeights(keras.callbacks.Callback):
    """Tell `reduction="weighted"` what each micro-batch of `fit` weighs.

    The loss of a micro-batch is a mean, and the mean of means is the mean of the large batch only
    where all are over as many elements. Where sequences are masked, or the last batch is short,
    they aren't. With each micro-batch weighted by the number of elements that its loss was divided
    by, a window is the large batch again.

    What the weight is by itself depends on the reduction of the model's loss, as does what Keras
    divides by: with the default, the number of elements of the model's output that aren't masked
    (samples, or samples times steps), whatever their sample weights; with
    "mean_with_sample_weight" of Keras 3, the sum of their sample weights.

    Args:
        weight: Callable, default None. `weight(x, y, y_pred, sample_weight)` returns the weight of
            a micro-batch, a scalar >= 0, in operations of Keras. It's needed where the model has
            several outputs with masks, or a loss that reduces in a way of its own.

    Raises:
        TypeError: if `weight` isn't callable; at the start of training, if the model's optimizer
            is none of keras_accum.
        ValueError: at the start of training, if the optimizer's `reduction` isn't "weighted", and
            if there is no weight to be told from the model's loss.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamAccumulate, MicroBatchWeights
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=2, reduction="weighted"), loss="mse")
    >>> x, y = np.ones((15, 3)), np.ones((15, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[MicroBatchWeights()])
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(self, weight: Callable[..., Any] | None = None) -> None: ...

class PythonGate(keras.callbacks.Callback):
    """Let Python pick, for each micro-batch of `fit`, one of two traced train functions.

    One only adds gradients to the accumulators, the other makes the update at the end of a window.
    No function has a conditional, and inside a window no update is computed: the cheapest
    micro-batch there is, where a `tf.distribute` strategy is, too. The numbers, the state and the
    files are the same as without it, and `train_on_batch` isn't touched. With
    `all_reduce="per_window"` the function that accumulates reduces nothing. Each function is traced
    once, also over several calls of `fit` with the same callback.

    On TensorFlow Python reads the counters of the window before each micro-batch; on JAX it reads
    them once an epoch and counts for itself. Eager PyTorch needs no such choice: there, and at
    `accum_iters=1`, the callback does nothing.

    Raises:
        TypeError: at the start of training, if the model's optimizer is none of keras_accum.
        ValueError: at the start of training, with `skip_nonfinite` or a LossScaleOptimizer, when
            only the device knows whether a micro-batch counts; with `steps_per_execution`
            other than 1, when several micro-batches are one function; with
            ParameterServerStrategy, when Python doesn't wait for workers; and when a train step
            of the model is traced that doesn't call the optimizer once. On JAX, at the end of an
            epoch, if a train step called it on some conditions only.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamAccumulate, PythonGate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[PythonGate()])
    >>> model.optimizer.completed_updates
    1
    """

    def __init__(self) -> None: ...

def accumulating(
    optimizer_class: type[keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer],
) -> type[AccumulatingOptimizer | _AccumulatingNewStyleOptimizer]:
    """The class that accumulates gradients over micro-batches and updates as another class does.

    It takes the arguments of that class, in their order, and then those of every accumulating
    optimizer by keyword: `accum_iters`, `reduction`, `skip_nonfinite`, `gate`, `all_reduce`, `lr`
    and `decay`, see `AdamAccumulate`. State, files, callbacks and strategies are the same.

    Args:
        optimizer_class: An optimizer class of this Keras, legacy or not, or a subclass of its
            `Optimizer` that somebody else wrote. What it keeps must be slots and scalars.

    Returns:
        The class, called `<name>Accumulate`. For the same class it is the same one.

    Raises:
        TypeError: for anything else, and for a class that takes part in what comes before an
            update, or has members or arguments with the names of ours.

    Example:

    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.legacy.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
