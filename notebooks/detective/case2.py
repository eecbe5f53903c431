"""Case 2: the lazy loop.

A FlashAttention-2 that saves work: it keeps an old maximum as long as no score is more than 8 above it (exp(8) is no
danger to anybody), and multiplies acc by alpha only when it must. It has passed its tests on random numbers for a year.

The complaint: "Some answers about long documents are wrong. It happens where one token gets a very high score. The
log-sum-exp is always right. If we ask one query at a time, the output is right too."
"""

import numpy as np


def lazy_forward(Q, K, V, Br, Bc):
    """Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), L (Nq,). Scale 1/√d, no masks, at least one key."""
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O = np.empty_like(Q, shape=(Nq, dv))
    L = np.empty_like(Q, shape=(Nq,))
    for i in range(0, Nq, Br):
        rows = slice(i, min(i + Br, Nq))
        Qi = Q[rows]                                                    # (1) load Qi
        m = np.full(len(Qi), -np.inf)                                   # (2) nothing seen yet
        l = np.zeros(len(Qi))
        acc = np.zeros((len(Qi), dv))
        for j in range(0, Nk, Bc):
            cols = slice(j, min(j + Bc, Nk))
            Kj = K[cols]                                                # (3) load Kj, Vj
            Vj = V[cols]
            Sij = Qi @ Kj.T * scale                                     # (4) scores
            m_tile = Sij.max(axis=1)                                    # (5) maximum of this tile
            m_new = np.where(m_tile > m + 8, m_tile, m)                 # (6) a new maximum, where it is much larger
            alpha = np.exp(m - m_new)                                   # (7) what the past is worth now
            Pij = np.exp(Sij - m_new[:, None])                          # (8) un-normalised P, at most exp(8)
            l = alpha * l + Pij.sum(axis=1)                             # (9) running sum
            if (alpha < 1).all():                                       # (10) rescale
                acc = alpha[:, None] * acc
            acc = acc + Pij @ Vj                                        # (11) running output
            m = m_new
        O[rows] = acc / l[:, None]                                      # (12) the one division, store Oi
        L[rows] = m + np.log(l)                                         # (13) store Li
    return O, L
