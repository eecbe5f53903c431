"""How an instruction gets into a kernel: inline assembly in what Numba hands to the compiler. For the device only."""

from llvmlite import ir
from numba.cuda import cgutils, types

__all__ = ["address", "call", "emit", "global_address", "ir", "shared_address"]

INT32, WORD = ir.IntType(32), 2                         # bytes of what tiles hold
GLOBAL, SHARED = (ir.PointerType(ir.IntType(8), addrspace=n) for n in (1, 3))


def call(builder, text, constraints, result, operands):
    """Put the instruction here; result is an LLVM type. Neither left out nor moved across others of this kind."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def emit(text, constraints):
    """The generator of an intrinsic that is one instruction on registers, of the types of its signature."""
    def generate(context, builder, signature, arguments):
        result = context.get_value_type(signature.return_type)
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return builder.call(ir.InlineAsm(kind, text, constraints), arguments)
    return generate


def address(context, builder, array_type, array, index_type, index):
    """A pointer to the cell of an array at this index: an integer, or a tuple of integers, of any width."""
    array = context.make_array(array_type)(context, builder, array)
    kinds = list(index_type) if isinstance(index_type, types.BaseTuple) else [index_type]
    parts = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else [index]
    parts = [context.cast(builder, part, kind, types.intp) for part, kind in zip(parts, kinds, strict=True)]
    shape, strides = (cgutils.unpack_tuple(builder, x) for x in (array.shape, array.strides))
    return cgutils.get_item_pointer2(context, builder, array.data, shape, strides, array_type.layout, parts)


def global_address(context, builder, *array_and_index):
    """The 64-bit address of a cell in global memory; arguments as for `address`."""
    pointer = address(context, builder, *array_and_index)
    return builder.ptrtoint(builder.addrspacecast(pointer, GLOBAL), ir.IntType(64))


def shared_address(context, builder, array_type, array, index_type, index):
    """The 32-bit address of a cell of a one-dimensional shared array of 16-bit numbers."""
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.ptrtoint(builder.addrspacecast(data, SHARED), INT32)
    index = context.cast(builder, index, index_type, types.int32)
    return builder.add(start, builder.mul(index, ir.Constant(INT32, WORD)))
