"""What is computed to settle claims: each function computes something, asserts it, and returns a line for the page.

    python docs/claims.py --run         run them all and print what each returns, with the time it took

A function's arguments are the numbers that it expects. Called with others, it must fail: tests/test_claims.py does so.
`counted` marks what comes out of this repository's code (ledger, simulator, schedule, kit), `arithmetic` what follows
from numbers that the papers print. What is the same for several functions is measured once, in common.
"""

from evidence import blocks, eight_bits, exactness, memory, printed, warps  # noqa: F401  enter their functions
from evidence.common import EVIDENCE

__all__ = ["EVIDENCE"]
