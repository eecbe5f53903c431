"""Answers to notebook 04."""

import numpy as np

from fa_ref.online_softmax import finite_or_zero, nonzero_or_one


def fa1_step(Sij, Vj, Oi, li, mi):
    m_tile = Sij.max(axis=1)
    Pij = np.exp(Sij - finite_or_zero(m_tile)[:, None])
    m_new = np.maximum(mi, m_tile)
    alpha = np.exp(mi - finite_or_zero(m_new))
    beta = np.exp(m_tile - finite_or_zero(m_new))
    l_new = alpha * li + beta * Pij.sum(axis=1)
    acc = (alpha * li)[:, None] * Oi + beta[:, None] * (Pij @ Vj)
    return acc / nonzero_or_one(l_new)[:, None], l_new, m_new


def fa1_forward(Q, K, V, Br, Bc):
    Nq, Nk, scale = len(Q), len(K), Q.shape[1] ** -0.5
    O = np.zeros_like(Q, shape=(Nq, V.shape[1]))
    l = np.zeros_like(Q, shape=(Nq,))
    m = np.full_like(Q, -np.inf, shape=(Nq,))
    for j in range(0, Nk, Bc):
        Kj, Vj = K[j:j + Bc], V[j:j + Bc]
        for i in range(0, Nq, Br):
            rows = slice(i, i + Br)
            Sij = Q[rows] @ Kj.T * scale
            O[rows], l[rows], m[rows] = fa1_step(Sij, Vj, O[rows], l[rows], m[rows])
    return O, l, m
