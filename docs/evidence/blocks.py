"""Who runs when: by the schedules of fa_ref.schedule, which predict no runtime."""

from evidence.common import counted, same
from fa_ref.schedule import blocks, overlap, utilisation


@counted
def blocks_of_a_long_sequence(fa1_busy=0.12, fa2_busy=0.97):
    """Share of an H100's multiprocessors that is busy: one sequence of 16,384, 16 heads."""
    found = [utilisation(blocks.schedule(name, heads=16, Nq=16384, Nk=16384)) for name in ("fa1", "fa2")]
    same(found, [fa1_busy, fa2_busy], 2)
    return (f"scheduled on 132 multiprocessors, one sequence of 16,384, 16 heads: a block per head keeps "
            f"{fa1_busy:.0%} of them busy, a block per tile of queries {fa2_busy:.0%}")


@counted
def a_head_in_many_blocks(fa1_blocks=1, fa2_blocks=128):
    """Blocks that share one head."""
    found = [len(blocks.schedule(name, heads=1, Nq=16384, Nk=16384).rows) for name in ("fa1", "fa2")]
    same(found, [fa1_blocks, fa2_blocks])
    return (f"one head of 16,384 queries in tiles of 128: {fa1_blocks} block as FlashAttention-1 is printed, "
            f"{fa2_blocks} blocks in FlashAttention-2")


@counted
def batch_fills_the_card(one=0.12, eight=0.97, fa2_one=0.97):
    """The same sequence length, batch 1 and 8."""
    busy = [utilisation(blocks.schedule(name, batch=batch, heads=16, Nq=4096, Nk=4096))
            for name, batch in (("fa1", 1), ("fa1", 8), ("fa2", 1))]
    same(busy, [one, eight, fa2_one], 2)
    return (f"16 heads, 4096 tokens, 132 multiprocessors: a block per head keeps {one:.0%} busy at batch 1, "
            f"{eight:.0%} at batch 8; a block per tile of queries {fa2_one:.0%} at batch 1 already")


@counted
def a_block_finishes_its_rows(fa1_pairs=64, fa2_pairs=8):
    """Pairs of tiles that one block does."""
    found = [blocks.schedule(name, heads=1, Nq=1024, Nk=1024).rows[0] for name in ("fa1", "fa2")]
    same([row.end - row.start for row in found], [fa1_pairs, fa2_pairs])
    return (f"8 tiles of queries, 8 of keys: a block of FlashAttention-1 does all {fa1_pairs} pairs of its head, a "
            f"block of FlashAttention-2 does {fa2_pairs}, one tile of queries against all keys")


@counted
def overlap_fills_the_tensor_core(serial=0.57, ahead=0.80, in_turns=1.00, both=1.00):
    """Share of time in which the tensor core works, once a schedule is under way."""
    c = overlap.clocks(bits=16)
    found = [4 * c.product / overlap.period(name, c) for name in overlap.SCHEDULES]
    same(found, [serial, ahead, in_turns, both], 2)
    return (f"tensor core busy, in a model at d = 128 and 16 bits: {serial:.0%} without overlap, {ahead:.0%} with "
            f"the next scores ahead of softmax, {in_turns:.0%} with ping-pong, {both:.0%} with both; real kernels "
            "wait for more")
