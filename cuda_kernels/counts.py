"""Split-K against split-Q in numbers: what `fa1_warps` and `fa2_warps` do on chip, as closed forms.

    python -m cuda_kernels counts       one pair of tiles, run in the simulator, counted by its audit

Barriers and shuffles count once for all threads that meet. Shared memory counts once for every lane and element; where
all lanes of a warp read one word at once, the hardware makes one access of these 32 reads.

"Told" is what a warp writes for all warps, "heard" what all read of it: nothing in `fa2_warps`; in `fa1_warps` the
parts of maxima, sums and outputs. Of these, the writes grow with the number of warps, the reads of the maxima with its
square. One warp alone tells itself: the kernel makes no exception.
"""

from typing import NamedTuple

import numpy as np

from cuda_kernels.launch import WARP
from fa_ref.scores import EMPTY, Rule, tiles
from fa_ref.terminal import console, tabled

# of the table; writes and reads are of shared memory, told and heard the part of them that tells other warps
HEAD = ("kernel", "warps", "barriers", "shuffles", "writes", "reads", "told", "heard")
BUTTERFLIES = 5 + 5         # shuffles in which 32 lanes find their maximum, and then their sum


class OnChip(NamedTuple):
    """Counts of a block or a launch. Of the writes and reads, the last two are only there to tell other warps."""

    barriers: int = 0
    shuffles: int = 0
    shared_writes: int = 0
    shared_reads: int = 0
    told: int = 0
    heard: int = 0


def together(parts):
    """The sum of some OnChip, field by field."""
    return OnChip(*map(sum, zip(*parts, strict=True)))


def pair(kernel, br, bc, seen, d, dv, warps):
    """One tile of br queries meets one of bc keys; `seen` of the br·bc scores are visible, and no P is rounded to 0."""
    reads = seen * (2 * d + dv)                                     # Qi and Kj for a score, Vj for its product with P
    if kernel == "fa2_warps":
        return OnChip(barriers=2, shuffles=br * (BUTTERFLIES + bc), shared_writes=bc * (d + dv), shared_reads=reads)
    told = warps * br * (1 + 1 + dv)                                # each warp's maximum, sum and output of each row
    heard = warps * br * WARP * warps                               # every lane of every warp reads all maxima …
    heard += br * warps * (WARP + WARP + dv)                        # … and, once per row, maxima, sums and outputs
    return OnChip(3, br * (warps * BUTTERFLIES + bc), br * d + told, reads + heard, told, heard)


def head(kernel, Nq, Nk, d, dv, Br, Bc, warps, causal=False):
    """One head: all pairs of tiles that are not skipped, and what happens once per tile."""
    rule = Rule(Nq, Nk, scale=1.0, causal=causal)
    if kernel == "fa2_warps":
        parts = [OnChip(shared_writes=Nq * d)]                                              # Qi, once per block
    else:
        parts = [OnChip(barriers=-(-Nk // Bc), shared_writes=Nk * (d + dv))]                # Kj, Vj, per tile of keys
    for rows in tiles(Nq, Br):
        for cols in tiles(Nk, Bc):
            if rule.kind(rows, cols) != EMPTY:
                br, bc = rule.visible(rows, cols).shape
                parts.append(pair(kernel, br, bc, int(rule.visible(rows, cols).sum()), d, dv, warps))
    return together(parts)


# --- the same, counted ----------------------------------------------------------------------------------------

def of_audit(audit):
    """(barriers, shuffles, shared writes, shared reads) that an audit has counted in all blocks."""
    found = audit.counts
    return found.barriers, found.shuffles, found.shared_writes, found.shared_reads


def rows(Br=16, Bc=32, d=16, dv=16, warps=(1, 2, 4, 8)):
    """[(kernel, warps, OnChip)] of one block and one pair of tiles; an audit has counted the first four.

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
            assert of_audit(a) == expected[:4], f"{kernel}, {number} warps: counted {of_audit(a)}, not {expected}"
            found.append((kernel, number, expected))
    return found


def table(**sizes):
    """`rows` as text, under HEAD."""
    return [(kernel, str(warps), *(f"{n:,}" for n in found)) for kernel, warps, found in rows(**sizes)]


def show(**warps):
    """Print the table; warps=(1, 4) only of these numbers."""
    shown = tabled(*HEAD, right=range(1, 8), rows=table(**warps))
    console.print("One block, a tile of 16 queries and one of 32 keys, d = dv = 16, counted while it ran:\n", shown)


def main():
    """`python -m cuda_kernels counts`."""
    show()
    return 0
