"""Wrong answers to notebook 01; each must be rejected."""

import numpy as np


def softmax(S):
    P = np.exp(S - S.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def attention__scale_forgotten(Q, K, V):
    return softmax(Q @ K.T) @ V


def attention__divides_by_d(Q, K, V):
    return softmax(Q @ K.T / Q.shape[1]) @ V


def attention__softmax_down_the_columns(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max(axis=0))
    return P / P.sum(axis=0) @ V


def attention__softmax_over_the_whole_matrix(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max())
    return P / P.sum() @ V


def attention__overflows(Q, K, V):
    P = np.exp(Q @ K.T / np.sqrt(Q.shape[1]))
    return P / P.sum(axis=1, keepdims=True) @ V


def attention__one_maximum_for_all_rows(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max())
    return P / P.sum(axis=1, keepdims=True) @ V


def attention__not_divided_by_the_sum(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    return np.exp(S - S.max(axis=1, keepdims=True)) @ V


def scores_and_places(Q, K):
    return Q @ K.T / np.sqrt(Q.shape[1]), np.arange(len(Q))[:, None], np.arange(len(K))[None, :]


def masked(S, sees, V, hidden=-np.inf):
    """Right for any mask, if hidden is −inf."""
    S = np.where(sees, S, hidden)
    m = S.max(axis=1, keepdims=True)
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    l = P.sum(axis=1, keepdims=True)
    return P / np.where(l == 0, 1, l) @ V


def causal_attention__aligned_at_the_top_left(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return masked(S, j <= i, V)


def causal_attention__does_not_see_itself(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return masked(S, j < i + len(K) - len(Q), V)


def causal_attention__shift_has_the_wrong_sign(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return masked(S, j <= i + len(Q) - len(K), V)


def causal_attention__nan_where_nothing_is_seen(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return softmax(np.where(j <= i + len(K) - len(Q), S, -np.inf)) @ V


def causal_attention__finite_minus_infinity(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return masked(S, j <= i + len(K) - len(Q), V, hidden=-1e9)


def causal_attention__hidden_scores_are_zero(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return masked(S * (j <= i + len(K) - len(Q)), True, V)


def causal_attention__masked_after_the_softmax(Q, K, V):
    S, i, j = scores_and_places(Q, K)
    return softmax(S) * (j <= i + len(K) - len(Q)) @ V
