"""Draw tables as Gantt pictures: a line for each unit, a box for each task.

They are drawn on a `drawing.Sheet`; sizes are in pixels.
"""

import re

from fa_ref.schedule.model import Table, makespan

WIDTH, LEFT, RIGHT, LINE, TITLE, AXIS, LEGEND = 700, 130, 20, 22, 36, 46, 24
LETTER = 6.6                                                            # about the width of one


def gantt(tables, path, **how):
    """Draw a Table, or several as {title: Table} above one axis of time; the path's ending says as what.

    group, label: functions of a Row. Rows of one group have one color; by default a group is what stands before the
    first comma or number of a task's name, and a label is what stands before its first comma. A label that does not
    fit into its box is left out. colors: {group: color} for groups that look the same in several pictures. time: what
    stands below the axis.
    """
    Gantt(tables, **how).save(path)


class Gantt:
    """The picture that `gantt` saves."""

    def __init__(self, tables, *, group=None, label=None, colors=None, time="time"):
        from fa_ref import drawing

        tables = {"": tables} if isinstance(tables, Table) else tables
        if not tables:
            raise ValueError("0 tables: there is nothing to draw")
        self.label = label or (lambda row: row.what.split(",")[0])
        self.group = group or (lambda row: re.split(r"[,\d]", row.what)[0].strip())
        groups = list(dict.fromkeys(self.group(row) for table in tables.values() for row in table.rows))
        self.colors = {name: drawing.COLORS[n % len(drawing.COLORS)] for n, name in enumerate(groups)}
        self.colors |= colors or {}
        self.colors["waits"] = "#ffffff"
        end = max(map(makespan, tables.values()))
        self.scale = float((WIDTH - LEFT - RIGHT) / (end or 1))
        places, lines = self.legend([*groups, "waits"])
        height = sum(TITLE + LINE * len(table.units) for table in tables.values()) + AXIS + LEGEND * lines
        self.sheet, self.faint = drawing.Sheet(height, WIDTH), drawing.FAINT
        top = 0
        for title, table in tables.items():
            self.panel(title, table, top + TITLE)
            top += TITLE + LINE * len(table.units)
        self.axis(top + 6, float(end), time)
        for name, x, line in places:
            self.box(x, top + AXIS + line * LEGEND, 16, 16, self.colors[name])
            self.text(x + 22, top + AXIS + line * LEGEND + 8, name, align="left")

    def panel(self, title, table, top):
        """One table: its title, its units, its boxes; white is where a unit waits."""
        self.text(LEFT, top - 12, title, align="left", bold=True, size=12.5)
        for n, unit in enumerate(table.units):
            self.text(LEFT - 8, top + (n + 0.5) * LINE, unit, align="right")
            self.box(LEFT, top + n * LINE, makespan(table) * self.scale, LINE, "#ffffff", edge="#dcdcd6")
        for row in table.rows:
            x, y = LEFT + row.start * self.scale, top + table.units.index(row.unit) * LINE
            width, label = (row.end - row.start) * self.scale, self.label(row)
            if width:
                self.box(x, y + 2, width, LINE - 4, self.colors[self.group(row)])
            if len(label) * LETTER <= width:
                self.text(x + width / 2, y + LINE / 2, label, size=10.5)

    def axis(self, top, end, time):
        """Ticks at round numbers."""
        from matplotlib.ticker import MaxNLocator

        for tick in MaxNLocator(8, integer=end >= 2).tick_values(0, end):
            if tick <= end:
                self.box(LEFT + tick * self.scale, top - 4, 0, 5, "none")
                self.text(LEFT + tick * self.scale, top + 10, f"{tick:,g}", size=11)
        self.text((LEFT + WIDTH - RIGHT) / 2, top + 26, time, color=self.faint)

    @staticmethod
    def legend(groups):
        """[(name, x, line)] of groups, as many to a line as fit, and the number of lines."""
        places, x, line = [], LEFT, 0
        for name in groups:
            width = 44 + len(name) * LETTER
            if x > LEFT and x + width > WIDTH:
                x, line = LEFT, line + 1
            places.append((name, x, line))
            x += width
        return places, line + 1

    def box(self, x, y, width, height, fill, **how):
        self.sheet.box(x, y, float(width), height, fill, line=0.8, **how)

    def text(self, x, y, words, size=11.5, **how):
        self.sheet.text(x, y, words, size=size, **how)

    def save(self, path):
        """Write it, as what the path ends with."""
        self.sheet.save(path)
