"""A function's source: read, written as HTML, and asked which numbered step a line belongs to and what loops count."""

import ast
import inspect
import io
import re
import tokenize
from html import escape
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """A function as text: name, file (the last two parts of its path), number of its first line, lines not indented."""

    name: str
    file: str
    first: int
    lines: list[str]


def source(code):
    """The Source of a code object. TypeError if it cannot be read."""
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError as error:
        raise TypeError(f"the source of {code.co_name} cannot be read ({error}): write the function into a file or a "
                        "notebook cell") from None
    indent = lines[0][:len(lines[0]) - len(lines[0].lstrip())]
    lines = [line.rstrip("\n").removeprefix(indent) for line in lines]    # a string or a comment may stand further left
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        raise TypeError(f"the source of {code.co_name} is no function by itself: write it with def") from None
    return Source(code.co_name, "/".join(Path(code.co_filename).parts[-2:]), first, lines)


def listing(source):
    """HTML, one list item for each line. A comment at the end of a line is set apart, so that it can wrap."""
    words = comments(source)
    items = [f'<h2><code>{escape(source.name)}</code> <span class="file">{escape(source.file)}</span></h2>', "<ol>"]
    for n, line in enumerate(source.lines, 1):
        code, comment = line[:words.get(n, len(line))], line[words.get(n, len(line)):]
        gap = code[len(code.rstrip()):] if code.strip() and comment else ""
        indent = len(line) - len(line.lstrip())
        items.append(
            f'<li value="{source.first + n - 1}" style="--indent: {indent}"><code>{escape(code.removesuffix(gap))}'
            f'<span class="gap">{gap}</span><span class="comment">{escape(comment)}</span></code></li>')
    return "\n".join([*items, "</ol>"])


def comments(source):
    """{line, counted from 1: column} where a comment begins, and where lines of a docstring do."""
    begins = {}
    for token in tokenize.generate_tokens(io.StringIO("\n".join(source.lines) + "\n").readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            for n in range(token.start[0], token.end[0] + 1):
                begins[n] = token.start[1] if n == token.start[0] else 0
    return begins


STEP = re.compile(r"# (\(\d+\) .*?)(?: +\([bN\d][^()]*,[^()]*\))?$")         # words, then perhaps a shape: (br, bc)


def labels(source):
    """For each line the numbered step that it belongs to, as "(3) load Kj, Vj", or "".

    A comment on a line of its own holds up to the next empty line; one at the end of a line for that line, and for
    those right below it whose comments go on, after more than one space.
    """
    found, label, alone = [], "", False
    for line in source.lines:
        step = STEP.search(line)
        if step:
            label, alone = step[1], line.lstrip().startswith("#")
        elif not line.strip() or not (alone or "#  " in line):
            label = ""
        found.append(label)
    return found


def counters(source):
    """Names that loops count with: targets of `for`, and what a `while` looks at and adds to."""
    found = []
    for node in ast.walk(ast.parse("\n".join(source.lines))):
        if isinstance(node, ast.For):
            found += names(node.target)
        elif isinstance(node, ast.While):
            added = [name for x in ast.walk(node) if isinstance(x, ast.AugAssign) for name in names(x.target)]
            found += [name for name in names(node.test) if name in added]
    return list(dict.fromkeys(found))


def names(tree):
    """All names in a piece of syntax."""
    return [x.id for x in ast.walk(tree) if isinstance(x, ast.Name)]
