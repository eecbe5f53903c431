# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 Backward without P
#
# **Claim.** The backward pass needs no P from the forward pass. Q, K, V, O and one number per row bring all gradients
# back, tile by tile.
#
# Time: about 35 minutes with the exercises. Before: [05](05_flash_attention_2.ipynb). You need: derivatives of exp
# and of a quotient, the chain rule.

# %%
import numpy as np

from course import matrix, show, steps
from course.pictures import figure
from exercises import nb07
from fa_ref import costs, data, fa2, forward, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

# %% [markdown]
# ## The forward pass, in four lines
#
# ```
# S = scale * Q Kᵀ            scores                        (Nq, Nk)
# L = log(rowsum(exp(S)))     one number per row            (Nq,)
# P = exp(S - L)              their softmax                 (Nq, Nk)
# O = P V                     output                        (Nq, dv)
# ```
#
# The third line is the softmax in disguise: `exp(S - L) = exp(S) / exp(L) = exp(S) / rowsum(exp(S))`. So whoever has S
# and L has P. Our example for the whole notebook has 3 queries and 4 keys:

# %%
rng = np.random.default_rng(7)
Q, K, V = rng.standard_normal((3, 2)), rng.standard_normal((4, 2)), rng.standard_normal((4, 2))
scale = 0.5


def attention(Q, K, V):
    """O and L, as above."""
    S = scale * (Q @ K.T)
    L = np.log(np.exp(S).sum(axis=1))
    return np.exp(S - L[:, None]) @ V, L


O, L = attention(Q, K, V)
P = np.exp(scale * (Q @ K.T) - L[:, None])
print("rows of P add up to", P.sum(axis=1))
assert np.allclose(P.sum(axis=1), 1)
assert np.allclose(O, forward(Q[None, None], K[None, None], V[None, None], scale=scale).out)

# %% [markdown]
# ## The gradients, in six
#
# Some loss depends on O. What we get is `dO`, the derivative of the loss with respect to O. What we want is dQ, dK and
# dV. We walk back through the four lines:
#
# ```
# O = P V            dV = Pᵀ dO                 dP = dO Vᵀ
# P = exp(S - L)     D  = rowsum(dO ∘ O)        dS = P ∘ (dP - D)          ∘: element by element, D along its row
# S = scale Q Kᵀ     dQ = scale * dS K          dK = scale * dSᵀ Q
# ```
#
# The first and the last line are what every product of matrices does. Why dP = dO Vᵀ, for one: `O[i, c]` is the sum
# over j of `P[i, j] * V[j, c]`. Nudge `P[i, j]`, and `O[i, c]` moves by `V[j, c]` for each c, so the loss moves by
# `Σ_c dO[i, c] * V[j, c]`.
#
# The middle line is the softmax. Changing one score raises its own weight and lowers all others of the row, since they
# must add up to 1. For one row, `P_j = exp(S_j) / l`, where l is the sum. If `S_j` grows a little, the numerator grows
# at the rate `P_j`; l grows too, which takes `P_j * P_j` off again. So `P_j` grows at the rate `P_j - P_j * P_j`, and
# every other `P_k`, of which only l changes, at the rate `-P_k * P_j`. Each of these weights matters to the loss by
# its `dP_k`. Add it all up:
#
# ```
# dS_j = P_j * dP_j - Σ_k P_k P_j dP_k  =  P_j * (dP_j - Σ_k P_k dP_k)
# ```
#
# The sum is one number per row. It seems to need the whole row of P. But look at what it is:
#
# ```
# Σ_k P_k dP_k  =  Σ_k P_k (dO · V_k)  =  dO · Σ_k P_k V_k  =  dO · O
# ```
#
# `O` is that sum, already made. So `D = rowsum(dO ∘ O)`: two rows of dv numbers, instead of two of Nk.
#
# Now by hand. One query, two keys, `P = (0.25, 0.75)`, values 10 and 20, dO = 1. Then O = 17.5. **Predict:** does
# raising the first score raise or lower O? What is dS?

# %%
P2, V2, dO2 = np.array([0.25, 0.75]), np.array([10.0, 20.0]), 1.0
dP2, D2 = dO2 * V2, dO2 * (P2 @ V2)
print("dP =", dP2, "  D =", D2, "  dS =", P2 * (dP2 - D2))
assert (P2 * (dP2 - D2)).tolist() == [-1.875, 1.875]

# %% [markdown]
# A key whose value lies below the output pulls it down. And `dS_j = P_j * dO · (V_j - O)`: what counts is how far a
# value lies from the output. Now the example with 3 queries and 4 keys, and a random dO. (Orange is above zero, blue
# below; each matrix is coloured up to its own largest number.)

# %%
dO = rng.standard_normal(O.shape)
dP = dO @ V.T
D = (dO * O).sum(axis=1)
dS = P * (dP - D[:, None])
assert np.allclose(D, (P * dP).sum(axis=1))                                   # the two ways to write it

drawn, panels = figure(9.5, 2.9, columns=3)
for axes, M, name in zip(panels, (P, dP - D[:, None], dS), ("P", "dP − D", "dS = P ∘ (dP − D)"), strict=True):
    matrix(axes, np.round(M, 2), name)
    axes.set(xlabel="keys", ylabel="queries")
show(drawn, "Three matrices of 3 queries by 4 keys. P holds positive weights. dP − D has both signs in every row. "
            "Their product, element by element, is dS, and every row of it adds up to zero.")

# %% [markdown]
# **Predict:** what is the sum of each row of dS? Think before you add: what does the softmax do if all scores of a row
# grow by the same amount?

# %%
print("row sums of dS vanish:", np.allclose(dS.sum(axis=1), 0))
assert np.allclose(dS.sum(axis=1), 0)

# %% [markdown]
# ## Is it true?
#
# Six lines of algebra are easily wrong. So nudge every input by a little, up and down, and watch the loss. With dO
# given, the loss is `sum(O * dO)`: its derivative with respect to O is dO. dO is random, so that no element can hide
# behind another.

# %%
def nudged(loss, X, h=1e-5):
    """The derivative of loss(X) with respect to every element of X, by central differences."""
    dX = np.zeros_like(X)
    for at in np.ndindex(X.shape):
        step = np.zeros_like(X)
        step[at] = h
        dX[at] = (loss(X + step) - loss(X - step)) / (2 * h)
    return dX


by_formula = {"dQ": scale * dS @ K, "dK": scale * dS.T @ Q, "dV": P.T @ dO}
by_nudging = {"dQ": nudged(lambda X: (attention(X, K, V)[0] * dO).sum(), Q),
              "dK": nudged(lambda X: (attention(Q, X, V)[0] * dO).sum(), K),
              "dV": nudged(lambda X: (attention(Q, K, X)[0] * dO).sum(), V)}
for name, formula in by_formula.items():
    error = np.abs(formula - by_nudging[name]).max()
    print(f"{name}: the two agree within 1e-8: {error < 1e-8}")
    assert error < 1e-8

# %% [markdown]
# How small should a nudge be? Too large, and the curve bends; too small, and the difference of two nearly equal numbers
# is all rounding. **Predict** the shape of the error over h, on logarithmic axes.

# %%
hs = 10.0 ** np.arange(-13, 0)
errors = [np.abs(nudged(lambda X: (attention(X, K, V)[0] * dO).sum(), Q, h) - by_formula["dQ"]).max() for h in hs]
drawn, axes = figure(5, 2.6)
axes.loglog(hs, errors, "o-", color="#2b6cb0")
axes.set(xlabel="h", ylabel="largest error of dQ")
show(drawn, "The error of the central differences over the step h, both logarithmic: a V. It falls as h shrinks from "
            "0.1 to about 1e-5 and rises again below.")
assert 5e-7 < hs[np.argmin(errors)] < 5e-4 and errors[0] > 1e-5 and errors[-1] > 1e-5

# %% [markdown]
# The best h is near 10⁻⁵, the one used above.
#
# ## Why not keep P?
#
# The forward pass had P, tile by tile. It could have stored it. **Predict:** one layer with N = 8192 tokens and 32
# heads, 2 bytes for each element of P, 4 bytes for each of L. How many bytes is P? How many L?

# %%
N, H = 8192, 32
print(f"P: {H * N * N * 2:13,} bytes\nL: {H * N * 4:13,} bytes")
assert H * N * N * 2 // (H * N * 4) == N // 2

# %% [markdown]
# Four gigabytes for each layer, against one megabyte. The price of L is that every tile of S is computed once more, so
# there are five products of matrices (S, dP, dV, dQ, dK) in place of four. **Predict:** by how much does the number of
# FLOPs in products grow? And which of the two moves more through memory? The ledger counts both on a real head with 251
# tokens: `standard.gradients` reads the saved P, `fa2.backward_head` makes it again.

# %%
real = data.load()
Q1, K1, V1 = real.q[0, 4], real.k[0, 4], real.v[0, 4]
rule = Rule(251, 251, scale=32**-0.5)
P1, L1 = standard.probabilities(Q1, K1, rule)
O1 = P1 @ V1
dO1 = np.random.default_rng(1).standard_normal(O1.shape).astype(np.float32)

with Ledger() as saved:
    kept = standard.gradients(saved.hbm(dO1), saved.hbm(Q1), saved.hbm(K1), saved.hbm(V1), saved.hbm(P1), rule)
with Ledger() as again:
    made = fa2.backward_head(*(again.hbm(X) for X in (dO1, Q1, K1, V1, O1, L1)), rule, 64, 64)

for name, led in (("P saved", saved), ("P made again", again)):
    moved = led.total("reads") + led.total("writes")
    print(f"{name:13} products {led.matmul_flops:11,} FLOPs   memory {moved:8,} elements   "
          f"on chip {led.peak_onchip_bytes:9,} bytes")
assert again.matmul_flops == 5 * saved.matmul_flops // 4
assert again.matmul_flops == costs.BACKWARD["fa2"](costs.visits(rule, 32, 32, 64, 64)).matmul_flops
assert all(np.abs(np.asarray(x) - np.asarray(y)).max() < 1e-4 for x, y in zip(kept, made, strict=True))
print(f"of the memory traffic of the first, P takes {saved.arrays[4].reads:,} reads")

# %% [markdown]
# A quarter more arithmetic, and about a third of the traffic. To be fair: the first version is not tiled. It reads P
# twice, and its dP and dS stand in memory as well, N × N each. A tiled loop could read a saved P. It would save one
# product, and still need the four gigabytes from the forward pass until the backward pass comes. And look at the last
# column: the first version holds whole matrices on chip, which no chip can do for long sequences.
#
# ## One tile
#
# This is the inner loop of the backward pass. Keys are outside; for each tile of keys, all tiles of queries pass by:

# %%
steps(fa2.backward_head, 3, 13)

# %% [markdown]
# `rule.chain` multiplies by the scale; `rounded` does nothing to 32-bit numbers; `dB` is the gradient of a bias, if
# there is one.
#
# Each tile adds to three gradients. dKj and dVj belong to the tile of keys, so they wait on chip until all queries have
# passed. dQi belongs to the queries, and the next tile of keys will add to it again: it lies in memory.
#
# ## Exercise A: one tile
#
# Write `backward_tile(Qi, Kj, Vj, dOi, Li, Di, scale)`. It returns what this tile adds to dQ, dK and dV. Nothing is
# hidden. About 5 lines.

# %% tags=["stub"]
def backward_tile(Qi, Kj, Vj, dOi, Li, Di, scale):
    """Qi (br, d), Kj (bc, d), Vj (bc, dv), dOi (br, dv), Li (br,), Di (br,). Returns dQi, dKj, dVj."""
    raise NotImplementedError("backward_tile is yours to write")


# %%
nb07.backward_tile(backward_tile)

# %% [markdown]
# <details><summary>Hint 1: the order</summary>
#
# Pij from the scores and Li; dPij from dOi and Vj; dSij from both and Di. The three results are products with these.
# </details>
#
# <details><summary>Hint 2: one number per row</summary>
#
# `Li` has one number for each row of the tile. `Sij - Li` would subtract it along the columns: write `Li[:, None]`.
# </details>
#
# <details><summary>Hint 3: the scale</summary>
#
# S has the factor `scale`, so whatever passes from dS to Q or to K gets it too. V has never met it.
# </details>
#
# The answer: [solutions/nb07.py](solutions/nb07.py).
#
# ## Exercise B: the two loops
#
# Write `backward(dO, Q, K, V, O, L, scale, Br, Bc)`, which returns dQ, dK and dV of a whole head. First make D, then
# loop over tiles of keys (`Bc` rows) and tiles of queries (`Br` rows). The last tiles may be shorter. You may call
# your `backward_tile`. About 16 lines.
#
# After the numbers, the check looks at *how*: it runs your function on arrays that lie in memory and count what you
# load and store. Such an array can only be loaded by a slice (`Q[i:j]`) and stored to by a slice (`dQ[i:j] += …`, which
# is a load and a store). Make the gradients with `np.zeros_like(Q)` and so on: that makes them in memory, too. What you
# hold on chip at any time must be tiles, and you may move no more elements than FlashAttention-2 does: dKj and dVj wait
# on chip, as above.

# %% tags=["stub"]
def backward(dO, Q, K, V, O, L, scale, Br, Bc):
    """dO, O (Nq, dv), Q (Nq, d), K (Nk, d), V (Nk, dv), L (Nq,). Returns dQ, dK, dV."""
    raise NotImplementedError("backward is yours to write")


# %%
nb07.backward(backward)

# %% [markdown]
# <details><summary>Hint 1: the frame</summary>
#
# `for j in range(0, len(K), Bc):` and inside it `for i in range(0, len(Q), Br):`. A slice that reaches beyond the end
# is cut off there, so `rows = slice(i, i + Br)` is right for the last tile, too.
# </details>
#
# <details><summary>Hint 2: D</summary>
#
# D is `np.zeros_like(L)`, filled tile by tile in a loop of its own before the others. `dO[rows] * O[rows]` has dv
# columns; sum over them.
# </details>
#
# <details><summary>Hint 3: my numbers are too small</summary>
#
# Every tile *adds*: `dQ[rows] += …`. The same rows of dQ are visited once for each tile of keys. dKj and dVj begin as
# `np.zeros_like(Kj)` and `np.zeros_like(Vj)`, get something from every tile of queries, and are stored at the end.
# </details>
#
# The answer: [solutions/nb07.py](solutions/nb07.py).
#
# ## When L has a gradient, too
#
# Parts of an attention are joined by means of their L ([02](02_softmax_in_pieces.ipynb)). Then the loss depends on L as
# well as on O, and a gradient `dL` arrives at it. The derivative of `L` with respect to `S_j` is `P_j`, so dS gets one
# more term:
#
# ```
# dS = P ∘ (dP - D) + P ∘ dL  =  P ∘ (dP - (D - dL))
# ```
#
# Subtract dL from D, once, and no other line changes. Look at step (2) and the line after it:

# %%
steps(fa2.backward_head, 2, 3)

# %%
from fa_ref import backward as package_backward  # noqa: E402

dL = rng.standard_normal(L.shape)
dS = P * (dP - (D - dL)[:, None])
by_nudging = nudged(lambda X: (attention(X, K, V)[0] * dO).sum() + (attention(X, K, V)[1] * dL).sum(), Q)
by_package = package_backward(*(x[None, None] for x in (dO, Q, K, V, O, L)), scale=scale, dlse=dL[None, None]).dq[0, 0]
print("with dL, formula and nudging agree:", np.allclose(scale * dS @ K, by_nudging, atol=1e-8))
assert np.allclose(scale * dS @ K, by_nudging, atol=1e-8) and np.allclose(by_package, scale * dS @ K)

# %% [markdown]
# ## What to take along
#
# - `P = exp(S - L)`: one number per row replaces Nk of them.
# - `D = rowsum(dO ∘ O)` is the sum over the row of P that the softmax asks for, without the row.
# - Five products in place of four, and N² numbers that never lie in memory.
#
# Next: [08 Heads, groups, packed batches](08_heads_groups_packed.ipynb).
