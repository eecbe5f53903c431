"""The four softmaxes agree, and merge is the monoid that the rest of the package takes it for."""

import math
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16, finfo

import fa_ref
from fa_ref.online_softmax import blocked, finite_or_zero, merge, naive, nonzero_or_one, online, rowmax, rowsum, safe

EMPTY = (np.zeros(2), np.float64(-np.inf))
WIDE = (np.float64, np.float32)


def ways(x):
    """Everything that must give the softmax of x, by name."""
    return {"safe": safe(x), "online": online(x)} | {f"blocked, {Bc}": blocked(x, Bc) for Bc in (1, 2, 3, len(x) + 1)}


def exact(x):
    """The softmax of x in float64 and plain Python."""
    m = max(x, default=-math.inf)
    e = [math.exp(x_j - m) if x_j > -math.inf else 0.0 for x_j in x]
    return [e_j / math.fsum(e) if e_j else 0.0 for e_j in e]


def close(a, b, dtype=np.float64, size=1.0):
    """Do a and b agree to a few rounding errors of this dtype at this size?"""
    return np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=0, atol=64 * float(finfo(dtype).eps) * size)


# --- one row --------------------------------------------------------------------------------------------------

logits = st.one_of(st.integers(-5000, 5000).map(lambda n: n / 4), st.just(-math.inf))


@given(x=st.lists(logits, max_size=12), dtype=st.sampled_from(WIDE))
def test_every_softmax_is_exact(x, dtype):
    x = np.array(x, dtype)
    for name, p in ways(x).items():
        assert p.dtype == dtype, name
        assert close(p, exact(x.tolist()), dtype), name
        assert close(p.sum(), 1 if (x > -np.inf).any() else 0, dtype), name


@given(x=st.lists(st.integers(-50, 50), min_size=1, max_size=12), dtype=st.sampled_from(WIDE))
def test_naive_agrees_while_logits_are_small(x, dtype):
    x = np.array(x, dtype)
    assert close(naive(x), exact(x.tolist()), dtype)


@pytest.mark.parametrize("dtype, logit", [(np.float32, 89), (np.float64, 710)])
def test_naive_fails_on_large_logits_and_the_others_do_not(dtype, logit):
    x = np.array([0, logit, logit], dtype)
    with pytest.raises(FloatingPointError), np.errstate(over="raise"):
        naive(x)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(naive(x)).any()
    for name, p in ways(x).items():
        assert close(p, [0, .5, .5], dtype), name


@given(x=st.lists(st.integers(-20, 20), min_size=1, max_size=8), shift=st.sampled_from([1e4, -1e4, 3.0]))
def test_a_shift_of_all_logits_changes_nothing(x, shift):
    x = np.array(x, float)
    for (name, p), shifted in zip(ways(x).items(), ways(x + shift).values(), strict=True):
        assert np.array_equal(p, shifted), name


@pytest.mark.parametrize("dtype", WIDE)
def test_a_row_of_hidden_keys_and_a_row_of_none_are_zero(dtype):
    for n in (0, 1, 5):
        for name, p in ways(np.full(n, -np.inf, dtype)).items():
            assert p.shape == (n,) and p.dtype == dtype and not p.any(), name


# --- guards and reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", WIDE)
def test_the_guards_change_empty_rows_alone(dtype):
    m = np.array([-np.inf, -3, 0, 7, np.inf], dtype)
    assert finite_or_zero(m).tolist() == [0, -3, 0, 7, np.inf]
    l = np.array([0, 1e-30, 1, 5], dtype)
    assert nonzero_or_one(l).tolist() == [1, dtype(1e-30), 1, 5]
    assert finite_or_zero(m).dtype == nonzero_or_one(l).dtype == dtype
    assert finite_or_zero(m[0]) == 0 and nonzero_or_one(l[0]) == 1


@pytest.mark.parametrize("dtype", WIDE)
def test_the_reductions_of_rows_with_and_without_entries(dtype):
    S = np.array([[1, 5, -2], [-np.inf, -np.inf, -np.inf]], dtype)
    assert rowmax(S).tolist() == [5, -np.inf] and rowsum(S).tolist() == [4, -np.inf]
    assert rowmax(S[:, :0]).tolist() == [-np.inf, -np.inf] and rowsum(S[:, :0]).tolist() == [0, 0]
    assert rowmax(S).dtype == rowsum(S).dtype == dtype


# --- merge ----------------------------------------------------------------------------------------------------


def part(keys):
    """(out, lse) of one query over these keys, a list of (logit, value); out has two equal channels."""
    seen = [key for key in keys if key[0] > -math.inf]
    if not seen:
        return EMPTY
    m = max(s for s, _ in seen)
    l = math.fsum(math.exp(s - m) for s, _ in seen)
    out = math.fsum(math.exp(s - m) * value for s, value in seen) / l
    return np.array([out, out]), np.float64(m + math.log(l))


keys = st.lists(st.tuples(logits, st.integers(-8, 8)), max_size=10)


def same(a, b):
    """The same (out, lse) up to rounding: lse is up to 1250, and its error is one of the weights."""
    return close(a[0], b[0], size=4096) and (a[1] == b[1] or close(a[1], b[1], size=1300))


@given(keys=keys, data=st.data())
def test_any_split_in_any_order_is_the_whole(keys, data):
    """The number of parts may be larger than that of keys: some are then empty."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=14), label="cuts"))
    edges = [0, *cuts, len(keys)]
    parts = [part(keys[a:b]) for a, b in pairwise(edges)]
    order = data.draw(st.permutations(range(len(parts))), label="order")
    assert same(reduce(lambda a, b: merge(*a, *b), (parts[n] for n in order)), part(keys))


@given(a=keys, b=keys, c=keys)
def test_merge_is_commutative_and_associative(a, b, c):
    a, b, c = map(part, (a, b, c))
    ab, ba = merge(*a, *b), merge(*b, *a)
    assert np.array_equal(ab[0], ba[0]) and ab[1] == ba[1]  # bit for bit
    assert same(merge(*ab, *c), merge(*a, *merge(*b, *c)))


@given(a=keys)
def test_the_identity_is_an_empty_part(a):
    a = part(a)
    for out, lse in (merge(*a, *EMPTY), merge(*EMPTY, *a), merge(*a, 0, -math.inf)):
        assert np.array_equal(out, a[0]) and lse == a[1]  # bit for bit


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("weightless", [-np.inf, -2000.0])
@pytest.mark.parametrize("dtype", WIDE)
def test_a_part_of_weight_zero_is_never_read(garbage, weightless, dtype):
    """Its weight is zero because it is empty, or because it is far below the other part."""
    if dtype == np.float32 and abs(garbage) == 1e308:
        garbage = np.copysign(3e38, garbage)
    good, bad = (np.array([7, 8], dtype), dtype(-3)), (np.full(2, garbage, dtype), dtype(weightless))
    for out, lse in (merge(*good, *bad), merge(*bad, *good)):
        assert out.tolist() == [7, 8] and lse == -3


def test_empty_parts_alone_stay_empty():
    out, lse = merge(np.full((3, 2), np.nan), np.full(3, -np.inf), np.full((3, 2), np.inf), np.full(3, -np.inf))
    assert out.tolist() == [[0, 0]] * 3 and lse.tolist() == [-np.inf] * 3


def test_rows_are_independent():
    """One row empty on the left, one on the right, one on neither side, one on both."""
    lse_a, lse_b = np.array([-np.inf, 0, 0, -np.inf]), np.array([2, -np.inf, math.log(3), -np.inf])
    out, lse = merge(np.array([[np.nan], [5], [1], [np.nan]]), lse_a, np.array([[4], [np.nan], [3], [np.nan]]), lse_b)
    assert close(out, [[4], [5], [2.5], [0]])
    assert close(lse[:3], [2, 0, math.log(4)]) and lse[3] == -np.inf


@given(a=keys, b=keys, shift=st.sampled_from([-1e4, 64.0, 1e4]))
def test_a_shift_of_both_parts_moves_lse_alone(a, b, shift):
    (out_a, lse_a), (out_b, lse_b) = part(a), part(b)
    out, lse = merge(out_a, lse_a, out_b, lse_b)
    shifted = merge(out_a, lse_a + shift, out_b, lse_b + shift)
    assert close(shifted[0], out, size=1e5) and (lse == -np.inf or close(shifted[1], lse + shift, size=1e4))


@pytest.mark.parametrize("lse_dtype", WIDE)
@pytest.mark.parametrize("dtype", [*WIDE, np.float16, bfloat16])
def test_dtypes_are_kept(dtype, lse_dtype):
    out, lse = merge(np.full((3, 2), 1, dtype), np.zeros(3, lse_dtype),
                     np.full((3, 2), 3, dtype), np.full(3, math.log(3), lse_dtype))
    assert out.dtype == dtype and lse.dtype == lse_dtype
    assert close(out, np.full((3, 2), 2.5), dtype)
    assert close(lse, np.full(3, math.log(4)), lse_dtype)


def test_a_narrow_lse_becomes_float32():
    assert merge(np.ones(2), np.float16(0), np.ones(2), np.float16(0))[1].dtype == np.float32


def test_a_number_stands_for_a_part():
    """That is how a sink is added: one more key whose value is zero."""
    O, L = np.array([[4], [6]], np.float32), np.array([0, -np.inf], np.float32)
    out, lse = merge(O, L, 0, np.float32(0))
    assert out.dtype == lse.dtype == np.float32
    assert out.tolist() == [[2], [0]] and close(lse, [math.log(2), 0], np.float32)


@pytest.mark.parametrize("nothing", [0, 0.0, math.nan])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_numbers_take_the_dtype_of_their_partner(nothing, dtype):
    """The identity (0, −inf), as Python numbers, changes neither values nor widths."""
    wide = np.float64 if dtype == np.float64 else np.float32
    out, lse = merge(np.full((3, 2), 7, dtype), np.full(3, -3, wide), nothing, -math.inf)
    assert (out.dtype, lse.dtype) == (dtype, wide)
    assert (out == 7).all() and (lse == -3).all()


@pytest.mark.parametrize(("parts", "words"), [
    ((np.ones((3, 2)), np.zeros((3, 1)), np.ones((3, 2)), np.zeros(3)), ["(3, 2)", "(3,)", "(3, 1)"]),
    ((np.ones((3, 2)), np.zeros(3), np.ones((3, 1)), np.zeros(3)), ["out", "(3, 2) and (3, 1)"]),
    ((np.ones((3, 2)), np.zeros(3), np.ones((1, 2)), np.zeros(1)), ["out", "(3, 2) and (1, 2)"]),
    ((np.ones((3, 2)), np.zeros(3), 0, np.zeros(1)), ["lse", "(3,) and (1,)"]),
    ((np.ones((3, 2)), np.zeros(3), np.ones((3, 2)), np.array([0, np.inf, 0])), ["+inf"])])
def test_parts_that_do_not_belong_together_are_refused(parts, words):
    with pytest.raises(ValueError) as error:
        merge(*parts)
    assert all(word in str(error.value) for word in words)


def test_the_parts_are_only_read():
    parts = [np.ones((3, 2)), np.zeros(3), np.full((3, 2), 5.0), np.ones(3)]
    before = [x.copy() for x in parts]
    for x in parts:
        x.flags.writeable = False
    results = merge(*parts)
    assert all(np.array_equal(x, y) for x, y in zip(parts, before, strict=True))
    assert not any(np.shares_memory(x, y) for x in results for y in parts)


@given(cuts=st.lists(st.integers(0, 7), max_size=10).map(sorted), seed=st.integers(0, 99))
def test_attention_over_parts_of_the_keys_merges_to_attention(cuts, seed):
    r = np.random.default_rng(seed)
    q, k, v = (r.standard_normal((2, 3, n, 4)) for n in (5, 7, 7))
    mask = r.random((2, 3, 5, 7)) < .5
    whole, edges = fa_ref.forward(q, k, v, mask=mask), [0, *cuts, 7]
    parts = [fa_ref.forward(q, k[:, :, a:b], v[:, :, a:b], mask=mask[..., a:b]) for a, b in pairwise(edges)]
    out, lse = reduce(lambda a, b: merge(*a, *b), parts)
    assert close(out, whole.out)
    seen = mask.any(axis=-1)
    assert close(lse[seen], whole.lse[seen]) and (lse[~seen] == -np.inf).all() and not out[~seen].any()
