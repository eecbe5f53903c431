"""Wrong answers to notebook 09; each must be rejected."""

import cuda_kernels  # noqa: F401, I001  (first: it decides before Numba is imported)

import math

from altered import altered
from detective import case4
from numba import cuda, float64
from solutions import nb09

PIECE = 4
LOOP, ELEMENT = "for e in range(t, br * bc, T):", "r, c = e // bc, e % bc"
SUM = "product += Q[row0 + r, x] * K[col0 + c, x]"
STORE = "S[row0 + r, col0 + c] = scale * product"


def scores(*changes):
    """The right answer to scores_step, but for these changes."""
    return altered(nb09, *changes).scores_step


scores_step__forgets_the_stride = scores((LOOP, "for e in range(t, br * bc):"))
scores_step__every_thread_does_all = scores((LOOP, "for e in range(0, br * bc):"))
scores_step__thread_0_does_all = scores((LOOP, "for e in range(br * bc if t == 0 else 0):"))
scores_step__assumes_that_T_divides = scores((LOOP, "for e in range(t, br * bc // T * T, T):"))
scores_step__one_element_for_each_thread = scores((LOOP, "for e in range(t, min(t + 1, br * bc)):"))
scores_step__divides_by_the_rows = scores((ELEMENT, "r, c = e // br % br, e % br % bc"))
scores_step__reads_before_it_looks = scores(                        # guards the store, as if all tiles had 8 columns
    (LOOP, "for e in range(t, br * 8, T):"), (ELEMENT, "r, c = e // 8, e % 8"),
    (SUM, "product += Q[row0 + r, x] * K[min(col0 + c, len(K) - 1), x]"),
    (STORE, "if c < bc:\n            S[row0 + r, col0 + c] = scale * product"))
scores_step__forgets_where_the_tile_starts = scores((STORE, "S[r, c] = scale * product"))
scores_step__scales_in_every_round = scores(
    (SUM, "product = scale * (product + Q[row0 + r, x] * K[col0 + c, x])"), (STORE, "S[row0 + r, col0 + c] = product"))


@cuda.jit
def scores_step__product_of_rows_with_an_operator(Q, K, S, row0, col0, br, bc, scale):
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, br * bc, T):
        r, c = e // bc, e % bc
        S[row0 + r, col0 + c] = scale * (Q[row0 + r] @ K[col0 + c])


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


LOAD = "        for c in range(t, size, T):\n            x[c] = X[row, start + c]\n"
BARRIER = "        cuda.syncthreads()\n"
END = ("        # was behind the loop. Here nobody loads the next piece before thread 0 is done with this one\n"
       "        cuda.syncthreads()\n")


def repair(*changes):
    """The right answer to repair_of_case4, but for these changes."""
    return altered(nb09, *changes).repair_of_case4


repair_of_case4__as_it_was = case4.row_softmax
repair_of_case4__one_barrier_too_many = repair((LOAD, BARRIER + LOAD))
repair_of_case4__only_the_last_barrier_of_the_loop = repair((LOAD + BARRIER, LOAD))
repair_of_case4__barrier_in_a_branch = repair(
    (END, "            cuda.syncthreads()\n        else:\n            cuda.syncthreads()\n"))
repair_of_case4__barrier_before_the_sums = repair((LOAD, BARRIER + LOAD), (END, ""))


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
