"""The algorithms of `fa_ref` as GPU kernels in Numba-CUDA: the same file names, the same numbered steps.

The letters are those of `fa_ref`, and these are new:

    t T         number of this thread in its block, threads of a block
    e           an element of a tile, counted row by row; thread t takes e = t, t + T, t + 2T, …
    w lane      number of the warp in its block, of the thread in its warp of 32
    n R         a row of those that a warp has, how many it has
    y           of the keys or channels that a lane has, which one
    r c x       row, column and channel inside a tile
    row0 col0   first query, first key of a tile; br bc how many there are
    g           the key/value head of query head h
    wide        the accumulator dtype; widen, narrow and rounded go between it and the storage dtype

Q, K, V, O, L lie in the memory of the GPU. Arrays made by cuda.shared.array lie on chip, once per block; everything
else is a thread's own. FA_REF_CUDA says whether kernels run on a GPU or in Numba's simulator (see switch).

Sums of products run in `while` loops. Numba's `for … in range` would read better, but what the GPU's compiler makes of
it counts and checks the index anew each time: 18 instructions for a multiply-add instead of 3.

Read in this order: scores, fa2, fa2_backward, fa2_dq, fa1, fa1_backward, standard; fa2_warps, fa1_warps and what sets
them apart, counts; on tensor cores ptx, swizzled, fa2_mma, products, fa2_mma_backward, fa2_mma_rows, fa2_mma_dq,
fa1_mma, and the ladder; then the way there: switch, arrays, places, launch, disk_cache, prepared, tensor_cores, finish,
heads, torch_op.
"""

from cuda_kernels.switch import SIMULATED  # isort: skip  (first: it decides before Numba is imported)

if SIMULATED:
    from cuda_kernels import simulator
    simulator.install()

from cuda_kernels.heads import KERNELS, PLAIN, WITH_BACKWARD, backward, forward

__all__ = ["KERNELS", "PLAIN", "SIMULATED", "WITH_BACKWARD", "backward", "forward"]
