# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 FlashAttention-2: turn the loops round
#
# **Claim.** The same tiles in another order: queries outside, keys inside. Then the output of a query can stay on
# chip until it is finished. That saves traffic, it saves work that is not a matrix product, and it makes the tiles of
# queries independent of each other.
#
# Time: about 40 minutes, half of it for the exercises. Before: [04](04_flash_attention_1.ipynb).

# %%
import inspect
import re

import numpy as np

from course import attention, show, source, steps
from course.comparing import compare
from course.pictures import figure
from detective.case2 import lazy_forward
from exercises import nb05
from exercises.walks import order, travel, walk
from fa_ref import data, fa1, fa2, player
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.tables.work import output_work
from fa_ref.testing import Problem, Supports, check

# %% [markdown]
# ## The loop
#
# In FlashAttention-1 the queries pass by, and what they know goes to memory and back at every visit. Turn the loops
# round: now a tile of queries stays, and the keys pass by. Its `m`, its `l` and its sum `acc` never leave the chip.
# And nobody looks at the output before the last key. So it need not be divided by `l` before that either:
#
# ```
# for every tile of queries:
#     m = -inf    l = 0    acc = 0
#     for every tile of keys:
#         m_new = max(m, rowmax(S))
#         P     = exp(S - m_new)                 no factor beta: P is made with the new maximum
#         alpha = exp(m - m_new)                 what the past is worth now
#         l     = alpha * l   + rowsum(P)
#         acc   = alpha * acc + P V              one factor for the past, for l and for acc alike
#     O = acc / l                                the one division
#     L = m + log(l)                             all that the backward pass will need of m and l
# ```
#
# (The backward pass is the computation of gradients, notebook 07.)
#
# Here is the code (Algorithm 1 of Tri Dao's paper of 2023), with its steps numbered as in the file:

# %%
source(fa2.forward_head)

# %% [markdown]
# ## Four changes
#
# Which statements of the two loops differ? Take the lines of both, without comments and without indentation. Many
# stand in both. Here are the others.

# %%
def statements(function):
    """The lines of a function, without docstring, comments and indentation."""
    code = re.sub(r'""".*?"""', "", inspect.getsource(function), flags=re.DOTALL)
    lines = (re.sub(r"\s*#.*", "", line).strip() for line in code.splitlines())
    return [line for line in lines if line]


one, two = statements(fa1.forward_head), statements(fa2.forward_head)
print("the same in both:", len([line for line in one if line in two]), "lines")
print("\nonly in FlashAttention-1:")
print(*(f"- {line}" for line in one if line not in two), sep="\n")
print("\nonly in FlashAttention-2:")
print(*(f"+ {line}" for line in two if line not in one), sep="\n")
assert one.index("for i in range(Tr):") > two.index("for i in range(Tr):")

# %% [markdown]
# 1. **Loops swapped.** The line `for i in range(Tr):` is the same in both, but stands further up. So `Oi = O[rows]`,
#    `li = l[rows]`, `mi = m[rows]` and the stores in every visit are gone.
# 2. **Running maximum.** `P` is formed with `m_new`, not with `m_tile`. `beta` is gone.
# 3. **Division deferred.** `alpha * li` took back the division of the last visit. There is none, so `alpha` alone is
#    enough. The division stands behind the inner loop.
# 4. **Only L kept.** One number per query in place of two.
#
# ## Who is visited when
#
# **Predict** the two pictures: 6 queries, 6 keys, tiles of 2 × 2. In what order does FlashAttention-2 visit the
# tiles? And which of the arrays `K V Q O L` are never loaded?

# %%
visits_1, visits_2 = walk(fa1.forward_head, "fa1"), walk(fa2.forward_head, "fa2")
drawn, (left, right) = figure(6.8, 3.4, columns=2)
order(left, visits_1, "FlashAttention-1")
order(right, visits_2, "FlashAttention-2")
show(drawn, "Two matrices of scores, each in nine tiles with the number of their visit. FlashAttention-1 goes down the "
            "columns: 0, 1, 2 in the first column. FlashAttention-2 goes along the rows: 0, 1, 2 in the first row.")
three = ((0, 2), (2, 4), (4, 6))
assert [visit[:2] for visit in visits_1] == [(rows, cols) for cols in three for rows in three]
assert [visit[:2] for visit in visits_2] == [(rows, cols) for rows in three for cols in three]

# %%
drawn = travel(visits_2, ["K", "V", "Q", "O", "L"])
show(drawn, "A table with a row for each of K, V, Q, O, L and a column for each of the nine visits. K and V are loaded "
            "at every visit. Q is loaded at visits 0, 3 and 6. O and L are stored at visits 2, 5 and 8, never loaded.")
assert not [1 for _, _, touched in visits_2 for name, action, _ in touched if name in "OL" and action == "load"]

# %% [markdown]
# `O` and `L` have no blue: they are stored once and never loaded. `Q` is loaded once. The price: now `K` and `V` pass
# by once for every tile of queries.
#
# ## What it moves
#
# ```
# Q        read once                       N d
# O        written once                    N d
# K, V     read at every visit        2 Tr N d
#                                sum (2 Tr + 2) N d        FlashAttention-1: (3 Tc + 2) N d
# ```
#
# **Predict:** N = 256, d = 32, tiles of 32 × 32. How many elements of `Q`, `K`, `V`, `O` does each of the two move?
# And what happens to each if only `Br` is doubled?

# %%
def run(core, Q, K, V, Br, Bc):
    """The ledger of a core on one head."""
    with Ledger() as led:
        core(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), Rule(len(Q), len(K), scale=0.2), Br, Bc)
    return led


def moved(led):
    """Elements of Q, K, V and O, which is the first array that a core makes."""
    return sum(record.reads + record.writes for record in led.arrays[:4])


N, d = 256, 32
numbers = np.random.default_rng(0).standard_normal((3, N, d))
for Br, Bc in ((32, 32), (64, 32), (32, 64)):
    first, second = (moved(run(core.forward_head, *numbers, Br, Bc)) for core in (fa1, fa2))
    print(f"tiles of {Br} × {Bc}:  FlashAttention-1 {first:7,}   FlashAttention-2 {second:7,}")
    assert first == (3 * (N // Bc) + 2) * N * d
    assert second == (2 * (N // Br) + 2) * N * d
    assert Br != Bc or 0.65 < second / first < 0.75

# %% [markdown]
# For the first one only the tile of keys counts, for the second only the tile of queries. With equal tiles the second
# moves about two thirds. (How both grow with N: notebook 03.)
#
# ## What it computes besides products
#
# A GPU has special units for matrix products, and anything else is much slower there: for its GPU the paper names a
# factor of 16. So the other operations matter more than their number suggests. The ledger counts them apart:
# `matmul_flops`, and `other_flops` for + − · / and the like.
#
# **Predict:** how many operations does each algorithm do on every element of its output in one visit, besides the
# product `P V`? Count in the code: step (9) of FlashAttention-1 (three lines of it), step (9) of FlashAttention-2.

# %%
steps(fa1.forward_head, 9, 10)
print()
steps(fa2.forward_head, 9)
print("\nFLOPs per element of the output, besides the product:")
for name, core in (("FlashAttention-1", fa1), ("FlashAttention-2", fa2)):
    per_visit, at_end = output_work(core)
    print(f"{name}: {per_visit} in every visit, {at_end} at the end")
assert output_work(fa1) == (4, 0)
assert output_work(fa2) == (2, 1)

first, second = (run(core.forward_head, *numbers, 32, 32) for core in (fa1, fa2))
assert first.matmul_flops == second.matmul_flops
print(f"\nwhole runs, N = {numbers.shape[1]}: the products are the same, {first.matmul_flops:,} FLOPs;")
print(f"others: FlashAttention-1 {first.other_flops:,}, FlashAttention-2 {second.other_flops:,}")
assert second.other_flops < 0.8 * first.other_flops

# %% [markdown]
# Four: scale the old `O`, scale `P V`, add, divide. Two: scale `acc`, add; and one division at the end. The work on
# the scores stays: scale, maximum, minus, sum.
#
# ## Tiles of queries are independent
#
# An iteration of the outer loop reads `Q[rows]`, `K` and `V`, and writes `O[rows]` and `L[rows]`. No other iteration
# touches these rows. So each could run on a multiprocessor of its own, at the same time. Here they run one by one, in
# random order, each as a call of its own. **Predict:** are the results close, or the same bits?

# %%
real = data.load()
Q, K, V = (x[0, 3] for x in (real.q, real.k, real.v))                     # one head, 251 tokens, 32-bit numbers
O, L = fa2.forward_head(Q, K, V, Rule(251, 251, scale=32**-0.5), 32, 32)

O_alone, L_alone = np.full_like(O, np.nan), np.full_like(L, np.nan)
for i in np.random.default_rng(1).permutation(8):
    rows = slice(i * 32, min(i * 32 + 32, 251))
    rule = Rule(rows.stop - rows.start, 251, scale=32**-0.5)
    O_alone[rows], L_alone[rows] = fa2.forward_head(Q[rows], K, V, rule, 32, 32)
assert np.array_equal(O_alone, O) and np.array_equal(L_alone, L)
print("random order of the tiles of queries: the same bits")

# %% [markdown]
# And the order of the keys? Both can walk them backwards:

# %%
rule = Rule(251, 251, scale=32**-0.5)
for core, name in ((fa1, "FlashAttention-1"), (fa2, "FlashAttention-2")):
    there, back = (core.forward_head(Q, K, V, rule, 32, 32, reverse=reverse)[0] for reverse in (False, True))
    print(f"{name}, keys backwards: close: {np.allclose(there, back, atol=1e-5)}, "
          f"the same bits: {np.array_equal(there, back)}")
    assert not np.array_equal(there, back) and np.allclose(there, back, atol=1e-5)

# %% [markdown]
# Keys backwards change the last bits of FlashAttention-2 too. The difference is which loop is outside: its outer
# iterations share nothing that they write, those of FlashAttention-1 all write the same `O`, `l`, `m`. Two of them at
# the same time would overwrite each other.
#
# ## A line of the paper that is wrong
#
# Line 10 of Algorithm 1 in the paper prints `diag(exp(m_old - m_new))` with a power of −1 behind it: `acc` would be
# *divided* by `alpha`. Try it on two keys that one can do on paper. The scores are 0 and log 2, so the weights must
# be 1/3 and 2/3. The values are 3 and 6, so the output is 1 + 4 = 5.

# %%
s, v = np.array([0, np.log(2)]), np.array([3.0, 6.0])
alpha = np.exp(s[0] - s[1])                                                # the old maximum is 0, the new one log 2
l = alpha * 1 + 1                                                          # before: exp(0 − 0) = 1
print(f"alpha is {alpha:.2f}: what was added before counts half; l was 1 and is alpha · 1 + 1 = {l:.1f}")
print(f"as in the code:    acc = {alpha * v[0] + v[1]:4.1f}, O = {(alpha * v[0] + v[1]) / l:.0f}")
print(f"as in the paper:   acc = {v[0] / alpha + v[1]:4.1f}, O = {(v[0] / alpha + v[1]) / l:.0f}")
assert np.isclose((alpha * v[0] + v[1]) / l, 5) and np.isclose(l, 1.5) and np.isclose((v[0] / alpha + v[1]) / l, 8)

# %% [markdown]
# 8 is no average of 3 and 6. When the maximum grows, old sums shrink. More of this kind:
# [docs/errata.md](../docs/errata.md).
#
# ## Exercise 1: the loop
#
# Write `fa2_forward(Q, K, V, Br, Bc)`. The scale is `1 / sqrt(d)`. There are no masks, so every row sees every key
# and needs no guards. The last tile may be shorter than the others. About 14 lines.
#
# The check looks at the numbers, then runs your loop on the ledger: it must move what FlashAttention-2 moves, and
# must not work more on `acc` than it does. As before, every load and store is a subscript. Arrays in memory are made
# with `np.empty_like(Q, shape=…)`, those on chip with `np.zeros` and `np.full`.

# %% tags=["stub"]
def fa2_forward(Q, K, V, Br, Bc):
    """Q (Nq, d), K (Nk, d), V (Nk, dv). Returns O (Nq, dv), L (Nq,)."""
    raise NotImplementedError("fa2_forward is yours to write")


# %%
nb05.fa2_forward(fa2_forward)

# %% [markdown]
# <details><summary>Hint 1: where does each line stand?</summary>
#
# Before the inner loop: load `Qi`, set `m`, `l`, `acc`. In it: load `Kj`, `Vj`, and the five formulas from the top of
# this notebook. Behind it: two stores.
# </details>
#
# <details><summary>Hint 2: right for the first tile of keys only</summary>
#
# `alpha` needs the old `m` and the new one. Set `m = m_new` as the last line of the inner loop.
# </details>
#
# <details><summary>Hint 3: NaN where all scores are far below zero</summary>
#
# What is `m` before the first key? A maximum of nothing is `-inf`. If it starts at 0, or at −100, no score below can
# raise it, and `exp` of all scores is 0.
# </details>
#
# The answers: [solutions/nb05.py](solutions/nb05.py).
#
# ## Exercise 2: detective
#
# Here is a FlashAttention-2 that somebody has made faster. It has two ideas. It keeps an old maximum as long as no
# new score is more than 8 above it: `exp(8)` is not too large for any number type here. And where the maximum stays,
# `alpha` is 1, so there is nothing to rescale: then it leaves that work out. Both ideas are good. But something is
# wrong.

# %%
print(inspect.getdoc(inspect.getmodule(lazy_forward)).split("\n\n")[-1], "\n")
source(lazy_forward)

# %% [markdown]
# It is right on 200 problems of normal random numbers. Every element of `O` and `L` has its own bound on the rounding
# error, and all stay below it. (A `Problem` holds `q k v` and the options, `solved` gives the right answers of one and
# their bounds.)

# %%
rng, wrong = np.random.default_rng(0), 0
for _ in range(200):
    Nq, Nk, d, Br, Bc = (int(n) for n in rng.integers(1, [13, 13, 7, 6, 6]))
    q, k, v = (rng.standard_normal((1, 1, n, d)) for n in (Nq, Nk, Nk))
    truth, bound = attention.solved(Problem(q, k, v))
    wrong += compare(lazy_forward(q[0, 0], k[0, 0], v[0, 0], Br, Bc), truth, bound) is not None
print("wrong on", wrong, "of 200 random problems")
assert wrong == 0

# %% [markdown]
# Random numbers of one size are tame. This package has a *conformance kit*: it draws problems of many kinds, large
# scores too, and holds a function's answers against the right ones ([docs/check.md](../docs/check.md)). It asks for a
# function of a `Problem`; `nb05.asked` makes one of a loop. `Supports` says what may be asked. It finds something at
# once, and shrinks it to a small problem:

# %% tags=["varies"]
supports = Supports(dtypes=("float64",), tiles=(1, 2, 3), max_heads=1, lse="natural", long_lengths=())
report = check(nb05.asked(lazy_forward), supports, properties="equals_the_oracle")
assert not report.ok
assert float(re.search(r"is (\S+) times the bound", report.failures[0].detail)[1]) > 1e10
print(report)

# %% [markdown]
# An error of more than 10¹⁰ times its bound is no rounding error: the number is simply wrong.
#
# <details><summary>For who has time: the kit's problem again</summary>
#
# To replay it: `from fa_ref.testing import replay`, then
# `replay(nb05.asked(lazy_forward), supports, "Nq=4 …", ["equals_the_oracle"])`, with the whole line in quotes that the
# report prints. To look at it: `p = report.failures[0].recipe.build()`, then `p.q[0, 0]` and so on; the tiles are 2 × 2
# unless `p.block_q`, `p.block_k` say something else.
# </details>
#
# Or go straight to the player with numbers of your own. This is how (here with tame numbers, which do no harm):

# %%
tame = np.random.default_rng(5).standard_normal((3, 3, 1)).round(1)
player.record(lazy_forward, *tame, 2, 1)

# %% [markdown]
# Hand in three things. They must fit together:
#
# - **a witness**: `(Q, K, V, Br, Bc)`, matrices of at most 2 × 2 with numbers between −100 and 100, on which
#   `lazy_forward` is wrong (what the kit has found may be larger; what of it is needed?);
# - **the step**: the number of the guilty line, 1 to 13;
# - **a repair**: the whole function (copy it from above), which then is right, moves as little, and is still lazy:
#   where no maximum has grown, it does not rescale.

# %% tags=["stub"]
def detective_2():
    """Returns ((Q, K, V, Br, Bc), number of the guilty step, repaired function)."""
    raise NotImplementedError("detective_2 is yours to write")


# %%
nb05.detective_2(detective_2)

# %% [markdown]
# <details><summary>Hint 1: read the complaint</summary>
#
# One token gets a very high score: then a maximum grows by more than 8, late. Asked one query at a time it is right:
# so two queries of one tile have to do with each other. Where in the loop do rows of a tile meet?
# </details>
#
# <details><summary>Hint 2: a witness by hand</summary>
#
# Let d = 1 and `Bc = 1`. Scores are products of single numbers. Make the second key raise the maximum of *one* of two
# queries by 20, and look at `acc` in the player after that tile: has the first row been rescaled?
# Let the first value not be 0: what is forgotten is a factor on `acc`, and 0 times anything is 0.
# </details>
#
# <details><summary>Hint 3: how much must change</summary>
#
# The repair is one word.
# </details>
#
# ## What to take along
#
# - Queries outside: `m`, `l`, `acc` stay on chip, `O` is written once. `(2 Tr + 2) N d` elements, where
#   FlashAttention-1 moves `(3 Tc + 2) N d`.
# - One factor `alpha` for `l` and `acc`, one division at the end: half of the work on the output.
# - Tiles of queries do not know of each other: any order, the same bits. That is what makes it parallel.
#
# Next: [06 Masks and ragged edges](06_masks_and_ragged_edges.ipynb).
