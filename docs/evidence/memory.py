"""What is moved, made and kept in memory: counted by the ledger, or by the formulas that it has confirmed."""

import numpy as np

from evidence.common import counted, metered, same
from fa_ref import costs, fa1, fa2, fa3
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule


def matrices(led):
    """Elements of matrices that were read and written; l, m and L are a share of 1/d."""
    return sum(r.reads + r.writes for r in led.arrays if len(r.shape) == 2)


@counted
def traffic_falls(times_256=4.9):
    """Elements between memory and chip, standard attention against FlashAttention-1."""
    moved = {name: matrices(metered(name, N=1024, Br=64, Bc=256)) for name in ("standard", "fa1")}
    same(moved["standard"] / moved["fa1"], times_256, 1)
    return (f"N = 1024, d = 64, tiles of 256 keys: standard attention moves {moved['standard']:,} elements of a head, "
            f"FlashAttention-1 {moved['fa1']:,}, {times_256} times less")


@counted
def short_sequences_gain_less(asked=(3.6, 4.0), once=(9, 129)):
    """Standard attention to FlashAttention-2 by formula, at 512 and 8192: all loads, and each array once."""
    loads, served = [], []
    for N in (512, 8192):
        v = costs.visits(Rule(N, N, scale=1.0), d=64, dv=64, Br=128, Bc=128)
        slow, fast = (cost.reads + cost.writes for cost in (costs.FORWARD[name](v) for name in ("standard", "fa2")))
        loads.append(slow / fast)
        served.append(slow / (4 * N * 64))
    same(loads, list(asked), 1)
    same(served, list(once), 0)
    return (f"d = 64, tiles of 128, elements of standard attention to those of FlashAttention-2: {asked[0]} times at "
            f"N = 512 and {asked[1]:.0f} at 8192 if every load counts, {once[0]} and {once[1]} times if caches serve "
            "K and V")


@counted
def quadratic_against_linear(largest_standard=1024 * 1024, largest_flash=1024 * 64):
    """The largest array that a forward pass makes in memory, at N = 1024."""
    made = {name: max(int(np.prod(r.shape)) for r in metered(name, N=1024).arrays if r.name is None)
            for name in ("standard", "fa1", "fa2")}
    same(made, {"standard": largest_standard, "fa1": largest_flash, "fa2": largest_flash})
    return (f"N = 1024, d = 64: the largest array that standard attention makes in memory has {largest_standard:,} "
            f"elements, N²; that of FlashAttention-1 or 2 has {largest_flash:,}, N·d")


@counted
def work_is_quadratic(times=4):
    """FLOPs of products when the length doubles."""
    flops = {name: [metered(name, N=N).matmul_flops for N in (512, 1024)] for name in ("standard", "fa2")}
    same([b / a for a, b in flops.values()], [times, times])
    same(flops["standard"], flops["fa2"])
    return f"twice the length, {times} times the FLOPs of products, in standard attention and in FlashAttention-2 alike"


@counted
def output_is_written_once(fa1_writes=8, fa2_writes=1):
    """How often each element of O goes to memory, for eight tiles of keys."""
    N, d = 512, 64
    writes = {name: max(r.writes for r in metered(name).arrays if r.shape == (N, d)) // (N * d)
              for name in ("fa1", "fa2")}
    same(writes, {"fa1": fa1_writes, "fa2": fa2_writes})
    return (f"8 tiles of queries, 8 of keys: FlashAttention-1 writes every element of O {fa1_writes} times, once per "
            f"tile of keys; FlashAttention-2 {fa2_writes} time, when its row is finished")


@counted
def both_make_tiles(at_once=64):
    """The largest block of rows that either touches at once."""
    rows, tile = {}, 64
    for name, core in (("fa1", fa1), ("fa2", fa2)):
        X = np.zeros((512, 8), np.float32)
        with Ledger(log=True) as led:
            core.forward_head(*(led.hbm(X, x) for x in "QKV"), Rule(512, 512, scale=1.0), tile, tile)
        rows[name] = max(b - a for access in led.log for a, b in access.where[:1])
    same(rows, {"fa1": at_once, "fa2": at_once})
    return f"of 512 rows, neither loop ever touches more than {at_once} at once: both work in tiles"


@counted
def saved_for_backward(fa1_numbers=2, later=1):
    """Numbers per row that a forward pass keeps beside O."""
    X, rule = np.ones((8, 4), np.float32), Rule(8, 8, scale=1.0)
    kept = {name: len(core.forward_head(X, X, X, rule, 4, 4)) - 1
            for name, core in (("fa1", fa1), ("fa2", fa2), ("fa3", fa3))}
    same(kept, {"fa1": fa1_numbers, "fa2": later, "fa3": later})
    return f"numbers kept per row beside O: FlashAttention-1 {fa1_numbers} (l, m), FlashAttention-2 and 3 {later} (L)"


@counted
def backward_makes_no_matrix(elements=512 * 64):
    """The largest array that the backward passes make in memory."""
    found = {name: max(int(np.prod(r.shape)) for r in metered(name, backward=True).arrays) for name in ("fa1", "fa2")}
    same(found, {"fa1": elements, "fa2": elements})
    return (f"N = 512, d = 64: the largest array in either backward pass, FlashAttention-1's or 2's, has {elements:,} "
            "elements, N·d; N² would be 262,144")


@counted
def gradients_are_not_in_place(adds=8, inputs_written=0):
    """Where the backward pass of FlashAttention-2 (and 3) writes."""
    arrays, N, d = metered("fa2", backward=True).arrays, 512, 64
    given = sum(r.writes for r in arrays if r.name in ("dO", "Q", "K", "V"))
    same(given, inputs_written)
    same(max(r.writes for r in arrays if r.name is None) // (N * d), adds)
    return (f"8 tiles of keys: {inputs_written} elements of Q, K, V and dO are written; every element of dQ, an array "
            f"of its own, is read and written {adds} times")


@counted
def tiles_set_the_intensity(at_64=63.0, at_128=124.1):
    """FLOPs of products for a byte that FlashAttention-2 moves."""
    found = []
    for Br in (64, 128):
        v = costs.visits(Rule(4096, 4096, scale=1.0), d=64, dv=64, Br=Br, Bc=64, dtype=np.float16)
        cost = costs.FORWARD["fa2"](v)
        found.append(cost.matmul_flops / (2 * (cost.reads + cost.writes)))
    same(found, [at_64, at_128], 1)
    return (f"N = 4096, d = 64, 16 bits: {at_64} FLOPs a byte with tiles of 64 queries, {at_128} with 128; the tile of "
            "keys does not enter")


@counted
def less_work_beside_products(fa1_million=8.50, fa2_million=6.42):
    """FLOPs that are no products."""
    found = [metered(name, N=1024).other_flops / 1e6 for name in ("fa1", "fa2")]
    same(found, [fa1_million, fa2_million], 2)
    return (f"N = 1024, d = 64, tiles of 64: {fa1_million:.2f} million FLOPs that are no products in FlashAttention-1, "
            f"{fa2_million:.2f} in FlashAttention-2, {1 - found[1] / found[0]:.0%} fewer")
