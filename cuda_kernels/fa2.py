"""FlashAttention-2 on the GPU: one block per tile of queries, any number of threads.

The steps are those of `fa_ref/fa2.py`, number for number. What a NumPy statement does to a whole tile, the T threads of
a block do together: thread t takes elements t, t + T, t + 2T, … With T = 1 this is the sequential program again.

    grid        (Tr, Hq, B): the outer loop of the NumPy version has become the grid; blocks know nothing of each other
    on chip     Qi, Kj, Vj, Sij, acc and m, l, alpha, shared by the threads of the block: see shared_bytes
    barriers    4 per tile of keys, before a tile is overwritten and before what others wrote is read; 1 at the end
    in memory   Qi is read once, K and V by every block that sees them; O and L are written once

Qi, Kj and Sij have one column more than they need. Threads side by side read down a column of them; without the extra
one, a whole column would lie in one bank (docs/gpu.md). `while` stands where `for` would read better: see the package.
The backward pass is in `fa2_backward.py`.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.fa2_backward import make_backward, make_preprocess
from cuda_kernels.fa2_dq import make_dq
from cuda_kernels.launch import numbers


@cache
def make_forward(Br, Bc, d, dv, dtype, flags):
    """The kernel for these tiles, head dims, storage dtype and options.

    Arguments of the kernel: Q (B, Hq, Nq, d), K (B, Hkv, Nk, d), V (B, Hkv, Nk, dv) and O (B, Hq, Nq, dv) in the
    storage dtype, L (B, Hq, Nq) in the accumulator dtype; mask (B, Hq, Nq, Nk) bool; then numbers.
    """
    wide, zero, one, minus_inf, widen, narrow, rounded = numbers(dtype)
    visible, score, _, empty = scores.functions(flags, one)
    store = numbers(one.dtype).narrow if flags.wide_out else narrow
    d_padded, Bc_padded = d + 1, Bc + 1

    @cuda.jit
    def forward(Q, K, V, O, L, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        Tc = (Nk + Bc - 1) // Bc
        row0 = i * Br                                               # first query of the tile
        br = min(Br, Nq - row0)                                     # how many there are

        Qi = cuda.shared.array((Br, d_padded), wide)
        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv), wide)
        Sij = cuda.shared.array((Br, Bc_padded), wide)              # scores, then P
        acc = cuda.shared.array((Br, dv), wide)
        m = cuda.shared.array(Br, wide)
        l = cuda.shared.array(Br, wide)
        alpha = cuda.shared.array(Br, wide)

        # (1) load Qi
        for e in range(t, br * d, T):
            r, x = e // d, e % d
            Qi[r, x] = widen(Q[b, h, row0 + r, x])
        # (2) nothing seen yet
        for r in range(t, br, T):
            m[r] = minus_inf
            l[r] = zero
        for e in range(t, br * dv, T):
            acc[e // dv, e % dv] = zero

        for step in range(Tc):
            j = Tc - 1 - step if reverse else step
            col0 = j * Bc                                           # first key of the tile
            bc = min(Bc, Nk - col0)
            if empty(row0, br, col0, bc, offset, left, right):
                continue

            cuda.syncthreads()                                      # everybody is done with Vj of the tile before
            # (3) load Kj, Vj
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                Kj[c, x] = widen(K[b, g, col0 + c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                Vj[c, x] = widen(V[b, g, col0 + c, x])

            cuda.syncthreads()                                      # Qi, Kj, Vj are there
            # (4) scores
            for e in range(t, br * Bc, T):                          # Bc, not bc: a constant is cheap to divide by
                r, c = e // Bc, e % Bc
                if c < bc:
                    s = minus_inf                                   # what a hidden key scores
                    if visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                        product = zero
                        x = 0
                        while x < d:
                            product += Qi[r, x] * Kj[c, x]
                            x += 1
                        s = score(product, scale, softcap)
                    Sij[r, c] = s

            cuda.syncthreads()                                      # Sij is there
            for r in range(t, br, T):
                # (5) running maximum
                m_new = m[r]
                for c in range(bc):
                    m_new = max(m_new, Sij[r, c])
                shift = m_new if m_new != minus_inf else zero
                # (6) un-normalised P
                p_sum = zero
                for c in range(bc):
                    p = math.exp(Sij[r, c] - shift)
                    p_sum += p
                    Sij[r, c] = rounded(p)
                # (7) what the past is worth now
                alpha[r] = math.exp(m[r] - shift)
                # (8) running sum
                l[r] = alpha[r] * l[r] + p_sum
                m[r] = m_new

            cuda.syncthreads()                                      # P and alpha are there
            # (9) running output
            for e in range(t, br * dv, T):
                r, x = e // dv, e % dv
                o = alpha[r] * acc[r, x]
                c = 0
                while c < bc:
                    p = Sij[r, c]
                    if p != zero:                                   # a hidden V may be NaN, and 0·NaN is NaN
                        o += p * Vj[c, x]
                    c += 1
                acc[r, x] = o

        cuda.syncthreads()                                          # l is there, even if every tile was skipped
        # (10) the one division, store Oi
        for e in range(t, br * dv, T):
            r, x = e // dv, e % dv
            O[b, h, row0 + r, x] = store(acc[r, x] / (l[r] if l[r] != zero else one))
        # (11) store Li
        for r in range(t, br, T):
            L[b, h, row0 + r] = m[r] + math.log(l[r] if l[r] != zero else one)

    return forward


def shared_bytes(Br, Bc, d, dv, itemsize, backward=False):
    """Bytes of shared memory of a block; itemsize is that of the accumulator dtype."""
    tiles = Br * (d + 1) + Bc * (d + 1)                             # Qi, Kj
    if not backward:
        return itemsize * (tiles + Bc * dv + Br * (Bc + 1) + Br * dv + 3 * Br)
    tiles += Br * (dv + 1) + Bc * (dv + 1) + 2 * Br                 # dOi, Vj, Li, Di
    main = Bc * d + Bc * dv + 2 * Br * (Bc + 1)                     # dKj, dVj, Pij, dSij
    only_dQ = Br * d + Br * (Bc + 1)                                # dQi, dSij
    return itemsize * (tiles + max(main, only_dQ))


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, L."""
    B, Hq, _, Nq, _, _, dv = call.sizes
    O = call.empty(B, Hq, Nq, dv, dtype=call.wide if call.flags.wide_out else call.dtype)
    L = call.empty(B, Hq, Nq)
    call.launch(make_forward(*call.key), (call.Tr, Hq, B), Q, K, V, O, L, *call.rule)
    return O, L


def backward(call, dO, Q, K, V, O, L, dL, deterministic):
    """Launch the backward pass; returns dQ (in the accumulator dtype), dK, dV."""
    B, Hq, Hkv, Nq, Nk, d, dv = call.sizes
    D, dQ = call.empty(B, Hq, Nq), call.empty(B, Hq, Nq, d)
    dK, dV = call.empty(B, Hkv, Nk, d, dtype=call.dtype), call.empty(B, Hkv, Nk, dv, dtype=call.dtype)
    call.launch(make_preprocess(*call.key), (call.Tr, Hq, B), dO, O, dL, D, dQ)
    call.launch(make_backward(*call.key, deterministic), (call.Tc, Hkv, B),
                dO, Q, K, V, L, D, dQ, dK, dV, *call.rule)
    if deterministic:
        call.launch(make_dq(*call.key), (call.Tr, Hq, B), dO, Q, K, V, L, D, dQ, *call.rule)
    return dQ, dK, dV
