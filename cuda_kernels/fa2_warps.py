"""FlashAttention-2 on the GPU, by warps: each warp has query rows of its own (split-Q).

The steps are those of `fa2.py`. What changes: the threads of a block no longer share every element. A warp owns R query
rows of the tile and does all steps for them, so nothing that it computes is ever handed to another warp: scores, P, m,
l and acc need neither shared memory nor a barrier, and the 32 lanes of the warp tell each other what they need by
shuffles. The paper's section 3.3; the other way, which FlashAttention-1 took, is `fa1_warps.py`.

    grid        (Tr, Hq, B)
    block       1 to 8 warps; warp w has the rows w·R … w·R + R − 1 of the tile, R = Br / warps rounded up
    lanes       a lane has the keys lane, lane + 32, … of a row of scores, and the channels lane, lane + 32, … of acc
    on chip     shared by the warps: Kj, Vj, and Qi, of which each reads its own rows (see shared_bytes); a lane's own:
                Sr, acc, m, l
    barriers    2 per tile of keys, before it is overwritten and after it is loaded: none for the softmax
    shuffles    per row and tile of keys: 5 for the maximum, 5 for the sum, 1 for each key's P
    in memory   as `fa2.py`

Five exchanges give all 32 lanes their maximum: after one with the lane 16 away, each knows the maximum of two lanes,
after one with the lane 8 away of four, then 8, 16, 32. Sums go the same way.

A lane's own arrays are in registers only where the compiler knows every index. It does not know that of
`Sr[c // WARP]`, and with 8 rows for each warp it leaves the loop over n standing: then acc, m and l are in local memory
too, which is HBM behind the caches.

Every row is added up by one warp, in one order: the number of warps does not change a bit of the result.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import ALL, WARP, numbers

WARPS = range(1, 9)                                                 # of a block


@cache
def make_forward(Br, Bc, d, dv, dtype, flags, warps):
    """The kernel for these tiles, head dims, storage dtype, options and number of warps; arguments as in `fa2.py`."""
    wide, zero, one, minus_inf, widen, narrow, rounded = numbers(dtype)
    visible, score, _, empty = scores.functions(flags, one)
    store = numbers(one.dtype).narrow if flags.wide_out else narrow
    d_padded = d + 1                                                # not for Qi: a warp reads one row of it at a time
    R = (Br + warps - 1) // warps                                   # rows of a warp
    keys, channels = (Bc + WARP - 1) // WARP, (dv + WARP - 1) // WARP           # how many a lane has

    @cuda.jit
    def forward(Q, K, V, O, L, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        w, lane = t // WARP, t % WARP
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        Tc = (Nk + Bc - 1) // Bc
        row0 = i * Br                                               # first query of the tile
        br = min(Br, Nq - row0)                                     # how many there are

        Qi = cuda.shared.array((Br, d), wide)
        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv), wide)
        Sr = cuda.local.array(keys, wide)                           # the lane's scores of one row, then P
        acc = cuda.local.array((R, channels), wide)                 # the lane's channels of the warp's rows
        m = cuda.local.array(R, wide)                               # the same in every lane of the warp
        l = cuda.local.array(R, wide)

        # (1) load Qi
        for e in range(t, br * d, T):
            r, x = e // d, e % d
            Qi[r, x] = widen(Q[b, h, row0 + r, x])
        # (2) nothing seen yet
        for n in range(R):
            m[n] = minus_inf
            l[n] = zero
            for y in range(channels):
                acc[n, y] = zero

        for step in range(Tc):
            j = Tc - 1 - step if reverse else step
            col0 = j * Bc                                           # first key of the tile
            bc = min(Bc, Nk - col0)
            if empty(row0, br, col0, bc, offset, left, right):
                continue

            cuda.syncthreads()                                      # everybody is done with Kj, Vj of the tile before
            # (3) load Kj, Vj
            for e in range(t, bc * d, T):
                c, x = e // d, e % d
                Kj[c, x] = widen(K[b, g, col0 + c, x])
            for e in range(t, bc * dv, T):
                c, x = e // dv, e % dv
                Vj[c, x] = widen(V[b, g, col0 + c, x])

            cuda.syncthreads()                                      # Qi, Kj, Vj are there
            for n in range(R):
                r = w * R + n
                if r < br:                                          # true for all lanes of the warp, or for none
                    # (4) scores: of the lane's keys
                    for y in range(keys):
                        c = y * WARP + lane
                        s = minus_inf                               # what a hidden key scores
                        if c < bc and visible(b, h, row0 + r, col0 + c, offset, left, right, mask):
                            product = zero
                            x = 0
                            while x < d:
                                product += Qi[r, x] * Kj[c, x]
                                x += 1
                            s = score(product, scale, softcap)
                        Sr[y] = s
                    # (5) running maximum: of the lane's keys, then of all lanes
                    m_new = m[n]
                    for y in range(keys):
                        m_new = max(m_new, Sr[y])
                    for distance in (16, 8, 4, 2, 1):
                        m_new = max(m_new, cuda.shfl_xor_sync(ALL, m_new, distance))
                    shift = m_new if m_new != minus_inf else zero
                    # (6) un-normalised P
                    p_sum = zero
                    for y in range(keys):
                        p = math.exp(Sr[y] - shift)
                        p_sum += p
                        Sr[y] = rounded(p)
                    for distance in (16, 8, 4, 2, 1):
                        p_sum += cuda.shfl_xor_sync(ALL, p_sum, distance)
                    # (7) what the past is worth now
                    alpha = math.exp(m[n] - shift)
                    # (8) running sum
                    l[n] = alpha * l[n] + p_sum
                    m[n] = m_new
                    # (9) running output: of the lane's channels; the lane that has a key tells its P
                    for y in range(channels):
                        acc[n, y] *= alpha
                    for c in range(bc):
                        p = cuda.shfl_sync(ALL, Sr[c // WARP], c % WARP)
                        if p != zero:                               # a hidden V may be NaN, and 0·NaN is NaN
                            for y in range(channels):
                                x = y * WARP + lane
                                if x < dv:
                                    acc[n, y] += p * Vj[c, x]

        for n in range(R):
            r = w * R + n
            if r < br:
                divisor = l[n] if l[n] != zero else one
                # (10) the one division, store Oi
                for y in range(channels):
                    x = y * WARP + lane
                    if x < dv:
                        O[b, h, row0 + r, x] = store(acc[n, y] / divisor)
                # (11) store Li
                if lane == 0:
                    L[b, h, row0 + r] = m[n] + math.log(divisor)

    return forward


def shared_bytes(Br, Bc, d, dv, itemsize, threads):
    """Bytes of shared memory of a block; itemsize is that of the accumulator dtype. Any number of threads
    shares the same three tiles."""
    return itemsize * (Br * d + Bc * (d + 1) + Bc * dv)


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, L."""
    B, Hq, _, Nq, _, _, dv = call.sizes
    O = call.empty(B, Hq, Nq, dv, dtype=call.wide if call.flags.wide_out else call.dtype)
    L = call.empty(B, Hq, Nq)
    call.launch(make_forward(*call.key, call.threads // WARP), (call.Tr, Hq, B), Q, K, V, O, L, *call.rule)
    return O, L
