"""Schedules: every table keeps to its tasks, times equal closed forms, and the stories are those of the code."""

import doctest
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_kernels import counts
from fa_ref import fa2, fa3
from fa_ref.schedule import (
    Row,
    Table,
    Task,
    blocks,
    busy,
    gantt,
    main,
    makespan,
    model,
    overlap,
    run,
    show,
    tail,
    utilisation,
    waits,
    warps,
    waves,
)
from fa_ref.scores import Rule

DOCS = Path(__file__).parent.parent / "docs"
durations = st.one_of(st.integers(0, 6), st.fractions(0, 6, max_denominator=4))


# --- the model ------------------------------------------------------------------------------------------------

@st.composite
def problems(draw, kinds=("cook", "oven")):
    """(tasks, units): tasks wait for some of those drawn before them, but stand anywhere in the list."""
    units = {kind: draw(st.integers(1, 3)) for kind in kinds}
    tasks = []
    for n in range(draw(st.integers(1, 9))):
        after = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=2)) if n else []
        tasks.append(Task(f"t{n}", draw(st.sampled_from(kinds)), draw(durations), tuple(f"t{m}" for m in after)))
    return draw(st.permutations(tasks)), units


def faults(table, tasks, units):
    """What is wrong with a table, in words; nothing of the scheduler is used."""
    wrong, task = [], {t.what: t for t in tasks}
    kinds = {unit: kind for kind, number in units.items()
             for unit in ([kind] if number == 1 else [f"{kind} {n}" for n in range(number)])}
    if sorted(table.units) != sorted(kinds):
        wrong.append(f"units {table.units}")
    if Counter(row.what for row in table.rows) != Counter(list(task)):
        return [*wrong, "not each task once"]
    row = {r.what: r for r in table.rows}
    for t in tasks:
        r = row[t.what]
        if kinds[r.unit] != t.kind or r.end - r.start != t.duration or r.start < 0:
            wrong.append(f"{r} is not {t}")
        wrong += [f"{t.what} before {a}" for a in t.after if row[a].end > r.start]
    for unit in table.units:
        own = sorted((r.start, r.end) for r in table.rows if r.unit == unit)
        wrong += [f"{unit} does two things at {b[0]}" for a, b in pairwise(own) if a[1] > b[0]]
    return wrong


def lazy(table, tasks, units):
    """Tasks that were kept waiting although a unit of their kind was free, or although they came first in the list."""
    row, place = {r.what: r for r in table.rows}, {t.what: n for n, t in enumerate(tasks)}
    found = []
    for t in tasks:
        ready, start = max((row[a].end for a in t.after), default=0), row[t.what].start
        same = [row[other.what] for other in tasks if other.kind == t.kind and other is not t]
        for moment in {ready, *(r.end for r in same)}:
            if ready <= moment < start and sum(r.start <= moment < r.end for r in same) < units[t.kind]:
                found.append(f"{t.what} could start at {moment}")
        found += [f"{r.what} was before {t.what}" for r in same
                  if ready < r.start < start and place[r.what] > place[t.what]]
    return found


@given(problems())
def test_a_table_keeps_to_its_tasks_and_no_unit_is_lazy(problem):
    table = run(*problem)
    assert faults(table, *problem) == [] and lazy(table, *problem) == []


PLANTED = [Task("a", "cook", 2), Task("b", "cook", 1, ("a",)), Task("c", "oven", 1)]


@pytest.mark.parametrize("rows", [
    [("cook", "a", 0, 2), ("cook", "b", 1, 2), ("oven", "c", 0, 1)],                # too early, and two at once
    [("cook", "a", 0, 2), ("cook", "b", 2, 3)],
    [("cook", "a", 0, 2), ("cook", "b", 2, 3), ("oven", "c", 0, 1), ("oven", "c", 1, 2)],
    [("cook", "a", 0, 2), ("cook", "b", 2, 3), ("cook", "c", 3, 4)],
    [("cook", "a", 0, 2), ("cook", "b", 2, 4), ("oven", "c", 0, 1)],
])
def test_a_wrong_table_is_noticed(rows):
    assert faults(Table(("cook", "oven"), [Row(*row) for row in rows]), PLANTED, {"cook": 1, "oven": 1})


def test_of_tasks_that_become_free_together_the_first_of_the_list_starts():
    """Both a and b end at 1: then late, which stands first, gets the cook before early."""
    tasks = [Task("a", "oven", 1), Task("b", "stove", 1), Task("late", "cook", 1, after=("b",)),
             Task("early", "cook", 1, after=("a",))]
    table = run(tasks, {"stove": 1, "oven": 1, "cook": 1})
    assert [row.what for row in table.rows if row.unit == "cook"] == ["late", "early"]
    table = run(tasks, {"oven": 1, "stove": 1, "cook": 1})
    assert [row.what for row in table.rows if row.unit == "cook"] == ["late", "early"]


def test_units_of_a_kind_are_told_from_others_whose_names_begin_alike():
    table = run([Task("x", "tensor", 1)], {"tensor": 1, "tensor core": 2, "special functions": 1})
    assert utilisation(table, "tensor") == 1 and utilisation(table, "tensor core") == 0
    with pytest.raises(ValueError, match="0 units of kind 'special'"):
        utilisation(table, "special")


def test_a_name_alone_is_no_list_of_tasks_to_wait_for():
    with pytest.raises(TypeError, match=r"task 'b' has after = 'a': a tuple of names is needed, \('a',\)"):
        run([Task("a", "cook", 1), Task("b", "cook", 1, after="a")], {"cook": 1})


@given(problems(kinds=("cook",)))
def test_a_greedy_schedule_is_at_most_twice_the_best(problem):
    """Graham 1966: the longest chain and an even division of the work are bounds for all, their sum is one for ours."""
    tasks, units = problem
    task, table = {t.what: t for t in tasks}, run(tasks, units)

    def chain(t):
        return t.duration + max((chain(task[a]) for a in t.after), default=0)

    even, longest = Fraction(sum(t.duration for t in tasks)) / units["cook"], max(map(chain, tasks))
    assert max(even, longest) <= makespan(table) <= even + longest


@given(problems())
def test_work_and_waits_fill_the_time(problem):
    table = run(*problem)
    idle = waits(table)
    assert busy(table) + sum(row.end - row.start for row in idle) == len(table.units) * makespan(table)
    last = [max((r.end for r in table.rows if r.unit == unit), default=0) for unit in table.units]
    assert tail(table) == makespan(table) - min(last)
    if makespan(table):
        assert utilisation(table) == pytest.approx(float(busy(table)) / len(table.units) / float(makespan(table)))


def test_numbers_of_a_table_that_one_can_count():
    table = run([Task(f"{n}", "oven", 4) for n in range(5)], {"oven": 2})
    assert (makespan(table), utilisation(table), waves(table), tail(table)) == (12, 5 / 6, 2.5, 4)
    assert waits(table) == [Row("oven 1", "waits", 8, 12)]
    assert utilisation(table, "oven 1") == 2 / 3 and utilisation(table, "oven") == 5 / 6
    assert makespan(run([Task("a", "x", Fraction(1, 3)), Task("b", "x", Fraction(2, 3))], {"x": 1})) == 1


def test_the_example_of_the_model_is_right():
    ran = doctest.testmod(model)
    assert ran.attempted == 3 and not ran.failed


@pytest.mark.parametrize(("tasks", "units", "error", "message"), [
    ([], {"cook": 1}, ValueError, "0 tasks"),
    ([Task("a", "cook", 1)], {"cook": 0}, ValueError, "'cook' must be at least 1, got 0"),
    ([Task("a", "cook", 1)], {"cook": -2}, ValueError, "got -2"),
    ([Task("a", "cook", 1)], {"cook": 1.5}, TypeError, "got 1.5"),
    ([Task("a", "cook", 1)], {"cook": True}, TypeError, "got True"),
    ([Task("a", "cook", -3)], {"cook": 1}, ValueError, "'a' lasts -3"),
    ([Task("a", "cook", float("nan"))], {"cook": 1}, ValueError, "lasts nan"),
    ([Task("a", "cook", float("inf"))], {"cook": 1}, ValueError, "lasts inf"),
    ([Task("a", "cook", "long")], {"cook": 1}, TypeError, "lasts 'long'"),
    ([Task("a", "cook", 1), Task("a", "cook", 2)], {"cook": 1}, ValueError, "2 tasks are called 'a'"),
    ([Task("a", "baker", 1)], {"cook": 1}, ValueError, "needs a 'baker', of which there are 0"),
    ([Task("a", "cook", 1, ("b",))], {"cook": 1}, ValueError, "waits for 'b', which is none of the 1"),
    ([Task("a", "cook", 1, ("a",))], {"cook": 1}, ValueError, "1 tasks wait for each other: a → a"),
    ([Task("a", "cook", 1, ("b",)), Task("b", "cook", 1, ("a",))], {"cook": 1}, ValueError, "2 tasks wait .* → . → "),
    ([Task("a", "x", 1)], {"x": 2, "x 1": 1}, ValueError, "2 units are called 'x 1'"),
])
def test_what_cannot_be_scheduled(tasks, units, error, message):
    with pytest.raises(error, match=message):
        run(tasks, units)


def test_numbers_that_a_table_does_not_have():
    with pytest.raises(ValueError, match="0 rows, 1 units"):
        makespan(Table(("cook",), []))
    with pytest.raises(ValueError, match="makespan is 0"):
        utilisation(run([Task("a", "cook", 0)], {"cook": 1}))
    with pytest.raises(ValueError, match="0 units of kind 'oven' among the 1: cook"):
        utilisation(run([Task("a", "cook", 1)], {"cook": 1}), "oven")


# --- blocks ---------------------------------------------------------------------------------------------------

few = st.integers(1, 6)


class Counting(Rule):
    """Counts the tiles that a core asks scores for, by their first query."""

    def scores(self, Qi, Kj, rows, cols, kind):
        self.asked[rows.start] += 1
        return super().scores(Qi, Kj, rows, cols, kind)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_a_block_lasts_as_many_pairs_as_the_loop_visits(Nq, Nk, Br, Bc, causal):
    rule = Counting(Nq, Nk, scale=1.0, causal=causal)
    rule.asked = Counter()
    fa2.forward_head(np.ones((Nq, 1)), np.ones((Nk, 1)), np.ones((Nk, 1)), rule, Br, Bc)
    assert blocks.visited(Nq, Nk, Br, Bc, causal) == [rule.asked[i] for i in range(0, Nq, Br)]


@given(batch=few, heads=few, Tr=few, Tc=few, multiprocessors=st.integers(1, 9), per=st.integers(1, 2))
def test_blocks_that_are_alike_come_in_waves(batch, heads, Tr, Tc, multiprocessors, per):
    sizes = {"batch": batch, "heads": heads, "Nq": 3 * Tr, "Nk": 3 * Tc, "Br": 3, "Bc": 3,
             "multiprocessors": multiprocessors, "per_multiprocessor": per}
    fa1_grid, fa2_grid = blocks.schedule("fa1", **sizes), blocks.schedule("fa2", **sizes)
    slots = multiprocessors * per
    assert makespan(fa1_grid) == -(-batch * heads // slots) * Tr * Tc
    assert makespan(fa2_grid) == -(-batch * heads * Tr // slots) * Tc
    assert waves(fa2_grid) == pytest.approx(Tr * waves(fa1_grid)) == batch * heads * Tr / slots
    assert busy(fa1_grid) == busy(fa2_grid) == batch * heads * Tr * Tc
    assert utilisation(fa2_grid) >= utilisation(fa1_grid)


@given(heads=few, T=few, order=st.sampled_from(blocks.ORDERS), multiprocessors=st.integers(1, 9))
def test_causal_blocks_are_done_in_the_order_that_was_asked_for(heads, T, order, multiprocessors):
    table = blocks.schedule("fa2", heads=heads, Nq=2 * T, Nk=2 * T, Br=2, Bc=2, causal=True, order=order,
                            multiprocessors=multiprocessors)
    assert busy(table) == heads * T * (T + 1) // 2
    lasts = [row.end - row.start for row in table.rows]                 # in order of their start
    if order != "grid":
        assert lasts == sorted(lasts, reverse=order == "longest first")
    else:
        wanted = [f"tile {i}, head {h}, batch 0" for h in range(heads) for i in range(T)]
        assert [row.what for row in table.rows] == wanted


@pytest.mark.parametrize(("card", "N", "heads"), [
    (card, N, heads) for card in blocks.MULTIPROCESSORS for N in (2048, 4096, 8192) for heads in (16, 32)])
def test_longest_first_ends_first_and_with_a_short_tail(card, N, heads):
    tables = {order: blocks.schedule("fa2", heads=heads, Nq=N, Nk=N, causal=True, order=order,
                                     multiprocessors=blocks.MULTIPROCESSORS[card]) for order in blocks.ORDERS}
    first = tables.pop("longest first")
    assert all(makespan(first) < makespan(other) and tail(first) < tail(other) for other in tables.values())


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"heads": 0}, ValueError, "heads must be at least 1, got 0"),
    ({"Nk": -1}, ValueError, "Nk must be at least 1, got -1"),
    ({"multiprocessors": 0}, ValueError, "multiprocessors must be at least 1, got 0"),
    ({"per_multiprocessor": 0}, ValueError, "per_multiprocessor must be at least 1, got 0"),
    ({"Br": 1.5}, TypeError, "Br must be a whole number, got 1.5"),
    ({"algorithm": "fa9"}, ValueError, "'fa9'"),
    ({"order": "random"}, ValueError, "'random'"),
])
def test_blocks_of_bad_sizes(change, error, message):
    with pytest.raises(error, match=message):
        blocks.schedule(**{"algorithm": "fa1", "heads": 1, "Nq": 8, "Nk": 8} | change)


# --- warps ----------------------------------------------------------------------------------------------------

READS = {"scores", "P V", "read maxima", "put together"}
TOLD, HEARD = {"write maxima", "hand over"}, {"read maxima", "put together"}
KERNEL = {"split-K": "fa1_warps", "split-Q": "fa2_warps"}
pairs = st.fixed_dictionaries({"br": st.integers(1, 40), "bc": st.integers(1, 40), "d": st.integers(1, 9),
                               "dv": st.integers(1, 9), "warps": st.integers(1, 8), "causal": st.booleans()})


@given(pairs, st.sampled_from(list(warps.SPLITS)))
def test_the_warps_together_touch_what_the_audit_counts(sizes, split):
    table = warps.schedule(split, **sizes)
    at = Counter()
    for row in table.rows:
        at[row.what.split(",")[0]] += row.end - row.start
    seen = Rule(sizes["br"], sizes["bc"], scale=1.0, causal=sizes["causal"]).visible(
        slice(0, sizes["br"]), slice(0, sizes["bc"])).sum()
    expected = counts.pair(KERNEL[split], seen=int(seen), **{k: n for k, n in sizes.items() if k != "causal"})
    assert sum(n for step, n in at.items() if step in READS) == expected.shared_reads
    assert sum(n for step, n in at.items() if step not in READS) == expected.shared_writes
    assert tuple(sum(at[step] for step in steps) for steps in (TOLD, HEARD)) == tuple(expected[-2:])


@given(pairs, st.sampled_from(list(warps.SPLITS)))
def test_nobody_passes_a_barrier_before_all_have_come(sizes, split):
    table, number = warps.schedule(split, **sizes), sizes["warps"]
    seen = np.ones((sizes["br"], sizes["bc"]), bool)
    phases = [set(phase) for phase in warps.SPLITS[split](seen, sizes["d"], sizes["dv"], number)]
    times = [[(row.start, row.end) for row in table.rows if row.what.split(",")[0] in phase] for phase in phases]
    for before, after in pairwise(times):
        assert max(end for _, end in before) == min(start for start, _ in after)       # and nobody waits for nothing
    behind = split == "split-Q"                                         # its last barrier is before the next tile
    assert len(phases) - 1 + behind == counts.pair(KERNEL[split], 1, 1, 1, 1, 1, number).barriers
    for w in range(number):                                             # a warp does its steps one after another
        own = [row for row in table.rows if row.what.endswith(f", warp {w}")]
        assert {row.unit for row in own} == {f"warp {w}"} if number > 1 else True
        assert all(a.end <= b.start for a, b in pairwise(own))


def test_in_a_causal_pair_split_K_waits_at_two_barriers_and_split_Q_at_one():
    sizes = {"br": 16, "bc": 32, "d": 16, "dv": 16, "warps": 4, "causal": True}
    for split, number in (("split-K", 2), ("split-Q", 1)):
        table = warps.schedule(split, **sizes)
        lazy_warp = "warp 3" if split == "split-K" else "warp 0"
        assert len([row for row in waits(table) if row.unit == lazy_warp]) == number


@pytest.mark.parametrize(("split", "change", "error", "message"), [
    ("split-K", {"warps": 0}, ValueError, "warps must be at least 1, got 0"),
    ("split-Q", {"d": 0}, ValueError, "d must be at least 1, got 0"),
    ("split-Q", {"br": "16"}, TypeError, "br must be a whole number, got '16'"),
    ("split-V", {}, ValueError, "'split-V'"),
])
def test_warps_of_bad_sizes(split, change, error, message):
    with pytest.raises(error, match=message):
        warps.schedule(split, **{"br": 4, "bc": 4, "d": 4, "dv": 4, "warps": 2} | change)


# --- overlap --------------------------------------------------------------------------------------------------

names = pytest.mark.parametrize("name", overlap.SCHEDULES)
clocks = st.builds(overlap.Clocks, st.integers(1, 9), st.integers(0, 20), st.integers(0, 20))
T_tiles = st.integers(1, 6)
HALF, EIGHT = overlap.clocks(), overlap.clocks(bits=8)


@names
@given(T=T_tiles, c=clocks)
def test_an_overlap_keeps_to_attention(name, T, c):
    """Written anew: what each of the 8·T tasks needs, and that a warpgroup's products accumulate in order."""
    table = overlap.schedule(name, T, c)
    wanted = []
    for w in "ab":
        for j in range(T):
            before = [f"P{j - 1} {w}"] if j else []
            wanted += [Task(f"S{j} {w}", "tensor core", c.product, tuple(before)),
                       Task(f"rest{j} {w}", "arithmetic", c.rest, (f"S{j} {w}",)),
                       Task(f"P{j} {w}", "special functions", c.exp, (f"rest{j} {w}",)),
                       Task(f"PV{j} {w}", "tensor core", c.product, (f"P{j} {w}", *([f"PV{j - 1} {w}"] if j else [])))]
    assert faults(table, wanted, overlap.UNITS) == []
    assert all(makespan(table) >= bound for bound in overlap.bounds(name, T, c).values())


def issued(name, T):
    """The products in the order in which the tensor core does them."""
    rows = overlap.schedule(name, T, HALF).rows
    return [row.what for row in rows if row.unit == "tensor core"]


def test_the_bounds_are_the_work_of_each_unit():
    c = overlap.Clocks(5, 7, 3)
    assert overlap.bounds("both", 6, c) == {"tensor core": 4 * 6 * 5, "special functions": 2 * 6 * 7,
                                            "arithmetic": 2 * 6 * 3, "one warpgroup": 6 * (5 + 3 + 7) + 5}
    assert overlap.bounds("serial", 6, c)["one warpgroup"] == 6 * (2 * 5 + 3 + 7)
    for call in (lambda: overlap.bounds("foo", 6, c), lambda: overlap.period("foo", c)):
        with pytest.raises(ValueError, match="unknown schedule 'foo'"):
            call()
    with pytest.raises(ValueError, match="T must be at least 1, got 0"):
        overlap.bounds("both", 0, c)


def test_names_and_times_are_shown_as_they_are(tmp_path, capsys):
    table = run([Task("pay $3 for $4", "cook", 1.25), Task("[/b] salt", "cook", 1.25)], {"cook": 1})
    gantt(table, tmp_path / "odd.svg", label=lambda row: row.what, group=lambda row: row.what)
    drawn = (tmp_path / "odd.svg").read_text(encoding="utf-8")
    assert "pay $3 for $4" in drawn
    show.console.print(show.rows(table))
    told = capsys.readouterr().out
    assert "[/b] salt" in told and "1.25" in told and "2.50" in told
    with pytest.raises(ValueError, match="0 tables"):
        gantt({}, tmp_path / "none.svg")


def test_the_order_of_issue():
    assert issued("serial", 2) == ["S0 a", "PV0 a", "S1 a", "PV1 a", "S0 b", "PV0 b", "S1 b", "PV1 b"]
    assert issued("intra-warpgroup", 2) == ["S0 a", "S1 a", "PV0 a", "PV1 a", "S0 b", "S1 b", "PV0 b", "PV1 b"]
    assert issued("ping-pong", 2) == ["S0 a", "S0 b", "PV0 a", "S1 a", "PV0 b", "S1 b", "PV1 a", "PV1 b"]
    assert issued("both", 2) == ["S0 a", "S0 b", "S1 a", "PV0 a", "S1 b", "PV0 b", "PV1 a", "PV1 b"]


class Noted(np.ndarray):
    """Notes its matrix products by the widths of what comes out."""

    log: ClassVar = []

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        plain = [np.asarray(x) for x in operands]
        if ufunc is np.matmul and plain[0].shape[1]:
            self.log.append("S" if plain[1].shape[0] == 2 else "PV")
        return np.asarray(getattr(ufunc, method)(*plain, **options)).view(Noted)


@pytest.mark.parametrize(("core", "name"), [(fa2, "serial"), (fa3, "intra-warpgroup")])
@pytest.mark.parametrize("T", [1, 2, 5])
def test_the_order_is_that_of_the_loops_in_numpy(core, name, T):
    """d = 2, tiles of 5 keys, dv = 3: a product over 2 is S, one over 5 is P V."""
    Q, K, V = (np.ones(shape).view(Noted) for shape in ((4, 2), (5 * T, 2), (5 * T, 3)))
    Noted.log.clear()
    core.forward_head(Q, K, V, Rule(4, 5 * T, scale=1.0), 4, 5)
    assert Noted.log == [re.match("[A-Z]+", what)[0] for what in issued(name, T) if what.endswith("a")]


@given(T=T_tiles, c=clocks)
def test_without_turns_the_makespan_is_a_closed_form(T, c):
    alone = c.product + c.rest + c.exp
    assert makespan(overlap.schedule("serial", T, c)) == 2 * T * (c.product + alone)
    assert makespan(overlap.schedule("intra-warpgroup", T, c)) == 2 * (
        alone + (T - 1) * max(2 * c.product, alone) + c.product)
    for name in ("serial", "intra-warpgroup"):                          # half of it is what one warpgroup cannot avoid
        if name == "serial" or alone >= 2 * c.product:
            assert makespan(overlap.schedule(name, T, c)) == 2 * overlap.bounds(name, T, c)["one warpgroup"]


@pytest.mark.parametrize("T", [2, 3, 10, 64])
def test_the_makespans_at_the_rates_of_the_paper(T):
    """In units of 256 clocks: d = 128 and 16 bits, then 8 bits."""
    found = [[makespan(overlap.schedule(name, T, c)) / 256 for name in overlap.SCHEDULES] for c in (HALF, EIGHT)]
    assert found[0] == [14 * T, 10 * T + 4, 8 * T + 2, 8 * T + 1]
    assert found[1] == [10 * T, 8 * T + 2, 5 * T + 2, 4 * T + 3]


@names
@given(c=clocks)
def test_under_way_each_tile_takes_one_period(name, c):
    early, late = (makespan(overlap.schedule(name, T, c)) for T in (20, 24))
    assert late - early == 4 * overlap.period(name, c)


@pytest.mark.parametrize("c", [HALF, EIGHT, overlap.clocks(d=64), overlap.clocks(d=256)])
@pytest.mark.parametrize("T", [2, 8, 64])
def test_each_of_the_two_helps_and_both_help_most(c, T):
    found = {name: utilisation(overlap.schedule(name, T, c), "tensor core") for name in overlap.SCHEDULES}
    bound = 4 * T * c.product / max(overlap.bounds("both", T, c).values())
    assert found["serial"] < found["intra-warpgroup"] < found["ping-pong"] <= found["both"] <= bound <= 1
    assert found["ping-pong"] < found["both"] or c.product > c.exp      # long products hide all of softmax anyway


@names
@given(c=clocks, T=T_tiles)
def test_no_schedule_is_longer_than_the_serial_one(name, c, T):
    assert makespan(overlap.schedule(name, T, c)) <= makespan(overlap.schedule("serial", T, c))


def test_the_rates_are_those_of_the_paper():
    """Section 2.2, footnote 5: 989 and 3.9 · 10¹² a second; exp takes half as long as the products, or as long."""
    per_second = 132 * 1.83e9
    assert overlap.FLOPS[16] * per_second == pytest.approx(989e12, rel=0.001)
    assert overlap.EXPS * per_second == pytest.approx(3.9e12, rel=0.01)
    assert HALF.exp / (2 * HALF.product) == 0.5 and EIGHT.exp / (2 * EIGHT.product) == 1


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: overlap.schedule("serial", 0, HALF), ValueError, "T must be at least 1, got 0"),
    (lambda: overlap.schedule("parallel", 1, HALF), ValueError, "'parallel'"),
    (lambda: overlap.schedule("both", 1, overlap.Clocks(1, -2, 1)), ValueError, "lasts -2"),
    (lambda: overlap.clocks(d=0), ValueError, "d must be at least 1, got 0"),
    (lambda: overlap.clocks(rest=-1), ValueError, "rest must be at least 0, got -1"),
    (lambda: overlap.clocks(Br=64.0), TypeError, "Br must be a whole number, got 64.0"),
    (lambda: overlap.clocks(bits=4), ValueError, "bits is 4.* 16 and 8"),
])
def test_overlaps_that_make_no_sense(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- the command and the picture ------------------------------------------------------------------------------

def test_the_command_prints_every_story(capsys):
    assert main([]) == 0
    told = capsys.readouterr().out
    for words in ("132 multiprocessors", "longest first", "split-K", "ping-pong"):
        assert words in told
    assert re.search(r"^ 16,384 +1 +fa1 +16 +0\.12 +16,384 +16,384 +12% *$", told, re.MULTILINE)
    assert re.search(r"^ 64 × 128, d = 64 +split-K +4 +[\d,]+ +[\d,]+ +5% ", told, re.MULTILINE)     # docs/schedule.md
    assert main(["blocks", "--card", "A100"]) == 0
    told = capsys.readouterr().out
    assert "108 multiprocessors" in told and "split-K" not in told


def test_the_command_prints_rows(capsys):
    assert main(["overlap", "--rows"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^ tensor core +waits +512 +1,280 *$", told, re.MULTILINE)
    assert len(re.findall(r" PV1 b ", told)) == 4


def test_the_command_knows_its_stories(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["threads"])
    assert stopped.value.code == 2 and "unknown: threads; there are blocks, warps, overlap" in capsys.readouterr().err


def test_a_picture_has_a_box_for_every_row_where_it_belongs(tmp_path):
    from fa_ref.schedule import pictures

    table = overlap.schedule("both", 3, HALF)
    drawn = pictures.Gantt({"one": table, "two": table}, label=lambda row: row.what)
    boxes = Counter((round(p.get_x(), 6), round(p.get_width(), 6), p.get_y()) for p in drawn.sheet.axes.patches
                    if p.get_height() == pictures.LINE - 4)
    scale = (pictures.WIDTH - pictures.LEFT - pictures.RIGHT) / makespan(table)
    tops = pictures.TITLE, 2 * pictures.TITLE + pictures.LINE * len(table.units)
    assert boxes == Counter(
        (round(pictures.LEFT + row.start * scale, 6), round((row.end - row.start) * scale, 6),
         top + table.units.index(row.unit) * pictures.LINE + 2) for row in table.rows for top in tops)
    words = [text.get_text() for text in drawn.sheet.axes.texts]
    assert words.count("S0 a") == 2 and "rest0 a" not in words          # which would not fit

    fixed = pictures.Gantt(table, colors={"S": "#123456"}).colors
    assert fixed == drawn.colors | {"S": "#123456"} != drawn.colors

    for name in ("a.svg", "b.svg"):
        gantt(table, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_numbers_below_the_pictures_are_in_them():
    images = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", (DOCS / "schedule.md").read_text(encoding="utf-8"))
    for words, file in images:
        numbers = re.findall(r"\d[\d,]*%|\d,\d{3}|\d+(?= pairs)", words)
        titles = " ".join(re.findall(r">([^<]*busy[^<]*)<", (DOCS / file).read_text(encoding="utf-8")))
        assert numbers and set(numbers) <= set(re.findall(r"\d[\d,]*%?", titles)), file
