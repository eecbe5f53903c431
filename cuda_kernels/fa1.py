"""FlashAttention-1 on the GPU: one block per head, keys outside, and O, l, m travel to memory in every step.

The steps are those of `fa_ref/fa1.py`, number for number; thread t of T takes elements t, t + T, … of every tile. The
loops stand as in the paper: a tile of keys stays on chip while all queries of the head come past.

    grid        (Hq, B): both loops run inside the block, so a head is all that runs side by side (the paper's way, and
                what FlashAttention-2 changed)
    on chip     Kj, Vj stay; Qi, Oi, li, mi, Sij, past, beta, l_new change: see shared_bytes
    barriers    1 per tile of keys and 3 per tile of queries in it
    in memory   O, l and m are read and written in every step, in the accumulator dtype

A block's threads see in memory what other threads of the block wrote before a barrier. Only step (1) needs that: later
every element of O, l and m is always read and written by the same thread.

Qi, Kj and Sij have one column more than they need. Threads side by side read down a column of them; without the extra
one, a whole column would lie in one bank (docs/gpu.md). `while` stands where `for` would read better: see the package.
The backward pass is in `fa1_backward.py`.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.fa1_backward import make_backward
from cuda_kernels.launch import numbers


@cache
def make_forward(Br, Bc, d, dv, dtype, flags):
    """The kernel for these tiles, head dims, storage dtype and options.

    Arguments of the kernel: Q (B, Hq, Nq, d), K (B, Hkv, Nk, d), V (B, Hkv, Nk, dv) in the storage dtype, O
    (B, Hq, Nq, dv), l and m (B, Hq, Nq) in the accumulator dtype; mask (B, Hq, Nq, Nk) bool; then numbers.
    """
    wide, zero, one, minus_inf, widen, _, rounded = numbers(dtype)
    visible, score, _, empty = scores.functions(flags, one)
    d_padded, Bc_padded = d + 1, Bc + 1

    @cuda.jit
    def forward(Q, K, V, O, l, m, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        h, b = cuda.blockIdx.x, cuda.blockIdx.y
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        Tr, Tc = (Nq + Br - 1) // Br, (Nk + Bc - 1) // Bc

        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv), wide)
        Qi = cuda.shared.array((Br, d_padded), wide)
        Oi = cuda.shared.array((Br, dv), wide)
        li = cuda.shared.array(Br, wide)
        mi = cuda.shared.array(Br, wide)
        Sij = cuda.shared.array((Br, Bc_padded), wide)              # scores, then P
        past = cuda.shared.array(Br, wide)                          # alpha · li: what was before is worth
        beta = cuda.shared.array(Br, wide)                          # what this tile is worth
        l_new = cuda.shared.array(Br, wide)

        # (1) nothing seen yet, in memory
        for row in range(t, Nq, T):
            l[b, h, row] = zero
            m[b, h, row] = minus_inf
        for e in range(t, Nq * dv, T):
            O[b, h, e // dv, e % dv] = zero

        for step in range(Tc):
            j = Tc - 1 - step if reverse else step
            col0 = j * Bc                                           # first key of the tile
            bc = min(Bc, Nk - col0)                                 # how many there are

            cuda.syncthreads()                                      # everybody is done with Vj; O, l, m are there
            # (2) load Kj, Vj
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                Kj[c, x] = widen(K[b, g, col0 + c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                Vj[c, x] = widen(V[b, g, col0 + c, x])

            for i in range(Tr):
                row0 = i * Br                                       # first query of the tile
                br = min(Br, Nq - row0)
                if empty(row0, br, col0, bc, offset, left, right):
                    continue

                # (3) load Qi, Oi, li, mi
                for e in range(t, br * d, T):
                    r, x = e // d, e % d
                    Qi[r, x] = widen(Q[b, h, row0 + r, x])
                for e in range(t, br * dv, T):
                    r, x = e // dv, e % dv
                    Oi[r, x] = O[b, h, row0 + r, x]
                for r in range(t, br, T):
                    li[r] = l[b, h, row0 + r]
                    mi[r] = m[b, h, row0 + r]

                cuda.syncthreads()                                  # Kj, Vj, Qi are there
                # (4) scores
                for e in range(t, br * Bc, T):                      # Bc, not bc: a constant is cheap to divide by
                    r, c = e // Bc, e % Bc
                    if c < bc:
                        s = minus_inf                               # what a hidden key scores
                        if visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                            product = zero
                            x = 0
                            while x < d:
                                product += Qi[r, x] * Kj[c, x]
                                x += 1
                            s = score(product, scale, softcap)
                        Sij[r, c] = s

                cuda.syncthreads()                                  # Sij is there
                for r in range(t, br, T):
                    # (5) maximum of this tile
                    m_tile = minus_inf
                    for c in range(bc):
                        m_tile = max(m_tile, Sij[r, c])
                    shift = m_tile if m_tile != minus_inf else zero
                    # (6) P in the tile's own scale
                    l_tile = zero
                    for c in range(bc):
                        p = math.exp(Sij[r, c] - shift)
                        l_tile += p
                        Sij[r, c] = rounded(p)
                    # (7) maximum so far
                    m_new = max(mi[r], m_tile)
                    shift = m_new if m_new != minus_inf else zero
                    past[r] = math.exp(mi[r] - shift) * li[r]
                    beta[r] = math.exp(m_tile - shift)
                    # (8) sum so far
                    l_new[r] = past[r] + beta[r] * l_tile
                    mi[r] = m_new

                cuda.syncthreads()                                  # P, past, beta, l_new are there
                # (9) O, not divided yet
                for e in range(t, br * dv, T):
                    r, x = e // dv, e % dv
                    o = zero
                    c = 0
                    while c < bc:
                        p = Sij[r, c]
                        if p != zero:                               # a hidden V may be NaN, and 0·NaN is NaN
                            o += p * Vj[c, x]
                        c += 1
                    acc = past[r] * Oi[r, x] + beta[r] * o
                    O[b, h, row0 + r, x] = acc / (l_new[r] if l_new[r] != zero else one)    # normalised again
                # (10) store li, mi
                for r in range(t, br, T):
                    l[b, h, row0 + r] = l_new[r]
                    m[b, h, row0 + r] = mi[r]

    return forward


def shared_bytes(Br, Bc, d, dv, itemsize, backward=False):
    """Bytes of shared memory of a block; itemsize is that of the accumulator dtype."""
    tiles = Br * (d + 1) + Bc * (d + 1)                             # Qi, Kj
    if backward:
        tiles += Bc * (dv + 1) + Br * (dv + 1)                      # Vj, dOi
        return itemsize * (tiles + Br * dv + Bc * d + Bc * dv + 3 * Br * (Bc + 1) + 3 * Br)
    return itemsize * (tiles + Bc * dv + Br * dv + Br * (Bc + 1) + 5 * Br)


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, l, m, all in the accumulator dtype."""
    B, Hq, _, Nq, _, _, dv = call.sizes
    O, l, m = call.empty(B, Hq, Nq, dv), call.empty(B, Hq, Nq), call.empty(B, Hq, Nq)
    call.launch(make_forward(*call.key), (Hq, B), Q, K, V, O, l, m, *call.rule)
    return O, l, m


def backward(call, dO, Q, K, V, O, l, m, dL, deterministic):
    """Launch the backward pass; returns dQ (in the accumulator dtype), dK, dV. It is deterministic in any case."""
    B, Hq, Hkv, Nq, Nk, d, dv = call.sizes
    dQ = call.empty(B, Hq, Nq, d)
    dK, dV = call.empty(B, Hkv, Nk, d, dtype=call.dtype), call.empty(B, Hkv, Nk, dv, dtype=call.dtype)
    call.launch(make_backward(*call.key), (Hkv, B), dO, Q, K, V, O, l, m, dL, dQ, dK, dV, *call.rule)
    return dQ, dK, dV
