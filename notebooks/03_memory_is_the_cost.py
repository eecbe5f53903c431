# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 Memory is the cost
#
# **Claim.** Standard attention and FlashAttention multiply the same numbers. They differ in how many numbers travel
# between memory and chip, and that can be predicted to the last one.
#
# Time: about 40 minutes, 15 of them for the exercises. Before: [01](01_attention_by_hand.ipynb),
# [02](02_softmax_in_pieces.ipynb). You need: nothing about tiles yet; the loops themselves are explained in 04 and 05.

# %%
import numpy as np

from course import matrix, show, source, steps
from course.pictures import figure
from detective import case1
from exercises import nb03
from fa_ref import costs, drawing, fa1, fa2, standard
from fa_ref.inputs import accumulator, rounded  # noqa: F401            for exercise B
from fa_ref.ledger import Ledger
from fa_ref.online_softmax import rowmax, rowsum  # noqa: F401
from fa_ref.scores import FULL, Rule  # noqa: F401

# %% [markdown]
# ## Two places
#
# A GPU computes with numbers that are on the chip. There is room for few of them. All others lie in *HBM*, the large
# memory beside the chip. Numbers travel between the two, and the road is narrow:
#
# ```
#                                          A100                   H200
# HBM to chip, bytes a second              1.5 to 2.0 · 10¹²      4.8 · 10¹²
# chip to its own memory, bytes a second   about 19 · 10¹²        about 29 · 10¹²
# products of 16-bit numbers, FLOP/s       312 · 10¹²             989 · 10¹²
# room on chip, one multiprocessor         164 KB                 228 KB
# ```
#
# A *multiprocessor* is a part of the chip that computes by itself, with a small memory of its own, its *shared memory*
# (the last line; 1 KB is 1024 bytes). The H200 has 132 of them. A FLOP is one addition or multiplication.
#
# The A100's numbers are those of the papers of FlashAttention-1 and 2; its 164 KB is from NVIDIA's tuning guide for its
# architecture. The H200's are from [docs/gpu.md](../docs/gpu.md); its 989 is what the paper of FlashAttention-3
# gives for the H100, which has the same multiprocessors. Below, the A100 with 2.0 · 10¹².
#
# **Predict:** while one byte comes from HBM, how many FLOPs could the chip do?

# %%
CARDS = {"A100": (312e12, 2.0e12), "H200": (989e12, 4.8e12)}
for name, (flops, bandwidth) in CARDS.items():
    print(f"{name}: {flops / bandwidth:.0f} FLOPs for each byte")

# %% [markdown]
# So a number of 2 bytes that comes to the chip should be used in hundreds of operations before it is forgotten. If it
# is not, the chip waits.
#
# ## Count it
#
# The loops of this package keep to a rule: **a subscript of an array is a journey.** `Qi = Q[rows]` is a load,
# `O[rows] = ...` a store. Capital letters without an index (`Q K V S P O L`) lie in memory. What a load brings is on
# chip (`Qall`, `Sall`), and so are `m`, `l` and `acc`.
#
# A *tile* is a few rows taken together: `Br` queries or `Bc` keys, and the `Br × Bc` block of scores they make. Letters
# with `i` or `j` (`Qi Kj Sij`) are tiles on chip. FlashAttention-2 holds one tile of queries on chip and lets all tiles
# of keys pass by, with the `m` and `l` of notebook 02. `L = m + log(l)` is the `lse` of notebook 02.
#
# Read past the rest: `wide` and `astype(wide)` are about the number type to compute in, `rule.kind`, `kind` and `EMPTY`
# skip tiles that a mask hides (notebook 06), `reverse` walks the keys backwards.
#
# Here are the loads and stores of standard attention, then those of FlashAttention-2:

# %%
source(standard.probabilities)
steps(standard.forward_head, 5)

# %%
steps(fa2.forward_head, 1, 3)
print("            ...")
steps(fa2.forward_head, 10, 11)

# %% [markdown]
# The `Ledger` runs such a function on arrays that count. The function has no line for it.

# %%
NAMES = {standard.forward_head: "QKVSPLO", fa1.forward_head: "QKVOlm"}        # in the order in which they are made


def count(core, N, d, Br, Bc):
    """Run a core on N random queries and keys; returns the Ledger."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, N, d))
    with Ledger(log=True) as led:
        core(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), Rule(N, N, scale=1 / np.sqrt(d)), Br, Bc)
    for record, name in zip(led.arrays, NAMES.get(core, "QKVOL"), strict=True):
        record.name = name
    return led


# %% [markdown]
# Take 6 queries and 6 keys with `d = 2`, tiles of `Br = 3` queries and `Bc = 2` keys. So there are `Tr = 2` tiles of
# queries and `Tc = 3` tiles of keys.
#
# **Predict** for FlashAttention-2, with the steps above before you: how often is each number of `Q` read? Each of `K`?
# Write both down, then run.

# %%
N, d, Br, Bc = 6, 2, 3, 2
led = count(fa2.forward_head, N, d, Br, Bc)
print(led.table())
read = {record.name: record.reads for record in led.arrays}
assert read["Q"] == 1 * N * d                           # a tile of queries is loaded once and kept
assert read["K"] == read["V"] == 2 * N * d              # for each of the 2 tiles of queries, all keys and values again

# %% [markdown]
# (Further down in the table: FLOPs of products, other FLOPs, exps, and the largest number of bytes on chip. The rules:
# [docs/ledger.md](../docs/ledger.md).)
#
# The same as a picture, with standard attention above. A number in a cell says how often that cell of memory was read
# or written.

# %%
def journeys(led):
    """{name: how often each cell travelled}."""
    found = {record.name: np.zeros(record.shape, int) for record in led.arrays}
    for record, _, where in led.log:
        found[record.name][tuple(slice(*part) for part in where)] += 1
    return found


drawn, axes = figure(8.4, 4.6, columns=7, rows=2, width_ratios=[2, 2, 2, 6, 6, 2, 1])
for row, core, title in ((0, standard.forward_head, "standard"), (1, fa2.forward_head, "fa2")):
    travelled = journeys(count(core, N, d, Br, Bc))
    for where, name in zip(axes[row], "QKVSPOL", strict=True):
        if name in travelled:
            tiles = None if core is standard.forward_head else (Br if name in "QOL" else Bc, d)
            matrix(where, travelled[name], name, tiles, limit=3)
        else:
            where.axis("off")
            where.text(0.5, 0.5, f"{name} is never\nin memory", ha="center", va="center", color=drawing.FAINT,
                       transform=where.transAxes)
    axes[row, 0].set_ylabel(title)
show(drawn, "Two rows of matrices with a number in each cell. Standard: Q, K, V, O and L once, S and P, of 36 cells "
            "each, twice. FlashAttention-2: Q, O and L once, K and V twice; there is no S and no P.")

# %% [markdown]
# `S` and `P` are what standard attention pays for: written once, read once, each with `N · N` cells. FlashAttention-2
# pays with `K` and `V`, once for each tile of queries.
#
# The log has the journeys one by one:

# %%
def told(led, first=12):
    """The first journeys of a run: load or store, and which rows of which array."""
    for record, action, where in led.log[:first]:
        print(f"{action:6}{record.name}[{where[0][0]}:{where[0][1]}]")


told(led)

# %% [markdown]
# ## Exercise A: predict the ledger
#
# Write `predict(N, d, Br, Bc)`: how many elements standard attention reads and writes, and how many FlashAttention-2
# does. `Nq = Nk = N`, `dv = d`, no mask. `Br` and `Bc` need not divide `N`: the last tile is shorter then, and no tile
# is longer than `N`. Formulas, no run: the check also asks for a million queries. About 4 lines.

# %% tags=["stub"]
def predict(N, d, Br, Bc):
    """Returns standard_reads, standard_writes, fa2_reads, fa2_writes, in elements."""
    raise NotImplementedError("predict is yours to write")


# %%
nb03.predict(predict)

# %% [markdown]
# <details><summary>Hint 1: standard attention</summary>
#
# Go through the steps (1) to (5) above. Each `X[:]` on the right of `=` reads the whole array, each on the left writes
# it. Do not forget `L`, whose line stands after step (4). It has `N` cells.
# </details>
#
# <details><summary>Hint 2: ragged tiles</summary>
#
# With 7 queries and `Br = 3` there are 3 tiles of queries: `-(-7 // 3)` rounds up. How long each is does not matter for
# `K`: each tile of queries meets all keys. And all tiles of keys together are `N` keys, whatever `Bc` is.
# </details>
#
# The answer: [solutions/nb03.py](solutions/nb03.py).

# %% [markdown]
# ## Longer and longer
#
# **Predict:** `N` doubles. By how much do the numbers that travel grow, for standard attention? For FlashAttention-2?
# And the FLOPs of the products?

# %%
d, Br, Bc = 32, 64, 64
CORES = {"standard": standard.forward_head, "fa1": fa1.forward_head, "fa2": fa2.forward_head}
print("              elements that travel              product FLOPs        elements of memory beside Q, K, V")
print("   N   standard       fa1       fa2          each of the three          standard       fa1       fa2")
moved = {}
for N in (64, 128, 256, 512):
    runs = {name: count(core, N, d, Br, Bc) for name, core in CORES.items()}
    moved[N] = [led.total("reads") + led.total("writes") for led in runs.values()]
    flops = {led.matmul_flops for led in runs.values()}
    space = [sum(np.prod(r.shape) for r in led.arrays[3:]) for led in runs.values()]
    print(f"{N:4}{moved[N][0]:11,}{moved[N][1]:10,}{moved[N][2]:10,}{min(flops):27,}{space[0]:18,}{space[1]:10,}"
          f"{space[2]:10,}")
    assert flops == {4 * N * N * d}                                   # the same work: 2·N·N·d for Q Kᵀ and for P V
print("from 256 to 512, times", *(f"{b / a:.2f}" for a, b in zip(moved[256], moved[512], strict=True)))
assert moved[512][2] < moved[512][1] < moved[512][0]

# %% [markdown]
# Three things to read here.
#
# 1. The products cost the same in all three. FlashAttention does not compute less.
# 2. Memory: standard attention needs room for `S` and `P`, which grows with `N²`. The others need `O` and one or two
#    numbers per row, which grows with `N`. That is what makes long texts possible.
# 3. Travel grows with `N²` in **all three**, nearly. FlashAttention is not of another order in `N`. It divides by the
#    height of a tile: for each pair of a query and a key, standard moves 4 numbers, FlashAttention-2 `2·d / Br`.
#
# Is the third true? Divide what travels by the number of pairs, for a long sequence. It is too long to run, so take the
# formulas of `fa_ref/costs.py`, first held against the ledger:

# %%
def travel(name, N, d, Br, Bc):
    """Elements read and written, by formula."""
    if name == "standard":
        Br = Bc = N                                                   # it has no tiles
    cost = costs.FORWARD[name](costs.visits(Rule(N, N, scale=1.0), d, d, Br, Bc))
    return cost.reads + cost.writes


for n, name in enumerate(CORES):
    assert travel(name, 512, d, Br, Bc) == moved[512][n]              # formula = run, to the last element

N, d, Bc = 16384, 64, 128
print("standard:", round(travel("standard", N, d, N, N) / N**2, 2), "elements for each pair")
for Br in (32, 64, 128, 256):
    pairs = travel("fa2", N, d, Br, Bc) / N**2
    print(f"fa2, Br = {Br:3}: {pairs:.2f} elements for each pair; 2·d / Br = {2 * d / Br:.2f}")
    assert abs(pairs - 2 * d / Br) < 0.02
assert travel("fa2", N, d, 32, Bc) > 0.99 * travel("standard", N, d, N, N)              # d / 2 queries: nothing gained

# %% [markdown]
# Look at Br = 32: no gain at all. Tiles must be higher than `d / 2`.
#
# ## Why not one huge tile?
#
# Because it must fit on the chip. The ledger also knows the largest number of bytes that lie there at once.
#
# **Predict:** `Br` doubles. What happens to the reads, what to the bytes on chip?

# %%
N, d, Bc = 256, 16, 16
heights = [8, 16, 32, 64, 128, 256]
ledgers = [count(fa2.forward_head, N, d, Br, Bc) for Br in heights]
kilobytes = [led.peak_onchip_bytes / 1000 for led in ledgers]
reads = [led.total("reads") / 1000 for led in ledgers]
for Br, size, many in zip(heights, kilobytes, reads, strict=True):
    print(f"Br = {Br:3}: {size:6.1f} kB on chip, {many:6.1f} thousand elements read")
assert sorted(kilobytes) == kilobytes and sorted(reads, reverse=True) == reads

drawn, axes = figure(6, 3)
axes.plot(kilobytes, reads, "o-", color="#2b6cb0")
for Br, x, y in zip(heights, kilobytes, reads, strict=True):
    axes.annotate(f"Br = {Br}", (x, y), xytext=(6, 6), textcoords="offset points", fontsize=8)
axes.set(xscale="log", yscale="log", xlabel="kB on chip", ylabel="thousand elements read", xlim=(3, 350), ylim=(8, 500))
axes.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
axes.set_yticks([10, 30, 100, 300], ["10", "30", "100", "300"])
axes.minorticks_off()
show(drawn, "A falling curve: with tiles of 8 queries few kilobytes are on chip and 266 thousand elements are read; "
            "with one tile of 256 queries over a hundred kilobytes are on chip and 12 thousand elements are read.")

# %% [markdown]
# ## The roof
#
# Divide the FLOPs by the bytes that travel: the **intensity**. Multiply it by the bytes per second of the HBM and you
# have the FLOPs per second at which memory can feed the chip. The chip itself has a limit too. The lower of the two is
# the roof:
#
# ```
# intensity = FLOPs / bytes        FLOP/s ≤ min(peak, intensity · bandwidth)
# ```
#
# **Predict** with 2 bytes for each number, from what you know for a long sequence: `4·N²·d` FLOPs; standard attention
# moves `4·N²` numbers, FlashAttention-2 `2·N²·d / Br`. What are the two intensities? (Two lines on paper. Which letters
# stay?)

# %%
def intensity(name, N, d, Br=128, Bc=128):
    """FLOPs of the products for each byte, with 2 bytes for an element."""
    return 4 * N * N * d / (2 * travel(name, N, d, Br, Bc))


d, lengths = 64, (256, 1024, 4096, 16384)
print("   N   standard   fa2, Br = 64   fa2, Br = 128   fa2, Br = 256")
for N in lengths:
    found = [intensity("standard", N, d)] + [intensity("fa2", N, d, Br) for Br in (64, 128, 256)]
    print(f"{N:5}{found[0]:10.1f}" + "".join(f"{x:15.1f}" for x in found[1:]))
    assert found[0] < d / 2                                           # standard: never above d / 2
    assert all(x < Br for x, Br in zip(found[1:], (64, 128, 256), strict=True))     # fa2: never above Br
assert found[0] > 0.97 * d / 2 and found[2] > 0.97 * 128              # but near, for long sequences
print("\nstandard: 4·N²·d / (2 · 4·N²)        = d / 2 =", d / 2)
print("fa2:      4·N²·d / (2 · 2·N²·d / Br) = Br")

# %% [markdown]
# Standard attention comes near to `d / 2`, FlashAttention-2 near to `Br`. The first is given by the model, but **the
# height of a tile is yours to choose**, as far as there is room. How far? **Predict:** which of 64, 128, 256 queries
# fit on a multiprocessor of the H200, with float16 inputs, `d = 64` and `Bc = 128`?

# %%
N, half = 512, np.random.default_rng(0).standard_normal((3, 512, d)).astype(np.float16)
print("  Br    Bc   by the ledger   in a kernel: shared memory, registers")
fits = []
for Br, Bc in ((64, 128), (128, 128), (256, 128), (256, 32)):
    with Ledger() as led:
        fa2.forward_head(*(led.hbm(x) for x in half), Rule(N, N, scale=0.125), Br, Bc)
    here = led.peak_onchip_bytes // 1024
    shared = 2 * (Br * d + 2 * Bc * d) // 1024                                          # Qi Kj Vj, 2 bytes each
    registers = 4 * (Br * d + 2 * Br * Bc) // 1024                                      # acc Sij Pij, 4 bytes each
    fits.append((Br, Bc, here <= 228, shared <= 228 and registers <= 256))
    print(f"{Br:4}{Bc:6}{here:13} KB{shared:25} KB{registers:8} KB")
    assert here == {(64, 128): 161, (128, 128): 258, (256, 128): 452}.get((Br, Bc), here)
assert fits == [(64, 128, True, True), (128, 128, False, True), (256, 128, False, False), (256, 32, True, True)]
assert travel("fa2", N, d, 256, 32) == travel("fa2", N, d, 256, 128)                    # Bc changes nothing

# %% [markdown]
# By the ledger's count `Br = 256` needs 452 KB, more than one multiprocessor's 228 KB of shared memory, and `Br = 128`
# needs 258. But NumPy keeps all tiles in 32 bits and in one place. A kernel keeps `Qi Kj Vj` in 16 bits in shared
# memory, and many others in *registers*, of which a multiprocessor has another 256 KB. Counted like that (on the
# right), 128 queries fit and 256 do not. A smaller `Bc` makes room (last line), and no more travels; what else small
# tiles cost is not counted here.

# %%
drawn, axes = figure(8, 3.8)
for (name, (peak, bandwidth)), colour in zip(CARDS.items(), ("#666b74", "#24292f"), strict=True):
    x = np.array([4, peak / bandwidth, 1000])
    axes.plot(x, np.minimum(peak, x * bandwidth) / 1e12, color=colour, linewidth=1.5)
    axes.text(950, peak / 1e12 * 1.1, f"{name}: {peak / 1e12:.0f} TFLOP/s", ha="right", color=colour, fontsize=9)
peak, bandwidth = CARDS["A100"]
for name, Br, colour, marker in (("standard", 128, "#b3261e", "s"), ("fa2", 64, "#6aa3dd", "o"),
                                 ("fa2", 128, "#2b6cb0", "o"), ("fa2", 256, "#153a63", "o")):
    points = np.array([intensity(name, N, d, Br) for N in lengths])
    axes.plot(points, np.minimum(peak, points * bandwidth) / 1e12, marker, color=colour, zorder=3,
              label="standard" if name == "standard" else f"fa2, Br = {Br}")
axes.set(xscale="log", yscale="log", xlabel="intensity, FLOPs for each byte of HBM", ylabel="at most, TFLOP/s",
         xlim=(4, 1000), ylim=(6, 2000), title="d = 64, N = 256, 1024, 4096, 16384; points under the roof of the A100")
axes.set_xticks([10, 32, 64, 128, 256], ["10", "32", "64", "128", "256"])
axes.set_yticks([10, 100, 1000], ["10", "100", "1000"])
axes.minorticks_off()
axes.legend(frameon=False, loc="lower right")
show(drawn, "Two roofs, of the A100 and the H200: each climbs with the intensity and is flat from about 156 and 206 "
            "FLOPs per byte on. The points of standard attention crowd below 32 on the slope, whatever N is. Those of "
            "FlashAttention-2 move right with the height of the tile; with 256 the long sequences reach the flat part.")

# %%
peak, bandwidth = CARDS["A100"]
for name, Br in (("standard", 128), ("fa2", 128), ("fa2", 256)):
    share = min(1, intensity(name, 16384, 64, Br) * bandwidth / peak)
    label = name if name == "standard" else f"{name}, Br = {Br}"
    print(f"{label:13} memory feeds at most {100 * share:.0f} % of the A100's peak")
    assert (share < 0.25) == (name == "standard")

# %% [markdown]
# <details><summary>For who has time: two things the picture leaves out</summary>
#
# Between HBM and chip there is a cache. Workers that read the same `K` and `V` at
# about the same time are served from it, so HBM may see much less of FlashAttention-2 than the ledger counts. What a
# profiler saw on an H200 is in [docs/verification.md](../docs/verification.md#the-ledger-against-the-hardware). And the
# roof is only a roof: waiting, exps and masks take time too.
# </details>
#
# ## Exercise B: the first case
#
# A colleague has made FlashAttention-2 load the next tile of keys while it works on this one. A good idea: the road is
# less often idle. The output is right to the last bit. But the counters say that something travels in vain.

# %%
source(case1.forward_head)

# %%
for N in (12, 60):
    plain, case = count(fa2.forward_head, N, 4, 4, 5), count(case1.forward_head, N, 4, 4, 5)
    print(f"N = {N}: fa2 moves {plain.total('reads') + plain.total('writes'):,} elements, case 1 moves "
          f"{case.total('reads') + case.total('writes'):,}")
    assert case.total("reads") > plain.total("reads") and case.total("writes") == plain.total("writes")

Q, K, V = np.random.default_rng(1).standard_normal((3, 60, 4))
same = [np.array_equal(*both) for both in zip(fa2.forward_head(Q, K, V, Rule(60, 60, scale=0.5), 4, 5),
                                              case1.forward_head(Q, K, V, Rule(60, 60, scale=0.5), 4, 5), strict=True)]
print("O and L the same, bit for bit:", all(same))
assert all(same)

# %% [markdown]
# The tool is the ledger: `print(count(case1.forward_head, N, d, Br, Bc).table())` beside that of `fa2.forward_head`,
# and `told(count(...), 30)` for the journeys in order. Try sizes where `Bc` divides `N` and sizes where it does not.
#
# **Diagnose.** Write `case1_extra(N, d, Br, Bc)`: it returns the name of the array, such as `"O"`, and how many
# elements of it travel in vain. A formula again, right for every size. About 4 lines.

# %% tags=["stub"]
def case1_extra(N, d, Br, Bc):
    """Returns (name of the array, number of elements more than FlashAttention-2 moves)."""
    raise NotImplementedError("case1_extra is yours to write")


# %%
nb03.case1_extra(case1_extra)

# %% [markdown]
# <details><summary>Hint 1: where</summary>
#
# Take `N = 4`, `Br = 4`, `Bc = 2`: one tile of queries, two of keys. Write down the journeys by hand and compare with
# `told`. One journey has no use.
# </details>
#
# <details><summary>Hint 2: how long</summary>
#
# It is always the same tile that travels once too often. How many rows has that tile if `Bc` does not divide `N`? And
# how many times does this happen in a run?
# </details>
#
# **Repair.** Copy the function above, call it `case1_repaired`, and mend it. It must give `O` and `L`, move exactly
# what FlashAttention-2 moves, and still ask for the next tile of keys before it asks for `Vj`. About 2 lines are new.
# (The names that it needs are imported in the first cell.)

# %% tags=["stub"]
def case1_repaired(Q, K, V, rule, Br, Bc):
    """Q (Nq, d), K (Nk, d), V (Nk, dv). Returns O (Nq, dv), L (Nq,). The check runs it on a ledger."""
    raise NotImplementedError("case1_repaired is yours to write")


# %%
nb03.case1_repaired(case1_repaired)

# %% [markdown]
# <details><summary>Hint: the last step</summary>
#
# In the last step there is no next tile. Then neither load one nor hand one over.
# </details>
#
# The answers: [solutions/nb03.py](solutions/nb03.py).

# %% [markdown]
# ## What to take along
#
# - FlashAttention does the same products. What it saves is travel (`S` and `P` never reach memory) and room (`N`, not
#   `N²`).
# - FLOPs for each byte: standard attention stays below `d / 2`, FlashAttention-2 below `Br`. A tile is as high as the
#   chip has room for.
# - A right answer says nothing about its cost. Counting does, and the count can be known before the run.
#
# Next: [04 FlashAttention-1](04_flash_attention_1.ipynb).
