"""From heads to a batch: what reaches the cores, grouped heads, the sink, the gradient of a bias, kinds and dtypes."""

import inspect
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import fa_ref
from fa_ref import heads, varlen
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import Result
from fa_ref.testing.strategies import recipes
from fa_ref.testing.supports import Supports

algorithms = pytest.mark.parametrize("algorithm", heads.ALGORITHMS)
EVERYTHING = Supports.everything()


def solve(p, algorithm):
    """The package's answer to a problem that has a dout."""
    options = p.options | {"algorithm": algorithm, "block_q": p.block_q, "block_k": p.block_k, "reverse": p.reverse}
    out, lse = fa_ref.forward(p.q, p.k, p.v, **options)
    return Result(out, lse, *fa_ref.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, **options))


@algorithms
@given(recipes(EVERYTHING, always=["gradients"]))
def test_everything_is_the_oracles(algorithm, recipe):
    p = recipe.build()
    for name, worst in tolerance.worst(solve(p, algorithm), oracle.solve(p), tolerance.bounds(p)).items():
        assert worst.fraction <= 1, (name, worst, str(recipe))


@algorithms
@given(recipes(EVERYTHING, always=["gradients", "bias", "sink"]))
def test_shapes_and_dtypes(algorithm, recipe):
    """Results are shaped and typed like what they belong to; lse has the accumulator's dtype."""
    p = recipe.build()
    p = p.replace(bias=p.bias.astype(p.q.dtype), sink=p.sink.astype(p.q.dtype))
    got = solve(p, algorithm)
    assert got.out.shape == (*p.q.shape[:3], p.v.shape[3]) and got.out.dtype == p.q.dtype
    assert got.lse.shape == p.q.shape[:3] and got.lse.dtype == (np.float64 if p.q.dtype == np.float64 else np.float32)
    for name in ("q", "k", "v", "bias", "sink"):
        gradient, x = getattr(got, f"d{name}"), getattr(p, name)
        assert (gradient.shape, gradient.dtype) == (x.shape, x.dtype), name


@algorithms
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_reaches_a_row_that_sees_no_key_goes_nowhere(algorithm, poison):
    """dout and dlse of such a row may be anything (a loss on lse makes −inf of them): no key hears of it."""
    rng = np.random.default_rng(0)
    q, dout = rng.standard_normal((2, 1, 1, 4, 2))
    k, v = rng.standard_normal((2, 1, 1, 2, 2))
    dlse = rng.standard_normal((1, 1, 4))
    options = {"algorithm": algorithm, "causal": True, "block_q": 3}    # rows 0 and 1 see nothing
    out, lse = fa_ref.forward(q, k, v, **options)
    clean = fa_ref.backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    dout[0, 0, :2], dlse[0, 0, :2] = poison, poison
    poisoned = fa_ref.backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    for x, y in zip(clean[:3], poisoned[:3], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("algorithm", heads.ALGORITHMS)
def test_a_sink_without_weight_has_no_gradient(algorithm, poison):
    """−∞ in the first head: rows 0 and 1 see nothing at all there, and their dO and dL may be anything."""
    rng = np.random.default_rng(6)
    q, dout = rng.standard_normal((2, 1, 2, 4, 2))
    k, v = rng.standard_normal((2, 1, 2, 2, 2))
    dlse = rng.standard_normal((1, 2, 4))
    options = {"algorithm": algorithm, "causal": True, "sink": np.array([-np.inf, 0.5])}
    out, lse = fa_ref.forward(q, k, v, **options)
    clean = fa_ref.backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    dout[0, 0, :2], dlse[0, 0, :2] = poison, poison
    poisoned = fa_ref.backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    assert clean.dsink[0] == 0 and clean.dsink[1] != 0
    np.testing.assert_array_equal(clean.dsink, poisoned.dsink)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_shapes_and_dtypes_of_packed_gradients(dtype):
    q, k, v, sink, bias = (np.ones(shape, dtype) for shape in ((2, 3, 2), (1, 4, 2), (1, 4, 5), (2,), (3, 1)))
    packed = {"q": q, "k": k, "v": v, "cu_seqlens_q": [0, 1, 3], "cu_seqlens_k": [0, 2, 4], "sink": sink, "bias": bias}
    out, lse = varlen.forward(**packed)
    assert (out.shape, out.dtype, lse.shape) == ((2, 3, 5), dtype, (2, 3))
    for gradient, x in zip(varlen.backward(out, out=out, lse=lse, **packed), (q, k, v, bias, sink), strict=True):
        assert (gradient.shape, gradient.dtype) == (x.shape, x.dtype)


def test_what_was_not_given_has_no_gradient():
    x = np.ones((1, 1, 2, 1))
    grads = fa_ref.backward(x, x, x, x, *fa_ref.forward(x, x, x))
    assert grads.dbias is None and grads.dsink is None


# --- what reaches the core ------------------------------------------------------------------------------------

def problem(**changes):
    """q, k, v of two query heads on one key/value head."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, 2, 3, 2)), rng.standard_normal((2, 1, 4, 2)), rng.standard_normal((2, 1, 4, 3))
    return {"q": q, "k": k, "v": v} | changes


def watch(monkeypatch, name="fa2"):
    """Put a listener in front of a core; returns the list of its calls, one namespace of arguments each."""
    calls, core = [], heads.ALGORITHMS[name]

    def heard(part, *args, **kwargs):
        bound = inspect.signature(part).bind(*args, **kwargs)
        bound.apply_defaults()
        calls.append(SimpleNamespace(part=part.__name__, **bound.arguments))
        return part(*args, **kwargs)

    for part in (core.forward_head, core.backward_head):
        monkeypatch.setattr(core, part.__name__, partial(heard, part))
    return calls


def both_ways(**options):
    p = problem()
    out, lse = fa_ref.forward(**p, **options)
    fa_ref.backward(np.ones_like(out), **p, out=out, lse=lse, **options)


@algorithms
def test_tiles_and_direction_reach_the_core(monkeypatch, algorithm):
    calls = watch(monkeypatch, algorithm)
    both_ways(algorithm=algorithm, block_q=3, block_k=2, reverse=True)
    assert [(c.Br, c.Bc, c.reverse) for c in calls] == [(3, 2, True)] * 8   # forward and backward, B = 2, Hq = 2


def test_the_defaults_are_fa2_forwards_with_tiles_of_64(monkeypatch):
    calls, others = watch(monkeypatch), [watch(monkeypatch, name) for name in ("standard", "fa1")]
    both_ways()
    assert [(c.Br, c.Bc, c.reverse) for c in calls] == [(64, 64, False)] * 8 and not any(others)
    for rule in (c.rule for c in calls):
        assert (rule.scale, rule.softcap, rule.alibi_slope) == (1 / math.sqrt(2), None, None)
        assert not rule.masks and not rule.biases and rule.visible(slice(0, 3), slice(0, 4)).all()


def test_every_head_gets_its_own_rule(monkeypatch):
    calls = watch(monkeypatch)
    rng = np.random.default_rng(1)
    mask, bias, slopes = rng.random((2, 2, 3, 4)) < 0.5, rng.standard_normal((2, 1, 3, 4)), np.array([[1, 2], [3, 4.0]])
    both_ways(mask=mask, bias=bias, alibi_slopes=slopes, scale=0.25, softcap=3.0, causal=True, window=(2, -1))
    for call, (b, h) in zip(calls, 2 * list(np.ndindex(2, 2)), strict=True):
        rule = call.rule
        assert (rule.scale, rule.softcap, rule.alibi_slope, rule.left, rule.right) == (0.25, 3.0, slopes[b, h], 2, 0)
        np.testing.assert_array_equal(rule.masks, [mask[b, h]])
        np.testing.assert_array_equal(rule.biases, [bias[b, 0]])


def test_what_nobody_sees_reaches_the_core_as_zero(monkeypatch):
    """Keys hidden from all queries of a head, and the queries, outputs and gradients of rows that see nothing."""
    calls = watch(monkeypatch)
    mask = np.ones((2, 2, 3, 4), bool)
    mask[:, 0, :, 1] = False                                        # head 0: key 1 is hidden, head 1 sees it
    mask[:, 1, 2] = False                                           # head 1: row 2 is empty
    p = problem()
    lse = fa_ref.forward(**p, mask=mask).lse
    sevens = np.full((2, 2, 3, 3), 7.0)
    fa_ref.backward(sevens, **p, out=sevens, lse=lse, mask=mask)
    for call, (b, h) in zip(calls, 2 * list(np.ndindex(2, 2)), strict=True):
        hidden_key, empty_row = np.arange(4) == (1 if h == 0 else -1), np.arange(3) == (2 if h == 1 else -1)
        np.testing.assert_array_equal(call.K, np.where(hidden_key[:, None], 0, p["k"][b, 0]))
        np.testing.assert_array_equal(call.V, np.where(hidden_key[:, None], 0, p["v"][b, 0]))
        np.testing.assert_array_equal(call.Q, np.where(empty_row[:, None], 0, p["q"][b, h]))
        if call.part == "backward_head":
            np.testing.assert_array_equal(call.dO, np.where(empty_row[:, None], 0, sevens[b, h]))
            np.testing.assert_array_equal(call.O, call.dO)


def test_no_bias_no_dB_and_no_dlse_no_dL(monkeypatch):
    calls = watch(monkeypatch)
    both_ways()
    assert all(c.dB is None and c.dL is None for c in calls if c.part == "backward_head")


# --- the small helpers ----------------------------------------------------------------------------------------

def test_zero_unless_selects_and_never_multiplies():
    X = np.array([[1, np.nan], [np.inf, 2], [3, -np.inf]], np.float16)
    got = heads.zero_unless(np.array([False, True, False]), X)
    assert got.dtype == X.dtype
    np.testing.assert_array_equal(got, np.array([[0, 0], [np.inf, 2], [0, 0]]))
    assert heads.zero_unless(np.ones(3, bool), X) is X  # no copy where nothing is hidden
    assert heads.zero_unless(np.ones(2, bool), X[::2]).flags.c_contiguous  # bits do not depend on strides
    np.testing.assert_array_equal(heads.zero_unless(np.zeros(3, bool), X), np.zeros((3, 2)))


def test_log_sum_exp_takes_what_the_cores_return():
    L = np.array([3 + np.log(2), -np.inf])
    assert heads.log_sum_exp(L) is L
    np.testing.assert_allclose(heads.log_sum_exp(np.array([2.0, 0.0]), np.array([3.0, -np.inf])), L)


@given(st.sampled_from(["BHQK", "B1QK", "1HQK", "BH1K", "BHQ1", "HQK", "1QK", "QK", "1K", "Q1", "11", "K", "1", ""]))
def test_the_gradient_of_a_bias_is_summed_to_its_shape(axes):
    sizes = {"B": 2, "H": 3, "Q": 4, "K": 5, "1": 1}
    parts = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    total = np.zeros([sizes[letter] for letter in axes])
    for b, h in np.ndindex(2, 3):
        heads.add_broadcast(total, parts[b, h], b, h)
    np.testing.assert_allclose(total, oracle.sum_to(parts, total.shape), rtol=1e-12)


@given(st.sampled_from(["1HQK", "11Q1", "HQK", "1QK", "HQ1", "QK", "1K", "Q1", "11", "K", "1", ""]))
def test_the_gradient_of_a_packed_bias_is_summed_to_its_shape(axes):
    sizes = {"H": 3, "Q": 4, "K": 5, "1": 1}
    parts, shape = np.random.default_rng(0).standard_normal((1, 3, 4, 5)), tuple(sizes[letter] for letter in axes)
    total = varlen.sum_to(parts, shape)
    assert total.shape == shape
    np.testing.assert_allclose(total, oracle.sum_to(parts, shape), rtol=1e-12)


def test_sink_gradient_is_that_of_a_key_whose_value_is_zero():
    rng = np.random.default_rng(0)
    (dO, O), (L, dL) = rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3))
    P = np.exp(0.5 - L)                                             # what the sink takes of each row
    D = (dO * O).sum(axis=1)
    np.testing.assert_allclose(heads.sink_gradient(0.5, dO, O, L, None, np.float64), -(P * D).sum())
    np.testing.assert_allclose(heads.sink_gradient(0.5, dO, O, L, dL, np.float64), -(P * (D - dL)).sum())


# --- kinds ----------------------------------------------------------------------------------------------------

@algorithms
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_in_torch_out(algorithm, dtype):
    """The same bits as with NumPy, as tensors; a tensor that requires a gradient is detached."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)

    def as_numpy(x):
        return x.view(torch.int16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.numpy()

    q, k, v, dout = tensor(1, 2, 3, 2), tensor(1, 1, 4, 2), tensor(1, 1, 4, 2), tensor(1, 2, 3, 2)
    bias, sink, mask = tensor(3, 4), tensor(2), torch.from_numpy(rng.random((3, 4)) < 0.7)
    options = {"bias": bias, "sink": sink, "mask": mask}
    out, lse = fa_ref.forward(q.requires_grad_(), k, v, algorithm=algorithm, **options)
    grads = fa_ref.backward(dout, q, k, v, out, lse, dlse=lse, algorithm=algorithm, **options)
    assert all(isinstance(x, torch.Tensor) and not x.requires_grad for x in (out, lse, *grads))
    assert [x.dtype for x in (out, *grads)] == [dtype] * 6

    q, k, v, dout, bias, sink, mask = (as_numpy(x.detach()) for x in (q, k, v, dout, bias, sink, mask))
    options = {"bias": bias, "sink": sink, "mask": mask}
    forward = fa_ref.forward(q, k, v, algorithm=algorithm, **options)
    backward = fa_ref.backward(dout, q, k, v, *forward, dlse=forward.lse, algorithm=algorithm, **options)
    for tensor_, array in zip((out, lse, *grads), (*forward, *backward), strict=True):
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(as_numpy(tensor_), array)


# --- bad input ------------------------------------------------------------------------------------------------

def test_backward_refuses_what_does_not_belong():
    p = problem()
    out, lse = fa_ref.forward(**p)
    good = p | {"dout": out, "out": out, "lse": lse}
    for name, bad, error, words in (
            ("dout", out[:, :, :2], ValueError, r"dout.*\(2, 2, 3, 3\).*\(2, 2, 2, 3\)"),
            ("dout", out.astype(np.float32), TypeError, "dout.*float64.*float32"),
            ("out", out[..., :2], ValueError, r"out.*\(2, 2, 3, 3\).*\(2, 2, 3, 2\)"),
            ("out", out.astype(np.float32), TypeError, "out.*float64.*float32"),
            ("lse", lse[:1], ValueError, r"lse.*\(2, 2, 3\).*\(1, 2, 3\)"),
            ("lse", lse.astype(np.float16), TypeError, "lse.*float16"),
            ("lse", np.full_like(lse, np.inf), ValueError, "lse.*inf"),
            ("dlse", lse[:, :1], ValueError, r"dlse.*\(2, 2, 3\).*\(2, 1, 3\)"),
            ("algorithm", "fa9", ValueError, "fa9.*standard.*fa1.*fa2"),
            ("q", torch.from_numpy(p["q"]), TypeError, "q is a torch tensor"),
            ("k", p["k"][:, :, :3], ValueError, "3.*4"),
            ("block_k", 0, ValueError, "block_k.*0"), ("reverse", 1, TypeError, "reverse.*1")):
        with pytest.raises(error, match=words):
            fa_ref.backward(**good | {name: bad})
