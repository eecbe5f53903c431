"""The implementations of this package, by name, each with what it supports. Tests and README go through it.

Kernels add themselves with `register`. `python docs/generate.py coverage` writes the coverage table of the README;
`python -m fa_ref.testing.registry` prints this package's columns of it.
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


def register_ours(algorithm, description):
    """Enter one algorithm of `fa_ref.forward`."""
    functions = (fa_ref.forward, fa_ref.backward, varlen.forward, varlen.backward)
    forward, backward, packed, packed_backward = (partial(f, algorithm=algorithm) for f in functions)
    register(algorithm, *adapters.fa_ref(forward, backward=backward, packed=packed, packed_backward=packed_backward),
             description, f"fa_ref/{algorithm}.py")


register_ours("standard", "materialises S and P")
register_ours("fa1", "outer loop over tiles of keys; O, l and m travel to memory in every step")
register_ours("fa2", "outer loop over tiles of queries; one division at the end, only L is kept")
register_ours("fa3", "fa2 as a two-stage pipeline: scores one tile ahead of P V; the backward pass is fa2's")

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
CAPABILITIES = {
    "dtypes": lambda s: ", ".join(SHORT[name] for name in s.dtypes),
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
    """Markdown: one row per capability, one column per implementation."""
    rows = [["", *(f"[`{name}`]({x.source})" for name, x in IMPLEMENTATIONS.items())]]
    rows += [["---"] * len(rows[0])]
    for name, cell in CAPABILITIES.items():
        cells = [cell(x.supports) for x in IMPLEMENTATIONS.values()]
        rows.append([name, *({True: "yes", False: "–"}.get(word, word) for word in cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    print(coverage_table())
