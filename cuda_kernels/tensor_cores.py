"""What kernels on tensor cores offer, and the tiles that they choose for a call."""

from ml_dtypes import bfloat16

from cuda_kernels.launch import WARP, check_threads
from cuda_kernels.switch import SIMULATED
from cuda_kernels.swizzled import padded

WARPS = range(1, 9)                                                 # of a block
SLAB = 16                                                           # rows of a product
MOST_DIMS, NARROW = 256, 128                                        # largest d; largest with two slabs for each warp
KEYS = (16,) if SIMULATED else (64, 32, 16)                         # of a tile: the first that fits


def plan(kernel, bytes_of, card, sizes, dtype, options, mask, sink, threads, block_q, block_k):
    """(threads, Br, Bc) for a call on this card; what is None is chosen. bytes_of(Br, Bc, d, dv, itemsize): shared
    memory of a block.

    NotImplementedError, by name, for what these kernels do not offer; ValueError for tiles that they cannot have.
    """
    d, dv = sizes.d, sizes.dv
    asked = {"a mask": mask is not None, "softcap": options.softcap is not None, "sink": sink is not None,
             "reverse": options.reverse, f"dv = {dv} with d = {d}": dv != d, f"d = {d}": d > MOST_DIMS,
             f"dtype {dtype}": dtype not in ("float16", bfloat16)}
    for name in (name for name, is_set in asked.items() if is_set):
        raise NotImplementedError(f"{name} is not offered by the kernel {kernel}; fa2_warps offers it")
    if card.capability < (8, 0):
        raise ValueError(f"{kernel} needs compute capability 8.0, {card.card} has {card.capability}")

    slabs = 2 if padded(d) <= NARROW else 1
    if threads is None:                                             # 128 rows, or in the simulator 16
        threads = WARP if SIMULATED else WARP * 8 // slabs
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
