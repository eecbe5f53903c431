"""dQ of FlashAttention-2 without atomics: the same bits in every run, for the price of S and dP once more.

`fa2_backward.py` with the loops swapped: a block owns a tile of queries, so dQ of it is added up on chip, in one order.

    grid        (Tr, Hq, B)
    on chip     Qi, dOi, Li, Di, dQi stay; Kj, Vj, dSij change
    barriers    3 per tile of keys
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import numbers


@cache
def make_dq(Br, Bc, d, dv, dtype, flags):
    """The kernel of dQ. Arguments as in `fa2_backward.make_backward`."""
    wide, zero, one, minus_inf, widen, _, rounded = numbers(dtype)
    visible, score, chain, empty = scores.functions(flags, one)
    d_padded, dv_padded, Bc_padded = d + 1, dv + 1, Bc + 1

    @cuda.jit
    def dq(dO, Q, K, V, L, D, dQ, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])
        offset = Nk - Nq
        Tc = (Nk + Bc - 1) // Bc
        row0 = i * Br
        br = min(Br, Nq - row0)

        Qi = cuda.shared.array((Br, d_padded), wide)
        dOi = cuda.shared.array((Br, dv_padded), wide)
        Li = cuda.shared.array(Br, wide)
        Di = cuda.shared.array(Br, wide)
        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv_padded), wide)
        dSij = cuda.shared.array((Br, Bc_padded), wide)
        dQi = cuda.shared.array((Br, d), wide)

        for e in range(t, br * d, T):
            r, x = e // d, e % d
            Qi[r, x] = widen(Q[b, h, row0 + r, x])
            dQi[r, x] = zero
        for e in range(t, br * dv, T):
            r, x = e // dv, e % dv
            dOi[r, x] = widen(dO[b, h, row0 + r, x])
        for r in range(t, br, T):
            Li[r] = L[b, h, row0 + r]
            Di[r] = D[b, h, row0 + r]

        for step in range(Tc):
            j = Tc - 1 - step if reverse else step
            col0 = j * Bc
            bc = min(Bc, Nk - col0)
            if empty(row0, br, col0, bc, offset, left, right):
                continue

            cuda.syncthreads()                                      # everybody is done with Kj of the tile before
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                Kj[c, x] = widen(K[b, g, col0 + c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                Vj[c, x] = widen(V[b, g, col0 + c, x])

            cuda.syncthreads()                                      # Qi, dOi, Li, Di, Kj, Vj are there
            for e in range(t, br * Bc, T):
                r, c = e // Bc, e % Bc
                if c < bc:
                    ds = zero
                    if visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                        product = zero
                        x = 0
                        while x < d:
                            product += Qi[r, x] * Kj[c, x]
                            x += 1
                        p = math.exp(score(product, scale, softcap) - (Li[r] if Li[r] != minus_inf else zero))
                        if p != zero:
                            dp = zero
                            x = 0
                            while x < dv:
                                dp += dOi[r, x] * Vj[c, x]
                                x += 1
                            ds = rounded(chain(p * (dp - Di[r]), product, scale, softcap))
                    dSij[r, c] = ds

            cuda.syncthreads()                                      # dS is there
            for e in range(t, br * d, T):
                r, x = e // d, e % d
                total = dQi[r, x]
                c = 0
                while c < bc:
                    if dSij[r, c] != zero:
                        total += dSij[r, c] * Kj[c, x]
                    c += 1
                dQi[r, x] = total

        for e in range(t, br * d, T):
            dQ[b, h, row0 + e // d, e % d] = dQi[e // d, e % d]

    return dq
