# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 Softmax in pieces
#
# **Claim.** The sum under a softmax can be found without ever holding the whole row: two numbers per piece are enough
# to join the pieces. That is exact but for rounding, and outputs can be joined in the same way.
#
# Time: about 20 minutes. Before: [01](01_attention_by_hand.ipynb). You need: what `exp` and a sum are.

# %%
import numpy as np

from course import matrix, show, source
from course.pictures import figure
from exercises import nb02
from fa_ref import data, online_softmax

# %% [markdown]
# ## The trouble with the textbook
#
# The softmax of a row `x` is `exp(x) / sum(exp(x))`. Here it is, word for word:

# %%
source(online_softmax.naive)

# %% [markdown]
# Scores of a real model are not small. In 32-bit numbers `exp` overflows above 88.72. Real queries and keys come close:

# %%
real = data.load()
scores = real.q[0] @ real.k[0].swapaxes(1, 2) / np.sqrt(np.float32(32))       # (12 heads, 251, 251)
print("largest score of each head:", np.round(scores.max(axis=(1, 2))).astype(int))

x = np.array([10, 60, 100], np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    print("naive softmax of", x, "is", online_softmax.naive(x))
print("safe softmax of ", x, "is", online_softmax.safe(x))

# %% [markdown]
# The cure is old: subtract the maximum first. It changes nothing, since it divides numerator and denominator by the
# same number `exp(m)`.
#
# ```
# m = max(x)        l = sum(exp(x - m))        p = exp(x - m) / l
# ```
#
# But now the row is needed three times: for `m`, for `l`, for `p`. A row of a million scores does not fit
# in a processor's fast memory (notebook 03).

# %%
source(online_softmax.safe)

# %% [markdown]
# ## Two numbers per piece
#
# Cut the row in two pieces, `a` and `b`. Each has its own maximum and its own sum:
#
# ```
# ma = max(a)     la = sum(exp(a - ma))
# mb = max(b)     lb = sum(exp(b - mb))
# ```
#
# `la` was made with the maximum of its own piece. To change the maximum from `ma` to `m`, multiply by `exp(ma - m)`:
# every term `exp(a - ma)` becomes `exp(a - m)`. So the pair of the whole row is
#
# ```
# m = max(ma, mb)        l = exp(ma - m) * la + exp(mb - m) * lb
# ```
#
# A picture: the bars are the terms of the sums. On the left each piece is measured from its own maximum. On the right
# both are measured from the common one. The piece that had the larger maximum keeps its bars.

# %%
a, b = np.array([0.0, 1.0, 0.5]), np.array([2.0, 1.2, 0.3])
m = max(a.max(), b.max())
drawn, (left, right) = figure(8, 2.6, columns=2, sharey=True)
for axes, heights, title in ((left, [np.exp(a - a.max()), np.exp(b - b.max())], "each from its own maximum"),
                             (right, [np.exp(a - m), np.exp(b - m)], "both from the common maximum")):
    axes.bar([0, 1, 2], heights[0], color="#2b6cb0", label="piece a")
    axes.bar([4, 5, 6], heights[1], color="#c05621", label="piece b")
    axes.set(title=title, xticks=[])
    axes.set_ylim(0, 1.35)
    axes.legend(frameon=False, loc="upper center", ncols=2)
show(drawn, "Two bar charts. Left: pieces a and b, each with a bar of height 1. Right: piece b as before, the bars of "
            "piece a shrunk by the same factor, so that only piece b has a bar of height 1.")

# %% [markdown]
# ## A piece of one: online softmax
#
# Let the second piece be a single new score. That is the *online* softmax: one pass for `m` and `l` together.

# %%
source(online_softmax.online)

# %% [markdown]
# With `Bc` scores at a time it is what FlashAttention does to a piece of every row:

# %%
source(online_softmax.blocked)

# %%
row = scores[0, 100].astype(np.float64)                                # a real row of 251 scores
p = online_softmax.safe(row)
for Bc in (1, 2, 16, 100, 251):
    difference = np.abs(online_softmax.blocked(row, Bc) - p).max()
    print(f"in pieces of {Bc:3}: largest difference below 1e-15: {difference < 1e-15}")
    assert difference < 1e-15

# %% [markdown]
# The last line of both still needs the row a second time. Attention can do without it: it wants only the weighted
# average of the values, and that can be rescaled on the way, as in "From sums to outputs" below.
#
# Watch `m` and `l` while the row passes by, 16 scores at a time. When `m` climbs, the old `l` is scaled down, by much
# at pieces 3 and 7; at piece 10 `m` climbs by 0.11 only, and the new terms weigh more.

# %%
ms, ls = [-np.inf], [0.0]
for j in range(0, len(row), 16):
    piece = row[j:j + 16]
    m_new = max(ms[-1], piece.max())
    ls.append(ls[-1] * np.exp(ms[-1] - m_new) + np.exp(piece - m_new).sum())
    ms.append(m_new)
assert np.isclose(ms[-1] + np.log(ls[-1]), np.log(np.exp(row).sum()))
assert [n for n in range(1, 17) if ms[n] > ms[n - 1]] == [1, 3, 7, 10]        # where m climbs
assert ls[3] < ls[2] and ls[7] < ls[6] / 2 and ls[10] > ls[9] and round(ms[10] - ms[9], 2) == 0.11

drawn, (left, right) = figure(8, 2.6, columns=2, sharex=True)
left.step(range(len(ms)), ms, where="post", color="#2b6cb0")
left.set(title="m, the running maximum", xlabel="pieces seen", xticks=range(0, 17, 4), xlim=(0, 16.5))
right.step(range(len(ls)), ls, where="post", color="#c05621")
right.set(title="l, the running sum", xlabel="pieces seen")
show(drawn, "Two step curves over the 16 pieces of a real row. The running maximum m only climbs. The running sum l "
            "falls where m climbs by much, at pieces 3 and 7; at piece 10 m climbs a little and l grows all the same.")

# %% [markdown]
# ## What if there is nothing?
#
# A piece may hold no score that counts: all its keys are hidden, and every score is `-inf`. Then `m = -inf` and
# `l = 0`. Now `exp(ma - m)` may ask for `-inf - (-inf)`, which is NaN. Joining with *nothing* must change nothing: the
# pair `(-inf, 0)` is the neutral element, as 0 is for a sum.
#
# ## Exercise: join two pieces
#
# Write `merge_pairs(ma, la, mb, lb)`, which returns the pair `(m, l)` of the joined piece. The four inputs are arrays
# with one number per row. Some rows have seen nothing yet. About 5 lines.

# %% tags=["stub"]
def merge_pairs(ma, la, mb, lb):
    """ma, la, mb, lb: arrays (rows,). Returns m (rows,), l (rows,)."""
    raise NotImplementedError("merge_pairs is yours to write")


# %%
nb02.merge_pairs(merge_pairs)

# %% [markdown]
# <details><summary>Hint 1: the maximum</summary>
#
# `np.maximum(ma, mb)` takes the larger of the two in every row.
# </details>
#
# <details><summary>Hint 2: rows that have seen nothing</summary>
#
# If both pieces are empty, `m` is `-inf`. Subtract 0 in place of `m` there: `exp(-inf - 0)` is 0, as it should be.
# `online_softmax.finite_or_zero(m)` does that.
# </details>
#
# The answer: [solutions/nb02.py](solutions/nb02.py).

# %% [markdown]
# ## From sums to outputs
#
# Attention does not stop at the softmax: it averages the rows of `V` with it. If each piece has its own average `out`
# and the logarithm of its own sum, `lse = m + log(l)`, these can be joined too. `lse` says how much a piece weighs:
#
# ```
# weight_a = exp(lse_a) / (exp(lse_a) + exp(lse_b))        out = weight_a * out_a + weight_b * out_b
# ```
#
# `online_softmax.merge` does this. Split real keys in two halves, attend to each, join:

# %%
from fa_ref import forward  # noqa: E402

q, k, v = (x[:, :3] for x in (real.q, real.k, real.v))                        # three heads
whole = forward(q, k, v)
half = 125
joined = online_softmax.merge(*forward(q, k[:, :, :half], v[:, :, :half]), *forward(q, k[:, :, half:], v[:, :, half:]))
difference = np.abs(joined[0] - whole.out).max()
print("joined halves equal the whole:", difference < 1e-5)
assert difference < 1e-5

swapped = online_softmax.merge(*forward(q, k[:, :, half:], v[:, :, half:]), *forward(q, k[:, :, :half], v[:, :, :half]))
difference = np.abs(swapped[0] - whole.out).max()
print("the second half first:        ", difference < 1e-5)
assert difference < 1e-5

# %% [markdown]
# How much did the first half of the keys weigh, for the first 8 queries of each head?

# %%
first = forward(q, k[:, :, :half], v[:, :, :half])
weight = np.exp(first.lse - whole.lse)[0, :, :8]                               # (3 heads, 8 queries)
assert ((weight >= 0) & (weight <= 1.0001)).all()
neighbours = np.delete(weight[[0, 2]].ravel(), 3)                              # without query 3 of head 0
assert (neighbours > 0.79).all() and 0.4 < weight[1].min() < weight[1].max() < 0.61
s = scores[0, 3]
p3 = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
assert set(np.argsort(p3)[-3:]) == {2, 132, 149} and round(float(p3[2]), 2) == round(float(weight[0, 3]), 2) == 0.43
drawn, axes = figure(6, 2.2)
matrix(axes, weight, "weight of the first half of the keys (row: head, column: query)", limit=1)
show(drawn, "A table of 3 heads by 8 queries: the share of the softmax that falls on the first half of the keys. "
            "Heads 0 and 2 have 0.79 and more, but for query 3 of head 0, which has 0.43. Head 1 has 0.40 to 0.61.")

# %% [markdown]
# Head 0 looks one token back and head 2 one ahead, so nearly all weight of early queries is in the first half. Head 1
# hardly chooses: about one half. And query 3 of head 0? It gives 0.43 to key 2, the one before it, and most of the rest
# to keys 132 and 149. That is a piece of the second line which you saw in [01](01_attention_by_hand.ipynb).
#
# ## What to take along
#
# - `(m, l)` is all that must be remembered of the scores seen so far.
# - Joining is exact but for rounding, in any order, and `(-inf, 0)` is "nothing".
# - FlashAttention, Flash-Decoding and ring attention (splitting the keys over tiles, over workers, and over machines)
#   are this one rule, applied in different places.
#
# Next: [03 Memory is the cost](03_memory_is_the_cost.ipynb).
