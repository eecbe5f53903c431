"""Wrong answers to notebook 07; each must be rejected."""

import numpy as np


def backward_tile__scale_forgotten_in_dk(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T) - Li[:, None])
    dSij = Pij * (dOi @ Vj.T - Di[:, None])
    return scale * dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def backward_tile__dp_not_reduced_by_d(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T) - Li[:, None])
    dSij = scale * Pij * (dOi @ Vj.T)
    return dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def backward_tile__normalised_by_the_tile_alone(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T))
    Pij = Pij / Pij.sum(axis=1, keepdims=True)
    dSij = scale * Pij * (dOi @ Vj.T - Di[:, None])
    return dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def backward_tile__d_subtracted_along_the_wrong_axis(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T) - Li[:, None])
    dSij = scale * Pij * (dOi @ Vj.T - Di)
    return dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def backward_tile__ds_not_transposed(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(scale * (Qi @ Kj.T) - Li[:, None])
    dSij = scale * Pij * (dOi @ Vj.T - Di[:, None])
    return dSij @ Kj, dSij @ Qi, Pij.T @ dOi


def backward_tile__scale_missing_in_the_scores(Qi, Kj, Vj, dOi, Li, Di, scale):
    Pij = np.exp(Qi @ Kj.T - Li[:, None])
    dSij = scale * Pij * (dOi @ Vj.T - Di[:, None])
    return dSij @ Kj, dSij.T @ Qi, Pij.T @ dOi


def tiled(dO, Q, K, V, L, D, scale, Br, Bc, of_tile=None, add=True, floor=False):
    """A right loop, with a fault to choose: of_tile makes Di from Pij and dPij, add: dQ is added to."""
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for j in range(0, len(K), Bc):
        cols = slice(j, j + Bc)
        for i in range(0, len(Q) // Br * Br if floor else len(Q), Br):
            rows = slice(i, i + Br)
            Pij = np.exp(scale * (Q[rows] @ K[cols].T) - L[rows][:, None])
            dPij = dO[rows] @ V[cols].T
            Di = D[rows] if of_tile is None else of_tile(Pij, dPij)
            dSij = scale * Pij * (dPij - Di[:, None])
            if add:
                dQ[rows] += dSij @ K[cols]
            else:
                dQ[rows] = dSij @ K[cols]
            dK[cols] += dSij.T @ Q[rows]
            dV[cols] += Pij.T @ dO[rows]
    return dQ, dK, dV


def backward__right_but_all_at_once(dO, Q, K, V, O, L, scale, Br, Bc):
    dO, Q, K, V, O, L = (x[:] for x in (dO, Q, K, V, O, L))
    P = np.exp(scale * (Q @ K.T) - L[:, None])
    dS = scale * P * (dO @ V.T - (dO * O).sum(axis=1)[:, None])
    return dS @ K, dS.T @ Q, P.T @ dO


def backward__right_but_without_loads(dO, Q, K, V, O, L, scale, Br, Bc):
    P = np.exp(scale * (Q @ K.T) - L[:, None])
    dS = scale * P * (dO @ V.T - (dO * O).sum(axis=1)[:, None])
    return dS @ K, dS.T @ Q, P.T @ dO


def backward__dq_overwritten_by_every_tile_of_keys(dO, Q, K, V, O, L, scale, Br, Bc):
    return tiled(dO, Q, K, V, L, (dO[:] * O[:]).sum(axis=1), scale, Br, Bc, add=False)


def backward__d_from_the_tile_alone(dO, Q, K, V, O, L, scale, Br, Bc):
    return tiled(dO, Q, K, V, L, None, scale, Br, Bc, of_tile=lambda Pij, dPij: (Pij * dPij).sum(axis=1))


def backward__last_ragged_tile_of_queries_forgotten(dO, Q, K, V, O, L, scale, Br, Bc):
    return tiled(dO, Q, K, V, L, (dO[:] * O[:]).sum(axis=1), scale, Br, Bc, floor=True)


def backward__d_from_the_values(dO, Q, K, V, O, L, scale, Br, Bc):
    D = np.zeros(len(Q))
    D[:len(K)] = (dO[:len(K)] * V[:len(Q)]).sum(axis=1)
    return tiled(dO, Q, K, V, L, D, scale, Br, Bc)


def whole_d(dO, O, L):
    """D from tiles of 4 rows, in memory."""
    D = np.zeros_like(L)
    for i in range(0, len(L), 4):
        D[i:i + 4] = (dO[i:i + 4] * O[i:i + 4]).sum(axis=1)
    return D


def waiting(dO, Q, K, V, L, D, scale, Br, Bc, again=False):
    """The right loops; D: a function of rows. again: K and V are loaded for every tile of queries."""
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for j in range(0, len(K), Bc):
        cols = slice(j, j + Bc)
        Kj, Vj = K[cols], V[cols]
        dKj, dVj = np.zeros_like(Kj), np.zeros_like(Vj)
        for i in range(0, len(Q), Br):
            rows = slice(i, i + Br)
            if again:
                Kj, Vj = K[cols], V[cols]
            Qi, dOi = Q[rows], dO[rows]
            Pij = np.exp(scale * (Qi @ Kj.T) - L[rows][:, None])
            dSij = scale * Pij * (dOi @ Vj.T - D(rows)[:, None])
            dQ[rows] += dSij @ Kj
            dKj += dSij.T @ Qi
            dVj += Pij.T @ dOi
        dK[cols], dV[cols] = dKj, dVj
    return dQ, dK, dV


def backward__right_but_dk_and_dv_do_not_wait(dO, Q, K, V, O, L, scale, Br, Bc):
    return tiled(dO, Q, K, V, L, whole_d(dO, O, L), scale, Br, Bc)


def backward__right_but_d_of_whole_matrices(dO, Q, K, V, O, L, scale, Br, Bc):
    D = (dO[:] * O[:]).sum(axis=1)
    return waiting(dO, Q, K, V, L, lambda rows: D[rows], scale, Br, Bc)


def backward__right_but_d_in_every_tile(dO, Q, K, V, O, L, scale, Br, Bc):
    return waiting(dO, Q, K, V, L, lambda rows: (dO[rows] * O[rows]).sum(axis=1), scale, Br, Bc)


def backward__right_but_keys_loaded_again(dO, Q, K, V, O, L, scale, Br, Bc):
    D = whole_d(dO, O, L)
    return waiting(dO, Q, K, V, L, lambda rows: D[rows], scale, Br, Bc, again=True)


def backward__right_but_all_of_p_is_made(dO, Q, K, V, O, L, scale, Br, Bc):
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    dOall, Qall, Kall = dO[:], Q[:], K[:]
    P = np.exp(scale * (Qall @ Kall.T) - L[:][:, None])
    dS = scale * P * (dOall @ V[:].T - (dOall * O[:]).sum(axis=1)[:, None])
    dQ[:], dK[:], dV[:] = dS @ Kall, dS.T @ Qall, P.T @ dOall
    return dQ, dK, dV
