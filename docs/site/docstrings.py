"""Docstrings are plain text with tables that are aligned by hand. Here they become reStructuredText that keeps that.

Paragraphs stay paragraphs, `code` in them becomes code, and indented lines are shown letter by letter.
"""

import re
from itertools import pairwise

ALIGNED = re.compile(r"\S {2,}\S")                                  # two columns in one line
SPECIAL = re.compile(r"([\\*_|`])")


def restructured(text):
    """The lines of a docstring (without its common indentation) as lines of reStructuredText."""
    out, literal = [], False
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        for start, stop, is_literal in pieces(lines):
            part = lines[start:stop]
            if not is_literal:
                out += ["", *(paragraph("\n".join(part)).split("\n"))]
            else:
                out += ["" if literal else "\n.. code-block:: text\n", *(f"    {line}".rstrip() for line in part)]
            literal = is_literal
    return [*"\n".join(out).split("\n"), ""]


def pieces(lines):
    """(start, stop, whether it is shown letter by letter) for runs of the lines of one block."""
    marks = [line.startswith("  ") or bool(ALIGNED.search(line)) for line in lines]
    edges = [0, *(n for n in range(1, len(lines)) if marks[n] != marks[n - 1]), len(lines)]
    return [(a, b, marks[a]) for a, b in pairwise(edges)]


def paragraph(text):
    """Prose: what is special to reStructuredText is escaped, `code` becomes ``code``."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"``{part}``" if n % 2 else SPECIAL.sub(r"\\\1", part) for n, part in enumerate(parts))


def process(app, what, name, obj, options, lines):
    """Sphinx's event: the lines of a docstring are replaced in place. Fields of a named tuple say nothing new."""
    text = "\n".join(lines)
    lines[:] = [] if text.startswith("Alias for field number") else restructured(text)
