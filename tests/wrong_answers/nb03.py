"""Wrong answers to notebook 03; each must be rejected."""

import numpy as np

from detective import case1
from fa_ref import fa2


def predict__tiles_not_rounded_up(N, d, Br, Bc):
    return 3 * N * d + 2 * N * N, 2 * N * N + N * d + N, N * d + 2 * N / Br * N * d, N * d + N


def predict__tiles_rounded_down(N, d, Br, Bc):
    return 3 * N * d + 2 * N * N, 2 * N * N + N * d + N, N * d + 2 * (N // Br) * N * d, N * d + N


def predict__forgets_L(N, d, Br, Bc):
    Tr = -(-N // Br)
    return 3 * N * d + 2 * N * N, 2 * N * N + N * d, N * d + 2 * Tr * N * d, N * d


def predict__S_never_in_memory(N, d, Br, Bc):
    Tr = -(-N // Br)
    return 3 * N * d + N * N, N * N + N * d + N, N * d + 2 * Tr * N * d, N * d + N


def predict__queries_in_the_inner_loop(N, d, Br, Bc):
    Tc = -(-N // Bc)
    return 3 * N * d + 2 * N * N, 2 * N * N + N * d + N, 2 * N * d + Tc * N * d, N * d + N


def predict__last_tile_counted_as_a_whole_one(N, d, Br, Bc):
    Tr, Tc = -(-N // Br), -(-N // Bc)
    return 3 * N * d + 2 * N * N, 2 * N * N + N * d + N, N * d + 2 * Tr * Tc * Bc * d, N * d + N


def case1_extra__last_tile_counted_as_a_whole_one(N, d, Br, Bc):
    return "K", -(-N // Br) * Bc * d


def case1_extra__remainder_of_a_division(N, d, Br, Bc):
    return "K", -(-N // Br) * (N % Bc) * d


def case1_extra__once_not_for_each_tile_of_queries(N, d, Br, Bc):
    return "K", (N - (-(-N // Bc) - 1) * Bc) * d


def case1_extra__all_keys_twice(N, d, Br, Bc):
    return "K", -(-N // Br) * N * d


def case1_extra__the_other_array(N, d, Br, Bc):
    return "V", -(-N // Br) * (N - (-(-N // Bc) - 1) * Bc) * d


def case1_repaired__not_at_all(Q, K, V, rule, Br, Bc):
    return case1.forward_head(Q, K, V, rule, Br, Bc)


def case1_repaired__loads_ahead_no_more(Q, K, V, rule, Br, Bc):
    return fa2.forward_head(Q, K, V, rule, Br, Bc)


def case1_repaired__goes_back_to_the_first_tile(Q, K, V, rule, Br, Bc):
    O, L = fa2.forward_head(Q, K, V, rule, Br, Bc)
    for _ in range(0, len(Q), Br):
        K[0:min(Bc, len(K))]                                            # ahead = (j + 1) % Tc, in the last step
    return O, L


def case1_repaired__last_tile_never_used(Q, K, V, rule, Br, Bc):
    Nk = max((-(-len(K) // Bc) - 1) * Bc, 1)                            # range(Tc - 1)
    O, L = np.empty_like(Q, shape=(len(Q), V.shape[1])), np.empty_like(Q, shape=(len(Q),))
    for r in range(0, len(Q), Br):
        rows = slice(r, min(r + Br, len(Q)))
        S = rule.scores(Q[rows], K[0:Nk], rows, slice(0, Nk), "full")
        P = np.exp(S - S.max(axis=1)[:, None])
        l = P.sum(axis=1)
        O[rows], L[rows] = P @ V[0:Nk] / l[:, None], S.max(axis=1) + np.log(l)
    return O, L


def case1_extra__a_tile_for_an_array(N, d, Br, Bc):
    return "Kj", -(-N // Br) * (N - (-(-N // Bc) - 1) * Bc) * d


def case1_extra__nothing_returned(N, d, Br, Bc):
    print("K", -(-N // Br) * (N - (-(-N // Bc) - 1) * Bc) * d)
