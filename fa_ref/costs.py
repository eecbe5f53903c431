"""What a run costs, as formulas in the lengths and the tiles it visits. The ledger counts the same by running it.

    v = costs.visits(rule, d=64, dv=64, Br=64, Bc=64)
    costs.FORWARD["fa2"](v).other_flops

Elements and FLOPs are counted by the rules of `ledger.py`. `onchip_bytes` is the peak if Br divides Nq, Bc divides Nk
and no tile is empty; else it is an upper bound, close where a tile of full size is visited.
"""

from typing import NamedTuple

import numpy as np

from fa_ref.inputs import accumulator
from fa_ref.scores import EMPTY, tiles


class Cost(NamedTuple):
    """Elements read (of these: by nobody written before) and written, FLOPs, exps, bytes on chip."""

    reads: int
    fresh_reads: int
    writes: int
    matmul_flops: int
    other_flops: int
    exps: int
    onchip_bytes: int


class Visits(NamedTuple):
    """A head, and sums over the tiles that it visits."""

    Nq: int
    Nk: int
    d: int
    dv: int
    br: int                     # rows of a full tile of queries
    bc: int                     # rows of a full tile of keys
    Tr: int                     # tiles of queries
    n: int                      # tiles of scores that are visited
    R: int                      # Σ br over them        Tc·Nq if nothing is hidden
    C: int                      # Σ bc                  Tr·Nk
    A: int                      # Σ br·bc               Nq·Nk
    seen: int                   # rows of the tiles of queries that visit any
    rows_follow: bool           # does a tile of queries come after one that visits any?
    cols_follow: bool           # does a tile of queries visit two tiles of keys?
    s: int                      # other FLOPs for each score in rule.scores
    t: int                      # the same in rule.chain
    X: int                      # products Q Kᵀ formed once more in rule.chain: 1 with a softcap, else 0
    dL: int                     # 1 if the backward pass is given dL, else 0
    dB: int                     # the same for dB
    wide: int                   # bytes of an element on chip
    narrow: int                 # bytes of an element in memory


def visits(rule, d, dv, Br, Bc, dtype=np.float32, dL=False, dB=False):
    """The Visits of one head: which tiles are empty is asked of `rule.kind`."""
    heights, widths = tiles(rule.Nq, Br), tiles(rule.Nk, Bc)
    visited = [[cols.stop - cols.start for cols in widths if rule.kind(rows, cols) != EMPTY] for rows in heights]
    br = [rows.stop - rows.start for rows in heights]
    cap = bool(rule.softcap)
    return Visits(
        rule.Nq, rule.Nk, d, dv, br=min(Br, rule.Nq), bc=min(Bc, rule.Nk), Tr=len(heights),
        n=sum(len(met) for met in visited),
        R=sum(r * len(met) for r, met in zip(br, visited, strict=True)),
        C=sum(sum(met) for met in visited),
        A=sum(r * sum(met) for r, met in zip(br, visited, strict=True)),
        seen=sum(r for r, met in zip(br, visited, strict=True) if met),
        rows_follow=any(visited[:-1]), cols_follow=any(len(met) > 1 for met in visited),
        s=1 + 3 * cap + len(rule.biases) + (rule.alibi_slope is not None),      # scale; /c tanh ·c; + bias; − ALiBi
        t=1 + 6 * cap,                                                          # scale; scale /c tanh, 1 − tanh², ·
        X=cap, dL=int(dL), dB=int(dB), wide=accumulator(np.dtype(dtype)).itemsize, narrow=np.dtype(dtype).itemsize)


# --- forward --------------------------------------------------------------------------------------------------

def standard_forward(v):
    """Q, K; S written and read, P written and read; V. Per score: s, max, −m, sum, /l."""
    Nq, Nk, d, dv = v.Nq, v.Nk, v.d, v.dv
    return Cost(
        reads=Nq * d + Nk * d + 2 * Nq * Nk + Nk * dv,
        fresh_reads=0,
        writes=2 * Nq * Nk + Nq + Nq * dv,
        matmul_flops=2 * Nq * Nk * (d + dv),
        other_flops=Nq * Nk * (v.s + 4) + 2 * Nq,                               # log l, m + log l
        exps=Nq * Nk,
        onchip_bytes=max(v.wide * ((Nq + Nk) * d + 2 * Nq * Nk + 2 * Nq), v.narrow * Nk * dv))


def fa1_forward(v):
    """K, V once; Q, O, l, m at every visit. Per score: s, max, −m, sum; per row and visit: 4·dv for O, 7 for l, m."""
    d, dv = v.d, v.dv
    return Cost(
        reads=v.Nk * (d + dv) + v.R * (d + dv + 2),
        fresh_reads=v.seen * (dv + 2),
        writes=v.R * (dv + 2),
        matmul_flops=2 * v.A * (d + dv),
        other_flops=v.A * (v.s + 3) + v.R * (4 * dv + 7),
        exps=v.A + 2 * v.R,                                                     # P, alpha, beta
        onchip_bytes=v.wide * (v.bc * (d + dv) + v.br * (d + 2 * dv + 8) + 2 * v.br * v.bc))


def fa2_forward(v):
    """Q, O, L once; K, V at every visit. Per score as FA1; per row and visit: 2·dv and 4, at the end: dv and 2.

    On chip: m, l, alpha, and m_new, which has still the m of the rows before when the next begin.
    """
    d, dv = v.d, v.dv
    return Cost(
        reads=v.Nq * d + v.C * (d + dv),
        fresh_reads=0,
        writes=v.Nq * (dv + 1),
        matmul_flops=2 * v.A * (d + dv),
        other_flops=v.A * (v.s + 3) + v.R * (2 * dv + 4) + v.Nq * (dv + 2),
        exps=v.A + v.R,                                                         # P, alpha
        onchip_bytes=v.wide * (v.bc * (d + dv) + v.br * (d + dv + 3 + v.rows_follow) + 2 * v.br * v.bc))


def fa3_forward(v):
    """As FA2. The last product is added after the loop, dv more per row.

    On chip: a second tile of values, while Vj is loaded (in the width of memory) and the one before still waits.
    """
    fa2 = fa2_forward(v)
    second, m_new = v.narrow * v.bc * v.dv * v.cols_follow, v.wide * v.br * v.rows_follow   # never both
    return fa2._replace(other_flops=fa2.other_flops + v.Nq * v.dv,
                        onchip_bytes=fa2.onchip_bytes + max(second - m_new, 0))


def fa3_fp8_forward(v):
    """As FA3, and the scales: read with each tile; sQ·sK·scale per visit, P stretched, P V times sV, l / stretch.

    On chip: three scales, and sV_before once a tile waits; both tiles of values are wide, since sKj is loaded after Vj.
    """
    fa3 = fa3_forward(v._replace(narrow=v.wide))
    return fa3._replace(reads=fa3.reads + v.Tr + 2 * v.n,
                        other_flops=fa3.other_flops + 2 * v.n + v.A + (v.R + v.Nq) * v.dv + v.Nq,
                        onchip_bytes=fa3.onchip_bytes + (3 + v.cols_follow) * v.wide)


# --- backward -------------------------------------------------------------------------------------------------

def standard_backward(v):
    """P once more from Q, K, L; then Algorithm 3. Per score: s, −L; P·dP, sum, dP − D, ·P; t."""
    Nq, Nk, d, dv, N2 = v.Nq, v.Nk, v.d, v.dv, v.Nq * v.Nk
    again = (Nq + Nk) * d + Nq
    products = (N2 + Nq * dv) + (Nq * dv + Nk * dv) + (Nq + Nk) * d + 2 * N2    # P, dO; dO, V; Q, K; dS twice
    return Cost(
        reads=again + products + 2 * N2 + Nq * v.dL,                            # P and dP for dS
        fresh_reads=0,
        writes=N2 + Nk * dv + N2 + N2 + (Nq + Nk) * d + N2 * v.dB,              # P; dV; dP; dS; dQ, dK
        matmul_flops=2 * N2 * (3 * d + 2 * dv + d * v.X),
        other_flops=N2 * (v.s + v.t + 5) + Nq * v.dL,
        exps=N2,
        onchip_bytes=max(v.wide * ((Nq + Nk) * d + 3 * N2 + Nq) + v.narrow * N2, v.narrow * dv * max(Nq, Nk)))


def fa1_backward(v):
    """K, V, dK, dV once; Q, dQ, O, dO, l, m at every visit. Per score: s, −m, /l, dP − D, ·P, t; D at every visit."""
    d, dv = v.d, v.dv
    return Cost(
        reads=v.Nk * (d + dv) + v.R * (2 * d + 2 * dv + 2 + v.dL),
        fresh_reads=v.seen * d,
        writes=v.R * d + v.Nk * (d + dv) + v.A * v.dB,
        matmul_flops=2 * v.A * (3 * d + 2 * dv + d * v.X),
        other_flops=v.A * (v.s + v.t + 4) + v.C * (d + dv) + v.R * (d + 2 * dv + v.dL),     # dV, dK; dQ, D
        exps=v.A,
        onchip_bytes=v.wide * (2 * v.bc * (d + dv) + v.br * (2 * d + 2 * dv + 3) + 4 * v.br * v.bc))


def fa2_backward(v):
    """dO, O once for D; K, V, dK, dV once; Q, dQ, dO, L, D at every visit. No /l, and D once."""
    d, dv = v.d, v.dv
    return Cost(
        reads=v.Nq * (2 * dv + v.dL) + v.Nk * (d + dv) + v.R * (2 * d + dv + 2),
        fresh_reads=v.seen * d,
        writes=v.Nq + v.R * d + v.Nk * (d + dv) + v.A * v.dB,
        matmul_flops=2 * v.A * (3 * d + 2 * dv + d * v.X),
        other_flops=v.A * (v.s + v.t + 3) + v.C * (d + dv) + v.R * d + v.Nq * (2 * dv + v.dL),
        exps=v.A,
        onchip_bytes=v.wide * (2 * v.bc * (d + dv) + v.br * (2 * d + dv + 2) + 4 * v.br * v.bc))


FORWARD = {"standard": standard_forward, "fa1": fa1_forward, "fa2": fa2_forward, "fa3": fa3_forward,
           "fa3_fp8": fa3_fp8_forward}
BACKWARD = {"standard": standard_backward, "fa1": fa1_backward, "fa2": fa2_backward, "fa3": fa2_backward}

