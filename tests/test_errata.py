"""Each slip of the papers in docs/errata.md: the printed formula, taken literally, fails, and the right one passes.

One head, float64, scale 1 unless it is the subject. The judge is `fa_ref.testing.oracle`, which knows no tiles.
"""

import math

import numpy as np
import pytest

from fa_ref import fa1, fa2, fa3, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import EMPTY, FULL, PARTIAL, Rule
from fa_ref.testing import oracle

RNG = np.random.default_rng(22)
Q, K, V, dO = (RNG.standard_normal(shape) for shape in ((5, 4), (6, 4), (6, 3), (5, 3)))
# Two tiles of keys. The largest score of every row is in the second one, so that the maximum grows.
S = np.sort(RNG.standard_normal((5, 6)), axis=1)
S1, S2, V1, V2 = S[:, :3], S[:, 3:], V[:3], V[3:]


def softmax_times(S, V, seen=None):
    """softmax(S) V, from the oracle: where K is the identity and the scale 1, the queries are the scores."""
    q, k, v = (x[None, None] for x in (S, np.eye(S.shape[1]), V))
    return oracle.forward(q, k, v, scale=1.0, mask=seen).out[0, 0]


def truth(Q=Q, K=K, V=V, dO=dO, scale=1.0):
    """O, L, dQ, dK, dV from the oracle."""
    q, k, v, dout = (x[None, None] for x in (Q, K, V, dO))
    answers = *oracle.forward(q, k, v, scale=scale), *oracle.backward(dout, q, k, v, scale=scale)[:3]
    return [x[0, 0] for x in answers]


def rowmax(X):
    return X.max(axis=1, keepdims=True)


def rowsum(X):
    return X.sum(axis=1, keepdims=True)


# The two tiles of the papers' derivations: m1, l1, O1 belong to the first, m2, l2 to both.
m1, m2 = rowmax(S1), rowmax(S)
l1 = rowsum(np.exp(S1 - m1))
l2 = np.exp(m1 - m2) * l1 + rowsum(np.exp(S2 - m2))
O1 = np.exp(S1 - m1) @ V1 / l1
both_tiles = softmax_times(S, V)


# --- FlashAttention-2, forward --------------------------------------------------------------------------------

def test_the_rescaling_factor_is_not_inverted():
    def algorithm_1(power):
        m, l, acc = np.full((5, 1), -np.inf), np.zeros((5, 1)), np.zeros((5, 3))
        for Sj, Vj in ((S1, V1), (S2, V2)):
            m_new = np.maximum(m, rowmax(Sj))
            P = np.exp(Sj - m_new)
            l = np.exp(m - m_new) * l + rowsum(P)
            acc = np.exp(m - m_new) ** power * acc + P @ Vj
            m = m_new
        return acc / l

    with np.errstate(divide="ignore", invalid="ignore"):
        assert np.isnan(algorithm_1(power=-1)).all()            # already the first tile: e^(−∞) inverted, times 0
    np.testing.assert_allclose(algorithm_1(power=1), both_tiles)

    def two_tiles(power):
        return (np.exp(m1 - m2) ** power * (l1 * O1) + np.exp(S2 - m2) @ V2) / l2

    assert not np.isclose(two_tiles(-1), both_tiles).any()      # the same slip in the example of section 3.1.1
    np.testing.assert_allclose(two_tiles(1), both_tiles)
    np.testing.assert_allclose(fa2.forward_head(S, np.eye(6), V, Rule(5, 6, scale=1.0), 2, 3)[0], both_tiles)


def test_the_old_output_is_worth_l1_over_l2_and_less_by_the_growth_of_the_maximum():
    P2 = np.exp(S2 - m2) / l2
    assert not np.isclose(O1 / (l1 / l2) + P2 @ V2, both_tiles).any()
    assert not np.isclose((l1 / l2) * O1 + P2 @ V2, both_tiles).any()   # the exponential is missing as well
    np.testing.assert_allclose((l1 / l2) * np.exp(m1 - m2) * O1 + P2 @ V2, both_tiles)
    np.testing.assert_allclose(fa1.forward_head(S, np.eye(6), V, Rule(5, 6, scale=1.0), 2, 3)[0], both_tiles)


def test_the_unscaled_output_multiplies_by_l1():
    def unscaled(factor):
        return (factor * O1 + np.exp(S2 - m2) @ V2) / l2

    assert not np.isclose(unscaled(1 / l1), both_tiles).any()
    np.testing.assert_allclose(unscaled(l1 * np.exp(m1 - m2)), both_tiles)


def test_both_terms_are_divided_by_l():
    A1, A2 = np.exp(S1 - m2) @ V1, np.exp(S2 - m2) @ V2
    assert not np.isclose(A1 / l2 + A2, both_tiles).any()
    np.testing.assert_allclose((A1 + A2) / l2, both_tiles)


def test_tiles_below_the_diagonal_are_the_ones_that_need_no_mask():
    N, B = 8, 2
    rule = Rule(N, N, scale=1.0, causal=True)
    tiles = [(slice(i, i + B), slice(j, j + B)) for i in range(0, N, B) for j in range(0, N, B)]
    skipped = [t for t in tiles if t[1].start > t[0].stop - 1]          # remark 1: every column above every row
    assert skipped == [t for t in tiles if rule.kind(*t) == EMPTY]
    visited = [t for t in tiles if t not in skipped]
    printed = [t for t in visited if t[0].stop - 1 < t[1].start]        # rows before columns: none is left to spare
    right = [t for t in visited if t[1].stop - 1 <= t[0].start]         # columns up to rows
    assert printed == [] and len(right) == 6
    assert right == [t for t in tiles if rule.kind(*t) == FULL]
    assert len([t for t in tiles if rule.kind(*t) == PARTIAL]) == N // B    # one tile per row of tiles is masked


# --- backward -------------------------------------------------------------------------------------------------

def gradients(Q=Q, K=K, V=V, dO=dO, scale=1.0):
    """P, dP, D and dS, whole, with the scale in the scores."""
    O, L, *_ = truth(Q, K, V, dO, scale)
    P = np.exp(scale * Q @ K.T - L[:, None])
    dP = dO @ V.T
    D = rowsum(dO * O)
    return P, dP, D, P * (dP - D)


def test_dk_is_ds_transposed_times_q():
    dS = gradients()[3]
    with pytest.raises(ValueError, match="mismatch"):
        Q @ dS.T                                                # (5, 4) times (6, 5)
    np.testing.assert_allclose(dS.T @ Q, truth()[3])
    square = Q[:4], K[:4], V[:4], dO[:4]                        # N = d: the shapes fit by chance, the numbers do not
    dS = gradients(*square)[3]
    assert not np.isclose(Q[:4] @ dS.T, truth(*square)[3]).any()
    np.testing.assert_allclose(dS.T @ Q[:4], truth(*square)[3])


def test_d_has_one_entry_per_query():
    P, dP, D, dS = gradients()
    assert D.shape == (5, 1)
    over_the_wrong_axis = (dO * truth()[0]).sum(axis=0)         # length d, as printed
    with pytest.raises(ValueError, match="broadcast"):
        dP - over_the_wrong_axis
    np.testing.assert_allclose(D, rowsum(P * dP))               # what D is: the sum that it stands for
    np.testing.assert_allclose(dS @ K, truth()[2])


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_scale_stands_in_s_and_in_dq_and_dk(scale):
    O, L, dQ, dK, dV = truth(scale=scale)
    assert not np.isclose(softmax_times(Q @ K.T, V), O).all()   # line 8: S = Q Kᵀ
    np.testing.assert_allclose(softmax_times(scale * Q @ K.T, V), O)
    P, _, _, dS = gradients(scale=scale)
    assert not np.isclose(dS @ K, dQ).any() and not np.isclose(dS.T @ Q, dK).any()      # lines 15, 16
    np.testing.assert_allclose(scale * dS @ K, dQ)
    np.testing.assert_allclose(scale * dS.T @ Q, dK)
    np.testing.assert_allclose(P.T @ dO, dV)                    # dV has none
    for core in (standard, fa1, fa2):
        statistics = (L,) if core is not fa1 else (np.ones_like(L), L)
        ours = core.backward_head(dO, Q, K, V, O, *statistics, Rule(5, 6, scale=scale), 2, 3)
        for x, y in zip(ours, (dQ, dK, dV), strict=True):
            np.testing.assert_allclose(x, y)


def metered(function, N=12, d=4, Br=4, Bc=3):
    """Run a core on N queries and keys, all arrays in HBM; return its ledger."""
    Q, K, V, dO = (RNG.standard_normal((N, d)) for _ in range(4))
    rule = Rule(N, N, scale=1.0)
    O, L = fa2.forward_head(Q, K, V, rule, Br, Bc)
    one = np.ones_like(L)
    with Ledger() as ledger:
        q, k, v, do, o, lse, l = (
            ledger.hbm(x, name) for name, x in zip(("Q", "K", "V", "dO", "O", "L", "l"), (Q, K, V, dO, O, L, one),
                                                   strict=True))
        if function.__name__ == "forward_head":
            function(q, k, v, rule, Br, Bc)
        elif function is fa1.backward_head:
            function(do, q, k, v, o, l, lse, rule, Br, Bc)
        elif function is standard.gradients:
            P = ledger.hbm(np.exp(Q @ K.T - L[:, None]), "P")
            function(do, q, k, v, P, rule)
        else:
            function(do, q, k, v, o, lse, rule, Br, Bc)
    return ledger


def test_the_backward_pass_does_not_need_o_in_its_inner_loop():
    N, d, Bc = 12, 4, 3
    ledger = metered(fa2.backward_head, N, d, Bc=Bc)
    reads = {r.name: r.reads for r in ledger.arrays}
    Tc = N // Bc
    assert reads["Q"] == N * d * Tc                             # loaded in every inner step
    assert reads["O"] == N * d                                  # as printed it would be N·d·Tc more
    assert reads["dO"] == N * d * (1 + Tc)
    assert {r.name: r.reads for r in metered(fa1.backward_head, N, d, Bc=Bc).arrays}["O"] == N * d * Tc


@pytest.mark.parametrize("core", [fa1, fa2])
def test_the_flops_of_the_backward_pass_grow_with_d(core):
    N = 12
    flops = {d: metered(core.backward_head, N, d).matmul_flops for d in (2, 4, 8)}
    assert flops == {d: 10 * N * N * d for d in (2, 4, 8)}      # five products; O(N²) as printed would be constant


# --- FlashAttention-3 -----------------------------------------------------------------------------------------

def algorithm_2(S=S, V=V, Bc=2, loop_ends=0, keep_P=True):
    """FA3's Algorithm 2, lines 2 to 19, on the scores: O_i before the epilogue, m, l. Three tiles of keys."""
    tiles = [slice(j, j + Bc) for j in range(0, S.shape[1], Bc)]
    S_cur = S[:, tiles[0]]                                      # line 4
    m = rowmax(S_cur)                                           # line 6
    P_cur = P_last = np.exp(S_cur - m)
    l, acc = rowsum(P_cur), np.zeros((len(S), V.shape[1]))
    for j in range(1, len(tiles) - loop_ends):                  # line 7
        S_next = S[:, tiles[j]]                                 # line 9
        acc = acc + P_cur @ V[tiles[j - 1]]                     # line 11
        m_old, m = m, np.maximum(m, rowmax(S_next))             # line 13
        P_last = np.exp(S_next - m)
        l = np.exp(m_old - m) * l + rowsum(P_last)
        acc = np.exp(m_old - m) * acc                           # line 14
        if keep_P:
            P_cur = P_last                                      # line 16
    return acc + P_last @ V[tiles[-1]], m, l                    # line 19


def test_fa3_does_not_invert_the_factor_either():
    def algorithm_1(power):
        m, l, acc = np.full((5, 1), -np.inf), np.zeros((5, 1)), np.zeros((5, 3))
        for Sj, Vj in ((S1, V1), (S2, V2)):
            m_old, m = m, np.maximum(m, rowmax(Sj))             # line 18
            P = np.exp(Sj - m)                                  # line 19
            l = np.exp(m_old - m) * l + rowsum(P)
            acc = np.exp(m_old - m) ** power * acc + P @ Vj     # line 21
        return acc / l

    with np.errstate(divide="ignore", invalid="ignore"):
        assert np.isnan(algorithm_1(power=-1)).all()
    np.testing.assert_allclose(algorithm_1(power=1), both_tiles)
    np.testing.assert_allclose(fa3.forward_head(S, np.eye(6), V, Rule(5, 6, scale=1.0), 2, 3)[0], both_tiles)


def test_fa3_makes_the_scores_of_the_last_tile():
    acc, _, l = algorithm_2(loop_ends=1)                        # as printed
    assert not np.isclose(acc / l, both_tiles).any()
    acc, m, l = algorithm_2()
    np.testing.assert_allclose(acc / l, both_tiles)
    for Bc in (1, 2, 3, 6):                                     # six tiles to one
        O, L = fa3.forward_head(S, np.eye(6), V, Rule(5, 6, scale=1.0), 2, Bc)
        np.testing.assert_allclose(O, both_tiles)
        np.testing.assert_allclose(L, (m + np.log(l))[:, 0])
    alone, _, l = algorithm_2(S[:, :2], V[:2], loop_ends=1)     # one tile: nothing to drop
    np.testing.assert_allclose(alone / l, softmax_times(S[:, :2], V[:2]))


def test_fa3_keeps_p_for_the_next_round():
    acc, _, l = algorithm_2(keep_P=False)                       # as printed: line 11 always takes the first P
    assert not np.isclose(acc / l, both_tiles).any()
    acc, _, l = algorithm_2()
    np.testing.assert_allclose(acc / l, both_tiles)


def test_fa3_divides_by_l_at_the_end():
    acc, m, l = algorithm_2()
    for by_m in (acc * np.exp(m - m), acc / m, acc * np.exp(-m), acc * np.exp(m)):  # whatever "based on m" may mean
        assert not np.isclose(by_m, both_tiles).all()
    np.testing.assert_allclose(acc / l, both_tiles)


# --- FlashAttention-1 -----------------------------------------------------------------------------------------

def test_the_sum_in_appendix_b_overflows_without_the_maximum():
    scores = np.float32([[100.0, 99.0, 0.0]])
    values = np.float32([[1.0], [2.0], [3.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.exp(scores).sum(axis=1)                       # L_i = Σ e^(q·k), equation 1
        printed = np.exp(scores) / sums @ values
    assert np.isinf(sums).all() and np.isnan(printed).all()
    O, L = fa2.forward_head(scores, np.eye(3, dtype=np.float32), values, Rule(1, 3, scale=1.0), 1, 2)
    np.testing.assert_allclose(O, softmax_times(scores, values), rtol=1e-6)
    np.testing.assert_allclose(L, 100 + math.log(1 + math.exp(-1)), rtol=1e-6)


def test_the_proof_divides_by_l():
    printed = l1 * (np.exp(S1 - m1) @ V1)
    right = np.exp(S1 - m1) @ V1 / l1
    assert not np.isclose(printed, softmax_times(S1, V1)).any()
    np.testing.assert_allclose(right, softmax_times(S1, V1))
    O, l, m = fa1.forward_head(S, np.eye(6)[:3], V1, Rule(5, 3, scale=1.0), 2, 3)  # what is in memory after one tile
    np.testing.assert_allclose(O, right)
    np.testing.assert_allclose(l * np.exp(m), (l1 * np.exp(m1))[:, 0])


@pytest.mark.parametrize("printed", ["fa1", "fa2"])
def test_a_row_that_sees_no_key_needs_two_guards(printed):
    seen = np.tri(5, 6, k=-2, dtype=bool)                       # rows 0 and 1 see nothing
    hidden = np.where(seen, S, -np.inf)
    m, l, O = np.full((5, 1), -np.inf), np.zeros((5, 1)), np.zeros((5, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        for Sj, Vj in ((hidden[:, :3], V1), (hidden[:, 3:], V2)):
            if printed == "fa1":                                # Algorithm 1, lines 10 to 12
                m_tile = rowmax(Sj)
                P = np.exp(Sj - m_tile)
                m_new = np.maximum(m, m_tile)
                l_new = np.exp(m - m_new) * l + np.exp(m_tile - m_new) * rowsum(P)
                O = (l * np.exp(m - m_new) * O + np.exp(m_tile - m_new) * (P @ Vj)) / l_new
                l = l_new
            else:                                               # Algorithm 1, lines 9 and 10, not inverted
                m_new = np.maximum(m, rowmax(Sj))
                P = np.exp(Sj - m_new)
                l = np.exp(m - m_new) * l + rowsum(P)
                O = np.exp(m - m_new) * O + P @ Vj
            m = m_new
        O = O if printed == "fa1" else O / l
    assert np.isnan(O[:2]).all()
    right = softmax_times(S, V, seen)
    assert (right[:2] == 0).all()
    for core in (standard, fa1, fa2, fa3):
        rule = Rule(5, 6, scale=1.0, mask=seen)
        ours = core.forward_head(S, np.eye(6), V, rule, 2, 3)[0]
        assert (ours[:2] == 0).all()
        np.testing.assert_allclose(ours, right, atol=1e-15)


@pytest.mark.parametrize(("Bc", "gigabytes"), [(128, 3.36), (256, 1.74)])
def test_the_algorithm_reads_the_zeros_it_starts_from_and_figure_2_does_not_count_them(Bc, gigabytes):
    N, d = 1024, 64
    matrices = [r for r in metered(fa1.forward_head, N, d, Br=256, Bc=Bc).arrays if len(r.shape) == 2]
    Tc = N // Bc
    moved = sum(r.reads + r.writes for r in matrices)
    assert moved == (3 * Tc + 2) * N * d                        # K, V once; Q read, O read and written Tc times
    without_zeros = moved - sum(r.fresh_reads for r in matrices)
    assert without_zeros == (3 * Tc + 1) * N * d
    heads = 64 * 16                                             # the figure: batch 64, 16 heads, 2 bytes an element
    assert round(2 * heads * without_zeros / 1e9, 2) == gigabytes
    assert round(2 * heads * moved / 1e9, 2) != gigabytes


def test_figure_2_counts_too_few_flops():
    N, d = 24, 4
    scale_up = 1024 ** 2 * 64 * 64 * 16 / (N * N * d) / 1e9     # to the setting of the figure, in GFLOPs
    plain = [(metered(standard.forward_head, N, d).matmul_flops + metered(standard.gradients, N, d).matmul_flops),
             (metered(fa1.forward_head, N, d).matmul_flops + metered(fa1.backward_head, N, d).matmul_flops)]
    assert plain == [12 * N * N * d, 14 * N * N * d]            # 2 + 4 products, 2 + 5
    assert [round(scale_up * flops, 1) for flops in plain] == [824.6, 962.1]
    assert 824.6 / 66.6 > 12 and 962.1 / 75.2 > 12              # the figure has less than a twelfth of it
    assert round(75.2 / 66.6, 2) != round(14 / 12, 2)           # and another ratio: 1.13, not 1.17
