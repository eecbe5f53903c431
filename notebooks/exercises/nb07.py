"""Exercises of notebook 07: the gradients of one tile, and of a whole head in tiles."""

import math
from dataclasses import replace

import numpy as np

from course.attention import problems
from course.checking import Case, Verdict, check
from course.comparing import compare
from exercises.on_ledger import run
from fa_ref import costs
from fa_ref.metered import HBM
from fa_ref.scores import Rule
from fa_ref.testing import oracle, tolerance

N, DIM, TILE, LIMIT = 80, 4, 4, 310         # elements held on chip: 310 is below N·d = 320, one whole matrix
SCALES = (0.5, 1.5, -0.75)


# --- one tile -------------------------------------------------------------------------------------------------

def backward_tile(answer):
    """Check backward_tile(Qi, Kj, Vj, dOi, Li, Di, scale) → dQi, dKj, dVj, what one tile adds to the gradients."""
    return check(answer, tile_cases(), judge_tile)


def tile_cases():
    """The first tile of larger heads, so that no row of P is whole; square tiles first."""
    rng = np.random.default_rng(7)
    for br, bc, d, dv in ((1, 1, 1, 1), (2, 2, 1, 1), (2, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 3), (1, 4, 3, 2),
                          (4, 8, 4, 4)):
        for scale in SCALES:
            Q, K, V, dO = (rng.standard_normal((n, w)) for n, w in ((br, d), (bc + 3, d), (bc + 3, dv), (br, dv)))
            S = scale * Q @ K.T
            P = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
            tile = {"Qi": Q, "Kj": K[:bc], "Vj": V[:bc], "dOi": dO, "Li": np.log(np.exp(S).sum(axis=1)),
                    "Di": (dO * (P @ V)).sum(axis=1), "scale": scale}
            yield Case(f"a tile of {br} × {bc} of a head with {bc + 3} keys, d = {d}, dv = {dv}", tile, by_hand(**tile))


def by_hand(Qi, Kj, Vj, dOi, Li, Di, scale):
    """{"dQi": …, "dKj": …, "dVj": …}, score by score."""
    dQi, dKj, dVj = np.zeros(Qi.shape), np.zeros(Kj.shape), np.zeros(Vj.shape)
    for r, c in np.ndindex(len(Qi), len(Kj)):
        p = math.exp(scale * (Qi[r] @ Kj[c]) - Li[r])
        ds = p * (dOi[r] @ Vj[c] - Di[r])
        dQi[r] += scale * ds * Kj[c]
        dKj[c] += scale * ds * Qi[r]
        dVj[c] += p * dOi[r]
    return {"dQi": dQi, "dKj": dKj, "dVj": dVj}


def judge_tile(case, returned):
    bound = {name: 1e-11 * (1 + np.abs(x).max()) for name, x in case.truth.items()}
    wrong = compare(returned, case.truth, bound)
    return replace(wrong, line=f"{wrong.line}{well_known(case, returned)}") if wrong else None


def well_known(case, returned):
    """A line more, if these are the numbers of a mistake that many make; else nothing."""
    names = list(case.truth)
    if not (isinstance(returned, tuple) and [np.shape(x) for x in returned] == [x.shape for x in case.truth.values()]):
        return ""
    got, tile = dict(zip(names, returned, strict=True)), case.args
    P = np.exp(tile["scale"] * tile["Qi"] @ tile["Kj"].T)
    alone = by_hand(**tile | {"Li": np.log(P.sum(axis=1))})
    if all(np.allclose(got[name], alone[name]) for name in names):
        return "\nThese are the gradients with P made from this tile alone; use Li."
    large = [name for name in names[:2] if np.allclose(tile["scale"] * got[name], case.truth[name])]
    return f"\n{' and '.join(large)} {'are' if large[1:] else 'is'} 1/scale times too large." if large else ""


# --- a whole head ---------------------------------------------------------------------------------------------

def backward(answer):
    """Check backward(dO, Q, K, V, O, L, scale, Br, Bc) → dQ, dK, dV: numbers, then what is held and what is moved."""
    verdict = check(answer, head_cases(), judge_head)
    return metered(answer, verdict) if verdict else verdict


def head_cases():
    rng = np.random.default_rng(8)
    for number, (what, p) in enumerate(problems(big=9.0)):
        dout = rng.standard_normal((*p.q.shape[:3], p.v.shape[3]))
        p = p.replace(dout=dout, scale=SCALES[number % 3])
        truth, bound = oracle.solve(p), tolerance.bounds(p)
        given = {"dO": dout[0, 0], "Q": p.q[0, 0], "K": p.k[0, 0], "V": p.v[0, 0], "O": truth.out[0, 0],
                 "L": truth.lse[0, 0], "scale": p.scale, "Br": p.block_q, "Bc": p.block_k}
        names = ("dq", "dk", "dv")
        yield Case(what, given, ({name: getattr(truth, name)[0, 0] for name in names},
                                 {name: getattr(bound, name)[0, 0] for name in names}, p))


def judge_head(case, returned):
    """The first wrong tile is drawn in the rows that Br or Bc cut out."""
    truth, bound, p = case.truth
    width = max(p.q.shape[3], p.v.shape[3])
    names = {"dq": "dQ", "dk": "dK", "dv": "dV"}
    if isinstance(returned, tuple) and len(returned) == 3:
        for got, (name, letter) in zip(returned, names.items(), strict=True):
            rows = p.block_q if name == "dq" else p.block_k
            if wrong := compare(got, {letter: truth[name]}, {letter: bound[name]}, tiles=(rows, width)):
                return wrong
        return None
    return compare(returned, {letter: truth[name] for name, letter in names.items()}, dict.fromkeys(names.values(), 0))


def metered(answer, verdict):
    """Run it on arrays that count: the verdict, or another if more than tiles is held, or more moved than need be."""
    rng = np.random.default_rng(9)
    dO, Q, K, V = rng.standard_normal((4, N, DIM))
    S = Q @ K.T / 2
    L = np.log(np.exp(S).sum(axis=1))
    given = dO, Q, K, V, np.exp(S - L[:, None]) @ V, L, 0.5, TILE, TILE
    case = Case(f"{N} queries, {N} keys, d = {DIM}, tiles of {TILE} × {TILE}, arrays in memory that count their loads",
                dict(zip(("dO", "Q", "K", "V", "O", "L", "scale", "Br", "Bc"), given, strict=True)))
    led, gradients, wrong = run(answer, case.args)
    if wrong:
        return Verdict(False, wrong.line, case)
    if not all(isinstance(x, HBM) for x in gradients):
        return Verdict(False, "Right numbers, but the gradients do not lie in memory: make them with np.zeros_like(Q) "
                              "and so on.", case)
    held = led.peak_onchip_bytes // 8
    if held > LIMIT:
        return Verdict(False, f"Right numbers, but at one time {held:,} elements were held on chip. Tiles of {TILE} × "
                              f"{TILE} need fewer than {LIMIT}; a whole matrix like Q has {N * DIM}.", case)
    best = costs.BACKWARD["fa2"](costs.visits(Rule(N, N, scale=0.5), DIM, DIM, TILE, TILE))
    for verb, moved, least in (("read", led.total("reads"), best.reads), ("write", led.total("writes"), best.writes)):
        if moved > least:
            return Verdict(False, f"Right numbers, but you {verb} {moved:,} elements where FlashAttention-2 {verb}s "
                                  f"{least:,}. {advice(led.arrays, gradients)}", case)
    return verdict


def advice(records, gradients):
    """Which array is moved too often, and what to do about it."""
    K, V, O = records[2:5]
    if any(x.record.reads or x.record.writes > x.size for x in gradients[1:]):
        return "dK[cols] and dV[cols] can wait on chip until all queries have passed: store them once."
    if O.reads > math.prod(O.shape):
        return "Make D once, before the loops."
    if any(x.reads > math.prod(x.shape) for x in (K, V)):
        return "K[cols] and V[cols] can stay on chip until all queries have passed: load them once."
    return "In each round, load every tile once, and store dQ[rows] once."
