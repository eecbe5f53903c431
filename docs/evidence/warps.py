"""What the warps of a block tell each other: counted in the simulator."""

import inspect

import numpy as np

import cuda_kernels
from cuda_kernels import counts, fa2
from evidence.common import counted, same, warps_counted


@counted
def split_k_must_tell(one=144, four=576):
    """What FlashAttention-1's warps write for each other; if each had rows of its own, it would be nothing."""
    found = warps_counted()
    same([found["fa1_warps", n].told for n in (1, 4)], [one, four])
    return (f"8 queries, 8 keys, d = 16: the warps of our split-K kernel write {one} elements for each other if there "
            f"is one, {four} if there are 4. Every warp has a part of every row, so the keys are cut, not the queries")


@counted
def split_q_tells_nothing(told=0, heard=0):
    """What FlashAttention-2's warps write for and read from each other."""
    found = warps_counted()["fa2_warps", 4]
    same([found.told, found.heard], [told, heard])
    return (f"4 warps: those of our split-Q kernel write {told} elements for each other and read {heard}. A row "
            "belongs to one warp, so the queries are cut, and all warps read the same K and V")


@counted
def barriers_of_a_pair(split_k=3, split_q=2, per_tile_of_keys=1):
    """Barriers when a tile of queries meets one of keys, by formula, and what the audit counts beyond that."""
    kernels = ("fa1_warps", "fa2_warps")
    pairs = [counts.pair(kernel, 8, 8, 64, 16, 16, 4).barriers for kernel in kernels]
    same(pairs, [split_k, split_q])
    beyond = [warps_counted()[kernel, 4].barriers - pair for kernel, pair in zip(kernels, pairs, strict=True)]
    same(beyond, [per_tile_of_keys, 0])
    return (f"barriers for one tile of queries and one of keys: {split_k} in our split-K kernel (and "
            f"{per_tile_of_keys} more per tile of keys), {split_q} in our split-Q kernel")


@counted
def two_barriers_per_tile_of_keys(per_tile=2):
    """Barriers of the split-Q kernel for one and for three tiles of keys, counted by the audit."""
    from cuda_kernels import simulator

    found = []
    for keys in (4, 12):
        q, k = np.ones((1, 1, 4, 2), np.float32), np.ones((1, 1, keys, 2), np.float32)
        with simulator.audit() as a:
            cuda_kernels.forward(q, k, k, kernel="fa2_warps", threads=64, block_q=4, block_k=4)
        found.append(a.counts.barriers)
    same(found, [per_tile, 3 * per_tile])
    return (f"{found[0]} barriers of our split-Q kernel for one tile of keys, {found[1]} for three, so {per_tile} a "
            "tile: before K and V are overwritten, and before they are read")


@counted
def shuffles_stay_in_a_warp(split_k=320, split_q=80):
    """Shuffles in which rows find their maximum and their sum."""
    found = warps_counted()
    products = 8 * 8                                                    # one more for every P, in both
    same([found[kernel, 4].shuffles - products for kernel in ("fa1_warps", "fa2_warps")], [split_k, split_q])
    return (f"8 rows, 4 warps: {split_k} shuffles for maxima and sums in our split-K kernel, where each warp does it "
            f"for its own keys and then they meet in shared memory; {split_q} in our split-Q kernel, where a row stays "
            "in its warp")


@counted
def outputs_are_most_of_it(share_16=0.889, share_64=0.970):
    """Of what warps of FlashAttention-1 hand over, the part that is the output."""
    warps_counted()                                             # fails unless the audit agrees with the formula
    found = [dv * 4 * 8 / counts.pair("fa1_warps", 8, 8, 64, 16, dv, 4).told for dv in (16, 64)]
    same(found, [share_16, share_64], 3)
    return (f"of what the warps of our split-K kernel write for each other, {share_16:.0%} are partial outputs at d = "
            f"16, {share_64:.0%} at d = 64; the rest are maxima and sums")


@counted
def a_column_in_one_bank(without=1, with_one_more=32):
    """Banks that 32 threads meet which read down a column, and who decides that."""
    banks = [len(set((np.arange(32) * columns) % 32)) for columns in (64, 65)]
    same(banks, [without, with_one_more])
    assert "d_padded, Bc_padded = d + 1, Bc + 1" in inspect.getsource(fa2.make_forward)
    options = inspect.signature(cuda_kernels.forward).parameters
    assert not [name for name in options if "shared" in name or "bank" in name]
    return (f"a column of a tile of 64 lies in {without} bank, of a tile padded to 65 in {with_one_more}. The "
            "padding is in the kernels; `cuda_kernels.forward` has no option for it")
