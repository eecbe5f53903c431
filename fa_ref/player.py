"""Watch a core run, line by line, and look at it again: forwards, backwards, at your own pace.

    recording = record(fa2.forward_head, Q, K, V, rule, Br, Bc)
    recording.save("fa2.html")              # one page, for any browser; in Jupyter a recording shows itself

The core has no line for it: `sys.settrace` sees its lines and local names, a ledger its loads and stores. A loop of
your own works too, as long as it treats memory as the cores do: a subscript for every load and store (see `ledger`).

    python -m fa_ref play [ALGORITHM] [-o FILE]     writes the page of the tiny problem of `debug`
"""

import argparse
import inspect
from pathlib import Path

import numpy as np

from fa_ref import debug, fa3_fp8, frames, heads, page, standard
from fa_ref.ledger import HBM, Ledger
from fa_ref.options import check_choice, check_whole
from fa_ref.recorder import Recorder

MAX_STEPS = 2000
PLAYED = {**heads.ALGORITHMS, "fa3_fp8": fa3_fp8}


class Recording:
    """A run to look at.

    steps: list of `recorder.Step`. calls: list of `recorder.Call`. functions: the code objects that were recorded.
    memory: {name: `ledger.Record`} of all arrays in memory. answer: what the run returned.
    """

    def __init__(self, run, functions, memory, max_steps=MAX_STEPS):
        """Run it; for all arguments and errors see `record` and `recorder.Recorder`."""
        max_steps = check_whole("max_steps", max_steps, 1)
        for code in functions:
            page.source(code)                                       # raises before the run, not after
        recorder = Recorder(run, functions, memory, max_steps)
        self.functions, self.steps, self.calls = functions, recorder.steps, recorder.calls
        self.memory, self.answer = recorder.records, recorder.answer

    def __len__(self):
        return len(self.steps)

    def html(self):
        """The page, as one string that needs nothing else."""
        return page.html(self)

    def save(self, path):
        """Write the page; returns its path."""
        path = Path(path)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def _repr_html_(self):
        return page.iframe(self)


class Memory(Ledger):
    """A ledger that keeps a log and lets a recording look at memory. Looking is not counted."""

    def __init__(self):
        super().__init__(log=True)

    def look(self, x):
        """(record, cells) of an array in memory, (None, x) of anything else."""
        return (x.record, x.look()) if isinstance(x, HBM) else (None, x)


def record(core, *args, names=None, inside=(), max_steps=MAX_STEPS, **options):
    """Run core(*args, **options) once and return its Recording.

    NumPy arrays among the arguments lie in memory, under the names of the core's parameters; names: other names for
    them, in their order. inside: functions that the core calls and that are to be recorded as well. Arrays with more
    than 256 cells, or 32 rows or columns, are shown as shapes, without numbers. While it runs no other tracer sees
    anything (pdb, coverage); it is put back afterwards.

    Raises TypeError for a core that is not a Python function or whose source is not to be had, and for arrays in lists,
    tuples or dictionaries; ValueError for names
    that do not fit and for a run of more than max_steps steps, and what the core raises.
    """
    for function in (core, *inside):
        if not inspect.isfunction(function):
            raise TypeError(f"only functions written in Python can be recorded, got {function!r} "
                            "(kernels: cuda_kernels.player.record_kernel)")
    bound = inspect.signature(core).bind(*args, **options)
    arrays = [name for name, x in bound.arguments.items() if isinstance(x, np.ndarray) and x.ndim]
    for name, x in bound.arguments.items():
        if isinstance(x, tuple | list | dict) and any(isinstance(y, np.ndarray) for y in frames.arrays(x)):
            raise TypeError(f"{name} holds arrays: give each array in memory a parameter of its own")
    names = arrays if names is None else list(names)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"names of arrays must be strings, got {wrong[0]!r}")
    if len(names) != len(arrays):
        raise ValueError(f"names has {len(names)} names, but {len(arrays)} arguments are arrays: {', '.join(arrays)}")
    memory = Memory()

    def run():
        for parameter, name in zip(arrays, names, strict=True):
            bound.arguments[parameter] = memory.hbm(bound.arguments[parameter], name)
        return core(*bound.args, **bound.kwargs)

    return Recording(run, [function.__code__ for function in (core, *inside)], memory, max_steps)


def tiny(algorithm):
    """The Recording of one of PLAYED, forward, on the problem of `debug`: 4 queries, 6 keys, d = 2."""
    core = PLAYED[check_choice("algorithm", algorithm, PLAYED)]
    inside = [standard.probabilities] if core is standard else []
    return record(core.forward_head, *debug.arguments(core), inside=inside)


def main(argv=None, algorithms=PLAYED, tiny=tiny, prog="python -m fa_ref play"):
    """`python -m fa_ref play [standard|fa1|fa2|fa3|fa3_fp8] [-o FILE]`: write the page and say where."""
    parser = argparse.ArgumentParser(prog=prog, description="A run of a tiny problem as a page to step through.")
    parser.add_argument("algorithm", nargs="?", default="fa2", choices=tuple(algorithms))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (play_ALGORITHM.html)")
    options = parser.parse_args(argv)
    path = options.output or Path(f"play_{options.algorithm}.html")
    if path.is_dir():
        parser.error(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        parser.error(f"there is no folder {path.parent}")
    recording = tiny(options.algorithm)
    recording.save(path)
    print(f"{len(recording)} steps of {options.algorithm}: open {path} in a browser, and step with the arrow keys")
    return 0
