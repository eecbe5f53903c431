"""FlashAttention-2 on tensor cores: float16 and bfloat16, products by whole warps, copies that run ahead.

The steps are those of `fa2.py`, and rows are shared out as in `fa2_warps.py`. What changes: a warp multiplies matrices
(`ptx.mma`), so the elements of scores, P and acc lie where that instruction wants them, in registers, spread over the
lanes (`ptx/matrices.py`). A row belongs to four lanes, a quad: of every 8 of its scores each lane has two side by side.

    grid        (Tr · Hq, B): a tile of all heads, then the next tile; so that with causal the longest tiles of all
                heads of a batch come first, and short ones are left to fill up the end
    block       1 to 8 warps; warp w has the rows w·R … w·R + R − 1 of the tile, R = 16 or 32: one or two slabs of 16
    lanes       of each slab the rows lane // 4 and lane // 4 + 8; of every 8 keys or channels the two from lane % 4 · 2
    on chip     shared by the warps: Qi, and places for one or two Kj and Vj; a lane's own, in registers: S, P, acc, m,
                l, alpha, and as much of Qi as fits: what stays there is not read from shared memory for every tile
    barriers    1 per tile of keys: the tile is there, and everybody is done with the one before; another one if there
                is a single place for Kj and Vj; 1 before the first tile if a part of Qi is taken to registers
    shuffles    2 per row and tile of keys, for the maximum; 2 at the end, for the sum, which can wait: it is linear
    in memory   Qi is read once, K and V by every block that sees them, ahead of time; O and L are written once, O by
                way of Qi's place on chip: lanes hold pairs of it, and memory wants 16 bytes at a time

Copies run ahead of products. With two places for Kj and Vj the next tile of both is on its way all the time. Where
heads are wide, a second block on the multiprocessor is worth more than second places: there Vj comes while S is
computed, and the next Kj while Vj is used.

P never goes to shared memory: what a lane has of 16 neighbouring scores, rounded and paired, is just what it must bring
of the left factor of the next product. exp(s) is 2^(s·log₂e): with log₂e in the scale, an element of P costs one
multiply-add and one ex2, and m is a maximum of bare products. Only tiles on the border of what their queries see are
masked; tiles beyond it are not visited, and keys beyond it not even read: zeros take their place.

Where things lie: S[(s·keys + y)·4 + 2·half + z] is slab s, 8·y keys further on, the upper or lower of its two rows, the
first or second of its two keys; acc likewise. The lane's row n is the half n % 2 of slab n // 2.

Offered: d = dv up to 256, causal, window, any scale, grouped heads, any lengths; on a device, any strides with a
contiguous last axis.
"""

import math
from functools import cache, partial

import numba
import numpy as np
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, fa2_mma_backward, ptx, swizzled, tensor_cores
from cuda_kernels.fa2_mma_backward import backward
from cuda_kernels.launch import ALL, WARP, numbers
from cuda_kernels.swizzled import PRODUCT, padded
from cuda_kernels.tensor_cores import LN_2, LOG2_E, NARROW, SLAB, WARPS

__all__ = ["WARPS", "backward", "forward", "make_forward", "plan", "plan_backward", "shared_bytes"]

FEW_CHANNELS, FEW_KEYS = 64, 512                                    # problems for which three small blocks at once pay
REGISTERS = 176                         # of a lane, for S, acc and what stays of Qi: with more the compiler would spill


def buffers(d):
    """How many tiles of K and V have a place on chip."""
    return 2 if padded(d) <= NARROW else 1


@cache
def make_forward(R, warps, Bc, d, dtype, positive, aligned, blocks=1):
    """The kernel for R rows of each warp, this many warps, tiles of Bc keys, head dim and storage dtype.

    positive: is the scale > 0? Then the maximum of scores is that of products. aligned: may Q, K, V be read 16 bytes at
    a time? blocks: a multiprocessor must have registers for so many. Arguments of the kernel: Q (B, Hq, Nq, d), K, V
    (B, Hkv, Nk, d), O (B, Hq, Nq, d) in the storage dtype, L (B, Hq, Nq) float32; scale · log₂e in float32, of which
    `positive` speaks; left and right (the window, as `fa_ref.scores.Rule` has it); Hq / Hkv.
    """
    wide, zero, one, minus_inf, _, narrow, _ = numbers(dtype)
    storage, multiply, pair = numba.from_dtype(arrays.word_dtype(dtype)), ptx.mma(dtype), ptx.pair(dtype)
    cell, further, load, store = swizzled.functions(d, warps, narrow, aligned)
    Br, width = R * warps, padded(d)
    slabs, rows = R // SLAB, R // 8                                 # of a warp; of a lane
    keys, channels = Bc // 8, width // 8                            # products side by side, in S and in acc
    S_size, P_size, acc_size = slabs * keys * 4, slabs * keys * 2, slabs * channels * 4
    steps = width // PRODUCT                                        # of a sum over channels, 16 at a time
    a_size, room = steps * slabs * 4, REGISTERS - S_size - acc_size
    held = 0 if blocks > 1 else max(0, min(steps, room // (slabs * 4)))     # the steps whose part of Qi stays
    ahead = buffers(d) == 2                                         # does a whole tile come while one is used?
    K_at, V_at = Br * width, (Br + Bc) * width                      # where Kj, Vj begin
    stage = 2 * Bc * width if ahead else 0                          # how far on those of odd j do

    @cuda.jit(launch_bounds=(warps * WARP, blocks))
    def forward(Q, K, V, O, L, scale, left, right, group):
        t = cuda.threadIdx.x & 1023                                 # & tells the compiler: it is not negative
        w, lane = t // WARP, t % WARP
        Hq, Nq, Nk = Q.shape[1], Q.shape[2], K.shape[2]
        i, h, b = cuda.blockIdx.x // Hq, cuda.blockIdx.x % Hq, cuda.blockIdx.y
        if right < Nk:
            i = (Nq + Br - 1) // Br - 1 - i                         # the longest work first: late queries see more
        g = h // group                                              # the KV head of query head h
        offset = Nk - Nq
        row0 = i * Br                                               # first query of the tile
        br = min(Br, Nq - row0)                                     # how many there are
        low = max(0, row0 + offset - left)                          # the keys that some query of the tile sees:
        high = min(Nk, row0 + br + offset + right)                  # low … high − 1; none if high is below 1
        first, last = low // Bc, (high + Bc - 1) // Bc              # their tiles: first … last − 1
        remaining = scale if positive else one                      # factor that scores still lack below

        tile = cuda.shared.array(0, storage, 128)                   # Qi; Kj, Vj of even j; perhaps of odd j
        S = cuda.local.array(S_size, wide)
        P = cuda.local.array(P_size, types.uint32)                  # pairs
        acc = cuda.local.array(acc_size, wide)
        a = cuda.local.array(a_size, types.uint32)                  # left factors of S, for every k: so loops unroll
        m = cuda.local.array(rows, wide)                            # the same in all lanes of a quad
        l = cuda.local.array(rows, wide)                            # of the lane's own keys
        alpha = cuda.local.array(rows, wide)

        if low < high:
            # (1) load Qi, and the first Kj, perhaps Vj
            load(tile, 0, Br, Q, b, h, row0, 0, Nq, t)
            load(tile, K_at + (first & 1) * stage, Bc, K, b, g, first * Bc, low, high, t)
            if ahead:
                load(tile, V_at + (first & 1) * stage, Bc, V, b, g, first * Bc, low, high, t)
        ptx.commit_copies()
        # (2) nothing seen yet
        for n in range(rows):
            m[n] = minus_inf
            l[n] = zero
        for e in range(acc_size):
            acc[e] = zero
        # the rows that this lane names when the warp loads a left factor: see ptx/matrices.py
        Q_row = cell(w * R + lane % 16, lane // 16)
        if held > 0 and low < high:
            ptx.wait_copies(0)
            cuda.syncthreads()                                      # Qi is there
            for k in range(held):
                for s in range(slabs):
                    e = (k * slabs + s) * 4
                    a[e], a[e + 1], a[e + 2], a[e + 3] = ptx.ldmatrix_x4(tile, further(Q_row, 2 * k) + s * SLAB * width)

        for j in range(first, last):
            col0 = j * Bc                                           # first key of the tile
            Kj, Vj = K_at + (j & 1) * stage, V_at + (j & 1) * stage

            ptx.wait_copies(0)
            cuda.syncthreads()                                      # Kj is there, the tile before is done with
            # (3) load Kj, Vj for the next step; or Vj for this one
            if not ahead:
                load(tile, Vj, Bc, V, b, g, col0, low, high, t)
            elif j + 1 < last:
                load(tile, K_at + (j + 1 & 1) * stage, Bc, K, b, g, col0 + Bc, low, high, t)
                load(tile, V_at + (j + 1 & 1) * stage, Bc, V, b, g, col0 + Bc, low, high, t)
            ptx.commit_copies()

            # (4) scores, which lack the scale
            for e in range(S_size):
                S[e] = zero
            K_row = Kj + cell(lane // 16 * 8 + lane % 8, lane // 8 % 2)     # the row it names for two right factors
            for k in range(steps):
                for s in range(slabs if k >= held else 0):          # of the first `held` steps a has it all
                    e = (k * slabs + s) * 4
                    a[e], a[e + 1], a[e + 2], a[e + 3] = ptx.ldmatrix_x4(tile, further(Q_row, 2 * k) + s * SLAB * width)
                for y in range(0, keys, 2):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4(tile, further(K_row, 2 * k) + y * 8 * width)
                    for s in range(slabs):
                        e, f = (k * slabs + s) * 4, (s * keys + y) * 4
                        left_factor = a[e], a[e + 1], a[e + 2], a[e + 3]
                        multiply(S, f, left_factor, (b0, b1))
                        multiply(S, f + 4, left_factor, (b2, b3))
            if not ahead:
                ptx.wait_copies(0)
                cuda.syncthreads()                                  # Vj is there, Kj done with
                if j + 1 < last:
                    load(tile, Kj, Bc, K, b, g, col0 + Bc, low, high, t)
                ptx.commit_copies()
            if not positive:
                for e in range(S_size):
                    S[e] *= scale
            p_first = row0 + offset                                 # where the first and the last query stand
            p_last = p_first + br - 1
            if col0 < p_last - left or col0 + Bc > min(p_first + right + 1, Nk):    # not every query sees all keys
                for n in range(rows):
                    p = p_first + w * R + n * 8 + lane // 4              # where the row stands
                    mine = col0 + lane % 4 * 2                      # the lane's first key; seen are …
                    lowest = np.int32(max(p - left - mine, 0))      # … those this far from it, and not farther
                    highest = np.int32(min(min(p + right, Nk - 1) - mine, Bc))      # than this
                    for y in range(keys):
                        for z in range(2):
                            e = (n // 2 * keys + y) * 4 + n % 2 * 2 + z
                            S[e] = S[e] if lowest <= y * 8 + z <= highest else minus_inf

            for n in range(rows):
                e0 = n // 2 * keys * 4 + n % 2 * 2                  # the first score of this row
                # (5) running maximum: of the lane's keys, then of the quad
                m_new = m[n]
                for y in range(keys):
                    e = e0 + 4 * y
                    m_new = max(m_new, max(S[e], S[e + 1]))
                m_new = max(m_new, cuda.shfl_xor_sync(ALL, m_new, 1))
                m_new = max(m_new, cuda.shfl_xor_sync(ALL, m_new, 2))
                shift = m_new if m_new != minus_inf else zero
                top = remaining * shift
                # (6) un-normalised P, rounded in pairs
                p_sum = zero
                for y in range(keys):
                    e, f = e0 + 4 * y, e0 // 2 + 2 * y              # two of S are one of P
                    x0 = ptx.exp2(cuda.fma(S[e], remaining, -top))
                    x1 = ptx.exp2(cuda.fma(S[e + 1], remaining, -top))
                    p_sum += x0 + x1
                    P[f] = pair(x0, x1)
                # (7) what the past is worth now
                alpha[n] = ptx.exp2((m[n] - shift) * remaining)     # exactly 1 if m stays
                # (8) running sum: of the lane's keys
                l[n] = alpha[n] * l[n] + p_sum
                m[n] = m_new

            # (9) running output
            for n in range(rows):
                for y in range(channels):
                    e = (n // 2 * channels + y) * 4 + n % 2 * 2
                    acc[e] *= alpha[n]
                    acc[e + 1] *= alpha[n]
            V_row = Vj + cell(lane % 16, lane // 16)                # two right factors, transposed as they are loaded
            for k in range(Bc // PRODUCT):                          # 16 keys at a time
                for y in range(0, channels, 2):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, further(V_row, y) + k * 16 * width)
                    for s in range(slabs):
                        e, f = (s * keys + 2 * k) * 2, (s * channels + y) * 4
                        left_factor = P[e], P[e + 1], P[e + 2], P[e + 3]
                        multiply(acc, f, left_factor, (b0, b1))
                        multiply(acc, f + 4, left_factor, (b2, b3))

        cuda.syncwarp(ALL)                                          # the warp is done with its rows of Qi
        for n in range(rows):
            row = row0 + w * R + n * 8 + lane // 4
            l_row = l[n] + cuda.shfl_xor_sync(ALL, l[n], 1)
            l_row += cuda.shfl_xor_sync(ALL, l_row, 2)
            divisor = l_row if l_row != zero else one
            inverse = one / divisor
            # (10) the one division, store Oi
            for y in range(channels):
                e = (n // 2 * channels + y) * 4 + n % 2 * 2
                at = cell(w * R + n * 8 + lane // 4, y) + lane % 4 * 2
                ptx.store_pair(tile, at, pair(acc[e] * inverse, acc[e + 1] * inverse))
            # (11) store Li
            if row < Nq and lane % 4 == 0:
                L[b, h, row] = m[n] * remaining * LN_2 + math.log(divisor)
        cuda.syncwarp(ALL)                                          # the pairs of all lanes are there
        store(tile, w * R * width, R, O, b, h, row0 + w * R, Nq, lane, WARP)

    return forward


def shared_bytes(Br, Bc, d, dv, itemsize, threads=None, backward=False):
    """Bytes of shared memory of a block, all of it asked for at the launch: Qi, and Kj and Vj once or twice."""
    if backward:
        return fa2_mma_backward.shared_bytes(Br, Bc, d, threads // WARP)
    return 2 * padded(d) * (Br + 2 * buffers(d) * Bc)


plan = partial(tensor_cores.plan, "fa2_mma", shared_bytes)
plan_backward = partial(tensor_cores.plan_backward, "fa2_mma", fa2_mma_backward.shared_bytes)


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, L."""
    B, Hq, Hkv, Nq, Nk, d, dv = call.sizes
    O, L = call.empty(B, Hq, Nq, dv, dtype=call.dtype, like=Q), call.empty(B, Hq, Nq)
    _, scale, _, left, right, _ = call.rule
    aligned = swizzled.aligned(call, Q, K, V)
    warps = call.threads // WARP
    blocks = 3 if padded(d) <= FEW_CHANNELS and Nk <= FEW_KEYS and warps <= 4 else 1
    kernel = make_forward(call.Br // warps, warps, call.Bc, d, call.dtype, bool(scale > 0), aligned, blocks)
    call.launch(kernel, (call.Tr * Hq, B), Q, K, V, O, L, scale * LOG2_E, left, right, np.int32(Hq // Hkv),
                shared=shared_bytes(call.Br, call.Bc, d, dv, 2))
    return O, L
