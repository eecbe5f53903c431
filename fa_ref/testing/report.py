"""The outcome of a check: a table of properties, and the smallest failing problem of each that failed."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fa_ref.testing.asking import PROPERTIES
from fa_ref.testing.running import FAILED, OK, OUT_OF_TIME, UNSUPPORTED, Row

COLOURS = {OK: "green", UNSUPPORTED: "dim", FAILED: "bold red", OUT_OF_TIME: "yellow"}


@dataclass(frozen=True)
class Report:
    """One row per property, in the order in which they were asked.

    left_out: the abilities that the adapter did not find in the function, so that nothing is known about them.
    """

    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()

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
        console = Console(width=110, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as capture:
            self.print(console)
        return capture.get()

    def print(self, console, command=None):
        """The table and the failures on a rich console. command: the command line that --replay is added to."""
        table = Table("property", "", "problems", "", box=None, pad_edge=False)
        for row in self.rows:
            short = f"see below{self.cause(row)}" if row.status == FAILED else row.detail
            table.add_row(row.name, Text(row.status, COLOURS[row.status]), str(row.examples or ""), short)
        console.print(table)
        if self.left_out:
            console.print(f"\nnot asked for: {', '.join(self.left_out)}", markup=False)
        for same in self.stories():
            names = ", ".join(row.name for row in same)
            console.print()
            console.print(Text(f"{names} failed{self.cause(same[0])}; the smallest failing problem found:", "bold red"))
            console.print(Text("  " + story(same[0], command).replace("\n", "\n  ")), soft_wrap=True)

    def cause(self, row):
        """What a failure may follow from, as the end of a phrase: wrong numbers break most properties."""
        oracle = "equals_the_oracle"
        follows = row.name != oracle and not PROPERTIES[row.name].conduct
        return f", may follow from {oracle}" if follows and oracle in {r.name for r in self.failures} else ""

    def stories(self):
        """The failures in groups that say the same in their first line; those that may follow from others last."""
        groups = {}
        for row in sorted(self.failures, key=lambda row: bool(self.cause(row))):
            groups.setdefault(row.detail.partition("\n")[0], []).append(row)
        return list(groups.values())


def story(row, command=None):
    """The detail of a failure, with the whole way to replay it: a command line, or else a call in Python."""
    how = (f'{command} --property {row.name} --replay "{row.recipe}"' if command
           else f'replay(fn, supports, "{row.recipe}", ["{row.name}"])')
    return row.detail.replace(f'--replay "{row.recipe}"', how)
