"""FlashAttention-3 in FP8: run in NumPy."""

from functools import cache
from unittest import mock

import numpy as np

from evidence.common import counted, errors_with_outliers, same
from fa_ref import fa3, fa3_fp8, fp8
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule


@cache
def fp8_head():
    """A head of 64 queries and keys, d = 32, in 16 bits and prepared in FP8."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, 64, 32)).astype(np.float16)
    return (Q, K, V), fp8.prepare(Q, K, V, 16, 16)


@counted
def fp8_halves_bytes_not_work(bytes_ratio=2, flops_ratio=1):
    """Bytes of Q, K and V that are loaded, and FLOPs of products."""
    sixteen, eight = fp8_head()
    rule, found = Rule(64, 64, scale=32**-0.5), []
    for core, head in ((fa3, sixteen), (fa3_fp8, eight)):
        with Ledger() as led:
            core.forward_head(*(led.hbm(np.asarray(x)) for x in head), rule, 16, 16)
        found.append((sum(r.read_bytes for r in led.arrays[:3]), led.matmul_flops))
    (bytes_16, flops_16), (bytes_8, flops_8) = found
    same([bytes_16 / bytes_8, flops_16 / flops_8], [bytes_ratio, flops_ratio])
    return (f"64 queries and keys, d = 32: {bytes_16:,} bytes of Q, K and V are loaded in 16 bits, {bytes_8:,} in 8; "
            f"{flops_16:,} FLOPs of products in both")


@counted
def products_in_8_bits(inputs="float8_e4m3fn", statistics="float32"):
    """dtypes of what goes into the products of FlashAttention-3 in FP8 (P: its rounding is watched), and of O and L."""
    _, head = fp8_head()
    with mock.patch.object(fa3_fp8, "rounded", wraps=fa3_fp8.rounded) as rounding:
        O, L = fa3_fp8.forward_head(*head, Rule(64, 64, scale=32**-0.5), 16, 16)
    of_P = {call.args[1] for call in rounding.call_args_list}
    same({np.dtype(x).name for x in (*(x.dtype for x in head[:3]), *of_P)}, {inputs})
    same({O.dtype.name, L.dtype.name}, {statistics})
    return f"Q, K, V and P go into the products as {inputs}; O and L come out as {statistics}"


@counted
def rotation_helps_outliers(times=1.6):
    """What incoherent processing gains on inputs with outliers."""
    errors, _ = errors_with_outliers()
    same(errors["FA3 FP8 without incoherent processing"] / errors["FA3 FP8"], times, 1)
    return f"inputs of FA3's Table 3 with 1024 keys, d = 64: without the rotation the error is {times} times as large"


@counted
def fp8_error_is_percents(percent=6):
    """The error of an FP8 output against the size of the output."""
    errors, size = errors_with_outliers()
    share = 100 * errors["FA3 FP8"] / size
    same(share, percent, 0)
    return (f"inputs of FA3's Table 3 with 1024 keys, d = 64: the root mean squared error in FP8 is {percent}% of the "
            "root mean square of the output. How much a task loses is another question, which the paper does not ask")
