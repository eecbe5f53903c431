"""Softmax in one pass over pieces: the identity that all of FlashAttention rests on.

For a row x the pair m = max x, l = Σ exp(x − m) says all that softmax must know: p = exp(x − m) / l. Two pieces
of a row have pairs of their own, and these combine without looking at x again:

    m = max(ma, mb)        l = exp(ma − m)·la + exp(mb − m)·lb

`naive`, `safe`, `online` and `blocked` compute the same row in four steps of insight, and `merge` says the same of
finished outputs. Sources: Milakov & Gimelshein 2018 (online); FlashAttention section 3.1 (blocked); FlashInfer
section 2 and Flash-Decoding (merge).
"""

import numpy as np

# --- the two guards, and the two reductions -------------------------------------------------------------------
# A row that has seen no key has m = −inf and l = 0. exp(−inf − −inf) and 0/0 would be NaN; both guards keep the
# row at exactly 0, and change no other row.


def finite_or_zero(m):
    """The shift to subtract from scores: m, or 0 where m is −inf (then exp(−inf − 0) is 0, as it should be)."""
    return np.where(m == -np.inf, m.dtype.type(0), m)


def nonzero_or_one(l):
    """The divisor: l, or 1 where l is 0 (then 0/1 is 0, and log 1 leaves lse = m = −inf)."""
    return np.where(l == 0, l.dtype.type(1), l)


def rowmax(S):
    """Largest entry of each row, (br,); −inf for rows of no entries."""
    return S.max(axis=1, initial=-np.inf)


def rowsum(S):
    """Sum of each row, (br,)."""
    return S.sum(axis=1)


# --- one row, four ways ---------------------------------------------------------------------------------------
# Each takes a float row x (n,) and returns its softmax p (n,).


def naive(x):
    """Two passes, as the textbook writes it: exp overflows float32 above 88.72, and inf/inf is NaN."""
    e = np.exp(x)
    return e / e.sum()


def safe(x):
    """Three passes: the maximum first, so that no exponent is above 0."""
    m = x.max(initial=-np.inf)
    shift = finite_or_zero(m)
    l = np.exp(x - shift).sum()
    return np.exp(x - shift) / nonzero_or_one(l)


def online(x):
    """Two passes: maximum and sum together; whenever the maximum grows, the old sum is rescaled."""
    m = x.dtype.type(-np.inf)
    l = x.dtype.type(0)
    for x_j in x:
        m_new = np.maximum(m, x_j)
        shift = finite_or_zero(m_new)
        l = l * np.exp(m - shift) + np.exp(x_j - shift)
        m = m_new
    return np.exp(x - finite_or_zero(m)) / nonzero_or_one(l)


def blocked(x, Bc):
    """The same with Bc entries at a time: this is what the inner loop of FlashAttention does to every row."""
    m = x.dtype.type(-np.inf)
    l = x.dtype.type(0)
    for j in range(0, len(x), Bc):
        xj = x[j:j + Bc]
        m_new = np.maximum(m, xj.max())
        shift = finite_or_zero(m_new)
        l = l * np.exp(m - shift) + np.exp(xj - shift).sum()
        m = m_new
    return np.exp(x - finite_or_zero(m)) / nonzero_or_one(l)


# --- finished outputs -----------------------------------------------------------------------------------------

def merge(out_a, lse_a, out_b, lse_b):
    """Attention over two disjoint sets of keys, from the results over each: returns (out, lse).

    out_a, out_b (..., dv), lse_a, lse_b (...), NumPy arrays, or numbers that stand for all rows. Commutative and
    associative up to rounding; the identity is (0, −inf). A part of weight zero is never read: its out may hold
    anything. out comes back in the dtype of the outs, lse in that of the lses (float32 at least; a Python number takes
    the dtype of its partner). Raises ValueError for shapes that do not belong together and for an lse of +inf.
    """
    out_dtypes = [x.dtype for x in (out_a, out_b) if hasattr(x, "dtype") and x.dtype.kind not in "biu"]
    wide = np.result_type(lse_a, lse_b, np.float32)
    out_a, out_b = np.asarray(out_a), np.asarray(out_b)
    lse_a, lse_b = np.asarray(lse_a, wide), np.asarray(lse_b, wide)
    for out, lse in ((out_a, lse_a), (out_b, lse_b)):
        if out.ndim and lse.ndim and out.shape[:-1] != lse.shape:
            raise ValueError(f"out of shape {out.shape} belongs to an lse of shape {out.shape[:-1]}, got {lse.shape}")
        if np.isposinf(lse).any():
            raise ValueError("lse is +inf; a part that saw no key has lse = -inf here, not +inf")
    for name, a, b in (("out", out_a, out_b), ("lse", lse_a, lse_b)):
        if a.ndim and b.ndim and a.shape != b.shape:
            raise ValueError(f"{name} of both parts must have one shape, got {a.shape} and {b.shape}")

    m = np.maximum(lse_a, lse_b)
    shift = finite_or_zero(m)
    weight_a = np.exp(lse_a - shift)
    weight_b = np.exp(lse_b - shift)
    l = nonzero_or_one(weight_a + weight_b)
    part_a = (weight_a / l)[..., None] * np.where(weight_a[..., None] > 0, out_a, 0)
    part_b = (weight_b / l)[..., None] * np.where(weight_b[..., None] > 0, out_b, 0)

    return (part_a + part_b).astype(np.result_type(*out_dtypes) if out_dtypes else wide), m + np.log(l)
