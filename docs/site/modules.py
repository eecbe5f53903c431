"""What the modules say about themselves: their names, their first sentence, the order in which to read them."""

import ast
import re
from pathlib import Path

from docstrings import paragraph

ROOT = Path(__file__).parent.parent.parent
ORDERS = ("fa_ref", "cuda_kernels")                                 # the packages
TITLES = {"fa_ref": "The NumPy loops, and what looks at them", "cuda_kernels": "The kernels"}


def module(file):
    """The name under which a file is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def docstring(file):
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def summary(file):
    """The first sentence of a module's docstring, as reStructuredText."""
    first = docstring(file).partition("\n\n")[0].replace("\n", " ")
    return paragraph(re.split(r"(?<=\.) (?=[A-Z])", first)[0])


def reading_order(package):
    """The names after "Read in this order:" in the docstring of the package, without what stands in brackets."""
    text = docstring(ROOT / package / "__init__.py").partition("Read in this order:")[2]
    names = re.findall(r"\b[a-z]\w*\b", re.sub(r"\([^)]*\)", "", text))
    return [name for name in names if (ROOT / package / f"{name}.py").exists()
            or (ROOT / package / name / "__init__.py").exists()]
