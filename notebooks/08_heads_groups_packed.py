# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 Heads, groups, packed batches
#
# **Claim.** Batches, heads, grouped heads, packed sequences and sinks add no line to the loop of one head. All of them
# only decide which rows of which arrays it is called with, and what is done with the results.
#
# Time: about 35 minutes with the exercises. Before: [07](07_backward_without_p.ipynb). You need: O and L of one head,
# dQ, dK and dV of one head.

# %%
import inspect

import numpy as np

from course import matrix, show, source
from course.pictures import figure
from exercises import nb08
from exercises.nb08 import head_backward, head_forward
from fa_ref import backward, data, drawing, forward, heads, varlen
from fa_ref.online_softmax import merge

# %% [markdown]
# ## A batch of heads
#
# So far there was one head: Q (Nq, d), K (Nk, d), V (Nk, dv). A layer has several of them, and a batch has several
# sequences. Four axes hold them all:
#
# ```
# q    (B, Hq,  Nq, d)        B    sequences
# k    (B, Hkv, Nk, d)        Hq   heads of queries
# v    (B, Hkv, Nk, dv)       Hkv  heads of keys and values
# out  (B, Hq,  Nq, dv)
# ```
#
# Nothing passes between sequences or between heads. So a batch is two loops around the loop that you know (a GPU runs
# them all at once). This is the heart of `fa_ref.forward`:

# %%
text = inspect.getsource(heads.forward)
print(text[text.index("    group = "):])

# %% [markdown]
# `head_rule` makes the Rule of the head, `zero_unless` clears rows that nobody may read
# ([06](06_masks_and_ragged_edges.ipynb)), `log_sum_exp` makes L from what the loop returns, `in_kind` gives the type of
# the input back. The rest of this notebook explains the lines with `group`, and the two with `sink`.
#
# ## Grouped heads
#
# While a model writes, it keeps the keys and values of all tokens so far: the *cache*. Several query heads can share
# one key/value head. **Predict:** 8192 tokens, d = 128, 2 bytes for a number. How many bytes are the keys and values
# of one layer with 32 key/value heads? With 8?

# %%
for Hkv in (32, 8, 1):
    print(f"Hkv = {Hkv:2}: {2 * Hkv * 8192 * 128 * 2:11,} bytes for one layer")
assert 2 * 32 * 8192 * 128 * 2 == 4 * (2 * 8 * 8192 * 128 * 2) == 134_217_728

# %% [markdown]
# With Hkv = Hq every head has its own; with Hkv = 1 all share; what lies between is called *grouped*. Which query head
# uses which key/value head? There are two tidy ways to deal them out:

# %%
Hq, Hkv = 6, 2
ways = {"neighbours share: h // (Hq // Hkv)": [h // (Hq // Hkv) for h in range(Hq)],
        "in turns: h % Hkv": [h % Hkv for h in range(Hq)]}
drawn, panels = figure(8.5, 2.1, columns=2)
for axes, (name, owners) in zip(panels, ways.items(), strict=True):
    for h, g in enumerate(owners):
        colour = (drawing.BLUE, drawing.ORANGE)[g]
        axes.fill_between([h + 0.05, h + 0.95], 1, 1.8, color=colour)
        axes.text(h + 0.5, 1.4, f"q {h}", ha="center", va="center")
        axes.plot([h + 0.5, 3 * g + 1.5], [1, 0.6], color=drawing.FAINT, linewidth=1)
    for g in range(Hkv):
        axes.fill_between([3 * g + 0.6, 3 * g + 2.4], -0.2, 0.6, color=(drawing.BLUE, drawing.ORANGE)[g])
        axes.text(3 * g + 1.5, 0.2, f"k, v {g}", ha="center", va="center")
    axes.set_title(name, fontsize=10)
    axes.axis("off")
show(drawn, "Two drawings of 6 query heads above 2 key/value heads. Left, neighbours share: heads 0, 1, 2 are joined "
            "to key/value head 0, heads 3, 4, 5 to head 1. Right, in turns: heads 0, 2, 4 are joined to head 0 and "
            "heads 1, 3, 5 to head 1.")
assert list(ways.values()) == [[0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]]

# %% [markdown]
# Both are sound, and both give finite numbers of the right shape. But a model was trained with *one* of them, and the
# usual one, here and elsewhere, is the left: neighbours share. Take the other, and every number is plausible and
# wrong.
#
# There are reasons for the left one. The heads of a group lie side by side in memory. And a layer that is split over
# several GPUs is cut between neighbours. **Predict:** 8 query heads, 2 key/value heads, two GPUs; the first takes
# heads 0 to 3. Which key/value heads does it need, in each of the two ways?

# %%
print("neighbours share:", {h // (8 // 2) for h in range(4)}, "  in turns:", {h % 2 for h in range(4)})
assert {h // 4 for h in range(4)} == {0} and {h % 2 for h in range(4)} == {0, 1}

# %% [markdown]
# In NumPy the two ways are called `repeat` and `tile`, and they are easily mixed up. With values of 10 in the first
# key/value head and 20 in the second, the output of each head tells whom it has read. **Predict** the three lines:

# %%
q = np.zeros((1, 4, 1, 1))
k, v = np.zeros((1, 2, 1, 1)), np.array([10.0, 20.0]).reshape(1, 2, 1, 1)
print("grouped: ", forward(q, k, v).out.ravel())
print("repeated:", forward(q, k.repeat(2, axis=1), v.repeat(2, axis=1)).out.ravel())
print("tiled:   ", forward(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1))).out.ravel())
assert forward(q, k, v).out.ravel().tolist() == [10, 10, 20, 20]

# %% [markdown]
# ## Exercise A: whose keys?
#
# Write `kv_head(h, Hq, Hkv)`: the number of the key/value head that query head `h` uses. Hq is a multiple of Hkv. 1
# line.

# %% tags=["stub"]
def kv_head(h, Hq, Hkv):
    """Returns a whole number from 0 to Hkv - 1."""
    raise NotImplementedError("kv_head is yours to write")


# %%
nb08.kv_head(kv_head)

# %% [markdown]
# <details><summary>Hint</summary>
#
# A group has `Hq // Hkv` heads. The mistake that tests like to miss is `h // Hkv`: for 4 and 2 heads it is right, by
# chance.
# </details>
#
# ## Gradients of a group
#
# A key head that serves three query heads acts three times on the loss. Its gradient is the *sum* of the three. All
# values 1, one key, four query heads, two key/value heads; the gradients that arrive are 1, 2, 3, 4. With one key P =
# 1, so dV = Pᵀ dO is dO. **Predict** dv:

# %%
v1, dout = np.ones((1, 2, 1, 1)), np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)
dv = backward(dout, q, k, v1, *forward(q, k, v1)).dv
print(dv.ravel())
assert dv.ravel().tolist() == [3, 7]

# %% [markdown]
# ## Exercise B: gradients of a batch with groups
#
# Write `grouped_backward(dout, q, k, v)`, which returns dq, dk and dv. For one head there is a function that you may
# call:

# %%
source(head_backward)

# %% [markdown]
# You need a loop over batch entries and heads, your `kv_head`, and to know what is added to what. About 8 lines.

# %% tags=["stub"]
def grouped_backward(dout, q, k, v):
    """dout (B, Hq, Nq, dv), q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv). Returns dq, dk, dv."""
    raise NotImplementedError("grouped_backward is yours to write")


# %%
nb08.grouped_backward(grouped_backward)

# %% [markdown]
# <details><summary>Hint 1: shapes</summary>
#
# dq is shaped like q, dk like k, dv like v. Start with zeros: `np.zeros_like(k)`.
# </details>
#
# <details><summary>Hint 2: add, do not assign</summary>
#
# `dq[b, h]` is met once, `dk[b, g]` once for each head of the group: `dk[b, g] += dK`.
# </details>
#
# The answer: [solutions/nb08.py](solutions/nb08.py).
#
# ## What padding costs
#
# A batch has one Nq and one Nk. Sequences have many lengths. The simple way is to pad them all to the longest. Let us
# count, with the sentences of a real text:

# %%
real = data.load()
ends = [n + 1 for n, token in enumerate(real.tokens) if token in (".", "?", "[SEP]")]
lengths = np.diff([0, *ends])
used, padded = lengths.sum(), len(lengths) * lengths.max()
print(f"{len(lengths)} sentences, the longest has {lengths.max()} tokens")
print(f"tokens: {used} used, {padded} stored")

drawn, axes = figure(7, 2.4)
axes.bar(range(len(lengths)), lengths, color="#2b6cb0", label="tokens")
axes.bar(range(len(lengths)), lengths.max() - lengths, bottom=lengths, color=drawing.ORANGE, label="padding")
axes.set(xlabel="sentence", ylabel="length")
axes.set_ylim(0, 44)
axes.legend(frameon=False, loc="upper left", ncols=2)
show(drawn, "23 bars of height 32, one for each sentence. The lower part of each is its tokens, from 1 to 32; the "
            "upper part is padding, about two thirds of the whole area.")
assert (used, padded) == (251, 736)

# %% [markdown]
# Two thirds of what is stored is padding. **Predict:** is the share larger or smaller if we count scores? A sequence
# of n tokens has n² of them, and padding that is only hidden, not skipped, has them too.

# %%
scores, padded_scores = (lengths**2).sum(), len(lengths) * lengths.max() ** 2
print(f"scores: {scores:,} used, {padded_scores:,} computed: {1 - scores / padded_scores:.0%} are padding")
assert scores / padded_scores < used / padded

# %% [markdown]
# ## Packed
#
# So leave the padding out. Put all sequences into one long array, one after the other, and keep a list of where each
# begins: the *cumulative sequence lengths*, `cu_seqlens`. For lengths 3, 0, 4, 2 it is:
#
# ```
# cu_seqlens = [0, 3, 3, 7, 9]        sequence s owns the rows cu_seqlens[s] … cu_seqlens[s + 1] - 1
# ```
#
# S sequences need S + 1 numbers; the last one is the number of all tokens. There is one list for queries and one for
# keys, since the lengths may differ. Each sequence sees itself, and nothing else:

# %%
cu = np.array([0, *np.cumsum([3, 0, 4, 2])])
print("cu_seqlens =", cu)
own = np.zeros((9, 9))
causal = np.zeros((9, 9))
for s in range(4):
    block = slice(cu[s], cu[s + 1])
    own[block, block] = s + 1
    causal[block, block] = np.tri(cu[s + 1] - cu[s]) * (s + 1)
drawn, panels = figure(7, 3.2, columns=2)
for axes, M, name in zip(panels, (own, causal), ("who sees whom", "the same, causal"), strict=True):
    matrix(axes, M, name, values=False)
    axes.set(xlabel="keys", ylabel="queries")
    for at in cu[1:-1]:
        axes.axhline(at - 0.5, color=drawing.INK, linewidth=1)
        axes.axvline(at - 0.5, color=drawing.INK, linewidth=1)
show(drawn, "Two matrices of 9 by 9. Left: three square blocks on the diagonal, of sizes 3, 4 and 2, one colour for "
            "each sequence; the sequence of length 0 has none. Right: the lower triangle of each block.")
assert cu.tolist() == [0, 3, 3, 7, 9] and (own > 0).sum() == 3**2 + 4**2 + 2**2

# %% [markdown]
# Causal and windows are aligned to each sequence by its own two lengths. The code is a loop over sequences. For each of
# them, `sequences` holds the slice of its queries, the slice of its keys, and its own part of the options:

# %%
text = inspect.getsource(varlen.forward)
print(text[text.index("    out = np.empty"):])

# %% [markdown]
# What if one forgets the borders? Two sequences of 3 and 1 tokens, all scores equal, values 1, 2, 3 and 100.
# **Predict** both lines:

# %%
q, k, v = np.zeros((1, 4, 1)), np.zeros((1, 4, 1)), np.array([1.0, 2.0, 3.0, 100.0]).reshape(1, 4, 1)
packed_out = varlen.forward(q, k, v, [0, 3, 4], [0, 3, 4]).out.ravel()
leaky_out = varlen.forward(q, k, v, [0, 4], [0, 4]).out.ravel()
print("two sequences:", packed_out)
print("one sequence: ", leaky_out)
assert packed_out.tolist() == [2, 2, 2, 100] and leaky_out.tolist() == [26.5] * 4

# %% [markdown]
# No error, no NaN. A model trained so learns from sentences that it should not see.
#
# On the real text, each sentence on its own and all of them packed are the same:

# %%
q, k, v = real.q[0], real.k[0], real.v[0]                                     # (12 heads, 251 tokens, 32)
cu = [0, *ends]
out, lse = varlen.forward(q, k, v, cu, cu)
for s in (0, 7, 22):
    rows = slice(cu[s], cu[s + 1])
    alone = forward(q[None, :, rows], k[None, :, rows], v[None, :, rows])
    same = np.array_equal(alone.out[0], out[:, rows])
    print(f"sentence {s:2}, {cu[s + 1] - cu[s]:2} tokens: the same alone as packed: {same}")
    assert same

# %% [markdown]
# ## Exercise C: packed sequences
#
# Write `packed(q, k, v, cu_seqlens_q, cu_seqlens_k)`, which returns out and lse. There are as many heads of keys as of
# queries. For one head of one sequence there is a function that you may call. Sequences may have no queries, no keys,
# or neither; see what it makes of two queries without keys:

# %%
source(head_forward)
print()
with np.errstate(invalid="ignore"):
    print(head_forward(np.ones((2, 3)), np.ones((0, 3)), np.ones((0, 1))))

# %% [markdown]
# Queries without keys must get `out = 0` and `lse = -inf`, as in [06](06_masks_and_ragged_edges.ipynb). About 8 lines.

# %% tags=["stub"]
def packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """q (H, total_q, d), k (H, total_k, d), v (H, total_k, dv). Returns out (H, total_q, dv), lse (H, total_q)."""
    raise NotImplementedError("packed is yours to write")


# %%
nb08.packed(packed)

# %% [markdown]
# <details><summary>Hint 1: the frame</summary>
#
# There are `len(cu_seqlens_q) - 1` sequences. The queries of sequence `s` begin at `cu_seqlens_q[s]` and end before
# `cu_seqlens_q[s + 1]`. Make a slice of that, and another one for its keys.
# </details>
#
# <details><summary>Hint 2: nothing to see</summary>
#
# Begin with out full of 0 and lse full of `-np.inf`. Then a sequence without keys can just be left out.
# </details>
#
# The answer: [solutions/nb08.py](solutions/nb08.py).
#
# ## A sink is a merge
#
# The softmax must spend all its weight, even where no key deserves any. Some heads dump it on the first token, which
# means nothing. Here is one:

# %%
Q, K = real.q[0, 3].astype(float), real.k[0, 3].astype(float)                 # layer 1 head 11
S = Q @ K.T / np.sqrt(32)
P = np.exp(S - np.log(np.exp(S).sum(axis=1))[:, None])
print(f"mean weight on the first of {len(K)} tokens, {real.tokens[0]}: {P[:, 0].mean():.2f}")
assert P[:, 0].mean() > 0.5

# %% [markdown]
# A *sink* gives such a head a better place: one more score for each head, in the denominator only, as if there were a
# key with this score and the value 0. Does the loop need a line for it? No: such a key is a part of its own. Its
# output is 0, its lse is the sink, and parts can be joined ([02](02_softmax_in_pieces.ipynb)).
#
# Three heads get the sinks 0, 5 and 50. Here is their lse without a sink:

# %%
q, k, v = real.q[:, 2:5], real.k[:, 2:5], real.v[:, 2:5]                      # three heads
sink = np.array([0.0, 5.0, 50.0], np.float32)                                 # one for each head
plain = forward(q, k, v)
print("mean lse, by head:", np.round(plain.lse.mean(axis=(0, 2)), 1))

# %% [markdown]
# **Predict** the three shares of the weight that the keys keep. A share is `exp(lse) / (exp(lse) + exp(sink))`.

# %%
joined = merge(plain.out, plain.lse, 0, np.broadcast_to(sink[:, None], plain.lse.shape))
built_in = forward(q, k, v, sink=sink)
print("merged afterwards, or built in, the same:", np.allclose(joined[0], built_in.out, atol=1e-6))
kept = np.exp(plain.lse - built_in.lse).mean(axis=(0, 2))
print("share of the weight that the keys keep, by head:", np.round(kept, 2))
assert np.allclose(joined[0], built_in.out, atol=1e-6) and np.allclose(joined[1], built_in.lse)
assert np.allclose(kept, (1 / (1 + np.exp(sink[:, None] - plain.lse))).mean(axis=(0, 2)), atol=1e-5)
assert kept[0] > 0.99 and 0.9 < kept[1] < 0.99 and kept[2] < 1e-6

# %% [markdown]
# ## What to take along
#
# - Neighbours share: `h // (Hq // Hkv)`. Sharing forward is a sum backward.
# - Packed is a loop over slices; `cu_seqlens` are offsets, not lengths, and length 0 is a length.
# - If a feature can be written around the loop of one head, it does not belong into it.
#
# Next: [09 From loops to threads](09_from_loops_to_threads.ipynb).
