"""From a recipe to the arrays of its problem.

Every array has its own stream of random numbers, so that an option more or less leaves the others as they are.
"""

import math

import ml_dtypes
import numpy as np

from fa_ref.testing import layouts
from fa_ref.testing.problem import Problem
from fa_ref.testing.unread import poison_unread

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
AXES = ("BHQK", "B1QK", "1HQK", "QK", "B11K", "1K", "Q1")
STREAMS = ("q", "k", "v", "dout", "dlse", "mask", "mask values", "bias", "bias hides", "alibi", "sink", "property")


def random(recipe, stream):
    """The generator of one stream; "property" is for what a property draws itself."""
    return np.random.default_rng([recipe.seed, STREAMS.index(stream)])


def build(recipe):
    """The Problem of a Recipe. Biases and float masks hold numbers of the storage dtype: a cast to it is exact."""
    r, dtype, wide = recipe, DTYPES[recipe.dtype], np.float64 if recipe.dtype == "float64" else np.float32
    d, dv = r.d, r.d if r.dv is None else r.dv
    scale = d ** -0.5 if r.scale is None else abs(r.scale)
    size = math.sqrt(r.logits / (scale * math.sqrt(d) or 1.0))   # of the entries of q and k

    def normal(stream, *shape, size=1.0):
        return (size * random(r, stream).standard_normal(shape)).astype(dtype)

    problem = Problem(
        q=normal("q", r.B, r.Hq, r.Nq, d, size=size),
        k=normal("k", r.B, r.Hkv, r.Nk, d, size=size),
        v=normal("v", r.B, r.Hkv, r.Nk, dv),
        dout=normal("dout", r.B, r.Hq, r.Nq, dv) if r.gradients else None,
        dlse=normal("dlse", r.B, r.Hq, r.Nq).astype(wide) if r.gradients and r.dlse else None,
        scale=r.scale, causal=r.causal is True, window=r.window, softcap=r.softcap,
        mask=mask(r, dtype, wide), bias=bias(r, dtype, wide), alibi_slopes=slopes(r, wide), sink=sink(r, wide),
        block_q=r.block_q, block_k=r.block_k, reverse=r.reverse,
    )
    poisoned = poison_unread(problem) if r.nan_unread else problem
    if r.layout == "broadcast":                                  # one row of dout is that of all queries
        poisoned = poisoned.replace(dout=problem.dout)
    return layouts.lay_out(poisoned, r.layout)


def mask(r, dtype, wide):
    """None, or a boolean or float mask in the axes of mask_axes that hides two keys in five, and maybe whole rows."""
    if r.causal == "top-left":
        return np.tri(r.Nq, r.Nk, dtype=bool)
    if r.mask == "none":
        return None
    shape, rng = shape_of(r, r.mask_axes), random(r, "mask")
    visible, emptied = rng.random(shape) < 0.6, rng.random((*shape[:-1], 1)) < 0.3
    if r.nan_unread and r.mask_axes.endswith("K"):
        visible &= rng.random(r.Nk) < 0.7                        # some keys are hidden from all rows
    if r.empty_rows:
        visible &= ~emptied
    else:
        show_first_keys(r, visible)
    if r.mask == "bool":
        return visible
    values = random(r, "mask values").standard_normal(shape).astype(dtype).astype(wide)
    return np.where(visible, values, wide(-np.inf))


def show_first_keys(r, visible):
    """Make visible to every row the leftmost key of its window, in a mask that may be broadcast."""
    i, left = np.arange(r.Nq), r.window[0]
    j = np.zeros_like(i) if left < 0 else np.maximum(0, i + r.Nk - r.Nq - left)
    i, j = i[j < r.Nk], j[j < r.Nk]
    rows, columns = visible.shape[-2:]
    visible[..., np.minimum(i, rows - 1), np.minimum(j, columns - 1)] = True


def bias(r, dtype, wide):
    """None, or an additive bias, with −inf here and there if bias_hides."""
    if r.bias == "none":
        return None
    shape = shape_of(r, r.bias)
    values = (2 * random(r, "bias").standard_normal(shape)).astype(dtype).astype(wide)
    return np.where(r.bias_hides & (random(r, "bias hides").random(shape) < 0.2), wide(-np.inf), values)


def slopes(r, wide):
    """None, or ALiBi slopes between 1/16 and 1."""
    if r.alibi == "none":
        return None
    return (2.0 ** -random(r, "alibi").uniform(0, 4, shape_of(r, r.alibi))).astype(wide)


def sink(r, wide):
    """None, or one logit per query head, as large as the others."""
    return random(r, "sink").uniform(-1, 1, r.Hq).astype(wide) * wide(max(3, r.logits)) if r.sink else None


def shape_of(r, axes):
    """The lengths of the axes named by letters; 1 stands for itself."""
    return tuple({"B": r.B, "H": r.Hq, "Q": r.Nq, "K": r.Nk, "1": 1}[letter] for letter in axes)
