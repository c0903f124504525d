"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15."""

# Made by `python docs/write_stubs.py` from tf_keras 2.21. Don't edit this file.

from typing import Any, Callable, Literal, Mapping, Sequence

import tensorflow as tf
import tf_keras as keras
from tf_keras.optimizers.schedules import LearningRateSchedule
from typing_extensions import Self

from keras_accum.schedule import AccumulationSchedule as AccumulationSchedule
from keras_accum.states import StateError as StateError

class AccumulatingOptimizer(keras.optimizers.legacy.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def reduction(self) -> Literal["mean", "sum", "weighted"]:
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
    def all_reduce(self) -> Literal["per_micro_batch", "per_window"]:
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
        """Let the next micro-batch close its window, also before the window has its length.

        A train step calls `close_window` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`), also in a traced function (`tf.function`, `jax.jit`): a tensor `when`
        decides anew in each step, without a conditional. The micro-batch is the last one of its
        window. If the micro-batch is dropped (`skip_nonfinite`, `skip_norm`), the window closes
        with the micro-batches that it has. If a LossScaleOptimizer skips the micro-batch, the
        window stays open. In replicas of `tf.distribute`, the window closes if one of the replicas
        says so.

        Args:
            when: Boolean, default True, or a scalar tensor. If false, the window closes as without
                the call.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            ValueError: When a train step is traced, if the call was outside of the trace. With
                PythonGate.

        Example:

        A window by tokens, in a train step: `optimizer.close_window(tokens >= 100000)`.
        """

    def decide(self, is_update: bool) -> None:
        """Decide in Python whether the next micro-batch closes its window.

        This is what `PythonGate` does in `fit`, for training loops of one's own. A train step calls
        `decide` each time before `apply_gradients` (or `apply`, or `stateless_apply`). A traced
        function (`tf.function`, `jax.jit`) takes `is_update` as a static argument, so it is traced
        twice: one program only adds gradients to the accumulators, and the other one makes the
        update. This is the cheapest micro-batch. The window has the micro-batches that the caller
        gives it, whatever its length.

        Args:
            is_update: Boolean. True: the micro-batch closes its window and makes the update. False:
                the micro-batch only adds to the window.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            TypeError: If `is_update` isn't a Python boolean. A tensor is for `close_window`.
            ValueError: With `skip_nonfinite` or `skip_norm`, because only the device knows whether
                a micro-batch counts. If `is_update` is false with `accum_iters=1`, which has no
                accumulators. When a train step is traced, if the call was outside of the trace.

        Example:

        A step for JAX, with `jax.jit(step, static_argnames="is_update")`:

        >>> def step(optimizer, state, gradients, weights, is_update):
        ...     optimizer.decide(is_update)
        ...     return optimizer.stateless_apply(state, gradients, weights)
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
    def from_optimizer(
        cls,
        optimizer: keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer,
        **arguments: Any,
    ) -> Self:
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

    def to_stock(self) -> keras.optimizers.legacy.Optimizer:
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

class _AccumulatingNewStyleOptimizer(keras.optimizers.Optimizer):
    """The members that every optimizer of this package adds to those of its stock optimizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def reduction(self) -> Literal["mean", "sum", "weighted"]:
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
    def all_reduce(self) -> Literal["per_micro_batch", "per_window"]:
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
        """Let the next micro-batch close its window, also before the window has its length.

        A train step calls `close_window` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`), also in a traced function (`tf.function`, `jax.jit`): a tensor `when`
        decides anew in each step, without a conditional. The micro-batch is the last one of its
        window. If the micro-batch is dropped (`skip_nonfinite`, `skip_norm`), the window closes
        with the micro-batches that it has. If a LossScaleOptimizer skips the micro-batch, the
        window stays open. In replicas of `tf.distribute`, the window closes if one of the replicas
        says so.

        Args:
            when: Boolean, default True, or a scalar tensor. If false, the window closes as without
                the call.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            ValueError: When a train step is traced, if the call was outside of the trace. With
                PythonGate.

        Example:

        A window by tokens, in a train step: `optimizer.close_window(tokens >= 100000)`.
        """

    def decide(self, is_update: bool) -> None:
        """Decide in Python whether the next micro-batch closes its window.

        This is what `PythonGate` does in `fit`, for training loops of one's own. A train step calls
        `decide` each time before `apply_gradients` (or `apply`, or `stateless_apply`). A traced
        function (`tf.function`, `jax.jit`) takes `is_update` as a static argument, so it is traced
        twice: one program only adds gradients to the accumulators, and the other one makes the
        update. This is the cheapest micro-batch. The window has the micro-batches that the caller
        gives it, whatever its length.

        Args:
            is_update: Boolean. True: the micro-batch closes its window and makes the update. False:
                the micro-batch only adds to the window.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            TypeError: If `is_update` isn't a Python boolean. A tensor is for `close_window`.
            ValueError: With `skip_nonfinite` or `skip_norm`, because only the device knows whether
                a micro-batch counts. If `is_update` is false with `accum_iters=1`, which has no
                accumulators. When a train step is traced, if the call was outside of the trace.

        Example:

        A step for JAX, with `jax.jit(step, static_argnames="is_update")`:

        >>> def step(optimizer, state, gradients, weights, is_update):
        ...     optimizer.decide(is_update)
        ...     return optimizer.stateless_apply(state, gradients, weights)
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
    def from_optimizer(
        cls,
        optimizer: keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer,
        **arguments: Any,
    ) -> Self:
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

class SGDAccumulate(AccumulatingOptimizer, keras.optimizers.legacy.SGD):
    """Gradient descent with momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        u <- momentum * u - learning_rate * G
        p <- p + u                                      momentum
        p <- p + momentum * u - learning_rate * G       Nesterov momentum
        p <- p - learning_rate * G                      momentum = 0

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.01; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        momentum: Float in [0, 1], default 0.
        nesterov: Boolean, default False.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
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
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    This is the formula without momentum. With momentum, this Keras has epsilon under the
    root, as Keras 3 always has.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        rho: Float in [0, 1), default 0.9.
        momentum: Float in [0, 1], default 0.
        epsilon: Float >= 0, default 1e-7; None means the default.
        centered: Boolean, default False. Divide by the standard deviation of the gradient
            instead of its root mean square.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `rms` (v), with momentum `momentum` (u), centered `mg`: slots, each of its variable's
          shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Epsilon is the paper's "epsilon hat" and is outside the root, as in every Keras. PyTorch and
    optax take the epsilon of Algorithm 1, which corresponds to `epsilon * sqrt(1 - beta_2^t)` in
    this formula.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`, `v`, with amsgrad `vhat`: slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`, `v`, `vhat` (w): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Weight decay is part of the update, so the weights shrink once per window. Epsilon is outside
    the root, as in AdamAccumulate.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        amsgrad: Boolean, default False. See AMSGradAccumulate.
        weight_decay: Float >= 0, default 0.004. Each update first reduces the weights by
            `learning_rate * weight_decay` times their value.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. The share of the average that an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates
            after which the average overwrites the weights.
        jit_compile: Boolean, default True. Compile the update with XLA if there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.

    State:
        All of the state is in `variables`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`, `v`, with amsgrad `vhat`: slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    Epsilon is under both roots, as in the paper and in every Keras. The paper has no learning rate:
    its rule is this formula with `learning_rate=1`.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        rho: Float in [0, 1), default 0.95.
        epsilon: Float >= 0, default 1e-7; None means the default.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `accum_grad` (a), `accum_var` (b): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    With G the average gradient of a window of `accum_iters` micro-batches, and a starting at
    initial_accumulator_value:

        a <- a + G^2
        p <- p - learning_rate * G / (sqrt(a) + epsilon)

    Epsilon is outside the root; in Keras 3 it is under the root.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        initial_accumulator_value: Float >= 0, default 0.1.
        epsilon: Float >= 0, default 1e-7; None means the default.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
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
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`, `v` (u): slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    w starts at 1, and all variables share one w. Epsilon is outside the root.
    Keras 3 has t in place of `t * schedule_decay`.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in [0, 1), default 0.9.
        beta_2: Float in [0, 1), default 0.999.
        epsilon: Float >= 0, default 1e-7; None means the default.
        schedule_decay: Float >= 0, default 0.004. The speed at which mu grows to `beta_1`.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: None. On this Keras, the learning rate of Nadam doesn't decay; see
            `schedule_decay`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`, `v`: slots, each of its variable's shape and dtype.
        - `momentum_cache` (w): float scalar, one for all variables; `u_product` in `get_state`.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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

    n starts at `initial_accumulator_value`, z at 0. Each update recomputes a weight from z: the
    previous value of the weight matters only through z.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        learning_rate_power: Float <= 0, default -0.5. 0 gives a fixed learning rate.
        initial_accumulator_value: Float >= 0, default 0.1.
        l1_regularization_strength: Float >= 0, default 0.
        l2_regularization_strength: Float >= 0, default 0. An L2 penalty that isn't part of the
            gradient.
        l2_shrinkage_regularization_strength: Float >= 0, default 0. An L2 penalty that is part of
            the gradient in z, but not in n.
        beta: Float >= 0, default 0. Added to `n'^q`.
        name: String, default the class's name.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        gradient_aggregator: Function that takes and returns a list of (gradient, variable) pairs,
            or None (default). Sums gradients over the replicas, as often as `all_reduce` says.
        gradient_transformers: List of functions, or None (default). Each function takes and returns
            a list of (gradient, variable) pairs, with the window's averages as gradients.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.
        decay: Float >= 0, default 0. The learning rate is divided by
            `1 + decay * completed_updates`.

    State:
        All of the state is in `weights`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `accumulator` (n; not the gradient sum of a window), `linear` (z): slots, each of its
          variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`, once a gradient is missing: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
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
    """Lion, steps by the sign of the momentum, one update per window of micro-batches.

    With G the average gradient of a window of `accum_iters` micro-batches:

        p <- p - learning_rate * sign(beta_1 * m + (1 - beta_1) * G)
        m <- beta_2 * m + (1 - beta_2) * G

    Each element moves by `learning_rate` or not at all. The authors recommend a learning rate three
    to ten times smaller than Adam's, and a weight decay larger by the same factor.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.0001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_1: Float in (0, 1], default 0.9. The share of m in the argument of sign.
        beta_2: Float in [0, 1), default 0.99.
        weight_decay: Float >= 0 or None (default). Each update first reduces the weights by
            `learning_rate * weight_decay` times their value.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. The share of the average that an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates
            after which the average overwrites the weights.
        jit_compile: Boolean, default True. Compile the update with XLA if there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.

    State:
        All of the state is in `variables`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `m`: slots, each of its variable's shape and dtype.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
    ) -> None: ...

class AdafactorAccumulate(_AccumulatingNewStyleOptimizer, keras.optimizers.Adafactor):
    """Adafactor, Adam with a factored second moment, one update per window of micro-batches.

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
    part of a variable.

    Inside a window, weights and slots stay exactly as they are. The traced graph has no conditional
    unless `gate` asks for one.

    Args:
        learning_rate: Float >= 0, default 0.001; or a LearningRateSchedule or a callable without
            arguments. A schedule counts updates, not micro-batches.
        beta_2_decay: Float < 0, default -0.8.
        epsilon_1: Float >= 0, default 1e-30. Keeps the second moment from being 0.
        epsilon_2: Float >= 0, default 1e-3. The lower bound of `RMS(p)` in `alpha`.
        clip_threshold: Float > 0, default 1. The upper bound of the RMS of d.
        relative_step: Boolean, default True. Bound the learning rate by `1 / sqrt(t)`, unless the
            rate is a schedule or another callable. Keras has the same bound in `alpha` in any case,
            so False gives the same numbers.
        weight_decay: Float >= 0 or None (default). Each update first reduces the weights by
            `learning_rate * weight_decay` times their value.
        clipnorm: Float >= 0 or None (default). Clip the window's average gradient of each
            variable to this norm.
        clipvalue: Float >= 0 or None (default). Clip each element of the window's average
            gradients to this absolute value.
        global_clipnorm: Float >= 0 or None (default). Clip the window's average gradients of
            all variables together to this norm. At most one of `clipnorm`
            and `global_clipnorm` may be set.
        use_ema: Boolean, default False. Keep a moving average of the weights.
        ema_momentum: Float in [0, 1], default 0.99. The share of the average that an update keeps.
        ema_overwrite_frequency: Integer >= 1 or None (default). The number of updates
            after which the average overwrites the weights.
        jit_compile: Boolean, default True. Compile the update with XLA if there is a GPU.
        name: String, default the class's name.
        accum_iters: Integer >= 1 and below `2**31`, default 1; or an AccumulationSchedule,
            or a function of the number of completed updates, or None. The number of micro-batches
            that make one update. With 1 the class is the stock optimizer, without accumulators and
            without any other extra variable. With None, a window closes only where the caller says
            so, by `close_window` or `apply_partial_window`. A function is called with an integer
            and, in a train step, with the counter's tensor, and must return an integer >= 1. A
            traced train step can't refuse a number below 1, and takes it as 1. No file can hold a
            function.
        reduction: `"mean"` (default), `"sum"` or `"weighted"`. How the gradients of a window are
            combined. `"mean"` takes their average, which is the gradient of the big batch if the
            loss averages over samples. `"sum"` takes their sum, for a loss that sums. `"weighted"`
            takes their average with the weights that `weigh` was given, for micro-batches that are
            masked or of unequal size; see `MicroBatchWeights`.
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
        all_reduce: `"per_micro_batch"` (default) or `"per_window"`. When the
            replicas of a `tf.distribute` strategy sum their gradients: on every micro-batch, or
            once at the end of the window. With `"per_window"`, each replica keeps a gradient sum of
            its own until then. State and files hold the total over the replicas, so state and files
            are the same. `"per_window"` needs `gate="conditional"`, can't be combined with
            `skip_nonfinite`, and with more than one replica needs `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`.
        lr: Another name for `learning_rate`.

    State:
        All of the state is in `variables`. `get_state` returns the state under names that are
        the same on every Keras.

        - `iterations`: integer scalar, the number of completed updates.
        - `r`, `c`, `v`: slots, each of its variable's dtype. `r` has the variable's shape without
          the last dimension, `c` without the second-to-last dimension, v has the variable's shape.
          With fewer than two dimensions `r` and `c` aren't used.

        With `accum_iters` > 1 also:

        - `accumulator`, one per variable: the gradient sum of the open window, of the variable's
          shape and dtype, but float32 for float16 and bfloat16.
        - `state_format`: integer scalar, the version of this list, 1.
        - `window_position`, `window_length`, `accum_iters`: integer scalars, the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `window_weight`, with `reduction="weighted"` only: float scalar, the weight of the
          gradient sum; float64 if Keras's floatx is float64, else float32.
        - `missing_gradients`: integers of shape (variables + 1,).
          For each variable, the number of micro-batches of the open window in which the variable's
          gradient was missing. The last element is the number of the window.
        - `unapplied`: integer scalar. 1 after a micro-batch that a LossScaleOptimizer skipped but
          counted in `iterations`, else 0.

    Raises:
        TypeError: If an argument has the wrong type. The message names the argument, what is
            allowed and what was received.
        ValueError: If an argument is out of its range; the message names the same. At the first
            step, if `gate="conditional"` can't run there.
        keras_accum.StateError: If a state, a list of weights or a file doesn't fit the optimizer.
            The message names everything that doesn't fit.

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
        accum_iters: int | AccumulationSchedule | Callable[[Any], Any] | None = 1,
        reduction: Literal["mean", "sum", "weighted"] = "mean",
        skip_nonfinite: bool = False,
        skip_norm: float | Callable[[Any], Any] | None = None,
        window_transforms: Sequence[Callable[..., Any]] | None = None,
        gate: Literal["select", "conditional"] = "select",
        all_reduce: Literal["per_micro_batch", "per_window"] = "per_micro_batch",
        lr: float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable | None = None,
        decay: float | None = None,
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
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AccumulateByEpoch, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((40, 3)), np.ones((40, 1))
    >>> growth = AccumulateByEpoch({0: 1, 2: 4})
    >>> history = model.fit(x, y, batch_size=10, epochs=3, verbose=0, callbacks=[growth])
    >>> model.optimizer.completed_updates  # 4 + 4 + 1
    9
    """

    def __init__(self, lengths: Mapping[int, int] | Sequence[Sequence[int]]) -> None: ...

class AccumulationMonitor(keras.callbacks.Callback):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 if no window is open.
    - `learning_rate`: the learning rate of the next update, from the schedule or from `decay`.
    - `gradient_norm`, with `accum_iters` > 1: the norm of the average gradient that made the last
      update, before clipping. NaN before the first update.
    - `skipped_micro_batches`, with `skip_nonfinite` or `skip_norm`: the number of micro-batches
      that were dropped since the start of the training.
    - `effective_batch`, with `batch_size`: the number of samples in a window. Not with
      `accum_iters=None`.
    - `noise_scale`, with `noise_scale=True`: the batch size, in samples, beyond which more
      accumulation pays little. NaN until there is an estimate.

    The callbacks of Keras get all of these logs. The progress bar shows only those that `show`
    names. The bar shortens three of them: `updates: 12` is `completed_updates`, `window: 3/5` is a
    `window_position` of 3 in a window of 5, and `skipped: 2` is `skipped_micro_batches`.

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
            can't be estimated: with `accum_iters=1`, `reduction="weighted"`, `window_transforms`,
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

class GrowWithNoiseScale(keras.callbacks.Callback):
    """An experiment: raise `accum_iters` to the noise scale that AccumulationMonitor measures.

    At the end of each epoch, with the noise scale B in samples and micro-batches of b samples:

        accum_iters <- max(accum_iters, min(round(B / b), 2 accum_iters, maximum))

    A window thus grows towards B samples, at most doubles in an epoch, and never becomes shorter.
    The new value takes effect with the next window. It is part of the state: a training that is
    continued goes on with it.

    This is an experiment, because the estimate from micro-batches is noisy, and because B is the
    critical batch size only under strong assumptions (William Merrill and others, 2025,
    arXiv:2505.23971, who measure the critical batch size itself). Take an AccumulationSchedule if
    you know a good one. The learning rate isn't changed.

    List the callback after AccumulationMonitor.

    Args:
        maximum: Integer >= 2 and below `2**31`. The greatest `accum_iters`.

    Raises:
        TypeError: If `maximum` isn't a number. At the start of training, if the model's optimizer
            isn't of this package.
        ValueError: If `maximum` is out of its range. At the start of training, if the optimizer's
            `accum_iters` is a function or an AccumulationSchedule, is None, or isn't from 2 to
            `maximum`; at its first micro-batch, if no noise scale is in the logs.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AccumulationMonitor, GrowWithNoiseScale, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=2), loss="mse")
    >>> monitor = AccumulationMonitor(batch_size=10, noise_scale=True)
    >>> growth = GrowWithNoiseScale(maximum=16)
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[monitor, growth])
    >>> model.optimizer.accum_iters  # equal samples have no noise
    2
    """

    def __init__(self, maximum: int) -> None: ...

class MicroBatchWeights(keras.callbacks.Callback):
    """Set the weight of each micro-batch of `fit`, for `reduction="weighted"`.

    The loss of a micro-batch is a mean. The mean of means is the mean of the big batch only if all
    micro-batches have the same number of elements, which isn't so if sequences are masked or if the
    last batch is short. If each micro-batch is weighted by the number of elements by which its loss
    was divided, the window is equal to the big batch again.

    By default, the callback takes the weight by which Keras divides the model's loss, which depends
    on the loss's reduction. With the default reduction, the weight is the number of unmasked
    elements of the model's output (samples, or samples times steps), whatever their sample weights.
    With `"mean_with_sample_weight"` of Keras 3, the weight is the sum of their sample weights.

    Args:
        weight: Callable or None (default). `weight(x, y, y_pred, sample_weight)` returns the weight
            of a micro-batch, a scalar >= 0, computed with operations of Keras. Required if the
            model has several outputs with masks, or a loss with a reduction of its own.

    Raises:
        TypeError: If `weight` isn't callable. At the start of training, if the model's optimizer
            isn't of this package.
        ValueError: At the start of training, if the optimizer's `reduction` isn't "weighted", or if
            the weight can't be derived from the model's loss.

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

class MicroBatches(keras.callbacks.Callback):
    """Split each batch of `fit` inside the train step: the big batch in the memory of a slice.

    The memory is that of a slice and one sum of gradients; the training is that of the batch. `fit`
    counts batches: steps, progress bar, logs, schedules and callbacks are those of the batch. The
    optimizer may be any optimizer, of Keras or of this package. An optimizer with `accum_iters=5`
    makes an update every 5 batches.

    With `loss="sample"`, slice s has n_s of the batch's n samples, and the gradient is

        gradient = sum over s of (n_s / n) gradient of loss_s
        loss_s   = (n / n_s) sum of the losses of the slice / divisor of the batch + penalties_s

    The divisor is what Keras divides the loss of the whole batch by: the number of samples, of
    unmasked elements, or the sum of sample weights, for each output. So the sum is the gradient of
    the batch, whatever the slices' sizes and masks. A loss and a metric must have one value per
    sample, or per element of a sample, which doesn't depend on other samples.

    With `loss="batch"`, the model first runs on all slices without gradients. The loss of the
    joined outputs gives the gradient of the outputs. Then the model runs on each slice again, with
    the same dropout draws, and the chain rule gives the gradient of the batch:

        gradient = sum over s of (d outputs_s / d weights)^T (d loss / d outputs_s)
                                 + (n_s / n) gradient of penalties_s

    This is exact for any loss of `(y_true, y_pred)`, such as a contrastive loss, for one more
    forward pass. The joined outputs of the batch are kept in memory.

    With "auto", the first slice is the whole batch. If a step runs out of memory, what it has
    changed is undone, and the same batch is taken again in slices of half the size, until they fit.
    No sample counts twice. The size that was found is printed and used from then on. If memory runs
    out while the optimizer updates the weights, a step can't be undone, and the training ends with
    a RuntimeError.

    The penalties are the losses that layers add. They count with the slice's share of the samples.
    This is exact for regularizers of weights, and for means over samples, as activity regularizers
    are in Keras 3.15. It is not exact if a layer adds a sum over samples: write it as a mean.

    Layers see slices. Batch normalization takes the moments of a slice, and moves its averages once
    a slice. Dropout draws for each slice. A callable metric sees slices with `loss="sample"`.

    On TensorFlow and JAX, equal slices run in a loop of the program. If outputs have masks, the
    divisors aren't known before the model runs: with `loss="sample"`, one more forward pass without
    gradients computes them, in inference mode. A gradient with sparse rows becomes a dense one.

    Args:
        size: Integer >= 1, or "auto". The number of samples of a slice; under a strategy, on each
            replica.
        loss: "sample" (default) or "batch". What the loss is a function of.

    Raises:
        TypeError: If `size` is neither an integer nor "auto".
        ValueError: If an argument is out of its range. At the start of training, or in its first
            step, if the training might not be that of the batch: with a `train_step`,
            `compute_loss` or `compute_metrics` of the model's own; with `reduction="weighted"` of
            the optimizer; with arrays that differ in their number of samples. With `loss="sample"`:
            if a loss or a metric makes one value of several samples, or if the loss has no
            reduction. With `loss="batch"`: if batch normalization trains. With "auto": if
            `steps_per_execution` isn't 1, or under a strategy with several replicas. In Keras's NNX
            mode on JAX.
        RuntimeError: With "auto", if memory runs out while the optimizer updates the weights.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import MicroBatches
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer="adam", loss="mse")
    >>> x, y = np.ones((100, 3)), np.ones((100, 1))
    >>> history = model.fit(x, y, batch_size=50, verbose=0, callbacks=[MicroBatches(10)])
    >>> int(model.optimizer.iterations)
    2
    """

    def __init__(self, size: int, loss: Literal["sample", "batch"] = "sample") -> None: ...

class OnUpdates(keras.callbacks.Callback):
    """Call other callbacks once per update, as `fit` at the big batch would call them.

    The callbacks in the list get `on_train_batch_begin` before the first micro-batch of a window,
    and `on_train_batch_end` after the update. The number that they get is that of the update in its
    epoch, from 0. So ModelCheckpoint with an integer `save_freq`, TensorBoard with an integer
    `update_freq`, a learning rate by step, and callbacks of your own count updates. The hooks for
    epochs, validation and prediction are handed on as they are.

    The metrics of Keras's train step are means since the start of the epoch, weighted by samples.
    At the end of a window, their values are therefore the logs of the big batch:

        log(update) = sum over samples since the start of the epoch / number of samples

    This is exact also for short micro-batches. The loss of masked samples is different: Keras
    averages it over the unmasked elements of a micro-batch, and then by the number of samples. A
    log of a train step of your own that isn't the value of one of the model's metrics is the mean
    over the micro-batches of the window.

    `params["steps"]` is the number of updates in an epoch. It is None if epochs may differ in that
    number: if windows vary in length, or go on in the next epoch. A window that goes on in the next
    epoch begins with its number in the first epoch and ends as update 0 of the second epoch, with
    the logs of the second epoch.

    List ApplyPartialWindow before OnUpdates. Callbacks of this package count micro-batches: list
    them beside OnUpdates, and AccumulationMonitor before it. OnUpdates reads the counters of the
    optimizer after each micro-batch, for which JAX waits for the device.

    Args:
        callbacks: List of callbacks of Keras. What the training calls once per update.

    Raises:
        TypeError: If `callbacks` isn't a list of callbacks, or has one of this package. At the
            start of training, if the model's optimizer isn't of this package.
        ValueError: On `tf_keras`, if a callback counts micro-batches by itself: TensorBoard with an
            integer `update_freq`, BackupAndRestore with an integer `save_freq`. At the start of
            training, if ApplyPartialWindow comes after OnUpdates, or with `steps_per_execution`
            other than 1, because one call of the train function may then end inside a window.

    Example:

    >>> import numpy as np
    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import AdamAccumulate, OnUpdates
    >>> said = keras.callbacks.LambdaCallback(
    ...     on_train_batch_end=lambda update, logs: print("update", update, sorted(logs))
    ... )
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((100, 3)), np.ones((100, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[OnUpdates([said])])
    update 0 ['loss']
    update 1 ['loss']
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None: ...

class PythonGate(keras.callbacks.Callback):
    """Let Python choose one of two traced train functions for each micro-batch of `fit`.

    One function only adds gradients to the accumulators. The other function makes the update at the
    end of a window. Neither function has a conditional, and inside a window no update is computed.
    This is the cheapest micro-batch, also under a `tf.distribute` strategy. The numbers, the state
    and the files are the same as without the callback, and `train_on_batch` isn't affected. With
    `all_reduce="per_window"`, the function that accumulates doesn't reduce over replicas. Each
    function is traced once, also over several calls of `fit` with the same callback.

    On TensorFlow, Python reads the counters of the window before each micro-batch. On JAX, Python
    keeps its own count and compares it with the counters at the end of each epoch. Eager PyTorch
    doesn't need two functions: on PyTorch, and with `accum_iters=1`, the callback does nothing.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.
        ValueError: At the start of training, if Python can't know whether a micro-batch closes the
            window: with `skip_nonfinite`, `skip_norm` or a LossScaleOptimizer, because only the
            device knows whether a micro-batch counts; with a function as `accum_iters`, which only
            the device computes (an AccumulationSchedule works); with `accum_iters=None`, because
            the caller closes the window; with `steps_per_execution` other than 1, because one
            function runs several micro-batches; with `ParameterServerStrategy`, because Python
            doesn't wait for the workers; in Keras's NNX mode on JAX. When a train step is traced
            that doesn't call the optimizer exactly once, or that calls `close_window`. On JAX, at
            the end of an epoch, if a train step called the optimizer only under some conditions.

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
    """Return a subclass of an optimizer class that makes one update per window of micro-batches.

    An update runs the code of `optimizer_class` on the average gradient of a window. The returned
    class takes the arguments of `optimizer_class` in their order, plus the keyword arguments of all
    classes of this package: `accum_iters`, `reduction`, `skip_nonfinite`, `skip_norm`,
    `window_transforms`, `gate`, `all_reduce`, `lr` and `decay`; see `AdamAccumulate`. State, files
    and callbacks work as with all classes of this package.

    Args:
        optimizer_class: A class of optimizers: a class of this Keras, legacy or not, or your own
            subclass of its `Optimizer`. The optimizers may keep only slots and scalars.

    Returns:
        A subclass of `optimizer_class`, `<name>Accumulate`, registered for loading. The same
        `optimizer_class` gives the same class. Call `accumulating` before you load a model that was
        saved with such an optimizer.

    Raises:
        TypeError: If `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers wrap other optimizers (LossScaleOptimizer), if it overrides methods that
            run on every micro-batch, or if it has an argument or a member with the name of one of
            this package's.

    Example:

    >>> import tf_keras as keras
    >>> from keras_accum.tf_keras import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.legacy.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
