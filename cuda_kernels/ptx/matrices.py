"""Products of small matrices by a whole warp: where the elements lie, how they get there, and the product.

Of a matrix that takes part in a product every lane holds a few elements. Let g = lane // 4, t = lane % 4; a register
holds a pair (see `numbers`), z says which half of it, and n counts the registers of a lane:

    A  16 × 16      4 pairs     row g + 8 (n % 2)       column 2t + z + 8 (n // 2)
    B  16 × 8       2 pairs     row 2t + z + 8n         column g
    C  16 × 8       4 float32   row g + 8 (n // 2)      column 2t + n % 2

Two Cs side by side, rounded and paired, lie as an A lies: that is how P goes from one product into the next.

`ldmatrix` loads 8 × 8 matrices of 16-bit numbers from shared memory in this way. Lane 8n + i says where row i of matrix
n begins, 8 numbers side by side, at a multiple of 16 bytes. Of matrix n every lane gets one pair: row g, columns 2t and
2t + 1; with `trans`, which transposes it first, rows 2t and 2t + 1 of column g.

All 32 lanes of a warp must come to these together. PTX ISA, "mma" and "ldmatrix"; from compute capability 8.0 on.
"""

from functools import cache

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels.switch import SIMULATED


def layouts():
    """(row, column) of every element, for A, B (32 lanes, registers, 2 halves) and C (32 lanes, registers)."""
    lane, n, z = np.ogrid[:32, :4, :2]
    g, t, b = lane // 4, lane % 4, n[:, :2]
    A = g + 8 * (n % 2) + 0 * z, 2 * t + z + 8 * (n // 2)
    B = 2 * t + z + 8 * b, g + 0 * (b + z)
    lane, n = np.ogrid[:32, :4]
    C = lane // 4 + 8 * (n // 2), 2 * (lane % 4) + n % 2
    return A, B, C


IN_A, IN_B, IN_C = layouts()


def numbers_of(pairs, dtype):
    """(…, 2) float32 of pairs (…,) uint32."""
    return np.ascontiguousarray(pairs)[..., None].view(dtype).astype(np.float32)


def product(a, b, c, dtype):
    """C + A B of what 32 lanes bring: a (32, 4), b (32, 2) pairs, c (32, 4) float32 → (32, 4) float32.

    Products are exact in float32. Sums here are NumPy's; the hardware's may end in other last bits.
    """
    A, B, C = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    A[IN_A], B[IN_B], C[IN_C] = numbers_of(a, dtype), numbers_of(b, dtype), c
    with np.errstate(all="ignore"):                                 # inf − inf
        return (C + A @ B)[IN_C]


def spread(rows, trans):
    """The pairs that 32 lanes get of rows (8·matrices, 8) of 16-bit numbers: (32, matrices) uint32."""
    matrices = np.asarray(rows).view(np.uint16).reshape(-1, 8, 8)
    matrices = matrices.swapaxes(1, 2) if trans else matrices
    return np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, 32).T


if SIMULATED:
    from cuda_kernels.ptx.warp import aligned, cells, together

    @cache
    def mma(dtype):
        """The function (acc, at, a, b): C, which is acc[at … at + 3] of every lane, += A B. dtype: that of A and B."""
        def multiply(acc, at, a, b):
            def compute(values):
                a, b, c = (np.array(part) for part in zip(*values, strict=True))
                return product(a, b, c, dtype)
            acc[at:at + 4] = together("mma", (a, b, [acc[at + n] for n in range(4)]), compute)
        return multiply

    def load(tile, at, count, trans):
        """What `ldmatrix` does for this lane, which names a row at tile[at]."""
        row = None
        if running_lane() < 8 * count:                              # the other lanes' addresses are not looked at
            row = aligned(cells(tile, at, 8), 16, "ldmatrix").reading().copy()
        parts = together("ldmatrix", row, lambda rows: spread(np.stack(rows[:8 * count]), trans))
        return tuple(parts)

    def running_lane():
        from cuda_kernels.simulator import running
        return running().running.lane

    def ldmatrix_x4(tile, at):
        """Four matrices: 4 pairs. tile: a shared array of one axis; at: where the row that this lane names begins."""
        return load(tile, at, 4, False)

    def ldmatrix_x2(tile, at):
        """Two matrices, whose rows lanes 0 … 15 name: 2 pairs."""
        return load(tile, at, 2, False)

    def ldmatrix_x4_trans(tile, at):
        """Four matrices, each transposed: 4 pairs."""
        return load(tile, at, 4, True)

    def ldmatrix_x2_trans(tile, at):
        """Two matrices, each transposed: 2 pairs."""
        return load(tile, at, 2, True)

else:
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic

    from cuda_kernels.ptx.assembly import INT32, address, call, ir, shared_address

    @cache
    def mma(dtype):
        """The function (acc, at, a, b): C, which is acc[at … at + 3] of every lane, += A B. dtype: that of A and B."""
        kind = "bf16" if dtype == bfloat16 else "f16"
        text = (f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};")
        constraints = ",".join(4 * ["=f"] + 6 * ["r"] + 4 * ["f"])

        @intrinsic
        def multiply(typing_context, acc, at, a, b):
            def generate(context, builder, signature, arguments):
                acc_type, at_type, *_ = signature.args
                acc, at, a, b = arguments
                places = [address(context, builder, acc_type, acc, at_type, builder.add(at, at.type(n)))
                          for n in range(4)]
                operands = [*cgutils.unpack_tuple(builder, a, 4), *cgutils.unpack_tuple(builder, b, 2),
                            *map(builder.load, places)]
                result = ir.LiteralStructType(4 * [ir.FloatType()])
                results = call(builder, text, constraints, result, operands)
                for n, place in enumerate(places):
                    builder.store(builder.extract_value(results, n), place)
                return context.get_dummy_value()

            return types.void(acc, at, a, b), generate

        return multiply

    def ldmatrix(count, trans):
        """The intrinsic (tile, at) → `count` pairs."""
        registers = ", ".join(f"${n}" for n in range(count))
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [${count}];"
        constraints = ",".join(count * ["=r"] + ["r", "~{memory}"])

        @intrinsic
        def load(typing_context, tile, at):
            def generate(context, builder, signature, arguments):
                tile_type, at_type = signature.args
                where = shared_address(context, builder, tile_type, arguments[0], at_type, arguments[1])
                results = call(builder, text, constraints, ir.LiteralStructType(count * [INT32]), [where])
                parts = [builder.extract_value(results, n) for n in range(count)]
                return context.make_tuple(builder, signature.return_type, parts)

            return types.UniTuple(types.uint32, count)(tile, at), generate

        return load

    ldmatrix_x4, ldmatrix_x2 = ldmatrix(4, ""), ldmatrix(2, "")
    ldmatrix_x4_trans, ldmatrix_x2_trans = ldmatrix(4, ".trans"), ldmatrix(2, ".trans")
