"""The cores of one head, called as their docstrings say: standard, FlashAttention-1, -2 and -3."""

import itertools
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from fa_ref import fa1, fa2, fa3, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import EMPTY, Rule
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import Result
from fa_ref.testing.strategies import recipes
from fa_ref.testing.supports import Supports

CORES = {"standard": standard, "fa1": fa1, "fa2": fa2, "fa3": fa3}
TILED = {"fa1": fa1, "fa2": fa2, "fa3": fa3}
ONE_HEAD = Supports.everything(max_heads=1).without("sink", "grouped", "unread_nan")
cores = pytest.mark.parametrize("core", CORES.values(), ids=CORES)
tiled = pytest.mark.parametrize("core", TILED.values(), ids=TILED)


@st.composite
def heads(draw):
    """One head: P (its problem, with a bias of full shape), Q, K, V, dO, dL, rule, and the walk Br, Bc, reverse."""
    p = draw(recipes(ONE_HEAD, always=["gradients", "dlse"]).filter(lambda recipe: recipe.B > 0)).build()
    first = {name: getattr(p, name)[:1] for name in ("q", "k", "v", "dout", "dlse")}
    Nq, Nk, full = p.q.shape[2], p.k.shape[2], (len(p.q), 1, p.q.shape[2], p.k.shape[2])
    added = {name: None if x is None else np.array(np.broadcast_to(x, full)[:1])
             for name, x in (("mask", p.mask), ("bias", np.zeros(full, p.dlse.dtype) if p.bias is None else p.bias))}
    slopes = None if p.alibi_slopes is None else np.broadcast_to(p.alibi_slopes, (len(p.q), 1))[:1]
    p = p.replace(**first, **added, alibi_slopes=slopes)
    rule = Rule(Nq, Nk, scale=p.q.shape[3] ** -0.5 if p.scale is None else p.scale, causal=p.causal, window=p.window,
                mask=None if p.mask is None else p.mask[0, 0], bias=p.bias[0, 0], softcap=p.softcap,
                alibi_slope=None if slopes is None else float(slopes[0, 0]))
    Q, K, V, dO, dL = (x[0, 0] for x in first.values())
    return types.SimpleNamespace(
        p=p, Q=Q, K=K, V=V, dO=dO, dL=dL, rule=rule, wide=np.float64 if Q.dtype == np.float64 else np.float32,
        walk=(draw(st.integers(1, 14)), draw(st.integers(1, 14)), draw(st.booleans())))


def judge(h, **answers):
    """The arrays (without batch and head axes) are the oracle's for this head, within the bounds."""
    got = Result(**{"out": None} | {name: x[None, None] for name, x in answers.items()})
    for name, worst in tolerance.worst(got, oracle.solve(h.p), tolerance.bounds(h.p)).items():
        assert worst.fraction <= 1, (name, worst)


@cores
@given(heads())
def test_forward(core, h):
    """O and L, or O, l and m, in the accumulator dtype."""
    O, *statistics = core.forward_head(h.Q, h.K, h.V, h.rule, *h.walk)
    assert {x.dtype for x in (O, *statistics)} == {np.dtype(h.wide)}
    if core is fa1:
        l, m = statistics
        statistics = [m + np.log(l, where=l > 0, out=np.zeros_like(l))]
    judge(h, out=O, lse=statistics[0])


@cores
@given(heads())
def test_backward(core, h):
    """dQ, dK, dV in the accumulator dtype, for a gradient of O and of L; dB takes that of the scores."""
    answer = core.forward_head(h.Q, h.K, h.V, h.rule, *h.walk)
    dB = np.zeros((h.rule.Nq, h.rule.Nk), h.wide)
    O = answer[0].astype(h.Q.dtype)                                 # as it is stored
    grads = core.backward_head(h.dO, h.Q, h.K, h.V, O, *answer[1:], h.rule, *h.walk, dL=h.dL, dB=dB)
    assert {x.dtype for x in grads} == {np.dtype(h.wide)}
    judge(h, **dict(zip(("dq", "dk", "dv"), grads, strict=True)), dbias=dB)


@cores
@given(heads())
def test_dL_and_dB_may_be_left_out(core, h):
    """No dL is a dL of zeros, and dB only listens."""
    answer = core.forward_head(h.Q, h.K, h.V, h.rule, *h.walk)
    plain = core.backward_head(h.dO, h.Q, h.K, h.V, *answer, h.rule, *h.walk)
    dB = np.zeros((h.rule.Nq, h.rule.Nk), h.wide)
    other = core.backward_head(h.dO, h.Q, h.K, h.V, *answer, h.rule, *h.walk, dL=np.zeros_like(h.dL), dB=dB)
    for x, y in zip(plain, other, strict=True):
        np.testing.assert_array_equal(x, y)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
def test_fa1_returns_the_largest_score_and_the_sum_in_its_scale(Nq, Nk, Br, Bc, reverse, causal):
    rng, rule = np.random.default_rng(Nq + 7 * Nk), Rule(Nq, Nk, scale=1.0, causal=causal)
    Q, K = rng.standard_normal((Nq, 2)), rng.standard_normal((Nk, 2))
    _, l, m = fa1.forward_head(Q, K, np.ones((Nk, 1)), rule, Br, Bc, reverse)
    S = np.where(rule.visible(slice(0, Nq), slice(0, Nk)), Q @ K.T, -np.inf)
    np.testing.assert_allclose(m, S.max(axis=1, initial=-np.inf), rtol=1e-13)
    np.testing.assert_allclose(l, np.exp(S - np.where(m > -np.inf, m, 0)[:, None]).sum(axis=1), rtol=1e-13)


@given(heads())
def test_fa1_backward_needs_only_m_plus_log_l(h):
    O, L = fa2.forward_head(h.Q, h.K, h.V, h.rule, *h.walk)
    dB = np.zeros((h.rule.Nq, h.rule.Nk), h.wide)
    grads = fa1.backward_head(h.dO, h.Q, h.K, h.V, O.astype(h.Q.dtype), np.ones_like(L), L, h.rule, *h.walk, dL=h.dL,
                              dB=dB)
    judge(h, **dict(zip(("dq", "dk", "dv"), grads, strict=True)), dbias=dB)


def test_standard_asks_for_no_tiles():
    Q, K, V = np.ones((2, 1)), np.ones((3, 1)), np.arange(3.0)[:, None]
    rule = Rule(2, 3, scale=1.0)
    O, L = standard.forward_head(Q, K, V, rule)
    np.testing.assert_allclose(O, [[1], [1]])
    dQ, dK, dV = standard.backward_head(np.ones((2, 1)), Q, K, V, O, L, rule)
    np.testing.assert_allclose(dV, np.full((3, 1), 2 / 3))
    np.testing.assert_allclose(dK, 2 / 3 * (V - 1), atol=1e-15)
    np.testing.assert_allclose(dQ, [[0], [0]], atol=1e-15)


# --- the walk over the tiles ----------------------------------------------------------------------------------

class Watched(Rule):
    """A Rule that writes down for which tiles `kind` and `scores` were asked, and what they were given."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked, self.scored, self.given = [], [], set()

    def kind(self, rows, cols):
        kind = super().kind(rows, cols)
        self.asked.append((rows.start, rows.stop, cols.start, cols.stop))
        if kind != EMPTY:
            self.scored.append(self.asked[-1])
        return kind

    def scores(self, Qi, Kj, rows, cols, kind, descale=1):
        assert kind != EMPTY and self.scored.pop(0) == (rows.start, rows.stop, cols.start, cols.stop)
        self.given |= {Qi.dtype, Kj.dtype}
        return super().scores(Qi, Kj, rows, cols, kind, descale)


def parts(N, B):
    return [(start, min(start + B, N)) for start in range(0, N, B)]


@tiled
@pytest.mark.parametrize("reverse", [None, False, True])
@given(Nq=st.integers(0, 9), Nk=st.integers(0, 9), Br=st.integers(1, 5), Bc=st.integers(1, 5), causal=st.booleans())
def test_every_tile_once_in_the_order_of_the_paper(core, Nq, Nk, Br, Bc, reverse, causal):
    """FA2 and FA3 forward have queries outside, all else keys; only `reverse` walks backwards; EMPTY is skipped."""
    Q, K, V, dO = np.ones((Nq, 2)), np.ones((Nk, 2)), np.ones((Nk, 3)), np.ones((Nq, 3))
    direction = () if reverse is None else (reverse,)
    keys = parts(Nk, Bc)[::-1] if reverse else parts(Nk, Bc)
    queries_outside = [(*i, *j) for i, j in itertools.product(parts(Nq, Br), keys)]
    keys_outside = [(*i, *j) for j, i in itertools.product(keys, parts(Nq, Br))]

    rule = Watched(Nq, Nk, scale=1.0, causal=causal)
    answer = core.forward_head(Q, K, V, rule, Br, Bc, *direction)
    np.testing.assert_array_equal(rule.asked, keys_outside if core is fa1 else queries_outside)
    assert not rule.scored                                          # all that was not EMPTY
    rule = Watched(Nq, Nk, scale=1.0, causal=causal)
    core.backward_head(dO, Q, K, V, *answer, rule, Br, Bc, *direction)
    np.testing.assert_array_equal(rule.asked, keys_outside)
    assert not rule.scored


# --- widths ---------------------------------------------------------------------------------------------------

class Storage(np.ndarray):
    """An array that may be loaded, widened and written to, but not calculated with in 16 bits."""

    def __array_ufunc__(self, ufunc, method, *operands, out=None, **options):
        assert all(np.asarray(x).dtype.itemsize > 2 for x in operands), f"{ufunc.__name__} in 16 bits"
        if out is not None:
            options["out"] = tuple(x.view(np.ndarray) for x in out)
        plain = [x.view(np.ndarray) if isinstance(x, Storage) else x for x in operands]
        return getattr(ufunc, method)(*plain, **options)


@cores
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_16_bits_are_for_storage_alone(core, dtype):
    """All that is calculated with is widened first, on both sides of every product."""
    rng, rule = np.random.default_rng(0), Rule(3, 4, scale=0.5, softcap=2.0, causal=True)
    Q, K, V, dO = (rng.standard_normal(shape).astype(dtype).view(Storage) for shape in ((3, 2), (4, 2), (4, 5), (3, 5)))
    O, *statistics = core.forward_head(Q, K, V, rule, 2, 3)
    core.backward_head(dO, Q, K, V, O.astype(dtype).view(Storage), *statistics, rule, 2, 3)


@cores
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_what_a_core_keeps_in_memory_has_the_accumulators_width(core, dtype):
    """All arrays but P and dS, which standard attention writes down as matrix units take them."""
    rule, wide = Watched(3, 4, scale=1.0), np.dtype(np.float64 if dtype == np.float64 else np.float32)
    Q, K, V = np.ones((3, 2), dtype), np.ones((4, 2), dtype), np.ones((4, 2), dtype)
    answer = core.forward_head(Q, K, V, rule, 2, 3)
    with Ledger() as led:
        core.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), rule, 2, 3)
        core.backward_head(*(led.hbm(x, "given") for x in (Q, Q, K, V, *answer)), rule, 2, 3)
    made = [x.dtype for x in led.arrays if x.name is None]
    assert rule.given == {wide}
    assert made.count(wide) == len(made) - (3 if core is standard and dtype != wide else 0)   # P twice, dS
    assert {*made} <= {wide, np.dtype(dtype)}


@cores
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_16_bit_cores_round_P_and_dS_before_they_multiply(core, dtype):
    """What a matrix unit is fed: with ones and unit vectors around it, the product shows P or dS itself."""
    rng = np.random.default_rng(3)
    K = rng.standard_normal((5, 1)).astype(dtype)
    V, Q, rule = np.eye(5, dtype=dtype), np.ones((1, 1), dtype), Rule(1, 5, scale=1.0)
    P = np.exp(K.astype(np.float32) - K.astype(np.float32).max())   # (5, 1): Q is 1
    l = P.sum()
    P, l = (P / l, 1) if core is standard else (P, l)               # standard writes P down after the division
    O, *statistics = core.forward_head(Q, K, V, rule, 1, 5)
    np.testing.assert_array_equal(O[0], P[:, 0].astype(dtype).astype(np.float32) / np.float32(l))

    _, dK, dV = core.backward_head(np.ones((1, 5), dtype), Q, K, V, O, *statistics, rule, 1, 5)
    np.testing.assert_array_equal(dV, dV.astype(dtype))             # P · 1
    dO = rng.standard_normal((1, 5)).astype(dtype)
    _, dK, _ = core.backward_head(dO, Q, K, V, O, *statistics, rule, 1, 5)
    assert dK.any()
    np.testing.assert_array_equal(dK, dK.astype(dtype))             # dSᵀ · 1
    K = np.eye(5, dtype=dtype)
    Q = rng.standard_normal((1, 5)).astype(dtype)
    O, *statistics = core.forward_head(Q, K, V, rule, 1, 5)
    dQ, _, _ = core.backward_head(dO, Q, K, V, O, *statistics, rule, 1, 5)
    assert dQ.any()
    np.testing.assert_array_equal(dQ, dQ.astype(dtype))             # dS · I
