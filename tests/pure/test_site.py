"""The pages of the site, and the script that checks the built site. `nox -s docs` builds it."""

import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import FunctionType

import pytest

import keras_accum
from keras_accum.convert import Convertible
from keras_accum.optimizer import Accumulating
from keras_accum.saving import Saving

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"

spec = importlib.util.spec_from_file_location("check_site", DOCS / "site" / "check_site.py")
check_site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_site)


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    settings = (PROJECT / "mkdocs.yml").read_text("utf-8")
    assert pages - set(re.findall(r"[\w/]+\.md", settings.partition("\nnav:")[2])) == set()


@pytest.mark.parametrize("name", ["weights", "slices", "choose"])
def test_a_picture_is_what_its_script_draws(name, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    drawn = "\n".join(importlib.import_module(f"draw_{name}").drawing()) + "\n"
    assert (DOCS / "images" / f"{name}.svg").read_text("utf-8") == drawn


def test_the_tested_versions_are_those_of_the_environments(monkeypatch):
    """The page has what the sessions of nox kept, each a session that exists."""
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    script = importlib.import_module("tested_versions")
    by_session = json.loads(script.VERSIONS.read_text("utf-8"))
    assert script.read_table() == script.make_table(by_session)
    names = {name.partition("(")[0] for name in by_session}
    sessions = re.findall(r"^def (\w+)\(session", (PROJECT / "noxfile.py").read_text("utf-8"), re.M)
    assert len(names) > 5 and names <= {*sessions}
    assert "numpy" in script.list_versions()


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("reference/*.md"))
    shown = [path.rpartition(".")[2] for path in re.findall(r"^::: (.+)$", pages, re.M)]
    assert sorted(shown) == sorted([*keras_accum.WHERE, "Accumulating", "Convertible"])


def test_the_reference_has_every_method_with_its_signature():
    page = (DOCS / "reference" / "shared.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", page, re.M)
    own = {
        name
        for cls in (Convertible, Accumulating, Saving)
        for name, member in vars(cls).items()
        if name[0] != "_" and isinstance(member, (FunctionType, classmethod))
    }
    assert sorted(rows) == sorted(name + arguments_of(name) for name in own - OF_KERAS)


OF_KERAS = {
    "from_config", "get_config", "load_own_variables", "save_own_variables", "set_weights",
}  # fmt: skip


def arguments_of(name):
    """Return the arguments of a method as its user writes them."""
    signature = inspect.signature(getattr(Convertible, name))
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    plain = [p for p in plain if p.name != "self"]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


# A page of the site https://a.org/project/.
PROJECT_PAGE = '<link rel="canonical" href="https://a.org/project/"><a href="/project/other/">'


@pytest.mark.parametrize(
    "html, said",
    [
        ('<a href="others/">', "leads to nothing"),
        ('<img src="other.png">', "leads to nothing"),
        ('<a href="other/#there">', "leads to no element of other/index.html"),
        ('<a href="#there">', "leads to no element of index.html"),
        ('<script src="//example.org/a.js"></script>', "another host"),
        ('<img src="http://example.org/a.png">', "another host"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "another host"),
        ('<p style="background: url(https://example.org/a.png)">', "another host"),
        ("<style>@import 'https://example.org/a.css';</style>", "another host"),
        (PROJECT_PAGE + '<a href="/other/">', "/other/ leads out of the site"),
        (PROJECT_PAGE + '<a href="/project/none/">', "/project/none/ leads to nothing"),
    ],
)
def test_what_a_page_may_not_have(tmp_path, html, said):
    (problem,) = problems(tmp_path, html)
    assert problem.startswith("index.html: ") and said in problem


def problems(folder, html, css=""):
    folder.joinpath("other").mkdir()
    folder.joinpath("other/index.html").write_text('<h1 id="here">Other</h1>')
    folder.joinpath("style.css").write_text(css)
    folder.joinpath("index.html").write_text(html)
    return list(check_site.problems(folder))
