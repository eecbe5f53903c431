"""How wrong is attention in 16 and in 8 bits? The experiment behind Table 3 of the FlashAttention-3 paper.

    from fa_ref.fp8_errors import errors
    errors(seed=0)                      {method: root mean squared error of O}; about a minute
    errors(seed=0, N=1024, d=64)        a second

Entries of Q, K and V are normal, and one in a thousand gets a second normal number, of standard deviation 10, on top:
the outliers of language models. The truth is float64 on these inputs before any rounding. One head, no mask, scale
1/√d. The paper states neither N nor d; at N = 8192 and d = 128 our errors come out near those it prints.

What FP8 gains here is the rotation's, and it gains because there are outliers. On the real activations in `data`, whose
largest entries are 3 to 7 standard deviations, the four FP8 methods lie within 15 % of each other, as means over the
heads. Scales by tile move the error either way, with the draw.
"""

import math

import numpy as np

from fa_ref import fa2, fa3, fa3_fp8, fp8
from fa_ref.inputs import rounded
from fa_ref.options import check_whole
from fa_ref.scores import Rule

ROWS, TILE = 1024, 128  # queries at a time, for speed; and rows of a tile wherever tiles change the numbers
HALF = np.dtype(np.float16)


def inputs(seed, N, d):
    """Q, K, V (N, d) in float64: N(0, 1) + N(0, 10²) · Bernoulli(0.001)."""
    rng = np.random.default_rng(seed)
    shape = (3, N, d)
    return rng.standard_normal(shape) + 10 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


def standard(Q, K, V, between):
    """O (N, d) as a library of separate operations makes it: S, scaled S and P are stored in the dtype `between`."""
    O = np.empty_like(V)
    for n in range(0, len(Q), ROWS):
        S = (Q[n:n + ROWS] @ K.T).astype(between)                       # (ROWS, N)
        S = (S * between.type(1 / math.sqrt(Q.shape[1]))).astype(V.dtype)
        P = np.exp(S - S.max(axis=1, keepdims=True))
        P = P / P.sum(axis=1, keepdims=True)
        O[n:n + ROWS] = rounded(P, between) @ V
    return O


def standard_16(Q, K, V):
    """All in FP16, with products summed in float32."""
    return standard(*(rounded(x, HALF).astype(np.float32) for x in (Q, K, V)), HALF).astype(HALF)


def standard_8(Q, K, V):
    """Q, K and V in e4m3 with one scale each, what stands between in FP16."""
    return standard(*(fp8.dequantise(*fp8.quantise(x, "tensor"), "tensor") for x in (Q, K, V)), HALF)


def flash_16(core):
    """A core on FP16 inputs; it keeps S, m, l and acc in float32 and rounds P."""
    def attention(Q, K, V):
        rule = Rule(len(Q), len(K), scale=1 / math.sqrt(Q.shape[1]))
        return core.forward_head(*(x.astype(HALF) for x in (Q, K, V)), rule, ROWS, TILE)[0].astype(HALF)
    return attention


def flash_8(granularity="block", rotate=True):
    """FlashAttention-3 in e4m3."""
    def attention(Q, K, V):
        rule = Rule(len(Q), len(K), scale=1 / math.sqrt(Q.shape[1]))
        signs = fp8.random_signs(Q.shape[1]) if rotate else None
        head = fp8.prepare(Q, K, V, TILE, TILE, granularity, signs)
        return fa3_fp8.forward_head(*head, rule, TILE, TILE)[0]
    return attention


METHODS = {
    "baseline FP16": standard_16,
    "FA2 FP16": flash_16(fa2),
    "FA3 FP16": flash_16(fa3),
    "baseline FP8": standard_8,
    "FA3 FP8": flash_8(),
    "FA3 FP8 without block quantisation": flash_8(granularity="head"),
    "FA3 FP8 without incoherent processing": flash_8(rotate=False),
}


def errors(seed, N=8192, d=128):
    """{method: root mean squared error of O} for one draw of inputs. N: queries and keys; d: a power of two.

    Below 1 GB of memory. Raises ValueError or TypeError for sizes that are not whole numbers and a d without rotation.
    """
    fp8.check_power_of_two(check_whole("d", d, 1))
    Q, K, V = inputs(seed, check_whole("N", N, 1), d)
    truth = standard(Q, K, V, np.dtype(np.float64))
    wrong = {name: method(Q, K, V).astype(np.float64) - truth for name, method in METHODS.items()}
    return {name: float(np.sqrt(np.mean(x * x))) for name, x in wrong.items()}
