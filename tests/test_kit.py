"""The conformance kit: what it draws, that every property can fail, what it reports, whom it can ask."""

import math
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from fa_ref.testing import (
    PROPERTIES,
    Problem,
    Recipe,
    Result,
    Supports,
    adapters,
    check,
    oracle,
    recipes,
    replay,
    suite,
)
from fa_ref.testing.adapters.keywords import not_taken
from fa_ref.testing.building import AXES, DTYPES
from fa_ref.testing.layouts import LAYOUTS
from fa_ref.testing.recipe import CHOICES
from fa_ref.testing.registry import IMPLEMENTATIONS, coverage_table
from fa_ref.testing.running import try_property
from fa_ref.testing.unread import blind_queries, unread_keys, visible

RIGHT = IMPLEMENTATIONS["fa2"].fn
EVERYTHING = IMPLEMENTATIONS["fa2"].supports
quietly = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}


def drawn(supports=None, count=300, always=()):
    """The first `count` recipes, always the same ones."""
    found = []

    @seed(0)
    @settings(max_examples=count, phases=[Phase.generate], **quietly)
    @given(recipes(supports, always))
    def draw(recipe):
        found.append(recipe)

    draw()
    return found


# --- recipes --------------------------------------------------------------------------------------------------

def test_a_seed_line_brings_the_recipe_back():
    for recipe in drawn():
        assert Recipe.parse(str(recipe)) == recipe


def test_a_seed_line_says_only_what_is_special():
    assert str(Recipe(Nq=2, Nk=3, causal=True, window=(1, -1), seed=7)) == "Nq=2 Nk=3 causal=True window=1,-1 seed=7"
    assert str(Recipe()) == "seed=0"


@pytest.mark.parametrize("line, told", [
    ("Nq", "Nq"), ("rows=3", "rows=3"), ("Nq=-1", "-1"), ("Nq=x", "'x'"), ("Nq=1.5", "1.5"), ("window=3", "3"),
    ("causal=2", "2"), ("sink=1", "1"), ("dtype=int8", "int8"), ("softcap=a", "'a'"), ("Hq=3 Hkv=2", "3 and 2"),
    ("logits=None", "None"), ("d=None", "None"), ("causal=top-left mask=bool", "top-left"), ("layout=odd", "odd"),
    ("logits=-1", "-1"), ("softcap=-2", "-2"),
])
def test_a_seed_line_that_means_nothing_is_refused(line, told):
    with pytest.raises(ValueError, match=told):
        Recipe.parse(line)


def test_the_same_recipe_builds_the_same_bits():
    for recipe in drawn(count=50):
        once, again = vars(recipe.build()), vars(recipe.build())
        for name, x in once.items():
            same = x.tobytes() == again[name].tobytes() if isinstance(x, np.ndarray) else x == again[name]
            assert same, f"{name} of {recipe}"


def test_a_changed_option_leaves_the_numbers_of_the_arrays():
    plain = Recipe(Nq=4, Nk=4, d=2, gradients=True, seed=5)
    numbers = {getattr(plain.build(), name).tobytes() for name in ("q", "k", "v", "dout")}
    assert len(numbers) == 4, "every array has numbers of its own"
    for changes in ({"causal": True}, {"mask": "bool"}, {"sink": True}, {"gradients": False}, {"layout": "mixed"}):
        assert np.array_equal(plain.build().v, plain.but(**changes).build().v)


def test_logits_have_the_size_asked_for():
    for recipe in (Recipe(Nq=40, Nk=40, d=8, logits=20.0, scale=s) for s in (None, 0.3, -0.7)):
        problem = recipe.build()
        scale = 8 ** -0.5 if recipe.scale is None else recipe.scale
        assert 10 < (scale * problem.q @ problem.k.swapaxes(2, 3)).std() < 40


def test_a_mask_without_empty_rows_leaves_every_row_a_key():
    supports = Supports.everything(empty_rows=False)
    for recipe in drawn(supports):
        assert visible(recipe.build()).any(axis=-1).all(), recipe


def test_visible_agrees_with_the_oracle():
    for recipe in drawn(count=100):
        problem = recipe.build()
        seen = np.zeros(visible(problem).shape, bool)
        for row in oracle.rows(problem.q, problem.k, **problem.options):
            seen[row.b, row.h, row.i, row.keys] = True
        assert np.array_equal(seen, visible(problem)), recipe


# --- what is drawn --------------------------------------------------------------------------------------------

def kinds(recipe):
    """The hard kinds and options that a recipe contains."""
    problem = recipe.build()
    seen, (block_q, block_k) = visible(problem), (recipe.block_q, recipe.block_k)
    scale = recipe.d ** -0.5 if recipe.scale is None else recipe.scale
    group = recipe.Hq // recipe.Hkv
    with np.errstate(invalid="ignore"):
        logits = scale * problem.q.astype(float) @ problem.k.astype(float).repeat(group, axis=1).swapaxes(2, 3)
    poisoned = unread_keys(problem)[..., None] & np.isnan(problem.k)
    found = {
        "empty row": recipe.Nk > 0 and not seen.any(axis=-1).all(),
        "row with keys beside an empty one": bool(seen.any() and not seen.any(axis=-1).all()),
        "ragged tail": bool((block_q and recipe.Nq % block_q) or (block_k and recipe.Nk % block_k)),
        "tile > length": (block_q or 0) > recipe.Nq > 0 or (block_k or 0) > recipe.Nk > 0,
        "Nq < Nk": recipe.Nq < recipe.Nk,
        "Nq > Nk": recipe.Nq > recipe.Nk,
        "grouped heads": group > 1,
        "several KV heads, grouped": group > 1 and recipe.Hkv > 1,
        "|logit| > 100": bool((np.abs(np.where(seen, logits, 0)) > 100).any()),
        "Nq = 0": recipe.Nq == 0,
        "Nk = 0": recipe.Nk == 0,
        "B = 0": recipe.B == 0,
        "NaN in unread keys": bool(poisoned.any()),
        "NaN in blind queries": bool(np.isnan(problem.q[blind_queries(problem)]).any()),
        "causal and window": bool(recipe.causal) and recipe.window != (-1, -1),
        "mask and bias": recipe.mask != "none" and recipe.bias != "none",
        "d > 64": recipe.d > 64,
        "scale 0": recipe.scale == 0,
        "scale < 0": recipe.scale is not None and recipe.scale < 0,
    }
    named = {f"layout {recipe.layout}", f"mask {recipe.mask}", f"mask axes {recipe.mask_axes}", recipe.dtype,
             f"alibi {recipe.alibi}", f"bias {recipe.bias}"}
    flags = ("reverse", "gradients", "dlse", "sink", "causal", "softcap", "bias_hides")
    return {name for name, there in found.items() if there} | named | {name for name in flags if getattr(recipe, name)}


ALL_KINDS = {
    "empty row", "row with keys beside an empty one", "ragged tail", "tile > length", "Nq < Nk", "Nq > Nk",
    "grouped heads", "several KV heads, grouped", "|logit| > 100", "Nq = 0", "Nk = 0", "B = 0", "NaN in unread keys",
    "NaN in blind queries", "causal and window", "mask and bias", "d > 64", "scale 0", "scale < 0", "reverse",
    "gradients", "dlse", "sink", "causal", "softcap", "bias_hides", "mask bool", "mask float", "alibi H", "alibi BH",
    *DTYPES,
    *(f"layout {name}" for name in LAYOUTS),
    *(f"mask axes {axes}" for axes in AXES), *(f"bias {axes}" for axes in AXES),
}


def test_300_draws_contain_every_hard_kind():
    counts = Counter(kind for recipe in drawn(count=300) for kind in kinds(recipe))
    assert ALL_KINDS - set(counts) == set()


def test_most_rows_are_not_constant():
    constant = total = 0
    for recipe in drawn():
        problem = recipe.build()
        for name in ("q", "k", "v", "dout"):
            if (x := getattr(problem, name)) is not None and x.size:
                rows = x.reshape(-1, x.shape[-1])
                constant += int((rows == rows[:, :1]).all(axis=1).sum())
                total += len(rows)
    assert constant / total <= 0.4, f"{constant} of {total} rows are constant"


SOME_SUPPORTS = st.builds(
    lambda flags, dtypes, dims, multiples, causal, scale, lse: Supports(
        **flags, dtypes=dtypes, head_dims=dims, length_multiples=multiples, causal=causal, scale=scale, lse=lse),
    st.fixed_dictionaries({name: st.booleans() for name in (
        "window", "bool_mask", "float_mask", "bias", "alibi", "softcap", "sink", "dv_differs", "cross_lengths",
        "zero_lengths", "grouped", "empty_rows", "gradients", "dlse", "strided", "unread_nan", "reverse")}),
    st.sampled_from([("float32",), ("float64", "bfloat16")]), st.sampled_from([None, (2, 8)]),
    st.sampled_from([(1, 1), (4, 2), (2, 3)]), st.sampled_from([None, "bottom-right", "top-left", "square"]),
    st.sampled_from([None, "positive", "any"]), st.sampled_from([None, "natural", "base2"]))


@settings(max_examples=300, **quietly)
@given(st.data())
def test_recipes_are_drawn_only_inside_supports(data):
    supports = data.draw(SOME_SUPPORTS)
    recipe = data.draw(recipes(supports))
    assert supports.refusal(recipe) is None, f"{recipe} for {supports}"


def test_draws_shrink_to_tiny_plain_problems():
    def smallest(wanted):
        return str(find(recipes(), wanted, settings=settings(max_examples=2000, derandomize=True, **quietly)))

    assert smallest(lambda r: r.Nq >= 2 and r.causal) == "Nq=2 Nk=2 dtype=float64 causal=True"
    assert smallest(lambda r: r.sink) == "dtype=float64 sink=True"
    assert smallest(lambda r: r.mask == "bool" and r.Nk > 2) == "Nq=3 Nk=3 dtype=float64 mask=bool"


def test_what_a_property_wants_is_in_all_its_problems():
    for prop in PROPERTIES.values():
        for recipe in drawn(EVERYTHING, 30, prop.always):
            assert set(prop.always) - {"empty_rows"} <= recipe.abilities()


@pytest.mark.parametrize("field, value", [
    ("causal", "lower"), ("lse", "log2"), ("rule", "loose"), ("scale", True), ("dtypes", ("int8",)), ("dtypes", ()),
    ("length_multiples", (64, 64)), ("length_multiples", (64, 1))])
def test_supports_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=field.replace("length_multiples", "64")):
        Supports(**{field: value})


@pytest.mark.parametrize("changes", [{"logits": 0}, {"softcap": 0.0}, {"softcap": -1.0}])
def test_recipes_take_positive_numbers(changes):
    with pytest.raises(ValueError, match="must be a positive number"):
        Recipe(**changes)


def test_no_problem_is_larger_than_was_said():
    for changes in ({"max_heads": 1}, {"max_heads": 2}, {"length_multiples": (2, 3), "max_length": 6}):
        supports = EVERYTHING.but(**changes)
        for recipe in drawn(supports, 100):
            assert recipe.Hq <= max(2, supports.max_heads) and max(recipe.Nq, recipe.Nk) <= supports.max_length
    with pytest.raises(ValueError, match=r"max_length 12 is below 24, .* both \(8, 12\)"):
        Supports(length_multiples=(8, 12))


def test_sequences_of_one_call_are_multiples_too():
    def strict(problem):
        assert problem.q.shape[2] % 2 == 0 and problem.k.shape[2] % 3 == 0
        return RIGHT(problem)

    supports = EVERYTHING.but(length_multiples=(2, 3), packed=lambda problems: [strict(p) for p in problems])
    supports = supports.without("gradients", "dlse")                # dsink would be that of all sequences
    row = try_property("packed_is_a_loop_over_sequences", strict, supports, examples=40)
    assert row.status == "ok", row.detail


# --- every property holds for the right ones ... --------------------------------------------------------------

test_standard = suite(IMPLEMENTATIONS["standard"].fn, IMPLEMENTATIONS["standard"].supports, examples=30)
test_fa1 = suite(IMPLEMENTATIONS["fa1"].fn, IMPLEMENTATIONS["fa1"].supports, examples=30)
test_fa2 = suite(IMPLEMENTATIONS["fa2"].fn, IMPLEMENTATIONS["fa2"].supports, examples=30)
test_fa3 = suite(IMPLEMENTATIONS["fa3"].fn, IMPLEMENTATIONS["fa3"].supports, examples=30)


@pytest.mark.slow
def test_the_oracle_satisfies_what_it_can_be_asked():
    def ask(problem):
        wide = np.float64 if problem.q.dtype == np.float64 else np.float32
        answer = oracle.solve(problem)
        given = {name: x.astype(wide if name in ("lse", "dbias", "dsink") else problem.q.dtype)
                 for name, x in answer._asdict().items() if x is not None}
        return Result(**given)

    report = check(ask, EVERYTHING.without("packed"), examples=30)
    assert report.ok, str(report)


# --- ... and fails for a wrong one ----------------------------------------------------------------------------

def attention(problem, *, start=-math.inf, future=0):
    """A plain answer (out, lse) with seams for faults: where the maximum starts, how far causal sees ahead."""
    group = problem.q.shape[1] // problem.k.shape[1]
    q, k, v = (x.astype(np.float32) for x in (problem.q, problem.k.repeat(group, 1), problem.v.repeat(group, 1)))
    scale = q.shape[3] ** -0.5 if problem.scale is None else problem.scale
    window = problem.window
    if problem.causal:
        problem = problem.replace(causal=False, window=(window[0], future if window[1] < 0 else min(future, window[1])))
    S = np.where(visible(problem), scale * q @ k.swapaxes(2, 3), -np.inf)
    m = S.max(axis=3, initial=start)
    P = np.exp(S - m[..., None])
    l = P.sum(axis=3)
    out = (P @ v) / l[..., None]
    return np.nan_to_num(out).astype(problem.q.dtype), (m + np.log(l)).astype(np.float32)


def forgets_the_tail(problem):
    """Right, but keys of a ragged last tile are not read."""
    whole = problem.k.shape[2] // (problem.block_k or 1) * (problem.block_k or 1)
    return RIGHT(problem.replace(k=problem.k[:, :, :whole], v=problem.v[:, :, :whole]))


def changed(fn, **changes):
    """fn with some fields of its answer changed by functions of (answer, problem)."""
    return lambda p: replace(answer := fn(p), **{name: change(answer, p) for name, change in changes.items()})


calls = Counter()


def restless(problem):
    """A different last bit in every second call."""
    calls["restless"] += 1
    answer = RIGHT(problem)
    return replace(answer, out=np.nextafter(answer.out, np.float32(9))) if calls["restless"] % 2 else answer


def forgets_empty_rows(problem):
    """Allocates out with np.empty and writes only the rows that see a key."""
    answer, out = RIGHT(problem), np.empty(problem.q.shape, problem.q.dtype)
    seen = visible(problem).any(axis=3)
    out[seen] = answer.out[seen]
    return replace(answer, out=out)


def forgets_a_gradient(problem):
    """Allocates dq with np.empty and does not write its last row."""
    answer = RIGHT(problem)
    if answer.dq is None:
        return answer
    dq = np.empty_like(answer.dq)
    dq[:, :, :-1] = answer.dq[:, :, :-1]
    return replace(answer, dq=dq)


def shaky_gradients(problem):
    """Every call has another last bit in dk, as sums by atomics have."""
    calls["shaky"] += 1
    answer = RIGHT(problem)
    if answer.dk is None or not calls["shaky"] % 2:
        return answer
    return replace(answer, dk=np.nextafter(answer.dk, np.float32(9)))


def scales_in_place(problem):
    """Multiplies its argument by the scale."""
    problem.q[...] *= problem.q.shape[3] ** -0.5
    return RIGHT(problem.replace(scale=1.0))


def tiles_the_heads(problem):
    """Query head h uses KV head h % Hkv."""
    group = problem.q.shape[1] // problem.k.shape[1]
    return RIGHT(problem.replace(k=np.tile(problem.k, (1, group, 1, 1)), v=np.tile(problem.v, (1, group, 1, 1))))


def leaks_between_sequences(problems):
    """Packed sequences in which every query sees all keys."""
    k, v = (np.concatenate([getattr(p, name) for p in problems], axis=2) for name in ("k", "v"))
    return [RIGHT(p.replace(k=k, v=v)) for p in problems]


PLAIN = Supports(cross_lengths=True, lse="natural")
WRONG = {
    "equals_the_oracle": [
        (lambda p: RIGHT(p.replace(scale=1.0)), PLAIN),                                  # scale forgotten
        (lambda p: Result(*attention(p, start=0.0)), PLAIN),                             # max seeded with 0
        (lambda p: Result(*attention(p, future=1)), PLAIN.but(causal="bottom-right")),   # sees one key ahead
    ],
    "gradients_equal_the_oracles": [
        (changed(RIGHT, dk=lambda a, p: a.dk * np.float32(p.q.shape[3] ** 0.5)), PLAIN.but(gradients=True)),
        (lambda p: RIGHT(p.replace(dlse=None)), PLAIN.but(gradients=True, dlse=True)),   # dlse ignored
    ],
    "any_tiles_give_the_same": [(forgets_the_tail, PLAIN.but(tiles=(2, 3)))],
    "either_direction_gives_the_same": [
        (lambda p: RIGHT(p.replace(k=p.k[:, :, 1:], v=p.v[:, :, 1:]) if p.reverse else p), PLAIN.but(reverse=True))],
    "parts_merge_to_the_whole": [
        (changed(RIGHT, lse=lambda a, p: a.lse / np.float32(math.log(2))), PLAIN),       # base 2 taken for natural
        (changed(RIGHT, lse=lambda a, p: np.zeros_like(a.lse)), PLAIN)],
    "packed_is_a_loop_over_sequences": [(RIGHT, PLAIN.but(packed=leaks_between_sequences))],
    "grouped_heads_are_repeated_heads": [(tiles_the_heads, PLAIN.but(grouped=True))],
    "shifted_scores_move_only_lse": [
        (lambda p: Result(*attention(p, start=0.0)), PLAIN),                             # max seeded with 0
        (changed(RIGHT, lse=lambda a, p: -a.lse), PLAIN)],
    "order_of_keys_is_free": [
        (lambda p: RIGHT(p.replace(bias=0.1 * np.arange(p.k.shape[2], dtype=np.float32)[None])), PLAIN)],
    "linear_in_the_values": [(lambda p: RIGHT(p.replace(v=p.v.clip(-2, 2))), PLAIN)],
    "the_future_has_no_influence": [
        (lambda p: Result(*attention(p, future=1)), PLAIN.but(causal="bottom-right")),
        (lambda p: RIGHT(p.replace(mask=np.tri(p.q.shape[2], p.k.shape[2], dtype=bool), causal=False)),
         PLAIN.but(causal="bottom-right", empty_rows=True, bool_mask=True))],            # top-left
    "unread_storage_has_no_influence": [
        (lambda p: Result(*attention(p)), PLAIN.but(unread_nan=True, bool_mask=True)),   # 0·NaN
        (changed(RIGHT, dv=lambda a, p: a.dv if p.dout is None else a.dv + 0 * p.dout.sum(axis=(1, 2), keepdims=True)),
         PLAIN.but(unread_nan=True, bool_mask=True, empty_rows=True, gradients=True))],  # the same, of blind queries
    "repeats_are_bitwise_equal": [(restless, PLAIN)],
    "outputs_are_fully_written": [
        (forgets_empty_rows, PLAIN.but(bool_mask=True, empty_rows=True)),
        (forgets_a_gradient, PLAIN.but(gradients=True, deterministic=False))],
    "inputs_are_unchanged": [(scales_in_place, PLAIN)],
    "shapes_and_dtypes": [
        (changed(RIGHT, out=lambda a, p: a.out.astype(np.float64)), PLAIN),
        (changed(RIGHT, lse=lambda a, p: a.lse[..., None]), PLAIN),
        (changed(RIGHT, lse=lambda a, p: a.lse.astype(np.float16)), PLAIN)],
    "empty_rows_raise_no_warning": [
        (lambda p: Result(*attention(p)), PLAIN.but(bool_mask=True, empty_rows=True))],  # −inf − −inf, then nan_to_num
}


def test_reports_begin_with_the_truth_and_end_with_conduct():
    names = list(PROPERTIES)
    assert names[:2] == ["equals_the_oracle", "gradients_equal_the_oracles"]
    assert names[-5:] == ["repeats_are_bitwise_equal", "outputs_are_fully_written", "inputs_are_unchanged",
                          "shapes_and_dtypes", "empty_rows_raise_no_warning"]


def test_every_property_has_a_wrong_implementation():
    assert set(WRONG) == set(PROPERTIES)


@pytest.mark.parametrize("name, fn, supports", [(name, *wrong) for name, wrongs in WRONG.items() for wrong in wrongs])
def test_every_property_can_fail(name, fn, supports):
    right = try_property(name, RIGHT, supports.but(packed=EVERYTHING.packed if supports.packed else None), examples=20)
    assert right.status == "ok", right.detail
    wrong = try_property(name, fn, supports, examples=200)
    assert wrong.status == "failed"
    again = replay(fn, supports, wrong.recipe, [name])
    assert [row.status for row in again.rows] == ["failed"], "the seed line must bring the failure back"
    assert f'--replay "{wrong.recipe}"' in wrong.detail


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name != "packed_is_a_loop_over_sequences"])
def test_gradients_by_atomics_pass(name):
    """Right up to the last bit, which is another one in every call: no property takes that for a fault."""
    shaky = PLAIN.but(gradients=True, deterministic=False, lse="natural", tiles=(1, 2), reverse=True)
    row = try_property(name, shaky_gradients, shaky, examples=20)
    assert row.status in ("ok", "unsupported"), row.detail


@pytest.mark.parametrize("fn, told", [
    (lambda p: 1 / 0, "ZeroDivisionError"), (lambda p: RIGHT(p).out, "must return a Result"),
    (lambda p: Result(RIGHT(p).out), "lse must be a floating NumPy array"),
    (lambda p: replace(RIGHT(p), out=np.zeros(p.q.shape, int)), "int64"),
    (lambda p: replace(RIGHT(p), out=RIGHT(p).out[:, :, :-1]), "has shape"),
    (lambda p: replace(RIGHT(p), out=RIGHT(p).out * np.nan), "nan"),
])
def test_no_answer_is_a_failure_too(fn, told):
    row = try_property("equals_the_oracle", fn, PLAIN, examples=20)
    assert row.status == "failed" and told in row.detail


@pytest.mark.parametrize("garbage", [
    lambda a: replace(a, lse=np.full_like(a.lse, np.inf)), lambda a: replace(a, out=a.out * np.float32(np.inf)),
    lambda a: replace(a, out=a.out[:, :0]), lambda a: replace(a, lse=a.lse[..., None]), lambda a: None,
    lambda a: 1 / 0])
def test_garbage_fails_properties_and_never_the_kit(garbage):
    with np.errstate(all="ignore"):
        report = check(lambda p: garbage(RIGHT(p)), EVERYTHING.but(packed=lambda problems: problems[1:]), examples=8)
    statuses = {row.name: row.status for row in report.rows}
    assert set(statuses.values()) <= {"failed", "ok"}
    assert statuses["equals_the_oracle"] == statuses["packed_is_a_loop_over_sequences"] == "failed"


OTHER_SHAPES = {
    "heads behind rows": lambda a: replace(a, out=a.out.swapaxes(1, 2)),
    "lse with channels": lambda a: replace(a, lse=a.lse[..., None]),
    "an axis less": lambda a: replace(a, out=a.out[0]),
    "an axis more": lambda a: replace(a, out=a.out[None], lse=a.lse[None]),
    "gradients of nothing": lambda a: replace(a, dq=np.zeros(3), dk=np.zeros(3), dv=np.zeros(3)),
    "no numbers": lambda a: replace(a, out=np.zeros(a.out.shape, "V2")),
}


@pytest.mark.parametrize("wrong", OTHER_SHAPES)
def test_other_shapes_fail_every_property_and_its_replay_with_the_same_words(wrong):
    def packed(problems):
        return [OTHER_SHAPES[wrong](a) for a in EVERYTHING.packed(problems)]

    def ask(problem):
        return OTHER_SHAPES[wrong](RIGHT(problem))

    supports, line = EVERYTHING.but(packed=packed), "Hq=2 Nq=3 Nk=3 d=2 gradients=True"
    report, again = check(ask, supports, examples=60), replay(ask, supports, line)
    told = {"gradients of nothing": "dq has shape (3,)", "no numbers": "must be a floating NumPy array"}
    without_gradients = {name for name, prop in PROPERTIES.items() if "gradients" in prop.without}
    for row in report.rows:
        if wrong == "gradients of nothing" and row.name in without_gradients:
            assert row.status == "ok", row.detail                       # what nobody asked for is not looked at
        else:
            assert row.status == "failed" and told.get(wrong, "has shape") in row.detail, row
    assert {row.status for row in again.rows} == {"failed", "unsupported"}


@pytest.mark.parametrize("packed", [lambda problems: None, lambda problems: (1 / 0 for _ in problems)])
def test_packed_answers_that_are_no_list_fail(packed):
    row = try_property("packed_is_a_loop_over_sequences", RIGHT, PLAIN.but(packed=packed), examples=5)
    assert row.status == "failed" and row.detail.startswith("raised ")


def test_the_truth_is_that_of_the_inputs_before_the_call():
    def doubles_q(problem):
        problem.q[...] *= 2
        return RIGHT(problem)

    for name, supports in {"equals_the_oracle": PLAIN, "gradients_equal_the_oracles": EVERYTHING}.items():
        assert try_property(name, doubles_q, supports.but(strided=False), examples=30).status == "failed"


def test_a_nan_is_told_once_and_without_warnings(recwarn):
    report = check(changed(RIGHT, out=lambda a, p: a.out * np.float32("nan")), PLAIN, examples=10)
    rows, text = {row.name: row for row in report.rows}, str(report)
    assert "expected nan" not in text and not recwarn.list
    assert "nan, expected" in rows["equals_the_oracle"].detail
    assert "is nan here already" in rows["order_of_keys_is_free"].detail
    table = {line.split()[0]: line for line in text.partition("\n\n")[0].splitlines()}
    assert "may follow" in table["order_of_keys_is_free"] and "may follow" not in table["equals_the_oracle"]
    only = check(changed(RIGHT, out=lambda a, p: a.out * np.float32("nan")), PLAIN, examples=10,
                 properties=["order_of_keys_is_free"])
    assert "may follow" not in str(only)


def test_the_same_crash_is_told_once():
    text = " ".join(str(check(lambda p: 1 / 0, PLAIN.but(grouped=True), examples=3)).split())
    assert text.count("ZeroDivisionError") == 1
    assert "equals_the_oracle, repeats_are_bitwise_equal, outputs_are_fully_written" in text


def test_what_may_follow_from_another_failure_comes_last():
    names = ["linear_in_the_values", "shapes_and_dtypes", "equals_the_oracle"]
    wrong = changed(RIGHT, out=lambda a, p: (a.out + 1).astype(np.float64))
    report = check(wrong, PLAIN, examples=10, properties=names)
    assert [[row.name for row in story] for story in report.stories()] == [[name] for name in names[1:] + names[:1]]


# --- conventions of others ------------------------------------------------------------------------------------

@pytest.mark.slow
def test_base_2_and_plus_infinity_are_conventions_that_can_be_stated():
    def base2(problem):
        answer = RIGHT(problem)
        return replace(answer, lse=np.where(np.isneginf(answer.lse), np.inf, answer.lse / math.log(2)))

    stated = EVERYTHING.but(lse="base2", empty_lse=math.inf, packed=None)
    assert check(base2, stated, examples=30).ok
    for unstated in (stated.but(lse="natural"), stated.but(empty_lse=-math.inf)):
        assert try_property("equals_the_oracle", base2, unstated).status == "failed"


def test_what_cannot_be_asked_is_unsupported_never_ok():
    rows = {row.name: row for row in check(RIGHT, Supports(), examples=5).rows}
    assert {name for name, row in rows.items() if row.status == "unsupported"} == {
        "gradients_equal_the_oracles", "any_tiles_give_the_same", "either_direction_gives_the_same",
        "parts_merge_to_the_whole", "packed_is_a_loop_over_sequences", "grouped_heads_are_repeated_heads",
        "the_future_has_no_influence", "unread_storage_has_no_influence", "empty_rows_raise_no_warning"}
    assert rows["parts_merge_to_the_whole"].detail == "needs lse, cross_lengths"
    torch_like = check(RIGHT, Supports(framework="torch"), examples=1, properties=["outputs_are_fully_written"])
    assert [row.status for row in torch_like.rows] == ["unsupported"] and not torch_like.ok


def test_a_warning_that_blas_gives_by_chance_is_no_failure():
    def warned(words):
        def fn(problem):
            warnings.warn(words, RuntimeWarning, stacklevel=1)
            return RIGHT(problem)
        return try_property("empty_rows_raise_no_warning", fn, PLAIN.but(bool_mask=True, empty_rows=True), examples=5)

    assert warned("invalid value encountered in matmul").status == "ok"
    assert warned("invalid value encountered in subtract").status == "failed"


# --- reports --------------------------------------------------------------------------------------------------

def test_a_report_tells_the_smallest_failing_problem():
    report = check(lambda p: RIGHT(p.replace(scale=1.0)), PLAIN, properties=["equals_the_oracle", "shapes_and_dtypes"])
    text = str(report)
    assert (report.ok, report.exit_code) == (False, 1)
    recipe = report.failures[0].recipe
    assert (recipe.Nq, recipe.Nk, recipe.d) in {(1, 1, 2), (2, 2, 2)}, recipe
    for told in ("equals_the_oracle", "failed", "shapes_and_dtypes", "ok", "expected", "times the bound", "float32",
                 f"q (1, 1, {recipe.Nq}, {recipe.d})", f'replay(fn, supports, "{recipe}", ["equals_the_oracle"])'):
        assert told in text


def test_the_smallest_problem_is_small_from_wherever_the_search_began():
    """Some problems are long; a fault that shows in small ones too is shown in the smallest."""
    def last_row_wrong(problem):
        answer = RIGHT(problem)
        if problem.q.shape[2] > 2:
            answer.out[:, :, -1] += 1
        return answer

    supports = Supports(causal="bottom-right", cross_lengths=True, lse="natural")
    assert max(supports.long_lengths) > 100
    found = {str(try_property("equals_the_oracle", last_row_wrong, supports, seed=seed).recipe) for seed in range(12)}
    assert found == {"Nq=3 Nk=3"}


def test_supports_are_taken_from_the_function():
    def mine(problem):
        return RIGHT(problem)

    assert check(mine, examples=2).rows[1].status == "unsupported"
    mine.supports = Supports(gradients=True)
    assert check(mine, examples=2).rows[1].status == "ok"
    assert check(mine, Supports(), examples=2).rows[1].status == "unsupported"
    for call in (check, suite):
        with pytest.raises(TypeError, match=r"supports must be a Supports, got \{'causal': True\}"):
            call(mine, {"causal": True})


def test_time_can_run_out():
    names = ["equals_the_oracle", "inputs_are_unchanged"]
    report = check(RIGHT, PLAIN, examples=3000, time_budget=0.3, properties=names)
    assert [row.status for row in report.rows] == ["out of time"] * 2
    assert report.exit_code == 3 and 0 < report.rows[0].examples < 3000


def test_an_answer_that_varies_is_reported_with_its_problem():
    def moody(problem):
        calls["moody"] += 1
        answer = RIGHT(problem)
        return replace(answer, out=answer.out + 1) if calls["moody"] % 3 == 0 else answer

    row = try_property("equals_the_oracle", moody, PLAIN)
    assert row.status == "failed" and "not always" in row.detail and row.recipe is not None


def test_the_same_seed_draws_the_same_problems():
    def asked(seed):
        seen = []
        check(lambda p: seen.append(p.q.tobytes()) or RIGHT(p), PLAIN, seed=seed, examples=20,
              properties=["equals_the_oracle"])
        return seen

    assert asked(1) == asked(1) != asked(2)


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"time_budget": 0}, {"properties": ["beauty"]}])
def test_check_refuses_what_means_nothing(wrong):
    with pytest.raises(ValueError):
        check(RIGHT, PLAIN, **wrong)


def test_replay_does_not_judge_a_problem_that_the_property_is_not_about():
    report = replay(RIGHT, EVERYTHING, "Nq=2 Nk=3 causal=True")
    statuses = {row.name: row.status for row in report.rows}
    assert statuses["order_of_keys_is_free"] == "unsupported" and statuses["the_future_has_no_influence"] == "ok"
    assert statuses["grouped_heads_are_repeated_heads"] == "unsupported"


@pytest.mark.slow
def test_suite_gives_pytest_one_test_per_property(tmp_path):
    import subprocess
    import sys

    (tmp_path / "test_mine.py").write_text(
        "from fa_ref.testing import Supports, suite\n"
        "from fa_ref.testing.registry import IMPLEMENTATIONS\n"
        "right = IMPLEMENTATIONS['fa2'].fn\n"
        "test_right = suite(right, Supports(lse='natural'), examples=5)\n"
        "test_wrong = suite(lambda p: right(p.replace(scale=2.0)), Supports(), examples=20)\n")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_mine.py"],
                         cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout
    assert "PASSED test_mine.py::test_right[equals_the_oracle]" in run.stdout
    assert "FAILED test_mine.py::test_wrong[equals_the_oracle]" in run.stdout
    assert "replay with replay(fn, supports, " in run.stdout
    assert "needs tiles" in run.stdout


# --- whom it can ask ------------------------------------------------------------------------------------------

def test_the_coverage_table_has_a_column_for_every_implementation():
    lines = coverage_table().splitlines()
    assert {line.count("|") for line in lines} == {2 + len(IMPLEMENTATIONS)}
    assert "[`fa1`](fa_ref/fa1.py)" in lines[0]
    assert "| dtypes | f64, f32, f16, bf16 |" in lines[2]


def test_our_adapter_passes_only_what_is_set():
    seen = []

    def bare(q, k, v, **options):
        seen.append(options)
        return RIGHT(Problem(q, k, v)).out, None

    ask, supports = adapters.fa_ref(bare)
    assert ask.left_out == () and supports == Supports.everything().without("gradients", "dlse")
    ask(Recipe().build())
    ask(Recipe(causal=True, block_k=3).build())
    assert seen == [{}, {"causal": True, "block_k": 3}] and not supports.gradients and supports.packed is None


def test_our_adapter_leaves_out_what_the_signature_lacks():
    def forward(q, k, v, *, scale=None, causal=False, bias=None, block_k=None):
        return RIGHT(Problem(q, k, v, scale=scale, causal=causal, bias=bias)).out

    def backward(dout, q, k, v, out, lse, *, scale=None, causal=False):
        problem = Problem(q, k, v, dout=dout, scale=scale, causal=causal)
        return [getattr(RIGHT(problem), name) for name in ("dq", "dk", "dv", "dbias", "dsink")]

    missing = ("window", "bool_mask", "float_mask", "alibi", "softcap", "sink", "tiles", "reverse", "lse")
    ask, supports = adapters.fa_ref(forward, lse=adapters.gives_lse(forward))
    assert ask.left_out == missing and supports.bias and supports.causal and supports.scale
    report = check(ask, supports, examples=10)
    assert report.ok and f"not asked for: {', '.join(missing)}" in " ".join(str(report).split())
    assert f"not asked for: {', '.join(missing)}" in " ".join(str(replay(ask, supports, "Nq=2 Nk=2")).split())
    ask, supports = adapters.fa_ref(forward, backward=backward, lse=False)
    assert set(ask.left_out) == {*missing, "bias", "dlse"} and supports.gradients
    assert check(ask, supports, examples=10, properties=["gradients_equal_the_oracles"]).ok


def test_a_function_without_a_signature_is_asked_everything():
    assert not_taken(dict, ["scale"]) == [] == not_taken(lambda **options: 0, ["scale"])
    assert adapters.gives_lse(lambda q, k, v: 1 / 0) and adapters.gives_lse(lambda q, k, v: (q, k))


@pytest.mark.parametrize("choice", CHOICES["layout"])
def test_layouts_keep_the_numbers(choice):
    recipe = Recipe(B=2, Hq=2, Hkv=2, Nq=3, Nk=4, d=2, gradients=True)
    plain, other = recipe.build(), recipe.but(layout=choice).build()
    for name in ("q", "k", "v"):
        assert np.array_equal(getattr(plain, name), getattr(other, name))
    strides = {name: getattr(other, name).strides for name in ("q", "k", "v", "dout")}
    if choice not in ("contiguous", "read-only"):
        assert strides != {name: getattr(plain, name).strides for name in strides}
    assert other.q.flags.writeable == (choice != "read-only")
