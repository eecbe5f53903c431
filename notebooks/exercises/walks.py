"""How a loop walks over the tiles, and what its run moves: seen by the ledger. Shared by notebooks 04 and 05."""

import warnings
from functools import partial

import numpy as np
from matplotlib.patches import Rectangle

from course.checking import TookTooLong, Verdict, Wrong, check, time_limit
from course.comparing import compare
from course.pictures import figure, matrix
from fa_ref import costs, drawing
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

BEGINS = {"fa1": "Q", "fa2": "K"}                   # the first load of the inner loop: with it a visit begins
INSIDE = {"fa1": ("O", "l", "m"), "fa2": ("O", "L")}


# --- pictures -------------------------------------------------------------------------------------------------

def walk(core, algorithm, Nq=6, Nk=6, Br=2, Bc=2):
    """[(rows, cols, [(array, "load" or "store", first row), …])] for every visit of a tile, in the order of the run."""
    Q, K, V = (np.ones((n, 2)) for n in (Nq, Nk, Nk))
    with Ledger(log=True) as led:
        core(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), Rule(Nq, Nk, scale=1.0), Br, Bc)
    for record, name in zip(led.arrays[3:], INSIDE[algorithm], strict=True):
        record.name = name
    visits, waiting = [], []
    for record, action, where in led.log:
        touched = (record.name, action, where[0])
        if record.name == BEGINS[algorithm]:
            visits.append([*waiting, touched])
            waiting = []
        elif action == "load" and record.name in "QKV" and not (algorithm == "fa2" and record.name == "V"):
            waiting.append(touched)                 # what the outer loop loads, before its first visit
        else:
            visits[-1].append(touched)
    place, found = {}, []
    for visit in visits:
        place |= {name: where for name, _, where in visit}
        found.append((place["Q"], place["K"], [(name, action, where[0]) for name, action, where in visit]))
    return found


def order(axes, visits, title, Nq=6, Nk=6):
    """Draw the matrix of scores, cut in tiles; each tile has the number of its visit."""
    M = np.zeros((Nq, Nk))
    for n, (rows, cols, _) in enumerate(visits):
        M[slice(*rows), slice(*cols)] = n + 0.5
    (r0, r1), (c0, c1) = visits[0][:2]
    matrix(axes, M, title, tiles=(r1 - r0, c1 - c0), values=False, limit=1.6 * len(visits))
    for n, (rows, cols, _) in enumerate(visits):
        axes.text(np.mean(cols) - 0.5, np.mean(rows) - 0.5, n, ha="center", va="center", fontsize=14, color=drawing.INK)
    axes.set(xlabel="key", ylabel="query")


def travel(visits, arrays, Br=2, Bc=2):
    """Draw which array is loaded (blue, left half) and stored (orange, right half) at which visit. Returns a figure."""
    made, axes = figure(0.75 * len(visits) + 1.2, 0.42 * len(arrays) + 1.4)
    for n, (_, _, touched) in enumerate(visits):
        for name, action, first in touched:
            x, load = n + 0.5 * (action == "store"), action == "load"
            y = arrays.index(name)
            axes.add_patch(Rectangle((x, y), 0.5, 1, facecolor=drawing.BLUE if load else drawing.ORANGE,
                                     edgecolor=drawing.INK, linewidth=0.8))
            axes.text(x + 0.25, y + 0.5, first // (Bc if name in "KV" else Br), ha="center", va="center", fontsize=9)
    axes.set(xlim=(0, len(visits)), ylim=(len(arrays), 0), xticks=np.arange(len(visits)) + 0.5,
             yticks=np.arange(len(arrays)) + 0.5, xlabel="visit", xticklabels=range(len(visits)), yticklabels=arrays)
    axes.set_title("loads: blue, stores: orange; the number is that of the tile", fontsize=10)
    for n in range(len(visits) + 1):
        axes.axvline(n, color=drawing.GREY, linewidth=1, zorder=0)
    axes.tick_params(length=0)
    return made


# --- what a learner's loop moves ------------------------------------------------------------------------------

NAMES = {"fa1": "FlashAttention-1", "fa2": "FlashAttention-2"}
OUTSIDE = {"fa1": ("keys", "queries"), "fa2": ("queries", "keys")}      # the outer loop, the inner loop
NUMBERS = ["Q", "K", "V", "1st", "2nd", "3rd", "4th", "5th"]           # of the first arrays in a ledger
ON_CHIP = {"fa1": "", "fa2": "\nIf you meant it to stay on chip (m, l, acc): np.zeros or np.full, not from Q."}


def checked(answer, algorithm, cases, *more):
    """A Verdict on a whole loop: first its numbers in all cases, then what it moves, then more (functions like that).

    A case has args Q, K, V, Br, Bc and truth (truth, bound, tiles); more: f(answer, *args) -> a Wrong, or None.
    """
    numbers = check(answer, cases, lambda case, returned: compare(returned, *case.truth))
    if not numbers:
        return numbers

    def judge(case, returned):
        wrongs = (f(answer, *case.args.values()) for f in (partial(wrong_traffic, algorithm), *more))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                             # its numbers were right in spite of them
            return next((wrong for wrong in wrongs if wrong), None)

    work = check(answer, cases[::3], judge)
    return Verdict(True, f"{numbers.line} And it moves what {NAMES[algorithm]} moves.") if work else work


def wrong_traffic(algorithm, answer, Q, K, V, Br, Bc):
    """A Wrong if answer(Q, K, V, Br, Bc) moves other amounts than the algorithm, or holds far more on chip; else None.

    The first read of what nobody has written yet may be left out, as in the figure of the first paper.
    """
    rule = Rule(len(Q), len(K), scale=1.0)
    want = costs.FORWARD[algorithm](costs.visits(rule, Q.shape[1], V.shape[1], Br, Bc, Q.dtype))
    led = Ledger()
    try:
        with time_limit(5), led:
            answer(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), Br, Bc)
    except TookTooLong:
        return Wrong("Right numbers. But on the ledger it did not come to an end within 5 s.")
    except Exception as error:
        return Wrong(f"Right numbers. But the ledger cannot follow what it does: {error}.\nLoad tiles by subscripts "
                     "(K[cols]), and make what lies in memory with np.empty_like(Q, shape=…) and its kin."
                     f"{ON_CHIP[algorithm]}")
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
