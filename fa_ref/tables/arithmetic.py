"""Figures of the papers that are plain arithmetic, done again: FLOPs, special functions, caches, cost models."""

import ml_dtypes
import numpy as np

from fa_ref import fa2
from fa_ref.scores import EMPTY, Rule, tiles
from fa_ref.tables.counted import backward, forward, moved
from fa_ref.tables.rows import Table, follows, holds, row


def attention_flops(N, d, heads, batch=1, causal=False, backward=False):
    """FLOPs of the products: 4·N²·d forward per head, 2.5 times that backward (5 products for 2), half if causal."""
    return 4 * N * N * d * heads * batch * (2.5 if backward else 1) / (2 if causal else 1)


def fa2_speeds():
    """FlashAttention-2, Table 1: utilisation and speed-ups of end-to-end training."""
    tflops = {"1.3B 2k": (142, 189, 196), "1.3B 8k": (72, 170, 220),        # without, with FA1, with FA2
              "2.7B 2k": (149, 189, 205), "2.7B 8k": (80, 175, 225)}
    peak = 312                                                          # A100, 16-bit products, TFLOP/s
    T = 64
    rule = Rule(T, T, scale=1.0, causal=True)
    visited = sum(rule.kind(rows, cols) != EMPTY for rows in tiles(T, 1) for cols in tiles(T, 1))
    return Table("Speeds of FlashAttention-2", "FA2 (2307.08691), Table 1, section 3.1, section 4", [
        row("2.7B 8k, of the peak, %", "72", 100 * tflops["2.7B 8k"][2] / peak, ".1f"),
        row("2.7B 8k, to no FlashAttention", "2.8", tflops["2.7B 8k"][2] / tflops["2.7B 8k"][0], ".2f"),
        row("1.3B 8k, to FlashAttention", "1.3", tflops["1.3B 8k"][2] / tflops["1.3B 8k"][1], ".2f"),
        follows("causal: tiles visited of T², T = 64", (T + 1) / (2 * T), visited / T**2, ".4f",
            why="counted with rule.kind; T·(T + 1)/2 of them"),
        row("backward to forward, FLOPs of products", "2.5",
            backward(fa2, 512, 64, 64, 64).matmul_flops / forward(fa2, 512, 64, 64, 64).matmul_flops, ".2f",
            why="5 products against 2, counted by the ledger"),
    ], "TFLOP/s are the paper's measurements; only what follows from them is checked.")


def fa3_exp():
    """FlashAttention-3: special functions against products; and its Table 2."""
    exps = 16 * 132 * 1.83e9                                            # per clock and multiprocessor
    products, d = 989e12, 128
    flops = attention_flops(8448, 128, 16, batch=4)
    ablation = [("as it is", 3.538, "661"), ("without pipelining products and softmax", 4.021, "582"),
                ("without warp specialisation", 4.105, "570")]
    return Table("Why exp matters on Hopper", "FA3 (2407.08608), section 3.1, footnote 5, Table 2", [
        row("special functions, T/s", "3.9", exps / 1e12, ".2f"),
        row("products to special functions", "256", products / exps, ".0f"),
        row("exp to products, time, 16 bits, d = 128, %", "50", 100 / exps / (4 * d / products), ".0f"),
        row("exp to products, time, 8 bits, %", "100", 100 / exps / (4 * d / (2 * products)), ".0f",
            why="products twice as fast, exp is not"),
        *(row(f"{name}, TFLOP/s from {ms} ms", printed, flops / ms / 1e9, ".0f") for name, ms, printed in ablation),
    ])


def paged_memory():
    """PagedAttention: what a cache of keys and values costs."""
    opt_13b = 2 * 5120 * 40 * 2                                         # bytes of a token: K, V; hidden, layers, fp16
    slots = {"OPT-13B": (12, opt_13b, "15.7"), "OPT-66B": (21, 2 * 9216 * 64 * 2, "9.7"),
             "OPT-175B": (264, 2 * 12288 * 96 * 2, "60.1")}
    return Table("The cache of keys and values", "PagedAttention (2309.06180), section 3, Table 1, Figure 3", [
        row("OPT-13B, KiB a token", "800", opt_13b / 1024, ".0f"),
        row("OPT-13B, GiB for 2048 tokens", "1.6", 2048 * opt_13b / 2**30, ".2f"),
        *(row(f"{name}, thousand slots in {gib} GiB", printed, gib * 2**30 / size / 1000, ".2f",
              differs="the 21 are rounded" if name == "OPT-66B" else "")
          for name, (gib, size, printed) in slots.items()),
        row("request A, slots never used of 2048", "2038", 2048 - 7 - 1 - 2, ".0f",
            why="7 of the prompt, 1 made, 2 to come"),
        row("request B, slots never used of 512", "507", 512 - 3 - 1 - 1, ".0f",
            why="3 of the prompt, 1 made, 1 to come"),
    ], "The paper writes GB; its numbers fit 2³⁰ bytes.")


def fixed_maximum():
    """FlashDecoding++: a fixed number in place of the running maximum, and when it must be given up."""
    def stays_in_range(x, phi=6.0, a=-3.0, b=3.0):
        """Are all exponents strictly between a and b?"""
        return bool(np.all((a < np.array(x) - phi) & (np.array(x) - phi < b)))

    return Table("A fixed number for the maximum", "FlashDecoding++ (2311.01282), section 3, Figure 6", [
        holds("x = 4, 5, 6, 7: asynchronous", stays_in_range([4, 5, 6, 7])),
        holds("y = 3, 6, 9, 6: done again", not stays_in_range([3, 6, 9, 6]),
            why="9 − 6 = 3 is not below b = 3; the figure's label prints 9 − 5 > 2"),
        row("largest x whose exp is a float16", None, float(np.log(np.finfo(np.float16).max)), ".2f"),
        row("largest x whose exp is a float32", None, float(np.log(np.finfo(np.float32).max)), ".2f"),
    ])


def transposed_decoding():
    """FlashMLA-ETAP: padding of 16 query rows, and the ratios of its table."""
    etap, mla, fa3, flashinfer = 89, 32, 17, 18                         # TFLOP/s at 64K
    return Table("Transposed decoding", "FlashMLA-ETAP (2506.01969), its repository's table", [
        row("rows of a 64-row product that are useful, %", "25", 100 * 16 / 64, ".0f"),
        row("to FlashMLA", "2.78", etap / mla, ".2f"), row("to FlashAttention-3", "5.24", etap / fa3, ".2f"),
        row("to FlashInfer", "4.94", etap / flashinfer, ".2f"),
        row("error, FlashAttention-3 to ETAP", "15.2", 1.9e-4 / 1.25e-5, ".1f"),
    ], "The error 1.9e-4 is also what FlashAttention-3 prints for other inputs; the last ratio may compare unlike "
       "things.")


def napkin():
    """FlashAttention on a Napkin: the cost model's exponents, and FlashAttention-2's loops counted against it."""
    N, d, Br = 1024, 64, 64

    def bytes_moved(dtype, Br):
        """By FlashAttention-2, Q, K, V and O all in this dtype."""
        return moved(forward(fa2, N, d, Br, 64)) * np.dtype(dtype).itemsize

    model = 2 * N * d + 2 * N * N * d * d / (Br * d)
    return Table("A cost model", "FlashAttention on a Napkin (2412.03317)", [
        follows("attention in half the bytes an element: fewer bytes by", 4, bytes_moved(np.float16, Br) /
                bytes_moved(ml_dtypes.float8_e4m3fn, 2 * Br), ".2f", within=0.1,
                why="q^(1 + β), β = 1: twice the tile fits; counted by the ledger, with a little of N·d"),
        follows("elements of FA2, 2·N·d + 2·N²·d²/M, M = Br·d", model, moved(forward(fa2, N, d, Br, 64)), ",.0f",
            within=0, why="counted by the ledger, without L"),
    ])
