"""A learner's loop on the ledger: what its run moves, in words. Shared by notebooks 04, 05 and 07."""

import warnings
from functools import partial

import numpy as np

from course.checking import TookTooLong, Verdict, Wrong, check, time_limit
from course.comparing import compare
from fa_ref import costs
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

INSIDE = {"fa1": ("O", "l", "m"), "fa2": ("O", "L")}    # the arrays in memory that the loop makes
NAMES = {"fa1": "FlashAttention-1", "fa2": "FlashAttention-2"}
OUTSIDE = {"fa1": ("keys", "queries"), "fa2": ("queries", "keys")}      # the outer loop, the inner loop
NUMBERS = ["Q", "K", "V", "1st", "2nd", "3rd", "4th", "5th"]           # of the first arrays in a ledger
ON_CHIP = {"fa1": "", "fa2": "\nIf you meant it to stay on chip (m, l, acc): np.zeros or np.full, not from Q."}


def run(answer, args, seconds=5):
    """(the ledger, what came back, a Wrong or None): answer(*args.values()), its arrays in memory that counts."""
    led, returned, wrong = Ledger(), None, None
    try:
        with time_limit(seconds), led:
            returned = answer(*(led.hbm(x, name) if isinstance(x, np.ndarray) else x for name, x in args.items()))
    except TookTooLong:
        wrong = Wrong(f"Right numbers. But on the ledger it did not come to an end within {seconds} s.")
    except Exception as error:
        wrong = Wrong(f"Right numbers. But the ledger cannot follow what it does: {error}.\nLoad tiles by subscripts "
                      "(K[cols]). Make what lies in memory with np.empty_like(Q, shape=…) and its kin, what stays on "
                      "chip with np.zeros or np.full.")
    return led, returned, wrong


def checked(answer, algorithm, cases, *more):
    """A Verdict on a whole loop: first its numbers in all cases, then what it moves, then more (functions like that).

    A case has args Q, K, V, Br, Bc and truth (truth, bound, tiles); more: f(answer, *args) -> a Wrong, or None.
    Cases come in threes of one size.
    """
    numbers = check(answer, cases, lambda case, returned: compare(returned, *case.truth))
    if not numbers:
        return numbers

    def judge(case, returned):
        wrongs = (f(answer, *case.args.values()) for f in (partial(wrong_traffic, algorithm), *more))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                             # its numbers were right in spite of them
            return next((wrong for wrong in wrongs if wrong), None)

    work = check(answer, cases[::3], judge)     # cases come in threes of one size, and traffic depends on sizes alone
    return Verdict(True, f"{numbers.line} And it moves what {NAMES[algorithm]} moves.") if work else work


def wrong_traffic(algorithm, answer, Q, K, V, Br, Bc):
    """A Wrong if answer(Q, K, V, Br, Bc) moves other amounts than the algorithm, or holds far more on chip; else None.

    The first read of what nobody has written yet may be left out, as in the figure of the first paper.
    """
    rule = Rule(len(Q), len(K), scale=1.0)
    want = costs.FORWARD[algorithm](costs.visits(rule, Q.shape[1], V.shape[1], Br, Bc, Q.dtype))
    led, _, wrong = run(answer, {"Q": Q, "K": K, "V": V, "Br": Br, "Bc": Bc})
    if wrong:
        return wrong
    moves = led.total("reads") - led.total("fresh_reads"), led.total("writes")
    right = want.reads - want.fresh_reads, want.writes
    if moves != right:
        yours = "; ".join(f"{r.name or number + ' array you made'} {r.shape}, {r.reads - r.fresh_reads} + {r.writes}"
                          for number, r in zip(NUMBERS, led.arrays, strict=False))
        hint = hinted(algorithm, led, sum(moves) < sum(right), rule, Br, Bc)
        return Wrong(f"Right numbers, but it moves {moves[0]} + {moves[1]} elements (read + written) where "
                     f"{NAMES[algorithm]} moves {right[0]} + {right[1]}.\nYours: {yours}.\n(Reads of cells that nobody "
                     f"has written yet do not count here.){hint}")
    if led.peak_onchip_bytes > 3 * want.onchip_bytes + 256:
        return Wrong(f"Right numbers, but it holds {led.peak_onchip_bytes:,} bytes on chip at once, where tiles of "
                     f"{Br} × {Bc} need {want.onchip_bytes:,}.")
    return None


def hinted(algorithm, led, less, rule, Br, Bc):
    """What may be the reason that a loop moves other amounts; begins with a new line, unless it is empty."""
    if len(led.arrays) == 3:
        return "\nIt has made no array in memory: the results must be made with np.empty_like(Q, shape=…) or its kin."
    told = f"It moves less than {NAMES[algorithm]}, so it is another loop. " if less else ""
    Q, K, *_ = led.arrays
    passes = {"fa1": (len(range(0, rule.Nk, Bc)), 1), "fa2": (1, len(range(0, rule.Nq, Br)))}      # of Q, of K
    mine = passes.pop(algorithm)
    if (Q.reads // np.prod(Q.shape), K.reads // np.prod(K.shape)) in passes.values() and mine not in passes.values():
        outer, inner = OUTSIDE[algorithm]
        told += f"Are your {inner} outside and your {outer} inside? Here {outer} are outside."
    if len(led.arrays) > 3 + len(INSIDE[algorithm]):
        told += ON_CHIP[algorithm]
    return "\n" + told.strip() if told else ""
