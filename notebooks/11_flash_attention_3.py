# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 FlashAttention-3: overlap
#
# **Claim.** If the output of a tile waits one round, softmax and matrix products can run at the same time. Not one
# bit of the result changes.
#
# Time: about 40 minutes. Before: [05](05_flash_attention_2.ipynb), and [10](10_warps_and_multiprocessors.ipynb) for
# what a multiprocessor is. You need: the loop of FlashAttention-2.

# %%
import math

import numpy as np

from course import show, steps
from exercises import nb11
from fa_ref import data, drawing, fa2, fa3
from fa_ref.schedule import Row, Table, Task, makespan, overlap, run, utilisation
from fa_ref.schedule.pictures import Gantt
from fa_ref.scores import Rule

# %% [markdown]
# ## Three machines in one
#
# A multiprocessor of a Hopper GPU has parts that can work side by side:
#
# ```
# tensor core        matrix products: S = Q Kᵀ and P V
# special functions  exp
# copies             tiles of K and V come in from memory
# ```
#
# One score costs `2 d` FLOPs in `Q Kᵀ`, `2 d` FLOPs in `P V`, and one exp. With d = 128 that is 512 FLOPs to one exp.
# Products look like everything. But in one clock a multiprocessor of an H100 does 4096 FLOPs of 16-bit products, and
# only 16 exps.
#
# Predict: how long does exp take, compared with the two products? Then run.

# %%
for d, bits in ((128, 16), (64, 16), (128, 8)):
    c = overlap.clocks(Br=64, Bc=128, d=d, bits=bits)
    print(f"d = {d:3}, {bits:2} bits: two products {2 * c.product:4.0f} clocks, exp {c.exp:3.0f} clocks, "
          f"{c.exp / (2 * c.product):.0%}")
c = overlap.clocks(Br=64, Bc=128, d=128, bits=16)
assert 2 * c.product == 4 * 128 * 64 * 128 / 4096 and c.exp == 64 * 128 / 16
assert c.exp / (2 * c.product) == 0.5

# %% [markdown]
# Half of the time of the products, at d = 128. In 8 bits products are twice as fast and exp is as slow as before.
#
# ## One after the other
#
# How much that costs depends on who waits. In FlashAttention-2 a tile of keys goes through three tasks: `S`, then `P`
# (all of softmax), then `P V`. Each needs the one before. Here is one tile of queries with three tiles of keys. A
# product takes 2 units of time. Let softmax take 2 as well, and a copy 1. (All numbers of this model are made up to
# be counted by hand; real ones come later.)

# %%
def serial(T):
    """A list of (unit, what, start, end): each tile of keys is finished before the next begins."""
    rows = []
    for j in range(T):
        t = 6 * j
        rows += [Row("copies", f"K {j}", t, t + 1), Row("tensor core", f"S {j}", t + 1, t + 3),
                 Row("copies", f"V {j}", t + 1, t + 2), Row("softmax", f"P {j}", t + 3, t + 5),
                 Row("tensor core", f"PV {j}", t + 5, t + 7)]
    return rows


table = Table(tuple(nb11.UNITS), serial(3))
show(nb11.picture({"one after the other": table}),
     "A line each for copies, tensor core and softmax. While softmax works on P 0, P 1 or P 2 the tensor core has a "
     "gap of 2 before PV of the same tile.")

# %% [markdown]
# White is waiting. Predict: which part of the time is the tensor core at work, with three tiles?

# %%
print("ends at", makespan(table), "| tensor core at work:", f"{utilisation(table, 'tensor core'):.0%}")
assert makespan(table) == 19 and utilisation(table, "tensor core") == 12 / 19

# %% [markdown]
# With many tiles it is two thirds: 4 of every 6. The tensor core, the part that the GPU is bought for, waits for
# softmax. And softmax waits for the tensor core.
#
# ## One tile ahead
#
# Who could work while `P 0` is made? Not `PV 0`: it needs `P 0`. But `S 1` needs only `Q` and `K 1`. So
# FlashAttention-3 starts the scores of the next tile first, and lets `P` and `V` wait one round. This is its loop;
# step (5) belongs to the tile *before*:

# %%
steps(fa3.forward_head, 3, 11)

# %% [markdown]
# Beside it, the loop of FlashAttention-2:

# %%
steps(fa2.forward_head, 3, 9)

# %% [markdown]
# Three things changed:
#
# - The product `P V` of a tile comes one round later, in (5). Nothing that (6) to (9) make depends on it, so they may
#   run at the same time.
# - Rescaling has a step of its own, (10). It must come *after* (5): the waiting `P` was made with the old maximum, as
#   `acc` was.
# - When the loop ends one tile still waits. It is added in (11).
#
# Let both cores write down their products. Three tiles of keys:

# %%
for core in (fa2, fa3):
    print(core.__name__, ":", ", ".join(nb11.order_of_products(core, 3)))
assert nb11.order_of_products(fa2, 3) == ["S 0", "PV 0", "S 1", "PV 1", "S 2", "PV 2"]
assert nb11.order_of_products(fa3, 3) == ["S 0", "S 1", "PV 0", "S 2", "PV 1", "PV 2"]

# %% [markdown]
# Is the result the same? FlashAttention-2 forms `alpha · acc + P V` in one statement. Here its two halves stand in
# different rounds. But the same numbers meet in the same order. Below, on real queries and keys, with and
# without a causal mask. Predict: which step would have to move for the bits to change?

# %%
real = data.load()
for name, head in (("layer 0 head 2", 0), ("layer 5 head 1", 11)):
    assert real.names[head] == name
    Q, K, V = real.q[0, head], real.k[0, head], real.v[0, head]
    for causal in (False, True):
        rule = Rule(len(Q), len(K), scale=1 / math.sqrt(32), causal=causal)
        two, three = (core.forward_head(Q, K, V, rule, 64, 32) for core in (fa2, fa3))
        equal = all(x.tobytes() == y.tobytes() for x, y in zip(two, three, strict=True))
        print(f"{name}, causal {causal!s:5}: O and L bit for bit equal: {equal}")
        assert equal

# %% [markdown]
# It is (10), the rescaling. Before (5), the waiting `P V` would miss an alpha. With acc = 2, a waiting P V of 1 and an
# alpha of ½:

# %%
acc, PV, alpha = 2.0, 1.0, 0.5
print("(5), then (10):", alpha * (acc + PV), "   (10), then (5):", alpha * acc + PV)
assert alpha * (acc + PV) == 1.5 and alpha * acc + PV == 2.0

# %% [markdown]
# The price: two tiles of scores are on chip at once, `Sij` and `P_before`. For tiles of 128 × 128 in float32 the
# second one takes 64 KiB of registers. NumPy gains no time here: it does one thing after the other whatever the
# order. What is gained is the right to overlap.
#
# ## Exercise: the loop
#
# Write `fa3_forward(Q, K, V, Br, Bc)`, without a mask, with scale 1/√d, from float64 inputs. It returns `O` (Nq, dv)
# and `L` (Nq,). About 18 lines. The check looks at the numbers first. Then it watches in which order the products are
# made, so write products with `@`.

# %% tags=["stub"]
def fa3_forward(Q, K, V, Br, Bc):
    """Q (Nq, d), K (Nk, d), V (Nk, dv); tiles of Br queries and Bc keys. Returns O (Nq, dv), L (Nq,)."""
    raise NotImplementedError("fa3_forward is yours to write")


# %%
nb11.fa3_forward(fa3_forward)

# %% [markdown]
# <details><summary>Hint 1: the first round</summary>
#
# In the first round no tile waits. Two ways: take the first tile out of the loop, as the paper does. Or begin with a
# waiting tile of no keys, `P_before` of shape (br, 0) and `V_before` of shape (0, dv): its product is 0.
# </details>
#
# <details><summary>Hint 2: the order in a round</summary>
#
# `Sij` · `acc + P_before @ V_before` · new maximum, `Pij`, `alpha`, `l` · `alpha * acc` · this tile waits.
# </details>
#
# <details><summary>Hint 3: the numbers of the last keys are missing</summary>
#
# After the loop over the keys one tile still waits.
# </details>
#
# The answer: [solutions/nb11.py](solutions/nb11.py).

# %% [markdown]
# ## Buffers
#
# Who brings K and V? On Hopper a *producer* only copies, and *consumers* only compute. Between them stand buffers on
# chip, used in a circle: with two buffers, tile j goes into buffer `j % 2`. The producer may fill a buffer again only
# when the consumer has read it. The consumer may read it only when it is full.
#
# So here is the whole game for one tile of queries: the tasks, and what must have ended before each may start.
#
# ```
# unit          task    lasts    not before the end of
# copies        K j     1        S j−2            which reads K j−2 from the same buffer
# copies        V j     1        PV j−2           which reads V j−2 from the same buffer
# tensor core   S j     2        K j, PV j−2      PV j−2 reads P j−2, whose place these scores take
# softmax       P j     2        S j, P j−1       it goes on with the maximum and the sum of tile j−1
# tensor core   PV j    2        P j, V j, PV j−1
# ```
#
# Rescaling takes no time here. A unit does one task at a time, from start to end.
#
# The package has a scheduler, which you may use. Each free unit takes the first task of the list that waits for
# nothing any more:

# %%
small = run([Task("K 0", "copies", 1), Task("S 0", "tensor core", 2, after=("K 0",)),
             Task("K 1", "copies", 1)], {"copies": 1, "tensor core": 1})
for row in small.rows:
    print(*row, sep=" | ")
assert makespan(small) == 3

# %% [markdown]
# And `nb11.play` does the tasks of a schedule at their times on real tiles. While a buffer is being filled it holds
# NaN, and a product reads one half of its tile when it starts and the other when it ends. So a schedule that breaks a
# rule can be seen in the numbers. The serial one breaks none:

# %%
rng = np.random.default_rng(0)
Q, K, V = rng.standard_normal((4, 8)), rng.standard_normal((9, 8)), rng.standard_normal((9, 8))
right = fa2.forward_head(Q, K, V, Rule(4, 9, scale=1 / math.sqrt(8)), 4, 3)
played = nb11.play(serial(3), Q, K, V, Bc=3)
print("serial: right:", np.allclose(played[0], right[0], atol=1e-12))
assert np.allclose(played[0], right[0], atol=1e-12) and np.allclose(played[1], right[1], atol=1e-12)

moved = {"K 1": (1, 2), "K 2": (2, 3)}
early = [Row(unit, what, *moved.get(what, (start, end))) for unit, what, start, end in serial(3)]
played = nb11.play(early, Q, K, V, Bc=3)
print("K 2 copied while S 0 reads K 0: right:", np.allclose(played[0], right[0], atol=1e-12))
assert not np.allclose(played[0], right[0], atol=1e-12)

# %% [markdown]
# ## Exercise: a schedule
#
# Write `schedule(T)`: a list of rows `(unit, what, start, end)` for T tiles of keys, five rows for each tile. Or
# return the Table that `run` makes from your tasks. About 12 lines. It must break no rule, and it must be as short as
# can be.
#
# Predict first: how short? The tensor core has 4 T to do and cannot begin before `K 0` is there. So no schedule ends
# before 4 T + 1. Can it be reached? Draw T = 3 on paper, beginning with the tensor core. (T = 1 is a case of its own:
# there is nothing to do while `P 0` is made, so it takes 7.)

# %% tags=["stub"]
def schedule(T):
    """T tiles of keys, 1 or more. Returns [(unit, what, start, end), …]; what: "K 0", "V 0", "S 0", "P 0", "PV 0" …"""
    raise NotImplementedError("schedule is yours to write")


# %%
nb11.schedule(schedule)

# %% [markdown]
# <details><summary>Hint 1: a question</summary>
#
# What can the tensor core do while `P 0` is made? And while `P 1` is made?
# </details>
#
# <details><summary>Hint 2: on paper</summary>
#
# The tensor core does S 0, S 1, PV 0, S 2, PV 1, … without a pause, from 1 on. P j begins when S j ends.
# </details>
#
# <details><summary>Hint 3: with run</summary>
#
# Write the rules of the table into `after`, leaving out tiles below 0. The order of the list decides where two tasks
# could start at the same time: put S j before PV j−1. The units are `nb11.UNITS`, what each kind of task needs is in
# `nb11.KINDS`.
# </details>
#
# <details><summary>Hint 4: the copies</summary>
#
# If you write the times yourself: K j can come right before S j, and V j when S j has ended.
# </details>
#
# The answer: [solutions/nb11.py](solutions/nb11.py).

# %% [markdown]
# ## How many buffers?
#
# Above, K and V had two buffers each. The paper describes a buffer of s *stages*: stage `j % s` holds both `K j` and
# `V j`, and is free when `PV j` has ended. Now the pipeline holds on to a stage for longer, since V waits one round.
# Here are the tasks for such a buffer, in the order in which FlashAttention-3 starts its products. A copy of a pair
# takes 2. Predict: what happens with one stage?

# %%
def pipeline(T, s):
    """The tasks for T tiles of keys and s stages, each with a pair of K and V."""
    products = [("S", 0), *(p for j in range(1, T) for p in (("S", j), ("PV", j - 1))), ("PV", T - 1)]
    tasks = [Task(f"KV {j}", "copies", 2, (f"PV {j - s}",) if j >= s else ()) for j in range(T)]
    issued = ()                                                   # products are done in the order of their start
    for kind, j in products:
        need = f"KV {j}" if kind == "S" else f"P {j}"
        tasks.append(Task(f"{kind} {j}", "tensor core", 2, (need, *issued)))
        issued = (f"{kind} {j}",)
        if kind == "S":
            tasks.append(Task(f"P {j}", "softmax", 2, issued))
    return tasks


try:
    run(pipeline(3, 1), nb11.UNITS)
    raise AssertionError("one stage is not enough")
except ValueError as error:
    print("1 stage: ", error)
    assert "wait for each other" in str(error)

# %% [markdown]
# A deadlock. `S 1` comes before `PV 0`, so `K 1` must be there while `V 0` is still waiting. Two stages at least. And
# three?

# %%
ends = {s: makespan(run(pipeline(8, s), nb11.UNITS)) for s in (2, 3, 4)}
for s, end in ends.items():
    print(f"{s} stages: 8 tiles of keys end at {end}")
assert ends == {2: 46, 3: 34, 4: 34} and ends[3] == 2 + 4 * 8                # one copy, then products only

# %% [markdown]
# With two stages almost nothing is gained: without any overlap of softmax and products it would take 2 + 6 · 8 = 50.
# With three nobody waits. The picture shows why: below, for every stage, from when to when its pair is in use, or on
# its way.

# %%
def stages(T, s):
    """A line for each stage: a box from the start of a copy to the end of the last product that needs it."""
    at = {row.what: row for row in run(pipeline(T, s), nb11.UNITS).rows}
    return Table(tuple(f"stage {n}" for n in range(s)),
                 [Row(f"stage {j % s}", f"KV {j}", at[f"KV {j}"].start, at[f"PV {j}"].end) for j in range(T)])


tables = {}
for s in (2, 3):
    table = run(pipeline(4, s), nb11.UNITS)
    tables |= {f"{s} stages: ends at {makespan(table)}": table, f"what the {s} stages hold": stages(4, s)}
show(nb11.picture(tables),
     "Two schedules for four tiles of keys, and what each stage holds over time. With two stages the copy of pair 2 "
     "begins only when PV 0 has ended, and the tensor core waits for it. With three stages there is room for the copy "
     "while two pairs are in use, and the tensor core never waits after its first task.")

# %% [markdown]
# So the paper's "two-stage pipeline" (two tiles of scores) and "stages of the buffer" (tiles of K and V) are two
# different numbers.
#
# ## Taking turns
#
# Real softmax is more than exp: scale, maximum, subtraction, sum. The package's model takes 4 operations for each
# score for these, at 128 a clock. Then a product takes 512 clocks, exp 512 and the rest 256. Softmax takes 768, longer
# than the product beside it: the tensor core waits again. The second idea of FlashAttention-3 is *ping-pong*. Two
# warpgroups (four warps each) have a tile of queries each, a and b, and barriers make them take turns: while one does
# softmax, the other has the tensor core.
#
# Four schedules, with and without the first idea, with and without the second. *intra-warpgroup* is the first idea, one
# tile ahead inside one warpgroup; *ping-pong* is the second; *serial* has neither. In the picture P is exp only; the
# unlabelled boxes in the line *arithmetic* are the rest of softmax.

# %%
c = overlap.clocks(d=128, bits=16)
assert tuple(c) == (512, 512, 256)
tables = {}
for name in overlap.SCHEDULES:
    table = overlap.schedule(name, 3, c)
    tables[f"{name}: tensor core at work {utilisation(table, 'tensor core'):.0%} of the time"] = table
colors = {"query tile a": drawing.COLORS[4], "query tile b": drawing.GREY}
show(Gantt(tables, group=lambda row: f"query tile {row.what[-1]}", label=lambda row: row.what[:-2], colors=colors,
           time="clocks").sheet.figure,
     "Four schedules for two tiles of queries, a and b, and three tiles of keys. Serial and intra-warpgroup do all of "
     "a, then all of b. In ping-pong and in both, boxes of a and b alternate. From the first to the last the tensor "
     "core has fewer gaps; serial takes longest and both is the shortest.")

# %% [markdown]
# Over many tiles only the time from one tile of keys to the next counts. It is the largest of a few sums. With G for
# a product (a "GEMM"), E for exp, R for the rest, and a and b together:
#
# ```
# serial               2 (2G + E + R)
# intra-warpgroup      2 max(2G, G + E + R)
# ping-pong            max(4G, 2E, 2R, 2G + E + R)
# both                 max(4G, 2E, 2R, G + E + R)
# ```
#
# Each term is a bound: the tensor core cannot do its four products in less than 4G, and one warpgroup cannot be
# faster than its own chain of tasks. Predict with G = 512, E = 512, R = 256: which two schedules keep the tensor core
# busy all the time? And in 8 bits, where G = 256?

# %%
T, by_hand = 64, {}
for bits in (16, 8):
    c = G, E, R = overlap.clocks(d=128, bits=bits)
    by_hand[bits] = {"serial": 2 * (2 * G + E + R), "intra-warpgroup": 2 * max(2 * G, G + E + R),
                     "ping-pong": max(4 * G, 2 * E, 2 * R, 2 * G + E + R), "both": max(4 * G, 2 * E, 2 * R, G + E + R)}
    found = {name: 4 * G / clocks for name, clocks in by_hand[bits].items()}
    print(f"{bits:2} bits, G = {G:g}:")
    for name, clocks in by_hand[bits].items():
        print(f"    {name:15} {clocks:4.0f} clocks, tensor core at work {found[name]:.0%}")
    for name in overlap.SCHEDULES:
        end = makespan(overlap.schedule(name, T, c))
        assert end >= max(overlap.bounds(name, T, c).values())                   # no schedule beats its bounds
        grows = makespan(overlap.schedule(name, T + 1, c)) - end
        assert grows == overlap.period(name, c)                                  # and the period is what one tile adds
        assert grows == by_hand[bits][name]
assert list(by_hand[16].values()) == [3584, 2560, 2048, 2048]
assert list(by_hand[8].values()) == [2560, 2048, 1280, 1024]
assert found["both"] == 1 and found["ping-pong"] == 0.8 and 2 * G + E + R == 1280 and 4 * G == 1024

# %% [markdown]
# In 16 bits ping-pong alone fills the tensor core, in this model. In 8 bits, where products are fast and exp is not,
# only both ideas together do: ping-pong is held by one warpgroup's chain (1280), not by the tensor core (1024).
#
# **What the model is not.** It predicts no runtime: barriers, starting a product, rescaling, the start and the end of
# a block cost nothing in it. The paper measured 570 TFLOP/s before ping-pong, 620 to 640 with it, and 661 with both,
# out of 989. The model, too, puts ping-pong above serial. Between ping-pong and both it sees no difference here; the
# paper does. And the 100% is not real. The paper also tried a third stage, in which softmax lags
# behind too: it was slower.

# %% [markdown]
# ## What to take along
#
# - FlashAttention-3 is FlashAttention-2 with P V one round late. The numbers are the same bits.
# - A schedule is a list of who needs what. Buffers are part of it: too few, and units wait, or wait for ever.
# - The tensor core is full when its own work is the largest of the bounds. Faster products alone do not help: exp
#   stays.
#
# Next: [12 Eight bits](12_eight_bits.ipynb).
