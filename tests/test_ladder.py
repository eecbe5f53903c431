"""The ladder: every rung is right, one idea away from the one before, and its tables say what was measured.

Rungs run in the simulator, and on the GPU where FA_REF_CUDA=gpu. What they are worth is not tested: a GPU measures it.
"""

import difflib
import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
from altered import altered
from cuda_kernels.__main__ import main
from cuda_kernels.ladder import NAMES, measure, run, table
from fa_ref.testing import Problem
from fa_ref.testing.problem import Result
from fa_ref.testing.standard_16bit import float64_truth, two_errors

ROOT = Path(__file__).parent.parent
DTYPES = {"float16": np.float16, "bfloat16": bfloat16}
TINY = 16, 2, 32                                                    # R, warps, Bc: 32 queries, 32 keys
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")
slow = pytest.mark.slow


def problem(dtype=np.float16, N=64, d=64, heads=1, causal=True):
    rng = np.random.default_rng([N, d, heads])
    return Problem(*(rng.standard_normal((1, heads, N, d)).astype(dtype) for _ in range(3)), causal=causal)


def answer(module, p, tiles=TINY):
    """What a rung, a module, says about a problem."""
    launch = run.prepare(module, p.q, p.k, p.v, p.causal, tiles)
    launch()
    return Result(*launch.result())


def is_right(result, p):
    """By the rule of two errors, O and L."""
    return all(verdict.ok for verdict in two_errors(result, float64_truth(p), p, round_scores=False).values())


# --- right ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype, causal", [("float16", True), ("bfloat16", False)])
def test_right(name, dtype, causal):
    """Two tiles of queries and two of keys; r8 with its two slabs."""
    p = problem(DTYPES[dtype], causal=causal)
    assert is_right(answer(run.rung(name), p, (32, 1, 32) if name == "r8" else TINY), p)


@slow
@pytest.mark.parametrize("name", NAMES)
def test_right_with_128_channels(name):
    p = problem(bfloat16, N=32, d=128, heads=2)
    assert is_right(answer(run.rung(name), p, (32, 1, 16) if name == "r8" else TINY), p)


@slow
@pytest.mark.parametrize("name", ["r1", "r2", "r3", "r7"])
@pytest.mark.parametrize("tiles", [(16, 2, 64), (32, 1, 16)])
def test_right_with_other_tiles(name, tiles):
    """More keys in a tile than queries, and fewer."""
    p = problem(N=64)
    assert is_right(answer(run.rung(name), p, tiles), p)


@pytest.fixture(scope="module")
def audits():
    """{rung: what an audit says}, causal, two tiles of queries and two of keys; r8 is r7 then."""
    from cuda_kernels import simulator

    found, p = {}, problem()
    for name in NAMES[:-1]:
        with simulator.audit() as found[name]:
            assert is_right(answer(run.rung(name), p), p)
    return found


@simulated
@slow
def test_an_audit_finds_nothing(audits):
    for name, audit in audits.items():
        assert audit.ok, f"{name}: {audit}"


@simulated
@slow
def test_what_the_rungs_cost_on_chip(audits):
    """Barriers, products and traffic: what an idea is about is what its rung has less of."""
    found = {name: audit.counts for name, audit in audits.items()}
    tiles = 2 * 2
    assert {name: counts.barriers for name, counts in found.items()} == {
        "r0": 3 * tiles, "r1": 3 * tiles, "r2": 3 * tiles, "r3": 2 * tiles, "r4": 2 * tiles, "r5": 2 * tiles,
        "r6": tiles, "r7": 3}
    assert found["r2"].global_writes == found["r7"].global_writes == 64 * 65        # O and L, once
    assert found["r0"].global_writes == found["r1"].global_writes == 64 * 65 + 2 * 64 * 66
    assert found["r3"].shared_writes == (64 + 2 * 2 * 64) * 64 < found["r2"].shared_writes / 2
    assert found["r7"].matrix_products == found["r6"].matrix_products * 3 / 4
    assert found["r7"].global_reads < found["r6"].global_reads == found["r3"].global_reads


# --- refused --------------------------------------------------------------------------------------------------

def test_what_is_refused():
    x = np.zeros((1, 1, 64, 64), np.float16)
    for change, name, tiles, said in [
            ({"k": x[:, :, :32]}, "r3", None, r"one shape .* got \(1, 1, 64, 64\), \(1, 1, 32, 64\)"),
            ({"v": x.astype(bfloat16)}, "r3", None, "all in bfloat16, got float16, float16, bfloat16"),
            ({"q": x[0], "k": x[0], "v": x[0]}, "r3", None, r"\(B, H, N, d\), got \(1, 64, 64\)"),
            ({n: x.astype(np.float32) for n in "qkv"}, "r3", None, "got float32, float32, float32"),
            ({n: x[..., :32] for n in "qkv"}, "r3", None, r"d = 64 or 128 .* got shape \(1, 1, 64, 32\)"),
            ({n: x[:0] for n in "qkv"}, "r3", None, r"nothing empty, got shape \(0, 1, 64, 64\)"),
            ({n: x[:, :, :48] for n in "qkv"}, "r3", None, "64 queries and 64 keys, got N = 48"),
            ({}, "r8", None, "128 queries and 64 keys, got N = 64"),
            ({}, "r3", (16, 3, 32), "1, 2, 4 or 8 warps, .* got 3, 16 and 32"),
            ({}, "r3", (8, 2, 32), "got 2, 8 and 32"), ({}, "r3", (16, 8, 16), "4 for each warp, got 8, 16 and 16"),
            ({}, "r0", (16, 4, 32), "4 warps that split the keys take tiles of a multiple of 64 keys .* got 32 and 16"),
            ({}, "r0", (64, 1, 64), "16 or 32 rows for each warp, got 64 and 64"),
            ({n: np.zeros((1, 1, 64, 72), np.float16)[..., 1:65] for n in "qkv"}, "r3", None, "multiple of 16 bytes"),
            ({n: np.zeros((1, 1, 512, 128), np.float16) for n in "qkv"}, "r6", (64, 8, 512),
             r"tiles of 512 × 512 and 8 warps need 655360 bytes .* d = 128, but a block has 232448")]:
        with pytest.raises(ValueError, match=said):
            run.prepare(run.rung(name), **{"q": x, "k": x, "v": x} | change, tiles=tiles)
    with pytest.raises(ValueError, match=r"a rung is one of r0, r1, .*, r8, got 'r9'"):
        run.forward("r9", x, x, x)
    with pytest.raises(TypeError, match="causal must be True or False, got 1"):
        run.forward("r3", x, x, x, causal=1)


# --- one idea apart -------------------------------------------------------------------------------------------

def source(name):
    return (ROOT / "cuda_kernels" / "ladder" / f"{name}.py").read_text(encoding="utf-8")


def steps(name):
    """[(number, what it is called before the first comma or colon)] in the order of the file."""
    found = re.findall(r"^ +# \((\d+)\) ([^,:\n]+)", source(name), re.MULTILINE)
    return [(int(number), title.strip()) for number, title in found]


def code(name):
    """The lines of a rung without docstring, prediction, spaces and comments."""
    text = source(name).partition('"""\n\n')[2]
    text = re.sub(r'PREDICTED = .*?""".*?"""', "", text, flags=re.DOTALL)
    return [line for line in (re.sub(r"\s|#.*", "", line) for line in text.splitlines()) if line]


def test_all_rungs_have_the_same_steps():
    first = dict(steps("r0"))
    assert sorted(first) == list(range(1, 12))
    for name in NAMES[:-1]:
        assert dict(steps(name)) == first and len(steps(name)) == len(first), name
    loops_swapped = [3, 1, 2, *range(4, 12)]
    for name in NAMES[:-1]:
        order = [number for number, _ in steps(name)]
        assert order == (loops_swapped if name in ("r0", "r1") else sorted(order)), name


# lines of code that go or come; r3 drops all that the warps had to tell each other
CHANGED = {"r1": 8, "r2": 56, "r3": 130, "r4": 16, "r5": 6, "r6": 28, "r7": 10}


@pytest.mark.parametrize("name", CHANGED)
def test_a_rung_is_one_idea_away_from_the_one_before(name):
    before, now = code(NAMES[NAMES.index(name) - 1]), code(name)
    changed = [line for line in difflib.ndiff(before, now) if line[0] in "+-"]
    assert 0 < len(changed) <= CHANGED[name], "\n".join(changed)


def test_r8_changes_nothing_but_sizes():
    r7, r8 = run.rung("r7"), run.rung("r8")
    assert r8.make_forward is r7.make_forward and r8.TILES[0] == 2 * r7.TILES[0] and r8.TILES[1:] == r7.TILES[1:]


@pytest.mark.parametrize("name", NAMES)
def test_every_rung_says_what_it_brings_and_why(name):
    module = run.rung(name)
    assert module.__doc__.startswith(f"Rung {name[1:]}: ") and re.search("FlashAttention-2|paper", module.__doc__)
    assert module.PREDICTED > 0 and re.search(r"\d", module.WHY)


# --- tables and the command -----------------------------------------------------------------------------------

def made_up(**times):
    """A run as `measure.measured` returns it, causal with d = 128; times: {rung: ms}, "r8_spills" among them."""
    row = {"d": 128, "causal": True, "flash_ms": 2.0, "flop": 4e12, "error": 1e-3, "allowed": 2e-3, "registers": 168,
           "local": 0, "shared": 65536}
    rows = [row | {"rung": name[:2], "spills": "_" in name, "tiles": [64, 4, 64], "ms": ms}
            for name, ms in times.items()]
    return {"on": "a made-up card", "dtype": "bfloat16", "matrix_rate": 800.0, "rows": rows}


def test_the_table_says_what_was_measured():
    found = made_up(r0=100.0, r1=80.0, r3=40.0, r7=8.0, r8=4.0, r8_spills=16.0)
    ((d, causal, lines),) = table.tables(found)
    assert (d, causal) == (128, True) and all(len(line) == len(table.HEAD) for line in lines)
    cells = {line[:2]: dict(zip(table.HEAD, line, strict=True)) for line in lines}
    names = [name for name, _ in cells]
    assert names == ["r0", "r1", "r3", "r7", "r8", "r8"]
    r0, r1, r3, r7, r8, spills = cells.values()
    assert [row["× the rung before"] for row in (r0, r1, r3, r7, r8, spills)] == ["–", "1.25", "–", "–", "2.00", "0.50"]
    assert r0["predicted"] == f"{run.rung('r0').PREDICTED:g} of FLASH"
    assert r1["predicted"] == f"{run.rung('r1').PREDICTED:g}"
    assert spills["predicted"] == f"{run.rung('r8').PREDICTED_SPILLS:g}" != r8["predicted"]
    assert r0["× FLASH"] == "0.020" and r8["× FLASH"] == "0.500"
    assert r8["of the matrix rate"] == "125.0%" and r0["of the matrix rate"] == "5.0%"      # 4e12 in 4 ms, of 8e14
    assert (r3["registers"], r3["local, bytes"], r3["on chip, KiB"]) == ("168", "0", "64")
    assert r3["what it brings"] == "queries split over the warps, no longer keys"
    assert "64 rows" in spills["what it brings"]


def test_predictions_stand_only_beside_the_problem_they_are_for():
    found = made_up(r3=1.0)
    found["rows"].append(found["rows"][0] | {"causal": False})
    (_, _, full), (_, causal, (line,)) = table.tables(found)
    assert causal and line[4] and not full[0][4]


def test_the_page_shows_the_tables(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT / "docs"))
    import generate
    import marks

    marks.read(ROOT / "docs" / "performance.md", "ladder")
    text = generate.ladder_text(made_up(r0=100.0, r1=80.0))
    assert "a made-up card" in text and "800 TFLOP/s" in text and "### d = 128, causal" in text
    assert len(re.findall(r"^\| r\d \|", text, re.MULTILINE)) == 2
    page, file = tmp_path / "docs" / "performance.md", tmp_path / "ladder.json"
    page.parent.mkdir()
    page.write_text("a\n<!-- ladder:begin -->\n<!-- ladder:end -->\n")
    file.write_text(json.dumps(made_up(r0=100.0)))
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    generate.ladder(file)
    assert "| r0 |" in marks.read(page, "ladder")


@simulated
def test_the_command_without_a_gpu(capsys):
    assert main(["ladder"]) == 2
    said = capsys.readouterr().err
    assert "on a GPU" in said and "diff -w cuda_kernels/ladder/r3.py" in said
    for wrong, told in ((["--rungs", "r0,r12"], "got 'r12'"), (["--dtype", "f32"], "invalid choice"),
                        (["--save", "/no/such/folder/x"], "no folder /no/such")):
        with pytest.raises(SystemExit):
            main(["ladder", *wrong])
        assert told in capsys.readouterr().err


def test_measuring_refuses_a_wrong_answer():
    """The check of the GPU run, on the host: the truth passes, a key too few does not, nor does an L that is off."""
    q, k, v = (torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(n)).to(torch.bfloat16)
               for n in range(3))
    for causal in (False, True):
        truth = measure.truth_of(q, k, v, causal)
        out, lse = (torch.stack([t[n] for t in truth])[None] for n in (2, 3))
        error, allowed = measure.compare(out.to(torch.bfloat16), lse.float(), truth)
        assert 0 < error <= allowed
        fewer = measure.truth_of(q, k.roll(1, 2), v, causal)
        error, allowed = measure.compare(torch.stack([t[2] for t in fewer])[None], lse, truth)
        assert error > allowed
        error, _ = measure.compare(out * torch.nan, lse, truth)
        assert not error <= allowed
        with pytest.raises(ArithmeticError, match="the error of L"):
            measure.compare(out, lse + 1e-3, truth)


# --- planted faults -------------------------------------------------------------------------------------------

# {what: (rung, what stands there, what is put in its place)}; an audit sees the first, the numbers the second
DISORDER = {
    "maxima read before they are there": ("r0", "cuda.syncthreads()                                  # the maxima",
                                          "pass  # the maxima"),
    "outputs read before they are there": ("r2", "cuda.syncthreads()                                      # the sums",
                                           "pass  # the sums"),
    "the tile before overwritten": ("r3", "cuda.syncthreads()                                      # everybody",
                                    "pass  # everybody"),
    "copies not waited for": ("r4", "ptx.wait_copies(0)", "pass"),
    "one place for all tiles": ("r6", "stage = d // CHUNK, 2 * Bc * d", "stage = d // CHUNK, 0"),
    "the next tile asked for too early": ("r6", "(j + 1 & 1) * stage", "(j & 1) * stage"),
}
WRONG_NUMBERS = {
    "the past's sum forgotten": ("r0", "cuda.shfl_sync(ALL, alpha * l, n)", "cuda.shfl_sync(ALL, alpha, n)"),
    "one warp's keys left out": ("r0", "for other in range(warps):\n                            o_tile",
                                 "for other in range(1, warps):\n                            o_tile"),
    "never divided": ("r1", "narrow(acc_new / divisor)", "narrow(acc_new)"),
    "what travels is divided": ("r1", "O_far[b, h, row, x] = acc_new", "O_far[b, h, row, x] = acc_new / divisor"),
    "the past not rescaled": ("r2", "past * acc[acc_at + r * d + x]", "acc[acc_at + r * d + x]"),
    "the first queries for all blocks": ("r2", "Q, b, h, row0, t", "Q, b, h, 0, t"),
    "another warp's rows": ("r3", "cell(w * R + lane % 16", "cell((w ^ 1) * R + lane % 16"),
    "sum of half a quad": ("r3", "            l_row += cuda.shfl_xor_sync(ALL, l_row, 2)\n", ""),
    "8 bytes of 16": ("r4", "c * CHUNK), CHUNK)", "c * CHUNK), CHUNK // 2)"),
    "chunks read where they were not put": ("r5", "(at ^ (c & 7) * CHUNK)", "(at + (c & 7) * CHUNK)"),
    "the last tile missing": ("r7", "+ Br + Bc - 1) // Bc", ") // Bc"),
    "the border not masked": ("r7", "col0 + Bc > row0 + 1", "col0 > row0 + 1"),
    "tiles counted from the wrong end": ("r7", "cuda.gridDim.x - 1 - i", "cuda.gridDim.x - 2 - i"),
}


@simulated
@slow
@pytest.mark.parametrize("fault", DISORDER | WRONG_NUMBERS)
def test_a_planted_fault_is_noticed(fault):
    from cuda_kernels import simulator

    name, before, after = (DISORDER | WRONG_NUMBERS)[fault]
    copy, p = altered(run.rung(name), (before, after)), problem()
    with np.errstate(all="ignore"), simulator.audit() if fault in DISORDER else nullcontext() as audit:
        try:
            right = is_right(answer(copy, p), p)
        except IndexError:
            right = False
    assert not right if audit is None else audit.findings, "nothing was noticed"


@simulated
@slow
def test_a_second_slab_left_out_is_noticed():
    """What only the tiles of r8 can show."""
    copy, p = altered(run.rung("r7"), ("further(Q_row, 2 * k) + s * SLAB * d", "further(Q_row, 2 * k)")), problem()
    assert is_right(answer(copy, p), p) and not is_right(answer(copy, p, (32, 1, 32)), p)
