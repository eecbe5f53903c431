"""A kernel with one fault for each tool of compute-sanitizer: what sanitize.py must find, or it would find nothing.

    python sanitize_planted.py memcheck|racecheck|synccheck
"""

import sys

import numpy as np
from numba import cuda, float32


@cuda.jit
def memcheck(x):
    x[cuda.threadIdx.x + 1_000_000] = 1                             # far past the end


@cuda.jit
def racecheck(x):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]                                                     # and no barrier
    x[t] = s[63 - t]


@cuda.jit
def synccheck(x):
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()                                          # for half of a warp
    x[cuda.threadIdx.x] = 1


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]][1, 64](np.zeros(64, np.float32))
    except Exception as error:
        print(type(error).__name__)
    print("1 problems")
