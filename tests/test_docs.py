"""What docs/ says is true: examples run, recorded sessions repeat, everything that is named exists."""

import ast
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

import fa_ref

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def fences(page, language):
    """(number of its first line, text) of each fenced block of this language."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [(t.map[0] + 1, t.content) for t in tokens if t.type == "fence" and t.info == language]


def code_spans(page):
    """All `code` between backticks outside fenced blocks."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    return [part.content for t in tokens for part in t.children or [] if part.type == "code_inline"]


# --- examples -------------------------------------------------------------------------------------------------

def run_examples(blocks, name):
    """Run the >>> examples of the blocks, which share their names; return what doctest has to say about failures."""
    shared, complaints = {}, []
    for line, text in blocks:
        test = doctest.DocTestParser().get_doctest(text, shared, f"{name}:{line}", name, line)
        if not test.examples:
            complaints.append(f"{name}, line {line}: a python block without >>> would not be run\n")
        doctest.DocTestRunner(verbose=False).run(test, out=complaints.append, clear_globs=False)
        shared = test.globs
    return "".join(complaints)


@each_page
def test_examples_print_what_the_page_says(page):
    with np.printoptions():
        complaints = run_examples(fences(page, "python"), page.name)
    assert not complaints, complaints


@pytest.mark.parametrize("block", [">>> 1 + 1\n3\n", "x = 1\n", ">>> undefined\n"])
def test_a_wrong_example_is_noticed(block):
    assert re.search("line [78]", run_examples([(7, block)], "page"))


# --- recorded pdb sessions ------------------------------------------------------------------------------------

SESSIONS = [(page, line, text) for page in PAGES for line, text in fences(page, "pdb")]


def without_places(transcript):
    """The transcript from its first > on; …/fa_ref/fa2.py(62) and …/fa_ref/fa2.py:62 become fa_ref/fa2.py(…).

    The simulator's (shared, fa2.py:82) becomes (shared, fa2.py:…), and (local, …) likewise.
    """
    transcript = transcript[re.search(r"^> ", transcript, re.MULTILINE).start():].strip()
    for pattern, short in [
        (r"(?m)(^> <string>.*\n)-> .*\n", r"\1"),                                          # Python 3.13 shows -c
        (r"(\((?:shared|local), \w+\.py:)\d+\)", r"\1…)"),
        (r"\S*\b((?:fa_ref|cuda_kernels)/\w+\.py)(\(\d+\)|:\d+)", r"\1(…)"),
    ]:
        transcript = re.sub(pattern, short, transcript)
    return transcript


def replay(session):
    """Run the command after $ and type what was typed at each (Pdb); return the transcript."""
    command, _, recorded = session.removeprefix("$ ").partition("\n")
    typed = re.findall(r"^\(Pdb\) (.*)$", recorded, re.MULTILINE)
    python, *arguments = shlex.split(command)
    assert python == "python"
    run = subprocess.run(
        [sys.executable, *arguments], input="\n".join(typed) + "\n", cwd=ROOT, capture_output=True, timeout=120,
        encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8", "HOME": os.devnull})
    answers = run.stdout.split("(Pdb) ")
    return "".join(f"{answer}(Pdb) {line}\n" for answer, line in zip(answers, typed, strict=False)), run


@pytest.mark.parametrize(("page", "line", "session"), SESSIONS, ids=[f"{p.name}:{n}" for p, n, _ in SESSIONS])
def test_a_recorded_session_repeats(page, line, session):
    now, run = replay(session)
    assert run.returncode == 0, run.stderr
    assert without_places(now) == without_places(session), f"{page.name}, line {line}: now it reads\n\n{now}"


@pytest.mark.parametrize(("page", "source"), [("debugging.md", "fa_ref/fa2.py"),
                                              ("debugging_kernels.md", "cuda_kernels/fa2.py")])
def test_the_breakpoints_of_the_debugging_pages_are_statements_of_fa2(page, source):
    table = re.findall(r"^\| `([^`]+)` \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(table) >= 4
    assert [statement for statement in table if statement not in (ROOT / source).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(("page", "number"), [("debugging.md", 2), ("debugging_kernels.md", 1)])
def test_the_debug_configurations_that_the_pages_name_exist(page, number):
    names = [c["name"] for c in json.loads((ROOT / ".vscode/launch.json").read_text())["configurations"]]
    asked = re.findall(r"configuration\s+\*\*(.+?)\*\*", (DOCS / page).read_text(encoding="utf-8"))
    assert len(asked) == number and set(asked) <= set(names)


# --- links and names ------------------------------------------------------------------------------------------

def anchors(page):
    """The #names of the headings, made as GitHub makes them."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    titles = [inline.content for head, inline in pairwise(tokens) if head.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_to_files_and_headings(page):
    links = [part.attrGet("href") for t in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
             for part in t.children or [] if part.type == "link_open"]
    broken = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@each_page
def test_links_are_relative(page):
    assert not re.findall(r"\]\((?:\w+:|/)[^)]*\)", page.read_text(encoding="utf-8"))


def missing(span):
    """What of this code span should exist and does not: a file, a test, an attribute of the package; else None."""
    file, _, name = span.partition("::")
    if re.fullmatch(r"(fa_ref|cuda_kernels|tests|docs|notebooks|\.vscode)/[\w/.]*", file):
        if not (ROOT / file).exists():
            return file
        if name:
            defined = {node.name for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
                       if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            return None if name in defined else span
    elif re.fullmatch(r"(fa_ref|cuda_kernels)(\.\w+)+", span):
        owner = import_module(span.split(".")[0])
        for part in span.split(".")[1:]:
            try:
                owner = getattr(owner, part, None) or import_module(f"{owner.__name__}.{part}")
            except ImportError:
                return span
    return None


@each_page
def test_everything_that_is_named_exists(page):
    assert [span for span in code_spans(page) if missing(span)] == []


@pytest.mark.parametrize("span", [
    "fa_ref/fa9.py", "tests/test_docs.py::test_nothing", "fa_ref.forwards", "fa_ref.scores.Rule.sort", "docs/no.md",
    "cuda_kernels.simulator.audits"])
def test_a_wrong_name_is_noticed(span):
    assert missing(span)


@each_page
def test_steps_that_are_named_exist(page):
    """`fa_ref/fa2.py` steps (5), (6): those numbers stand in that file."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:fa_ref|cuda_kernels)/\w+\.py)` steps? ((?:\(\d+\)(?:, | and )?)+)", text)
    wrong = [(file, step) for file, steps in named for step in re.findall(r"\(\d+\)", steps)
             if f"# {step} " not in (ROOT / file).read_text(encoding="utf-8")]
    assert not wrong


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []


# --- notation and errata --------------------------------------------------------------------------------------

def glossary():
    """The letters of the package's docstring: cells of one or more names of at most 4 characters."""
    lines = [line for line in fa_ref.__doc__.splitlines() if line.startswith("    ")]
    cells = [cell for line in lines for cell in re.split(r"\s{2,}", line.strip())[:-1]]
    named = [cell for cell in cells if re.fullmatch(r"\w{1,4}((, | )\w{1,4})*", cell)]
    return set(re.findall(r"\w+", " ".join(named)))


def test_notation_has_every_letter_of_the_glossary():
    page = (DOCS / "notation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    ours = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(glossary()) > 30
    assert glossary() - {"dX"} <= ours
    assert {"dO", "dQ", "dK", "dV", "dS", "dP"} <= ours                 # what dX stands for


ERRATA = re.split(r"^## (?=\d)", (DOCS / "errata.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda text: text.partition("\n")[0])
def test_an_erratum_says_what_is_printed_what_is_right_why_where_and_which_test(erratum):
    labels = re.findall(r"^- \*\*(.+?)\*\*", erratum, re.MULTILINE)
    assert labels == ["Printed.", "Right.", "Why.", "Here.", "Test."]
    assert re.search(r"\*\*Test\.\*\* `tests/test_errata\.py::test_\w+`", erratum)


def test_every_erratum_has_its_own_number_and_every_test_its_erratum():
    numbers = [int(re.match(r"\d+", text)[0]) for text in ERRATA]
    assert numbers == list(range(1, len(ERRATA) + 1))
    named = re.findall(r"tests/test_errata\.py::(test_\w+)", "".join(ERRATA))
    written = re.findall(r"^def (test_\w+)", (ROOT / "tests/test_errata.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(written)
