"""Docstrings, plain text for `help()`, as the Markdown that the site needs.

mkdocs.yml has this file as an extension of griffe, which reads the docstrings.
"""

import re
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from keras_accum import names

# A list of terms, after an empty line or as the section "State:".
_TERMS = re.compile(r"(?:^(State\b.*:)|(?<=\n))\n((?: {4}.*\n)+)", re.M)
_TERM = re.compile(r" {4}[\w`<][\w`<>(),. ]*: ")
_HEADING = re.compile(r"^(Example|Paper):\n\s*", re.M)
_DOCTEST = re.compile(r"^(>>> (?:.+\n?)+)", re.M)
# A public name that isn't in backticks, in a line that isn't code.
_NAME = re.compile(rf"(?<![\w`.(])({'|'.join(names.WHERE)})(?![\w`(])")


class AsMarkdown(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text):
    text = _TERMS.sub(_list, text)
    text = _HEADING.sub(r"**\1:**\n\n", text)
    parts = _DOCTEST.split(text)  # every second one is a doctest
    parts[::2] = [_NAME.sub(r"`\1`", part) for part in parts[::2]]
    parts[1::2] = [f"```pycon\n{part.rstrip()}\n```\n" for part in parts[1::2]]
    return "".join(parts)


def _list(match):
    heading, terms = match.groups()
    if not _TERM.match(terms):
        return match[0]  # mathematics
    lines = [f"**{heading}**\n"] if heading else [""]
    for line in re.split(r"\n(?= {4}\S)", terms):
        term, colon, meaning = line.strip().partition(": ")
        if not colon:
            lines.append(f"\n{term}")
            continue
        code = term if "`" in term else ", ".join(f"`{name}`" for name in term.split(", "))
        lines.append(f"- {code}: {meaning}")
    return "\n".join(lines) + "\n"
