"""What tensorflow-addons needs: AdamW, SGDW and other classes with decoupled weight decay.

These classes override `apply_gradients`, which runs on every micro-batch, only to note which
variables decay. The decay itself is a part of the update.
"""

_EXTENSION = "DecoupledWeightDecayExtension"


def extension_of(stock):
    """Return the class of tensorflow-addons that decays the weights of a stock class, or None."""
    found = (cls for cls in stock.__mro__ if cls.__name__ == _EXTENSION)
    return next((cls for cls in found if cls.__module__.startswith("tensorflow_addons.")), None)


class NotesDecay:
    """A base class that comes before AccumulatingOptimizer: notes which variables decay."""

    def apply_gradients(self, grads_and_vars, name=None, decay_var_list=None, **kwargs):
        pairs = list(grads_and_vars)
        # An update also covers variables whose gradients came earlier in the window.
        known = [*self._accumulation.port.variables, *(variable for _, variable in pairs)]
        self._set_decay_var_list(known, decay_var_list)
        return super().apply_gradients(pairs, name, **kwargs)

    def _do_use_weight_decay(self, var):
        if self._decay_var_list is None:  # a loaded window may be closed before any step
            self._set_decay_var_list(self._accumulation.port.variables)
        return super()._do_use_weight_decay(var)
