"""Exercises of notebook 01: attention of one head, and the same with a causal mask."""

from dataclasses import replace

from course.attention import cases, head
from course.checking import check
from course.comparing import compare


def attention(answer):
    """Check attention(Q, K, V) → O (Nq, dv)."""
    return check(answer, without_tiles(big=2000.0), judge)


def causal_attention(answer):
    """Check causal_attention(Q, K, V) → O (Nq, dv), aligned at the bottom right; rows that see no key are 0."""
    return check(answer, without_tiles(seed=1, causal=True), judge)


def without_tiles(**how):
    """The cases of the course; nobody has heard of tiles yet."""
    for case in cases(lambda problem: dict(zip("QKV", head(problem), strict=True)), **how):
        words = [part for part in case.what.split(", ") if not part.startswith("tiles")]
        yield replace(case, what=", ".join(words))


def judge(case, returned):
    truth, bound, _ = case.truth
    return compare(returned, {"O": truth["O"]}, {"O": bound["O"]})
