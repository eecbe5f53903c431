"""A problem written as one line of plain numbers and words.

Hypothesis draws and shrinks a `Recipe`; the numbers inside the arrays come from a seeded generator. So the
smallest failing problem is a line like `Nq=2 Nk=3 d=1 causal=True seed=7`, and that line brings it back.
"""

import ast
import math
from dataclasses import dataclass, fields, replace

from fa_ref.testing.building import AXES, DTYPES, build
from fa_ref.testing.layouts import LAYOUTS

FLAGS = ("empty_rows", "bias_hides", "sink", "reverse", "nan_unread", "gradients", "dlse")
CHOICES = {
    "dtype": tuple(DTYPES),
    "causal": (False, True, "top-left"),
    "mask": ("none", "bool", "float"),
    "mask_axes": AXES,
    "bias": ("none", *AXES),
    "alibi": ("none", "H", "BH"),
    "layout": LAYOUTS,
    **dict.fromkeys(FLAGS, (False, True)),
}
LEAST = {"B": 0, "Hq": 1, "Hkv": 1, "Nq": 0, "Nk": 0, "d": 1, "dv": 1, "block_q": 1, "block_k": 1, "seed": 0}


@dataclass(frozen=True)
class Recipe:
    """Everything a Problem is built from, with the plainest problem as the default.

    logits: the typical size of scale·q·k. causal: True is bottom-right; "top-left" builds the other triangle
    as a boolean mask (Nq, Nk). mask and bias have the axes named by letters (`B11K` is (B, 1, 1, Nk)).
    empty_rows: the mask empties some rows; without it the mask leaves every row at least one key of its window.
    bias_hides: some entries of the bias are −inf. nan_unread: keys that no query row of their KV head may see
    hold NaN and inf (and a mask hides some keys from all rows, so that there are such keys); without a sink, also q,
    dout and dlse of rows that see no key.
    layout: how the arrays lie in storage, see `layouts.LAYOUTS`.
    """

    B: int = 1
    Hq: int = 1
    Hkv: int = 1
    Nq: int = 1
    Nk: int = 1
    d: int = 1
    dv: int | None = None
    dtype: str = "float32"
    logits: float = 1.0
    scale: float | None = None
    causal: bool | str = False
    window: tuple[int, int] = (-1, -1)
    mask: str = "none"
    mask_axes: str = "BHQK"
    empty_rows: bool = False
    bias: str = "none"
    bias_hides: bool = False
    alibi: str = "none"
    softcap: float | None = None
    sink: bool = False
    block_q: int | None = None
    block_k: int | None = None
    reverse: bool = False
    layout: str = "contiguous"
    nan_unread: bool = False
    gradients: bool = False
    dlse: bool = False
    seed: int = 0

    def __post_init__(self):
        """ValueError for a recipe from which nothing can be built."""
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if type(value) not in (bool, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}")
        for name, least in LEAST.items():
            number = getattr(self, name)
            if number is None and name in ("dv", "block_q", "block_k"):
                continue
            if type(number) is not int or number < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {number!r}")
        for name in ("logits", "scale", "softcap"):
            number = getattr(self, name)
            if number is None and name != "logits":
                continue
            if type(number) not in (int, float) or not math.isfinite(number) or (number <= 0 and name != "scale"):
                raise ValueError(f"{name} must be a {'' if name == 'scale' else 'positive '}number, got {number!r}")
        if not (isinstance(self.window, tuple) and len(self.window) == 2
                and all(type(n) is int and n >= -1 for n in self.window)):
            raise ValueError(f"window must be two whole numbers of at least -1, got {self.window!r}")
        if self.Hq % self.Hkv:
            raise ValueError(f"Hq must be a multiple of Hkv, got {self.Hq} and {self.Hkv}")
        if self.causal == "top-left" and (self.mask != "none" or self.window != (-1, -1)):
            raise ValueError("causal=top-left is itself a mask: it stands alone, without mask and window")

    def __str__(self):
        """The seed line: only what differs from the plainest problem."""
        return " ".join(f"{f.name}={_word(getattr(self, f.name))}" for f in fields(self)
                        if getattr(self, f.name) != f.default) or "seed=0"

    @classmethod
    def parse(cls, line):
        """The recipe that a seed line stands for; ValueError says which word is wrong."""
        kinds = {f.name: f.type for f in fields(cls)}
        values = {}
        for word in line.split():
            name, equals, value = word.partition("=")
            if not equals or name not in kinds:
                raise ValueError(f"cannot read {word!r} in the seed line; known are {', '.join(kinds)}")
            values[name] = value if kinds[name] is str else _value(value)
        return cls(**values)

    def but(self, **changes):
        """A copy with some fields changed."""
        return replace(self, **changes)

    def abilities(self):
        """The fields of `Supports` that an implementation needs for this recipe (empty_rows are not looked for)."""
        needed = {
            "causal": self.causal is not False,
            "window": self.window != (-1, -1),
            "bool_mask": self.mask == "bool",
            "float_mask": self.mask == "float",
            "bias": self.bias != "none",
            "alibi": self.alibi != "none",
            "softcap": self.softcap is not None,
            "sink": self.sink,
            "scale": self.scale is not None,
            "dv_differs": self.dv not in (None, self.d),
            "cross_lengths": self.Nq != self.Nk,
            "zero_lengths": 0 in (self.B, self.Nq, self.Nk),
            "grouped": self.Hq != self.Hkv,
            "gradients": self.gradients,
            "dlse": self.dlse,
            "strided": self.layout != "contiguous",
            "unread_nan": self.nan_unread,
            "tiles": (self.block_q, self.block_k) != (None, None),
            "reverse": self.reverse,
        }
        return {name for name, used in needed.items() if used}

    def build(self):
        """The Problem. The same recipe builds the same bits."""
        return build(self)


def _word(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(text):
    """A Python literal where it is one (`1,0`, `True`, `None`, `0.5`), else the word itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
