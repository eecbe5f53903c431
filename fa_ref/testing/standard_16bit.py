"""The yardstick for 16-bit kernels at realistic sizes: standard attention with every matrix kept in 16 bits.

A kernel is measured against plain attention in its own number format: S, P, dP and dS are summed in float32 and then
stored in 16 bits, because a matrix unit reads 16 bits. The kernel may be twice as far from the truth as that, plus
twice the rounding noise of its own output:

    max|kernel - truth| ≤ 2 max|standard_16bit - truth| + 2 max|(x + 0.3 - 0.3) - x|,    x = truth as it is stored

This is the rule of the tests of the official FlashAttention kernels, and it needs thousands of elements to mean
anything. Everything here is vectorised, so lengths of a few thousand are fine. `tolerance.bounds` is sharper: it judges
element by element, so that a fault in small numbers is not hidden behind large ones, but it goes row by row.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from fa_ref.testing import oracle
from fa_ref.testing.problem import Problem, Result
from fa_ref.testing.tolerance import FIELDS, bounds, error
from fa_ref.testing.unread import clean_unread

STORAGE = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def standard_16bit(problem: Problem, round_scores: bool = True) -> Result:
    """Standard attention on 16-bit matrices: out, dq, dk, dv in the input dtype, lse and dsink in float32.

    round_scores: S is stored in 16 bits too, as it must be where it goes through memory; False keeps S and dP in
    float32, as a fused kernel does (a stricter yardstick, and the one to use where scores exceed 65504 in float16).
    ValueError if the problem is neither float16 nor bfloat16.
    """
    dtype = problem.q.dtype
    if dtype not in STORAGE:
        raise ValueError(f"standard_16bit is for float16 and bfloat16, got {dtype}")

    def stored(x):
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(np.float32)

    r = attention(problem, np.float32, stored, stored if round_scores else lambda x: x)
    out, dq, dk, dv = (None if x is None else x.astype(dtype) for x in (r.out, r.dq, r.dk, r.dv))
    return Result(out, r.lse, dq, dk, dv, None if r.dbias is None else r.dbias.astype(problem.bias.dtype), r.dsink)


def float64_truth(problem: Problem) -> Result:
    """What `oracle.solve` says, vectorised: for sizes at which rows in a Python loop take too long."""
    return attention(problem, np.float64, lambda x: x, lambda x: x)


def attention(problem: Problem, wide: type, stored: Callable, scored: Callable) -> Result:
    """Standard attention in `wide`; `stored` is what memory keeps of P, dS and the answers, `scored` of S and dP."""
    problem = clean_unread(problem)
    visible, added = terms(problem)
    (B, Hq, _, d), Hkv = problem.q.shape, problem.k.shape[1]
    group = Hq // Hkv
    q = problem.q.astype(wide)
    k, v = (np.repeat(x.astype(wide), group, axis=1) for x in (problem.k, problem.v))
    scale = wide(1 / math.sqrt(d) if problem.scale is None else problem.scale)

    S, chain = scored(scale * (q @ k.mT)), wide(1)
    if problem.softcap:
        t = np.tanh(S / wide(problem.softcap))
        S, chain = scored(wide(problem.softcap) * t), 1 - t * t
    S = np.where(visible, scored(S + added.astype(wide)), wide(-np.inf))
    sink = None if problem.sink is None else problem.sink.astype(wide)[:, None]  # (Hq, 1)

    m = S.max(axis=3, initial=-np.inf) if sink is None else np.maximum(S.max(axis=3, initial=-np.inf), sink)
    shift = np.where(m == -np.inf, wide(0), m)  # an empty row: exp(-inf - 0) = 0
    P = np.exp(S - shift[..., None])
    P_sink = np.zeros(1, wide) if sink is None else np.exp(sink - shift)
    l = P.sum(axis=3) + P_sink
    lse = np.log(l, where=l > 0, out=np.zeros_like(l)) + m
    l = np.where(l > 0, l, wide(1))
    P, P_sink = stored(P / l[..., None]), P_sink / l
    out = stored(P @ v)
    if problem.dout is None and problem.dlse is None:
        return Result(out, lse)

    dO = np.zeros_like(out) if problem.dout is None else problem.dout.astype(wide)
    dlse = wide(0) if problem.dlse is None else problem.dlse.astype(wide)
    dP = scored(dO @ v.mT)
    change = dlse - (dO * out).sum(axis=3)  # D from the stored O
    dS = stored(P * (dP + change[..., None]))
    dX = stored(chain * dS)
    dq = stored(scale * (dX @ k))
    dk, dv = (stored(x.reshape(B, Hkv, group, *x.shape[2:]).sum(axis=2))
              for x in (scale * (dX.mT @ q), P.mT @ dO))  # fmt: skip
    dbias = None if problem.bias is None else oracle.sum_to(dS, problem.bias.shape)
    dsink = None if sink is None else (P_sink * change).sum(axis=(0, 2))
    return Result(out, lse, dq, dk, dv, dbias, dsink)


def terms(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Which keys are visible, bool, and what is added to the scores (finite), both (B, Hq, Nq, Nk)."""
    B, Hq, Nq, _ = problem.q.shape
    Nk = problem.k.shape[2]
    here, j = np.arange(Nq)[:, None] + Nk - Nq, np.arange(Nk)
    left, right = problem.window
    visible = np.full((B, Hq, Nq, Nk), True)
    visible &= (not problem.causal) | (j <= here)
    visible &= (left == -1) | (j >= here - left)
    visible &= (right == -1) | (j <= here + right)
    added = np.zeros((B, Hq, Nq, Nk))
    for x in (problem.mask, problem.bias):
        if x is not None:
            visible &= oracle.wide(x) != -np.inf
            added += np.where(oracle.wide(x) == -np.inf, 0, oracle.wide(x))
    if problem.alibi_slopes is not None:
        added -= oracle.wide(problem.alibi_slopes)[..., None, None] * abs(here - j)
    return visible, added


class Verdict(NamedTuple):
    ok: bool
    error: float  # max|answer - truth|
    allowed: float


def two_errors(answer, truth, problem: Problem, round_scores: bool = True) -> dict[str, Verdict]:
    """The rule above for every field that answer and truth have; NaN is never ok.

    answer: what the kernel gave; truth: `oracle.solve(problem)` or `float64_truth(problem)`. ValueError if a shape
    of the answer is not that of the truth.
    """
    limits, verdicts = allowed(problem, truth, round_scores), {}
    for name in FIELDS:
        x, y, limit = (getattr(r, name) for r in (answer, truth, limits))
        if x is None or y is None:
            continue
        if np.shape(x) != y.shape:
            raise ValueError(f"{name} must have shape {y.shape}, got {np.shape(x)}")
        found = error(x, y)
        verdicts[name] = Verdict(bool((found <= limit).all()), *(float(e.max(initial=0)) for e in (found, limit)))
    return verdicts


def allowed(problem: Problem, truth=None, round_scores: bool = True) -> Result:
    """The right-hand side of the rule in the form of `tolerance.bounds`: every element of a field has the same.

    truth: by default `float64_truth(problem)`. One number per head is no sample to take the largest error of, so
    dsink keeps its bound of `tolerance.bounds`.
    """
    truth = float64_truth(problem) if truth is None else truth
    plain, limits = standard_16bit(problem, round_scores), {}
    for name in FIELDS:
        y, z = getattr(truth, name), getattr(plain, name)
        if y is not None and name != "dsink":
            dtype = {"lse": np.float32, "dbias": getattr(problem.bias, "dtype", None)}.get(name, problem.q.dtype)
            limits[name] = np.full(y.shape, 2 * error(z, y).max(initial=0) + 2 * noise(y, dtype))
    return Result(**limits, dsink=None if truth.dsink is None else bounds(problem).dsink)


def noise(x: np.ndarray, dtype) -> float:
    """The largest rounding error of x in dtype: what (x + 0.3) - 0.3 loses."""
    with np.errstate(over="ignore"):
        x = np.asarray(x).astype(dtype)
    third = np.asarray(0.3).astype(dtype)
    return float(error((x + third) - third, x).max(initial=0))
