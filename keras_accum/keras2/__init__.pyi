"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with a new `get_updates`, which hands the gradients to
the engine (`accumulation`), also with `accum_iters=1`. In an update, SGD, Adam and RMSprop run
their rule with gated scalars (see `rules`). All other classes run the stock `get_updates` and
select its writes.

| file | holds |
| --- | --- |
| `optimizer` | the optimizer: its train step and its learning rate |
| `port` | what this Keras does for the engine: variables, an update, the order of all writes |
| `recording` | runs the stock `get_updates` and records its writes |
| `state` | the part of the port for arguments and state: slots and their names, conversion |
| `stock` | what stock optimizers take, and what they start from |
"""

# Made by `python docs/write_stubs.py` from keras 2.2. Don't edit this file.

from typing import Any, Callable, Literal, Mapping, Sequence

import keras
from typing_extensions import Self

from keras_accum.schedule import AccumulationSchedule as AccumulationSchedule
from keras_accum.states import StateError as StateError

class AccumulatingOptimizer(keras.optimizers.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """The constructor argument `reduction`, which can't be changed afterwards."""

    @property
    def skip_nonfinite(self) -> bool:
        """The constructor argument `skip_nonfinite`, which can't be changed afterwards."""

    @property
    def skip_norm(self) -> float | Callable[[Any], Any] | None:
        """The constructor argument `skip_norm`, which can't be changed afterwards."""

    @property
    def window_transforms(self) -> Sequence[Callable[..., Any]] | None:
        """The constructor argument `window_transforms`, which can't be changed afterwards."""

    @property
    def gate(self) -> Literal["select", "conditional"]:
        """The constructor argument `gate`, which can't be changed afterwards."""

    @property
    def all_reduce(self) -> Literal["per_micro_batch"]:
        """The constructor argument `all_reduce`, which can't be changed afterwards."""

    @property
    def accum_iters(self) -> int | Any:
        """The number of micro-batches that make an update; None if only the caller closes windows.

        A new value takes effect with the next window. The value 1 can be raised only before the
        first step, because an optimizer that steps with `accum_iters=1` has no accumulators. With a
        function or an AccumulationSchedule, the value is the length of the next window, and can't
        be set.
        """

    @accum_iters.setter
    def accum_iters(self, accum_iters: int) -> None: ...
    @property
    def window_position(self) -> int:
        """The number of micro-batches in the open window; 0 if no window is open. An int."""

    @property
    def completed_updates(self) -> int:
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""

    @property
    def learning_rate(self) -> Any:
        """The learning rate, a variable. A number that is assigned applies to the next update."""

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | None) -> None: ...
    @property
    def lr(self) -> Any:
        """The learning rate, a variable. A number that is assigned applies to the next update."""

    @lr.setter
    def lr(self, learning_rate: float | None) -> None: ...
    def apply_partial_window(self) -> None:
        """Close the open window now: make one update from the micro-batches in the window.

        With `reduction="mean"`, the gradient sum is divided by the number of these micro-batches;
        with `reduction="weighted"`, by the sum of their weights. Does nothing if no window is open.
        Call this method between train steps.

        Raises:
            RuntimeError: If the method is called in a traced function.
            ValueError: On Keras 2.0 to 2.3, if several models share the optimizer, and the open
                window belongs to a model other than the one whose train step was built last.
        """

    def close_window(self, when: Any = True) -> None:
        """Not available on this Keras, whose train step can't be changed.

        Args:
            when: Anything.

        Raises:
            RuntimeError: In any case. Between train steps, call `apply_partial_window()`.
        """

    def decide(self, is_update: bool) -> None:
        """Not available on this Keras, whose train step can't be changed.

        Args:
            is_update: Anything.

        Raises:
            RuntimeError: In any case. The cheapest gate here is `gate="conditional"`.
        """

    def weigh(self, weight: Any) -> None:
        """Set the weight of the next micro-batch in its window, with `reduction="weighted"`.

        A train step calls `weigh` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`). In `fit`, the callback `MicroBatchWeights` calls `weigh`. A test step
        must not: the next micro-batch would take the weight of the test batch. If the train step
        is traced (`tf.function`, `jax.jit`, `train_on_batch`), call `weigh` in the traced function,
        with a tensor where the weight differs from step to step.

        Args:
            weight: Scalar >= 0, a number or a tensor. The number by which the loss of the
                micro-batch, a mean, was divided; in a `tf.distribute` replica, the number for the
                replica's share. If the value of a tensor is negative, infinite or NaN, the
                gradients of the micro-batch become NaN: `skip_nonfinite` drops the micro-batch,
                and otherwise the update shows the NaN.

        Raises:
            ValueError: If `reduction` isn't "weighted", or if a number is negative, infinite or
                NaN. When a train step is traced, if its weight comes from outside of the trace.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the whole state as `{name: NumPy array}`, to save or to pass to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

        - `state_format`: the version of this layout, 1.
        - `completed_updates`: integer scalar, the number of updates made.
        - `learning_rate`: scalar, if the learning rate is a number.
        - `<Rule>.<slot>.<i>`: a slot of trainable variable i, for example `Adam.momentum.0`.
        - `<Rule>.<scalar>`: what a rule keeps once for all variables, for example
          `Nadam.u_product`.
        - `moving_average.<i>`: the moving average of variable i, with `use_ema`.
        - `window_position`, `window_length`, `accum_iters`, with `accum_iters` > 1: the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window. If `accum_iters` is a function, the last is the length of
          the latest window.
        - `accumulator.<i>`, with `accum_iters` > 1: the gradient sum of the open window.
        - `window_weight`, with `reduction="weighted"`: the weight of the gradient sum.
        - `missing_gradients`, if gradients have been missing in the open window: for each variable,
          the number of micro-batches in which its gradient was missing. The last element is
          `completed_updates`.

        Returns:
            A new dictionary of arrays.
        """

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `get_state` returned, on this Keras or on another.

        An optimizer that has no variables yet keeps the state until its variables are created.

        Args:
            state: `{name: array}`. `learning_rate` is optional. The window is optional, too:
                without a window, a fresh window starts. The trainable variables of the model must
                have the same order.

        Raises:
            keras_accum.StateError: If the state doesn't fit this optimizer. The message names
                everything that doesn't fit, and the optimizer is unchanged.
        """

    @classmethod
    def from_optimizer(cls, optimizer: keras.optimizers.Optimizer, **arguments: Any) -> Self:
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, on Keras 3 also with Keras's own
                `gradient_accumulation_steps`, or an optimizer of this package with the same rule.
                The optimizer isn't changed. On Keras 2 with TensorFlow 2, a class of the legacy
                style also takes an optimizer that isn't legacy, without `weight_decay` and
                `use_ema`. An RMSprop that isn't legacy has epsilon under the root, so its updates
                differ from a legacy RMSprop's without momentum.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer.

        Raises:
            TypeError: If the optimizer has a different rule or is a LossScaleOptimizer.
            ValueError: If the optimizer uses an argument that this class doesn't have, if an
                argument that this class fixes has a different value, or if the optimizer has an
                open window and the new `accum_iters` is 1.

        Example:

        >>> from keras_accum import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """

    def to_stock(self) -> keras.optimizers.Optimizer:
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        The stock optimizer is built for the same variables: compile the model with it. This
        optimizer isn't changed. On Keras 3, `decay` becomes an InverseTimeDecay schedule, which
        gives the same rate.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, if the class has arguments that the stock optimizer
                doesn't have, or if the stock optimizer can't have this `decay`.
        """

    @classmethod
    def with_accum_iters(cls, accum_iters: int, stock: bool = False) -> Any:
        """Return this class for `custom_objects`, to load a file that doesn't hold `accum_iters`.

        Files of the AdamAccumulate class that is copied across the web don't hold `accum_iters`.
        These files count micro-batches, and the count is converted to updates. Files of stock
        optimizers of Keras 2 count updates.

        Args:
            accum_iters: Integer >= 1. The number of micro-batches that make one update.
            stock: Boolean, default False. True if a stock optimizer wrote the file. Keras 2 writes
                the names of stock optimizers in lower case.

        Returns:
            An object to put into `custom_objects`.

        Raises:
            TypeError: If `accum_iters` isn't a number.
            ValueError: If `accum_iters` is out of its range.

        Example:

        >>> copied = {"AdamAccumulate": AdamAccumulate.with_accum_iters(5)}
        >>> model = load_model("copied_class.h5", custom_objects=copied)
        >>> stock = {"adam": AdamAccumulate.with_accum_iters(5, stock=True)}
        >>> model = load_model("stock.h5", custom_objects=stock)
        """

class SGDAccumulate(AccumulatingOptimizer, keras.optimizers.SGD):
    """Gradient descent with momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        u <- momentum * u - learning_rate * G
        p <- p + u                                      momentum
        p <- p + momentum * u - learning_rate * G       Nesterov momentum
        p <- p - learning_rate * G                      momentum = 0

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01. Keras 2.2 calls this argument `lr`.
        momentum: Float in [0, 1], default 0.
        nesterov: Boolean, default False.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `momentum` (u): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Epsilon is outside the root; in Keras 3 it is under the root.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls this argument `lr`.
        rho: Float in [0, 1), default 0.9.
        epsilon: Float >= 0, default 1e-7; None means the default.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `velocity` (v): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

    Paper:
        Lecture 6.5, RMSprop: divide the gradient by a running average of its recent magnitude.
        Tijmen Tieleman, Geoffrey Hinton, 2012. Centered: Generating Sequences With Recurrent Neural
        Networks. Alex Graves, 2013.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Epsilon is the paper's "epsilon hat" and is outside the root, as in every Keras. PyTorch and
    optax take the epsilon of Algorithm 1, which corresponds to `epsilon * sqrt(1 - beta_2^t)` in
    this formula.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls this argument `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `momentum` (m), `velocity` (v), with amsgrad `velocity_hat`: slots, each of its variable's
          shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AMSGradAccumulate(AccumulatingOptimizer, keras.optimizers.Adam):
    """AMSGrad, Adam with a nondecreasing second moment, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        v <- v + (1 - beta_2) * (G^2 - v)
        w <- max(w, v)
        p <- p - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(w) + epsilon)

    The maximum is taken of v before its bias correction, as in every Keras and in PyTorch. optax
    takes the maximum after the bias correction by default. Epsilon is outside the root, as in
    AdamAccumulate.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001. Keras 2.2 calls this argument `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `momentum` (m), `velocity` (v), `velocity_hat` (w): slots, each of its variable's shape
          and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Epsilon is under both roots, as in the paper and in every Keras. The paper has no learning rate:
    its rule is this formula with `learning_rate=1`.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 1.0. Keras 2.2 calls this argument `lr`.
        rho: Float in [0, 1), default 0.95.
        epsilon: Float >= 0, default 1e-7; None means the default.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `accumulated_grad` (a), `accumulated_delta_var` (b): slots, each of its variable's shape
          and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdagradAccumulate(AccumulatingOptimizer, keras.optimizers.Adagrad):
    """Adagrad, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches, and a starting at
    0:

        a <- a + G^2
        p <- p - learning_rate * G / (sqrt(a) + epsilon)

    Epsilon is outside the root; in Keras 3 it is under the root. Newer Keras versions start
    with a = 0.1.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01. Keras 2.2 calls this argument `lr`.
        epsilon: Float >= 0, default 1e-7; None means the default.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `accumulator` (a; not the gradient sum of a window): slots, each of its variable's shape
          and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

    Paper:
        Adaptive Subgradient Methods for Online Learning and Stochastic Optimization. John Duchi,
        Elad Hazan, Yoram Singer, 2011.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class AdamaxAccumulate(AccumulatingOptimizer, keras.optimizers.Adamax):
    """Adamax, Adam with the infinity norm, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches and t = 1, 2, ... the
    number of the update:

        m <- m + (1 - beta_1) * (G - m)
        u <- max(beta_2 * u, |G|)
        p <- p - learning_rate / (1 - beta_1^t) * m / (u + epsilon)

    The paper has no epsilon. Every Keras adds epsilon to u.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.002. Keras 2.2 calls this argument `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `momentum` (m), `norm` (u): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    w starts at 1, and all variables share one w. Epsilon is outside the root.
    Keras 3 has t in place of `t * schedule_decay`.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.002. Keras 2.2 calls this argument `lr`.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        schedule_decay: Float >= 0, default 0.004. The speed at which mu grows to `beta_1`.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradients of all
            variables together to this norm, as this Keras does.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Another name for `clipnorm`. All other Keras versions use this name for the
            norm of all gradients together.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default) or `"sum"`. How the gradients of a window are combined.
            `"mean"` takes their average, which is the gradient of the big batch if the loss
            averages over samples. `"sum"` takes their sum, for a loss that sums.
        skip_nonfinite: Boolean, default False. Drop a micro-batch if its gradient has an infinite
            or NaN element: the gradient isn't added, and the micro-batch doesn't count. By default,
            such a micro-batch spoils the update of its window, as it would spoil the big batch.
            Later windows start from empty accumulators, so only the weights carry the damage on.
        skip_norm: Float > 0 or None (default); or a function. Drop a micro-batch
            if the norm of its gradient, over all variables together, is above this number or isn't
            a number. The norm is that of the micro-batch's average gradient, before clipping, and
            summed over replicas. A function is called with the norm, a scalar tensor, and returns
            True (or a tensor) to drop the micro-batch. No file can hold a function. With a loss
            that sums over samples, the norm is that of the sum.
        window_transforms: List of functions or None (default). Each function takes a
            list of gradients, which are the window's averages, and a list of their variables, and
            returns the gradients. The functions run one after the other, before clipping. A
            traced train step runs them on every micro-batch, also inside a window, where the
            result is dropped. On replicas, they must return the same everywhere. No file can hold
            a function.
        gate: `"select"` (default) or `"conditional"`. How weights and slots stay unchanged inside
            a window. `"select"` computes an update on every micro-batch and selects either the new
            or the old values, without a conditional in the graph. `"conditional"` puts one
            conditional around the update. Numbers and state are the same. `"conditional"` costs
            less in models whose parameters dominate the cost, and can't run in `torch.compile`.
        all_reduce: `"per_micro_batch"`, the only value: this Keras doesn't reduce over devices.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `momentum` (m), `velocity` (v): slots, each of its variable's shape and dtype.
        - `m_schedule` (w): float scalar, one for all variables; `u_product` in `get_state`.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch"] = "per_micro_batch",
        decay: float | None = None,
        learning_rate: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None: ...

class ApplyPartialWindow(keras.callbacks.Callback):
    """Close the open window at the end of each epoch, before the validation.

    Without this callback, an unfinished window continues in the next epoch. With this callback, the
    gradients of an unfinished window make an update of their own: the callback calls
    `apply_partial_window()` of the optimizer. List `ApplyPartialWindow` before callbacks that save
    the model. In a MultiOptimizer, the callback closes the window of each optimizer of this
    package.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.

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

class AccumulateByEpoch(keras.callbacks.Callback):
    """Set `accum_iters` of the model's optimizer at the start of an epoch.

    The new value takes effect with the next window: a window that is open when an epoch ends keeps
    its length. List ApplyPartialWindow, too, if no window should go on in the next epoch. For
    lengths that depend on the number of updates, construct the optimizer with an
    AccumulationSchedule instead. In a MultiOptimizer, the callback sets the value of each optimizer
    of this package.

    Args:
        lengths: Dictionary `{epoch: accum_iters}`, or a list of such pairs. An epoch has the
            value of the greatest key that isn't above its number, counted from 0. Epochs are
            integers >= 0, and one of them is 0. Values are integers >= 1 and below `2**31`.

    Raises:
        TypeError: If `lengths` isn't a dictionary or a list of pairs, or has something that isn't a
            number. At the start of training, if the model's optimizer isn't of this package.
        ValueError: If a number is out of its range, or if 0 isn't among the epochs. At the start of
            training, if the optimizer's `accum_iters` is a function or an AccumulationSchedule, or
            if the optimizer was constructed with `accum_iters=1` and `lengths` has another value.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras2 import AccumulateByEpoch, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((40, 3)), np.ones((40, 1))
    >>> growth = AccumulateByEpoch({0: 1, 2: 4})
    >>> history = model.fit(x, y, batch_size=10, epochs=3, verbose=0, callbacks=[growth])
    >>> model.optimizer.completed_updates  # 4 + 4 + 1
    9
    """

    def __init__(self, lengths: Mapping[int, int] | Sequence[Sequence[int]]) -> None: ...

def accumulating(
    optimizer_class: type[keras.optimizers.Optimizer],
) -> type[AccumulatingOptimizer]:
    """Return a subclass of an optimizer class that makes one update per window of micro-batches.

    An update runs the code of `optimizer_class` on the average gradient of a window. The returned
    class takes the arguments of `optimizer_class` in their order, plus the keyword arguments of all
    classes of this package: `accum_iters`, `reduction`, `skip_nonfinite`, `skip_norm`,
    `window_transforms`, `gate`, `all_reduce`, `lr` and `decay`; see `AdamAccumulate`. State, files
    and callbacks work as with all classes of this package.
    `get_updates` of `optimizer_class` must write with `update`, `update_add` and `update_sub` of
    `keras.backend`, to variables that it creates with `zeros`, `ones` and `variable` of
    `keras.backend`, as Keras's own optimizers do.

    Args:
        optimizer_class: A class of optimizers: a class of Keras, for example
            `keras.optimizers.Nadam`, or your own subclass of `keras.optimizers.Optimizer`.

    Returns:
        A subclass of `optimizer_class`, `<name>Accumulate`, registered for loading by its name. The
        same `optimizer_class` gives the same class. Call `accumulating` before you load a model
        that was saved with such an optimizer.

    Raises:
        TypeError: If `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers wrap other optimizers (TFOptimizer), if it has an argument or a member
            with the name of one of this package's, or if another class already has its name.
        ValueError: When a train step is built, if `get_updates` writes in another way.

    Example:

    >>> import keras
    >>> from keras_accum.keras2 import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
