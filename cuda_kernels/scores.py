"""What stands between Q Kᵀ and the softmax, as functions that kernels call for one score at a time.

A kernel is compiled for its options: an option that is off costs nothing, not even a branch. The limits of causal and
window, the scale and the cap are numbers that a launch passes; they follow `fa_ref.scores.Rule`: query i stands at
p = i + Nk − Nq and sees the keys from p − left to p + right.
"""

import math
from typing import NamedTuple

from numba import cuda


class Flags(NamedTuple):
    """The options a kernel is compiled for."""

    softcap: bool = False
    mask: bool = False
    wide_out: bool = False          # O is written in the accumulator dtype, because a sink is still to be merged


def functions(flags, one):
    """(visible, score, chain, empty) for these flags; `one` is 1 in the kernel's accumulator dtype."""
    use_softcap, use_mask = flags.softcap, flags.mask

    @cuda.jit(device=True)
    def visible(b, h, i, j, offset, left, right, mask):
        """May query i see key j?"""
        p = i + offset
        if j < p - left or j > p + right:
            return False
        if use_mask:
            return mask[b, h, i, j]
        return True

    @cuda.jit(device=True)
    def score(product, scale, softcap):
        """The score that belongs to a product q·k."""
        s = product * scale
        if use_softcap:
            s = softcap * math.tanh(s / softcap)
        return s

    @cuda.jit(device=True)
    def chain(ds, product, scale, softcap):
        """From the gradient of a score to that of its product q·k."""
        if use_softcap:
            tanh = math.tanh(product * scale / softcap)
            ds = ds * (one - tanh * tanh)
        return ds * scale

    @cuda.jit(device=True)
    def empty(row0, br, col0, bc, offset, left, right):
        """Does no query of the tile see a key of it, as far as causal and window say? (The mask is not asked.)"""
        return col0 + bc - 1 < row0 + offset - left or col0 > row0 + br - 1 + offset + right

    return visible, score, chain, empty
