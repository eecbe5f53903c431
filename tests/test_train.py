"""`python -m cuda_kernels train`: a tiny GPT on the CPU, the rule for its curves, and what is asked for and written.

What it says on a GPU stands in docs/performance.md.
"""

import json
import math
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import cuda_kernels
from cuda_kernels import train
from cuda_kernels.train import attentions, curves, data, measure, show, sizes, speed, targets
from cuda_kernels.train.attentions import ATTENTIONS, eager, ours
from cuda_kernels.train.model import GPT
from cuda_kernels.train.sizes import Size

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402
import marks  # noqa: E402
import training as tables  # noqa: E402
import training_picture  # noqa: E402

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="what it says without a GPU; here is one")
SIZE, STEPS = Size(2, 32, 8, 32, 256), 60
TEXT = data.encoded("a test", "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 20)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Of torch: for so little work several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the attentions and the model -----------------------------------------------------------------------------

@pytest.mark.parametrize("name", ATTENTIONS)
def test_all_attentions_are_the_same_function(name):
    """Values and gradients, in float32."""
    q, k, v, dout = torch.randn(4, 2, 3, 6, 8, generator=torch.Generator().manual_seed(2))
    wanted, found = [], []
    for attention, into in ((torch.nn.functional.scaled_dot_product_attention, wanted), (ATTENTIONS[name], found)):
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*given, is_causal=True) if into is wanted else attention(*given)
        into += [out, *torch.autograd.grad(out, given, dout)]
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


def test_the_model_foretells_the_next_token_from_those_before_it():
    """At first it knows nothing; a token that is changed leaves the losses of those before it as they are."""
    torch.manual_seed(0)
    model, tokens = GPT(10, 2, 16, 8, 6), torch.randint(10, (3, 7))
    assert model(tokens, ours).item() == pytest.approx(math.log(10), rel=0.02)
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 10
    for N, same in ((3, True), (4, False), (6, False)):              # tokens 0 … N
        assert (model(tokens[:, :N + 1], ours) == model(other[:, :N + 1], ours)).item() is same
    assert {type(block).__name__ for block in model.blocks} == {"Block"} and len(model.blocks) == 2


# --- what is read ---------------------------------------------------------------------------------------------

def test_the_text_is_our_own_and_can_be_read_back():
    text = data.text()
    words = "".join(text.characters[n] for n in text.tokens[:2000])
    assert words == (ROOT / "README.md").read_text(encoding="utf-8")[:2000] and text.name == "README.md and docs/"
    assert len(text.tokens) > 100_000 and list(text.characters) == sorted(set(text.characters))


def test_without_the_repository_it_is_the_sources(monkeypatch, tmp_path):
    for package in ("fa_ref", "cuda_kernels"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"# {package}", encoding="utf-8")
        monkeypatch.setattr(getattr(data, package), "__file__", str(tmp_path / package / "__init__.py"))
    text = data.text()
    assert "".join(text.characters[n] for n in text.tokens) == "# cuda_kernels\n# fa_ref"
    assert text.name == "the sources of the two packages"


def test_pieces_come_from_everywhere_and_are_the_same_for_a_seed():
    size = Size(1, 8, 8, 4, 400)                                    # 100 pieces of 5
    tokens = torch.arange(12)
    drawn = [data.pieces(tokens, size, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*drawn) and drawn[0].shape == (100, 5)
    assert set(drawn[0][:, 0].tolist()) == set(range(8)) and (drawn[0].diff() == 1).all()
    with pytest.raises(ValueError, match="the text has 4 characters, and a piece needs 5"):
        data.pieces(tokens[:4], size, torch.Generator())


# --- the curves -----------------------------------------------------------------------------------------------

def curve(attention, half=True):
    return curves.run(SIZE, TEXT, attention, half, STEPS, "cpu")


@pytest.fixture(scope="module")
def yardsticks():
    """(standard attention in bfloat16, in float32)."""
    return curve(eager), curve(eager, half=False)


def held(found, yardsticks):
    return targets.two_errors(found, *yardsticks, SIZE.tokens)


@pytest.mark.parametrize("name", ["ours", "flash"])
def test_the_loss_falls_and_the_curve_is_that_of_standard_attention(name, yardsticks):
    found = curve(ATTENTIONS[name])
    assert targets.learned(found).met and found[-1] < found[0] - 1
    assert held(found, yardsticks).holds and held(found, yardsticks).error > 0


def future(q, k, v):
    """Not causal."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def other_scale(q, k, v):
    """1/d instead of 1/√d."""
    return ours(q / math.sqrt(q.shape[3]), k, v)


def lost_gradient(q, k, v):
    """Right forward, and k gets no gradient."""
    return ours(q, k.detach(), v)


@pytest.mark.parametrize("wrong", [future, other_scale, lost_gradient], ids=lambda wrong: wrong.__name__)
def test_a_wrong_attention_is_caught_by_the_rule(wrong, yardsticks):
    found = curve(wrong)
    assert targets.learned(found).met                               # nothing is to be seen in the curve itself …
    assert not held(found, yardsticks).holds                        # … but for its distance


def test_the_rule_of_two_errors():
    """The truth is exact in bfloat16, so standard attention alone says what is allowed: 0.08."""
    truth, plain = np.full(5, 2.0), np.array([2.0, 2.01, 1.96, 2.0, 2.0])
    assert targets.two_errors(plain, plain, truth, 100).allowed == pytest.approx(0.08)
    assert targets.two_errors([2, 2, 2.0799, 2, 2], plain, truth, 100).holds
    assert not targets.two_errors([2, 2, 2, 2, 1.9], plain, truth, 100).holds
    assert not targets.two_errors([2, 2, math.nan, 2, 2], plain, truth, 100).holds


def test_what_rounding_may_cost_shrinks_with_the_tokens():
    """A quarter of the distance 2⁻⁶ between two numbers of bfloat16."""
    truth = [2.0, 2 + 2**-8, 3.0]
    few, many = (targets.two_errors(truth, truth, truth, tokens).allowed for tokens in (1, 10_000))
    assert few == pytest.approx(2 * 2**-8) and many == pytest.approx(few / 100)


@pytest.mark.parametrize(("losses", "met"), [([3, 2], True), ([3, 3.1], False), ([3, 3], False), ([3], None),
                                             ([3.0] + [1] * 17 + [4, 4.5], False), ([3, math.nan], False)])
def test_the_last_tenth_is_held_against_the_first_loss(losses, met):
    assert targets.learned(losses).met is met


# --- the speed ------------------------------------------------------------------------------------------------

def test_an_attention_without_memory_leaves_its_reason(monkeypatch):
    def greedy(q, k, v):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of …")

    monkeypatch.setitem(attentions.ATTENTIONS, "eager", greedy)
    row = speed.measured(Size(1, 8, 8, 4, 8), "cpu", 3)
    assert row["attentions"]["eager"] == {"why": "CUDA out of memory. Tried to allocate 8.00 GiB."}
    assert all(row["attentions"][name]["tokens_per_s"] > 0 for name in ("ours", "flash"))
    assert targets.ratio(row, "eager") is None and targets.ratio(row) > 0


def test_a_round_goes_forwards_and_backwards_and_the_first_does_not_count(monkeypatch):
    """On a clock that b slows down: a's second turn in a round comes after both of b's."""
    told, clock = [], [0.0, 1.0]                                    # the time; what a step takes

    def turn(name, slower, steps):
        told.append(f"{name}{steps}")
        clock[0] += clock[1] * steps
        clock[1] *= slower

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    times = speed.timed([partial(turn, "a", 1), partial(turn, "b", 2 ** 0.5)], 1, "cpu")
    assert told == 2 * ["a1", "a2", "b1", "b2", "b1", "b2", "a1", "a2"]    # a step that does not count, two that do
    assert times[0] == [pytest.approx(4 * 1e3 * (1 + 4) / 2)]       # everything is four times slower by then
    assert times[1] == [pytest.approx(4 * 1e3 * 2 ** 0.5 * (1 + 2) / 2)]


def test_standard_attention_has_rounds_of_its_own(monkeypatch):
    groups = []

    def timed(calls, rounds, device):
        groups.append(len(calls))
        return [[1.0] * rounds for _ in calls]

    monkeypatch.setattr(speed, "timed", timed)
    speed.measured(Size(1, 8, 8, 4, 8), "cpu", 3)
    assert groups == [2, 1] and speed.together(["flash", "ours"]) == [["flash", "ours"], []]


def test_what_slows_a_round_down_slows_both():
    """Medians of each alone would be 1; of the rounds ours is faster in two of three."""
    ours, flash = {"rounds_ms": [1.0, 2.0, 3.0], "ms": 2.0}, {"rounds_ms": [2.0, 3.0, 1.0], "ms": 2.0}
    row = {"attentions": {"ours": ours, "flash": flash, "eager": {"why": "no memory"}}}
    assert targets.ratio(row) == 1.5 and targets.ratio(row, "flash") == 1 and targets.ratio(row, "eager") is None
    assert targets.quartiles(row) == [pytest.approx(1 / 3), 2] and targets.quartiles(row, "eager") is None
    row["attentions"]["eager"] = {"rounds_ms": [8.0, 3.0, 8.0], "ms": 8.0}     # in rounds of its own: medians count
    assert targets.ratio(row, "eager") == 0.25 and targets.quartiles(row, "eager") is None


# --- what is asked for ----------------------------------------------------------------------------------------

def test_what_is_trained():
    plan = train.parsed([])[1]
    assert [(*size, size.B) for size in plan.speed] == [
        (12, 1024, 64, 2048, 16384, 8), (12, 1024, 64, 8192, 16384, 2),
        (12, 2048, 128, 2048, 16384, 8), (12, 2048, 128, 8192, 16384, 2)]
    assert plan.curve == Size(6, 384, 64, 1024, 16384) and plan.steps == 400
    quick = train.parsed(["--quick"])[1]
    assert len(quick.speed) == 1 and quick.steps < plan.steps
    _, own = train.parsed(["--layers", "3", "--hidden", "2048,512", "--seqlens", "512,64", "--tokens", "1024",
                           "--steps", "7"])
    assert own.speed[0] == own.curve == Size(3, 2048, 128, 512, 1024) and own.steps == 7
    assert own.speed[-1] == Size(3, 512, 64, 64, 1024) and len(own.speed) == 4


@pytest.mark.parametrize(("arguments", "said"), [
    (["--hidden", "1000"], "--hidden must be a multiple of the head dim 64, got 1000"),
    (["--hidden", "4000"], "multiple of the head dim 128, got 4000"),
    (["--device", "cpu", "--hidden", "16,20"], "multiple of the head dim 8, got 20"),
    (["--seqlens", "2048,3000"], "--seqlens must divide the 16384 tokens of a step, got 3000"),
    (["--seqlens", "0"], "--seqlens must divide .* got 0"),
    (["--tokens", "-5"], "--tokens must be at least 1 .* got -5"),
    (["--tokens", "2147483648"], "--tokens must be .* below 2³¹, got 2147483648"),
    (["--steps", "0"], "--steps must be at least 1, got 0"), (["--layers", "-1"], "--layers must be .* 1, got -1"),
    (["--hidden", "x"], "'x' is no list of whole numbers"), (["--save", "/no/such/folder/x"], "no folder /no/such"),
    (["--save", "/"], "--save takes a file, and / is a folder"),
    (["--save", "/proc/train.json"], "--save: /proc/train.json cannot be written: "),
    (["--device", "tpu"], "invalid choice: 'tpu'")])
def test_bad_options_are_refused_by_name(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        train.parsed(arguments)
    assert re.search(said, capsys.readouterr().err)


def test_a_text_that_is_too_short_is_noticed_first(monkeypatch, capsys):
    monkeypatch.setattr(speed, "measured", lambda *x: pytest.fail("it ran"))
    assert train.main(["--device", "cpu", "--seqlens", "8388608", "--tokens", "8388608"]) == 2
    assert re.search(r"the text has \d+ characters, and a piece needs 8388609\n", capsys.readouterr().out)


@simulated
def test_without_a_gpu_it_says_so(capsys):
    assert train.main(["--quick"]) == 2 and "--device cpu" in capsys.readouterr().out


# --- what is written ------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Of the whole command, tiny."""
    file = tmp_path_factory.mktemp("train") / "train.json"
    options = ["--hidden", "16", "--seqlens", "8", "--tokens", "64", "--steps", "30", "--layers", "1"]
    assert train.main(["--device", "cpu", "--save", str(file), *options]) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_command_measures_everything(record):
    assert record["device"] == "cpu" and len(record["speed"]) == 1
    assert set(record["speed"][0]["attentions"]) == set(ATTENTIONS)
    assert set(record["curves"]["losses"]) == {*ATTENTIONS, "float32"}
    assert {len(losses) for losses in record["curves"]["losses"].values()} == {30}
    assert [target.met for target in targets.judged(record)] == [None, True, True]


def test_progress_is_told_as_often_as_announced():
    plan, told = sizes.plan("cpu", layers=1, hidden=(8,), seqlens=(4,), tokens=8, steps=12), []
    measure.everything(plan, "cpu", told.append)
    assert len(told) == measure.parts(plan) == 4 + 4 * 10


def test_an_attention_that_was_added_is_judged_and_drawn(record, tmp_path):
    """One that sees the future, say: its curve is off."""
    from fa_ref import drawing

    losses = record["curves"]["losses"]
    wrong = record | {"curves": record["curves"] | {"losses": losses | {"mine": [x + 0.5 for x in losses["float32"]]}}}
    found = {target.what: target.met for target in targets.judged(wrong)}
    assert found["loss curve of mine, by the rule of two errors"] is False
    assert found["loss curve, by the rule of two errors"] is True
    training_picture.picture(wrong, drawing).save(tmp_path / "x.svg")
    assert ">mine<" in (tmp_path / "x.svg").read_text(encoding="utf-8")


def test_what_a_cpu_measured_is_not_written_into_the_page(record, tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(SystemExit, match="a CPU, whose times mean nothing"):
        generate.training(file)


def on_a_gpu(record, *ratios):
    """The record as if it came from there: a row for each ratio to torch's tokens/s."""
    rows = [{"size": Size(12, 1024, 64, 2048 * 2**n, 16384)._asdict(), "attentions": {
        "ours": {"rounds_ms": [10 / x] * 3, "ms": 10 / x, "mb": 3.0, "tokens_per_s": 1e6 * x},
        "flash": {"rounds_ms": [10.0] * 3, "ms": 10.0, "mb": 3.0, "tokens_per_s": 1e6},
        "eager": {"why": "CUDA out of memory. Tried to allocate 8.00 GiB."}}} for n, x in enumerate(ratios)]
    return record | {"device": "cuda", "speed": rows}


def test_a_run_that_breaks_off_shows_what_it_has(monkeypatch, capsys, tmp_path):
    def fails(*arguments, **how):
        raise RuntimeError("CUDA out of memory.\nMore words")

    monkeypatch.setattr(curves, "measured", fails)
    file = tmp_path / "train.json"
    assert train.main(["--device", "cpu", "--save", str(file), "--hidden", "16", "--seqlens", "8", "--tokens", "64",
                       "--layers", "1"]) == 2
    told = capsys.readouterr().out
    assert "tokens/s" in told and "not be measured to the end: CUDA out of memory.\n" in told and "More" not in told
    assert len(json.loads(file.read_text(encoding="utf-8"))["speed"]) == 1


def test_the_slowest_size_counts(record):
    assert [targets.fast(on_a_gpu(record, *ratios)).met for ratios in ((1.2, 1.0), (1.2, 0.99))] == [True, False]
    assert targets.fast(on_a_gpu(record, 1.2, 0.99)).found == (
        "1 of 2; least 0.990 × at hidden 1024, d = 64, N = 4096")
    none = on_a_gpu(record, 1.0)
    none["speed"][0]["attentions"]["ours"] = {"why": "refused"}
    assert targets.fast(none).met is False                          # torch can, we cannot
    none["speed"][0]["attentions"]["flash"] = {"why": "refused"}
    assert targets.fast(none).met is None


def test_the_terminal_shows_speeds_reasons_curves_and_verdicts(record, capsys):
    show.everything(on_a_gpu(record, 1.25))
    told = capsys.readouterr().out
    for table in (r"× flash .*\n.*\n .* ours .* 1\.250 +1\.250–1\.250 ", "eager .* out of memory",
                  r"loss at step .* 30 +largest distance", r"\n float32 +\d\.\d{3} ", r"the loss falls .* met"):
        assert re.search(table, told), table


def test_every_text_has_its_marks_and_every_table_its_columns(record):
    page = ROOT / "docs" / "performance.md"
    for name, text in generate.training_texts(on_a_gpu(record, 1.25, 1.5)).items():
        assert marks.read(page, name)
        widths = [line.count(" | ") for line in text.splitlines() if line.startswith("| ")]
        assert len(set(widths)) <= 1 and "Not measured" not in text
    assert "| 1.250 | 1.250–1.250 |" in generate.training_texts(on_a_gpu(record, 1.25))["training-speed"]
    assert tables.where(record).startswith("CPU")


def test_the_picture_can_be_drawn(record, tmp_path):
    from fa_ref import drawing

    for found in (record, on_a_gpu(record, 1.25, 0.5)):
        training_picture.picture(found, drawing).save(tmp_path / "x.svg")
    svg = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert all(words in svg for words in (">memory<", ">1.25<", ">0.50<", "step 30", "allowed"))
    assert "0.50 to 1.25 times" in training_picture.described(on_a_gpu(record, 1.25, 0.5))


@pytest.mark.parametrize("top", [0.013, 0.9, 1.3, 5, 47])
def test_ticks_are_few_and_round(top):
    ticks = training_picture.ticks(top)
    assert 3 <= len(ticks) <= 7 and ticks[0] == 0 and top - (ticks[1] - ticks[0]) < ticks[-1] <= top
