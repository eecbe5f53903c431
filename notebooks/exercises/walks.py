"""Pictures of how a loop walks over the tiles, and what it loads and stores where. Shared by notebooks 04 and 05."""

import numpy as np
from matplotlib.patches import Rectangle

from course.pictures import figure, matrix
from exercises.on_ledger import INSIDE
from fa_ref import drawing
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

BEGINS = {"fa1": "Q", "fa2": "K"}                   # the first load of the inner loop: with it a visit begins


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
