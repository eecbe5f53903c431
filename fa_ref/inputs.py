"""The dtypes, and every check of the arrays of a call: q, k and v, and what belongs to a forward pass.

Nothing is computed before everything here and in `options` has passed, and every error names the numbers that do not
fit. Arrays are only read: read-only, strided and broadcast ones are fine.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from fa_ref.torch_bridge import is_torch, to_numpy

STORAGE = (np.dtype("float64"), np.dtype("float32"), np.dtype("float16"), np.dtype(bfloat16))


# --- dtypes ---------------------------------------------------------------------------------------------------

def accumulator(dtype):
    """The dtype of statistics and accumulators: float64 for float64, float32 for everything narrower."""
    return np.dtype("float64") if dtype == np.float64 else np.dtype("float32")


def rounded(x, dtype):
    """x rounded to the storage `dtype`, kept in x's own width: what a matrix unit sees of P and dS."""
    return x.astype(dtype).astype(x.dtype)


def floating(name, x):
    """A floating array of any offered width."""
    x = to_numpy(name, x)
    if x.dtype not in STORAGE:
        raise TypeError(f"{name} must be floating ({', '.join(map(str, STORAGE))}), got {x.dtype}")
    return x


def check_fits(name, x, wide):
    """ValueError for a finite number that would become infinite in the accumulator dtype `wide`."""
    if x.dtype == np.float64 and wide == np.float32:
        too_big = np.isfinite(x) & (np.abs(x) > np.finfo(wide).max)
        if too_big.any():
            raise ValueError(f"{name} holds {x[too_big][0]}, which is infinite in {wide}")


def in_accumulator(name, x, wide):
    """x in the accumulator dtype, which must have room for all its finite numbers."""
    check_fits(name, x, wide)
    return x.astype(wide)


# --- queries, keys, values ------------------------------------------------------------------------------------

class Sizes(NamedTuple):
    """The lengths of all axes: see the glossary of the package."""

    B: int
    Hq: int
    Hkv: int
    Nq: int
    Nk: int
    d: int
    dv: int


def check_qkv(q, k, v):
    """Check q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv) against each other; return the Sizes.

    ValueError for shapes that do not belong together, TypeError for dtypes that differ or are not floating.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 axes (batch, heads, length, head dim), got shape {x.shape}")
        if x.dtype not in STORAGE:
            raise TypeError(f"{name} has dtype {x.dtype}; offered are {', '.join(map(str, STORAGE))}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must share one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    (B, Hq, Nq, d), (Bk, Hkv, Nk, dk), (Bv, Hv, Nv, dv) = q.shape, k.shape, v.shape
    if not B == Bk == Bv:
        raise ValueError(f"batch sizes differ: q has {B}, k has {Bk}, v has {Bv}")
    if d != dk:
        raise ValueError(f"head dims differ: q has d = {d}, k has d = {dk}")
    if Nk != Nv:
        raise ValueError(f"numbers of keys differ: k has Nk = {Nk}, v has Nk = {Nv}")
    if Hkv != Hv:
        raise ValueError(f"numbers of heads differ: k has {Hkv}, v has {Hv}")
    if d < 1 or dv < 1:
        raise ValueError(f"head dims must be at least 1, got d = {d}, dv = {dv}")
    if Hq < 1 or Hkv < 1:
        raise ValueError(f"there must be at least 1 head, got {Hq} query heads and {Hkv} key/value heads")
    if Hq % Hkv:
        raise ValueError(f"{Hq} query heads cannot be shared among {Hkv} key/value heads: {Hq} % {Hkv} must be 0")
    return Sizes(B, Hq, Hkv, Nq, Nk, d, dv)


def check_belongs(name, x, shape, dtype):
    """x must have exactly this shape and dtype (dout and out belong to a forward call)."""
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {x.shape}")
    if x.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {x.dtype}")


def check_statistics(name, x, shape, wide):
    """lse or dlse: this shape, float32 or float64; returned in the accumulator dtype `wide`."""
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {x.shape}")
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, got {x.dtype}")
    return in_accumulator(name, x, wide)


def check_lse(lse, shape, wide):
    """As check_statistics; +inf, which others write for rows that see no key, is refused."""
    lse = check_statistics("lse", lse, shape, wide)
    if np.isposinf(lse).any():
        where = tuple(int(n) for n in np.argwhere(np.isposinf(lse))[0])
        raise ValueError(f"lse is +inf at {where}; a row that sees no key has lse = -inf here, not +inf")
    return lse


# --- packed sequences -----------------------------------------------------------------------------------------

def check_cu_seqlens(name, cu, tokens):
    """Cumulative lengths of packed sequences: whole numbers from 0 to `tokens`, never decreasing; as ints."""
    try:
        cu = to_numpy(name, cu) if is_torch(cu) or isinstance(cu, np.ndarray) else np.asarray(cu)
    except ValueError:
        raise ValueError(f"{name} must be one row of whole numbers, got {cu!r}") from None
    if cu.ndim != 1 or cu.size < 1:
        raise ValueError(f"{name} must be one row of at least one number, got shape {cu.shape}")
    if cu.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold whole numbers, got dtype {cu.dtype}")
    cu = [int(n) for n in cu]
    if cu[0] != 0:
        raise ValueError(f"{name} must start at 0, got {cu[0]}")
    for a, b in pairwise(cu):
        if b < a:
            raise ValueError(f"{name} must not decrease, got {b} after {a}")
    if cu[-1] != tokens:
        raise ValueError(f"{name} ends at {cu[-1]}, but there are {tokens} tokens")
    return cu
