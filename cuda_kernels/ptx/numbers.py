"""Numbers of 16 and 32 bits: conversions, one at a time and in pairs, and 2ˣ.

A pair is a uint32 that holds two 16-bit numbers, the first in its lower half: what a lane brings to a matrix product.
"""

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels.switch import SIMULATED

SMALLEST = np.finfo(np.float32).tiny                    # of the numbers that are not flushed to 0

if SIMULATED:
    def bfloat16_to_float32(word):
        """The float32 of the same value; word is a uint16."""
        return (np.uint32(word) << np.uint32(16)).view(np.float32)

    def float32_to_bfloat16(x):
        """x rounded to the nearest bfloat16, ties to even; a uint16."""
        return np.array(x, np.float32).astype(bfloat16).view(np.uint16)[()]

    def pair(dtype):
        """The function (x, y) → both rounded to nearest, ties to even, as a pair; float16 or bfloat16."""
        def pair_of(x, y):
            with np.errstate(over="ignore"):            # past 65504 float16 is inf
                return np.array([x, y], np.float32).astype(dtype).view(np.uint32)[0]
        return pair_of

    def exp2(x):
        """2ˣ of a float32, right to 2 units in the last place; subnormal numbers are 0. The model rounds once."""
        x = np.float32(0) if abs(x) < SMALLEST else x
        with np.errstate(all="ignore"):
            y = np.exp2(np.float32(x))
        return np.float32(0) if y < SMALLEST else y

else:
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from cuda_kernels.ptx.assembly import emit, ir

    @intrinsic
    def bfloat16_to_float32(typing_context, word):
        """The float32 of the same value; word is a uint16."""
        def generate(context, builder, signature, arguments):
            upper = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
            return builder.bitcast(upper, ir.FloatType())

        return types.float32(types.uint16), generate

    @intrinsic
    def float32_to_bfloat16(typing_context, x):
        """x rounded to the nearest bfloat16, ties to even; a uint16. Needs compute capability 8.0."""
        return types.uint16(types.float32), emit("cvt.rn.bf16.f32 $0, $1;", "=h,f")

    def pair(dtype):
        """The function (x, y) → both rounded to nearest, ties to even, as a pair; float16 or bfloat16."""
        name = "bf16x2" if dtype == bfloat16 else "f16x2"

        @intrinsic
        def pair_of(typing_context, x, y):
            # PTX names the upper half first
            return types.uint32(types.float32, types.float32), emit(f"cvt.rn.{name}.f32 $0, $2, $1;", "=r,f,f")

        return pair_of

    @intrinsic
    def exp2(typing_context, x):
        """2ˣ of a float32, right to 2 units in the last place; subnormal numbers are 0."""
        return types.float32(types.float32), emit("ex2.approx.ftz.f32 $0, $1;", "=f,f")
