"""Standard attention: S and P stand in memory, N × N each. The yardstick for everything that follows.

Algorithm 0 (forward) and Algorithm 3 (backward) of the FlashAttention paper, arXiv 2205.14135. The product Q Kᵀ is
written out, read back for the softmax, written again as P and read again for P V: 4 passes over N² elements forward,
7 backward from the saved P, and N² of memory. That is all that is wrong with it.

    forward                                   backward
    Algorithm 0 line 1   (1), (2)             Algorithm 3 line 1   (2)
                line 2   (3), (4)                         line 2   (3)
                line 3   (5)                              line 3   (4), (5)
                                                          line 4   (6)
                                                          line 5   (7)

Put right: the paper drops the scale τ in line 1 of Algorithm 0 (here in `rule.scores`) and in lines 4 and 5 of
Algorithm 3 (here in `rule.chain`), and leaves rows open that see no key (here P, O and all their gradients are 0 and L
is −inf).
"""

import numpy as np

from fa_ref.inputs import accumulator
from fa_ref.online_softmax import finite_or_zero, nonzero_or_one, rowmax, rowsum


def forward_head(Q, K, V, rule, Br=None, Bc=None, reverse=False):
    """One head. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), L (Nq,), both in the accumulator dtype.

    Br, Bc and reverse are taken so that all cores are called alike; nothing here is tiled.
    """
    P, L = probabilities(Q, K, rule)
    wide = accumulator(Q.dtype)
    O = np.empty_like(Q, shape=(len(Q), V.shape[1]), dtype=wide)
    O[:] = P[:].astype(wide) @ V[:].astype(wide)                    # (5) read P and V, write O = P V
    return O, L


def probabilities(Q, K, rule):
    """Lines 1 and 2 of Algorithm 0: P (Nq, Nk) in the storage dtype and L (Nq,); S is written and read on the way."""
    wide = accumulator(Q.dtype)
    rows, cols = slice(0, len(Q)), slice(0, len(K))
    S = np.empty_like(Q, shape=(len(Q), len(K)), dtype=wide)
    P = np.empty_like(Q, shape=(len(Q), len(K)))
    L = np.empty_like(Q, shape=(len(Q),), dtype=wide)

    Qall = Q[:].astype(wide)                                        # (1) read Q and K
    Kall = K[:].astype(wide)
    S[:] = rule.scores(Qall, Kall, rows, cols, rule.kind(rows, cols))  # (2) write S
    Sall = S[:]                                                     # (3) read S again
    m = rowmax(Sall)                                                # (Nq,)
    Pall = np.exp(Sall - finite_or_zero(m)[:, None])                # (Nq, Nk)
    l = rowsum(Pall)                                                # (Nq,)
    P[:] = Pall / nonzero_or_one(l)[:, None]                        # (4) write P
    L[:] = m + np.log(nonzero_or_one(l))
    return P, L


def backward_head(dO, Q, K, V, O, L, rule, Br=None, Bc=None, reverse=False, dL=None, dB=None):
    """One head. dO (Nq, dv) → dQ (Nq, d), dK (Nk, d), dV (Nk, dv), in the accumulator dtype.

    L (Nq,) is that of the forward pass, dL (Nq,) the gradient that reaches L. dB (Nq, Nk), if given, is filled with
    the gradient of the final scores. Algorithm 3 keeps P from the forward pass; whoever did not is given it here from
    S and L. O is not needed: D comes from P.
    """
    P = np.empty_like(Q, shape=(len(Q), len(K)))
    wide = accumulator(Q.dtype)
    rows, cols = slice(0, len(Q)), slice(0, len(K))
    Sall = rule.scores(Q[:].astype(wide), K[:].astype(wide), rows, cols, rule.kind(rows, cols))
    P[:] = np.exp(Sall - finite_or_zero(L[:])[:, None])             # (1) P as the forward pass left it
    return gradients(dO, Q, K, V, P, rule, dL=dL, dB=dB)


def gradients(dO, Q, K, V, P, rule, dL=None, dB=None):
    """Algorithm 3 itself, from the saved P (Nq, Nk): dQ, dK, dV."""
    wide = accumulator(Q.dtype)
    dP = np.empty_like(Q, shape=P.shape, dtype=wide)
    dS = np.empty_like(Q, shape=P.shape)
    dQ = np.empty_like(Q, dtype=wide)
    dK = np.empty_like(K, dtype=wide)
    dV = np.empty_like(V, dtype=wide)

    dV[:] = P[:].astype(wide).T @ dO[:].astype(wide)                # (2) read P and dO, write dV = Pᵀ dO
    dP[:] = dO[:].astype(wide) @ V[:].astype(wide).T                # (3) read dO and V, write dP = dO Vᵀ
    Pall, dPall = P[:].astype(wide), dP[:]                          # (4) read P and dP
    D = rowsum(Pall * dPall)                                        # (Nq,)
    if dL is not None:
        D = D - dL[:]
    dSall = Pall * (dPall - D[:, None])                             # (Nq, Nk)
    if dB is not None:
        dB[:] = dSall
    Qall, Kall = Q[:].astype(wide), K[:].astype(wide)
    dS[:] = rule.chain(dSall, Qall, Kall)                           # (5) write dS, through softcap and scale
    dQ[:] = dS[:].astype(wide) @ Kall                               # (6) read dS, write dQ
    dK[:] = dS[:].astype(wide).T @ Qall                             # (7) read dS, write dK
    return dQ, dK, dV
