"""What the pages of a folder link to, load and show; and what of it is wrong."""

import re
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote

ELSEWHERE = re.compile(r"(?:\w+:)?//")
IN_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:\w+:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """A page: its anchors, links [address], loads [address], and pictures and frames that have no words."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads, self.wordless = {""}, [], IN_CSS.findall(text), []
        self.feed(text)

    def handle_starttag(self, tag, pairs):
        has = dict(pairs)
        self.anchors |= {has[key] for key in ("id", "name") if has.get(key)}
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if tag == "link" and has.get("rel") not in ("author", "canonical", "index", "next", "prev", "search"):
            self.loads.append(has["href"])
        self.loads += [has[key] for key in ("src", "data", "poster") if has.get(key) and tag != "link"]
        self.loads += [part.split()[0] for part in has.get("srcset", "").split(",") if part.strip()]
        if tag in ("img", "iframe") and not (has.get("alt" if tag == "img" else "title") or "").strip():
            self.wordless.append(self.get_starttag_text()[:150])
        if inner := has.get("srcdoc"):
            page = Page(inner)
            self.loads += page.loads
            self.wordless += page.wordless

    handle_startendtag = handle_starttag


@cache
def read(path):
    return Page(path.read_text(encoding="utf-8"))


def pages(folder):
    """[(path from the folder, Page)]"""
    return [(path.relative_to(folder), read(path)) for path in sorted(folder.rglob("*.html"))]


def broken_links(folder):
    """[(page, address)] of the links and loads inside the folder that lead nowhere."""
    broken = []
    for name, page in pages(folder):
        for address in {*page.links, *page.loads}:
            if re.match(r"\w+:|//", address):
                continue
            file, _, anchor = address.partition("#")
            target = (folder / name.parent / unquote(file.partition("?")[0])).resolve() if file else folder / name
            lacks_anchor = target.suffix == ".html" and target.is_file() and unquote(anchor) not in read(target).anchors
            if not target.is_file() or lacks_anchor:
                broken.append((str(name), address))
    return broken


def loaded_from_elsewhere(folder):
    """[(page or style sheet, address)] of what a browser would ask the network for."""
    found = [(str(name), address) for name, page in pages(folder) for address in page.loads if ELSEWHERE.match(address)]
    for path in sorted(folder.rglob("*.css")):
        found += [(str(path.relative_to(folder)), address) for address in IN_CSS.findall(path.read_text("utf-8"))]
    return found


def without_words(folder):
    """[(page, tag)] of pictures without an alternative text and frames without a title."""
    return [(str(name), tag) for name, page in pages(folder) for tag in page.wordless]
