"""The mutator changes what it should and nothing else; the battery tells a fault from plain code, and stops a loop."""

import pytest

import mutants
from mutator import Mutant
from mutator import mutants as mutants_of


@pytest.fixture
def module(tmp_path):
    """A function that writes a source text to a file and returns the mutants of that."""
    def write(source):
        path = tmp_path / "module.py"
        path.write_text(source)
        return mutants_of(path)

    return write


@pytest.mark.parametrize("source, changes", [
    ("a + b", ["a + b → a - b"]),
    ("a @ b * c", ["a @ b * c → a @ b / c", "a @ b → a * b"]),
    ("a += b", ["a += b → a -= b"]),
    ("-a", ["-a → a"]),
    ("-np.inf", ["-np.inf → np.inf", "-np.inf → 0"]),
    ("a < b", ["a < b → a <= b", "a < b → a >= b"]),
    ("a == b", ["a == b → a != b"]),
    ("a is not None", ["a is not None → a is None"]),
    ("a and b", ["a and b → a or b"]),
    ("x if a else y", ["a → not a"]),
    ("[x for x in y if a(x)]", ["a(x) → not a(x)"]),
    ("if a == 0: pass", ["a == 0 → a != 0", "0 → 1"]),
    ("while a: pass", ["a → not a"]),
    ("True", ["True → False"]),
    ("1", ["1 → 2", "1 → 0"]),
    ("7", ["7 → 8"]),
    ("f(0)", ["0 → 1", "0 → -np.inf"]),
    ("x[a:]", ["a: → a + 1:", "a: → a - 1:"]),
    ("x[a:b]", ["a:b → a + 1:b", "a:b → a - 1:b", "a:b → a:b + 1", "a:b → a:b - 1"]),
    ("x[::-1]", ["-1 → 1", "1 → 2", "1 → 0"]),
    ("range(n)", ["range(n) → range(n + 1)", "range(n) → range(n - 1)"]),
    ("x.max()", ["x.max → x.min"]),
    ("np.zeros(n)", ["np.zeros → np.ones"]),
    ("f(a, axis=b)", ["axis=b → (left out)"]),
    ("x.T", ["x.T → x"]),
    ("x.astype(t)", ["x.astype(t) → x"]),
    ("rounded(x, t)", ["rounded(x, t) → x"]),
    ("raise ValueError(1 + 2)", []),
    ("f'{1 + 2}'", []),
    ("import a", []),
    ("def f(a: b | c) -> d | e: return 'text'", []),
])
def test_the_changes(module, source, changes):
    assert [m.change for m in module(source)] == changes


def test_one_change_at_a_time(module):
    """The code of each mutant holds its own change alone."""
    def value(mutant):
        names = {}
        exec(mutant.code, names)
        return names["x"]

    assert [value(m) for m in module("x = (5 + 2, 9 - 3)")] == [(3, 6), (8, 6), (8, 6), (7, 12), (7, 7), (7, 5)]


def test_a_mutant_is_named_by_its_line_not_by_the_number(module):
    first, second = module("x = a + b  # why\n")[0], module("\n\n  \nx = a + b\n")[0]
    assert first.key == second.key == ("module", "x = a + b", "a + b → a - b")
    assert (first.number, second.number) == (1, 4)


# --- the battery ----------------------------------------------------------------------------------------------

def changed(module, before, after):
    """The module with one piece of its text replaced."""
    path = mutants.file(module)
    text = path.read_text()
    assert before in text
    return Mutant(module, 0, before, after, compile(text.replace(before, after), path, "exec"))


FAULTS = [
    changed("fa2", "alpha * l + rowsum(Pij)", "l + rowsum(Pij)"),
    changed("scores", "self.offset = Nk - Nq", "self.offset = 0"),
    changed("heads", "h // group", "h % sizes.Hkv"),
    changed("varlen", "import numpy as np", "import numpy as np\nraise MemoryError"),
]


def test_the_plain_code_lives_and_planted_faults_die():
    cases = mutants.judged(mutants.RECIPES)
    todo = [(m, []) for m in [*map(mutants.plain, mutants.MODULES), *FAULTS[:3]]]
    died = {n: why for n, _, why in mutants.outcomes(todo, cases)}
    assert [died[n] for n in range(len(mutants.MODULES))] == [""] * len(mutants.MODULES)
    assert all("is wrong for" in died[n] for n in range(len(mutants.MODULES), len(todo))), died


def test_the_tests_of_the_battery_notice_what_the_direct_checks_cannot(tmp_path):
    """A test file is run with the mutant in place; the direct checks never call varlen."""
    file = tmp_path / "test_it.py"
    file.write_text("def test_it():\n    import fa_ref.varlen\n")
    outcomes = {n: why for n, _, why in mutants.outcomes([(FAULTS[3], []), (FAULTS[3], [file])], [])}
    assert outcomes[0] == "" and "MemoryError" in outcomes[1]


def test_an_endless_loop_is_stopped():
    endless = changed("fa2", "import numpy as np", "import numpy as np\nwhile True: pass")
    [(_, seconds, why)] = mutants.outcomes([(endless, [])], [], 1)
    assert why == "stopped after 1 seconds" and seconds < 5


# --- the count ------------------------------------------------------------------------------------------------

def test_the_report_counts_and_gives_reasons(monkeypatch):
    a, b, c = (Mutant("fa2", n, f"line {n}", "x → y", None) for n in (1, 2, 3))
    monkeypatch.setattr(mutants, "EQUIVALENT", {b.key: "no difference"})
    text = mutants.report([(a, "killed"), (b, ""), (b, ""), (c, "")])
    assert "| fa2 | 4 | 1 | 25.0% |" in text and "| all | 4 | 1 | 25.0% |" in text
    assert text.endswith("""
- fa2: `x → y` in `line 2` (2 times): no difference
- fa2: `x → y` in `line 3`: NO REASON GIVEN""")


def test_all_is_well_if_19_of_20_die_and_the_rest_has_reasons(monkeypatch):
    a, b = (Mutant("fa2", n, f"line {n}", "x → y", None) for n in (1, 2))
    monkeypatch.setattr(mutants, "EQUIVALENT", {b.key: "no difference"})
    assert mutants.accepted([(a, "killed")] * 19 + [(b, "")])
    assert not mutants.accepted([(a, "killed")] * 18 + [(b, "")])
    assert not mutants.accepted([(a, "killed")] * 19 + [(a, "")])


def test_a_reason_without_a_survivor_is_stale(monkeypatch):
    a, b = (Mutant("fa2", n, f"line {n}", "x → y", None) for n in (1, 2))
    monkeypatch.setattr(mutants, "EQUIVALENT", {b.key: "no difference"})
    assert mutants.stale([(a, ""), (b, "")], ["fa2"]) == []
    assert mutants.stale([(a, ""), (b, "killed")], ["fa2"]) == [b.key]
    assert mutants.stale([], ["scores"]) == []


def test_a_report_of_some_modules_leaves_the_others_as_they_were(monkeypatch):
    a, b, c = (Mutant(module, 1, "line", "x → y", None) for module in ("fa1", "fa2", "heads"))
    monkeypatch.setattr(mutants, "EQUIVALENT", {})
    old = mutants.report([(a, ""), (a, "killed"), (b, ""), (b, ""), (c, "killed")])
    assert mutants.renewed(old, old) == old
    assert mutants.renewed(old, mutants.report([(b, "killed")] * 3)) == mutants.report(
        [(a, ""), (a, "killed"), *[(b, "killed")] * 3, (c, "killed")])


@pytest.mark.parametrize("part", [["--sample", "9"], ["--known"]])
def test_only_a_whole_run_is_written_down(monkeypatch, capsys, part):
    """--known takes a line with two changes of one name for one reason, though the tests may notice one of the two."""
    monkeypatch.setattr("sys.argv", ["mutants.py", "--write", *part])
    with pytest.raises(SystemExit):
        mutants.main()
    assert "each of them run" in capsys.readouterr().err
