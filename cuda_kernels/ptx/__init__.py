"""What Numba has no name for: instructions of the GPU as functions that kernels call, each with a model in NumPy.

On the device a function becomes the instruction; in the simulator its model runs. Both take and return the same bits.

    numbers     conversions between float32 and 16 bits, one at a time and in pairs; 2ˣ
    matrices    the product of two small matrices whose elements lie spread over a warp, and how they are loaded so
    copies      copies from global to shared memory that go on while the thread does something else; wide loads
                and stores
    atomics     sums in global memory to which several threads add

`warp` and `assembly` are what the models and the instructions are made with. bfloat16 crosses into kernels as 16-bit
words (uint16): the upper half of a float32.
"""

from cuda_kernels.ptx.atomics import atomic_add, atomic_add_four
from cuda_kernels.ptx.copies import (
    commit_copies,
    copy_async,
    load_chunk,
    store_chunk,
    store_four,
    store_pair,
    wait_copies,
)
from cuda_kernels.ptx.matrices import ldmatrix_x2, ldmatrix_x2_trans, ldmatrix_x4, ldmatrix_x4_trans, mma
from cuda_kernels.ptx.numbers import bfloat16_to_float32, exp2, float32_to_bfloat16, pair

__all__ = ["atomic_add", "atomic_add_four", "bfloat16_to_float32", "commit_copies", "copy_async", "exp2",
           "float32_to_bfloat16", "ldmatrix_x2", "ldmatrix_x2_trans", "ldmatrix_x4", "ldmatrix_x4_trans", "load_chunk",
           "mma", "pair", "store_chunk", "store_four", "store_pair", "wait_copies"]
