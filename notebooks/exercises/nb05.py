"""Exercises of notebook 05: the loop of FlashAttention-2, and a lazy one that is wrong."""

from types import SimpleNamespace

import numpy as np

from course import attention
from course.checking import Case, TookTooLong, Verdict, Wrong, check, time_limit
from course.comparing import compare
from detective.case2 import lazy_forward
from exercises.on_ledger import checked
from fa_ref.tables.work import output_work
from fa_ref.testing import Problem, Result

SIDE, LARGEST = 2, 100.0                            # of a witness


def fa2_forward(answer):
    """Check fa2_forward(Q, K, V, Br, Bc) → O (Nq, dv), L (Nq,), what it moves, and how often it works on acc."""
    return checked(answer, "fa2", cases(), lambda *given: works_on_acc(*given, "scale, add", 2))


def cases():
    """Attention problems, the last with many tiles of keys; in three of them all scores are far below zero."""
    made = list(attention.problems([*attention.SIZES, (4, 64, 2, 2, 2, 2)], seed=5))
    low = [(f"queries: {n}, keys: {n}, all scores far below zero", Problem(
        np.full((1, 1, n, 1), 50.0), -np.arange(30.0, 30 + n).reshape(1, 1, n, 1), np.arange(1.0, 1 + n).reshape(
            1, 1, n, 1), block_q=1, block_k=1)) for n in (1, 2, 3)]
    return [case_of(what, problem) for what, problem in made[:6] + low + made[6:]]


def case_of(what, problem):
    return Case(what, attention.tiled(problem), (*attention.solved(problem), (problem.block_q, problem.v.shape[3])))


def works_on_acc(answer, Q, K, V, Br, Bc, what, allowed):
    """A Wrong if a visit costs more operations per element of acc than allowed; no score of this test ever grows."""
    core = SimpleNamespace(forward_head=lambda Q, K, V, rule, Br, Bc: answer(Q, K, V, Br, Bc))
    here = "Right numbers. But with 2 queries and 4 or 8 keys in tiles of one it"
    try:
        with time_limit(5):
            per_visit, _ = output_work(core)
    except TookTooLong:
        return Wrong(f"{here} did not end within 5 s.", shown=False)
    except Exception as error:
        return Wrong(f"{here} raised {type(error).__name__}: {error}.", shown=False)
    if per_visit <= allowed:
        return None
    return Wrong(f"Right numbers, and it moves the right amount. But besides the product it works {per_visit} times on "
                 f"each element of acc in every visit of a tile, where {allowed} will do ({what}).")


# --- case 2 ---------------------------------------------------------------------------------------------------

def asked(loop):
    """loop(Q, K, V, Br, Bc) as a function of a Problem, which the conformance kit can ask."""
    def fn(problem):
        q, k, v = problem.q, problem.k, problem.v
        out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
        for b, h in np.ndindex(*q.shape[:2]):
            out[b, h], lse[b, h] = loop(q[b, h], k[b, h], v[b, h], problem.block_q or 2, problem.block_k or 2)
        return Result(out, lse)

    return fn


def detective_2(answer):
    """Check detective_2() → (witness, step, repaired): (Q, K, V, Br, Bc), a number, and a function."""
    verdict = check(answer, [Case("notebooks/detective/case2.py", {})], judge)
    return verdict and Verdict(True, "ok: the witness convicts, step (10) is guilty, and the repair is good.")


def judge(case, returned):
    if not isinstance(returned, tuple) or len(returned) != 3:
        return Wrong("It must return three things: witness, step, repaired.")
    witness, step, repaired = returned
    wrong = wrong_witness(witness)
    if wrong:
        return wrong
    if not callable(repaired):
        return Wrong("The witness convicts lazy_forward. Now the repair: the third thing must be a function.")
    verdict = checked(repaired, "fa2", repair_cases(witness), lambda *given: works_on_acc(
        *given, "add; no maximum has grown, and a lazy loop does not rescale then", 1))
    if not verdict:
        return Wrong(f"The witness convicts lazy_forward. But the repaired function: {verdict}", verdict.figure,
                     verdict.alt)
    if not isinstance(step, (int, np.integer)):
        return Wrong(f"The witness convicts, and the repair is good. The step must be a whole number, got {step!r}.")
    if step != 10:
        return Wrong(f"The witness convicts, and the repair is good. But step {step} is not the guilty one: which "
                     "numbered line did you change?")
    return None


def wrong_witness(witness):
    """A Wrong if lazy_forward is right on it, or if it is no witness."""
    if not isinstance(witness, (tuple, list)) or len(witness) != 5:
        return Wrong("The witness must be five things: Q, K, V, Br, Bc.")
    *arrays, Br, Bc = witness
    try:
        Q, K, V = (np.asarray(x, float) for x in arrays)
    except (TypeError, ValueError) as error:
        return Wrong(f"Q, K and V of a witness must be matrices of numbers: {error}.")
    if any(x.ndim != 2 or not 1 <= min(x.shape) <= max(x.shape) <= SIDE for x in (Q, K, V)):
        return Wrong(f"Q, K and V of a witness must be matrices of at most {SIDE} × {SIDE}, got "
                     f"{', '.join(str(x.shape) for x in (Q, K, V))}.")
    if Q.shape[1] != K.shape[1] or len(K) != len(V):
        return Wrong(f"Q {Q.shape}, K {K.shape} and V {V.shape} of the witness do not belong together.")
    if not all((np.abs(x) <= LARGEST).all() for x in (Q, K, V)):
        return Wrong(f"The numbers of a witness must lie between −{LARGEST:g} and {LARGEST:g}.")
    if not all(isinstance(n, (int, np.integer)) and 1 <= n <= SIDE for n in (Br, Bc)):
        return Wrong(f"Br and Bc of a witness must be whole numbers from 1 to {SIDE}, got {Br}, {Bc}.")
    truth, bound = attention.solved(problem(Q, K, V, Br, Bc))
    if compare(lazy_forward(Q, K, V, Br, Bc), truth, bound) is None:
        return Wrong("On your witness lazy_forward is right: every element of O and L is within its bound. Does a "
                     "maximum grow by more than 8 in one row only, after a tile whose values are not 0?")
    return None


def problem(Q, K, V, Br, Bc):
    return Problem(*(np.asarray(x, float)[None, None] for x in (Q, K, V)), block_q=int(Br), block_k=int(Bc))


def repair_cases(witness):
    """The cases of fa2_forward, the witness, and rows of which one jumps by 9, 20 or 50 and the others do not."""
    more = [(f"one of 3 rows jumps by {jump}", problem(np.eye(3)[:, [row]], [[0], [jump], [0]], [[1], [2], [4]], 3, 1))
            for jump in (9, 20, 50) for row in (0, 1, 2)]
    given = [("your witness", problem(*witness))] * 3 + more              # in threes, see `checked`
    return cases() + [case_of(what, p) for what, p in given]
