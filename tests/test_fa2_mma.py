"""FlashAttention-2 on tensor cores: the oracle's function, at lengths and head dims that suit its tiles or do not.

They run in the simulator, and on the GPU where FA_REF_CUDA=gpu.
"""

import time
from functools import partial

import numpy as np
import pytest
from ml_dtypes import bfloat16

import cuda_kernels
import tensor_core_problems
from cuda_kernels import fa2_mma, registered
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.running import try_property
from tensor_core_problems import dtypes, faulty, problem, simulated, slow
from test_kernels import judge

solved, holds = (partial(function, "fa2_mma") for function in (tensor_core_problems.solved, tensor_core_problems.holds))


@dtypes
@pytest.mark.parametrize("warps, Br, Bc", [(1, 32, 32), (1, 16, 16), (4, 64, 16), (2, 64, 64)])
def test_warps_and_tiles(dtype, warps, Br, Bc):
    """d = 64, N = 32, in well under 3 seconds; one tile and several."""
    start = time.perf_counter()
    holds(problem(dtype), warps=warps, Br=Br, Bc=Bc)
    assert time.perf_counter() - start < 3 or not cuda_kernels.SIMULATED


OPTIONS = {"ragged": {"Nq": 37, "Nk": 45}, "causal": {"causal": True}, "causal, more keys": {"causal": True, "Nk": 50},
           "causal, rows that see nothing": {"causal": True, "Nq": 50, "Nk": 20}, "window": {"window": (5, 2)},
           "window, far from everything": {"window": (0, 0), "Nq": 3, "Nk": 70},
           "window, causal": {"window": (9, -1), "causal": True, "Nq": 40}, "one query": {"Nq": 1, "Nk": 33},
           "one key": {"Nk": 1}, "grouped": {"heads": (4, 2), "causal": True}, "scale": {"scale": 0.5},
           "a negative scale": {"scale": -0.3, "causal": True}, "no scale": {"scale": 0.0, "window": (3, 3)}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options):
    result = holds(problem(**{"d": 16} | options))
    if options.get("Nq") == 50:
        assert not result.out[:, :, :30].any() and np.isneginf(result.lse[:, :, :30]).all()


@dtypes
@pytest.mark.parametrize("sizes", [(0, 7), (5, 0), (0, 0)])
def test_axes_of_length_zero(dtype, sizes):
    result = holds(problem(dtype, *sizes))
    assert result.out.shape == (1, 1, sizes[0], 64) and np.isneginf(result.lse).all()


@slow
@pytest.mark.parametrize("d", [1, 7, 8, 24, 32, 40, 80, 96, 128, 192, 256])
def test_head_dims(d):
    """Padded with zeros up to a multiple of 16, of 8 copied 16 bytes at a time; the scale is that of the true d."""
    holds(problem(d=d, Nq=17, Nk=21, causal=True))
    holds(problem(d=d, Nq=3, Nk=40, dtype=bfloat16), warps=2)


@slow
def test_the_number_of_warps_changes_nothing():
    """A row is one quad's business, and adds up its keys in one order."""
    p = problem(d=16, Nq=70, Nk=40, causal=True)
    bits = {warps: solved(p, warps=warps, Bc=16) for warps in (1, 2, 3, 5, 8)}
    assert len({x.out.tobytes() + x.lse.tobytes() for x in bits.values()}) == 1


@slow
def test_keys_that_no_query_of_a_tile_sees_may_hold_anything():
    p = problem(d=16, Nq=40, Nk=60, window=(3, 0))                  # the first keys nobody sees, …
    clean = solved(p)
    k, v = p.k.copy(), p.v.copy()
    k[:, :, :17], v[:, :, :17] = np.nan, np.inf
    k[:, :, 58:], v[:, :, 58:] = np.inf, np.nan                     # … the last ones only the last queries
    dirty = solved(p.replace(k=k, v=v))
    assert clean.out[:, :, :32].tobytes() == dirty.out[:, :, :32].tobytes() and np.isnan(dirty.out[:, :, 38:]).all()


@slow
@dtypes
def test_large_scores(dtype):
    """The maximum is subtracted before anything can overflow."""
    p = problem(dtype, d=16)
    holds(p.replace(q=p.q * 30, k=p.k * 30))


# Of the others 2: a plain problem and one that is not. The second one about the future has no keys.
EXAMPLES = {"equals_the_oracle": 12, "gradients_equal_the_oracles": 3, "any_tiles_give_the_same": 3,
            "the_future_has_no_influence": 6}


@slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name):
    ask, supports = registered.implementation("fa2_mma", threads=32)
    head_dims = (3, 8, 16, 40) if name in ("equals_the_oracle", "gradients_equal_the_oracles") else (3, 8, 16)
    supports = supports.but(max_length=20, max_heads=2, head_dims=head_dims, tiles=(32,), long_lengths=())
    row = try_property(name, ask, supports, examples=EXAMPLES.get(name, 2))
    if row.status == "unsupported":
        pytest.skip(row.detail)
    assert row.status == "ok", f"{PROPERTIES[name].sentence}\n{row.detail}"


# --- refused --------------------------------------------------------------------------------------------------

def test_what_is_refused():
    x, sink = np.zeros((1, 1, 4, 8), np.float16), np.zeros(1, np.float32)
    for option, said in [({"softcap": 1.0}, "softcap"), ({"sink": sink}, "sink"), ({"reverse": True}, "reverse"),
                         ({"mask": np.ones((4, 4), bool)}, "a mask")]:
        with pytest.raises(NotImplementedError, match=f"{said} is not offered by the kernel fa2_mma; fa2 offers it"):
            cuda_kernels.forward(x, x, x, kernel="fa2_mma", **option)
        out, lse = cuda_kernels.forward(x, x, x, kernel="fa2", **option)
        cuda_kernels.backward(x, x, x, x, out, lse, kernel="fa2", **option)
    for arrays, said in [([np.zeros((1, 1, 4, 8), np.float32)] * 3, "dtype float32"),
                         ([np.zeros((1, 1, 4, 264), np.float16)] * 3, "d = 264"),
                         ([x, x, np.zeros((1, 1, 4, 5), np.float16)], "dv = 5 with d = 8")]:
        with pytest.raises(NotImplementedError, match=said):
            cuda_kernels.forward(*arrays, kernel="fa2_mma")
    for how, said in [({"threads": 48}, "multiple of 32"), ({"block_k": 24}, "block_k that is a multiple of 16"),
                      ({"threads": 64, "block_q": 16}, "64 threads and d = 8 takes block_q 32 or 64, got 16")]:
        with pytest.raises(ValueError, match=said):
            cuda_kernels.forward(x, x, x, kernel="fa2_mma", **how)
    wide = np.zeros((1, 1, 4, 256), np.float16)
    with pytest.raises(ValueError, match="takes block_q 128, got 256"):
        cuda_kernels.forward(wide, wide, wide, kernel="fa2_mma", threads=256, block_q=256)
    with pytest.raises(ValueError, match=r"tiles of 128 × 256 needs 327680 bytes .* but a block has 232448"):
        cuda_kernels.forward(wide, wide, wide, kernel="fa2_mma", threads=256, block_k=256)


@simulated
@pytest.mark.parametrize("options", [{}, {"causal": True, "Nq": 50, "Nk": 20}, {"window": (4, 30), "Nk": 70}], ids=str)
def test_where_things_lie_on_chip_does_not_change_a_bit(options, monkeypatch):
    """One place for keys and values or two, Qi in registers or not."""
    p = problem(d=16, **options)
    bits = set()
    for places, registers in ((1, 0), (2, 0), (1, 176), (2, 176)):
        fixed(places, registers, monkeypatch)
        result = holds(p, Bc=16)
        bits.add(result.out.tobytes() + result.lse.tobytes())
    assert len(bits) == 1


@simulated
@pytest.mark.parametrize("d, Nk, warps, blocks", [(64, 512, 4, 3), (40, 3, 1, 3), (64, 513, 4, 1), (80, 512, 4, 1),
                                                  (64, 512, 5, 1)])
def test_short_problems_with_narrow_heads_ask_for_three_blocks_at_once(d, Nk, warps, blocks, monkeypatch):
    """Of four warps or fewer: the registers of three blocks of eight would not hold a tile."""
    asked = []

    def stop(*arguments):
        asked.append(arguments[-1])
        raise InterruptedError

    monkeypatch.setattr(fa2_mma, "make_forward", stop)
    with pytest.raises(InterruptedError):
        solved(problem(d=d, Nk=Nk, Nq=1), warps=warps)
    assert asked == [blocks]


def fixed(places, registers, monkeypatch):
    """Whatever the head dim, so many tiles of K and V have a place on chip; however few the keys are, what has room in
    so many registers stays of Qi."""
    made_anew = getattr(fa2_mma.make_forward, "__wrapped__", fa2_mma.make_forward)         # no kernel of another time
    monkeypatch.setattr(fa2_mma, "make_forward", made_anew)
    monkeypatch.setattr(fa2_mma, "buffers", lambda d: places)
    monkeypatch.setattr(fa2_mma, "FEW_KEYS", -1)
    monkeypatch.setattr(fa2_mma, "REGISTERS", registers)


# --- what an audit says ---------------------------------------------------------------------------------------

@simulated
@pytest.mark.parametrize(("places", "held"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_on_chip(places, held, monkeypatch):
    """A barrier per tile of keys, two if there is one place for it, one more if a part of Qi stays in registers; of
    products, loads and shuffles what the docstrings say; and nothing is wrong."""
    from cuda_kernels import simulator

    fixed(places, 16 + 32 + 8 * held, monkeypatch)                              # S, acc, and 8 for each 16 channels
    p, tiles, warps = problem(Nq=64, Nk=40, d=32), 3, 2
    with simulator.audit() as audit:
        judge(p, solved(p, warps=warps, Br=64, Bc=16))
    assert audit.ok, audit
    found, slabs = audit.counts, 2
    assert found.barriers == (2 if places == 1 else 1) * tiles + (held > 0) and found.blocks == 1
    assert found.matrix_products == warps * tiles * slabs * (2 * 2 + 4)         # S: 2 × 2 of them, P V: 4, for a slab
    assert found.matrix_loads == warps * (held * slabs + tiles * ((2 - held) * slabs + 2 + 2))     # of Q; of K and V
    assert found.shuffles == warps * 2 * slabs * (tiles + 1) * 2
    assert found.shared_writes == 2 * 64 * 32 + tiles * 2 * 16 * 32             # Qi and Oi; Kj and Vj
    assert found.syncwarps == 2 * warps                                         # around Oi
    assert found.global_reads == (64 + 2 * 40) * 32 and found.global_writes == 64 * 33


@simulated
@slow
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (4, 4)}, {"causal": True, "Nq": 60, "d": 24},
                                     {"d": 7, "window": (20, 0)}], ids=str)
def test_an_audit_finds_nothing(options):
    from cuda_kernels import simulator

    p = problem(**{"Nq": 33, "Nk": 40, "d": 32} | options)
    with simulator.audit() as audit:
        judge(p, solved(p, warps=2))
    assert audit.ok, audit


# --- swizzled tiles -------------------------------------------------------------------------------------------

@simulated
@pytest.mark.parametrize("D", range(16, 257, 16))
def test_chunks_of_8_rows_lie_in_8_groups_of_banks(D):
    """All chunks of a tile have places of their own, and 8 neighbouring rows read any one of theirs at once."""
    from cuda_kernels import swizzled

    cell, further, *_ = (f.fn for f in swizzled.functions(D, 1, np.float16, True))
    places = np.array([[cell(r, c) for c in range(D // 8)] for r in range(64)])
    assert sorted(places.ravel()) == list(range(0, 64 * D, 8))
    for r in range(0, 64, 8):
        assert all(len({place // 8 % 8 for place in places[r:r + 8, c]}) == 8 for c in range(D // 8))
    for start in (0, 64 * D):                                       # of a tile, which begins after other whole rows
        for r in range(16):
            for c in range(0, D // 8, 2):
                assert [further(start + places[r, odd], c) for odd in (0, 1)] == list(start + places[r, c:c + 2])


# --- planted faults -------------------------------------------------------------------------------------------

# (file, what stands there, what is put in its place); an audit sees the first, only the numbers see the second
DISORDER = {
    "no wait": ("fa2_mma", r"ptx.wait_copies\(0\)", "pass"),
    "waits for all but the latest": ("fa2_mma", r"ptx.wait_copies\(0\)", "ptx.wait_copies(1)"),
    "first copies not committed": ("fa2_mma", r"(?m)^        ptx.commit_copies\(\)", "        pass"),
    "later copies not committed": ("fa2_mma", r"(?m)^            ptx.commit_copies\(\)", "            pass"),
    "no barrier": ("fa2_mma", r"cuda.syncthreads\(\)", "pass"),
    "Qi kept before all have it": ("fa2_mma", r"cuda.syncthreads\(\)( +# Qi)", r"pass\1"),
    "Qi kept before it is there": ("fa2_mma", r"(?m)^ {12}ptx.wait_copies\(0\)(\n.*# Qi)", r"            pass\1"),
    "barrier before the wait": ("fa2_mma", r"(ptx.wait_copies\(0\))\n( +)(cuda.syncthreads\(\))", r"\3\n\2\1"),
    "one buffer for all tiles": ("fa2_mma", r"2 \* Bc \* width if ahead else 0", "0"),
    "Oi stored over a Qi still in use": ("fa2_mma", r" +cuda.syncwarp\(ALL\) +# the warp is done.*\n", ""),
    "Oi read before it is there": ("fa2_mma", r"cuda.syncwarp\(ALL\)( +# the pairs)", r"pass\1"),
    "written swizzled, read plain": ("swizzled", r"return \(at \^ .*", "return at + c * CHUNK"),
}
ONE_PLACE = {                                                       # the same where heads are wide
    "no wait for Vj": ("fa2_mma", r"(?m)^ {16}ptx.wait_copies\(0\)", "                pass"),
    "Vj read before all have it": ("fa2_mma", r"cuda.syncthreads\(\)( +# Vj)", r"pass\1"),
    "the next Kj over one still in use": ("fa2_mma", r"(load\(tile, Vj, Bc, V, b, g, col0, low, high, t\))",
                                          r"\1; load(tile, Kj, Bc, K, b, g, col0 + Bc, low, high, t)"),
    "the next Kj not committed": ("fa2_mma", r"(?m)^ {16}ptx.commit_copies\(\)", "                pass"),
}
WRONG_NUMBERS = {
    "written plain, read swizzled": ("swizzled", r"(copy_async\(tile, at \+) cell\(r, c\)", r"\1 r * width + c * 8"),
    "rows past the end copied": ("swizzled", r"inside = low <= row < high", "inside = low <= row"),
    "Kj read where Vj lies": ("fa2_mma", r"V_row = Vj", "V_row = Kj"),
    "another lane's row of Q": ("fa2_mma", r"R \+ lane % 16, lane // 16\)", "R + lane // 2, lane % 2)"),
    "of Qi not all is kept": ("fa2_mma", r"range\(held\)", "range(held - 1)"),
    "another lane's row of K": ("fa2_mma", r"lane // 16 \* 8 \+ lane % 8, lane // 8 % 2", "lane % 16, lane // 16"),
    "V not transposed": ("fa2_mma", r"ldmatrix_x4_trans", "ldmatrix_x4"),
    "halves of P exchanged": ("fa2_mma", r"pair\(x0, x1\)", "pair(x1, x0)"),
    "rows of P exchanged": ("fa2_mma", r"P\[f\] =", "P[f ^ 1] ="),
    "maximum of half a quad": ("fa2_mma", r" +m_new = max\(m_new, cuda.shfl_xor_sync\(ALL, m_new, 2\)\)\n", ""),
    "sum of half a quad": ("fa2_mma", r" +l_row \+= cuda.shfl_xor_sync\(ALL, l_row, 2\)\n", ""),
    "past not rescaled": ("fa2_mma", r"acc\[e \+ 1\] \*= alpha\[n\]", "pass"),
    "rows of Oi exchanged": ("fa2_mma", r"n \* 8 \+ lane // 4, y\)", "(n ^ 1) * 8 + lane // 4, y)"),
    "work counted from the wrong end": ("fa2_mma", r"// Br - 1 - i\b", "// Br - 2 - i"),
    "masks one key too few": ("fa2_mma", r"(p \+ right, Nk - 1\) - mine)", r"\1 + 1"),
    "never masks": ("fa2_mma", r"if col0 < p_last.*", "if False:"),
    "one tile too few": ("fa2_mma", r"\+ Bc - 1\) // Bc", ") // Bc"),
}
KEPT = ("Qi kept before all have it", "Qi kept before it is there", "of Qi not all is kept")    # in registers


def planted(where):
    """The problem on which faults in this file are looked for, as narrow as shows them: tiles of 32 × 16."""
    return problem(Nq=32, Nk=44, d=32 if where == "swizzled" else 16, causal=True)


@simulated
@slow
@pytest.mark.parametrize("fault", DISORDER | ONE_PLACE | WRONG_NUMBERS)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    """By an audit where it is about order; else, or as well, by the numbers."""
    from cuda_kernels import simulator, swizzled

    where, pattern, instead = (DISORDER | ONE_PLACE | WRONG_NUMBERS)[fault]
    copy = faulty({"fa2_mma": fa2_mma, "swizzled": swizzled}[where], pattern, instead)
    if where == "swizzled":
        monkeypatch.setattr(swizzled, "functions", copy.functions)
        fa2_mma.make_forward.cache_clear()
    else:
        monkeypatch.setitem(cuda_kernels.KERNELS, "fa2_mma", copy)
        copy.FEW_KEYS, copy.REGISTERS = -1, 176 if fault in KEPT else 0
    if fault in ONE_PLACE:
        copy.buffers = lambda d: 1
    p = planted(where)
    seen = []
    try:
        with np.errstate(all="ignore"), simulator.audit() as audit:
            judge(p, solved(p, warps=2, Bc=16))
    except (AssertionError, IndexError) as error:
        seen.append(error)
    finally:
        if where == "swizzled":
            fa2_mma.make_forward.cache_clear()
    assert bool(audit.findings) == (fault in DISORDER | ONE_PLACE), audit
    assert audit.findings or seen, "nothing was noticed"


@simulated
@pytest.mark.parametrize("where", ["fa2_mma", "swizzled"])
def test_without_a_fault_the_same_problem_is_solved(where):
    from cuda_kernels import simulator

    p = planted(where)
    with simulator.audit() as audit:
        judge(p, solved(p, warps=2, Bc=16))
    assert audit.ok, audit
