"""The Rule of one head: what is visible, which tiles may be skipped or go unmasked, the scores and their chain rule."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_ref.scores import EMPTY, FULL, PARTIAL, Rule
from fa_ref.testing import oracle


@st.composite
def heads(draw, longest=7):
    """(Nq, Nk, options) of one head; masks and biases of any shape that broadcasts."""
    Nq, Nk = draw(st.integers(0, longest)), draw(st.integers(0, longest))
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def added(*kinds):
        """None, visible or not, or numbers with some −inf, in some shape that broadcasts."""
        shape = draw(st.sampled_from([(Nq, Nk), (1, Nk), (Nq, 1), (1, 1), (Nk,)]))
        hide = rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.9]))
        tables = {"none": None, "bool": ~hide, "float": np.where(hide, -np.inf, rng.standard_normal(shape))}
        return tables[draw(st.sampled_from(kinds))]

    return Nq, Nk, {
        "scale": draw(st.sampled_from([0.5, -0.7, 0.0])),
        "causal": draw(st.booleans()),
        "window": draw(st.tuples(st.integers(-1, longest), st.integers(-1, longest))),
        "mask": added("none", "bool", "float"),
        "bias": added("none", "float"),
        "alibi_slope": draw(st.sampled_from([None, 0.25])),
        "softcap": draw(st.sampled_from([None, 2.0])),
    }


@st.composite
def tiles(draw, Nq, Nk):
    """(rows, cols) of some tile with at least one row and one column."""
    def part(n):
        start = draw(st.integers(0, n - 1))
        return slice(start, draw(st.integers(start + 1, n)))

    return part(Nq), part(Nk)


def truth(Nq, Nk, options, Q=None, K=None):
    """(visible, scores) as the oracle has them, both (Nq, Nk); scores are −inf where hidden."""
    Q, K = np.zeros((Nq, 1)) if Q is None else Q, np.zeros((Nk, 1)) if K is None else K
    slope = options["alibi_slope"]
    slopes = None if slope is None else np.array([slope])
    visible, scores = np.zeros((Nq, Nk), bool), np.full((Nq, Nk), -np.inf)
    options = {name: x for name, x in options.items() if name != "alibi_slope"}
    for row in oracle.rows(Q[None, None], K[None, None], alibi_slopes=slopes, **options):
        visible[row.i, row.keys] = True
        scores[row.i, row.keys] = row.capped + sum(row.added)
    return visible, scores


@given(heads(), st.data())
def test_visible_and_kind_say_what_the_oracle_sees(head, data):
    """kind is exact: EMPTY only if nothing is visible, FULL only if all is, and neither is missed."""
    Nq, Nk, options = head
    rule = Rule(Nq, Nk, **options)
    visible, _ = truth(*head)
    np.testing.assert_array_equal(rule.visible(slice(0, Nq), slice(0, Nk)), visible)
    if Nq and Nk:
        rows, cols = data.draw(tiles(Nq, Nk))
        tile = visible[rows, cols]
        np.testing.assert_array_equal(rule.visible(rows, cols), tile)
        assert rule.kind(rows, cols) == (FULL if tile.all() else PARTIAL if tile.any() else EMPTY)


@pytest.mark.parametrize("Nq, Nk", [*itertools.product(range(4), repeat=2)])
def test_kind_and_reach_of_every_small_band(Nq, Nk):
    """Every tile under every causal rule and window, and under the same band given as a mask."""
    for causal, left, right in itertools.product([False, True], range(-1, 4), range(-1, 4)):
        options = {"scale": 1.0, "causal": causal, "window": (left, right)}
        visible, _ = truth(Nq, Nk, options | {"alibi_slope": None})
        for rule in Rule(Nq, Nk, **options), Rule(Nq, Nk, scale=1.0, mask=visible):
            sees, seen = rule.reach()
            np.testing.assert_array_equal(sees, visible.any(axis=1))
            np.testing.assert_array_equal(seen, visible.any(axis=0))
            for i0, i1, j0, j1 in itertools.product(range(Nq), range(1, Nq + 1), range(Nk), range(1, Nk + 1)):
                if i0 < i1 and j0 < j1:
                    tile = visible[i0:i1, j0:j1]
                    kind = FULL if tile.all() else PARTIAL if tile.any() else EMPTY
                    assert rule.kind(slice(i0, i1), slice(j0, j1)) == kind, (options, i0, i1, j0, j1)


@given(heads(), st.integers(1, 4), st.data())
def test_scores_are_the_oracles(head, d, data):
    Nq, Nk, options = head
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    Q, K = rng.standard_normal((Nq, d)), rng.standard_normal((Nk, d))
    _, scores = truth(Nq, Nk, options, Q, K)
    rule = Rule(Nq, Nk, **options)
    rows, cols = data.draw(tiles(Nq, Nk)) if Nq and Nk else (slice(0, Nq), slice(0, Nk))
    for kind in {PARTIAL, rule.kind(rows, cols) if Nq and Nk else PARTIAL} - {EMPTY}:
        Sij = rule.scores(Q[rows], K[cols], rows, cols, kind)
        np.testing.assert_allclose(Sij, scores[rows, cols], rtol=1e-12, atol=1e-12)


def test_a_tile_called_full_is_not_masked():
    """FULL saves the comparison: the mask is not looked at again."""
    Q, K = np.ones((2, 1)), np.ones((3, 1))
    rule, all_of_it = Rule(2, 3, scale=1.0, causal=True), (slice(0, 2), slice(0, 3))
    assert rule.kind(*all_of_it) == PARTIAL
    np.testing.assert_array_equal(rule.scores(Q, K, *all_of_it, FULL), np.ones((2, 3)))
    np.testing.assert_array_equal(rule.scores(Q, K, *all_of_it, PARTIAL), [[1, 1, -np.inf], [1, 1, 1]])


@given(heads(), st.sampled_from([np.float32, np.float64]))
def test_scores_and_chain_keep_the_width_of_what_they_get(head, dtype):
    """A float32 path contains no float64, whatever the width of mask and bias."""
    Nq, Nk, options = head
    rule = Rule(Nq, Nk, **options)
    Q, K = np.ones((Nq, 2), dtype), np.ones((Nk, 2), dtype)
    Sij = rule.scores(Q, K, slice(0, Nq), slice(0, Nk), PARTIAL)
    assert Sij.dtype == dtype
    assert rule.chain(np.ones((Nq, Nk), dtype), Q, K).dtype == dtype


@given(heads(), st.integers(0, 99))
def test_chain_is_the_derivative_of_the_scores(head, seed):
    """Against central differences: q·k moves by ±h through a column of its own."""
    Nq, Nk, options = head
    rule = Rule(Nq, Nk, **(options | {"causal": False, "window": (-1, -1), "mask": None, "bias": None}))
    rng = np.random.default_rng(seed)
    q, k, dS, h = rng.standard_normal((Nq, 1)), rng.standard_normal((Nk, 1)), rng.standard_normal((Nq, Nk)), 1e-4
    rows, cols = slice(0, Nq), slice(0, Nk)

    def scores(step):
        Q, K = np.hstack([q, np.full_like(q, step)]), np.hstack([k, np.ones_like(k)])
        return rule.scores(Q, K, rows, cols, FULL)

    slope = (scores(h) - scores(-h)) / (2 * h)
    np.testing.assert_allclose(rule.chain(dS, q, k), dS * slope, rtol=1e-6, atol=1e-7)


@given(heads())
def test_reach_says_which_rows_see_and_which_keys_are_seen(head):
    Nq, Nk, options = head
    sees, seen = Rule(Nq, Nk, **options).reach()
    visible, _ = truth(*head)
    np.testing.assert_array_equal(sees, visible.any(axis=1))
    np.testing.assert_array_equal(seen, visible.any(axis=0))


@pytest.mark.parametrize("N", [63, 64, 65, 128, 129])
@pytest.mark.parametrize("dtype", [bool, float])
def test_reach_of_long_masks(N, dtype):
    """A mask is read in strips: here every row decides alone about one key, and one row hides its own."""
    for hidden in (0, N // 2, N - 1):
        visible = np.eye(N, dtype=bool)
        visible[hidden] = False
        sees, seen = Rule(N, N, scale=1.0, mask=visible if dtype is bool else np.where(visible, 0.0, -np.inf)).reach()
        np.testing.assert_array_equal(sees, np.arange(N) != hidden)
        np.testing.assert_array_equal(seen, np.arange(N) != hidden)


def test_defaults_see_everything():
    sees, seen = Rule(2, 3, scale=1.0).reach()
    assert sees.all() and seen.all()
    assert Rule(2, 3, scale=1.0).kind(slice(0, 2), slice(0, 3)) == FULL


@pytest.mark.parametrize("huge", [10**6, 2**62, 2**63, 10**30])
def test_a_huge_window_is_unlimited(huge):
    every = slice(0, 3)
    for window, same in (((huge, huge), (-1, -1)), ((huge, 0), (-1, 0)), ((0, huge), (0, -1))):
        huge_rule, rule = (Rule(3, 3, scale=1.0, window=w) for w in (window, same))
        np.testing.assert_array_equal(huge_rule.visible(every, every), rule.visible(every, every))
        np.testing.assert_array_equal(huge_rule.reach(), rule.reach())
        assert huge_rule.kind(every, every) == rule.kind(every, every)


@pytest.mark.parametrize("options, error, words", [
    ({"scale": float("inf")}, ValueError, "scale.*inf"), ({"scale": True}, TypeError, "scale"),
    ({"causal": 1}, TypeError, "causal.*1"), ({"window": (-2, 0)}, ValueError, "-2"), ({"window": 3}, TypeError, "3"),
    ({"softcap": -1.0}, ValueError, "-1"), ({"alibi_slope": float("nan")}, ValueError, "alibi_slope.*nan"),
    ({"mask": np.ones((2, 3), int)}, TypeError, "int64"),
    ({"mask": np.ones((3, 3), bool)}, ValueError, r"mask.*3, 3.*2, 3"),
    ({"bias": np.ones((2, 3), bool)}, TypeError, "bias.*bool"), ({"bias": [1.0]}, TypeError, "bias.*list"),
    ({"bias": np.full((2, 3), np.inf)}, ValueError, r"bias.*\+inf"),
    ({"mask": np.full((2, 3), np.inf)}, ValueError, r"mask.*\+inf"),
])
def test_options_out_of_range_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        Rule(2, 3, **{"scale": 1.0} | options)
