"""The backward pass of FlashAttention-2 on the GPU: one block per tile of keys, any number of threads.

The steps are those of `backward_head` in `fa_ref/fa2.py`. (1) and (2) are a kernel of their own, which every block of
the main one waits for: `make_preprocess`, grid (Tr, Hq, B), no shared memory, no barrier. The main one:

    grid        (Tc, Hkv, B): a block owns a tile of keys and meets the queries of all heads of its group, so nobody
                else adds to its dK and dV
    on chip     Kj, Vj, dKj, dVj stay; Qi, dOi, Li, Di, Pij, dSij change
    barriers    4 per tile of queries (and head)
    in memory   dQ is added to by all blocks, with atomics: in any order, so its last bits may differ from run to run;
                `deterministic` leaves it to `fa2_dq.py`

Shared memory: see `shared_bytes` in `fa2.py`.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import numbers


@cache
def make_preprocess(Br, Bc, d, dv, dtype, flags):
    """The kernel that comes before the backward pass, on the grid (Tr, Hq, B); no shared memory, no barrier.

    dO, O (B, Hq, Nq, dv) in the storage dtype; dL, D (B, Hq, Nq) and dQ (B, Hq, Nq, d) in the accumulator dtype.
    """
    _, zero, _, _, widen, _, _ = numbers(dtype)

    @cuda.jit
    def preprocess(dO, O, dL, D, dQ):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        row0 = i * Br
        br = min(Br, D.shape[2] - row0)

        # (1) dQ = 0, in memory
        for e in range(t, br * d, T):
            dQ[b, h, row0 + e // d, e % d] = zero
        # (2) D = rowsum(dO ∘ O) − dL
        for row in range(row0 + t, row0 + br, T):
            total = -dL[b, h, row]
            x = 0
            while x < dv:
                o = widen(O[b, h, row, x])
                if o != zero:                                       # a row that sees no key may have any dO
                    total += widen(dO[b, h, row, x]) * o
                x += 1
            D[b, h, row] = total

    return preprocess


@cache
def make_backward(Br, Bc, d, dv, dtype, flags, deterministic):
    """The kernel of dK and dV, and of dQ unless it is `deterministic`.

    dO, Q, K, V, dK, dV in the storage dtype, L, D and dQ in the accumulator dtype, all as in `fa_ref`; then mask and
    numbers.
    """
    wide, zero, one, minus_inf, widen, narrow, rounded = numbers(dtype)
    visible, score, chain, empty = scores.functions(flags, one)
    d_padded, dv_padded, Bc_padded = d + 1, dv + 1, Bc + 1

    @cuda.jit
    def backward(dO, Q, K, V, L, D, dQ, dK, dV, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        g, b = cuda.blockIdx.y, cuda.blockIdx.z
        j = cuda.gridDim.x - 1 - cuda.blockIdx.x if reverse else cuda.blockIdx.x
        Nq, Nk = Q.shape[2], K.shape[2]
        group = Q.shape[1] // K.shape[1]
        offset = Nk - Nq
        Tr = (Nq + Br - 1) // Br
        col0 = j * Bc
        bc = min(Bc, Nk - col0)

        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv_padded), wide)
        dKj = cuda.shared.array((Bc, d), wide)
        dVj = cuda.shared.array((Bc, dv), wide)
        Qi = cuda.shared.array((Br, d_padded), wide)
        dOi = cuda.shared.array((Br, dv_padded), wide)
        Li = cuda.shared.array(Br, wide)
        Di = cuda.shared.array(Br, wide)
        Pij = cuda.shared.array((Br, Bc_padded), wide)
        dSij = cuda.shared.array((Br, Bc_padded), wide)             # products q·k, then dS

        # (3) load Kj, Vj
        for e in range(t, bc * d, T):
            c, x = e // d, e % d
            Kj[c, x] = widen(K[b, g, col0 + c, x])
        for e in range(t, bc * dv, T):
            c, x = e // dv, e % dv
            Vj[c, x] = widen(V[b, g, col0 + c, x])
        # (4) nothing yet
        for e in range(t, bc * d, T):
            dKj[e // d, e % d] = zero
        for e in range(t, bc * dv, T):
            dVj[e // dv, e % dv] = zero

        for visit in range(group * Tr):
            h, i = g * group + visit // Tr, visit % Tr              # head after head, tile after tile
            row0 = i * Br
            br = min(Br, Nq - row0)
            if empty(row0, br, col0, bc, offset, left, right):
                continue

            cuda.syncthreads()                                      # everybody is done with Qi of the tile before
            # (5) load Qi, dOi, Li, Di
            for e in range(t, br * d, T):
                r, x = e // d, e % d
                Qi[r, x] = widen(Q[b, h, row0 + r, x])
            for e in range(t, br * dv, T):
                r, x = e // dv, e % dv
                dOi[r, x] = widen(dO[b, h, row0 + r, x])
            for r in range(t, br, T):
                Li[r] = L[b, h, row0 + r]
                Di[r] = D[b, h, row0 + r]

            cuda.syncthreads()                                      # Kj, Vj, Qi, dOi, Li, Di are there
            for e in range(t, br * Bc, T):
                r, c = e // Bc, e % Bc
                if c < bc:
                    p = zero
                    if visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                        # (6) scores once more
                        product = zero
                        x = 0
                        while x < d:
                            product += Qi[r, x] * Kj[c, x]
                            x += 1
                        dSij[r, c] = product
                        # (7) P, normalised by L
                        p = math.exp(score(product, scale, softcap) - (Li[r] if Li[r] != minus_inf else zero))
                    Pij[r, c] = p

            cuda.syncthreads()                                      # P is there
            # (8) dV += Pᵀ dO
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
            for e in range(t, br * Bc, T):
                r, c = e // Bc, e % Bc
                if c < bc:
                    ds = zero
                    if Pij[r, c] != zero:                           # what is hidden is not looked at: 0·NaN is NaN
                        # (9) dP = dO Vᵀ
                        dp = zero
                        x = 0
                        while x < dv:
                            dp += dOi[r, x] * Vj[c, x]
                            x += 1
                        # (10) dS = P ∘ (dP − D)
                        ds = Pij[r, c] * (dp - Di[r])
                        # (11) through softcap and scale
                        ds = rounded(chain(ds, dSij[r, c], scale, softcap))
                    dSij[r, c] = ds

            cuda.syncthreads()                                      # dS is there
            # (12) dQ += dS K, in memory
            if not deterministic:
                for e in range(t, br * d, T):
                    r, x = e // d, e % d
                    total = zero
                    c = 0
                    while c < bc:
                        if dSij[r, c] != zero:
                            total += dSij[r, c] * Kj[c, x]
                        c += 1
                    cuda.atomic.add(dQ, (b, h, row0 + r, x), total)
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

        # (14) store dKj, dVj
        for e in range(t, bc * d, T):
            c, x = e // d, e % d
            dK[b, g, col0 + c, x] = narrow(dKj[c, x])
        for e in range(t, bc * dv, T):
            c, x = e // dv, e % dv
            dV[b, g, col0 + c, x] = narrow(dVj[c, x])

    return backward
