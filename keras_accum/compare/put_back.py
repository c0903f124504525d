"""Remember everything reachable from a model, replace parts of it, put it back."""

import contextlib
import functools
import random
import types
from collections import OrderedDict, deque, namedtuple

import numpy as np

# Not searched: frameworks, and objects of other threads.
_OTHERS = {
    *("tensorflow", "jax", "jaxlib", "torch", "numpy", "ml_dtypes", "builtins", "logging"),
    *("threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio", "weakref"),
}
_ATOMS = int, float, str, bytes, type(None)
_SMALL = 2**22  # elements: larger NumPy arrays are data, and aren't copied
_CONTAINERS = OrderedDict, dict, list, set, deque

# A kind of object with a value: how to read and to write it, if random draws change it, and a
# function that returns what the object holds of another kind, such as a framework's own variable.
Kind = namedtuple("Kind", "cls read write is_random holds")
Kind.__new__.__defaults__ = False, lambda each: ()


def _write_state(generator, state):
    generator.bit_generator.state = state


def _read_array(array):
    return array.copy() if array.size <= _SMALL and array.flags.writeable else None


def _write_array(array, value):
    if value is not None:
        array[...] = value


_Legacy = np.random.RandomState
OF_PYTHON = [
    Kind(random.Random, random.Random.getstate, random.Random.setstate, True),
    Kind(_Legacy, _Legacy.get_state, _Legacy.set_state, True),
    Kind(np.random.Generator, lambda each: each.bit_generator.state, _write_state, True),
    Kind(np.ndarray, _read_array, _write_array),
]


class Kept:
    """The attributes, containers and values reachable from `roots`, to put back.

    kinds: the kinds of objects with a value.
    is_optimizer: returns True for an optimizer. They are found, but not looked into.
    inside: classes of frameworks to search all the same.
    more: pairs of a kind and an object, which may be None.
    objects: all objects searched so far.
    optimizers: the optimizers, by id.
    """

    def __init__(self, roots, kinds, is_optimizer, inside=(), more=()):
        self._kinds, self._is_optimizer = [*kinds, *OF_PYTHON], is_optimizer
        self._inside = inside
        self.objects, self.optimizers = [], {}
        self._places = []  # (dict or list, key, optimizer)
        self._attributes = []  # (object's dict, its copy)
        self._contents = []  # (container, its copy)
        self._values = []  # (kind, object, value)
        valued = {}  # {id: (kind, object)}
        seen, waiting = set(), list(roots)
        while waiting:  # no recursion, as models may be deep
            each = waiting.pop()
            if not isinstance(each, _ATOMS) and id(each) not in seen:
                seen.add(id(each))
                kind = next((kind for kind in self._kinds if isinstance(each, kind.cls)), None)
                if kind is None:
                    waiting += self._look_into(each)
                else:
                    valued[id(each)] = kind, each
        held = {id(inner) for kind, each in valued.values() for inner in kind.holds(each)}
        for kind, each in [*more, *valued.values()]:
            if each is None or id(each) not in held:
                self._values.append((kind, each, kind.read(each)))

    def _look_into(self, each):
        """Remember an object, and return its references."""
        if self._is_optimizer(each):
            self.optimizers[id(each)] = each
            return []
        found = _referred(each)
        if isinstance(each, (tuple, frozenset)):
            found += each
        elif isinstance(each, _CONTAINERS):
            plain = _unwrap(each)
            self._contents.append((plain, _copy(plain)))
            found += self._note_places(plain)
        if isinstance(each, self._inside) or _has_attributes(each):
            self.objects.append(each)
            self._attributes.append((vars(each), dict(vars(each))))
            found += self._note_places(vars(each))
        return found

    def _note_places(self, container):
        """Return a container's values, and note where optimizers are."""
        if isinstance(container, (set, deque)):
            return list(container)
        is_dict = isinstance(container, dict)
        items = list(container.items() if is_dict else enumerate(container))
        self._places += [(container, key, v) for key, v in items if self._is_optimizer(v)]
        return [value for _, value in items]

    def list_unplaced(self):
        """Return the optimizers without a place to replace them, as in a tuple."""
        placed = {id(optimizer) for _, _, optimizer in self._places}
        return [optimizer for key, optimizer in self.optimizers.items() if key not in placed]

    def replace_optimizers(self, by_id):
        """Put these in the places of the optimizers, without Keras's tracking."""
        for container, key, optimizer in self._places:
            if id(optimizer) in by_id:
                base = dict if isinstance(container, dict) else list
                base.__setitem__(container, key, by_id[id(optimizer)])

    def write_values(self, with_random=True):
        """Put back the values of variables, generators and arrays."""
        for kind, each, value in self._values:
            if with_random or not kind.is_random:
                kind.write(each, value)

    def put_back(self):
        for attributes, before in self._attributes:
            if not _is_same(attributes, before):
                attributes.clear()
                attributes.update(before)
        for container, before in self._contents:
            if not _is_same(container, before):
                base = next(base for base in _CONTAINERS if isinstance(container, base))
                base.clear(container)
                fill = base.extend if base in (list, deque) else base.update
                fill(container, before)
        self.write_values()


def _unwrap(container):
    """Return the list or dict in TensorFlow's wrappers."""
    for name in ("__wrapped__", "_storage"):
        container = getattr(container, name, container)
    return container


def _copy(container):
    base = next(base for base in _CONTAINERS if isinstance(container, base))
    return base(container)


def _is_same(container, before):
    """True if a container has the very same objects as before."""
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        missing = object()
        return all(container.get(key, missing) is value for key, value in before.items())
    if isinstance(container, set):
        return container == before
    return all(a is b for a, b in zip(container, before))


def _referred(each):
    """Return the references of a function, a bound method or a partial."""
    if isinstance(each, types.MethodType):
        return [each.__self__, each.__func__]
    if isinstance(each, functools.partial):
        return [each.func, *each.args, *each.keywords.values()]
    found = []
    for cell in each.__closure__ or () if isinstance(each, types.FunctionType) else ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return found


def _has_attributes(each):
    if isinstance(each, type) or type(each).__module__.partition(".")[0] in _OTHERS:
        return False
    return isinstance(getattr(each, "__dict__", None), dict)
