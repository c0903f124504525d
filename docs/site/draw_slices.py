"""Draw a batch in slices: `python docs/site/draw_slices.py > docs/images/slices.svg`."""

import sys

from draw_window import BAR, BLUE, BOX, GREY, LEFT, ORANGE, STEP, arrow, box, line, picture, text

SLICES, SIZE, UNIT = 5, 10, 9
TITLE = f"MicroBatches: one train step computes {SLICES} slices, and makes one update"
END = LEFT + (SLICES - 1) * STEP + BOX


def rows():
    names = "a batch of fit", "one at a time", "sum of gradients", "weights"
    for y, name in zip((43, 91, 162, 234), names):
        yield text(LEFT - 16, y, name, anchor="end", font_weight="bold")


def slices():
    yield box(LEFT, 24, END - LEFT, 28, BLUE)
    yield text((LEFT + END) / 2, 43, f"{SLICES * SIZE} samples", "white")
    for index in range(SLICES):
        x = LEFT + index * STEP
        middle, is_last = x + BOX / 2, index == SLICES - 1
        yield box(x, 72, BOX, 28, BLUE, 0.85)
        yield text(middle, 91, f"slice {index + 1}", "white")
        yield arrow(middle, 104, 122)
        # One sum, which grows in place.
        for below in range(index + 1):
            color = ORANGE if is_last else GREY
            yield box(middle - BAR / 2, 178 - (below + 1) * (UNIT + 1), BAR, UNIT, color)


def update():
    middle = END - BOX / 2
    yield arrow(middle, 186, 206, ORANGE)
    yield line([(LEFT, 236), (middle, 236), (middle, 214), (END, 214)], "#23263a", 3)
    yield text(middle - 12, 228, "one update", ORANGE, "end")
    yield line([(LEFT - 6, 12), (END + 6, 12), (END + 6, 250), (LEFT - 6, 250)], GREY, 1)
    yield line([(LEFT - 6, 250), (LEFT - 6, 12)], GREY, 1)
    yield text((LEFT + END) / 2, 272, "one train step: fit counts 1", font_style="italic")


def drawing():
    return picture(END + 20, 288, TITLE, rows, slices, update)


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawing()) + "\n")
