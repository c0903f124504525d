"""The parts of the site that aren't files in docs/; mkdocs.yml has this file under `hooks`.

The README, the changelog and the notebooks become pages. Inline code that is a public name links to
the reference. Links between files of the repository become links between pages of the site. griffe,
which reads the docstrings, has this file as an extension.
"""

import ast
import posixpath
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import griffe
from latex2mathml.converter import convert
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
_SETUP = (ROOT / "setup.py").read_text("utf-8")
REPOSITORY = ast.literal_eval(re.search(r"^REPOSITORY = (.+)", _SETUP, re.M)[1])  # None at first
_DESCRIPTION = (ROOT / "keras_accum" / "host" / "description.py").read_text("utf-8")
SET_UP = re.search(r'^SET_UP = """\\\n(.+?)"""', _DESCRIPTION, re.M | re.S)[1]
OWNER, NAME = REPOSITORY.split("/")[-2:] if REPOSITORY else (None, "keras_accum")

NOTEBOOKS = {
    f"notebooks/{path.name}": f"notebooks/{path.stem}.md"
    for path in sorted(ROOT.glob("notebooks/*.ipynb"))
}
# The pages whose text lies outside docs/, by the path of that text.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    **NOTEBOOKS,
}
SOURCES = {page: path for path, page in PAGES.items()}
PICTURES = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/results/*.png")]

# What inline code links to in the reference: the objects that its pages show.
OBJECTS = {
    path.rsplit(".", 1)[1]: path
    for page in ROOT.glob("docs/reference/*.md")
    for path in re.findall(r"^::: (.+)", page.read_text("utf-8"), re.M)
}


def on_config(config):
    for section in config.nav:
        for title, pages in section.items():
            if title == "Notebooks":
                pages += NOTEBOOKS.values()
    config.markdown_extensions.append(LinkObjects())
    if REPOSITORY:
        config.site_url = f"https://{OWNER.lower()}.github.io/{NAME}/"
        config.repo_url, config.repo_name = REPOSITORY, f"{OWNER}/{NAME}"
        config.edit_uri = "edit/main/docs/"
    return config


def on_files(files, config):
    """Add the files of the site that lie elsewhere or nowhere."""

    def add(uri, edited=None, **content):
        """Add a generated file. A reader can edit the file of the repository that it comes from."""
        file = File.generated(config, uri, **content)
        file.edit_uri = edited and f"../{edited}"
        files.append(file)

    for path, page in PAGES.items():
        if path in NOTEBOOKS:
            folder = {"output_files_dir": f"{Path(path).stem}_files"}
            text, resources = MarkdownExporter().from_filename(ROOT / path, folder)
            for name, picture in resources["outputs"].items():
                add(f"notebooks/{name}", content=picture)
        else:
            text = (ROOT / path).read_text("utf-8")
        add(page, path, content=text)
    for path in PICTURES:
        add(path, abs_src_path=str(ROOT / path))
    return files


# They are pictures of other hosts, which the site doesn't load.
_BADGES = re.compile(r"^\[!\[.*\n", re.M)


def _with_colab(markdown, path):
    """Add a link below the title if Colab finds there what the notebook needs."""
    if '"../' in markdown or not REPOSITORY:
        return markdown
    url = f"https://colab.research.google.com/github/{OWNER}/{NAME}/blob/main/{path}"
    install = "!pip install 'keras_accum[demo]'"
    link = f"[Open this notebook in Colab]({url}) and run `{install}` there first."
    title, rest = markdown.split("\n", 1)
    return f"{title}\n\n{link}\n{rest}"


# The target of a link or a picture, in Markdown or HTML, without its anchor.
_TARGET = re.compile(r"""(?:(?<=\]\()|(?<=src=")|(?<=href="))[^)"\s#:]+""")

# The target, and the link, to a file outside of the site while there is no repository.
_NOWHERE = "no-repository-yet"
_DEAD = re.compile(rf"\[((?:[^\[\]]|\[[^\]]*\])*)\]\({_NOWHERE}[^)]*\)")


def on_page_markdown(markdown, page, config, files):
    """Put links between pages of the site for links between files of the repository."""
    uri = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(uri, f"docs/{uri}"))

    def on_site(match):
        path = posixpath.normpath(posixpath.join(folder, match[0]))
        if not (ROOT / path).exists():
            return match[0]  # as it is: a link to nothing is reported
        for target in (PAGES.get(path, path), posixpath.relpath(path, "docs")):
            file = files.get_file_from_path(target)
            if file and not file.inclusion.is_excluded():
                return posixpath.relpath(target, posixpath.dirname(uri))
        return f"{REPOSITORY}/blob/main/{path}" if REPOSITORY else _NOWHERE

    markdown = _BADGES.sub("", markdown)
    if uri in NOTEBOOKS.values():
        markdown = _with_colab(markdown, SOURCES[uri])
    return _DEAD.sub(r"\1", _TARGET.sub(on_site, markdown))


_FORMULA = re.compile(r'class="arithmatex">\\([(\[])(.*?)\\[)\]]<', re.S)


def on_page_content(html, **kwargs):
    """Turn the LaTeX of notebooks into MathML, which browsers draw without a script."""

    def mathml(match):
        display = "block" if match[1] == "[" else "inline"
        return f'class="formula">{convert(unescape(match[2]), display=display)}<'

    return _FORMULA.sub(mathml, html)


# Defaults of arguments that all stock optimizers share; the others are None.
_SHARED = {"use_ema": "False", "ema_momentum": "0.99"}


class Docstrings(griffe.Extension):
    """Fills in the fields of a callback's docstring, shows examples as code, and fills in defaults.

    griffe doesn't know the default of an argument that a class takes by `Unpack[More]`.
    """

    def on_function(self, *, func, **kwargs):
        unknown = [parameter for parameter in func.parameters if parameter.default == "..."]
        if unknown:
            own = func.modules_collection["keras_accum.optimizer.Accumulating.__init__"].parameters
        for parameter in unknown:
            name = parameter.name
            known = own[name].default if name in own else _SHARED.get(name, "None")
            parameter.default = known

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            text = obj.docstring.value
            if "{import_keras}" in text or "{set_up}" in text:
                text = text.replace("{set_up}", SET_UP)
                names = {"import_keras": "import keras", "shape": "keras.ops.shape"}
                text = text.format(module="keras3", **names)
            example = re.compile(r"^(>>> (?:.+\n?)+)", re.M)
            obj.docstring.value = example.sub(r"```pycon\n\1\n```\n", text)


class LinkObjects(Extension):
    """Links inline code to the reference: `AdamAccumulate`, `MicroBatches()`."""

    def extendMarkdown(self, md):
        # Inline code is found at 20.
        md.treeprocessors.register(_LinkObjects(md), "link_objects", 15)


class _LinkObjects(Treeprocessor):
    def run(self, root):
        for parent in root.iter():
            if re.fullmatch("h[1-6]|th|a|pre|autoref", parent.tag):
                continue
            for i, child in enumerate(parent):
                name = (child.text or "").replace("()", "")
                if child.tag == "code" and name in OBJECTS:
                    link = ElementTree.Element("autoref", identifier=OBJECTS[name])
                    link.tail, child.tail = child.tail, None
                    link.append(child)
                    parent[i] = link
