"""What Numba has no name for: instructions of the GPU as functions that kernels call, each with a model in NumPy.

On the device a function becomes the instruction; in the simulator its model runs. Both take and return the same bits.

bfloat16 crosses into kernels as 16-bit words (uint16): the upper half of a float32.
"""

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels.switch import SIMULATED

if SIMULATED:
    def bfloat16_to_float32(word):
        """The float32 of the same value; word is a uint16."""
        return (np.uint32(word) << np.uint32(16)).view(np.float32)

    def float32_to_bfloat16(x):
        """x rounded to the nearest bfloat16, ties to even; a uint16."""
        return np.array(x, np.float32).astype(bfloat16).view(np.uint16)[()]

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

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
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
            return builder.call(ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f"), arguments)

        return types.uint16(types.float32), generate
