"""How evidence is entered, and what is measured once for several functions."""

import os
from functools import cache

os.environ.setdefault("FA_REF_CUDA", "sim")                             # barriers are counted in the simulator
import numpy as np

import cuda_kernels
from cuda_kernels import counts
from fa_ref import fa1, fa2, fp8_errors, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

A100, H100 = 312, 989                                                   # TFLOP/s of dense 16-bit products
EVIDENCE = {}                                                           # name: (function, its kind)


def counted(function):
    """Enter a function that runs this repository's code."""
    EVIDENCE[function.__name__] = function, "counted"
    return function


def arithmetic(function):
    """Enter a function that checks arithmetic on printed numbers."""
    EVIDENCE[function.__name__] = function, "arithmetic"
    return function


def same(found, expected, digits=None):
    """AssertionError unless what was found is what was expected; digits: after the point, of floats."""
    rounded = found if digits is None else np.round(found, digits).tolist()
    assert rounded == (expected if digits is None else np.round(expected, digits).tolist()), \
        f"found {rounded}, expected {expected}"


@cache
def metered(name, N=512, d=64, Br=64, Bc=64, dtype="float32", backward=False):
    """The Ledger of one head without a mask, forward or backward."""
    core = {"standard": standard, "fa1": fa1, "fa2": fa2}[name]
    rng = np.random.default_rng(0)
    Q, K, V, dO = rng.standard_normal((4, N, d)).astype(dtype)
    rule = Rule(N, N, scale=d**-0.5)
    answer = core.forward_head(Q, K, V, rule, Br, Bc) if backward else ()
    with Ledger() as led:
        if backward:
            core.backward_head(led.hbm(dO, "dO"), led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"),
                               *(led.hbm(x) for x in answer), rule, Br, Bc)
        else:
            core.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), rule, Br, Bc)
    return led


@cache
def errors_with_outliers():
    """{method: error} for one draw of 1024 queries and keys, d = 64; and how large the output is."""
    Q, K, V = fp8_errors.inputs(0, 1024, 64)
    truth = fp8_errors.standard(Q, K, V, np.dtype(np.float64))
    return fp8_errors.errors(0, N=1024, d=64), float(np.sqrt(np.mean(truth**2)))


@cache
def warps_counted():
    """{(kernel, warps): OnChip} of a tile of 8 queries and one of 8 keys, d = dv = 16, counted in the simulator."""
    if not cuda_kernels.SIMULATED:
        raise RuntimeError("barriers are counted in the simulator: start Python with FA_REF_CUDA=sim")
    return {(kernel, warps): found for kernel, warps, found in counts.rows(Br=8, Bc=8, d=16, dv=16, warps=(1, 4))}
