"""One attention problem and one answer to it: the two words the kit speaks.

A `Problem` is everything that decides the numbers (arrays and options) and the few things that must not
(tile sizes, loop direction). An implementation under test is any function `fn(problem) -> Result`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

OPTIONS = ("scale", "causal", "window", "mask", "bias", "alibi_slopes", "softcap", "sink")
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs of one forward (and, if `dout` is given, one backward) call, as NumPy arrays.

    q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv), dout (B, Hq, Nq, dv) or None, dlse (B, Hq, Nq)
    or None; the options mean what `fa_ref.forward` says. `block_q`, `block_k` and `reverse` say how to walk
    the tiles: they may change the last bits, never the answer.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray | None = None
    dlse: np.ndarray | None = None
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    alibi_slopes: np.ndarray | None = None
    softcap: float | None = None
    sink: np.ndarray | None = None
    block_q: int | None = None
    block_k: int | None = None
    reverse: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the numbers, as keyword arguments."""
        return {name: getattr(self, name) for name in OPTIONS}

    def replace(self, **changes) -> "Problem":
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Result:
    """An answer: out (B, Hq, Nq, dv), lse (B, Hq, Nq), and gradients shaped like what they belong to.

    A field is None where the implementation does not give it. The oracle and the bounds use the same
    class, so that an answer, the truth and the allowed error line up field by field.
    """

    out: np.ndarray
    lse: np.ndarray | None = None
    dq: np.ndarray | None = None
    dk: np.ndarray | None = None
    dv: np.ndarray | None = None
    dbias: np.ndarray | None = None
    dsink: np.ndarray | None = None
