"""Case 4. The softmax of each row of X, a piece of 4 numbers at a time: one block for each row, 1 to 64 threads.

The symptom: a race checker complains about it, but nobody has ever seen a wrong number. All tests are green: with 1
thread, with 2 and with 64, for short rows and for long ones.
"""

import cuda_kernels  # noqa: F401, I001  (first: it decides before Numba is imported)

import math

from numba import cuda, float64

PIECE = 4


@cuda.jit
def row_softmax(X, P):
    """X, P: (rows, N) in float64; one block for each row."""
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x = cuda.shared.array(PIECE, float64)
    ml = cuda.shared.array(2, float64)                      # the running maximum, the running sum
    if t == 0:
        ml[0] = -math.inf
        ml[1] = 0.0

    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        cuda.syncthreads()
        if t == 0:
            m = ml[0]
            for c in range(size):
                m = max(m, x[c])
            p_sum = 0.0
            for c in range(size):
                p_sum += math.exp(x[c] - m)
            ml[1] = math.exp(ml[0] - m) * ml[1] + p_sum
            ml[0] = m
    cuda.syncthreads()

    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]
