"""The figures of all programs on one platform, written as JSON."""

import json

from shared.contenders import FLOOR, IN_SLICES, STOCK

from . import devices, programs  # in this order: the first one says where JAX runs
from .tables import path


def measure(platform):
    (device,) = devices.find(platform)
    found = {"device": device.device_kind, "versions": devices.versions(platform), "k": programs.K}
    found["cases"] = {}
    for case, make in programs.CASES.items():
        made = make()
        if platform == "tpu":  # whose compiler doesn't say how many trips a loop over slices makes
            made.pop(IN_SLICES, None)
        rows = {name: figures(device, program) for name, program in made.items()}
        floor = mean([rows[FLOOR]["bytes"][0], rows[STOCK]["bytes"][1]])
        for name, row in rows.items():
            row["over_floor"] = round(mean(row["bytes"]) / floor, 3)
            print(platform, case, name, row, flush=True)
        found["cases"][case] = rows
    path(platform).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def mean(pair):
    inside, at_end = pair
    return ((programs.K - 1) * inside + at_end) / programs.K


def figures(device, program):
    """The figures of a program, for one micro-batch. Pairs are inside a window and at its end."""
    made = []
    for decision in program.decisions:

        def step(*arguments, decision=decision):
            return program.step(decision, *arguments)

        made.append(devices.compile_for(device, step, program.donated, program.data))
    inside, at_end = made[0], made[-1]
    parameters = sum(weight.size for weight in program.donated[0])
    row = {
        "conditionals": max(each.conditionals for each in made),
        "loops": max(each.loops for each in made),
        "temporary": round(max(each.temporary for each in made) / 4 / parameters, 2),
    }
    if inside.waits is not None:
        row["waits"] = [inside.waits[0], at_end.waits[1]]
    for key in ("kernels", "copies", "bytes"):
        pair = inside.runs[0][key], at_end.runs[1][key]
        row[key] = [round(figure / program.micro_batches) for figure in pair]
    row["words"] = [round(moved / 4 / parameters, 2) for moved in row["bytes"]]
    return row
