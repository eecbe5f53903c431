"""How wrong may a right answer be? Element-wise bounds, computed from the oracle over the visible keys only.

For one query row i and each key j that it sees; n = Nk + group·Nq + d + dv is the length of all sums together:

    eps       spacing of the accumulator's numbers at 1 (float32; float64 for float64 inputs)
    u, tiny   rounding to the input dtype: relative, and absolute where its numbers end (2⁻²⁵ for float16)
    r = eps (4 + n/4)                         exp and the division; a running sum of n terms of one sign
    chain = 1 − t², t = tanh(scale q·k / softcap)                 without a softcap: 1
    T_j = eps (2 + d/8) |scale| Σ|q||k|       the product q·k, a sum of d terms, and the scale
    a_j = T chain + 2 eps (|capped| + |mask| + |bias| + |ALiBi|)  everything that is rounded in one score
    e_j = r + a_j + mean a + eps |lse|        error of log P: own score, those in the denominator, maximum or lse
    W_j = P expm1(e) + u P + tiny             of P, which is rounded before it meets V or dO
    |ΔO|   ≤ min(W, 1) |V|                    a share lies between 0 and 1
    |Δlse| ≤ r + mean a + eps |lse|           the mean is weighted by P
    |ΔD|   ≤ |dO| (bound of O)                D = rowsum(dO∘O) − dlse of the stored O; W holds r already
    |Δg|   ≤ r |dO||V| + |ΔD|                 g = dO Vᵀ − D, so that dS = P g
    E_j = W |g| + (P + W) |Δg| + u |dS|       of dS, which is rounded before its products
    F_j = |scale| (E chain + C) + (1 + |scale|) tiny          of scale·chain·dS, rounded before or after it is scaled
    C = |dS| (4 eps + 2 |t| chain T / softcap)                of the chain; without a softcap: 0
    |ΔdV| ≤ Wᵀ |dO|,  |ΔdQ| ≤ F |K|,  |ΔdK| ≤ Fᵀ |Q|
    |Δdbias| ≤ E + tiny, summed like dbias
    |Δdsink| ≤ Σ W |D| + (P + W) |ΔD|         P, e as above for a key with a = eps |sink|; W = P expm1(e) + tiny, since
                                              the share of the sink meets no V and is not rounded

At last everything is rounded to the dtype it is stored in; dK and dV of grouped heads may be stored head by head
before they are summed. Where nothing is added up (an empty row, a key that nobody sees) the bound is 0: only 0 is
right. What may not fit in the dtype (float16 ends at 65504) has an infinite bound, and so has all that follows.

The constants are calibrated, not proved: over thousands of problems right code used up to 0.8 of a bound in float64
and float32 (in float64 the oracle's own rounding counts too), and up to 0.99 in 16 bits, where u and tiny, which are
exact, make up nearly all of it. `tests/test_tolerance.py` prints the table.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from fa_ref.testing import oracle
from fa_ref.testing.problem import GRADIENTS, Problem, Result

FIELDS = ("out", "lse", *GRADIENTS)
SURE = 100.0  # log P more wrong than this is as good as this: P may be anything, and exp stays finite


def bounds(problem: Problem, eps_acc: float | None = None) -> Result:
    """The largest error that rounding explains, for every element of every answer that the problem has.

    problem: inputs in float64, float32, float16 or bfloat16 (q's dtype is the storage dtype). eps_acc: spacing
    at 1 of the numbers that hold scores and sums; by default that of float32, for float64 inputs of float64.
    Returns a Result of float64 arrays; gradients are None if the problem has neither dout nor dlse.
    """
    group = problem.q.shape[1] // problem.k.shape[1]
    p = problem.replace(k=problem.k.repeat(group, axis=1), v=problem.v.repeat(group, axis=1))  # a KV head per head
    truth, dtype = oracle.solve(p), p.q.dtype
    u, tiny = rounding(dtype)
    if eps_acc is None:
        eps_acc = float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps)

    q, k, v, dout, dlse = map(oracle.wide, (p.q, p.k, p.v, p.dout, p.dlse))
    (B, Hq, Nq, d), (Nk, dv) = q.shape, v.shape[2:]
    scale = d**-0.5 if p.scale is None else abs(p.scale)
    r = eps_acc * (4 + (Nk + group * Nq + d + dv) / 4)
    sink = np.zeros(Hq) if p.sink is None else abs(oracle.wide(p.sink))
    dout, dlse = (np.zeros(y.shape) if x is None else x for x, y in ((dout, truth.out), (dlse, truth.lse)))

    out, lse = np.zeros(truth.out.shape), np.zeros(truth.lse.shape)
    dQ, dK, dV = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dS, dsink = np.zeros((B, Hq, Nq, Nk)), np.zeros(Hq)
    for row in oracle.rows(p.q, p.k, **p.options):
        if row.lse == -np.inf:
            continue  # an empty row: exactly 0
        query, seen, P = (row.b, row.h, row.i), (row.b, row.h, row.keys), row.p
        Q, K, V, dO, O = abs(q[query]), abs(k[seen]), abs(v[seen]), abs(dout[query]), abs(truth.out[query])

        T = eps_acc * (2 + d / 8) * scale * (K @ Q)
        a = T * row.chain + 2 * eps_acc * (abs(row.capped) + sum(map(abs, row.added)))
        mean = P @ a / P.sum() if P.any() else 0.0
        rest = r + mean + eps_acc * abs(row.lse)
        W = P * np.expm1(np.minimum(rest + a, SURE)) + u * P + tiny
        out[query] = rounded(np.minimum(W, 1) @ V, O, dtype)
        lse[query] = rest
        if truth.dq is None:
            continue

        D = dout[query] @ truth.out[query] - dlse[query]
        dD = dO @ out[query]
        g, dg = abs(v[seen] @ dout[query] - D), r * (V @ dO) + dD
        E = W * g + (P + W) * dg + u * P * g
        F = E * row.chain
        if p.softcap:
            F += P * g * (4 * eps_acc + 2 * abs(row.capped) / p.softcap * row.chain * T / p.softcap)
        F = scale * F + (1 + scale) * tiny
        lost = max(1, scale) * P * g + F > float(ml_dtypes.finfo(dtype).max)  # dS overflows, and inf - inf is NaN
        dQ[query] = np.inf if lost.any() else F @ K
        dK[seen] += np.where(lost[:, None], np.inf, np.outer(F, Q))
        dV[seen] += np.outer(W, dO)
        dS[row.b, row.h, row.i, row.keys] = E + tiny
        W_sink = row.p_sink * np.expm1(min(rest + eps_acc * sink[row.h], SURE)) + tiny
        dsink[row.h] += W_sink * abs(D) + (row.p_sink + W_sink) * dD
    if truth.dq is None:
        return Result(out, lse)

    dQ, dK, dV = (rounded(x, y, dtype) for x, y in ((dQ, truth.dq), (dK, truth.dk), (dV, truth.dv)))
    if group > 1:
        dK, dV = (rounded(heads(x, group), heads(y, group), dtype) for x, y in ((dK, truth.dk), (dV, truth.dv)))
    dbias = None if p.bias is None else rounded(oracle.sum_to(dS, p.bias.shape), truth.dbias, p.bias.dtype)
    return Result(out, lse, dQ, dK, dV, dbias, None if p.sink is None else rounded(dsink, truth.dsink, p.sink.dtype))


def heads(x: np.ndarray, group: int) -> np.ndarray:
    """x (B, Hq, ...) summed over groups of heads, (B, Hkv, ...)."""
    return np.stack([x[:, h : h + group].sum(axis=1) for h in range(0, x.shape[1], group)], axis=1)


def rounding(dtype) -> tuple[float, float]:
    """The error of rounding to dtype: relative, and absolute near 0, where numbers may be flushed to 0."""
    numbers = ml_dtypes.finfo(dtype)
    flushed = np.finfo(np.float64 if dtype == np.float64 else np.float32).tiny
    return float(numbers.eps) / 2, max(float(numbers.smallest_subnormal) / 2, float(flushed))


def rounded(bound: np.ndarray, truth: np.ndarray, dtype) -> np.ndarray:
    """The bound after one more rounding, to dtype; infinite where the number may not fit."""
    u, tiny = rounding(dtype)
    bound = np.where(bound > 0, bound + u * (abs(truth) + bound) + tiny, 0)
    return np.where(abs(truth) + bound > float(ml_dtypes.finfo(dtype).max), np.inf, bound)


class Worst(NamedTuple):
    """The largest error of one field as a fraction of its bound, and where; index None in an array of no elements."""

    fraction: float
    index: tuple[int, ...] | None


def worst(result, truth, bound) -> dict[str, Worst]:
    """Per field that result, truth and bound all have: the largest |result - truth| / bound.

    Equal infinities count as no error and NaN as an infinite one. A bound of 0 demands equality, an infinite one
    allows everything. ValueError if a shape of the result is not that of the truth.
    """
    found = {}
    for name in FIELDS:
        x, y, b = (getattr(z, name) for z in (result, truth, bound))
        if x is None or y is None or b is None:
            continue
        if np.shape(x) != y.shape:
            raise ValueError(f"{name} must have shape {y.shape}, got {np.shape(x)}")
        f = fractions(error(x, y), b)
        index = None if f.size == 0 else tuple(int(n) for n in np.unravel_index(f.argmax(), f.shape))
        found[name] = Worst(0.0 if index is None else float(f[index]), index)
    return found


def error(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|x - y| in float64: 0 between equal infinities, NaN where either is NaN."""
    x, y = np.asarray(x).astype(np.float64), np.asarray(y).astype(np.float64)
    with np.errstate(over="ignore"):
        return abs(np.subtract(x, y, where=x != y, out=np.zeros(x.shape)))


def fractions(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """error / bound by the rules of `worst`."""
    f = np.where((error == 0) | np.isinf(bound), 0.0, np.inf)
    with np.errstate(over="ignore"):
        return np.divide(error, bound, where=(f > 0) & (bound > 0) & ~np.isnan(error), out=f)
