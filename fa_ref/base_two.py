"""Is an lse in base 2? Kernels elsewhere keep log₂ of the sum of exponentials, and in finite numbers nothing shows it.

A few rows tell: those whose lse is largest in magnitude. What belongs to them is computed once more, from q, k and v.
If lse is in base 2, lse · ln 2 comes out, and so does out. The first alone would not do: where keys are spread over
machines, `backward` gets some of the keys and the lse of all of them, and any ratio may be there by chance. But then
out, too, is that of all keys. It says nothing where all keys have one value, as in a row that sees one key.
"""

import math

import numpy as np

from fa_ref.scores import PARTIAL
from fa_ref.torch_bridge import to_numpy

MOST, LOOK = 8, 64                                      # rows that must agree; rows to look at
LEAST = 1.0                                             # an lse smaller than this, in magnitude, says little
CLOSE_LSE, CLOSE_OUT = 2e-5, 0.02                       # how far off they may be, relative to lse and to Σ P |v|


def refuse_base_two(q, k, v, out, lse, sink, rule_of):
    """ValueError for an lse (B, Hq, Nq) in base 2; it names a row and both numbers.

    q, k, v, out as in `heads.forward`, NumPy's or torch's, of which only what a few rows need is read. lse: a NumPy
    array. sink (Hq,) or None. rule_of(b, h) is the Rule of a query head.
    """
    agree = []
    for b, h, i in telling_rows(lse):
        g = h // (q.shape[1] // k.shape[1])
        wanted = q[b, h, i:i + 1], k[b, g], v[b, g], out[b, h, i]
        Q, K, V, O = (to_numpy("array", x).astype(np.float64) for x in wanted)
        with np.errstate(all="ignore"):                 # NaN and inf in what is seen are nobody's fault here
            L, same_out, tells = row_of(Q, K, V, O, rule_of(b, h), i, -np.inf if sink is None else sink[h])
        if not (math.isclose(lse[b, h, i] * math.log(2), L, rel_tol=CLOSE_LSE) and same_out):
            return
        if tells:
            agree.append((f"{lse[b, h, i]:.6g} at {(b, h, i)}", L))
        if len(agree) == MOST:
            break
    if agree:
        there, L = agree[0]
        raise ValueError(f"lse is in base 2: {there}, where the natural logarithm is {L:.6g}; lse · ln 2 will do")


def telling_rows(lse):
    """[(b, h, i)] of at most LOOK finite entries of lse, those of largest magnitude first; none below LEAST."""
    size = np.where(np.isfinite(lse), np.abs(lse), 0).ravel()
    largest = np.argsort(-size, kind="stable")[:LOOK]
    return [tuple(int(n) for n in np.unravel_index(at, lse.shape)) for at in largest if size[at] >= LEAST]


def row_of(Qi, K, V, Oi, rule, i, sink):
    """(lse of query i, is Oi its out?, does that tell anything?) in float64: Qi (1, d), K (Nk, d), V (Nk, dv).

    Where all values are the same any weights have that out, and it tells nothing. sink: a number, −inf for none.
    """
    row, cols = slice(i, i + 1), slice(0, len(K))
    seen = rule.visible(row, cols)[0]
    K, V = np.where(seen[:, None], K, 0), np.where(seen[:, None], V, 0)     # hidden keys may hold anything
    scores = rule.scores(Qi, K, row, cols, PARTIAL)[0]
    L = np.logaddexp.reduce(np.append(scores, sink))
    P = np.exp(scores - L)
    off, size = abs(P @ V - Oi).max(), (P @ abs(V)).max()
    return L, off <= CLOSE_OUT * size, (V[seen] != V[seen][:1]).any()
