"""A Hypothesis strategy of recipes: hard problems, drawn only inside what an implementation supports.

Every choice names its plainest value first, so that failing problems shrink towards tiny plain ones.
"""

import math

from hypothesis import strategies as st

from fa_ref.testing import layouts
from fa_ref.testing.building import AXES
from fa_ref.testing.recipe import Recipe
from fa_ref.testing.supports import Supports

HEAD_DIMS = (1, 2, 3, 4, 5, 8, 17, 65)
LOGITS = (1.0, 8.0, 60.0, 300.0)
SCALES = {"positive": (1.0, 0.3), "any": (1.0, 0.3, 0.0, -0.7)}
SOFTCAPS = (2.0, 0.5, 30.0)
SELDOM = (False, False, True)  # shrinks to False
RARITY = 16  # short lengths to a long one


@st.composite
def recipes(draw, supports=None, always=()):
    """Recipes inside `supports` (None: everything). Abilities named in `always` are used in every one of them."""
    s = Supports.everything() if supports is None else supports

    def pick(name, *values):
        # The name makes choices different in kind. Hypothesis copies choices of one kind over each other, which
        # is meant for tests that want duplicates; here most draws would become near-copies of another.
        return draw(st.sampled_from([(name, value) for value in values]))[1]

    def use(ability, among=SELDOM):
        return bool(getattr(s, ability)) and (ability in always or pick(ability, *among))

    causal = use("causal") and (s.causal if s.causal == "top-left" else True)
    window = limits(pick, s.max_length) if causal != "top-left" and use("window") else (-1, -1)
    square = not use("cross_lengths", (False, True)) or (causal and s.causal == "square")
    Nq, Nk = lengths(pick, s, square, standing=causal or window != (-1, -1))
    group = pick("group", *(n for n in (2, 3) if n <= max(2, s.max_heads))) if use("grouped") else 1
    B, Hkv = pick("B", 1, 2, 3), pick("Hkv", *range(1, max(1, min(3, s.max_heads // group)) + 1))
    if max(Nq, Nk) > s.max_length:                                  # a long problem: one head will do
        B = Hkv = 1
    B, Nq, Nk = zero(pick, s, square, B, Nq, Nk)
    empty_rows, nan_unread = use("empty_rows"), use("unread_nan")
    masked = pick("masked", False, True) or empty_rows or nan_unread
    masks = [name for name in ("bool", "float") if getattr(s, f"{name}_mask")]
    mask = pick("mask", *masks) if masked and masks and causal != "top-left" else "none"
    bias = pick("bias axes", *AXES) if use("bias") else "none"
    dims = s.head_dims or HEAD_DIMS
    gradients = use("gradients")
    return Recipe(
        B=B,
        Hq=Hkv * group,
        Hkv=Hkv,
        Nq=Nq,
        Nk=Nk,
        d=pick("d", *dims),
        dv=pick("dv", *dims) if use("dv_differs") else None,
        dtype=pick("dtype", *s.dtypes),
        logits=pick("logits", *LOGITS),
        scale=pick("scale of", *SCALES[s.scale]) if use("scale") else None,
        causal=causal,
        window=window,
        mask=mask,
        mask_axes=pick("mask axes", *AXES) if mask != "none" else "BHQK",
        empty_rows=empty_rows and mask != "none",
        bias=bias,
        bias_hides=bias != "none" and s.empty_rows and pick("bias hides", False, True),
        alibi=pick("slopes", "H", "BH") if use("alibi") else "none",
        softcap=pick("cap", *SOFTCAPS) if use("softcap") else None,
        sink=use("sink"),
        block_q=pick("block_q", None, *s.tiles) if s.tiles else None,
        block_k=pick("block_k", None, *s.tiles) if s.tiles else None,
        reverse=use("reverse"),
        layout=pick("layout", *layouts.LAYOUTS) if s.strided else "contiguous",
        nan_unread=nan_unread,
        gradients=gradients,
        dlse=gradients and use("dlse"),
        seed=draw(st.integers(0, 999)),
    )


def limits(pick, longest):
    """A window (left, right) that is limited on the left, on the right, or on both sides."""
    left, right = (pick(side, *range(longest + 1)) for side in ("left", "right"))
    sides = pick("sides", "both", "left", "right")
    return -1 if sides == "right" else left, -1 if sides == "left" else right


def lengths(pick, supports, square, standing):
    """(Nq, Nk), multiples of what is asked for; one length in seventeen is of `supports.long_lengths`.

    square: Nq = Nk. standing: a causal rule or a window is used, so that a query that stands before the first key sees
    nothing; where rows without keys are not supported, that is not drawn.
    """
    s, (of_q, of_k) = supports, supports.length_multiples
    if square:
        of_q = of_k = math.lcm(of_q, of_k)
    Nq = pick("Nq", *choices(s, of_q))
    Nk = Nq if square else pick("Nk", *choices(s, of_k))
    if standing and not s.empty_rows:
        Nk = max(Nk, -(-Nq // of_k) * of_k)
    return Nq, Nk


def choices(supports, multiple):
    """Multiples of this number to draw a length from, each short one so often that long ones are rare.

    All stand in one list, so that a long problem shrinks to a short one: to Hypothesis a smaller choice, not another.
    """
    short = [multiple * n for n in range(1, max(1, supports.max_length // multiple) + 1)]
    long = [-(-N // multiple) * multiple for N in supports.long_lengths]
    return short * -(-RARITY * len(long) // len(short)) + long if long else short


def zero(pick, supports, square, B, Nq, Nk):
    """(B, Nq, Nk), in one problem of seven with a zero among them; not Nk = 0 where rows without keys are not
    supported."""
    if not supports.zero_lengths or not pick("zero", *[False] * 6, True):
        return B, Nq, Nk
    if square:
        return pick("zero of", (0, Nq, Nk), (B, 0, 0))
    return pick("zero of", (0, Nq, Nk), (B, 0, Nk), *[(B, Nq, 0)] * supports.empty_rows)
