# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 Attention you can hold in your hand
#
# **Claim.** Attention is three steps: score every key, turn each row of scores into weights, average the values by
# weight. Everything else in this course computes these three steps in another order.
#
# Time: about 25 minutes. Before: nothing. You need: the product of two matrices, and `exp`.

# %%
import numpy as np

from course import matrix, show, source, steps
from course.pictures import POSITIVE, figure
from exercises import nb01
from fa_ref import data, standard
from fa_ref.scores import Rule

# %% [markdown]
# ## Three queries, four keys
#
# A query asks, a key is asked, a value is what the key's owner has to say. Each is a row of a matrix:
#
# ```
# Q (Nq, d)    queries, what each row looks for
# K (Nk, d)    keys, what each row offers
# V (Nk, dv)   values, what each row says if it is listened to
# ```
#
# Here `Nq = 3`, `Nk = 4`, `d = dv = 2`: every row is a point of the plane.

# %%
Q = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
V = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [0.0, 3.0]])

drawn, (left, right) = figure(8, 3.2, columns=2)
for n, (x, y) in enumerate(K):
    left.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": "#c05621", "linewidth": 2})
    left.text(x * 1.1 - 0.1, y + 0.12, f"K[{n}]", color="#c05621")
for n, (x, y) in enumerate(Q[:2]):
    left.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": "#2b6cb0", "linewidth": 1})
    left.text(x + 0.08, y - 0.1, f"Q[{n}]", color="#2b6cb0")
left.plot(0, 0, "o", color="#2b6cb0")
left.text(0.08, -0.4, "Q[2]", color="#2b6cb0")
left.set(title="queries (blue) and keys (orange)", xlim=(-1.6, 2.8), ylim=(-0.7, 3.4))
right.plot(*V.T, "s", color="#c05621")
for n, (x, y) in enumerate(V):
    right.text(x + 0.12, y + 0.12, f"V[{n}]", color="#c05621")
right.set(title="values", xlim=(-0.5, 5.2), ylim=(-0.7, 3.8))
show(drawn, "Left: K[0] points right, K[1] up, K[2] right and up, K[3] left; Q[0] points right, Q[1] up, Q[2] is the "
            "origin. Right: the four values are the corners of a rectangle, V[0] bottom left, V[1] bottom right, "
            "V[2] top right, V[3] top left.")

# %% [markdown]
# ## Step 1: scores
#
# The score of a query and a key is their product, number by number, added up. It is large if both point the same way,
# 0 if they stand at a right angle, negative if they point apart.
#
# ```
# S = Q Kᵀ / √d        S[i, j] = (Q[i, 0]·K[j, 0] + Q[i, 1]·K[j, 1]) / √2
# ```
#
# Do one by hand: `Q[1]` is (0, 3) and `K[2]` is (1, 1). The product is 0·1 + 3·1 = 3, so the score is 3 / 1.414 = 2.12.
#
# **Predict** before you run the next cell: which keys get the largest score of `Q[0]`? What is the whole last row?

# %%
d = Q.shape[1]
S = Q @ K.T / np.sqrt(d)
print(np.round(S, 2))
assert round(S[1, 2], 2) == 2.12
assert S[0].argmax() == 0 and S[0, 0] == S[0, 2]        # K[0] and K[2] go equally far to the right
assert (S[2] == 0).all()                                # a query of zeros prefers nobody

# %% [markdown]
# ## Step 2: weights
#
# A row of scores becomes a row of weights: none is negative and they add up to 1. That is the *softmax*:
#
# ```
# P[i, j] = exp(S[i, j]) / (exp(S[i, 0]) + exp(S[i, 1]) + exp(S[i, 2]) + exp(S[i, 3]))
# ```
#
# It is done for each query by itself, **along the row**, over the keys. Nothing is said about the columns: a key may be
# listened to by everybody, or by nobody.
#
# By hand, the last row: `exp(0) = 1` four times, so each weight is 1/4.

# %%
P = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
print(np.round(P, 2))
print("sums of the rows:   ", np.round(P.sum(axis=1), 2))
print("sums of the columns:", np.round(P.sum(axis=0), 2))
assert np.allclose(P.sum(axis=1), 1) and not np.allclose(P.sum(axis=0), 1)
assert np.allclose(P[2], 1 / 4)

# %% [markdown]
# ## Step 3: averages
#
# ```
# O = P V        O[i] = P[i, 0]·V[0] + P[i, 1]·V[1] + P[i, 2]·V[2] + P[i, 3]·V[3]
# ```
#
# **Predict:** where does `O[2]` lie in the picture of the values? Can any output lie outside of the rectangle?

# %%
O = P @ V
assert np.allclose(O[2], V.mean(axis=0))                              # equal weights: the centre
assert (O >= V.min(axis=0)).all() and (O <= V.max(axis=0)).all()      # an average never leaves what it averages

drawn, axes = figure(4.6, 3.2)
for x, y in V:
    for ox, oy in O:
        axes.plot([x, ox], [y, oy], color="#e9e9e4", linewidth=1, zorder=0)
axes.plot(*V.T, "s", color="#c05621")
axes.plot(*O.T, "*", color="#2b6cb0", markersize=12)
for n, (x, y) in enumerate(V):
    axes.text(x + 0.12, y + 0.16, f"V[{n}]", color="#c05621")
for n, (right, up) in enumerate([(0.1, -0.4), (0.15, -0.1), (-0.6, 0.1)]):
    axes.text(O[n, 0] + right, O[n, 1] + up, f"O[{n}]", color="#2b6cb0")
axes.set(xlim=(-0.5, 5), ylim=(-0.6, 3.7))
show(drawn, "The rectangle of the values and three outputs inside of it. O[2] is the centre. O[1] lies far to the "
            "right, between V[1] and V[2]. O[0] lies near the centre: its two equal favourites V[0] and V[2] are "
            "opposite corners.")

# %% [markdown]
# All of it in numbers. Follow one row from left to right: row `i` of `S` makes row `i` of `P`, which makes row `i` of
# `O`. No row needs another. FlashAttention-2 lives on that: it gives the rows to different workers.

# %%
drawn, axes = figure(8, 2.3, columns=3, width_ratios=[4, 4, 2])
for where, M, title in zip(axes, (S, P, O), ("S = Q Kᵀ / √d", "P: softmax of each row", "O = P V"), strict=True):
    matrix(where, M, title)
    where.set_ylabel("query")
    where.set_xlabel("column" if M is O else "key")
show(drawn, "Three matrices of three rows: S with scores from -1.4 to 2.1, P with weights, O with the outputs.")

# %% [markdown]
# ## Why divide by √d?
#
# A product of two rows is a sum of `d` terms. If they are random, some above and some below zero, the size of the sum
# grows like `√d`. Without the division a model with longer rows would have larger scores, and a softmax of large scores
# gives nearly everything to one key.

# %%
rng = np.random.default_rng(0)
print("   d   size of q·k   of q·k/√d   of q·k/d   largest of 100 weights: q·k   q·k/√d    q·k/d")
for d in (4, 64, 1024):
    q, k = rng.standard_normal((2, 200, 100, d))
    s = (q[:, 0, None] * k).sum(axis=-1)                              # (200 queries, 100 keys each)
    sizes, weights = [], []
    for scaled in (s, s / np.sqrt(d), s / d):
        p = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        sizes.append(scaled.std())
        weights.append((p / p.sum(axis=1, keepdims=True)).max(axis=1).mean())
    print(f"{d:4}{sizes[0]:14.1f}{sizes[1]:12.1f}{sizes[2]:11.2f}{weights[0]:33.2f}{weights[1]:9.2f}{weights[2]:9.2f}")
    assert abs(sizes[1] - 1) < 0.1                                    # with √d: about 1, for any d

# %% [markdown]
# Read the last three columns. Not scaled: one key of 100 takes nearly all when rows are long. Divided by `d`: every key
# gets 0.01, so the query has no say. Divided by `√d`: the same choice at any length.
#
# ## The same in the package
#
# `fa_ref/standard.py` is this, with a comment where memory is read or written. The scale (and masks, later) are in a
# `Rule`, so that the loops do not have to know them: `Rule(Nq, Nk, scale=…)` holds the scale. `wide` is the number type
# to compute in; `rowmax` and `rowsum` are what they say; `finite_or_zero` and `nonzero_or_one` are for rows that see no
# key (end of this notebook); `L` is for notebook 02.

# %%
steps(standard.probabilities, 1, 4)

# %%
source(standard.forward_head)

# %%
O_package, L = standard.forward_head(Q, K, V, Rule(3, 4, scale=1 / np.sqrt(2)))
assert np.allclose(O_package, O)
print("the same output:", np.allclose(O_package, O))

# %% [markdown]
# The one thing that matters now is `m`: the largest score of the row is subtracted before `exp`. Our three lines do not
# do that. It changes nothing, for numerator and denominator are divided by the same number `exp(m)`. But `exp` of a
# large score is too large for the computer:

# %%
with np.errstate(over="ignore"):
    print("exp(710) is", np.exp(710.0), "in 64 bits; exp(89) is", np.exp(np.float32(89)), "in 32 bits")

# %% [markdown]
# ## Exercise: attention of one head
#
# Write `attention(Q, K, V)`, which returns `O` (Nq, dv). Scores may be in the thousands. About 5 lines, of NumPy alone.
#
# The cell below it checks your answer, and shows the smallest case that goes wrong. Write
# `verdict = nb01.attention(attention)` to keep that case; `attention(*verdict.args.values())` runs it again.

# %% tags=["stub"]
def attention(Q, K, V):
    """Q (Nq, d), K (Nk, d), V (Nk, dv). Returns O (Nq, dv)."""
    raise NotImplementedError("attention is yours to write")


# %%
nb01.attention(attention)

# %% [markdown]
# <details><summary>Hint 1: shapes</summary>
#
# `S` is `(Nq, Nk)`. The maximum of each row is `S.max(axis=1)`, with shape `(Nq,)`. With `keepdims=True` it is
# `(Nq, 1)`, which can be subtracted from `S`.
# </details>
#
# <details><summary>Hint 2: which maximum</summary>
#
# Each row needs its own. With the largest of the whole matrix, all terms of another row may become 0, and 0 / 0 is NaN.
# </details>
#
# The answer: [solutions/nb01.py](solutions/nb01.py).

# %% [markdown]
# ## What heads of a real model do
#
# A *head* is one such `Q`, `K`, `V`. A model has many. The package holds twelve heads of a small language model that
# reads a page of text: 251 pieces of words ("tokens"), `d = 32`. Each token has a query, a key and a value.

# %%
real = data.load()
print(real.q.shape, "=", "(batch, heads, tokens, d)")
print("a part of the text:", " ".join(real.tokens[57:70]))


def weights(head):
    """P (251, 251) of a head."""
    s = real.q[0, head].astype(float) @ real.k[0, head].T / np.sqrt(32)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


# %% [markdown]
# **Predict:** one of the heads looks one token back: query `i` gives most of its weight to key `i - 1`. What does its
# `P` look like? Another gives half of all weight to the first token. And that one?

# %%
drawn, axes = figure(8, 2.9, columns=3)
for where, head, what in zip(axes, (0, 3, 1), ("looks one token back", "looks at the first token", "hardly chooses"),
                             strict=True):
    p = weights(head)
    blocks = p[:250, :250].reshape(50, 5, 50, 5).sum(axis=(1, 3)) / 5      # 5 × 5 cells as one: weight on 5 keys
    where.imshow(blocks, cmap=POSITIVE, vmin=0, vmax=1)
    where.set(xticks=[], yticks=[], xlabel="key", ylabel="query")
    where.set_title(f"head {head}: {what}", fontsize=9)
show(drawn, "Three maps of 250 queries by 250 keys. Head 0: one thin dark line on the diagonal, and pieces of a second "
            "line far to its upper right. Head 3: a dark column at the left edge, and a paler diagonal. Head 1: nearly "
            "white all over, with nothing that stands out.")

# %%
back, first, even = weights(0), weights(3), weights(1)
print("head 0, weight on the token before:", round(np.mean([back[i, i - 1] for i in range(1, 251)]), 2))
print("head 3, weight on the first token: ", round(first[:, 0].mean(), 2))
print("head 1, largest weight of a row:   ", round(even.max(axis=1).mean(), 2), "where 1/251 would be no choice at all")
assert np.mean([back[i, i - 1] for i in range(1, 251)]) > 0.75 and first[:, 0].mean() > 0.5
assert even.max(axis=1).mean() < 0.05

# %% [markdown]
# (At this size one step below the diagonal cannot be told from the diagonal; the next picture shows it. The faint
# second line of head 0 is the model's own habit: it confuses places that are about 150 apart. See
# [the data's page](../fa_ref/data/README.md).)
#
# Closer: thirteen tokens of head 0 and of head 2. You can read off who listens to whom.

# %%
part = slice(57, 70)
drawn, axes = figure(8, 4.2, columns=2)
for where, head, what in zip(axes, (0, 2), ("looks one token back", "looks one token ahead"), strict=True):
    matrix(where, weights(head)[part, part], f"head {head}: {what}", values=False, limit=1)
    where.set_xticks(range(13), real.tokens[part], rotation=90)
    where.set_yticks(range(13), real.tokens[part])
show(drawn, "Weights among the tokens of: take \"the cat slept on the mat because it was warm. Head 0 has its dark "
            "cells just below the diagonal, so cat listens to the. Head 2 has them just above, so the listens to cat.")
print("cat gives", round(weights(0)[60, 59], 2), "of its weight to the token before it, in head 0")
assert real.tokens[59:61] == ["the", "cat"] and weights(0)[60, 59] > 0.5

# %% [markdown]
# How large are the scores? In head 0 the largest is near 68, and `exp(68)` is a number with 30 digits. In 16 bits `exp`
# is too large above 11.1, in 32 bits above 88.7. Subtracting the maximum is needed.

# %%
largest = (real.q[0, 0] @ real.k[0, 0].T / np.sqrt(np.float32(32))).max()
print("largest score of head 0:", round(float(largest), 1))
assert 67 < largest < 69 and 1e29 < np.exp(float(largest)) < 1e30
assert [round(float(np.log(np.finfo(t).max)), 1) for t in (np.float16, np.float32)] == [11.1, 88.7]

# %% [markdown]
# ## Not every key may be seen
#
# A model that writes must not look ahead: the query of a token sees the keys up to its own place. That is a *causal*
# mask. If there are as many queries as keys, query `i` sees key `j` where `j ≤ i`.
#
# And if not? While a model writes, most keys are from before and only a few queries are new. The last query is the
# newest token and sees everything. So the two are aligned **at the bottom right**: query `i` stands at place
#
# ```
# p = i + Nk - Nq        on the axis of the keys, and sees key j where j ≤ p
# ```

# %%
drawn, axes = figure(8, 2.6, columns=3, width_ratios=[5, 4, 2])
for where, (Nq, Nk) in zip(axes, ((2, 5), (4, 4), (5, 2)), strict=True):
    i, j = np.arange(Nq)[:, None], np.arange(Nk)[None, :]
    sees = j <= i + Nk - Nq
    assert (sees == Rule(Nq, Nk, scale=1, causal=True).visible(slice(0, Nq), slice(0, Nk))).all()
    assert sees[-1].all()                                             # the last query sees everything
    matrix(where, sees, f"{Nq} queries, {Nk} keys", values=False)
    where.set(xlabel="key", ylabel="query")
show(drawn, "Which query sees which key. 2 queries, 5 keys: the first sees four keys, the second all five. 4 and 4: a "
            "staircase. 5 queries, 2 keys: the first three see nothing, the fourth one key, the last both.")

# %% [markdown]
# A hidden key gets the score `-inf`, for `exp(-inf) = 0`. So it has no weight, and the others add up to 1.
#
# On the right, three queries see nothing. For them this course says: the output is 0. (Not NaN, which is what `0 / 0`
# gives, and not the average of keys that they must not see.)
#
# ## Exercise: with a causal mask
#
# Write `causal_attention(Q, K, V)`. About 9 lines.

# %% tags=["stub"]
def causal_attention(Q, K, V):
    """Q (Nq, d), K (Nk, d), V (Nk, dv). Query i sees key j if j ≤ i + Nk - Nq. Returns O (Nq, dv), 0 for empty rows."""
    raise NotImplementedError("causal_attention is yours to write")


# %%
nb01.causal_attention(causal_attention)

# %% [markdown]
# <details><summary>Hint 1: the mask</summary>
#
# `np.arange(Nq)[:, None]` is a column, `np.arange(Nk)[None, :]` a row. Comparing them gives a matrix `(Nq, Nk)` of True
# and False, as in the cell of the picture. `np.where(sees, S, -np.inf)` hides the rest.
# </details>
#
# <details><summary>Hint 2: rows that see nothing</summary>
#
# There the maximum is `-inf`, and `-inf - (-inf)` is NaN. Put 0 in place of such a maximum: then every term is
# `exp(-inf) = 0`. And the sum is 0: divide by 1 instead. `standard.probabilities` above has two small functions for it.
# </details>
#
# The answer: [solutions/nb01.py](solutions/nb01.py).

# %% [markdown]
# ## What to take along
#
# - `S = Q Kᵀ / √d`, softmax along each row, `O = P V`: an output is an average of values, and no row needs another.
# - Subtract the maximum of the row before `exp`; hide with `-inf`; align at the bottom right.
# - `S` and `P` have a cell for every pair of a query and a key. How to live without them is what the rest is about.
#
# Next: [02 Softmax in pieces](02_softmax_in_pieces.ipynb).
