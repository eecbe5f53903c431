"""A call of a rung: what it takes, what it refuses, and its launch."""

from importlib import import_module
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels import arrays, places
from cuda_kernels.ladder import LOG2_E, NAMES, PRODUCT, WARP
from cuda_kernels.launch import launch_compiled, limits
from cuda_kernels.switch import SIMULATED
from fa_ref.options import check_flag

DIMS = (64, 128)


def rung(name):
    """The module of a rung; ValueError for what is none."""
    if name not in NAMES:
        raise ValueError(f"a rung is one of {', '.join(NAMES)}, got {name!r}")
    return import_module(f"cuda_kernels.ladder.{name}")


class Launch(NamedTuple):
    """A kernel and all that one launch of it takes; O and L are among the arguments."""

    kernel: object
    grid: tuple
    threads: int
    shared: int
    arguments: tuple
    place: object
    O: object
    L: object
    dtype: np.dtype

    def __call__(self):
        """Launch it."""
        with self.place.here():
            if SIMULATED:
                self.kernel[self.grid, self.threads, 0, self.shared](*self.arguments)
            else:
                launch_compiled(self.kernel, self.grid, self.threads, self.place.stream, self.arguments, self.shared)

    def result(self):
        """(out, lse), arrays of the kind that came."""
        return self.place.result(self.O, self.dtype), self.place.result(self.L, np.dtype(np.float32))


def prepare(step, q, k, v, causal=False, tiles=None):
    """The Launch of a rung, a module, on q, k, v (B, H, N, d) of one dtype; tiles: (R, warps, Bc), by default the
    rung's own.

    ValueError for what the ladder does not take, before anything runs.
    """
    R, warps, Bc = tiles or step.TILES
    place = places.place_of(q=q, k=k, v=v)
    known = [place.known(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    check(known, check_flag("causal", causal), R, warps, Bc, split_keys=step.SPLIT_KEYS)
    (B, H, N, d), dtype, Br = known[0].shape, known[0].dtype, R * warps
    shared, card = step.shared_bytes(R, warps, Bc, d), limits()
    if card.capability < (8, 0):
        raise ValueError(f"the ladder needs compute capability 8.0, {card.card} has {card.capability}")
    if shared > card.dynamic_bytes:
        raise ValueError(f"tiles of {Br} × {Bc} and {warps} warps need {shared} bytes of shared memory for d = {d}, "
                         f"but a block has {card.dynamic_bytes} on {card.card}")
    Q, K, V = map(place.load, (q, k, v))
    if not all(arrays.in_chunks(place.argument(x), 16) for x in (Q, K, V)):
        raise ValueError("the ladder takes rows that lie side by side, each from a multiple of 16 bytes on")
    O, L = place.empty((B, H, N, d), dtype), place.empty((B, H, N), np.float32)
    grid, far = (N // Br, H, B), []
    if step.KEYS_OUTSIDE:                                           # O, l, m travel
        grid, far = (H, B), [place.empty(shape, np.float32) for shape in ((B, H, N, d), (B, H, N), (B, H, N))]
    scale = np.float32(1 / np.sqrt(d)) * LOG2_E
    return Launch(step.make_forward(R, warps, Bc, d, dtype), grid, warps * WARP, shared,
                  (*map(place.argument, (Q, K, V, O, L, *far)), scale, causal), place, O, L, dtype)


def check(known, causal, R, warps, Bc, split_keys):
    """ValueError, with the numbers, for shapes, dtypes and tiles that rungs do not take."""
    shapes = [tuple(x.shape) for x in known]
    q = known[0]
    if len(set(shapes)) > 1 or q.ndim != 4:
        raise ValueError(f"the ladder takes q, k, v of one shape (B, H, N, d), got {', '.join(map(str, shapes))}")
    if len({x.dtype for x in known}) > 1 or q.dtype not in (np.float16, bfloat16):
        raise ValueError("the ladder takes q, k, v in float16 or all in bfloat16, got "
                         f"{', '.join(str(x.dtype) for x in known)}")
    N, d, Br = q.shape[2], q.shape[3], R * warps
    if 0 in q.shape or d not in DIMS:
        raise ValueError(f"the ladder takes d = 64 or 128 and nothing empty, got shape {tuple(q.shape)}")
    if warps not in (1, 2, 4, 8) or R % PRODUCT or Bc % max(PRODUCT, 4 * warps):
        raise ValueError("a rung takes 1, 2, 4 or 8 warps, a multiple of 16 rows for each, and as keys of a tile a "
                         f"multiple of 16 and of 4 for each warp, got {warps}, {R} and {Bc}")
    if split_keys and (Bc % (PRODUCT * warps) or R > WARP):
        raise ValueError(f"{warps} warps that split the keys take tiles of a multiple of {PRODUCT * warps} keys and 16 "
                         f"or 32 rows for each warp, got {Bc} and {R}")
    if N % Br or N % Bc:
        raise ValueError(f"the ladder takes lengths that are multiples of its tiles, {Br} queries and {Bc} keys, got "
                         f"N = {N}")


def forward(name, q, k, v, causal=False, tiles=None):
    """(out, lse) of a rung, by name: arrays of the kind that came. Arguments and errors as `prepare`."""
    launch = prepare(rung(name), q, k, v, causal, tiles)
    launch()
    return launch.result()
