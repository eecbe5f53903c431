"""Additions to global memory that nobody comes between, and that nothing comes back from.

Numba's own `cuda.atomic.add` takes an array in any memory, and asks at every call which one it is.

PTX ISA, "red".
"""

from cuda_kernels.switch import SIMULATED

if SIMULATED:
    def atomic_add(array, index, x):
        """array[index] += x, float32 in global memory, in one go. In which order several are added is open."""
        cell = array.atomic_cell(index)
        cell += x

else:
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from cuda_kernels.ptx.assembly import call, global_address, ir

    @intrinsic
    def atomic_add(typing_context, array, index, x):
        """array[index] += x, float32 in global memory, in one go. In which order several are added is open."""
        def generate(context, builder, signature, arguments):
            array_type, index_type, _ = signature.args
            place = global_address(context, builder, array_type, arguments[0], index_type, arguments[1])
            call(builder, "red.global.add.f32 [$0], $1;", "l,f,~{memory}", ir.VoidType(), [place, arguments[2]])
            return context.get_dummy_value()

        return types.void(array, index, types.float32), generate
