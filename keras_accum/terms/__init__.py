"""What is a loss divided by? This folder is the one place that answers.

`tap` sees the calls of a model's losses, and `reader` describes the loss by them. `term` says what
each is divided by, and `table` decides what a window or a batch in slices does. `problems` keeps
what to warn of, and `repeated` finds terms that `reduction="sum"` would count too often.

Keras's own losses are known. A user's loss that returns one or more values for each sample is taken
as Keras takes it: each value is of one sample. `fit` can't read any other, and says so.
"""
