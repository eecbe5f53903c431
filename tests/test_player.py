"""A recording is what happened: its lines, names, numbers, loads, stores and bytes, and the page has them all."""

import json
import re
import subprocess
import sys
from html import unescape
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_ref import ALGORITHMS, debug, fa1, fa2, fa3, page, player, standard
from fa_ref.ledger import Ledger
from fa_ref.page.data import text
from fa_ref.page.listing import counters, labels
from fa_ref.recorder import MAX_CELLS, MAX_SIDE, Large
from fa_ref.scores import Rule


def problem(Nq, Nk, d, causal, seed=0):
    """Q, K, V and a rule."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((n, d)) for n in (Nq, Nk, Nk))
    return Q, K, V, Rule(Nq, Nk, scale=0.5, causal=causal)


def run_of(name, backward, size):
    """A core and its arguments."""
    Nq, Nk, d, Br, Bc, causal = size
    Q, K, V, rule = problem(Nq, Nk, d, causal)
    core = ALGORITHMS[name]
    if not backward:
        return core.forward_head, (Q, K, V, rule, Br, Bc)
    return core.backward_head, (np.ones_like(Q), Q, K, V, *core.forward_head(Q, K, V, rule, Br, Bc), rule, Br, Bc)


def watched(function, args):
    """The answer, and [(line, {local name: a copy of its value after that line})], seen without any of ours.

    Views of other arrays are left out: a ledger hands out copies, which do not change with what they came from.
    """
    seen = []

    def local(frame, event, _):
        if seen and seen[-1][1] is None:
            seen[-1][1] = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in frame.f_locals.items()
                           if getattr(x, "base", None) is None}
        if event == "line":
            seen.append([frame.f_lineno, None])
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: local if frame.f_code is function.__code__ else None)
    try:
        answer = function(*args)
    finally:
        sys.settrace(before)
    return answer, seen


def states(recording):
    """For each step what the names of its call and what memory hold, put together from the changes."""
    held, memory, out = {}, {}, []
    for step in recording.steps:
        call = recording.calls[step.call]
        if step.call not in held:
            held[step.call] = dict(call.names)
            memory |= call.memory
        held[step.call] = held[step.call] | step.names
        memory = memory | step.memory
        out.append((held[step.call], memory))
    return out


sizes = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4),
                  st.booleans())
few = settings(max_examples=20)                                         # a recording of a few hundred lines each
each_run = pytest.mark.parametrize(("name", "backward"), [(name, b) for name in ALGORITHMS for b in (False, True)])


# --- a recording is the run -----------------------------------------------------------------------------------

@each_run
@few
@given(size=sizes)
def test_lines_and_numbers_are_those_of_a_plain_run(name, backward, size):
    core, args = run_of(name, backward, size)
    recording = player.record(core, *args)
    answer, seen = watched(core, args)
    assert [step.line for step in recording.steps] == [line for line, _ in seen]
    for (held, memory), (_, truth) in zip(states(recording), seen, strict=True):
        for local, value in truth.items():
            if local in memory:
                written = ~np.isnan(memory[local])                      # NaN: nobody has written there yet
                np.testing.assert_array_equal(memory[local][written], value[written])
            elif isinstance(value, np.ndarray):
                np.testing.assert_array_equal(held[local], value)
            elif isinstance(value, int | float | str | slice):
                assert held[local] == value
    for ours, plain in zip(recording.answer, answer, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), plain)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_names_nothing_that_it_left_as_it_was(name):
    recording = player.tiny(name)
    held = {n: dict(call.names) for n, call in enumerate(recording.calls)}
    memory = dict(recording.calls[0].memory)
    for step in recording.steps:
        for before, changes in (held[step.call], step.names), (memory, step.memory):
            for local, value in changes.items():
                assert local not in before or repr(before[local]) != repr(value), local
            before |= changes


@each_run
@few
@given(size=sizes)
def test_tiles_and_bytes_are_those_of_the_ledger(name, backward, size):
    core, args = run_of(name, backward, size)
    recording = player.record(core, *args)
    with Ledger(log=True) as led:
        core(*(led.hbm(x) if isinstance(x, np.ndarray) else x for x in args))
    kept = [(a.record.shape, a.action, a.where) for step in recording.steps for a in step.accesses]
    assert kept == [(a.record.shape, a.action, a.where) for a in led.log]
    last = recording.steps[-1]
    assert (last.read, last.written) == (led.total("read_bytes"), led.total("write_bytes"))
    moved = {"load": 0, "store": 0}
    for step in recording.steps:
        for record, action, where in step.accesses:
            moved[action] += record.dtype.itemsize * int(np.prod([stop - start for start, stop in where]))
        assert (step.read, step.written) == (moved["load"], moved["store"])


def test_each_access_belongs_to_the_line_that_makes_it():
    """In fa2 a line loads or stores what its subscript says."""
    recording = player.tiny("fa2")
    [source] = [page.source(code) for code in recording.functions]
    names = {id(record): name for name, record in recording.memory.items()}
    for step in recording.steps:
        line = source.lines[step.line - source.first].split("#")[0]
        told = {(name, "store" if re.match(r"\s*\w+\[[^]]*\] =", line) else "load")
                for name in re.findall(r"\b([QKVOL])\[", line)}
        assert {(names[id(a.record)], a.action) for a in step.accesses} == told


def test_memory_after_every_store_is_what_was_stored():
    """The tile that a step stores holds what is computed at that moment; all else stays as it was."""
    recording = player.tiny("fa1")
    for ((_, before), (held, after)), step in zip(pairwise(states(recording)), recording.steps[1:], strict=True):
        for access in step.accesses:
            if access.action == "store":
                name = next(n for n, r in recording.memory.items() if r is access.record)
                tile = tuple(slice(*part) for part in access.where)
                local = {"O": held["acc"] / held["l_new"][:, None], "l": held["l_new"], "m": held["m_new"]}[name]
                np.testing.assert_array_equal(after[name][tile], local)
                untouched = np.ones(after[name].shape, bool)
                untouched[tile] = False
                np.testing.assert_array_equal(after[name][untouched], before[name][untouched])


def test_functions_inside_are_recorded_too():
    """Lines of the inner call come where it is made, and the calling line once more when it is back."""
    Q, K, V, rule = debug.tiny()
    recording = player.record(standard.forward_head, Q, K, V, rule, inside=[standard.probabilities])
    _, outer = watched(standard.forward_head, (Q, K, V, rule))
    _, inner = watched(standard.probabilities, (Q, K, rule))
    calls = outer[0][0]
    assert [s.line for s in recording.steps] == [calls, *(n for n, _ in inner), calls, *(n for n, _ in outer[1:])]
    assert [s.call for s in recording.steps] == [0] + [1] * len(inner) + [0] * len(outer)
    assert list(recording.memory) == ["Q", "K", "V", "S", "P", "L", "O"]
    assert recording.calls[1].names == {} and recording.calls[1].function == 1


def test_arrays_made_where_nobody_looks_are_in_the_memory_all_the_same():
    recording = player.record(standard.forward_head, *debug.tiny())
    assert list(recording.memory) == ["Q", "K", "V", "P", "L", "(inside)", "O"]     # S is never a local name
    assert recording.memory["(inside)"].reads == 24


# --- tracers --------------------------------------------------------------------------------------------------

def tracer(frame, event, arg):
    return None


def failing(Q):
    x = Q[0:1]
    raise KeyError(x.shape)


def interrupted(Q):
    sys.settrace(None)
    return Q[0:1]


@pytest.mark.parametrize(("function", "options", "error"), [
    (fa2.forward_head, {}, None), (failing, {}, KeyError), (interrupted, {}, RuntimeError),
    (fa2.forward_head, {"max_steps": 5}, ValueError), (fa2.forward_head, {"max_steps": 1}, ValueError)])
def test_the_tracer_before_is_put_back(function, options, error):
    Q, K, V, rule = debug.tiny()
    args = (Q, K, V, rule, 2, 3) if function is fa2.forward_head else (Q,)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        if error:
            with pytest.raises(error):
                player.record(function, *args, **options)
        else:
            player.record(function, *args, **options)
        now = sys.gettrace()
    finally:
        sys.settrace(before)
    assert now is tracer


def test_pdb_goes_on_after_a_recording(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from fa_ref import player\nrecording = player.tiny('fa2')\nn = len(recording)\nprint('done')\n")
    run = subprocess.run([sys.executable, "-m", "pdb", str(script)], input="n\nn\nn\np 'n is', n\nq\n", text=True,
                         capture_output=True, timeout=60)
    assert f"('n is', {len(player.tiny('fa2'))})" in run.stdout, run.stdout + run.stderr


def test_a_tracer_of_lines_sees_all_lines_around_a_recording():
    """As coverage does: the lines of the caller before and after are seen, those of the core are ours."""
    seen = []

    def local(frame, event, _):
        seen.append(frame.f_lineno)
        return local

    def caller():
        x = 1
        player.tiny("fa2")
        return x

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: local if frame.f_code is caller.__code__ else None)
    try:
        caller()
    finally:
        sys.settrace(before)
    start = caller.__code__.co_firstlineno
    assert sorted({n - start for n in seen}) == [1, 2, 3]


# --- bad input ------------------------------------------------------------------------------------------------

def generator(Q):
    yield Q[0:1]


def endless(Q):
    while True:
        pass


def test_a_run_that_is_too_long_says_both_numbers_and_the_way_out():
    Q, K, V, rule = debug.tiny()
    number = len(player.tiny("fa2"))
    with pytest.raises(ValueError, match=rf"{number} steps.*max_steps = 10: take a smaller problem or larger tiles"):
        player.record(fa2.forward_head, Q, K, V, rule, 2, 3, max_steps=10)
    assert len(player.record(fa2.forward_head, Q, K, V, rule, 2, 3, max_steps=number)) == number
    with pytest.raises(ValueError, match=r"more than 100 steps.*max_steps = 2"):
        player.record(endless, Q, max_steps=2)


def not_loaded(Q):
    return np.exp(Q)


def of_many(*tiles):
    return tiles[0][:1]


@pytest.mark.parametrize(("core", "args", "options", "error", "words"), [
    (np.exp, (np.ones(2),), {}, TypeError, "only functions written in Python"),
    (sum, ([1],), {}, TypeError, "only functions written in Python"),
    (fa2.forward_head, (), {}, TypeError, "missing a required argument: 'Q'"),
    (generator, (np.ones(2),), {}, ValueError, "no line of generator has run"),
    (fa2.forward_head, (*debug.tiny(), 2, 3), {"names": ["a", "b"]}, ValueError, "2 names, but 3 arguments .* Q, K, V"),
    (fa2.forward_head, (*debug.tiny(), 2, 3), {"max_steps": 0}, ValueError, "max_steps"),
    (fa2.forward_head, (*debug.tiny(), 2, 3), {"max_steps": 2.5}, TypeError, "max_steps"),
    (fa2.forward_head, (*debug.tiny(), 2, 3), {"inside": [len]}, TypeError, "only functions written in Python"),
    (not_loaded, (np.ones((2, 2)),), {}, TypeError, "array Q.* lives in HBM: load a part of it first"),
    (lambda *tiles: tiles[0][:1], (np.ones((2, 2)),), {}, TypeError, "is no function by itself|tiles holds arrays"),
    (of_many, (np.ones((2, 2)), np.ones((2, 2))), {}, TypeError, "tiles holds arrays: give each .* a parameter"),
    (not_loaded, (np.ones((2, 2)),), {"names": [("a", 1)]}, TypeError, "names of arrays must be strings")])
def test_bad_input_is_refused(core, args, options, error, words):
    with pytest.raises(error, match=words):
        player.record(core, *args, **options)


def test_a_function_without_source_is_refused():
    names = {}
    exec("def core(Q):\n    return Q[0:1]\n", names)
    with pytest.raises(TypeError, match=r"source of core cannot be read .* write the function into a file"):
        player.record(names["core"], np.ones(2))


# --- what is shown --------------------------------------------------------------------------------------------

def sampler(X):
    """Values of all kinds."""
    small = X[0:1]
    wide = np.zeros((1, MAX_SIDE + 1))
    many = np.zeros((MAX_SIDE, MAX_CELLS // MAX_SIDE + 1))
    deep = np.zeros((1, 1, 1))
    most = np.zeros((MAX_SIDE, MAX_CELLS // MAX_SIDE))
    number, part, word, kind, nothing = np.float32(0.5), slice(1, 2), "partial", np.float32, None
    del small
    number = {}
    return wide, many, deep, most, number, part, word, kind, nothing


def test_what_is_kept_of_each_kind_of_value():
    recording = player.record(sampler, np.ones((40, 40)))
    held, memory = states(recording)[-1]
    large = {name: x.shape for name, x in held.items() if isinstance(x, Large)}
    assert large == {"wide": (1, 33), "many": (32, 9), "deep": (1, 1, 1)} and memory["X"] == Large((40, 40), float)
    assert isinstance(held["most"], np.ndarray)
    assert (held["part"], held["word"], held["kind"]) == (slice(1, 2), "partial", "float32")
    assert held["small"] is None and held["number"] is None and "nothing" not in held
    numbers = [step.names["number"] for step in recording.steps if "number" in step.names]
    assert numbers == [0.5, None]
    assert "1 × 33 float64, not shown" in recording.html()


@pytest.mark.parametrize(("value", "shown"), [
    (0.0, "0"), (-1.0, "−1"), (0.36787944, "0.368"), (-12.3456, "−12.346"), (0.01, "0.010"), (0.0099, "9.9e−3"),
    (1234.5, "1.2e3"), (123456.0, "123456"), (1e7, "1.0e7"), (1e-300, "1.0e−300"), (np.inf, "∞"), (-np.inf, "−∞"),
    (np.nan, "nan"), (7, "7"), (-7, "−7"), (True, "True"), ("full", "full"), (slice(0, 3), "0:3")])
def test_numbers_are_short(value, shown):
    assert text(value) == shown


def decoded(recording):
    """The states that steps.js makes of the data: (line, names, memory, accesses, read, written), all in text."""
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', recording.html(), re.DOTALL)[1])
    held, memory, out = {}, {}, []

    def applied(before, changes):
        after = dict(before)
        for name, change in changes.items():
            if not isinstance(change, list):
                after[name] = change
            elif len(change) == 3:
                after[name] = [*change[:2], change[2].split()]
            else:
                rows, columns, cells = after[name]
                words = change[0].split()
                cells = list(cells)
                for index, word in zip(words[::2], words[1::2], strict=True):
                    cells[int(index)] = word
                after[name] = [rows, columns, cells]
        return after

    for line, call, names, stored, accesses, read, written in data["steps"]:
        function, given, found = data["calls"][call]
        if call not in held:
            held[call], memory = applied({}, given), applied(memory, found)
        held[call], memory = applied(held[call], names), applied(memory, stored)
        where = [(data["memory"][n][0], ("load", "store")[kind], *box) for n, kind, *box in accesses]
        out.append((line + data["functions"][function]["first"], held[call], memory, where, read, written))
    return out


def in_text(value):
    """A kept value as the page has it."""
    if isinstance(value, np.ndarray):
        rows, columns = value.shape if value.ndim == 2 else (len(value), 1)
        return [rows, columns, [text(x) for x in value.ravel().tolist()]]
    return None if value is None else text(value)


def box(where):
    """First row, last row + 1, the same for columns."""
    (top, bottom), (left, right) = where if len(where) == 2 else (*where, (0, 1))
    return top, bottom, left, right


@each_run
@few
@given(size=sizes)
def test_the_page_has_every_state_of_the_recording(name, backward, size):
    core, args = run_of(name, backward, size)
    recording = player.record(core, *args)
    called = {id(record): n for n, record in recording.memory.items()}
    for step, (held, memory), page_has in zip(recording.steps, states(recording), decoded(recording), strict=True):
        accesses = [(called[id(a.record)], a.action, *box(a.where)) for a in step.accesses]
        assert page_has == (step.line, {n: in_text(x) for n, x in held.items()},
                            {n: in_text(x) for n, x in memory.items() if n in recording.memory},
                            accesses, step.read, step.written)


def test_the_page_needs_nothing_from_anywhere():
    html = player.tiny("fa2").html()
    links = re.findall(r"""(?:\bsrc|\bhref)\s*=\s*["']?([^"'\s>]+)""", html)
    assert links == ["data:,"] and not re.search(r"https?://|@import|url\(|\bimport\b|fetch\(", html)


def test_the_page_is_the_same_every_time_and_names_no_folder_of_this_machine():
    assert player.tiny("fa2").html() == player.tiny("fa2").html()
    assert str(debug.__file__).rsplit("/", 2)[0] not in player.tiny("fa2").html()


def closing(Q):
    word = "</script><b>"
    x = Q[0:1]  # </script> & < >
    return word, x


def test_text_of_the_core_cannot_break_the_page():
    html = player.record(closing, np.ones((2, 2))).html()
    assert html.count("</script>") == 2                             # the data and the program
    assert "&lt;/script&gt; &amp; &lt; &gt;" in html


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    recording = player.tiny("fa1")
    frame = recording._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2
    assert unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == recording.html()


def test_2000_steps_are_under_3_megabytes():
    """On-chip tiles of 16 × 16, the largest that are shown with their numbers."""
    Q, K, V, rule = problem(192, 192, 16, causal=False)
    recording = player.record(fa2.forward_head, Q, K, V, rule, 16, 16)
    size = len(recording.html().encode())
    print(f"{len(recording):,} steps: {size / 1e6:.2f} MB")
    assert 1900 < len(recording) <= 2000 and size < 3e6


def test_the_picture_of_the_docs_is_small():
    """docs/screenshot.py makes it."""
    picture = (Path(__file__).parent.parent / "docs" / "player.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 150_000


# --- the source -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("function", [
    fa1.forward_head, fa1.backward_head, fa2.forward_head, fa2.backward_head, fa3.forward_head])
def test_every_numbered_step_is_named_where_it_happens(function):
    source = page.source(function.__code__)
    named = dict.fromkeys(label.split()[0] for label in labels(source) if label)
    assert list(named) == re.findall(r"# (\(\d+\)) ", "\n".join(source.lines))
    for line, label in zip(source.lines, labels(source), strict=True):
        if re.match(r"\s*(for|if|continue|return|\"\"\"|$)", line):
            assert label == "", line


def test_which_names_count():
    assert counters(page.source(fa2.forward_head.__code__)) == ["i", "j"]
    assert counters(page.source(counting.__code__)) == ["a", "b", "n"]


def counting(X):
    for a, b in [(1, 2)]:
        n = a
        while n < b:
            n += 1


def test_code_and_comments_of_the_listing_are_the_source():
    source = page.source(fa2.forward_head.__code__)
    items = re.findall(r"<li[^>]*><code>(.*?)</code></li>", player.tiny("fa2").html(), re.DOTALL)
    assert [unescape(re.sub("<[^>]*>", "", item)) for item in items] == source.lines


# --- the command ----------------------------------------------------------------------------------------------

def test_play_writes_the_page_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ALGORITHMS:
        assert player.main([name]) == 0
        assert (tmp_path / f"play_{name}.html").read_text(encoding="utf-8") == player.tiny(name).html()
        assert f"play_{name}.html" in capsys.readouterr().out
    assert player.main(["-o", "here.html"]) == 0 and (tmp_path / "here.html").is_file()


@pytest.mark.parametrize(("argv", "words"), [(["fa9"], "invalid choice: 'fa9'"),
                                             (["-o", "no/where/x.html"], "there is no folder no/where")])
def test_play_refuses(argv, words, capsys):
    with pytest.raises(SystemExit) as end:
        player.main(argv)
    assert end.value.code == 2 and words in capsys.readouterr().err


# --- hostile values and sources -------------------------------------------------------------------------------

def odd_values(X):
    big, small = 10**5000, -2**70
    broken, dashed = "\ud800", "intra-warpgroup inference"
    words, part, wide = np.array(["a b", "c"]), slice(0, 4, 2), np.longdouble(1.5)
    return X[:1], big, small, broken, dashed, words, part, wide


def test_values_that_are_no_small_numbers_are_shown_as_what_they_are():
    recording = player.record(odd_values, np.ones((2, 2)))
    held = {name: text(x) for step in recording.steps for name, x in step.names.items() if x is not None}
    assert held["big"] == "2^16609 or more" and held["small"] == "−2^70 or more"
    assert held["broken"] == "\\ud800" and held["dashed"] == "intra-warpgroup inference"
    assert held["words"] == "2 <U3, not shown" and held["part"] == "0:4:2" and held["wide"] == "1.500"
    recording.html().encode("utf-8")


def script_in_a_comment(X):
    a = X[:1]                                           # (1) load <!--<script> a tile
    return a


def test_no_text_of_the_source_opens_a_script():
    """<!--<script> would keep the browser from seeing the end of the data."""
    page_ = player.record(script_in_a_comment, np.ones((2, 2)), names=["<!--<script>"]).html()
    data = page_[page_.index('<script id="data"'):].split(">", 1)[1].split("</script>")[0]
    assert "<" not in data and json.loads(data)["memory"][0][0] == "<!--<script>"


def test_a_nested_function_with_text_at_the_left_margin_is_read():
    def nested(X):
        a = X[:1]
# a comment here
        note = """a string
that goes on"""
        return a, note
    assert "that goes on" in player.record(nested, np.ones((2, 2))).html()


def test_a_form_feed_ends_no_line(tmp_path):
    file = tmp_path / "fed.py"
    file.write_text("def f(X):\n    a = X[:1]\n\x0c\n    b = X[:2]  # \u2028\n    return a, b\n", encoding="utf-8")
    scope = {}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), scope)
    recording = player.record(scope["f"], np.ones((2, 2)))
    [source] = [page.source(code) for code in recording.functions]
    lit = [source.lines[step.line - source.first].strip() for step in recording.steps]
    assert [line[:9] for line in lit] == ["a = X[:1]", "b = X[:2]", "return a,"]


def catches_everything(X):
    while True:
        try:
            X[:1]
        except Exception:
            pass


def test_what_catches_everything_is_stopped_too():
    with pytest.raises(ValueError, match="the run has more than 500 steps"):
        player.record(catches_everything, np.ones((2, 2)), max_steps=10)


def test_one_step_too_many_is_too_long():
    steps = len(player.tiny("fa2"))
    Q, K, V, rule = debug.tiny()
    assert len(player.record(fa2.forward_head, Q, K, V, rule, 2, 3, max_steps=steps)) == steps
    with pytest.raises(ValueError, match=f"the run has {steps} steps, and a recording takes max_steps = {steps - 1}"):
        player.record(fa2.forward_head, Q, K, V, rule, 2, 3, max_steps=steps - 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_bytes_are_those_of_the_dtype(dtype):
    Q, K, V = (x.astype(dtype) for x in debug.tiny()[:3])
    last = player.record(fa2.forward_head, Q, K, V, debug.tiny()[3], 2, 3).steps[-1]
    wide = max(np.dtype(dtype).itemsize, 4)                             # O and L
    assert (last.read, last.written) == ((8 + 2 * 24) * np.dtype(dtype).itemsize, (8 + 4) * wide)


def test_a_page_goes_into_a_file(capsys, tmp_path):
    with pytest.raises(SystemExit):
        player.main(["fa2", "-o", str(tmp_path)])
    assert "is a folder: name a file in it" in capsys.readouterr().err
