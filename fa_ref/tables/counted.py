"""One head of zeros run on a ledger: what the tables count does not depend on the numbers."""

import numpy as np

from fa_ref.ledger import Ledger
from fa_ref.scores import Rule


def forward(core, N, d, Br=None, Bc=None, dtype=np.float32):
    """The Ledger of a forward pass without a mask: Q, K, V (N, d)."""
    X = np.zeros((N, d), dtype)
    with Ledger() as led:
        core.forward_head(*(led.hbm(X) for _ in "QKV"), Rule(N, N, scale=1.0), Br, Bc)
    return led


def backward(core, N, d, Br=None, Bc=None, dtype=np.float32):
    """The Ledger of a backward pass without a mask."""
    X, rule = np.zeros((N, d), dtype), Rule(N, N, scale=1.0)
    answer = core.forward_head(X, X, X, rule, Br, Bc)
    with Ledger() as led:
        core.backward_head(led.hbm(X), *(led.hbm(X) for _ in "QKV"), *(led.hbm(x) for x in answer), rule, Br, Bc)
    return led


def moved(led):
    """Elements of matrices read and written; l, m and L, a share of 1/d, are left out, as in the papers' counts."""
    return sum(r.reads + r.writes for r in led.arrays if len(r.shape) == 2)


def fresh(led):
    """Of these, the reads of cells that nobody had written."""
    return sum(r.fresh_reads for r in led.arrays if len(r.shape) == 2)
