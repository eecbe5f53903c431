"""An lse in base 2 is refused, whatever the options; a natural one is not, nor that of keys which are elsewhere."""

import math

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
import fa_ref
from fa_ref import base_two, varlen
from fa_ref.base_two import telling_rows
from fa_ref.online_softmax import merge
from fa_ref.scores import Rule

LOG2_E = 1 / math.log(2)
SINK = np.array([0.5, -1.0, 3.0, -np.inf], np.float32)
OPTIONS = {"plain": {}, "causal": {"causal": True}, "window": {"window": (3, 2)}, "scale": {"scale": -0.7},
           "softcap": {"softcap": 1.5}, "sink": {"sink": SINK}, "alibi": {"alibi_slopes": SINK[:2].repeat(2)},
           "bias": {"bias": np.linspace(-3, 2, 7 * 9).reshape(7, 9)}, "mask": {"mask": np.tri(7, 9, 3, dtype=bool)},
           "fa1": {"algorithm": "fa1"}}


def drawn(dtype=np.float32, Nq=7, Nk=9, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return [draw(shape).astype(dtype) for shape in ((2, 4, Nq, 8), (2, 4, Nq, 8), (2, 2, Nk, 8), (2, 2, Nk, 8))]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_base_two_is_refused_with_any_option(options, dtype):
    dout, q, k, v = drawn(dtype)
    out, lse = fa_ref.forward(q, k, v, **options)
    fa_ref.backward(dout, q, k, v, out, lse, **options)
    with pytest.raises(ValueError, match=r"lse is in base 2: \S+ at \(\d, \d, \d\), where .* is \S+; lse · ln 2"):
        fa_ref.backward(dout, q, k, v, out, lse * lse.dtype.type(LOG2_E), **options)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("N", [5, 8, 30])
def test_rows_that_see_one_key_do_not_hide_it(N, seed):
    """The first row of a square causal problem has the out of its one key with any lse; others tell."""
    dout, q, k, v = drawn(Nq=N, Nk=N, seed=seed)
    out, lse = fa_ref.forward(q, k, v, causal=True)
    fa_ref.backward(dout, q, k, v, out, lse, causal=True)
    with pytest.raises(ValueError, match=r"lse is in base 2: \S+ at \(\d, \d, [1-9]\d*\), "):
        fa_ref.backward(dout, q, k, v, out, lse * np.float32(LOG2_E), causal=True)


def test_both_numbers_are_said():
    q, k, v = np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 16, 2)), np.arange(32.0).reshape(1, 1, 16, 2)
    with pytest.raises(ValueError, match=r"2: 4 at \(0, 0, 0\), where the natural logarithm is 2\.77259; lse"):
        fa_ref.backward(q, q, k, v, v.mean(axis=2, keepdims=True), np.full((1, 1, 1), 4.0))


@pytest.mark.parametrize("kernel", cuda_kernels.WITH_BACKWARD)
def test_kernels_refuse_it_in_arrays_of_the_host(kernel):
    dout, q, k, v = drawn(np.float16)
    out, lse = cuda_kernels.forward(q, k, v, kernel=kernel, causal=True)
    with pytest.raises(ValueError, match="lse is in base 2"):
        cuda_kernels.backward(dout, q, k, v, out, lse * np.float32(LOG2_E), kernel=kernel, causal=True)
    with pytest.raises(ValueError, match="lse is in base 2"):
        cuda_kernels.backward(*map(torch.from_numpy, (dout, q, k, v, out, lse * np.float32(LOG2_E))), kernel=kernel,
                              causal=True)
    cuda_kernels.backward(dout, q, k, v, out, lse, kernel=kernel, causal=True)


def test_packed_sequences_refuse_it():
    dout, q, k, v = (x[0] for x in drawn())
    lengths = [0, 0, 3, 7], [0, 2, 4, 9]
    out, lse = varlen.forward(q, k, v, *lengths)
    varlen.backward(dout, q, k, v, out, lse, *lengths)
    with pytest.raises(ValueError, match="lse is in base 2"):
        varlen.backward(dout, q, k, v, out, lse * np.float32(LOG2_E), *lengths)


def test_hidden_keys_may_hold_anything():
    dout, q, k, v = drawn()
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.inf
    mask = np.arange(9) < 5
    out, lse = fa_ref.forward(q, k, v, mask=mask)
    with pytest.raises(ValueError, match="lse is in base 2"):
        fa_ref.backward(dout, q, k, v, out, lse * np.float32(LOG2_E), mask=mask)


# --- not refused ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("here", [1, 4, 25, 128])
def test_some_of_the_keys_with_the_lse_of_all(here, seed, monkeypatch):
    """128 of 1,097 keys with scores of zero: the ratio of the two lse is nearly ln 2. But out is that of all keys."""
    monkeypatch.setattr(base_two, "CLOSE_LSE", 5e-5)
    assert math.isclose(math.log(128) / math.log(1097), math.log(2), rel_tol=base_two.CLOSE_LSE)
    dout, q, k, v = drawn(Nq=3, Nk=1097, seed=seed)
    for queries in (q * 0, q):
        parts = [fa_ref.forward(queries, k[:, :, cut], v[:, :, cut]) for cut in (slice(0, here), slice(here, None))]
        out, lse = merge(*parts[0], *parts[1])
        whole = fa_ref.backward(dout, queries, k, v, out, lse)
        part = fa_ref.backward(dout, queries, k[:, :, :here], v[:, :, :here], out, lse)
        np.testing.assert_allclose(part.dv, whole.dv[:, :, :here], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("values", [np.zeros(36), np.ones(36), np.tile(np.arange(12.0), 3)], ids=str)
def test_out_says_nothing_if_it_is_the_same_with_other_keys(values, monkeypatch):
    """12 of 36 keys: ln 12 / ln 36 is ln 2 up to 5e-4, and the mean of their values is that of all."""
    v = np.repeat(values[None, None, :, None], 3, axis=3)
    q, k = np.zeros((1, 1, 5, 3)), np.ones((1, 1, 36, 3))
    out, lse = fa_ref.forward(q, k, v)
    fa_ref.backward(out, q, k[:, :, :12], v[:, :, :12], out, lse)
    if not np.ptp(values):                                          # even if the ratio were nearer
        monkeypatch.setattr(base_two, "CLOSE_LSE", 5e-4)
        fa_ref.backward(out, q, k[:, :, :12], v[:, :, :12], out, lse)


@pytest.mark.filterwarnings("error")
def test_no_warnings_for_rows_that_see_nothing_here_or_values_without_weight():
    dout, q, k, v = drawn(np.float64)
    out, lse = fa_ref.forward(q, k, v)
    fa_ref.backward(dout, q, k, v, out, lse, mask=np.zeros((7, 9), bool))       # all that is seen is elsewhere
    k, v = k * 0 + 1, v.copy()
    k[:, :, 3], v[:, :, 3] = -1e5, np.inf
    q = abs(q)
    base_two.refuse_base_two(q, k, v, out, np.full(lse.shape, 9.0), None, lambda b, h: Rule(7, 9, scale=1.0))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_an_out_that_nearly_cancels_is_no_excuse(seed, dtype):
    dout, q, k, v = drawn(dtype, seed=seed)
    out, lse = fa_ref.forward(q, k, v[..., :1])
    with pytest.raises(ValueError, match="lse is in base 2"):
        fa_ref.backward(dout[..., :1], q, k, v[..., :1], out, lse * np.float32(LOG2_E))


def test_a_small_lse_or_none_says_nothing():
    """Below 1 in magnitude, for rows that see no key, for no rows at all."""
    dout, q, k, v = drawn(Nk=1)
    out, lse = fa_ref.forward(q * 0, k, v)
    assert not lse.any()
    fa_ref.backward(dout, q * 0, k, v, out, lse)
    out, lse = fa_ref.forward(q, k, v, mask=np.zeros(1, bool))
    fa_ref.backward(dout, q, k, v, out, lse * np.float32(LOG2_E), mask=np.zeros(1, bool))
    x = np.zeros((1, 1, 0, 2))
    fa_ref.backward(x, x, x, x, x, x[..., 0])


def test_the_rows_that_tell_are_those_with_the_largest_lse():
    lse = np.full((2, 3, 5), 0.5)
    assert telling_rows(lse) == []
    lse[0, 1, 2], lse[1, 2, 4], lse[1, 0, 0], lse[0, 0, 0] = -7, 3, np.nan, -np.inf
    assert telling_rows(lse) == [(0, 1, 2), (1, 2, 4)]
    assert telling_rows(np.arange(1.0, 71).reshape(2, 5, 7)) == [
        (b, h, i) for b in (1, 0) for h in (4, 3, 2, 1, 0) for i in range(6, -1, -1)][:base_two.LOOK]
