"""The judge: attention and its gradients in float64, one query row at a time.

It shares no code with what it judges. Each row lists the keys it sees, takes the softmax over those keys and
nothing else, and never reads a hidden key. All inputs are NumPy arrays (bfloat16 is widened exactly) and are
taken to be valid; the options mean what `fa_ref.forward` says:

    scores = c tanh(scale q.k / c) + mask + bias - slope |i + Nk - Nq - j|        (c only with softcap)

Letters: b batch, h query head, g its KV head, i query row, j key.
"""

import math
from collections import namedtuple
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# out (B, Hq, Nq, dv) and lse (B, Hq, Nq); gradients in the shapes of their inputs, None for an input that is not there
Forward = namedtuple("Forward", "out lse")
Backward = namedtuple("Backward", "dq dk dv dbias dsink")
Answer = namedtuple("Answer", Forward._fields + Backward._fields)


class Row(NamedTuple):
    """One query row. The arrays have one entry for each key that the row sees."""

    b: int
    h: int
    i: int
    g: int
    keys: np.ndarray  # the visible j, ascending
    capped: np.ndarray  # c tanh(scale q.k / c), or scale q.k
    chain: np.ndarray  # the derivative of capped with respect to scale q.k
    added: list[np.ndarray]  # mask, bias and ALiBi, those that are given
    p: np.ndarray  # softmax over the visible keys (and the sink)
    p_sink: float  # what the sink takes of it, 0 without one
    lse: float


def visible(i: int, Nq: int, Nk: int, causal: bool, window: tuple[int, int], added: list) -> list[int]:
    """The keys that query row i sees; `added` holds the row's mask and bias as lists, where -inf hides."""
    here = i + Nk - Nq  # the last query stands at the last key
    left, right = window
    return [
        j
        for j in range(Nk)
        if (not causal or j <= here)
        and (left == -1 or j >= here - left)
        and (right == -1 or j <= here + right)
        and all(x[j] != -math.inf for x in added)
    ]


def softmax(logits: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights and log-sum-exp of the logits; no logit above -inf means weights 0 and -inf."""
    m = logits.max(initial=-math.inf)
    if m == -math.inf:
        return np.zeros(len(logits)), -math.inf
    weights = np.exp(logits - m)
    return weights / weights.sum(), float(m + math.log(weights.sum()))


def rows(q, k, *, scale=None, causal=False, window=(-1, -1), mask=None, bias=None, alibi_slopes=None,
         softcap=None, sink=None) -> Iterator[Row]:  # fmt: skip
    """Every query row of q (B, Hq, Nq, d) against k (B, Hkv, Nk, d), in order."""
    q, k, mask, bias, alibi_slopes, sink = map(wide, (q, k, mask, bias, alibi_slopes, sink))
    B, Hq, Nq, d = q.shape
    _, Hkv, Nk, _ = k.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    tables = [np.broadcast_to(x, (B, Hq, Nq, Nk)) for x in (mask, bias) if x is not None]
    if alibi_slopes is not None:
        alibi_slopes = np.broadcast_to(alibi_slopes, (B, Hq))
    for b, h, i in np.ndindex(B, Hq, Nq):
        g = h // (Hq // Hkv)
        keys = np.array(visible(i, Nq, Nk, causal, window, [x[b, h, i].tolist() for x in tables]), dtype=int)
        capped, chain = scale * (k[b, g, keys] @ q[b, h, i]), np.ones(len(keys))
        if softcap:
            t = np.tanh(capped / softcap)
            capped, chain = softcap * t, 1 - t**2
        added = [x[b, h, i, keys] for x in tables]
        if alibi_slopes is not None:
            added.append(-alibi_slopes[b, h] * np.abs(i + Nk - Nq - keys))
        scores = capped + sum(added)
        weights, lse = softmax(scores if sink is None else np.append(scores, sink[h]))
        p, p_sink = weights[: len(keys)], 0.0 if sink is None else weights[-1]
        yield Row(b, h, i, g, keys, capped, chain, added, p, p_sink, lse)


def forward(q, k, v, **options) -> Forward:
    """out and lse. A row that sees no key has out 0 and lse -inf (with a sink: lse = sink)."""
    v = wide(v)
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
    for r in rows(q, k, **options):
        out[r.b, r.h, r.i] = r.p @ v[r.b, r.g, r.keys]
        lse[r.b, r.h, r.i] = r.lse
    return Forward(out, lse)


def backward(dout, q, k, v, *, dlse=None, scale=None, bias=None, sink=None, **options) -> Backward:
    """Gradients of sum(out * dout) + sum(lse * dlse). A row that sees no key gives its dlse to the sink."""
    dout, dlse, q, k, v, bias, sink = map(wide, (dout, dlse, q, k, v, bias, sink))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dscores, dsink = np.zeros((*q.shape[:3], k.shape[2])), np.zeros(q.shape[1])
    for r in rows(q, k, scale=scale, bias=bias, sink=sink, **options):
        query, seen = (r.b, r.h, r.i), (r.b, r.g, r.keys)
        dp = v[seen] @ dout[query]  # (keys,)
        change = (0 if dlse is None else dlse[query]) - r.p @ dp  # what every logit of the row gets
        ds = r.p * (dp + change)
        dproduct = scale * ds * r.chain
        dq[query] = dproduct @ k[seen]
        dk[seen] += np.outer(dproduct, q[query])
        dv[seen] += np.outer(r.p, dout[query])
        dscores[r.b, r.h, r.i, r.keys] = ds
        dsink[r.h] += r.p_sink * change
    dbias = None if bias is None else sum_to(dscores, bias.shape)
    return Backward(dq, dk, dv, dbias, None if sink is None else dsink)


def solve(problem) -> Answer:
    """All answers to a `Problem`; the gradients are None if it has neither dout nor dlse."""
    arrays = (problem.q, problem.k, problem.v)
    out, lse = forward(*arrays, **problem.options)
    if problem.dout is None and problem.dlse is None:
        return Answer(out, lse, *[None] * 5)
    dout = np.zeros(out.shape) if problem.dout is None else problem.dout
    return Answer(out, lse, *backward(dout, *arrays, dlse=problem.dlse, **problem.options))


def wide(x) -> np.ndarray | None:
    """x in float64, exactly; a boolean mask as 0 where True and -inf where False."""
    if x is None:
        return None
    x = np.asarray(x)
    return np.where(x, 0.0, -np.inf) if x.dtype == bool else x.astype(np.float64)


def sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Undo broadcasting: sum x over the axes along which `shape` was stretched to x.shape."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(a for a, n in enumerate(shape) if n == 1), keepdims=True)
