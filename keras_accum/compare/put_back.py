"""Everything that can be reached from a model: remember it, replace optimizers, put it back."""

import contextlib
import functools
import random
import types
from collections import OrderedDict, deque
from typing import Any, Callable, NamedTuple

import numpy as np

# Modules whose objects aren't looked into: frameworks, and what runs beside this thread.
_SKIPPED_MODULES = {
    *("tensorflow", "jax", "jaxlib", "torch", "numpy", "ml_dtypes", "builtins", "logging"),
    *("threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio", "weakref"),
}
_ATOMS = int, float, str, bytes, type(None)
_LARGEST_COPY = 2**22  # elements of a NumPy array: larger ones are data
_CONTAINERS = OrderedDict, dict, list, set, deque


class Accessor(NamedTuple):
    """How to read and write the value that each object of a class has.

    is_random: True if random draws change the value.
    holds: returns the objects within this one that are written with it, such as the framework's
        own variable in a Keras variable.
    """

    cls: type
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    is_random: bool = False
    holds: Callable[[Any], Any] = lambda obj: ()


def _write_state(generator, state):
    generator.bit_generator.state = state


def _read_array(array):
    return array.copy() if array.size <= _LARGEST_COPY and array.flags.writeable else None


def _write_array(array, value):
    if value is not None:
        array[...] = value


_Legacy = np.random.RandomState
_OF_PYTHON = [
    Accessor(random.Random, random.Random.getstate, random.Random.setstate, True),
    Accessor(_Legacy, _Legacy.get_state, _Legacy.set_state, True),
    Accessor(np.random.Generator, lambda rng: rng.bit_generator.state, _write_state, True),
    Accessor(np.ndarray, _read_array, _write_array),
]


class Snapshot:
    """The attributes, containers and values that can be reached from `roots`, to put back.

    accessors: an Accessor for each class of objects with a value.
    is_optimizer: returns True for an optimizer. Optimizers are found, but not looked into.
    searched: classes of frameworks that are looked into all the same.
    generators: pairs of an Accessor and its object, None for a framework's own generators.
    objects: all objects that have been looked into.
    optimizers: the optimizers, by id.
    """

    def __init__(self, roots, accessors, is_optimizer, searched=(), generators=()):
        self._accessors, self._is_optimizer = [*accessors, *_OF_PYTHON], is_optimizer
        self._searched = searched
        self.objects, self.optimizers = [], {}
        self._places = []  # (dict or list, key, optimizer)
        self._attributes = []  # (object's dict, its copy)
        self._contents = []  # (container, its copy)
        self._values = []  # (accessor, object, value)
        with_value = {}  # {id: (accessor, object)}
        seen, waiting = set(), list(roots)
        while waiting:  # no recursion, as models may be deep
            obj = waiting.pop()
            if not isinstance(obj, _ATOMS) and id(obj) not in seen:
                seen.add(id(obj))
                accessor = self._find_accessor(obj)
                if accessor is None:
                    waiting += self._look_into(obj)
                else:
                    with_value[id(obj)] = accessor, obj
        held = {id(inner) for accessor, obj in with_value.values() for inner in accessor.holds(obj)}
        for accessor, obj in [*generators, *with_value.values()]:
            if obj is None or id(obj) not in held:
                self._values.append((accessor, obj, accessor.read(obj)))

    def _find_accessor(self, obj):
        """Return the Accessor for an object, None if it has no value."""
        accessors = (accessor for accessor in self._accessors if isinstance(obj, accessor.cls))
        return next(accessors, None)

    def _look_into(self, obj):
        """Remember an object, and return those that it refers to."""
        if self._is_optimizer(obj):
            self.optimizers[id(obj)] = obj
            return []
        references = _list_references(obj)
        if isinstance(obj, (tuple, frozenset)):
            references += obj
        elif isinstance(obj, _CONTAINERS):
            container = _unwrap(obj)
            self._contents.append((container, _copy(container)))
            references += self._note_places(container)
        if isinstance(obj, self._searched) or _has_attributes(obj):
            self.objects.append(obj)
            self._attributes.append((vars(obj), dict(vars(obj))))
            references += self._note_places(vars(obj))
        return references

    def _note_places(self, container):
        """Return a container's values, and note where optimizers are."""
        if isinstance(container, (set, deque)):
            return list(container)
        is_dict = isinstance(container, dict)
        items = list(container.items() if is_dict else enumerate(container))
        self._places += [
            (container, key, value) for key, value in items if self._is_optimizer(value)
        ]
        return [value for _, value in items]

    def list_unplaced(self):
        """Return the optimizers without a place to replace them, as in a tuple."""
        placed = {id(optimizer) for _, _, optimizer in self._places}
        return [optimizer for key, optimizer in self.optimizers.items() if key not in placed]

    def replace_optimizers(self, replacements):
        """Replace the optimizers by these, {id: replacement}, without Keras's tracking."""
        for container, key, optimizer in self._places:
            if id(optimizer) in replacements:
                cls = dict if isinstance(container, dict) else list
                cls.__setitem__(container, key, replacements[id(optimizer)])

    def write_values(self, with_random=True):
        """Put back the values of variables, generators and arrays."""
        for accessor, obj, value in self._values:
            if with_random or not accessor.is_random:
                accessor.write(obj, value)

    def put_back(self):
        for attributes, before in self._attributes:
            if not _is_same(attributes, before):
                attributes.clear()
                attributes.update(before)
        for container, before in self._contents:
            if not _is_same(container, before):
                cls = _plain_class(container)
                cls.clear(container)
                fill = cls.extend if cls in (list, deque) else cls.update
                fill(container, before)
        self.write_values()


def _unwrap(container):
    """Return the list or dict in TensorFlow's wrappers."""
    for name in ("__wrapped__", "_storage"):
        container = getattr(container, name, container)
    return container


def _plain_class(container):
    """Return Python's own class of a container, whose methods Keras's tracking doesn't see."""
    return next(cls for cls in _CONTAINERS if isinstance(container, cls))


def _copy(container):
    return _plain_class(container)(container)


def _is_same(container, before):
    """True if a container has the very same objects as before."""
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        missing = object()
        return all(container.get(key, missing) is value for key, value in before.items())
    if isinstance(container, set):
        return container == before
    return all(now is then for now, then in zip(container, before))


def _list_references(obj):
    """Return what a function, a bound method or a partial refers to."""
    if isinstance(obj, types.MethodType):
        return [obj.__self__, obj.__func__]
    if isinstance(obj, functools.partial):
        return [obj.func, *obj.args, *obj.keywords.values()]
    contents = []
    for cell in obj.__closure__ or () if isinstance(obj, types.FunctionType) else ():
        with contextlib.suppress(ValueError):  # an empty cell
            contents.append(cell.cell_contents)
    return contents


def _has_attributes(obj):
    if isinstance(obj, type) or type(obj).__module__.partition(".")[0] in _SKIPPED_MODULES:
        return False
    return isinstance(getattr(obj, "__dict__", None), dict)
