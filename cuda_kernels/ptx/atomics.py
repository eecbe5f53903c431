"""Atomic additions to global memory, which return nothing.

Numba's own `cuda.atomic.add` takes an array in any memory, and asks at every call which one it is.

PTX ISA, "red"; four at once from compute capability 9.0 on.
"""

from functools import cache

from cuda_kernels.switch import SIMULATED

FOUR_AT_ONCE = (9, 0)                                   # the compute capability from which on one instruction does it

if SIMULATED:
    from cuda_kernels.ptx.warp import aligned, cells

    def atomic_add(array, index, x):
        """array[index] += x, float32 in global memory, in one go. In which order several are added is open."""
        cell = array.atomic_cell(index)
        cell += x

    @cache
    def atomic_add_four(capability):
        """The function (array, index, x0, x1, x2, x3): array[…, n … n + 3] += x0 … x3, at a multiple of 16 bytes.

        For cards of this compute capability: one instruction, or four.
        """
        def add_four(array, index, x0, x1, x2, x3):
            aligned(cells(array, index, 4), 16, "atomic_add_four")
            for n, x in enumerate((x0, x1, x2, x3)):
                atomic_add(array, (*index[:-1], index[-1] + n), x)

        return add_four

else:
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from cuda_kernels.ptx.assembly import call, global_address, ir

    ONE, FOUR = "red.global.add.f32 [$0], $1;", "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};"

    @intrinsic
    def atomic_add(typing_context, array, index, x):
        """array[index] += x, float32 in global memory, in one go. In which order several are added is open."""
        def generate(context, builder, signature, arguments):
            array_type, index_type, _ = signature.args
            place = global_address(context, builder, array_type, arguments[0], index_type, arguments[1])
            call(builder, ONE, "l,f,~{memory}", ir.VoidType(), [place, arguments[2]])
            return context.get_dummy_value()

        return types.void(array, index, types.float32), generate

    @cache
    def atomic_add_four(capability):
        """The function (array, index, x0, x1, x2, x3): array[…, n … n + 3] += x0 … x3, at a multiple of 16 bytes.

        For cards of this compute capability: one instruction, or four.
        """
        at_once = capability >= FOUR_AT_ONCE

        @intrinsic
        def add_four(typing_context, array, index, x0, x1, x2, x3):
            def generate(context, builder, signature, arguments):
                array_type, index_type, *_ = signature.args
                array, index, *numbers = arguments
                place = global_address(context, builder, array_type, array, index_type, index)
                if at_once:
                    call(builder, FOUR, "l,f,f,f,f,~{memory}", ir.VoidType(), [place, *numbers])
                else:
                    for n, x in enumerate(numbers):
                        further = builder.add(place, ir.Constant(place.type, 4 * n))
                        call(builder, ONE, "l,f,~{memory}", ir.VoidType(), [further, x])
                return context.get_dummy_value()

            return types.void(array, index, *[types.float32] * 4), generate

        return add_four
