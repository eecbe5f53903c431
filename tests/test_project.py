"""The files around the code agree with one another: versions, commands, debug configurations, links."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDERS = ("fa_ref", "cuda_kernels", "tests", "notebooks", "docs", ".ci", ".vscode")
TEXT = ("", ".py", ".md", ".toml", ".yml", ".txt", ".json", ".html", ".ipynb")
CACHES = {".hypothesis", ".ipynb_checkpoints", "__pycache__"}          # of runs, and in .gitignore
FILES = sorted(
    path
    for path in [*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    if path.is_file() and path.suffix in TEXT and not CACHES & {*path.parts}
)


def pins(file: str) -> dict[str, str]:
    """name -> version for every `name==version` that stands alone on a line of the file (or after a dash)."""
    found = re.findall(r"^\s*(?:- )?([\w.-]+)==([\w.]+)$", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def requirements(*extras: str) -> dict[str, Requirement]:
    """What pyproject.toml asks for: the core's own requirements and those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {canonicalize_name(r.name): r for r in map(Requirement, chain(*lists))}


def test_every_dependency_is_pinned_inside_its_range():
    pinned = pins("constraints.txt")
    for name, requirement in requirements("gpu", "notebooks", "docs", "dev").items():
        assert name in pinned, f"{name} has no pin in constraints.txt"
        assert pinned[name] in requirement.specifier, f"{name} {pinned[name]} is not {requirement.specifier}"


def test_conda_gets_the_versions_that_make_installs():
    wanted = requirements("notebooks", "docs", "dev")
    assert pins("environment.yml") == {name: pins("constraints.txt")[name] for name in wanted}


def test_conda_gets_a_python_that_the_project_supports():
    python = re.search(r"- python=([\d.]+)", (ROOT / "environment.yml").read_text())[1]
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert python in Requirement(f"python{supported}").specifier


def test_make_help_names_every_public_target():
    public = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE) == public


@pytest.mark.parametrize("claimed", ["2.7", "3.10", "3.14", None])
def test_make_says_which_python_it_needs(tmp_path, claimed):
    """Run make with a stand-in that claims another version, or with one that does not exist."""
    python = tmp_path / "python"
    if claimed:
        python.write_text(f'#!/bin/sh\necho "{claimed}"\n')
        python.chmod(0o755)
    command = ["make", "tour", f"PYTHON={python}", f"VENV={tmp_path}/venv"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode != 0
    assert f"Python 3.11, 3.12 or 3.13 is needed; {python} is {claimed or 'missing'}" in run.stdout
    assert not (tmp_path / "venv").exists()


CONFIGURATIONS = json.loads((ROOT / ".vscode/launch.json").read_text())["configurations"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: c["name"])
def test_debug_configuration_starts_something_that_exists(configuration):
    if "module" in configuration:
        assert find_spec(configuration["module"]), configuration["module"]
    else:
        assert Path(configuration["program"].replace("${workspaceFolder}", str(ROOT))).is_file()


def test_the_debug_configuration_runs_to_its_end():
    command = [sys.executable, "-m", CONFIGURATIONS[0]["module"], *CONFIGURATIONS[0]["args"]]
    subprocess.run(command, cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL, check=True)


def test_links_lead_to_files_of_the_project():
    broken = []
    for path in (p for p in FILES if p.suffix == ".md"):
        for part in chain(*(token.children or [] for token in MarkdownIt().parse(path.read_text()))):
            link = part.attrGet("href") or part.attrGet("src") or "#"
            file = link.split("#")[0]
            if not link.startswith(("http://", "https://")) and not (path.parent / file).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    machine = re.compile(r"(?<![\w./}~-])/(work|root|home|tmp|Users)/\w")
    texts = {path.relative_to(ROOT): path.read_text(errors="ignore") for path in FILES}
    hits = [(name, found[0]) for name, text in texts.items() if (found := machine.search(text))]
    assert not hits
