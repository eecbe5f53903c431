"""FP8: numbers of 8 bits, scales that keep them in range, and a rotation that spreads outliers.

FlashAttention-3, section 3.3. A number of 8 bits is coarse at any size, and has little range:

    e4m3    largest 448      relative step 2⁻³    smallest step 2⁻⁹      for Q, K, V and P
    e5m2    largest 57344    relative step 2⁻²    smallest step 2⁻¹⁶     more range, less precision

So a matrix is kept as values · scale, where scale = largest absolute entry / largest number of the format. Two things
lower the error. `quantise` can give every tile of rows a scale of its own ("block quantisation"), so that an outlier
spoils its tile and not the whole tensor. `hadamard` turns Q and K by the same random orthogonal matrix M first
("incoherent processing"): (Q M)(K M)ᵀ = Q Kᵀ, but every entry of Q M is a sum of d entries of Q with random signs, so
that an outlier is spread over its row and the scale shrinks.
"""

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np

from fa_ref.inputs import accumulator, floating
from fa_ref.options import check_choice, check_whole

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Prepared(NamedTuple):
    """One head as the loop takes it: Q (Nq, d), K (Nk, d), V (Nk, dv) in FP8; float32 scales sQ (Tr,), sK sV (Tc,)."""

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    sQ: np.ndarray
    sK: np.ndarray
    sV: np.ndarray


def prepare(Q, K, V, Br, Bc, granularity="block", signs=None, dtype=E4M3):
    """Round one head to FP8: what stands before the loop of `fa3_fp8.py`. Returns Prepared.

    Q (Nq, d), K (Nk, d), V (Nk, dv): float64, float32 or 16 bits. granularity: "block" gives every tile of Br queries
    or Bc keys its own scale, "head" all tiles of a matrix the same. signs: (d,) of ±1, as `random_signs` draws them,
    rotates Q and K first; None does not. Raises as `quantise` and `hadamard` do.
    """
    check_choice("granularity", granularity, ("block", "head"))
    Br, Bc = check_whole("Br", Br, 1), check_whole("Bc", Bc, 1)
    shapes = [np.shape(X) for X in (Q, K, V)]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1] or shapes[1][0] != shapes[2][0]:
        raise ValueError("expected Q (Nq, d), K (Nk, d), V (Nk, dv), got {}, {}, {}".format(*shapes))
    if signs is not None:
        Q, K = hadamard(Q, signs), hadamard(K, signs)
    values, scales = [], []
    for name, X, rows in (("Q", Q, Br), ("K", K, Bc), ("V", V, Bc)):
        x, s = quantise(X, rows if granularity == "block" else "head", dtype, name)
        values.append(x)
        scales.append(np.broadcast_to(s, -(-len(X) // rows)))
    return Prepared(*values, *scales)


# --- scales ---------------------------------------------------------------------------------------------------

def quantise(X, granularity, dtype=E4M3, name="X"):
    """X (…, N, d) as (values, scales): FP8 of X's shape, and float32 with X ≈ values · scales.

    granularity    scales             one number for
    "tensor"       ()                 all of X
    "head"         (…)                every matrix (N, d)
    rows ≥ 1       (…, ⌈N / rows⌉)    every tile of so many rows; the last may be shorter ("block quantisation")

    dtype: E4M3 or E5M2. Values are rounded to float32, then to nearest, ties to even, and never beyond the largest
    number. A tile of zeros has scale 1; no scale is below the smallest normal float32, so that a tile of nothing but
    subnormal numbers may come back as zeros. name: of X, in messages. Raises ValueError if X holds NaN, an infinity, or
    a number beyond float32.
    """
    X = floating(name, X)
    X = X.astype(accumulator(X.dtype))
    if not np.isfinite(X).all():
        where = tuple(int(n) for n in np.argwhere(~np.isfinite(X))[0])
        raise ValueError(f"{name} holds {X[where]} at {where}: there is no FP8 scale for that")
    rowmax = abs(X).max(axis=-1, initial=0)                             # (…, N)
    if granularity == "tensor":
        amax = rowmax.max(initial=0)
    elif granularity == "head":
        amax = rowmax.max(axis=-1, initial=0)
    else:
        rows = check_rows(granularity)
        tiles = [rowmax[..., n:n + rows].max(axis=-1) for n in range(0, X.shape[-2], rows)]
        amax = np.stack(tiles, axis=-1) if tiles else rowmax            # (…, ⌈N / rows⌉)

    largest = float(ml_dtypes.finfo(dtype).max)
    if (amax > FLOAT32_MAX).any():
        raise ValueError(f"{name} holds ±{amax.max()}; with float32 scales it ends at {FLOAT32_MAX}")
    scales = np.where(amax == 0, 1, np.maximum(amax / largest, np.finfo(np.float32).tiny)).astype(np.float32)
    return saturated(X / spread(scales, X.shape, granularity), dtype), scales


def dequantise(values, scales, granularity):
    """X (…, N, d) in float32 from what `quantise` returned. Raises ValueError for scales that cannot be its."""
    shape = {"tensor": (), "head": values.shape[:-2]}.get(granularity)
    if shape is None:
        shape = *values.shape[:-2], -(-values.shape[-2] // check_rows(granularity))
    check_scales("scales", scales, shape)
    return values.astype(np.float32) * spread(np.asarray(scales, np.float32), values.shape, granularity)


def check_rows(granularity):
    """The rows of a tile, at least 1; ValueError for another word than "tensor" and "head"."""
    if isinstance(granularity, str):
        raise ValueError(f'granularity must be "tensor", "head", or a number of rows, got {granularity!r}')
    return check_whole("rows of a tile", granularity, 1)


def spread(scales, shape, granularity):
    """Scales so that they broadcast against an X of this shape."""
    if granularity == "tensor":
        return scales
    if granularity == "head":
        return scales[..., None, None]
    return scales[..., np.arange(shape[-2]) // granularity, None]


def check_scales(name, scales, shape):
    """A scale is a positive, finite float32 number, one for every tile; ValueError with the first that is not."""
    scales = np.asarray(scales)
    if scales.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {scales.shape}")
    if scales.dtype.kind != "f":
        raise TypeError(f"{name} must be floating-point numbers, got {scales.dtype}")
    wrong = ~(np.isfinite(scales) & (scales > 0))
    if wrong.any():
        where = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise ValueError(f"{name}{list(where) or ''} is {scales[where]}; a scale must be finite and above 0 "
                         "(quantise gives a tile of zeros the scale 1)")


def check_prepared(Q, K, V, sQ, sK, sV, rule, Br, Bc, stretch, dtype):
    """ValueError or TypeError unless `fa3_fp8.forward_head` can take this; numbers in a ledger's arrays stay unread."""
    if np.dtype(dtype) not in (np.float32, ml_dtypes.bfloat16):
        raise TypeError(f"dtype must be float32 or bfloat16, got {np.dtype(dtype)}")
    if not Q.dtype == K.dtype == V.dtype or V.dtype not in (E4M3, E5M2):
        raise TypeError(f"Q, K and V must be of one dtype, {E4M3} or {E5M2}, got {Q.dtype}, {K.dtype} and {V.dtype}")
    if Q.shape[1] != K.shape[1] or len(V) != len(K):
        raise ValueError(f"expected Q (Nq, d), K (Nk, d) and V (Nk, dv), got {Q.shape}, {K.shape} and {V.shape}")
    Br, Bc, Nq, Nk = check_whole("Br", Br, 1), check_whole("Bc", Bc, 1), len(Q), len(K)
    if (rule.Nq, rule.Nk) != (Nq, Nk):
        raise ValueError(f"the rule is for {rule.Nq} queries and {rule.Nk} keys, not for {Nq} and {Nk}")
    for name, s, tiles in (("sQ", sQ, -(-Nq // Br)), ("sK", sK, -(-Nk // Bc)), ("sV", sV, -(-Nk // Bc))):
        if len(s) != tiles:
            raise ValueError(f"{name} has {len(s)} scales for {tiles} tiles: give Br and Bc as to fp8.prepare")
        if isinstance(s, np.ndarray):
            check_scales(name, s, (tiles,))
    largest = float(ml_dtypes.finfo(V.dtype).max)
    if not 1 <= stretch <= largest:
        raise ValueError(f"stretch must be from 1 to {largest:g}, the largest {V.dtype}, got {stretch}")
    if isinstance(sV, np.ndarray) and Nk and float(sV.max()) * largest * stretch * Nk > FLOAT32_MAX:
        raise ValueError(f"V reaches ±{float(sV.max()) * largest:.3g}: {stretch:g} times the sum of {Nk} such rows is "
                         "beyond float32")


def saturated(x, dtype):
    """x rounded to FP8, with the largest number in place of what lies beyond (a plain cast would make NaN or inf)."""
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -largest, largest).astype(dtype)


# --- rotation -------------------------------------------------------------------------------------------------

def random_signs(d, seed=0):
    """d random signs, ±1: the diagonal of M."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], d)


def check_power_of_two(d):
    """There is a Hadamard matrix of this kind for powers of two only; ValueError says to what to pad."""
    if d < 1 or d & (d - 1):
        raise ValueError(f"a Hadamard rotation needs a head dim that is a power of two, got d = {d}; pad Q and K with "
                         f"zeros to d = {1 << d.bit_length()} and keep the scale of {d}: no score changes")


def hadamard(X, signs):
    """X M for X (…, d), with M = diag(signs) H / √d and H the d × d Hadamard matrix of ±1: the same shape.

    H is applied in log₂ d rounds of sums and differences, O(d log d) for a row. M is orthogonal, so (Q M)(K M)ᵀ = Q Kᵀ:
    up to rounding, and exactly if the sums are exact and √d is a power of two. 16 bits come back as float32.
    Raises ValueError if d is no power of two, or for signs that are not d numbers ±1.
    """
    X, d = floating("X", X), X.shape[-1]
    check_power_of_two(d)
    signs = np.asarray(signs)
    if signs.shape != (d,) or not np.isin(signs, (-1, 1)).all():
        raise ValueError(f"signs must be {d} numbers ±1, one for each column, got {signs}")
    Y = X.astype(accumulator(X.dtype))
    Y = Y * signs.astype(Y.dtype)
    half = 1
    while half < d:
        Y = Y.reshape(*X.shape[:-1], d // (2 * half), 2, half)
        left, right = Y[..., 0, :], Y[..., 1, :]
        Y = np.stack((left + right, left - right), axis=-2)
        half = 2 * half
    return Y.reshape(X.shape) / math.sqrt(d)
