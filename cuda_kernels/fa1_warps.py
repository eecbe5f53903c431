"""FlashAttention-1 on the GPU, by warps: each warp has keys of its own (split-K).

The steps are those of `fa1.py`. What changes: the threads of a block no longer share every element. A warp owns C keys
of the tile and does its part of every query row: it finds the maximum of its own keys only, so the warps must meet in
shared memory, once for the maximum of a row and once more for its sum and its output, of which each warp has a part.
That traffic is what FlashAttention-2 got rid of (its section 3.3): see `fa2_warps.py`.

    grid        (Hq, B)
    block       1 to 8 warps; warp w has the keys w·C … w·C + C − 1 of the tile, C = Bc / warps rounded up
    lanes       a lane has the keys lane, lane + 32, … of its warp's C, and the channels lane, lane + 32, … of O.
                Where C < 32, 32 − C lanes have no key and idle in step (4)
    on chip     shared: Qi, Kj, Vj, and the parts that meet, m_part, l_part, O_part (see shared_bytes); a lane's own:
                Si, o and, of the rows that its warp puts together, Oi, li, mi
    barriers    1 per tile of keys and 3 per tile of queries in it: after loading, after the maxima, after the sums
    shuffles    per row and pair of tiles: 5 in each warp for the maximum, 5 for the sum, 1 for each key's P
    in memory   as `fa1.py`

A lane's own arrays: see `fa2_warps.py`; Si is in local memory. The parts are added up warp by warp, so the number of
warps changes the last bits.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import ALL, WARP, numbers

WARPS = range(1, 9)                                                 # of a block


@cache
def make_forward(Br, Bc, d, dv, dtype, flags, warps):
    """The kernel for these tiles, head dims, storage dtype, options and number of warps; arguments as in `fa1.py`."""
    wide, zero, one, minus_inf, widen, _, rounded = numbers(dtype)
    visible, score, _, empty = scores.functions(flags, one)
    d_padded = d + 1
    R = (Br + warps - 1) // warps                                   # rows that a warp puts together
    C = (Bc + warps - 1) // warps                                   # keys of a warp
    keys, channels = (C + WARP - 1) // WARP, (dv + WARP - 1) // WARP            # how many a lane has

    @cuda.jit
    def forward(Q, K, V, O, l, m, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        w, lane = t // WARP, t % WARP
        h, b = cuda.blockIdx.x, cuda.blockIdx.y
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        Tr, Tc = (Nq + Br - 1) // Br, (Nk + Bc - 1) // Bc

        Kj = cuda.shared.array((Bc, d_padded), wide)
        Vj = cuda.shared.array((Bc, dv), wide)
        Qi = cuda.shared.array((Br, d), wide)
        m_part = cuda.shared.array((warps, Br), wide)               # maximum, sum and output over a warp's keys
        l_part = cuda.shared.array((warps, Br), wide)
        O_part = cuda.shared.array((warps, Br, dv), wide)
        Si = cuda.local.array((Br, keys), wide)                     # the lane's scores, then P
        o = cuda.local.array(channels, wide)
        Oi = cuda.local.array((R, channels), wide)                  # rows w, w + warps, …: those the warp puts together
        li = cuda.local.array(R, wide)
        mi = cuda.local.array(R, wide)

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
            c0 = w * C                                              # first key of the warp, in the tile
            bw = min(C, bc - c0)                                    # how many it has; none if not positive

            cuda.syncthreads()                                      # O, l, m are there, of which lane 0 wrote l, m
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
                for n in range(R):
                    r = w * R + n
                    if r < br:
                        li[n] = l[b, h, row0 + r]
                        mi[n] = m[b, h, row0 + r]
                        for y in range(channels):
                            x = y * WARP + lane
                            if x < dv:
                                Oi[n, y] = O[b, h, row0 + r, x]

                cuda.syncthreads()                                  # Kj, Vj, Qi are there
                for r in range(br):
                    # (4) scores: of the lane's keys
                    for y in range(keys):
                        c = y * WARP + lane
                        s = minus_inf                               # what a hidden key scores
                        if c < bw and visible(b, h, row0 + r, col0 + c0 + c, offset, left, right, mask):
                            product = zero
                            x = 0
                            while x < d:
                                product += Qi[r, x] * Kj[c0 + c, x]
                                x += 1
                            s = score(product, scale, softcap)
                        Si[r, y] = s
                    # (5) maximum of this tile: first of the warp's keys
                    m_warp = minus_inf
                    for y in range(keys):
                        m_warp = max(m_warp, Si[r, y])
                    for distance in (16, 8, 4, 2, 1):
                        m_warp = max(m_warp, cuda.shfl_xor_sync(ALL, m_warp, distance))
                    if lane == 0:
                        m_part[w, r] = m_warp

                cuda.syncthreads()                                  # the maxima of all warps are there
                for r in range(br):                                 # … then of all warps
                    m_tile = minus_inf
                    for other in range(warps):
                        m_tile = max(m_tile, m_part[other, r])
                    shift = m_tile if m_tile != minus_inf else zero
                    # (6) P in the tile's own scale: its sum and its product with V over the warp's keys
                    l_warp = zero
                    for y in range(keys):
                        p = math.exp(Si[r, y] - shift)
                        l_warp += p
                        Si[r, y] = rounded(p)
                    for distance in (16, 8, 4, 2, 1):
                        l_warp += cuda.shfl_xor_sync(ALL, l_warp, distance)
                    for y in range(channels):
                        o[y] = zero
                    for c in range(bw):
                        p = cuda.shfl_sync(ALL, Si[r, c // WARP], c % WARP)
                        if p != zero:                               # a hidden V may be NaN, and 0·NaN is NaN
                            for y in range(channels):
                                x = y * WARP + lane
                                if x < dv:
                                    o[y] += p * Vj[c0 + c, x]
                    for y in range(channels):
                        x = y * WARP + lane
                        if x < dv:
                            O_part[w, r, x] = o[y]
                    if lane == 0:
                        l_part[w, r] = l_warp

                cuda.syncthreads()                                  # the sums and outputs of all warps are there
                for n in range(R):
                    r = w * R + n
                    if r < br:                                      # true for all lanes of the warp, or for none
                        m_tile, l_tile = minus_inf, zero            # what (5) and (6) found, of all warps
                        for other in range(warps):
                            m_tile = max(m_tile, m_part[other, r])
                            l_tile += l_part[other, r]
                        # (7) maximum so far
                        m_new = max(mi[n], m_tile)
                        shift = m_new if m_new != minus_inf else zero
                        past = math.exp(mi[n] - shift) * li[n]
                        beta = math.exp(m_tile - shift)
                        # (8) sum so far
                        l_new = past + beta * l_tile
                        divisor = l_new if l_new != zero else one
                        # (9) O, not divided yet
                        for y in range(channels):
                            x = y * WARP + lane
                            if x < dv:
                                o_tile = zero
                                for other in range(warps):
                                    o_tile += O_part[other, r, x]
                                acc = past * Oi[n, y] + beta * o_tile
                                O[b, h, row0 + r, x] = acc / divisor            # normalised again
                        # (10) store li, mi
                        if lane == 0:
                            l[b, h, row0 + r] = l_new
                            m[b, h, row0 + r] = m_new

    return forward


def shared_bytes(Br, Bc, d, dv, itemsize, threads):
    """Bytes of shared memory of a block; itemsize is that of the accumulator dtype. Every warp adds its m, l, O."""
    warps = threads // WARP
    return itemsize * (Br * d + Bc * (d + 1) + Bc * dv + warps * Br * (dv + 2))


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, l, m, all in the accumulator dtype."""
    B, Hq, _, Nq, _, _, dv = call.sizes
    O, l, m = call.empty(B, Hq, Nq, dv), call.empty(B, Hq, Nq), call.empty(B, Hq, Nq)
    call.launch(make_forward(*call.key, call.threads // WARP), (Hq, B), Q, K, V, O, l, m, *call.rule)
    return O, l, m
