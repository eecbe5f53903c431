"""See who runs when: attention as tasks on units, and tables of (unit, what, start, end).

    python -m fa_ref schedule                   all of it
    python -m fa_ref schedule blocks            FA1's grid against FA2's on a card's multiprocessors
    python -m fa_ref schedule warps             split-K against split-Q in a block
    python -m fa_ref schedule overlap           products and softmax of FA3 in one multiprocessor
    python -m fa_ref schedule overlap --rows    every row of small examples

`model` has the scheduler and the numbers that are taken from a table; `blocks`, `warps` and `overlap` make the tasks,
and say what their model leaves out; `pictures` draws. Such a schedule shows what may overlap, and where units wait. It
predicts no runtime.
"""

from fa_ref.schedule.model import Row, Table, Task, busy, makespan, run, tail, utilisation, waits, waves
from fa_ref.schedule.pictures import gantt

__all__ = ["Row", "Table", "Task", "busy", "gantt", "main", "makespan", "run", "tail", "utilisation", "waits", "waves"]


def main(argv=None):
    """`python -m fa_ref schedule [blocks|warps|overlap …] [--card CARD] [--rows]`; returns 0."""
    from fa_ref.schedule import show

    return show.main(argv)
