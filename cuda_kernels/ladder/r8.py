"""Rung 8: other tile sizes; the kernel is rung 7's, line for line.

With 32 rows, two slabs of 16, a warp uses every right factor twice that it has loaded. More would be better still, but
a thread has 255 registers at most: with 64 rows S and acc alone need 256 or more, and what has no room is spilled to
local memory, which is HBM behind the caches. FlashAttention-2, section 3.3, "tuning block sizes".
"""

from cuda_kernels.ladder.r7 import KEYS_OUTSIDE, SPLIT_KEYS, make_forward, shared_bytes

__all__ = ["KEYS_OUTSIDE", "PREDICTED", "PREDICTED_SPILLS", "SPILLS", "SPLIT_KEYS", "TILES", "WHY", "make_forward",
           "shared_bytes"]

TILES = 32, 4, 64                                                   # R, warps, Bc
SPILLS = 64, 4, 64
PREDICTED = 1.3
WHY = """For 64 rows ldmatrix takes 640 cycles of shared memory instead of 1,150, fewer than the products' 800, and K
and V are copied to half as many blocks. Two blocks of 4 warps at a time hide less than before."""
PREDICTED_SPILLS = 0.4                                              # over rung 7
