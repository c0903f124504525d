"""Draw a window as an SVG: `python docs/site/draw_window.py > docs/images/window.svg`."""

import sys

WINDOW, NEXT, SIZE = 5, 2, 10  # micro-batches in the window and after it; samples in each
LEFT, STEP, BOX, BAR, UNIT = 166, 96, 84, 34, 9
# Each has a contrast of at least 4.5 on white.
GREY, BLUE, ORANGE, INK = "#666c80", "#3f51b5", "#b85a00", "#23263a"
TITLE = f"A window: {WINDOW} micro-batches are added up, and the last one makes the update"


def element(name, content="", **attributes):
    listed = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name}{listed}>{content}</{name}>" if content else f"<{name}{listed}/>"


def text(x, y, content, color=INK, anchor="middle", **attributes):
    return element("text", str(content), x=x, y=y, fill=color, text_anchor=anchor, **attributes)


def box(x, y, width, height, color, opacity=1):
    shape = {"x": x, "y": y, "width": width, "height": height, "rx": 4}
    return element("rect", fill=color, fill_opacity=opacity, **shape)


def line(points, color, width=2, **attributes):
    attributes["points"] = " ".join(f"{x},{y}" for x, y in points)
    return element("polyline", fill="none", stroke=color, stroke_width=width, **attributes)


def arrow(x, start, end, color=GREY):
    head = [(x - 4, end - 6), (x, end), (x + 4, end - 6)]
    return line([(x, start), (x, end)], color) + line(head, color)


def labels():
    names = "big batch", "micro-batches", "sum of gradients", "update?", "weights"
    for y, name in zip((39, 87, 172, 230, 283), names):
        yield text(LEFT - 16, y, name, anchor="end", font_weight="bold")


def micro_batches():
    yield box(LEFT, 20, WINDOW * STEP - STEP + BOX, 28, BLUE)
    yield text(LEFT + 2 * STEP + BOX / 2, 39, f"{WINDOW * SIZE} samples", "white")
    for index in range(WINDOW + NEXT):
        x, is_open = LEFT + index * STEP, index < WINDOW
        middle, added = x + BOX / 2, index % WINDOW + 1
        yield box(x, 68, BOX, 28, BLUE, 0.85 if is_open else 0.3)
        yield text(middle, 87, f"{SIZE}", "white" if is_open else INK)
        yield arrow(middle, 100, 122)
        for below in range(added):
            color = ORANGE if added == WINDOW else GREY
            top = 184 - (below + 1) * (UNIT + 1)
            yield box(middle - BAR / 2, top, BAR, UNIT, color, 1 if is_open else 0.4)
        closes = added == WINDOW
        said, color = ("yes", ORANGE) if closes else ("no", GREY)
        yield text(middle, 230, said, color, font_weight="bold")


def weights():
    """The line of the weights: flat inside a window, with a step where the window closes."""
    update = LEFT + (WINDOW - 1) * STEP + BOX / 2
    end = LEFT + (WINDOW + NEXT - 1) * STEP + BOX
    yield line([(LEFT, 285), (update, 285), (update, 263), (end, 263)], INK, 3)
    yield arrow(update, 237, 256, ORANGE)
    yield text(LEFT + STEP, 277, "nothing moves")
    yield text(update - 12, 277, f"one update, with sum / {WINDOW}", ORANGE, "end")
    bounds = LEFT - 6, LEFT + WINDOW * STEP - 6
    for x in bounds:
        yield line([(x, 12), (x, 312)], GREY, 1, stroke_dasharray="4 4")
    yield text(sum(bounds) / 2, 309, f"a window: accum_iters={WINDOW}", font_style="italic")
    yield text(bounds[1] + STEP, 309, "the next window", GREY, font_style="italic")


def opened(width, height, title):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">'
        f"\n<title>{title}</title>"
    )


def picture(width, height, title, *parts):
    """Yield the lines of an SVG whose elements these functions yield."""
    yield opened(width, height, title)
    yield box(0, 0, width, height, "#ffffff")  # readable on a dark page, too
    for part in parts:
        yield from part()
    yield "</svg>"


def drawing():
    width = LEFT + (WINDOW + NEXT) * STEP + 4
    return picture(width, 324, TITLE, labels, micro_batches, weights)


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawing()) + "\n")
