"""The backward pass on tensor cores: the oracle's gradients, at lengths and head dims that suit its tiles or do not.

They run in the simulator, and on the GPU where FA_REF_CUDA=gpu.
"""

import time
from functools import cache

import numpy as np
import pytest
from ml_dtypes import bfloat16

import cuda_kernels
from cuda_kernels import fa2_mma, fa2_mma_backward, fa2_mma_dq, fa2_mma_rows, launch, products, tensor_cores
from fa_ref.inputs import Sizes
from fa_ref.options import check_options
from fa_ref.testing import Result, oracle
from fa_ref.testing.standard_16bit import two_errors
from tensor_core_problems import dtypes, faulty, problem, shifted, simulated, slow, with_unread_keys
from test_fa2_mma import OPTIONS
from test_kernels import judge
from test_steps import CUDA, NUMPY, SHAPE, STEP

GRADIENTS = ("dq", "dk", "dv")
ways = pytest.mark.parametrize("deterministic", [False, True], ids=["atomics", "deterministic"])


def with_gradients(p, dlse=False):
    """The problem with a dout, and a dlse if asked."""
    rng = np.random.default_rng(p.q.shape)
    dout = rng.standard_normal(p.q.shape[:3] + p.v.shape[3:]).astype(p.q.dtype)
    return p.replace(dout=dout, dlse=rng.standard_normal(p.q.shape[:3], np.float32) if dlse else None)


def options_of(p):
    """How the problem is put to the kernels."""
    return {name: x for name, x in p.options.items() if name not in ("bias", "alibi_slopes")} | {"kernel": "fa2_mma"}


def forward(p):
    """out and lse, with tiles of the kernel's own choice."""
    return cuda_kernels.forward(p.q, p.k, p.v, **options_of(p))


@cache
def posed(dlse=False, **how):
    """A problem with a dout, and a dlse if asked, and its out and lse: computed once for all tests that ask."""
    p = with_gradients(problem(**how), dlse)
    return p, forward(p)


def solved(p, before=None, warps=1, Br=32, Bc=32, deterministic=False):
    """The answer of the kernels, backward with these tiles. before: out and lse, if they are known."""
    out, lse = before or forward(p)
    gradients = cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, deterministic=deterministic,
                                      threads=32 * warps, block_q=Br, block_k=Bc, **options_of(p))
    return Result(out, lse, *gradients)


def holds(p, before=None, **how):
    """Within the bound of every element, and the rule of two errors as well.

    A few roundings of float32 are always allowed: where a query sees one key, dS is 0, and so may be both errors.
    """
    result = solved(p, before, **how)
    judge(p, result)
    verdicts = two_errors(result, oracle.solve(p), p, round_scores=False)
    for name in GRADIENTS:
        assert verdicts[name].error <= max(verdicts[name].allowed, 1e-6), (name, verdicts[name])
    return result


@dtypes
@ways
@pytest.mark.parametrize("warps, Br, Bc, d", [(1, 32, 32, 64), (2, 32, 32, 64), (2, 64, 64, 32), (4, 64, 64, 64),
                                              (2, 32, 64, 16)])
def test_warps_and_tiles(dtype, deterministic, warps, Br, Bc, d):
    """N = 32, d = 64, in well under 6 seconds; warps above and beside one another."""
    start = time.perf_counter()
    holds(*posed(dtype=dtype, d=d), warps=warps, Br=Br, Bc=Bc, deterministic=deterministic)
    assert time.perf_counter() - start < 6 or not cuda_kernels.SIMULATED


@ways
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options, deterministic):
    holds(*posed(**{"d": 16} | options), deterministic=deterministic)


@ways
def test_a_batch_of_grouped_heads(deterministic):
    holds(*posed(d=16, B=2, heads=(4, 2), Nq=40, causal=True), deterministic=deterministic)


@ways
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (64, 0)}], ids=str)
def test_heads_of_a_group_meet_a_later_tile_of_keys(options, deterministic):
    """The second tile of keys is seen from the second tile of queries on, by both heads."""
    holds(*posed(d=16, Nq=64, Nk=64, heads=(2, 1), **options), deterministic=deterministic)


@ways
@pytest.mark.parametrize(("Nq", "Nk", "window"), [
    (64, 64, (1, -1)), (33, 64, (0, 0)),                            # who sees a tile of keys: last a tile's first query
    (64, 64, (-1, 1)), (65, 65, (1, 1)),                            # first a tile's last
    (32, 62, (-1, 0)), (40, 96, (30, 3))])                          # the first query misses one key of the tile
def test_windows_that_end_at_the_border_of_a_tile(Nq, Nk, window, deterministic):
    holds(*posed(d=16, Nq=Nq, Nk=Nk, window=window), deterministic=deterministic)


@ways
def test_the_gradient_that_reaches_lse(deterministic):
    holds(*posed(d=16, Nq=20, Nk=40, causal=True, dlse=True), deterministic=deterministic)


@dtypes
@pytest.mark.parametrize("sizes", [(0, 7), (5, 0), (0, 0)])
def test_axes_of_length_zero(dtype, sizes):
    result = solved(with_gradients(problem(dtype, *sizes)))
    assert all(not getattr(result, name).any() for name in GRADIENTS)
    assert result.dq.shape[2] == sizes[0] and result.dk.shape[2] == sizes[1]


@slow
@ways
@pytest.mark.parametrize("d", [1, 7, 8, 24, 40, 80, 128, 192])
def test_head_dims(d, deterministic):
    """One warp in float16; two in bfloat16, and more than a tile of keys where that is cheap."""
    holds(*posed(d=d, Nq=17, Nk=21, causal=True), deterministic=deterministic)
    holds(*posed(d=d, Nq=3, Nk=40 if d < 80 else 20, dtype=bfloat16), warps=2, deterministic=deterministic)


@dtypes
@ways
def test_keys_that_nobody_sees_may_be_anything(dtype, deterministic):
    """Zeros stand for them on chip: P and dS are 0 there, and 0 · NaN would be NaN."""
    answers = [solved(with_gradients(p), deterministic=deterministic) for p in with_unread_keys(dtype=dtype)]
    assert all(np.array_equal(getattr(answers[0], name), getattr(answers[1], name)) for name in ("out", *GRADIENTS))


@dtypes
@ways
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (1, 1)}], ids=["causal", "window"])
def test_queries_that_see_nothing_may_be_anything(dtype, deterministic, options):
    """The first 14 of 44 before 30 keys. Their lse is −∞, so that what reaches it may well be NaN: on chip zeros stand
    for q and dout, and P and dS are 0."""
    p = with_gradients(problem(dtype, Nq=44, Nk=30, d=16, **options), dlse=True)
    out, lse = forward(p)
    blind = np.isneginf(lse)
    assert blind.sum() == (14 if "causal" in options else 13)
    fields = {name: getattr(p, name).copy() for name in ("q", "dout", "dlse")}
    answers = []
    for filling in (0, np.nan, np.inf):
        for x in fields.values():
            x[blind] = filling
        answers.append(solved(p.replace(**fields), (out, lse), deterministic=deterministic))
    for answer in answers[1:]:
        assert all(np.array_equal(getattr(answers[0], name), getattr(answer, name)) for name in GRADIENTS)


@pytest.mark.parametrize("name", ["q", "k", "v", "dout", "out"])
def test_one_array_alone_may_begin_anywhere(name):
    p = with_gradients(problem(d=16, Nq=18, Nk=18, causal=True))
    out, lse = forward(p)
    clean = solved(p, (out, lse))
    if name == "out":
        other = solved(p, (shifted(out), lse))
    else:
        moved = p.replace(**{name: shifted(getattr(p, name))})
        assert forward(moved).out.tobytes() == out.tobytes()
        other = solved(moved, (out, lse))
    assert all(getattr(clean, name).tobytes() == getattr(other, name).tobytes() for name in GRADIENTS)


def test_channels_may_be_cut_out_of_wider_rows():
    """Whole chunks would bring the neighbours' channels along."""
    p = with_gradients(problem(d=8, Nq=18, Nk=18, causal=True))
    cut = {name: getattr(p, name)[..., :7] for name in ("q", "k", "v", "dout")}
    views, copies = p.replace(**cut), p.replace(**{name: x.copy() for name, x in cut.items()})
    assert forward(views).out.tobytes() == forward(copies).out.tobytes()
    found, wanted = solved(views), solved(copies)
    assert all(getattr(found, name).tobytes() == getattr(wanted, name).tobytes() for name in GRADIENTS)


@slow
@ways
def test_any_strides(deterministic):
    """Rows that cannot be copied 16 bytes at a time; the same bits."""
    p = with_gradients(problem(d=16, Nq=18, Nk=18, heads=(2, 2), causal=True))
    clean = solved(p, deterministic=deterministic)
    names = ("q", "k", "v", "dout")
    spread = {name: getattr(p, name).repeat(2, -1)[..., ::2] for name in names}
    turned = {name: np.ascontiguousarray(getattr(p, name).swapaxes(1, 2)).swapaxes(1, 2) for name in names}
    for arrays in (spread, turned):
        other = solved(p.replace(**arrays), deterministic=deterministic)
        assert all(getattr(clean, name).tobytes() == getattr(other, name).tobytes() for name in GRADIENTS[1:])


@slow
@dtypes
@ways
def test_what_lies_past_the_end_overflows_nowhere(dtype, deterministic):
    """Large scores of the keys that are there, tiles that are not full: P of a key past the end would be inf."""
    p = with_gradients(problem(dtype, d=16, Nq=17, Nk=35))
    p = p.replace(q=p.q * 4, k=-np.abs(p.k) * 4)
    result = holds(p.replace(q=np.abs(p.q)), deterministic=deterministic)
    assert all(np.isfinite(getattr(result, name).astype(np.float32)).all() for name in GRADIENTS)


@slow
@pytest.mark.parametrize("how", [{"threads": 96, "block_q": 32, "block_k": 96}, {"block_q": 32, "block_k": 96},
                                 {"threads": 128}, {"threads": 256}], ids=str)
def test_other_numbers_of_warps(how):
    """Three or six where the tiles suit them; and tiles are found for any number of warps that can share some."""
    p, (out, lse) = posed(Nq=40, Nk=100, d=16, causal=True)
    found = cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, **how, **options_of(p.replace(block_q=None)))
    judge(p, Result(out, lse, *found))


# --- refused --------------------------------------------------------------------------------------------------

def test_tiles_that_cannot_be_shared_are_refused():
    p = with_gradients(problem(d=16))
    for how, said in [({"warps": 3}, "tiles of 32 × 32 among 96"), ({"warps": 4}, "tiles of 32 × 32 among 128"),
                      ({"Br": 16}, "tiles of 16 × 32 among 32"), ({"Bc": 48, "warps": 2}, "tiles of 32 × 48 among 64")]:
        with pytest.raises(ValueError, match=f"fa2_mma backward cannot share {said}"):
            solved(p, **how)
    x = np.zeros((1, 1, 4, 8), np.float16)
    with pytest.raises(ValueError, match=r"fa2_mma takes a scale below 2.36e\+38, .* got -3e\+38"):
        cuda_kernels.forward(x, x, x, kernel="fa2_mma", scale=-3e38)
    lse = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(NotImplementedError, match="softcap is not offered by the kernel fa2_mma"):
        cuda_kernels.backward(x, x, x, x, x, lse, kernel="fa2_mma", softcap=1.0)
    with pytest.raises(ValueError, match="13 × 32 numbers: each takes 32 rows"):
        products.part_of(13, 32, 1)


@simulated
@pytest.mark.parametrize("card", ["A100", "RTX 4090", "H200"])
@pytest.mark.parametrize("d", [16, 64, 96, 128, 192, 256])
def test_default_tiles_fit_the_card(card, d, monkeypatch):
    """On a GPU 8 warps if they can share the tiles, and what shared memory has room for. d = 256 has none on an RTX
    4090: there a call is refused, with the bytes, by `launch.check_tiles`."""
    monkeypatch.setattr(tensor_cores, "TILES_BACKWARD", tensor_cores.ON_A_GPU)
    card = launch.CARDS[card]
    sizes = Sizes(1, 1, 1, 512, 512, d, d)
    options = check_options(sizes, np.dtype(np.float16))
    threads, Br, Bc = fa2_mma.plan_backward(card, sizes, "float16", options, None, None, None)
    fits = fa2_mma_backward.shared_bytes(Br, Bc, d, threads // 32) <= card.dynamic_bytes
    assert fits == ((card.card, d) != ("RTX 4090", 256))
    assert tensor_cores.can_share(Br, Bc, threads // 32)
    assert (threads, Br, Bc) == {64: (256, 128, 128), 128: (256, 64, 128), 256: (256, 64, 64)}.get(
        d if card.card == "H200" else 0, (threads, Br, Bc))


# --- what an audit says ---------------------------------------------------------------------------------------

@simulated
@slow
@ways
@pytest.mark.parametrize("options", [{}, {"causal": True, "heads": (2, 1), "Nk": 24}, {"window": (4, 4), "d": 24}],
                         ids=str)
def test_an_audit_finds_nothing(options, deterministic):
    from cuda_kernels import simulator

    p, before = posed(**{"Nq": 40, "Nk": 34, "d": 16} | options)
    with simulator.audit() as audit:
        judge(p, solved(p, before, warps=2, deterministic=deterministic))
    assert audit.ok, audit


@simulated
def test_on_chip():
    """Barriers, products and additions to dQ: what the docstrings say."""
    from cuda_kernels import simulator

    p, Tr, Tc, group, warps = with_gradients(problem(Nq=64, Nk=32, d=32, heads=(2, 1))), 2, 1, 2, 2
    out, lse = forward(p)
    with simulator.audit() as audit:
        cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, kernel="fa2_mma", threads=64, block_q=32, block_k=32)
    assert audit.ok, audit
    assert audit.counts.barriers == Tc * (2 * Tr * group + 2) + 2 * Tr * group   # the last: before and after
    products_of_a_tile = 5 * 32 * 32 * 32 // (16 * 8 * 16)
    assert audit.counts.matrix_products == Tc * Tr * group * products_of_a_tile
    assert audit.counts.atomics == Tc * Tr * group * 32 * 32 and warps == 2


def test_the_steps_are_those_of_numpy():
    """All of them, in the words of fa_ref/fa2.py; but (8) waits for a barrier that (10) needs as well."""
    def steps(text):
        return {(int(m[1]), SHAPE.sub("", m[2])) for m in map(STEP.search, text.split("\n")) if m}

    numpy = (NUMPY / "fa2.py").read_text(encoding="utf-8")
    wanted = dict(steps(numpy[numpy.index("# (1) dQ"):]))
    ours = steps("".join((CUDA / f"fa2_mma_{part}.py").read_text(encoding="utf-8") for part in ("rows", "backward")))
    assert len(wanted) == 14 and {n for n, _ in ours} == set(wanted)
    assert {n for n, words in ours if not words.startswith(wanted[n])} == {5, 11}       # copied ahead; once, at the end


# --- planted faults -------------------------------------------------------------------------------------------

# (file, what stands there, what is put in its place); an audit sees the first, only the numbers see the second
DISORDER = {
    "no wait": ("fa2_mma_backward", r"ptx.wait_copies\(0\)(\n +cuda.syncthreads\(\) +# Qi)", r"pass\1"),
    "first copies not committed": ("fa2_mma_backward", r"^        ptx.commit_copies\(\)", "        pass"),
    "no barrier before a tile is used": ("fa2_mma_backward", r"cuda.syncthreads\(\)( +# Qi)", r"pass\1"),
    "no barrier before P and dS are read": ("fa2_mma_backward", r"cuda.syncthreads\(\)( +# P and dS)", r"pass\1"),
    "no barrier before Kj is overwritten": ("fa2_mma_backward", r"cuda.syncthreads\(\)( +# everybody)", r"pass\1"),
    "no barrier before dKj is stored": ("fa2_mma_backward", r"cuda.syncthreads\(\)( +# dKj, dVj are)", r"pass\1"),
    "one buffer for all tiles": ("fa2_mma_backward", r"stage = Br \* width", "stage = 0 * width"),
    "dQ without atomics": ("fa2_mma_backward", r"add_four\(dQ, \(b, h, i, (.*?)\), dQi\[e\], .*\)",
                          r"\n                    for n in range(4): dQ[b, h, i, \1 + n] += dQi[e + n]"),
    "no barrier before D": ("fa2_mma_rows", r"cuda.syncthreads\(\)( +# Oi)", r"pass\1"),
    "no wait before D": ("fa2_mma_rows", r"ptx.wait_copies\(0\)", "pass"),
    "no barrier before dQi is stored": ("fa2_mma_rows", r"cuda.syncthreads\(\)( +# the tile)", r"pass\1"),
    "dq: no barrier": ("fa2_mma_dq", r"cuda.syncthreads\(\)", "pass"),
    "dq: no wait": ("fa2_mma_dq", r"ptx.wait_copies\(0\)", "pass"),
}
WRONG_NUMBERS = {
    "scale of dK forgotten": ("fa2_mma_backward", r"dKj\[e\] \* scale, dKj\[e \+ 1\] \* scale", "dKj[e], dKj[e + 1]"),
    "D of ones": ("fa2_mma_rows", r"do \* o if o", "o if o"),
    "dlse ignored": ("fa2_mma_rows", r"total - dL\[b, h, row\]", "total"),
    "dQ not set to zero": ("fa2_mma_rows", r"ptx.store_four\(dQ.*", "pass"),
    "P not turned over": ("fa2_mma_backward", r"Factor\(Bc, across=True\)$", "Factor(Bc)"),
    "scores of the next head": ("fa2_mma_backward", r"Li\[n\] = L2\[b, h,", "Li[n] = L2[b, g,"),
    "masks one key too few": ("fa2_mma_backward", r"(p \+ right, Nk - 1\) - mine)", r"\1 + 1"),
    "never masks": ("fa2_mma_backward", r"if col0 < p_last.*", "if False:"),
    "a tile of queries too few": ("fa2_mma_backward", r"\(high \+ Br - 1\) // Br - first", "high // Br - first"),
    "dq: masks one key too few": ("fa2_mma_dq", r"(p \+ right, Nk - 1\) - mine)", r"\1 + 1"),
    "dq: scale forgotten": ("fa2_mma_dq", r"dQi\[e\] \* scale, dQi\[e \+ 1\] \* scale", "dQi[e], dQi[e + 1]"),
    "rows of dQ exchanged": ("fa2_mma_rows", r"n \* 8 \+ lane // 4", "(n ^ 1) * 8 + lane // 4"),
}
MODULES = {module.__name__.rpartition(".")[2]: module for module in (fa2_mma_backward, fa2_mma_dq, fa2_mma_rows)}


def planted(Nk=22, d=16):
    """The problem on which faults are looked for, and its out and lse: two heads meet one tile of keys, or two, whose
    blocks both add to dQ."""
    return posed(Nq=20, Nk=Nk, d=d, heads=(2, 1), causal=True, dlse=True)


SEEN_ONLY_WITH = {
    "dQ without atomics": {"Nk": 34},
    "no barrier before D": {"d": 48},                               # 6 chunks a row: lanes add up what others copied
}


@simulated
@slow
@pytest.mark.parametrize("fault", DISORDER | WRONG_NUMBERS)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    """By an audit where it is about order; else, or as well, by the numbers."""
    from cuda_kernels import simulator

    where, pattern, instead = (DISORDER | WRONG_NUMBERS)[fault]
    copy = faulty(MODULES[where], f"(?m){pattern}", instead)
    if where == "fa2_mma_backward":
        monkeypatch.setattr(fa2_mma, "backward", copy.backward)
    elif where == "fa2_mma_dq":
        monkeypatch.setattr(fa2_mma_backward, "fa2_mma_dq", copy)
    else:
        for name in ("make_preprocess", "make_convert"):
            monkeypatch.setattr(fa2_mma_backward, name, getattr(copy, name))
    p, before = planted(**SEEN_ONLY_WITH.get(fault, {}))
    seen = []
    try:
        with np.errstate(all="ignore"), simulator.audit() as audit:
            judge(p, solved(p, before, warps=2 if fault in DISORDER else 1, deterministic=fault.startswith("dq")))
    except (AssertionError, IndexError) as error:
        seen.append(error)
    assert bool(audit.findings) == (fault in DISORDER), audit
    assert audit.findings or seen, "nothing was noticed"


@simulated
@slow
@ways
@pytest.mark.parametrize("Nk, d, warps", [(22, 16, 1), (22, 48, 1), (22, 16, 2), (34, 16, 2)])
def test_without_a_fault_the_same_problem_is_solved(Nk, d, warps, deterministic):
    from cuda_kernels import simulator

    p, before = planted(Nk, d)
    with simulator.audit() as audit:
        judge(p, solved(p, before, warps=warps, deterministic=deterministic))
    assert audit.ok, audit
