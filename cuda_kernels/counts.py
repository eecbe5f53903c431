"""Split-K against split-Q in numbers: what `fa1_warps` and `fa2_warps` do on chip, as closed forms.

    python -m cuda_kernels counts       one pair of tiles, run in the simulator, counted by its audit

Barriers and shuffles count once for all threads that meet. Shared memory counts once for every lane and element; where
all lanes of a warp read one word at once, the hardware makes one access of these 32 reads.

"Handed over" is what one warp writes and others read. It is nothing in `fa2_warps`. In `fa1_warps` it is what the
warps' parts of maxima, sums and outputs cost, and it grows with the number of warps.
"""

from typing import NamedTuple

import numpy as np

from cuda_kernels.launch import WARP
from fa_ref.scores import Rule

BUTTERFLY = 2 * 5           # shuffles in which 32 lanes find a maximum, and then a sum


class OnChip(NamedTuple):
    """Counts of a block or a launch; `handed_over`: (writes, reads) that are only there to tell other warps."""

    barriers: int = 0
    shuffles: int = 0
    shared_writes: int = 0
    shared_reads: int = 0
    handed_over: tuple[int, int] = (0, 0)


def pair(kernel, br, bc, seen, d, dv, warps):
    """One tile of br queries meets one of bc keys; `seen` of the br·bc scores are visible, and no P is rounded to 0."""
    reads = seen * (2 * d + dv)                                     # Qi and Kj for a score, Vj for its product with P
    if kernel == "fa2_warps":
        return OnChip(2, br * (BUTTERFLY + bc), bc * (d + dv), reads)
    writes = warps * br * (1 + 1 + dv)                              # each warp's maximum, sum and output of each row
    told = warps * br * WARP * warps                                # every lane of every warp reads all maxima …
    told += br * warps * (WARP + WARP + dv)                         # … and, once per row, maxima, sums and outputs
    return OnChip(3, br * (warps * BUTTERFLY + bc), br * d + writes, reads + told, (writes, told))


def head(kernel, Nq, Nk, d, dv, Br, Bc, warps, causal=False):
    """One head: the sum over all pairs of tiles that are not skipped, and what happens once per tile."""
    rule = Rule(Nq, Nk, scale=1.0, causal=causal)
    queries, keys = ([slice(x, min(x + size, N)) for x in range(0, N, size)] for N, size in ((Nq, Br), (Nk, Bc)))
    total = OnChip()
    for rows in queries:
        for cols in keys:
            if rule.kind(rows, cols) != "empty":
                seen, br, bc = int(rule.visible(rows, cols).sum()), length(rows), length(cols)
                total = add(total, pair(kernel, br, bc, seen, d, dv, warps))
    if kernel == "fa2_warps":
        return add(total, OnChip(shared_writes=Nq * d))                         # Qi, once per block
    return add(total, OnChip(barriers=len(keys), shared_writes=Nk * (d + dv)))  # Kj and Vj, once per tile of keys


def length(tile):
    return tile.stop - tile.start


def add(a, b):
    """Both together."""
    both = tuple(x + y for x, y in zip(a.handed_over, b.handed_over, strict=True))
    return OnChip(*(x + y for x, y in zip(a[:-1], b[:-1], strict=True)), both)


# --- the same, counted ----------------------------------------------------------------------------------------

def of_audit(audit):
    """(barriers, shuffles, shared writes, shared reads) that an audit has counted in all blocks."""
    found = audit.counts
    return found.barriers, found.shuffles, found.shared_writes, found.shared_reads


def rows(Br=16, Bc=32, d=16, dv=16, warps=(1, 2, 4, 8)):
    """[(kernel, warps, OnChip)] of one block and one pair of tiles; all but `handed_over` is counted by an audit.

    AssertionError if the formulas say anything else. Runs in the simulator only.
    """
    import cuda_kernels
    from cuda_kernels import simulator

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, N, width)).astype(np.float32) for N, width in ((Br, d), (Bc, d), (Bc, dv)))
    found = []
    for kernel in ("fa1_warps", "fa2_warps"):
        for number in warps:
            with simulator.audit() as a:
                cuda_kernels.forward(q, k, v, kernel=kernel, threads=WARP * number, block_q=Br, block_k=Bc)
            expected = head(kernel, Br, Bc, d, dv, Br, Bc, number)
            assert of_audit(a) == expected[:-1], f"{kernel}, {number} warps: counted {of_audit(a)}, not {expected}"
            found.append((kernel, number, OnChip(*of_audit(a), expected.handed_over)))
    return found


def table(**sizes):
    """`rows` as text: kernel, warps, barriers, shuffles, shared writes, shared reads, handed over (writes + reads)."""
    return [(kernel, str(warps), *(f"{n:,}" for n in found[:-1]), "{:,} + {:,}".format(*found.handed_over))
            for kernel, warps, found in rows(**sizes)]


def main(argv=()):
    """`python -m cuda_kernels counts`; returns 2 for options, of which there are none."""
    if argv:
        print("usage: python -m cuda_kernels counts   (no options)")
        return 2
    from fa_ref.tour import console, tabled

    shown = tabled("kernel", "warps", "barriers", "shuffles", "shared writes", "shared reads", "handed over",
                   right=range(1, 7))
    for row in table():
        shown.add_row(*row)
    console.print("One block, a tile of 16 queries and one of 32 keys, d = dv = 16:\n", shown)
    return 0
