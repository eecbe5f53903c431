"""Are the gradients right? What `truth` says of O, said of dQ, dK and dV, each with a limit of its own.

A key/value head gets its gradients from all query heads of its group, so the first and the last group are looked at.
"""

import math

import torch

from cuda_kernels.bench.truth import ROWS, compared, error_of, gathered, probabilities


def yardsticks(q, k, v, dout, causal):
    """The `truth.Yardstick` of dQ, of dK, of dV, in 16 bits: q, dout (B, H, N, d), k, v (B, Hkv, N, d)."""
    B, Hkv, group = q.shape[0], k.shape[1], q.shape[1] // k.shape[1]
    groups, found = list(dict.fromkeys([(0, 0), (B - 1, Hkv - 1)])), ([], [], [])
    for b, g in groups:
        heads = slice(g * group, (g + 1) * group)
        mine = q[b, heads], k[b, g], v[b, g], dout[b, heads], causal
        truths = standard(*mine, torch.float64, torch.float64)
        plain = standard(*mine, torch.float32, q.dtype)
        for of_one, x, y in zip(found, truths, plain, strict=True):
            of_one += map(compared, x, y)
    heads = [(b, g * group + n) for b, g in groups for n in range(group)]
    return [gathered(places, of_one) for places, of_one in zip((heads, groups, groups), found, strict=True)]


def standard(q, k, v, dout, causal, wide, stored):
    """dQ (group, N, d), dK, dV (1, N, d) by standard attention of one group: q, dout (group, N, d), k, v (N, d).

    Summed up in `wide`; P, O, dS and the gradients are kept in `stored`, as in `fa_ref.testing.standard_16bit` with
    round_scores=False.
    """
    q, k, v, dout = (x.to(wide) for x in (q, k, v, dout))
    scale = 1 / math.sqrt(q.shape[2])
    dQ, dK, dV = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for h in range(len(q)):
        for row0 in range(0, len(k), ROWS):
            rows = slice(row0, row0 + ROWS)
            Qi, dOi = q[h, rows], dout[h, rows]
            P = probabilities(Qi, k, row0, causal).to(stored).to(wide)
            D = (dOi * (P @ v).to(stored)).sum(dim=1, keepdim=True)
            dS = (P * (dOi @ v.T - D)).to(stored).to(wide)
            dQ[h, rows] = scale * (dS @ k)
            dK += scale * (dS.T @ Qi)
            dV += P.T @ dOi
    return [x.to(stored) for x in (dQ, dK[None], dV[None])]


def worst(answers, known):
    """(error, what is allowed) of the gradient that is nearest to its limit, or farthest beyond it."""
    pairs = [(error_of(x, yardstick), yardstick.allowed) for x, yardstick in zip(answers, known, strict=True)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])
