"""A problem small enough to hold in your head, and a debugger inside its tiling loop.

    python -m fa_ref debug                 pdb, stopped in the inner loop of fa2.py
    python -m fa_ref debug --run           no debugger: for a breakpoint set in an editor

4 queries, 6 keys, d = 2, tiles of 2 × 3: two tiles of queries, two tiles of keys, four steps in all.
"""

import argparse
import inspect
import pdb

import numpy as np

from fa_ref import fa1, fa2, fa3, fa3_fp8, fp8, standard
from fa_ref.scores import Rule

CORES = {"fa1": fa1, "fa2": fa2, "fa3": fa3, "fa3_fp8": fa3_fp8}
BR, BC = 2, 3


def tiny():
    """Q (4, 2), K (6, 2), V (6, 2): small whole numbers, so that Sij can be checked in the head (scale is 1)."""
    Q = np.array([[1, 0], [0, 1], [2, 1], [-1, 1]], float)
    K = np.array([[1, 1], [0, 2], [-1, 0], [2, -1], [1, 0], [0, -2]], float)
    V = np.array([[1, 0], [2, 0], [3, 0], [0, 1], [0, 2], [0, 3]], float)
    return Q, K, V, Rule(len(Q), len(K), scale=1.0)


def arguments(core):
    """What `core.forward_head` takes on the tiny problem; FP8 takes rounded matrices and their scales."""
    Q, K, V, rule = tiny()
    return *(fp8.prepare(Q, K, V, BR, BC) if core is fa3_fp8 else (Q, K, V)), rule, BR, BC


def line_of(function, text):
    """The number, in its file, of the first line of `function` that contains `text`."""
    lines, start = inspect.getsourcelines(function)
    return start + next(n for n, line in enumerate(lines) if text in line)


def main(argv=None):
    """`python -m fa_ref debug [fa1|fa2|fa3|fa3_fp8] [--run]`."""
    parser = argparse.ArgumentParser(prog="python -m fa_ref debug", description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", nargs="?", default="fa2", choices=CORES)
    parser.add_argument("--run", action="store_true", help="run without pdb, for breakpoints set in an editor")
    options = parser.parse_args(argv)
    core = CORES[options.algorithm]

    if options.run:
        O, *_ = core.forward_head(*arguments(core))
    else:
        print("Look at: p Qi   p Kj   p m, l, acc   then n (next line) and p Sij   —   c: next tile   q: leave")
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        debugger.set_break(core.__file__, line_of(core.forward_head, "Sij = rule.scores("))
        debugger.rcLines.append("continue")                         # on from the first line to the breakpoint
        answer = debugger.runcall(core.forward_head, *arguments(core))
        if answer is None:                                          # left with q
            return 0
        O, *_ = answer
    print("O =", O, "and plain softmax(Q Kᵀ) V =", standard.forward_head(*tiny())[0], sep="\n")
    return 0
