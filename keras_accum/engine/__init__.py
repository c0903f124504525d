"""The engine: what happens in a micro-batch, on every Keras. No Keras is imported here.

`accumulation` has the steps from top to bottom, `window` the mathematics and the variables of a
window, `gradients` what may happen to a gradient, `pending` what a train step said beforehand,
`parts` what a Keras does for the engine, and `state` what a file holds.
"""
