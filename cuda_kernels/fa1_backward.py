"""The backward pass of FlashAttention-1 on the GPU: one block per key/value head, keys outside.

The steps are those of `backward_head` in `fa_ref/fa1.py`. Nobody but this block touches dQ, dK and dV of the head's
group, so there are no atomics and the answer has the same bits in every run.

    grid        (Hkv, B)
    on chip     Kj, Vj, dKj, dVj stay for a tile of keys; Qi, Oi, dOi, li, mi, Di, Pij, dPij, dSij change
    barriers    5 per tile of keys and tile of queries (and head)
    in memory   dQ is read and written in every step, in the accumulator dtype

Shared memory: see `shared_bytes` in `fa1.py`.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import numbers


@cache
def make_backward(Br, Bc, d, dv, dtype, flags):
    """The kernel for these tiles, head dims, storage dtype and options.

    dO, Q, K, V, O, dK, dV in the storage dtype, l, m, dL and dQ in the accumulator dtype, all as in `fa_ref`; then
    mask (B, Hq, Nq, Nk) bool and numbers.
    """
    wide, zero, one, minus_inf, widen, narrow, rounded = numbers(dtype)
    visible, score, chain, empty = scores.functions(flags, one)
    d_padded, dv_padded, Bc_padded = d + 1, dv + 1, Bc + 1

    @cuda.jit
    def backward(dO, Q, K, V, O, l, m, dL, dQ, dK, dV, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        g, b = cuda.blockIdx.x, cuda.blockIdx.y
        Nq, Nk = Q.shape[2], K.shape[2]
        group = Q.shape[1] // K.shape[1]                            # query heads of KV head g: from g·group on
        offset = Nk - Nq
        Tr, Tc = (Nq + Br - 1) // Br, (Nk + Bc - 1) // Bc

        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv_padded), wide)
        dKj = cuda.shared.array((Bc, d), wide)
        dVj = cuda.shared.array((Bc, dv), wide)
        Qi = cuda.shared.array((Br, d_padded), wide)
        Oi = cuda.shared.array((Br, dv), wide)
        dOi = cuda.shared.array((Br, dv_padded), wide)
        li = cuda.shared.array(Br, wide)
        mi = cuda.shared.array(Br, wide)
        Di = cuda.shared.array(Br, wide)
        Pij = cuda.shared.array((Br, Bc_padded), wide)
        dPij = cuda.shared.array((Br, Bc_padded), wide)
        dSij = cuda.shared.array((Br, Bc_padded), wide)             # products q·k, then dS

        # (1) dQ = 0, in memory
        for h in range(g * group, (g + 1) * group):
            for e in range(t, Nq * d, T):
                dQ[b, h, e // d, e % d] = zero

        for step in range(Tc):
            j = Tc - 1 - step if reverse else step
            col0 = j * Bc                                           # first key of the tile
            bc = min(Bc, Nk - col0)                                 # how many there are
            # (2) load Kj, Vj
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                Kj[c, x] = widen(K[b, g, col0 + c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                Vj[c, x] = widen(V[b, g, col0 + c, x])
            # (3) nothing yet
            for e in range(t, bc * d, T):
                dKj[e // d, e % d] = zero
            for e in range(t, bc * dv, T):
                dVj[e // dv, e % dv] = zero

            for visit in range(group * Tr):
                h, i = g * group + visit // Tr, visit % Tr          # head after head, tile after tile
                row0 = i * Br                                       # first query of the tile
                br = min(Br, Nq - row0)
                if empty(row0, br, col0, bc, offset, left, right):
                    continue

                # (4) load Qi, Oi, dOi, li, mi
                for e in range(t, br * d, T):
                    r, x = e // d, e % d
                    Qi[r, x] = widen(Q[b, h, row0 + r, x])
                for e in range(t, br * dv, T):
                    r, x = e // dv, e % dv
                    Oi[r, x] = widen(O[b, h, row0 + r, x])
                    dOi[r, x] = widen(dO[b, h, row0 + r, x])
                for r in range(t, br, T):
                    li[r] = l[b, h, row0 + r]
                    mi[r] = m[b, h, row0 + r]

                cuda.syncthreads()                                  # Kj, Vj and all of (4) are there; dQ is 0
                for e in range(t, br * Bc, T):
                    r, c = e // Bc, e % Bc
                    if c < bc:
                        p = zero
                        if visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                            # (5) scores once more
                            product = zero
                            x = 0
                            while x < d:
                                product += Qi[r, x] * Kj[c, x]
                                x += 1
                            dSij[r, c] = product
                            # (6) P, normalised by m and l
                            p = math.exp(score(product, scale, softcap) - (mi[r] if mi[r] != minus_inf else zero))
                            p = p / (li[r] if li[r] != zero else one)
                        Pij[r, c] = p

                cuda.syncthreads()                                  # P is there
                # (7) dV += Pᵀ dO
                for e in range(t, bc * dv, T):
                    c, x = e // dv, e % dv
                    total = dVj[c, x]
                    r = 0
                    while r < br:
                        p = rounded(Pij[r, c])
                        if p != zero:
                            total += p * dOi[r, x]
                        r += 1
                    dVj[c, x] = total
                # (8) dP = dO Vᵀ
                for e in range(t, br * Bc, T):
                    r, c = e // Bc, e % Bc
                    if c < bc and Pij[r, c] != zero:                # what is hidden is not looked at: 0·NaN is NaN
                        dp = zero
                        x = 0
                        while x < dv:
                            dp += dOi[r, x] * Vj[c, x]
                            x += 1
                        dPij[r, c] = dp
                # (9) D = rowsum(dO ∘ O) − dL
                for r in range(t, br, T):
                    total = -dL[b, h, row0 + r]
                    x = 0
                    while x < dv:
                        if Oi[r, x] != zero:                        # a row that sees no key may have any dO
                            total += dOi[r, x] * Oi[r, x]
                        x += 1
                    Di[r] = total

                cuda.syncthreads()                                  # D is there
                for e in range(t, br * Bc, T):
                    r, c = e // Bc, e % Bc
                    if c < bc:
                        ds = zero
                        if Pij[r, c] != zero:
                            # (10) dS = P ∘ (dP − D)
                            ds = Pij[r, c] * (dPij[r, c] - Di[r])
                            # (11) through softcap and scale
                            ds = rounded(chain(ds, dSij[r, c], scale, softcap))
                        dSij[r, c] = ds

                cuda.syncthreads()                                  # dS is there
                # (12) dQ += dS K, in memory
                for e in range(t, br * d, T):
                    r, x = e // d, e % d
                    total = dQ[b, h, row0 + r, x]
                    c = 0
                    while c < bc:
                        if dSij[r, c] != zero:
                            total += dSij[r, c] * Kj[c, x]
                        c += 1
                    dQ[b, h, row0 + r, x] = total
                # (13) dK += dSᵀ Q
                for e in range(t, bc * d, T):
                    c, x = e // d, e % d
                    total = dKj[c, x]
                    r = 0
                    while r < br:
                        if dSij[r, c] != zero:
                            total += dSij[r, c] * Qi[r, x]
                        r += 1
                    dKj[c, x] = total

                cuda.syncthreads()                                  # everybody is done with Kj and Qi

            # (14) store dKj, dVj
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                dK[b, g, col0 + c, x] = narrow(dKj[c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                dV[b, g, col0 + c, x] = narrow(dVj[c, x])

    return backward
