"""Answers to notebook 08."""

import numpy as np

from exercises.nb08 import head_backward, head_forward


def kv_head(h, Hq, Hkv):
    return h // (Hq // Hkv)


def grouped_backward(dout, q, k, v):
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b, h in np.ndindex(q.shape[:2]):
        g = kv_head(h, q.shape[1], k.shape[1])
        dQ, dK, dV = head_backward(dout[b, h], q[b, h], k[b, g], v[b, g])
        dq[b, h] = dQ
        dk[b, g] += dK
        dv[b, g] += dV
    return dq, dk, dv


def packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    for s in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[s], cu_seqlens_q[s + 1])
        cols = slice(cu_seqlens_k[s], cu_seqlens_k[s + 1])
        if cols.start < cols.stop:
            for h in range(len(q)):
                out[h, rows], lse[h, rows] = head_forward(q[h, rows], k[h, cols], v[h, cols])
    return out, lse
