"""Exercises of notebook 11: the loop of FlashAttention-3, and a schedule for its tasks."""

from dataclasses import replace
from itertools import zip_longest
from typing import ClassVar

import numpy as np

from course import attention
from course.checking import Case, Verdict, Wrong, check, number
from course.comparing import compare
from exercises.nb11_machine import KINDS, UNITS, fault, form, play, rescaled_first  # noqa: F401 (for the learner)
from fa_ref import drawing
from fa_ref.schedule import Row, Table
from fa_ref.schedule.pictures import Gantt
from fa_ref.scores import Rule

# one colour for each kind of task, in all pictures
COLORS = {"K": drawing.BLUE, "V": drawing.COLORS[5], "KV": drawing.BLUE, "S": drawing.ORANGE, "P": drawing.GREEN,
          "PV": drawing.VIOLET}


def picture(tables):
    """A figure of {title: Table} above one axis of time."""
    return Gantt(tables, colors=COLORS).sheet.figure


# --- the loop -------------------------------------------------------------------------------------------------

D = 17                                                              # a head dim that no tile of the cases has as height


class Noted(np.ndarray):
    """An array that writes down every product that it is part of: "S", "PV"."""

    log: ClassVar[list] = []

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        if ufunc is np.matmul and operands[0].shape[-1] > 0:        # a product over no keys is no work
            Noted.log.append("S" if operands[0].shape[-1] == D else "PV")
        plain = [x.view(np.ndarray) if isinstance(x, Noted) else x for x in operands]
        return np.asarray(getattr(ufunc, method)(*plain, **options)).view(Noted)

    def __array_function__(self, function, types, args, kwargs):
        Noted.log += ["other"] * (function in (np.dot, np.einsum, np.inner, np.tensordot))
        return super().__array_function__(function, types, args, kwargs)


def noting_arrays(Nq, Nk):
    """Q, K, V of such arrays."""
    rng = np.random.default_rng(11)
    return {name: rng.standard_normal(shape).view(Noted) for name, shape in
            (("Q", (Nq, D)), ("K", (Nk, D)), ("V", (Nk, 2)))}


def order_of_products(core, tiles):
    """The products of a core of the package for one tile of queries and so many of keys: "S 0", "PV 0" …, in order."""
    Noted.log = []
    core.forward_head(*noting_arrays(2, 3 * tiles).values(), Rule(2, 3 * tiles, scale=1.0), 2, 3)
    return with_numbers(Noted.log)


def with_numbers(log):
    """["S", "S", "PV"] as ["S 0", "S 1", "PV 0"]."""
    return [f"{what} {log[:n].count(what)}" for n, what in enumerate(log)]


def pipelined(tiles):
    """The order in which FlashAttention-3 issues its products for one tile of queries."""
    inner = [name for j in range(1, tiles) for name in (f"S {j}", f"PV {j - 1}")]
    return ["S 0", *inner, f"PV {tiles - 1}"]


def fa3_forward(answer):
    """Check fa3_forward(Q, K, V, Br, Bc) → O (Nq, dv), L (Nq,): the numbers, then the order of the products."""
    def numbers(case, returned):
        wrong = compare(returned, *case.truth[:2], tiles=case.truth[2])
        if wrong and "expected" in wrong.line and isinstance(returned, tuple) and np.allclose(
                returned[0], rescaled_first(*case.args.values())):
            return replace(wrong, line=f"{wrong.line}\nThe waiting P was rescaled too little: add it before alpha, as "
                                       "in (5) and (10).")
        return wrong

    def products(case, returned):
        log, Noted.log = Noted.log, []
        Tr, Tc = case.truth
        if not log or "other" in log:
            return Wrong("O and L are right, but not every product was seen. Only products written with @ are seen.")
        wanted = [name for _ in range(Tr) for name in pipelined(Tc)]
        got = [name for i in range(Tr) for name in with_numbers(log[i * 2 * Tc:(i + 1) * 2 * Tc])] + log[Tr * 2 * Tc:]
        for n, (mine, right) in enumerate(zip_longest(got, wanted)):
            if mine != right:
                return Wrong(f"O and L are right, but product {n + 1} is {mine or 'missing'}; in the pipeline it is "
                             f"{right or 'not there'}. Yours: {', '.join(got[:6])} … "
                             f"The pipeline: {', '.join(wanted[:6])} …")
        return None

    sizes = [(2, 3, 2, 3), (2, 6, 2, 3), (3, 7, 2, 3), (5, 16, 2, 4)]
    orders = [Case(f"{Nq} queries, {Nk} keys, d = {D}, tiles of {Br} × {Bc}; which product when?",
                   noting_arrays(Nq, Nk) | {"Br": Br, "Bc": Bc}, (-(-Nq // Br), -(-Nk // Bc)))
              for Nq, Nk, Br, Bc in sizes]
    found = check(answer, attention.cases(attention.tiled), numbers)
    if found:
        Noted.log = []
        found = check(answer, orders, products)
    return Verdict(True, "ok: O and L are right, and the products come in the pipeline's order.") if found else found


# --- the schedule ----------------------------------------------------------------------------------------------

def schedule(answer):
    """Check schedule(T) → [(unit, what, start, end), …] or a Table, for one tile of queries and T tiles of keys."""
    cases = [Case(f"{number(T, 'tile', 'tiles')} of keys", {"T": T}, shortest(T)) for T in (1, 2, 3, 4, 7, 16)]
    if found := check(answer, cases, judge):
        return Verdict(True, found.line, None, *drawn(answer(4), 4, "Your schedule for four tiles of keys."))
    return found


def drawn(returned, T, words):
    """A picture of a schedule, and its text."""
    table = Table(tuple(UNITS), [Row(*row) for row in getattr(returned, "rows", returned)])
    return picture({f"your schedule, T = {T}": table}), f"{words} A line for each unit, a box for each task."


def shortest(T):
    """K 0, then the tensor core without a pause; alone, a tile has nothing to do while it waits for its P."""
    return 4 * T + 1 if T > 1 else 7


def judge(case, returned):
    T, rows = case.args["T"], getattr(returned, "rows", returned)
    if line := form(T, rows):
        return Wrong(line)
    line = fault(T, rows)
    end = max(row[3] for row in rows)
    if not line and end > case.truth:
        line = f"Every task gets what it needs, but the last one ends at {end}; {case.truth} can be reached."
    if line:
        return Wrong(line, *drawn(rows, T, f"Your schedule. {line}"))
    _, problem = next(attention.problems([(4, 3 * T - 1, 4, 3, 4, 3)]))
    truth, bound = attention.solved(problem)
    O, L = play(rows, *attention.head(problem), 3)
    return compare((O, L), truth, bound)
