"""docs/claims.md is what its command writes, has every claim once, and what it computes can fail."""

import inspect
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import claims  # noqa: E402
from evidence import EVIDENCE, blocks, memory, warps  # noqa: E402

import cuda_kernels  # noqa: E402
from cuda_kernels import counts  # noqa: E402

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
         re.findall(r"^\*(Counted|Arithmetic)\* \(`(\w+)`\): (.+)\.$", PAGE, re.MULTILINE)}


@pytest.fixture(scope="module")
def computed():
    return claims.computed()


def test_around_what_is_computed_the_page_is_what_the_command_writes():
    assert claims.text(SHOWN) == PAGE, "run: python docs/claims.py"


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(computed):
    assert claims.text(computed) == PAGE, "run: python docs/claims.py"


def test_many_claims_are_shown_by_running_code():
    kinds = Counter(claims.kind_of(claim, SHOWN) for claim in CLAIMS if claim.run)
    assert kinds["counted"] >= 25 and set(kinds) == {"counted", "arithmetic"}
    assert {name: kind for name, (_, kind) in SHOWN.items()} == {name: kind for name, (_, kind) in EVIDENCE.items()}


def wrong(value):
    """Something else than an expected value."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"no {value}"
    if isinstance(value, tuple):
        return wrong(value[0]), *value[1:]
    return 0 if value else 1


NUMBERS = [(name, argument) for name, (function, _) in EVIDENCE.items() for argument in
           inspect.signature(function).parameters]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), NUMBERS, ids=[f"{name}-{argument}" for name, argument in NUMBERS])
def test_a_wrong_number_is_rejected(computed, name, argument):
    function, _ = EVIDENCE[name]
    expected = inspect.signature(function).parameters[argument].default
    with pytest.raises(AssertionError):
        function(**{argument: wrong(expected)})


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
