"""Answers to notebook 06."""

from fa_ref.scores import EMPTY, FULL, PARTIAL


def tile_kind(rows, cols, Nq, Nk):
    p_first, p_last = rows.start + Nk - Nq, rows.stop - 1 + Nk - Nq
    if cols.start > p_last:
        return EMPTY
    return FULL if cols.stop - 1 <= p_first else PARTIAL


def first_and_last_tile(i, Br, Bc, Nq, Nk, left, right):
    p_first = i * Br + Nk - Nq
    p_last = p_first + Br - 1                                       # of a ragged tile too far: min cuts it off
    first_key = 0 if left < 0 else max(0, p_first - left)
    last_key = Nk - 1 if right < 0 else min(p_last + right, Nk - 1)
    return first_key // Bc, last_key // Bc


def case3_witness():
    return "Nq=2 Nk=10", "Nq=2 Nk=12", "Nq=2 Nk=10 causal=True"


def case3_repair():
    def whole(i0, j0, Br, Bc, edges):
        p_first = i0 + edges.Nk - edges.Nq
        p_last = p_first + Br - 1
        return p_last - edges.left <= j0 and j0 + Bc <= min(p_first + edges.right + 1, edges.Nk)

    return "whole", whole
