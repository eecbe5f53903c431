"""Exercise of notebook 09: a thread-stride loop. Case 4 is in `case4.py`."""

from dataclasses import replace

import numpy as np

from course.checking import Case, Verdict, Wrong, check, number
from course.comparing import compare
from exercises.case4 import race_of_case4, repair_of_case4
from exercises.kernels import Launched, found, noted

__all__ = ["race_of_case4", "repair_of_case4", "scores_step"]


def scores_step(answer):
    """Check the kernel scores_step(Q, K, S, row0, col0, br, bc, scale), which writes one tile of S."""
    if not hasattr(answer, "py_func"):
        return Verdict(False, "It is not a kernel: keep the line @cuda.jit above the def.")
    return check(Launched(answer, launch_scores), tiles(), judge_scores)


def launch_scores(kernel, Q, K, row0, col0, br, bc, scale, threads):
    S = np.full((len(Q), len(K)), np.nan)
    with noted() as (audit, notes):
        kernel[1, threads](Q, K, S, row0, col0, br, bc, scale)
    return S, audit, notes


def tiles():
    """Tiles of growing size, at the start and inside of S, for all numbers of threads from 1 to 64."""
    rng = np.random.default_rng(9)
    for Nq, Nk, d, row0, col0, br, bc, numbers in (
            (1, 1, 1, 0, 0, 1, 1, (1, 2)), (1, 2, 1, 0, 0, 1, 2, (1, 2, 3)), (2, 2, 1, 0, 0, 2, 2, (1, 2, 3, 4, 5)),
            (2, 3, 2, 0, 0, 2, 3, range(1, 9)), (5, 7, 2, 4, 3, 1, 3, (1, 2, 4)), (5, 7, 3, 2, 3, 2, 4, (1, 3, 8, 32)),
            (3, 5, 2, 0, 0, 3, 5, range(1, 65)), (16, 12, 3, 8, 4, 8, 8, (1, 7, 32, 63, 64))):
        Q, K = rng.standard_normal((Nq, d)), rng.standard_normal((Nk, d))
        for T in numbers:
            args = dict(Q=Q, K=K, row0=row0, col0=col0, br=br, bc=bc, scale=0.5, threads=T)
            yield Case(f"a tile of {br} × {bc} at row {row0}, column {col0}; {number(T, 'thread', 'threads')}", args)


def judge_scores(case, returned):
    a, (S, audit, notes) = case.args, returned
    row0, col0, br, bc, T = (a[name] for name in ("row0", "col0", "br", "bc", "threads"))
    rows, cols = slice(row0, row0 + br), slice(col0, col0 + bc)
    writes = [note for note in notes if note.action == "writes" and note.array == "S"]
    writer = np.full(S.shape, -1)
    for note in writes:
        if not (rows.start <= note.index[0] < rows.stop and cols.start <= note.index[1] < cols.stop):
            return Wrong(f"Thread {note.thread} writes S{list(note.index)}, which is not of this tile.")
        writer[note.index] = note.thread
    for r, c in np.argwhere(writer[rows, cols] < 0):
        return Wrong(f"S[{row0 + r}, {col0 + c}], element ({r}, {c}) of the tile, was never written.")
    if any(note.together for note in notes):
        return Wrong("A kernel has no @, and no arithmetic on slices: write the sum as a loop over single numbers.")
    right = np.array([[a["scale"] * sum(q * k) for k in a["K"][cols]] for q in a["Q"][rows]])
    if wrong := compare(S[rows, cols], {"tile": right}, {"tile": 1e-12}):
        return replace(wrong, line=f"{wrong.line} tile[0, 0] is S[{row0}, {col0}].")
    if wrong := found(audit):
        return wrong
    inside = {"Q": {*range(rows.start, rows.stop)}, "K": {*range(cols.start, cols.stop)}}
    for note in notes:
        if note.action == "reads" and note.array in inside and note.index[0] not in inside[note.array]:
            return Wrong(f"Thread {note.thread} reads {note.array}{list(note.index)}, which is not of this tile.")
    if len(writes) != br * bc:
        return Wrong(f"It writes {len(writes)} times to a tile of {br * bc} scores. Once for each is enough.")
    owner, e = writer[rows, cols], np.arange(br * bc).reshape(br, bc)
    if wrong := compare(owner, {"writer": e % T}, {"writer": 0}):
        first = e[owner != e % T][0]
        return replace(wrong, line=f"The scores are right, but element e = {first} of the tile was written by thread "
                                   f"{owner.flat[first]}; it belongs to thread {first % T} (e modulo T).")
    return None
