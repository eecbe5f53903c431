"""Exercises of notebook 10: waves of blocks, and the meeting of warps that have had a part of the keys each."""

import numpy as np

from course import attention
from course.checking import Case, Wrong, check, number
from course.comparing import compare

NUMBERS = ("blocks", "waves", "utilisation")


def waves(answer):
    """Check waves(B, H, N, Br, multiprocessors) → (blocks, waves, utilisation) of FA1's grid, and of FA2's."""
    return check(answer, sizes(), judge_waves)


def sizes():
    for B, H, N, Br, multiprocessors in (
            (1, 1, 1, 1, 1), (1, 1, 2, 1, 1), (1, 1, 3, 2, 1), (1, 2, 2, 1, 1), (2, 1, 2, 1, 1), (1, 1, 2, 1, 2),
            (1, 1, 3, 1, 2), (1, 3, 3, 2, 4), (2, 3, 5, 2, 4), (1, 5, 256, 64, 8), (2, 4, 100, 64, 8),
            (1, 16, 1000, 128, 132), (1, 16, 16384, 128, 132), (32, 16, 512, 128, 132), (4, 33, 2048, 128, 108)):
        yield Case(f"batch {B}, heads {H}, {number(N, 'query', 'queries')} in tiles of {Br}, multiprocessors "
                   f"{multiprocessors}",
                   dict(B=B, H=H, N=N, Br=Br, multiprocessors=multiprocessors), truth(B, H, N, Br, multiprocessors))


def truth(B, H, N, Br, multiprocessors):
    """Both grids, block by block: each goes to the multiprocessor that has had the fewest."""
    found = {}
    for grid, starts in (("FA1", [0]), ("FA2", range(0, N, Br))):
        had = np.zeros(multiprocessors, int)
        for _ in [(b, h, row0) for b in range(B) for h in range(H) for row0 in starts]:
            had[had.argmin()] += 1
        found[grid] = had.sum(), had.max(), had.sum() / (had.max() * multiprocessors)
    return found


def judge_waves(case, returned):
    try:
        fa1, fa2 = (tuple(part) for part in returned)
    except (TypeError, ValueError):
        return Wrong(f"It must return two things, each (blocks, waves, utilisation), got {returned!r}.")
    for grid, got in (("FA1", fa1), ("FA2", fa2)):
        right = {f"{name} of {grid}": x for name, x in zip(NUMBERS, case.truth[grid], strict=True)}
        if wrong := compare(got, right, dict.fromkeys(right, 1e-12)):
            return wrong
    return None


def meet(answer):
    """Check meet(m, l, acc) → O (br, dv), L (br,)."""
    return check(answer, meetings(), judge_meeting)


def meetings():
    """The parts of 1 to 8 warps. Some warps have no key at all; under a causal mask, some rows see none of a warp's."""
    for causal in (False, True):
        for _, problem in attention.problems(attention.SIZES[:13], seed=10, big=2000.0, causal=causal):
            truth, bound = attention.solved(problem)
            for W in (1, 2, 4, 8):
                m, l, acc = parts(problem, W)
                yield Case(in_words(l, acc.shape[2]), {"m": m, "l": l, "acc": acc}, (truth, bound))


def in_words(l, dv):
    """"2 warps, 3 rows, dv = 2; 2 rows have seen no key: 0, 1"."""
    W, br = l.shape
    nothing = [str(i) for i in range(br) if not l[:, i].any()]
    unseen = f"; {number(len(nothing), 'row has', 'rows have')} seen no key: {', '.join(nothing)}" if nothing else ""
    return f"{number(W, 'warp', 'warps')}, {number(br, 'row', 'rows')}, dv = {dv}{unseen}"


def parts(problem, W):
    """m (W, Nq), l (W, Nq), acc (W, Nq, dv): what each of W warps finds of its own keys, row by row."""
    Q, K, V = attention.head(problem)
    (Nq, Nk), C = (len(Q), len(K)), -(-len(K) // W)
    last = [i + Nk - Nq if problem.options.get("causal") else Nk for i in range(Nq)]         # key that query i sees
    m, l, acc = np.full((W, Nq), -np.inf), np.zeros((W, Nq)), np.zeros((W, Nq, V.shape[1]))
    for w in range(W):
        for i in range(Nq):
            keys = [j for j in range(w * C, min(w * C + C, Nk)) if j <= last[i]]
            scores = [Q[i] @ K[j] / np.sqrt(Q.shape[1]) for j in keys]
            for s, j in zip(scores, keys, strict=True):
                m[w, i] = max(scores)
                l[w, i] += np.exp(s - max(scores))
                acc[w, i] += np.exp(s - max(scores)) * V[j]
    return m, l, acc


def judge_meeting(case, returned):
    return compare(returned, *case.truth)
