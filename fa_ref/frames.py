"""What a running function holds on chip: the ledger looks at the local names of the core, as a debugger would."""

import dis
from functools import cache

import numpy as np

from fa_ref.metered import OnChip, is_floating

HOLDERS = (np.ndarray, list, tuple, dict)               # local names of these kinds are looked into


def tiles(frame, core):
    """The on-chip arrays under the local names of a function: {id: (bytes, name, other names …)}.

    A view stands for the array that it is a view of. In a core, TypeError for a plain floating-point array: what is
    done with it would not be counted.
    """
    found = {}
    for name, value in frame.f_locals.items():
        if not isinstance(value, HOLDERS):
            continue
        for x in (value,) if isinstance(value, np.ndarray) else value.values() if isinstance(value, dict) else value:
            if isinstance(x, OnChip):
                while x.base is not None:
                    x = x.base
                found[id(x)] = (*found[id(x)], name) if id(x) in found else (x.nbytes, name)
            elif core and isinstance(x, np.ndarray) and is_floating(x.dtype):
                raise TypeError(f"{name} in {frame.f_code.co_name} is a plain array {x.shape}, which nobody counts: "
                                f"pass led.hbm({name}), or make it with np.zeros, np.full or np.empty")
    return found


def with_loaded(found, frame, tile, of):
    """The same when the line that runs has loaded this tile, which takes the place of what its name held.

    of: how to call a tile whose line gives it no name.
    """
    names = assigned(frame.f_code, frame.f_lasti)
    after = {key: held for key, held in found.items() if not names.issuperset(held[1:])}
    after[id(tile)] = (tile.nbytes, ", ".join(sorted(names)) or of)
    return after


@cache
def assigned(code, at):
    """The local names to which the statement at this byte of the code assigns, a frozenset."""
    names = []
    for step in dis.get_instructions(code):
        if step.offset <= at:
            continue
        if step.opname.startswith(("STORE_FAST", "STORE_NAME")):
            two = step.opname == "STORE_FAST_STORE_FAST"                    # Python 3.13 joins instructions
            names += step.argval if two else [step.argval if isinstance(step.argval, str) else step.argval[0]]
        elif names or step.opname.startswith(("STORE_", "POP_TOP", "RETURN_")):
            break
    return frozenset(names)
