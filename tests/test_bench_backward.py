"""`python -m cuda_kernels bench --backward`: what it has of its own; the rest is in test_bench.py.

Most tests have `fa_ref` in the place of the kernels, which are slow in the simulator.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
import fa_ref
from cuda_kernels import bench, fa2_mma, launch, tensor_cores
from cuda_kernels.bench import (
    backward,
    clock,
    forward,
    gradients,
    grid,
    measure,
    peers,
    resources,
    show,
    targets,
    tiles,
)
from cuda_kernels.bench.grid import Case
from fa_ref.inputs import Sizes
from fa_ref.options import check_options
from fa_ref.testing import Problem
from fa_ref.testing.standard_16bit import allowed, float64_truth

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402
import marks  # noqa: E402
import performance  # noqa: E402

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="tries it out in the simulator; here is a GPU")
OURS, DETERMINISTIC = "fa2_mma", "fa2_mma, deterministic"
TINY = Case(1, 2, 1, 16, 16, True)                                  # grouped heads


class Once(clock.Host):
    """Every call is made once, however many rounds are asked for."""

    def times(self, calls, rounds):
        return [times * max(rounds, 2) for times in super().times(calls, 1)]


@pytest.fixture
def by_loops(monkeypatch):
    """`fa_ref` in the place of the kernels; what is called, in order."""
    called = []

    def ours(q, k, v, *, kernel, causal):
        called.append(kernel)
        return fa_ref.forward(q, k, v, causal=causal)

    def gradients_of(*given, kernel, causal, deterministic):
        called.append((kernel, deterministic))
        return fa_ref.backward(*given, causal=causal)

    monkeypatch.setattr(backward, "cuda_kernels", SimpleNamespace(forward=ours, backward=gradients_of))
    return called


def tensors(B, H, Hkv, N, d, seed=1):
    """q, k, v, dout."""
    return forward.tensors(Case(B, H, Hkv, N, d, False), clock.Host(), 4, seed)


# --- what is asked for ----------------------------------------------------------------------------------------

def test_only_kernels_with_a_backward_pass_are_asked():
    options, cases = bench.parsed(["--backward", "--quick"])
    assert options.backward and options.kernels == [OURS] and cases == grid.grid((64, 128), (1024, 4096))
    assert not bench.parsed([])[0].backward
    _, cases = bench.parsed(["--backward", "--kernels", OURS, "--dims", "64", "--seqlens", "512"])
    assert cases == grid.grid((64,), (512,))


def test_a_kernel_without_one_is_refused_by_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.parsed(["--backward", "--kernels", "fa2_mma,fa1_mma"])
    assert "--kernels takes fa2_mma with --backward, got fa1_mma" in capsys.readouterr().err


def test_operations_are_those_of_five_products():
    case = Case(2, 3, 3, 10, 4, False)
    assert grid.flops(case, "backward") == 5 * 2 * 2 * 3 * 10 * 10 * 4 == 2.5 * grid.flops(case)
    assert targets.tera(case._replace(causal=True), 1e-9, "backward") == grid.flops(case, "backward") / 2


# --- what is true ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("causal", [False, True])
def test_the_yardsticks_are_those_of_the_kit(causal, monkeypatch):
    """Two heads that share keys, in parts of 16 queries, beside NumPy's."""
    monkeypatch.setattr(gradients, "ROWS", 16)
    given = tensors(1, 2, 1, 40, 8)
    known = gradients.yardsticks(*given, causal)
    q, k, v, dout = (x.float().numpy().astype(bfloat16) for x in given)
    p = Problem(q, k, v, causal=causal, dout=dout)
    expected, limits = float64_truth(p), allowed(p, round_scores=False)
    assert [x.heads for x in known] == [[(0, 0), (0, 1)], [(0, 0)], [(0, 0)]]
    for name, yardstick in zip(("dq", "dk", "dv"), known, strict=True):
        right = getattr(expected, name)
        for (_, h), mine in zip(yardstick.heads, yardstick.truth, strict=True):
            assert abs(mine.numpy() - right[0, h]).max() < 1e-12, name
        assert yardstick.allowed == pytest.approx(getattr(limits, name).max(), rel=0.05), name


def test_the_first_and_the_last_group_are_looked_at():
    q, k, v, dout = tensors(2, 4, 2, 9, 8)
    known = gradients.yardsticks(q, k, v, dout, False)
    assert known[0].heads == [(0, 0), (0, 1), (1, 2), (1, 3)] and known[1].heads == known[2].heads == [(0, 0), (1, 1)]
    alone = gradients.yardsticks(q[1:, 2:], k[1:, 1:], v[1:, 1:], dout[1:, 2:], False)
    for of_all, of_last in zip(known, alone, strict=True):
        assert torch.equal(of_all.truth[-1], of_last.truth[-1])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_worst_gradient_counts(index):
    given = tensors(1, 2, 1, 12, 8)
    known = gradients.yardsticks(*given, False)
    right = [torch.stack(yardstick.truth)[None] for yardstick in known]
    assert gradients.worst(right, known)[0] == 0
    wrong = [x.clone() for x in right]
    wrong[index][0, -1, 11, 7] += 10 * known[index].allowed
    assert gradients.worst(wrong, known) == (pytest.approx(10 * known[index].allowed), known[index].allowed)
    wrong[index][0, 0, 3, 0] = np.nan
    assert gradients.worst(wrong, known)[0] == np.inf


# --- how it is measured ---------------------------------------------------------------------------------------

def test_both_passes_have_the_same_names():
    public = [{name for name in vars(which) if not name.startswith("_")} for which in (forward, backward)]
    assert public[0] - {"peers", "truth"} <= public[1] and measure.PASSES == {"forward": forward, "backward": backward}


def test_heads_of_a_token_lie_side_by_side():
    given = backward.tensors(TINY, clock.Host())
    assert [tuple(x.shape) for x in given] == [(1, 2, 16, 16), (1, 1, 16, 16), (1, 1, 16, 16), (1, 2, 16, 16)]
    assert all(x.transpose(1, 2).is_contiguous() for x in given) and not given[0].is_contiguous()
    assert all(torch.equal(x, y) for x, y in zip(given, tensors(1, 2, 1, 16, 16, seed=0), strict=True))


def test_a_call_is_the_backward_pass_alone(by_loops, monkeypatch):
    """Twice each: the forward pass has been done before, once."""
    attention, torchs = peers.scaled_dot_product_attention, []
    monkeypatch.setattr(peers, "scaled_dot_product_attention",
                        lambda *x, **how: torchs.append(how) or attention(*x, **how))
    given = tensors(1, 2, 1, 16, 16)
    ready = backward.ready(TINY, *given, [OURS])
    assert list(ready) == [OURS, DETERMINISTIC, *peers.BACKENDS] and not by_loops and not torchs
    calls = [ready[name]() for name in (OURS, DETERMINISTIC, "math")] + [backward.by_choice(*given)]
    assert by_loops == [OURS, OURS] and torchs == [{"is_causal": True, "enable_gqa": True}, {}]
    found = [[call(), call()] for call in calls[:3]]
    assert by_loops[2:] == [(OURS, False)] * 2 + [(OURS, True)] * 2 and len(torchs) == 2
    for first, second in found:
        assert [x.shape for x in first] == [x.shape for x in given[:3]]
        assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert not any(x.requires_grad for x in given)


def test_fewer_calls_are_asked_for_at_once(monkeypatch):
    """40, for whom the GPU waits as long as for 200 forward passes."""
    waits = []
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 1)
    monkeypatch.setattr(clock.torch, "cuda", SimpleNamespace(
        Event=lambda enable_timing: event, _sleep=waits.append, synchronize=lambda: None))
    for at_once, parts in ((backward.AT_ONCE, 5), (forward.AT_ONCE, 1)):
        assert clock.Gpu(at_once=at_once).times([lambda: None] * 2, 100) == [[1] * 100] * 2
        assert waits == [clock.WAIT_CYCLES] * parts
        waits.clear()


def test_memory_is_that_of_both_passes(by_loops):
    """What is called while memory is looked at; a device that says 3 MiB."""
    class Seen(Once):
        def with_memory(self, call):
            before = len(by_loops)
            answer = call()
            seen.append(by_loops[before:])
            return answer, 3 * 2**20

    seen = []
    cells = measure.cells(TINY, Seen(), [OURS], 1, backward)
    assert seen[:2] == [[OURS, (OURS, False)], [OURS, (OURS, True)]] and cells[0]["mb"] == 3
    row, = measure.memory(Seen(), [OURS], [16], 1, 16, backward)
    assert row[OURS] == row[DETERMINISTIC] == row["math"] == 3 and isinstance(row["cudnn"], str)


@simulated
def test_a_tiny_problem_is_measured_in_the_simulator():
    """Ours and torch's on the CPU, grouped heads; a backend that there is not leaves a reason."""
    cells = measure.cells(TINY, Once(), [OURS], 1, backward)
    found = {cell["peer"]: cell for cell in cells}
    assert list(found) == [OURS, DETERMINISTIC, *peers.BACKENDS]
    for name in (OURS, DETERMINISTIC, "math", "flash"):
        assert found[name]["ms"] > 0 and found[name]["error"] <= found[name]["allowed"], name
    assert "ms" not in found["cudnn"] and found["cudnn"]["why"]
    json.dumps(cells)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_wrong_gradient_is_seen(index, by_loops, monkeypatch):
    right = backward.cuda_kernels.backward

    def wrong(*given, **how):
        found = list(right(*given, **how))
        found[index] = found[index] * 1.2
        return found

    monkeypatch.setattr(backward.cuda_kernels, "backward", wrong)
    cells = measure.cells(TINY, Once(), [OURS], 1, backward)
    found = {cell["peer"]: cell["error"] / cell["allowed"] for cell in cells if "ms" in cell}
    assert found[OURS] > 1 and found[DETERMINISTIC] > 1 and found["math"] <= 1
    assert not targets.right(cells, (OURS, DETERMINISTIC)).met


def test_resources_are_those_of_its_kernels(monkeypatch):
    """As entries of kernels are called by numba-cuda, from disk or not; the names of factories do not count."""
    entry = "_ZN12cuda_kernels16fa2_mma_backward{}12_3clocals_3e{}B2v1B92cw51cXTLSUwv1sDUaKthq"
    names = {"13make_backward": "8backward", "15make_preprocess": "10preprocess", "12make_convert": "7convert",
             "7make_dq": "2dq", "12make_forward": "7forward"}
    launches = [SimpleNamespace(compiled=SimpleNamespace(entry_name=entry.format(*pair))) for pair in names.items()]
    ready = SimpleNamespace(launches=launches, made=[((1, 2, 3, 64), (384, 192, 64, 1), "bf16")])
    key = resources.prepared.Key((cuda_kernels.KERNELS[OURS],))
    monkeypatch.setattr(resources.prepared, "known", {key: ready})
    monkeypatch.setattr(resources, "of_launch", lambda launch: {"threads": 256, "shared": 0})
    assert [row["kernel"] for row in resources.used("backward")] == [
        "fa2_mma, backward", "fa2_mma, convert", "fa2_mma, dq", "fa2_mma, preprocess"]
    assert [row["kernel"] for row in resources.used()] == [OURS]


@pytest.mark.parametrize("least", [0.0, 1e9])
def test_a_run_from_the_command_to_the_page(least, by_loops, monkeypatch, tmp_path, capsys):
    """On the CPU, with a tiny problem in place of the grid: the file can be written into the page; 0 if all is met."""
    on, asked = made_up()["on"], []
    for where, name, value in [
            (bench, "unable", lambda: None), (measure, "machine", lambda: on),
            (clock, "Gpu", lambda at_once: asked.append(at_once) or Once()),
            (resources, "used", lambda what: asked.append(what) or []),
            (grid, "grid", lambda dims, lengths: [TINY]),
            (measure, "overhead", partial(measure.overhead, case=TINY, number=1)),
            (measure, "memory", partial(measure.memory, lengths=[16])), (targets, "BACKWARD_RATIOS", {16: least}),
            (targets, "BACKWARD_FROM", 1), (targets, "OVERHEAD", 1e9), (targets, "TO_ATOMICS", 0)]:
        monkeypatch.setattr(where, name, value)
    file = tmp_path / "bench.json"
    assert bench.main(["--backward", "--save", str(file)]) == (1 if least else 0)
    assert asked == [backward.AT_ONCE, "backward"]
    told = capsys.readouterr().out
    assert re.search(r"d = 16, N ≥ 1.*" + ("missed" if least else "met"), told) and "bfloat16, backward" in told
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["pass"] == "backward"
    assert [x["peer"] for x in record["cells"]] == [OURS, DETERMINISTIC, *peers.BACKENDS]
    assert DETERMINISTIC in record["memory"][0]
    assert list(record["overhead"]) == ["torch", OURS, DETERMINISTIC, OURS + targets.IN_GRAPH]
    texts = generate.backward_texts(record)
    assert list(texts) == [f"backward-{name}" for name in ("targets", "ratios", "deterministic", "peers", "overhead",
                                                           "resources")]
    assert OURS + targets.IN_GRAPH in texts["backward-overhead"]


# --- what it is held against ----------------------------------------------------------------------------------

def made_up(speeds=lambda case: 1.25, atomics=0.8, overhead=1.5, growth=1.0):
    """A record in which fa2_mma takes 1 ms in every case of the grid."""
    def cell(case, peer, ms):
        return {"case": case._asdict(), "peer": peer, "ms": ms, "mb": 64.0, "spread": 0.01, "rounds": 9, "error": 1e-3,
                "allowed": 4e-3}

    cells = [cell(case, peer, ms) for case in grid.grid() for peer, ms in
             ((OURS, 1.0), (DETERMINISTIC, 1 / atomics), ("flash", speeds(case)), ("math", 20.0))]
    memory = [{"N": N, OURS: N * 1.0 * (growth if N > 1024 else 1), "math": "no room"} for N in (1024, 4096)]
    return {"on": {"card": "a card", "date": "2001-02-03", "driver": "1", "torch": "2", "numba-cuda": "3"},
            "pass": "backward", "kernels": [OURS], "cells": cells, "memory": memory,
            "overhead": {"torch": 10.0, OURS: 1.0, OURS + targets.IN_GRAPH: 10 * overhead},
            "resources": [{"kernel": "fa2_mma, dq", "d": 64, "registers": 250, "local": 16, "threads": 128,
                           "shared": 65536, "blocks": 2}]}


def verdicts(record):
    return [target.verdict for target in targets.judged(record)]


def test_all_targets_can_be_met():
    assert verdicts(made_up()) == ["met"] * 7 and targets.ok(targets.judged(made_up()))
    enough = made_up(lambda case: 0.85 if case.N < 1024 or case.d == 256 else 1.0, atomics=0.7, overhead=2, growth=1.04)
    assert verdicts(enough) == ["met"] * 7


@pytest.mark.parametrize(("index", "how"), [
    (0, {"speeds": lambda case: 0.99 if case[3:] == (1024, 64, True) else 1.5}),
    (1, {"speeds": lambda case: 0.99 if case.grouped and case.causal else 1.5}),
    (2, {"speeds": lambda case: 0.84 if case[3:] == (512, 64, False) else 1.0}),
    (2, {"speeds": lambda case: 0.84 if case[3:] == (16384, 256, False) else 1.0}),
    (3, {"atomics": 0.69}), (4, {"overhead": 2.1}), (5, {"growth": 1.1})])
def test_one_bad_number_misses_its_target_and_no_other(index, how):
    found = targets.judged(made_up(**how))
    assert [target.verdict for target in found] == ["met"] * index + ["missed"] + ["met"] * (6 - index)
    assert not targets.ok(found)


@pytest.mark.parametrize("peer", [OURS, DETERMINISTIC])
def test_a_wrong_answer_misses(peer):
    record = made_up()
    next(cell for cell in record["cells"] if cell["peer"] == peer)["error"] = 0.1
    assert verdicts(record) == ["met"] * 6 + ["missed"] and "99 of 100" in targets.judged(record)[6].found


def test_the_overhead_is_that_of_torchs_graph_on_both_sides():
    record = made_up()
    record["overhead"][OURS + targets.IN_GRAPH] = 21.0
    assert targets.judged(record)[4].found == "2.10 × (21.0 µs, torch 10.0 µs)" and verdicts(record)[4] == "missed"


def test_what_a_target_says():
    found = targets.judged(made_up(lambda case: 0.7 if case[3:] == (256, 128, True) else 1.5))
    assert found[2].what == "everywhere else: at least 0.85 × torch flash"
    assert found[2].found == "27 of 28; least 0.700 × at d = 128, N = 256, causal"
    assert found[0].what == "d = 64, N ≥ 1024: at least 1.0 × torch flash" and found[0].found.startswith("10 of 10")
    assert found[3].found.startswith("50 of 50; least 0.800 × at d = 64, N = 128")


def test_what_was_not_measured_is_neither():
    record = made_up() | {"cells": [], "overhead": {}, "memory": []}
    assert set(verdicts(record)) == {"not measured"} and targets.ok(targets.judged(record))


# --- what is shown and written --------------------------------------------------------------------------------

def test_the_terminal_shows_both_of_ours(capsys):
    show.everything(made_up())
    told = capsys.readouterr().out
    assert "bfloat16, backward." in told and told.count("deterministic,") == 1 and "fa2_mma, dq" in told
    assert f"{2.5 * 4 * 16384 * 2048 * 128 / 1e9:.0f}" in told


def test_the_tables():
    record = made_up(speeds=lambda case: case.N / 1000)
    assert performance.where(record).endswith("bfloat16, backward, random normal input.")
    assert performance.ratios(record)[1][3] == ("1,024", *["1.02 ×"] * 6)
    assert performance.deterministic(record)[1][3] == ("1,024", *["0.80 ×"] * 6)
    rows = performance.peers(record)[1]
    tflops = 10 * 16384 * 2048 * 4096 / 1e9
    assert rows[0] == ("64, full", "`fa2_mma`", "1.000", f"{tflops:.0f}", "64", "0.25")
    assert rows[1][1] == "`fa2_mma, deterministic`" and rows[4][3] == f"{tflops / 2:.0f}"


@pytest.fixture
def pages(monkeypatch, tmp_path):
    """Copies of the page and of the README, which may be written to."""
    (tmp_path / "docs").mkdir()
    for name in ("docs/performance.md", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    return tmp_path


def test_every_text_has_its_marks_and_the_record_is_kept(pages):
    file = pages / "saved.json"
    file.write_text(json.dumps(made_up()), encoding="utf-8")
    page = pages / "docs" / "performance.md"
    before = marks.read(page, "targets")
    generate.backward(file)
    for name, text in generate.backward_texts(made_up()).items():
        assert marks.read(page, name) == text
        tables = [[line.count("|") for line in part.splitlines()] for part in text.split("\n\n") if "|" in part[:1]]
        assert len(tables) == 1 and len(set(tables[0])) == 1, name
    assert "backward" in marks.read(pages / "README.md", "backward-speed")
    assert marks.read(page, "targets") == before                    # the forward pass is left alone
    kept = (pages / "docs" / "performance" / "backward.json").read_text(encoding="utf-8")
    assert json.loads(kept) == made_up() and kept.startswith('{\n "on"') and kept.endswith("}\n")


def test_a_record_of_the_other_pass_is_refused(pages):
    file = pages / "saved.json"
    for wrong, write in ((made_up(), generate.performance), ({**made_up(), "pass": "forward"}, generate.backward)):
        file.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(ValueError, match=f"is about the {wrong['pass']} pass"):
            write(file)
    assert not (pages / "docs" / "performance").exists()


def test_the_forward_pass_is_kept_too(pages):
    """A record without "pass" is one of the forward pass."""
    record = {name: x for name, x in made_up().items() if name != "pass"}
    (pages / "saved.json").write_text(json.dumps(record), encoding="utf-8")
    generate.performance(pages / "saved.json")
    folder = pages / "docs" / "performance"
    assert json.loads((folder / "forward.json").read_text(encoding="utf-8")) == record
    assert (folder / "speed.svg").exists()
    assert "bfloat16, forward," in marks.read(pages / "docs" / "performance.md", "targets")


# --- tiles of other shapes ------------------------------------------------------------------------------------

def test_each_head_dim_begins_with_the_shape_that_is_chosen(monkeypatch):
    monkeypatch.setattr(tensor_cores, "TILES_BACKWARD", tensor_cores.ON_A_GPU)
    for d in grid.DIMS:
        sizes = Sizes(4, 8, 8, 4096, 4096, d, d)
        options = check_options(sizes, np.dtype(np.float16))
        _, *chosen = fa2_mma.plan_backward(launch.CARDS["H200"], sizes, "float16", options, None, None, None)
        assert tuple(chosen) == tiles.shapes(d)[0] and len(tiles.shapes(d)) >= 3


def test_every_shape_is_timed_and_judged(monkeypatch):
    """Loops in the place of the kernels: one shape is refused, and one is wrong in dk."""
    asked = []

    def gradients_of(dout, q, k, v, out, lse, *, kernel, causal, block_q, block_k):
        asked.append((block_q, block_k))
        if (block_q, block_k) == (64, 64):
            raise ValueError("not so many bytes of shared memory")
        found = fa_ref.backward(dout, q, k, v, out, lse, causal=causal)
        return found._replace(dk=found.dk * (2 if block_q == 32 else 1))

    monkeypatch.setattr(tiles, "cuda_kernels", SimpleNamespace(
        forward=lambda q, k, v, *, kernel, causal: fa_ref.forward(q, k, v, causal=causal), backward=gradients_of))
    monkeypatch.setattr(tiles, "TOKENS", 32)
    monkeypatch.setattr(tiles, "HIDDEN", 16)
    monkeypatch.setattr(tiles, "shapes", lambda d: [(64, 128), (64, 64), (32, 32)])
    block = dict.fromkeys(("registers", "local", "threads", "shared", "blocks"), 64)
    monkeypatch.setattr(tiles, "of_a_block", lambda: block)
    told = []
    rows = tiles.measured(Once(), dims=(8,), N=16, step=told.append)
    assert told == ["d = 8, 64 × 128", "d = 8, 64 × 64", "d = 8, 32 × 32"]
    assert set(asked) == {(64, 128), (64, 64), (32, 32)}
    right, refused, wrong = rows
    assert right["error"] <= right["allowed"] and right["ms"] > 0 and wrong["error"] > wrong["allowed"]
    assert refused["why"] == "not so many bytes of shared memory" and "ms" not in refused
    lines = list(tiles.table(rows))
    assert [len(line) for line in lines] == [len(tiles.HEAD)] * 3
    assert lines[0][:3] == ("8", "64 × 128", "2") and lines[0][4] == "1.00 ×" and lines[1][2:4] == (refused["why"], "–")


def test_what_the_command_of_tiles_says_without_a_gpu(tmp_path, capsys):
    assert tiles.main([]) == 2 and "tiles measures kernels on a GPU, and the" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        tiles.main(["--save", str(tmp_path / "no" / "tiles.json")])
    assert "there is no folder" in capsys.readouterr().err
