"""The pages of the site, and the script that checks the built site. `nox -s docs` builds it."""

import importlib.util
import re
from pathlib import Path

import pytest

import keras_accum

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"

spec = importlib.util.spec_from_file_location("check_site", DOCS / "check_site.py")
check_site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_site)


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    settings = (PROJECT / "mkdocs.yml").read_text("utf-8")
    navigation = re.search(r"^nav:\n((?: .*\n|\n)+)", settings, re.M)[1]
    missing = pages - set(re.findall(r"[\w/]+\.md", navigation))
    assert not missing


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("reference/*.md"))
    shown = [path.rpartition(".")[2] for path in re.findall(r"^::: (.+)$", pages, re.M)]
    assert sorted(shown) == sorted([*keras_accum.__all__, "Accumulating"])


def problems(folder, html, **files):
    folder.joinpath("other").mkdir()
    folder.joinpath("other/index.html").write_text('<h1 id="here">Other</h1>')
    folder.joinpath("style.css").write_text(files.get("css", ""))
    folder.joinpath("index.html").write_text(html)
    return list(check_site.problems(folder))


@pytest.mark.parametrize(
    "html",
    [
        '<a href="other/">',
        '<a href="other/#here">',
        '<a href="other/index.html#">',
        '<a href="/other/">',
        '<p id="there"><a href="#there">',
        '<a href="https://example.org/">',
        '<link rel="canonical" href="https://example.org/">',
        '<link rel="stylesheet" href="style.css">',
        '<img src="data:image/png;base64,AAAA">',
    ],
)
def test_what_a_page_may_have(tmp_path, html):
    assert problems(tmp_path, html) == []


@pytest.mark.parametrize(
    "html, said",
    [
        ('<a href="others/">', "leads to nothing"),
        ('<img src="other.png">', "leads to nothing"),
        ('<a href="other/#there">', "leads to no element of other/index.html"),
        ('<a href="#there">', "leads to no element of index.html"),
        ('<script src="https://example.org/a.js"></script>', "another host"),
        ('<script src="//example.org/a.js"></script>', "another host"),
        ('<img src="http://example.org/a.png">', "another host"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "another host"),
        ('<p style="background: url(https://example.org/a.png)">', "another host"),
        ("<style>@import 'https://example.org/a.css';</style>", "another host"),
    ],
)
def test_what_a_page_may_not_have(tmp_path, html, said):
    (problem,) = problems(tmp_path, html)
    assert problem.startswith("index.html: ") and said in problem


CANONICAL = '<link rel="canonical" href="https://owner.example.org/project/">'


def test_a_path_from_the_root_begins_with_the_path_of_the_site(tmp_path):
    page = CANONICAL + '<a href="/project/other/"><a href="/other/"><a href="/project/none/">'
    out, nothing = problems(tmp_path, page)
    assert out == "index.html: /other/ leads out of the site"
    assert nothing == "index.html: /project/none/ leads to nothing"


@pytest.mark.parametrize(
    "css",
    [
        "@font-face {src: url(https://example.org/a.woff2)}",
        '@import "https://example.org/a.css";',
        '@import url("https://example.org/a.css");',
    ],
)
def test_what_a_style_may_not_have(tmp_path, css):
    (problem,) = problems(tmp_path, "", css=css)
    assert problem.startswith("style.css: ") and "another host" in problem
