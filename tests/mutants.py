"""Plant one small fault at a time in the algorithms, and count how many of them the tests notice.

    python tests/mutants.py                     every mutant of every module (make mutants)
    python tests/mutants.py --module fa2        those of one module (may be repeated)
    python tests/mutants.py --sample 50         50 of them, picked at random but always the same
    python tests/mutants.py --write             put the result into docs/verification.md; with --module only theirs
    python tests/mutants.py --known             a first look: those with a reason count as survivors without being run

A mutant is one module with one expression changed (`mutator.py` says how). It runs in a forked child, which imports the
package with that module in place and works through the battery: direct checks against the oracle, then the tests, up to
the first failure. A mutant that fails, or runs many times as long as the plain code, is killed. One that survives shows
a missing test, needless code, or no fault at all: then `mutants_equivalent.py` holds the reason. Exit code 1 if fewer
than 95 % are killed or a survivor has no reason, 2 if the plain code does not pass.
"""

import argparse
import importlib.util
import os
import random
import re
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile

import hypothesis
import pytest
import torch  # noqa: F401  imported once, here, for all children
from rich.console import Console
from rich.progress import Progress

from fa_ref.testing import oracle, tolerance
from fa_ref.testing.properties.conduct import BY_CHANCE
from fa_ref.testing.recipe import Recipe
from mutants_equivalent import EQUIVALENT
from mutator import Mutant, mutants

ROOT = Path(__file__).parent.parent
MODULES = ("scores", "online_softmax", "standard", "fa1", "fa2", "fa3", "fp8", "fa3_fp8", "heads", "varlen")
TESTS = ("test_scores.py", "test_online_softmax.py", "test_cores.py", "test_fa3.py", "test_fp8.py", "test_fa3_fp8.py",
         "test_heads.py", "test_base_two.py", "test_varlen.py", "test_ledger.py", "test_costs.py",
         "test_torch_bridge.py", "test_inputs.py", "test_cases.py", "test_kit.py::test_standard",
         "test_kit.py::test_fa1", "test_kit.py::test_fa2", "test_kit.py::test_fa3")
RECIPES = (
    "Nq=3 Nk=4 d=2 gradients=True block_q=2 block_k=3",
    "Nq=5 Nk=7 d=3 dv=2 causal=True gradients=True dlse=True block_q=2 block_k=3 reverse=True",
    "B=2 Hq=4 Hkv=2 Nq=7 Nk=5 d=2 causal=True window=2,1 alibi=BH sink=True gradients=True block_q=3 block_k=2",
    "B=2 Hq=2 Nq=6 Nk=6 d=2 window=1,2 softcap=2.0 scale=-0.7 gradients=True dlse=True block_k=1 dtype=float64",
    "B=2 Hq=2 Nq=5 Nk=6 d=2 mask=bool empty_rows=True nan_unread=True sink=True gradients=True dlse=True block_k=4",
    "B=2 Hq=2 Hkv=2 Nq=4 Nk=6 d=2 mask=float bias=1HQK bias_hides=True gradients=True block_q=2 reverse=True",
    "Nq=4 Nk=5 d=4 logits=300 bias=Q1 softcap=30.0 alibi=H gradients=True dtype=float16 block_q=3 block_k=2",
    "B=2 Nq=3 d=2 Nk=0 sink=True gradients=True",
    "Nq=3 Nk=3 d=2 gradients=True dtype=bfloat16")

hypothesis.settings.register_profile(                               # CI's without shrinking; conftest.py loads it
    "mutants", deadline=None, derandomize=True, database=None, max_examples=100, report_multiple_bugs=False,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))


# --- the battery ----------------------------------------------------------------------------------------------

def judged(lines):
    """The problems of these recipes with the oracle's answers and bounds, which no mutant changes."""
    problems = [Recipe.parse(line).build() for line in lines]
    return [(line, p, oracle.solve(p), tolerance.bounds(p)) for line, p in zip(lines, problems, strict=True)]


def direct_checks(cases):
    """AssertionError unless every algorithm gives every answer, forward and backward, within its bound."""
    from fa_ref import heads

    for line, p, truth, bound in cases:
        for algorithm in heads.ALGORITHMS:
            options = p.options | {"algorithm": algorithm, "reverse": p.reverse}
            options |= {"block_q": p.block_q, "block_k": p.block_k}
            out, lse = heads.forward(p.q, p.k, p.v, **options)
            grads = heads.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, **options)
            for name, worst in tolerance.worst(oracle.Answer(out, lse, *grads), truth, bound).items():
                assert worst.fraction <= 1, f"{algorithm}: {name}{worst.index} is wrong for {line}"


class Serve:
    """An import hook that finds one module, and makes it from the code of the mutant."""

    def __init__(self, mutant):
        self.name, self.code = f"fa_ref.{mutant.module}", mutant.code

    def find_spec(self, name, path, target=None):
        if name == self.name:
            return importlib.util.spec_from_file_location(name, self.code.co_filename, loader=self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.code, vars(module))


def battery(mutant, cases, files):
    """0 if all passes with the mutant in place, else another number or an exception."""
    for name in [name for name in sys.modules if name.split(".")[0] == "fa_ref"]:
        del sys.modules[name]
    sys.meta_path.insert(0, Serve(mutant))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", BY_CHANCE, RuntimeWarning)
        direct_checks(cases)
    runs = (pytest.main(["-x", "-q", "-p", "no:cacheprovider", str(file)]) for file in files)
    return next((code for code in runs if code), 0)                 # a file is only begun when those before it passed


def start(mutant, cases, files, limit):
    """Fork a child that runs the battery for so many seconds: (its process id, the file that takes what it prints)."""
    log = TemporaryFile()
    if pid := os.fork():
        return pid, log
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))     # of the processor: the machine may be busy
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)
        os.environ["HYPOTHESIS_PROFILE"] = "mutants"
        code = int(battery(mutant, cases, files))
    except BaseException as error:                                  # whatever it is, the fault was noticed
        print(f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcomes(todo, cases, limit=resource.RLIM_INFINITY):
    """Run the battery on each (mutant, files), two at a time. Yields its number, the seconds, and why it died or ""."""
    waiting, running = list(enumerate(todo))[::-1], {}
    while waiting or running:
        while waiting and len(running) < 2:
            n, (mutant, files) = waiting.pop()
            pid, log = start(mutant, cases, files, limit)
            running[pid] = n, log
        pid, status, used = os.wait4(-1, 0)
        n, log = running.pop(pid)
        log.seek(0)
        said = log.read().decode(errors="replace").strip() or f"status {status}"
        stopped = os.WIFSIGNALED(status) and f"stopped after {limit} seconds"
        yield n, used.ru_utime + used.ru_stime, "" if status == 0 else stopped or said


# --- the count ------------------------------------------------------------------------------------------------

def file(module):
    return ROOT / "fa_ref" / f"{module}.py"


def plain(module):
    """The module without any change, as a mutant."""
    return Mutant(module, 0, "", "no change", compile(file(module).read_text(), file(module), "exec"))


def test_files(module):
    """All tests, those of the module itself first."""
    own = f"test_{'cores' if module in ('standard', 'fa1', 'fa2') else module}.py"
    return [ROOT / "tests" / name for name in sorted(TESTS, key=lambda name: name != own)]


def report(verdicts):
    """Of (mutant, why it died) in Markdown: a table with a row per module, and the survivors with their reasons."""
    deaths = {module: [why != "" for m, why in verdicts if m.module == module] for module in MODULES}
    lines = table({module: (len(fates), sum(fates)) for module, fates in deaths.items() if fates})
    for key, times in Counter(m.key for m, why in verdicts if not why).items():
        module, line, change = key
        often = f" ({times} times)" if times > 1 else ""
        lines.append(f"- {module}: `{change}` in `{line}`{often}: {EQUIVALENT.get(key, 'NO REASON GIVEN')}")
    return "\n".join(lines)


def table(counts):
    """Lines of Markdown for {module: (mutants, killed)}, with their sum."""
    rows = counts | {"all": tuple(map(sum, zip(*counts.values(), strict=True)))}
    return ["| module | mutants | killed | |", "|---|---:|---:|---:|",
            *(f"| {module} | {n} | {killed} | {killed / n:.1%} |" for module, (n, killed) in rows.items()), ""]


def renewed(old, new):
    """Two reports in one: of each module what the newer one says, if it says anything."""
    counts, survivors = {}, {}
    for text in (old, new):
        found = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|", text, re.MULTILINE)
        for module, n, killed in found:
            counts[module] = int(n), int(killed)
            survivors[module] = re.findall(rf"^- {module}: .*$", text, re.MULTILINE)
    known = [module for module in MODULES if module in counts]
    lines = table({module: counts[module] for module in known})
    return "\n".join([*lines, *(line for module in known for line in survivors[module])])


def accepted(verdicts):
    """At least 95 % are dead, and for every other there is a reason."""
    survivors = [m.key for m, why in verdicts if not why]
    return len(survivors) <= 0.05 * len(verdicts) and all(key in EQUIVALENT for key in survivors)


def stale(verdicts, modules):
    """The reasons for mutants of these modules that did not survive, or do not exist any more."""
    survivors = {m.key for m, why in verdicts if not why}
    return [key for key in EQUIVALENT if key[0] in modules and key not in survivors]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=MODULES)
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--known", action="store_true")
    asked = parser.parse_args()
    if asked.write and (asked.sample or asked.known):
        parser.error("--write is for the result of all mutants of a module, each of them run")

    cases, modules = judged(RECIPES), asked.module or MODULES
    console = Console(highlight=False, markup=False, emoji=False)
    console.print("the plain code first ...")
    _, seconds, why = next(outcomes([(plain(modules[0]), test_files(modules[0]))], cases))
    if why:
        console.print(f"{why}\n\nThe plain code does not pass; nothing can be said about mutants.")
        return 2
    found = [m for module in modules for m in mutants(file(module))]
    if asked.sample:
        found = [found[n] for n in sorted(random.Random(0).sample(range(len(found)), min(asked.sample, len(found))))]

    verdicts = [(m, "") for m in found]
    run = [n for n, m in enumerate(found) if not (asked.known and m.key in EQUIVALENT)]
    with Progress(console=console, auto_refresh=False) as progress:  # no second thread: the children are forked
        task = progress.add_task(f"{len(run)} mutants", total=len(run))
        todo = [(found[n], test_files(found[n].module)) for n in run]
        for k, _, why in outcomes(todo, cases, 60 + 5 * int(seconds)):
            n = run[k]
            verdicts[n] = found[n], why
            progress.update(task, advance=1, refresh=True)
            if not why or why.startswith("stopped"):
                fate = why or "survives"
                console.print(f"{found[n].module}.py:{found[n].number} {fate}: {found[n].change}", soft_wrap=True)

    print(report(verdicts))
    if not asked.sample:
        for key in stale(verdicts, modules):
            print(f"stale: no survivor matches the reason for {key}")
    if asked.write:
        sys.path.append(str(ROOT / "docs"))
        import marks
        page = ROOT / "docs" / "verification.md"
        marks.fill(page, "mutants", renewed(marks.read(page, "mutants"), report(verdicts)))
    return 0 if accepted(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
