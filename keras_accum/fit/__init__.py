"""What acts in `fit`, with or without our callbacks. No Keras is imported here.

`training` begins: a hook on CallbackList, at each training. `callback` is the callbacks' base
class, and `hooks` lets functions run before and after CallbackList's methods. `weighing` weighs
each micro-batch, `weighed_logs` the losses that Keras logs, and `closing` ends windows with their
epochs. `train_function` replaces a model's for each batch, and `warnings` looks for differences.
"""
