"""What can be reached from a model: find optimizers and variables in it, and put all back."""

from collections import OrderedDict

from keras_accum.host.snapshot import Snapshot

# Modules whose objects aren't looked into: frameworks, and what runs beside this thread.
_SKIPPED_MODULES = {
    *("tensorflow", "jax", "jaxlib", "torch", "numpy", "ml_dtypes", "builtins", "logging"),
    *("threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio", "weakref"),
}
_CONTAINERS = OrderedDict, dict, list, set


class Reached:
    """What can be reached from a model by attributes, lists, dictionaries and sets.

    optimizers: the optimizers, by id. They aren't looked into.
    """

    def __init__(self, subject):
        self.optimizers, variables, seeds = {}, [], []
        self._is_optimizer = subject.is_optimizer
        self._places = []  # (dict or list, key, optimizer)
        self._contents = []  # (container, its copy)
        seen, waiting = set(), [subject.model]
        while waiting:  # no recursion, as models may be deep
            obj = waiting.pop()
            if id(obj) in seen:
                continue
            seen.add(id(obj))
            if self._is_optimizer(obj):
                self.optimizers[id(obj)] = obj
            elif isinstance(obj, subject.generators):
                seeds.append(obj.state)
            elif isinstance(obj, subject.variables):
                variables.append(obj)
            else:
                waiting += self._look_into(obj)
        of_seeds = {id(each) for seed in seeds for each in (seed, getattr(seed, "value", None))}
        variables = [variable for variable in variables if id(variable) not in of_seeds]
        variables += subject.list_buffers()
        read, write = subject.host.read, subject.host.write
        self._values = Snapshot((), variables, read, write)
        self._random = Snapshot(subject.remember_generators(), seeds, read, write)

    def _look_into(self, obj):
        """Remember an object's contents, and return them."""
        if isinstance(obj, (tuple, frozenset)):
            return list(obj)
        containers = [_unwrap(obj)] if isinstance(obj, _CONTAINERS) else []
        containers += [vars(obj)] if _has_attributes(obj) else []
        contents = []
        for container in containers:
            self._contents.append((container, _copy(container)))
            items = list(container.items() if isinstance(container, dict) else enumerate(container))
            contents += [value for _, value in items]
            if not isinstance(container, set):
                places = [(container, *item) for item in items]
                self._places += [place for place in places if self._is_optimizer(place[-1])]
        return contents

    def list_unplaced(self):
        """Return the optimizers without a place to replace them, as in a tuple."""
        placed = {id(optimizer) for _, _, optimizer in self._places}
        return [optimizer for key, optimizer in self.optimizers.items() if key not in placed]

    def replace_optimizers(self, replacements):
        """Replace the optimizers by these, {id: replacement}, without Keras's tracking."""
        for container, key, optimizer in self._places:
            cls = dict if isinstance(container, dict) else list
            cls.__setitem__(container, key, replacements[id(optimizer)])

    def put_back_values(self, with_random=True):
        """Put back the values of variables, and with `with_random` of random generators."""
        self._values.put_back()
        if with_random:
            self._random.put_back()

    def put_back(self):
        for container, before in self._contents:
            _put_back(container, before)
        self.put_back_values()


def _unwrap(container):
    """Return the list or dict in TensorFlow's wrappers."""
    for name in ("__wrapped__", "_storage"):
        container = getattr(container, name, container)
    return container


def _copy(container):
    """Return a copy in Python's own class, whose methods Keras's tracking doesn't see."""
    return next(cls for cls in _CONTAINERS if isinstance(container, cls))(container)


def _put_back(container, before):
    """Give a container its contents, and never an empty moment: Ctrl-C may come."""
    cls = type(before)
    if cls is list:
        cls.__setitem__(container, slice(None), before)
    elif cls is set:
        cls.update(container, before)
        cls.intersection_update(container, before)
    else:
        cls.update(container, before)
        for key in container.keys() - before.keys():
            cls.pop(container, key)


def _has_attributes(obj):
    if isinstance(obj, type) or type(obj).__module__.partition(".")[0] in _SKIPPED_MODULES:
        return False
    return isinstance(getattr(obj, "__dict__", None), dict)
