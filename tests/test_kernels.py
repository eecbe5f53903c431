"""The kernels compute the oracle's function, with any number of threads: tiny problems, through the kit and by hand.

They run in the simulator, and on the GPU where FA_REF_CUDA=gpu (there `make gpu` asks more, and larger problems).
"""

import math

import numpy as np
import pytest
from ml_dtypes import bfloat16

import cuda_kernels
import fa_ref
from cases import CASES, Case
from cuda_kernels import registered
from fa_ref.testing import Problem, oracle, tolerance
from fa_ref.testing.problem import Result
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.registry import IMPLEMENTATIONS, coverage_table
from fa_ref.testing.running import try_property
from test_cases import DTYPES, agrees, arrays, tolerance_of

pytestmark = pytest.mark.slow

THREADS = (1, 3, 8, 33)
SMALL = {"max_length": 9, "max_heads": 4, "head_dims": (1, 2, 3, 4), "tiles": (1, 2, 3, 4, 16)}
WITH_BACKWARD = [kernel for kernel in cuda_kernels.PLAIN if kernel in cuda_kernels.WITH_BACKWARD]
kernels = pytest.mark.parametrize("kernel", WITH_BACKWARD)


def with_threads_of(kernel):
    """ask(problem) of a kernel, with a number of threads that depends on the problem, and what it supports."""
    asks = [registered.implementation(kernel, threads=threads)[0] for threads in THREADS]

    def ask(problem):
        return asks[(problem.q.shape[2] + problem.k.shape[2] + problem.q.shape[3]) % len(THREADS)](problem)

    return ask, registered.implementation(kernel)[1].but(**SMALL)


@kernels
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name, kernel):
    row = try_property(name, *with_threads_of(kernel), examples=8)
    if row.status == "unsupported":
        pytest.skip(row.detail)
    assert row.status == "ok", f"{PROPERTIES[name].sentence}\n{row.detail}"


@kernels
def test_with_the_default_threads(kernel):
    """As `registered` enters it, atomics and all."""
    entry = IMPLEMENTATIONS[f"cuda {kernel}"]
    row = try_property("gradients_equal_the_oracles", entry.fn, entry.supports.but(**SMALL), examples=12, seed=1)
    assert row.status == "ok", row.detail


def test_the_registry_says_what_kernels_offer():
    table = coverage_table()
    for kernel in WITH_BACKWARD:
        assert f"[`cuda {kernel}`](cuda_kernels/{kernel}.py)" in table
        supports = IMPLEMENTATIONS[f"cuda {kernel}"].supports
        assert supports.bool_mask and supports.softcap and supports.sink and supports.dlse and supports.strided
        assert not (supports.float_mask or supports.bias or supports.alibi)


# --- one problem, many ways -----------------------------------------------------------------------------------

def problem(dtype=np.float32, Nq=5, Nk=7, seed=0, **options):
    """Grouped heads, causal, window, mask, softcap and sink at once, with a row that sees no key."""
    rng = np.random.default_rng(seed)
    wide = np.float64 if dtype == np.float64 else np.float32
    mask = rng.random((Nq, Nk)) < .7
    mask[1:2] = False
    shapes = {"q": (2, 4, Nq, 3), "k": (2, 2, Nk, 3), "v": (2, 2, Nk, 2), "dout": (2, 4, Nq, 2)}
    stored = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return Problem(**stored | {"dlse": rng.standard_normal((2, 4, Nq)).astype(wide), "causal": True, "window": (4, -1),
                               "mask": mask, "softcap": 3.0, "sink": rng.standard_normal(4).astype(wide),
                               "block_q": 2, "block_k": 3} | options)


def solve(p, **how):
    """The answer of a kernel to a problem as a Result."""
    walk = {"block_q": p.block_q, "block_k": p.block_k, "reverse": p.reverse}
    how_forward = {name: x for name, x in how.items() if name != "deterministic"}
    out, lse = cuda_kernels.forward(p.q, p.k, p.v, **p.options, **walk, **how_forward)
    if p.dout is None:
        return Result(out, lse)
    grads = cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, **p.options, **walk, **how)
    return Result(out, lse, *grads)


def judge(p, result):
    """Every field within the bound of every element."""
    for name, worst in tolerance.worst(result, oracle.solve(p), tolerance.bounds(p)).items():
        assert worst.fraction <= 1, (name, worst)


@kernels
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_number_of_threads_changes_nothing(kernel, dtype):
    """Not one bit, but for dsink: its parts are summed per thread."""
    p = problem(dtype)
    first = solve(p, kernel=kernel, threads=1, deterministic=True)
    judge(p, first)
    for threads in (2, *THREADS[1:], 64):
        other = solve(p, kernel=kernel, threads=threads, deterministic=True)
        judge(p, other)
        for name in ("out", "lse", "dq", "dk", "dv"):
            assert getattr(first, name).tobytes() == getattr(other, name).tobytes(), (name, threads)


@kernels
def test_as_many_threads_as_a_block_can_have(kernel):
    p = problem(Nq=3, Nk=4).replace(q=problem().q[:1, :2, :3], k=problem().k[:1, :1, :4], v=problem().v[:1, :1, :4],
                                    dout=problem().dout[:1, :2, :3], dlse=problem().dlse[:1, :2, :3],
                                    sink=problem().sink[:2], block_q=4, block_k=4)
    judge(p, solve(p, kernel=kernel, threads=1024))


@kernels
@pytest.mark.parametrize("tiles", [(1, 1), (1, 7), (5, 1), (2, 2), (4, 3), (16, 16), (None, 2), (3, None), (None,) * 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_any_tiles(kernel, tiles, reverse):
    p = problem(block_q=tiles[0], block_k=tiles[1], reverse=reverse)
    judge(p, solve(p, kernel=kernel, threads=3))


def test_both_ways_to_dq():
    """The second kernel of `deterministic` gives the dq of the first, up to rounding, and nothing else changes."""
    p = problem(np.float64, sink=None)
    with_atomics, without = (solve(p, threads=8, deterministic=flag) for flag in (False, True))
    assert np.allclose(with_atomics.dq, without.dq, rtol=0, atol=1e-14) and np.abs(without.dq).max() > .1
    for name in ("out", "lse", "dk", "dv"):
        assert getattr(with_atomics, name).tobytes() == getattr(without, name).tobytes()


@kernels
@pytest.mark.parametrize("option", [{}, {"causal": True}, {"window": (1, 0)}, {"softcap": 1.5}, {"scale": -.7},
                                    {"scale": 0.0}, {"mask": np.eye(5, 7, dtype=bool)}, {"sink": np.zeros(4, "f4")}],
                         ids=str)
def test_one_option_at_a_time(kernel, option):
    off = {"causal": False, "window": (-1, -1), "mask": None, "softcap": None, "sink": None, "dlse": None}
    p = problem(**off | option)
    judge(p, solve(p, kernel=kernel, threads=8))


@kernels
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_same_numbers_as_numpy(kernel, dtype):
    """Not only the same function: where nothing is rounded, out has the bits of fa_ref (V of small whole numbers)."""
    rng = np.random.default_rng(3)
    q, k = np.zeros((1, 2, 4, 2), dtype), np.ones((1, 1, 8, 2), dtype)
    v = rng.integers(-8, 8, (1, 1, 8, 3)).astype(dtype)
    ours = cuda_kernels.forward(q, k, v, kernel=kernel, threads=3, block_q=2, block_k=4)
    theirs = fa_ref.forward(q, k, v, algorithm=kernel, block_q=2, block_k=4)
    assert ours.out.tobytes() == theirs.out.tobytes() and ours.out.dtype == dtype
    assert np.allclose(ours.lse, math.log(8), rtol=1e-6)


@pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="counts barriers in the simulator; kernels run on a GPU here")
def test_as_many_barriers_as_the_docstrings_say():
    """Per block, with Tr = 3 tiles of queries, Tc = 3 of keys and 2 query heads a group; and no race."""
    from cuda_kernels import simulator

    p, Tr, Tc, group = problem(causal=False, window=(-1, -1), mask=None, sink=None), 3, 3, 2
    expected = {
        ("standard", False): {2: Tr * 8}, ("standard", True): {0: Tr * 8 + 2 * Tc * 4, 2: Tr * 8},
        ("fa1", False): {Tc * (1 + 3 * Tr): 8, 0: 8},               # 0: the kernel that merges, one block for 32 rows
        ("fa1", True): {5 * Tc * Tr * group: 4},
        ("fa2", False): {4 * Tc + 1: Tr * 8},
        ("fa2", True): {0: Tr * 8, 4 * Tr * group: Tc * 4, 3 * Tc: Tr * 8},
    }
    for kernel in WITH_BACKWARD:
        how = {"kernel": kernel, "threads": 8, "softcap": p.softcap, "block_q": 2, "block_k": 3}
        with simulator.audit() as forward:
            answer = cuda_kernels.forward(p.q, p.k, p.v, **how)
        with simulator.audit() as backward:
            cuda_kernels.backward(p.dout, p.q, p.k, p.v, *answer, deterministic=True, **how)
        for audit in (forward, backward):
            assert audit.ok, audit.table()
            barriers = [counts.barriers for *_, counts in audit.blocks]
            found = {n: barriers.count(n) for n in set(barriers)}
            assert found == expected[kernel, audit is backward], kernel


# --- what must have no influence, and nothing to see ----------------------------------------------------------

@kernels
def test_what_one_row_may_not_see_may_hold_anything(kernel):
    """Stricter than the kit: kernels select, so NaN in a key that only later rows see leaves the earlier ones alone."""
    p = problem(mask=None, window=(-1, -1), softcap=None, dout=None, dlse=None)
    clean = solve(p, kernel=kernel, threads=8)
    k, v = p.k.copy(), p.v.copy()
    k[:, :, 6], v[:, :, 6] = np.nan, np.inf                 # only the last row sees the last key
    dirty = solve(p.replace(k=k, v=v), kernel=kernel, threads=8)
    assert np.array_equal(clean.out[:, :, :4], dirty.out[:, :, :4])
    assert np.array_equal(clean.lse[:, :, :4], dirty.lse[:, :, :4])
    assert np.isnan(dirty.out[:, :, 4]).all()


@kernels
def test_rows_that_see_no_key_may_hold_anything(kernel):
    p = problem()
    clean = solve(p, kernel=kernel, threads=8)
    q, dout = p.q.copy(), p.dout.copy()
    q[:, :, 1], dout[:, :, 1] = np.nan, np.inf
    dirty = solve(p.replace(q=q, dout=dout), kernel=kernel, threads=8)
    for name in ("out", "lse", "dq", "dk", "dv", "dsink"):
        assert np.array_equal(getattr(clean, name), getattr(dirty, name)), name


@kernels
def test_a_sink_without_weight_has_no_gradient(kernel):
    """−∞ is no sink: a row that sees no key either may have any dO and dL."""
    p = problem()
    sink, dout, dlse = p.sink.copy(), p.dout.copy(), p.dlse.copy()
    sink[1] = -np.inf
    clean = solve(p.replace(sink=sink), kernel=kernel, threads=8)
    dout[:, 1, 1], dlse[:, 1, 1] = np.inf, np.nan
    dirty = solve(p.replace(sink=sink, dout=dout, dlse=dlse), kernel=kernel, threads=8)
    assert clean.dsink[1] == 0 and np.array_equal(clean.dsink, dirty.dsink)


@kernels
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("sizes", [(0, 7), (5, 0), (0, 0)])
def test_axes_of_length_zero(kernel, dtype, sizes):
    p = problem(dtype, *sizes, mask=None)
    result = solve(p, kernel=kernel, threads=3)
    judge(p, result)
    assert result.out.dtype == result.dk.dtype == dtype and not result.dk.any() and not result.dv.any()
    if sizes == (5, 0):
        assert not result.out.any() and np.array_equal(result.lse, np.broadcast_to(p.sink[:, None], (2, 4, 5)))
        assert np.allclose(result.dsink, p.dlse.sum(axis=(0, 2)), rtol=1e-5)
        assert np.isneginf(solve(p.replace(sink=None), kernel=kernel).lse).all()


@kernels
def test_an_empty_batch(kernel):
    p = problem()
    p = p.replace(**{name: getattr(p, name)[:0] for name in ("q", "k", "v", "dout", "dlse")})
    result = solve(p, kernel=kernel)
    assert result.out.shape == (0, 4, 5, 2) and result.dk.shape == (0, 2, 7, 3) and not result.dsink.any()


# --- the cases ------------------------------------------------------------------------------------------------

NOT_FOR_KERNELS = {"bias", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k"}


def for_kernels(case):
    """Can a kernel be asked this? No bias, ALiBi, float mask; no packed sequences."""
    mask = case.inputs.get("mask")
    return not any(case.inputs.get(name) is not None for name in NOT_FOR_KERNELS) and (
        mask is None or mask.dtype == bool)


TAKEN = [case for case in CASES if isinstance(case, Case) and for_kernels(case)]


def test_most_cases_are_taken():
    assert len(TAKEN) > 50 and {case.kind for case in TAKEN} >= {"K01", "K02", "K03", "K06", "K11", "K13", "K16", "K24"}


@kernels
@pytest.mark.parametrize("case", TAKEN, ids=lambda case: f"{case.kind} {case.name}")
def test_case(case, kernel):
    """The worked examples, in every dtype that can hold them, with tiles of 2."""
    for dtype in case.dtypes:
        ready = arrays(case.inputs, DTYPES[dtype])
        options = {name: x for name, x in ready.items() if name not in ("q", "k", "v", "dout", "dlse")}
        how = {"kernel": kernel, "threads": 3, "block_q": 2, "block_k": 2}
        q, k, v = ready["q"], ready["k"], ready["v"]
        answer = cuda_kernels.forward(q, k, v, **options, **how)
        results = answer._asdict()
        if "dout" in ready:
            results |= cuda_kernels.backward(
                ready["dout"], q, k, v, *answer, dlse=ready.get("dlse"), **options, **how)._asdict()
        for field, expected in case.expected.items():
            within = tolerance_of(case, dtype, field)
            assert agrees(results[field], expected, within), f"{field} {dtype}: {results[field]}, not {expected}"


def test_the_cases_of_kernels():
    """K28-b: d = 4, 8 and 4 again in one process. K30-b: a window before the first key."""
    for d in (4, 8, 4):
        rng = np.random.default_rng(d)
        p = Problem(*(rng.standard_normal((1, 1, 5, d)).astype("f4") for _ in range(3)), block_q=2, block_k=2)
        judge(p, solve(p, threads=3))
    p = Problem(*(np.ones((1, 1, 3, 1), bfloat16) for _ in range(3)), window=(1, 0), block_q=2, block_k=2)
    judge(p, solve(p, threads=3))


@pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator's models; kernels run on a GPU here")
def test_the_models_of_bfloat16():
    """Every word widens to its value; narrowing rounds to nearest, ties to even, as the bits say."""
    from cuda_kernels import ptx

    words = np.arange(2**16, dtype=np.uint32)
    wide = (words << 16).astype(np.uint32).view(np.float32)
    for word in range(0, 2**16, 37):
        x = ptx.bfloat16_to_float32(np.uint16(word))
        assert type(x) is np.float32 and x.tobytes() == wide[word].tobytes()
    rng = np.random.default_rng(0)
    for bits in [*rng.integers(0, 0x7F000000, 500), 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0, 0x7F800000]:
        x = np.uint32(bits).view(np.float32)
        word = ptx.float32_to_bfloat16(x)
        assert type(word) is np.uint16 and word == (int(bits) + 0x7FFF + (int(bits) >> 16 & 1)) >> 16, hex(bits)
    assert np.isnan(ptx.bfloat16_to_float32(ptx.float32_to_bfloat16(np.float32(np.nan))))
