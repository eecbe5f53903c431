"""Exercises of notebook 06: the kind of a tile, the loop bounds of a window, and case 3."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course.checking import Case, Wrong, check
from course.pictures import figure, matrix
from exercises.case3 import case3_repair, case3_witness, times_the_bound
from fa_ref import drawing
from fa_ref.scores import EMPTY, FULL, PARTIAL, tiles
from fa_ref.testing.oracle import visible

__all__ = ["case3_repair", "case3_witness", "draw_kinds", "first_and_last_tile", "key_of_kinds",
           "tile_kind", "times_the_bound"]

HUGE = 10**15                                                       # no array of so many rows can be made
COLOURS = {EMPTY: drawing.GREY, PARTIAL: drawing.ORANGE, FULL: drawing.GREEN}


def draw_kinds(axes, rule, Br, Bc, title):
    """The tiles of a head in the colours of their kinds, with a dot wherever a query (row) sees a key (column)."""
    matrix(axes, np.zeros((rule.Nq, rule.Nk)), title, tiles=(Br, Bc), values=False)
    for rows in tiles(rule.Nq, Br):
        for cols in tiles(rule.Nk, Bc):
            axes.fill_between([cols.start - 0.5, cols.stop - 0.5], rows.start - 0.5, rows.stop - 0.5,
                              color=COLOURS[rule.kind(rows, cols)], linewidth=0)
    i, j = np.nonzero(rule.visible(slice(0, rule.Nq), slice(0, rule.Nk)))
    axes.scatter(j, i, s=9, color=drawing.INK, zorder=4)
    axes.set(xlabel="keys", ylabel="queries")


def key_of_kinds(drawn):
    """What the colours of `draw_kinds` mean, below a figure."""
    patches = [Patch(color=color, label=name) for color, name in zip(COLOURS.values(), ("EMPTY", "PARTIAL", "FULL"),
                                                                     strict=True)]
    dot = Line2D([], [], linestyle="", marker=".", color=drawing.INK, label="the query sees the key")
    drawn.legend(handles=[*patches, dot], loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def seen(Nq, Nk, left, right):
    """bool (Nq, Nk), by the oracle of the conformance kit, query by query."""
    seen = np.zeros((Nq, Nk), bool)
    for i in range(Nq):
        seen[i, visible(i, Nq, Nk, False, (left, right), [])] = True
    return seen


# --- the kind of a tile ---------------------------------------------------------------------------------------

def tile_kind(answer):
    """Check tile_kind(rows, cols, Nq, Nk) → EMPTY, PARTIAL or FULL."""
    return check(answer, kinds(), judge_kind)


def kinds():
    """All tiles of small heads; then two that are too large to look at every element."""
    for Nq, Nk, Br, Bc in ((1, 1, 1, 1), (2, 2, 1, 1), (2, 3, 1, 1), (3, 2, 1, 1), (3, 3, 2, 2), (2, 5, 2, 2),
                           (5, 2, 2, 2), (6, 6, 2, 3), (5, 8, 3, 2), (8, 5, 2, 3), (7, 7, 4, 2), (4, 9, 8, 4)):
        for rows in tiles(Nq, Br):
            for cols in tiles(Nk, Bc):
                part = seen(Nq, Nk, -1, 0)[rows, cols]
                kind = FULL if part.all() else PARTIAL if part.any() else EMPTY
                yield Case(f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}",
                           {"rows": rows, "cols": cols, "Nq": Nq, "Nk": Nk}, kind)
    for first, kind in ((0, FULL), (HUGE, PARTIAL), (2 * HUGE, EMPTY)):
        yield Case("a tile too large to look at every element: compare its corners",
                   {"rows": slice(HUGE, 2 * HUGE), "cols": slice(first, first + HUGE), "Nq": 3 * HUGE,
                    "Nk": 3 * HUGE}, kind)


def judge_kind(case, returned):
    if isinstance(returned, str) and returned == case.truth:
        return None
    if returned in ("EMPTY", "PARTIAL", "FULL"):
        return Wrong(f"Return the name {returned} without quotes, as imported at the top; it is {returned.lower()!r}.")
    line = f"The tile is {case.truth!r}, the answer was {returned!r}."
    rows, cols, Nq, Nk = case.args.values()
    if Nq > 16:
        return Wrong(line)
    drawn, axes = figure(max(3, 0.4 * Nk), max(2, 0.4 * Nq))
    matrix(axes, seen(Nq, Nk, -1, 0), "seen: coloured; the tile: red", values=False, limit=3)
    axes.set(xlabel="keys", ylabel="queries")
    axes.fill([cols.start - 0.4, cols.stop - 0.6, cols.stop - 0.6, cols.start - 0.4],
              [rows.start - 0.4, rows.start - 0.4, rows.stop - 0.6, rows.stop - 0.6],
              fill=False, edgecolor=drawing.RED, linewidth=2.5)
    return Wrong(line, drawn, "The matrix of who sees whom, with the tile in question framed in red.")


# --- loop bounds ----------------------------------------------------------------------------------------------

def first_and_last_tile(answer):
    """Check first_and_last_tile(i, Br, Bc, Nq, Nk, left, right) → (first, last)."""
    return check(answer, bounds(), judge_bounds)


def bounds():
    """All tiles of queries of small heads, then one with too many keys to go through them."""
    for Nq, Nk, Br, Bc in ((1, 1, 1, 1), (2, 2, 1, 1), (3, 3, 1, 1), (2, 4, 1, 2), (4, 2, 1, 1), (5, 5, 2, 2),
                           (4, 9, 2, 2), (9, 4, 2, 2), (9, 2, 2, 2), (7, 12, 3, 4), (12, 7, 4, 3), (10, 10, 4, 2)):
        for left, right in ((-1, -1), (-1, 0), (0, 0), (1, 0), (0, 1), (2, 1), (0, -1), (3, -1), (-1, 2)):
            sight = seen(Nq, Nk, left, right)
            for i, rows in enumerate(tiles(Nq, Br)):
                met = [j for j, cols in enumerate(tiles(Nk, Bc)) if sight[rows, cols].any()]
                yield Case(f"Nq = {Nq}, Nk = {Nk}, window ({left}, {right})",
                           {"i": i, "Br": Br, "Bc": Bc, "Nq": Nq, "Nk": Nk, "left": left, "right": right}, met)
    yield Case("too many keys to go through them",
               {"i": 2, "Br": 100, "Bc": 100, "Nq": 4 * HUGE, "Nk": 5 * HUGE, "left": 150, "right": 0},
               [HUGE // 100 + j for j in (0, 1, 2)])


def judge_bounds(case, returned):
    met = case.truth
    ends = returned if isinstance(returned, tuple | list) else [returned]
    if len(ends) != 2 or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in ends):
        return Wrong(f"It must return two whole numbers (first, last), got {returned!r}.")
    first, last = map(int, returned)
    if (first, last) == (met[0], met[-1]) if met else last < first:
        return None
    right = f"tiles {met[0]} to {met[-1]}" if met else "no tile at all (any pair with last < first)"
    return Wrong(f"These queries must visit {right}, the answer was first = {first}, last = {last}.")
