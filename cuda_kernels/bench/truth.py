"""Is the answer right? The rule of two errors of `fa_ref.testing.standard_16bit`, in torch, on a few heads of a batch.

    max|answer − truth| ≤ 2 max|standard in 16 bits − truth| + 2 max|(x + 0.3 − 0.3) − x|,    x = truth, stored

At 16,384 tokens NumPy would take minutes; this runs where the tensors are, some queries at a time.
"""

import math
from typing import NamedTuple

import torch

ROWS = 2048                                                         # queries at a time


class Yardstick(NamedTuple):
    """What is true of the heads that are looked at, and how far from it an answer may be."""

    heads: list                 # [(b, h)]
    truth: list                 # of each a tensor (N, d), float64
    allowed: float


def yardstick(q, k, v, causal):
    """The Yardstick of a problem in 16 bits: q (B, H, N, d), k, v (B, Hkv, N, d)."""
    B, H, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    heads = list(dict.fromkeys([(0, 0), (B - 1, H - 1)]))
    return gathered(heads, [of_head(q[b, h], k[b, h // group], v[b, h // group], causal) for b, h in heads])


def gathered(heads, found):
    """The Yardstick of these heads, from what `compared` returns of each."""
    truths, plain, noise = zip(*found, strict=True)
    return Yardstick(heads, list(truths), 2 * max(plain) + 2 * max(noise))


def of_head(q, k, v, causal):
    """(the truth (N, d) in float64, how far from it standard attention in 16 bits is, the noise of rounding it)."""
    return compared(standard(q, k, v, causal, torch.float64, torch.float64),
                    standard(q, k, v, causal, torch.float32, q.dtype))


def compared(truth, plain):
    """(the truth, how far from it is what was computed in 16 bits, the noise of rounding the truth to these)."""
    x = truth.to(plain.dtype)
    third = torch.tensor(0.3, dtype=x.dtype, device=x.device)
    return truth, error(plain, truth), error((x + third) - third, x)


def standard(q, k, v, causal, wide, stored):
    """Standard attention of one head, q, k, v (N, d), summed up in `wide`; P and O are kept in `stored`."""
    q, k, v = (x.to(wide) for x in (q, k, v))
    parts = []
    for row0 in range(0, len(q), ROWS):
        P = probabilities(q[row0:row0 + ROWS], k, row0, causal).to(stored).to(wide)
        parts.append((P @ v).to(stored))
    return torch.cat(parts)


def probabilities(q, k, row0, causal):
    """P of the queries from row0 on, as many as q has."""
    S = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        S.masked_fill_(torch.ones_like(S, dtype=torch.bool).triu(row0 + 1), -math.inf)
    return S.softmax(dim=1)


def error(x, y):
    """The largest |x − y|; infinite if a NaN is among them."""
    found = (x.double() - y.double()).abs().max().item()
    return math.inf if math.isnan(found) else found


def error_of(out, known):
    """The largest error of an answer (B, H, N, d) in the heads that a Yardstick knows."""
    return max(error(out[b, h], truth) for (b, h), truth in zip(known.heads, known.truth, strict=True))
