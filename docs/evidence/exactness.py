"""What is computed: by the loops, and by the conformance kit."""

import numpy as np

import fa_ref
from evidence.common import counted, errors_with_outliers, same
from fa_ref.testing import adapters
from fa_ref.testing.running import FAILED, OK, try_property


@counted
def same_function(apart_below=1e-13):
    """FlashAttention-2 against standard attention in float64."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 300, 64))
    outs = [fa_ref.forward(q, k, v, algorithm=name, causal=True, block_q=64, block_k=48).out
            for name in ("standard", "fa1", "fa2", "fa3")]
    apart = max(float(abs(out - outs[0]).max()) for out in outs)
    assert 0 < apart < apart_below, apart
    return ("300 queries and keys in float64: the three versions are within 10⁻¹³ of standard attention, "
            "and not equal to it bit for bit")


@counted
def rounding_is_better(times=1.3):
    """Errors in 16 bits, FA3's Table 3 at a small size."""
    errors, _ = errors_with_outliers()
    ratio = errors["baseline FP16"] / errors["FA2 FP16"]
    same(ratio, times, 1)
    return (f"inputs of FA3's Table 3 with 1024 keys, d = 64, 16 bits: the error of standard attention is {times} "
            "times that of FlashAttention-2")


@counted
def repeats_are_equal_and_order_matters(equal=True):
    """The forward pass twice, and dQ added up in two orders: what atomics leave open."""
    q, k, v, dout = np.random.default_rng(0).standard_normal((4, 1, 1, 64, 16)).astype(np.float32)
    tiles = {"block_q": 16, "block_k": 16}
    one, two = (fa_ref.forward(q, k, v, **tiles) for _ in range(2))
    same(bool((one.out == two.out).all()), equal)
    first, last = (fa_ref.backward(dout, q, k, v, *one, **tiles, reverse=r).dq for r in (False, True))
    assert (first != last).any() and np.allclose(first, last, atol=1e-5)
    return ("float32: forward twice gives the same bits. dQ added up from the first tile of keys to the last, and from "
            "the last to the first, does not")


@counted
def gelu_is_no_attention(verdicts=(OK, FAILED)):
    """A property of attention, asked of FlashAttention-2 and of FlashAttention-2 with GELU in it."""
    def with_gelu(q, k, v, **options):
        out, lse = fa_ref.forward(q, k, v, **options)
        return 0.5 * out * (1 + np.tanh(np.sqrt(2 / np.pi) * (out + 0.044715 * out**3))).astype(out.dtype), lse

    found = tuple(try_property("linear_in_the_values", *adapters.fa_ref(fn, dtypes=["float64"]), examples=40).status
                  for fn in (fa_ref.forward, with_gelu))
    same(found, verdicts)
    return ("attention is linear in V. FlashAttention-2 passes that property of the kit on 40 problems, "
            "FlashAttention-2 with a GELU on its output is rejected: fused, it would compute another function")
