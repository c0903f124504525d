"""The docstrings of classes made by `accumulating`. `test_package.py` runs their examples."""

import re
from pathlib import Path

import pytest

from keras_accum import docs, names, ranges


class Documented:
    """Walks downhill.

    Args:
        lr: float. The learning rate.
        pace: How fast it walks,
            in steps.
        clipnorm: float. Clips each step.

    Reference:
        An old book.
    """

    def __init__(self, lr=0.1, pace=2, clipnorm=None):
        pass


class InTheStyleOfKeras2:
    """Walks downhill.

    # Arguments
        pace: How fast it walks.

    # References
        An old book.
    """


class Undocumented:
    def __init__(self, pace, shoes="old", **kwargs):
        pass


class Heir(Documented):
    def __init__(self, lr=0.1, hat=True):
        pass


def made(stock, host="keras3"):
    name = f"{stock.__name__}Accumulate"
    return docs.docstring(name, host, "import keras", stock)


def test_the_stock_arguments_and_ours():
    text = made(Documented)
    head, _, rest = text.partition("\n    Args:\n")
    arguments = rest.partition("\n\n    State")[0].splitlines()
    assert head.startswith("Documented, one update per window of micro-batches.\n\n")
    assert f"runs the code of\n    `{__name__}.Documented`\n" in head
    first = ["        pace: How fast it walks,", "            in steps."]
    assert arguments[:3] == [*first, "        clipnorm: float. Clips each step."]
    assert arguments[3].startswith("        accum_iters: Integer >= 1")
    assert "old book" not in text and text.count(" lr:") == 1


def test_the_headings_of_keras_2():
    text = made(InTheStyleOfKeras2, "keras2")
    assert "        pace: How fast it walks.\n        clipnorm:" in text
    assert "old book" not in text


def test_without_a_docstring_names_and_defaults_are_listed():
    text = made(Undocumented)
    assert "        pace: Required.\n        shoes: Default 'old'.\n        weight_decay:" in text
    text = made(Heir)  # only its own arguments, not those of its base class
    assert "        hat: Default True.\n" in text and "How fast" not in text


def test_another_class_with_a_name_of_keras():
    """The prepared text describes the mathematics of Keras's own class only."""
    lion = type("Lion", (), {"__doc__": "Roars.", "__init__": lambda self, volume=1: None})
    assert docs.docstring("LionAccumulate", "keras3", "", lion).startswith("Lion, one update per")
    lion.__module__ = "keras.src.optimizers.lion"
    text = docs.docstring("LionAccumulate", "keras3", "", lion)
    assert text == docs.docstring("LionAccumulate", "keras3", "")
    assert "volume" not in text


def test_unknown_names():
    assert docs.docstring("MyOptimizer", "keras3", "import keras") is None
    assert docs.docstring("LionAccumulate", "keras2", "import keras") is None
    text = docs.docstring("LionAccumulate", "keras2", "import keras", Documented)
    assert text.startswith("Documented, one update per")


class NewStyle:
    def __init__(self, use_ema=False, jit_compile=True):
        pass


NewStyle.__module__ = "tf_keras.src.optimizers.adam"


def test_the_two_styles_of_tf_keras():
    legacy = docs.docstring("AdamAccumulate", "tf_keras", "")
    new = docs.docstring("AdamAccumulate", "tf_keras", "", NewStyle)
    assert "gradient_transformers" in legacy and "in `weights`" in legacy
    assert "jit_compile" in new and "in `variables`" in new
    assert "jit_compile" in docs.docstring("LionAccumulate", "tf_keras", "")


# -- the texts ---------------------------------------------------------------------------------

FILES = {path.stem for path in Path(docs.__file__).parent.glob("texts/*.txt")}


def test_each_optimizer_has_a_text():
    assert FILES == {*names.OPTIMIZERS, "accumulating", "arguments", "optimizer"}


@pytest.mark.parametrize(
    "host, stock", [("keras3", None), ("tf_keras", None), ("tf_keras", NewStyle), ("keras2", None)]
)
@pytest.mark.parametrize("name", names.OPTIMIZERS)
def test_every_line_is_short_and_without_marks_of_the_format(name, host, stock):
    text = docs.docstring(f"{name}Accumulate", host, "import keras", stock)
    if text is None or text.startswith("NewStyle"):
        assert host != "keras3" and names.OPTIMIZERS[name] != "every Keras"
        pytest.skip(f"{host} has no {name}")
    for line in text.splitlines():
        assert len(line) <= 100 and line == line.rstrip() and not set("{}#") & set(line)


def test_each_section_has_a_place():
    """A typing error in a title would hide the section."""
    sections = [section for file in FILES for section in docs._sections(file)]
    texts = "".join(text for _, _, text in sections)
    places = {"Docstring", "Slots", "Shapes", *re.findall(r"\{([A-Z][\w ]*)\}", texts)}
    assert {title for title, _, _ in sections} == places - {"Title"}
    hosts = {"keras3", "tf_keras", "new_style", "keras2", "accumulating", "beside_legacy"}
    assert {host for _, of, _ in sections for host in of or ()} == hosts


def test_each_argument_of_the_table_has_a_place():
    lines = [line for file in FILES for _, _, t in docs._sections(file) for line in t.splitlines()]
    described = {line.split(":")[0] for line in lines if re.match(r"(\w+): \{\1\}", line)}
    assert described == {*ranges.OURS, *ranges.OF_KERAS}
