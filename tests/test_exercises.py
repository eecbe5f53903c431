"""The exercises tell right from wrong: stubs fail, solutions pass, wrong answers and bad manners get a line.

Who wants to cheat can: an answer runs in the same Python as its check.
"""

import importlib
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))
import build  # noqa: E402
from course.checking import Case, Verdict, Wrong, check  # noqa: E402
from course.comparing import compare  # noqa: E402


def stubs(source):
    """{exercise: (number of the notebook, the stub)}: the last function of each cell tagged "stub"."""
    found, notebook = {}, build.read(source)
    for cell in notebook.cells:
        if "stub" in cell.metadata.get("tags", []):
            scope = {}
            exec(compile(cell.source, str(source), "exec"), scope_of_imports(notebook), scope)
            name = [key for key in scope if not key.startswith("_")][-1]
            found[name] = (source.name[:2], scope[name])
    return found


def scope_of_imports(notebook):
    """The names that the import statements of a notebook make."""
    lines = [line for c in notebook.cells if c.cell_type == "code" for line in c.source.splitlines()
             if line.startswith(("import ", "from "))]
    scope = {}
    exec("\n".join(lines), scope)
    return scope


STUBS = {name: found for source in build.SOURCES for name, found in stubs(source).items()}
NUMBERS = sorted({number for number, _ in STUBS.values()})


def exercise(name):
    return getattr(importlib.import_module(f"exercises.nb{STUBS[name][0]}"), name)


def wrong_answers():
    """[(exercise, name of the wrong answer, the wrong answer)] of all notebooks."""
    modules = [importlib.import_module(f"wrong_answers.nb{number}") for number in NUMBERS]
    return [(name.partition("__")[0], name, value) for module in modules for name, value in vars(module).items()
            if "__" in name.strip("_")]


def judged(name, answer):
    """The Verdict, within the time that a check may take."""
    start = time.monotonic()
    verdict = exercise(name)(answer)
    assert isinstance(verdict, Verdict)
    assert time.monotonic() - start < 10
    assert verdict._repr_html_() and str(verdict)
    return verdict


def test_every_notebook_has_an_exercise():
    assert [source.name[:2] for source in build.SOURCES] == NUMBERS


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_is_rejected(name):
    verdict = judged(name, STUBS[name][1])
    assert not verdict and "Not written yet" in verdict.line


@pytest.mark.parametrize("name", STUBS)
def test_a_solution_passes(name):
    verdict = judged(name, getattr(importlib.import_module(f"solutions.nb{STUBS[name][0]}"), name))
    assert verdict, str(verdict)


@pytest.mark.parametrize(("name", "label", "answer"), wrong_answers(), ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_answer_is_rejected(name, label, answer):
    verdict = judged(name, answer)
    assert not verdict
    assert not any(manner in verdict.line for manner in ("raised", "must take", "did not return"))


@pytest.mark.parametrize("name", STUBS)
def test_every_exercise_has_two_wrong_answers(name):
    assert len([label for exercise, label, _ in wrong_answers() if exercise == name]) >= 2


def test_every_wrong_answer_belongs_to_an_exercise():
    assert {name for name, _, _ in wrong_answers()} <= set(STUBS)


# --- bad manners ----------------------------------------------------------------------------------------------

def double(answer, seconds=0.3):
    """An exercise of the simplest kind: return 2x."""
    cases = [Case(f"{n} numbers", {"x": np.arange(n) + 1.0}) for n in (1, 2, 3)]
    return check(answer, cases, lambda case, got: compare(got, {"y": 2 * case.args["x"]}, {"y": 0.0}), seconds=seconds)


def changes_its_input(x):
    x *= 2
    return x


def never_returns(x):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def asks_for_more(x, y):
    return x + y


def leaves(x):
    sys.exit(3)


def divides_by_zero(x):
    n = len(x) - len(x)
    return 1 / n


MANNERS = [
    (changes_its_input, "It changed its input x"),
    (never_returns, "did not return within"),
    (asks_for_more, r"must take 1 argument \(x\), but is asks_for_more\(x, y\)"),
    (leaves, "raised SystemExit: 3"),
    (divides_by_zero, r"raised ZeroDivisionError: .*\nin divides_by_zero: return 1 / n"),
    (lambda x: None, "returned None"),
    (lambda x: [2.0], "must be an array, got a list"),
    (lambda x: "two", "got a str"),
    (lambda x: (x, x), r"must return 1 thing \(y\), got a tuple of 2"),
    (lambda x: 2 * x[:, None], r"must have shape \(1,\), got \(1, 1\)"),
    (lambda x: x * np.nan, r"y\[0\] is nan, expected 2"),
    (lambda x: 2 * x.astype(complex), "real numbers, got dtype complex128"),
    (lambda x: 2 * x + (len(x) > 1), r"y\[0\] is 3, expected 2 \(2 of 2 elements are wrong\)"),
    (3, "Not a function"),
    (np.log, "expected 2"),
]


@pytest.mark.parametrize(("answer", "line"), MANNERS)
def test_bad_manners_get_a_friendly_line_and_the_smallest_case(answer, line):
    with np.errstate(all="ignore"):
        verdict = double(answer)
    assert not verdict
    assert re.search(line, verdict.line), verdict.line
    assert "Traceback" not in str(verdict)
    assert verdict.case is None or f"{verdict.case.what}\n  x = [" in str(verdict)


def test_a_judge_that_stumbles_over_an_odd_answer_gives_a_line():
    """What came back is so odd that the judge itself raises: a friendly line, no traceback."""
    verdict = check(lambda x: {}, [Case("one", {"x": 1.0})], lambda case, got: got["y"] > 1)
    assert not verdict and "could not be compared" in verdict.line and "KeyError" in verdict.line


def test_the_case_of_a_verdict_can_be_run_again_and_is_a_copy():
    verdict = double(lambda x: x)
    assert verdict.args["x"] == [1.0]
    verdict.args["x"][0] = 7
    assert verdict.args["x"] == [1.0]


def test_a_warning_is_told_with_a_wrong_answer():
    verdict = double(lambda x: x / np.zeros_like(x))
    assert "Python warned on the way: divide by zero" in verdict.line


def test_a_right_answer_passes_and_too_slow_a_one_is_told():
    assert double(lambda x: 2 * x)

    def slow(x):
        time.sleep(0.15)
        return 2 * x

    cases = [Case("one", {"x": 1.0})] * 5
    verdict = check(slow, cases, lambda case, got: None, budget=0.2)
    assert not verdict and "Too slow" in verdict.line and "2 of 5" in verdict.line


def test_no_limit_while_a_debugger_looks_on():
    def slow(x):
        time.sleep(0.2)
        return 2 * x

    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        verdict = double(slow, seconds=0.05)
    finally:
        sys.settrace(before)
    assert verdict
    assert not double(slow, seconds=0.05)


def test_the_first_wrong_tile_is_drawn():
    right = np.arange(24.0).reshape(4, 6)
    got = right.copy()
    got[2, 4] += 1
    wrong = compare(got, {"O": right}, {"O": 1e-9}, tiles=(2, 3))
    assert isinstance(wrong, Wrong) and wrong.figure is not None
    assert wrong.line == "O[2, 4] is 17, expected 16 (1 of 24 elements are wrong)."
    assert "wrong tile (1, 1) of 2 × 3" in wrong.alt
