"""Answers to notebook 09."""

import cuda_kernels  # noqa: F401, I001  (first: it decides before Numba is imported)

import math

from numba import cuda, float64

PIECE = 4


@cuda.jit
def scores_step(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


def race_of_case4():
    return 6, 2, "m = max(m, x[c])", "x[c] = X[row, start + c]"


@cuda.jit
def repair_of_case4(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x = cuda.shared.array(PIECE, float64)
    ml = cuda.shared.array(2, float64)
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
        # was behind the loop. Here nobody loads the next piece before thread 0 is done with this one
        cuda.syncthreads()

    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]
