"""Faults planted in copies of our own kernels, one at a time, and what the simulator says to each.

A fault is one substitution in the text of a kernel. The copy is a file of its own, so that findings name lines in it;
while it is planted it stands wherever the original stood. A trial solves one small problem with it and without a GPU:
outputs and shared memory are NaN before they are written, indices are guarded, an audit watches, and the numbers are
held against the oracle.
"""

import conftest  # noqa: F401, I001  (first: it decides before Numba is imported)

import ast
import re
import sys
import warnings
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

import cuda_kernels
from cuda_kernels import places, simulator
from fa_ref.testing import Problem, oracle, tolerance
from fa_ref.testing.problem import Result

if not cuda_kernels.SIMULATED:
    pytest.skip("faults are planted in the simulator; kernels run on a GPU here", allow_module_level=True)

FILES = [path for path in sorted(Path(cuda_kernels.__file__).parent.glob("*.py"))      # test_fa2_mma plants its own
         if "cuda.threadIdx" in path.read_text(encoding="utf-8") and "mma" not in path.stem]
FORWARD = {"forward", "merge"}                                      # kernels of the forward pass


# --- faults ---------------------------------------------------------------------------------------------------

class Fault(NamedTuple):
    """`before` becomes `after` in line `number` of the file; text is that of the whole file then.

    kernel: the function that the line is in; lines: those of that function.
    """

    path: Path
    number: int
    before: str
    after: str
    text: str
    kernel: str
    lines: range

    def __str__(self):
        return f"{self.path.stem}:{self.number} {self.before} => {self.after}"


@cache
def functions(path):
    """(name, lines) of all kernels of a file, and of the functions that they call on the device."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(f.name, range(f.lineno, f.end_lineno + 1)) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)
            and any(ast.unparse(decorator).startswith("cuda.jit") for decorator in f.decorator_list)]


def faults(pattern, replacement):
    """A Fault for every place in every kernel where the pattern stands; it does not see comments."""
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        code = re.sub("#.*", lambda comment: " " * len(comment[0]), text)
        for match in re.finditer(pattern, code, re.MULTILINE):
            number = text.count("\n", 0, match.start()) + 1
            start, end = code.rfind("\n", 0, match.start()) + 1, code.index("\n", match.end())
            after = code[start:match.start()] + match.expand(replacement) + code[match.end():end]
            short = [" ".join(words.split()) for words in (code[start:end], after)]
            found += [Fault(path, number, *short, text[:start] + after + text[end:], name, lines)
                      for name, lines in functions(path) if number in lines and short[0] != short[1]]
    return found


@contextmanager
def planted(fault, folder):
    """Inside, a copy with the fault, a file in this folder, is in the place of the original."""
    path = folder / fault.path.name
    path.write_text(fault.text, encoding="utf-8")
    original = import_module(f"cuda_kernels.{fault.path.stem}")
    copy = ModuleType(original.__name__)
    exec(compile(fault.text, path, "exec"), vars(copy))
    modules = [module for name, module in sys.modules.items() if name.startswith("cuda_kernels.")]
    with pytest.MonkeyPatch.context() as patch:
        for names in (*map(vars, modules), cuda_kernels.KERNELS):
            for name, value in list(names.items()):
                if value is original:
                    patch.setitem(names, name, copy)
                elif getattr(value, "__module__", None) == original.__name__:
                    patch.setitem(names, name, vars(copy)[name])
        yield


def kernel_of(path):
    """A kernel, by its name in KERNELS, that this file has a part in."""
    module = f"cuda_kernels.{path.stem}"
    for name, core in cuda_kernels.KERNELS.items():
        if module in {core.__name__, *(getattr(value, "__module__", None) for value in vars(core).values())}:
            return name
    return "fa2"                                                    # a file that serves all of them


# --- problems -------------------------------------------------------------------------------------------------

class Small(NamedTuple):
    """A problem, and the threads of a block to solve it with; kernels that work by warps take whole warps instead."""

    problem: Problem
    threads: int
    warps: int

    def how(self, kernel):
        """Keyword arguments of cuda_kernels.forward."""
        p, by_warps = self.problem, hasattr(cuda_kernels.KERNELS[kernel], "WARPS")
        return {**p.options, "kernel": kernel, "threads": 32 * self.warps if by_warps else self.threads,
                "block_q": p.block_q, "block_k": p.block_k}


def small(Nq, Nk, d, dv, tiles, threads, warps=1, heads=(1, 1), dtype=np.float32, **options):
    """A Small with random numbers; heads are (Hq, Hkv)."""
    rng = np.random.default_rng([Nq, Nk, d, dv])
    (Hq, Hkv), (Br, Bc) = heads, tiles
    shapes = {"q": (1, Hq, Nq, d), "k": (1, Hkv, Nk, d), "v": (1, Hkv, Nk, dv), "dout": (1, Hq, Nq, dv)}
    stored = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    dlse = rng.standard_normal((1, Hq, Nq)).astype(np.float32)
    return Small(Problem(**stored, dlse=dlse, block_q=Br, block_k=Bc, **options), threads, warps)


SMALL = {                                                           # d, dv, Br and Bc differ, once this way, once that
    "ragged tails": small(3, 5, 3, 2, (2, 3), 4, warps=2, softcap=1.5),
    "tiles larger than the sequence": small(2, 2, 3, 1, (3, 4), 1, mask=np.ones((2, 2), bool)),
    "grouped heads": small(4, 3, 2, 3, (3, 2), 3, heads=(4, 2), causal=True, window=(1, -1), sink=np.ones(4, "f4")),
    "every tile skipped": small(6, 2, 2, 2, (2, 2), 4, causal=True),
    "a tile of more elements than threads": small(9, 9, 4, 4, (9, 9), 32),
    "many rows": small(33, 2, 1, 2, (16, 2), 2, sink=np.zeros(1, "f4"), dtype=np.float16),
}


@cache
def truth(name):
    """(the oracle's answer, the bounds) of a small problem."""
    p = SMALL[name].problem
    return oracle.solve(p), tolerance.bounds(p)


# --- trials ---------------------------------------------------------------------------------------------------

class Trial(NamedTuple):
    """What is wrong in a run: the audit's findings, the error that ended it, the fields that are out of their bounds.

    False if nothing is.
    """

    findings: list
    error: Exception | None
    wrong: dict

    def __bool__(self):
        return bool(self.findings or self.error or self.wrong)

    def of_kind(self, kind):
        """The findings of one kind: "race", "divergence", "uninitialised"."""
        return [finding for finding in self.findings if finding.kind == kind]

    def __str__(self):
        numbers = [f"{name}{w.index} is {w.fraction:.3g} times its bound" for name, w in self.wrong.items()]
        return "\n".join([*map(str, self.findings), *([repr(self.error)] if self.error else []), *numbers])


def trial(name, kernel, backward=False, deterministic=False):
    """Solve a small problem with one pass of a kernel. The backward pass takes the oracle's out and lse."""
    how, p = SMALL[name].how(kernel), SMALL[name].problem
    right, bounds = truth(name)
    error = answer = None
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")                             # inf − inf, of numbers that are wrong
        patch.setattr(places.Simulated, "empty", lambda self, shape, dtype, like=None: np.full(shape, np.nan, dtype))
        try:
            with simulator.audit() as audit:
                if backward:
                    out, lse = right.out.astype(p.q.dtype), right.lse.astype(np.float32)
                    answer = Result(out, None, *cuda_kernels.backward(
                        p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse, deterministic=deterministic, **how))
                else:
                    answer = Result(*cuda_kernels.forward(p.q, p.k, p.v, **how))
        except (IndexError, RuntimeError) as caught:                # RuntimeError: a deadlock, or no way to meet
            error = caught
    worst = {} if answer is None else tolerance.worst(answer, right, bounds)
    return Trial(audit.findings, error, {field: w for field, w in worst.items() if w.fraction > 1})


def trials(fault, folder):
    """A Trial of the pass with the fault, for one small problem after another."""
    kernel = kernel_of(fault.path)
    backward = fault.kernel not in FORWARD and kernel in cuda_kernels.WITH_BACKWARD
    with planted(fault, folder):
        for name in SMALL:
            yield trial(name, kernel, backward, deterministic=fault.kernel == "dq")
