"""FlashAttention-1, Figure 2: bytes between HBM and chip, counted by the ledger while the cores run."""

import numpy as np

from fa_ref import fa1, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.tables.counted import backward, forward, fresh, moved
from fa_ref.tables.rows import Table, follows, row

B, H, N, D = 64, 16, 1024, 64                           # the setting that the caption prints; 2 bytes for an element
GB_PER_ELEMENT = 2 * B * H / 1e9                        # of one head
PLOTTED = {128: "3.356", 256: "1.744"}                  # GB, at the two points of the curve that can be read exactly


def figure_2_middle():
    """Bytes moved by FlashAttention-1 forward, against the size of the tiles of keys."""
    rows = []
    for Bc in (64, 128, 256, 512):
        plotted, printed = forward_elements(Bc)
        rows.append(row(f"Bc = {Bc}, GB", PLOTTED.get(Bc), GB_PER_ELEMENT * plotted, within=0.001,
                        why=f"(3·{N // Bc} + 1)·N·d elements a head" + ", read from the curve" * (Bc in PLOTTED)))
        rows.append(row(f"Bc = {Bc}, GB, as Algorithm 1 is printed", None, GB_PER_ELEMENT * printed,
                        why="the first visit to a tile of O reads its zeros: one N·d more"))
    return Table("What FlashAttention-1 moves", "FA1 (2205.14135), Figure 2, middle", rows,
                 "The curve is met to three digits if the first visit to a tile of O does not read it and l and m are "
                 "left out, with 2 bytes for every element. Runtimes of the figure are not ours to reproduce.")


def forward_elements(Bc):
    """Elements of Q, K, V and O that one head moves: (as plotted, as printed)."""
    led = forward(fa1, N, D, 64, Bc, np.float16)
    return moved(led) - fresh(led), moved(led)


def figure_2_left():
    """Bytes and FLOPs of forward and backward together, standard attention against FlashAttention-1."""
    ours, flops_standard = both_passes_of_standard()
    unfused = 18 * N * N + 12 * N * D
    fa, flops_fa = both_passes_of_fa1(256)
    passes = fa / (N * D)
    return Table("Forward and backward", "FA1 (2205.14135), Figure 2, left", [
        row("standard, GB", "40.3", GB_PER_ELEMENT * ours, ".1f", 
            differs=f"{ours:,} = 11·N² + 12·N·d elements: Algorithms 0 and 3 have no mask and no dropout, the measured "
            "code had both"),
        row("standard, GB, with 7·N² for mask and dropout", None, GB_PER_ELEMENT * unfused, ".1f",
            why="18·N² + 12·N·d meets the 40.3; how the 7 are made up is our guess"),
        row("FlashAttention, GB, tiles of 256 keys", "4.4", GB_PER_ELEMENT * fa, ".1f",
            differs=f"{passes:.0f}·N·d; 33·N·d would be 4.43: without reading O in each of the 4 sweeps backward, "
                "and with the first read of dQ's zeros"),
        row("standard, GFLOPs", "66.6", flops_standard * B * H / 1e9, ".1f",
            differs="6 products of 2·N²·d; the printed number is 62 FLOPs a score, which no plain count gives"),
        row("FlashAttention, GFLOPs", "75.2", flops_fa * B * H / 1e9, ".1f",
            differs="7 products (one is formed again); the printed number is 70 FLOPs a score"),
        follows("GFLOPs, FlashAttention to standard", 75.2 / 66.6, flops_fa / flops_standard, ".3f",
            differs="7 products to 6"),
    ], "The printed FLOPs fit (product FLOPs)/16 + 14 a score: it looks as if products were weighted by the speed of "
       "tensor cores. That is inference.")


def both_passes_of_standard():
    """(elements moved, FLOPs of products) by Algorithms 0 and 3 for one head."""
    X, rule = np.zeros((N, D), np.float16), Rule(N, N, scale=1.0)
    P, _ = standard.probabilities(X, X, rule)
    with Ledger() as led:
        standard.forward_head(*(led.hbm(X) for _ in "QKV"), rule)
        standard.gradients(led.hbm(X), *(led.hbm(X) for _ in "QKV"), led.hbm(P), rule)
    return moved(led) - fresh(led), led.matmul_flops


def both_passes_of_fa1(Bc):
    """The same of FlashAttention-1 without what the figure leaves out (l, m, first reads)."""
    passes = [one(fa1, N, D, 64, Bc, np.float16) for one in (forward, backward)]
    return sum(moved(led) - fresh(led) for led in passes), sum(led.matmul_flops for led in passes)
