"""FlashAttention-1 on tensor cores: float16 and bfloat16, keys outside, each warp with keys of its own (split-K).

The steps are those of `fa1.py`, shared out as in `fa1_warps.py`, with the instructions, the care and the options of
`fa2_mma.py`: so what sets the two apart is the algorithm. A tile of keys and values stays on chip while all queries of
the head come past. A warp multiplies all rows of Qi with its own keys only; so a row is a matter of all warps, which
meet twice in shared memory, and O, l and m travel to memory in every step.

    grid        (Hq, B): a head is all that runs side by side
    block       1 to 8 warps; warp w has the keys w·C … w·C + C − 1 of the tile, C = Bc / warps
    lanes       in products as in `fa2_mma.py`: a row is a matter of a quad, and of every 8 keys or channels a lane has
                two. The warp puts together the rows w·R … w·R + R − 1, R = Br / warps rounded up: there every lane has
                the channels lane, lane + 32, … of O, and one row's l and m
    on chip     shared by the warps: Kj, Vj, Qi twice, and the parts that meet, m_part, l_part, O_part, in float32 (see
                shared_bytes); a lane's own, in registers: S, P, o, m_tile, Oi
    barriers    3 per pair of tiles: Qi is there, the maxima are there, the sums and outputs are there
    shuffles    per pair of tiles in each warp: 2 for the maximum and 2 for the sum of every 8 rows; 2 for each of its R
    in memory   Q is read in every step, one tile ahead; O, l and m are read and written in float32, by the same warp,
                with barriers in between. With the last tile of keys that its queries see O is rounded, and L stored
"""

import math
from functools import cache

import numba
import numpy as np
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, ptx, swizzled, tensor_cores
from cuda_kernels.launch import ALL, WARP, check_threads, numbers
from cuda_kernels.products import Factor, Part, product
from cuda_kernels.switch import SIMULATED
from cuda_kernels.swizzled import PRODUCT, padded
from cuda_kernels.tensor_cores import LN_2, LOG2_E, SLAB, WARPS

unsigned = np.uint64                                                # of such an index nobody asks whether it is below 0
# Up to which d; then warps, Br, keys of a warp: as many as registers have room for.
TILES = ((256, 1, 16, 16),) if SIMULATED else ((64, 8, 32, 32), (128, 4, 32, 32), (256, 4, 16, 32))
APART = 8                                                           # numbers between the rows of O_part: other banks


@cache
def make_forward(Br, Bc, warps, d, dtype, positive, aligned):
    """The kernel for these tiles, number of warps, head dim and storage dtype.

    positive, aligned, Q, K, V, L, scale and numbers: as in `fa2_mma.py`. out (B, Hq, Nq, d) in the storage dtype; what
    travels, O (B, Hq, Nq, d), l and m (B, Hq, Nq), in float32.
    """
    wide, zero, one, minus_inf, _, narrow, _ = numbers(dtype)
    storage, multiply, pair = numba.from_dtype(arrays.word_dtype(dtype)), ptx.mma(dtype), ptx.pair(dtype)
    cell, further, load, _ = swizzled.functions(d, warps, narrow, aligned)
    T, C, width = warps * WARP, Bc // warps, padded(d)
    slabs, rows = Br // SLAB, Br // 8                               # of a tile; of a lane, in products
    R, parts = (Br + warps - 1) // warps, (d + WARP - 1) // WARP    # rows that a warp puts together, channels of a lane
    keys, channels = C // 8, width // 8                             # products side by side, in S and in o
    S_size, P_size, o_size, O_size = slabs * keys * 4, slabs * keys * 2, slabs * channels * 4, R * parts
    add_scores = product(dtype, Part(1, slabs, C, keys, S_size), width, Factor(width), Factor(width))  # Qi Kjᵀ
    V_at, Q_at, stage = Bc * width, 2 * Bc * width, Br * width      # where Vj, Qi begin; how far on the next Qi
    m_at = (Q_at + 2 * stage) // 2                                  # where m_part begins, counted in float32
    l_further, O_at, O_row = warps * Br, m_at + 2 * warps * Br, width + APART

    @cuda.jit(launch_bounds=T)
    def forward(Q, K, V, out, L, O, l, m, scale, left, right):
        t = cuda.threadIdx.x
        w, lane = t // WARP, t % WARP
        h, b = cuda.blockIdx.x, cuda.blockIdx.y
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        low = max(0, offset - left)                                 # the first key that some query sees
        remaining = scale if positive else one                      # factor that scores still lack below
        own = w * R + lane % R                                      # the row whose l and m the lane has
        # where the parts of the lane's first row in products begin, of its own row, and of its first in Oi
        m_mine, m_own = m_at + w * Br + lane // 4, m_at + own
        O_mine, O_own = O_at + (w * Br + lane // 4) * O_row + lane % 4 * 2, O_at + w * R * O_row + lane

        tile = cuda.shared.array(0, storage, 128)                   # Kj; Vj; Qi of even tiles; of odd tiles
        part = cuda.shared.array(0, wide, 128)                      # the same; behind these m_part, l_part, O_part
        S = cuda.local.array(S_size, wide)
        P = cuda.local.array(P_size, types.uint32)                  # pairs
        o = cuda.local.array(o_size, wide)                          # P V over the warp's keys
        m_tile = cuda.local.array(rows, wide)                       # first of the warp's keys, then of all
        Oi = cuda.local.array(O_size, wide)

        # (1) nothing seen yet, in memory
        for row in range(t, Nq, T):
            l[b, h, row], m[b, h, row], L[b, h, row] = zero, minus_inf, minus_inf
        for row in range(w, Nq, warps):
            for x in range(lane, d, WARP):
                O[b, h, row, x] = zero
                if row + offset + right < 0 or row + offset - left >= Nk:       # no tile of keys meets this row
                    out[b, h, row, x] = narrow(zero)

        for j in range(low // Bc, (Nk + Bc - 1) // Bc):
            col0 = j * Bc                                           # first key of the tile
            first = max(0, col0 - right - offset) // Br             # the tiles whose queries see some key of this one:
            last = (min(Nq, min(col0 + Bc, Nk) + left - offset) + Br - 1) // Br         # first … last − 1
            # (2) load Kj, Vj; the threads have met since Vj was read
            load(tile, 0, Bc, K, b, g, col0, low, Nk, t)
            load(tile, V_at, Bc, V, b, g, col0, low, Nk, t)
            load(tile, Q_at + (first & 1) * stage, Br, Q, b, h, first * Br, 0, Nq, t)
            ptx.commit_copies()

            for i in range(first, last):
                row0 = i * Br                                       # first query of the tile
                br = min(Br, Nq - row0)                             # how many there are

                ptx.wait_copies(0)
                cuda.syncthreads()                                  # Kj, Vj, Qi are there; O, l, m of step (1) as well
                # (3) load Qi, Oi, li, mi: Qi for the next step
                if i + 1 < last:
                    load(tile, Q_at + (i + 1 & 1) * stage, Br, Q, b, h, row0 + Br, 0, Nq, t)
                ptx.commit_copies()
                row = unsigned(min(row0 + own, Nq - 1))
                li, mi = l[b, h, row], m[b, h, row]
                for n in range(R):
                    for y in range(parts):
                        row, x = unsigned(min(row0 + w * R + n, Nq - 1)), unsigned(min(y * WARP + lane, d - 1))
                        Oi[n * parts + y] = O[b, h, row, x]

                # (4) scores: with the warp's keys; they lack the scale
                for e in range(S_size):
                    S[e] = zero
                add_scores(S, tile, Q_at + (i & 1) * stage, 0, 0, w * C, lane)
                if not positive:
                    for e in range(S_size):
                        S[e] *= scale
                p0 = row0 + offset                                  # where the first query stands
                if col0 < p0 + br - 1 - left or col0 + Bc > min(p0 + right + 1, Nk):        # not every query sees all
                    for n in range(rows):
                        p = p0 + n * 8 + lane // 4                  # where the row stands
                        mine = col0 + w * C + lane % 4 * 2          # the lane's first key; seen are …
                        lowest = np.int32(max(p - left - mine, 0))  # … those this far from it, and not farther
                        highest = np.int32(min(min(p + right, Nk - 1) - mine, Bc))          # than this
                        for y in range(keys):
                            for z in range(2):
                                e = (n // 2 * keys + y) * 4 + n % 2 * 2 + z
                                S[e] = S[e] if lowest <= y * 8 + z <= highest else minus_inf

                # (5) maximum of this tile: of the lane's keys, of the quad's, which are the warp's …
                for n in range(rows):
                    most = minus_inf
                    for y in range(keys):
                        e = (n // 2 * keys + y) * 4 + n % 2 * 2
                        most = max(most, max(S[e], S[e + 1]))
                    most = max(most, cuda.shfl_xor_sync(ALL, most, 1))
                    m_tile[n] = max(most, cuda.shfl_xor_sync(ALL, most, 2))
                    if lane % 4 == 0:
                        part[unsigned(m_mine + n * 8)] = m_tile[n]

                cuda.syncthreads()                                  # the maxima of all warps are there
                for n in range(rows):
                    for other in range(warps):                      # … then of all warps
                        m_tile[n] = max(m_tile[n], part[unsigned(m_at + lane // 4 + other * Br + n * 8)])
                    top = remaining * m_tile[n] if m_tile[n] != minus_inf else zero
                    # (6) P in the tile's own scale: its sum and its product with V over the warp's keys
                    p_sum = zero
                    for y in range(keys):
                        e = (n // 2 * keys + y) * 4 + n % 2 * 2
                        x0 = ptx.exp2(cuda.fma(S[e], remaining, -top))
                        x1 = ptx.exp2(cuda.fma(S[e + 1], remaining, -top))
                        p_sum += x0 + x1
                        P[e // 2] = pair(x0, x1)                 # two of S are one of P
                    p_sum += cuda.shfl_xor_sync(ALL, p_sum, 1)
                    p_sum += cuda.shfl_xor_sync(ALL, p_sum, 2)
                    if lane % 4 == 0:
                        part[unsigned(m_mine + l_further + n * 8)] = p_sum
                for e in range(o_size):
                    o[e] = zero
                V_row = V_at + cell(w * C + lane % 16, lane // 16)  # two right factors, transposed as they are loaded
                for k in range(C // PRODUCT):                       # 16 keys at a time
                    for y in range(0, channels, 2):
                        b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, further(V_row, y) + k * 16 * width)
                        for s in range(slabs):
                            e, f = (s * keys + 2 * k) * 2, (s * channels + y) * 4
                            left_factor = P[e], P[e + 1], P[e + 2], P[e + 3]
                            multiply(o, f, left_factor, (b0, b1))
                            multiply(o, f + 4, left_factor, (b2, b3))
                for n in range(rows):
                    for y in range(channels):
                        e = (n // 2 * channels + y) * 4 + n % 2 * 2
                        at = O_mine + n * 8 * O_row + y * 8
                        part[unsigned(at)], part[unsigned(at + 1)] = o[e], o[e + 1]

                cuda.syncthreads()                                  # the sums and outputs of all warps are there
                # (7) maximum so far: of the lane's row
                most, l_tile = minus_inf, zero                      # what (5) and (6) found, of all warps
                for other in range(warps):
                    if Br % warps == 0 or own < Br:
                        most = max(most, part[unsigned(m_own + other * Br)])
                        l_tile += part[unsigned(m_own + l_further + other * Br)]
                m_new = max(mi, most)
                shift = m_new if m_new != minus_inf else zero
                past = ptx.exp2((mi - shift) * remaining) * li
                beta = ptx.exp2((most - shift) * remaining)
                # (8) sum so far
                l_new = past + beta * l_tile
                divisor = l_new if l_new != zero else one
                past, beta = past / divisor, beta / divisor         # normalised again
                final = col0 + Bc >= min(Nk, row0 + br + offset + right)        # these queries see no later key
                # (9) O, not divided yet
                for n in range(R):
                    r = w * R + n
                    past_n, beta_n = cuda.shfl_sync(ALL, past, n), cuda.shfl_sync(ALL, beta, n)
                    if r < br:                                      # true for all lanes of the warp, or for none
                        for y in range(parts):
                            if d % WARP == 0 or y * WARP + lane < d:
                                o_tile = zero
                                for other in range(warps):
                                    o_tile += part[unsigned(O_own + (other * Br + n) * O_row + y * WARP)]
                                o_new = past_n * Oi[n * parts + y] + beta_n * o_tile
                                row, x = unsigned(row0 + r), unsigned(y * WARP + lane)
                                if final:
                                    out[b, h, row, x] = narrow(o_new)
                                else:
                                    O[b, h, row, x] = o_new
                # (10) store li, mi: or what they make together
                if lane < R and own < br:
                    if final:
                        L[b, h, row0 + own] = m_new * remaining * LN_2 + math.log(divisor)
                    else:
                        l[b, h, row0 + own], m[b, h, row0 + own] = l_new, m_new

    return forward


def plan(card, sizes, dtype, options, threads, block_q, block_k):
    """(threads, Br, Bc) for a call on this card; what is None is chosen. Errors as in `tensor_cores.plan`."""
    tensor_cores.refuse("fa1_mma", card, sizes, dtype, options)
    d = sizes.d
    warps, Br, C = next(tiles for most, *tiles in TILES if d <= most)
    threads = check_threads(warps * WARP if threads is None else threads, card, WARPS)
    warps, Br = threads // WARP, block_q or Br
    fits = shared_bytes(Br, warps * C, d, d, 4, threads) <= card.dynamic_bytes         # others have less room on chip
    Bc = block_k or warps * (C if fits else PRODUCT)
    if Br % SLAB or Br > threads or Bc % (warps * PRODUCT):         # a lane keeps l and m of one row
        raise ValueError(f"fa1_mma with {threads} threads takes a block_q that is a multiple of {SLAB} up to {threads} "
                         f"and a block_k that is a multiple of {warps * PRODUCT}, got {Br} and {Bc}")
    return threads, Br, Bc


def shared_bytes(Br, Bc, d, dv, itemsize, threads):
    """Bytes of shared memory of a block, all of it asked for at the launch: Kj, Vj, Qi twice; each warp's m, l, O."""
    return 4 * padded(d) * (Bc + Br) + 4 * threads // WARP * Br * (2 + padded(d) + APART)


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, L."""
    B, Hq, _, Nq, _, d, _ = call.sizes
    out, L = call.empty(B, Hq, Nq, d, dtype=call.dtype, like=Q), call.empty(B, Hq, Nq)
    O, l, m = call.empty(B, Hq, Nq, d), call.empty(B, Hq, Nq), call.empty(B, Hq, Nq)
    _, scale, _, left, right, _ = call.rule
    aligned = swizzled.aligned(call, Q, K, V)
    kernel = make_forward(call.Br, call.Bc, call.threads // WARP, d, call.dtype, bool(scale > 0), aligned)
    call.launch(kernel, (Hq, B), Q, K, V, out, L, O, l, m, scale * LOG2_E, left, right,
                shared=shared_bytes(call.Br, call.Bc, d, d, 4, call.threads))
    return out, L
