"""Constructor arguments for editors and type checkers. No code imports this file."""

from typing import Any, Callable, Literal, Sequence, TypedDict

from keras.optimizers.schedules import LearningRateSchedule

from keras_accum.schedule import AccumulationSchedule

Rate = float | LearningRateSchedule | Callable[[], Any]


class More(TypedDict, total=False):
    """Keyword arguments shared by all optimizers."""

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    accum_iters: int | AccumulationSchedule | None
    reduction: Literal["auto", "mean", "sum", "weighted"]
    skip_nonfinite: bool
    skip_norm: float | Callable[[Any], Any] | None
    window_transforms: Sequence[Callable[[Any, Any], Any]] | None
    gate: Literal["auto", "select", "conditional"]
    lr: float | None
    decay: float | None
