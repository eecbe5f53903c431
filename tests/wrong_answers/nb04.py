"""Wrong answers to notebook 04; each must be rejected."""

import numpy as np

from solutions.nb04 import fa1_step as right_step


def finite(m):
    return np.where(m == -np.inf, 0, m)


def step(Sij, Vj, Oi, li, mi, *, keeps_l=False, forgets_l=False, tile_maximum=False, forgets_beta=False):
    m_tile = Sij.max(axis=1)
    m_new = m_tile if tile_maximum else np.maximum(mi, m_tile)
    Pij = np.exp(Sij - finite(m_tile)[:, None])
    alpha, beta = np.exp(mi - finite(m_new)), np.exp(m_tile - finite(m_new))
    if forgets_beta:
        beta = np.ones_like(beta)
    l_new = (li if keeps_l else alpha * li) + beta * Pij.sum(axis=1)
    old = alpha if forgets_l else alpha * li
    acc = old[:, None] * Oi + beta[:, None] * (Pij @ Vj)
    return acc / np.where(l_new == 0, 1, l_new)[:, None], l_new, m_new


def fa1_step__old_l_not_rescaled(Sij, Vj, Oi, li, mi):
    return step(Sij, Vj, Oi, li, mi, keeps_l=True)


def fa1_step__O_not_multiplied_by_the_old_l(Sij, Vj, Oi, li, mi):
    return step(Sij, Vj, Oi, li, mi, forgets_l=True)


def fa1_step__maximum_of_the_tile_only(Sij, Vj, Oi, li, mi):
    with np.errstate(over="ignore", invalid="ignore"):
        return step(Sij, Vj, Oi, li, mi, tile_maximum=True)


def fa1_step__P_of_the_tile_taken_for_P_so_far(Sij, Vj, Oi, li, mi):
    return step(Sij, Vj, Oi, li, mi, forgets_beta=True)


def fa1_step__nan_in_rows_that_see_nothing(Sij, Vj, Oi, li, mi):
    with np.errstate(invalid="ignore"):
        m_new = np.maximum(mi, Sij.max(axis=1))
        alpha, Pij = np.exp(mi - m_new), np.exp(Sij - m_new[:, None])
        l_new = alpha * li + Pij.sum(axis=1)
        return ((alpha * li)[:, None] * Oi + Pij @ Vj) / l_new[:, None], l_new, m_new


def fa1_step__not_divided(Sij, Vj, Oi, li, mi):
    m_new = np.maximum(mi, Sij.max(axis=1))
    alpha, Pij = np.exp(mi - finite(m_new)), np.exp(Sij - finite(m_new)[:, None])
    return alpha[:, None] * Oi + Pij @ Vj, alpha * li + Pij.sum(axis=1), m_new


def fa1_forward__standard_attention(Q, K, V, Br, Bc):
    S = Q[:] @ K[:].T / np.sqrt(Q.shape[1])
    m = S.max(axis=1)
    P = np.exp(S - m[:, None])
    l = P.sum(axis=1)
    return P @ V[:] / l[:, None], l, m


def fa1_forward__loops_swapped(Q, K, V, Br, Bc):
    O, l, m = (np.empty_like(Q, shape=shape) for shape in ((len(Q), V.shape[1]), (len(Q),), (len(Q),)))
    for i in range(0, len(Q), Br):
        rows = slice(i, i + Br)
        Qi = Q[rows]
        state = np.zeros((len(Qi), V.shape[1])), np.zeros(len(Qi)), np.full(len(Qi), -np.inf)
        for j in range(0, len(K), Bc):
            state = right_step(Qi @ K[j:j + Bc].T / np.sqrt(Q.shape[1]), V[j:j + Bc], *state)
        O[rows], l[rows], m[rows] = state
    return O, l, m


def forward(Q, K, V, Br, Bc, *, keys, scale=None):
    O, l = np.zeros_like(Q, shape=(len(Q), V.shape[1])), np.zeros_like(Q, shape=(len(Q),))
    m = np.full_like(Q, -np.inf, shape=(len(Q),))
    for j in range(0, keys, Bc):
        for i in range(0, len(Q), Br):
            rows, cols = slice(i, i + Br), slice(j, j + Bc)
            Sij = Q[rows] @ K[cols].T * (scale or Q.shape[1] ** -0.5)
            O[rows], l[rows], m[rows] = right_step(Sij, V[cols], O[rows], l[rows], m[rows])
    return O, l, m


def fa1_forward__O_on_chip(Q, K, V, Br, Bc):
    O, l, m = np.zeros((len(Q), V.shape[1])), np.zeros(len(Q)), np.full(len(Q), -np.inf)
    for j in range(0, len(K), Bc):
        Kj, Vj = K[j:j + Bc], V[j:j + Bc]
        for i in range(0, len(Q), Br):
            rows = slice(i, i + Br)
            Sij = Q[rows] @ Kj.T * Q.shape[1] ** -0.5
            O[rows], l[rows], m[rows] = right_step(Sij, Vj, O[rows], l[rows], m[rows])
    return O, l, m


def fa1_forward__loads_keys_in_the_inner_loop(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, keys=len(K))


def fa1_forward__leaves_out_the_short_last_tile(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, keys=max(len(K) // Bc * Bc, 1))


def fa1_forward__scale_forgotten(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, keys=len(K), scale=1.0)
