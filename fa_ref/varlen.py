"""Packed sequences: many lengths in one array, with no padding and no leak from one sequence into the next.

Sequence s owns the queries cu_seqlens_q[s] … cu_seqlens_q[s+1] and the keys cu_seqlens_k[s] … cu_seqlens_k[s+1]. It
sees nothing else, and causal and windows are aligned by its own two lengths. Packed attention is therefore a loop over
sequences; only a kernel has reason to do it in one launch.
"""

import numpy as np

from fa_ref import heads, inputs, torch_bridge
from fa_ref.options import check_choice, check_options


def forward(q, k, v, cu_seqlens_q, cu_seqlens_k, *, mask=None, bias=None, alibi_slopes=None, sink=None, **options):
    """Attention within each sequence. Returns the named tuple (out, lse).

    q (Hq, total_q, d), k (Hkv, total_k, d), v (Hkv, total_k, dv) → out (Hq, total_q, dv), lse (Hq, total_q).
    cu_seqlens_q, cu_seqlens_k: S + 1 whole numbers from 0 to total_q or total_k, never decreasing; a sequence may
    have length 0. mask and bias broadcast to (Hq, total_q, total_k); they are checked whole, and read in the blocks of
    the sequences; alibi_slopes (Hq,) or (S, Hq). All other options are those of `fa_ref.forward`. Raises as it does.
    """
    template = q
    q, k, v = torch_bridge.same_kind(q=q, k=k, v=v)
    sequences = cut(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alibi_slopes, sink, options)
    out = np.empty((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.empty(q.shape[:2], inputs.accumulator(q.dtype))
    for rows, cols, own in sequences:
        out_s, lse_s = heads.forward(q[None, :, rows], k[None, :, cols], v[None, :, cols], **own, **options)
        out[:, rows], lse[:, rows] = out_s[0], lse_s[0]
    return heads.Forward(torch_bridge.in_kind(out, template), torch_bridge.in_kind(lse, template))


def backward(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *, dlse=None, mask=None, bias=None,
             alibi_slopes=None, sink=None, **options):
    """Gradients of `forward`. Returns the named tuple (dq, dk, dv, dbias, dsink), shaped like what they belong to.

    dout and out (Hq, total_q, dv), lse and dlse (Hq, total_q); everything else as in `forward`.
    """
    template = q
    dout, q, k, v, out, lse, dlse = torch_bridge.same_kind(
        optional="dlse", dout=dout, q=q, k=k, v=v, out=out, lse=lse, dlse=dlse)
    sequences = cut(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alibi_slopes, sink, options)
    wide = inputs.accumulator(q.dtype)
    Hq, total_q, total_k = *q.shape[:2], k.shape[1]
    inputs.check_belongs("dout", dout, (Hq, total_q, v.shape[2]), q.dtype)
    inputs.check_belongs("out", out, (Hq, total_q, v.shape[2]), q.dtype)
    lse = inputs.check_lse(lse, (Hq, total_q), wide)
    if dlse is not None:
        dlse = inputs.check_statistics("dlse", dlse, (Hq, total_q), wide)

    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)   # every token belongs to a sequence
    dbias = None if bias is None else np.zeros((Hq, total_q, total_k), wide)
    dsink = None if sink is None else np.zeros(Hq, wide)
    for rows, cols, own in sequences:
        grads = heads.backward(
            dout[None, :, rows], q[None, :, rows], k[None, :, cols], v[None, :, cols], out[None, :, rows],
            lse[None, :, rows], dlse=None if dlse is None else dlse[None, :, rows], **own, **options)
        dq[:, rows], dk[:, cols], dv[:, cols] = grads.dq[0], grads.dk[0], grads.dv[0]
        if bias is not None:
            dbias[:, rows, cols] = grads.dbias
        if sink is not None:
            dsink += grads.dsink
    if bias is not None:
        bias = torch_bridge.to_numpy("bias", bias)
        dbias = sum_to(dbias[None], bias.shape).astype(bias.dtype)
    if sink is not None:
        dsink = dsink.astype(torch_bridge.to_numpy("sink", sink).dtype)
    return heads.Gradients(*(torch_bridge.in_kind(x, template) for x in (dq, dk, dv, dbias, dsink)))


def cut(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alibi_slopes, sink, options):
    """Check everything, before the first sequence; then per sequence: its rows, its cols, and its part of the options.

    bias and sink come in the accumulator dtype, so that their gradients are rounded once, after all sequences.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"packed {name} must have 3 axes (heads, tokens, head dim), got shape {x.shape}")
    sizes = inputs.check_qkv(q[None], k[None], v[None])
    cu_q = inputs.check_cu_seqlens("cu_seqlens_q", cu_seqlens_q, sizes.Nq)
    cu_k = inputs.check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, sizes.Nk)
    if len(cu_q) != len(cu_k):
        raise ValueError(f"cu_seqlens_q names {len(cu_q) - 1} sequences, cu_seqlens_k names {len(cu_k) - 1}")
    S = len(cu_q) - 1
    check_choice("algorithm", options.get("algorithm", "fa2"), heads.ALGORITHMS)
    others = {name: x for name, x in options.items() if name != "algorithm"}
    checked = check_options(sizes, q.dtype, mask=mask, bias=bias, sink=sink, **others)
    slopes = check_options(sizes._replace(B=S), q.dtype, alibi_slopes=alibi_slopes).alibi_slopes

    sequences = []
    for s in range(S):
        rows, cols = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        own = {"mask": None if mask is None else checked.mask[0, :, rows, cols],
               "bias": None if bias is None else checked.bias[0, :, rows, cols].astype(inputs.accumulator(q.dtype)),
               "alibi_slopes": None if alibi_slopes is None else slopes[s], "sink": checked.sink}
        sequences.append((rows, cols, own))
    return sequences


def sum_to(x, shape):
    """x (1, Hq, total_q, total_k) summed over the axes along which an array of this shape was broadcast."""
    lead = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(a for a in range(x.ndim) if lead[a] == 1)
    return x.sum(axis=axes).reshape(shape)
