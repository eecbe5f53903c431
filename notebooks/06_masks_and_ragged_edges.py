# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 Masks and ragged edges
#
# **Claim.** Who sees whom is decided tile by tile, with a few comparisons. A tile that is all hidden is skipped, a tile
# that is all visible needs no mask, and the answer is exact at every edge.
#
# Time: about 40 minutes with the exercises. Before: [05](05_flash_attention_2.ipynb). You need: the loop over tiles of
# queries and keys.

# %%
import numpy as np

from course import matrix, show, source
from course.pictures import figure
from detective import case3
from exercises import nb06
from fa_ref import backward, costs, data, fa2, forward, online_softmax
from fa_ref.ledger import Ledger
from fa_ref.scores import EMPTY, FULL, PARTIAL, Rule, tiles
from fa_ref.testing import check

# %% [markdown]
# ## Where does a query stand?
#
# A causal model reads from left to right: a query sees its own key and those before it. With as many queries as keys
# that is a triangle. But often there are fewer queries than keys: one new token, and a thousand old ones. So a query
# needs a *position* on the axis of the keys. The rule here is *bottom-right*: the last query stands at the last key.
#
# ```
# p = i + Nk - Nq                                  the position of query i
# causal                   sees key j  if  j <= p
# window (left, right)     sees key j  if  p - left <= j <= p + right         (-1: no limit on this side)
# ```
#
# **Predict** before you run: 3 queries, 5 keys, causal. How many keys does the first query see? And the first of 5
# queries, if there are 3 keys?

# %%
drawn, panels = figure(9, 2.6, columns=3)
for axes, Nq, Nk, options in zip(panels, (3, 5, 5), (5, 3, 5), ({"causal": True}, {"causal": True}, {"window": (2, 1)}),
                                 strict=True):
    seen = Rule(Nq, Nk, scale=1.0, **options).visible(slice(0, Nq), slice(0, Nk))
    name = "causal" if "causal" in options else "window (2, 1)"
    matrix(axes, seen, f"{name}, Nq = {Nq}, Nk = {Nk}", values=True)
    axes.set(xlabel="keys", ylabel="queries")
    print(f"{name}, Nq = {Nq}, Nk = {Nk}: the first query sees {seen[0].sum()} keys, the last one {seen[-1].sum()}")
show(drawn, "Three matrices of zeros and ones. Causal with 3 queries and 5 keys: rows of 3, 4 and 5 ones. Causal with "
            "5 queries and 3 keys: the first two rows are empty, then 1, 2, 3 ones. Window (2, 1) with 5 and 5: a band "
            "of four ones around the diagonal, cut at the borders.")
assert Rule(3, 5, scale=1.0, causal=True).visible(slice(0, 3), slice(0, 5)).sum(axis=1).tolist() == [3, 4, 5]
assert Rule(5, 3, scale=1.0, causal=True).visible(slice(0, 5), slice(0, 3)).sum(axis=1).tolist() == [0, 0, 1, 2, 3]

# %% [markdown]
# Another rule, *top-left*, lets query 0 see key 0 only, whatever the lengths. For Nq = Nk the two agree, so a test
# with equal lengths cannot tell them apart. For one new token after many old ones, top-left is a disaster: the token
# sees the very first key and nothing else.

# %%
one_new_token = Rule(1, 5, scale=1.0, causal=True).visible(slice(0, 1), slice(0, 5))[0].astype(int)
print("one query, five keys. bottom-right:", one_new_token, "  top-left:", np.tri(1, 5, dtype=int)[0])
assert one_new_token.all() and np.tri(1, 5).sum() == 1

# %% [markdown]
# ## Three kinds of tiles
#
# The loop asks one question per tile, before anything is loaded:
#
# ```
# EMPTY      no query of the tile sees a key of it      skip it: no load, no product
# FULL       every query sees every key                 use the scores as they are
# PARTIAL    some do                                    set hidden scores to -inf
# ```
#
# For causal and windows, four positions are enough: those of the first and last query, and the first and last key.
# In the code below, `offset` is `Nk - Nq`. For no limit, `left` and `right` hold a number larger than any distance, not
# −1. The lines with `masks` and `biases` are for other options, read past them.

# %%
source(Rule.kind)

# %% [markdown]
# **Predict:** 12 queries, 12 keys, causal, tiles of 4 × 4. Of the 9 tiles, how many are EMPTY, PARTIAL, FULL? And in
# tiles of 4 × 3, which do not fit the diagonal so well?

# %%
def count(rule, Br, Bc):
    """{kind: number of tiles}."""
    kinds = [rule.kind(rows, cols) for rows in tiles(rule.Nq, Br) for cols in tiles(rule.Nk, Bc)]
    return {kind: kinds.count(kind) for kind in (EMPTY, PARTIAL, FULL)}


triangle, band = Rule(12, 12, scale=1.0, causal=True), Rule(12, 12, scale=1.0, window=(3, 0))
drawn, panels = figure(9, 3.7, columns=3)
for axes, rule, Br, Bc, name in zip(panels, (triangle, triangle, band), (4, 4, 4), (4, 3, 4),
                                    ("causal", "causal", "window (3, 0)"), strict=True):
    name = f"{name}, tiles of {Br} × {Bc}"
    nb06.draw_kinds(axes, rule, Br, Bc, name)
    print(f"{name}: {count(rule, Br, Bc)}")
nb06.key_of_kinds(drawn)
show(drawn, "Three matrices of 12 queries by 12 keys, a dot wherever a query sees a key, tiles coloured by kind. "
            "Causal in 4 by 4 tiles: 3 empty (grey), 3 partial on the diagonal (orange), 3 full (green). Causal in 4 "
            "by 3 tiles: 3 empty, 5 partial, 4 full. Window (3, 0): the diagonal and the tiles left of it partial, the "
            "rest empty.")
assert count(triangle, 4, 4) == {EMPTY: 3, PARTIAL: 3, FULL: 3}
assert count(triangle, 4, 3) == {EMPTY: 3, PARTIAL: 5, FULL: 4}
assert count(band, 4, 4) == {EMPTY: 4, PARTIAL: 5, FULL: 0}
for rule in (triangle, band):
    for rows in tiles(12, 4):
        for cols in tiles(12, 3):
            assert (rule.kind(rows, cols) == EMPTY) == (not rule.visible(rows, cols).any())

# %% [markdown]
# Grey is EMPTY, orange PARTIAL, green FULL; a dot is a query that sees a key. The skipping is exact: a tile is grey if
# and only if it holds no dot. In the middle picture, look at the tile in the last row and the third column: the
# diagonal only touches its corner, from inside. It is FULL.
#
# ## Exercise A: the kind of a tile
#
# Write `tile_kind(rows, cols, Nq, Nk)` for the causal rule. `rows` and `cols` are slices; EMPTY, PARTIAL and FULL were
# imported at the top. Compare positions, do not make arrays: the last cases are too large for that. About 4 lines.

# %% tags=["stub"]
def tile_kind(rows, cols, Nq, Nk):
    """rows, cols: slices of queries and keys. Returns EMPTY, PARTIAL or FULL."""
    raise NotImplementedError("tile_kind is yours to write")


# %%
nb06.tile_kind(tile_kind)

# %% [markdown]
# <details><summary>Hint 1: whom to ask</summary>
#
# The last query of the tile sees most. If even it does not see the first key of the tile, nobody sees anything.
# The first query sees least. If it sees the last key of the tile, everybody sees everything.
# </details>
#
# <details><summary>Hint 2: the last index</summary>
#
# A slice ends *before* `stop`. The last query is `rows.stop - 1`, and it stands at `rows.stop - 1 + Nk - Nq`.
# </details>
#
# The answer: [solutions/nb06.py](solutions/nb06.py).

# %% [markdown]
# ## How much is saved?
#
# Let there be T tiles of queries and as many of keys, and causal. Then T tiles are PARTIAL, and of the others half are
# EMPTY. **Predict:** N = 8192 and tiles of 128 make T = 64. What share of the 4096 tiles is skipped? And for a window
# of 256 keys, `(255, 0)`: how many tiles does a row of tiles visit, in the middle of the sequence?

# %%
N = 8192
for name, options in (("nothing hidden", {}), ("causal", {"causal": True}), ("window (255, 0)", {"window": (255, 0)})):
    rule = Rule(N, N, scale=1.0, **options)
    found = count(rule, 128, 128)
    flops = costs.FORWARD["fa2"](costs.visits(rule, 64, 64, 128, 128)).matmul_flops
    print(f"{name:16}{found}  skipped {found[EMPTY] / 64**2:4.0%}  {flops / 1e9:5.1f} GFLOP in products")
assert count(Rule(N, N, scale=1.0, causal=True), 128, 128)[EMPTY] == 64 * 63 // 2 == 2016
assert sum(rule.kind(slice(4096, 4224), cols) != EMPTY for cols in tiles(N, 128)) == 3     # rule: the window

# %% [markdown]
# A window of 256 keys looks into 3 tiles of 128, not 2: the first query of a tile reaches 255 keys back, the last one
# stands 127 keys further on. With a window, the cost grows with N, not with N²: twice the tokens, twice the tiles.

# %%
for n in (N, 2 * N):
    kinds = count(Rule(n, n, scale=1.0, window=(255, 0)), 128, 128)
    print(f"N = {n:5}: {kinds[PARTIAL] + kinds[FULL]} tiles visited")
    assert kinds[PARTIAL] + kinds[FULL] == 3 * (n // 128) - 3                 # the first rows of tiles have 1 and 2

# %% [markdown]
# Is the saving real? The ledger counts what the loop does, on a real head of 251 tokens (a prime: the last tile is
# always ragged):

# %%
real = data.load()
Q, K, V = real.q[0, 4], real.k[0, 4], real.v[0, 4]                            # layer 2 head 4, it looks back
for name, options in (("nothing hidden", {}), ("causal", {"causal": True}), ("window (31, 0)", {"window": (31, 0)})):
    rule = Rule(251, 251, scale=32**-0.5, **options)
    with Ledger() as led:
        fa2.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), rule, 32, 32)
    print(f"{name:16}{led.total('reads'):9,} elements read   {led.matmul_flops:11,} FLOPs in products")
    assert led.matmul_flops == costs.FORWARD["fa2"](costs.visits(rule, 32, 32, 32, 32)).matmul_flops

# %% [markdown]
# ## Exercise B: where the loop begins and ends
#
# Asking every tile costs little, but a fast kernel does not even ask: it computes the first and the last tile of keys
# and loops between them. Write `first_and_last_tile(i, Br, Bc, Nq, Nk, left, right)`. It returns `(first, last)`, both
# included: the tiles of keys that tile `i` of the queries must visit. `left` or `right` may be −1: no limit. If there
# is no tile to visit, return any pair with `last < first`. Again no arrays and no loop over keys. About 5 lines.

# %% tags=["stub"]
def first_and_last_tile(i, Br, Bc, Nq, Nk, left, right):
    """Which tiles of keys (Bc each) are not EMPTY for tile i of the queries (Br each)? Returns first, last."""
    raise NotImplementedError("first_and_last_tile is yours to write")


# %%
nb06.first_and_last_tile(first_and_last_tile)

# %% [markdown]
# <details><summary>Hint 1: keys first, then tiles</summary>
#
# Find the first and the last *key* that anybody in the tile sees. Key `j` lies in tile `j // Bc`.
# </details>
#
# <details><summary>Hint 2: who reaches farthest</summary>
#
# To the left the first query of the tile, at `p - left`. To the right the last query, at `p + right`. A ragged last
# tile of queries needs no care here: its last query stands at the last key, and `min(…, Nk - 1)` cuts what is beyond.
# </details>
#
# <details><summary>Hint 3: the two ends of the keys</summary>
#
# A position before key 0 becomes 0 for `first`: Python takes index −1 for the last element, and says nothing. For
# `last`, −1 may stay: `-1 // Bc` is −1, and −1 < 0. Nothing lies beyond key `Nk - 1`.
# </details>
#
# The answer: [solutions/nb06.py](solutions/nb06.py).

# %% [markdown]
# ## Why −∞, and never a large number
#
# A hidden score becomes `-inf`, and `exp(-inf)` is exactly 0. Much code writes a large number instead, −10000 say,
# because `-inf - (-inf)` is NaN. Here is what that costs. A query and two keys; the second key is hidden:

# %%
def attend(S, V, seen, hidden):
    """softmax(S) V for one row of scores, where hidden scores are replaced by a number."""
    S = np.where(seen, S, hidden)
    return online_softmax.safe(S) @ V


S, V2 = np.array([-50000.0, 0.0]), np.array([3.0, 500.0])
seen = np.array([True, False])
print("hidden = -10000:", attend(S, V2, seen, -10000.0), "   (the hidden value has won)")
print("hidden = -inf:  ", attend(S, V2, seen, -np.inf))
assert attend(S, V2, seen, -10000.0) == 500 and attend(S, V2, seen, -np.inf) == 3

# %% [markdown]
# The true score lies below the large number, so the hidden key gets all the weight. Scores of −50000 are rare. The
# next case is not: a row that sees *no* key, such as the first queries when there are more queries than keys.
# **Predict** both lines: no key is visible, the values are 3 and 500.

# %%
no_key = np.array([False, False])
print("hidden = -10000:", attend(np.zeros(2), V2, no_key, -10000.0))
print("hidden = -inf:  ", attend(np.zeros(2), V2, no_key, -np.inf))
assert attend(np.zeros(2), V2, no_key, -10000.0) == 251.5 and attend(np.zeros(2), V2, no_key, -np.inf) == 0

# %% [markdown]
# With a finite number, all hidden keys are equally hidden, so each gets the same weight: the output is the mean of what
# must not be seen. With −∞ and two small guards it is 0:

# %%
source(online_softmax.finite_or_zero)
print()
source(online_softmax.nonzero_or_one)

# %% [markdown]
# So a row that sees no key has `O = 0` and `L = -inf`, and its gradients are 0. That is not just tidy: `exp(L)` is the
# weight of a part when parts are joined ([02](02_softmax_in_pieces.ipynb)), and nothing must weigh nothing. Five
# queries, three keys, causal:

# %%
rng = np.random.default_rng(6)
q, k, v = (rng.standard_normal((1, 1, n, 2)) for n in (5, 3, 3))
out, lse = forward(q, k, v, causal=True, block_q=2, block_k=2)
grads = backward(rng.standard_normal(out.shape), q, k, v, out, lse, causal=True, block_q=2, block_k=2)
print("O:\n", np.round(out[0, 0], 2))
print("L: ", np.round(lse[0, 0], 2))
assert (out[0, 0, :2] == 0).all() and (lse[0, 0, :2] == -np.inf).all() and (grads.dq[0, 0, :2] == 0).all()
joined = online_softmax.merge(out, lse, *forward(q, k, v))
assert np.array_equal(joined[0][0, 0, :2], forward(q, k, v).out[0, 0, :2])      # joining nothing changed nothing

# %% [markdown]
# ## Ragged tiles
#
# 251 keys in tiles of 32: seven tiles, and one of 27. In NumPy the last slice is simply shorter:

# %%
print([cols.stop - cols.start for cols in tiles(251, 32)])
assert sum(cols.stop - cols.start for cols in tiles(251, 32)) == 251

# %% [markdown]
# A kernel has no shorter tiles. Its tile in shared memory always has `Bc` rows, and those beyond the end hold
# something: zeros, if it is careful. But **a key of zeros is not "no key"**: its score is 0, and `exp(0)` is 1. Three
# keys with score −30 and values 1, 2, 3; one more row of zeros to fill the tile. **Predict** the output if the fourth
# row is treated like a key:

# %%
S, V4 = np.array([-30.0, -30.0, -30.0, 0.0]), np.array([1.0, 2.0, 3.0, 0.0])
counted = attend(S, V4, np.array([True, True, True, True]), -np.inf)
excluded = attend(S, V4, np.array([True, True, True, False]), -np.inf)
print(f"padding counted:  {counted:.1e}\npadding excluded: {excluded:.1f}")
assert counted < 1e-11 and excluded == 2

# %% [markdown]
# ## Storage that nobody may read
#
# Beyond the end, or in a key that no query sees, memory may hold anything, NaN included. Setting the score to −∞ is not
# enough then: the weight is 0, but `0 * NaN` is NaN.

# %%
weights, garbage = np.array([1.0, 0.0]), np.array([3.0, np.nan])
print("0 · NaN:", weights @ garbage, "   selected away:", weights @ np.where(weights > 0, garbage, 0))

rule = Rule(2, 5, scale=1.0, window=(1, 0))                                   # keys 0 and 1 are seen by nobody
live_queries, live_keys = rule.reach()
print("keys that somebody sees:", live_keys)
q, k, v = (rng.standard_normal((1, 1, n, 2)) for n in (2, 5, 5))
clean = forward(q, k, v, window=(1, 0))
k[0, 0, :2], v[0, 0, :2] = np.nan, np.inf
assert live_keys.tolist() == [False, False, True, True, True]
assert np.array_equal(forward(q, k, v, window=(1, 0)).out, clean.out)
print("NaN and inf in the other keys change no bit: True")

# %% [markdown]
# The promise holds for keys that *no* query of the head sees; they are replaced by zeros, by selection. A NaN in a key
# that some see and others do not meets a weight of 0 where it is hidden, and spreads.
#
# ## Case 3: sometimes a little too small
#
# You are handed an attention function, with a report from the field. Read it; do not search for the mistake yet.

# %%
print(case3.__doc__)

# %% [markdown]
# Its parts are `load`, `whole`, `visible`, `update`, and a loop that calls them. Whoever wrote it could have compared
# it with a formula at the sizes they thought of. The conformance kit draws the sizes that nobody thinks of, and
# shrinks what fails. It needs to know what may be asked (`case3.supports`):

# %% tags=["varies"]
report = check(case3.attention, case3.supports, examples=50,
               properties=["equals_the_oracle", "the_future_has_no_influence"])
print(report)
assert [row.name for row in report.failures] == ["equals_the_oracle"]
assert nb06.times_the_bound("seed=0") > 1e5                                   # hundreds of thousands

# %% [markdown]
# Words to know: the *oracle* is attention in plain float64 loops. The *bound* is the largest error that rounding can
# explain, so an error of hundreds of thousands of times the bound is no rounding. The *seed line* (`Nq=3 Nk=2
# causal=True`, say) is the problem in one line. What it does not name is plain: one query, one key, d = 1, nothing
# hidden, tiles of 4 × 4 in this function. A line cannot be empty, so the plainest of all problems is called `seed=0`.
#
# A failing problem is half a diagnosis. The other half is a problem as near as possible that does *not* fail. Ask about
# any problem with `replay`:

# %%
from fa_ref.testing import replay  # noqa: E402

for line in ("Nk=5", "Nk=5 d=3", "Nk=5 Nq=4", "Nk=5 Nq=5"):
    held = replay(case3.attention, case3.supports, line, ["equals_the_oracle"]).ok
    print(f"{line:10} {'right' if held else 'wrong'}")
    assert not held

# %% [markdown]
# Neither `d` nor `Nq` matters. Two other things do, and the report from the field names both.
#
# **Witness.** Return three seed lines:
#
# - `broken`: case 3 is wrong here, and there are more than 8 keys;
# - `other_length`: the same line with another `Nk` and nothing else changed, and case 3 is right;
# - `other_sight`: the same line as `broken`, but with `causal=True` or another `window=left,right`, and case 3 is
#   right.
#
# About 1 line, and some calls of `replay` before it.

# %% tags=["stub"]
def case3_witness():
    """Returns three strings: broken, other_length, other_sight."""
    raise NotImplementedError("case3_witness is yours to write")


# %%
nb06.case3_witness(case3_witness)

# %% [markdown]
# Now you know when. Read the parts that can make such a difference. `edges` holds `Nq`, `Nk`, `left` and `right`; no
# limit is 10⁹ there, causal is `right = 0`. `i0`, `j0` are the first row and column of the tile.

# %%
for step in (case3.load, case3.whole, case3.visible):
    source(step)
    print()

# %% [markdown]
# **Repair.** Return the name of the one step that is wrong, as a string, and your version of it, a function with the
# same parameters. It is put in its place, and the kit runs again. Tiles that need no mask must still go without. About
# 5 lines.

# %% tags=["stub"]
def case3_repair():
    """Returns (name of the step, function)."""
    raise NotImplementedError("case3_repair is yours to write")


# %%
nb06.case3_repair(case3_repair)

# %% [markdown]
# <details><summary>Hint 1: the witness</summary>
#
# Tiles have 4 rows. Which `Nk` have no ragged tile? And what kind are the tiles of a small causal problem?
# </details>
#
# <details><summary>Hint 2: the repair</summary>
#
# `visible` knows that there is no key beyond `Nk`. It is right, whenever somebody asks it. Who decides that nobody
# asks?
# </details>
#
# The answer: [solutions/nb06.py](solutions/nb06.py).
#
# Why did a causal model never show it? The last tile of keys lies on the diagonal there, so it is PARTIAL anyway, and
# the mask hides the padding by the way. A fast path is a second implementation: it needs tests of its own.
#
# ## What to take along
#
# - `p = i + Nk - Nq` says where a query stands. All rules are comparisons with `p`, and tiles compare only their
#   corners.
# - Skipped tiles are exact, and with them half of a causal attention is free.
# - Hidden is −∞, nothing is `(O, L) = (0, -inf)`, padding is not a key, and what nobody may read is selected away.
#
# Next: [07 Backward without P](07_backward_without_p.ipynb).
