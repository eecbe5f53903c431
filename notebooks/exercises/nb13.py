"""The exercise of notebook 13: places for the chunks of a tile, so that eight rows do not meet in one bank."""

import numpy as np

from course.checking import Case, Wrong, check, number

ROWS = 8


def places(answer):
    """Check places(chunks) → (8, chunks) whole numbers: where in its row chunk c of row r lies."""
    cases = [Case(f"rows of {number(n, 'chunk', 'chunks')}", {"chunks": n}) for n in (8, 16, 4, 32)]
    return check(answer, cases, judge)


def judge(case, returned):
    chunks, got = case.args["chunks"], np.asarray(returned)
    if got.shape != (ROWS, chunks) or got.dtype.kind not in "iu":
        return Wrong(f"It must return {ROWS} × {chunks} whole numbers, got shape {got.shape} of {got.dtype}.")
    for r, row in enumerate(got):
        if sorted(row.tolist()) != list(range(chunks)):
            return Wrong(f"Row {r} must have each of the places 0 … {chunks - 1} once, got {row.tolist()}.")
    groups = (np.arange(ROWS)[:, None] * chunks + got) % ROWS       # of four banks: 8 of them
    for c in range(chunks):
        if len(set(groups[:, c].tolist())) < ROWS:
            return Wrong(f"Chunk {c} of the rows 0 … 7 lies in the groups {groups[:, c].tolist()}: some twice.")
    return None
