"""The public docstrings, composed of the texts in `texts/`.

`texts/optimizer.txt` begins with the format of the texts. The docstrings are read in `help()` and
as Markdown. No host is imported here.
"""

import functools
import inspect
import pkgutil
import re
import textwrap

from keras_accum import arguments, names, ranges

_HEADING = re.compile(r"^# ([\w ]+)(?:: (.+))?$", re.M)
# A place that is alone in its line, or within a line.
_PLACE = re.compile(r"^( *)\{([\w ]+)\}(\n|\Z)|\{([\w ]+)\}", re.M)


def docstring(name, host, import_keras, stock=None):
    """Return the docstring of an optimizer on a host.

    `stock` is the stock class; with `stock`, every class has a docstring. Without `stock`, the
    optimizer must have a text for the host, else the result is None.
    """
    title = name[: -len("Accumulate")]
    has_legacy = "Slots" in _texts(title, "tf_keras")
    style = _style(host, stock, has_legacy)
    values = {"name": name, "host": host, "import_keras": import_keras, "stock": title}
    if "Slots" in _texts(title, style) and (stock is None or ranges.is_of_keras(stock)):
        whom = (style, "beside_legacy") if style == "new_style" and has_legacy else (style,)
        texts, entries = _texts(title, *whom), ranges.entries(style, title)
    elif stock is not None:
        whom = (style, "accumulating")
        values.update(stock=stock.__name__, module=stock.__module__)
        values["documented"] = _stock_arguments(stock)
        texts = {"Arguments of Keras": ""} if "clipnorm" in values["documented"] else {}
        entries = ranges.entries(style)
    else:
        return None
    texts = {**_texts("arguments", *whom), **_texts("optimizer", *whom), **texts}
    values.update((argument, entry[0].upper() + entry[1:]) for argument, entry in entries.items())
    slots = _composed("- {Slots}: {Shapes}.", texts, values)
    values["slots"] = textwrap.fill(slots, 92, subsequent_indent="  ")
    return textwrap.indent(_composed("{Docstring}", texts, values), "    ").lstrip() + "\n"


def of_accumulating(host, import_keras, example, classes="keras.optimizers"):
    """Return the docstring of a host's function `accumulating`, with an example of a class."""
    values = {"host": host, "import_keras": import_keras, "example": example, "classes": classes}
    return _composed("{Docstring}", _texts("accumulating", host), values) + "\n"


def _style(host, stock, has_legacy):
    """Return the host as the texts name it. On tf_keras without `stock`, legacy goes first."""
    if host != "tf_keras":
        return host
    if stock is None:
        return "tf_keras" if has_legacy else "new_style"
    parameters = [inspect.signature(cls.__init__).parameters for cls in stock.__mro__[:-1]]
    return "new_style" if any("use_ema" in taken for taken in parameters) else "tf_keras"


def _texts(file, *whom):
    """{title: text} of the sections of a file that are for all or for one of `whom`."""
    return {title: text for title, of, text in _sections(file) if not of or {*of} & {*whom}}


@functools.lru_cache(maxsize=None)
def _sections(file):
    """[(title, hosts, text)] of a file, nothing for an optimizer without a file."""
    if file not in (*names.OPTIMIZERS, "arguments", "optimizer", "accumulating"):
        return []
    text = pkgutil.get_data("keras_accum", f"texts/{file}.txt").decode("utf-8")
    parts = ["Description", None, *_HEADING.split("\n".join(text.splitlines()))]
    return [
        (title, of and of.split(", "), text.strip("\n"))
        for title, of, text in zip(parts[::3], parts[1::3], parts[2::3])
    ]


def _composed(text, texts, values):
    """Return a text with texts and values in their places.

    A place that is alone in its line gives its indentation to all lines, and an empty text takes
    the line away.
    """

    def filled(place):
        indent, alone, end, within = place.groups()
        name = alone or within
        text = values[name] if name in values else _composed(texts[name], texts, values)
        if indent:
            text = textwrap.indent(text, indent)
        return text + (end or "") if text else ""

    return _PLACE.sub(filled, text).rstrip("\n")


_HEADS = ("Args:", "Arguments:", "# Arguments")  # Keras 2 has the last


def _stock_arguments(stock):
    """Return the arguments of a stock class, from its docstring or else from its signature.

    Arguments that the shared texts describe are omitted.
    """
    lines = inspect.cleandoc(vars(stock).get("__doc__") or "").splitlines()
    head = next((i for i, line in enumerate(lines) if line in _HEADS), None)
    if head is not None:
        section = "\n".join(lines[head + 1 :])
        section = textwrap.dedent(re.split(r"\n(?=\S)", section)[0]).strip("\n")
        entries = re.split(r"\n(?=\S)", section)
    else:
        entries = [
            f"{name}: Required."
            if parameter.default is inspect.Parameter.empty
            else f"{name}: Default {parameter.default!r}."
            for name, parameter in arguments.parameters_of(stock).items()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
    ours = [entry for entry in entries if entry.partition(":")[0] not in arguments.OWN]
    return "\n".join(ours)
