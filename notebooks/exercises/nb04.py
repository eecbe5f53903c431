"""Exercises of notebook 04: one step of FlashAttention-1, and the loop around it."""

import numpy as np

from course import attention
from course.checking import Case, check, number
from course.comparing import compare
from exercises.on_ledger import checked


def fa1_step(answer):
    """Check fa1_step(Sij, Vj, Oi, li, mi) → O (br, dv), l (br,), m (br,), brought up to date."""
    return check(answer, step_cases(), judge_step)


def step_cases():
    """The state after some keys, and one more tile; some rows see nothing in it, or have seen nothing before."""
    rng = np.random.default_rng(4)
    for br, before, bc, dv in ((1, 0, 1, 1), (1, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 2), (2, 3, 2, 2), (3, 4, 4, 3)):
        for what, size in (("", 1.0), ("", 1.0), (", large scores", 200.0)):
            S = rng.standard_normal((br, before + bc)) * size
            V = rng.standard_normal((before + bc, dv))
            for hidden, old, new in (("", False, False), (", the last row sees none of this tile", False, True),
                                     (", the last row has seen nothing before", True, False),
                                     (", the last row has seen nothing, and sees nothing now", True, True)):
                S_here = S.copy()
                S_here[-1, :before] = -np.inf if old else S_here[-1, :before]
                S_here[-1, before:] = -np.inf if new else S_here[-1, before:]
                state = exact(S_here[:, :before], V[:before])
                given = dict(zip(("Sij", "Vj", "Oi", "li", "mi"), (S_here[:, before:], V[before:], *state),
                                 strict=True))
                yield Case(f"{number(br, 'row', 'rows')}, keys seen before: {before}, in this tile: {bc}{what}{hidden}",
                           given, exact(S_here, V))


def exact(S, V):
    """O, l, m of attention with these scores, row by row, all keys at once."""
    m = S.max(axis=1, initial=-np.inf)
    O, l = np.zeros((len(S), V.shape[1])), np.zeros(len(S))
    for row, scores in enumerate(S):
        seen = scores > -np.inf
        if seen.any():
            terms = np.exp(scores[seen] - m[row])
            l[row] = terms.sum()
            O[row] = terms @ V[seen] / l[row]
    return O, l, m


def judge_step(case, returned):
    O, l, m = case.truth
    largest = max(np.abs(case.args["Vj"]).max(), np.abs(O).max())
    return compare(returned, {"O": O, "l": l, "m": m}, {"O": 1e-11 * largest, "l": 1e-11 * l, "m": 0.0})


def fa1_forward(answer):
    """Check fa1_forward(Q, K, V, Br, Bc) → O (Nq, dv), l (Nq,), m (Nq,), and what it moves through memory."""
    return checked(answer, "fa1", list(forward_cases()))


def forward_cases():
    """Attention problems; m is the largest score of a row, and l follows from it and the oracle's L."""
    for what, problem in attention.problems(seed=4):
        Q, K, V = attention.head(problem)
        truth, bound = attention.solved(problem)
        m = np.array([max(float(q @ k) for k in K) for q in Q]) / np.sqrt(Q.shape[1])
        l, e = np.exp(truth["L"] - m), 4 * bound["L"]
        yield Case(what, attention.tiled(problem), ({"O": truth["O"], "l": l, "m": m}, {
            "O": bound["O"], "l": 2 * e * l, "m": e}, (problem.block_q, V.shape[1])))
