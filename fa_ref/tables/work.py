"""The work that is no product: what FlashAttention-2 saves, and why that matters where products are 16 times faster."""

from fa_ref import costs, fa1, fa2
from fa_ref.tables.metered import forward
from fa_ref.tables.rows import Table, row

N, D, TILE = 1024, 64, 64


def not_products():
    """FLOPs that are no products, by the ledger: on O per visit, and of a whole head."""
    (per_visit_1, end_1), (per_visit_2, end_2) = (costs.output_work(core) for core in (fa1, fa2))
    whole = {name: forward(core, N, D, TILE, TILE).other_flops for name, core in (("fa1", fa1), ("fa2", fa2))}
    return Table("Work that is no product", "FA2 (2307.08691), section 3.1", [
        row("A100: products to other FLOPs, speed", 16, 312 / 19.5, ".0f"),
        row("fa1: per element of O and visit", 4, per_visit_1, ".0f",
            why="scale O, scale P V, add, divide by l; the paper says what is done, the count is ours"),
        row("fa2: per element of O and visit", 2, per_visit_2, ".0f", why="scale O, add"),
        row("fa1: per element of O, at the end", 0, end_1, ".0f"),
        row("fa2: per element of O, at the end", 1, end_2, ".0f", why="divide by l"),
        *(row(f"{name}: all of a head, N = {N}, d = {D}, million", None, n / 1e6, ",.2f") for name, n in whole.items()),
        row("fa2 to fa1, all of a head", None, whole["fa2"] / whole["fa1"], ".3f",
            why=f"the work on S and P is the same; tiles {TILE} × {TILE}"),
    ])
