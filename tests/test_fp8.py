"""FP8: what rounding to 8 bits with scales may lose, and that a rotation loses nothing; every check fails on a fault.

The checks take the module, so that copies of it with a planted fault can be asked the same.
"""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

from altered import altered
from fa_ref import fp8

# largest number, half of the relative step, half of the smallest step
FORMATS = {fp8.E4M3: (448.0, 2.0**-4, 2.0**-10), fp8.E5M2: (57344.0, 2.0**-3, 2.0**-17)}
SHAPES = [(1, 1), (5, 3), (8, 4), (2, 7, 3), (2, 3, 5, 2), (0, 4), (2, 0, 3), (3, 4, 0)]
GRANULARITIES = ["tensor", "head", 1, 2, 3, 100]


def draw(shape, seed, magnitude=1.0, dtype=np.float64):
    """Normal numbers, one in four zero and one in ten a thousand times as large."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 1000, 1) * (rng.random(shape) > 0.25)
    return (X * magnitude).astype(dtype)


def tiles(X, granularity):
    """(index into the scales, slices of X that share that scale), by looking at every matrix apart."""
    if granularity == "tensor":
        return [((), ...)]
    found = []
    for lead in np.ndindex(X.shape[:-2]):
        rows = X.shape[-2] if granularity == "head" else granularity
        if granularity == "head":
            found.append((lead, lead))
            continue
        for n, start in enumerate(range(0, X.shape[-2], rows)):
            found.append(((*lead, n), (*lead, slice(start, start + rows))))
    return found


# --- scales ---------------------------------------------------------------------------------------------------

def check_quantise(module):
    """Shapes and dtypes; every tile reaches the largest number, has its own scale, and loses half a step at most."""
    settings = itertools.product(FORMATS, GRANULARITIES, SHAPES, [1e-44, 1e-30, 1.0, 1e34],
                                 [np.float64, np.float32, bfloat16])
    for seed, (dtype, granularity, shape, magnitude, given) in enumerate(settings):
        largest, relative, absolute = FORMATS[dtype]
        X = draw(shape, seed, magnitude, given)
        with np.errstate(all="raise", under="ignore"):
            values, scales = module.quantise(X, granularity, dtype)
        assert values.shape == X.shape and values.dtype == dtype and scales.dtype == np.float32
        numbers, X = values.astype(np.float64), X.astype(np.float64)
        assert np.isfinite(numbers).all()
        for scale_of, part in tiles(X, granularity):
            scale, x, y = float(scales[scale_of]), X[part], numbers[part]
            amax = abs(x).max(initial=0)
            if amax == 0:
                assert scale == 1 and not y.any()
                continue
            if amax / largest > np.finfo(np.float32).tiny:
                assert math.isclose(scale, amax / largest, rel_tol=1e-6) and abs(y).max() == largest
            error, size = abs(y * scale - x), abs(x) / scale
            assert (error <= scale * np.maximum(relative * size, absolute) * 1.00001).all()
        lead = X.shape[:-2]
        assert scales.shape == ({"tensor": (), "head": lead}[granularity] if isinstance(granularity, str)
                                else (*lead, -(-X.shape[-2] // granularity)))
        again = module.dequantise(values, scales, granularity)
        assert again.dtype == np.float32 and again.shape == X.shape
        for scale_of, part in tiles(X, granularity):
            np.testing.assert_allclose(again[part], numbers[part] * float(scales[scale_of]), rtol=1e-7)


def test_quantise():
    check_quantise(fp8)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_largest_float32_is_not_too_large(dtype):
    X = np.array([[np.finfo(np.float32).max, 0.0]])
    np.testing.assert_allclose(fp8.dequantise(*fp8.quantise(X, "head", dtype), "head"), X, rtol=1e-6)


def check_rounding(module):
    """To nearest, ties to even; the largest number in place of what lies beyond, where a plain cast has no number."""
    x = np.float32([1 + 1 / 16, 1 + 3 / 16, -1.0, 17.0, 2.0**-10, 2.0**-9, 447, 448, 449, 470, -1e30])
    y = module.saturated(x, fp8.E4M3).astype(np.float32)
    np.testing.assert_array_equal(y, [1.0, 1.25, -1.0, 16.0, 0.0, 2.0**-9, 448, 448, 448, 448, -448])
    assert module.saturated(np.float32([1e30, -1e30]), fp8.E5M2).astype(float).tolist() == [57344.0, -57344.0]
    assert np.isnan(x.astype(fp8.E4M3).astype(float)[-1])           # what would happen otherwise


def test_rounding():
    check_rounding(fp8)
    for dtype, (largest, relative, absolute) in FORMATS.items():
        numbers = ml_dtypes.finfo(dtype)
        assert (numbers.max, numbers.eps / 2, float(numbers.smallest_subnormal) / 2) == (largest, relative, absolute)


def test_an_outlier_spoils_its_own_tile_only():
    """64 rows, an outlier of 10⁴ in the first: with tiles of 16 rows the other 48 keep their precision."""
    X = np.random.default_rng(0).standard_normal((64, 8))
    X[0, 0] = 1e4
    errors = {}
    for granularity in ("head", 16):
        values, scales = fp8.quantise(X, granularity)
        errors[granularity] = abs(fp8.dequantise(values, scales, granularity) - X).max(axis=1)
    assert (errors[16][:16] == errors["head"][:16]).all()
    assert errors["head"][16:].max() > 0.01 and errors[16][16:].max() < 0.15
    assert np.median(errors[16][16:]) <= np.median(errors["head"][16:])
    small = np.full((64, 8), 0.01)                                  # 0.01 · 448 / 10⁴ is below half the smallest step
    small[0, 0] = 1e4
    assert not fp8.dequantise(*fp8.quantise(small, "head"), "head")[1:].any()
    np.testing.assert_allclose(fp8.dequantise(*fp8.quantise(small, 16), 16)[16:], 0.01, rtol=1e-6)


@pytest.mark.parametrize(("X", "error", "words"), [
    (np.array([[1.0, np.nan]]), ValueError, ["nan", "(0, 1)"]),
    (np.array([[[1.0], [-np.inf]]]), ValueError, ["-inf", "(0, 1, 0)"]),
    (np.array([[1e300]]), ValueError, ["1e+300", "3.4", "e+38", "float32"]),
    (np.array([[1, 2]]), TypeError, ["X", "int64"]),
    ([[1.0]], TypeError, ["X", "list"]),
    (torch.tensor([[1e300]], dtype=torch.float64), ValueError, ["1e+300", "float32"])])
def test_what_has_no_scale_is_refused(X, error, words):
    with pytest.raises(error) as caught:
        fp8.quantise(X, "head")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("granularity", "error"), [
    (0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("block", ValueError), (None, TypeError)])
def test_granularity_is_tensor_head_or_a_number_of_rows(granularity, error):
    values, scales = fp8.quantise(np.ones((4, 2)), 2)
    for call in (lambda: fp8.quantise(np.ones((4, 2)), granularity),
                 lambda: fp8.dequantise(values, scales, granularity)):
        with pytest.raises(error, match=str(granularity)):
            call()


@pytest.mark.parametrize(("Q", "K", "V", "message"), [
    ((8, 4), (8, 2), (8, 4), r"got \(8, 4\), \(8, 2\), \(8, 4\)"), ((8, 4), (8, 4), (7, 4), r"got .*\(7, 4\)"),
    ((1, 1, 8, 4), (8, 4), (8, 4), "got"), ((8,), (8, 4), (8, 4), "got")])
def test_matrices_that_do_not_belong_together_are_refused(Q, K, V, message):
    with pytest.raises(ValueError, match=message):
        fp8.prepare(np.ones(Q), np.ones(K), np.ones(V), 2, 2)


@pytest.mark.parametrize("name", "QKV")
def test_a_bad_number_is_told_with_its_matrix(name):
    given = {x: np.ones((4, 2)) for x in "QKV"}
    given[name][2, 1] = np.nan
    with pytest.raises(ValueError, match=rf"{name} holds nan at \(2, 1\)"):
        fp8.prepare(**given, Br=2, Bc=2)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_that_is_none_is_refused(bad):
    values, scales = fp8.quantise(np.ones((2, 6, 3)), 2)
    scales[1, 2] = bad
    with pytest.raises(ValueError, match=rf"scales\[1, 2\] is {bad}.*finite and above 0"):
        fp8.dequantise(values, scales, 2)
    with pytest.raises(ValueError, match=f"scales is {bad}.*finite and above 0"):
        fp8.dequantise(values, np.float32(bad), "tensor")


@pytest.mark.parametrize(("granularity", "shape"), [("tensor", r"\(\)"), ("head", r"\(2,\)"), (4, r"\(2, 2\)")])
def test_scales_of_another_granularity_are_refused(granularity, shape):
    values, scales = fp8.quantise(np.ones((2, 6, 3)), 2)
    with pytest.raises(ValueError, match=rf"shape {shape}, got \(2, 3\)"):
        fp8.dequantise(values, scales, granularity)


# --- rotation -------------------------------------------------------------------------------------------------

def matrix(signs):
    """M, entry by entry: H[i, j] is −1 to the number of ones that i and j share in binary."""
    d = len(signs)
    H = np.array([[(-1) ** (i & j).bit_count() for j in range(d)] for i in range(d)])
    return np.diag(signs) @ H / math.sqrt(d)


def check_hadamard(module):
    """X M is that of the matrix; Q Kᵀ stays: bit for bit where nothing is rounded, else within rounding."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 4, 8, 16, 32, 64, 128):
        signs = module.random_signs(d, seed=d)
        assert signs.shape == (d,) and set(signs) <= {-1.0, 1.0}
        Q, K = rng.integers(-9, 10, (5, d)).astype(float), rng.integers(-9, 10, (2, 3, d)).astype(float)
        M, QM, KM = matrix(signs), module.hadamard(Q, signs), module.hadamard(K, signs)
        assert (QM.shape, KM.shape) == (Q.shape, K.shape)
        np.testing.assert_allclose(QM, Q @ M, rtol=0, atol=1e-12)
        np.testing.assert_allclose(KM, K @ M, rtol=0, atol=1e-12)
        np.testing.assert_allclose(M @ M.T, np.eye(d), atol=1e-12)
        if math.isqrt(d) ** 2 == d:                                 # √d is a power of two: whole numbers stay exact
            np.testing.assert_array_equal(QM @ KM.swapaxes(-1, -2), Q @ K.swapaxes(-1, -2))
        for dtype in (np.float64, np.float32):
            Q, K = (draw((6, d), seed, dtype=dtype) for seed in (d, d + 1))
            QM, KM = (module.hadamard(x, signs).astype(np.float64) for x in (Q, K))
            Q, K = Q.astype(np.float64), K.astype(np.float64)
            lengths = np.linalg.norm(Q, axis=1)[:, None] * np.linalg.norm(K, axis=1)
            bound = (np.finfo(dtype).eps * (2 * math.log2(d) + 4) + np.finfo(float).eps * d) * lengths
            assert (abs(QM @ KM.T - Q @ K.T) <= bound).all()


def test_hadamard():
    check_hadamard(fp8)


def check_signs(module):
    """The signs are drawn, about half of each, and another seed draws others."""
    draws = np.array([module.random_signs(256, seed) for seed in range(4)])
    assert (abs(draws.sum(axis=1)) < 80).all() and len({x.tobytes() for x in draws}) == 4
    np.testing.assert_array_equal(module.random_signs(256, 3), draws[3])
    np.testing.assert_array_equal(module.random_signs(256), draws[0])


def test_signs():
    check_signs(fp8)


def test_a_rotation_spreads_an_outlier_over_its_row():
    """One entry of 1 becomes d entries of ±1/√d: the scale shrinks by √d, and so does the error of small numbers."""
    d = 64
    X = np.zeros((1, d))
    X[0, 5] = 1.0
    np.testing.assert_array_equal(abs(fp8.hadamard(X, fp8.random_signs(d))), 1 / 8)


@pytest.mark.parametrize(("dtype", "wide"), [
    (np.float64, np.float64), (np.float32, np.float32), (np.float16, np.float32), (bfloat16, np.float32)])
def test_a_rotation_is_made_in_the_accumulators_width(dtype, wide):
    assert fp8.hadamard(np.ones((2, 4), dtype), np.ones(4)).dtype == wide


@pytest.mark.parametrize(("d", "padded"), [(0, 1), (3, 4), (96, 128), (80, 128), (576, 1024)])
def test_another_head_dim_says_to_what_to_pad_and_padding_changes_no_score(d, padded):
    with pytest.raises(ValueError, match=f"d = {d}; pad .* zeros to d = {padded} and keep the scale of {d}"):
        fp8.hadamard(np.ones((2, d)), np.ones(d))
    Q, K = np.random.default_rng(0).standard_normal((2, 5, d))
    wide = [np.pad(x, ((0, 0), (0, padded - d))) for x in (Q, K)]
    QM, KM = (fp8.hadamard(x, fp8.random_signs(padded)) for x in wide)
    np.testing.assert_allclose(QM @ KM.T, Q @ K.T, rtol=0, atol=1e-12 * d)


@pytest.mark.parametrize("signs", [np.ones(3), np.ones((1, 4)), np.array([1, -1, 1, 2]), np.array([1, -1, 0, 1]), 1])
def test_signs_are_d_numbers_of_plus_or_minus_one(signs):
    with pytest.raises(ValueError, match="signs must be 4 numbers ±1"):
        fp8.hadamard(np.ones((2, 4)), signs)


# --- a head for the loop --------------------------------------------------------------------------------------

def check_prepare(module):
    """Q in tiles of Br rows, K and V of Bc; the rotation turns Q and K, not V."""
    for Nq, Nk, Br, Bc in ((7, 9, 3, 4), (4, 4, 9, 2), (1, 5, 1, 5), (0, 3, 2, 2), (3, 0, 2, 2)):
        Q, K, V = (draw((n, 8), seed) for seed, n in enumerate((Nq, Nk, Nk)))
        signs = module.random_signs(8, 3)
        for granularity, rotation in itertools.product(("block", "head"), (None, signs)):
            head = module.prepare(Q, K, V, Br, Bc, granularity, rotation)
            M = np.eye(8) if rotation is None else matrix(signs)
            for x, s, X, rows in ((head.Q, head.sQ, Q @ M, Br), (head.K, head.sK, K @ M, Bc), (head.V, head.sV, V, Bc)):
                assert s.shape == (-(-len(X) // rows),) and s.dtype == np.float32 and x.dtype == fp8.E4M3
                scale = s.astype(np.float64)[np.arange(len(X)) // rows, None]
                error = abs(x.astype(np.float64) * scale - X)
                assert (error <= scale * np.maximum(abs(X) / scale * 2.0**-4, 2.0**-10) * 1.00001).all()
                own = [abs(X[n:n + rows]).max(initial=0) for n in range(0, len(X), rows)]
                largest = own if granularity == "block" else np.full(len(own), max(own, default=0))
                np.testing.assert_allclose(s, [amax / 448 if amax else 1 for amax in largest], rtol=1e-6)
    assert module.prepare(Q, K, V, 2, 2, dtype=fp8.E5M2).V.dtype == fp8.E5M2


def test_prepare():
    check_prepare(fp8)


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"granularity": "tensors"}, ValueError, "'tensors'.*'block', 'head'"),
    ({"Br": 0}, ValueError, "Br must be at least 1, got 0"), ({"Bc": 1.0}, TypeError, "Bc must be a whole number"),
    ({"Bc": 0}, ValueError, "Bc must be at least 1, got 0"), ({"Br": True}, TypeError, "Br must be a whole number"),
    ({"signs": np.ones(4)}, ValueError, "power of two, got d = 6"),
    ({"V": np.full((3, 6), np.nan)}, ValueError, "nan")])
def test_bad_input_of_prepare_is_refused(change, error, words):
    good = {"Q": np.ones((2, 6)), "K": np.ones((3, 6)), "V": np.ones((3, 6)), "Br": 2, "Bc": 2}
    with pytest.raises(error, match=words):
        fp8.prepare(**(good | change))


# --- each of these can fail -----------------------------------------------------------------------------------

FAULTS = [
    (check_quantise, "np.where(amax == 0, 1, ", "np.where(amax < 0, 1, "),
    (check_quantise, "np.maximum(amax / largest, np.finfo(np.float32).tiny)", "amax / largest"),
    (check_quantise, "rowmax = abs(X).max", "rowmax = X.max"),
    (check_quantise, "amax = rowmax.max(axis=-1, initial=0)",
     "amax = np.full(rowmax.shape[:-1], rowmax.max(initial=0))"),
    (check_quantise, "rowmax[..., n:n + rows]", "rowmax[..., n:n + rows - 1 or 1]"),
    (check_quantise, "np.arange(shape[-2]) // granularity", "np.arange(shape[-2]) % granularity"),
    (check_quantise, "values.astype(np.float32) * spread", "values.astype(np.float32) / spread"),
    (check_quantise, "saturated(X / spread(scales, X.shape, granularity), dtype), scales",
     "saturated(X, dtype), scales"),
    (check_rounding, "np.clip(x, -largest, largest).astype(dtype)", "x.astype(dtype)"),
    (check_rounding, "np.clip(x, -largest, largest)", "np.clip(x, 0, largest)"),
    (check_rounding, "np.clip(x, -largest, largest)", "np.clip(x, -240, 240)"),
    (check_hadamard, "(left + right, left - right)", "(left + right, right - left)"),
    (check_hadamard, "(left + right, left - right)", "(left + right, left + right)"),
    (check_hadamard, "/ math.sqrt(d)", "/ d"),
    (check_hadamard, "Y = Y * signs.astype(Y.dtype)", "pass"),
    (check_hadamard, "half = 2 * half", "half = 4 * half"),
    (check_signs, "default_rng(seed)", "default_rng(0)"),
    (check_signs, "choice([-1.0, 1.0], d)", "choice([1.0], d)"),
    (check_prepare, "Q, K = hadamard(Q, signs), hadamard(K, signs)", "Q = hadamard(Q, signs)"),
    (check_prepare, "Q, K = hadamard(Q, signs), hadamard(K, signs)", "Q, V = hadamard(Q, signs), hadamard(V, signs)"),
    (check_prepare, '(("Q", Q, Br), ', '(("Q", Q, Bc), '),
    (check_prepare, '"head", dtype, name)', '"head", name=name)'),
]


@pytest.mark.parametrize(("check", "before", "after"), FAULTS, ids=[f"{n}" for n in range(len(FAULTS))])
def test_planted_faults_are_noticed(check, before, after):
    module = altered(fp8, (before, after))
    with np.errstate(all="ignore"), pytest.raises((AssertionError, ValueError, FloatingPointError)):
        check(module)
