"""Rung 3: queries split over the warps, no longer keys.

A warp has rows of the tile to itself (split-Q), so nothing that it computes is any other warp's business: no partial
maxima, sums and outputs meet in shared memory, a row is settled by shuffles in its quad of lanes. And no warp waits for
a tile's maximum, so P is taken in the scale of the running one. FlashAttention-2, sections 3.1.1 and 3.3, figure 3b.
"""

import math
from functools import cache

import numba
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, ptx
from cuda_kernels.ladder import ALL, CHUNK, LN_2, PRODUCT, SLAB, WARP, numbers

KEYS_OUTSIDE, SPLIT_KEYS = False, False
TILES = 16, 4, 64                                                   # R, warps, Bc
PREDICTED = 1.8
WHY = """The exchange of O was 9,000 of some 19,000 cycles, and two of three barriers go. But each warp now loads all of
Kj and Vj as right factors, 3,000 cycles more. 48 KiB on chip instead of 210: 3 blocks at a time, not 1."""


@cache
def make_forward(R, warps, Bc, d, dtype):
    """The kernel for R rows of each warp, this many warps, tiles of Bc keys, head dim and storage dtype.

    Q, K, V, O (B, H, N, d) in the storage dtype, L (B, H, N) float32; scale · log₂e in float32; causal is a bool.
    """
    wide, zero, one, minus_inf, _, _, _ = numbers(dtype)
    storage, multiply, pair = numba.from_dtype(arrays.word_dtype(dtype)), ptx.mma(dtype), ptx.pair(dtype)
    T, Br = warps * WARP, R * warps
    slabs, rows = R // SLAB, R // 8                                 # of a warp; of a lane
    keys, channels = Bc // 8, d // 8                                # products side by side, in S and in acc
    S_size, P_size, acc_size = slabs * keys * 4, slabs * keys * 2, slabs * channels * 4
    a_size = d // PRODUCT * slabs * 4
    K_at, V_at = Br * d, (Br + Bc) * d                              # where Kj, Vj begin

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
    def forward(Q, K, V, O, L, scale, causal):
        t = cuda.threadIdx.x
        w, lane = t // WARP, t % WARP
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        N = Q.shape[2]
        row0 = i * Br
        Tc = N // Bc

        tile = cuda.shared.array(0, storage, 128)                   # Qi, Kj, Vj
        S = cuda.local.array(S_size, wide)
        P = cuda.local.array(P_size, types.uint32)                  # pairs
        a = cuda.local.array(a_size, types.uint32)                  # left factors of S
        acc = cuda.local.array(acc_size, wide)
        m = cuda.local.array(rows, wide)                            # the same in all lanes of a quad
        l = cuda.local.array(rows, wide)                            # of the lane's own keys
        alpha = cuda.local.array(rows, wide)

        # (1) load Qi
        load(tile, 0, Br, Q, b, h, row0, t)
        # (2) nothing seen yet
        for n in range(rows):
            m[n] = minus_inf
            l[n] = zero
        for e in range(acc_size):
            acc[e] = zero

        for j in range(Tc):
            col0 = j * Bc
            # (3) load Kj, Vj
            cuda.syncthreads()                                      # everybody is done with the tile before
            load(tile, K_at, Bc, K, b, h, col0, t)
            load(tile, V_at, Bc, V, b, h, col0, t)
            cuda.syncthreads()                                      # Qi, Kj, Vj are there

            # (4) scores, which lack the scale
            for e in range(S_size):
                S[e] = zero
            Q_row = cell(w * R + lane % 16, lane // 16)
            K_row = K_at + cell(lane // 16 * 8 + lane % 8, lane // 8 % 2)
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
                    highest = row0 + w * R + n * 8 + lane // 4 - col0 - lane % 4 * 2    # key, from the lane's first
                    for y in range(keys):
                        for z in range(2):
                            e = (n // 2 * keys + y) * 4 + n % 2 * 2 + z
                            S[e] = S[e] if y * 8 + z <= highest else minus_inf

            for n in range(rows):
                # (5) maximum
                m_new = m[n]                                        # of the lane's keys, then of the quad
                for y in range(keys):
                    e = (n // 2 * keys + y) * 4 + n % 2 * 2
                    m_new = max(m_new, max(S[e], S[e + 1]))
                m_new = max(m_new, cuda.shfl_xor_sync(ALL, m_new, 1))
                m_new = max(m_new, cuda.shfl_xor_sync(ALL, m_new, 2))
                top = scale * m_new                                 # finite: all rows see the first key
                # (6) un-normalised P
                p_sum = zero
                for y in range(keys):
                    e = (n // 2 * keys + y) * 4 + n % 2 * 2
                    x0 = ptx.exp2(cuda.fma(S[e], scale, -top))
                    x1 = ptx.exp2(cuda.fma(S[e + 1], scale, -top))
                    p_sum += x0 + x1
                    P[e // 2] = pair(x0, x1)
                # (7) what the past is worth now
                alpha[n] = ptx.exp2((m[n] - m_new) * scale)
                # (8) running sum
                l[n] = alpha[n] * l[n] + p_sum
                m[n] = m_new

            # (9) running output
            for n in range(rows):
                for y in range(channels):
                    e = (n // 2 * channels + y) * 4 + n % 2 * 2
                    acc[e] *= alpha[n]
                    acc[e + 1] *= alpha[n]
            V_row = V_at + cell(lane % 16, lane // 16)
            for k in range(Bc // PRODUCT):
                for y in range(0, channels, 2):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, further(V_row, y) + k * 16 * d)
                    for s in range(slabs):
                        e, f = (s * keys + 2 * k) * 2, (s * channels + y) * 4
                        left_factor = P[e], P[e + 1], P[e + 2], P[e + 3]
                        multiply(acc, f, left_factor, (b0, b1))
                        multiply(acc, f + 4, left_factor, (b2, b3))

        for n in range(rows):
            row = row0 + w * R + n * 8 + lane // 4
            l_row = l[n] + cuda.shfl_xor_sync(ALL, l[n], 1)
            l_row += cuda.shfl_xor_sync(ALL, l_row, 2)
            inverse = one / l_row
            # (10) the division, store Oi
            for y in range(channels):
                e = (n // 2 * channels + y) * 4 + n % 2 * 2
                x = y * 8 + lane % 4 * 2
                ptx.store_pair(O, (b, h, row, x), pair(acc[e] * inverse, acc[e + 1] * inverse))
            # (11) store Li
            if lane % 4 == 0:
                L[b, h, row] = m[n] * scale * LN_2 + math.log(l_row)

    return forward


def shared_bytes(R, warps, Bc, d):
    """Bytes of shared memory of a block: Qi, Kj, Vj."""
    return 2 * d * (R * warps + 2 * Bc)
