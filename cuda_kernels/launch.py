"""From arrays and options to a launch: number types, limits, tiles, and every check that comes before a kernel runs.

A kernel is made by a factory for its tiles, head dims, dtype and flags, once; its arrays may have any strides. Numba
indexes arrays with 64-bit numbers, and no kernel computes an offset of its own: arrays may have more than 2³¹
elements.
"""

import warnings
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numba.cuda import types

from cuda_kernels import disk_cache, ptx, scores
from cuda_kernels.switch import SIMULATED
from fa_ref.inputs import accumulator
from fa_ref.options import check_whole
from fa_ref.scores import Rule

# --- numbers --------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """How a kernel computes with a storage dtype. Typed constants keep float64 out of float32 kernels.

    wide: Numba's type of accumulators. zero, one, minus_inf: of that type. widen: storage -> wide. narrow: wide ->
    storage. rounded: narrow, then widen.
    """

    wide: types.Type
    zero: np.floating
    one: np.floating
    minus_inf: np.floating
    widen: object
    narrow: object
    rounded: object


@cache
def numbers(dtype):
    """The Numbers of a storage dtype."""
    kind = accumulator(dtype).type
    constants = numba.from_dtype(np.dtype(kind)), kind(0), kind(1), kind(-np.inf)
    if np.dtype(dtype) == kind:
        return Numbers(*constants, kind, kind, kind)
    if dtype == bfloat16:
        widen, narrow = ptx.bfloat16_to_float32, ptx.float32_to_bfloat16
    else:
        widen, narrow = np.float32, np.float16

    @cuda.jit(device=True)
    def rounded(x):
        return widen(narrow(x))

    return Numbers(*constants, widen, narrow, rounded)


# --- limits ---------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """What one launch may ask of a card."""

    card: str
    threads: int                        # of a block
    grid: tuple[int, int, int]          # blocks along x, y, z
    shared_bytes: int                   # of a block, as a kernel gets them without asking for more
    dynamic_bytes: int                  # of a block, for a kernel that asks
    capability: tuple[int, int]


CARDS = {
    name: Limits(name, 1024, (2**31 - 1, 65535, 65535), 48 * 1024, kib * 1024, capability)
    for name, kib, capability in [("T4", 64, (7, 5)), ("A100", 163, (8, 0)), ("RTX 4090", 99, (8, 9)),
                                  ("H200", 227, (9, 0))]
}
SIMULATED_CARD = "H200"
WARP, ALL = 32, 0xFFFFFFFF                      # threads of a warp, on every card; the mask of all of them
LARGEST_TILE = 16 if SIMULATED else 32
DEFAULT_THREADS = 1 if SIMULATED else 128       # with one thread a debugger sees a sequential program


def limits():
    """The Limits of the current device; in the simulator those of a card that stands for it."""
    if SIMULATED:
        return CARDS[SIMULATED_CARD]
    device = cuda.get_current_device()
    grid = device.MAX_GRID_DIM_X, device.MAX_GRID_DIM_Y, device.MAX_GRID_DIM_Z
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    return Limits(name, device.MAX_THREADS_PER_BLOCK, grid, device.MAX_SHARED_MEMORY_PER_BLOCK,
                  device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, tuple(device.compute_capability))


def check_threads(threads, card, warps=None):
    """Threads of a block: None is the default. warps: the numbers of whole warps that a kernel takes; None is any T."""
    default = DEFAULT_THREADS if warps is None else max(DEFAULT_THREADS, WARP)
    threads = default if threads is None else check_whole("threads", threads, 1)
    if threads > card.threads:
        raise ValueError(f"threads must be at most {card.threads} on {card.card}, got {threads}")
    if warps is not None and threads not in [WARP * n for n in warps]:
        raise ValueError(f"threads must be a multiple of {WARP} from {WARP * min(warps)} to {WARP * max(warps)} "
                         f"({min(warps)} to {max(warps)} whole warps), got {threads}")
    return threads


def check_grid(grid, card):
    """Blocks along x, y and z."""
    if any(n > most for n, most in zip(grid, card.grid, strict=False)):
        raise ValueError(f"a grid of {grid} blocks is more than {card.card} takes, {card.grid[:len(grid)]}: give the "
                         "batch, the heads or the queries in parts")


def check_tiles(bytes_of, block_q, block_k, card, what, dynamic=False):
    """(Br, Bc) that fit on the chip; a tile size that is None becomes the largest power of two that does.

    bytes_of(Br, Bc) is what a block needs; dynamic: does the kernel ask for more than it gets unasked? ValueError with
    the bytes, the limit and tiles that would fit.
    """
    default, most = LARGEST_TILE, card.dynamic_bytes if dynamic else card.shared_bytes
    while default > 1 and bytes_of(block_q or default, block_k or default) > most:
        default //= 2
    Br, Bc = block_q or default, block_k or default
    if bytes_of(Br, Bc) > most:
        choices = [(n, n) for n in (64, 32, 16, 8, 4, 2, 1)]
        if dynamic:                                                 # best with this Br, which goes with the threads
            choices = [(Br, 64), (Br, 32), (64, 64), (32, 64), (32, 32)]
        fits = next((f"{rows} × {keys}" for rows, keys in choices if bytes_of(rows, keys) <= most), None)
        way_out = f"{fits} would fit" if fits else "no tile fits, the head dim is too large"
        raise ValueError(f"{what} with tiles of {Br} × {Bc} needs {bytes_of(Br, Bc)} bytes of shared memory, but a "
                         f"block has {most} on {card.card}: {way_out}")
    return Br, Bc


# --- one call -------------------------------------------------------------------------------------------------


class Call:
    """One call of forward or backward: where its arrays live, its sizes, tiles and options. For use in place.here().

    place: see `places`. sizes, options: as `fa_ref` checked them. bytes_of(Br, Bc, d, dv, itemsize): shared
    memory of the kernel, `what` its name for messages, dynamic: see `check_tiles`. rule: the arguments that kernels
    take last, after their arrays: (mask, scale, softcap, left, right, reverse).
    """

    def __init__(self, place, sizes, dtype, options, mask, threads, block_q, block_k, bytes_of, what,
                 dynamic=False):
        self.place, self.sizes, self.options = place, sizes, options
        self.dtype, self.threads = np.dtype(dtype), threads
        self.wide = accumulator(dtype)
        self.card = limits()
        if dtype == bfloat16 and self.card.capability < (8, 0):
            raise ValueError(f"bfloat16 needs compute capability 8.0, {self.card.card} has {self.card.capability}")
        B, Hq, _, Nq, Nk, d, dv = sizes
        self.Br, self.Bc = check_tiles(
            lambda Br, Bc: bytes_of(Br, Bc, d, dv, self.wide.itemsize), block_q, block_k, self.card,
            f"{what} for d = {d}, dv = {dv} in {dtype}", dynamic)
        self.Tr, self.Tc = -(-Nq // self.Br), -(-Nk // self.Bc)
        sink_follows = options.sink is not None and self.wide != dtype
        self.flags = scores.Flags(options.softcap is not None, mask is not None, sink_follows)
        rule = Rule(Nq, Nk, scale=options.scale, causal=options.causal, window=options.window)
        kind = self.wide.type
        mask = place.full((1, 1, 1, 1), True, bool) if mask is None else place.spread(
            place.load(mask), (B, Hq, Nq, Nk))
        self.made, self.launches = [], []       # for `prepared`: arrays, and (kernel, grid, arguments, shared)
        self.rule = (mask, kind(options.scale), kind(options.softcap or 0), rule.left, rule.right, options.reverse)

    @property
    def key(self):
        """What factories are asked with: tiles, head dims, dtype, flags."""
        return self.Br, self.Bc, self.sizes.d, self.sizes.dv, self.dtype, self.flags

    def empty(self, *shape, dtype=None, like=None):
        """An array that a kernel will fill; in the accumulator dtype if none is given. like: see `places`."""
        self.made.append(self.place.empty(shape, self.wide if dtype is None else dtype, like))
        return self.made[-1]

    def constant(self, value, *shape):
        """An array of this shape, in the accumulator dtype, that holds one number once."""
        return self.place.spread(self.place.full((1,) * len(shape), value, self.wide), shape)

    def launch(self, kernel, grid, *arguments, shared=0):
        """Launch a kernel on this grid of blocks; an empty one is no launch. shared: bytes of dynamic shared memory."""
        if 0 in grid:
            return
        check_grid(grid, self.card)
        self.launches.append((kernel, grid, arguments, shared))
        arguments = [x if isinstance(x, (bool, int, np.number)) else self.place.argument(x) for x in arguments]
        if SIMULATED:
            kernel[grid, self.threads, 0, shared](*arguments)
        else:
            launch_compiled(kernel, grid, self.threads, self.place.stream, arguments, shared)


def compiled_for(kernel, threads, arguments):
    """A kernel compiled for such arguments, or found on disk; with fewer registers if a block of so many threads would
    not have enough. Arrays may have any strides (Numba's layout A: contiguous ones get no kernel of their own)."""
    kinds = [types.Array(numba.from_dtype(x.dtype), x.ndim, "A") if hasattr(x, "ndim") and x.ndim else numba.typeof(x)
             for x in arguments]
    capability = tuple(cuda.get_current_device().compute_capability)
    disk_cache.attach(kernel, capability)
    compiled = kernel.compile(tuple(kinds))
    if threads > compiled.max_threads_per_block:
        kernel = with_fewer_registers(kernel)
        disk_cache.attach(kernel, capability)
        compiled = kernel.compile(tuple(kinds))
    return compiled


def launch_compiled(kernel, grid, threads, stream, arguments, shared=0):
    """Launch a kernel, compiled if need be, on this grid of blocks. shared: bytes of dynamic shared memory."""
    compiled = compiled_for(kernel, threads, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")         # Numba warns of small grids; here they are meant
        configured = kernel[grid, threads, stream]
    if shared:
        allow_shared(compiled, shared)
    compiled.launch(arguments, configured.griddim, configured.blockdim, configured.stream, shared)


def allow_shared(compiled, nbytes):
    """Let a compiled kernel have this much dynamic shared memory: over 48 KiB a GPU wants to be asked, and Numba has no
    option for that."""
    from numba.cuda.cudadrv.driver import binding, driver

    function = compiled._codelibrary.get_cufunc()
    attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.cuKernelSetAttribute(attribute, nbytes, function.handle, function.device.id)


@cache
def with_fewer_registers(kernel):
    """The same kernel for blocks of up to 1024 threads: these share 65,536 registers, at most 64 for each."""
    return cuda.jit(kernel.py_func, launch_bounds=1024)
