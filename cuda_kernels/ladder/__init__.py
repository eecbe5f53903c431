"""Where FlashAttention-2's speed comes from: nine kernels on tensor cores, each one idea away from the one before.

    r0  FlashAttention-1: keys outside, split over the warps       r5  tiles swizzled on chip
    r1  the division deferred                                      r6  copies run ahead
    r2  queries outside: O stays on chip                           r7  hidden tiles skipped, only borders masked
    r3  queries split over the warps                               r8  other tile sizes
    r4  16 bytes copied at a time

    diff -w cuda_kernels/ladder/r3.py cuda_kernels/ladder/r4.py    one idea
    python -m cuda_kernels ladder                                  what each is worth, on a GPU

All have the same steps (1) … (11), and the letters of `cuda_kernels`, with those of `fa2_mma` where products by whole
warps are concerned: there the elements of S, P and acc lie, and r7 is that kernel without its options. What a rung
brings is a guess first, PREDICTED: the factor over the rung before, causal with d = 128 and N = 4096, a batch of 4 and
16 heads in bfloat16 on an H200, for the reason in WHY. It was written down before anything was measured.

float16 and bfloat16, d = 64 or 128, as many keys as queries, lengths that are multiples of a tile; causal or not.
"""

from cuda_kernels.launch import ALL, WARP, numbers
from cuda_kernels.swizzled import CHUNK, PRODUCT
from cuda_kernels.tensor_cores import LN_2, LOG2_E, SLAB

__all__ = ["ALL", "CHUNK", "LN_2", "LOG2_E", "NAMES", "PRODUCT", "SLAB", "WARP", "numbers"]

NAMES = tuple(f"r{n}" for n in range(9))
