# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 Warps and multiprocessors
#
# **Claim.** FlashAttention-2 changed who does what. It has more blocks, and smaller ones, so that all multiprocessors
# have work. And its warps have rows of their own, so that they have nothing to tell each other.
#
# Time: about 40 minutes. Before: [05](05_flash_attention_2.ipynb) and [09](09_from_loops_to_threads.ipynb). You need:
# what a block, a thread and a barrier are. No GPU: what is counted here is counted in a simulator, and what takes time
# is a small model, which predicts no runtime.
#
# The simulator must be chosen before Numba is imported.

# %%
import os

os.environ["FA_REF_CUDA"] = "sim"

# %%
import cuda_kernels  # isort: skip  (before Numba)

import numpy as np

from course import matrix, show, source
from course.pictures import figure
from cuda_kernels import counts, fa1, fa2
from exercises import nb10
from exercises.kernels import noted
from fa_ref.schedule import blocks, makespan, tail, utilisation, waits, warps
from fa_ref.schedule.pictures import Gantt

# %% [markdown]
# ## Two questions
#
# A GPU has many **multiprocessors**: an H100 has 132. A **block** of threads runs on one of them, from its start to its
# end. The threads of a block come in groups of 32, the **warps**. So there are two questions:
#
# ```
#                                        FlashAttention-1            FlashAttention-2
# What does a block do?                  a whole head                one tile of queries of a head
# Of a pair of tiles, what does          some of the keys,           some of the queries,
# a warp do?                             "split-K"                   "split-Q"
# ```
#
# The first answer stands in the call that launches a kernel, as its **grid**: `(Hq, B)` here, `(call.Tr, Hq, B)` there.

# %%
source(fa1.forward)
print()
source(fa2.forward)

# %% [markdown]
# One thing must be said. This is FlashAttention-1 as its paper has it. The released code could already give one head to
# several blocks from October 2022 on (claim [A-3](../docs/claims.md#a-3)).
#
# ## Blocks on multiprocessors
#
# Five heads, four tiles of queries and four tiles of keys in each. The card has 8 multiprocessors. A pair of tiles
# takes one unit of time, so FlashAttention-1's block takes 16, and FlashAttention-2's takes 4.
#
# Predict for both: how many blocks are there? How many multiprocessors ever work? When is the last block done?

# %%
small = dict(heads=5, Nq=256, Nk=256, Br=64, Bc=64, multiprocessors=8)
tables = {name: blocks.schedule(name, **small) for name in ("fa1", "fa2")}
for name, table in tables.items():
    at_work = len({row.unit for row in table.rows})
    print(f"{name}: {len(table.rows):2} blocks, {at_work} multiprocessors work, done at {makespan(table)}, "
          f"busy {utilisation(table):.0%} of the time")
assert [makespan(table) for table in tables.values()] == [16, 12]

show(Gantt(tables, group=lambda row: next(part for part in row.what.split(", ") if part.startswith("head")),
           time="pairs of tiles").sheet.figure,
     "Who runs when on 8 multiprocessors. fa1: five of them work for 16 units of time, three never. fa2: all eight "
     "work for 8 units; then four of them work for 4 more.")

# %% [markdown]
# 20 blocks on 8 multiprocessors need three **waves**: 8, 8 and 4. The third wave is only half full, and takes as long
# as a full one. There was room for 24 blocks, and 20 came: 83%. ([docs/schedule.md](../docs/schedule.md) counts 2.5
# waves, not rounded up.)
#
# ```
# waves = blocks / multiprocessors, rounded up          utilisation = blocks / (waves * multiprocessors)
# ```
#
# ## Exercise: waves
#
# Write `waves(B, H, N, Br, multiprocessors)` for a batch of `B` sequences of `N` queries with `H` heads, in tiles of
# `Br` queries. No mask, so all blocks of a grid take equally long. It returns two triples `(blocks, waves,
# utilisation)`: for the grid of FlashAttention-1, then for that of FlashAttention-2. About 5 lines.

# %% tags=["stub"]
def waves(B, H, N, Br, multiprocessors):
    """Returns (blocks, waves, utilisation), (blocks, waves, utilisation): FlashAttention-1, FlashAttention-2."""
    raise NotImplementedError("waves is yours to write")


# %%
nb10.waves(waves)

# %% [markdown]
# <details><summary>Hint 1: rounding up</summary>
#
# `-(-a // b)` is `a / b`, rounded up, in whole numbers. A last tile that is not full is a block too.
# </details>
#
# <details><summary>Hint 2: how many blocks?</summary>
#
# Look at the grids above: the numbers in it, multiplied.
# </details>
#
# The answers to this notebook: [solutions/nb10.py](solutions/nb10.py).

# %% [markdown]
# ## On a real card
#
# 16,384 tokens with 16 heads on 132 multiprocessors, cut into sequences: many short ones, or few long ones. All in
# tiles of 128. Predict: where does the old grid do well, and where does it not?

# %%
lengths = (512, 1024, 2048, 4096, 8192, 16384)
busy = {"fa1": [], "fa2": []}
for N in lengths:
    for name, found in busy.items():
        table = blocks.schedule(name, batch=16384 // N, heads=16, Nq=N, Nk=N, Br=128, Bc=128, multiprocessors=132)
        found.append(utilisation(table))
    assert len(table.rows) == 2048 and round(found[-1], 2) == round(2048 / (16 * 132), 2) == 0.97            # fa2
    print(f"{16384 // N:2} of {N:6,}: " + "   ".join(f"{name} {found[-1]:4.0%}" for name, found in busy.items()))
assert busy["fa1"][0] > 0.95 and busy["fa1"][-1] < 0.13 and min(busy["fa2"]) > 0.95

drawn, axes = figure(6.4, 2.8)
for name, color, width in (("fa1", "#2b6cb0", 5), ("fa2", "#c05621", 1.5)):
    axes.plot(range(len(lengths)), busy[name], "o-", color=color, label=name, linewidth=width)
axes.set(xticks=range(len(lengths)), xlabel="length of a sequence (16,384 tokens in all)", ylim=(0, 1.05),
         title="part of the time that multiprocessors are busy")
axes.set_xticklabels([f"{N:,}" for N in lengths])
axes.legend(frameon=False, loc="lower left")
show(drawn, "Utilisation against the length of a sequence. fa2 stays near 97% everywhere. fa1 lies on the same line "
            "up to 2,048 tokens, then falls by half with each doubling, to 12% for 16,384.")

# %% [markdown]
# With 32 short sequences there are 512 heads, enough for all multiprocessors, whoever gets them. With one long sequence
# there are 16 heads, and 116 of the 132 multiprocessors have nothing to do. FlashAttention-2 has 2,048 blocks, however
# the tokens are cut: 16 waves of 132 would be 2,112 blocks, 97%. Long texts and small batches are what the second grid
# is for.
#
# Even that grid can run out of blocks. When a model writes its answer, there is one query at a time. Predict the
# utilisation for one query, 8 heads, a batch of 1, and 100,000 keys:

# %%
one_query = blocks.schedule("fa2", heads=8, Nq=1, Nk=100_000, multiprocessors=132)
print(f"{len(one_query.rows)} blocks, busy {utilisation(one_query):.0%} of the time")
assert len(one_query.rows) == 8

# %% [markdown]
# Then the *keys* must be shared out among blocks, and their results joined at the end, as in
# [02](02_softmax_in_pieces.ipynb). That is Flash-Decoding.
#
# ## Blocks of different length
#
# Under a causal mask, the first tile of queries meets one tile of keys, the last one meets all. Three heads of six
# tiles on 8 multiprocessors: predict which order is better, the short blocks of each head first, or all long ones
# first?

# %%
causal = {order: blocks.schedule("fa2", heads=3, Nq=384, Nk=384, Br=64, Bc=64, causal=True, order=order,
                                 multiprocessors=8) for order in ("grid", "longest first")}
for order, table in causal.items():
    print(f"{order:13}: done at {makespan(table):2}, the tail is {tail(table)}, busy {utilisation(table):.0%}")
assert [makespan(table) for table in causal.values()] == [11, 8]
show(Gantt(causal, group=lambda row: row.what.split(", ")[1], time="pairs of tiles").sheet.figure,
     "Who runs when, three causal heads of six tiles. In the order of the grid, a long block starts at 5 and ends "
     "at 11, when all others are done. With the longest first, all is done at 8.")

# %% [markdown]
# The **tail** is the time from the moment when the first multiprocessor has nothing left to do, to the end.
#
# ## Several blocks on one multiprocessor
#
# A multiprocessor can hold more than one block, if there is room. While the threads of one wait, those of another
# compute. How full it is of threads is called **occupancy**. Each block needs shared memory for its tiles, and the
# multiprocessor has a fixed amount. On Hopper: 228 KB, of which each block costs 1 KB more than it asks for; 2048
# threads; 32 blocks. (Registers count too. A compiler decides on them, so they are left out here.)
#
# What lies in the shared memory of a block of `fa2`: Qi, Kj, Vj and acc, with about d numbers in each row; m, l and
# alpha, with one for each row; and Sij, with one for each score. Tiles twice as high and wide make Sij four times as
# large, and all the others twice.
#
# `fa2`, d = 64, float32, 128 threads. Predict: tiles twice as high and wide, how many blocks are left?

# %%
for n in (16, 32, 64):
    bytes_of_block = fa2.shared_bytes(n, n, 64, 64, itemsize=4)
    assert n == 16 or 2 < bytes_of_block / fa2.shared_bytes(n // 2, n // 2, 64, 64, itemsize=4) < 2.25
    assert (bytes_of_block > 48 * 1024) == (n == 64)
    fit = min(228 * 1024 // (bytes_of_block + 1024), 2048 // 128, 32)
    print(f"tiles {n} × {n}: {bytes_of_block:6,} bytes, {fit:2} blocks, occupancy {fit * 128 / 2048:.0%}")
assert fit == 2

# %% [markdown]
# So at d = 64, doubling gives a little more than twice the bytes. (A block that needs more than 48 KB must ask for it.
# The teaching kernels do not, so they refuse the last line.)
#
# Larger tiles read K and V less often (see [03](03_memory_is_the_cost.ipynb)), but fewer blocks fit. That is why tile
# sizes are tuned and not derived.
#
# ## Warps in a block
#
# Now inside a block. A tile of queries meets a tile of keys, and four warps share the scores. `fa1_warps.py` and
# `fa2_warps.py` are the same steps as before, with the work cut once by keys and once by queries. The run tells which
# warp computed which score:

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, N, 4)).astype(np.float32) for N in (8, 32, 32))


def warp_of_each_score(kernel):
    """(8, 32): the warp that reads query r and key c together, to multiply them."""
    with noted() as (_, notes):
        cuda_kernels.forward(q, k, v, kernel=kernel, threads=4 * 32, block_q=8, block_k=32)
    owner, row = np.full((8, 32), -1), {}
    for note in notes:
        if note.action == "reads" and note.array == "Qi":
            row[note.thread] = note.index[0]
        if note.action == "reads" and note.array == "Kj":
            owner[row[note.thread], note.index[0]] = note.thread // 32
    return owner


drawn, axes = figure(8.6, 1.9, columns=2)
for ax, kernel, title in zip(axes, ("fa1_warps", "fa2_warps"), ("split-K", "split-Q"), strict=True):
    owner = warp_of_each_score(kernel)
    matrix(ax, owner, f"{title} ({kernel})", values=False, limit=4.5)
    ax.set(xlabel="32 keys", ylabel="8 queries", yticks=[])
    for w in range(4):
        r, c = np.argwhere(owner == w).mean(axis=0)
        ax.text(c, r, f"warp {w}", ha="center", va="center", fontsize=9, color="#24292f")
    cut = np.arange(32)[None, :] // 8 if kernel == "fa1_warps" else np.arange(8)[:, None] // 2
    assert (owner == cut).all()
show(drawn, "Two tables of scores, 8 queries by 32 keys. With split-K each of four warps has 8 columns of all rows. "
            "With split-Q each has 2 whole rows.")

# %% [markdown]
# A softmax runs along a row. With split-K, each warp knows a quarter of every row. It has a maximum, a sum and an
# output of its own keys only, and they must meet in shared memory. With split-Q a row is one warp's business. (Some
# texts have the two the wrong way round. The picture is from the run.)
#
# Predict: with 4 warps, how many numbers must the warps write for each other, for 8 rows and dv = 4? A warp has a
# maximum, a sum and dv outputs of each row.

# %%
rows = counts.rows(Br=8, Bc=32, d=4, dv=4, warps=(1, 2, 4))           # counted while it ran, compared with formulas
print("kernel      warps  barriers  shared writes, of these for others   shared reads, of these from others")
for kernel, number, c in rows:
    print(f"{kernel:11} {number:5} {c.barriers:9} {c.shared_writes:14} {c.told:21} {c.shared_reads:14} {c.heard:21}")
assert rows[2][2].told == 4 * 8 * (1 + 1 + 4) and rows[5][2].told == rows[5][2].heard == 0

# %% [markdown]
# With split-K, the more warps, the more they talk. With split-Q nothing grows: there is nothing to tell. Both have two
# barriers around the loading of tiles. Split-K needs two more for the softmax, and all warps wait there. (A warp alone
# "tells" itself: the kernel makes no exception.)
#
# Reads count once for each thread here. Where all 32 threads of a warp read the same number at once, the hardware does
# it in one go. So "from others" looks longer than it is.
#
# A side effect: with split-Q a row is added up in one order, whatever the number of warps. Predict what that means for
# the bits of the result:

# %%
k2, v2 = (rng.standard_normal((1, 1, 64, 4)).astype(np.float32) for _ in range(2))
for kernel in ("fa1_warps", "fa2_warps"):
    one, four = (cuda_kernels.forward(q, k2, v2, kernel=kernel, threads=32 * W, block_q=8, block_k=32).out
                 for W in (1, 4))
    same = bool((one == four).all())
    print(f"{kernel}: 1 warp and 4 warps agree: {np.allclose(one, four, atol=1e-6)}, to the last bit: {same}")
    assert same == (kernel == "fa2_warps")

# %% [markdown]
# ## Who waits
#
# Under a causal mask, split-K has one more trouble. The pair has 16 queries and 32 keys; the queries are the last 16 of
# the 32. So every query sees the keys of warps 0 and 1, and warps 2 and 3 have less to do and wait at each barrier.
#
# The unit of time is one access to shared memory. A warp's time is that of its 32 threads, added up. Predict: which of
# the two splits gains more from the mask?

# %%
pair = dict(br=16, bc=32, d=16, dv=16, warps=4)
tables = {split: warps.schedule(split, **pair, causal=True) for split in ("split-K", "split-Q")}
for split, table in tables.items():
    full = makespan(warps.schedule(split, **pair))
    print(f"{split}: done at {full:,} without a mask, at {makespan(table):,} with it; "
          f"the warps wait {sum(row.end - row.start for row in waits(table)):,} in all")
assert [makespan(table) for table in tables.values()] == [9824, 6112]
waiting = {split: [row.unit for row in waits(table)] for split, table in tables.items()}
assert sorted(waiting["split-K"]) == ["warp 2", "warp 2", "warp 3", "warp 3"]                # at two barriers each
assert all(row.end == makespan(tables["split-Q"]) for row in waits(tables["split-Q"]))       # at the end only
show(Gantt({f"{split}, causal": table for split, table in tables.items()},
           time="accesses to shared memory, added up over the 32 threads of a warp").sheet.figure,
     "Four warps and a causal pair of tiles. With split-K, warps 2 and 3 wait for warps 0 and 1 at two barriers, and "
     "all hand over their parts: 9,824 units. With split-Q, the warps have different amounts to do and wait at the end "
     "only: 6,112 units.")

# %% [markdown]
# "write maxima" is so short that it is a line. Teal is "hand over": a warp writes its sums and its outputs. Grey is
# "put together": the warps share out the rows, and read what all have written.
#
# Split-K gains nothing: the keys of warps 0 and 1 are seen by every query, and the other two wait for them. With
# split-Q the first rows are done early, and nobody must wait before the tile ends.
#
# The purple bars are too long: all 32 threads of a warp read the same maxima, which the hardware does in one go and
# this model counts 32 times. What stays true: split-K has two barriers at which warps wait, and a hand-over; split-Q
# has neither.
#
# ## Exercise: the warps meet
#
# Write what split-K must do and split-Q need not. Each of `W` warps has seen its own keys. For each of `br` rows it
# brings its maximum `m`, its sum `l = sum(exp(s - m))` and its output `acc = sum(exp(s - m) * v)`, not yet divided.
#
# `meet(m, l, acc)` returns the output `O` of all keys, and `L`, the logarithm of the sum of all `exp(s)`.
#
# A warp may have seen nothing of a row: then it brings `m = -inf`, `l = 0` and `acc = 0`. If no warp has seen anything
# of it, `O` is 0 and `L` is `-inf`. About 6 lines.

# %% tags=["stub"]
def meet(m, l, acc):
    """m (W, br), l (W, br), acc (W, br, dv). Returns O (br, dv), L (br,)."""
    raise NotImplementedError("meet is yours to write")


# %%
nb10.meet(meet)

# %% [markdown]
# <details><summary>Hint 1: a common maximum</summary>
#
# `m.max(axis=0)` is the maximum of each row over all warps. A part that was made with `m[w]` is changed to it with the
# factor `exp(m[w] - maximum)`, as in [02](02_softmax_in_pieces.ipynb).
# </details>
#
# <details><summary>Hint 2: NaN</summary>
#
# Where can `-inf - (-inf)` occur? It is NaN, and so is `0 / 0`. Two functions are for that:
# `from fa_ref.online_softmax import finite_or_zero, nonzero_or_one`.
# </details>
#
# The answer: [solutions/nb10.py](solutions/nb10.py).

# %% [markdown]
# ## What to take along
#
# - A block for each tile of queries, and not for each head: that keeps all multiprocessors busy when sequences are long
#   and few. A started wave takes as long as a full one.
# - FlashAttention-1 cuts a tile by keys, and its warps must meet. FlashAttention-2 cuts it by queries, and its warps
#   need not.
# - Split-K is not wrong as such. With one query there is nothing else to cut, and Flash-Decoding does it across blocks.
#
# More: [docs/schedule.md](../docs/schedule.md), [docs/gpu.md](../docs/gpu.md#warps-that-share-a-tile).
#
# Next: [11 FlashAttention-3](11_flash_attention_3.ipynb).
