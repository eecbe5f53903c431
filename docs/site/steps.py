"""The functions of a file cut at their numbered steps, `# (4) scores`, so that two versions can stand side by side."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).parent.parent.parent
STEP = re.compile(r"#\s*\((\d+)\)\s*(.*?)(?:\s\s+.*)?$")
NOTE = re.compile(r'<span class="c1">(.*)</span>$')


class Line(NamedTuple):
    """A line of a file: its number, how far it is set in, and HTML of the code and of the comment at its end."""

    number: int
    indent: int
    code: str
    note: str


def cut(parts):
    """({place: lines}, {n: words of step n}) of functions: [(file, function)], in the order of their steps.

    Place (n, 0) is step n, up to the first empty line; (n, 1) is what stands between it and the next step: heads of
    loops, barriers, the beginning of the next function. (0, 1) comes before the first step. Docstrings are left out.
    """
    places, words, place = {}, {}, (0, 1)
    for file, function in parts:
        text = (ROOT / file).read_text(encoding="utf-8")
        plain, html = text.split("\n"), coloured(text)
        node = next(f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name == function)
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for number in sorted(set(range(first, node.end_lineno + 1)) - docstring_lines(node)):
            line = plain[number - 1]
            if step := STEP.search(line):
                place = (int(step[1]), 0)
                words[place[0]] = step[2]
            elif not line.strip():
                place = (place[0], 1)
            places.setdefault(place, []).append(made(number, line, html[number - 1]))
        place = (place[0], 1)
    return {place: kept for place, lines in places.items() if (kept := without_empty_ends(lines))}, words


def coloured(text):
    """The HTML of each line of a Python file."""
    return highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).split("\n")


def docstring_lines(node):
    """The numbers of the lines of the docstrings in a function and in the functions inside it."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef) and ast.get_docstring(inner):
            found |= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    return found


def made(number, plain, html):
    """A Line. The comment at the end of a statement is set apart, so that a page may move it."""
    indent = len(plain) - len(plain.lstrip(" "))
    html = html[indent:] if html.startswith(" " * indent) else html
    note = NOTE.search(html)
    if note is None or note.start() == 0:
        return Line(number, indent, html.rstrip(), "")
    return Line(number, indent, html[:note.start()].rstrip(), re.sub(" {2,}", "  ", note[1]))


def without_empty_ends(lines):
    """The lines from the first to the last that is not empty."""
    full = [n for n, line in enumerate(lines) if line.code]
    return lines[full[0]:full[-1] + 1] if full else []
