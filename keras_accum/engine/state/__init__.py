"""An optimizer's state: a dictionary of NumPy arrays, the same on every Keras.

    state_format                    ()  the version of this layout
    completed_updates               ()  integer, the number of updates made
    learning_rate                   ()  if it is a number, not a schedule or another callable
    <Rule>.<slot>.<i>                   a slot of trainable variable i, for example Adam.momentum.0
    <Rule>.<scalar>                     a rule's own scalar, for example Nadam.u_product
    moving_average.<i>                  with use_ema
    window_position, window_length, accum_iters
                                    ()  integers, only with accumulation, see `window`
    window_weight                   ()  unless reduction is "mean" or "sum"
    accumulator.<i>                     the open window's gradient sum; float32 for half precision
    missing_gradients         (n + 1,)  integers, only if gradients of the n trainable variables
                                        have been missing in the open window, see `window`
    weight_names              (bytes,)  the weights' names, as numbers, see `names`

No Keras is imported here, and nothing runs in a train step: a `parts.Store` has the variables.
`parsing` parses what a user or a file gives, `matching` finds the variable of each array, and
`variables` writes them.
"""

from keras_accum.engine.state.checks import StateError, parse_index
from keras_accum.engine.state.state import BY_CHECKPOINT, BY_LOADING, State

__all__ = ["BY_CHECKPOINT", "BY_LOADING", "State", "StateError", "parse_index"]
