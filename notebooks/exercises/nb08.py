"""Exercises of notebook 08: which key head, gradients of grouped heads, packed sequences."""

from dataclasses import replace

import numpy as np

from course.checking import Case, Wrong, check, number
from course.comparing import compare
from fa_ref import fa2
from fa_ref.scores import Rule
from fa_ref.testing import Problem, oracle, tolerance

# --- given to the learner: one head ---------------------------------------------------------------------------


def head_forward(Q, K, V):
    """O (Nq, dv) and L (Nq,) of one head, in plain NumPy. Without keys it divides 0 by 0: O is NaN then."""
    S = Q @ K.T / np.sqrt(Q.shape[1])
    m = S.max(axis=1, initial=-np.inf)
    P = np.exp(S - m[:, None])
    l = P.sum(axis=1)
    return P @ V / l[:, None], m + np.log(l, where=l > 0, out=np.zeros_like(l))


def head_backward(dO, Q, K, V):
    """dQ (Nq, d), dK (Nk, d), dV (Nk, dv) of one head."""
    rule = Rule(len(Q), len(K), scale=Q.shape[1] ** -0.5)
    return fa2.backward_head(dO, Q, K, V, *fa2.forward_head(Q, K, V, rule, 16, 16), rule, 16, 16)


# --- which key head -------------------------------------------------------------------------------------------

def kv_head(answer):
    """Check kv_head(h, Hq, Hkv) → the number of the key/value head that query head h uses."""
    return check(answer, kv_heads(), judge_kv_head)


def kv_heads():
    for Hq, Hkv in ((1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3), (8, 1), (8, 2), (8, 4), (8, 8), (12, 4)):
        owners = [g for g in range(Hkv) for _ in range(Hq // Hkv)]
        for h, g in enumerate(owners):
            what = f"{number(Hq, 'query head', 'query heads')}, {number(Hkv, 'key/value head', 'key/value heads')}"
            yield Case(what, {"h": h, "Hq": Hq, "Hkv": Hkv}, (g, owners))


def judge_kv_head(case, returned):
    g, owners = case.truth
    if isinstance(returned, int | np.integer) and not isinstance(returned, bool) and returned == g:
        return None
    if isinstance(returned, float) and returned == g:
        return Wrong(f"{returned!r} is the right number, but no index: divide with // only, inside as well "
                     "(Hq // Hkv).")
    return Wrong(f"Query head {case.args['h']} uses key/value head {g}, the answer was {returned!r}. For query heads 0 "
                 f"to {len(owners) - 1} they are {', '.join(map(str, owners))}.")


# --- gradients of grouped heads -------------------------------------------------------------------------------

def grouped_backward(answer):
    """Check grouped_backward(dout, q, k, v) → dq, dk, dv."""
    return check(answer, grouped_cases(), judge_grouped)


def grouped_cases():
    rng = np.random.default_rng(8)
    for B, Hq, Hkv, Nq, Nk, d, dv in ((1, 1, 1, 1, 2, 1, 1), (1, 2, 1, 1, 2, 1, 1), (1, 2, 2, 2, 2, 1, 1),
                                      (1, 4, 2, 1, 2, 1, 1), (1, 4, 2, 3, 2, 2, 1), (2, 4, 2, 2, 3, 2, 3),
                                      (1, 6, 2, 3, 4, 2, 2), (2, 6, 3, 5, 4, 3, 2), (3, 8, 2, 4, 7, 4, 4)):
        q, dout = (rng.standard_normal((B, Hq, Nq, w)) for w in (d, dv))
        k, v = (rng.standard_normal((B, Hkv, Nk, w)) for w in (d, dv))
        p = Problem(q, k, v, dout=dout)
        yield Case(f"B = {B}, Hq = {Hq}, Hkv = {Hkv}, Nq = {Nq}, Nk = {Nk}, d = {d}, dv = {dv}",
                   {"dout": dout, "q": q, "k": k, "v": v}, (oracle.solve(p), tolerance.bounds(p)))


def judge_grouped(case, returned):
    names = ("dq", "dk", "dv")
    return by_heads(returned, *({name: getattr(x, name) for name in names} for x in case.truth))


def by_heads(returned, truth, bound):
    """As `compare`; of the first array that is wrong, the first head that is wrong is drawn."""
    wrong = compare(returned, truth, bound)
    if wrong is None or "expected" not in wrong.line or not isinstance(returned, tuple):
        return wrong
    for got, (name, right) in zip(returned, truth.items(), strict=True):
        for at in np.ndindex(right.shape[:-2]):
            label = name + (str(list(at)) if at else "")
            if found := compare(got[at], {label: right[at]}, {label: bound[name][at]}):
                return found
    return wrong


# --- packed sequences -----------------------------------------------------------------------------------------

def packed(answer):
    """Check packed(q, k, v, cu_seqlens_q, cu_seqlens_k) → out, lse."""
    return check(answer, packed_cases(), judge_packed)


def packed_cases():
    """Lengths (Nq, Nk) of the sequences, simplest first; then some of length zero."""
    rng = np.random.default_rng(9)
    for lengths in ([(1, 1)], [(2, 2)], [(1, 1), (1, 1)], [(2, 2), (1, 1)], [(1, 1), (3, 3), (2, 2)], [(2, 3), (1, 2)],
                    [(1, 4), (3, 1), (2, 2)], [(2, 2), (0, 0), (1, 1)], [(0, 0), (3, 3)], [(1, 1), (0, 2), (2, 1)],
                    [(1, 2), (2, 0), (1, 1)], [(2, 0)], [(0, 0)], [(3, 4), (0, 0), (5, 0), (1, 7), (0, 2), (4, 4)]):
        for H, d, dv in ((1, 1, 1), (2, 3, 2)):
            cu_q, cu_k = (np.cumsum([0] + [n[axis] for n in lengths]) for axis in (0, 1))
            q, k, v = (rng.standard_normal((H, n[-1], w)) for n, w in ((cu_q, d), (cu_k, d), (cu_k, dv)))
            truth, bound = ({"out": np.zeros((H, cu_q[-1], dv)), "lse": np.zeros((H, cu_q[-1]))} for _ in range(2))
            for s in range(len(lengths)):
                rows, cols = slice(*cu_q[s:s + 2]), slice(*cu_k[s:s + 2])
                p = Problem(q[None, :, rows], k[None, :, cols], v[None, :, cols])
                for into, of in ((truth, oracle.solve(p)), (bound, tolerance.bounds(p))):
                    into["out"][:, rows], into["lse"][:, rows] = of.out[0], of.lse[0]
            yield Case(f"{number(len(lengths), 'sequence', 'sequences')} with (queries, keys) = "
                       f"{', '.join(map(str, lengths))}; {number(H, 'head', 'heads')}",
                       {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}, (truth, bound))


def judge_packed(case, returned):
    wrong = by_heads(returned, *case.truth)
    if wrong and isinstance(returned, tuple) and all(
            np.shape(got) == like.shape and np.allclose(got, like, equal_nan=True)
            for got, like in zip(returned, cut_like_queries(*case.args.values()), strict=False)):
        return replace(wrong, line=f"{wrong.line}\nAre the keys cut by cu_seqlens_k?")
    return wrong


def cut_like_queries(q, k, v, cu_q, _):
    """out and lse of a mistake that many make: the keys are cut by cu_seqlens_q as well."""
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for h, s in np.ndindex(len(q), len(cu_q) - 1):
        rows = slice(*cu_q[s:s + 2])
        if k[h, rows].size:
            out[h, rows], lse[h, rows] = head_forward(q[h, rows], k[h, rows], v[h, rows])
    return out, lse
