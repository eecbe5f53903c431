"""What a running function holds on chip: the ledger looks at the local names of the core, as a debugger would."""

import dis
from functools import cache
from typing import NamedTuple

import numpy as np

from fa_ref.countable import is_floating
from fa_ref.metered import OnChip

CONTAINERS = (list, tuple, set, dict)                   # local names of these kinds are looked into
HOLDERS = (np.ndarray, *CONTAINERS)


def on_chip(frame, core):
    """The on-chip arrays under the local names of a function: {id: (bytes, name, other names …)}.

    A view stands for the array that it is a view of. In a core, TypeError for a plain floating-point array: what is
    done with it would not be counted.
    """
    found = {}
    for name, value in frame.f_locals.items():
        if not isinstance(value, HOLDERS):
            continue
        for x in (value,) if isinstance(value, np.ndarray) else arrays(value):
            if isinstance(x, OnChip):
                while x.base is not None:
                    x = x.base
                key = id(x)
                if key not in found:
                    found[key] = (x.nbytes, name)
                elif name not in found[key]:
                    found[key] += (name,)
            elif core and is_floating(x.dtype):
                raise TypeError(f"{name} in {frame.f_code.co_name} is a plain array {x.shape}, which nobody counts: "
                                f"pass led.hbm({name}), or make it with np.zeros, np.full or np.empty")
    return found


def arrays(value):
    """The arrays that a local name holds: itself, or what is in its lists, tuples, sets and dictionaries."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, CONTAINERS):
        for x in value.values() if isinstance(value, dict) else value:
            yield from arrays(x)


def with_loaded(found, statement, tiles):
    """The same when a statement has loaded these tiles, {name if it gets no other: tile}; its result takes the place
    of what the names held that it assigns to, unless it reads them."""
    replaced = statement.assigned - statement.read
    after = {key: held for key, held in found.items() if not replaced.issuperset(held[1:])}
    for unnamed, tile in tiles:
        after[id(tile)] = (tile.nbytes, ", ".join(sorted(statement.assigned)) or unnamed)
    return after


class Statement(NamedTuple):
    """A part of a function's code: the byte that it begins at, the local names it assigns to, and those it reads."""

    start: int
    assigned: frozenset
    read: frozenset


STORES = ("STORE_FAST", "STORE_NAME", "STORE_DEREF")
LOADS = ("LOAD_FAST", "LOAD_NAME", "LOAD_DEREF")
OTHER_ENDS = ("STORE_", "POP_TOP", "POP_JUMP", "JUMP", "RETURN", "FOR_ITER")


@cache
def statement_at(code, at):
    """The Statement that the instruction at this byte belongs to. It ends with a row of stores, a jump or a return."""
    start, assigned, read, stored, ended, carried = 0, set(), set(), False, False, None
    for step in dis.get_instructions(code):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        store = step.opname.startswith(STORES)
        if ended or (stored and not store):
            if step.offset > at:
                break
            start, assigned, read, stored, ended = step.offset, set(), {carried} - {None}, False, False
            carried = None
        if step.opname.startswith("STORE_FAST_LOAD_FAST"):              # Python 3.13 joins two statements in it
            assigned.add(names[0])
            carried, ended = names[1], True
        elif store:
            assigned.update(names)
            stored = True
        elif step.opname.startswith(LOADS):
            read.update(names)
        elif step.opname.startswith(OTHER_ENDS):
            ended = True
    return Statement(start, frozenset(assigned), frozenset(read))
