"""What happens in a function, line by line: its lines, its local names, and its loads and stores.

`sys.settrace` calls `Recorder.trace` at every call, line and return. A step is one line that has run, with all that it
changed. `player.py` is for use, this is how it works.
"""

import math
import sys
from typing import NamedTuple

import numpy as np

from fa_ref.countable import is_floating

MAX_CELLS, MAX_SIDE = 256, 32       # of an array whose numbers are kept
COUNTED = 50                        # a run that is too long is counted up to this many times what is allowed


class Large(NamedTuple):
    """Stands for an array with too many cells, rows or columns, with more than 2 axes, or not of numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Call(NamedTuple):
    """One call of a recorded function: its number in `functions`; what names and memory held before its first line."""

    function: int
    names: dict
    memory: dict


class Step(NamedTuple):
    """One line that has run. What it left as it was is not in here.

    line: its number in the file. call: index in `calls`. names: local name → what it holds now: a number, a string, a
    slice, a copy of an array, Large, or None if there is nothing to show any more. memory: the same for arrays in
    memory. accesses: its loads and stores (`ledger.Access`). read, written: bytes so far, those of this line included.
    """

    line: int
    call: int
    names: dict
    memory: dict
    accesses: list
    read: int
    written: int


class TooLongError(BaseException):
    """Ends a run that is far too long; no Exception, which what is recorded might catch."""


class Recorder:
    """Records the functions with these code objects while run() runs; answer is what it returned.

    memory: a context manager that is on during the run, with `log`, the accesses so far, and `look(x)`, which gives
    (record, cells) for an array in memory and (None, plain value) for everything else.

    Raises ValueError for more than max_steps steps and for none, RuntimeError if another tracer takes over.
    """

    def __init__(self, run, functions, memory, max_steps):
        self.functions, self.memory, self.max_steps = functions, memory, max_steps
        self.steps, self.calls, self.records = [], [], {}           # records: name → record of an array in memory
        self.stack, self.line, self.count, self.logged = [], None, 0, 0
        self.arrays, self.cells, self.bytes = {}, {}, {"load": 0, "store": 0}
        with memory:
            before = sys.gettrace()
            sys.settrace(self.trace)
            try:
                self.answer = run()
                replaced = sys.gettrace() != self.trace
            except TooLongError as error:
                raise ValueError(str(error)) from None
            finally:
                sys.settrace(before)
        if self.count > max_steps:
            raise ValueError(self.too_long(f"{self.count:,}"))
        if replaced:
            raise RuntimeError("something else called sys.settrace during the recording: is there a breakpoint() in "
                               "what is recorded?")
        touched = {id(access.record) for step in self.steps for access in step.accesses}
        self.records = {name: record for name, record in self.records.items() if id(record) in touched}
        if not self.steps:
            raise ValueError(f"no line of {functions[0].co_name} has run: is it a generator, or not called at all?")

    def trace(self, frame, event, _):
        """A call, a line or a return of a recorded function; all other functions run unseen."""
        if frame.f_code not in self.functions:
            return None
        if event == "call":
            self.close()
            self.stack.append((frame, len(self.calls), {}))         # the frame, its call, what was seen of its names
            self.calls.append(Call(self.functions.index(frame.f_code), *self.changes()))
            self.logged = len(self.memory.log)
        elif event == "line":
            self.close()
            self.open(frame.f_lineno)
        elif event == "return":
            self.close()
            self.stack.pop()
            if self.stack:
                self.open(self.stack[-1][0].f_lineno)               # on with the line that made the call
        return self.trace

    def open(self, line):
        """This line is about to run."""
        self.line = line
        self.count += 1
        if self.count > COUNTED * self.max_steps:
            raise TooLongError(self.too_long(f"more than {COUNTED * self.max_steps:,}"))

    def close(self):
        """The open line has run."""
        if self.line is not None and self.count <= self.max_steps:
            names, memory = self.changes()
            accesses = self.memory.log[self.logged:]
            self.logged += len(accesses)
            for record, action, where in accesses:
                self.bytes[action] += math.prod(stop - start for start, stop in where) * record.dtype.itemsize
                self.name_of(record)
            self.steps.append(Step(self.line, self.stack[-1][1], names, memory, accesses, self.bytes["load"],
                                   self.bytes["store"]))
        self.line = None

    def changes(self):
        """What is not as it was seen last: {local name: value}, {name of an array in memory: its cells}."""
        frame, _, seen = self.stack[-1]
        now, names, memory = dict(frame.f_locals), {}, {}
        for name in seen.keys() - now.keys():
            note(names, seen, name, None)
        for name, value in now.items():
            record, value = self.memory.look(value)
            if record is not None:
                self.arrays[self.name_of(record, name)] = value
            elif name not in frame.f_code.co_freevars or isinstance(value, int):    # of what it borrows: numbers
                note(names, seen, name, value)
        for name, cells in self.arrays.items():
            note(memory, self.cells, name, cells)
        return names, memory

    def name_of(self, record, local=None):
        """The name of an array in memory: its own, or that of the local variable in which it was first seen."""
        for name, known in self.records.items():
            if known is record:
                return name
        name = record.name or local or str(record)
        while name in self.records:
            name += "′"
        self.records[name], record.name = record, name
        return name

    def too_long(self, count):
        return (f"the run has {count} steps, and a recording takes max_steps = {self.max_steps:,}: take a smaller "
                "problem or larger tiles, or give a larger max_steps")


def note(changes, seen, name, value):
    """Put a value among the changes, unless it is what was seen last."""
    value = kept(value)
    bits = (value.shape, value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)
    if seen.get(name, repr(None)) != bits:                          # one never seen counts as None: nothing to show
        seen[name], changes[name] = bits, value


def kept(value):
    """What is kept of a value: a number, a short string, a slice, a copy of an array, Large, or None."""
    if isinstance(value, np.ndarray):
        value = np.asarray(value)                                   # the numbers alone, which nobody counts
    if isinstance(value, np.ndarray) and value.ndim:
        numbers = value.dtype.kind in "biufc" or is_floating(value.dtype)
        fits = numbers and value.ndim <= 2 and value.size <= MAX_CELLS and max(value.shape) <= MAX_SIDE
        return value.copy() if fits else Large(value.shape, value.dtype)
    if isinstance(value, np.ndarray | np.generic):
        value = value.item()
    if isinstance(value, np.generic):                               # no Python number holds it
        return float(value) if isinstance(value, np.floating) else str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return f"{'−' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    return value if isinstance(value, int | float | slice) or (isinstance(value, str) and len(value) < 40) else None
