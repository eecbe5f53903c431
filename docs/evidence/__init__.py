"""What is computed to settle claims: each function computes something, asserts it, and returns a line for the page.

    python docs/claims.py --run         run them all and print what each returns, with the time it took

A function's arguments are the numbers that it expects. Called with others, it must fail: tests/test_claims.py does so.
`counted` marks what comes out of this repository's code (ledger, simulator, schedule, kit), `arithmetic` what follows
from numbers that the papers print, `measured` what a GPU took, by the records in docs/performance. What is the same for
several functions is counted once, in common.

A record may be made again on another day. So a measured function expects no numbers: it has limits, `least…` and
`most…`, far enough from what was found, and within them the verdict holds.
"""

from evidence import (  # noqa: F401  enter their functions
    blocks,
    eight_bits,
    exactness,
    gpu_memory,
    memory,
    printed,
    rungs,
    speed,
    speed_backward,
    warps,
)
from evidence.common import EVIDENCE

__all__ = ["EVIDENCE"]
