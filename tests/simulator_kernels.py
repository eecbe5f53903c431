"""Small kernels that the simulator's tests run: right ones, and the same with one fault each."""

from cuda_kernels import simulator  # noqa: I001  (first: it decides before Numba is imported)

import inspect
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config

if not config.ENABLE_CUDASIM:
    pytest.skip("Numba is set to a real GPU; the simulator's tests need FA_REF_CUDA=sim", allow_module_level=True)
simulator.install()

TILE = 4


def line(kernel, text):
    """The number of the one line of a kernel that contains `text`."""
    lines, start = inspect.getsourcelines(kernel.py_func)
    found = [start + n for n, code in enumerate(lines) if text in code]
    assert len(found) == 1, (text, found)
    return found[0]


def run_script(path, source, *arguments, stdin="", timeout=60):
    """Run a program that uses the simulator in a process of its own."""
    first_line = "from cuda_kernels import simulator; from numba import cuda; import numpy as np; simulator.install()"
    path.write_text(first_line + source)                        # the source begins with the end of this line
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "FA_REF_CUDA": "sim",
                   "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, *arguments, path], input=stdin, env=environment, timeout=timeout,
                          capture_output=True, text=True, check=False)


# --- right ---

@cuda.jit
def tree_sum(x, out):
    s = cuda.shared.array(64, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    s[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    while T > 1:
        half = (T + 1) // 2
        if t + half < T:
            s[t] += s[t + half]
        T = half
        cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def tiled_matmul(A, B, C):
    a = cuda.shared.array((TILE, TILE), float32)
    b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, A.shape[1], TILE):
        a[y, x] = A[row, k + x]
        b[y, x] = B[k + y, column]
        cuda.syncthreads()
        for i in range(TILE):
            total += a[y, i] * b[i, x]
        cuda.syncthreads()
    C[row, column] = total


@cuda.jit(device=True)
def warp_sum(value):
    step = 16
    while step:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    return value


@cuda.jit
def shuffle_sum(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    value = warp_sum(x[cuda.blockIdx.x, t])
    if t % 32 == 0:
        s[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = warp_sum(s[t] if t < cuda.blockDim.x // 32 else float32(0))
        if t == 0:
            out[cuda.blockIdx.x] = value


@cuda.jit
def histogram(x, counts):
    s = cuda.shared.array(8, np.int32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    for bin in range(t, 8, T):
        s[bin] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(s, x[i], 1)
    cuda.syncthreads()
    for bin in range(t, 8, T):
        cuda.atomic.add(counts, bin, s[bin])


@cuda.jit
def softmax_rows(x, scale):
    s = cuda.shared.array(0, float32)                           # dynamic: the row, then one number per thread
    t, T, n = cuda.threadIdx.x, cuda.blockDim.x, x.shape[1]
    row, part = s[:n], s[n:]
    total = float32(0)
    for j in range(t, n, T):
        row[j] = math.exp(x[cuda.blockIdx.x, j] * scale)
        total += row[j]
    part[t] = total
    cuda.syncthreads()
    total = float32(0)
    for i in range(T):
        total += part[i]
    for j in range(t, n, T):
        x[cuda.blockIdx.x, j] = row[j] / total


# --- wrong ---

@cuda.jit
def load_without_barrier(x, out):
    s = cuda.shared.array(64, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    s[t] = x[t]                                                 # writes
    out[t] = s[T - 1 - t]                                       # reads


@cuda.jit
def sum_without_barrier(x, out):
    s = cuda.shared.array(64, float32)
    t, half = cuda.threadIdx.x, cuda.blockDim.x // 2
    s[t] = x[t]
    cuda.syncthreads()
    while half:
        if t < half:
            s[t] += s[t + half]                                 # both
        half //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def tile_used_too_soon(x, out):
    s = cuda.shared.array(64, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    total = float32(0)
    for k in range(0, x.size, T):
        s[t] = x[k + t]                                         # writes
        cuda.syncthreads()
        for i in range(T):
            total += s[i]                                       # reads
    out[t] = total


@cuda.jit
def add_without_atomic(x, out):
    out[0] += x[cuda.blockIdx.x]                                # both


@cuda.jit
def warp_without_syncwarp(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]                                                 # writes
    value = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)             # waits for the lanes, but orders no memory
    out[t] = value + s[t ^ 1]                                   # reads


@cuda.jit
def branched_barrier(x, out):
    t = cuda.threadIdx.x
    if t < 2:
        out[t] = x[t]
        cuda.syncthreads()                                      # some
    else:
        cuda.syncthreads()                                      # the others
        out[t] = x[t]


@cuda.jit
def early_return(x, out):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    cuda.syncthreads()                                          # not all
    out[t] = x[t]


@cuda.jit
def unwritten(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < x.size - 1:
        s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[t]                                               # reads
