"""Wrong answers to notebook 05; each must be rejected."""

import numpy as np

from detective.case2 import lazy_forward
from solutions.nb04 import fa1_forward
from solutions.nb05 import detective_2, fa2_forward


def forward(Q, K, V, Br, Bc, *, start=-np.inf, inverted=False, rescale=True, plus=np.log, loads_Q_again=False):
    """The loop, with one thing wrong."""
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O, L = np.empty_like(Q, shape=(Nq, dv)), np.empty_like(Q, shape=(Nq,))
    with np.errstate(all="ignore"):
        for i in range(0, Nq, Br):
            Qi = Q[i:i + Br]
            m, l, acc = np.full(len(Qi), start), np.zeros(len(Qi)), np.zeros((len(Qi), dv))
            for j in range(0, Nk, Bc):
                Qi = Q[i:i + Br] if loads_Q_again else Qi
                Kj, Vj = K[j:j + Bc], V[j:j + Bc]
                Sij = Qi @ Kj.T * scale
                m_new = np.maximum(m, Sij.max(axis=1))
                Pij, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)
                l = alpha * l + Pij.sum(axis=1)
                if rescale:
                    acc = (1 / alpha if inverted and j else alpha)[:, None] * acc
                acc = acc + Pij @ Vj
                m = m_new
            O[i:i + Br], L[i:i + Br] = acc / l[:, None], m + plus(l)
    return O, L


def fa2_forward__alpha_inverted_as_printed(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, inverted=True)


def fa2_forward__acc_not_rescaled(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, rescale=False)


def fa2_forward__maximum_seeded_with_zero(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, start=0.0)


def fa2_forward__maximum_seeded_with_a_finite_number(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, start=-100.0)


def fa2_forward__L_without_the_logarithm(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, plus=lambda l: l)


def fa2_forward__loads_queries_in_the_inner_loop(Q, K, V, Br, Bc):
    return forward(Q, K, V, Br, Bc, loads_Q_again=True)


def fa2_forward__acc_in_memory(Q, K, V, Br, Bc):
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O, L = np.empty_like(Q, shape=(Nq, dv)), np.empty_like(Q, shape=(Nq,))
    for i in range(0, Nq, Br):
        Qi = Q[i:i + Br]
        m, l = np.full(len(Qi), -np.inf), np.zeros(len(Qi))
        acc = np.zeros_like(Q, shape=(len(Qi), dv))
        for j in range(0, Nk, Bc):
            Kj, Vj = K[j:j + Bc], V[j:j + Bc]
            Sij = Qi @ Kj.T * scale
            m_new = np.maximum(m, Sij.max(axis=1))
            Pij, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)
            l = alpha * l + Pij.sum(axis=1)
            acc[:] = alpha[:, None] * acc[:] + Pij @ Vj
            m = m_new
        O[i:i + Br], L[i:i + Br] = acc[:] / l[:, None], m + np.log(l)
    return O, L


def fa2_forward__divides_inside_the_loop(Q, K, V, Br, Bc):
    Nq, Nk, dv, scale = len(Q), len(K), V.shape[1], Q.shape[1] ** -0.5
    O, L = np.empty_like(Q, shape=(Nq, dv)), np.empty_like(Q, shape=(Nq,))
    for i in range(0, Nq, Br):
        Qi = Q[i:i + Br]
        m, l, Oi = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), dv))
        for j in range(0, Nk, Bc):
            Kj, Vj = K[j:j + Bc], V[j:j + Bc]
            Sij = Qi @ Kj.T * scale
            m_new = np.maximum(m, Sij.max(axis=1))
            Pij, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)
            l_new = alpha * l + Pij.sum(axis=1)
            Oi = ((alpha * l)[:, None] * Oi + Pij @ Vj) / l_new[:, None]
            m, l = m_new, l_new
        O[i:i + Br], L[i:i + Br] = Oi, m + np.log(l)
    return O, L


def fa2_forward__standard_attention(Q, K, V, Br, Bc):
    O, L = np.empty_like(Q, shape=(len(Q), V.shape[1])), np.empty_like(Q, shape=(len(Q),))
    S = Q[:] @ K[:].T * Q.shape[1] ** -0.5
    m = S.max(axis=1)
    P = np.exp(S - m[:, None])
    l = P.sum(axis=1)
    O[:], L[:] = P @ V[:] / l[:, None], m + np.log(l)
    return O, L


def fa2_forward__keeps_all_scores_of_its_queries(Q, K, V, Br, Bc):
    O, L = np.empty_like(Q, shape=(len(Q), V.shape[1])), np.empty_like(Q, shape=(len(Q),))
    for i in range(0, len(Q), Br):
        Qi = Q[i:i + Br]
        S = np.concatenate([Qi @ K[j:j + Bc].T * Q.shape[1] ** -0.5 for j in range(0, len(K), Bc)], axis=1)
        m = S.max(axis=1)
        P = np.exp(S - m[:, None])
        l = P.sum(axis=1)
        O[i:i + Br] = P @ np.concatenate([V[j:j + Bc] for j in range(0, len(K), Bc)]) / l[:, None]
        L[i:i + Br] = m + np.log(l)
    return O, L


def fa2_forward__the_first_one_in_disguise(Q, K, V, Br, Bc):
    O, l, m = fa1_forward(Q, K, V, Br, Bc)
    L = np.empty_like(Q, shape=(len(Q),))
    L[:] = m[:] + np.log(l[:])
    return O, L


WITNESS, STEP, REPAIRED = detective_2()


def detective_2__random_numbers_for_a_witness():
    return (*np.random.default_rng(0).standard_normal((3, 2, 2)), 2, 1), STEP, REPAIRED


def detective_2__both_rows_jump():
    Q, *rest = WITNESS
    return (np.ones_like(Q), *rest), STEP, REPAIRED


def detective_2__first_value_is_zero():
    """What is forgotten is a factor on acc, and acc is 0."""
    Q, K, V, *rest = WITNESS
    return (Q, K, V - V[0], *rest), STEP, REPAIRED


def detective_2__witness_too_large():
    """The tame third key makes it no witness of at most 2 × 2."""
    Q, K, V, Br, Bc = WITNESS
    return (Q, np.vstack([K, [[0.0]]]), np.vstack([V, [[0.0]]]), Br, Bc), STEP, REPAIRED


def detective_2__another_step():
    return WITNESS, 6, REPAIRED


def detective_2__not_repaired():
    return WITNESS, STEP, lazy_forward


def detective_2__rescales_always():
    return WITNESS, STEP, fa2_forward


def detective_2__never_rescales():
    return WITNESS, STEP, lambda Q, K, V, Br, Bc: forward(Q, K, V, Br, Bc, rescale=False)
