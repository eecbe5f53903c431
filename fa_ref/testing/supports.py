"""What an implementation can be asked. Problems are drawn only inside it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from fa_ref.testing.building import DTYPES
from fa_ref.testing.unread import visible

CAUSAL = (None, "bottom-right", "top-left", "square")
LSE = (None, "natural", "base2")
SCALE = (None, "positive", "any")
RULES = ("element-wise", "two-errors")


@dataclass(frozen=True)
class Supports:
    """The abilities of one implementation; without arguments the least there is: float32, q, k, v, equal lengths.

    dtypes: names out of float64, float32, float16, bfloat16.
    head_dims: the d (and dv) it takes; None is any. length_multiples: of Nq and Nk. max_length: the longest
    sequence drawn. long_lengths: of each of the two, one in seventeen is of these, so that code with tiles of its own
    meets more than one of them; () for none. max_heads: the most query heads drawn (at least 2 where they are grouped).
    causal: None; "bottom-right" (key j ≤ i + Nk − Nq); "square" (only Nq = Nk is asked, where both triangles
    agree); "top-left" (key j ≤ i: the problem then carries that triangle as its mask (Nq, Nk)).
    scale: None (always 1/√d), "positive", or "any" (0 and negative numbers too).
    bool_mask, float_mask, bias, alibi, softcap, sink, window: the options of `fa_ref.forward`.
    dv_differs: dv ≠ d. cross_lengths: Nq ≠ Nk. zero_lengths: Nq, Nk or B may be 0. grouped: Hkv < Hq.
    empty_rows: rows that see no key have out 0, and empty_lse as their lse.
    lse: None (not returned), "natural" or "base2" (the result's lse is then log2 of the sum).
    gradients: of q, k, v (and of bias and sink where those are taken); dlse: lse has a gradient too.
    strided: any view, also with negative strides, and read-only arrays. unread_nan: keys that nobody may see may
    hold NaN, and so may q, dout and dlse of queries that see no key. tiles: tile sizes that can be asked for; () if
    none. reverse: the loop direction can be asked for.
    packed: a function from a list of problems (all B = 1, one per sequence) to a list of results, in one call.
    deterministic: gradients are the same bits every time (outputs always must be).
    framework: "numpy" or "torch"; device: where it runs. Both are for the coverage table and for properties
    that work on NumPy's memory only.
    rule: how 16-bit answers are judged: "element-wise", or "two-errors" (twice the error of a plain 16-bit
    implementation, for code that also rounds the scores). Wider answers are always judged element-wise.
    """

    dtypes: tuple[str, ...] = ("float32",)
    head_dims: tuple[int, ...] | None = None
    length_multiples: tuple[int, int] = (1, 1)
    max_length: int = 12
    long_lengths: tuple[int, ...] = (65, 130, 150)
    max_heads: int = 6
    causal: str | None = None
    window: bool = False
    bool_mask: bool = False
    float_mask: bool = False
    bias: bool = False
    alibi: bool = False
    softcap: bool = False
    sink: bool = False
    scale: str | None = None
    dv_differs: bool = False
    cross_lengths: bool = False
    zero_lengths: bool = False
    grouped: bool = False
    empty_rows: bool = False
    lse: str | None = None
    empty_lse: float = -math.inf
    gradients: bool = False
    dlse: bool = False
    strided: bool = False
    unread_nan: bool = False
    tiles: tuple[int, ...] = ()
    reverse: bool = False
    packed: Callable | None = None
    deterministic: bool = True
    framework: str = "numpy"
    device: str = "cpu"
    rule: str = "element-wise"

    def __post_init__(self):
        """ValueError for words that are not known, and for abilities that nothing can be drawn from."""
        for name, known in {"causal": CAUSAL, "scale": SCALE, "lse": LSE, "rule": RULES}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(str, known))}; got {getattr(self, name)!r}")
        unknown = set(self.dtypes) - set(DTYPES)
        if unknown or not self.dtypes:
            raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}; got {self.dtypes!r}")
        numbers = {"head_dims": self.head_dims or (1,), "length_multiples": self.length_multiples, "tiles": self.tiles,
                   "max_length": (self.max_length,), "long_lengths": self.long_lengths, "max_heads": (self.max_heads,)}
        for name, values in numbers.items():
            if not all(type(n) is int and n >= 1 for n in values):
                raise ValueError(f"{name} must be whole numbers of at least 1, got {getattr(self, name)!r}")
        if self.head_dims == ():
            raise ValueError("head_dims must name at least one head dim, or be None for any")
        least = math.lcm(*self.length_multiples)
        if least > self.max_length:
            raise ValueError(f"max_length {self.max_length} is below {least}, the least length that is a multiple of "
                             f"both {self.length_multiples}")

    @classmethod
    def everything(cls, **changes):
        """All of it, in the conventions of this package; then the changes."""
        full = {f.name: True for f in fields(cls) if f.type is bool}
        return cls(**full | {"dtypes": tuple(DTYPES), "causal": "bottom-right", "scale": "any",
                             "lse": "natural", "long_lengths": (), "tiles": (1, 2, 3, 4, 5, 7, 16)} | changes)

    def but(self, **changes):
        """A copy with some fields changed."""
        return replace(self, **changes)

    def without(self, *names):
        """A copy in which these abilities are switched off; ValueError for one that there is not."""
        off = {f.name: f.default for f in fields(self)}
        for name in names:
            if name not in off:
                raise ValueError(f"unknown ability {name!r}; known are {', '.join(off)}")
        return self.but(**{name: off[name] for name in names})

    def refusal(self, recipe):
        """Why this problem cannot be asked; None if it can."""
        missing = sorted(name for name in recipe.abilities() if not getattr(self, name))
        if missing:
            return f"does not support {', '.join(missing)}"
        if recipe.dtype not in self.dtypes:
            return f"does not support {recipe.dtype}"
        dims = {recipe.d, recipe.dv or recipe.d}
        if self.head_dims is not None and not dims <= set(self.head_dims):
            return f"supports head dims {self.head_dims}, not {sorted(dims)}"
        if recipe.Nq % self.length_multiples[0] or recipe.Nk % self.length_multiples[1]:
            return f"supports lengths that are multiples of {self.length_multiples}, not {recipe.Nq, recipe.Nk}"
        if recipe.causal and (recipe.causal == "top-left") != (self.causal == "top-left"):
            return f"supports causal {self.causal} only"
        if self.causal == "square" and recipe.causal and recipe.Nq != recipe.Nk:
            return f"supports causal for equal lengths only, not {recipe.Nq, recipe.Nk}"
        if self.scale == "positive" and recipe.scale is not None and recipe.scale <= 0:
            return f"supports positive scales only, not {recipe.scale}"
        if not self.empty_rows and not visible(recipe.build()).any(axis=-1).all():
            return "does not support rows that see no key"
        return None
