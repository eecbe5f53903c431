"""Attention problems of one head, smallest first, with the truth and how far a right answer may be from it.

Truth and bounds are those of the conformance kit (`fa_ref.testing`): the oracle computes in float64 and shares no
code with the loops; the bounds are computed for every element.
"""

import numpy as np

from course.checking import Case, number
from fa_ref.testing import Problem, oracle, tolerance

SIZES = [  # Nq, Nk, d, dv, Br, Bc: smallest first; ragged ends, tiles larger than the sequence, Nq ≠ Nk both ways
    (1, 1, 1, 1, 1, 1), (1, 2, 1, 1, 1, 1), (2, 2, 2, 2, 1, 1), (2, 3, 2, 1, 2, 2), (3, 2, 1, 2, 2, 1),
    (3, 4, 2, 2, 2, 2), (4, 4, 2, 3, 2, 3), (5, 3, 2, 2, 2, 2), (3, 7, 2, 2, 4, 3), (6, 6, 4, 4, 2, 2),
    (7, 5, 3, 3, 3, 2), (4, 9, 4, 4, 8, 16), (8, 8, 4, 4, 4, 2), (9, 13, 4, 5, 4, 4), (16, 16, 8, 8, 4, 8),
]


def problems(sizes=SIZES, seed=0, draws=3, big=30.0, **options):
    """(what, Problem) for each size: three draws of normal numbers of two decimals, the last with scores up to big.

    options: those of a Problem, for example causal=True. All inputs are float64.
    """
    rng = np.random.default_rng(seed)
    for Nq, Nk, d, dv, Br, Bc in sizes:
        for draw in range(draws):
            q, k, v = (rng.standard_normal((1, 1, n, width)) for n, width in ((Nq, d), (Nk, d), (Nk, dv)))
            heights = f"{number(Nq, 'query', 'queries')}, {number(Nk, 'key', 'keys')}"
            what = f"{heights}, d = {d}, dv = {dv}, tiles of {Br} × {Bc}"
            if draw == draws - 1:
                q, k, what = q * big**0.5, k * big**0.5, what + ", large scores"
            q, k, v = (x.round(2) for x in (q, k, v))                   # what is printed of a case is the case
            yield what, Problem(q, k, v, block_q=Br, block_k=Bc, **options)


def solved(problem):
    """({"O": (Nq, dv), "L": (Nq,)} of the one head, the same for the bounds)."""
    truth, bound = oracle.solve(problem), tolerance.bounds(problem)
    return {"O": truth.out[0, 0], "L": truth.lse[0, 0]}, {"O": bound.out[0, 0], "L": bound.lse[0, 0]}


def cases(arguments, **how):
    """Cases for an answer that is called with arguments(problem), a dict. truth: (truth, bound, tiles).

    how: what `problems` takes.
    """
    for what, problem in problems(**how):
        truth, bound = solved(problem)
        yield Case(what, arguments(problem), (truth, bound, (problem.block_q, problem.block_k)))


def head(problem):
    """Q (Nq, d), K (Nk, d), V (Nk, dv) of a Problem of one head."""
    return problem.q[0, 0], problem.k[0, 0], problem.v[0, 0]


def tiled(problem):
    """{"Q": …, "K": …, "V": …, "Br": …, "Bc": …}: what a loop over tiles is called with."""
    return dict(zip("QKV", head(problem), strict=True)) | {"Br": problem.block_q, "Bc": problem.block_k}
