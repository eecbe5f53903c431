"""Before and after the backward pass on tensor cores: what it needs of every row, and dQ as a matrix again.

`make_preprocess` is steps (1) and (2) of `fa2_mma_backward.py`. `make_convert` scales and rounds the dQ that its blocks
have added up, once, and brings it from the order of registers into rows.

    grid        (Tr, Hq, B), both
    on chip     before, tiles of O and dO: a lane adds up 8 channels, the lanes of a row meet by shuffles; after, a tile
                of dQ
    barriers    1 per block: the tiles are there
"""

from functools import cache

import numba
import numpy as np
from numba import cuda
from numba.cuda import types

from cuda_kernels import arrays, ptx, swizzled
from cuda_kernels.launch import ALL, WARP, numbers
from cuda_kernels.products import OWN_ROWS, ROWS, part_of
from cuda_kernels.swizzled import CHUNK, padded
from cuda_kernels.tensor_cores import LOG2_E

PLUS_INF = np.float32(np.inf)


@cache
def make_preprocess(Br, warps, d, size, dtype, aligned):
    """The kernel that comes before, on the grid (Tr, Hq, B).

    dO, O (B, Hq, Nq, d) in the storage dtype, L, dL (B, Hq, Nq) float32; it writes L2 = L·log₂e and D, both (B, Hq,
    Tr·Br) float32, and dQ (B, Hq, Tr, size) float32; if `fa2_mma_dq.py` computes it, size is 0 and the
    axis has 1. aligned: may dO and O be read 16 bytes at a time?
    """
    _, zero, _, minus_inf, widen, narrow, _ = numbers(dtype)
    storage, width, T = numba.from_dtype(arrays.word_dtype(dtype)), padded(d), warps * WARP
    cell, _, load, _ = swizzled.functions(d, warps, narrow, aligned)
    chunks = width // CHUNK                                         # of a row: a lane for each …
    halvings = (chunks - 1).bit_length()
    lanes = 2**halvings                                             # … and some idle ones, if they are not 2, 4, 8 …

    @cuda.jit(launch_bounds=T)
    def preprocess(dO, O, L, dL, L2, D, dQ):
        t = cuda.threadIdx.x & 1023
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq = O.shape[2]
        tile = cuda.shared.array(0, storage, 128)                   # Oi, dOi: zeros past their ends
        load(tile, 0, Br, O, b, h, i * Br, 0, Nq, t)
        load(tile, Br * width, Br, dO, b, h, i * Br, 0, Nq, t)
        ptx.commit_copies()
        # (1) dQ = 0, in memory
        for e in range(4 * t, size, 4 * T):
            ptx.store_four(dQ, (b, h, i, e), zero, zero, zero, zero)
        ptx.wait_copies(0)
        cuda.syncthreads()                                          # Oi, dOi are there, also what others have copied
        # (2) D = rowsum(dO ∘ O) − dL
        r0, c = t // lanes, t % lanes
        for n in range((Br * lanes + T - 1) // T):
            r = n * (T // lanes) + r0
            total = zero
            if r < Br and c < chunks:
                Os, dOs = ptx.load_chunk(tile, cell(r, c)), ptx.load_chunk(tile, Br * width + cell(r, c))
                for x in range(CHUNK):
                    o, do = widen(Os[x]), widen(dOs[x])
                    total += do * o if o != zero else zero          # a row that sees no key has o = 0 and any dO
            for m in range(halvings):
                total += cuda.shfl_xor_sync(ALL, total, 1 << m)
            if r < Br and c == 0:
                row = i * Br + r
                Li = L[b, h, row] if row < Nq else minus_inf
                D[b, h, row] = total - dL[b, h, row] if Li != minus_inf else zero
                L2[b, h, row] = Li * LOG2_E if Li != minus_inf else PLUS_INF

    return preprocess


@cache
def make_convert(Br, width, warps, d, dtype):
    """The kernel that comes after, on the grid (Tr, Hq, B): dQ, scaled, in rows again, in the storage dtype.

    width: of a row on chip. Arguments: dQ (B, Hq, Tr, Br·width) float32 as `fa2_mma_backward.py` has added it up, out
    (B, Hq, Nq, d), scale.
    """
    storage, pair, narrow = numba.from_dtype(arrays.word_dtype(dtype)), ptx.pair(dtype), numbers(dtype).narrow
    cell, _, _, store = swizzled.functions(d, warps, narrow, True, width)
    part, T = part_of(Br, width, warps), warps * WARP
    strips, tall, columns, size = part.strips, part.tall, part.columns, part.size

    @cuda.jit(launch_bounds=T)
    def convert(dQ, out, scale):
        t = cuda.threadIdx.x & 1023
        w, lane = t // WARP, t % WARP
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        tile = cuda.shared.array(0, storage, 128)
        mine = cuda.local.array(size, types.float32)
        # (11) the scale, once
        for e in range(size):
            place = (e // 4 * T + t) * 4 + e % 4                    # as lanes hold it, four at a time
            mine[e] = dQ[b, h, i, place] * scale
        for n in range(OWN_ROWS):
            for y in range(strips):
                e, r = (n // 2 * strips + y) * 4 + n % 2 * 2, w % tall * ROWS + n * 8 + lane // 4
                at = cell(r, w // tall * columns // 8 + y) + lane % 4 * 2
                ptx.store_pair(tile, at, pair(mine[e], mine[e + 1]))
        cuda.syncthreads()                                          # the tile is there
        store(tile, 0, Br, out, b, h, i * Br, out.shape[2], t, T)

    return convert
