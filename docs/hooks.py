"""The parts of the site that aren't files in docs/; mkdocs.yml has this file under `hooks`.

The README, the changelog, the notebooks and others become pages, each public name gets a page of
the reference, and links that leave docs/ are turned into links that work on the site.
"""

import posixpath
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from keras_accum import names  # noqa: E402

REPOSITORY = re.search(r'^REPOSITORY = "(.+)"', (ROOT / "setup.py").read_text("utf-8"), re.M)[1]

# Files of the site that lie outside docs/: their place on the site by their path in the repository.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    **{
        path.relative_to(ROOT).as_posix(): f"notebooks/{path.stem}.md"
        for path in sorted(ROOT.glob("notebooks/*.ipynb"))
    },
}
SOURCES = {page: path for path, page in PAGES.items()}
PICTURES = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/results/*.png")]
REFERENCE = {name: f"reference/{name}.md" for name in names.WHERE}


def on_config(config):
    """Complete the navigation, and link public names wherever they stand as code."""
    for section in config.nav:
        for title, pages in section.items():
            if title == "Notebooks":
                pages += [page for page in PAGES.values() if page.startswith("notebooks/")]
            if title == "Reference":
                pages += [{name: page} for name, page in REFERENCE.items()]
    config.markdown_extensions.append(LinkNames())
    # In the footer. As `repo_url` the theme would ask the repository's host for its stars.
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": REPOSITORY}]
    return config


def on_files(files, config):
    for path, page in PAGES.items():
        if path.endswith(".ipynb"):
            text, pictures = _notebook(ROOT / path)
            for name, content in pictures.items():
                files.append(File.generated(config, f"notebooks/{name}", content=content))
        else:
            text = (ROOT / path).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    for path in PICTURES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for name, page in REFERENCE.items():
        text = f"---\ntitle: {name}\nhide: [toc]\n---\n::: keras_accum.{name}\n"
        files.append(File.generated(config, page, content=text))
    return files


def _notebook(path):
    """A notebook as Markdown, and its pictures by the names that the Markdown has for them."""
    resources = {"output_files_dir": f"{path.stem}_files"}
    text, resources = MarkdownExporter().from_filename(path, resources)
    return text, resources["outputs"]


# The target of a link or a picture, in Markdown or HTML, without its anchor.
_TARGET = re.compile(r"""(?:(?<=\]\()|(?<=src=")|(?<=href="))[^)"\s#:]+""")


def on_page_markdown(markdown, page, config, files):
    """Turn links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(uri, f"docs/{uri}"))

    def on_site(match):
        path = posixpath.normpath(posixpath.join(folder, match[0]))
        if not (ROOT / path).exists():
            return match[0]  # as it is: a link to nothing is reported
        for target in (PAGES.get(path, path), posixpath.relpath(path, "docs")):
            if files.get_file_from_path(target):
                return posixpath.relpath(target, posixpath.dirname(uri))
        return f"{REPOSITORY}/blob/main/{path}"

    return _TARGET.sub(on_site, markdown)


class LinkNames(Extension):
    """Links inline code that is a public name to the reference, but not in headings."""

    def extendMarkdown(self, md):
        # After inline code has been found, at 20.
        md.treeprocessors.register(_LinkNames(md), "link_names", 15)


class _LinkNames(Treeprocessor):
    def run(self, root):
        for parent in root.iter():
            if re.fullmatch("h[1-6]|a|pre|autoref", parent.tag):
                continue
            for i, child in enumerate(parent):
                name = (child.text or "").replace("()", "")
                if child.tag == "code" and name in names.WHERE:
                    link = ElementTree.Element("autoref", identifier=f"keras_accum.{name}")
                    link.tail, child.tail = child.tail, None
                    link.append(child)
                    parent[i] = link
