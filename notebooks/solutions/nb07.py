"""Answers to notebook 07."""

import numpy as np


def backward_tile(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T) - Li[:, None])                 # (br, bc)
    dPij = dOi @ Vj.T                                               # (br, bc)
    dSij = scale * Pij * (dPij - Di[:, None])                       # (br, bc)
    return dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def backward(dO, Q, K, V, O, L, scale, Br, Bc):
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    D = np.zeros_like(L)
    for i in range(0, len(Q), Br):
        D[i:i + Br] = (dO[i:i + Br] * O[i:i + Br]).sum(axis=1)
    for j in range(0, len(K), Bc):
        cols = slice(j, j + Bc)
        Kj, Vj = K[cols], V[cols]
        dKj, dVj = np.zeros_like(Kj), np.zeros_like(Vj)             # they wait until all queries have passed
        for i in range(0, len(Q), Br):
            rows = slice(i, i + Br)
            dQi, dK_more, dV_more = backward_tile(Q[rows], Kj, Vj, dO[rows], L[rows], D[rows], scale)
            dQ[rows] += dQi
            dKj += dK_more
            dVj += dV_more
        dK[cols], dV[cols] = dKj, dVj
    return dQ, dK, dV
