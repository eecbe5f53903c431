"""Check an answer: run a learner's function on cases, smallest first, and stop at the first that goes wrong.

An exercise is a function `check(answer) -> Verdict` made of two things: cases, which say what to call the answer with,
and a judge, which looks at what came back. Whatever the answer does (raise, return nothing, change its inputs, run
for ever), the learner reads one friendly line and the case, never a traceback of ours.
"""

import contextlib
import copy
import html
import inspect
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from course import pictures

SECONDS = 3.0               # for one call
BUDGET = 8.0                # for all calls of one check


@dataclass(frozen=True)
class Case:
    """What to call an answer with. what: in words. args: {name of the parameter: value}, passed by position.

    truth: whatever the judge needs to know about the case; the answer is not given it.
    """

    what: str
    args: dict[str, Any]
    truth: Any = None


@dataclass(frozen=True)
class Wrong:
    """What is wrong with what came back: a line, and a figure that shows where, with its text in words.

    shown: does the case show it? False where nothing was computed, or where it is the same for all cases.
    """

    line: str
    figure: Any = None
    alt: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Verdict:
    """ok, or the smallest case that goes wrong. In a notebook it shows itself.

    `args` holds the inputs of that case, so that it can be run again, or stepped through in a debugger:
    `my_function(*verdict.args.values())`.
    """

    ok: bool
    line: str
    case: Case | None = None
    figure: Any = field(default=None, repr=False)
    alt: str = ""

    def __bool__(self):
        return self.ok

    @property
    def args(self):
        return copy.deepcopy(self.case.args) if self.case else {}

    def __str__(self):
        if self.ok or self.case is None:
            return self.line
        return f"{self.line}\n\nThe smallest case that shows it: {self.case.what}\n{written(self.case.args)}"

    __repr__ = __str__

    def _repr_html_(self):
        picture = "" if self.figure is None else pictures.html_image(self.figure, self.alt)
        return f"<pre>{html.escape(str(self))}</pre>{picture}"


def check(answer, cases, judge, *, seconds=SECONDS, budget=BUDGET):
    """Call answer(*case.args.values()) for every case until one goes wrong; returns a Verdict.

    cases: an iterable of Case, smallest first, at least one. judge(case, returned): a Wrong, or None if it is right.
    seconds: for one call. budget: for all of them; what then has not been tried is said.
    """
    if not callable(answer):
        return Verdict(False, f"Not a function: what was handed in is a {type(answer).__name__}.")
    complaint = signature_complaint(answer, cases := list(cases))
    if complaint:
        return Verdict(False, complaint)
    stop_at = time.monotonic() + budget
    for tried_before, case in enumerate(cases):
        left = stop_at - time.monotonic()
        try:
            if left < 0:
                raise TookTooLong
            wrong = tried(answer, case, judge, min(seconds, left + 0.5))
        except TookTooLong:
            if left + 0.5 < seconds:
                return Verdict(False, f"Too slow: {budget:g} s were up after {tried_before} of {len(cases)} cases, all "
                                      "right so far.")
            return Verdict(False, f"It did not return within {seconds:g} s. Is there a loop that never ends?", case)
        if wrong:
            return Verdict(False, wrong.line, case if wrong.shown else None, wrong.figure, wrong.alt)
    return Verdict(True, "ok: right." if len(cases) == 1 else f"ok: right in all {len(cases)} cases.")


def tried(answer, case, judge, seconds):
    """One call: a Wrong, or None; TookTooLong after so many seconds."""
    args = copy.deepcopy(case.args)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with time_limit(seconds):
                returned = answer(*args.values())
        except NotImplementedError as error:
            return Wrong(f"Not written yet{': ' if str(error) else ''}{error}.".replace("..", "."), shown=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Wrong(raised(answer, error))
    changed = [name for name, before in case.args.items() if not same(before, args[name])]
    if changed:
        return Wrong(f"It changed its input {', '.join(changed)}. Work on a copy, or make a new array.")
    if returned is None:
        return Wrong("It returned None. Does it end with a return?")
    try:
        wrong = judge(case, returned)
    except Exception as error:                                       # an answer so odd that nobody thought of it
        return Wrong(f"What came back, a {type(returned).__name__}, could not be compared with what is right "
                     f"({type(error).__name__}: {error}).")
    if wrong and warned:
        said = dict.fromkeys(str(w.message) for w in warned)
        wrong = replace(wrong, line=f"{wrong.line}\nPython warned on the way: {'; '.join(said).rstrip('.')}.")
    return wrong


def signature_complaint(answer, cases):
    """A line if the answer cannot be called with the arguments of the cases, else None."""
    names = list(cases[0].args)
    try:
        inspect.signature(answer).bind(*names)
    except TypeError:
        return (f"It must take {len(names)} argument{'s' * (len(names) != 1)} ({', '.join(names)}), but is "
                f"{getattr(answer, '__name__', 'a function')}{inspect.signature(answer)}.")
    except ValueError:                                               # a builtin that does not tell
        pass
    return None


def raised(answer, error):
    """What an exception of the answer says, and the learner's line it came from."""
    told = f"It raised {type(error).__name__}: {error}" if str(error) else f"It raised {type(error).__name__}"
    code = getattr(answer, "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    where = f"\nin {frames[-1].name}: {frames[-1].line}" if frames and frames[-1].line else ""
    return told + where


def same(before, after):
    """Is an argument still what it was? Bit for bit, for arrays."""
    if isinstance(before, np.ndarray):
        return (isinstance(after, np.ndarray) and before.dtype == after.dtype and before.shape == after.shape
                and before.tobytes() == after.tobytes())
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
    return before == after if isinstance(before, (int, float, str, bool, slice, type(None))) else True


def written(args):
    """The arguments as lines that can be read: small arrays with their numbers, large ones as shapes."""
    lines = []
    for name, value in args.items():
        if isinstance(value, np.ndarray) and value.size > 48:
            lines.append(f"  {name}: array {value.shape}, {value.dtype}")
        elif isinstance(value, np.ndarray):
            text = np.array2string(value, precision=6, suppress_small=True, separator=", ")
            lines.append(f"  {name} = " + text.replace("\n", "\n" + " " * (len(name) + 5)))
        else:
            lines.append(f"  {name} = {value!r}")
    return "\n".join(lines)


def number(n, one, many):
    """'1 query', '3 queries'."""
    return f"{n:,} {one if n == 1 else many}"


def without_case(fault):
    """A judge made of fault(returned), which returns a line or None; the case says nothing and is not shown."""
    return lambda case, returned: Wrong(line, shown=False) if (line := fault(returned)) else None


# --- time -----------------------------------------------------------------------------------------------------

class TookTooLong(KeyboardInterrupt):
    """As if the reader had interrupted: no `except Exception` catches it, and a simulated kernel stops its threads."""


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TookTooLong in the body after so many seconds.

    No limit where the system has no alarm (Windows), outside the main thread, and while a debugger looks on.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread() or debugged():
        yield
        return

    def ring(number, frame):
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)               # again and again, should it be swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def debugged():
    """Does a debugger follow this code? (pdb, or the one of JupyterLab and VS Code)"""
    monitoring = getattr(sys, "monitoring", None)
    return sys.gettrace() is not None or bool(monitoring and monitoring.get_tool(monitoring.DEBUGGER_ID))
