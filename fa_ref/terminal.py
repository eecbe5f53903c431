"""How the commands print: one console, and tables that fit into 80 columns where their texts are short."""

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def tabled(*columns, right=(), rows=(), **how):
    """A table of these rows, lines of cells; `right` lists the columns of numbers, how is rich's."""
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold", **how)
    for column in right:
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*row)
    return table
