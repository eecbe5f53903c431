"""A small machine for notebook 11: three units, buffers of two, the rules between tasks, and a run on real tiles.

One tile of queries meets T tiles of keys. Five tasks for each: K j and V j are copied, S j are the scores, P j is all
of softmax, PV j adds to the output. Rescaling takes no time here.
"""

import math
from itertools import combinations
from numbers import Real

import numpy as np

from course.checking import number

UNITS = {"copies": 1, "tensor core": 1, "softmax": 1}
KINDS = {"K": ("copies", 1), "V": ("copies", 1), "S": ("tensor core", 2), "P": ("softmax", 2), "PV": ("tensor core", 2)}
AFTER = {                                                           # (task, tiles back, why)
    "K": [("S", 2, "reads {} from the same buffer")], "V": [("PV", 2, "reads {} from the same buffer")],
    "S": [("K", 0, "must be there"), ("PV", 2, "reads {} from the place that these scores take")],
    "P": [("S", 0, "must be there"), ("P", 1, "makes the maximum and the sum that it goes on with")],
    "PV": [("P", 0, "must be there"), ("V", 0, "must be there"), ("PV", 1, "adds to the same output")],
}
READS = {"K": "K", "V": "V", "S": "P"}                              # what the task two tiles back reads


def form(T, rows):
    """A line if these are not the tasks of T tiles, each once, with its unit and its time; else None."""
    if not isinstance(rows, (list, tuple)):
        return ("It must return a list of (unit, what, start, end) or a Table; what came back is of type "
                f"{type(rows).__name__}.")
    for row in rows:
        if not isinstance(row, (list, tuple)) or len(row) != 4 or not all(isinstance(x, Real) for x in row[2:]):
            return f"A row is (unit, what, start, end) with two numbers at the end, got {row!r}."
    wanted, seen = {f"{kind} {j}": KINDS[kind] for j in range(T) for kind in KINDS}, set()
    for unit, what, start, end in rows:
        if what not in wanted:
            return f"There is no task {what!r} with {number(T, 'tile', 'tiles')} of keys."
        if what in seen:
            return f"{what} is there twice."
        seen.add(what)
        if unit != wanted[what][0]:
            return f"{what} is done by the unit {wanted[what][0]!r}, not by {unit!r}."
        if start < 0 or end - start != wanted[what][1]:
            return f"{what} lasts {wanted[what][1]} and starts at 0 or later, but is there from {start} to {end}."
    missing = [what for what in wanted if what not in seen]
    return f"{missing[0]} is missing ({len(rows)} of {len(wanted)} tasks are there)." if missing else None


def fault(T, rows):
    """A line about the first two tasks that do not go together, else None."""
    rows = sorted(rows, key=lambda row: (row[2], row[3]))
    start, end = ({row[1]: row[n] for row in rows} for n in (2, 3))
    for unit in UNITS:
        for (_, a, a0, a1), (_, b, b0, b1) in combinations([row for row in rows if row[0] == unit], 2):
            if b0 < a1:
                return f"Two things at once: unit {unit!r} does {a} ({a0} to {a1}) and {b} ({b0} to {b1})."
    for _, what, *_ in rows:
        kind, j = what.split()
        for other, back, why in AFTER[kind]:
            before = f"{other} {int(j) - back}"
            if int(j) >= back and start[what] < end[before]:
                reads = f"{READS.get(kind)} {int(j) - back}"
                return f"{what} starts at {start[what]}, before {before} ends at {end[before]}; {before} " \
                       f"{why.format(reads)}."
    return None


def play(rows, Q, K, V, Bc):
    """Do the tasks of a schedule at their times, on one tile of queries: Q (br, d), K (Nk, d), V (Nk, dv) → O, L.

    There are two buffers for K, two for V and two places for scores; P takes the place of its S. What is being written
    holds NaN. A product takes the first half of its rows when it starts, the second half when it ends.
    """
    place = {(kind, n): None for kind in "KVS" for n in range(2)}
    m, l, acc = np.full(len(Q), -np.inf), np.zeros(len(Q)), np.zeros((len(Q), V.shape[1]))
    alpha, taken = {}, {}
    events = sorted((time, begins, row[1]) for row in rows for begins, time in ((True, row[2]), (False, row[3])))
    for _, begins, what in events:                                  # at one time, ends come before starts
        kind, j = what.split()[0], int(what.split()[1])
        cols, here = slice(j * Bc, j * Bc + Bc), ("S" if kind == "P" else kind, j % 2)
        operand = place[{"S": "K", "PV": "V"}.get(kind, kind), j % 2] if kind in ("S", "PV") else None
        if begins:
            if kind in "KV":
                place[here] = np.full_like((K if kind == "K" else V)[cols], np.nan)
            elif kind == "S":
                place[here] = np.full((len(Q), len(K[cols])), np.nan)
            if operand is not None:
                taken[what] = operand[:len(operand) // 2].copy()
        elif kind in "KV":
            place[here] = (K if kind == "K" else V)[cols]
        elif kind == "S":
            place[here] = Q @ whole(taken[what], operand).T * (1 / math.sqrt(Q.shape[1]))
        elif kind == "P":
            m_new = np.maximum(m, place[here].max(axis=1))
            place[here], alpha[j], m = np.exp(place[here] - m_new[:, None]), np.exp(m - m_new), m_new
            l = alpha[j] * l + place[here].sum(axis=1)
        else:
            acc = alpha[j][:, None] * acc + place["S", j % 2] @ whole(taken[what], operand)
    return acc / l[:, None], m + np.log(l)


def whole(first, operand):
    """Rows that were taken earlier, and the rest as it is now."""
    return np.concatenate([first, operand[len(first):]])


def rescaled_first(Q, K, V, Br, Bc):
    """O of a mistake that many make: alpha is applied before the waiting P V is added. Without a loop over queries."""
    S, last = Q @ K.T / math.sqrt(Q.shape[1]), (len(K) - 1) // Bc
    tile = np.arange(len(K)) // Bc
    m = np.array([S[:, tile <= j].max(axis=1) for j in range(last + 1)])            # after each tile of keys
    P = np.exp(S - m[last][:, None])
    late = np.exp(m[np.minimum(tile + 1, last)] - m[tile]).T                        # the alpha that is missing
    return P * late @ V / P.sum(axis=1, keepdims=True)
