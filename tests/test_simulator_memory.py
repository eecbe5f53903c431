"""Arrays as kernels see them: guarded, fresh memory loud, one array per place that asks for one; and `math`."""

import math
import time

import numpy as np
import pytest
from numba import cuda, float32, int32

from simulator_kernels import line, softmax_rows

answers = []


@cuda.jit
def ask(x, question):
    answers.append(question(x))


@cuda.jit
def fresh():
    answers.append([
        cuda.shared.array((2, 3), float32), cuda.shared.array(4, np.float64), cuda.shared.array(2, np.float16),
        cuda.local.array((2, 2), float32), cuda.shared.array(0, float32), cuda.shared.array(0, np.float64)])
    answers.append([cuda.shared.array(3, int32), cuda.local.array(3, np.uint8), cuda.local.array(1, np.int64)])


@cuda.jit(device=True)
def block_buffer():
    return cuda.shared.array(2, float32)


@cuda.jit
def allocations(out):
    t = cuda.threadIdx.x
    a, b = cuda.shared.array(2, float32), cuda.shared.array(2, float32)
    for _ in range(3):
        c = cuda.shared.array(2, float32)
        if _ == 0:
            c[t] = 7
        cuda.syncthreads()
        out[2, t] = c[1 - t]
    mine = cuda.local.array(1, float32)
    a[t], b[t], mine[0], block_buffer()[t] = t + 1, t + 10, t, t + 5
    cuda.syncthreads()
    out[0, t], out[1, t], out[3, t], out[4, t] = a[1 - t], b[1 - t], mine[0], block_buffer()[1 - t]


@cuda.jit
def dynamic(out):
    t = cuda.threadIdx.x
    everything = cuda.shared.array(0, float32)
    first, second = everything[:2], everything[2:4]
    first[t], second[t] = t + 1, t + 10
    cuda.syncthreads()
    out[0, t], out[1, t], out[2, t] = first[1 - t], second[1 - t], cuda.shared.array(0, np.int32)[t]


@cuda.jit
def too_much():
    cuda.shared.array((64, 128), float32)
    cuda.shared.array((33, 128), float32)


@cuda.jit
def multiply_adds(A, B, out):
    t, T, d = cuda.threadIdx.x, cuda.blockDim.x, A.shape[1]
    for e in range(t, out.size, T):
        r, c = e // out.shape[1], e % out.shape[1]
        total = float32(0)
        for x in range(d):
            total += A[r, x] * B[c, x]
        out[r, c] = total


def answer(x, question):
    answers.clear()
    ask[1, 1](x, question)
    return answers[0]


X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("index", [1, (2, 3), (np.int64(2), np.uint8(5)), slice(1, 3), (slice(None), 2), (..., 1),
                                   (slice(1, None, 2), slice(0, 2)), slice(None, None, -1), (3, slice(0, 0)), ()])
def test_reads_what_numpy_reads(index):
    got = answer(X, lambda x: x[index])
    assert got.dtype == np.float32 and got.shape == X[index].shape
    assert isinstance(got, np.float32) or type(got).__name__ == "Guarded"
    np.testing.assert_array_equal(got, X[index])


@pytest.mark.parametrize("index", [-1, (0, -2), (np.int32(-1), 0), slice(-2, None), (0, slice(0, -1)),
                                   4, (0, 6), (np.int64(4), 0), (0, 0, 0), 1.0, "x", (0, [1, 2])])
@pytest.mark.parametrize("action", ["read", "write", "atomic"])
def test_refuses_what_a_gpu_would_do_silently(index, action):
    def question(x):
        if action == "read":
            return x[index]
        if action == "write":
            x[index] = 1
        else:
            cuda_atomic_add(x, index)

    def cuda_atomic_add(x, index):
        cuda.atomic.add(x, index, 1)                            # `cuda` is the simulated one: ask's file lends it

    before = X.copy()
    with pytest.raises(IndexError, match=r"x\[.*\].*; its shape is \(4, 6\)") as caught:
        answer(X, question)
    parts = index if isinstance(index, tuple) else (index,)
    assert all(str(part) in str(caught.value) for part in parts if not isinstance(part, slice))
    assert (before == X).all()


def test_views_are_guarded_and_share_the_cells():
    def question(x):
        row = x[1]
        row[2] += 5
        row[3:] += 1
        x[0, 0:2] = x[3, 4:]
        x.T[5][2] = 0
        x.reshape(24)[23] = -1
        with pytest.raises(IndexError, match=r"x\[-1\]: a negative index; its shape is \(6,\)"):
            row[-1]
        with pytest.raises(IndexError, match=r"x\[6\].*; its shape is \(6, 2\)"):
            x[1:3].T[6]
        with pytest.raises(AttributeError, match=r"no \.sum"):
            x.sum()
        return [int(n) for n in x[2]]

    x = X.copy()
    assert answer(x, question) == [12, 13, 14, 15, 16, 0]
    expected = X.copy()
    expected[1, 2] += 5
    expected[1, 3:] += 1
    expected[0, :2], expected[2, 5], expected[3, 5] = X[3, 4:], 0, -1
    np.testing.assert_array_equal(x, expected)


def test_attributes():
    got = answer(X[::1], lambda x: (x.shape, x.size, x.ndim, x.strides, x.dtype, len(x), x[0].shape, repr(x[0, :2])))
    assert got == ((4, 6), 24, 2, (24, 4), np.float32, 4, (6,), "x = array([0., 1.], dtype=float32)")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_])
def test_scalars_keep_their_dtype(dtype):
    assert answer(np.ones(2, dtype), lambda x: type(x[0])) is dtype
    if dtype is np.float32:
        assert answer(np.ones(2, dtype), lambda x: type(x[0] * 2.0 + 1 / x[1])) is dtype


def test_fresh_memory_is_nan_or_absurd():
    answers.clear()
    fresh[1, 1, 0, 24]()
    floats, integers = answers
    assert [a.size for a in floats] == [6, 4, 2, 4, 6, 3]
    assert all(np.isnan(a).all() for a in floats)
    assert [int(a[0]) for a in integers] == [-0x54545455, 0xAB, -0x5454545454545455]


def test_each_block_has_fresh_memory():
    answers.clear()
    ask[2, 1](X, lambda _: 0)

    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(1, float32)
        out[cuda.blockIdx.x] = s[0]
        s[0] = 1

    out = np.zeros(2)
    kernel[2, 1](out)
    assert np.isnan(out).all()


def test_shared_arrays_are_told_apart_by_where_they_are_made():
    out = np.zeros((5, 2))
    allocations[1, 2](out)
    assert (out == [[2, 1], [11, 10], [7, 7], [0, 1], [6, 5]]).all()


def test_slices_of_dynamic_shared_memory_are_distinct():
    out = np.zeros((3, 2))
    dynamic[1, 2, 0, 16](out)
    assert (out == [[2, 1], [11, 10], np.array([1, 2], np.float32).view(np.int32)]).all()
    x = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    expected = np.exp(2 * x) / np.exp(2 * x).sum(1, keepdims=True)
    softmax_rows[3, 4, 0, 4 * (5 + 4)](x, 2)
    np.testing.assert_allclose(x, expected, 1e-6)
    with pytest.raises(IndexError, match=r"dynamic shared memory\[1\].*its shape is \(1,\)"):
        dynamic[1, 2, 0, 12](out)                               # second has one cell


def test_static_shared_memory_has_a_limit():
    with pytest.raises(ValueError, match=r"need 49664 bytes.* 49152 is the most"):
        too_much[1, 1]()


def test_messages_name_the_variable_and_the_line():
    @cuda.jit
    def kernel():
        Qi = cuda.shared.array((2, 3), float32)                 # here
        Qi[0, 3] = 1

    with pytest.raises(IndexError) as caught:
        kernel[1, 1]()
    assert str(caught.value).startswith(f"Qi (shared, test_simulator_memory.py:{line(kernel, '# here')})[0, 3]: ")


def test_constants_tuples_and_records():
    record = np.zeros(2, [("a", np.float32), ("b", np.int32)])
    table = np.arange(3.0)

    @cuda.jit
    def kernel(pair, r):
        pair[0][0] = cuda.const.array_like(table)[2]
        pair[1][1] = 4
        r[1].b = 5
        with pytest.raises(ValueError, match="read-only"):
            cuda.const.array_like(table)[0] = 1
        with pytest.raises(IndexError, match=r"pair\[1\]\[2\]"):
            pair[1][2]

    a, b = cuda.to_device(np.zeros(2)), cuda.to_device(np.zeros(2))
    kernel[1, 1]((a, b), record)
    assert a.copy_to_host()[0] == 2 and b.copy_to_host()[1] == 4 and record["b"][1] == 5


@cuda.jit
def elementary(x, out):
    out[0], out[1], out[2] = math.exp(x[0]), math.log(x[1]), math.sqrt(x[2])
    out[3], out[4], out[5] = math.pow(x[0], x[0]), math.tanh(x[0]), math.exp2(x[0])
    answers.append([type(math.exp(v)) for v in (x[0], x[1], float(x[1]))] + [type(math.pow(x[1], 2)), math.inf])


def test_math_is_that_of_a_gpu():
    for dtype, large in (np.float32, 100), (np.float64, 800):
        answers.clear()
        out = np.zeros(6)
        elementary[1, 1](np.array([large, 0, -1], dtype), out)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, [np.inf, -np.inf, np.nan, np.inf, 1, np.exp2(dtype(large))])
        single = dtype is np.float32
        assert answers[0] == [*[np.float32 if single else float] * 2, float, float, math.inf]
    assert math.__name__ == "math"
    largest = np.finfo(np.float32).max
    assert answer(X, lambda _: math.fabs(largest)) == largest


def test_functions_that_python_answers_otherwise_stay_in_their_dtype():
    from cuda_kernels.simulator.maths import device_math

    for name, given, wanted in (("floor", -0.5, -1), ("ceil", 2.5, 3), ("trunc", -2.5, -2), ("floor", np.inf, np.inf),
                                ("erf", 0, 0), ("gamma", 200, np.inf), ("lgamma", 0, np.inf), ("degrees", 0, 0)):
        for dtype in (np.float32, np.float64):
            found = getattr(device_math, name)(dtype(given))
            assert found == (wanted if dtype == np.float32 or name != "gamma" else math.inf)
            assert isinstance(found, dtype if dtype == np.float32 else float)


@cuda.jit
def multiplied_and_added(x, out):
    out[0] = cuda.fma(x[0], x[0], x[1])


def test_a_multiply_add_is_rounded_once():
    """(1 + 2⁻¹²)² − 1 − 2⁻¹¹ is 2⁻²⁴; rounded to float32 before the sum, the square has lost it."""
    for dtype in (np.float32, np.float64):
        out = np.zeros(1, dtype)
        multiplied_and_added[1, 1](np.array([1 + 2.0**-12, -1 - 2.0**-11], dtype), out)
        assert out[0] == 2.0**-24
    single = np.float32([1 + 2.0**-12, -1 - 2.0**-11])
    assert single[0] * single[0] + single[1] == 0
    out = np.zeros(1, np.float32)
    multiplied_and_added[1, 1](np.array([3e38, 1], np.float32), out)
    assert out[0] == np.inf


def test_a_teaching_kernels_work_takes_less_than_a_second_and_a_half():
    """64 × 64 scores and as many products with V, d = 16: 131,072 multiply-adds, two guarded reads each."""
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 128, 16), np.float32)
    out = np.zeros((128, 64), np.float32)
    start = time.perf_counter()
    multiply_adds[1, 8](A, B, out)
    seconds = time.perf_counter() - start
    print(f"131,072 multiply-adds: {seconds:.3f} s, {seconds / 131_072 * 1e6:.2f} µs each")
    np.testing.assert_allclose(out, A @ B[:64].T, 1e-4, 1e-5)
    assert seconds < 1.5
