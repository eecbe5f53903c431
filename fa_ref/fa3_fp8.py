"""FlashAttention-3 in FP8: the loop of `fa3.py` on matrices of 8 bits, each tile with its own scale.

arXiv 2407.08608, section 3.3. Read `fa3.py` first, and `fp8.py` for what happens to Q, K, V before. Three changes:

    scales folded in    Q, K, V are values · scale. The product of the values is scaled afterwards, as scores are
                        anyway: a matrix unit sees 8 bits, and nothing is scaled back in memory
    P stretched         P lies in 0 … 1, and e4m3 makes 0 of what is below 2⁻¹⁰. 2⁸ times P reaches 256 of at most 448,
                        and the limit is 2⁻¹⁸. l grows as P does, so O needs no correction
    L shifted back      L = m + log(l / 2⁸)

S, m, l and acc stay float32, P is rounded to the format of V before it meets V, and l sums P before it is rounded. That
halves the bytes of Q, K and V and doubles the speed of the products; exp is as slow as before. There is no backward
pass in 8 bits.

The scale of V differs from tile to tile, so it belongs to (5) and not to the end (a kernel that adds up in place can
put sV_before / sVj into alpha). The official kernels have one scale for a batch entry and head, and no rotation:
granularity "head" and no signs in `fp8.prepare`.

    forward: Algorithm 2, in 8 bits
    line 2        (2)                         line 6, 13    (6), (7), (8), (9)
    line 3        (1), (3)                    line 14       (10)
    line 4, 9     (4)                         line 18, 19   (11)
    line 8, 10    (3)                         line 20       (12), (13)
    line 11       (5)
"""

import numpy as np

from fa_ref.fp8 import check_prepared
from fa_ref.inputs import accumulator, rounded
from fa_ref.online_softmax import finite_or_zero, nonzero_or_one, rowmax, rowsum
from fa_ref.scores import EMPTY


def forward_head(Q, K, V, sQ, sK, sV, rule, Br, Bc, reverse=False, stretch=2.0**8, dtype=np.float32):
    """One head. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv) in `dtype`, L (Nq,) in float32.

    Q, K, V: FP8, sQ (Tr,), sK (Tc,), sV (Tc,): float32, the scale of every tile, all from `fp8.prepare` with the same
    Br and Bc. reverse: walk the keys from last to first, as the official kernels do. stretch: what P is multiplied by,
    from 1 to the largest number of V's format. dtype: float32, or bfloat16 as the official kernels store it. Raises
    ValueError or TypeError for what cannot come from `prepare` with the same Br and Bc, and a V that may overflow.

        forward_head(*fp8.prepare(Q, K, V, Br, Bc, signs=fp8.random_signs(d)), rule, Br, Bc)
    """
    check_prepared(Q, K, V, sQ, sK, sV, rule, Br, Bc, stretch, dtype)
    Nq, Nk, dv = len(Q), len(K), V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    O = np.empty_like(Q, shape=(Nq, dv), dtype=dtype)
    L = np.empty_like(Q, shape=(Nq,), dtype=wide)

    for i in range(Tr):
        rows = slice(i * Br, min(i * Br + Br, Nq))
        Qi = Q[rows].astype(wide)                                       # (1) load Qi and its scale       (br, d)
        sQi = sQ[i]
        m = np.full(len(Qi), -np.inf, wide)                             # (2) nothing seen yet            (br,)
        l = np.zeros(len(Qi), wide)                                     #                                 (br,)
        acc = np.zeros((len(Qi), dv), wide)                             #                                 (br, dv)
        P_before = np.zeros((len(Qi), 0), wide)                         #     and no tile waits           (br, 0)
        V_before = np.zeros((0, dv), wide)                              #                                 (0, dv)
        sV_before = 1

        for j in range(Tc)[::-1] if reverse else range(Tc):
            cols = slice(j * Bc, min(j * Bc + Bc, Nk))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Kj = K[cols].astype(wide)                                   # (3) load Kj, Vj and their scales (bc, d)
            Vj = V[cols].astype(wide)                                   #                                 (bc, dv)
            sKj, sVj = sK[j], sV[j]
            Sij = rule.scores(Qi, Kj, rows, cols, kind, sQi * sKj)      # (4) scores of this tile         (br, bc)
            acc = acc + sV_before * (rounded(P_before, V.dtype) @ V_before)  # (5) output of the one before (br, dv)
            m_new = np.maximum(m, rowmax(Sij))                          # (6) running maximum             (br,)
            Pij = stretch * np.exp(Sij - finite_or_zero(m_new)[:, None])  # (7) un-normalised P, stretched (br, bc)
            alpha = np.exp(m - finite_or_zero(m_new))                   # (8) what the past is worth now  (br,)
            l = alpha * l + rowsum(Pij)                                 # (9) running sum, stretched      (br,)
            acc = alpha[:, None] * acc                                  # (10) rescale, when (5) is done  (br, dv)
            m = m_new
            P_before, V_before, sV_before = Pij, Vj, sVj                #     this tile waits one round

        acc = acc + sV_before * (rounded(P_before, V.dtype) @ V_before)  # (11) output of the last tile   (br, dv)
        O[rows] = acc / nonzero_or_one(l)[:, None]                      # (12) the one division, store Oi
        L[rows] = m + np.log(nonzero_or_one(l / stretch))               # (13) store Li
    return O, L
