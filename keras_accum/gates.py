"""What decides whether a micro-batch makes an update. No host is imported here.

A gate is called with the port, the step and the gradients of a micro-batch, and with two functions
of a step and gradients: `update` and `add`. An update whose step has the integer 1 as its switch is
certain: nothing needs to be selected.
"""


def select(port, step, gradients, update, add):
    """Make an update on every micro-batch, whose writes take effect only if the switch is 1."""
    update(step, gradients)


def conditional(port, step, gradients, update, add):
    """Make one conditional: the update at the end of a window, or the additions inside it."""
    port.branch(step, gradients, lambda step, gradients: update(certain(step), gradients), add)


def known(is_due):
    """Return the gate of a micro-batch of which Python knows whether an update is due."""

    def gate(port, step, gradients, update, add):
        if is_due:
            update(certain(step), gradients)
        else:
            add(step, gradients)

    return gate


def certain(step):
    """Return the step of an update that is certain."""
    return step._replace(switch=1)


def is_certain(switch):
    return isinstance(switch, int)
