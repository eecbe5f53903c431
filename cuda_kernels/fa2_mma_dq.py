"""dQ of FlashAttention-2 on tensor cores without atomics: the same bits in every run, for the price of S and dP.

`fa2_mma_backward.py` with the loops swapped, and rows shared out as in `fa2_mma.py`: a warp has rows of the tile of
queries, so dQ of it is added up in registers, in one order, and dS is a left factor as it lies. The steps are numbered
as there, in the order that the loops now have; (11) comes last.

    grid        (⌈Nq / Br⌉ · Hq, B), with Br = R · warps; with causal the longest tiles of all heads come first
    block       the warps of the other kernels, 8 as a rule; warp w has the rows w·R … w·R + R − 1, R = 32; or 16
                for d > 128, and for few queries
    on chip     Qi, dOi, and Kj, Vj twice; in registers S, dP, dS, dQi
    barriers    1 per tile of keys: the tile is there, and everybody is done with the one before
    in memory   dQ is written once, scaled, in the storage dtype
"""

from functools import cache

import numba
import numpy as np
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, ptx, swizzled
from cuda_kernels.launch import ALL, WARP, numbers
from cuda_kernels.products import Factor, part_of, product
from cuda_kernels.swizzled import PRODUCT, padded

KEYS = 32                                                           # of a tile


def rows_of(d, Nq, warps):
    """R, the rows of a warp: 32 where registers have room for so many, unless 16 are enough for all queries."""
    return 32 if padded(d) <= 128 and Nq > 16 * warps else 16


def shared_bytes(R, d, warps):
    """Bytes of shared memory of a block: Qi, dOi, and Kj, Vj twice."""
    return 2 * padded(d) * (2 * R * warps + 4 * KEYS)


@cache
def make_dq(R, warps, d, dtype, positive, aligned):
    """The kernel of dQ, for R rows of each warp.

    Arguments as in `fa2_mma_backward.make_backward`, but without dK, dV and Hq / Hkv; dQ (B, Hq, Nq, d) in the storage
    dtype.
    """
    wide, zero, one, minus_inf, _, narrow, _ = numbers(dtype)
    storage, pair, multiply = numba.from_dtype(arrays.word_dtype(dtype)), ptx.pair(dtype), ptx.mma(dtype)
    Bc, width = KEYS, padded(d)
    Br, rows = R * warps, R // 8                                    # rows: of a lane
    cell, further, load, store = swizzled.functions(d, warps, narrow, aligned)
    part = part_of(Br, Bc, warps, R)
    add_scores = product(dtype, part, width, Factor(width), Factor(width))
    S_size, strips, slabs, channels = part.size, part.strips, part.slabs, width // 8
    dS_size, acc_size = S_size // 2, slabs * channels * 4
    dO_at, K_at, V_at, stage = Br * width, 2 * Br * width, (2 * Br + Bc) * width, 2 * Bc * width

    @cuda.jit(launch_bounds=warps * WARP)
    def dq(dO, Q, K, V, L2, D, dQ, scale, scale_log2, left, right):
        t = cuda.threadIdx.x
        w, lane = t // WARP, t % WARP
        Hq, Nq, Nk = Q.shape[1], Q.shape[2], K.shape[2]
        i, h, b = cuda.blockIdx.x // Hq, cuda.blockIdx.x % Hq, cuda.blockIdx.y
        if right < Nk:
            i = (Nq + Br - 1) // Br - 1 - i                         # the longest work first: late queries see more
        g = h // (Hq // K.shape[1])
        offset = Nk - Nq
        row0 = i * Br
        br = min(Br, Nq - row0)
        low = max(0, row0 + offset - left)                          # the keys that some query of the tile sees
        high = min(Nk, row0 + br + offset + right)
        first, last = low // Bc, (high + Bc - 1) // Bc
        remaining = scale_log2 if positive else one                 # factor that scores still lack below

        tile = cuda.shared.array(0, storage, 128)                   # Qi; dOi; Kj, Vj of even tiles; of odd tiles
        S = cuda.local.array(S_size, wide)
        dP = cuda.local.array(S_size, wide)
        dS = cuda.local.array(dS_size, types.uint32)                # pairs
        dQi = cuda.local.array(acc_size, wide)
        Li = cuda.local.array(rows, wide)
        Di = cuda.local.array(rows, wide)

        top = max(0, -offset - right)                               # the first query that sees some key
        # (5) load Qi, dOi; Kj, Vj for the first step (3); Li, Di
        if low < high:
            load(tile, 0, Br, Q, b, h, row0, top, Nq, t)
            load(tile, dO_at, Br, dO, b, h, row0, top, Nq, t)
            load(tile, K_at + (first & 1) * stage, Bc, K, b, g, first * Bc, low, high, t)
            load(tile, V_at + (first & 1) * stage, Bc, V, b, g, first * Bc, low, high, t)
        ptx.commit_copies()
        # (1) nothing yet
        for e in range(acc_size):
            dQi[e] = zero
        for n in range(rows):
            row = min(row0 + w * R + n * 8 + lane // 4, Nq - 1)     # L2 and D may end before this tile does
            Li[n] = L2[b, h, row]
            Di[n] = D[b, h, row]

        for j in range(first, last):
            col0 = j * Bc
            Kj, Vj = K_at + (j & 1) * stage, V_at + (j & 1) * stage

            ptx.wait_copies(0)
            cuda.syncthreads()                                      # Kj, Vj are there, the tile before is done with
            # (3) load Kj, Vj for the next step
            if j + 1 < last:
                load(tile, K_at + (j + 1 & 1) * stage, Bc, K, b, g, col0 + Bc, low, high, t)
                load(tile, V_at + (j + 1 & 1) * stage, Bc, V, b, g, col0 + Bc, low, high, t)
            ptx.commit_copies()

            # (6) scores once more
            for e in range(S_size):
                S[e] = zero
                dP[e] = zero
            add_scores(S, tile, 0, w * R, Kj, 0, lane)
            if not positive:
                for e in range(S_size):
                    S[e] *= scale_log2
            p_first = row0 + offset
            p_last = p_first + br - 1
            if col0 < p_last - left or col0 + Bc > min(p_first + right + 1, Nk):
                for n in range(rows):
                    p = p_first + w * R + n * 8 + lane // 4
                    mine = col0 + lane % 4 * 2
                    lowest = np.int32(max(p - left - mine, 0))
                    highest = np.int32(min(min(p + right, Nk - 1) - mine, Bc))
                    for y in range(strips):
                        for z in range(2):
                            e = (n // 2 * strips + y) * 4 + n % 2 * 2 + z
                            S[e] = S[e] if lowest <= y * 8 + z <= highest else minus_inf
            # (9) dP = dO Vᵀ
            add_scores(dP, tile, dO_at, w * R, Vj, 0, lane)
            for n in range(rows):
                for y in range(strips):
                    e = (n // 2 * strips + y) * 4 + n % 2 * 2
                    # (7) P, normalised by L
                    P0 = ptx.exp2(cuda.fma(S[e], remaining, -Li[n]))
                    P1 = ptx.exp2(cuda.fma(S[e + 1], remaining, -Li[n]))
                    # (10) dS = P ∘ (dP − D)
                    dS[e // 2] = pair(P0 * (dP[e] - Di[n]), P1 * (dP[e + 1] - Di[n]))
            # (12) dQ += dS K
            K_row = Kj + cell(lane % 16, lane // 16)                # two right factors, transposed as they are loaded
            for k in range(Bc // PRODUCT):
                for y in range(0, channels, 2):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, further(K_row, y) + k * 16 * width)
                    for s in range(slabs):
                        e, f = (s * strips + 2 * k) * 2, (s * channels + y) * 4
                        left_factor = dS[e], dS[e + 1], dS[e + 2], dS[e + 3]
                        multiply(dQi, f, left_factor, (b0, b1))
                        multiply(dQi, f + 4, left_factor, (b2, b3))

        cuda.syncwarp(ALL)                                          # the warp is done with its rows of Qi
        for n in range(rows):
            for y in range(channels):
                e = (n // 2 * channels + y) * 4 + n % 2 * 2
                at = cell(w * R + n * 8 + lane // 4, y) + lane % 4 * 2
                ptx.store_pair(tile, at, pair(dQi[e] * scale, dQi[e + 1] * scale))      # (11) the scale, once
        cuda.syncwarp(ALL)                                          # the pairs of all lanes are there
        store(tile, w * R * width, R, dQ, b, h, row0 + w * R, Nq, lane, WARP)

    return dq
