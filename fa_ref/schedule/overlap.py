"""FlashAttention-3's overlap: while exponentials are taken for one tile, the tensor core multiplies for another.

Shah et al., arXiv 2407.08608, section 3. A multiprocessor has two tiles of queries, a and b, each to meet the same T
tiles of keys. There are four tasks for each of these 2·T pairs:

    S j         scores of key tile j, a product             on the tensor core           after P j − 1
    rest j      scale, maximum, subtraction, sum            on the arithmetic units      after S j
    P j         exp                                         on the special functions     after rest j
    PV j        its output, a product                       on the tensor core           after P j

The tensor core takes the products in the order in which they are issued, and the four schedules differ in that order
alone. With a | before each turn of a warpgroup:

    serial              S 0 | PV 0, S 1 | PV 1, S 2 | … | PV T − 1      all of a, then all of b
    intra-warpgroup     S 0 | S 1, PV 0 | S 2, PV 1 | … | PV T − 1      all of a, then all of b
    ping-pong           as serial                                       a and b take turns
    both                as intra-warpgroup                              a and b take turns

So intra-warpgroup, which is Algorithm 2 of the paper, issues S j ahead of PV j − 1, and softmax j runs beside PV j − 1.
Ping-pong has a warpgroup for each of a and b, and barriers that make them take turns.

Limits. One tensor core, one special-function unit and one arithmetic unit stand for the four of each in a
multiprocessor. All of softmax that is not exp comes before it. K and V are there in time. Barriers, the start of a
product, the rescaling of O, masks, and the start and end of a block cost nothing, so that real kernels are slower.
"""

from itertools import chain
from typing import NamedTuple

from fa_ref.options import check_choice, check_whole
from fa_ref.schedule.model import Task, run

UNITS = {"tensor core": 1, "special functions": 1, "arithmetic": 1}
SCHEDULES = {"serial": (False, False), "intra-warpgroup": (True, False), "ping-pong": (False, True),
             "both": (True, True)}                                      # S j ahead of PV j − 1?  a and b in turns?

# What a multiprocessor of an H100 does in a clock: 132 of them at 1.83 GHz make 989 · 10¹² FLOP/s and 3.9 · 10¹² exps.
FLOPS, EXPS, OPERATIONS = {16: 4096, 8: 8192}, 16, 128                  # FLOPs of products, by the bits of an element
REST = 4                                                                # operations of softmax that are not exp


class Clocks(NamedTuple):
    """How long a product, the exponentials and the rest of softmax take for one pair of tiles."""

    product: float
    exp: float
    rest: float


def clocks(Br=64, Bc=128, d=128, bits=16, rest=REST):
    """The Clocks of a pair of tiles of Br × Bc scores; bits of an element: 16 or 8. Errors: ValueError, TypeError.

    A product has 2·d FLOPs for each score. rest: operations for each score besides exp; 0 leaves exp alone.
    """
    for name, size, least in (("Br", Br, 1), ("Bc", Bc, 1), ("d", d, 1), ("rest", rest, 0)):
        check_whole(name, size, least)
    if bits not in FLOPS:
        raise ValueError(f"bits is {bits!r}: the rate of the tensor core is known for {' and '.join(map(str, FLOPS))}")
    scores = Br * Bc
    return Clocks(2 * d * scores / FLOPS[bits], scores / EXPS, rest * scores / OPERATIONS)


def schedule(name, T, c):
    """The Table of one of SCHEDULES for T tiles of keys and Clocks c; ValueError for another name and for T below 1."""
    check_choice("schedule", name, SCHEDULES)
    check_whole("T", T, 1)
    return run(tasks(T, c, *SCHEDULES[name]), UNITS)


def tasks(T, c, ahead, in_turns):
    """The Tasks in the order of issue; ahead: S j before PV j − 1; in_turns: a and b."""
    def turns(w):
        """Of one warpgroup: a list of [(product, key tile, w), …]."""
        inner = [[(product, j, w) for product, j in (("PV", j - 1), ("S", j))] for j in range(1, T)]
        return [[("S", 0, w)], *(turn[::-1] if ahead else turn for turn in inner), [("PV", T - 1, w)]]

    a, b = turns("a"), turns("b")
    order = [turn for pair in zip(a, b, strict=True) for turn in pair] if in_turns else a + b
    issued, found = (), []                                              # the product issued last, if any; the tasks
    for product, j, w in chain.from_iterable(order):
        this = f"{product}{j} {w}"
        if product == "S":
            softmax = (f"P{j - 1} {w}",) if j else ()
            found += [Task(this, "tensor core", c.product, (*issued, *softmax)),
                      Task(f"rest{j} {w}", "arithmetic", c.rest, (this,)),
                      Task(f"P{j} {w}", "special functions", c.exp, (f"rest{j} {w}",))]
        else:
            found.append(Task(this, "tensor core", c.product, (*issued, f"P{j} {w}")))
        issued = (this,)
    return found


def bounds(name, T, c):
    """{why: no schedule of this kind is shorter}, in clocks. ValueError as `schedule`."""
    check_choice("schedule", name, SCHEDULES)
    check_whole("T", T, 1)
    ahead, _ = SCHEDULES[name]
    alone = T * (c.product + c.rest + c.exp) + c.product if ahead else T * (2 * c.product + c.rest + c.exp)
    return {"tensor core": 4 * T * c.product, "special functions": 2 * T * c.exp, "arithmetic": 2 * T * c.rest,
            "one warpgroup": alone}                                     # its own tasks wait for each other


def period(name, c):
    """Clocks from one tile of keys to the next, for a and b together, once a schedule is under way: a closed form."""
    check_choice("schedule", name, SCHEDULES)
    ahead, in_turns = SCHEDULES[name]
    alone = c.product + c.rest + c.exp if ahead else 2 * c.product + c.rest + c.exp
    return max(4 * c.product, 2 * c.exp, 2 * c.rest, alone) if in_turns else 2 * max(2 * c.product, alone)
