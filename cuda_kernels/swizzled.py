"""Tiles of 16-bit numbers in shared memory, as products by whole warps want them: swizzled, padded with zeros.

A row of d numbers has `width` numbers on chip, d rounded up to what a product takes at a time. Rows are handled in
chunks of 8 numbers, 16 bytes: they are copied and loaded whole.

`ldmatrix` reads 8 neighbouring rows at once, of each the same chunk. Shared memory has 32 banks of 4 bytes, so 8 chunks
fit side by side; were rows simply laid one after another, the 8 chunks would meet in one place (width = 64), in two
(width = 32) or in four. So chunks are exchanged inside a row, in every row in another way: chunk c of row r lies
where c xor (some bits of r) would. Nothing is wasted, and no two of the 8 meet.

    width = 32, 4 chunks a row; the number is c   row 0    0 1 2 3    row 2    1 0 3 2    row 4    2 3 0 1
    (two rows fill all 32 banks)                  row 1    0 1 2 3    row 3    1 0 3 2    row 5    2 3 0 1
"""

import math
from functools import cache

import numpy as np
from numba import cuda

from cuda_kernels import arrays, ptx
from cuda_kernels.launch import WARP
from cuda_kernels.ptx.copies import CHUNK

PRODUCT = 16                                                        # channels or keys that a product takes at a time


def padded(d):
    """The numbers that a row has on chip."""
    return -(-d // PRODUCT) * PRODUCT


@cache
def places(width):
    """(cell, further) for rows that have so many numbers on chip."""
    chunks = width // CHUNK
    swap = math.gcd(chunks, 8) - 1                                  # the bits of c that are exchanged
    shift = 3 - swap.bit_length()                                   # by those of r from here on

    @cuda.jit(device=True, forceinline=True)
    def cell(r, c):
        """Where in its tile chunk c of row r begins."""
        return r * width + (c ^ (r >> shift & swap)) * CHUNK

    @cuda.jit(device=True, forceinline=True)
    def further(at, c):
        """Where the chunk c further on in its row begins, if chunk c0 does at `at` and c has no bit in common with c0.

        `cell` would say the same, but so a lane has one place to remember instead of one for each c.
        """
        return (at ^ (c & swap) * CHUNK) + (c & ~swap) * CHUNK

    return cell, further


def aligned(call, *given):
    """May the rows of all these arrays be read 16 bytes at a time?"""
    return call.sizes.d % CHUNK == 0 and all(arrays.in_chunks(call.place.argument(x), 2 * CHUNK) for x in given)


def functions(d, warps, narrow, aligned, width=None):
    """(cell, further, load, store) for rows of d numbers and blocks of this many warps.

    narrow: from float32 to the storage dtype. aligned: may rows in memory be read 16 bytes at a time? width: the
    numbers of a row on chip; None is the fewest that will do.
    """
    width, nothing = width or padded(d), np.float32(0)
    cell, further = places(width)
    chunks, threads = width // CHUNK, warps * WARP
    side = math.gcd(chunks, WARP)                                   # of a row, so many are copied side by side; …
    pieces, at_once = chunks // side, threads // side               # … of so many rows at once, all threads take part

    @cuda.jit(device=True, forceinline=True)
    def load(tile, at, size, X, b, h, row0, low, high, t):
        """Begin to load a tile of `size` rows of X[b, h], from row0 on, to tile[at …]; zeros for rows that are not
        among low … high − 1."""
        r0, c0 = t // side, t % side
        first = row0 + r0                                           # added first: so the compiler steps from row to row
        if aligned and d == width and size % at_once == 0 and low <= row0 and row0 + size <= high:
            for n in range(size // at_once * pieces):               # nothing to leave out, in nearly every tile
                step, c = n // pieces * at_once, c0 + n % pieces * side
                ptx.copy_async(tile, at + cell(r0 + step, c), X, (b, h, first + step, c * CHUNK), CHUNK)
        else:
            for n in range((size + at_once - 1) // at_once * pieces):
                step, c = n // pieces * at_once, c0 + n % pieces * side
                r, row = r0 + step, first + step
                inside = low <= row < high
                if size % at_once == 0 or r < size:
                    if aligned:
                        count = CHUNK if inside and (d == width or c * CHUNK < d) else 0
                        ptx.copy_async(tile, at + cell(r, c), X, (b, h, row if inside else low, c * CHUNK), count)
                    else:
                        for y in range(CHUNK):
                            x = c * CHUNK + y
                            tile[at + cell(r, c) + y] = X[b, h, row, x] if inside and x < d else narrow(nothing)

    @cuda.jit(device=True, forceinline=True)
    def store(tile, at, size, X, b, h, row0, high, t, T):
        """Store the `size` rows at tile[at …] to X[b, h], from row0 on, up to row high − 1. T threads, a warp or more,
        do it together; T divides size · width / 8. The numbers of a row of X lie side by side, from a multiple of 16
        bytes on if d is a multiple of 8."""
        for n in range(size * chunks // T):
            r, c = (n * T + t) // chunks, (n * T + t) % chunks
            if row0 + r < high:
                if d % CHUNK == 0:
                    if d == width or c * CHUNK < d:
                        ptx.store_chunk(X, (b, h, row0 + r, c * CHUNK), tile, at + cell(r, c))
                else:
                    for y in range(CHUNK):
                        x = c * CHUNK + y
                        if x < d:
                            X[b, h, row0 + r, x] = tile[at + cell(r, c) + y]

    return cell, further, load, store
