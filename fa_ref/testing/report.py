"""The outcome of a check: a table of properties, and the smallest failing problem of each that failed."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fa_ref.testing.running import FAILED, OK, OUT_OF_TIME, UNSUPPORTED, Row

COLOURS = {OK: "green", UNSUPPORTED: "dim", FAILED: "bold red", OUT_OF_TIME: "yellow"}


@dataclass(frozen=True)
class Report:
    """One row per property, in the order in which they were asked."""

    rows: tuple[Row, ...]

    @property
    def ok(self):
        """Did all properties that could be asked hold, and was there one?"""
        return self.exit_code == 0

    @property
    def exit_code(self):
        """0: all that could be asked held. 1: one failed. 2: none could be asked. 3: the time ran out first."""
        statuses = {row.status for row in self.rows}
        if FAILED in statuses:
            return 1
        if OUT_OF_TIME in statuses:
            return 3
        return 0 if OK in statuses else 2

    @property
    def failures(self):
        """The rows that failed."""
        return [row for row in self.rows if row.status == FAILED]

    def __str__(self):
        """The table and the failures, without colours."""
        console = Console(width=110, color_system=None, force_terminal=False)
        with console.capture() as capture:
            self.print(console)
        return capture.get()

    def print(self, console):
        """The table and the failures on a rich console."""
        table = Table("property", "", "problems", "", box=None, pad_edge=False)
        for row in self.rows:
            short = "see below" if row.status == FAILED else row.detail
            table.add_row(row.name, Text(row.status, COLOURS[row.status]), str(row.examples or ""), short)
        console.print(table)
        for row in self.failures:
            console.print()
            console.print(Text(f"{row.name} failed; the smallest failing problem found:", "bold red"))
            console.print(Text("  " + row.detail.replace("\n", "\n  ")), soft_wrap=True)
