"""FlashAttention-1: never write the N × N matrix; walk over it in tiles and keep a finished answer at all times.

Dao, Fu, Ermon, Rudra, Ré, arXiv 2205.14135. A tile of keys and values is loaded once and stays on chip while all
queries come past. What a query knows so far (its output O, and the maximum m and sum l of its softmax) travels: it is
read, brought up to date and written back at every step. After j steps O is the exact attention over the first j tiles.

Against `standard.py` this saves every pass over N² elements. It reads Q and moves O once per tile of keys instead:
the larger the tile of keys, the less traffic.

    forward: Algorithm 1 (2)                  backward: Algorithm 4
    line 2 (3)         (1)                    line 5          (1)
    line 6 (7)         (2)                    line 7, 8       (2), (3)
    line 8 (9)         (3)                    line 10         (4)
    line 9 (10, 11)    (4)                    line 11, 12     (5)
    line 10 (12)       (5), (6)               line 13         (6)
    line 11 (13)       (7), (8)               line 16         (7)
    line 12 (15)       (9)                    line 17         (8)
    line 13 (16)       (10)                   line 19, 20     (9), (10)
                                              line 21, 22     (12), (13)
                                              line 24         (14)

Left out: dropout (lines 1 and 14 of Algorithm 2, lines 1, 14, 15 and 18 of Algorithm 4). Put right: a row that has
seen no key yet makes exp(−∞ − −∞) and a division by 0 in lines 10–12; two guards keep it at O = 0, l = 0, m = −∞.
Algorithm 1 drops the scale τ in line 9. Appendix B counts O(N²) operations for the backward pass; it is O(N² d).
"""

import numpy as np

from fa_ref.inputs import accumulator, rounded
from fa_ref.online_softmax import finite_or_zero, nonzero_or_one, rowmax, rowsum
from fa_ref.scores import EMPTY


def forward_head(Q, K, V, rule, Br, Bc, reverse=False):
    """One head. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), l (Nq,), m (Nq,), all in the accumulator dtype.

    Br, Bc: tile heights of queries and of keys, at least 1; the last tile may be shorter. reverse: walk the keys
    from last to first. L = m + log l is the log-sum-exp of a row.
    """
    Nq, Nk, dv = len(Q), len(K), V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    O = np.zeros_like(Q, shape=(Nq, dv), dtype=wide)                    # (1) nothing seen yet, in memory
    l = np.zeros_like(Q, shape=(Nq,), dtype=wide)
    m = np.full_like(Q, -np.inf, shape=(Nq,), dtype=wide)

    for j in range(Tc)[::-1] if reverse else range(Tc):
        cols = slice(j * Bc, min(j * Bc + Bc, Nk))
        Kj = K[cols].astype(wide)                                       # (2) load Kj, Vj                 (bc, d)
        Vj = V[cols].astype(wide)                                       #                                 (bc, dv)

        for i in range(Tr):
            rows = slice(i * Br, min(i * Br + Br, Nq))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Qi = Q[rows].astype(wide)                                   # (3) load Qi, Oi, li, mi         (br, d)
            Oi = O[rows]                                                #                                 (br, dv)
            li = l[rows]                                                #                                 (br,)
            mi = m[rows]                                                #                                 (br,)
            Sij = rule.scores(Qi, Kj, rows, cols, kind)                 # (4) scores                      (br, bc)
            m_tile = rowmax(Sij)                                        # (5) maximum of this tile        (br,)
            Pij = np.exp(Sij - finite_or_zero(m_tile)[:, None])         # (6) P in the tile's own scale   (br, bc)
            l_tile = rowsum(Pij)                                        #                                 (br,)
            m_new = np.maximum(mi, m_tile)                              # (7) maximum so far              (br,)
            alpha = np.exp(mi - finite_or_zero(m_new))                  #     what the past is worth now  (br,)
            beta = np.exp(m_tile - finite_or_zero(m_new))               #     and what this tile is       (br,)
            l_new = alpha * li + beta * l_tile                          # (8) sum so far                  (br,)
            acc = (alpha * li)[:, None] * Oi                            # (9) O, not divided yet          (br, dv)
            acc = acc + beta[:, None] * (rounded(Pij, V.dtype) @ Vj)    #                                 (br, dv)
            O[rows] = acc / nonzero_or_one(l_new)[:, None]              #     normalised again: store Oi  (br, dv)
            l[rows] = l_new                                             # (10) store li, mi
            m[rows] = m_new
    return O, l, m


def backward_head(dO, Q, K, V, O, l, m, rule, Br, Bc, reverse=False, dL=None, dB=None):
    """One head. dO (Nq, dv) → dQ (Nq, d), dK (Nk, d), dV (Nk, dv), in the accumulator dtype.

    O (Nq, dv), l (Nq,) and m (Nq,) are those of the forward pass; only m + log l matters, so l = 1 and m = L
    will do. dL (Nq,): the gradient that reaches L, None for none. dB (Nq, Nk): if given, receives the gradient of
    the final scores where a tile is visited.
    """
    Nq, Nk, d, dv = len(Q), len(K), Q.shape[1], V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    dQ = np.zeros_like(Q, shape=(Nq, d), dtype=wide)                    # (1) dQ = 0, in memory
    dK = np.empty_like(Q, shape=(Nk, d), dtype=wide)
    dV = np.empty_like(Q, shape=(Nk, dv), dtype=wide)

    for j in range(Tc)[::-1] if reverse else range(Tc):
        cols = slice(j * Bc, min(j * Bc + Bc, Nk))
        Kj = K[cols].astype(wide)                                       # (2) load Kj, Vj                 (bc, d)
        Vj = V[cols].astype(wide)                                       #                                 (bc, dv)
        dKj = np.zeros((len(Kj), d), wide)                              # (3) nothing yet                 (bc, d)
        dVj = np.zeros((len(Kj), dv), wide)                             #                                 (bc, dv)

        for i in range(Tr):
            rows = slice(i * Br, min(i * Br + Br, Nq))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Qi = Q[rows].astype(wide)                                   # (4) load Qi, Oi, dOi, li, mi    (br, d)
            Oi = O[rows].astype(wide)                                   #                                 (br, dv)
            dOi = dO[rows].astype(wide)                                 #                                 (br, dv)
            li = l[rows]                                                #                                 (br,)
            mi = m[rows]                                                #                                 (br,)
            Sij = rule.scores(Qi, Kj, rows, cols, kind)                 # (5) scores once more            (br, bc)
            Pij = np.exp(Sij - finite_or_zero(mi)[:, None])             # (6) P, normalised by m and l
            Pij = Pij / nonzero_or_one(li)[:, None]                     #                                 (br, bc)
            dVj = dVj + rounded(Pij, V.dtype).T @ dOi                   # (7) dV += Pᵀ dO                 (bc, dv)
            dPij = dOi @ Vj.T                                           # (8) dP = dO Vᵀ                  (br, bc)
            Di = rowsum(dOi * Oi)                                       # (9) D = rowsum(dO ∘ O) − dL     (br,)
            if dL is not None:
                Di = Di - dL[rows]
            dSij = Pij * (dPij - Di[:, None])                           # (10) dS = P ∘ (dP − D)          (br, bc)
            if dB is not None:
                dB[rows, cols] = dSij
            dSij = rounded(rule.chain(dSij, Qi, Kj), Q.dtype)           # (11) through softcap and scale
            dQ[rows] += dSij @ Kj                                       # (12) dQ += dS K, in memory      (br, d)
            dKj = dKj + dSij.T @ Qi                                     # (13) dK += dSᵀ Q                (bc, d)

        dK[cols] = dKj                                                  # (14) store dKj, dVj
        dV[cols] = dVj
    return dQ, dK, dV
