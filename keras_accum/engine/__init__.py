"""The engine: a micro-batch, step by step, on every Keras. No Keras is imported here.

`accumulation` has the steps from top to bottom. `window` has a window's mathematics and variables.
`gradients` weights, drops and transforms gradients. `pending` keeps the arguments of `weigh`,
`close_window` and `decide`. `parts` has the interfaces for a Keras, and `state` reads and writes
states.
"""
