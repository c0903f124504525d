"""The tap on a model's losses: each call in a train step becomes a Term."""

import contextlib

from keras_accum.host import check_members, is_code_of_keras
from keras_accum.host.scopes import attribute
from keras_accum.terms.term import Term


class Tap:
    """Stands in for the losses of a model, and notes their calls.

    terms: a Term for each call in the current scope; None outside of one.
    """

    terms = None

    def __init__(self, host, model, when_built=lambda: None, change=lambda term, result: result):
        """`when_built` is called if Keras builds its container of losses within a scope.

        change: what Keras gets in place of a call's result.
        """
        self._host, self._model, self._when_built = host, model, when_built
        self._change = change
        self._tapped = None  # the container's own losses, and those that stand in for them

    @contextlib.contextmanager
    def scope(self):
        """Note the calls in this scope, and yield their list. An inner scope yields the same."""
        if self.terms is not None:
            yield self.terms
            return
        container, name, _ = self._host.find_losses(self._model)
        self.terms = []
        with contextlib.ExitStack() as stack:
            stack.callback(self.reset)
            if container is not None:
                check_members(self._host.keras, container, [name, "build", "built"])
                if container.built:
                    self._install(stack)
                else:
                    build = self._build_and_install(stack)
                    stack.enter_context(attribute(container, "build", build))
            yield self.terms

    def reset(self):
        """Forget the calls with the tensors of a trace or step, also after Ctrl-C."""
        self.terms = None

    def _install(self, stack):
        container, name, replace = self._host.find_losses(self._model)
        losses = vars(container)[name]
        if self._tapped is None or self._tapped[0] is not losses:
            pairs = zip(losses, self._host.list_loss_weights(container))
            self._tapped = losses, [replace(x, self._stand_in_with(weight)) for x, weight in pairs]
        stack.enter_context(attribute(container, name, self._tapped[1]))

    def _build_and_install(self, stack):
        container, _, _ = self._host.find_losses(self._model)

        def build(*arguments, **keywords):
            type(container).build(container, *arguments, **keywords)
            self._install(stack)
            self._when_built()

        return build

    def _stand_in_with(self, weight):
        def note(term, result):
            self.terms.append(term)
            return self._change(term, result)

        return lambda loss: TappedLoss(self._host, loss, weight, note)


class TappedLoss:
    """Stands in for a loss in Keras's container."""

    def __init__(self, host, loss, weight, note):
        self._host, self._loss, self._weight, self._note = host, loss, weight, note
        call = type(loss).__call__
        is_stock = call is host.keras.losses.Loss.__call__
        self._has_own_call = not (is_stock or is_code_of_keras(call))

    def __getattr__(self, name):
        return getattr(self._loss, name)

    def __call__(self, y_true, y_pred, sample_weight=None):
        loss, values = self._loss, None
        if self._has_own_call:
            result = loss(y_true, y_pred, sample_weight=sample_weight)
        else:
            result, values = _call_noting(loss, y_true, y_pred, sample_weight)
        term = Term(self._host, loss, values, y_true, y_pred, sample_weight, self._weight)
        return self._note(term, result)


def _call_noting(loss, *arguments):
    """Call a loss. Return its result, and what its `call` returned, None if unknown."""
    calls = []

    def call_and_note(*arrays, **keywords):
        calls.append(loss.call(*arrays, **keywords))
        return calls[-1]

    # Another object, not a changed one: two models' threads may share a loss.
    twin = object.__new__(type(loss))
    vars(twin).update(vars(loss), call=call_and_note)
    result = twin(*arguments)
    return result, calls[0] if len(calls) == 1 else None
