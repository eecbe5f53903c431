"""Products of tiles that lie in shared memory, by all warps of a block: the backward pass is five of them.

A warp has 32 rows of the result and some of its columns; warps stand above and beside one another:

    result R × C, 8 warps, R = 64          warp 0 | warp 2 | warp 4 | warp 6        32 rows
    (32 · C/4 for each)                    warp 1 | warp 3 | warp 5 | warp 7        32 rows

So a right factor that is loaded serves two products, one for each slab of 16 rows, and a left one as many as there are
strips of 8 columns. Elements of a warp's part lie as `ptx/matrices.py` says, and as in `fa2_mma.py`:
acc[(s·strips + y)·4 + 2·half + z] is slab s of 16 rows, strip y of 8 columns, the upper or lower of the lane's two
rows, the first or second of its two columns. The lane's row n is the half n % 2 of slab n // 2.
"""

from functools import cache
from typing import NamedTuple

from numba import cuda
from numba.cuda import types

from cuda_kernels import ptx, swizzled
from cuda_kernels.swizzled import CHUNK, PRODUCT

ROWS = 32                                                           # of a warp's part of a result, as a rule
OWN_ROWS = ROWS // 8                                                # of a lane


class Part(NamedTuple):
    """How a result is shared among warps.

    tall: warps above one another. slabs of 16 rows that a warp has; columns that it has, in strips of 8; elements that
    a lane has of them.
    """

    tall: int
    slabs: int
    columns: int
    strips: int
    size: int


def part_of(height, width, warps, rows=ROWS):
    """The Part of each warp of a result of `height` × `width`; ValueError if they cannot share it so."""
    tall = height // rows
    if height % rows or warps % tall or width % (warps // tall * PRODUCT):
        raise ValueError(f"{warps} warps cannot share {height} × {width} numbers: each takes {rows} rows and a "
                         f"multiple of {PRODUCT} columns")
    columns, slabs = width // (warps // tall), rows // 16
    return Part(tall, slabs, columns, columns // 8, slabs * columns // 8 * 4)


class Factor(NamedTuple):
    """A factor of a product. width: of its rows on chip. across: False if a row of it lies along the sum (Q in QKᵀ),
    True if the sum runs down its rows (dO in PᵀdO)."""

    width: int
    across: bool = False


@cache
def product(dtype, part, depth, left, right):
    """The function (acc, tile, A, row0, B, col0, lane): acc += this warp's part of a product, a sum of `depth` terms.

    A, B: where in `tile` the factors begin. row0, col0: where the warp's part of the result begins.
    """
    multiply = ptx.mma(dtype)
    slabs, strips, terms = part.slabs, part.strips, depth // PRODUCT            # terms: 16 at a time
    a_size = terms * slabs * 4
    A_cell, A_further = swizzled.places(left.width)
    B_cell, B_further = swizzled.places(right.width)
    load_A = ptx.ldmatrix_x4_trans if left.across else ptx.ldmatrix_x4
    load_B = ptx.ldmatrix_x4_trans if right.across else ptx.ldmatrix_x4
    A_step, B_step = 16 * left.width, 16 * right.width              # 16 rows further on
    A_across, B_across = left.across, right.across
    power_of_two = part.columns & (part.columns - 1) == 0           # `further` may step through the columns

    @cuda.jit(device=True, forceinline=True)
    def add_product(acc, tile, A, row0, B, col0, lane):
        a = cuda.local.array(a_size, types.uint32)
        upper, row, side = lane // 16, lane % 16, lane // 8 % 2     # which rows this lane names: see ptx/matrices.py
        low = upper * 8 + lane % 8
        A_at = A + (A_cell(low, row0 // CHUNK + side) if A_across else A_cell(row0 + row, upper))
        B_at = B + (B_cell(row, col0 // CHUNK + upper) if B_across else B_cell(col0 + low, side))
        for k in range(terms):
            for s in range(slabs):
                e = (k * slabs + s) * 4
                at = A_further(A_at, 2 * s) + k * A_step if A_across else A_further(A_at, 2 * k) + s * A_step
                a[e], a[e + 1], a[e + 2], a[e + 3] = load_A(tile, at)
            for y in range(0, strips, 2):
                if not B_across:
                    at = B_further(B_at, 2 * k) + y * 8 * (B_step // 16)
                elif power_of_two:
                    at = B_further(B_at, y) + k * B_step
                else:
                    at = B + B_cell(k * 16 + row, col0 // CHUNK + upper + y)
                b0, b1, b2, b3 = load_B(tile, at)
                for s in range(slabs):
                    e, f = (k * slabs + s) * 4, (s * strips + y) * 4
                    left_factor = a[e], a[e + 1], a[e + 2], a[e + 3]
                    multiply(acc, f, left_factor, (b0, b1))
                    multiply(acc, f + 4, left_factor, (b2, b3))

    return add_product
