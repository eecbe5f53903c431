"""Blocks on multiprocessors: the grid of FlashAttention-1 and that of FlashAttention-2.

    fa1     a block does one head: its Tr tiles of queries against its Tc tiles of keys    grid (heads, batch)
    fa2     a block does one tile of queries of one head (Dao, 2307.08691, section 3.2)    grid (Tr, heads, batch)

The unit of time is one pair of tiles. A block lasts as many as it visits: those that `Rule.kind` calls empty are
skipped, so under a causal mask the blocks of fa2 are of different lengths, and the order in which they start matters.

    grid            as numbered: from the first tile of queries to the last, head after head
    longest first   all heads' longest blocks first: what ends last is short
    longest last    the other way round

Limits. Blocks start in this order, each on the multiprocessor that is free first (CUDA promises no order; to go by the
number is what GPUs are seen to do). Pairs of tiles take equally long, partial ones too; loading Qi and storing Oi takes
no time. Blocks that share a multiprocessor are units of their own, "slots", each as fast as if it were alone: compare
times with each other only if `per_multiprocessor` is the same.
"""

from fa_ref.options import check_choice, check_whole
from fa_ref.schedule.model import Task, run
from fa_ref.scores import EMPTY, Rule, tiles

MULTIPROCESSORS = {"A100": 108, "H100": 132, "H200": 132}
ORDERS = ("grid", "longest first", "longest last")


def schedule(algorithm, *, batch=1, heads, Nq, Nk, Br=128, Bc=128, causal=False, order="grid", multiprocessors=132,
             per_multiprocessor=1):
    """The Table of a forward pass. batch, heads, lengths, heights of tiles, units: whole numbers of at least 1.

    Raises ValueError for sizes below 1, and for an algorithm or an order that is not there; TypeError for sizes that
    are not whole.
    """
    check_choice("algorithm", algorithm, ("fa1", "fa2"))
    check_choice("order", order, ORDERS)
    for name, size in {"batch": batch, "heads": heads, "Nq": Nq, "Nk": Nk, "Br": Br, "Bc": Bc,
                       "multiprocessors": multiprocessors, "per_multiprocessor": per_multiprocessor}.items():
        check_whole(name, size, 1)
    pairs = visited(Nq, Nk, Br, Bc, causal)
    kind = "multiprocessor" if per_multiprocessor == 1 else "slot"
    every_head = [(h, b) for b in range(batch) for h in range(heads)]
    if algorithm == "fa1":
        blocks = [Task(f"head {h}, batch {b}", kind, sum(pairs)) for h, b in every_head]
    else:
        blocks = [Task(f"tile {i}, head {h}, batch {b}", kind, n) for h, b in every_head for i, n in enumerate(pairs)]
    if order != "grid":
        blocks.sort(key=lambda block: block.duration, reverse=order == "longest first")
    return run(blocks, {kind: multiprocessors * per_multiprocessor})


def visited(Nq, Nk, Br, Bc, causal):
    """For each tile of queries, how many tiles of keys it meets that are not empty."""
    rule = Rule(Nq, Nk, scale=1.0, causal=causal)
    return [sum(rule.kind(rows, cols) != EMPTY for cols in tiles(Nk, Bc)) for rows in tiles(Nq, Br)]
