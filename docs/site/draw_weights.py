"""Draw weighted micro-batches: `python docs/site/draw_weights.py > docs/images/weights.svg`."""

import sys

from draw_window import BLUE, GREY, INK, LEFT, ORANGE, arrow, box, line, picture, text

LABELS, UNIT, GAP = (10, 25, 5), 16, 6  # labels in each micro-batch; widths in pixels
WIDTH = sum(LABELS) * UNIT + (len(LABELS) - 1) * GAP
TITLE = f"Micro-batches of {', '.join(map(str, LABELS))} labels count by their numbers of labels"


def rows():
    names = "big batch", "micro-batches", "mean gradients", "times the weight", "update"
    for y, name in zip((39, 87, 141, 195, 251), names):
        yield text(LEFT - 16, y, name, anchor="end", font_weight="bold")


def micro_batches():
    yield box(LEFT, 20, WIDTH, 28, BLUE)
    yield text(LEFT + WIDTH / 2, 39, f"{sum(LABELS)} labels", "white")
    x = LEFT
    for index, labels in enumerate(LABELS, 1):
        middle = x + labels * UNIT / 2
        yield box(x, 68, labels * UNIT, 28, BLUE, 0.85)
        yield text(middle, 87, labels, "white")
        yield arrow(middle, 100, 120)
        yield text(middle, 141, f"g{index}")
        yield arrow(middle, 152, 172)
        yield text(middle, 195, f"{labels} g{index}")
        x += labels * UNIT + GAP


def update():
    total = " + ".join(f"{labels} g{index}" for index, labels in enumerate(LABELS, 1))
    yield line([(LEFT, 210), (LEFT + WIDTH, 210)], GREY, 1)
    yield arrow(LEFT + WIDTH / 2, 214, 232, ORANGE)
    yield text(LEFT + WIDTH / 2, 251, f"({total}) / {sum(LABELS)}", ORANGE, font_weight="bold")
    plain = f"a plain average would count the {LABELS[-1]} labels as much as the {LABELS[1]}"
    yield text(LEFT + WIDTH / 2, 281, plain, INK, font_style="italic")


def drawing():
    return picture(LEFT + WIDTH + 16, 298, TITLE, rows, micro_batches, update)


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawing()) + "\n")
