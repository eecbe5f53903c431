"""Kernels in the simulator: run them under an audit that also notes who did what."""

import inspect
import linecache
import os
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

os.environ.setdefault("FA_REF_CUDA", "sim")             # before Numba is imported
from course.checking import Wrong
from cuda_kernels import simulator
from cuda_kernels.simulator.places import HIDDEN, kernel_frame
from cuda_kernels.simulator.watched import BlockWatch, Watched, index_of

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
