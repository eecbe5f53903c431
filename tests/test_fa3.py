"""FlashAttention-3: FlashAttention-2's bits, but the scores of a tile are made before the output of the one before it.

That the numbers are attention is asked of it as of all cores (`test_cores.py`, `test_cases.py`, `test_kit.py`); here
stands what sets it apart.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altered import altered
from fa_ref import fa2, fa3
from fa_ref.ledger import Ledger
from fa_ref.scores import EMPTY, Rule
from test_cores import heads


def same_bits(core, Q, K, V, rule, *walk):
    """Does the core return FA2's O and L, bit for bit?"""
    got, wanted = (c.forward_head(Q, K, V, rule, *walk) for c in (core, fa2))
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(got, wanted, strict=True))


@given(heads())
def test_fa2_bit_for_bit(h):
    """Any dtype, tile size, direction, mask, bias and softcap; rows and whole tiles without keys among them."""
    assert same_bits(fa3, h.Q, h.K, h.V, h.rule, *h.walk)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(("N", "d", "Br", "Bc"), [(777, 128, 128, 128), (500, 37, 50, 33), (300, 64, 7, 300)])
def test_fa2_bit_for_bit_at_sizes_where_products_are_blocked(N, d, Br, Bc, dtype):
    """A library adds up long products in pieces of its own; both cores hand it the same ones."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, N, d)).astype(dtype)
    assert same_bits(fa3, Q, K, V, Rule(N, N, scale=d**-0.5, causal=True), Br, Bc)


def test_the_backward_pass_is_fa2s():
    assert fa3.backward_head is fa2.backward_head


# --- the pipeline ---------------------------------------------------------------------------------------------

class Noted(np.ndarray):
    """A matrix that writes down its products: (what, height of the left side, width of the right side)."""

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        if ufunc is np.matmul:
            (m, k), (_, n) = (x.shape for x in operands)
            Noted.products += [("S", m, n)] if k == D else [("PV", m, k)]
        plain = [x.view(np.ndarray) if isinstance(x, Noted) else x for x in operands]
        return np.asarray(getattr(ufunc, method)(*plain, **options)).view(Noted)


D, DV = 17, 2                                                       # no tile of keys is as high as D


def products(core, Nq, Nk, Br, Bc, **options):
    """The products of a forward pass in the order in which they are made, and the rule; those of no keys left out."""
    rng, rule = np.random.default_rng(0), Rule(Nq, Nk, scale=1.0, **options)
    Noted.products = []
    core.forward_head(*(rng.standard_normal(shape).view(Noted) for shape in ((Nq, D), (Nk, D), (Nk, DV))), rule, Br, Bc)
    return [p for p in Noted.products if p[2] > 0], rule


@given(Nq=st.integers(0, 9), Nk=st.integers(0, 9), Br=st.integers(1, 5), Bc=st.integers(1, 5), causal=st.booleans())
def test_scores_are_one_tile_ahead(Nq, Nk, Br, Bc, causal):
    """S₀ S₁ PV₀ S₂ PV₁ … PV_last for each tile of queries, over the tiles that are not skipped; FA2: S₀ PV₀ S₁ PV₁ …"""
    found, rule = products(fa3, Nq, Nk, Br, Bc, causal=causal)
    pipelined, in_turn = [], []
    for i in range(0, Nq, Br):
        rows = slice(i, min(i + Br, Nq))
        tiles = [slice(j, min(j + Bc, Nk)) for j in range(0, Nk, Bc)]
        visited = [(rows.stop - i, c.stop - c.start) for c in tiles if rule.kind(rows, c) != EMPTY]
        S, PV = [("S", *size) for size in visited], [("PV", *size) for size in visited]
        pipelined += S[:1] + list(itertools.chain(*zip(S[1:], PV, strict=False))) + PV[-1:]
        in_turn += list(itertools.chain(*zip(S, PV, strict=True)))
    assert found == pipelined
    assert products(fa2, Nq, Nk, Br, Bc, causal=causal)[0] == in_turn


@pytest.mark.parametrize("core", [fa2, fa3], ids=["fa2", "fa3"])
def test_it_moves_and_multiplies_what_fa2_does(core):
    """(2 + 2 Tr)·N·d + N elements, 4 N² d FLOPs: nothing is read twice, the pipeline's empty start costs nothing."""
    N, d, B = 24, 4, 8
    Q, K, V = np.random.default_rng(0).standard_normal((3, N, d))
    with Ledger() as led:
        core.forward_head(led.hbm(Q), led.hbm(K), led.hbm(V), Rule(N, N, scale=1.0), B, B)
    assert led.total("reads") + led.total("writes") == (2 + 2 * N // B) * N * d + N
    assert led.matmul_flops == 4 * N * N * d


# --- each of these can fail -----------------------------------------------------------------------------------

STEP_5 = "            acc = acc + rounded(P_before, V.dtype) @ V_before           # (5)"
STEP_10 = "            acc = alpha[:, None] * acc                                  # (10)"
STEP_11 = "        acc = acc + rounded(P_before, V.dtype) @ V_before               # (11)"
FAULTS = {
    "the product does not come before the rescaling": [(STEP_5, "            # (5)"),
                                                       (STEP_10, f"{STEP_10}\n{STEP_5}")],
    "no rescaling": [(STEP_10, "            # (10)")],
    "the factor inverted": [(STEP_10, STEP_10.replace("* acc ", "** -1 * acc "))],
    "S kept where P is wanted": [("= Pij, Vj ", "= Sij, Vj ")],
    "V of the new tile with the old P": [(STEP_5, STEP_5.replace("V_before  ", "Vj[:P_before.shape[1]]  "))],
    "the last tile forgotten": [(STEP_11, "        # (11)")],
    "divided by m": [("O[rows] = acc / nonzero_or_one(l)", "O[rows] = acc / nonzero_or_one(m)")],
    "the loop one tile short": [("in range(Tc)[::-1] if reverse else range(Tc):", "in range(Tc - 1):")],
    "a skipped tile drops the waiting one": [("                continue", "                P_before = 0 * P_before")],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_change_bits(fault):
    Q, K, V = np.random.default_rng(1).standard_normal((3, 12, 4))
    mask = np.ones((12, 12), bool)
    mask[:, 3:6] = False                                            # a tile in the middle that is skipped
    rule = Rule(12, 12, scale=1.0, mask=mask)
    assert same_bits(altered(fa3), Q, K, V, rule, 4, 3)
    with np.errstate(all="ignore"):
        assert not same_bits(altered(fa3, *FAULTS[fault]), Q, K, V, rule, 4, 3)


def test_an_unpipelined_loop_has_fa2s_bits_but_not_the_order():
    """Only the order of products tells the two algorithms apart."""
    found, _ = products(fa2, 4, 6, 2, 3)
    assert found != products(fa3, 4, 6, 2, 3)[0] and sorted(found) == sorted(products(fa3, 4, 6, 2, 3)[0])
