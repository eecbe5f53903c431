"""Case 1: FlashAttention-2 that asks for the next tile of keys while it still works on this one.

The symptom: O and L are right to the last bit, for every size. But whoever counts sees more elements travel than in
`fa_ref/fa2.py`. For long sequences the difference is small, for short ones it is not.
"""

import numpy as np

from fa_ref.inputs import accumulator, rounded
from fa_ref.online_softmax import rowmax, rowsum
from fa_ref.scores import FULL


def forward_head(Q, K, V, rule, Br, Bc):
    """One head, no mask. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), L (Nq,)."""
    Nq, Nk, dv = len(Q), len(K), V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)
    wide = accumulator(Q.dtype)
    O = np.empty_like(Q, shape=(Nq, dv), dtype=wide)
    L = np.empty_like(Q, shape=(Nq,), dtype=wide)

    for i in range(Tr):
        rows = slice(i * Br, min(i * Br + Br, Nq))
        Qi = Q[rows].astype(wide)                                       # (1) load Qi
        Kj = K[0:min(Bc, Nk)].astype(wide)                              # (2) load the first tile of keys
        m = np.full(len(Qi), -np.inf, wide)
        l = np.zeros(len(Qi), wide)
        acc = np.zeros((len(Qi), dv), wide)

        for j in range(Tc):
            cols = slice(j * Bc, min(j * Bc + Bc, Nk))
            ahead = min(j + 1, Tc - 1)                                  # never beyond the last tile
            K_next = K[ahead * Bc:min(ahead * Bc + Bc, Nk)].astype(wide)    # (3) load the tile of the next step
            Vj = V[cols].astype(wide)                                   # (4) load Vj
            Sij = rule.scores(Qi, Kj, rows, cols, FULL)                 # (5) as FlashAttention-2
            m_new = np.maximum(m, rowmax(Sij))
            Pij = np.exp(Sij - m_new[:, None])
            alpha = np.exp(m - m_new)
            l = alpha * l + rowsum(Pij)
            acc = alpha[:, None] * acc + rounded(Pij, V.dtype) @ Vj
            m = m_new
            Kj = K_next                                                 # (6) it is there already

        O[rows] = acc / l[:, None]                                      # (7) store Oi, Li
        L[rows] = m + np.log(l)
    return O, L
