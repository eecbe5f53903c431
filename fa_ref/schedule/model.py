"""Tasks, units that do them one at a time, and a list scheduler that says who runs when.

    >>> table = run([Task("dough", "cook", 3), Task("bake", "oven", 4, after=("dough",)), Task("salad", "cook", 2)],
    ...             {"cook": 1, "oven": 1})
    >>> [tuple(row) for row in table.rows]
    [('cook', 'dough', 0, 3), ('cook', 'salad', 3, 5), ('oven', 'bake', 3, 7)]
    >>> makespan(table), round(utilisation(table), 2), tail(table)
    (7, 0.64, 2)

The scheduler is greedy: whenever a unit is free, it takes the first task of the list that is of its kind and waits for
nothing any more. It never keeps a unit free for a better task that comes soon.

Limits. A unit does one task at a time, from start to end, and units of a kind are alike. A task lasts as long as it is
said to last, whatever else runs: no cache, no contention, no time to start it or to hand a result over.
"""

import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from math import inf
from numbers import Real
from typing import NamedTuple

from fa_ref.options import check_whole


class Task(NamedTuple):
    """what: its name, no other task has it. kind: of the unit that it needs. duration: a number, in any unit of time.

    after: names of the tasks that must have ended before it starts.
    """

    what: str
    kind: str
    duration: Real
    after: tuple[str, ...] = ()


class Row(NamedTuple):
    """One unit is busy with one thing from start to end."""

    unit: str
    what: str
    start: Real
    end: Real


class Table(NamedTuple):
    """units: the names of all, also of those that had nothing to do. rows: one for each task, by their start."""

    units: tuple[str, ...]
    rows: list[Row]


def run(tasks, units):
    """The Table of these tasks on these units: {kind: how many of it}.

    Numbers are only added and compared: integers and fractions stay exact. The units of a kind are called "kind 0",
    "kind 1" …, or just "kind" if there is one. Raises ValueError for no tasks, less than one unit of a kind, a negative
    or infinite duration, two tasks of one name, a task that needs a kind of unit or a task that is not there, and tasks
    that wait for each other; TypeError for a duration or a number of units that is none.
    """
    tasks = list(tasks)
    graph = checked(tasks, units)
    name = names(units)
    free = {kind: list(range(number)) for kind, number in units.items()}        # heaps: the lowest number first
    ready = {kind: [] for kind in units}                                        # heaps: the first of the list first
    running, rows, now = [], [], 0
    while graph.is_active():
        for n in graph.get_ready():
            heappush(ready[tasks[n].kind], n)
        for kind in units:
            while ready[kind] and free[kind]:
                n, unit = heappop(ready[kind]), heappop(free[kind])
                rows.append(Row(name[kind][unit], tasks[n].what, now, now + tasks[n].duration))
                heappush(running, (now + tasks[n].duration, n, unit))
        now = running[0][0]                                                     # the next thing that happens
        while running and running[0][0] == now:
            _, n, unit = heappop(running)
            heappush(free[tasks[n].kind], unit)
            graph.done(n)
    return Table(tuple(chain(*name.values())), rows)


def names(units):
    """{kind: the names of its units}."""
    return {kind: [kind] if number == 1 else [f"{kind} {n}" for n in range(number)] for kind, number in units.items()}


def checked(tasks, units):
    """Raise what `run` promises; return the graph of the tasks, known by their places in the list."""
    for kind, number in units.items():
        check_whole(f"the number of units of kind {kind!r}", number, 1)
    for unit, number in Counter(chain(*names(units).values())).items():
        if number > 1:
            raise ValueError(f"{number} units are called {unit!r}: name the kinds {list(units)} differently")
    if not tasks:
        raise ValueError("0 tasks: there is nothing to schedule")
    place = {task.what: n for n, task in enumerate(tasks)}
    for what, number in Counter(task.what for task in tasks).items():
        if number > 1:
            raise ValueError(f"{number} tasks are called {what!r}: each needs a name of its own")
    for task in tasks:
        if not isinstance(task.duration, Real):
            raise TypeError(f"task {task.what!r} lasts {task.duration!r}: a number is needed")
        if not 0 <= task.duration < inf:
            raise ValueError(f"task {task.what!r} lasts {task.duration}: 0 or more is needed, and less than forever")
        if task.kind not in units:
            raise ValueError(f"task {task.what!r} needs a {task.kind!r}, of which there are 0; there are {units}")
        if isinstance(task.after, str):
            raise TypeError(f"task {task.what!r} has after = {task.after!r}: a tuple of names is needed, "
                            f"({task.after!r},)")
        if missing := [what for what in task.after if what not in place]:
            raise ValueError(f"task {task.what!r} waits for {missing[0]!r}, which is none of the {len(tasks)} tasks")
    graph = TopologicalSorter({n: [place[what] for what in task.after] for n, task in enumerate(tasks)})
    try:
        graph.prepare()
    except CycleError as error:
        circle = [tasks[n].what for n in error.args[1]]
        raise ValueError(f"{len(circle) - 1} tasks wait for each other: {' → '.join(circle)}") from None
    return graph


# --- a table in numbers ---------------------------------------------------------------------------------------

def makespan(table):
    """When the last task ends; the first one starts at 0. ValueError for a table of no rows."""
    if not table.rows:
        raise ValueError(f"0 rows, {len(table.units)} units: an empty table has no end")
    return max(row.end for row in table.rows)


def units_of(table, kind):
    """The names of its units of this kind; of all units if kind is None."""
    numbered = rf"{re.escape(kind or '')}( \d+)?"
    found = [unit for unit in table.units if kind is None or re.fullmatch(numbered, unit)]
    if not found:
        raise ValueError(f"0 units of kind {kind!r} among the {len(table.units)}: {', '.join(table.units[:4])} …")
    return found


def busy(table, kind=None):
    """How long the units of this kind are at work, all together."""
    units = set(units_of(table, kind))
    return sum(row.end - row.start for row in table.rows if row.unit in units)


def utilisation(table, kind=None):
    """The part of the time, 0 to 1, in which the units of this kind (None: all) are at work, on average."""
    time = len(units_of(table, kind)) * makespan(table)
    if not time:
        raise ValueError(f"the makespan is {makespan(table)}: no part of it can be told")
    return float(busy(table, kind) / time)


def waves(table):
    """Tasks to one unit. Where they last equally long, a part of a wave takes as long as a whole one."""
    return len(table.rows) / len(table.units)


def tail(table):
    """From the moment in which the first unit has nothing left to do, to the end."""
    last = dict.fromkeys(table.units, 0)
    for row in table.rows:
        last[row.unit] = max(last[row.unit], row.end)
    return makespan(table) - min(last.values())


def waits(table):
    """A Row "waits" for each stretch of time in which a unit has nothing to do, unit by unit."""
    found = []
    for unit in table.units:
        now = 0
        for row in [row for row in table.rows if row.unit == unit]:             # in order of their start
            if row.start > now:
                found.append(Row(unit, "waits", now, row.start))
            now = row.end
        if makespan(table) > now:
            found.append(Row(unit, "waits", now, makespan(table)))
    return found
