# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 FlashAttention-1: the outer loop over keys
#
# **Claim.** Attention can be computed tile by tile. The matrix of scores is never written to memory, and after every
# tile of keys the output in memory is a finished answer: exact attention over the keys seen so far.
#
# Time: about 40 minutes, half of it for the exercises. Before: [02](02_softmax_in_pieces.ipynb) and
# [03](03_memory_is_the_cost.ipynb). You need: the pair `(m, l)`, and that a load or a store of memory is what costs.

# %%
import numpy as np
from IPython.display import display

from course import show, source
from course.pictures import figure
from exercises import nb04
from exercises.walks import order, travel, walk
from fa_ref import costs, data, debug, fa1, player, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

# %% [markdown]
# ## One more tile for an answer that is already finished
#
# Think of one query. It has seen some keys. It remembers three things: the largest score `m`, the sum
# `l = sum(exp(s - m))`, and its output `O`. The output is finished: it has been divided by `l`.
#
# Now a new tile of keys comes, with scores `S`. The tile alone has its own maximum and its own sum:
#
# ```
# m_tile = max(S)        P = exp(S - m_tile)        l_tile = sum(P)
# ```
#
# The two pairs are joined as in notebook 02:
#
# ```
# m_new = max(m, m_tile)
# alpha = exp(m - m_new)                          what the past is worth now
# beta  = exp(m_tile - m_new)                     what this tile is worth
# l_new = alpha * l + beta * l_tile
# ```
#
# And the output? `l * O` takes back the old division. What is left is a sum over keys, made with the old maximum. It
# is rescaled, the new sum is added, and everything is divided again:
#
# ```
# O_new = (alpha * l * O  +  beta * P V) / l_new
# ```
#
# Those are the lines of Algorithm 1 in the paper (Dao, Fu, Ermon, Rudra, Ré, 2022). The rest of it is two loops. Keys
# are outside, queries are inside.
#
# ## The loop
#
# The steps of the code are numbered, from (1) to (10). A table in its file says where they are in the paper. Left: the
# line of Algorithm 1, in brackets that of Algorithm 2, which has masks. Right: our steps.

# %%
lines = fa1.__doc__.splitlines()
first = next(n for n, line in enumerate(lines) if "Algorithm 1 (2)" in line)
for line in lines[first:first + 9]:
    print(line[4:42].rstrip())

# %% [markdown]
# As in notebook 03: capital letters without an index lie in memory, and here `l` and `m` do too. Letters with `i` or
# `j` are tiles on chip, and a subscript is a load or a store. `finite_or_zero` and `nonzero_or_one` are the guards for
# rows that have seen nothing. (Read past `wide`, `rounded`, `rule.kind`, `EMPTY` and `reverse`.)

# %%
source(fa1.forward_head)

# %% [markdown]
# Is the claim true, that `O` in memory is finished after every tile of keys? Take a tiny problem: 4 queries, 6 keys,
# whole numbers, tiles of 2 × 3. So there are 2 tiles of keys. The recorder of this package keeps every step of a run,
# and with it what was in memory. Look at the moment when `j` becomes 1, and compare with plain attention over the
# first three keys alone.

# %%
Q, K, V, rule = debug.tiny()
recording = player.record(fa1.forward_head, Q, K, V, rule, 2, 3)

second = next(n for n, step in enumerate(recording.steps) if step.names.get("j") == 1)
O_then = [step.memory["O"] for step in recording.steps[:second] if "O" in step.memory][-1]
alone, _ = standard.forward_head(Q, K[:3], V[:3], Rule(4, 3, scale=1.0))
print("O in memory when the second tile of keys begins:", np.round(O_then, 3), sep="\n")
print("attention over the first three keys alone:", np.round(alone, 3), sep="\n")
assert np.allclose(O_then, alone, atol=1e-14)

O, l, m = recording.answer
whole, _ = standard.forward_head(Q, K, V, rule)
assert np.allclose(np.asarray(O), whole, atol=1e-14)

# %% [markdown]
# ## Who is visited when
#
# Take 6 queries, 6 keys and tiles of 2 × 2. So there are 3 × 3 tiles of scores. **Predict:** in what order are they
# visited? Along the rows, or down the columns?
#
# The picture is not drawn from the text of the loop. The ledger has watched a run, and has seen which rows of `Q` and
# of `K` were loaded.

# %%
visits = walk(fa1.forward_head, "fa1")
drawn, axes = figure(3.6, 3.4)
order(axes, visits, "the number of each visit")
show(drawn, "A 6 by 6 matrix of scores in nine tiles. The visits 0, 1, 2 go down the first column of tiles, 3, 4, 5 "
            "down the second, and 6, 7, 8 down the third.")
assert [(rows[0] // 2, cols[0] // 2) for rows, cols, _ in visits] == [(i, j) for j in range(3) for i in range(3)]

# %% [markdown]
# Down the columns: the outer loop is over keys. Now look at what travels. Every column of the next picture is a
# visit. Blue is a load, orange is a store. **Predict:** how often is the first tile of `V` loaded? And how often is
# the first tile of `O` loaded, and how often stored?

# %%
drawn = travel(visits, ["K", "V", "Q", "O", "l", "m"])
show(drawn, "A table with a row for each of K, V, Q, O, l, m and a column for each of the nine visits. Tiles of K and "
            "V are loaded at visits 0, 3 and 6 only. At every visit a tile of Q is loaded, and a tile of O, of l and "
            "of m is loaded and stored.")
moves = [(name, action) for _, _, touched in visits for name, action, first in touched if first == 0]
print("first tile of V: loads", moves.count(("V", "load")))
print("first tile of O: loads", moves.count(("O", "load")), " stores", moves.count(("O", "store")))
assert [moves.count(x) for x in (("V", "load"), ("O", "load"), ("O", "store"))] == [1, 3, 3]

# %% [markdown]
# That is the bargain of FlashAttention-1. A tile of `K` and `V` is loaded once and stays. In return all that the
# queries know, `O`, `l` and `m`, goes to memory and back at every visit.
#
# **Predict** for the tiny problem from above: in the second tile of keys, `j = 1`, which of the four queries meet a new
# maximum? The scale of this problem is 1, so it is small enough for paper:
#
# ```
# Q = [ 1 0]      K = [1 1]  [0 2]  [-1  0]     the first tile of keys
#     [ 0 1]          [2 -1] [1 0]  [ 0 -2]     the second
#     [ 2 1]
#     [-1 1]
# ```
#
# ## Watch it
#
# This is the recording of the tiny problem. Click into the frame, then step with the arrow keys. Shift and
# an arrow key go to the next load or store. (The page needs a trusted notebook, or one that you have run.) Look for:
#
# - the first visit of `j = 0`: `Oi`, `li`, `mi` are loaded, and they are 0, 0 and −inf: nothing has been seen yet;
# - the two visits of `j = 1`: in which rows does `m` grow? There `alpha` is less than 1;
# - in two of the other rows the tile counts less: there `beta` is less than 1; in one row both are 1. Which, and why?

# %%
display(recording)

# %%
later = recording.steps[second:]
alphas = np.concatenate([step.names["alpha"] for step in later if "alpha" in step.names])
betas = np.concatenate([step.names["beta"] for step in later if "beta" in step.names])
for i in range(4):
    print(f"query {i}: alpha {alphas[i]:.3f}  beta {betas[i]:.3f}  ", "a new maximum" if alphas[i] < 1 else "")
assert [i for i in range(4) if alphas[i] < 1] == [0] and [i for i in range(4) if betas[i] < 1] == [1, 3]
assert alphas[2] == betas[2] == 1 and rule.scale == 1
assert (np.maximum(alphas, betas) == 1).all()

# %% [markdown]
# Only query 0 (its scores are 1, 0, −1, then 2, 1, 0). Query 2 meets a 3 in each of the two tiles: neither is
# rescaled. In every row at least one of the two factors is exactly 1: the side that has the maximum is not rescaled.
#
# ## What it costs
#
# Count the elements that move, for N queries and N keys of width d, and `Tc = N / Bc` tiles of keys:
#
# ```
# K, V     read once                      2 N d
# Q        read at every visit           Tc N d
# O        read at every visit           Tc N d
# O        written at every visit        Tc N d
#                                 sum    (3 Tc + 2) N d
# ```
#
# and `l` and `m`, one number per query each, read and written: `4 Tc N`. The paper leaves these out, they are small.
#
# **Predict:** N = 256, d = 32, `Bc = 64`. How many elements of `Q`, `K`, `V` and `O` move? How many if you halve
# `Br`?

# %%
def run(Q, K, V, Br, Bc):
    """The ledger of FlashAttention-1 on one head, its arrays named."""
    with Ledger() as led:
        fa1.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), Rule(len(Q), len(K), scale=0.2), Br, Bc)
    for record, name in zip(led.arrays[3:], ("O", "l", "m"), strict=True):
        record.name = name
    return led


def moved(led, names="QKVO"):
    return sum(record.reads + record.writes for record in led.arrays if record.name in names)


N, d, Bc = 256, 32, 64
Tc = N // Bc
numbers = np.random.default_rng(0).standard_normal((3, N, d))
led = run(*numbers, Br=32, Bc=Bc)
for record in led.arrays:
    print(f"{record.name}: {record.reads:7,} read, {record.writes:7,} written")
print(f"Q, K, V, O together: {moved(led):,} = (3 Tc + 2) N d = {(3 * Tc + 2) * N * d:,}")
assert moved(led) == (3 * Tc + 2) * N * d
assert moved(led, "lm") == 4 * Tc * N
assert moved(run(*numbers, Br=16, Bc=Bc)) == moved(led)
print("the same with Br halved")

# %% [markdown]
# The height of a tile of queries does not matter. Only the tile of keys does: the larger `Bc`, the fewer times `Q`
# and `O` pass by.
#
# The figure of the paper has a slightly smaller number, `(3 Tc + 1) N d`. Where is the one `N d`? Look at the first
# visits (`j = 0`). They load zeros which nobody has computed: the `O` of step (1). A clever loop would skip that
# load. The ledger counts such reads apart.

# %%
fresh = sum(record.fresh_reads for record in led.arrays if record.name == "O")
print(f"O: {fresh:,} of the reads met cells that nobody had written yet; that is N d = {N * d:,}")
print(f"without them: {moved(led) - fresh:,} = (3 Tc + 1) N d = {(3 * Tc + 1) * N * d:,}")
assert moved(led) - fresh == (3 * Tc + 1) * N * d

# %% [markdown]
# ## Is it less than standard attention?
#
# Standard attention writes `S`, reads it, writes `P`, reads it: `4 N²` and a little. FlashAttention-1 moves
# `(3 Tc + 2) N d` and a little. Take real numbers: one head of a language model on a text of 251 tokens, d = 32.
#
# **Predict:** with tiles of 16 keys, does FlashAttention-1 move less than standard attention, or more?

# %%
real = data.load()
one = [x[0, 3] for x in (real.q, real.k, real.v)]                          # Q, K, V (251, 32)
with Ledger() as led:
    standard.forward_head(*(led.hbm(x) for x in one), Rule(251, 251, scale=32**-0.5))
plain = led.total("reads") + led.total("writes")

sizes = [4, 8, 16, 32, 64, 128, 251]
counted = []
for Bc in sizes:
    led = run(*one, Br=64, Bc=Bc)
    counted.append(led.total("reads") + led.total("writes"))
    formula = costs.FORWARD["fa1"](costs.visits(Rule(251, 251, scale=0.2), 32, 32, 64, Bc))
    assert counted[-1] == formula.reads + formula.writes
    print(f"Bc = {Bc:3}: {counted[-1]:9,} elements, {counted[-1] / plain:5.2f} of standard attention")
assert counted[2] > plain > counted[3]

drawn, axes = figure(5.5, 3)
axes.plot(sizes, np.array(counted) / 1000, "o-", color="#2b6cb0")
axes.axhline(plain / 1000, color="#c05621")
axes.text(251, plain / 1000 * 1.1, "standard attention", ha="right", color="#c05621")
axes.text(5.5, counted[0] / 1000, "FlashAttention-1", va="center", color="#2b6cb0")
axes.set(xscale="log", yscale="log", xlabel="Bc, keys in a tile", ylabel="thousand elements moved", xticks=sizes,
         xticklabels=sizes)
axes.minorticks_off()
show(drawn, "Elements moved against the number of keys in a tile, both axes logarithmic. FlashAttention-1 falls "
            "like one over Bc. It crosses the level of standard attention between 16 and 32 keys.")

# %% [markdown]
# More! Tiles of 16 keys lose on this text. Never writing `S` is not a gain by itself: the tiles must be large enough,
# and the memory on chip says how large. With room for M numbers on chip and `Bc = M / (4 d)`, as in the paper, `Tc`
# is `4 N d / M`. Then the traffic grows like `12 N² d² / M`. It is still quadratic in N, but it has a smaller factor
# if `M` is much larger than `d²`.

# %%
M = 100 * 1024 // 4                                                        # 100 kB of 32-bit numbers
for d in (32, 64, 128):
    print(f"d = {d:3}: 12 d² / M = {12 * d * d / M:.2f}, where standard attention has 4")
assert 12 * 32 * 32 / M < 4 < 12 * 128 * 128 / M

# %% [markdown]
# With wide heads and little room the bargain is bad (d = 128 here). Notebook 05 makes it better.
#
# ## Exercise 1: one step
#
# Write the inside of the loop. Scores `Sij` of the tile are given, with `-inf` where a key is hidden. You get what
# the queries know so far, and return what they know then. `Oi` is divided by `l`, before and after. Some rows see
# nothing in this tile, some have seen nothing before (`Oi = 0`, `li = 0`, `mi = -inf`); if both, they stay as they
# are. About 8 lines.

# %% tags=["stub"]
def fa1_step(Sij, Vj, Oi, li, mi):
    """Sij (br, bc), Vj (bc, dv), Oi (br, dv), li (br,), mi (br,). Returns the new Oi, li, mi."""
    raise NotImplementedError("fa1_step is yours to write")


# %%
nb04.fa1_step(fa1_step)

# %% [markdown]
# <details><summary>Hint 1: a plan</summary>
#
# Go through the formulas at the top, in their order: `m_tile`, `P`, `l_tile`, `m_new`, `alpha`, `beta`, `l_new`,
# `O_new`. A factor per row must become a column before it meets a matrix: `alpha[:, None]`.
# </details>
#
# <details><summary>Hint 2: NaN</summary>
#
# `-inf - (-inf)` is NaN. Wherever you subtract a maximum, subtract 0 if it is `-inf`:
# `from fa_ref.online_softmax import finite_or_zero, nonzero_or_one`. The second of them is for the division.
# </details>
#
# <details><summary>Hint 3: it is right for some rows only</summary>
#
# `alpha` and `beta` may both stand in your formula, and yet `O` may be wrong: is the old `O` multiplied by the old
# `l`? Without it an output over many keys weighs as much as one over a single key.
# </details>
#
# ## Exercise 2: the loops
#
# Now the whole: `fa1_forward(Q, K, V, Br, Bc)`. Loads and stores are yours. The scale is `1 / sqrt(d)`, there are no
# masks. The last tile may be shorter than the others. Use your `fa1_step`. About 12 lines.
#
# The check looks at the numbers, and then runs your loop on the ledger: it must move what FlashAttention-1 moves. For
# the ledger, write every load and store as a subscript (`K[cols]`, `O[rows] = …`), and make the arrays in memory from
# `Q`, which costs nothing:
#
# ```
# O = np.zeros_like(Q, shape=(Nq, dv))        m = np.full_like(Q, -np.inf, shape=(Nq,))
# ```

# %% tags=["stub"]
def fa1_forward(Q, K, V, Br, Bc):
    """Q (Nq, d), K (Nk, d), V (Nk, dv). Returns O (Nq, dv), l (Nq,), m (Nq,)."""
    raise NotImplementedError("fa1_forward is yours to write")


# %%
nb04.fa1_forward(fa1_forward)

# %% [markdown]
# <details><summary>Hint 1: slices</summary>
#
# `for j in range(0, len(K), Bc)` gives the first key of every tile, and `K[j:j + Bc]` its keys. At the end NumPy
# gives what is left.
# </details>
#
# <details><summary>Hint 2: right numbers, but it moves too much</summary>
#
# `Kj` and `Vj` belong to the outer loop. And each of `O[rows]`, `l[rows]`, `m[rows]` may be read once and written
# once in a visit.
# </details>
#
# The answers: [solutions/nb04.py](solutions/nb04.py).
#
# ## What to take along
#
# - `O_new = (alpha * l * O + beta * P V) / l_new`: take back the division, rescale, add, divide again.
# - Keys and values are loaded once. `Q`, `O`, `l`, `m` pass by once per tile of keys: `(3 Tc + 2) N d` elements,
#   `(3 Tc + 1)` if the zeros are not read.
# - The price depends on `Bc` alone, and only large tiles beat standard attention.
#
# Next: [05 FlashAttention-2](05_flash_attention_2.ipynb).
