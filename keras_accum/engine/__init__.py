"""The engine: a micro-batch, step by step, on every Keras. No Keras is imported here.

`accumulation` has the steps from top to bottom. `window` has a window's mathematics and variables.
`gradients` weights, drops and transforms gradients. `pending` keeps the arguments of `weigh`,
`close_window` and `decide`. `parts` has the interfaces for a Keras, and `sums` the one for the
window's gradient sums. `state` reads and writes states, `models` names weights, and `stock` is how
conversion sees a Keras's stock optimizers.
"""
