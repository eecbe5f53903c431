"""The implementations of this package, by name, each with what it supports. Tests, tour and README go through it.

Kernels add themselves with `register`. `python -m fa_ref.testing.registry` prints the coverage table of the README.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import fa_ref
from fa_ref import varlen
from fa_ref.testing import adapters
from fa_ref.testing.supports import Supports

IMPLEMENTATIONS: dict[str, "Implementation"] = {}


@dataclass(frozen=True)
class Implementation:
    """fn(problem) -> Result, what it supports, one sentence about it, and the file to read."""

    fn: Callable
    supports: Supports
    description: str
    source: str


def register(name, fn, supports, description, source):
    """Enter an implementation; ValueError if the name is taken."""
    if name in IMPLEMENTATIONS:
        raise ValueError(f"there is already an implementation {name!r}")
    IMPLEMENTATIONS[name] = Implementation(fn, supports, description, source)


for algorithm, description in {
    "standard": "materialises S and P",
    "fa1": "outer loop over tiles of keys; O, l and m travel to memory in every step",
    "fa2": "outer loop over tiles of queries; one division at the end, only L is kept",
}.items():
    functions = (fa_ref.forward, fa_ref.backward, varlen.forward, varlen.backward)
    forward, backward, packed, packed_backward = (partial(f, algorithm=algorithm) for f in functions)
    register(algorithm, *adapters.fa_ref(forward, backward=backward, packed=packed, packed_backward=packed_backward),
             description, f"fa_ref/{algorithm}.py")

COLUMNS = {
    "dtypes": lambda s: ", ".join(s.dtypes),
    "d": lambda s: "any" if s.head_dims is None else ", ".join(map(str, s.head_dims)),
    "dv ≠ d": lambda s: s.dv_differs,
    "lengths": lambda s: "any" if s.length_multiples == (1, 1) else "multiples of {}, {}".format(*s.length_multiples),
    "Nq ≠ Nk": lambda s: s.cross_lengths,
    "causal": lambda s: s.causal or False,
    "window": lambda s: s.window,
    "mask": lambda s: " and ".join(["bool"] * s.bool_mask + ["float"] * s.float_mask) or False,
    "bias": lambda s: s.bias,
    "ALiBi": lambda s: s.alibi,
    "softcap": lambda s: s.softcap,
    "sink": lambda s: s.sink,
    "grouped": lambda s: s.grouped,
    "packed": lambda s: s.packed is not None,
    "backward": lambda s: "with dlse" if s.gradients and s.dlse else s.gradients,
}


def coverage_table():
    """Markdown: one row per implementation, one column per capability."""
    rows = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for name, implementation in IMPLEMENTATIONS.items():
        cells = [cell(implementation.supports) for cell in COLUMNS.values()]
        words = [{True: "yes", False: "–"}.get(x, x) for x in cells]
        rows.append([f"[`{name}`]({implementation.source})", *words])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    print(coverage_table())
