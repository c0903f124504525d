"""The mathematics of four optimizers, once for all hosts. No host is imported here.

A rule is the formula of its paper with one addition: a `switch` that is 1.0 on the micro-batch that
closes a window and 0.0 on every other micro-batch. The switch multiplies scalars only. If the
switch is 0.0 and the gradient is finite, each line of an update is exactly the identity, also in
floating point. (Where the switch is zero, the host hands over a zero gradient.)

A rule has these parts:

* `slots`: the names of its per-parameter state, in the order in which an update takes the slots;
* `coefficients(ops, switch, learning_rate, update, **hyperparameters)`: return the gated scalars,
  computed once per data type and rounded where the stock optimizers round them (`update` counts
  from 1);
* `step(ops, c, gradient, parameter, *slots)`: return the new parameter and the new slots. SGD and
  Adam have no `step`: a kernel of TensorFlow makes their update (see `kernels`).

`ops` is any namespace with `cast`, `maximum`, `sqrt` and `where`, for example `keras.ops` or `tf`.
"""


def denominator_epsilon(ops, switch, epsilon):
    """Return epsilon, or 1 inside a window, where with epsilon=0 a division by zero would occur.

    The value is selected, because compilers may turn epsilon + (1 - switch) into
    (epsilon + 1) - switch.
    """
    return ops.where(switch > 0, epsilon, ops.cast(1.0, switch.dtype))


class SGD:
    """u <- mu u - lr G;  p <- p + u;  Nesterov: p <- p + mu u - lr G;  mu = 0: p <- p - lr G."""

    hyperparameters = ("momentum",)

    def __init__(self, momentum, nesterov):
        self.slots = ("momentum",) if momentum else ()
        self.nesterov = nesterov

    def coefficients(self, ops, switch, learning_rate, update, momentum):
        return {
            "switch": switch,
            "rate": switch * learning_rate,
            "friction": switch * (1 - ops.cast(momentum, switch.dtype)),
        }


class Adam:
    """m <- m + (1 - b1)(G - m);  v <- v + (1 - b2)(G^2 - v);  p <- p - alpha m / (sqrt(v) + eps).

    alpha = lr sqrt(1 - b2^t) / (1 - b1^t): epsilon is the paper's "epsilon hat", as in every Keras.
    """

    slots = ("momentum", "velocity")
    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def coefficients(self, ops, switch, learning_rate, update, beta_1, beta_2, epsilon):
        power_1 = ops.cast(beta_1, update.dtype) ** update
        power_2 = ops.cast(beta_2, update.dtype) ** update
        alpha = learning_rate * ops.sqrt(1 - power_2) / (1 - power_1)
        return {
            "alpha": switch * alpha,
            "rate_1": switch * (1 - beta_1),
            "rate_2": switch * (1 - beta_2),
            "epsilon": denominator_epsilon(ops, switch, epsilon),
        }


class AMSGrad(Adam):
    """Adam with vhat <- max(vhat, v) in place of v in the last line."""

    slots = ("momentum", "velocity", "velocity_hat")

    def step(self, ops, c, gradient, parameter, momentum, velocity, velocity_hat):
        momentum = momentum + c["rate_1"] * (gradient - momentum)
        velocity = velocity + c["rate_2"] * (gradient * gradient - velocity)
        velocity_hat = ops.maximum(velocity_hat, velocity)
        parameter = parameter - c["alpha"] * momentum / (ops.sqrt(velocity_hat) + c["epsilon"])
        return parameter, momentum, velocity, velocity_hat


class RMSprop:
    """v <- v + (1 - rho)(G^2 - v);  d <- lr G / sqrt(v + eps);  u <- mu u + d;  p <- p - u.

    Centered: a <- a + (1 - rho)(G - a), and v - a^2 in place of v. Without momentum: p <- p - d.
    Hosts differ in where epsilon sits: `epsilon_in_root` is sqrt(v + eps), else sqrt(v) + eps.
    """

    hyperparameters = ("rho", "momentum", "epsilon")

    def __init__(self, momentum, centered, epsilon_in_root):
        self.slots = (
            ("velocity",)
            + (("momentum",) if momentum else ())
            + (("average_gradient",) if centered else ())
        )
        self.epsilon_in_root = epsilon_in_root

    def coefficients(self, ops, switch, learning_rate, update, rho, momentum, epsilon):
        return {
            "switch": switch,
            "rate": switch * learning_rate,
            "rho": switch * (1 - rho),
            "friction": switch * (1 - momentum),
            "epsilon": denominator_epsilon(ops, switch, epsilon),
        }

    def step(self, ops, c, gradient, parameter, *slots):
        new = dict(zip(self.slots, slots))
        new["velocity"] = second = new["velocity"] + c["rho"] * (
            gradient * gradient - new["velocity"]
        )
        if "average_gradient" in new:
            average = new["average_gradient"]
            new["average_gradient"] = average = average + c["rho"] * (gradient - average)
            second = second - average * average
        if self.epsilon_in_root:
            root = ops.sqrt(second + c["epsilon"])
        else:
            root = ops.sqrt(second) + c["epsilon"]
        moved = c["rate"] * gradient / root
        if "momentum" in new:
            new["momentum"] = new["momentum"] - c["friction"] * new["momentum"] + moved
            moved = c["switch"] * new["momentum"]
        return (parameter - moved,) + tuple(new[name] for name in self.slots)


def decayed(learning_rate, decay, completed_updates):
    """Return the learning rate after Keras 2's time decay: lr / (1 + decay * completed updates)."""
    return learning_rate / (1 + decay * completed_updates)
