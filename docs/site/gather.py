"""Gather the pages of the site in a folder that looks like the repository, so that their relative links stay right.

Markdown and notebooks are copied; only links to headings of notebooks change, which Jupyter names its own way. A Python
file becomes a page with its text (`fa_ref/fa2.py` is `fa_ref/fa2.py.rst`), so that a link to it finds it. The rest is
written here: side by side, API, lists.
"""

import json
import os
import re
from pathlib import Path

import side_by_side
from modules import ORDERS, TITLES, module, reading_order, summary

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
HEADING = re.compile(r"\]\(((?:[^)\s#]+\.ipynb)?#)([^)\s]+)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", "": "text"}
PICTURES = (".svg", ".png")


def pages(folder):
    """Write everything below this folder."""
    copied = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "notebooks" / "README.md", *notebooks()]
    sources = sorted(file for package in ORDERS for file in (ROOT / package).rglob("*.py"))
    linked = {target for file in copied for target in links(file)} - {*copied, *sources}
    documents = sorted(file for file in linked if file.suffix == ".md")
    others = sorted(file for file in linked if file.suffix in LANGUAGES)
    for file in [*copied, *documents, *(file for file in linked if file.suffix in PICTURES)]:
        put(folder, file.relative_to(ROOT), copied_text(file) if file in copied else file.read_bytes())
    for file in [*sources, *others]:
        put(folder, f"{file.relative_to(ROOT)}.rst", source_page(folder, file))
    for name in side_by_side.PAGES:
        put(folder, f"side_by_side/{name}.rst", side_by_side.rst(name))
    for file in sources:
        if file.name != "__main__.py":
            put(folder, f"api/{module(file)}.rst", api_page(file))
    for page in (ROOT / "docs" / "site").glob("*.rst"):
        put(folder, page.name, page.read_bytes())
    put(folder, "reading.rst", reading())
    write_lists(folder, sources, others, documents)


def put(folder, name, text):
    """Write a file, and the folders above it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def notebooks():
    return sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def copied_text(file):
    """The text of a page or a notebook; #With-a-hint in a notebook becomes #with-a-hint, as in Markdown."""
    def renamed(link):
        own = link[1] == "#" and file.suffix != ".ipynb"
        return link[0] if own else f"]({link[1]}{re.sub(r'[^a-z0-9_-]', '', link[2].lower())})"

    return HEADING.sub(renamed, file.read_text(encoding="utf-8"))


def links(file):
    """The files of the repository that a page or a notebook links to or shows."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    found = (Path(os.path.normpath(file.parent / link)) for link in LINK.findall(text))
    return {target for target in found if target.is_file()}


def source_page(folder, file):
    """A file as a page, with the numbers of its lines."""
    name = file.relative_to(ROOT)
    path = os.path.relpath(file, (folder / name).parent)
    own = module(file) if name.parts[0] in ORDERS and file.name != "__main__.py" else None
    link = f":doc:`Functions and classes </api/{own}>`" if own else ""
    return "\n".join([":hide-toc:", "", title(f"``{name}``"), link, "", f".. literalinclude:: {path}",
                      f"   :language: {LANGUAGES[file.suffix]}", "   :linenos:", ""])


def api_page(file):
    """What a module offers, from its docstrings; in a package, not what has the name of one of its modules."""
    name = module(file)
    inside = [path.stem for path in file.parent.glob("*.py")] if file.name == "__init__.py" else []
    return "\n".join([title(f"``{name}``"), f":doc:`Source </{file.relative_to(ROOT)}>`", "", f".. automodule:: {name}",
                      f"   :exclude-members: {', '.join(inside)}" if inside else "", ""])


def reading():
    """The files in the order in which they are to be read, each with its first sentence and its other pages."""
    out = [title("Reading order"), "The letters of all files are in the glossaries, :doc:`/api/fa_ref` and "
           ":doc:`/api/cuda_kernels`. The :doc:`notebooks </notebooks/README>` go the same way, with pictures.", ""]
    for package in ORDERS:
        out.append(title(TITLES[package], "-"))
        for name in reading_order(package):
            file = f"{package}/{name}.py"
            file = file if (ROOT / file).exists() else f"{package}/{name}/__init__.py"
            more = [f":doc:`API </api/{package}.{name}>`"]
            more += [f":doc:`{words} </side_by_side/{page}>`" for page, words in
                     ((name, "side by side"), (f"{name}_backward", "backward")) if page in side_by_side.PAGES]
            out += [f":doc:`{name} </{file}>`", f"   {summary(ROOT / file)} {' · '.join(more)}", ""]
    return "\n".join(out)


def write_lists(folder, sources, others, documents):
    """The pages that say what there is in each part; they make up the navigation."""
    for part in ("docs", "notebooks"):
        index = (ROOT / part / "README.md").read_text(encoding="utf-8")
        named = dict.fromkeys(re.findall(r"\]\((\w+)\.(?:md|ipynb)\)", index))
        put(folder, f"{part}/README.md", index + "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(named) + "\n```\n")
    put(folder, "side_by_side/index.rst", listed(
        "Side by side", "The same numbered steps, as a NumPy loop and as a kernel.",
        [f"/side_by_side/{name}" for name in side_by_side.PAGES]))
    for package in ORDERS:
        own = [file for file in sources if file.is_relative_to(ROOT / package) and file.name != "__main__.py"]
        put(folder, f"api/{package}-index.rst", listed(
            f"API of {package}", "From the docstrings of its modules.", [f"/api/{module(file)}" for file in own]))
    put(folder, "files.rst", listed("Source files", "As they stand in the repository.", [
        *(f"/{file.relative_to(ROOT)}" for file in [*sources, *others]),
        *(f"/{file.relative_to(ROOT).with_suffix('')}" for file in documents)]))


def listed(heading, words, pages):
    """A page that lists other pages."""
    tree = [".. toctree::", "   :maxdepth: 1", "", *(f"   {page}" for page in pages)]
    return "\n".join([title(heading), words, "", *tree, ""])


def title(text, mark="="):
    return f"{text}\n{mark * len(text)}\n"
