"""FlashAttention-3: the loop of FlashAttention-2 as a pipeline, so that softmax and matrix products can overlap.

Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, arXiv 2407.08608. Read `fa2.py` first: the same tiles, with three changes.

    one tile ahead      the scores of this tile are issued before P V of the tile before it, so P and V wait one round
    rescaling apart     acc shrinks by alpha after that product, in a step of its own
    a last product      the tile that still waits when the loop ends is added after it

On a Hopper GPU a matrix product is issued and runs by itself. In FA2 the product (9) needs the P of its own tile, so
tensor cores wait while exp is taken, and exp is slow: at d = 128 an H100 spends half as long on it as on the products
(989 TFLOP/s against 3.9, 512 FLOPs to one exp). Here (5) belongs to the tile before and depends on nothing that (6) to
(9) make: both run at once. The price on the GPU is a second tile of scores in registers, Br·Bc·4 bytes. (NumPy has two
tiles of scores in FA2 already, Sij and Pij; here the ledger finds V_before instead.) NumPy gains nothing; what is to be
seen here is what may overlap, and that it stays right. Who loads and who computes on the GPU (a warpgroup for
each, two that take turns) changes no number and has no line here; `schedule/overlap.py` draws it.

O and L are those of `fa2.py` bit for bit, for every input, tile size and direction: the two halves of FA2's step (9),
alpha · acc and + P V, stand in different rounds, but meet the same operands in the same order. The backward pass is
FA2's. (Left out: Algorithm 4, a third stage that lets the softmax lag behind the scores too. It would make the same
numbers once more, takes more registers, and was slower.)

    forward: Algorithm 2
    line 2        (2)                         line 6, 13    (6), (7), (8), (9)
    line 3        (1), (3)                    line 14       (10)
    line 4, 9     (4)                         line 18, 19   (11)
    line 8, 10    (3)                         line 20       (12), (13)
    line 11       (5)

The paper takes the first tile out of the loop (lines 3 to 6). Here the pipeline starts with a tile of no keys instead:
its product is 0, and no tile, one tile or skipped tiles need no case of their own.

Put right: line 7 ends the loop one tile early (j < Tc − 1 for j < Tc), line 16 keeps S where P is wanted, and line 20
rescales O by m where it must be divided by l. Line 21 of Algorithm 1 inverts the factor, as FA2's paper does. The scale
τ is missing (here in `rule.scores`). Rows that see no key, which the paper leaves open, get O = 0 and L = −inf.
"""

import numpy as np

from fa_ref import fa2
from fa_ref.inputs import accumulator, rounded
from fa_ref.online_softmax import finite_or_zero, nonzero_or_one, rowmax, rowsum
from fa_ref.scores import EMPTY


def forward_head(Q, K, V, rule, Br, Bc, reverse=False):
    """One head. Q (Nq, d), K (Nk, d), V (Nk, dv) → O (Nq, dv), L (Nq,), both in the accumulator dtype.

    Br, Bc: tile heights of queries and of keys, at least 1; the last tile may be shorter. reverse: walk the keys
    from last to first, as the official kernels do.
    """
    Nq, Nk, dv = len(Q), len(K), V.shape[1]
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)  # ⌈Nq / Br⌉, ⌈Nk / Bc⌉
    wide = accumulator(Q.dtype)
    O = np.empty_like(Q, shape=(Nq, dv), dtype=wide)
    L = np.empty_like(Q, shape=(Nq,), dtype=wide)

    for i in range(Tr):
        rows = slice(i * Br, min(i * Br + Br, Nq))
        Qi = Q[rows].astype(wide)                                       # (1) load Qi                     (br, d)
        m = np.full(len(Qi), -np.inf, wide)                             # (2) nothing seen yet            (br,)
        l = np.zeros(len(Qi), wide)                                     #                                 (br,)
        acc = np.zeros((len(Qi), dv), wide)                             #                                 (br, dv)
        P_before = np.zeros((len(Qi), 0), wide)                         #     and no tile waits           (br, 0)
        V_before = np.zeros((0, dv), wide)                              #                                 (0, dv)

        for j in range(Tc)[::-1] if reverse else range(Tc):
            cols = slice(j * Bc, min(j * Bc + Bc, Nk))
            kind = rule.kind(rows, cols)
            if kind == EMPTY:
                continue
            Kj = K[cols].astype(wide)                                   # (3) load Kj, Vj                 (bc, d)
            Vj = V[cols].astype(wide)                                   #                                 (bc, dv)
            Sij = rule.scores(Qi, Kj, rows, cols, kind)                 # (4) scores of this tile         (br, bc)
            acc = acc + rounded(P_before, V.dtype) @ V_before           # (5) output of the one before    (br, dv)
            m_new = np.maximum(m, rowmax(Sij))                          # (6) running maximum             (br,)
            Pij = np.exp(Sij - finite_or_zero(m_new)[:, None])          # (7) un-normalised P             (br, bc)
            alpha = np.exp(m - finite_or_zero(m_new))                   # (8) what the past is worth now  (br,)
            l = alpha * l + rowsum(Pij)                                 # (9) running sum                 (br,)
            acc = alpha[:, None] * acc                                  # (10) rescale, when (5) is done  (br, dv)
            m = m_new
            P_before, V_before = Pij, Vj                                #     this tile waits one round

        acc = acc + rounded(P_before, V.dtype) @ V_before               # (11) output of the last tile    (br, dv)
        O[rows] = acc / nonzero_or_one(l)[:, None]                      # (12) the one division, store Oi
        L[rows] = m + np.log(nonzero_or_one(l))                         # (13) store Li
    return O, L


backward_head = fa2.backward_head
