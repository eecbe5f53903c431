"""Every function of `cuda_kernels.ptx` over all 32 lanes of a warp, on random and special values, against plain NumPy.

Bit for bit where the result is exact, any NaN being as good as another; else within the bound that the check names. On
a GPU the instructions run, and so it is seen that their models say the truth; in the simulator the models run
(`test_gpu_instructions.py`). One failure does not hide the others: each function is a row of its own.
"""

import traceback

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda, float32
from numba.cuda import types

from cuda_kernels import ptx
from cuda_kernels.ptx import matrices

WARP = 32
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(bfloat16)}
pair_f16, pair_bf16 = map(ptx.pair, DTYPES.values())
multiply_f16, multiply_bf16 = map(ptx.mma, DTYPES.values())
SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 65504, 65519, 65520, -65520, 1e-8, -6e-8, 3e38, 3.4e38,
                    1e-40, -1e-40, 1.00390625, 1.01171875, 2049, 2051, 0.1], np.float32)


def floats(n, seed):
    """`n` float32: the special ones first, then random bits (all sizes, subnormal numbers and quiet NaN too)."""
    x = np.random.default_rng(seed).integers(0, 2**32, n, np.uint32).view(np.float32)
    x[np.isnan(x)] = np.nan
    x[:len(SPECIAL)] = SPECIAL
    return x


def same(found, expected):
    """AssertionError unless the bits are the same, but that any NaN is as good as another."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    wide = found.astype(np.float32) if found.dtype.kind in "fV" else None
    nan = np.zeros(found.shape, bool) if wide is None else np.isnan(wide)
    other = np.zeros(found.shape, bool) if wide is None else np.isnan(expected.astype(np.float32))
    words = f"u{found.itemsize}"
    differ = (nan != other) | (~nan & ~other & (found.view(words) != expected.view(words)))
    if differ.any():
        first = f"first {found[differ][0]!r}, not {expected[differ][0]!r}"
        raise AssertionError(f"{differ.sum()} of {differ.size} differ; {first}")


# --- numbers --------------------------------------------------------------------------------------------------

@cuda.jit
def convert(x, y, word, f16, bf16, narrow, wide, powers):
    t = cuda.grid(1)
    if t < x.size:
        f16[t] = pair_f16(x[t], y[t])
        bf16[t] = pair_bf16(x[t], y[t])
        narrow[t] = ptx.float32_to_bfloat16(x[t])
        wide[t] = ptx.bfloat16_to_float32(word[t])
        powers[t] = ptx.exp2(x[t])


def converted(x, y, word):
    n = x.size
    out = [np.zeros(n, dtype) for dtype in ("u4", "u4", "u2", "f4", "f4")]
    convert[(n + WARP - 1) // WARP, WARP](x, y, word, *out)
    return out


def pair(count):
    """Both halves, rounded to nearest, ties to even."""
    x, y = floats(count, 0), floats(count, 1)[::-1].copy()
    f16, bf16, *_ = converted(x, y, np.zeros(count, "u2"))
    with np.errstate(over="ignore"):
        for found, dtype in ((f16, np.float16), (bf16, bfloat16)):
            same(found.view(dtype).reshape(-1, 2), np.stack([x.astype(dtype), y.astype(dtype)], 1))


def float32_to_bfloat16(count):
    x = floats(count, 2)
    same(converted(x, x, np.zeros(count, "u2"))[2].view(bfloat16), x.astype(bfloat16))


def bfloat16_to_float32(count):
    """Every word, or the first so many: the bits themselves, of NaN too."""
    word = np.arange(2**16, dtype=np.uint16)[::max(1, 2**16 // count)].copy()
    x = np.zeros(word.size, np.float32)
    assert np.array_equal(converted(x, x, word)[3].view("u4"), word.astype("u4") << 16)


def exp2(count):
    """Within 2 units in the last place; 0, inf and NaN are right, subnormal numbers are 0, in and out."""
    x = np.concatenate([SPECIAL, np.random.default_rng(3).uniform(-140, 130, count - len(SPECIAL)).astype(np.float32)])
    found = converted(x, x, np.zeros(count, "u2"))[4]
    with np.errstate(over="ignore"):
        expected = np.exp2(x.astype(np.float64)).astype(np.float32)
    expected[expected < np.finfo(np.float32).tiny] = 0
    edge = np.abs(x + 126) < 1e-4                                    # where a unit decides between normal and 0
    exact = (~np.isfinite(expected) | (expected == 0)) & ~edge
    same(found[exact], expected[exact])
    found, expected = found[~exact & ~edge], expected[~exact & ~edge]
    worst = (abs(found.astype(float) - expected) / np.spacing(expected)).max()
    assert worst <= 2, f"{worst:.1f} units in the last place"


# --- matrices -------------------------------------------------------------------------------------------------

@cuda.jit
def products(a, b, c, d16, dbf):
    """One product of each kind by one warp: a (32, 4), b (32, 2) pairs, c (32, 4) float32."""
    t = cuda.threadIdx.x
    acc = cuda.local.array(8, float32)
    for n in range(4):
        acc[n] = c[t, n]
        acc[n + 4] = c[t, n]
    multiply_f16(acc, 0, (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]))
    multiply_bf16(acc, 4, (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]))
    for n in range(4):
        d16[t, n] = acc[n]
        dbf[t, n] = acc[n + 4]


def multiplied(A, B, C):
    """(what the instruction for A's dtype gives, what the model says) in 32 lanes: (32, 4) each."""
    in_a, in_b, in_c = matrices.layouts()
    a, b, c = (np.ascontiguousarray(X[place]) for X, place in ((A, in_a), (B, in_b), (C, in_c)))
    a, b = (x.view(np.uint16).view(np.uint32).reshape(WARP, -1) for x in (a, b))
    found = np.zeros((WARP, 4), np.float32), np.zeros((WARP, 4), np.float32)
    products[1, WARP](a, b, c, *found)
    return found[A.dtype == bfloat16], matrices.product(a, b, c, A.dtype)


def mma(count):
    """Whole numbers, whose sums are exact: bit for bit. Random ones: within 17·2⁻²³ of the sum of sizes (17 terms, each
    added with an error of a unit at most)."""
    rng = np.random.default_rng(4)
    for dtype in DTYPES.values():
        for _ in range(max(1, count // 512)):
            A, B = (rng.integers(-15, 16, shape).astype(dtype) for shape in ((16, 16), (16, 8)))
            C = rng.integers(-1000, 1001, (16, 8)).astype(np.float32)
            same(*multiplied(A, B, C))
            A, B = (rng.standard_normal(shape).astype(dtype) for shape in ((16, 16), (16, 8)))
            C = rng.standard_normal((16, 8)).astype(np.float32)
            a, b, c = (x.astype(np.float64) for x in (A, B, C))
            bound = 17 * 2.0**-23 * (abs(c) + abs(a) @ abs(b))
            in_c = matrices.layouts()[2]
            error = abs(multiplied(A, B, C)[0] - (c + a @ b)[in_c]) / bound[in_c]
            assert error.max() <= 1, f"{error.max():.2f} of the bound for {dtype}"
        A, B, C = np.zeros((16, 16), dtype), np.zeros((16, 8), dtype), np.zeros((16, 8), np.float32)
        A[0, 0], A[1, 0], A[2, :2], A[3, 3], A[4, 0] = np.inf, np.nan, (np.inf, -np.inf), 2.0**-24, 1
        B[0], B[1], B[3], C[5, 5], C[6, 6] = 1, 1, 2, -np.inf, np.nan
        same(*multiplied(A, B, C))


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


def loaded(which):
    """The check of one of the four loads."""
    def check(count):
        x = np.random.default_rng(5).integers(0, 2**16, (WARP, 8), np.uint16)
        found = [np.zeros((WARP, n), np.uint32) for n in (4, 4, 2, 2)]
        loads[1, WARP, 0, 512](x, *found)
        same(found[which], matrices.spread(x[::-1][:8 * found[which].shape[1]], trans=which % 2 == 1))
    return check


# --- copies ---------------------------------------------------------------------------------------------------

@cuda.jit
def copies(x, first, out, whole, pairs, words, chunks):
    """Row t of x (32, 8) by thread t, of which t % 9 numbers; in two groups; read by the neighbour, and stored."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(0, types.uint16, 128)
    ptx.copy_async(tile, t * 8, x, (t, 0), t % 9)
    ptx.commit_copies()
    ptx.copy_async(tile, 256 + t * 8, x, (31 - t, 0), 8)
    ptx.commit_copies()
    ptx.wait_copies(1)
    for y in range(8):
        first[t, y] = tile[t * 8 + y]
    ptx.wait_copies(0)
    cuda.syncthreads()
    numbers = ptx.load_chunk(tile, 256 + (t + 2) % 32 * 8)
    for y in range(8):
        out[t, y] = tile[256 + (t + 1) % 32 * 8 + y]
        whole[t, y] = numbers[y]
    ptx.store_pair(pairs, (t // 4, t % 4 * 2), words[t])
    ptx.store_chunk(chunks, (t, 8), tile, 256 + 8 * (31 - t))


def copied():
    """(x, words, what the kernel left: first, out, whole, pairs, chunks)."""
    rng = np.random.default_rng(6)
    x, words = rng.integers(0, 2**16, (WARP, 8), np.uint16), rng.integers(0, 2**32, WARP, np.uint32)
    shapes = (32, 8), (32, 8), (32, 8), (8, 8), (32, 24)
    first, out, whole, pairs, chunks = (np.zeros(shape, np.uint16) for shape in shapes)
    copies[1, WARP, 0, 1024](x, first, out, whole, pairs, words, chunks)
    return x, words, first, out, whole, pairs, chunks


def copy_async(count):
    """So many numbers, then zeros."""
    x, _, first, *_ = copied()
    same(first, np.where(np.arange(8) < (np.arange(32) % 9)[:, None], x, np.uint16(0)))


def wait_copies(count):
    """After the wait and a barrier others may read."""
    x, _, _, out, *_ = copied()
    same(out, np.roll(x[::-1], -1, 0))


def load_chunk(count):
    """The eight numbers, in their order."""
    x, _, _, _, whole, *_ = copied()
    same(whole, np.roll(x[::-1], -2, 0))


def store_pair(count):
    _, words, *_, pairs, _ = copied()
    same(pairs.ravel(), words.view(np.uint16))


def store_chunk(count):
    """The chunk, and nothing beside it."""
    x, *_, chunks = copied()
    same(chunks, np.concatenate([np.zeros((32, 8), "u2"), x, np.zeros((32, 8), "u2")], 1))


@cuda.jit
def four_stored(out, x):
    t = cuda.threadIdx.x
    ptx.store_four(out, (t, 4), x[t], -x[t], np.float32(0), np.float32(t))


def store_four(count):
    """The four numbers, and nothing beside them."""
    x, out = np.random.default_rng(9).standard_normal(WARP).astype(np.float32), np.ones((WARP, 12), np.float32)
    four_stored[1, WARP](out, x)
    same(out[:, 4:8], np.stack([x, -x, np.zeros(WARP, np.float32), np.arange(WARP, dtype=np.float32)], 1))
    same(out[:, [0, 1, 2, 3, 8, 9, 10, 11]], np.ones((WARP, 8), np.float32))


# --- atomics --------------------------------------------------------------------------------------------------

@cuda.jit
def added(sums, x):
    t = cuda.threadIdx.x
    ptx.atomic_add(sums, (0, t % 4), x[t])
    ptx.atomic_add(sums, (1, t % sums.shape[1]), x[t])


def added_by_four(capability):
    """A kernel whose lanes add four numbers each, two of them to the same cells."""
    add_four = ptx.atomic_add_four(capability)

    @cuda.jit
    def kernel(sums, x):
        t = cuda.threadIdx.x
        add_four(sums, (0, t // 2 * 4), x[t], x[t] + np.float32(1), -x[t], np.float32(3))

    return kernel


def atomic_add(count):
    """Whole numbers, so that the order does not matter; eight lanes meet in a cell, or each has one."""
    x = np.random.default_rng(7).integers(-99, 100, WARP).astype(np.float32)
    sums = np.full((2, WARP), 0.5, np.float32)
    added[1, WARP](sums, x)
    same(sums[1], x + np.float32(0.5))
    same(sums[0, :4], x.reshape(8, 4).sum(0) + np.float32(0.5))
    same(sums[0, 4:], np.full(28, 0.5, np.float32))


def atomic_add_four(count):
    """By one instruction, and by four as on older cards."""
    x = np.random.default_rng(8).integers(-99, 100, WARP).astype(np.float32)
    expected = (np.stack([x, x + 1, -x, np.full(WARP, 3, np.float32)], 1).reshape(16, 2, 4).sum(1) + 0.5).ravel()
    for capability in ((8, 0), (9, 0)):
        sums = np.full((1, 68), 0.5, np.float32)
        added_by_four(capability)[1, WARP](sums, x)
        same(sums[0, :64], expected)
        same(sums[0, 64:], np.full(4, 0.5, np.float32))


# --- all of them ----------------------------------------------------------------------------------------------

CHECKS = {"pair": pair, "float32_to_bfloat16": float32_to_bfloat16, "bfloat16_to_float32": bfloat16_to_float32,
          "exp2": exp2, "mma": mma, "ldmatrix_x4": loaded(0), "ldmatrix_x4_trans": loaded(1), "ldmatrix_x2": loaded(2),
          "ldmatrix_x2_trans": loaded(3), "copy_async": copy_async, "commit_copies": wait_copies,
          "wait_copies": wait_copies, "load_chunk": load_chunk, "store_pair": store_pair, "store_four": store_four,
          "store_chunk": store_chunk, "atomic_add": atomic_add, "atomic_add_four": atomic_add_four}


def instructions(report, count=2**16):
    """A row for every function; those that nobody looks at are a failure too. count: numbers to be converted."""
    for name in ptx.__all__:
        try:
            assert name in CHECKS, "no check looks at it"
            CHECKS[name](count)
            report.add(f"ptx.{name}", True, "as NumPy says")
        except Exception:
            report.add(f"ptx.{name}", False, traceback.format_exc())
