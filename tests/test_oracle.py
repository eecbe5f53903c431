"""The judge itself: against numbers worked out by hand, and its gradients against central differences."""

import ast
import math

import numpy as np
import pytest
from ml_dtypes import bfloat16

from fa_ref.testing import oracle
from fa_ref.testing.problem import Problem

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def no_warnings():
    """Nothing the oracle does may overflow or be invalid; exp of a very negative number may become 0."""
    with np.errstate(all="raise", under="ignore"):
        yield


def column(*numbers):
    """One head of dimension 1: (1, 1, N, 1)."""
    return np.array(numbers, float)[None, None, :, None]


def weights(Nq, Nk, **options):
    """The rows of P for zero queries and keys: with V = identity the output is P itself."""
    d = options.pop("d", 1)
    return oracle.forward(np.zeros((1, 1, Nq, d)), np.zeros((1, 1, Nk, d)), np.eye(Nk)[None, None], **options)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_imports_nothing_of_what_it_judges():
    tree = ast.parse(open(oracle.__file__).read())
    modules = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    modules |= {"." * node.level + (node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"math", "collections", "collections.abc", "typing", "numpy"}


def test_uniform_weights_and_natural_log():
    out, lse = weights(2, 4)
    close(out[0, 0], [[0.25] * 4] * 2)
    close(lse[0, 0], [math.log(4)] * 2)


def test_softmax_of_two_logits():
    P = oracle.forward(column(math.log(3)), column(1, 0), np.eye(2)[None, None], scale=1).out
    close(P[0, 0, 0], [0.75, 0.25])


def test_default_scale_is_one_over_sqrt_d():
    q, k = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
    q[0, 0, 0, 0], k[0, 0, 0, 0] = 2 * math.log(3), 1
    close(oracle.forward(q, k, np.eye(2)[None, None]).out[0, 0, 0], [0.75, 0.25])


@pytest.mark.parametrize("scale, keys, P", [(0.0, (0, 50), (0.5, 0.5)), (-1, (0, math.log(3)), (0.75, 0.25))])
def test_scale_zero_and_negative(scale, keys, P):
    close(oracle.forward(column(1), column(*keys), np.eye(2)[None, None], scale=scale).out[0, 0, 0], P)


def test_scale_zero_has_no_gradient_in_q_and_k():
    a = oracle.solve(problem(scale=0.0))
    assert (a.dq == 0).all() and (a.dk == 0).all() and a.dv.all()


def test_causal_is_aligned_at_the_bottom_right():
    close(weights(2, 5, causal=True).out[0, 0], [[0.25, 0.25, 0.25, 0.25, 0], [0.2] * 5])
    out, lse = weights(3, 1, causal=True)
    assert out[0, 0, :, 0].tolist() == [0, 0, 1] and lse[0, 0].tolist() == [-INF, -INF, 0]


def test_window_is_inclusive():
    close(weights(3, 3, window=(1, 0)).out[0, 0], [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    close(weights(3, 3, window=(0, 1)).out[0, 0], [[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]])
    close(weights(1, 4, window=(1, -1)).out[0, 0], [[0, 0, 0.5, 0.5]])
    assert (weights(3, 4, window=(-1, 0)).out == weights(3, 4, causal=True).out).all()


def test_masks_boolean_and_float():
    P = [[0.5, 0, 0.5], [0, 0, 0]]
    close(weights(2, 3, mask=np.array([[True, False, True], [False] * 3])).out[0, 0], P)
    close(weights(2, 3, mask=np.array([[0, -INF, 0], [-INF] * 3])).out[0, 0], P)
    close(weights(1, 2, mask=np.array([[1.0, 0.0]])).out[0, 0], [[0.731059, 0.268941]])


def test_a_finite_minus_infinity_hides_nothing():
    close(weights(1, 4, mask=np.full((1, 4), np.finfo(np.float32).min)).out[0, 0], [[0.25] * 4])


def test_bias_hides_and_adds():
    close(weights(1, 3, bias=np.array([0, -INF, math.log(3)])).out[0, 0], [[0.25, 0, 0.75]])


def test_alibi():
    expected = [[1, 0, 0], [0.268941, 0.731059, 0], [0.090031, 0.244728, 0.665241]]
    close(weights(3, 3, alibi_slopes=np.ones(1), causal=True).out[0, 0], expected)
    close(weights(3, 3, alibi_slopes=np.ones((1, 1))).out[0, 0, 1], [0.211942, 0.576117, 0.211942])
    close(weights(1, 3, alibi_slopes=np.ones(1)).out[0, 0, 0], expected[2])


def test_softcap_comes_before_the_mask_and_after_the_scale():
    out, lse = oracle.forward(column(5), column(1, 1), column(1, 2), scale=1, softcap=1, mask=np.array([[True, False]]))
    assert out.item() == 1
    close(lse.item(), math.tanh(5))
    P = oracle.forward(column(2), column(1, 0), np.eye(2)[None, None], scale=1, softcap=2).out
    close(P[0, 0, 0], [0.821007, 0.178993])
    assert (weights(1, 2, softcap=0).out == weights(1, 2).out).all()


def test_sink_is_a_logit_without_a_value():
    out, lse = weights(1, 3, sink=np.zeros(1))
    close(out[0, 0, 0], [0.25] * 3)
    close(lse.item(), math.log(4))
    out, lse = weights(1, 3, sink=np.array([-INF]))
    close(out[0, 0, 0], [1 / 3] * 3)


def test_grouped_heads_share_neighbouring_kv_heads():
    q, k, v = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1)), np.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    assert oracle.forward(q, k, v).out.ravel().tolist() == [10, 10, 20, 20]
    grads = oracle.backward(np.array([1.0, 2, 3, 4]).reshape(1, 4, 1, 1), q, k, v)
    assert grads.dv.ravel().tolist() == [3, 7]


def test_huge_logits():
    out, lse = oracle.forward(column(1), column(1000, 1000, 0), column(2, 4, 99), scale=1)
    close((out.item(), lse.item()), (3, 1000 + math.log(2)))
    out, lse = oracle.forward(column(1), column(-50000, 0), column(3, 500), scale=1, mask=np.array([[True, False]]))
    assert (out.item(), lse.item()) == (3, -50000)


def test_backward_by_hand():
    q, k = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
    q[..., 0], k[0, 0, 0, 0] = 1, 2 * math.log(3)
    dq, dk, dv, dbias, dsink = oracle.backward(np.ones((1, 1, 1, 1)), q, k, column(1, 0))
    close(dq[0, 0, 0], [0.1875 * math.log(3), 0, 0, 0])
    close(dk[0, 0], [[0.09375, 0, 0, 0], [-0.09375, 0, 0, 0]])
    close(dv[0, 0, :, 0], [0.75, 0.25])
    assert dbias is None and dsink is None


def test_gradient_through_lse_by_hand():
    one = np.ones((1, 1, 1))
    grads = oracle.backward(column(0), column(1), column(math.log(3), 0), column(5, 6), dlse=one, scale=1)
    close(grads.dq.item(), 0.75 * math.log(3))
    close(grads.dk[0, 0, :, 0], [0.75, 0.25])
    assert (grads.dv == 0).all()


# --- edges ------------------------------------------------------------------------------------------------------------


def problem(seed=0, B=2, Hq=2, Hkv=1, Nq=3, Nk=4, d=2, dv=3, **options):
    r = np.random.default_rng(seed)
    shapes = [(B, Hq, Nq, d), (B, Hkv, Nk, d), (B, Hkv, Nk, dv), (B, Hq, Nq, dv), (B, Hq, Nq)]
    return Problem(*map(r.standard_normal, shapes), **options)


def test_empty_rows_are_exactly_zero():
    mask = np.ones((3, 4), bool)
    mask[1] = False
    p = problem(mask=mask, bias=np.zeros((3, 4)))
    p.dout[:, :, 1], p.dlse[:, :, 1] = 1e9, 1e9
    a = oracle.solve(p)
    assert (a.out[:, :, 1] == 0).all() and (a.lse[:, :, 1] == -INF).all()
    assert (a.dq[:, :, 1] == 0).all() and (a.dbias[1] == 0).all()
    rest = [0, 2]
    arrays = {name: getattr(p, name)[:, :, rest] for name in ("q", "dout", "dlse")}
    b = oracle.solve(p.replace(**arrays, mask=mask[rest], bias=None))
    assert (a.dk == b.dk).all() and (a.dv == b.dv).all() and (a.out[:, :, rest] == b.out).all()


def test_empty_row_with_a_sink():
    a = oracle.solve(problem(mask=np.zeros((3, 4), bool), sink=np.array([2.0, -3.0])))
    assert (a.out == 0).all() and (a.lse == np.array([2.0, -3.0])[:, None]).all()
    assert (a.dq == 0).all() and (a.dk == 0).all() and (a.dv == 0).all()


def test_what_nobody_sees_is_never_read():
    mask = np.array([True, True, False, True])
    for hide in ({"mask": mask}, {"mask": np.where(mask, 0, -INF)}, {"bias": np.where(mask, 0, -INF)[None]}):
        p = problem(**hide)
        clean = oracle.solve(p)
        for garbage in (NAN, INF):
            p.k[:, :, 2], p.v[:, :, 2] = garbage, garbage
            for name, x in oracle.solve(p)._asdict().items():
                y = getattr(clean, name)
                assert (x is None and y is None) or (x == y).all(), name


def test_rows_below_the_keys_they_see():
    """Visibility may differ between rows: a hidden NaN reaches only those who see it."""
    p = problem(Nq=4, causal=True)
    p.v[:, :, 3] = NAN
    out = oracle.forward(p.q, p.k, p.v, causal=True).out
    assert np.isfinite(out[:, :, :3]).all() and np.isnan(out[:, :, 3]).all()


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Nq": 0}, {"Nk": 0}])
def test_zero_lengths(sizes):
    a = oracle.solve(problem(**sizes, sink=np.ones(2), bias=np.zeros((1, 1))))
    assert (a.out == 0).all() and (a.dv == 0).all() and a.dbias.shape == (1, 1) and a.dsink.shape == (2,)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
def test_narrow_inputs_are_widened_exactly(dtype):
    p = problem(bias=np.ones((3, 4)), sink=np.ones(2), alibi_slopes=np.ones(2))
    arrays = ("q", "k", "v", "dout", "bias", "sink", "alibi_slopes")
    narrow = p.replace(**{name: getattr(p, name).astype(dtype) for name in arrays})
    wide = p.replace(**{name: getattr(narrow, name).astype(float) for name in arrays})
    for x, y in zip(oracle.solve(narrow), oracle.solve(wide), strict=True):
        assert x.dtype == np.float64 and (x == y).all()


def test_no_gradients_unless_asked_for():
    p = problem().replace(dout=None)
    assert oracle.solve(p).dq.any() and not oracle.solve(p).dv.any()
    assert oracle.solve(p.replace(dlse=None))[2:] == (None,) * 5


def test_inputs_are_not_written_to():
    p = problem(bias=np.ones((3, 4)), sink=np.ones(2), mask=np.ones((3, 4), bool))
    for x in vars(p).values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    oracle.solve(p)


# --- gradients against central differences ----------------------------------------------------------------------------

R = np.random.default_rng(7)
SOME_MASK = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]], bool)
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.7},
    "causal": {"causal": True},
    "causal, more queries": {"causal": True, "Nq": 5, "Nk": 3},
    "window": {"window": (1, 1)},
    "boolean mask": {"mask": SOME_MASK},
    "float mask": {"mask": np.where(SOME_MASK, R.standard_normal((3, 4)), -INF)},
    "bias": {"bias": R.standard_normal((2, 2, 3, 4))},
    "bias per head": {"bias": R.standard_normal((2, 1, 4))},
    "bias per key": {"bias": R.standard_normal((1, 4))},
    "bias per query": {"bias": R.standard_normal((3, 1))},
    "bias that hides": {"bias": np.where(SOME_MASK, 0.5, -INF)},
    "alibi": {"alibi_slopes": R.random((2, 2))},
    "softcap": {"softcap": 0.8},
    "sink": {"sink": R.standard_normal(2)},
    "sink, empty row": {"sink": R.standard_normal(2), "mask": SOME_MASK},
    "grouped heads": {"Hq": 4, "Hkv": 2},
    "all": {"scale": 0.9, "causal": True, "window": (2, -1), "mask": R.standard_normal((2, 1, 1, 4)),
            "bias": R.standard_normal((1, 3, 4)), "alibi_slopes": R.random(2), "softcap": 1.5,
            "sink": R.standard_normal(2)},
}  # fmt: skip


def central_differences(p, name, step=1e-5):
    """d(sum out·dout + sum lse·dlse) for every finite entry of p's array of this name."""

    def loss(x):
        changed = p.replace(**{name: x})
        out, lse = oracle.forward(changed.q, changed.k, changed.v, **changed.options)
        return (out * p.dout).sum() + (lse * p.dlse)[lse > -INF].sum()

    x = getattr(p, name)
    slopes = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        if np.isfinite(x[index]):
            up, down = x.copy(), x.copy()
            up[index] += step
            down[index] -= step
            slopes[index] = (loss(up) - loss(down)) / (2 * step)
    return slopes


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name):
    p = problem(seed=3, **OPTIONS[name])
    a = oracle.solve(p)
    for argument in ("q", "k", "v", "bias", "sink"):
        if getattr(p, argument) is not None:
            gradient = getattr(a, f"d{argument}")
            assert gradient.shape == getattr(p, argument).shape and gradient.any()
            np.testing.assert_allclose(gradient, central_differences(p, argument), rtol=0, atol=1e-8, err_msg=argument)
