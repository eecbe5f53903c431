"""What the simulator costs, beside Numba's own scheduler: `python -m cuda_kernels speed`."""

import time

import numpy as np
from numba import cuda, float32

import cuda_kernels
from cuda_kernels import simulator


@cuda.jit
def barriers(out, repeats):
    """Hand a row of numbers round, with two barriers each time."""
    s = cuda.shared.array(32, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    s[t] = t
    for _ in range(repeats):
        cuda.syncthreads()
        value = s[(t + 1) % T]
        cuda.syncthreads()
        s[t] = value
    out[t] = s[t]


@cuda.jit
def products(A, B, out):
    """A Bᵀ, one score at a time."""
    for e in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        r, c = e // out.shape[1], e % out.shape[1]
        total = float32(0)
        for x in range(A.shape[1]):
            total += A[r, x] * B[c, x]
        out[r, c] = total


def seconds(launch, repeats=3):
    """The shortest of a few runs."""
    def once():
        start = time.perf_counter()
        launch()
        return time.perf_counter() - start
    return min(once() for _ in range(repeats))


def measure():
    """[(what, seconds here, seconds with Numba's own scheduler)]"""
    A = np.ones((64, 16), np.float32)
    cases = [(f"60 barriers, {T} threads", lambda T=T: barriers[1, T](np.zeros(T, np.float32), 30)) for T in (8, 32)]
    cases += [(f"65,536 multiply-adds, threads: {T}",
               lambda T=T: products[1, T](A, A, np.zeros((64, 64), np.float32))) for T in (1, 8)]
    rows = []
    for name, launch in cases:
        ours = seconds(launch)
        with simulator.stock():
            rows.append((name, ours, seconds(launch)))
    return rows


def main():
    """Print the table, and whether a simulated teaching kernel is quick enough; returns 0: a time is not a test."""
    print("Numba's simulator with and without the parts of cuda_kernels/simulator:")
    for name, ours, theirs in measure():
        met = "" if "barriers" not in name else f"   at least 5: {'met' if theirs >= 5 * ours else 'not met'}"
        print(f"  {name:34}{ours:8.3f} s    Numba's own {theirs:6.3f} s    {theirs / ours:5.1f} ×{met}")
    x = np.ones((3, 1, 1, 64, 16), np.float32)
    took = seconds(lambda: cuda_kernels.forward(*x, kernel="fa2", threads=8), 1)
    print(f"  fa2, N = 64, d = 16, 8 threads    {took:8.3f} s    at most 1.5: {'met' if took <= 1.5 else 'not met'}")
    return 0
