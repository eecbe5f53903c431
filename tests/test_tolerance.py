"""The bounds: never below what a right implementation does, and close enough above it to catch wrong ones.

The implementation used here is written for this purpose alone: a tiled online softmax with running rescaling, and a
plain backward pass, in float32 (float64 for float64 inputs), rounding P and dS to 16-bit inputs' dtype.
"""

import math

import ml_dtypes
import numpy as np
import pytest

from fa_ref.testing import oracle, standard_16bit, tolerance
from fa_ref.testing.problem import Problem, Result

DTYPES = {np.dtype(x).name: np.dtype(x) for x in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)}
FIELDS = tolerance.FIELDS
INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def no_invalid_operations():
    with np.errstate(invalid="raise", divide="raise"):
        yield


# --- problems ---------------------------------------------------------------------------------------------------------


def draw(r, dtype, long=False):
    """A random problem: any mixture of options, logits up to 30², data of one sign, constant rows, outliers."""
    B, Hkv, group = r.integers(1, 3, 3) if not long else (1, 1, r.integers(1, 3))
    Hq, Nq, Nk = Hkv * group, r.integers(1, 14), r.integers(1, 14)
    d, dv = r.choice([1, 2, 3, 4, 8, 16]), r.choice([1, 2, 4, 7])
    if long:
        Nq, Nk, d, dv = r.integers(1, 6), r.choice([200, 700, 2048]), r.choice([64, 256, 512]), r.choice([32, 256])
    wide = np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)
    kind = r.choice(["normal", "one sign", "constant", "outliers"])

    def data(*shape, size):
        x = r.random(shape) if kind == "one sign" else r.standard_normal(shape)
        x = x[..., :1] * np.ones(shape) if kind == "constant" else x
        return (size * (x * np.exp(r.standard_normal(shape)) if kind == "outliers" else x)).astype(dtype)

    def axes():
        shapes = [(B, Hq, Nq, Nk), (1, Hq, Nq, Nk), (B, 1, 1, Nk), (Nq, Nk), (1, Nk), (Nq, 1)]
        return shapes[r.integers(len(shapes))]

    o = {}
    if r.random() < 0.4:
        o["causal"] = True
    if r.random() < 0.3:
        o["window"] = tuple(int(n) for n in r.integers(-1, 5, 2))
    if r.random() < 0.3:
        o["scale"] = float(r.choice([0, -1, 1, 0.3, 2]))
    if r.random() < 0.3:
        o["mask"] = r.random(axes()) < 0.7
    elif r.random() < 0.3:
        o["mask"] = (r.standard_normal(axes()) * r.choice([1, 50])).astype(wide)
        o["mask"][r.random(o["mask"].shape) < 0.2] = r.choice([-INF, -3e4, np.finfo(np.float32).min])
    if r.random() < 0.3:
        o["bias"] = (r.standard_normal(axes()) * r.choice([0.1, 3, 100])).astype(r.choice([dtype, wide]))
    if r.random() < 0.3:
        o["alibi_slopes"] = r.random(Hq).astype(np.float32)
    if r.random() < 0.3:
        o["softcap"] = float(r.choice([0.5, 5, 50]))
    if r.random() < 0.3:
        o["sink"] = (r.standard_normal(Hq) * r.choice([1, 20, 300])).astype(wide)
    if r.random() < 0.4:
        o["dlse"] = (r.standard_normal((B, Hq, Nq)) * r.choice([0.1, 1, 30])).astype(wide)
    size = r.choice([0.3, 1, 5, 30]) / d**0.25
    v, dout = data(B, Hkv, Nk, dv, size=r.choice([0.1, 1, 5])), data(B, Hq, Nq, dv, size=r.choice([0.1, 1, 5]))
    tile = int(r.choice([16, 64]) if long else r.integers(1, 6))
    q, k = data(B, Hq, Nq, d, size=size), data(B, Hkv, Nk, d, size=size)
    return Problem(q, k, v, dout, block_k=tile, reverse=bool(r.random() < 0.5), **o)


def plain_problem(dtype, Nq=4, Nk=5, d=3, B=1, H=1):
    """No options, standard normal numbers."""
    r = np.random.default_rng(1)
    return Problem(*(r.standard_normal((B, H, n, d)).astype(dtype) for n in (Nq, Nk, Nk, Nq)), block_k=64)


# --- an implementation ------------------------------------------------------------------------------------------------


def one_by_one(a, b):
    """a @ b with one running sum per element, as a thread of a kernel forms it."""
    terms = a[:, :, None] * b[None]
    return np.add.accumulate(terms, axis=1, dtype=a.dtype)[:, -1] if terms.size else terms.sum(axis=1)


def solve(p, product=np.matmul, stored=False, fault=None):
    """All answers to problem p. stored: P and dS exist only in the input dtype. `fault` names something to do wrong."""
    dtype, wide = p.q.dtype, np.dtype(np.float64 if p.q.dtype == np.float64 else np.float32).type

    def narrow(x, to=dtype):
        with np.errstate(over="ignore"):
            return x.astype(to).astype(wide)

    coarse = ml_dtypes.float8_e4m3fn if dtype.itemsize == 2 else ml_dtypes.bfloat16  # the next narrower numbers
    q, k, v, dout = (x.astype(wide) for x in (p.q, p.k, p.v, p.dout))
    (B, Hq, Nq, d), (Nk, dv) = q.shape, v.shape[2:]
    group = Hq // k.shape[1]
    scale = wide(1 / math.sqrt(d) if p.scale is None else p.scale)
    dlse = np.zeros((B, Hq, Nq), wide) if p.dlse is None or fault == "dlse ignored" else p.dlse.astype(wide)
    sink = np.full(Hq, -INF, wide) if p.sink is None or fault == "sink ignored" else p.sink.astype(wide)
    visible, _ = standard_16bit.terms(p)
    tables = [x.astype(wide) for x in (p.mask, p.bias) if x is not None and x.dtype != bool]
    if p.alibi_slopes is not None:
        offset = 0 if fault == "top-left ALiBi" else Nk - Nq
        distance = abs(np.arange(Nq)[:, None] + offset - np.arange(Nk)).astype(wide)
        tables.append(-p.alibi_slopes.astype(wide)[:, None, None] * distance)
    tables = [np.broadcast_to(x, visible.shape) for x in tables]

    out, lse = np.zeros((B, Hq, Nq, dv), wide), np.zeros((B, Hq, Nq), wide)
    dq, dk, dv, dS, dsink = (np.zeros(s, wide) for s in (q.shape, k.shape, v.shape, visible.shape, (Hq,)))
    tiles = [slice(j, j + p.block_k) for j in range(0, Nk, p.block_k)]
    for b, h in np.ndindex(B, Hq):
        g = h % k.shape[1] if fault == "grouped heads tiled" else h // group
        S, chain = scale * product(q[b, h], k[b, g].T), wide(1)
        if fault == "S in fewer bits":
            S = narrow(S, ml_dtypes.bfloat16)
        if p.softcap:
            t = np.tanh(S / wide(p.softcap))
            S, chain = wide(p.softcap) * t, wide(1) if fault == "softcap not chained" else 1 - t * t
        for x in tables:
            S = S + x[b, h]
        S = np.where(visible[b, h], S, wide(-INF))
        if fault == "last key dropped":
            S[:, -1] = -INF

        m, l, acc = np.full(Nq, -INF, wide), np.zeros(Nq, wide), np.zeros((Nq, v.shape[3]), wide)
        for cols in tiles[::-1] if p.reverse else tiles:
            m_new = np.maximum(m, S[:, cols].max(axis=1))
            shift = np.where(m_new == -INF, wide(0), m_new)
            P, alpha = np.exp(S[:, cols] - shift[:, None]), np.exp(m - shift)
            l = l * alpha + P.sum(axis=1)
            if fault != "acc not rescaled":
                acc = acc * alpha[:, None]
            acc, m = acc + product(narrow(P, coarse if fault == "P in fewer bits" else dtype), v[b, g, cols]), m_new
        m_new = np.maximum(m, sink[h])
        shift = np.where(m_new == -INF, wide(0), m_new)
        l, acc = l * np.exp(m - shift) + np.exp(sink[h] - shift), acc * np.exp(m - shift)[:, None]
        l = np.where(l == 0, wide(1), l)
        out[b, h], lse[b, h] = acc / l[:, None], m_new + np.log(l)

        L = np.where(lse[b, h] == -INF, wide(0), lse[b, h])
        P = narrow(np.exp(S - L[:, None])) if stored else np.exp(S - L[:, None])
        D = (dout[b, h] * narrow(out[b, h])).sum(axis=1) - dlse[b, h]
        D = 0 * D if fault == "D forgotten" else D
        dS[b, h] = P * (product(dout[b, h], v[b, g].T) - D[:, None])
        dS[b, h] = narrow(dS[b, h]) if stored else dS[b, h]
        dX = narrow(dS[b, h] * chain)
        dq[b, h] = scale * product(dX, k[b, g])
        dk[b, g] += (wide(1) if fault == "scale forgotten in dK" else scale) * product(dX.T, q[b, h])
        dv[b, g] += product(narrow(P).T, dout[b, h])
        dsink[h] -= (np.exp(sink[h] - L) * D).sum()
    with np.errstate(over="ignore"):
        out, dq, dk, dv = (x.astype(dtype) for x in (out, dq, dk, dv))
        dbias = None if p.bias is None else oracle.sum_to(dS, p.bias.shape).astype(p.bias.dtype)
    return Result(out, lse, dq, dk, dv, dbias, None if p.sink is None else dsink)


# --- right code is accepted -------------------------------------------------------------------------------------------


def draws(number, seed, long=False):
    """Problems of every dtype in turn, with the truth and the bounds."""
    r = np.random.default_rng(seed)
    for n in range(number):
        p = draw(r, list(DTYPES.values())[n % 4], long)
        yield p, oracle.solve(p), tolerance.bounds(p)


@pytest.fixture(scope="module")
def cases():
    return list(draws(320, seed=5))


def calibrate(cases, ways=((np.matmul, True), (one_by_one, False))):
    """{dtype: {field: largest fraction of the bound}} of the implementation above; it is also printed."""
    found = {name: {field: [] for field in FIELDS} for name in DTYPES}
    for p, truth, bound in cases:
        for way in ways:
            for field, worst in tolerance.worst(solve(p, *way), truth, bound).items():
                found[p.q.dtype.name][field].append(worst.fraction)
    found = {name: {field: x for field, x in fields.items() if x} for name, fields in found.items()}
    print("\nlargest fraction of the bound (median of the largest per problem)")
    for name, fields in found.items():
        print(f"{name:9}", ", ".join(f"{field} {max(x):.2f} ({np.median(x):.3f})" for field, x in fields.items()))
    return {name: {field: max(x) for field, x in fields.items()} for name, fields in found.items()}


def within(found):
    """Right code is accepted with room to spare; in 16 bits the rounding of the stored number may use up its bound."""
    return all(x <= (1 if DTYPES[name].itemsize == 2 else 0.9) for name in found for x in found[name].values())


def test_right_code_is_within_the_bounds_and_not_far_below(cases):
    found = calibrate(cases)
    assert within(found)
    for name, x in found.items():
        least = {"dsink": 0.03} | ({f: 0.4 for f in ("out", "dq", "dk", "dv")} if DTYPES[name].itemsize == 2 else {})
        assert all(x[field] >= least.get(field, 0.1) for field in FIELDS), (name, x)


def test_long_rows_and_large_heads():
    assert within(calibrate(draws(16, seed=6, long=True), [(np.matmul, False)]))


@pytest.mark.slow
def test_thousands_of_problems():
    assert within(calibrate(draws(16_000, seed=7)))


def test_empty_rows_and_unseen_keys_have_no_room():
    mask = np.ones((4, 5), bool)
    mask[1], mask[:, 2] = False, False
    p = plain_problem(np.float16).replace(mask=mask, bias=np.zeros((4, 5), np.float16))
    b = tolerance.bounds(p)
    for x in (b.out[:, :, 1], b.lse[:, :, 1], b.dq[:, :, 1], b.dk[:, :, 2], b.dv[:, :, 2], b.dbias[~mask]):
        assert (x == 0).all()
    rows = [0, 2, 3]
    for x in (b.out[:, :, rows], b.dq[:, :, rows], b.dk[:, :, [0, 1, 3, 4]], b.dv[:, :, [0, 1, 3, 4]], b.dbias[mask]):
        assert (x > 0).all()


def test_unread_garbage_has_no_influence_on_the_bounds():
    p = plain_problem(np.float32).replace(mask=np.array([True, True, False, True, True]))
    clean = tolerance.bounds(p)
    p.k[:, :, 2], p.v[:, :, 2] = NAN, INF
    for name, x in vars(tolerance.bounds(p)).items():
        assert x is None or (x == getattr(clean, name)).all(), name


def test_fields_are_those_of_the_problem():
    p = plain_problem(np.float32)
    given = [name for name, x in vars(tolerance.bounds(p)).items() if x is not None]
    assert given == ["out", "lse", "dq", "dk", "dv"]
    given = [name for name, x in vars(tolerance.bounds(p.replace(dout=None))).items() if x is not None]
    assert given == ["out", "lse"]
    p = p.replace(dout=None, dlse=np.ones((1, 1, 4), np.float32), bias=np.zeros((1, 5), np.float32), sink=np.ones(1))
    b, truth = tolerance.bounds(p), oracle.solve(p)
    assert all(getattr(b, name).shape == getattr(truth, name).shape for name in FIELDS)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Nq": 0}, {"Nk": 0}])
def test_zero_lengths(sizes):
    p = plain_problem(np.float16, **sizes).replace(bias=np.zeros((1, 1), np.float16), sink=np.ones(1, np.float32))
    truth, bound = oracle.solve(p), tolerance.bounds(p)
    assert max(worst.fraction for worst in tolerance.worst(solve(p), truth, bound).values()) <= 1
    assert (standard_16bit.float64_truth(p).out == truth.out).all()
    assert all(verdict.ok for verdict in standard_16bit.two_errors(solve(p), truth, p).values())


def test_what_does_not_fit_in_float16_may_be_anything():
    p = plain_problem(np.float16)
    p.v[:], p.dout[:, :, 1] = 100 * p.v, 10_000 * p.dout[:, :, 1]  # dS and dq overflow in this row, not in the others
    truth, bound = oracle.solve(p), tolerance.bounds(p)
    assert abs(truth.dq[:, :, 1]).max() > 65504
    assert np.isinf(bound.dq[:, :, 1]).all() and np.isfinite(bound.dq[:, :, [0, 2, 3]]).all()
    assert np.isfinite(bound.out).all()
    scaled = tolerance.bounds(p.replace(k=p.k / 100, v=p.v / 10, scale=100.0, dout=p.dout / 10))
    assert np.isinf(scaled.dq[:, :, 1]).all()  # dS fits before it is scaled, but not after; dq does
    large = tolerance.bounds(p.replace(v=0 * p.v, dout=0 * p.dout + np.float16(6e4)))
    assert np.isinf(large.dv).any() and np.isfinite(large.dq).all()  # the sum over rows is what does not fit
    with np.errstate(invalid="ignore"):  # inf - inf
        answer = solve(p)
    assert not np.isfinite(answer.dq[:, :, 1]).all()
    assert all(worst.fraction <= 1 for worst in tolerance.worst(answer, truth, bound).values())


def test_coarser_scores_need_coarser_eps():
    """Scores kept in bfloat16 are beyond the ordinary bounds, and within those for such an accumulator."""
    p = plain_problem(ml_dtypes.bfloat16, H=2)
    p = p.replace(q=(30 * p.q.astype(float)).astype(p.q.dtype))
    coarse, truth = standard_16bit.standard_16bit(p), oracle.solve(p)
    assert tolerance.worst(coarse, truth, tolerance.bounds(p))["out"].fraction > 1
    loose = tolerance.worst(coarse, truth, tolerance.bounds(p, eps_acc=2.0**-8))
    assert all(0 < worst.fraction <= 1 for worst in loose.values())


def fits(p, **ways):
    """Largest fraction of the bound, by field."""
    worst = tolerance.worst(solve(p, **ways), oracle.solve(p), tolerance.bounds(p))
    return {field: w.fraction for field, w in worst.items()}


def test_terms_that_cancel_have_been_rounded():
    """Bias and mask of opposite sign: the scores are small, but not what was lost when the first was added."""
    p = plain_problem(np.float32, Nq=40)
    bias = 1e4 * np.random.default_rng(4).random((40, 5)).astype(np.float32)
    found = fits(p.replace(bias=bias, mask=-bias))
    assert 0.05 < max(found.values()) < 0.9


def test_long_sums_of_equal_numbers():
    """Adding one number again and again rounds in the same direction for a long time."""
    one = np.ones((1, 1, 3000, 1), np.float32)
    p = Problem(one[:, :, :2], one, one / 3, one[:, :, :2] / 3, scale=0.0, block_k=5000)
    assert 0.05 < fits(p, product=one_by_one)["out"] < 0.9
    p = Problem(one, one[:, :, :2], one[:, :, :2] / 3, one / 3, scale=0.0, block_k=5000)
    assert 0.05 < fits(p, product=one_by_one)["dv"] < 0.9


def test_products_that_cancel_within_a_key():
    """dO·V of one key is a small difference of large numbers, while its share of O is nothing."""
    p = plain_problem(np.float32, d=64)
    p.v[:, :, 0] *= 1e6
    p.v[:, :, 0, 32:] = -p.v[:, :, 0, :32]
    p.dout[:, :, :, 32:] = p.dout[:, :, :, :32]
    found = fits(p.replace(bias=np.array([-15, 0, 0, 0, 0], np.float32)))
    assert 0.001 < found["dk"] < 0.9


def test_a_saturated_softcap_leaves_no_gradient_and_no_room():
    p = plain_problem(np.float32)
    p = p.replace(q=abs(p.q) * 300, k=abs(p.k) * 300, softcap=1.0)
    bound = tolerance.bounds(p)
    assert bound.out.max() < 1e-5 and bound.dq.max() < 3e-4


def test_a_steep_softcap_loses_digits():
    """Terms of q·k that cancel leave a rounding error, which a small cap magnifies in 1 − tanh²."""
    p = plain_problem(np.float32, Nq=20, Nk=20, d=16)
    p.k[..., 8:] = p.k[..., :8]
    p.q[..., 8:] = 1e-3 * p.q[..., 8:] - p.q[..., :8]
    found = fits(p.replace(softcap=1e-3, scale=1.0), product=one_by_one)
    assert 0.01 < found["dq"] < 0.9 and 0.01 < found["dk"] < 0.9


def test_scores_that_float32_cannot_tell_apart():
    """At 10⁸ float32 counts in steps of 8: shares are wrong by powers of e, not by a few percent."""
    r, p = np.random.default_rng(0), plain_problem(np.float32, Nq=30, Nk=6, d=8)
    k = np.repeat(3e4 * p.k[:, :, :1], 6, axis=2)
    p = p.replace(q=3e4 * p.q, k=np.nextafter(k, np.where(r.random(k.shape) < 0.5, np.inf, 0).astype(np.float32)))
    assert 0.1 < fits(p)["out"] < 0.9


def test_the_bounds_follow_the_scale():
    p = plain_problem(np.float32)
    one, half = tolerance.bounds(p.replace(scale=1.0)), tolerance.bounds(p.replace(scale=0.5, q=2 * p.q))
    np.testing.assert_allclose(half.dq, one.dq / 2, rtol=1e-6)
    for field in ("out", "lse", "dk", "dv"):
        np.testing.assert_allclose(getattr(half, field), getattr(one, field), rtol=1e-6)


def test_a_share_that_hardware_flushes_to_zero():
    """1e-38 is less than the smallest normal float32; times a large dO it is a number that counts."""
    p = plain_problem(np.float32)
    p = p.replace(q=0 * p.q, dout=1e5 * p.dout, bias=np.array([-89, 0, 0, 0, 0], np.float32),
                  sink=np.array([-87.6], np.float32))  # fmt: skip
    truth, bound = oracle.solve(p), tolerance.bounds(p)
    assert (abs(truth.dv[:, :, 0]) > 1e-36).any() and (bound.dv >= abs(truth.dv))[:, :, 0].all()
    assert abs(truth.dsink) > 1e-36 and bound.dsink > abs(truth.dsink)


def test_shares_that_may_be_anything():
    """Scores so large that float32 cannot tell them apart: a share is still between 0 and 1."""
    p = Problem(*(np.full((1, 1, 3, 2), x, np.float32) for x in (3e4, 3e4, 1)), scale=1.0)
    bound = tolerance.bounds(p)
    assert (bound.out <= 3.01).all() and bound.out.all() and bound.dq is None


def test_one_hidden_giant_does_not_loosen_a_row():
    """A finite minus infinity in the mask takes no part, so its rounding error does not count."""
    p = plain_problem(np.float32)
    without = tolerance.bounds(p)
    masked = tolerance.bounds(p.replace(mask=np.array([0, 0, 0, 0, np.finfo(np.float32).min], np.float32)))
    assert masked.out.max() < 2 * without.out.max() and masked.dq.max() < 2 * without.dq.max()


# --- wrong code is rejected -------------------------------------------------------------------------------------------

FAULTS = ("last key dropped", "acc not rescaled", "D forgotten", "scale forgotten in dK", "softcap not chained",
          "sink ignored", "dlse ignored", "top-left ALiBi", "grouped heads tiled", "P in fewer bits", "S in fewer bits")


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_code_is_rejected(cases, fault):
    matters, caught = 0, 0
    for p, truth, bound in cases:
        right, wrong = vars(solve(p)).values(), solve(p, fault=fault)
        if any(x is not None and (x != y).any() for x, y in zip(right, vars(wrong).values(), strict=True)):
            matters += 1
            caught += max(worst.fraction for worst in tolerance.worst(wrong, truth, bound).values()) > 1
    print(f"{fault}: rejected in {caught} of the {matters} problems whose answer it changes")
    assert matters >= 20 and caught >= 0.5 * matters


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(x, y, b):
    """tolerance.worst for one field; the truth y and the bounds b as lists."""
    return tolerance.worst(Result(np.array(x, float)), Result(np.array(y, float)), Result(np.array(b, float)))["out"]


def test_worst_is_the_largest_fraction_and_its_index():
    assert compare([[1, 2.5], [3, 4]], [[1, 2], [3, 4.5]], [[1, 1], [1, 0.25]]) == (2.0, (1, 1))
    assert compare([1, 2], [1, 2], [0, 0]) == (0.0, (0,))
    assert compare([], [], []) == (0.0, None)


@pytest.mark.parametrize(
    "x, y, b, fraction",
    [
        (-INF, -INF, 0, 0),
        (INF, -INF, 1, INF),
        (0, -INF, 1, INF),
        (INF, 1, 5, INF),
        (NAN, 1, 5, INF),
        (NAN, -INF, 0, INF),
        (1e-300, 0, 0, INF),
        (-0.0, 0.0, 0, 0),
        (7e4, 1, INF, 0),
        (INF, 7e4, INF, 0),
        (1e300, 0, 1e-300, INF),
    ],
)
def test_worst_of_a_single_number(x, y, b, fraction):
    assert compare([x, 3], [y, 3], [b, 1]).fraction == fraction
    assert compare([3, x], [3, y], [1, b]) == (fraction, (0 if fraction == 0 else 1,))


def test_worst_compares_what_there_is():
    one = np.ones((1, 1, 1, 1))
    full, some = Result(one, lse=one[0], dq=one), Result(one, lse=None, dq=one)
    assert list(tolerance.worst(some, full, full)) == ["out", "dq"]
    assert list(tolerance.worst(full, some, full)) == ["out", "dq"]
    with pytest.raises(ValueError, match=r"dq must have shape \(1, 1, 1, 1\), got \(1, 1, 1\)"):
        tolerance.worst(Result(one, dq=one[0]), full, full)


# --- 16 bits at realistic sizes ---------------------------------------------------------------------------------------


def test_vectorised_truth_is_the_oracle(cases):
    for p, truth, _ in cases:
        for name, x in vars(standard_16bit.float64_truth(p)).items():
            y = getattr(truth, name)
            assert (x is None) == (y is None)
            if x is not None:
                size = abs(y[np.isfinite(y)]).max(initial=1)
                assert x.shape == y.shape and (tolerance.error(x, y) <= 2e-12 * size).all(), name


def large_problem(dtype, **options):
    r = np.random.default_rng(2)
    shapes = [(1, 2, 200, 32), (1, 1, 222, 32), (1, 1, 222, 32), (1, 2, 200, 32)]
    return Problem(*(r.standard_normal(s).astype(dtype) for s in shapes), causal=True, block_k=64, **options)


@pytest.mark.parametrize("round_scores", [True, False])
@pytest.mark.parametrize("dtype", standard_16bit.STORAGE, ids=str)
def test_two_errors_accepts_right_code(dtype, round_scores):
    r = np.random.default_rng(3)
    p = large_problem(dtype, bias=r.standard_normal((200, 222)).astype(dtype), softcap=20.0,
                      sink=np.ones(2, np.float32), dlse=r.standard_normal((1, 2, 200)).astype(np.float32))  # fmt: skip
    verdicts = standard_16bit.two_errors(solve(p), standard_16bit.float64_truth(p), p, round_scores)
    print({name: f"{v.error / v.allowed:.2f}" for name, v in verdicts.items()})
    assert list(verdicts) == list(FIELDS) and all(v.ok for v in verdicts.values())
    assert all(v.error > 0.05 * v.allowed for name, v in verdicts.items() if name not in ("lse", "dsink"))


@pytest.mark.parametrize("fault", ["acc not rescaled", "D forgotten", "scale forgotten in dK", "grouped heads tiled"])
@pytest.mark.parametrize("dtype", standard_16bit.STORAGE, ids=str)
def test_two_errors_rejects_wrong_code(dtype, fault):
    p = large_problem(dtype)
    if fault == "grouped heads tiled":
        p = p.replace(q=p.q.repeat(2, axis=1), k=p.k * np.array([1, 2], dtype)[None, :, None, None],
                      v=p.v.repeat(2, axis=1), dout=p.dout.repeat(2, axis=1))  # fmt: skip
    verdicts = standard_16bit.two_errors(solve(p, fault=fault), standard_16bit.float64_truth(p), p)
    assert not all(v.ok for v in verdicts.values())


@pytest.mark.parametrize("fault", ["P in fewer bits", "last key dropped"])
def test_what_two_errors_may_miss_the_bounds_do_not(fault):
    """The largest error of a whole array hides a fault in small numbers; element by element it shows."""
    for dtype in standard_16bit.STORAGE:
        p = large_problem(dtype)
        truth, wrong = standard_16bit.float64_truth(p), solve(p, fault=fault)
        verdicts = standard_16bit.two_errors(wrong, truth, p)
        assert all(v.ok for v in verdicts.values()) == (dtype == ml_dtypes.bfloat16)
        worst = tolerance.worst(wrong, truth, tolerance.bounds(p))
        assert max(w.fraction for w in worst.values()) > 1
        assert max(w.fraction for w in tolerance.worst(solve(p), truth, tolerance.bounds(p)).values()) <= 1


def test_the_rule_is_twice_the_error_plus_twice_the_noise():
    p = large_problem(np.float16)
    truth, plain = standard_16bit.float64_truth(p), standard_16bit.standard_16bit(p)
    x = truth.out.astype(np.float16)
    noise = abs((x + np.float16(0.3)) - np.float16(0.3) - x).max()
    limit = 2 * abs(plain.out - truth.out).max() + 2 * float(noise)
    verdict = standard_16bit.two_errors(plain, truth, p)["out"]
    assert verdict.allowed == limit and verdict.ok
    assert (standard_16bit.allowed(p).out == limit).all()
    off = Result(truth.out + limit * np.array([1.001] + [0] * 31))
    assert not standard_16bit.two_errors(off, truth, p)["out"].ok
    assert standard_16bit.two_errors(Result(truth.out + 0.999 * limit), truth, p)["out"].ok
    nan = Result(truth.out.copy())
    nan.out[0, 1, 2, 3] = NAN
    assert not standard_16bit.two_errors(nan, truth, p)["out"].ok


def test_every_matrix_goes_through_memory():
    p = plain_problem(np.float16, Nq=4, Nk=5, d=3).replace(softcap=2.0)
    stored, scored = [], []

    def note(shapes):
        return lambda x: shapes.append(x.shape[2:]) or x

    standard_16bit.attention(p, np.float32, note(stored), note(scored))
    assert scored == [(4, 5)] * 4  # S, capped, with its terms; dP
    assert stored == [(4, 5), (4, 3), (4, 5), (4, 5), (4, 3), (5, 3), (5, 3)]  # P, out, dS, through the cap, dq, dk, dv


def test_vectorised_truth_reads_no_unseen_key():
    p = large_problem(np.float16, mask=np.arange(222) % 3 > 0)
    clean = standard_16bit.float64_truth(p)
    p.k[:, :, 3], p.v[:, :, 3] = NAN, INF
    dirty = standard_16bit.float64_truth(p)
    assert all(x is None or (x == getattr(dirty, name)).all() for name, x in vars(clean).items())


def test_standard_16bit_keeps_16_bits():
    p = large_problem(ml_dtypes.bfloat16)
    stored, fused = (standard_16bit.standard_16bit(p, round_scores) for round_scores in (True, False))
    assert stored.out.dtype == stored.dk.dtype == ml_dtypes.bfloat16 and stored.lse.dtype == np.float32
    truth = standard_16bit.float64_truth(p)
    assert abs(fused.lse - truth.lse).max() < 1e-5 < 1e-3 < abs(stored.lse - truth.lse).max()
    for name in ("out", "dq", "dk", "dv"):
        x, y = getattr(stored, name).astype(float), getattr(truth, name)
        assert 0 < abs(x - y).max() < 0.02 * abs(y).max(), name


def test_standard_16bit_refuses_other_dtypes():
    with pytest.raises(ValueError, match="float32"):
        standard_16bit.standard_16bit(plain_problem(np.float32))
    p = plain_problem(np.float16)
    with pytest.raises(ValueError, match=r"out must have shape \(1, 1, 4, 3\), got \(4, 3\)"):
        standard_16bit.two_errors(Result(np.zeros((4, 3))), oracle.solve(p), p)
