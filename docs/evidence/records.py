"""Measurements on a GPU that are kept in docs/performance, and how they are looked up.

    forward     what `python -m cuda_kernels bench --save FILE` wrote, see cuda_kernels/bench/measure.py
    backward    the same with `--backward`
    ladder      what `python -m cuda_kernels ladder --save FILE` wrote
"""

import json
from functools import wraps
from pathlib import Path

from cuda_kernels.bench import targets
from evidence.common import EVIDENCE

FOLDER = Path(__file__).parent.parent / "performance"


def kept(name):
    """The record of this name; None if there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def measured(*names):
    """Enter a function of the records of these names. While one is missing, its line is None."""
    def enter(function):
        @wraps(function)
        def of_records(**limits):
            found = [kept(name) for name in names]
            return None if None in found else function(*found, **limits)

        EVIDENCE[function.__name__] = of_records, "measured"
        return function
    return enter


# --- what a record holds --------------------------------------------------------------------------------------

def where(record):
    """The card and the day."""
    on = record["on"]
    if isinstance(on, str):                                         # of the ladder: "card, torch …, day"
        card, *_, day = on.split(", ")
        return f"{card}, {day}"
    return f"{on['card']}, {on['date']}"


def both(record, other):
    """The same of two records."""
    return " and ".join(dict.fromkeys([where(record), where(other)]))


def plain(record, peer=None, **wanted):
    """{Case: {peer: cell}} without grouped heads; wanted: what fields of the case must be, such as N=4096.

    peer: only where this one was measured. LookupError if nothing is left.
    """
    found = {case: row for case, row in targets.by_case(record["cells"]).items()
             if not case.grouped and all(getattr(case, name) == value for name, value in wanted.items())
             and (peer is None or "ms" in row.get(peer, {}))}
    if not found:
        raise LookupError(f"the record has no cells of {peer or 'anybody'} with {wanted}: was the whole grid measured?")
    return found


def cells(rows, peer):
    """[cell] of a peer, where it was measured."""
    return [row[peer] for row in rows.values() if "ms" in row.get(peer, {})]


def rates(rows, peer, what="forward"):
    """[TFLOP/s] of a peer, where it was measured. what: "forward" or "backward", which counts more products."""
    return [targets.tera(case, row[peer]["ms"], what) for case, row in rows.items() if "ms" in row.get(peer, {})]


def speeds(rows, ours, peer):
    """[how many times as fast one peer is as another], where both were measured."""
    return [x for x in (targets.speed(row, ours, peer) for row in rows.values()) if x]


# --- how it is told -------------------------------------------------------------------------------------------

def span(numbers, form=".1f"):
    """"1.5 to 2.0", or one number if both are written alike."""
    low, high = (format(f(numbers), form) for f in (min, max))
    return low if low == high else f"{low} to {high}"


def numbers(found):
    """"64, 128 and 256", each once."""
    *most, last = map(str, sorted(set(found)))
    return f"{', '.join(most)} and {last}" if most else last


def dims(rows):
    """The head dims of cases."""
    return numbers(case.d for case in rows)


def heads(rows):
    """How many heads there are in all, batch times heads."""
    return span([case.B * case.H for case in rows], "")


def at_least(found, least, what):
    """AssertionError unless found ≥ least."""
    assert found >= least, f"{what}: found {found:.3g}, expected at least {least:.3g}"


def at_most(found, most, what):
    """AssertionError unless found ≤ most."""
    assert found <= most, f"{what}: found {found:.3g}, expected at most {most:.3g}"
