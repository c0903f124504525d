"""The losses that Keras logs, each weighted by what it is divided by."""

from keras_accum.host.scopes import attribute


class WeighedLogs:
    """Lets the metrics of a model's losses weight each micro-batch, within a scope.

    find_weight: returns the weight of the loss that is logged now, None as in Keras. It gets False
        for an output's loss, and True for the whole.
    """

    def __init__(self, host, model, find_weight):
        self._host, self._model, self._find_weight = host, model, find_weight
        self._metrics, self._scope = [], None

    def install(self, scope):
        """Change the metrics within this scope, an ExitStack."""
        self._scope = scope
        self._metrics = self._metrics or self._host.loss_metrics(self._model)
        for metric in self._metrics:
            self._weigh(metric)

    def weigh_new_metrics(self):
        """Change metrics that Keras has built within the scope, if there is one."""
        if self._scope is None:
            return
        for metric in self._host.loss_metrics(self._model):
            if not any(metric is known for known in self._metrics):
                self._metrics.append(metric)
                self._weigh(metric)

    def _weigh(self, metric):
        update, ops = metric.update_state, self._host.ops

        def update_state(values, sample_weight=None):
            weight = self._find_weight(metric.name == "loss")
            if weight is None:
                return update(values, sample_weight=sample_weight)
            if not isinstance(weight, int):  # the mean of nothing may be NaN
                values = ops.where(ops.equal(weight, 0), ops.zeros_like(values), values)
            return update(values, sample_weight=weight)

        self._scope.enter_context(attribute(metric, "update_state", update_state))
