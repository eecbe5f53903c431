"""Before and after the backward pass on tensor cores: what it needs of every row, and dQ as a matrix again.

`make_preprocess` is steps (1) and (2) of `fa2_mma_backward.py`. `make_convert` rounds the dQ that its blocks have added
up, once, and brings it from the order of registers into rows.

    grid        (Tr, Hq, B), both
    on chip     nothing; before, a warp adds up a row by shuffles
    barriers    0 per kernel
"""

from functools import cache

import numpy as np
from numba import cuda

from cuda_kernels.launch import ALL, WARP, numbers
from cuda_kernels.products import ROWS, part_of

LOG2_E = np.float32(1 / np.log(2))
PLUS_INF = np.float32(np.inf)


@cache
def make_preprocess(Br, d, size, dtype):
    """The kernel that comes before, on the grid (Tr, Hq, B): a warp does a row at a time; no barrier.

    dO, O (B, Hq, Nq, d) in the storage dtype, L, dL (B, Hq, Nq) float32; it writes L2 = L·log₂e and D, both
    (B, Hq, Tr·Br) float32, and dQ (B, Hq, Tr, size) float32.
    """
    _, zero, _, minus_inf, widen, _, _ = numbers(dtype)

    @cuda.jit
    def preprocess(dO, O, L, dL, L2, D, dQ):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        w, lane = t // WARP, t % WARP
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        # (1) dQ = 0, in memory
        for e in range(t, size, T):
            dQ[b, h, i, e] = zero
        # (2) D = rowsum(dO ∘ O) − dL
        for row in range(i * Br + w, i * Br + Br, T // WARP):
            if row < O.shape[2]:
                total = zero
                for n in range((d + WARP - 1) // WARP):
                    x = n * WARP + lane
                    if d % WARP == 0 or x < d:
                        o = widen(O[b, h, row, x])
                        if o != zero:                               # a row that sees no key may have any dO
                            total += widen(dO[b, h, row, x]) * o
                for step in (16, 8, 4, 2, 1):
                    total += cuda.shfl_xor_sync(ALL, total, step)
                if lane == 0:
                    D[b, h, row] = total - dL[b, h, row]
                    L2[b, h, row] = L[b, h, row] * LOG2_E if L[b, h, row] != minus_inf else PLUS_INF
            elif lane == 0:
                D[b, h, row] = zero
                L2[b, h, row] = PLUS_INF

    return preprocess


@cache
def make_convert(Br, width, warps, d, dtype):
    """The kernel that comes after, on the grid (Tr, Hq, B): dQ, scaled, in rows again, in the storage dtype."""
    narrow = numbers(dtype).narrow
    part, T = part_of(Br, width, warps), warps * WARP
    strips, tall, columns = part.strips, part.tall, part.columns

    @cuda.jit
    def convert(dQ, out, scale):
        t = cuda.threadIdx.x
        w, lane = t // WARP, t % WARP
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        for n in range(ROWS // 8):
            row = i * Br + w % tall * ROWS + n * 8 + lane // 4
            if row < out.shape[2]:
                for y in range(strips):
                    e = (n // 2 * strips + y) * 4 + n % 2 * 2
                    for z in range(2):
                        x = w // tall * columns + y * 8 + lane % 4 * 2 + z
                        if x < d:
                            place = (e + z) * T + t                 # as threads have added: see fa2_mma_backward
                            out[b, h, row, x] = narrow(dQ[b, h, i, place] * scale)

    return convert
