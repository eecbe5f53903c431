"""The options of a call, and the checks of single ones, which serve whoever takes such an option.

As in `inputs`, nothing is computed before everything has passed, and every error names what does not fit.
"""

import math
import numbers
from typing import NamedTuple

import numpy as np

from fa_ref.inputs import STORAGE, accumulator, check_fits, floating, in_accumulator
from fa_ref.torch_bridge import to_numpy

DEFAULT_BLOCK = 64


class Options(NamedTuple):
    """All options of one call, checked; arrays broadcast (without a copy) to the full batch.

    scale and softcap (None = off) are floats; causal and reverse bools; window (left, right), -1 = unlimited;
    mask bool or float and bias float (B, Hq, Nq, Nk), in their own dtypes; alibi_slopes (B, Hq) and sink (Hq,) in the
    accumulator dtype; blocks are ints.
    """

    scale: float
    causal: bool
    window: tuple[int, int]
    mask: np.ndarray | None
    bias: np.ndarray | None
    alibi_slopes: np.ndarray | None
    softcap: float | None
    sink: np.ndarray | None
    block_q: int
    block_k: int
    reverse: bool


def check_options(sizes, dtype, *, scale=None, causal=False, window=(-1, -1), mask=None, bias=None,
                  alibi_slopes=None, softcap=None, sink=None, block_q=None, block_k=None, reverse=False):
    """Check the options of a call with these Sizes and storage dtype; return Options. Meanings: `heads.forward`."""
    B, Hq, _, Nq, Nk, d, _ = sizes
    wide = accumulator(dtype)
    full = (B, Hq, Nq, Nk)
    if alibi_slopes is not None:
        alibi_slopes = in_accumulator("alibi_slopes", floating("alibi_slopes", alibi_slopes), wide)
        if alibi_slopes.shape not in ((Hq,), (B, Hq)):
            raise ValueError(f"alibi_slopes must have shape {(Hq,)} or {(B, Hq)}, got {alibi_slopes.shape}")
        if not np.isfinite(alibi_slopes).all():
            raise ValueError(f"alibi_slopes must be finite, got {alibi_slopes[~np.isfinite(alibi_slopes)][0]}")
        alibi_slopes = np.broadcast_to(alibi_slopes, (B, Hq))
    if sink is not None:
        sink = in_accumulator("sink", floating("sink", sink), wide)
        if sink.shape != (Hq,):
            raise ValueError(f"sink must have shape {(Hq,)}, one logit per query head, got {sink.shape}")
        wrong = ~(sink < np.inf)                                    # NaN and +inf
        if wrong.any():
            raise ValueError(f"sink must hold finite numbers or -inf, got {sink[wrong][0]}")
    return Options(
        scale=check_number("scale", 1 / math.sqrt(d) if scale is None else scale, wide),
        causal=check_flag("causal", causal),
        window=check_window(window),
        mask=None if mask is None else check_scores_shaped("mask", check_mask(to_numpy("mask", mask)), full, wide),
        bias=None if bias is None else check_scores_shaped("bias", floating("bias", bias), full, wide),
        alibi_slopes=alibi_slopes,
        softcap=check_softcap(softcap, wide),
        sink=sink,
        block_q=check_block("block_q", block_q),
        block_k=check_block("block_k", block_k),
        reverse=check_flag("reverse", reverse),
    )


# --- single options -------------------------------------------------------------------------------------------

def check_flag(name, x):
    """A bool, nothing that merely looks like one."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {x!r}")
    return bool(x)


def check_whole(name, x, least):
    """A whole number of at least `least`."""
    if isinstance(x, bool) or not isinstance(x, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {x!r}")
    if x < least:
        raise ValueError(f"{name} must be at least {least}, got {x}")
    return int(x)


def check_block(name, x):
    """A tile size of at least 1; None is the default."""
    return DEFAULT_BLOCK if x is None else check_whole(name, x, 1)


def check_number(name, x, wide=np.dtype("float64")):
    """A finite real number that stays finite in the accumulator dtype `wide`; returned as a Python float."""
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {x!r}")
    try:
        number = float(x)
    except OverflowError:  # a whole number beyond every float
        number = math.inf
    if not abs(number) <= float(np.finfo(wide).max):
        raise ValueError(f"{name} must be finite in {wide}, got {x}")
    return number


def check_softcap(x, wide=np.dtype("float64")):
    """None or 0 switch the cap off (returned as None). ValueError below 0, and below what `wide` can hold precisely."""
    if x is None:
        return None
    cap = check_number("softcap", x, wide)
    if cap < 0 or 0 < cap < np.finfo(wide).tiny:
        raise ValueError(f"softcap must be 0 (off) or a positive number that {wide} can hold, got {x}")
    return cap or None


def check_window(window):
    """(left, right), whole numbers of keys to either side of the diagonal; -1 is unlimited."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window must be a pair (left, right), got {window!r}")
    return check_whole("window left", window[0], -1), check_whole("window right", window[1], -1)


def check_mask(mask):
    """A boolean mask (True = visible) or a float mask (added to the scores); integers are ambiguous: refused."""
    if mask.dtype != bool and mask.dtype not in STORAGE:
        raise TypeError(f"mask must be boolean (True = visible) or floating (added to the scores), got {mask.dtype}")
    return mask


def check_scores_shaped(name, x, full, wide=np.dtype("float64")):
    """x must broadcast to `full` = (B, Hq, Nq, Nk) or (Nq, Nk) and stay below +inf; returned broadcast, no copy."""
    try:
        spread = np.broadcast_to(x, full)
    except ValueError:
        raise ValueError(f"{name} of shape {x.shape} does not broadcast to the shape of the scores, {full}") from None
    if x.dtype != bool:                                             # of x itself: not once for every head
        if (x == np.inf).any():
            raise ValueError(f"{name} holds +inf; scores must stay below it (-inf hides a key)")
        check_fits(name, x, wide)
    return spread


def check_choice(name, x, known):
    """x must be one of the known names."""
    if not isinstance(x, str) or x not in known:
        raise ValueError(f"unknown {name} {x!r}; known are {', '.join(map(repr, known))}")
    return x
