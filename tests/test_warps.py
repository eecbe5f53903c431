"""The warp kernels compute the oracle's function with any number of warps, and cost on chip what the formulas say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_kernels
from cuda_kernels import counts, registered
from fa_ref.testing.problem import Result
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.running import try_property
from test_cases import DTYPES
from test_kernels import judge, problem, solve

pytestmark = pytest.mark.slow

BY_WARPS = ("fa1_warps", "fa2_warps")
SMALL = {"max_length": 6, "max_heads": 2, "head_dims": (1, 3), "tiles": (2, 3, 16), "long_lengths": ()}
kernels = pytest.mark.parametrize("kernel", BY_WARPS)
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="counts in the simulator; kernels run on a GPU here")


def forward_only(dtype=np.float32, **options):
    """The problem of test_kernels, forward only."""
    return problem(dtype, **options).replace(dout=None, dlse=None)


@kernels
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name, kernel):
    asks = [registered.implementation(kernel, threads=threads)[0] for threads in (32, 64)]
    supports = registered.implementation(kernel)[1].but(**SMALL)

    def ask(p):
        return asks[(p.q.shape[2] + p.k.shape[2]) % 2](p)

    row = try_property(name, ask, supports, examples=12 if name == "equals_the_oracle" else 3)
    if row.status == "unsupported":
        pytest.skip(row.detail)
    assert row.status == "ok", f"{PROPERTIES[name].sentence}\n{row.detail}"


@kernels
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_and_option_at_once(kernel, dtype):
    p = forward_only(dtype)
    judge(p, solve(p, kernel=kernel, threads=64))


@kernels
@pytest.mark.parametrize("option", [{}, {"causal": True}, {"window": (1, 0)}, {"softcap": 1.5}, {"scale": 0.0},
                                    {"mask": np.eye(5, 7, dtype=bool)}, {"sink": np.zeros(4, "f4")}], ids=str)
def test_one_option_at_a_time(kernel, option):
    off = {"causal": False, "window": (-1, -1), "mask": None, "softcap": None, "sink": None}
    p = forward_only(**off | option)
    judge(p, solve(p, kernel=kernel, threads=32))


@kernels
def test_the_number_of_warps(kernel):
    """1 to 8, more than there are rows or keys for; the same bits where warps tell each other nothing."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, N, 3)).astype("f4") for N in (6, 11, 11))
    p = forward_only().replace(q=q, k=k, v=v, mask=None, sink=None, block_q=5, block_k=7)
    results = {warps: solve(p, kernel=kernel, threads=32 * warps) for warps in range(1, 9)}
    for result in results.values():
        judge(p, result)
    bits = {result.out.tobytes() + result.lse.tobytes() for result in results.values()}
    assert (len(bits) == 1) == (kernel == "fa2_warps")


@kernels
@pytest.mark.parametrize("sizes", [(3, 70, 2, 3, 40, 33), (33, 4, 34, 2, 3, 3), (4, 33, 2, 33, 3, 70)], ids=str)
def test_more_than_a_lane_each(kernel, sizes):
    """Nq, Nk, Br, Bc, d, dv: tiles longer than a warp, dv no multiple of it."""
    Nq, Nk, Br, Bc, d, dv = sizes
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((1, 1, N, width)).astype("f4") for N, width in ((Nq, d), (Nk, d), (Nk, dv)))
    p = forward_only().replace(q=q, k=k, v=v, mask=None, sink=None, window=(-1, -1), block_q=Br, block_k=Bc)
    judge(p, solve(p, kernel=kernel, threads=64))


@kernels
def test_keys_that_no_lane_may_look_at(kernel):
    """NaN in a key that only the last row sees leaves the others alone."""
    p = forward_only(mask=None, window=(-1, -1), softcap=None)
    clean = solve(p, kernel=kernel, threads=32)
    k, v = p.k.copy(), p.v.copy()
    k[:, :, 6], v[:, :, 6] = np.nan, np.inf
    dirty = solve(p.replace(k=k, v=v), kernel=kernel, threads=32)
    assert np.array_equal(clean.out[:, :, :4], dirty.out[:, :, :4]) and np.isnan(dirty.out[:, :, 4]).all()


@simulated
@kernels
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_the_counts_are_the_formulas(kernel, data):
    """Barriers, shuffles, reads and writes of a head, for drawn sizes, exactly; and no race."""
    from cuda_kernels import simulator

    Nq, Nk, Br, Bc, warps = (data.draw(st.integers(1, most), name)
                             for name, most in (("Nq", 6), ("Nk", 8), ("Br", 4), ("Bc", 5), ("warps", 3)))
    d, dv = data.draw(st.sampled_from([(1, 1), (2, 3), (3, 2), (1, 33)]), "d, dv")
    causal = data.draw(st.booleans(), "causal")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, N, width)).astype("f4") for N, width in ((Nq, d), (Nk, d), (Nk, dv)))
    with simulator.audit() as a:
        cuda_kernels.forward(q, k, v, kernel=kernel, threads=32 * warps, causal=causal, block_q=Br, block_k=Bc)
    expected = counts.head(kernel, Nq, Nk, d, dv, Br, Bc, warps, causal)
    assert counts.of_audit(a) == expected[:4], expected
    assert a.ok, a


@simulated
def test_the_table_is_measured():
    """What `counts.rows` shows is what the audit counts; split-Q hands nothing over, split-K more with every warp."""
    rows = counts.rows(Br=4, Bc=8, d=2, dv=3, warps=(1, 2, 4))
    for kernel, warps, found in rows:
        assert found == counts.head(kernel, 4, 8, 2, 3, 4, 8, warps)
    split_k, split_q = ([found for kernel, _, found in rows if kernel == name] for name in BY_WARPS)
    assert {found[4:] for found in split_q} == {(0, 0)} and len(set(split_q)) == 1
    written = [found.told for found in split_k]
    assert written == [written[0], 2 * written[0], 4 * written[0]]


def test_what_is_refused():
    x = np.zeros((1, 1, 4, 2), "f4")
    for kernel in BY_WARPS:
        for threads in (1, 31, 48, 288, 1024):
            with pytest.raises(ValueError, match=rf"multiple of 32 from 32 to 256 \(1 to 8 .*warps\), got {threads}"):
                cuda_kernels.forward(x, x, x, kernel=kernel, threads=threads)
        said = f"{kernel} has no backward pass; standard, fa1, fa2, fa2_mma have one"
        with pytest.raises(NotImplementedError, match=said):
            cuda_kernels.backward(x, x, x, x, x, x[..., 0], kernel=kernel)
    with pytest.raises(ValueError, match=r"forward kernel fa1_warps .* tiles of 32 × 32 needs 66944 bytes .* 49152"):
        y = np.zeros((1, 1, 4, 64), "f4")
        cuda_kernels.forward(y, y, y, kernel="fa1_warps", threads=160, block_q=32, block_k=32)


def test_their_lse_feeds_any_backward_pass():
    p = problem()
    how = {**p.options, "block_q": 2, "block_k": 3}
    out, lse = cuda_kernels.forward(p.q, p.k, p.v, kernel="fa2_warps", **how)
    grads = cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, kernel="fa2", threads=8, **how)
    judge(p, Result(out, lse, *grads))
