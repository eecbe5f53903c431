"""Kernels in the simulator: run them under an audit that also notes who did what, and with a barrier taken away."""

import inspect
import linecache
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

os.environ.setdefault("FA_REF_CUDA", "sim")             # before Numba is imported
import cuda_kernels
from course import steps
from course.checking import Wrong
from cuda_kernels import fa2, simulator
from cuda_kernels.simulator.places import HIDDEN, kernel_frame
from cuda_kernels.simulator.watched import BlockWatch, Watched, index_of
from fa_ref import fa2 as loop

HIDDEN.add(__name__)                                    # findings name the kernel's line, not one of `noted`


class Note(NamedTuple):
    """One access. phase: how many barriers the block has met before. action: "reads" or "writes".

    line: its number in the file of the kernel. together: was it one of several elements that are touched at once?
    """

    block: tuple
    phase: int
    thread: int
    action: str
    array: str
    index: tuple
    line: int
    together: bool = False


@contextmanager
def noted():
    """An audit of the launches inside, and a list that fills with a Note for each access to shared or GPU memory."""
    notes, access, access_all = [], BlockWatch.access, Watched.note_all

    def noting(watch, action, array, address):
        notes.append(Note(tuple(watch.blockIdx), watch.counts.barriers, array.device.block.running.number, action,
                          array.origin.name.split()[0], index_of(array.origin.data, address), kernel_frame().f_lineno))
        access(watch, action, array, address)

    def noting_all(array, action, view):
        before = len(notes)
        access_all(array, action, view)
        notes[before:] = [note._replace(together=view.ndim > 0) for note in notes[before:]]

    with (mock.patch.object(BlockWatch, "access", noting), mock.patch.object(Watched, "note_all", noting_all),
          simulator.audit() as audit):
        yield audit, notes


class Launched:
    """A kernel as a function: launched(…) prepares what the kernel needs, and returns what it did. See `launch`."""

    def __init__(self, kernel, launch):
        self.kernel, self.launch, self.__code__ = kernel, launch, kernel.py_func.__code__
        self.__signature__ = inspect.Signature(list(inspect.signature(launch).parameters.values())[1:])

    def __call__(self, *args):
        return self.launch(self.kernel, *args)


def told(finding):
    """A finding in words, with its source lines."""
    if finding.kind == "divergence":
        where = " and ".join(f"{side.thread.partition(' of ')[0]} {side.action}{line_of(side)}"
                             for side in (finding.first, finding.second))
        return f"Not all threads come to the same barrier: {where}."
    name = finding.array.split()[0] + ("" if finding.index is None else str(list(finding.index)))
    sides = [f"  {side.thread.partition(' of ')[0]} {side.action}{line_of(side)}"
             for side in (finding.first, finding.second) if side]
    why = "; nothing says which comes first" if finding.kind == "race" else ""
    return "\n".join([f"The audit finds a fault ({finding.kind}) at {name}{why}:", *sides])


def line_of(side):
    """The source line of one side of a finding."""
    return f":  {linecache.getline(side.file, side.line).strip()}" if side.file else ""


def found(audit):
    """A Wrong for the first finding of an audit, or None."""
    return Wrong(told(audit.findings[0])) if audit.findings else None


def numbered(kernel):
    """Print the source of a kernel with the numbers that its lines have in their file."""
    lines, start = inspect.getsourcelines(kernel.py_func)
    print("".join(f"{start + n:3}  {line}" for n, line in enumerate(lines)), end="")


# --- the source of fa2 ----------------------------------------------------------------------------------------

def beside(first, last=None):
    """Print steps of fa_ref/fa2.py, and below them the same steps of cuda_kernels/fa2.py."""
    last = first if last is None else last
    print("NumPy, a tile at a time:\n")
    steps(loop.forward_head, first, last)
    lines = inspect.getsource(fa2.make_forward).splitlines()
    start = next(n for n, line in enumerate(lines) if f"# ({first}) " in line)
    stop = next(n for n, line in enumerate(lines) if n > start and
                (f"# ({last + 1}) " in line or (n > start + 4 and "cuda.syncthreads()" in line)))
    start -= lines[start - 1].lstrip().startswith("for ")
    print("\nThe kernel, thread t of T:\n")
    print(textwrap.indent(textwrap.dedent("\n".join(lines[start:stop]).rstrip()), " " * 8))


def barriers():
    """The comments of all barriers of fa2, in order."""
    return re.findall(r"cuda\.syncthreads\(\) +# (.*)", inspect.getsource(fa2.make_forward))


@contextmanager
def without(barrier):
    """Inside, kernel="copy" is a copy of fa2 in which the barrier with this comment does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "fa2_copy.py", type(fa2)("fa2_copy")
        text = Path(fa2.__file__).read_text(encoding="utf-8")
        path.write_text(re.sub(rf"cuda\.syncthreads\(\)(?= +# {re.escape(barrier)})", "pass", text), encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(copy))
        with mock.patch.dict(cuda_kernels.KERNELS, copy=copy):
            yield


def session(commands, *options):
    """Print a session of `python -m cuda_kernels debug` with these commands typed in; q ends it."""
    ran = subprocess.run([sys.executable, "-m", "cuda_kernels", "debug", *options], input="\n".join([*commands, "q"]),
                         capture_output=True, text=True, timeout=60, env={**os.environ, "FA_REF_CUDA": "sim"})
    said = ran.stdout[ran.stdout.index("> "):]
    said = re.sub(r"> \S*?(\w+/\w+\.py)\(\d+\)", r"> \1(…)", said)                        # the same on every machine
    said = re.sub(r" \(shared, fa2.py:\d+\)|(?<=Disabled breakpoint 1) at .*", "", said)
    typed = iter([*commands, "q"])
    print(f"$ {' '.join(['python -m cuda_kernels debug', *options])}")
    print(re.sub(r"\(Pdb\) ?", lambda _: f"(Pdb) {next(typed)}\n", said).rstrip())
