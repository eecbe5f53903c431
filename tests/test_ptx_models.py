"""Every instruction of `cuda_kernels.ptx` against plain NumPy, for all lanes: its model in the simulator, or on a GPU
the instruction itself (FA_REF_CUDA=gpu). What must go wrong, and what an audit says, is asked of the simulator only.

Layouts are written here as the PTX ISA draws them, element by element, and not as `ptx/matrices.py` computes them.
"""

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, float32
from numba.cuda import types

import cuda_kernels
from cuda_kernels import ptx
from gpu_instructions import products

WORDS = {"float16": np.float16, "bfloat16": bfloat16}
both = pytest.mark.parametrize("name", WORDS)
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")
multiply_f16, multiply_bf16 = ptx.mma(np.dtype(np.float16)), ptx.mma(np.dtype(bfloat16))
pair_f16, pair_bf16 = ptx.pair(np.dtype(np.float16)), ptx.pair(np.dtype(bfloat16))
SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 65504, 65520, 1e-8, -6e-8, 3e38, 1e-40, 1.00390625,
                    1.01171875, 2049, 2051, 0.1], np.float32)


def bits(x):
    """16-bit numbers as words."""
    return np.ascontiguousarray(x).view(np.uint16)


def same(x, y):
    """The same bits, but that any NaN is as good as another."""
    x, y = np.asarray(x), np.asarray(y)
    return np.array_equal(np.isnan(x), np.isnan(y)) and x[~np.isnan(x)].tobytes() == y[~np.isnan(y)].tobytes()


# --- numbers --------------------------------------------------------------------------------------------------

@cuda.jit
def convert(x, y, f16, bf16, powers):
    t = cuda.grid(1)
    if t < x.size:
        f16[t] = pair_f16(x[t], y[t])
        bf16[t] = pair_bf16(x[t], y[t])
        powers[t] = ptx.exp2(x[t])


def converted(x, y):
    f16, bf16, powers = np.zeros(x.size, np.uint32), np.zeros(x.size, np.uint32), np.zeros(x.size, np.float32)
    convert[(x.size + 31) // 32, 32](x, y, f16, bf16, powers)
    return f16, bf16, powers


def test_pairs():
    """The first number in the lower half; to nearest, ties to even; past the largest number inf."""
    rng = np.random.default_rng(0)
    x = np.concatenate([SPECIAL, rng.standard_normal(46).astype(np.float32)])
    y = np.concatenate([SPECIAL[::-1], 1000 * rng.standard_normal(46).astype(np.float32)])
    f16, bf16, _ = converted(x, y)
    with np.errstate(over="ignore"):
        for found, dtype in ((f16, np.float16), (bf16, bfloat16)):
            halves = found.view(dtype).reshape(-1, 2).astype(np.float32)
            assert same(halves[:, 0], x.astype(dtype).astype(np.float32))
            assert same(halves[:, 1], y.astype(dtype).astype(np.float32))


def test_powers_of_two():
    """Two units in the last place; −inf to exactly 0; numbers below the normal ones are 0, in and out."""
    x = np.concatenate([np.linspace(-125, 127, 150, dtype=np.float32), SPECIAL, np.float32([-126.5, -130, -200, 128])])
    _, _, found = converted(x, x)
    with np.errstate(over="ignore"):
        expected = np.exp2(x.astype(np.float64)).astype(np.float32)
    expected[expected < np.finfo(np.float32).tiny] = 0
    exact = ~np.isfinite(expected) | (expected == 0)
    assert same(found[exact], expected[exact]) and found[x == 0].tolist() == [1, 1] and found[np.isneginf(x)] == 0
    found, expected = found[~exact], expected[~exact]
    assert (abs(found - expected) <= 2 * np.spacing(expected)).all()


# --- matrices -------------------------------------------------------------------------------------------------

def fragments(A, B, C):
    """What 32 lanes hold of A (16, 16), B (16, 8) of 16 bits and C (16, 8), after the figures of the PTX ISA."""
    a, b, c = np.zeros((32, 8), np.uint16), np.zeros((32, 4), np.uint16), np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
            col = thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8
            a[lane, i] = bits(A)[row, col]
        for i in range(4):
            b[lane, i] = bits(B)[thread * 2 + (i & 1) + (0 if i < 2 else 8), group]
            c[lane, i] = C[group if i < 2 else group + 8, thread * 2 + (i & 1)]
    return a.view(np.uint32), b.view(np.uint32), c


def multiplied(A, B, C):
    """C + A B by the instruction for A's dtype, as a matrix."""
    a, b, c = fragments(A, B, C)
    found = np.zeros((32, 4), np.float32), np.zeros((32, 4), np.float32)
    products[1, 32](a, b, c, *found)
    D, (_, _, where) = np.zeros((16, 8), np.float32), fragments(A, B, np.arange(128, dtype=np.float32).reshape(16, 8))
    D.flat[where.astype(int)] = found[A.dtype == bfloat16]
    return D


@both
@pytest.mark.parametrize("seed", range(3))
def test_product_of_random_matrices(name, seed):
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal(shape).astype(WORDS[name]) for shape in ((16, 16), (16, 8)))
    C = rng.standard_normal((16, 8)).astype(np.float32)
    expected = C.astype(np.float64) + A.astype(np.float64) @ B.astype(np.float64)
    scale = abs(C) + abs(A.astype(np.float64)) @ abs(B.astype(np.float64))
    assert (abs(multiplied(A, B, C) - expected) <= 17 * 2.0**-23 * scale).all()


@both
def test_every_element_has_its_own_place(name):
    """Products of single ones: exact, and wrong as soon as two elements are exchanged."""
    for k in range(16):
        A, B = np.zeros((16, 16), WORDS[name]), np.zeros((16, 8), WORDS[name])
        A[:, k], B[k] = np.arange(1, 17), np.arange(1, 9)
        assert np.array_equal(multiplied(A, B, np.full((16, 8), .5, np.float32)),
                              np.outer(np.arange(1, 17), np.arange(1, 9)) + .5)


@both
def test_product_of_special_values(name):
    """inf, NaN and inf − inf as IEEE 754 has them; subnormal inputs count."""
    A, B = np.zeros((16, 16), WORDS[name]), np.zeros((16, 8), WORDS[name])
    C = np.zeros((16, 8), np.float32)
    A[0, 0], A[1, 0], A[2, :2], A[3, 3], A[4, 0] = np.inf, np.nan, (np.inf, -np.inf), 2.0**-24, 1
    B[0], B[1], B[3] = 1, 1, 2
    C[5, 5], C[6, 6] = -np.inf, np.nan
    D = multiplied(A, B, C)
    assert np.isposinf(D[0]).all() and np.isnan(D[1]).all() and np.isnan(D[2]).all()
    assert (D[3] == 2.0**-23).all() and (D[4] == 1).all() and np.isneginf(D[5, 5]) and np.isnan(D[6, 6])
    assert not D[7:].any()


@cuda.jit
def loads(x, x4, x4_trans, x2, x2_trans):
    """Load four, then two 8 × 8 matrices; lane 8n + i names row 31 − (8n + i) of x (32, 8)."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.uint16, 128)
    for y in range(8):
        tile[t * 8 + y] = x[t, y]
    cuda.syncthreads()
    x4[t, 0], x4[t, 1], x4[t, 2], x4[t, 3] = ptx.ldmatrix_x4(tile, (31 - t) * 8)
    x4_trans[t, 0], x4_trans[t, 1], x4_trans[t, 2], x4_trans[t, 3] = ptx.ldmatrix_x4_trans(tile, (31 - t) * 8)
    x2[t, 0], x2[t, 1] = ptx.ldmatrix_x2(tile, (31 - t) * 8)
    x2_trans[t, 0], x2_trans[t, 1] = ptx.ldmatrix_x2_trans(tile, (31 - t) * 8)


@cuda.jit
def adds_and_reads(x, out):
    ptx.atomic_add(x, 0, np.float32(1))
    out[cuda.threadIdx.x] = x[0]


def test_an_audit_names_the_line_of_the_kernel_that_adds():
    from cuda_kernels import simulator

    with simulator.audit() as audit:
        adds_and_reads[1, 2](np.zeros(1, np.float32), np.zeros(2, np.float32))
    assert "updates atomically at" in str(audit) and "ptx/atomics.py" not in str(audit)


@cuda.jit
def loads_from_anywhere(out):
    """The array begins where one element may: a GPU asks for 16 bytes."""
    tile = cuda.shared.array(256, types.uint16)
    out[0], out[1] = ptx.ldmatrix_x2(tile, 0)


def test_an_array_that_need_not_be_aligned_is_refused():
    with pytest.raises(ValueError, match=r"tile .* begins at a multiple of 2 bytes; 16 are needed: cuda.shared.array"):
        loads_from_anywhere[1, 32](np.zeros(2, np.uint32))


def test_loading_matrices():
    """Row lane // 4, columns 2 (lane % 4) and the next of each matrix; transposed with `trans`."""
    x = np.arange(256, dtype=np.uint16).reshape(32, 8) * np.uint16(251)
    found = {(n, trans): np.zeros((32, n), np.uint32) for n in (4, 2) for trans in (False, True)}
    loads[1, 32, 0, 512](x, *found.values())
    for (count, trans), pairs in found.items():
        for lane in range(32):
            for n in range(count):
                matrix = np.array([x[31 - (8 * n + i)] for i in range(8)])
                row, column = lane // 4, 2 * (lane % 4)
                low, high = (matrix.T if trans else matrix)[row, column:column + 2]
                assert pairs[lane, n] == int(low) | int(high) << 16, (count, trans, lane, n)


@cuda.jit
def two_products(A, B1, B2, out):
    """(A B1) B2 by one warp, all 16 × 16: what a lane has of the first product is its part of a left factor."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.uint16, 128)
    acc = cuda.local.array(16, float32)
    for e in range(t, 256, 32):
        tile[e] = A[e // 16, e % 16]
        tile[256 + e] = B1[e // 16, e % 16]
        tile[512 + e] = B2[e // 16, e % 16]
    cuda.syncthreads()
    for n in range(16):
        acc[n] = float32(0)
    row = t % 16 * 16 + t // 16 * 8
    a = ptx.ldmatrix_x4(tile, row)
    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, 256 + row)
    multiply_bf16(acc, 0, a, (b0, b1))
    multiply_bf16(acc, 4, a, (b2, b3))
    p = (pair_bf16(acc[0], acc[1]), pair_bf16(acc[2], acc[3]), pair_bf16(acc[4], acc[5]), pair_bf16(acc[6], acc[7]))
    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tile, 512 + row)
    multiply_bf16(acc, 8, p, (b0, b1))
    multiply_bf16(acc, 12, p, (b2, b3))
    for n in range(8):
        out[t // 4 + n % 4 // 2 * 8, n // 4 * 8 + t % 4 * 2 + n % 2] = acc[8 + n]


def test_the_result_of_one_product_is_a_factor_of_the_next():
    """Small whole numbers, so that nothing is rounded."""
    rng = np.random.default_rng(1)
    A, B1, B2 = (rng.integers(-2, 3, (16, 16)).astype(bfloat16) for _ in range(3))
    out = np.zeros((16, 16), np.float32)
    two_products[1, 32, 0, 1536](*map(bits, (A, B1, B2)), out)
    assert np.array_equal(out, A.astype(np.float32) @ B1.astype(np.float32) @ B2.astype(np.float32))


# --- copies ---------------------------------------------------------------------------------------------------

@cuda.jit
def copied(x, out, first):
    """Row t of x (32, 8) by thread t, of which t % 9 numbers; in two groups; read by the neighbour."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.float16, 128)
    ptx.copy_async(tile, t * 8, x, (t, 0), t % 9)
    ptx.commit_copies()
    ptx.copy_async(tile, 256 + t * 8, x, (31 - t, 0), 8)
    ptx.commit_copies()
    ptx.wait_copies(1)
    for y in range(8):
        first[t, y] = tile[t * 8 + y]
    ptx.wait_copies(0)
    cuda.syncthreads()
    neighbour = (t + 1) % 32
    for y in range(16):
        out[t, y] = tile[y // 8 * 256 + neighbour * 8 + y % 8]


def test_copies():
    """So many numbers, then zeros; the older group can be read by its own thread before the younger one is there."""
    x = np.random.default_rng(2).standard_normal((32, 8)).astype(np.float16)
    out, first = np.zeros((32, 16), np.float16), np.zeros((32, 8), np.float16)
    copied[1, 32, 0, 1024](x, out, first)
    expected = np.where(np.arange(8) < (np.arange(32) % 9)[:, None], x, np.float16(0))
    assert np.array_equal(first, expected)
    assert np.array_equal(out[:, :8], np.roll(expected, -1, 0)) and np.array_equal(out[:, 8:], np.roll(x[::-1], -1, 0))


@cuda.jit
def stored(out, words):
    t = cuda.threadIdx.x
    ptx.store_pair(out, (t // 4, t % 4 * 2), words[t])


def test_stores_of_pairs():
    x = np.arange(64, dtype=np.float16)
    out = np.zeros((8, 8), np.float16)
    stored[1, 32](out, x.view(np.uint32))
    assert np.array_equal(out.ravel(), x)


@cuda.jit
def four_stored(out, column):
    t = cuda.threadIdx.x
    ptx.store_four(out, (t, column), float32(t), float32(-t), float32(0), float32(0.5))


def test_stores_of_four_numbers():
    """The four, and nothing beside them; not where they would begin between two multiples of 16 bytes."""
    out = np.full((3, 12), np.nan, np.float32)
    four_stored[1, 3](out, 4)
    assert np.array_equal(out[:, 4:8], [[0, 0, 0, 0.5], [1, -1, 0, 0.5], [2, -2, 0, 0.5]])
    assert np.isnan(out[:, :4]).all() and np.isnan(out[:, 8:]).all()
    if cuda_kernels.SIMULATED:
        with pytest.raises(ValueError, match=r"store_four: 4 cells .* multiple of 16"):
            four_stored[1, 3](out, 6)


@cuda.jit
def chunks_loaded(chunks, out, shift):
    tile = cuda.shared.array(0, types.float16, 128)
    t = cuda.threadIdx.x
    for x in range(8):
        tile[8 * t + x] = chunks[t, x]
    cuda.syncthreads()
    numbers = ptx.load_chunk(tile, 8 * (3 - t) + shift)
    for x in range(8):
        out[t, x] = numbers[x]


def test_loads_of_chunks():
    """Each lane reads what its counterpart has written; not from between two multiples of 16 bytes."""
    chunks, out = np.arange(32, dtype=np.float16).reshape(4, 8), np.zeros((4, 8), np.float16)
    chunks_loaded[1, 4, 0, 128](chunks, out, 0)
    assert np.array_equal(out, chunks[::-1])
    if cuda_kernels.SIMULATED:
        with pytest.raises(ValueError, match=r"load_chunk: 8 cells .* multiple of 16"):
            chunks_loaded[1, 4, 0, 128](chunks, out, 4)


@cuda.jit
def stored_in_chunks(out, chunks, stride):
    tile = cuda.shared.array(0, types.uint16, 128)
    t = cuda.threadIdx.x
    for x in range(8):
        tile[8 * t + x] = chunks[t, x]
    cuda.syncthreads()
    ptx.store_chunk(out, (t, stride * 8), tile, 8 * (31 - t))


def test_stores_of_chunks():
    """Each lane stores what its counterpart has written, and nothing beside it."""
    chunks, out = np.arange(256, dtype=np.uint16).reshape(32, 8), np.zeros((32, 24), np.uint16)
    stored_in_chunks[1, 32, 0, 512](out, chunks, 1)
    assert np.array_equal(out[:, 8:16], chunks[::-1])
    assert not out[:, :8].any() and not out[:, 16:].any()


# --- what must not be done ------------------------------------------------------------------------------------

@cuda.jit
def half_a_warp(x):
    acc = cuda.local.array(4, float32)
    for n in range(4):
        acc[n] = float32(0)
    multiply_f16(acc, 0, (x[0], x[0], x[0], x[0]), (x[0], x[0]))


@cuda.jit
def loaded_from(at):
    tile = cuda.shared.array(0, types.uint16, 128)
    ptx.ldmatrix_x4(tile, at[cuda.threadIdx.x])


@cuda.jit
def copied_from(x, to, row, column, count):
    tile = cuda.shared.array(0, types.float16, 128)
    ptx.copy_async(tile, to, x, (row, column), count)


@simulated
def test_what_is_undefined_on_a_gpu_is_an_error_here():
    with pytest.raises(RuntimeError, match="mma takes a warp of 32 lanes; 16 have come"):
        half_a_warp[1, 16](np.zeros(1, np.uint32))
    rows = np.arange(32) * 8
    loaded_from[1, 32, 0, 512](rows)
    with pytest.raises(ValueError, match=r"ldmatrix: 8 cells of dynamic shared memory at byte 250 .* multiple of 16"):
        loaded_from[1, 32, 0, 1024](np.where(rows == 120, 125, rows))
    with pytest.raises(IndexError, match="8 cells from here do not lie in it"):
        loaded_from[1, 32, 0, 512](rows + 8)
    x = np.zeros((4, 24), np.float16)
    for arguments, error, said in [((x, 0, 4, 0, 8), IndexError, r"x\["), ((x, 0, 0, 20, 8), IndexError, "8 cells"),
                                   ((x, 4, 0, 0, 8), ValueError, "at byte 8"), ((x, 0, 0, 4, 8), ValueError, "of x at"),
                                   ((x, 248, 0, 0, 8), IndexError, "8 cells")]:
        with pytest.raises(error, match=said):
            copied_from[1, 1, 0, 496](*arguments)
    copied_from[1, 1, 0, 496](x, 0, 99, 3, 0)               # nothing is read, so the place does not matter


@cuda.jit
def exchanged(x, out, commit, wait, barrier):
    """Thread t copies a row and reads its neighbour's."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.float16, 128)
    ptx.copy_async(tile, t * 8, x, (t, 0), 8)
    if commit:
        ptx.commit_copies()
    if wait:
        ptx.wait_copies(0)
    if barrier:
        cuda.syncthreads()
    out[t] = tile[(t + 1) % 4 * 8]


@simulated
@pytest.mark.parametrize("left_out", ["commit", "wait", "barrier", None])
def test_an_audit_knows_what_makes_a_copy_visible(left_out):
    """Group, wait and barrier; without one of them a race, and without one of the first two NaN as well."""
    from cuda_kernels import simulator

    x, out = np.arange(32, dtype=np.float16).reshape(4, 8), np.zeros(4, np.float16)
    with simulator.audit() as audit:
        exchanged[1, 4, 0, 64](x, out, *(name != left_out for name in ("commit", "wait", "barrier")))
    assert audit.ok == (left_out is None), audit
    assert {f.kind for f in audit.findings} <= {"race"}
    if left_out in ("commit", "wait"):
        assert np.isnan(out).all() and "is still copying into" in str(audit)
    if left_out is None:
        assert np.array_equal(out, [8, 16, 24, 0]) and audit.counts.shared_writes == 32 == audit.counts.global_reads


@cuda.jit
def overwritten(x, out, barrier):
    """Two rounds through the same cells."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.float16, 128)
    for n in range(2):
        ptx.copy_async(tile, t * 8, x, (t, 0), 8)
        ptx.commit_copies()
        ptx.wait_copies(0)
        cuda.syncthreads()
        out[t, n] = tile[(t + 1) % 4 * 8]
        if barrier:
            cuda.syncthreads()


@simulated
@pytest.mark.parametrize("barrier", [True, False])
def test_a_copy_over_what_others_still_read_is_a_race(barrier):
    from cuda_kernels import simulator

    with simulator.audit() as audit:
        overwritten[1, 4, 0, 64](np.zeros((4, 8), np.float16), np.zeros((4, 2), np.float16), barrier)
    assert audit.ok == barrier and {f.kind for f in audit.findings} <= {"race"}
