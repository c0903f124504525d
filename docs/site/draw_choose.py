"""Draw what to use when: `python docs/site/draw_choose.py > docs/images/choose.svg`."""

import sys

from draw_window import BLUE, GREY, INK, ORANGE, arrow, box, line, picture, text

LEFT, ASK, GAP, LEAF = 14, 196, 70, 600  # the width of a question, of an arrow, of an answer
TOP, HEIGHT, STEP = 14, 60, 88
TITLE = "Five ways to train with a big batch, and the question that leads to each"
CODE = {"font_family": "Menlo, Consolas, monospace", "font_size": 12}
QUESTIONS = [  # in two lines, the answer that leads aside, and what to write then
    (
        ("Does the big batch", "fit in memory?"),
        "yes",
        "Keras's own optimizer, without this package",
        'compile("adam", loss), fit(x, y, batch_size=50)',
    ),
    (
        ("Does your loss", "compare samples?"),
        "yes",
        "Slices of the big batch, in fit on Keras 3",
        'compile("adam", loss), fit(..., callbacks=[MicroBatches(10)])',
    ),
    (
        ("A loop", "of your own?"),
        "yes",
        "An accumulating optimizer, told what a micro-batch counts",
        "weigh(n), apply_gradients(...), and apply_partial_window() after each epoch",
    ),
    (
        ("Several devices, JAX on a", "GPU, embeddings on TF?"),
        "yes",
        "Slices of the batch of all devices, in fit on Keras 3",
        'compile("adam", loss), fit(..., batch_size=512, callbacks=[MicroBatches(64)])',
    ),
]
LAST = (
    "An accumulating optimizer, on every Keras",
    "compile(AdamAccumulate(1e-3, accum_iters=5), loss), fit(x, y, batch_size=10)",
)


def answer(y, title, code):
    x = LEFT + ASK + GAP
    yield box(x, y, LEAF, HEIGHT, ORANGE, 0.12)
    yield text(x + 14, y + 24, title, INK, "start", font_weight="bold")
    yield text(x + 14, y + 46, code, INK, "start", **CODE)


def questions():
    middle, end = LEFT + ASK / 2, LEFT + ASK
    for index, (lines, aside, title, code) in enumerate(QUESTIONS):
        y = TOP + index * STEP
        yield box(LEFT, y, ASK, HEIGHT, BLUE)
        for below, words in zip((25, 45), lines):
            yield text(middle, y + below, words, "white")
        across = y + HEIGHT / 2
        yield line([(end + 4, across), (end + GAP - 6, across)], ORANGE)
        head = [(end + GAP - 12, across - 4), (end + GAP - 6, across)]
        yield line([*head, (end + GAP - 12, across + 4)], ORANGE)
        yield text(end + GAP / 2, across - 6, aside, ORANGE)
        yield from answer(y, title, code)
        if index < len(QUESTIONS) - 1:
            yield arrow(middle, y + HEIGHT + 3, y + STEP - 3)
            yield text(middle + 12, y + HEIGHT + 19, "no", GREY, "start")
    # The last no turns to the last answer.
    y = TOP + len(QUESTIONS) * STEP
    across = y + HEIGHT / 2
    bend = [(middle, y - STEP + HEIGHT + 3), (middle, across), (end + GAP - 6, across)]
    yield line(bend, GREY)
    head = [(end + GAP - 12, across - 4), (end + GAP - 6, across), (end + GAP - 12, across + 4)]
    yield line(head, GREY)
    yield text(middle + 12, y - STEP + HEIGHT + 19, "no", GREY, "start")
    yield from answer(y, *LAST)


def drawing():
    width = LEFT + ASK + GAP + LEAF + LEFT
    return picture(width, TOP + len(QUESTIONS) * STEP + HEIGHT + TOP, TITLE, questions)


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawing()) + "\n")
