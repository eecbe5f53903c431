"""Every check of what a caller hands in, the dtypes, and the bridge to torch.

Nothing is computed before everything here has passed, and every error names the numbers that do not fit.
Arrays are only read: read-only, strided and broadcast ones are fine.
"""

import math
import numbers
import sys
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16

STORAGE = (np.dtype("float64"), np.dtype("float32"), np.dtype("float16"), np.dtype(bfloat16))
DEFAULT_BLOCK = 64


# --- dtypes ---------------------------------------------------------------------------------------------------

def accumulator(dtype):
    """The dtype of statistics and accumulators: float64 for float64, float32 for everything narrower."""
    return np.dtype("float64") if dtype == np.float64 else np.dtype("float32")


def rounded(x, dtype):
    """x rounded to the storage `dtype`, kept in x's own width: what a matrix unit sees of P and dS."""
    return x.astype(dtype).astype(x.dtype)


# --- the torch bridge -----------------------------------------------------------------------------------------

def is_torch(x):
    """Is x a torch tensor? torch is never imported for the question: whoever made x has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(name, x):
    """x as a NumPy array that shares its memory where it can.

    A torch tensor is detached (no graph is recorded) and copied to the host if it lives elsewhere; bfloat16
    crosses as an int16 view, since NumPy knows it only through ml_dtypes. Anything else is a TypeError.
    """
    if is_torch(x):
        torch = sys.modules["torch"]
        x = x.detach().cpu().resolve_neg()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(bfloat16)
        try:
            return x.numpy()
        except TypeError:
            raise TypeError(f"{name} has dtype {x.dtype}, which NumPy does not know") from None
    if isinstance(x, np.ma.MaskedArray) or not isinstance(x, np.ndarray):
        raise not_an_array(name, x)
    return np.asarray(x)


def not_an_array(name, x):
    """The error for what is neither a plain NumPy array nor a torch tensor."""
    return TypeError(f"{name} must be a NumPy array or a torch tensor, got {type(x).__name__}")


def in_kind(x, like):
    """The NumPy array x as what `like` is: itself, or a torch tensor on the same device."""
    if x is None or not is_torch(like):
        return x
    torch = sys.modules["torch"]
    if x.dtype == bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(x).to(like.device)


def same_kind(optional=None, **arrays):
    """Convert arrays that must be all NumPy or all torch on one device; they come back in the order given.

    optional: the name of the one that may be None.
    """
    places = {name: f"a torch tensor on {x.device}" if is_torch(x) else "a NumPy array"
              for name, x in arrays.items() if not (name == optional and x is None)}
    for name in places:
        if not is_torch(arrays[name]) and not isinstance(arrays[name], np.ndarray):
            raise not_an_array(name, arrays[name])
    if len(set(places.values())) > 1:
        told = ", ".join(f"{name} is {place}" for name, place in places.items())
        raise TypeError(f"arrays of different kinds or devices: {told}")
    return [to_numpy(name, x) if name in places else None for name, x in arrays.items()]


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
    if Hq < 1 or Hkv < 1 or Hq % Hkv:
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
        refuse_infinite_lse(tuple(int(n) for n in np.argwhere(np.isposinf(lse))[0]))
    return lse


def refuse_infinite_lse(where):
    """ValueError: there it is +inf."""
    raise ValueError(f"lse is +inf at {where}; a row that sees no key has lse = -inf here, not +inf")


# --- options --------------------------------------------------------------------------------------------------

class Options(NamedTuple):
    """All options of one call, checked; arrays broadcast (without a copy) to the full batch.

    scale and softcap (None = off) are floats; causal and reverse bools; window (left, right), -1 = unlimited;
    mask bool or float and bias float (B, Hq, Nq, Nk); alibi_slopes (B, Hq); sink (Hq,); blocks are ints.
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
        if np.isnan(sink).any() or np.isposinf(sink).any():
            raise ValueError(f"sink must hold finite numbers or -inf, got {sink[~(sink < np.inf)][0]}")
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


def check_flag(name, x):
    """A bool, nothing that merely looks like one."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {x!r}")
    return bool(x)


def check_whole(name, x, least):
    """A whole number of at least `least`."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {x!r}")
    if x < least:
        raise ValueError(f"{name} must be at least {least}, got {x}")
    return int(x)


def check_block(name, x):
    """A tile size of at least 1; None is the default."""
    return DEFAULT_BLOCK if x is None else check_whole(name, x, 1)


def check_number(name, x, wide=np.dtype("float64")):
    """A finite real number that stays finite in the accumulator dtype `wide`; returned as a Python float."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (numbers.Real, np.floating)):
        raise TypeError(f"{name} must be a real number, got {x!r}")
    try:
        number = float(x)
    except OverflowError:  # a whole number beyond every float
        number = math.inf
    if not abs(number) <= float(np.finfo(wide).max):
        raise ValueError(f"{name} must be finite in {wide}, got {x}")
    return number


def check_softcap(x, wide=np.dtype("float64")):
    """None or 0 switch the cap off (returned as None); a negative cap is refused."""
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
        x = np.broadcast_to(x, full)
    except ValueError:
        raise ValueError(f"{name} of shape {x.shape} does not broadcast to the shape of the scores, {full}") from None
    if x.dtype == bool:
        return x
    if (x == np.inf).any():
        raise ValueError(f"{name} holds +inf; scores must stay below it (-inf hides a key)")
    return in_accumulator(name, x, wide, keep=True)


def floating(name, x):
    """A floating array of any offered width."""
    x = to_numpy(name, x)
    if x.dtype not in STORAGE:
        raise TypeError(f"{name} must be floating ({', '.join(map(str, STORAGE))}), got {x.dtype}")
    return x


def in_accumulator(name, x, wide, keep=False):
    """x in the accumulator dtype. A finite number that would become infinite there is refused, not lost.

    `keep` checks only and returns x as it is: tiles of it are converted as they are loaded.
    """
    if x.dtype == np.float64 and wide == np.float32:
        too_big = np.isfinite(x) & (np.abs(x) > np.finfo(wide).max)
        if too_big.any():
            raise ValueError(f"{name} holds {x[too_big][0]}, which is infinite in {wide}")
    return x if keep else x.astype(wide)


def check_choice(name, x, known):
    """x must be one of the known names."""
    if not isinstance(x, str) or x not in known:
        raise ValueError(f"unknown {name} {x!r}; known are {', '.join(map(repr, known))}")
    return x


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
