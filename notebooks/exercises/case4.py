"""The checks of case 4 (notebook 09): where its race is, and a repair, both judged by running them under the audit."""

import inspect
import re
from dataclasses import replace

import numpy as np

from course.checking import Case, Verdict, Wrong, check, number, without_case
from course.comparing import compare
from exercises.kernels import Launched, found, noted, told

THREADS = (1, 2, 3, 4, 7, 8, 32, 33, 64)                # that a repair is tried with


def launch_softmax(kernel, X, threads):
    P = np.full(X.shape, np.nan)
    with noted() as (audit, notes):
        kernel[len(X), threads](X, P)
    return P, audit, notes


def races(N, threads):
    """The pairs of lines of case 4 that race for one row of N numbers, as sets of one or two bare lines.

    Two threads touch one element of shared memory between the same two barriers, and one of them writes. (An audit
    names one pair for each element, this names all.)
    """
    from detective.case4 import row_softmax

    notes = [n for n in launch_softmax(row_softmax, np.arange(N * 1.0)[None], threads)[2] if n.array not in "XP"]
    writes = [n for n in notes if n.action == "writes"]
    code = lines_of_case4()
    return [{code[n.line], code[w.line]} for n in notes for w in writes if n.thread != w.thread
            and (n.phase, n.array, n.index) == (w.phase, w.array, w.index)]


def lines_of_case4():
    """{number: bare line}."""
    from detective.case4 import row_softmax

    lines, start = inspect.getsourcelines(row_softmax.py_func)
    return {start + n: bare(line) for n, line in enumerate(lines)}


def bare(line):
    """A line of source without the number before it, its comment and all spaces."""
    return "".join(re.sub(r"^\s*\d+[:\s]", "", line).partition("#")[0].split())


def race_of_case4(answer):
    """Check race_of_case4() → N, threads, a line, a line."""
    return check(answer, [Case("case 4 as it stands", {})], without_case(fault_of_race))


def fault_of_race(returned):
    """What is wrong with N, threads, a line, a line; None if nothing is."""
    if not (isinstance(returned, tuple) and len(returned) == 4 and list(map(type, returned)) == [int, int, str, str]):
        return f"It must return N, threads (whole numbers) and two lines (texts), got {returned!r}."
    N, threads, *lines = returned
    if not (1 <= N <= 64 and 1 <= threads <= 64):
        return f"N and threads go from 1 to 64 here, got {N} and {threads}."
    for line in lines:
        if bare(line) not in [code for code in lines_of_case4().values() if code]:
            return f"{line!r} is no line of case 4."
    here, run = races(N, threads), f"With N = {N} and {number(threads, 'thread', 'threads')}"
    if not here:
        return f"{run} there is no race."
    if any(races(shorter, T) for shorter in range(1, N) for T in (2, 3, 8)):
        return f"{run} there is a race, but a shorter row has one too."
    if {bare(line) for line in lines} not in here:
        return "There is a race in this run, but not between these two lines."
    return None


def repair_of_case4(answer):
    """Check the kernel repair_of_case4(X, P)."""
    if not hasattr(answer, "py_func"):
        return Verdict(False, "It is not a kernel: keep the line @cuda.jit above the def.")
    return check(Launched(answer, launch_softmax), rows_of_numbers(), judge_repair)


def rows_of_numbers():
    rng = np.random.default_rng(4)
    for N in (1, 2, 4, 5, 6, 8, 9, 13, 22):
        for T in THREADS:
            X = rng.standard_normal((1 + (N > 6), N)) * 5
            what = f"{number(len(X), 'row', 'rows')} of {N}, {number(T, 'thread', 'threads')}"
            yield Case(what, {"X": X, "threads": T})


def judge_repair(case, returned):
    X, T, (P, audit, notes) = case.args["X"], case.args["threads"], returned
    right = np.array([[1 / sum(np.exp(x - y) for x in row) for y in row] for row in X])
    if wrong := compare(P, {"P": right}, {"P": 1e-12}):
        also = "".join("\n" + told(finding).replace("finds", "also finds", 1) for finding in audit.findings[:1])
        return replace(wrong, line=wrong.line + also)
    if wrong := found(audit):
        return wrong
    rows, N = X.shape
    pieces = -(-N // 4)
    if audit.counts.barriers > 2 * pieces * rows:
        return Wrong(f"{audit.counts.barriers // rows} barriers for each row; {2 * pieces} are enough for "
                     f"{number(pieces, 'piece', 'pieces')}.")
    fair = sum(-(-min(4, N - start) // T) for start in range(0, N, 4)) + 2 * -(-N // T)
    most = max(sum(n.array in "XP" and n.thread == t and n.block[0] == 0 for n in notes) for t in range(T))
    if most > fair:
        return Wrong(f"One thread reads and writes {most} numbers of X and P, where {fair} would be its share.")
    return None
