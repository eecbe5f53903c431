"""Rung 0: FlashAttention-1 on tensor cores, as its paper writes it down, with nothing done for speed.

One block for each head: keys outside, queries inside, so O, l and m travel to memory and back at every step, divided
each time. The warps of a block split the keys of a tile (split-K): each has a part of every row's maximum, sum and
output, and they meet in shared memory. FlashAttention, algorithm 1; FlashAttention-2, section 3.3 and figure 3a.
"""

import math
from functools import cache

import numba
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, ptx
from cuda_kernels.ladder import ALL, CHUNK, LN_2, PRODUCT, SLAB, WARP, numbers

KEYS_OUTSIDE, SPLIT_KEYS = True, True
TILES = 16, 4, 64                                                   # R, warps, Bc
PREDICTED = 0.017                                                   # of the speed of torch's FLASH backend
WHY = """64 blocks, one for each head, leave 68 of 132 multiprocessors idle; in the others the exchange of O through
shared memory takes some 9,000 cycles for two tiles, ldmatrix with 8 rows in the same banks 6,000, memory 3,000, where
the products would take 800."""


@cache
def make_forward(R, warps, Bc, d, dtype):
    """The kernel for R rows that each warp puts together (16 or 32), this many warps, tiles of Bc keys, d and dtype.

    Q, K, V, O (B, H, N, d) in the storage dtype, L (B, H, N) float32; O, l and m travel in O_far, l_far, m_far,
    float32; scale · log₂e in float32; causal is a bool.
    """
    wide, zero, _, minus_inf, _, narrow, _ = numbers(dtype)
    storage, multiply, pair = numba.from_dtype(arrays.word_dtype(dtype)), ptx.mma(dtype), ptx.pair(dtype)
    T, Br, C = warps * WARP, R * warps, Bc // warps                 # C: keys of a warp
    slabs, rows = Br // SLAB, Br // 8                               # of a warp; of a lane
    keys, channels, width = C // 8, d // 8, d // WARP               # of S and o side by side; of acc, for a lane
    S_size, P_size, o_size = slabs * keys * 4, slabs * keys * 2, slabs * 8
    a_size = d // PRODUCT * slabs * 4
    K_at, V_at, O_at = Br * d, (Br + Bc) * d, (Br + 2 * Bc) * d // 2    # where Kj, Vj begin; O_part, in float32
    acc_at = O_at + warps * Br * d

    @cuda.jit(device=True, forceinline=True)
    def cell(r, c):
        """Where in its tile chunk c of row r begins."""
        return r * d + c * CHUNK

    @cuda.jit(device=True, forceinline=True)
    def further(at, c):
        """Where the chunk c further on in its row begins, for an even c, if one of the first two begins at `at`."""
        return at + c * CHUNK

    @cuda.jit(device=True, forceinline=True)
    def load(tile, at, size, X, b, h, row0, t):
        """Load `size` rows of X[b, h], from row0 on, to tile[at …]: one number at a time."""
        for n in range(size * d // T):
            r, x = (n * T + t) // d, (n * T + t) % d
            tile[at + cell(r, x // CHUNK) + x % CHUNK] = X[b, h, row0 + r, x]

    @cuda.jit(launch_bounds=T)
    def forward(Q, K, V, O, L, O_far, l_far, m_far, scale, causal):
        t = cuda.threadIdx.x
        w, lane = t // WARP, t % WARP
        h, b = cuda.blockIdx.x, cuda.blockIdx.y
        N = Q.shape[2]
        own = w * R + lane % R                                      # the row whose m and l the lane keeps
        Tr, Tc = N // Br, N // Bc

        tile = cuda.shared.array(0, storage, 128)                   # Qi, Kj, Vj
        O_part = cuda.shared.array(0, wide, 128)                    # the same; from O_at on, O over each warp's keys
        acc = cuda.shared.array(0, wide, 128)                       # the same; from acc_at on
        m_part = cuda.shared.array((warps, Br), wide)
        l_part = cuda.shared.array((warps, Br), wide)
        S = cuda.local.array(S_size, wide)
        P = cuda.local.array(P_size, types.uint32)                  # pairs
        a = cuda.local.array(a_size, types.uint32)                  # left factors of S
        o = cuda.local.array(o_size, wide)                          # 16 channels of the warp's part of O

        for j in range(Tc):
            col0 = j * Bc
            # (3) load Kj, Vj
            load(tile, K_at, Bc, K, b, h, col0, t)
            load(tile, V_at, Bc, V, b, h, col0, t)
            for i in range(Tr):
                row0 = i * Br
                # (1) load Qi
                load(tile, 0, Br, Q, b, h, row0, t)
                cuda.syncthreads()                                  # Qi, Kj, Vj are there
                # (2) nothing seen yet
                m, l = minus_inf, zero
                if j > 0:                                           # or what memory holds
                    m, l = m_far[b, h, row0 + own], l_far[b, h, row0 + own]
                for n in range(R):
                    for y in range(width):
                        r, x = w * R + n, y * WARP + lane
                        acc[acc_at + r * d + x] = O_far[b, h, row0 + r, x] if j > 0 else zero

                # (4) scores, which lack the scale
                for e in range(S_size):
                    S[e] = zero
                Q_row = cell(lane % 16, lane // 16)
                K_row = K_at + cell(w * C + lane // 16 * 8 + lane % 8, lane // 8 % 2)
                for k in range(d // PRODUCT):
                    for s in range(slabs):
                        e = (k * slabs + s) * 4
                        a[e], a[e + 1], a[e + 2], a[e + 3] = ptx.ldmatrix_x4(tile, further(Q_row, 2 * k) + s * SLAB * d)
                    for y in range(0, keys, 2):
                        b0, b1, b2, b3 = ptx.ldmatrix_x4(tile, further(K_row, 2 * k) + y * 8 * d)
                        for s in range(slabs):
                            e, f = (k * slabs + s) * 4, (s * keys + y) * 4
                            left_factor = a[e], a[e + 1], a[e + 2], a[e + 3]
                            multiply(S, f, left_factor, (b0, b1))
                            multiply(S, f + 4, left_factor, (b2, b3))
                if causal:
                    for n in range(rows):
                        highest = row0 + n * 8 + lane // 4 - col0 - w * C - lane % 4 * 2    # key, from the lane's first
                        for y in range(keys):
                            for z in range(2):
                                e = (n // 2 * keys + y) * 4 + n % 2 * 2 + z
                                S[e] = S[e] if y * 8 + z <= highest else minus_inf

                # (5) maximum
                for n in range(rows):
                    m_warp = minus_inf                              # of the lane's keys, then of the quad
                    for y in range(keys):
                        e = (n // 2 * keys + y) * 4 + n % 2 * 2
                        m_warp = max(m_warp, max(S[e], S[e + 1]))
                    m_warp = max(m_warp, cuda.shfl_xor_sync(ALL, m_warp, 1))
                    m_warp = max(m_warp, cuda.shfl_xor_sync(ALL, m_warp, 2))
                    if lane % 4 == 0:
                        m_part[w, n * 8 + lane // 4] = m_warp
                cuda.syncthreads()                                  # the maxima of all warps are there
                for n in range(rows):
                    r = n * 8 + lane // 4
                    m_tile = minus_inf                              # of all warps
                    for other in range(warps):
                        m_tile = max(m_tile, m_part[other, r])
                    top = scale * m_tile if m_tile != minus_inf else zero
                    # (6) un-normalised P
                    p_sum = zero
                    for y in range(keys):
                        e = (n // 2 * keys + y) * 4 + n % 2 * 2
                        x0 = ptx.exp2(cuda.fma(S[e], scale, -top))
                        x1 = ptx.exp2(cuda.fma(S[e + 1], scale, -top))
                        p_sum += x0 + x1
                        P[e // 2] = pair(x0, x1)
                    p_sum += cuda.shfl_xor_sync(ALL, p_sum, 1)
                    p_sum += cuda.shfl_xor_sync(ALL, p_sum, 2)
                    if lane % 4 == 0:
                        l_part[w, r] = p_sum
                V_row = V_at + cell(w * C + lane % 16, lane // 16)
                for y in range(0, channels, 2):
                    for e in range(o_size):
                        o[e] = zero
                    for k in range(C // PRODUCT):
                        b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, further(V_row, y) + k * 16 * d)
                        for s in range(slabs):
                            e, f = (s * keys + 2 * k) * 2, s * 8
                            left_factor = P[e], P[e + 1], P[e + 2], P[e + 3]
                            multiply(o, f, left_factor, (b0, b1))
                            multiply(o, f + 4, left_factor, (b2, b3))
                    for n in range(rows):
                        for z in range(2):
                            e, r, x = n // 2 * 8 + n % 2 * 2 + z, n * 8 + lane // 4, y * 8 + lane % 4 * 2 + z
                            O_part[O_at + (w * Br + r) * d + x] = o[e]
                            O_part[O_at + (w * Br + r) * d + x + 8] = o[e + 4]
                cuda.syncthreads()                                  # the sums and outputs of all warps are there

                m_tile, l_tile = minus_inf, zero
                for other in range(warps):
                    m_tile = max(m_tile, m_part[other, own])
                    l_tile += l_part[other, own]
                # (7) what the past is worth now, and the tile
                m_new = max(m, m_tile)
                alpha, beta = ptx.exp2((m - m_new) * scale), ptx.exp2((m_tile - m_new) * scale)
                # (8) running sum
                l_new = alpha * l + beta * l_tile
                # (9) running output
                for n in range(R):
                    r, row = w * R + n, row0 + w * R + n
                    past, now = cuda.shfl_sync(ALL, alpha * l, n), cuda.shfl_sync(ALL, beta, n)
                    divisor = cuda.shfl_sync(ALL, l_new, n)
                    for y in range(width):
                        x = y * WARP + lane
                        o_tile = zero
                        for other in range(warps):
                            o_tile += O_part[O_at + (other * Br + r) * d + x]
                        acc_new = past * acc[acc_at + r * d + x] + now * o_tile
                        # (10) the division, store Oi
                        acc_new /= divisor
                        O_far[b, h, row, x] = acc_new
                        if j == Tc - 1:
                            O[b, h, row, x] = narrow(acc_new)
                # (11) store Li: li, mi
                if lane < R:
                    l_far[b, h, row0 + own] = l_new
                    m_far[b, h, row0 + own] = m_new
                    if j == Tc - 1:
                        L[b, h, row0 + own] = m_new * scale * LN_2 + math.log(l_new)

    return forward


def shared_bytes(R, warps, Bc, d):
    """Bytes of shared memory that a block asks for: Qi, Kj, Vj, and in float32 O and each warp's part."""
    return 2 * d * (R * warps + 2 * Bc) + 4 * (warps + 1) * R * warps * d
