"""From one head to a batch: the loops over batch and heads, grouped heads, the sink, the gradient of a bias.

A query head h uses the key/value head h // (Hq / Hkv), and dK, dV of that head are the sums over its group. The cores
know nothing of any of this; they get one head and its Rule.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from fa_ref import fa1, fa2, fa3, inputs, standard, torch_bridge
from fa_ref.base_two import refuse_base_two
from fa_ref.online_softmax import finite_or_zero, merge, nonzero_or_one
from fa_ref.options import check_choice, check_options
from fa_ref.scores import Rule

ALGORITHMS = {"standard": standard, "fa1": fa1, "fa2": fa2, "fa3": fa3}


class Forward(NamedTuple):
    """out (B, Hq, Nq, dv) in the dtype of q, lse (B, Hq, Nq) in float32 (float64 for float64 input)."""

    out: np.ndarray
    lse: np.ndarray


class Gradients(NamedTuple):
    """dq, dk, dv shaped and typed like q, k, v; dbias like bias and dsink (Hq,), each None if there was none."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None
    dsink: np.ndarray | None


def forward(q, k, v, *, algorithm="fa2", scale=None, causal=False, window=(-1, -1), mask=None, bias=None,
            alibi_slopes=None, softcap=None, sink=None, block_q=None, block_k=None, reverse=False):
    """Attention of a batch. Returns the named tuple (out, lse).

    q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv): NumPy arrays or torch tensors (detached: no graph is
    recorded) of one dtype out of float64, float32, float16, bfloat16; the results come back in kind. Lengths may be
    0, Hq must be a multiple of Hkv.

    algorithm     "standard", "fa1", "fa2" or "fa3"; the answer is the same up to rounding
    scale         factor of q·k, any finite number; None is 1/√d
    causal        query i sees key j iff j ≤ i + Nk − Nq (bottom-right)
    window        (left, right): it sees keys from i + Nk − Nq − left to i + Nk − Nq + right; −1 is unlimited
    mask          bool, True = visible, or float, added to the scores without a gradient
    bias          float, added to the scores; like mask it broadcasts to (B, Hq, Nq, Nk), and −inf hides a key
    alibi_slopes  (Hq,) or (B, Hq): adds −slope·|i + Nk − Nq − j|
    softcap       c > 0 turns scaled scores s into c·tanh(s/c) before bias and masks; None or 0 is off
    sink          (Hq,): one more logit per head in the denominator, and in lse
    block_q, block_k  tile sizes Br, Bc ≥ 1 (default 64); reverse walks the keys from last to first

    lse (B, Hq, Nq) is the natural log of Σ exp of the final scores. A row that sees no key has out 0 and lse −inf
    (or the sink). A key that no query of the head may see has no influence, even if it holds NaN. There is no dropout.
    Raises ValueError or TypeError, before anything is computed, for input that does not fit; the text has the numbers.
    """
    core = ALGORITHMS[check_choice("algorithm", algorithm, ALGORITHMS)]
    template = q
    q, k, v = torch_bridge.same_kind(q=q, k=k, v=v)
    sizes = inputs.check_qkv(q, k, v)
    options = check_options(
        sizes, q.dtype, scale=scale, causal=causal, window=window, mask=mask, bias=bias, alibi_slopes=alibi_slopes,
        softcap=softcap, sink=sink, block_q=block_q, block_k=block_k, reverse=reverse)

    out = np.empty((sizes.B, sizes.Hq, sizes.Nq, sizes.dv), q.dtype)
    lse = np.empty((sizes.B, sizes.Hq, sizes.Nq), inputs.accumulator(q.dtype))
    group = sizes.Hq // sizes.Hkv
    for b in range(sizes.B):
        for h in range(sizes.Hq):
            rule = head_rule(sizes, options, b, h)
            live_queries, live_keys = rule.reach()
            Q = zero_unless(live_queries, q[b, h])
            K, V = zero_unless(live_keys, k[b, h // group]), zero_unless(live_keys, v[b, h // group])
            O, *statistics = core.forward_head(Q, K, V, rule, options.block_q, options.block_k, options.reverse)
            L = log_sum_exp(*statistics)
            if options.sink is not None:
                O, L = merge(O, L, 0, options.sink[h])
            out[b, h], lse[b, h] = O, L
    return Forward(torch_bridge.in_kind(out, template), torch_bridge.in_kind(lse, template))


def backward(dout, q, k, v, out, lse, *, dlse=None, algorithm="fa2", scale=None, causal=False, window=(-1, -1),
             mask=None, bias=None, alibi_slopes=None, softcap=None, sink=None, block_q=None, block_k=None,
             reverse=False):
    """Gradients of a batch. Returns the named tuple (dq, dk, dv, dbias, dsink).

    dout (B, Hq, Nq, dv) is the gradient that reaches out, dlse (B, Hq, Nq) the one that reaches lse (None for none).
    out and lse are what `forward` returned for the same q, k, v and options; see there for all of these. Some of the
    keys, with the out and lse of all, give their part of the gradients; but "standard" wants all keys. dbias is
    summed to the bias's own shape. Raises as `forward` does, also for a dout, out or lse that does not belong, and for
    an lse of another convention: +inf for a row that sees no key, or base 2.
    """
    core = ALGORITHMS[check_choice("algorithm", algorithm, ALGORITHMS)]
    template = q
    dout, q, k, v, out, lse, dlse = torch_bridge.same_kind(
        optional="dlse", dout=dout, q=q, k=k, v=v, out=out, lse=lse, dlse=dlse)
    sizes = inputs.check_qkv(q, k, v)
    B, Hq, Hkv, Nq, Nk, _, dv_dim = sizes
    wide = inputs.accumulator(q.dtype)
    inputs.check_belongs("dout", dout, (B, Hq, Nq, dv_dim), q.dtype)
    inputs.check_belongs("out", out, (B, Hq, Nq, dv_dim), q.dtype)
    lse = inputs.check_lse(lse, (B, Hq, Nq), wide)
    if dlse is not None:
        dlse = inputs.check_statistics("dlse", dlse, (B, Hq, Nq), wide)
    options = check_options(
        sizes, q.dtype, scale=scale, causal=causal, window=window, mask=mask, bias=bias, alibi_slopes=alibi_slopes,
        softcap=softcap, sink=sink, block_q=block_q, block_k=block_k, reverse=reverse)
    refuse_base_two(q, k, v, out, lse, options.sink, partial(head_rule, sizes, options))

    dq, dk, dv = (np.zeros(x.shape, wide) for x in (q, k, v))
    dbias = None if bias is None else np.zeros(tuple(bias.shape), wide)
    dsink = None if sink is None else np.zeros(Hq, wide)
    group = Hq // Hkv
    for b in range(B):
        for h in range(Hq):
            rule = head_rule(sizes, options, b, h)
            live_queries, live_keys = rule.reach()
            Q, O, dO = (zero_unless(live_queries, x[b, h]) for x in (q, out, dout))
            K, V = zero_unless(live_keys, k[b, h // group]), zero_unless(live_keys, v[b, h // group])
            L, dL = lse[b, h], None if dlse is None else dlse[b, h]
            live_dL = None if dlse is None else np.where(live_queries, dL, 0)
            statistics = (np.ones_like(L), L) if core is fa1 else (L,)
            dB = None if bias is None else np.zeros((Nq, Nk), wide)
            dQ, dK, dV = core.backward_head(
                dO, Q, K, V, O, *statistics, rule, options.block_q, options.block_k, options.reverse, dL=live_dL,
                dB=dB)
            dq[b, h] = dQ
            dk[b, h // group] += dK
            dv[b, h // group] += dV
            if bias is not None:
                add_broadcast(dbias, dB, b, h)
            if sink is not None:
                dsink[h] += sink_gradient(options.sink[h], dO, O, L, dL, wide)
    grads = [x.astype(q.dtype) for x in (dq, dk, dv)]
    grads += [None if dbias is None else dbias.astype(torch_bridge.to_numpy("bias", bias).dtype)]
    grads += [None if dsink is None else dsink.astype(torch_bridge.to_numpy("sink", sink).dtype)]
    return Gradients(*(torch_bridge.in_kind(x, template) for x in grads))


def head_rule(sizes, options, b, h):
    """The Rule of query head h of batch entry b."""
    return Rule(
        sizes.Nq, sizes.Nk, scale=options.scale, causal=options.causal, window=options.window,
        mask=None if options.mask is None else options.mask[b, h],
        bias=None if options.bias is None else options.bias[b, h],
        alibi_slope=None if options.alibi_slopes is None else float(options.alibi_slopes[b, h]),
        softcap=options.softcap)


def zero_unless(live, X):
    """X (N, ·) with the rows that are not `live` (N,) set to zero by selection: 0·NaN is NaN, so never multiply.

    Contiguous (a copy if it must be), so that the last bits depend on values alone and never on strides.
    """
    return np.ascontiguousarray(X if live.all() else np.where(live[:, None], X, X.dtype.type(0)))


def log_sum_exp(*statistics):
    """L (Nq,) from what a core returned beside O: L itself, or (l, m) with L = m + log l."""
    if len(statistics) == 1:
        return statistics[0]
    l, m = statistics
    return m + np.log(nonzero_or_one(l))


def add_broadcast(total, part, b, h):
    """Add the (Nq, Nk) gradient of batch entry b, head h to `total`, which has the bias's own shape."""
    lead = (1,) * (4 - total.ndim) + total.shape
    index = (b if lead[0] > 1 else 0, h if lead[1] > 1 else 0)
    target = total.reshape(lead)[index]
    if lead[2] == 1:
        part = part.sum(axis=0, keepdims=True)
    if lead[3] == 1:
        part = part.sum(axis=1, keepdims=True)
    target += part


def sink_gradient(sink, dO, O, L, dL, wide):
    """d sink = −Σ_i exp(sink − L_i)·(rowsum(dO ∘ O)_i − dL_i): the sink is a key whose value is zero.

    Rows in which it has no weight are left out, whatever is in their dO and dL.
    """
    weight = np.exp(sink - finite_or_zero(L))
    rows = weight > 0
    D = (dO[rows].astype(wide) * O[rows].astype(wide)).sum(axis=1)
    D = D if dL is None else D - dL[rows]
    return -(weight[rows] * D).sum()
