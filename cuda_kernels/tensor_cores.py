"""What kernels on tensor cores offer, and the tiles that they choose for a call."""

import math

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels.launch import WARP, check_threads
from cuda_kernels.products import ROWS
from cuda_kernels.switch import SIMULATED
from cuda_kernels.swizzled import padded

LOG2_E, LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))     # exp(x) is 2^(x·log₂e)
WARPS = range(1, 9)                                                 # of a block
SLAB = 16                                                           # rows of a product
MOST_SCALE = float(np.finfo(np.float32).max) * math.log(2)
MOST_DIMS, NARROW = 256, 128                                        # largest d; largest with two slabs for each warp
ON_A_GPU = (128, 128), (64, 128), (64, 64), (32, 64), (32, 32)      # Br, Bc backward
TILES_BACKWARD = ON_A_GPU[::-1] if SIMULATED else ON_A_GPU           # the smallest are the quickest to simulate
LARGEST_BACKWARD = 128 * 128 * 64                                   # Br · Bc · d: what lanes' registers have room for
KEYS = (16,) if SIMULATED else (64, 32, 16)                         # of a tile: the first that fits


def refuse(kernel, card, sizes, dtype, options):
    """NotImplementedError, by name, for what these kernels do not offer; ValueError for a card without such cores."""
    d, dv = sizes.d, sizes.dv
    asked = {"a mask": options.mask is not None, "softcap": options.softcap is not None,
             "sink": options.sink is not None, "reverse": options.reverse,
             f"dv = {dv} with d = {d}": dv != d, f"d = {d}": d > MOST_DIMS,
             f"dtype {dtype}": dtype not in ("float16", bfloat16)}
    for name in (name for name, is_set in asked.items() if is_set):
        raise NotImplementedError(f"{name} is not offered by the kernel {kernel}; fa2 offers it")
    if not abs(options.scale) < MOST_SCALE:
        raise ValueError(f"{kernel} takes a scale below {MOST_SCALE:.3g}, since it multiplies by scale · log₂e in "
                         f"float32, got {options.scale:.3g}")
    if card.capability < (8, 0):
        raise ValueError(f"{kernel} needs compute capability 8.0, {card.card} has {card.capability}")


def plan(kernel, bytes_of, card, sizes, dtype, options, threads, block_q, block_k):
    """(threads, Br, Bc) for a call on this card; what is None is chosen. bytes_of(Br, Bc, d, dv, itemsize): shared
    memory of a block.

    NotImplementedError, by name, for what these kernels do not offer; ValueError for tiles that they cannot have.
    """
    refuse(kernel, card, sizes, dtype, options)
    d, dv = sizes.d, sizes.dv
    slabs = 2 if padded(d) <= NARROW else 1
    if threads is None:
        threads = WARP if SIMULATED else WARP * 4
    warps = check_threads(threads, card, WARPS) // WARP
    Br = block_q or warps * SLAB * (1 if SIMULATED else slabs)
    heights = [warps * SLAB * n for n in range(1, slabs + 1)]
    if Br not in heights:
        raise ValueError(f"{kernel} with {threads} threads and d = {d} takes block_q "
                         f"{' or '.join(map(str, heights))}, got {Br}")
    Bc = block_k or next((n for n in KEYS if bytes_of(Br, n, d, dv, 4) <= card.dynamic_bytes), KEYS[-1])
    if Bc % 16:
        raise ValueError(f"{kernel} takes a block_k that is a multiple of 16, got {Bc}")
    return threads, Br, Bc


def plan_backward(kernel, bytes_of, card, sizes, dtype, options, threads, block_q, block_k):
    """(threads, Br, Bc) for the backward pass; arguments and errors as for `plan`, but bytes_of(Br, Bc, d, warps)."""
    refuse(kernel, card, sizes, dtype, options)
    d = sizes.d
    if threads is not None:
        check_threads(threads, card, WARPS)
    choices = [(block_q or Br, block_k or Bc, n) for Br, Bc in TILES_BACKWARD if Br * Bc * padded(d) <= LARGEST_BACKWARD
               for n in (range(8, 0, -1) if threads is None else [threads // WARP])]
    shared = [(Br, Bc, n) for Br, Bc, n in choices if can_share(Br, Bc, n)]
    if not shared:
        tiles = f"{block_q or 'any'} × {block_k or 'any'}"
        raise ValueError(f"{kernel} backward cannot share tiles of {tiles} among {threads or 'any'} threads: a warp "
                         "takes 32 rows of S and a multiple of 16 columns, and 32 rows of dK; 32, 64, 128 or 256 "
                         "threads can share what is chosen without block_q and block_k")
    Br, Bc, warps = next((choice for choice in shared if bytes_of(*choice[:2], d, choice[2]) <= card.dynamic_bytes),
                         shared[-1])
    return warps * WARP, Br, Bc


def can_share(Br, Bc, warps):
    """Can so many warps share S and dK (see `products`)? dQ and dK get as many channels on chip as that takes."""
    return (Br % ROWS == Bc % ROWS == 0 and warps % (Br // ROWS) == warps % (Bc // ROWS) == 0
            and Bc % (warps // (Br // ROWS) * 16) == 0)
