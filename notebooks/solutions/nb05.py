"""Answers to notebook 05."""

import numpy as np


def fa2_forward(Q, K, V, Br, Bc):
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O, L = np.empty_like(Q, shape=(Nq, dv)), np.empty_like(Q, shape=(Nq,))
    for i in range(0, Nq, Br):
        Qi = Q[i:i + Br]
        m, l, acc = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), dv))
        for j in range(0, Nk, Bc):
            Kj, Vj = K[j:j + Bc], V[j:j + Bc]
            Sij = Qi @ Kj.T * scale
            m_new = np.maximum(m, Sij.max(axis=1))
            Pij = np.exp(Sij - m_new[:, None])
            alpha = np.exp(m - m_new)
            l = alpha * l + Pij.sum(axis=1)
            acc = alpha[:, None] * acc + Pij @ Vj
            m = m_new
        O[i:i + Br] = acc / l[:, None]
        L[i:i + Br] = m + np.log(l)
    return O, L


def detective_2():
    """Two queries share a tile. The second key raises the maximum of the first query by 20, that of the other not.

    "Some row has a new maximum" is any, not all. With one query in a tile there is no difference.
    """
    witness = np.array([[1.0], [0.0]]), np.array([[0.0], [20.0]]), np.array([[1.0], [2.0]]), 2, 1
    return witness, 10, lazy_forward


def lazy_forward(Q, K, V, Br, Bc):
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O, L = np.empty_like(Q, shape=(Nq, dv)), np.empty_like(Q, shape=(Nq,))
    for i in range(0, Nq, Br):
        Qi = Q[i:i + Br]
        m, l, acc = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), dv))
        for j in range(0, Nk, Bc):
            Kj, Vj = K[j:j + Bc], V[j:j + Bc]
            Sij = Qi @ Kj.T * scale
            m_tile = Sij.max(axis=1)
            m_new = np.where(m_tile > m + 8, m_tile, m)
            alpha = np.exp(m - m_new)
            Pij = np.exp(Sij - m_new[:, None])
            l = alpha * l + Pij.sum(axis=1)
            if (alpha < 1).any():                       # was all: one row that has grown is enough
                acc = alpha[:, None] * acc
            acc = acc + Pij @ Vj
            m = m_new
        O[i:i + Br] = acc / l[:, None]
        L[i:i + Br] = m + np.log(l)
    return O, L
