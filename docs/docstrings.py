"""Docstrings, plain text for `help()`, as the Markdown that the site needs.

mkdocs.yml has this file as an extension of griffe, which reads the docstrings.
"""

import re
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from keras_accum import names

# A section that griffe doesn't know: "State, all of it in ...", and its indented entries.
_STATE = re.compile(r"^(State\b.*:)\n((?: {4}.*\n)+)", re.M)
_HEADING = re.compile(r"^(Example|Paper):\n\s*", re.M)
_DOCTEST = re.compile(r"^(>>> (?:.+\n?)+)", re.M)
# A public name that isn't in backticks, in a line that isn't code.
_NAME = re.compile(rf"(?<![\w`.(])({'|'.join(names.WHERE)})(?![\w`(])")


class AsMarkdown(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text):
    text = _STATE.sub(_list, text)
    text = _HEADING.sub(r"**\1:**\n\n", text)
    parts = _DOCTEST.split(text)  # every second one is a doctest
    parts[::2] = [_NAME.sub(r"`\1`", part) for part in parts[::2]]
    parts[1::2] = [f"```pycon\n{part.rstrip()}\n```\n" for part in parts[1::2]]
    return "".join(parts)


def _list(section):
    heading, entries = section.groups()
    lines = [f"**{heading}**\n"]
    for entry in re.split(r"\n(?= {4}\S)", entries):
        what, colon, meaning = entry.strip().partition(":")
        if not colon:
            lines.append(f"\n{what}")
        else:
            code = what if "`" in what else re.sub(r"\w+", r"`\g<0>`", what)
            lines.append(f"- {code}:{meaning}")
    return "\n".join(lines) + "\n"
