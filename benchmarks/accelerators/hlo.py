"""What a program that XLA has compiled does in one run, read from its text.

The text is what `compiled.as_text()` of JAX returns. Bytes are those of the operands and results of
each instruction outside of fusions, in the device's main memory: what moves if no cache keeps
anything. A TPU's on-chip memories are `S(1)` and above in a layout, and aren't counted.
"""

import math
import re
from collections import Counter, namedtuple

Instruction = namedtuple("Instruction", "name shape opcode operands text")

HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"^ +(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][a-z\d\-]*)\(([^)]*)\)")
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
CALLED = r"%s=%%?([\w.\-]+)"
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
SIZES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s64": 8, "u64": 8, "f64": 8}
# Bytes: a loss and the like, which devices exchange as well.
SMALL = 4096
# Names of what is there, and the ends of what was begun before.
MOVES_NOTHING = {
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast", "partition-id"),
    *("after-all", "opt-barrier", "copy-done", "slice-done", "async-done"),
}


def read(text):
    """Return the computations of a program, {name: [Instruction]}; "ENTRY" is where it begins."""
    computations, current = {}, None
    for line in text.splitlines():
        head, found = HEAD.match(line), LINE.match(line)
        if head:
            current = computations["ENTRY" if head[1] else head[2]] = []
        elif found and current is not None:
            name, shape, opcode, operands = found.groups()
            operands = re.findall(r"%([\w.\-]+)", operands)
            current.append(Instruction(name, shape, opcode, operands, line))
    return computations


def find(computations, opcode):
    """The instructions of a kind in the whole program."""
    return [i for i in sum(computations.values(), []) if i.opcode == opcode]


def trips(loop):
    """The number of trips of a loop, None if the compiler doesn't know it."""
    known = TRIPS.search(loop.text)
    return known and int(known[1])


def run(computations, is_update, name="ENTRY"):
    """Return the kernels, copies of arrays, and bytes of one run.

    Conditionals take their second branch if `is_update`, else the first. So loops of a length that
    the compiler doesn't know make one trip, or none.
    """
    total, shapes = Counter(), {}
    for instruction in computations[name]:
        shapes[instruction.name] = instruction.shape
        opcode, text = instruction.opcode, instruction.text
        if opcode == "conditional":
            total += run(computations, is_update, _branches(text)[is_update])
        elif opcode == "while":
            known = trips(instruction)
            times = int(is_update) if known is None else known
            once = run(computations, is_update, re.search(CALLED % "body", text)[1])
            total += Counter({key: times * figure for key, figure in once.items()})
        elif opcode == "call":
            total += run(computations, is_update, re.search(CALLED % "to_apply", text)[1])
        else:
            total += _once(instruction, shapes)
    return total


def _branches(text):
    inside = re.search(r"branch_computations=\{([^}]*)\}", text)
    if inside:
        return re.findall(r"[\w.\-]+", inside[1])
    return [re.search(CALLED % f"{which}_computation", text)[1] for which in ("false", "true")]


def _once(instruction, shapes):
    name, shape, opcode, operands, text = instruction
    if opcode in MOVES_NOTHING or "ConcatBitcast" in text:
        return Counter()
    if opcode in ("copy-start", "slice-start"):  # (destination, source, _), ((source), destination)
        destination = ARRAY.findall(shape)[opcode == "slice-start"]
        size = _bytes(*destination[:2], "")
        ends = [_bytes(*destination), size * bool(_size(shapes[operands[0]]))]
        return Counter(bytes=sum(ends), copies=int(all(ends)))
    if opcode == "custom-call":  # after its first result is scratch memory, if any
        shape = ARRAY.search(shape)[0]
    result, read = _size(shape), [_size(shapes[operand]) for operand in operands]
    has_array = any(dims for _, dims, _ in ARRAY.findall(shape))
    is_kernel = opcode in ("fusion", "custom-call", "copy") or has_array
    is_copy = has_array and (opcode == "copy" or opcode == "fusion" and "copy" in name)
    return Counter(kernels=int(is_kernel), copies=int(is_copy), bytes=result + sum(read))


def _size(shape, layout=None):
    """Return the bytes of a shape in main memory; with "" as `layout`, in any memory."""
    arrays = ARRAY.findall(shape)
    return sum(_bytes(kind, dims, own if layout is None else layout) for kind, dims, own in arrays)


def _bytes(kind, dims, layout):
    if re.search(r"S\([1-9]", layout):
        return 0
    return math.prod(int(dim) for dim in dims.split(",") if dim) * SIZES.get(kind, 4)


COLLECTIVES = "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"


def collectives(computations, is_update, name="ENTRY", in_loop=False):
    """Return [(kind, bytes, is in a loop)] for each exchange of more than a few numbers.

    Conditionals take their branches as in `run`. Bytes are those of the larger side, per device.
    """
    found, shapes = [], {}
    for instruction in computations[name]:
        shapes[instruction.name] = instruction.shape
        opcode, text = instruction.opcode, instruction.text
        kind = opcode[: -len("-start")] if opcode.endswith("-start") else opcode
        if kind in COLLECTIVES:
            operands = sum(_size(shapes[operand], "") for operand in instruction.operands)
            size = max(_size(instruction.shape, ""), operands)
            if size > SMALL:
                found.append((kind, size, in_loop))
            continue
        called = [match[1] for match in re.finditer(r"(?:to_apply|calls|body)=%?([\w.\-]+)", text)]
        if opcode == "conditional":
            called = [_branches(text)[is_update]]
        for each in called:
            found += collectives(computations, is_update, each, in_loop or opcode == "while")
    return found
