"""The work that is no product: what FlashAttention-2 saves, and why that matters where products are 16 times faster."""

import numpy as np

from fa_ref import fa1, fa2
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.tables.counted import forward
from fa_ref.tables.rows import Table, follows, row

N, D, TILE = 1024, 64, 64


def not_products():
    """FLOPs that are no products, by the ledger: on O per visit, and of a whole head."""
    (per_visit_1, end_1), (per_visit_2, end_2) = (output_work(core) for core in (fa1, fa2))
    whole = {name: forward(core, N, D, TILE, TILE).other_flops for name, core in (("fa1", fa1), ("fa2", fa2))}
    return Table("Work that is no product", "FA2 (2307.08691), section 3.1", [
        row("A100: products to other FLOPs, speed", "16", 312 / 19.5, ".0f"),
        follows("fa1: per element of O and visit", 4, per_visit_1, ".0f", why="scale O, scale P V, add, divide by l"),
        follows("fa2: per element of O and visit", 2, per_visit_2, ".0f", why="scale O, add"),
        follows("fa1: per element of O, at the end", 0, end_1, ".0f"),
        follows("fa2: per element of O, at the end", 1, end_2, ".0f", why="divide by l"),
        *(row(f"{name}: all of a head, N = {N}, d = {D}, million", None, n / 1e6, ",.2f") for name, n in whole.items()),
        row("fa2 to fa1, all of a head", None, whole["fa2"] / whole["fa1"], ".3f",
            why=f"the work on S and P is the same; tiles {TILE} × {TILE}"),
    ])


def output_work(core, Tc=4):
    """(per visit, at the end): FLOPs besides products for each row and column of O, measured with the ledger.

    FlashAttention-1 (4, 0): scale the old O, scale P V, add, divide by l. FlashAttention-2 (2, 1): scale the old acc,
    add; divide at the end. Only this work depends on dv, so one more column of V shows it alone; Tc and 2·Tc tiles of
    keys tell apart what is done at every visit and what once.
    """
    rows = 2

    def flops(dv, keys):
        Q, K, V = np.zeros((rows, 1)), np.zeros((keys, 1)), np.zeros((keys, dv))
        with Ledger() as led:
            core.forward_head(led.hbm(Q), led.hbm(K), led.hbm(V), Rule(rows, keys, scale=1.0), rows, 1)
        return led.other_flops

    few, many = ((flops(2, keys) - flops(1, keys)) // rows for keys in (Tc, 2 * Tc))
    per_visit = (many - few) // Tc
    return per_visit, few - per_visit * Tc
