"""How wrong may a right answer be? Element-wise bounds, computed from the oracle over the visible keys only.

For one query row and each key j that it sees; n = Nk + group·Nq + d + dv is the length of all sums together:

    eps       spacing of the accumulator's numbers at 1 (float32; float64 for float64 inputs)
    u, tiny   rounding to the input dtype: relative, and absolute where its numbers end (2^-25 for float16)
    r = eps (4 + n/4)                  exp and the division; a running sum of n terms of one sign
    T_j = (2 + d/8)  |scale| Σ|q||k|   the product q·k, a sum of d terms, and the scale
    a_j = T chain + 2 (|capped| + |mask| + |bias| + |ALiBi|)      everything that is rounded in one score
    e_j = r + eps (a_j + mean a + |lse|)     error of log P: own score, those in the denominator, maximum or lse
    W_j = P expm1(e) + u P + tiny            of P, which is rounded before it meets V or dO
    |ΔO|   ≤ min(W, 1) |V|                   a share is between 0 and 1
    |Δlse| ≤ r + eps (mean a + |lse|)
    |Δg|   ≤ r (|dO||V| + |dO||O| + |dlse|) + |dO| (bound of O)
                                             g = dO Vᵀ − D + dlse with D = rowsum(dO∘O) of the stored O; dS = P g
    E_j = W |g| + (P + W) |Δg| + u |dS| + tiny      of dS, which is rounded before its products
    F_j = |scale| (E chain + |dS| eps (4 + 2 |t| chain T / softcap)) + (1 + |scale|) tiny
                                             of scale dS (1 − t²), t = tanh(scale q·k / softcap); it may be
                                             rounded before or after it is scaled
    |ΔdV| ≤ Wᵀ |dO|,  |ΔdQ| ≤ F |K|,  |ΔdK| ≤ Fᵀ |Q|,  |Δdbias| ≤ E, summed like dbias
    |Δdsink| ≤ Σ (Psink expm1(e) + tiny) |g| + Psink |Δg|   with a, V = |sink|, 0

At last everything is rounded to the dtype it is stored in; what may not fit there has an infinite bound. Where
nothing is added up (an empty row, a key that nobody sees) the bound is 0: only 0 is right.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from fa_ref.testing import oracle
from fa_ref.testing.problem import GRADIENTS, Problem, Result

FIELDS = ("out", "lse", *GRADIENTS)
SURE = 100.0  # an error of log P beyond this counts as this: P may be anything, and exp stays finite


def bounds(problem: Problem, eps_acc: float | None = None) -> Result:
    """The largest error that rounding explains, for every element of every answer that the problem has.

    problem: inputs in float64, float32, float16 or bfloat16 (q's dtype is the storage dtype). eps_acc: spacing
    of the numbers in which scores and sums are held; by default that of float32, for float64 inputs of float64.
    Returns a Result of float64 arrays; gradients are None if the problem has neither dout nor dlse.
    """
    wide = np.float64 if problem.q.dtype == np.float64 else np.float32
    eps = float(np.finfo(wide).eps) if eps_acc is None else eps_acc
    u, tiny = rounding(problem.q.dtype)

    q, k, v, sink = map(oracle.wide, (problem.q, problem.k, problem.v, problem.sink))
    (B, Hq, Nq, d), (_, Hkv, Nk, dv) = q.shape, v.shape
    scale = d**-0.5 if problem.scale is None else abs(problem.scale)
    r = eps * (4 + (Nk + Hq // Hkv * Nq + d + dv) / 4)
    truth = oracle.solve(problem)
    backward = truth.dq is not None
    dout = np.zeros(truth.out.shape) if problem.dout is None else oracle.wide(problem.dout)
    dlse = np.zeros(truth.lse.shape) if problem.dlse is None else oracle.wide(problem.dlse)

    out, lse = np.zeros(truth.out.shape), np.zeros(truth.lse.shape)
    dQ, dK, dV = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dS, dsink = np.zeros((B, Hq, Nq, Nk)), np.zeros(Hq)
    for row in oracle.rows(problem.q, problem.k, **problem.options):
        if row.lse == -np.inf:
            continue  # an empty row: exactly 0
        query, seen, P = (row.b, row.h, row.i), (row.b, row.g, row.keys), row.p
        absQ, absK, absV = abs(q[query]), abs(k[seen]), abs(v[seen])

        T = (2 + d / 8) * scale * (absK @ absQ)
        a = T * row.chain + 2 * (abs(row.capped) + sum(map(abs, row.added)))
        mean = P @ a / P.sum() if P.any() else 0.0
        e = r + eps * (a + mean + abs(row.lse))
        W = P * np.expm1(np.minimum(e, SURE)) + u * P + tiny
        out[query] = rounded(np.minimum(W, 1) @ absV, truth.out[query], problem.q.dtype)
        lse[query] = r + eps * (mean + abs(row.lse))

        if not backward:
            continue
        dO, D = dout[query], dout[query] @ truth.out[query]
        absdO = abs(dO)
        dD = absdO @ out[query] + r * (absdO @ abs(truth.out[query]) + abs(dlse[query]))
        dg = r * (absV @ absdO) + dD
        g = v[seen] @ dO - D + dlse[query]
        E = W * abs(g) + (P + W) * dg + u * P * abs(g) + tiny
        F = E * row.chain
        if problem.softcap:
            t = abs(row.capped) / problem.softcap
            F += P * abs(g) * eps * (4 + 2 * t * row.chain * T / problem.softcap)
        F = scale * F + (1 + scale) * tiny
        dQ[query] = F @ absK
        dK[seen] += np.outer(F, absQ)
        dV[seen] += np.outer(W, absdO)
        dS[row.b, row.h, row.i, row.keys] = E
        if sink is not None:
            e_sink = r + eps * (abs(sink[row.h]) + mean + abs(row.lse))
            W_sink = row.p_sink * np.expm1(min(e_sink, SURE)) + tiny
            dsink[row.h] += W_sink * abs(dlse[query] - D) + (row.p_sink + W_sink) * dD
    if not backward:
        return Result(out, lse)
    dQ, dK, dV = (rounded(x, y, problem.q.dtype) for x, y in ((dQ, truth.dq), (dK, truth.dk), (dV, truth.dv)))
    if problem.bias is not None:
        dbias = rounded(oracle.sum_to(dS, problem.bias.shape), truth.dbias, problem.bias.dtype)
    if sink is not None:
        dsink = rounded(dsink, truth.dsink, problem.sink.dtype)
    return Result(out, lse, dQ, dK, dV, None if problem.bias is None else dbias, None if sink is None else dsink)


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

    Equal infinities count as no error and NaN as infinite. A bound of 0 demands equality; an infinite one
    allows everything but NaN. ValueError if a shape of the result is not that of the truth.
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
    f = np.where((error == 0) | (np.isinf(bound) & ~np.isnan(error)), 0.0, np.inf)
    with np.errstate(over="ignore"):
        return np.divide(error, bound, where=(f > 0) & (bound > 0), out=f, dtype=np.float64)
