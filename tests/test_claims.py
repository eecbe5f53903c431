"""docs/claims.md is what its command writes, has every claim once, and what it computes can fail."""

import copy
import inspect
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import claims  # noqa: E402
from evidence import EVIDENCE, blocks, gpu_memory, memory, records, rungs, speed, speed_backward, warps  # noqa: E402

import cuda_kernels  # noqa: E402
from cuda_kernels import counts  # noqa: E402
from cuda_kernels.bench import grid, targets  # noqa: E402

pytestmark = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="barriers are counted in the simulator")

EXPECTED = {f"{letter}-{n}" for letter, most in (("A", 25), ("B", 33), ("C", 39)) for n in range(1, most + 1)}
PAGE = claims.PAGE.read_text(encoding="utf-8")
CLAIMS = claims.claims()
SOURCE = re.compile(r"FA\d|v\d\.\d|README|arXiv|\bpapers?\b|\bauthors?\b|official|NVIDIA|CUDA programming guide|"
                    r"PyTorch's|Transformers")


# --- the claims -----------------------------------------------------------------------------------------------

def test_every_claim_is_there_once():
    assert Counter(claim.id for claim in CLAIMS) == Counter(EXPECTED)
    assert Counter(re.findall(r"^### (\S+)$", PAGE, re.MULTILINE)) == Counter(EXPECTED)


def test_every_claim_says_what_settles_it():
    for claim in CLAIMS:
        assert claim.verdict in claims.VERDICTS, claim.id
        assert claim.says.endswith((".", "…\".", "FlashDecoding++\".")), claim.id
        assert len(claim.because) > 10 and claim.because.endswith("."), claim.id
        assert isinstance(claim.unmeasured, str) and not claim.unmeasured.endswith("."), claim.id
        if claim.verdict != "unverifiable":
            assert SOURCE.search(claim.because), f"{claim.id}: no source"


def test_the_verdicts_add_up():
    rows = [[int(n) for n in re.findall(r"\| (\d+)(?= )", line)]
            for line in re.findall(r"^\| (?:A|B|C|all) \|.*", PAGE, re.MULTILINE)]
    assert all(sum(row[:-1]) == row[-1] for row in rows) and [row[-1] for row in rows] == [25, 33, 39, len(EXPECTED)]
    assert [sum(column) for column in zip(*rows[:-1], strict=True)] == rows[-1]
    for (verdict, words), number in zip(claims.VERDICTS.items(), rows[-1], strict=False):
        assert number == sum(claim.verdict == verdict for claim in CLAIMS)
        assert number == len(re.findall(rf"^\*\*{re.escape(words)}\*\*", PAGE, re.MULTILINE))


def test_the_most_harmful_come_first_and_are_not_right():
    verdicts = {claim.id: claim.verdict for claim in CLAIMS}
    named = [i for ids, _ in claims.harmful() for i in ids]
    assert len(set(named)) == len(named) and all(verdicts[i] != "correct" for i in named)
    assert PAGE.index("## The most harmful errors") < PAGE.index("### ")
    for ids, right in claims.harmful():
        assert len(re.findall(r"[.!](?: |$)", right)) == 2, f"{ids}: two sentences, not: {right}"
        assert right in PAGE


def test_no_word_is_left_without_a_place():
    """Fields that a file misspells are refused, and so is a verdict that is not there."""
    with pytest.raises(TypeError):
        claims.Claim(id="A-1", says=".", verdict="wrong", because=".", becuase=".")
    with pytest.raises(KeyError):
        claims.entry(claims.Claim(id="A-1", says=".", verdict="maybe", because="."), {})
    with pytest.raises(KeyError):
        claims.entry(claims.Claim(id="A-1", says=".", verdict="wrong", because=".", run=("nothing",)), {})


# --- what is computed -----------------------------------------------------------------------------------------

SHOWN = {name: (line, kind.lower()) for kind, name, line in
         re.findall(r"^\*(Counted|Arithmetic|Measured)\* \(`(\w+)`\): (.+)\.$", PAGE, re.MULTILINE)}
SHOWN |= {name: (None, "measured") for name in
          re.findall(r"^\*Not yet measured here\* \(`(\w+)`\): no record is kept\.$", PAGE, re.MULTILINE)}


@pytest.fixture(scope="module")
def computed():
    return claims.computed()


def test_around_what_is_computed_the_page_is_what_the_command_writes():
    assert claims.text(SHOWN) == PAGE, "run: python docs/claims.py"


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(computed):
    assert claims.text(computed) == PAGE, "run: python docs/claims.py"


def test_many_claims_are_shown_by_running_code():
    kinds = Counter(kind for claim in CLAIMS for kind in claims.kinds_of(claim, SHOWN))
    assert kinds["counted"] >= 25 and kinds["measured"] >= 15 and set(kinds) == {"counted", "arithmetic", "measured"}
    assert {name: kind for name, (_, kind) in SHOWN.items()} == {name: kind for name, (_, kind) in EVIDENCE.items()}


def wrong(value, argument=""):
    """Something else than an expected value; for the limits of what was measured, one that nothing keeps."""
    if argument.startswith(("least", "most")):
        return 1e9 if argument.startswith("least") else 0
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"no {value}"
    if isinstance(value, tuple):
        return wrong(value[0]), *value[1:]
    return 0 if value else 1


NUMBERS = [(name, argument) for name, (function, _) in EVIDENCE.items() for argument, value in
           inspect.signature(function).parameters.items() if value.default is not value.empty]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), NUMBERS, ids=[f"{name}-{argument}" for name, argument in NUMBERS])
def test_a_wrong_number_is_rejected(computed, name, argument):
    function, _ = EVIDENCE[name]
    assert computed[name][0] is not None, "its record is missing"
    expected = inspect.signature(function).parameters[argument].default
    with pytest.raises(AssertionError):
        function(**{argument: wrong(expected, argument)})


def test_every_function_expects_something():
    assert {name for name, _ in NUMBERS} == set(EVIDENCE)


# Other things in the place of what is measured: what the page says would not be true of them.

def test_split_q_in_the_place_of_split_k_is_noticed(monkeypatch):
    """If the warps of FlashAttention-1 had rows of their own, as the book says, the page would say otherwise."""
    rows = {("fa1_warps", n): counts.head("fa2_warps", 8, 8, 16, 16, 8, 8, n) for n in (1, 4)}
    monkeypatch.setattr(warps, "warps_counted", lambda: rows)
    with pytest.raises(AssertionError, match=r"found \[0, 0\], expected \[144, 576\]"):
        warps.split_k_must_tell()


def test_one_barrier_in_the_place_of_two_is_noticed(monkeypatch):
    monkeypatch.setattr(warps, "warps_counted", dict)
    monkeypatch.setattr(counts, "pair", lambda *_: counts.OnChip(barriers=1))
    with pytest.raises(AssertionError, match=r"found \[1, 1\], expected \[3, 2\]"):
        warps.barriers_of_a_pair()


def test_fa1_in_the_place_of_fa2_is_noticed(monkeypatch):
    metered = memory.metered
    monkeypatch.setattr(memory, "metered", lambda name, **options: metered("fa1", **options))
    with pytest.raises(AssertionError):
        memory.output_is_written_once()
    schedule = blocks.blocks.schedule
    monkeypatch.setattr(blocks.blocks, "schedule", lambda name, **options: schedule("fa1", **options))
    with pytest.raises(AssertionError, match=r"found \[1, 1\], expected \[1, 128\]"):
        blocks.a_head_in_many_blocks()


# --- what was measured ----------------------------------------------------------------------------------------

MEASURED = {name: function for name, (function, kind) in EVIDENCE.items() if kind == "measured"}
FORWARD, LADDER = records.kept("forward"), records.kept("ladder")


def backward_record(slower=3.5, standard_grows=16.0):
    """A record of backward passes, made up from that of forward passes: every time longer by a factor."""
    record = copy.deepcopy(FORWARD) | {"pass": "backward"}
    for cell in record["cells"]:
        cell |= {"ms": cell["ms"] * slower} if "ms" in cell else {}
    for row in record["memory"]:
        row["math"] = row["N"] * standard_grows**(row["N"] / record["memory"][-1]["N"])
    return record


def reversed_times(record, first, second):
    """The record with the times and the memory of two peers the other way round."""
    record = copy.deepcopy(record)
    names = {first: second, second: first}
    for cell in record["cells"]:
        cell["peer"] = names.get(cell["peer"], cell["peer"])
    for row in record["memory"]:
        row[first], row[second] = row[second], row[first]
    return record


def test_what_is_said_of_measurements_is_what_the_records_give():
    for name, function in MEASURED.items():
        assert SHOWN[name][0] == function(), f"{name}: run python docs/claims.py"


def test_measured_functions_have_limits_and_no_numbers():
    arguments = [argument for name, argument in NUMBERS if name in MEASURED]
    assert len(arguments) > 15 and all(argument.startswith(("least", "most")) for argument in arguments)


def test_a_missing_record_leaves_the_claim_unmeasured(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert [function() for function in MEASURED.values()] == [None] * len(MEASURED)
    claim = claims.Claim(id="A-1", says=".", verdict="wrong", because=".", run=("factor_to_fa1",))
    evidence = {"factor_to_fa1": (None, "measured")}
    assert "*Not yet measured here* (`factor_to_fa1`): no record is kept." in claims.entry(claim, evidence)
    assert claims.kinds_of(claim, evidence) == set()


@pytest.mark.parametrize(("function", "first", "second"), [
    (speed.factor_to_fa1, "fa1_mma", "fa2_mma"), (speed.factor_grows_when_heads_are_few, "fa1_mma", "fa2_mma"),
    (speed.factor_to_standard, "flash", "math"), (speed.fa1_to_standard, "fa1_mma", "math"),
    (speed.gain_by_length, "flash", "math"), (speed.heads_of_llama, "cudnn", "flash"),
    (speed.more_heads_fill_the_card, "fa1_mma", "flash"), (gpu_memory.memory_by_length, "flash", "math"),
    (gpu_memory.one_number_a_row, "flash", "math")], ids=lambda x: getattr(x, "__name__", x))
def test_a_forward_record_the_other_way_round_is_rejected(function, first, second):
    function(FORWARD)
    with pytest.raises(AssertionError, match=r"found .*, expected at (least|most)"):
        function(reversed_times(FORWARD, first, second))


def test_shares_of_the_peak_that_would_change_a_verdict_are_rejected():
    speed.share_of_a_hopper_card(FORWARD, LADDER)
    for first, second in (("flash", "math"), ("flash", "cudnn")):           # far too slow, and as fast as claimed
        with pytest.raises(AssertionError, match="percent of the peak in FLASH"):
            speed.share_of_a_hopper_card(reversed_times(FORWARD, first, second), LADDER)
    with pytest.raises(AssertionError, match="products alone"):
        speed.share_of_a_hopper_card(FORWARD, LADDER | {"matrix_rate": 400.0})


def test_a_ladder_the_other_way_round_is_rejected():
    times = {(row["rung"], row["d"], row["causal"]): row["ms"] for row in LADDER["rows"] if not row["spills"]}
    for function, first, second in ((rungs.queries_split_among_warps, "r2", "r3"), (rungs.from_end_to_end, "r0", "r3"),
                                    (rungs.from_end_to_end, "r3", "r8")):
        function(LADDER)
        names = {first: second, second: first}
        rows = [row | {"ms": times[names.get(row["rung"], row["rung"]), row["d"], row["causal"]]}
                for row in LADDER["rows"] if not row["spills"]]
        with pytest.raises(AssertionError, match=r"found .*, expected at least"):
            function(LADDER | {"rows": rows})


def test_backward_records_are_read_and_wrong_ones_rejected():
    """Of made-up ones, so also while there is none."""
    good, fast, slow = backward_record(), backward_record(slower=1.5), backward_record(slower=9.0)
    flat = backward_record(standard_grows=1.0)
    rate = targets.tera(grid.Case(1, 16, 16, 16384, 128, False), 1.0, "backward")
    assert rate == 2.5 * targets.tera(grid.Case(1, 16, 16, 16384, 128, False), 1.0)
    for function, given, bad in (
            (speed_backward.backward_is_behind_forward, (FORWARD, good), (FORWARD, fast)),
            (speed_backward.backward_share_of_a_hopper_card, (good,), (fast,)),
            (speed_backward.both_passes_on_a_hopper_card, (FORWARD, good), (FORWARD, slow)),
            (gpu_memory.memory_of_both_passes, (good,), (flat,))):
        assert function(*given).startswith(records.where(FORWARD)), function.__name__
        with pytest.raises(AssertionError, match=r"found .*, expected at (least|most)"):
            function(*bad)


def test_a_record_of_half_a_grid_is_named():
    short = FORWARD | {"cells": [cell for cell in FORWARD["cells"] if cell["case"]["N"] < 4096]}
    with pytest.raises(LookupError, match="was the whole grid measured"):
        speed.factor_to_standard(short)


def test_a_measured_row_stands_behind_the_claim_on_determinism():
    """claims.md and choosing.md point to it."""
    verification = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    assert re.search(r"^\| deterministic=True \| ok \| the same bits in \d+ runs; with atomics [1-9]\d* of \d+ differ",
                     verification, re.MULTILINE)


# --- the pages beside it --------------------------------------------------------------------------------------

def test_the_bibliography_corrects_what_the_claims_call_wrong():
    text = (ROOT / "docs" / "bibliography.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"\(claims\.md#(\w+-\d+)\)", text))
    assert {"b-31", "b-32", "b-1", "b-3", "b-30"} <= cited <= {i.lower() for i in EXPECTED}
    assert {"2205.14135", "2307.08691", "2407.08608"} <= set(re.findall(r"\b\d{4}\.\d{5}\b", text))


def test_every_choice_has_its_source():
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines() if line.startswith("|") and not re.match(r"\|[-:|]+\|$", line)]
    sourced = [row for row in rows if len(row) == 3 and row[-1] != "source"]
    assert len(sourced) > 30
    assert all(re.search(r"README|FA\d|sources|documentation|notes|abstract|\]\(", row[-1]) for row in sourced)


def test_the_shares_of_the_choosing_page_are_those_of_its_example():
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    example = re.findall(r"^\d+ \d+ \d+ (\d+%) (\d+%)$", text, re.MULTILINE)
    assert example == re.findall(r"^\| \d+ \| [^|]+ \| (\d+%) \| (\d+%) \|", text, re.MULTILINE) and len(example) == 5
