"""Check the built site: `python docs/site/check_site.py build/site`. Needs nothing but Python.

Every link within the site leads to a file, and its anchor to an element of that page. Nothing is
loaded from another host: no script, style, font or picture. A reader may follow a link elsewhere.
A path from the root of the host begins with the site's own path, if the first page names its URL.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The attributes that make a browser load what they name.
_LOADING = {"src", "srcset", "poster", "data"}
# Of <link>, the kinds that load nothing.
_NOT_LOADED = {"canonical", "next", "prev", "alternate", "search"}
_IN_CSS = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, html):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {"", "__top"}
        self.root = "/"
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        loading = [attributes[name] for name in _LOADING & attributes.keys()]
        if tag == "link" and attributes.get("rel") == "canonical":
            self.root = urlsplit(attributes["href"]).path
        if tag == "link" and attributes.get("rel") not in _NOT_LOADED:
            loading.append(attributes["href"])
        elif "href" in attributes:
            self.links.append(attributes["href"])
        self.loads += loading + in_css(attributes.get("style") or "")
        self._style = tag == "style"

    def handle_data(self, data):
        if self._style:
            self.loads += in_css(data)


def in_css(text):
    return [url or imported for url, imported in _IN_CSS.findall(text)]


def problems(site):
    """What is wrong with the site in a folder, one line each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for url in page.loads:
            yield from _problems(site, pages, path, url, loaded=True)
        for url in page.links:
            yield from _problems(site, pages, path, url, loaded=False)
    for path in sorted(site.rglob("*.css")):
        for url in in_css(path.read_text("utf-8")):
            yield from _problems(site, pages, path, url, loaded=True)


def _problems(site, pages, path, url, loaded):
    where = f"{path.relative_to(site)}: {url}"
    scheme, host, target, _, anchor = urlsplit(url)
    if scheme == "data":
        return
    if scheme or host:
        if loaded:
            yield f"{where} is loaded from another host"
        return
    # The page for what isn't found has paths from the root.
    first = pages.get(site / "index.html")
    if target.startswith("/") and first:
        if not target.startswith(first.root):
            yield f"{where} leads out of the site"
            return
        target = target[len(first.root) - 1 :]
    folder = site if target.startswith("/") else path.parent
    found = (folder / unquote(target).lstrip("/")).resolve() if target else path
    if found.is_dir():
        found /= "index.html"
    if not found.exists():
        yield f"{where} leads to nothing"
    elif found in pages and unquote(anchor) not in pages[found].anchors:
        yield f"{where} leads to no element of {found.relative_to(site)}"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    for line in found:
        print(line)
    sys.exit(bool(found))
