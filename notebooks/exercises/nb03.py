"""Exercises of notebook 03: predict what travels, and find what travels in vain."""

import functools
from numbers import Real

import numpy as np

from course import attention
from course.checking import Case, Wrong, check
from course.comparing import compare
from detective import case1
from fa_ref import fa2, standard
from fa_ref.ledger import Ledger
from fa_ref.metered import HBM
from fa_ref.scores import Rule

NAMES = {standard.forward_head: "QKVSPLO", fa2.forward_head: "QKVOL", case1.forward_head: "QKVOL"}    # as they are made
SIZES = [(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (2, 1, 1, 2), (3, 1, 2, 2), (4, 2, 2, 4), (5, 2, 2, 3), (6, 3, 4, 2),
         (7, 2, 3, 8), (9, 4, 16, 4), (13, 2, 4, 5), (16, 4, 4, 8), (24, 3, 7, 5)]                  # N, d, Br, Bc
INSIDE = "O and L"                                      # arrays that a core makes
LARGE = [(1_000_003, 4, 64, 96), (4_000_000, 3, 128, 128)]              # a formula answers at once, a run does not


def predict(answer):
    """Check predict(N, d, Br, Bc) → reads and writes of standard attention, reads and writes of FlashAttention-2."""
    def truth(size):
        runs = [counts(core, *size) for core in (standard.forward_head, fa2.forward_head)]
        return [sum(count[k] for count in run.values()) for run in runs for k in (0, 1)]

    def truth_of_large(N, d, Br, Bc):
        matrix, scores, sweeps = N * d, N * N, len(range(0, N, Br))
        return [3 * matrix + 2 * scores, 2 * scores + matrix + N, matrix + 2 * sweeps * matrix, matrix + N]

    names = "standard_reads", "standard_writes", "fa2_reads", "fa2_writes"
    cases = [sized(size, truth(size)) for size in SIZES] + [sized(size, truth_of_large(*size)) for size in LARGE]
    return check(answer, cases, lambda case, got: compare(
        got, dict(zip(names, case.truth, strict=True)), dict.fromkeys(names, 0)))


def case1_extra(answer):
    """Check case1_extra(N, d, Br, Bc) → (name of the array, how many elements of it travel in vain)."""
    def truth(size):
        here, there = counts(case1.forward_head, *size), counts(fa2.forward_head, *size)
        return {name: sum(here[name]) - sum(there[name]) for name in "QKVOL"}

    def truth_of_large(N, d, Br, Bc):
        last = N - range(0, N, Bc)[-1]
        return dict.fromkeys("QVOL", 0) | {"K": len(range(0, N, Br)) * last * d}

    def judge(case, got):
        if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], str) and isinstance(got[1], Real)):
            return Wrong("It must return a name and a number, such as (\"O\", 12).")
        name, extra = got
        if name not in case.truth:
            return Wrong(f"There is no array {name} in memory; the arrays are Q, K, V, O, L.")
        if not case.truth[name]:
            return Wrong(f"Of {name}, case 1 moves no element more than FlashAttention-2 does.")
        return None if extra == case.truth[name] else Wrong(
            f"You say that {extra:,} elements of {name} travel in vain; the ledgers differ by {case.truth[name]:,}.")

    return check(answer, [sized(size, truth(size)) for size in SIZES] +
                 [sized(size, truth_of_large(*size)) for size in LARGE], judge)


def case1_repaired(answer):
    """Check case1_repaired(Q, K, V, rule, Br, Bc) → O, L: right, with exactly the traffic of FlashAttention-2."""
    def arguments(problem):
        given = attention.tiled(problem)
        (Nq, d), Nk = given["Q"].shape, len(given["K"])
        given["rule"] = ShownRule(Nq, Nk, scale=1 / np.sqrt(d))
        return {name: given[name] for name in ("Q", "K", "V", "rule", "Br", "Bc")}

    def judge(case, run):
        truth, bound, tiles = case.truth
        wrong = compare(run.returned, truth, bound, tiles)
        if wrong:
            return wrong
        (Nq, d), (Nk, dv) = case.args["Q"].shape, case.args["V"].shape
        sweeps = len(range(0, Nq, case.args["Br"]))
        for name, right in {"Q": (Nq * d, 0), "K": (sweeps * Nk * d, 0), "V": (sweeps * Nk * dv, 0),
                            INSIDE: (0, Nq * dv + Nq)}.items():
            got = run.counts.get(name, (0, 0))
            for did, mine, theirs in zip(("reads", "writes"), got, right, strict=True):
                if mine != theirs:
                    return Wrong(f"O and L are right. But of {name} it {did} {mine:,} elements, FlashAttention-2 "
                                 f"{did} {theirs:,}.")
        tiles_of_keys = len(range(0, Nk, case.args["Bc"]))
        if run.order != sweeps * ("K" + "KV" * (tiles_of_keys - 1) + "V"):
            return Wrong("O and L are right, and it moves as much as FlashAttention-2. But it does not ask for the "
                         f"next tile of keys before Vj: it loads K and V in the order {run.order}.")
        return None

    return check(Metered(answer) if callable(answer) else answer, attention.cases(arguments), judge)


# --- what they share ------------------------------------------------------------------------------------------

def sized(size, truth):
    N, d, Br, Bc = size
    return Case(f"Nq = Nk = {N:,}, d = dv = {d}, tiles of {Br} × {Bc}",
                {"N": N, "d": d, "Br": Br, "Bc": Bc}, truth)


@functools.cache
def counts(core, N, d, Br, Bc):
    """{name of the array: (elements read, written)} of a run that the ledger counts."""
    with Ledger() as led:
        core(*(led.hbm(np.ones((N, d)), name) for name in "QKV"), Rule(N, N, scale=1.0), Br, Bc)
    return {name: (r.reads, r.writes) for name, r in zip(NAMES[core], led.arrays, strict=True)}


class ShownRule(Rule):
    """A Rule that can be printed with a case."""

    def __repr__(self):
        return f"Rule({self.Nq}, {self.Nk}, scale={self.scale:.3g})"


class Metered:
    """A learner's core on the ledger: what it `returned`, `counts` of its arrays, `order` of its loads come back."""

    def __init__(self, core):
        self.core, self.__code__ = core, getattr(core, "__code__", None)
        functools.update_wrapper(self, core)

    def __call__(self, Q, K, V, *others):
        with Ledger(log=True) as led:
            got = self.core(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), *others)
        if got is None:
            return None                                 # `check` has a line for that
        run = type(self)(self.core)
        run.returned = got
        if isinstance(got, tuple):
            run.returned = tuple(np.asarray(x) if isinstance(x, HBM) else x for x in got)
        run.order = "".join(access.record.name for access in led.log if access.record.name in ("K", "V"))
        run.counts = {}
        for record in led.arrays:
            name = record.name or INSIDE
            reads, writes = run.counts.get(name, (0, 0))
            run.counts[name] = reads + record.reads, writes + record.writes
        return run
