"""FlashAttention-1 on tensor cores: the oracle's function, at lengths and head dims that suit its tiles or do not.

They run in the simulator, and on the GPU where FA_REF_CUDA=gpu.
"""

from functools import partial

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
import tensor_core_problems
from cuda_kernels import fa1_mma, launch, registered
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.running import try_property
from tensor_core_problems import dtypes, faulty, problem, simulated, slow
from test_kernels import judge

solved, holds = (partial(function, "fa1_mma") for function in (tensor_core_problems.solved, tensor_core_problems.holds))


@dtypes
@pytest.mark.parametrize("warps, Br, Bc, d", [(1, 32, 32, 32), (1, 16, 16, 16), (4, 32, 64, 16), (2, 16, 64, 16),
                                              (3, 32, 48, 16)])
def test_warps_and_tiles(dtype, warps, Br, Bc, d):
    """One tile and several; rows that the warps can share evenly, or not."""
    holds(problem(dtype, Nk=70, d=d), warps=warps, Br=Br, Bc=Bc)


OPTIONS = {"ragged": {"Nq": 37, "Nk": 45}, "causal": {"causal": True}, "causal, more keys": {"causal": True, "Nk": 50},
           "causal, rows that see nothing": {"causal": True, "Nq": 50, "Nk": 20}, "window": {"window": (5, 2)},
           "window, far from everything": {"window": (0, 0), "Nq": 3, "Nk": 70},
           "window, and queries before all keys": {"window": (3, 4), "Nq": 45, "Nk": 20},
           "window, causal": {"window": (9, -1), "causal": True, "Nq": 40}, "one query": {"Nq": 1, "Nk": 33},
           "one key": {"Nk": 1}, "grouped": {"heads": (4, 2), "causal": True, "Nq": 9}, "scale": {"scale": 0.5},
           "a negative scale": {"scale": -0.3, "causal": True}, "no scale": {"scale": 0.0, "window": (3, 3)}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options):
    p = problem(**{"d": 16} | options)
    result = holds(p)
    offset, right = p.k.shape[2] - p.q.shape[2], 0 if options.get("causal") else options.get("window", (0, 99))[1]
    blind = max(0, -offset - right)                                 # so many queries stand before all keys
    assert not result.out[:, :, :blind].any() and np.isneginf(result.lse[:, :, :blind]).all()
    assert np.isfinite(result.lse[:, :, blind:]).all()


@dtypes
@pytest.mark.parametrize("sizes", [(0, 7), (5, 0), (0, 0)])
def test_axes_of_length_zero(dtype, sizes):
    result = holds(problem(dtype, *sizes))
    assert result.out.shape == (1, 1, sizes[0], 64) and np.isneginf(result.lse).all()


@slow
@pytest.mark.parametrize("d", [1, 7, 8, 24, 40, 96, 128, 192, 256])
def test_head_dims(d):
    """Padded with zeros up to a multiple of 16, of 8 copied 16 bytes at a time; the scale is that of the true d."""
    holds(problem(d=d, Nq=17 if d < 96 else 9, Nk=21, causal=True))
    holds(problem(d=d, Nq=3, Nk=40 if d < 96 else 20, dtype=bfloat16), warps=2)


@slow
def test_the_number_of_warps_changes_the_last_bits_only():
    """Sums over the keys of a row are put together warp by warp."""
    p = problem(d=16, Nq=9, Nk=90, causal=True)
    bits = {holds(p, warps=warps, Bc=16 * warps).out.tobytes() for warps in (1, 3, 5)}
    assert len(bits) > 1


@slow
def test_keys_that_no_query_sees_may_hold_anything():
    p = problem(d=16, Nq=20, Nk=40, window=(3, 0))                  # the first key that is seen is number 17
    clean = solved(p)
    k, v = p.k.copy(), p.v.copy()
    k[:, :, :17], v[:, :, :17] = np.nan, np.inf
    dirty = solved(p.replace(k=k, v=v))
    assert clean.out.tobytes() == dirty.out.tobytes() and clean.lse.tobytes() == dirty.lse.tobytes()
    k[:, :, 17] = np.nan
    assert np.isnan(solved(p.replace(k=k)).out[:, :, 0]).all()


@slow
@dtypes
def test_large_scores(dtype):
    """The maximum is subtracted before anything can overflow, in every tile its own."""
    p = problem(dtype, d=16, Nk=64)
    holds(p.replace(q=p.q * 30, k=p.k * 30), warps=2)


# Of the others 2: a plain problem and one that is not. The second one about the future has no keys.
EXAMPLES = {"equals_the_oracle": 8, "the_future_has_no_influence": 3}


@slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name):
    ask, supports = registered.implementation("fa1_mma", threads=32)
    supports = supports.but(max_length=20, max_heads=2, head_dims=(3, 8, 16), tiles=(16,), long_lengths=())
    row = try_property(name, ask, supports, examples=EXAMPLES.get(name, 2))
    if row.status == "unsupported":
        pytest.skip(row.detail)
    assert row.status == "ok", f"{PROPERTIES[name].sentence}\n{row.detail}"


# --- refused --------------------------------------------------------------------------------------------------

def test_what_is_refused():
    x = np.zeros((1, 1, 4, 8), np.float16)
    for option, said in [({"softcap": 1.0}, "softcap"), ({"sink": np.zeros(1, np.float32)}, "sink"),
                         ({"reverse": True}, "reverse"), ({"mask": np.ones((4, 4), bool)}, "a mask")]:
        with pytest.raises(NotImplementedError, match=f"{said} is not offered by the kernel fa1_mma"):
            cuda_kernels.forward(x, x, x, kernel="fa1_mma", **option)
    for arrays, said in [([np.zeros((1, 1, 4, 8), np.float32)] * 3, "dtype float32"),
                         ([np.zeros((1, 1, 4, 264), np.float16)] * 3, "d = 264"),
                         ([x, x, np.zeros((1, 1, 4, 5), np.float16)], "dv = 5 with d = 8")]:
        with pytest.raises(NotImplementedError, match=said):
            cuda_kernels.forward(*arrays, kernel="fa1_mma")
    for how, said in [({"threads": 48}, "multiple of 32"),
                      ({"threads": 64, "block_k": 48}, "multiple of 32, got 16 and 48"),
                      ({"threads": 32, "block_q": 48}, "multiple of 16 up to 32 .* got 48 and"),
                      ({"block_q": 24, "block_k": 16}, "block_q that is a multiple of 16 .* got 24 and 16")]:
        with pytest.raises(ValueError, match=said):
            cuda_kernels.forward(x, x, x, kernel="fa1_mma", **how)
    wide = np.zeros((1, 1, 4, 256), np.float16)
    with pytest.raises(ValueError, match=r"tiles of 32 × 256 needs \d+ bytes .* but a block has 232448"):
        cuda_kernels.forward(wide, wide, wide, kernel="fa1_mma", block_q=32, block_k=256)
    with pytest.raises(NotImplementedError, match="the kernel fa1_mma has no backward pass"):
        cuda_kernels.backward(x, x, x, x, x, np.zeros((1, 1, 4), np.float32), kernel="fa1_mma")


def must_not_launch(*arguments, **how):
    raise AssertionError("a kernel was launched")


@pytest.mark.parametrize("kernel", ["fa1_mma", "fa2_mma"])
def test_bad_input_of_both_is_refused_before_anything_runs(kernel, monkeypatch):
    """The kernels that take it are named; else the numbers that do not fit."""
    monkeypatch.setattr(launch.Call, "launch", must_not_launch)
    x = np.zeros((1, 2, 4, 8), np.float16)
    single, wide = x.astype(np.float32), np.zeros((1, 1, 4, 257), np.float16)
    for arrays, error, said in [
            ([single] * 3, NotImplementedError, f"float32 is not offered by the kernel {kernel}; fa2 offers it"),
            ([wide] * 3, NotImplementedError, f"d = 257 is not offered by the kernel {kernel}; fa2 offers it"),
            ([x, x, single], TypeError, "float16.*float32"),
            ([x, torch.from_numpy(x), x], TypeError, "torch tensor on cpu"),
            ([x, x[:, :, :3], x], ValueError, "3.*4"), ([x, x[..., :7], x], ValueError, "7")]:
        with pytest.raises(error, match=said):
            cuda_kernels.forward(*arrays, kernel=kernel)
    for sparse in ([torch.from_numpy(x).to_sparse()] * 3, [torch.nested.nested_tensor([torch.from_numpy(x[0])])] * 3):
        with pytest.raises(TypeError, match="q must be a dense tensor"):
            cuda_kernels.forward(*sparse, kernel=kernel)
    if cuda_kernels.SIMULATED:
        monkeypatch.setattr(launch, "SIMULATED_CARD", "T4")
        with pytest.raises(ValueError, match=rf"{kernel} needs compute capability 8.0, T4 has \(7, 5\)"):
            cuda_kernels.forward(x, x, x, kernel=kernel)


# --- what an audit says ---------------------------------------------------------------------------------------

@simulated
def test_on_chip():
    """Three barriers per pair of tiles; of products, loads, shuffles and traffic what the docstring says."""
    from cuda_kernels import simulator

    d, N, Br, Bc, warps = 32, 64, 32, 32, 2
    p, pairs, slabs, C = problem(Nq=N, Nk=2 * Bc, d=d), 2 * 2, Br // 16, Bc // warps
    with simulator.audit() as audit:
        judge(p, solved(p, warps=warps, Br=Br, Bc=Bc))
    assert audit.ok, audit
    found = audit.counts
    assert found.barriers == 3 * pairs and found.blocks == 1
    assert found.matrix_products == warps * pairs * slabs * (C // 8 * d // 16 + d // 8 * C // 16)
    assert found.matrix_loads == warps * pairs * (d // 16 * (slabs + C // 16) + C // 16 * d // 16)
    assert found.shuffles == warps * pairs * (4 * Br // 8 + 2 * Br // warps)
    row_lanes = warps * 32                                          # of which each reads one l and m
    assert found.global_reads == 2 * 2 * Bc * d + 2 * N * d + pairs * (Br * d + 2 * row_lanes)
    assert found.global_writes == 3 * N * (d + 2)                   # O, l, m, L: set to nothing; stored; out, L


@simulated
@slow
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (4, 4)}, {"d": 7, "window": (20, 0)},
                                     {"causal": True, "Nq": 40, "Nk": 22, "d": 24}], ids=str)
def test_an_audit_finds_nothing(options):
    from cuda_kernels import simulator

    p = problem(**{"Nq": 20, "Nk": 40, "d": 16} | options)
    with simulator.audit() as audit:
        judge(p, solved(p, warps=2))
    assert audit.ok, audit


# --- planted faults -------------------------------------------------------------------------------------------

# (what stands there, what is put in its place)
DISORDER = {
    "no wait": (r"ptx.wait_copies\(0\)", "pass"),
    "first copies not committed": (r"(?m)^            ptx.commit_copies\(\)", "            pass"),
    "later copies not committed": (r"(?m)^                ptx.commit_copies\(\)", "                pass"),
    "no barrier before Qi": (r"cuda.syncthreads\(\)( +# Kj)", r"pass\1"),
    "no barrier before the maxima": (r"cuda.syncthreads\(\)( +# the maxima)", r"pass\1"),
    "no barrier before the sums": (r"cuda.syncthreads\(\)( +# the sums)", r"pass\1"),
    "barrier before the wait": (r"(ptx.wait_copies\(0\))\n( +)(cuda.syncthreads\(\))( .*)", r"\3\4\n\2\1"),
    "one buffer for all Qi": (r"(stage = Bc \* width, 2 \* Bc \* width,) Br \* width", r"\1 0"),
}
OF_SEVERAL_WARPS = {
    "the keys of another warp": (r"0, 0, w \* C, lane", "0, 0, 0, lane"),
    "the values of another warp": (r"cell\(w \* C \+ lane % 16", "cell(lane % 16"),
    "P in the warp's own scale": (r"m_tile\[n\] = max\(m_tile\[n\], part.*", "pass"),
    "the part of one warp only": (r"o_tile \+= part", "o_tile = part"),
    "the sum of one warp only": (r"l_tile \+= part", "l_tile = part"),
}
WRONG_NUMBERS = {
    "Kj read where Vj lies": (r"V_row = V_at", "V_row = 0"),
    "another lane's row of V": (r"lane % 16, lane // 16\)", "lane // 2, lane % 2)"),
    "V not transposed": (r"ldmatrix_x4_trans", "ldmatrix_x4"),
    "halves of P exchanged": (r"pair\(x0, x1\)", "pair(x1, x0)"),
    "maximum of half a quad": (r"max\(most, cuda.shfl_xor_sync\(ALL, most, 2\)\)", "most"),
    "sum of half a quad": (r" +p_sum \+= cuda.shfl_xor_sync\(ALL, p_sum, 2\)\n", ""),
    "past not rescaled": (r"past = ptx.exp2\(.*\) \* li", "past = li"),
    "the tile not rescaled": (r"beta = ptx.exp2\(.*", "beta = one"),
    "not normalised again": (r"past, beta = past / divisor, beta / divisor", "pass"),
    "another row's past": (r"cuda.shfl_sync\(ALL, past, n\)", "cuda.shfl_sync(ALL, past, 0)"),
    "O stored in the wrong row": (r"unsigned\(row0 \+ r\)", "unsigned(row0 + r ^ 1)"),
    "finished one tile too early": (r"final = col0 \+ Bc >=", "final = col0 + 2 * Bc >="),
    "rows that see nothing not written": (r"out\[b, h, row, x\] = narrow\(zero\)", "pass"),
    "masks one key too few": (r"(p \+ right, Nk - 1\) - mine)", r"\1 + 1"),
    "never masks": (r"if col0 < p0.*", "if False:"),
    "one tile of keys too few": (r"\(Nk \+ Bc - 1\) // Bc", "(Nk - 1) // Bc"),
    "one tile of queries too few": (r"- offset\) \+ Br - 1\)", "- offset))"),
}


def fails(warps):
    """The error, or None, on the problem on which faults are looked for."""
    Nq, Nk = {1: (44, 27), 2: (40, 23)}[warps]                      # tiles of 16 × 16: 3 × 2; of 16 × 32: 3 × 1
    p = problem(Nq=Nq, Nk=Nk, d=16, causal=True)                    # one tile of queries sees nothing
    p = p.replace(q=p.q * 3)                                        # so that maxima differ from tile to tile
    try:
        with np.errstate(all="ignore"):
            judge(p, solved(p, warps=warps))
    except (AssertionError, IndexError) as error:
        return error
    return None


@simulated
@slow
@pytest.mark.parametrize("fault", DISORDER)
def test_an_audit_notices_disorder(fault, monkeypatch):
    from cuda_kernels import simulator

    monkeypatch.setitem(cuda_kernels.KERNELS, "fa1_mma", faulty(fa1_mma, *DISORDER[fault]))
    with simulator.audit() as audit:
        fails(warps=2)
    assert audit.findings


@simulated
@slow
@pytest.mark.parametrize("fault", OF_SEVERAL_WARPS | WRONG_NUMBERS)
def test_wrong_numbers_are_noticed(fault, monkeypatch):
    monkeypatch.setitem(cuda_kernels.KERNELS, "fa1_mma", faulty(fa1_mma, *(OF_SEVERAL_WARPS | WRONG_NUMBERS)[fault]))
    assert fails(warps=2 if fault in OF_SEVERAL_WARPS else 1)


@simulated
def test_tiles_written_plain_and_read_swizzled_are_noticed(monkeypatch):
    from cuda_kernels import swizzled

    copy = faulty(swizzled, r"(copy_async\(tile, at \+) cell\(r, c\)", r"\1 r * width + c * 8")
    monkeypatch.setattr(swizzled, "functions", copy.functions)
    monkeypatch.setitem(cuda_kernels.KERNELS, "fa1_mma", faulty(fa1_mma, "^", ""))     # its own kernels, made anew
    assert fails(warps=1)


@simulated
@pytest.mark.parametrize("warps", [1, 2])
def test_without_a_fault_the_same_problem_is_solved(warps):
    from cuda_kernels import simulator

    with simulator.audit() as audit:
        assert fails(warps) is None
    assert audit.ok, audit
