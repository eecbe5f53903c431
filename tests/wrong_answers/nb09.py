"""Wrong answers to notebook 09; each must be rejected."""

import cuda_kernels  # noqa: F401, I001  (first: it decides before Numba is imported)

import math

from numba import cuda, float64

PIECE = 4


@cuda.jit
def scores_step__forgets_the_stride(Q, K, S, row0, col0, br, bc, scale):
    t = cuda.threadIdx.x
    for e in range(t, br * bc):
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__every_thread_does_all(Q, K, S, row0, col0, br, bc, scale):
    for e in range(0, br * bc):
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__thread_0_does_all(Q, K, S, row0, col0, br, bc, scale):
    if cuda.threadIdx.x == 0:
        for e in range(br * bc):
            r, c = e // bc, e % bc
            product = 0.0
            for x in range(Q.shape[1]):
                product += Q[row0 + r, x] * K[col0 + c, x]
            S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__assumes_that_T_divides(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for n in range(br * bc // T):
        e = t + n * T
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__one_element_for_each_thread(Q, K, S, row0, col0, br, bc, scale):
    e = cuda.threadIdx.x
    if e < br * bc:
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__divides_by_the_rows(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // br % br, e % br % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__reads_before_it_looks(Q, K, S, row0, col0, br, bc, scale):
    """Guards the store but not the load, as if every tile were 8 columns wide."""
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * 8, T):
        r, c = e // 8, e % 8
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[min(col0 + c, len(K) - 1), x]
        if c < bc:
            S[row0 + r, col0 + c] = scale * product


@cuda.jit
def scores_step__product_of_rows_with_an_operator(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // bc, e % bc
        S[row0 + r, col0 + c] = scale * (Q[row0 + r] @ K[col0 + c])


@cuda.jit
def scores_step__forgets_where_the_tile_starts(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product += Q[row0 + r, x] * K[col0 + c, x]
        S[r, c] = scale * product


@cuda.jit
def scores_step__scales_in_every_round(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // bc, e % bc
        product = 0.0
        for x in range(Q.shape[1]):
            product = scale * (product + Q[row0 + r, x] * K[col0 + c, x])
        S[row0 + r, col0 + c] = product


def race_of_case4__one_thread():
    return 6, 1, "m = max(m, x[c])", "x[c] = X[row, start + c]"


def race_of_case4__the_last_lines():
    return 6, 2, "ml[0] = m", "P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]"


def race_of_case4__longer_than_needed():
    return 8, 64, "m = max(m, x[c])", "x[c] = X[row, start + c]"


def race_of_case4__both_lines_that_read():
    return 6, 2, "m = max(m, x[c])", "p_sum += math.exp(x[c] - m)"


def race_of_case4__no_line_of_it():
    return 6, 2, "m = max(x[c], m)", "x[c] = X[row, start + c]"


def race_of_case4__a_piece_of_one_more():
    return 5, 2, "m = max(m, x[c])", "x[c] = X[row, start + c]"


@cuda.jit
def repair_of_case4__as_it_was(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if t == 0:
        ml[0], ml[1] = -math.inf, 0.0
    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        cuda.syncthreads()
        if t == 0:
            join(x, ml, size)
    cuda.syncthreads()
    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit
def repair_of_case4__one_barrier_too_many(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if t == 0:
        ml[0], ml[1] = -math.inf, 0.0
    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        cuda.syncthreads()
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        cuda.syncthreads()
        if t == 0:
            join(x, ml, size)
    cuda.syncthreads()
    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit
def repair_of_case4__only_the_last_barrier_of_the_loop(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if t == 0:
        ml[0], ml[1] = -math.inf, 0.0
    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        if t == 0:
            join(x, ml, size)
        cuda.syncthreads()
    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit
def repair_of_case4__barrier_in_a_branch(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if t == 0:
        ml[0], ml[1] = -math.inf, 0.0
    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        cuda.syncthreads()
        if t == 0:
            join(x, ml, size)
            cuda.syncthreads()
        else:
            cuda.syncthreads()
    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit
def repair_of_case4__barrier_before_the_sums(X, P):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if t == 0:
        ml[0], ml[1] = -math.inf, 0.0
    for start in range(0, N, PIECE):
        size = min(PIECE, N - start)
        cuda.syncthreads()
        for c in range(t, size, T):
            x[c] = X[row, start + c]
        cuda.syncthreads()
        if t == 0:
            join(x, ml, size)
    for c in range(t, N, T):
        P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit
def repair_of_case4__thread_0_alone(X, P):
    row, N = cuda.blockIdx.x, X.shape[1]
    x, ml = cuda.shared.array(PIECE, float64), cuda.shared.array(2, float64)
    if cuda.threadIdx.x == 0:
        ml[0], ml[1] = -math.inf, 0.0
        for start in range(0, N, PIECE):
            size = min(PIECE, N - start)
            for c in range(size):
                x[c] = X[row, start + c]
            join(x, ml, size)
        for c in range(N):
            P[row, c] = math.exp(X[row, c] - ml[0]) / ml[1]


@cuda.jit(device=True)
def join(x, ml, size):
    """What thread 0 does with a piece."""
    m = ml[0]
    for c in range(size):
        m = max(m, x[c])
    p_sum = 0.0
    for c in range(size):
        p_sum += math.exp(x[c] - m)
    ml[1] = math.exp(ml[0] - m) * ml[1] + p_sum
    ml[0] = m
