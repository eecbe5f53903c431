"""Parts of a problem and what they make together: slices of the keys merged by lse, sequences of one packed call."""

import math
from itertools import pairwise

import numpy as np

from fa_ref.testing.building import random
from fa_ref.testing.problem import Result
from fa_ref.testing.unread import visible


def cuts(problem, recipe, supports):
    """(start, stop) of up to three parts of the keys; parts that may not be asked for (empty ones) do not occur."""
    Nk, step = problem.k.shape[2], supports.length_multiples[1]
    edges = [0, *np.sort(step * random(recipe, "property").integers(0, Nk // step + 1, 2)).tolist(), Nk]
    parts = list(pairwise(edges))
    if not (supports.zero_lengths and supports.empty_rows):
        parts = [(start, stop) for start, stop in parts if start < stop]
    if not supports.empty_rows and not all(visible(part_of_keys(problem, *part)).any(-1).all() for part in parts):
        parts = []
    return parts or [(0, Nk)]


def part_of_keys(problem, start, stop):
    """The problem with the keys start ≤ j < stop only."""
    def along_keys(x):
        return x if x is None or x.shape[-1] == 1 else x[..., start:stop]

    return problem.replace(k=problem.k[:, :, start:stop], v=problem.v[:, :, start:stop],
                           mask=along_keys(problem.mask), bias=along_keys(problem.bias))


def merge(answers, bounds):
    """(merged answer, its bound): parts weigh exp(lse − lse of all); a part of weight zero is not read."""
    lses = np.stack([answer.lse.astype(np.float64) for answer in answers])
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=0)
    weights = np.divide(weights, total, where=total > 0, out=weights)
    lse = np.where(total > 0, top + np.log(total, where=total > 0, out=np.zeros_like(total)), -np.inf)
    outs = [np.where(w[..., None] > 0, a.out.astype(np.float64), 0) for w, a in zip(weights, answers, strict=True)]

    of_lse = sum(w * b.lse for w, b in zip(weights, bounds, strict=True))
    out = sum(w[..., None] * x for w, x in zip(weights, outs, strict=True))
    of_out = sum(w[..., None] * (b.out + np.expm1(np.minimum(b.lse + of_lse, 50))[..., None] * abs(x))
                 for w, x, b in zip(weights, outs, bounds, strict=True))
    return Result(out, lse), Result(of_out, of_lse)


def sequences(recipe, supports):
    """Two to four problems of one sequence each, of random lengths, that share everything else."""
    rng = random(recipe, "property")
    first = recipe.but(B=1, alibi="none" if recipe.alibi == "none" else "H")
    problems = [first.build()]
    of_q, of_k = supports.length_multiples
    least = 0 if supports.zero_lengths and supports.empty_rows else 1
    for n in range(int(rng.integers(1, 4))):
        Nq = of_q * int(rng.integers(least, supports.max_length // of_q + 1))
        Nk = of_k * int(rng.integers(least, supports.max_length // of_k + 1))
        if not supports.cross_lengths or recipe.Nq == recipe.Nk:
            both = math.lcm(of_q, of_k)
            Nq = Nk = -(-Nq // both) * both
        elif not supports.empty_rows:
            Nk = max(Nk, -(-Nq // of_k) * of_k)
        other = first.but(Nq=Nq, Nk=Nk, seed=recipe.seed + 1 + n).build()
        problems.append(other.replace(alibi_slopes=problems[0].alibi_slopes, sink=problems[0].sink))
    return problems
