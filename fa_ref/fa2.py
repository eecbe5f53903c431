"""FlashAttention-2: the loop over queries is outside, the output stays on chip until it is finished.

Tri Dao, arXiv 2307.08691. Read `fa1.py` first: the same tiles, with four changes.

    loops swapped       queries outside, keys inside: a tile of queries meets all its keys before the next begins
    running maximum     P is formed with the maximum of all keys so far, so it needs no factor of its own
    division deferred   acc is never normalised inside the loop: one division per row at the end
    only L kept         L = m + log l is all that the backward pass needs of the softmax

That saves the traffic of O, l and m on every step and half of the elementwise work on O (per element and step: scale
and add, where FA1 scales twice, adds and divides; the work on S and P stays). It also makes the iterations of the outer
loop independent: each could run on its own multiprocessor. In the backward pass keys stay outside; besides keeping only
L, it makes D once, before the loops, where FA1 forms it anew from O at every step.

    forward: Algorithm 1                      backward: Algorithm 2
    line 4, 5     (1), (2)                    line 3, 4       (1), (2)
    line 7        (3)                         line 6, 7       (3), (4)
    line 8        (4)                         line 9          (5)
    line 9        (5), (6), (7), (8)          line 10, 11     (6), (7)
    line 10       (9)                         line 12         (8)
    line 12, 14   (10)                        line 13, 14     (9), (10)
    line 13, 15   (11)                        line 15, 16     (12), (13)
                                              line 18         (14)

Put right: line 10 of Algorithm 1 prints diag(exp(m_old − m_new))⁻¹, but the factor must not be inverted: old sums
shrink when the maximum grows. Both algorithms drop the scale τ (here in `rule.scores` and `rule.chain`). In Algorithm 2
D has length N, not d, and O need not be loaded in the inner loop: D is all that was wanted of it. Section 2.2 prints
dK = Q dSᵀ for dSᵀ Q. Rows that see no key, which the paper leaves open, get O = 0 and L = −inf.
"""

import numpy as np

from fa_ref.inputs import accumulator, rounded
from fa_ref.online_softmax import finite_or_zero, nonzero_or_one, rowmax, rowsum
from fa_ref.scores import EMPTY


def forward_head(Q, K, V, rule, Br, Bc, reverse=False):
    """One head. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), L (Nq,), both in the accumulator dtype.

    Br, Bc: tile heights of queries and of keys, at least 1; the last tile may be shorter. reverse: walk the keys
    from last to first, as the official kernels do.
    """
    Nq, Nk, dv = len(Q), len(K), V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    O = np.empty_like(Q, shape=(Nq, dv), dtype=wide)
    L = np.empty_like(Q, shape=(Nq,), dtype=wide)

    for i in range(Tr):
        rows = slice(i * Br, min(i * Br + Br, Nq))
        Qi = Q[rows].astype(wide)                                       # (1) load Qi                     (br, d)
        m = np.full(len(Qi), -np.inf, wide)                             # (2) nothing seen yet            (br,)
        l = np.zeros(len(Qi), wide)                                     #                                 (br,)
        acc = np.zeros((len(Qi), dv), wide)                             #                                 (br, dv)

        for j in range(Tc)[::-1] if reverse else range(Tc):
            cols = slice(j * Bc, min(j * Bc + Bc, Nk))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Kj = K[cols].astype(wide)                                   # (3) load Kj, Vj                 (bc, d)
            Vj = V[cols].astype(wide)                                   #                                 (bc, dv)
            Sij = rule.scores(Qi, Kj, rows, cols, kind)                 # (4) scores                      (br, bc)
            m_new = np.maximum(m, rowmax(Sij))                          # (5) running maximum             (br,)
            Pij = np.exp(Sij - finite_or_zero(m_new)[:, None])          # (6) un-normalised P             (br, bc)
            alpha = np.exp(m - finite_or_zero(m_new))                   # (7) what the past is worth now  (br,)
            l = alpha * l + rowsum(Pij)                                 # (8) running sum                 (br,)
            acc = alpha[:, None] * acc + rounded(Pij, V.dtype) @ Vj     # (9) running output              (br, dv)
            m = m_new

        O[rows] = acc / nonzero_or_one(l)[:, None]                      # (10) the one division, store Oi
        L[rows] = m + np.log(nonzero_or_one(l))                         # (11) store Li
    return O, L


def backward_head(dO, Q, K, V, O, L, rule, Br, Bc, reverse=False, dL=None, dB=None):
    """One head. dO (Nq, dv) → dQ (Nq, d), dK (Nk, d), dV (Nk, dv), in the accumulator dtype.

    O (Nq, dv) and L (Nq,) are those of the forward pass. dL (Nq,): the gradient that reaches L, None for none.
    dB (Nq, Nk): if given, receives the gradient of the final scores where a tile is visited. Keys are outside, so
    that dK and dV stay on chip; dQ is added to in memory at every step.
    """
    Nq, Nk, d, dv = len(Q), len(K), Q.shape[1], V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    D = np.empty_like(Q, shape=(Nq,), dtype=wide)
    dQ = np.zeros_like(Q, shape=(Nq, d), dtype=wide)                    # (1) dQ = 0, in memory
    dK = np.empty_like(Q, shape=(Nk, d), dtype=wide)
    dV = np.empty_like(Q, shape=(Nk, dv), dtype=wide)

    for i in range(Tr):
        rows = slice(i * Br, min(i * Br + Br, Nq))
        Di = rowsum(dO[rows].astype(wide) * O[rows].astype(wide))       # (2) D = rowsum(dO ∘ O) − dL     (br,)
        D[rows] = Di if dL is None else Di - dL[rows]

    for j in range(Tc)[::-1] if reverse else range(Tc):
        cols = slice(j * Bc, min(j * Bc + Bc, Nk))
        Kj = K[cols].astype(wide)                                       # (3) load Kj, Vj                 (bc, d)
        Vj = V[cols].astype(wide)                                       #                                 (bc, dv)
        dKj = np.zeros((len(Kj), d), wide)                              # (4) nothing yet                 (bc, d)
        dVj = np.zeros((len(Kj), dv), wide)                             #                                 (bc, dv)

        for i in range(Tr):
            rows = slice(i * Br, min(i * Br + Br, Nq))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Qi = Q[rows].astype(wide)                                   # (5) load Qi, dOi, Li, Di        (br, d)
            dOi = dO[rows].astype(wide)                                 #                                 (br, dv)
            Li = L[rows]                                                #                                 (br,)
            Di = D[rows]                                                #                                 (br,)
            Sij = rule.scores(Qi, Kj, rows, cols, kind)                 # (6) scores once more            (br, bc)
            Pij = np.exp(Sij - finite_or_zero(Li)[:, None])             # (7) P, normalised by L          (br, bc)
            dVj = dVj + rounded(Pij, V.dtype).T @ dOi                   # (8) dV += Pᵀ dO                 (bc, dv)
            dPij = dOi @ Vj.T                                           # (9) dP = dO Vᵀ                  (br, bc)
            dSij = Pij * (dPij - Di[:, None])                           # (10) dS = P ∘ (dP − D)          (br, bc)
            if dB is not None:
                dB[rows, cols] = dSij
            dSij = rounded(rule.chain(dSij, Qi, Kj), Q.dtype)           # (11) through softcap and scale
            dQ[rows] += dSij @ Kj                                       # (12) dQ += dS K, in memory      (br, d)
            dKj = dKj + dSij.T @ Qi                                     # (13) dK += dSᵀ Q                (bc, d)

        dK[cols] = dKj                                                  # (14) store dKj, dVj
        dV[cols] = dVj
    return dQ, dK, dV
