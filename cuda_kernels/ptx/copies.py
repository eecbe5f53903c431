"""From global to shared memory without a detour through registers, while the thread goes on; and wide loads and stores.

`copy_async` begins a copy of 16 bytes. `commit_copies` makes one group of all copies that this thread has begun since
the last commit; `wait_copies(n)` waits until at most n of its latest groups are still under way. What has arrived may
then be read by this thread; by others after a barrier that comes after the wait.

PTX ISA, "cp.async"; from compute capability 8.0 on.
"""

import numpy as np

from cuda_kernels.switch import SIMULATED

CHUNK = 8                                               # numbers of 16 bits in 16 bytes

if SIMULATED:
    from cuda_kernels.ptx.warp import aligned, cells
    from cuda_kernels.simulator import running

    def copy_async(tile, at, source, index, count):
        """Begin: tile[at … at + 7] = the `count` (0 … 8) numbers of `source` from this index on, then zeros.

        Both sides lie at multiples of 16 bytes. With a count of 0 the source is not read, whatever the index.
        """
        target = aligned(cells(tile, at, CHUNK), 16, "copy_async")
        numbers = np.zeros(CHUNK, target.dtype)
        if count:
            numbers[:count] = aligned(cells(source, index, count), 16, "copy_async").reading()
        running().copies.begin(target, numbers)

    def commit_copies():
        """Make one group of the copies begun since the last commit."""
        running().copies.commit()

    def wait_copies(groups):
        """Wait until at most so many of this thread's latest groups are under way; a constant."""
        running().copies.wait(groups)

    def store_pair(array, index, pair):
        """array[…, x] and array[…, x + 1] = the halves of a pair, in one store; x is even, at a multiple of 4 bytes."""
        target = aligned(cells(array, index, 2), 4, "store_pair")
        target[:] = np.array([pair], np.uint32).view(target.dtype)

    def store_four(array, index, x0, x1, x2, x3):
        """array[…, x … x + 3] = x0 … x3, float32, in one store, at a multiple of 16 bytes."""
        aligned(cells(array, index, 4), 16, "store_four")[:] = np.array([x0, x1, x2, x3], np.float32)

    def load_chunk(tile, at):
        """The 8 numbers of 16 bits tile[at … at + 7], a tuple, in one load; at a multiple of 16 bytes."""
        return tuple(aligned(cells(tile, at, CHUNK), 16, "load_chunk").reading())

    def store_chunk(array, index, tile, at):
        """array[…, x … x + 7] = tile[at … at + 7], in one load and one store; both at multiples of 16 bytes."""
        target = aligned(cells(array, index, CHUNK), 16, "store_chunk")
        target[:] = aligned(cells(tile, at, CHUNK), 16, "store_chunk").reading()

else:
    from numba.cuda import types
    from numba.cuda.core import errors
    from numba.cuda.extending import intrinsic

    from cuda_kernels.ptx.assembly import INT32, SHARED, address, call, global_address, ir, shared_address

    VOID, CHUNK_BITS, WORDS = ir.VoidType(), ir.VectorType(INT32, 4), ir.VectorType(ir.IntType(16), CHUNK)
    FOUR = ir.VectorType(ir.FloatType(), 4)

    def load(context, builder, tile_type, tile, at_type, at):
        """16 bytes of shared memory, as four words."""
        place = address(context, builder, tile_type, tile, at_type, at)
        place = builder.bitcast(builder.addrspacecast(place, SHARED), ir.PointerType(CHUNK_BITS, addrspace=3))
        return builder.load(place, align=16)

    @intrinsic
    def copy_async(typing_context, tile, at, source, index, count):
        """Begin: tile[at … at + 7] = the `count` (0 … 8) numbers of `source` from this index on, then zeros."""
        def generate(context, builder, signature, arguments):
            tile_type, at_type, source_type, index_type, count_type = signature.args
            tile, at, source, index, count = arguments
            target = shared_address(context, builder, tile_type, tile, at_type, at)
            origin = global_address(context, builder, source_type, source, index_type, index)
            count = context.cast(builder, count, count_type, types.int32)
            size = builder.mul(count, ir.Constant(INT32, 2))
            call(builder, "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}", VOID,
                 [target, origin, size])
            return context.get_dummy_value()

        return types.void(tile, at, source, index, count), generate

    @intrinsic
    def commit_copies(typing_context):
        """Make one group of the copies begun since the last commit."""
        def generate(context, builder, signature, arguments):
            call(builder, "cp.async.commit_group;", "~{memory}", VOID, [])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def wait_copies(typing_context, groups):
        """Wait until at most so many of this thread's latest groups are under way; a constant."""
        if not isinstance(groups, types.IntegerLiteral):
            raise errors.TypingError("wait_copies takes a constant")

        def generate(context, builder, signature, arguments):
            call(builder, f"cp.async.wait_group {groups.literal_value};", "~{memory}", VOID, [])
            return context.get_dummy_value()

        return types.void(groups), generate

    @intrinsic
    def store_pair(typing_context, array, index, pair):
        """array[…, x] and array[…, x + 1] = the halves of a pair, in one store; x is even, at a multiple of 4 bytes."""
        def generate(context, builder, signature, arguments):
            array_type, index_type, _ = signature.args
            place = address(context, builder, array_type, arguments[0], index_type, arguments[1])
            builder.store(arguments[2], builder.bitcast(place, INT32.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(array, index, types.uint32), generate

    @intrinsic
    def store_four(typing_context, array, index, x0, x1, x2, x3):
        """array[…, x … x + 3] = x0 … x3, float32, in one store, at a multiple of 16 bytes."""
        def generate(context, builder, signature, arguments):
            array_type, index_type, *_ = signature.args
            array, index, *numbers = arguments
            four = ir.Constant(FOUR, ir.Undefined)
            for n, x in enumerate(numbers):
                four = builder.insert_element(four, x, ir.Constant(INT32, n))
            target = address(context, builder, array_type, array, index_type, index)
            builder.store(four, builder.bitcast(target, FOUR.as_pointer()), align=16)
            return context.get_dummy_value()

        return types.void(array, index, *[types.float32] * 4), generate

    @intrinsic
    def load_chunk(typing_context, tile, at):
        """The 8 numbers of 16 bits tile[at … at + 7], a tuple, in one load; at a multiple of 16 bytes."""
        def generate(context, builder, signature, arguments):
            tile_type, at_type = signature.args
            words = builder.bitcast(load(context, builder, tile_type, arguments[0], at_type, arguments[1]), WORDS)
            number = context.get_value_type(tile_type.dtype)
            numbers = [builder.extract_element(words, ir.Constant(INT32, n)) for n in range(CHUNK)]
            return context.make_tuple(builder, signature.return_type, [builder.bitcast(x, number) for x in numbers])

        return types.UniTuple(tile.dtype, CHUNK)(tile, at), generate

    @intrinsic
    def store_chunk(typing_context, array, index, tile, at):
        """array[…, x … x + 7] = tile[at … at + 7], in one load and one store; both at multiples of 16 bytes."""
        def generate(context, builder, signature, arguments):
            array_type, index_type, tile_type, at_type = signature.args
            array, index, tile, at = arguments
            chunk = load(context, builder, tile_type, tile, at_type, at)
            target = address(context, builder, array_type, array, index_type, index)
            builder.store(chunk, builder.bitcast(target, CHUNK_BITS.as_pointer()), align=16)
            return context.get_dummy_value()

        return types.void(array, index, tile, at), generate
