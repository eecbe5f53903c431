"""The formulas of fa_ref/costs.py equal what the ledger counts while a core runs, exactly, for every problem."""

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from fa_ref import costs, fa1, fa2, fa3, fa3_fp8, fp8, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.tables.work import output_work

CORES = {"standard": standard, "fa1": fa1, "fa2": fa2, "fa3": fa3}
NOTHING_HIDDEN = (False, (-1, -1), False, False, False, None)       # causal, window, mask, bias, alibi, softcap
names = pytest.mark.parametrize("name", CORES)


class Setting:
    """One head's problem. `visited` is found by looking at every pair of a query and a key, not by asking `kind`."""

    def __init__(self, Nq, Nk, d, dv, Br, Bc, causal, window, mask, bias, alibi, softcap, seed=0, with_dL=False,
                 with_dB=False, dtype=np.float32):
        rng = np.random.default_rng(seed)
        self.Br, self.Bc = Br, Bc
        self.Q, self.K, self.V, self.dO = (
            rng.standard_normal(shape).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv), (Nq, dv)))
        self.dL = rng.standard_normal(Nq).astype(dtype) if with_dL else None
        self.dB = np.zeros((Nq, Nk), dtype) if with_dB else None
        self.rule = Rule(Nq, Nk, scale=0.5, causal=causal, window=window, softcap=softcap,
                         alibi_slope=0.5 if alibi else None, bias=np.zeros((Nq, Nk)) if bias else None,
                         mask=rng.random((Nq, Nk)) < 0.3 if mask else None)
        self.heights = [min(Br, Nq - i) for i in range(0, Nq, Br)]
        self.widths = [min(Bc, Nk - j) for j in range(0, Nk, Bc)]
        self.meet(self.rule, dtype)

    def meet(self, rule, dtype):
        self.rule = rule
        self.visited = [(i, j) for i in range(len(self.heights)) for j in range(len(self.widths)) if self.sees(i, j)]
        self.visits = costs.visits(rule, self.Q.shape[1], self.V.shape[1], self.Br, self.Bc, dtype,
                                   self.dL is not None, self.dB is not None)

    def sees(self, i, j):
        rows = slice(i * self.Br, i * self.Br + self.heights[i])
        cols = slice(j * self.Bc, j * self.Bc + self.widths[j])
        return self.rule.visible(rows, cols).any()

    def forward(self, name, reverse=False):
        with Ledger() as led:
            CORES[name].forward_head(led.hbm(self.Q, "Q"), led.hbm(self.K, "K"), led.hbm(self.V, "V"), self.rule,
                                     self.Br, self.Bc, reverse)
        return led

    def backward(self, name, reverse=False):
        answer = CORES[name].forward_head(self.Q, self.K, self.V, self.rule, self.Br, self.Bc)
        with Ledger() as led:
            inputs = [led.hbm(x) for x in (self.dO, self.Q, self.K, self.V, *answer)]
            dL, dB = (None if x is None else led.hbm(x) for x in (self.dL, self.dB))
            CORES[name].backward_head(*inputs, self.rule, self.Br, self.Bc, reverse, dL=dL, dB=dB)
        return led


settings = st.builds(
    Setting, Nq=st.integers(0, 9), Nk=st.integers(0, 9), d=st.integers(1, 3), dv=st.integers(1, 3),
    Br=st.integers(1, 5), Bc=st.integers(1, 5), causal=st.booleans(),
    window=st.sampled_from([(-1, -1), (-1, -1), (1, 0), (0, 2), (2, -1)]), mask=st.booleans(), bias=st.booleans(),
    alibi=st.booleans(), softcap=st.sampled_from([None, 2.0]),
    dtype=st.sampled_from([np.float64, np.float32, np.float16, bfloat16]), seed=st.integers(0, 99),
    with_dL=st.booleans(), with_dB=st.booleans())


def counts(led):
    """All of a Cost but its last, the bytes on chip."""
    moved = (led.total(what) for what in ("reads", "fresh_reads", "writes"))
    return *moved, led.matmul_flops, led.other_flops, led.exps


@given(settings)
def test_the_visits_are_those_of_all_pairs(s):
    v = s.visits
    assert v.n == len(s.visited)
    assert v.R == sum(s.heights[i] for i, j in s.visited)
    assert v.C == sum(s.widths[j] for i, j in s.visited)
    assert v.A == sum(s.heights[i] * s.widths[j] for i, j in s.visited)
    assert v.seen == sum(s.heights[i] for i in {i for i, j in s.visited})


def edges(test):
    """No queries, no keys, and first queries that see no key: rare among what is drawn."""
    for s in (Setting(0, 4, 1, 3, 2, 2, *NOTHING_HIDDEN), Setting(4, 0, 1, 3, 2, 2, *NOTHING_HIDDEN),
              Setting(6, 4, 1, 1, 2, 2, True, *NOTHING_HIDDEN[1:])):
        test = example(s=s, reverse=False)(test)
    return test


@names
@edges
@given(s=settings, reverse=st.booleans())
def test_forward(name, s, reverse):
    led, cost = s.forward(name, reverse), costs.FORWARD[name](s.visits)
    assert counts(led) == cost[:-1]
    check_peak(name, costs.FORWARD[name], s, led)


@names
@edges
@given(s=settings, reverse=st.booleans())
def test_backward(name, s, reverse):
    led, cost = s.backward(name, reverse), costs.BACKWARD[name](s.visits)
    assert counts(led) == cost[:-1]
    check_peak(name, costs.BACKWARD[name], s, led)


def check_peak(name, formula, s, led):
    """The formula's bytes if a tile of full size is visited; never more, and never less than a visited tile needs.

    In fa2 and fa3 what the formula adds for the next tile (rows_follow, cols_follow) may meet a smaller one.
    """
    alone = s.visits._replace(rows_follow=False, cols_follow=False)
    needs = [formula(alone._replace(br=s.heights[i], bc=s.widths[j])).onchip_bytes for i, j in s.visited]
    most = formula(s.visits).onchip_bytes
    assert max(needs, default=0) <= led.peak_onchip_bytes <= most
    assert led.peak_onchip_bytes == sum(led.peak_tiles.values())
    full = any((s.heights[i], s.widths[j]) == (s.visits.br, s.visits.bc) for i, j in s.visited)
    even = len(s.visited) == len(s.heights) * len(s.widths) and len({*s.heights}) <= 1 >= len({*s.widths})
    if name == "standard" or (full and (even or formula(alone) == formula(s.visits))):
        event("exact")
        assert led.peak_onchip_bytes == most


@given(settings, st.booleans())
def test_fa3_in_8_bits(s, reverse):
    rule = Rule(s.rule.Nq, s.rule.Nk, scale=0.5, causal=s.rule.right == 0, softcap=s.rule.softcap)
    prepared = fp8.prepare(*(x.astype(np.float32) for x in (s.Q, s.K, s.V)), s.Br, s.Bc)
    with Ledger() as led:
        fa3_fp8.forward_head(*(led.hbm(x) for x in prepared), rule, s.Br, s.Bc, reverse)
    s.meet(rule, prepared.Q.dtype)
    assert counts(led) == costs.FORWARD["fa3_fp8"](s.visits)[:-1]
    check_peak("fa3", costs.FORWARD["fa3_fp8"], s, led)


@names
@given(Tr=st.integers(1, 3), Tc=st.integers(1, 3), Br=st.integers(1, 3), Bc=st.integers(1, 3), d=st.integers(1, 3),
       dv=st.integers(1, 3), dtype=st.sampled_from([np.float32, np.float16]), reverse=st.booleans())
def test_the_peak_where_all_tiles_are_full(name, Tr, Tc, Br, Bc, d, dv, dtype, reverse):
    s = Setting(Tr * Br, Tc * Bc, d, dv, Br, Bc, *NOTHING_HIDDEN, dtype=dtype)
    assert s.visits == costs.visits(s.rule, d, dv, Br, Bc, dtype)
    assert s.forward(name, reverse).peak_onchip_bytes == costs.FORWARD[name](s.visits).onchip_bytes
    assert s.backward(name, reverse).peak_onchip_bytes == costs.BACKWARD[name](s.visits).onchip_bytes


@names
@given(s=settings)
def test_bytes_are_elements_times_their_width(name, s):
    for led in (s.forward(name), s.backward(name)):
        assert led.total("read_bytes") == sum(r.reads * r.dtype.itemsize for r in led.arrays)
        assert led.total("write_bytes") == sum(r.writes * r.dtype.itemsize for r in led.arrays)
        if s.Q.dtype in (np.float32, np.float64):                               # nothing widens
            assert {r.dtype for r in led.arrays} == {s.Q.dtype}


@names
def test_metering_does_not_change_the_answer(name):
    s = Setting(7, 8, 2, 3, 2, 3, True, (-1, -1), True, True, True, 2.0, 5, True)
    plain = CORES[name].forward_head(s.Q, s.K, s.V, s.rule, s.Br, s.Bc)
    with Ledger() as led:
        metered = CORES[name].forward_head(led.hbm(s.Q), led.hbm(s.K), led.hbm(s.V), s.rule, s.Br, s.Bc)
        backward = CORES[name].backward_head(*(led.hbm(x) for x in (s.dO, s.Q, s.K, s.V, *plain)), s.rule, s.Br, s.Bc)
    plain = *plain, *CORES[name].backward_head(s.dO, s.Q, s.K, s.V, *plain, s.rule, s.Br, s.Bc)
    for x, y in zip(plain, (*metered, *backward), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, np.asarray(y))


# --- what the papers say --------------------------------------------------------------------------------------

def plain_setting(N, d, Br, Bc):
    """Nothing hidden, float32."""
    return Setting(N, N, d, d, Br, Bc, *NOTHING_HIDDEN)


@pytest.mark.parametrize(("Bc", "gigabytes"), [(128, 3.356), (256, 1.744)])     # read off the figure
def test_the_papers_figure(Bc, gigabytes):
    """FlashAttention, Figure 2 (middle): 64 × 16 heads, N = 1024, d = 64, 2 bytes per element. Without l and m, and
    without the first read of O, the loop moves (3 Tc + 1)·N·d elements; as printed it moves (3 Tc + 2)·N·d."""
    N, d, heads = 1024, 64, 64 * 16
    led = plain_setting(N, d, 256, Bc).forward("fa1")
    matrices = [r for r in led.arrays if len(r.shape) == 2]                     # Q, K, V, O
    printed = sum(r.reads + r.writes for r in matrices)
    plotted = printed - sum(r.fresh_reads for r in matrices)
    Tc = N // Bc
    assert printed == (3 * Tc + 2) * N * d
    assert plotted == (3 * Tc + 1) * N * d
    assert abs(plotted * heads * 2 / 1e9 - gigabytes) < 0.0015


def test_algorithms_0_and_3_count():
    """11 N² + 12 N d elements for standard attention, forward and backward from the saved P (statistics aside)."""
    s = plain_setting(32, 4, 8, 8)
    N, d = s.Q.shape
    P, _ = standard.probabilities(s.Q, s.K, s.rule)
    with Ledger() as led:
        q, k, v = led.hbm(s.Q), led.hbm(s.K), led.hbm(s.V)
        standard.forward_head(q, k, v, s.rule)
        standard.gradients(led.hbm(s.dO), q, k, v, led.hbm(P), s.rule)
    moved = sum(r.reads + r.writes for r in led.arrays if len(r.shape) == 2)
    assert moved == 11 * N * N + 12 * N * d


def test_fa2_saves_what_its_docstring_says():
    """At equal tiles: no traffic of O, l and m in the loop, (2 + 2 Tr)·N·d + N elements in all."""
    N, d, B = 64, 8, 16
    led = plain_setting(N, d, B, B).forward("fa2")
    assert led.total("reads") + led.total("writes") == (2 + 2 * N // B) * N * d + N


@pytest.mark.parametrize(("core", "work"), [(fa1, (4, 0)), (fa2, (2, 1)), (fa3, (2, 2))])
def test_the_work_on_the_output(core, work):
    """For each row, column of O and tile of keys FA1 scales O, scales P V, adds and divides; FA2 scales and adds, and
    divides once at the end. FA3 does as FA2, with one addition more, as its pipeline starts with a product of nothing.

    The paper's argument is finer: on a tensor core the addition of a product is free (it adds to its accumulator), but
    only if the product need not be scaled first. So FA2 is left with one operation where FA1 keeps four.
    """
    assert output_work(core) == work


@given(settings)
def test_what_fa2_saves_beside_products(s):
    """Against FA1 at the same tiles: 2·dv + 3 per row and visit (and one exp), dearer by dv + 2 per row at the end.

    2·dv: the work on O. 3: P needs no factor of its own (m_tile − m_new, beta·l_tile) and O is not scaled by l as well
    (alpha·li is formed twice). The work on scores, s + 3 for each (scale …, maximum, minus, sum), is the same, so the
    whole falls by less than the work on O does.
    """
    v, fa1_cost, fa2_cost = s.visits, s.forward("fa1"), s.forward("fa2")
    saved, dearer = v.R * (2 * v.dv + 3), v.Nq * (v.dv + 2)
    assert fa1_cost.other_flops - fa2_cost.other_flops == saved - dearer
    assert fa1_cost.exps - fa2_cost.exps == v.R
