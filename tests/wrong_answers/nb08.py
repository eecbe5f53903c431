"""Wrong answers to notebook 08; each must be rejected."""

from itertools import pairwise

import numpy as np

from exercises.nb08 import head_backward, head_forward


def kv_head__tiled(h, Hq, Hkv):
    return h % Hkv


def kv_head__divided_by_the_number_of_key_heads(h, Hq, Hkv):
    return h // Hkv


def kv_head__no_whole_number(h, Hq, Hkv):
    return h / (Hq / Hkv)


def kv_head__all_share_the_first(h, Hq, Hkv):
    return 0


def grouped(dout, q, k, v, owner=lambda h, Hq, Hkv: h // (Hq // Hkv), add=True, share=1.0, batch=None):
    """Right, with a fault to choose."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b, h in np.ndindex(q.shape[:2]):
        g = owner(h, q.shape[1], k.shape[1])
        dQ, dK, dV = head_backward(dout[b, h], q[b, h], k[b if batch is None else batch, g], v[b, g])
        dq[b, h] = dQ
        dk[b, g] = dk[b, g] * add + share * dK
        dv[b, g] = dv[b, g] * add + share * dV
    return dq, dk, dv


def grouped_backward__tiled(dout, q, k, v):
    return grouped(dout, q, k, v, owner=lambda h, Hq, Hkv: h % Hkv)


def grouped_backward__the_last_of_the_group_wins(dout, q, k, v):
    return grouped(dout, q, k, v, add=False)


def grouped_backward__mean_over_the_group(dout, q, k, v):
    return grouped(dout, q, k, v, share=k.shape[1] / q.shape[1])


def grouped_backward__keys_of_the_first_batch_entry(dout, q, k, v):
    return grouped(dout, q, k, v, batch=0)


def grouped_backward__gradients_of_copies(dout, q, k, v):
    group = q.shape[1] // k.shape[1]
    return grouped(dout, q, k.repeat(group, axis=1), v.repeat(group, axis=1))


def loop(q, k, v, spans, guard=True):
    """Right for the right spans [(rows, cols)]."""
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for rows, cols in spans:
        if k[:, cols].shape[1] or not guard:
            for h in range(len(q)):
                out[h, rows], lse[h, rows] = head_forward(q[h, rows], k[h, cols], v[h, cols])
    return out, lse


def slices(cu):
    return [slice(a, b) for a, b in pairwise(cu)]


def packed__rows_without_keys_are_nan(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return loop(q, k, v, zip(slices(cu_seqlens_q), slices(cu_seqlens_k), strict=True), guard=False)


def packed__one_long_sequence(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return loop(q, k, v, [(slice(None), slice(None))])


def packed__last_token_of_each_lost(q, k, v, cu_seqlens_q, cu_seqlens_k):
    shorter = [slice(x.start, x.stop - 1) for x in slices(cu_seqlens_q)]
    return loop(q, k, v, zip(shorter, slices(cu_seqlens_k), strict=True))


def packed__lengths_taken_for_offsets(q, k, v, cu_seqlens_q, cu_seqlens_k):
    lengths = [np.concatenate([[0], np.diff(cu)]) for cu in (cu_seqlens_q, cu_seqlens_k)]
    spans = [(slice(a, a + n), slice(b, b + m)) for a, n, b, m in zip(
        lengths[0][:-1], lengths[0][1:], lengths[1][:-1], lengths[1][1:], strict=True) if n]
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for rows, cols in spans:
        for h in range(len(q)):
            O, L = head_forward(q[h, rows], k[h, cols], v[h, cols])
            out[h, rows], lse[h, rows] = O[:out[h, rows].shape[0]], L[:out[h, rows].shape[0]]
    return out, lse


def packed__keys_cut_like_the_queries(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return loop(q, k, v, zip(slices(cu_seqlens_q), slices(cu_seqlens_q), strict=True))


def packed__last_sequence_forgotten(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return loop(q, k, v, list(zip(slices(cu_seqlens_q), slices(cu_seqlens_k), strict=True))[:-1] or [])


def packed__lse_zero_where_nothing_is_seen(q, k, v, cu_seqlens_q, cu_seqlens_k):
    out, lse = loop(q, k, v, zip(slices(cu_seqlens_q), slices(cu_seqlens_k), strict=True))
    return out, np.where(lse == -np.inf, 0, lse)
