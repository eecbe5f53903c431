"""The memory contract: what the ledger counts while a core runs equals a closed form, exactly, for every problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_ref import fa1, fa2, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import EMPTY, Rule

CORES = {"standard": standard, "fa1": fa1, "fa2": fa2}


class Setting:
    """One head's problem, and the sums over its visited tiles from which all closed forms are made."""

    def __init__(self, Nq, Nk, d, dv, Br, Bc, causal, window, mask, softcap, dtype, seed, with_dL, with_dB):
        rng = np.random.default_rng(seed)
        self.Nq, self.Nk, self.d, self.dv, self.Br, self.Bc = Nq, Nk, d, dv, Br, Bc
        self.Q, self.K, self.V, self.dO = (
            rng.standard_normal(shape).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv), (Nq, dv)))
        self.dL = rng.standard_normal(Nq).astype(dtype) if with_dL else None
        self.with_dB = with_dB
        self.rule = Rule(Nq, Nk, scale=0.5, causal=causal, window=window, softcap=softcap,
                         mask=rng.random((Nq, Nk)) < 0.3 if mask else None)
        heights = {i: min(Br, Nq - i * Br) for i in range(-(-Nq // Br))}
        widths = {j: min(Bc, Nk - j * Bc) for j in range(-(-Nk // Bc))}
        visited = [(i, j) for i in heights for j in widths if self.sees(i, j)]
        self.br = sum(heights[i] for i, j in visited)               # Σ over visited tiles of their heights
        self.bc = sum(widths[j] for i, j in visited)                # … widths
        self.area = sum(heights[i] * widths[j] for i, j in visited)  # … areas
        self.visited_rows = sum(heights[i] for i in {i for i, j in visited})

    def sees(self, i, j):
        """Is any key of tile j visible to any query of tile i? By looking at every pair, not by asking `kind`."""
        rows = slice(i * self.Br, min(i * self.Br + self.Br, self.Nq))
        cols = slice(j * self.Bc, min(j * self.Bc + self.Bc, self.Nk))
        return self.rule.visible(rows, cols).any()

    def forward(self, name, reverse=False):
        with Ledger() as led:
            CORES[name].forward_head(led.hbm(self.Q, "Q"), led.hbm(self.K, "K"), led.hbm(self.V, "V"), self.rule,
                                     self.Br, self.Bc, reverse)
        return led

    def backward(self, name, reverse=False):
        answer = CORES[name].forward_head(self.Q, self.K, self.V, self.rule, self.Br, self.Bc)
        with Ledger() as led:
            inputs = [led.hbm(x, label) for x, label in zip((self.dO, self.Q, self.K, self.V, *answer),
                                                            ("dO", "Q", "K", "V", "O"), strict=False)]
            inputs += [led.hbm(x) for x in answer[1:]]
            dL = None if self.dL is None else led.hbm(self.dL, "dL")
            dB = led.hbm(np.zeros((self.Nq, self.Nk), self.Q.dtype), "dB") if self.with_dB else None
            CORES[name].backward_head(*inputs, self.rule, self.Br, self.Bc, reverse, dL=dL, dB=dB)
        return led


settings = st.builds(
    Setting, Nq=st.integers(0, 9), Nk=st.integers(0, 9), d=st.integers(1, 3), dv=st.integers(1, 3),
    Br=st.integers(1, 5), Bc=st.integers(1, 5), causal=st.booleans(),
    window=st.sampled_from([(-1, -1), (1, 0), (0, 2), (2, -1)]), mask=st.booleans(),
    softcap=st.sampled_from([None, 2.0]), dtype=st.sampled_from([np.float32, np.float64]), seed=st.integers(0, 99),
    with_dL=st.booleans(), with_dB=st.booleans())


def counts(led):
    return led.total("reads"), led.total("writes"), led.matmul_flops


@given(settings)
def test_standard_forward(s):
    N2 = s.Nq * s.Nk
    reads = s.Nq * s.d + s.Nk * s.d + N2 + N2 + s.Nk * s.dv         # Q, K; S; P and V
    writes = N2 + N2 + s.Nq + s.Nq * s.dv                           # S; P, L; O
    assert counts(s.forward("standard")) == (reads, writes, 2 * N2 * (s.d + s.dv))


@given(settings, st.booleans())
def test_fa1_forward(s, reverse):
    reads = s.Nk * (s.d + s.dv) + s.br * (s.d + s.dv + 2)           # Kj, Vj once; Qi, Oi, li, mi per visit
    writes = s.br * (s.dv + 2)                                      # Oi, li, mi per visit
    led = s.forward("fa1", reverse)
    assert counts(led) == (reads, writes, 2 * s.area * (s.d + s.dv))
    O = next(r for r in led.arrays if r.name is None and r.shape == (s.Nq, s.dv))
    assert O.reads == s.br * s.dv                                   # as printed: on every visit
    assert O.reads - O.fresh_reads == (s.br - s.visited_rows) * s.dv  # as plotted: not on the first


@given(settings, st.booleans())
def test_fa2_forward(s, reverse):
    reads = s.Nq * s.d + s.bc * (s.d + s.dv)                        # Qi once; Kj, Vj per visit
    writes = s.Nq * (s.dv + 1)                                      # Oi, Li once
    assert counts(s.forward("fa2", reverse)) == (reads, writes, 2 * s.area * (s.d + s.dv))


def matmuls_backward(s, area):
    """S, dV, dP, dQ, dK; a softcap forms q·k once more."""
    return 2 * area * (3 * s.d + 2 * s.dv) + (2 * area * s.d if s.rule.softcap else 0)


@given(settings)
def test_standard_backward(s):
    N2, lengths = s.Nq * s.Nk, s.Nq * s.d + s.Nk * s.d
    reads = lengths + s.Nq                                          # P once more: Q, K, L
    reads += N2 + 2 * s.Nq * s.dv + s.Nk * s.dv + 2 * N2 + lengths + 2 * N2  # P, dO; dO, V; P, dP; Q, K; dS twice
    reads += s.Nq if s.dL is not None else 0
    writes = N2 + s.Nk * s.dv + N2 + N2 + lengths                   # P; dV; dP; dS; dQ, dK
    writes += N2 if s.with_dB else 0
    assert counts(s.backward("standard")) == (reads, writes, matmuls_backward(s, N2))


@given(settings, st.booleans())
def test_fa1_backward(s, reverse):
    with_dL = s.dL is not None
    reads = s.Nk * (s.d + s.dv) + s.br * (2 * s.d + 2 * s.dv + 2 + with_dL)  # Qi, dQi, Oi, dOi, li, mi (dLi)
    writes = s.br * s.d + s.Nk * (s.d + s.dv) + (s.area if s.with_dB else 0)  # dQi per visit; dKj, dVj once
    assert counts(s.backward("fa1", reverse)) == (reads, writes, matmuls_backward(s, s.area))


@given(settings, st.booleans())
def test_fa2_backward(s, reverse):
    with_dL = s.dL is not None
    reads = s.Nq * (2 * s.dv + with_dL)                             # dO, O (dL) for D
    reads += s.Nk * (s.d + s.dv) + s.br * (2 * s.d + s.dv + 2)      # Kj, Vj once; Qi, dQi, dOi, Li, Di per visit
    writes = s.Nq + s.br * s.d + s.Nk * (s.d + s.dv) + (s.area if s.with_dB else 0)
    assert counts(s.backward("fa2", reverse)) == (reads, writes, matmuls_backward(s, s.area))


@given(settings, st.sampled_from(sorted(CORES)))
def test_bytes_are_elements_times_their_width(s, name):
    for led in (s.forward(name), s.backward(name)):
        assert led.total("read_bytes") == sum(r.reads * r.dtype.itemsize for r in led.arrays)
        assert {r.dtype for r in led.arrays} == {s.Q.dtype}         # float32 and float64 alone: nothing widens
        assert led.total("write_bytes") == led.total("writes") * s.Q.dtype.itemsize


@pytest.mark.parametrize("name", CORES)
def test_metering_does_not_change_the_answer(name):
    s = Setting(7, 8, 2, 3, 2, 3, True, (-1, -1), True, None, np.float32, 5, True, False)
    plain = CORES[name].forward_head(s.Q, s.K, s.V, s.rule, s.Br, s.Bc)
    with Ledger() as led:
        metered = CORES[name].forward_head(led.hbm(s.Q), led.hbm(s.K), led.hbm(s.V), s.rule, s.Br, s.Bc)
    for x, y in zip(plain, metered, strict=True):
        np.testing.assert_array_equal(x, np.asarray(y))


@pytest.mark.parametrize("use", [
    lambda X: X + 1, lambda X: np.exp(X), lambda X: X @ np.ones((2, 2)), lambda X: np.ones((2, 2)) @ X,
    lambda X: X.T, lambda X: X.sum(), lambda X: X.astype(np.float32), lambda X: np.sum(X), lambda X: np.asarray(X),
    lambda X: np.where(True, X, 0), lambda X: X == 1, bool, list, lambda X: 1 in X,
    lambda X: X[:] + X, lambda X: X[:] @ X, lambda X: np.maximum(X[:], X)])
def test_an_array_in_memory_cannot_be_used_without_a_load(use):
    with Ledger() as led:
        X = led.hbm(np.ones((2, 2)), "X")
        with pytest.raises(TypeError, match="HBM"):
            use(X)


@pytest.mark.parametrize("product", [
    lambda X: np.dot(X, X), lambda X: X.dot(X), lambda X: np.einsum("ij,jk", X, X), lambda X: X @ X[0]])
def test_products_are_made_with_the_matrix_operator_alone(product):
    with Ledger() as led:
        X = led.hbm(np.ones((2, 2)))[:]
        with pytest.raises(TypeError, match="counted"):
            product(X)
        assert (X @ X).sum() == 8 and led.matmul_flops == 16


def test_the_papers_figure():
    """FlashAttention, Figure 2 (middle): 64 × 16 heads, N = 1024, d = 64, 2 bytes per element. Without l and m, and
    without the first read of O, the loop moves (3 Tc + 1)·N·d elements; as printed it moves (3 Tc + 2)·N·d."""
    N, d, heads = 1024, 64, 64 * 16
    x = np.zeros((N, d), np.float32)
    for Bc, gigabytes in ((128, 3.356), (256, 1.744)):              # read off the figure
        with Ledger() as led:
            fa1.forward_head(led.hbm(x), led.hbm(x), led.hbm(x), Rule(N, N, scale=1.0), 256, Bc)
        matrices = [r for r in led.arrays if len(r.shape) == 2]     # Q, K, V, O
        printed = sum(r.reads + r.writes for r in matrices)
        plotted = printed - sum(r.fresh_reads for r in matrices)
        Tc = N // Bc
        assert printed == (3 * Tc + 2) * N * d
        assert plotted == (3 * Tc + 1) * N * d
        assert abs(plotted * heads * 2 / 1e9 - gigabytes) < 0.0015


def test_algorithms_0_and_3_count():
    """11 N² + 12 N d elements for standard attention, forward and backward from the saved P (statistics aside)."""
    N, d = 32, 4
    rng = np.random.default_rng(0)
    Q, K, V, dO = rng.standard_normal((4, N, d))
    rule = Rule(N, N, scale=0.5)
    with Ledger() as led:
        q, k, v = led.hbm(Q), led.hbm(K), led.hbm(V)
        standard.forward_head(q, k, v, rule)
        standard.gradients(led.hbm(dO), q, k, v, led.hbm(standard.probabilities(Q, K, rule)[0]), rule)
    moved = sum(r.reads + r.writes for r in led.arrays if len(r.shape) == 2)
    assert moved == 11 * N * N + 12 * N * d


def test_fa2_saves_what_its_docstring_says():
    """At equal tiles: no traffic of O, l and m in the loop, (2 + 2 Tr)·N·d + N elements in all."""
    N, d, B = 64, 8, 16
    x = np.zeros((N, d))
    with Ledger() as led:
        fa2.forward_head(led.hbm(x), led.hbm(x), led.hbm(x), Rule(N, N, scale=1.0), B, B)
    assert led.total("reads") + led.total("writes") == (2 + 2 * N // B) * N * d + N
    assert Rule(N, N, scale=1.0).kind(slice(0, 1), slice(0, 1)) != EMPTY
