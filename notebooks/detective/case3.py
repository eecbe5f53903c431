"""Case 3: attention in tiles, with causal and windows.

The symptom, as it was reported: "We run it in a language model, which is causal, with prompts of every length, and it
has never failed. Now we read from an encoder, without a mask, and the outputs are sometimes a little too small. There
is no warning and no NaN. With padded batches (all lengths a multiple of 64) we cannot reproduce it."
"""

from typing import NamedTuple

import numpy as np

from fa_ref.testing import Result, Supports

STEPS = ("load", "whole", "visible", "update")
FAR = 10**9                                                         # no limit: farther than any key is


class Edges(NamedTuple):
    """Lengths, and how far a query sees to the left and to the right of its position p = i + Nk − Nq."""

    Nq: int
    Nk: int
    left: int
    right: int


def load(X, start, size):
    """Rows start … start + size of X as a tile of full height, as a kernel holds it: zeros beyond the end of X."""
    tile = np.zeros((size, X.shape[1]), np.float32)
    part = X[start:start + size]
    tile[:len(part)] = part
    return tile


def whole(i0, j0, Br, Bc, edges):
    """Does every query of the tile see every key of it? Then nobody asks `visible`. i0, j0: its first row, column."""
    p_first = i0 + edges.Nk - edges.Nq
    p_last = p_first + Br - 1
    return p_last - edges.left <= j0 and j0 + Bc - 1 <= p_first + edges.right


def visible(i0, j0, Br, Bc, edges):
    """Which keys does each query of the tile see: bool (Br, Bc)."""
    p = np.arange(i0, i0 + Br)[:, None] + edges.Nk - edges.Nq
    j = np.arange(j0, j0 + Bc)
    return (p - edges.left <= j) & (j <= p + edges.right) & (j < edges.Nk)


def update(Sij, Vj, m, l, acc):
    """The running maximum, sum and output after one more tile of scores."""
    m_new = np.maximum(m, Sij.max(axis=1))
    shift = np.where(m_new == -np.inf, np.float32(0), m_new)
    Pij = np.exp(Sij - shift[:, None])
    alpha = np.exp(m - shift)
    return m_new, alpha * l + Pij.sum(axis=1), alpha[:, None] * acc + Pij @ Vj


def one_head(Q, K, V, scale, edges, Br, Bc):
    """O (Nq, dv) and L (Nq,) of one head; only tiles in reach of the window are visited."""
    O = np.zeros((edges.Nq, V.shape[1]), np.float32)
    L = np.full(edges.Nq, -np.inf, np.float32)
    for i0 in range(0, edges.Nq, Br):
        Qi = load(Q, i0, Br)
        m, l, acc = np.full(Br, -np.inf, np.float32), np.zeros(Br, np.float32), np.zeros((Br, V.shape[1]), np.float32)
        for j0 in range(0, edges.Nk, Bc):
            p_first = i0 + edges.Nk - edges.Nq
            if j0 + Bc - 1 < p_first - edges.left or j0 > p_first + Br - 1 + edges.right:
                continue
            Kj, Vj = load(K, j0, Bc), load(V, j0, Bc)
            Sij = Qi @ Kj.T * scale
            if not whole(i0, j0, Br, Bc, edges):
                Sij = np.where(visible(i0, j0, Br, Bc, edges), Sij, np.float32(-np.inf))
            m, l, acc = update(Sij, Vj, m, l, acc)
        rows = slice(i0, min(i0 + Br, edges.Nq))
        divisor = np.where(l == 0, np.float32(1), l)
        O[rows] = (acc / divisor[:, None])[:rows.stop - i0]
        L[rows] = (m + np.log(divisor))[:rows.stop - i0]
    return O, L


def attention(problem):
    """A Problem → Result(out, lse); tiles of 4 × 4 if the problem does not say."""
    B, H, Nq, d = problem.q.shape
    Nk, dv = problem.v.shape[2:]
    left, right = (FAR if side < 0 else side for side in problem.window)
    edges = Edges(Nq, Nk, left, 0 if problem.causal else right)
    out, lse = np.zeros((B, H, Nq, dv), np.float32), np.zeros((B, H, Nq), np.float32)
    for b, h in np.ndindex(B, H):
        out[b, h], lse[b, h] = one_head(problem.q[b, h], problem.k[b, h], problem.v[b, h], np.float32(d**-0.5), edges,
                                        problem.block_q or 4, problem.block_k or 4)
    return Result(out, lse)


supports = Supports(causal="bottom-right", window=True, cross_lengths=True, dv_differs=True, empty_rows=True,
                    lse="natural", tiles=(1, 2, 3, 4), long_lengths=())
