"""Draw the loss of the demonstration's trainings: `python docs/site/draw_curves.py > curves.svg`.

It needs what the demonstration needs. `docs/images/curves.svg` was drawn on TensorFlow, as the
table of the README.
"""

import math
import sys

from draw_window import BLUE, GREY, ORANGE, line, picture, text

from keras_accum.__main__ import ACCUM_ITERS, BATCH, LEARNING_RATE, Demo

WIDTH, HEIGHT = 842, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 600, 30, 290
TITLE = (
    "Test loss, 30% of the training labels random: accumulated small batches lie on the big batch; "
    "the small batch, whose learning rate isn't tuned, ends above"
)
TICKS = 0.5, 0.7, 1.0, 1.4, 1.7  # the first and the last one are the bounds


def points(found):
    """Return where the losses are in the picture, which has a logarithmic scale."""
    for i, loss in enumerate(found, 1):
        x = LEFT + (RIGHT - LEFT) * i / len(found)
        height = math.log(loss / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])
        yield round(x, 1), round(BOTTOM - (BOTTOM - TOP) * height, 1)


def axes(epochs):
    yield line([(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], GREY, 1)
    for i in range(1, epochs + 1):
        yield text(LEFT + (RIGHT - LEFT) * i / epochs, BOTTOM + 18, i)
    yield text((LEFT + RIGHT) / 2, BOTTOM + 38, "epochs")
    for loss in TICKS:
        ((_, y),) = points([loss])
        yield text(LEFT - 8, y + 5, loss, anchor="end")
    yield text(LEFT, TOP - 12, "test loss (logarithmic scale)", anchor="start")


def curves():
    demo, size = Demo(), BATCH * ACCUM_ITERS
    accumulating = demo.ours(LEARNING_RATE, accum_iters=ACCUM_ITERS)
    thick, dashed = {"width": 9, "stroke_opacity": 0.3}, {"stroke_dasharray": "7 5"}
    for name, color, optimizer, batch, style in (
        (f"a batch of {BATCH}", ORANGE, demo.stock(LEARNING_RATE), BATCH, {}),
        (f"a batch of {size}", BLUE, demo.stock(LEARNING_RATE), size, thick),
        (f"accumulated: {ACCUM_ITERS} x {BATCH}", BLUE, accumulating, BATCH, dashed),
    ):
        losses = []
        demo.train(name, optimizer, batch, curve=losses)
        where = list(points(losses))
        yield line(where, color, **style)
        y = where[-1][1] + (22 if style is dashed else 0)
        yield line([(RIGHT + 14, y), (RIGHT + 49, y)], color, **style)  # the key
        yield text(RIGHT + 58, y + 5, name, color, "start", font_weight="bold")
    yield from axes(len(demo.x) // 1500)


if __name__ == "__main__":
    sys.stdout.write("\n".join(picture(WIDTH, HEIGHT, TITLE, curves)) + "\n")
