"""`python -m cuda_kernels bench`: what is asked for, measured, judged, written; on made-up numbers and tiny problems.

What it says on a GPU stands in docs/performance.md.
"""

import json
import re
import sys
from ctypes import c_uint, c_void_p
from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
from cuda_kernels import bench
from cuda_kernels.bench import clock, grid, measure, peers, resources, show, targets, truth
from cuda_kernels.bench.grid import Case
from fa_ref.testing import Problem
from fa_ref.testing.standard_16bit import allowed, float64_truth

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402
import marks  # noqa: E402
import performance  # noqa: E402
import performance_picture  # noqa: E402

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="tries it out in the simulator; here is a GPU")


# --- what is measured -----------------------------------------------------------------------------------------

def test_the_grid_has_always_as_many_tokens_and_channels():
    cases = grid.grid()
    plain, grouped = cases[:48], cases[48:]
    assert len(set(cases)) == 50 and {(case.grouped, case.causal) for case in cases} == {
        (False, False), (False, True), (True, False), (True, True)}
    assert all((case.B * case.N, case.H * case.d, case.Hkv) == (16384, 2048, case.H) for case in plain)
    assert {tuple(case)[:5] for case in grouped} == {(4, 64, 8, 4096, 128)} and all(case.grouped for case in grouped)


def test_grouped_heads_come_only_where_their_d_and_n_are_asked_for():
    assert [len(grid.grid((d,), (N,))) for d, N in ((128, 4096), (64, 4096), (128, 512))] == [4, 2, 2]


@pytest.mark.parametrize(("dims", "lengths", "said"), [
    ((64, 60), (512,), "dims must divide the 2048 channels of a problem, got 60"),
    ((64,), (512, 0, 1000), "seqlens must divide the 16384 tokens of a problem, got 0, 1000"),
    ((), (512,), "dims .* got none")])
def test_sizes_that_do_not_divide_are_refused_by_name(dims, lengths, said):
    with pytest.raises(ValueError, match=said):
        grid.grid(dims, lengths)


def test_operations_are_those_of_two_products():
    case = Case(2, 3, 3, 10, 4, False)
    assert grid.flops(case) == 2 * 2 * 3 * (10 * 10 * 4 + 10 * 4 * 10)         # a multiply and an add; S, then P V
    assert grid.flops(case._replace(causal=True)) == grid.flops(case) // 2
    assert targets.tera(case, ms=1e-9) == grid.flops(case)                      # in a picosecond


@pytest.mark.parametrize(("arguments", "said"), [
    (["--kernels", "fa2_mma,fa2_mna"], "--kernels takes .*fa2_mma.*, got fa2_mna"),
    (["--kernels", "fa2"], "--kernels takes .*, got fa2$"), (["--dims", "64,x"], "'64,x' is no list of whole numbers"),
    (["--dims", "100"], "--dims must divide the 2048 channels"), (["--seqlens", "3"], "--seqlens must divide"),
    (["--save", "/no/such/folder/x.json"], "no folder /no/such/folder"),
    (["--save", "/"], "--save takes a file, and / is a folder"), (["--sove", "x"], "unrecognized arguments")])
def test_bad_options_are_refused_by_name(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.parsed(arguments)
    assert re.search(said, capsys.readouterr().err.strip())


def test_options():
    assert bench.parsed([])[1] == grid.grid() and set(bench.parsed([])[0].kernels) == set(bench.ON_TENSOR_CORES)
    assert bench.parsed(["--quick"])[1] == grid.grid((64, 128), (1024, 4096))
    options, cases = bench.parsed(["--dims", "64", "--seqlens", "512", "--kernels", "fa2_mma", "--quick"])
    assert options.kernels == ["fa2_mma"] and cases == grid.grid((64,), (512,))


@simulated
def test_without_a_gpu_it_says_so(capsys):
    assert bench.main(["--quick"]) == 2 and "measures kernels on a GPU, and the" in capsys.readouterr().out


# --- what is true ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("causal", [False, True])
def test_the_yardstick_is_that_of_the_kit(causal, monkeypatch):
    """One head, in parts of 16 queries, beside NumPy's; then the last head of grouped ones."""
    monkeypatch.setattr(truth, "ROWS", 16)
    q, k, v = torch.randn(3, 1, 1, 40, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    known = truth.yardstick(q, k, v, causal)
    p = Problem(*(x.float().numpy().astype(bfloat16) for x in (q, k, v)), causal=causal)
    expected = float64_truth(p)
    assert known.heads == [(0, 0)] and abs(known.truth[0].numpy() - expected.out[0, 0]).max() < 1e-12
    assert known.allowed == pytest.approx(allowed(p, expected, round_scores=False).out.max(), rel=0.02)
    assert truth.error_of(torch.from_numpy(expected.out), known) < 1e-12
    wrong = torch.from_numpy(expected.out.copy())
    wrong[0, 0, 39, 7] += 0.25
    assert truth.error_of(wrong, known) == pytest.approx(0.25)
    wrong[0, 0, 3, 0] = np.nan
    assert truth.error_of(wrong, known) == np.inf


def test_the_last_head_has_its_own_keys():
    q, k, v = (torch.randn(2, heads, 9, 8).bfloat16() for heads in (4, 2, 2))
    known = truth.yardstick(q, k, v, False)
    assert known.heads == [(0, 0), (1, 3)]
    assert torch.equal(known.truth[1], truth.yardstick(q[1:, 3:], k[1:, 1:], v[1:, 1:], False).truth[0])


# --- how it is measured ---------------------------------------------------------------------------------------

def test_everybody_has_a_turn_in_every_round_and_comes_after_everybody_else():
    turns = []
    times = clock.Host().times([lambda n=n: turns.append(n) for n in range(3)], 30)
    rounds = [tuple(turns[n:n + 3]) for n in range(0, 90, 3)]
    assert set(rounds) == set(permutations(range(3))) and rounds == [tuple(clock.order(3, n)) for n in range(30)]
    assert [len(x) for x in times] == [30, 30, 30] and min(map(min, times)) >= 0


class Fake(clock.Host):
    """A device on which a call takes as many milliseconds as it says."""

    def __init__(self):
        self.rounds = []

    def times(self, calls, rounds):
        self.rounds.append(rounds)
        return [[call()] * rounds for call in calls]


def test_on_a_gpu_the_host_is_ahead_and_events_stand_around_every_call(monkeypatch):
    """On a stand-in whose time is what calls take; 250 rounds of 2 calls are asked for in 3 parts."""
    now, log = [0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def elapsed_time(self, other):
            assert log[-1] == "synchronize"
            return other.at - self.at

    fake = SimpleNamespace(Event=Event, _sleep=lambda cycles: log.append("sleep"),
                           synchronize=lambda: log.append("synchronize"))
    monkeypatch.setattr(clock.torch, "cuda", fake)
    calls = [lambda ms=ms: now.__setitem__(0, now[0] + ms) for ms in (3, 5)]
    assert clock.Gpu().times(calls, 250) == [[3] * 250, [5] * 250]
    assert log == ["sleep", "synchronize"] * 3


def test_on_a_gpu_memory_is_the_peak_beyond_what_was_there(monkeypatch):
    peak = [0]
    fake = SimpleNamespace(synchronize=lambda: None, memory_allocated=lambda: 100, max_memory_allocated=lambda: peak[0],
                           reset_peak_memory_stats=lambda: peak.__setitem__(0, 100))
    monkeypatch.setattr(clock.torch, "cuda", fake)
    assert clock.Gpu().with_memory(lambda: peak.__setitem__(0, 160) or "answer") == ("answer", 60)


@pytest.mark.parametrize(("ms", "rounds"), [(1e-9, measure.MOST), (10, 10), (1000, measure.FEWEST)])
def test_rounds_fit_into_the_budget(ms, rounds):
    device = Fake()
    measure.timed(device, [lambda: ms / 2] * 2, budget_ms=100)
    assert device.rounds == [2, rounds]


def test_the_host_is_measured_without_waiting():
    device, calls = clock.Host(), []
    slow, fast = clock.host_microseconds(device, [lambda: sum(range(10_000)), lambda: calls.append(1)], 5, rounds=2)
    assert len(calls) == 10 and slow > fast > 0


@simulated
def test_a_tiny_problem_is_measured_in_the_simulator():
    """Ours and torch's on the CPU; a backend that there is not leaves a reason."""
    cells = measure.cells(Case(1, 2, 1, 32, 16, True), clock.Host(), ["fa2_mma"], budget_ms=1)
    assert [cell["peer"] for cell in cells] == ["fa2_mma", *peers.BACKENDS]
    found = {cell["peer"]: cell for cell in cells}
    for name in ("fa2_mma", "math", "flash"):
        assert found[name]["ms"] > 0 and found[name]["rounds"] >= 5 and found[name]["error"] <= found[name]["allowed"]
    assert "ms" not in found["cudnn"] and found["cudnn"]["why"]
    assert found["math"]["beside"]["fa2_mma"] > 0 and "beside" not in found["flash"]
    json.dumps(cells)


def test_a_ratio_is_of_rounds_that_both_were_in():
    """Standard attention is timed in turns with ours, in rounds of their own; the clock may have changed meanwhile."""
    case = Case(1, 8, 8, targets.PLAIN_N, 64, False)
    cells = [cell(case, "fa2_mma", 2.0), cell(case, "flash", 3.0),
             cell(case, "math", 20.0) | {"beside": {"fa2_mma": 1.0}}]
    row = targets.by_case(cells)[case]
    speeds = [targets.speed(row), targets.speed(row, peer="math"), targets.speed(row, "flash", "math")]
    assert speeds == [1.5, 20, 20 / 3]
    assert targets.plain(targets.by_case(cells)).found == (
        "least 20.0 × with d = 64, full (10.0 × by what fa2_mma takes among the fast ones)")


@simulated
def test_a_wrong_answer_is_seen(monkeypatch):
    right = peers.by_kernel
    monkeypatch.setattr(peers, "by_kernel", lambda *how: right(*how) * 1.2)
    cell = measure.cells(Case(1, 1, 1, 16, 16, False), clock.Host(), ["fa2_mma"], budget_ms=1)[0]
    assert cell["error"] > cell["allowed"] and not targets.right([cell], [cell["peer"]]).met


def test_standard_attention_that_cannot_fit_is_not_tried(monkeypatch):
    tried, real = [], peers.tried
    monkeypatch.setattr(peers, "tried", lambda call: tried.append(call) or real(call))
    monkeypatch.setattr(clock.Host, "free", lambda self: 1)
    cells = measure.cells(Case(1, 1, 1, 16, 16, False), clock.Host(), [], budget_ms=1)
    assert len(tried) == 3 and "needs about 0 GiB" in cells[0]["why"]


def test_only_some_dims_are_asked_of_fa1(monkeypatch):
    monkeypatch.setattr(peers, "by_kernel", lambda kernel, q, k, v, causal: q)
    for d, names in ((64, ["fa1_mma", "fa2_mma"]), (256, ["fa2_mma"])):
        cells = measure.cells(Case(1, 1, 1, 4, d, False), clock.Host(), ["fa1_mma", "fa2_mma"], budget_ms=1)
        assert [cell["peer"] for cell in cells][:-4] == names


@pytest.mark.parametrize(("error", "told", "said"), [
    ("No available kernel.\nAborting", [], "No available kernel."),
    ("x", ["Flash attention kernel not used because: (Triggered internally at a.cpp:1.)",
           "cuDNN attention has been runtime disabled. (Triggered internally at b.cpp)",
           "head_dim should be\n at most 128 (Triggered internally at c.cpp)"], "head_dim should be at most 128"),
    ("", [], "no reason given")])
def test_a_reason_is_what_torch_tells_beside_the_error(error, told, said):
    assert peers.reason(error, told) == said


def test_refusals_are_reasons_and_other_errors_are_errors():
    def refuse(error):
        raise error("too much")

    for error in (RuntimeError, torch.OutOfMemoryError, NotImplementedError, ValueError):
        assert peers.tried(lambda error=error: refuse(error)) == (None, "too much")
    with pytest.raises(KeyError):
        peers.tried(lambda: refuse(KeyError))
    assert peers.tried(lambda: 3) == (3, None)


def test_resources_are_those_of_the_launches_that_are_ready(monkeypatch):
    """A launch as `prepared` keeps it: function, grid, threads, 1, 1, bytes."""
    compiled = SimpleNamespace(entry_name="…3e7forwardB2v1…", regs_per_thread=255, local_mem_per_thread=8,
                               shared_mem_per_block=100)
    launch = partial(print, c_void_p(77), *map(c_uint, (9, 8, 7, 128, 1, 1, 1000)))
    ready = SimpleNamespace(launches=[SimpleNamespace(compiled=compiled, launch=launch)],
                            made=[((1, 2, 3, 64), (384, 192, 64, 1), "f16")])
    keys = [resources.prepared.Key((cuda_kernels.KERNELS["fa2_mma"], n)) for n in (0, 1)]
    monkeypatch.setattr(resources.prepared, "known", dict.fromkeys(keys, ready))
    monkeypatch.setattr(resources, "blocks", lambda function, threads, shared: (function, threads, shared))
    assert resources.used() == [{"kernel": "fa2_mma", "d": 64, "registers": 255, "local": 8, "threads": 128,
                                 "shared": 1100, "blocks": (77, 128, 1000)}]


@simulated
@pytest.mark.parametrize("least", [0.0, 1e9])
def test_a_run_from_the_command_to_the_page(least, monkeypatch, tmp_path, capsys):
    """On the CPU, with a tiny problem in place of the grid: the file can be written into the page; 0 if all is met."""
    tiny, on = Case(1, 1, 1, 16, 16, True), made_up()["on"]
    for where, name, value in [
            (bench, "unable", lambda: None), (measure, "machine", lambda: on), (clock, "Gpu", clock.Host),
            (grid, "grid", lambda dims, lengths: [tiny]), (measure, "overhead", partial(
                measure.overhead, case=tiny, number=1)), (measure, "memory", partial(measure.memory, lengths=[16])),
            (measure, "BUDGET_MS", 1), (targets, "RATIOS", {16: least}), (targets, "FROM", 1),
            (targets, "OVERHEAD", 1e9)]:
        monkeypatch.setattr(where, name, value)
    file = tmp_path / "bench.json"
    assert bench.main(["--save", str(file), "--kernels", "fa2_mma"]) == (1 if least else 0)
    assert re.search(r"d = 16, N ≥ 1.*" + ("missed" if least else "met"), capsys.readouterr().out)
    record = json.loads(file.read_text(encoding="utf-8"))
    assert [x["peer"] for x in record["cells"]] == ["fa2_mma", *peers.BACKENDS] and record["resources"] == []
    assert list(record["overhead"]) == ["torch", "fa2_mma", "torch, by torch.autograd", "fa2_mma, by torch.autograd"]
    assert len(generate.performance_texts(record)) == 7 and "16" in generate.speed_text(record)


def test_what_can_be_saved_is_found_out_first_and_leaves_no_trace(tmp_path, capsys):
    parser, file = bench.parser_of("bench", "doc"), tmp_path / "x.json"
    bench.check_save(parser, file)
    assert not file.exists()
    file.write_text("older")
    bench.check_save(parser, file)
    assert file.read_text() == "older"
    with pytest.raises(SystemExit, match="2"):
        bench.check_save(parser, Path("/proc/x.json"))
    assert "--save: /proc/x.json cannot be written: No such file" in capsys.readouterr().err


def test_what_cannot_be_saved_in_the_end_is_told(capsys):
    """A full disk: what was measured is shown all the same."""
    bench.save(Path("/dev/full"), {"cells": []})
    assert capsys.readouterr().err == "not saved: /dev/full cannot be written: No space left on device\n"


def test_a_run_that_fails_keeps_what_it_has_found(monkeypatch, tmp_path):
    def fails(*arguments, **options):
        raise RuntimeError("the GPU is gone")

    on = made_up()["on"]
    for where, name, value in [
            (bench, "unable", lambda: None), (measure, "machine", lambda: on), (clock, "Gpu", clock.Host),
            (grid, "grid", lambda dims, lengths: [Case(1, 1, 1, 16, 16, True)]), (measure, "overhead", fails)]:
        monkeypatch.setattr(where, name, value)
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        bench.main(["--save", str(tmp_path / "bench.json"), "--kernels", "fa2_mma"])
    record = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert len(record["cells"]) == 1 + len(peers.BACKENDS) and "overhead" not in record


# --- what it is held against ----------------------------------------------------------------------------------

def cell(case, peer, ms, **more):
    return {"case": case._asdict(), "peer": peer, "ms": ms, "mb": 64.0, "spread": 0.01, "rounds": 9, "error": 1e-3,
            "allowed": 4e-3, **more}


def made_up(speeds=lambda case: 1.25, to_math=20.0, overhead=1.5, growth=1.0):
    """A record in which fa2_mma takes 1 ms in every case of the grid."""
    cells = []
    for case in grid.grid():
        cells += [cell(case, "fa2_mma", 1.0), cell(case, "flash", speeds(case)), cell(case, "math", to_math)]
        cells.append({"case": case._asdict(), "peer": "cudnn", "why": "head_dim should be | " + "at most 128 " * 9})
        if case.d < 256:
            cells.append(cell(case, "fa1_mma", 3.0))
    memory = [{"N": N, "fa2_mma": N * 1.0 * (growth if N > 1024 else 1), "math": "no room"} for N in (1024, 4096)]
    return {"on": {"card": "a card", "date": "2001-02-03", "driver": "1", "torch": "2", "numba-cuda": "3"},
            "kernels": ["fa1_mma", "fa2_mma"], "cells": cells, "memory": memory,
            "overhead": {"torch": 10.0, "fa2_mma": 10 * overhead},
            "resources": [{"kernel": "fa2_mma", "d": 64, "registers": 250, "local": 16, "threads": 128,
                           "shared": 65536, "blocks": 2}]}


def verdicts(record):
    return [target.verdict for target in targets.judged(record)]


def test_all_targets_can_be_met():
    assert verdicts(made_up()) == ["met"] * 7 and targets.ok(targets.judged(made_up()))


@pytest.mark.parametrize(("index", "how"), [
    (0, {"speeds": lambda case: 0.99 if case[3:] == (512, 64, True) else 1.5}),
    (1, {"speeds": lambda case: 0.99 if case.grouped and case.causal else 1.5}),
    (2, {"speeds": lambda case: 0.89 if case[3:] == (16384, 256, False) else 1.0}),
    (3, {"to_math": 9.9}), (4, {"overhead": 2.1}), (5, {"growth": 1.1})])
def test_one_bad_number_misses_its_target_and_no_other(index, how):
    found = targets.judged(made_up(**how))
    assert [target.verdict for target in found] == ["met"] * index + ["missed"] + ["met"] * (6 - index)
    assert not targets.ok(found)


@pytest.mark.parametrize(("index", "how"), [
    (0, {"speeds": lambda case: 0.5 if case.N < 512 else 1.0}),
    (2, {"speeds": lambda case: 0.9 if case.d == 256 else 1}), (3, {"to_math": 10.0}),
    (4, {"overhead": 2.0}), (5, {"growth": 1.04})])
def test_what_is_just_enough_is_enough(index, how):
    assert verdicts(made_up(**how))[index] == "met"


def test_a_target_names_the_worst_case():
    found = targets.judged(made_up(speeds=lambda case: 0.7 if case.N == 2048 and case.causal else 1.5))[0]
    assert found.found == "11 of 12; least 0.700 × at N = 2048, causal"


def test_a_wrong_answer_of_the_other_kernel_misses_too():
    record = made_up()
    next(cell for cell in record["cells"] if cell["peer"] == "fa1_mma")["error"] = 0.1
    assert verdicts(record)[6] == "missed"


def test_a_wrong_answer_misses_and_so_does_a_problem_that_we_cannot_do():
    record = made_up()
    ours = [cell for cell in record["cells"] if cell["peer"] == "fa2_mma"]
    ours[7]["error"] = 0.1
    assert verdicts(record)[6] == "missed"
    record = made_up()
    del record["cells"][0]["ms"], record["cells"][0]["error"]
    assert verdicts(record)[6] == "missed" and verdicts(record)[0] == "met"             # N = 128
    n = next(n for n, c in enumerate(record["cells"]) if c["peer"] == "fa2_mma" and c["case"]["N"] == 512)
    del record["cells"][n]["ms"]
    assert verdicts(record)[0] == "missed" and "least 0.000" in targets.judged(record)[0].found


def test_what_was_not_measured_is_neither():
    record = made_up() | {"cells": [], "overhead": {}, "memory": []}
    assert set(verdicts(record)) == {"not measured"} and targets.ok(targets.judged(record))
    record = made_up()
    record["cells"] = [c for c in record["cells"] if c["case"]["d"] == 64]
    assert verdicts(record) == ["met", "not measured", "not measured", *["met"] * 4]


def test_the_factor_to_fa1_has_only_what_both_did():
    found = targets.factors(targets.by_case(made_up()["cells"]))
    assert [(d, kind) for d, kind, _ in found] == [(64, "causal"), (64, "full"), (128, "causal"), (128, "full"),
                                                   (128, "grouped, causal"), (128, "grouped, full")]
    assert found[0][2] == dict.fromkeys(grid.LENGTHS, 3.0) and found[4][2] == {4096: 3.0}


# --- what is shown and written --------------------------------------------------------------------------------

def test_the_terminal_shows_every_case_every_reason_and_the_targets(capsys):
    record = made_up(overhead=3)
    with show.progress(2) as step:
        step("one")
        step("two")
    show.everything(record)
    told = capsys.readouterr().out
    assert told.count("grouped, causal") >= 2 and "no cudnn in 50 cases" in told and "65,536" in told
    assert re.search(r"overhead of a call: at most 2 × torch's +3\.00 × .* missed", told)
    assert "not measured" not in told


def test_the_tables():
    record = made_up(speeds=lambda case: case.N / 1000)
    head, rows, _ = performance.ratios(record)
    assert head == ["N", *(f"d = {d}, {kind}" for d in grid.DIMS for kind in ("full", "causal"))]
    assert rows[3] == ("1,024", *["1.02 ×"] * 6) and len(rows) == 8
    assert [row[0] for row in performance.readme(record)[1]] == ["1,024", "4,096", "16,384"]
    assert performance.grouped(record).endswith("a batch of 4: full 4.10 ×, causal 4.10 ×.")
    rows = performance.peers(record)[1]
    tflops = 4 * 16384 * 2048 * 4096 / 1e9
    assert rows[0] == ("64, full", "`fa2_mma`", "1.000", f"{tflops:.0f}", "64", "0.25")
    assert rows[1][1:3] == ("torch, FLASH", "4.096") and len(rows) == 4 * 5 + 2 * 4
    assert rows[3][2].startswith("head_dim should be / at most") and len(rows[3][2]) <= 62
    assert performance.memory(record)[1] == [("1,024", "1,024.0", "–"), ("4,096", "4,096.0", "–")]
    assert performance.overhead(record)[1] == [("torch", "10.0"), ("`fa2_mma`", "15.0")]
    assert performance.resources(record)[1] == [("`fa2_mma`", "64", "128", "250", "16", "65,536", "2")]
    assert performance.factors(record)[1][0] == ("64, causal", *["3.00 ×"] * 8)
    assert performance.judged(record)[1][0][2] == "missed"


def test_a_case_that_was_not_measured_is_a_dash():
    record = made_up()
    record["cells"] = [c for c in record["cells"] if c["peer"] != "flash" or c["case"]["N"] != 512]
    assert performance.ratios(record)[1][2] == ("512", *["–"] * 6)
    assert performance.grouped(made_up() | {"cells": record["cells"][:8]}) is None


def test_every_text_has_its_marks_and_every_table_its_columns():
    """The page, and the README: what would be written stands between marks that are there."""
    page = ROOT / "docs" / "performance.md"
    texts = generate.performance_texts(made_up())
    for name, text in texts.items():
        assert marks.read(page, name)
        tables = [[line.count("|") for line in block.splitlines()] for block in text.split("\n\n") if "|" in block[:1]]
        assert len(tables) == 1 and len(set(tables[0])) == 1, name
    assert marks.read(ROOT / "README.md", "speed")
    speed = generate.speed_text(made_up())
    assert "a card, 2001-02-03" in speed and len(speed.splitlines()) == 2 + 5
    assert generate.tabled(performance.factors({"cells": []})) == "Not measured."


class Noted:
    """A sheet that notes what is drawn."""

    def __init__(self, _):
        self.lines, self.boxes, self.words = [], [], []

    def arrow(self, *ends, color, line, style):
        self.lines.append((ends, color))

    def box(self, *place, edge):
        self.boxes.append((*place[:2], place[4]))

    def text(self, _x, _y, words, **_):
        self.words.append(words)


def test_the_picture_shows_every_ratio_where_it_belongs():
    slow = Case(8, 8, 8, 2048, 256, True)
    record = made_up(speeds=lambda case: 0.5 if case == slow else 1.25)
    sheet = performance_picture.picture(record, SimpleNamespace(Sheet=Noted, INK="ink", FAINT="faint"))
    assert len(sheet.boxes) == 48 and {words for words in sheet.words if words.startswith("d =")} == {
        "d = 64", "d = 128", "d = 256"}
    x, y, color = max(sheet.boxes, key=lambda box: box[1])          # the lowest of all points is the slow one
    assert color == performance_picture.COLORS[2] and x > 390
    one, = (ends for ends, color in sheet.lines if color == "ink" and ends[0] == 390)
    half = next(ends for ends, color in sheet.lines if ends[1] == y + 3 and color != "ink")
    assert half[0] < 390 and half[1] > one[1]
    assert len([ends for ends, color in sheet.lines if color in performance_picture.COLORS[:3]]) == 6 * 7 + 3
    assert "lowest point is 0.50, the highest 1.25" in performance_picture.described(record)
    assert len(performance_picture.described(record).split()) >= 15


def test_the_picture_is_drawn(tmp_path):
    from fa_ref import drawing

    performance_picture.picture(made_up(), drawing).save(tmp_path / "speed.svg")
    svg = (tmp_path / "speed.svg").read_text(encoding="utf-8")
    assert "fill: #fdfdfa" in svg and "16K" in svg and "causal" in svg
    assert min(float(size) / 0.75 for size in re.findall(r"font-size: ([\d.]+)px", svg)) >= 10
